//! The metrics agents of the nodes: where they are, and which AIScalers a snapshot concerns. It decides nothing about
//! replicas; what readings mean is in `sources::agents`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use metrics_client::{args::AgentsArgs, discovery::SliceView, sources::Sources, view::View};
use runtime::{
    key::Key,
    polling::{Polled, Polling, Trigger},
    process::Process,
    watch::cache::Cache,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    NAME,
    sources::{
        agents::{GpuReading, Installation, METRICS, answer, is_news},
        answer::Answer,
    },
    target::pod::PodView,
};

/// Half the interval of an agent, so that each of its snapshots is sent and an agent with a shorter interval is slowed down.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// The first list of EndpointSlices: one request.
const LISTED_WITHIN: Duration = Duration::from_secs(3);

/// Agents send each second, and the nodes of a target do not send together.
pub(crate) fn polling(period: Duration) -> Polling {
    Polling { period, at_once: 64, deadline: Duration::from_secs(5), gap: Duration::from_secs(1) }
}

/// Keeps the streams until `stop`.
pub(crate) async fn run(sources: Option<Sources>, stop: CancellationToken) {
    match sources {
        Some(sources) => sources.run(stop).await,
        None => stop.cancelled().await,
    }
}

/// See the module.
pub(crate) struct Agents {
    /// `None`: none is to be read.
    pub(crate) sources: Option<Sources>,
    /// `None`: no agent is looked for in the cluster.
    slices: Option<Cache<SliceView>>,
    /// Namespace and name, for messages.
    service: String,
    /// Polls the AIScalers with pods on a node of which something is new.
    pub(crate) trigger: Trigger,
    followed: Arc<Mutex<Followed>>,
}

/// Which AIScalers have pods on which nodes, when each was last polled. A new pod is found by the next poll, before its
/// values count.
#[derive(Default)]
struct Followed {
    by_node: HashMap<Arc<str>, BTreeSet<Key>>,
    of: HashMap<Key, Object>,
}

/// One AIScaler.
#[derive(Default)]
struct Object {
    nodes: BTreeSet<Arc<str>>,
    /// The answers of its last reconcile, by the number of the metric.
    reported: BTreeMap<usize, Answer>,
}

impl Agents {
    /// Declares the watch of the EndpointSlices behind the agents' Service. Nothing is connected to before
    /// `Sources::run`.
    pub(crate) fn new(process: &mut Process, args: &AgentsArgs) -> Self {
        let (namespace, name) = (&args.metrics_agents_namespace, &args.metrics_agents_service);
        let service = format!("{namespace}/{name}");
        let Some(sources) = args.sources(NAME, MIN_INTERVAL, METRICS) else {
            return Self::of(None, None, service);
        };
        let slices =
            process.watch_in_namespace_if_allowed::<SliceView>("EndpointSlice", namespace, &args.selector());
        let (known, follow) = (slices.clone(), args.follow(&sources));
        slices.subscribe(move |_| follow(&known.all()));
        let collector = metrics_client::metrics::collector(&sources, process.leadership());
        process.metrics().with_registry(|registry| registry.register_collector(collector));
        Self::of(Some(sources), Some(slices), service)
    }

    pub(crate) fn of(sources: Option<Sources>, slices: Option<Cache<SliceView>>, service: String) -> Self {
        let followed = Arc::<Mutex<Followed>>::default();
        let trigger = Trigger::default();
        if let Some(sources) = &sources {
            let (kept, triggered) = (Arc::clone(&followed), trigger.clone());
            sources.subscribe(move |change| {
                let followed = kept.lock().unwrap_or_else(PoisonError::into_inner);
                followed.by_node.get(change.node).into_iter().flatten().for_each(|key| triggered.poll(key));
            });
        }
        Self { sources, slices, service, trigger, followed }
    }

    /// Until the agents were looked for once: before, nothing says that a node has none.
    pub(crate) async fn are_known(&self) {
        if let Some(slices) = &self.slices {
            // A watch that fails is in `/readyz`.
            let _ = timeout(LISTED_WITHIN, slices.synced()).await;
        }
    }

    /// Answers for the metrics of one AIScaler that agents measure, each with its number, and whether any says something
    /// new.
    pub(crate) fn read(
        &self,
        key: &Key,
        wanted: &[(usize, GpuReading)],
        ready: &[Arc<PodView>],
        now: Timestamp,
    ) -> (Polled, Vec<(usize, Answer)>) {
        let nodes: BTreeSet<&str> = ready.iter().filter_map(|pod| pod.node.as_deref()).collect();
        let installation = match &self.sources {
            None => Installation::Off,
            Some(sources) if sources.is_empty() => Installation::NotFound { service: &self.service },
            Some(_) => Installation::Found,
        };
        let of_node = |node: &str| self.sources.as_ref().and_then(|sources| sources.of_node(node));
        let views: BTreeMap<&str, View> =
            nodes.iter().filter_map(|node| Some((*node, of_node(node)?))).collect();
        let answers: Vec<(usize, Answer)> = wanted
            .iter()
            .map(|(index, wanted)| (*index, answer(*wanted, ready, &views, installation, now)))
            .collect();
        let mut followed = self.lock();
        followed.follow(key, &nodes);
        (followed.note(key, &answers), answers)
    }

    pub(crate) fn forget(&self, key: &Key) {
        let mut followed = self.lock();
        followed.follow(key, &BTreeSet::new());
        followed.of.remove(key);
    }

    /// Of how many objects anything is kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().of.len()
    }

    fn lock(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Followed {
    fn follow(&mut self, key: &Key, nodes: &BTreeSet<&str>) {
        let object = self.of.entry(key.clone()).or_default();
        object.nodes.retain(|node| {
            let stays = nodes.contains(&**node);
            if !stays && let Some(keys) = self.by_node.get_mut(node) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_node.remove(node);
                }
            }
            stays
        });
        for node in nodes {
            if !object.nodes.contains(*node) {
                let node: Arc<str> = (*node).into();
                object.nodes.insert(Arc::clone(&node));
                self.by_node.entry(node).or_default().insert(key.clone());
            }
        }
    }

    fn note(&mut self, key: &Key, answers: &[(usize, Answer)]) -> Polled {
        let reported = &mut self.of.entry(key.clone()).or_default().reported;
        let is_reported = |(index, answer): &(usize, Answer)| {
            reported.get(index).is_some_and(|before| !is_news(before, answer))
        };
        if reported.len() == answers.len() && answers.iter().all(is_reported) {
            return Polled::Unchanged;
        }
        *reported = answers.iter().cloned().collect();
        Polled::Changed
    }
}

#[cfg(test)]
mod tests {
    use scaling::reading::{Fault, Reading};

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("demo", name)
    }

    #[test]
    fn a_node_leads_to_the_objects_with_pods_on_it_now() {
        let mut followed = Followed::default();
        let nodes = |names: &[&'static str]| names.iter().copied().collect::<BTreeSet<&str>>();
        followed.follow(&key("a"), &nodes(&["gpu-1", "gpu-2"]));
        followed.follow(&key("b"), &nodes(&["gpu-2"]));
        let of = |followed: &Followed, node: &str| -> Vec<String> {
            followed.by_node.get(node).into_iter().flatten().map(ToString::to_string).collect()
        };
        assert_eq!(of(&followed, "gpu-2"), ["demo/a", "demo/b"]);
        followed.follow(&key("a"), &nodes(&["gpu-3"]));
        assert_eq!(of(&followed, "gpu-1"), [""; 0]);
        assert_eq!(of(&followed, "gpu-2"), ["demo/b"]);
        assert_eq!(of(&followed, "gpu-3"), ["demo/a"]);
        followed.follow(&key("a"), &nodes(&[]));
        followed.follow(&key("b"), &nodes(&[]));
        assert!(followed.by_node.is_empty(), "nothing is kept of what is gone");
    }

    #[test]
    fn an_object_is_woken_for_what_is_new_since_it_was_last_woken() {
        let mut followed = Followed::default();
        let missing =
            |message: &str| vec![(0, Answer::new(Reading::Missing(Fault::Stale), message.to_owned()))];
        assert_eq!(followed.note(&key("a"), &missing("silent for 4 s")), Polled::Changed);
        assert_eq!(followed.note(&key("a"), &missing("silent for 5 s")), Polled::Unchanged);
        assert_eq!(followed.note(&key("a"), &missing("gone")), Polled::Changed);
        assert_eq!(followed.note(&key("b"), &missing("gone")), Polled::Changed);
        assert_eq!(followed.note(&key("b"), &[]), Polled::Changed, "the spec names no such metric any more");
    }
}
