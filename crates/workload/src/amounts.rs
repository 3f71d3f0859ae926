//! Extended resources (GPUs above all): what a container asks for, what a pod holds, what a node offers. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

/// Whole amounts of extended resources, by name. Most pods hold none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extended(Box<[(Box<str>, i64)]>);

impl Extended {
    pub(crate) fn from_amounts(amounts: &BTreeMap<String, Quantity>) -> Self {
        // Extended resources have a domain and are whole numbers; those of Kubernetes itself have none.
        let amounts = amounts.iter().filter(|(name, _)| name.contains('/'));
        let whole =
            amounts.filter_map(|(name, amount)| Some((name.as_str().into(), quantity::whole(&amount.0)?)));
        Self(whole.collect())
    }

    pub fn of(&self, resource: &str) -> i64 {
        let found = self.0.iter().find(|(name, _)| **name == *resource);
        found.map_or(0, |(_, amount)| *amount)
    }
}

/// What a pod holds of its node, by the scheduler's rule: containers and sidecars run together; each other init
/// container runs alone, beside the sidecars that were started before it.
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
        if container.restart_policy.as_deref() == Some("Always") {
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

/// The requests of a container, and whether it is a sidecar.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerSpec {
    resources: Resources,
    restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, Quantity>,
}

#[cfg(test)]
mod tests {
    use crate::pod::PodView;

    const TWO: &str = "resources: {requests: {cpu: 1, memory: 1Gi, nvidia.com/gpu: '2'}}";

    fn held(containers: &str) -> i64 {
        let text = format!("{{metadata: {{name: a}}, spec: {{nodeName: n, {containers}}}}}");
        serde_saphyr::from_str::<PodView>(&text).unwrap().held.of("nvidia.com/gpu")
    }

    #[test]
    fn a_pod_holds_what_its_containers_hold_together_or_an_earlier_one_alone() {
        assert_eq!(held(&format!("containers: [{{{TWO}}}, {{{TWO}}}]")), 4);
        assert_eq!(held(&format!("containers: [{{{TWO}}}], initContainers: [{{{TWO}}}, {{{TWO}}}]")), 2);
        assert_eq!(held("containers: [{resources: {requests: {cpu: 500m}}}, {}]"), 0);
    }

    #[test]
    fn a_sidecar_holds_its_amounts_beside_all_that_start_after_it() {
        let sidecar = format!("{{restartPolicy: Always, {TWO}}}");
        assert_eq!(held(&format!("containers: [{{{TWO}}}], initContainers: [{sidecar}]")), 4);
        assert_eq!(held(&format!("containers: [{{}}], initContainers: [{sidecar}, {{{TWO}}}]")), 4);
        assert_eq!(held(&format!("containers: [{{}}], initContainers: [{{{TWO}}}, {sidecar}]")), 2);
    }

    #[test]
    fn an_amount_may_have_a_suffix() {
        assert_eq!(held("containers: [{resources: {requests: {nvidia.com/gpu: 1k}}}]"), 1_000);
    }
}
