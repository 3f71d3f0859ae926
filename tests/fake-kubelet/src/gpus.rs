//! Which pods of a node hold which of its GPUs.

use std::collections::{BTreeMap, BTreeSet};

use fake_nvml::State as Machine;
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::podresources::v1::PodResources;

use crate::{GPU, holding};

/// A machine with so many GPUs, whose ids no other node has.
pub fn machine_of(node: &str, gpus: usize) -> Machine {
    let mut machine = Machine::with_gpus(gpus);
    for (number, gpu) in machine.gpus.iter_mut().enumerate() {
        gpu.uuid = format!("GPU-{node}-{number}");
    }
    machine
}

/// The GPUs of a node. A pod keeps what it got until it is gone or has ended.
#[derive(Debug)]
pub struct Gpus {
    ids: Vec<String>,
    holders: BTreeMap<String, Holder>,
}

#[derive(Debug)]
struct Holder {
    namespace: String,
    pod: String,
    container: String,
    /// Indexes of `ids`.
    gpus: BTreeSet<usize>,
}

impl Gpus {
    pub fn of(machine: &Machine) -> Self {
        let ids = machine.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        Self { ids, holders: BTreeMap::new() }
    }

    /// Takes the GPUs back from pods that are no longer there, and gives free ones to the first container of new pods that
    /// requests any. The scheduler sees to it that there are enough.
    pub fn follow<'a>(&mut self, pods: impl Iterator<Item = &'a Pod>) {
        let pods: BTreeMap<&str, &Pod> = pods
            .filter(|pod| !has_ended(pod))
            .filter_map(|pod| Some((pod.metadata.uid.as_deref()?, pod)))
            .collect();
        self.holders.retain(|uid, _| pods.contains_key(uid.as_str()));
        for (uid, pod) in pods {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let Some((container, wanted)) = containers
                .map(|container| (&container.name, requested(container)))
                .find(|(_, gpus)| *gpus > 0)
            else {
                continue;
            };
            if self.holders.contains_key(uid) {
                continue;
            }
            let gpus = (0..self.ids.len()).filter(|gpu| !self.is_held(*gpu)).take(wanted).collect();
            let holder = Holder {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                pod: pod.metadata.name.clone().unwrap_or_default(),
                container: container.clone(),
                gpus,
            };
            self.holders.insert(uid.to_owned(), holder);
        }
    }

    pub fn is_held(&self, gpu: usize) -> bool {
        self.holders.values().any(|holder| holder.gpus.contains(&gpu))
    }

    /// What the kubelet answers.
    pub fn pods(&self) -> Vec<PodResources> {
        let answer = |Holder { namespace, pod, container, gpus }: &Holder| {
            let ids = gpus.iter().filter_map(|gpu| self.ids.get(*gpu).cloned()).collect();
            holding(namespace, pod, container, GPU, ids)
        };
        self.holders.values().map(answer).collect()
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn requested(container: &Container) -> usize {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.and_then(|limits| limits.get(GPU)?.0.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{PodSpec, PodStatus, ResourceRequirements},
        apimachinery::pkg::api::resource::Quantity,
    };

    use super::*;

    fn pod(name: &str, gpus: u32) -> Pod {
        let limits = BTreeMap::from([(GPU.to_owned(), Quantity(gpus.to_string()))]);
        let resources = ResourceRequirements { limits: Some(limits), ..Default::default() };
        let container =
            Container { name: "engine".to_owned(), resources: Some(resources), ..Default::default() };
        let mut pod = Pod {
            spec: Some(PodSpec { containers: vec![container], ..Default::default() }),
            ..Pod::default()
        };
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.uid = Some(format!("uid of {name}"));
        pod
    }

    fn held(gpus: &Gpus) -> Vec<(String, Vec<String>)> {
        let held = |pod: PodResources| (pod.name, pod.containers[0].devices[0].device_ids.clone());
        gpus.pods().into_iter().map(held).collect()
    }

    #[test]
    fn a_pod_keeps_its_gpus_until_it_has_ended() {
        let mut gpus = Gpus::of(&machine_of("n", 3));
        let (one, two, none) = (pod("one", 1), pod("two", 2), pod("none", 0));
        gpus.follow([&two, &none].into_iter());
        gpus.follow([&one, &two, &none].into_iter());
        let both = [("one", vec!["GPU-n-2"]), ("two", vec!["GPU-n-0", "GPU-n-1"])];
        let named = |pods: &[(&str, Vec<&str>)]| -> Vec<(String, Vec<String>)> {
            let owned = |ids: &Vec<&str>| ids.iter().map(|id| (*id).to_owned()).collect();
            pods.iter().map(|(name, ids)| ((*name).to_owned(), owned(ids))).collect()
        };
        assert_eq!(held(&gpus), named(&both));
        let ended = PodStatus { phase: Some("Failed".to_owned()), ..PodStatus::default() };
        let two = Pod { status: Some(ended), ..two };
        gpus.follow([&one, &two, &none].into_iter());
        assert_eq!(held(&gpus), named(&both[..1]));
        assert!(gpus.is_held(2) && !gpus.is_held(0));
    }
}
