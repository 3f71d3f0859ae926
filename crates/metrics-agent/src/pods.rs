//! Which containers hold which devices, by the kubelet's pod-resources API: one connection, asked at an interval, kept
//! between.
//!
//! A pod that is not in an answer any more is not reported any more. While the kubelet does not answer, the last answer
//! stays, with its age, and is dropped after a minute. The kubelet of releases before 1.34 may list a pod for a while after
//! it has ended; the API has no field that says so, so a subscriber that knows pods compares. Nothing here reads a device.

mod ids;

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use metrics_source::moment::Clock;
use proto::{
    metrics::v1::{FaultReason, Holder, PodRef},
    podresources::v1::{
        ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse,
        pod_resources_lister_client::PodResourcesListerClient,
    },
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use self::ids::{Key, key};
use crate::device::{Fault, Identity};

/// Longer than a loaded kubelet needs for a full node; the next question waits for this one.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// tonic's own limit is 4 MiB, and a node with many devices and topologies exceeds it (NVIDIA/dcgm-exporter#509).
const LARGEST_ANSWER: usize = 64 * 1024 * 1024;
/// A kubelet that restarts is back within seconds; pods that have ended must not be reported for long.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Missed questions until the answer counts as old.
const FRESH_INTERVALS: u32 = 2;

/// What the kubelet has answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holdings {
    /// Between two questions; nothing where the kubelet is not asked.
    refresh: Option<Duration>,
    /// Time of the last answer.
    answered: Option<Duration>,
    pub(crate) fault: Option<Fault>,
    holders: HashMap<Key, Vec<Holder>>,
}

/// How much the holders can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knowledge {
    NotAsked,
    Fresh { since: Duration },
    Stale { since: Duration },
    Missing,
}

impl Holdings {
    /// Before the first answer.
    pub(crate) fn before_the_first_answer(refresh: Duration) -> Self {
        Self { refresh: Some(refresh), ..Self::default() }
    }

    /// Who holds a device or a partition.
    pub(crate) fn holders(&self, identity: &Identity) -> Vec<Holder> {
        let by_number = match (identity.minor, identity.instance) {
            (Some(minor), Some(instance)) => Some(Key::Instance { minor, instance }),
            (Some(minor), None) => Some(Key::Minor(minor)),
            (None, _) => None,
        };
        let by_parent = identity
            .instance
            .map(|instance| Key::InstanceOf { device: identity.parent_id.clone(), instance });
        [Some(Key::Id(identity.id.clone())), by_number, by_parent]
            .into_iter()
            .flatten()
            .filter_map(|key| self.holders.get(&key))
            .flatten()
            .cloned()
            .collect()
    }

    pub(crate) fn knowledge(&self, now: Duration) -> Knowledge {
        match (self.refresh, self.answered) {
            (None, _) => Knowledge::NotAsked,
            (Some(_), None) => Knowledge::Missing,
            (Some(refresh), Some(since)) => {
                let is_fresh = now.saturating_sub(since) <= refresh * FRESH_INTERVALS;
                if is_fresh { Knowledge::Fresh { since } } else { Knowledge::Stale { since } }
            }
        }
    }

    /// After an answer.
    fn answered(&self, answer: ListPodResourcesResponse, now: Duration) -> Self {
        Self { refresh: self.refresh, answered: Some(now), fault: None, holders: holders(answer) }
    }

    /// After a question without an answer.
    fn unanswered(&self, fault: Fault, now: Duration) -> Self {
        let is_kept = self.answered.is_some_and(|since| now.saturating_sub(since) < KEPT_FOR);
        let (answered, holders) =
            if is_kept { (self.answered, self.holders.clone()) } else { (None, HashMap::new()) };
        Self { refresh: self.refresh, answered, fault: Some(fault), holders }
    }
}

fn holders(answer: ListPodResourcesResponse) -> HashMap<Key, Vec<Holder>> {
    let mut found: HashMap<Key, Vec<Holder>> = HashMap::new();
    for pod in answer.pod_resources {
        for container in pod.containers {
            let name = container.name.clone();
            for (resource, id) in held(container) {
                let holders = found.entry(key(&resource, &id)).or_default();
                let known = holders.iter_mut().find(|holder| {
                    holder.container == name
                        && holder.resource == resource
                        && holder
                            .pod
                            .as_ref()
                            .is_some_and(|it| it.name == pod.name && it.namespace == pod.namespace)
                });
                match known {
                    Some(holder) => holder.shares += 1,
                    None => holders.push(Holder {
                        pod: Some(PodRef {
                            namespace: pod.namespace.clone(),
                            name: pod.name.clone(),
                            uid: String::new(),
                        }),
                        container: name.clone(),
                        resource,
                        shares: 1,
                    }),
                }
            }
        }
    }
    found
}

/// Resources and ids of devices that a container holds.
fn held(container: ContainerResources) -> impl Iterator<Item = (String, String)> {
    let plugins = container.devices.into_iter().flat_map(|devices| {
        let resource = devices.resource_name;
        devices.device_ids.into_iter().map(move |id| (resource.clone(), id))
    });
    let claims = container.dynamic_resources.into_iter().flat_map(|claim| claim.claim_resources);
    plugins.chain(claims.map(|device| (device.driver_name, device.device_name)))
}

/// The kubelet of this node.
pub(crate) struct Kubelet {
    pub(crate) socket: PathBuf,
    pub(crate) refresh: Duration,
}

/// Asks until `stop`. A kubelet that restarts is connected to again by the next question.
pub(crate) async fn follow(
    kubelet: Kubelet,
    holdings: watch::Sender<Arc<Holdings>>,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut client = client(&kubelet);
    let mut ticks = interval(kubelet.refresh);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let Some(answer) = stop.run_until_cancelled(ask(client.as_mut())).await else { break };
        let (before, now) = (Arc::clone(&holdings.borrow()), clock.now().uptime);
        holdings.send_replace(Arc::new(match answer {
            Ok(answer) => before.answered(answer, now),
            Err(fault) => before.unanswered(fault, now),
        }));
    }
}

fn client(kubelet: &Kubelet) -> Result<PodResourcesListerClient<Channel>, Fault> {
    let address = format!("unix:{}", kubelet.socket.display());
    let endpoint = Endpoint::from_shared(address).map_err(|error| {
        Fault::new(FaultReason::NoKubelet, format!("the socket has no usable path: {error}"))
    })?;
    let channel = endpoint.connect_timeout(ANSWER_WITHIN).connect_lazy();
    Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(LARGEST_ANSWER))
}

async fn ask(
    client: Result<&mut PodResourcesListerClient<Channel>, &mut Fault>,
) -> Result<ListPodResourcesResponse, Fault> {
    let client = client.map_err(|fault| fault.clone())?;
    let fault = |message: String| {
        Fault::new(FaultReason::NoKubelet, format!("the kubelet did not list pods: {message}"))
    };
    match timeout(ANSWER_WITHIN, client.list(ListPodResourcesRequest {})).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(fault(status.message().to_owned())),
        Err(_) => Err(fault(format!("no answer within {} s", ANSWER_WITHIN.as_secs()))),
    }
}

#[cfg(test)]
mod tests;
