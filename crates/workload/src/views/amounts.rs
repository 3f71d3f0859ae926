//! Extended resources, such as GPUs: requests of containers and pods, allocatable amounts of nodes. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

/// Whole amounts of extended resources, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extended(Box<[(Box<str>, i64)]>);

impl Extended {
    pub(crate) fn from_amounts(amounts: &BTreeMap<String, Quantity>) -> Self {
        // Names of extended resources have a domain; `cpu` and `memory` do not.
        let amounts = amounts.iter().filter(|(name, _)| name.contains('/'));
        let whole = amounts
            .filter_map(|(name, amount)| Some((name.as_str().into(), text::quantity::whole(&amount.0)?)));
        Self(whole.collect())
    }

    pub fn of(&self, resource: &str) -> i64 {
        let found = self.0.iter().find(|(name, _)| **name == *resource);
        found.map_or(0, |(_, amount)| *amount)
    }
}

/// The effective request of a pod, by the scheduler's rule. It is the larger of two: the sum of containers and sidecars, and
/// the largest sum of one other init container and the sidecars before it.
pub(crate) fn held(init_containers: &[ContainerSpec], containers: &[ContainerSpec]) -> Extended {
    type Amounts = BTreeMap<Box<str>, i64>;
    fn add(sum: &mut Amounts, container: &ContainerSpec) {
        for (name, amount) in Extended::from_amounts(&container.resources.requests).0 {
            *sum.entry(name).or_default() += amount;
        }
    }
    let mut sidecars = Amounts::new();
    let mut most = Amounts::new();
    for container in init_containers {
        let mut together = sidecars.clone();
        add(&mut together, container);
        if container.is_sidecar() {
            sidecars = together;
            continue;
        }
        for (name, amount) in together {
            let known = most.entry(name).or_default();
            *known = amount.max(*known);
        }
    }
    let mut together = sidecars;
    containers.iter().for_each(|container| add(&mut together, container));
    for (name, amount) in most {
        let known = together.entry(name).or_default();
        *known = amount.max(*known);
    }
    Extended(together.into_iter().collect())
}

/// The name and the requests of a container.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerSpec {
    pub(crate) name: Box<str>,
    resources: Resources,
    restart_policy: Option<Box<str>>,
}

impl ContainerSpec {
    /// Of an init container: the next containers wait for its start, and not for its end.
    pub(crate) fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, Quantity>,
}

#[cfg(test)]
mod tests {
    use crate::views::pod::PodView;

    const TWO: &str = "resources: {requests: {cpu: 1, memory: 1Gi, nvidia.com/gpu: '2'}}";

    fn held(containers: &str) -> i64 {
        let text = format!("{{metadata: {{name: a}}, spec: {{nodeName: n, {containers}}}}}");
        serde_saphyr::from_str::<PodView>(&text).unwrap().held.of("nvidia.com/gpu")
    }

    #[test]
    fn a_pod_holds_the_sum_of_its_containers_or_the_largest_init_container() {
        assert_eq!(held(&format!("containers: [{{{TWO}}}, {{{TWO}}}]")), 4);
        assert_eq!(held(&format!("containers: [{{{TWO}}}], initContainers: [{{{TWO}}}, {{{TWO}}}]")), 2);
        assert_eq!(held("containers: [{resources: {requests: {cpu: 500m}}}, {}]"), 0);
    }

    #[test]
    fn a_sidecar_adds_its_request_to_the_containers_after_it() {
        let sidecar = format!("{{restartPolicy: Always, {TWO}}}");
        assert_eq!(held(&format!("containers: [{{{TWO}}}], initContainers: [{sidecar}]")), 4);
        assert_eq!(held(&format!("containers: [{{}}], initContainers: [{sidecar}, {{{TWO}}}]")), 4);
        assert_eq!(held(&format!("containers: [{{}}], initContainers: [{{{TWO}}}, {sidecar}]")), 2);
    }

    #[test]
    fn amounts_with_a_suffix_are_parsed() {
        assert_eq!(held("containers: [{resources: {requests: {nvidia.com/gpu: 1k}}}]"), 1_000);
    }
}
