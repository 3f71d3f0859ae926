//! Events: why a scheduled pod is not set up (volumes, network), and why a Job has no pods. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::reasons;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{
    Cause, Finding,
    faults::container::{LONGEST_QUOTE, quote},
    time::elapsed,
    views::{metadata::timestamp, pod::PodView},
};

/// Events about volumes that cannot be attached to a node, most often because they are attached to another one.
pub const ATTACH_FAILURES: &str = "involvedObject.kind=Pod,reason=FailedAttachVolume";
/// Events about volumes that a kubelet cannot mount. Shared file systems are mounted without being attached.
pub const MOUNT_FAILURES: &str = "involvedObject.kind=Pod,reason=FailedMount";
/// Events about pods whose sandbox a kubelet cannot create, most often because of the network plugin.
pub const SANDBOX_FAILURES: &str = "involvedObject.kind=Pod,reason=FailedCreatePodSandBox";

/// Events about Jobs whose pods the API server refuses, most often because of a quota.
pub const CREATION_FAILURES: &str = "involvedObject.kind=Job,reason=FailedCreate";

/// An event about a pod or a Job. Its text is sanitized and cut, because any user of a namespace may create events there.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = Event)]
#[serde(from = "EventParts")]
pub struct EventView {
    pub metadata: ObjectMeta,
    /// Name of the object.
    pub object: String,
    uid: String,
    message: String,
    last: Option<Timestamp>,
}

impl EventView {
    pub fn is_about(&self, pod: &PodView) -> bool {
        self.is_about_object(&pod.metadata)
    }

    pub fn is_about_object(&self, object: &ObjectMeta) -> bool {
        let uid = object.uid.as_deref().unwrap_or_default();
        self.metadata.namespace == object.namespace && !uid.is_empty() && self.uid == uid
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// When it was repeated last.
    pub fn last(&self) -> Option<Timestamp> {
        self.last
    }
}

/// Why the kubelet has not set up one pod: a volume is not attached or mounted, or there is no sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct SetupFailure {
    message: String,
    tolerated_for: Duration,
    /// The API server deletes its only event.
    is_recorded: bool,
}

/// Why a volume of a Secret cannot be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingSecret {
    Secret,
    /// The Secret exists and lacks a key that the volume references.
    Key,
}

/// With rollout strategy `Replace` the first attempt to attach a volume often fails, because the old pod's node has not
/// released it yet.
const ATTACHED_WITHIN: Duration = Duration::from_secs(60);
/// A kubelet retries after 0.5 s, 1 s, 2 s and so on.
const MOUNTED_WITHIN: Duration = Duration::from_secs(30);
/// A network plugin that starts with its node takes a while.
const SANDBOX_CREATED_WITHIN: Duration = Duration::from_secs(60);
/// Begins the kubelet's message about a sandbox: the namespaces and the network of a pod.
const SANDBOX: &str = "Failed to create pod sandbox";
/// Begins the message about a volume that is attached to another node.
const MULTI_ATTACH: &str = "Multi-Attach";

/// Begins the kubelet's message about a volume that is attached but not mounted. While it waits for the attachment, the
/// message begins with `Unable to attach or mount`.
const MOUNTING: &str = "MountVolume.";

impl SetupFailure {
    /// The failure of a pod, from the events about it. A failure to attach takes precedence over those of the kubelet.
    ///
    /// A failure to attach is reported by one event, which the API server deletes after an hour. `facts` has its message for as
    /// long as the pod waits (see `fact`).
    pub fn of(
        pod: &PodView,
        attach: &[Arc<EventView>],
        of_kubelet: &[Arc<EventView>],
        facts: &BTreeMap<String, Timestamp>,
    ) -> Option<Self> {
        fn last_of<'a>(events: &'a [Arc<EventView>], pod: &PodView) -> Option<&'a EventView> {
            let of_pod = events.iter().filter(|event| event.is_about(pod));
            of_pod.max_by_key(|event| event.last).map(AsRef::as_ref)
        }
        let (attach, of_kubelet) = (last_of(attach, pod), last_of(of_kubelet, pod));
        let about = about(pod.uid());
        let known = || facts.keys().find_map(|fact| fact.strip_prefix(&about)).map(str::to_owned);
        // A newer failure to mount, or of the sandbox, shows that the volume has been attached since.
        let is_attached = of_kubelet.is_some_and(|newer| {
            [MOUNTING, SANDBOX].iter().any(|text| newer.message.starts_with(text))
                && attach.is_none_or(|attach| attach.last < newer.last)
        });
        let unattached = attach.map(|event| event.message.clone()).or_else(known).filter(|_| !is_attached);
        let of_kubelet = || {
            let message = of_kubelet?.message.clone();
            let is_sandbox = message.starts_with(SANDBOX);
            Some((message, if is_sandbox { SANDBOX_CREATED_WITHIN } else { MOUNTED_WITHIN }))
        };
        let (is_recorded, failure) = match unattached {
            Some(message) => (true, Some((message, ATTACHED_WITHIN))),
            None => (false, of_kubelet()),
        };
        failure.map(|(message, tolerated_for)| Self { message, tolerated_for, is_recorded })
    }

    /// The fact to record in `facts::FactTimes`, so that the failure is known after its event is deleted. Kubelets repeat
    /// their events, so these need no record.
    pub fn fact(&self, uid: &str) -> Option<String> {
        self.is_recorded.then(|| format!("{}{}", about(uid), self.message))
    }

    /// Whether the volume is attached to another node and `is_one` holds for every pod that the event names as its user:
    /// `Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) a, b and 1 pod(s) in different namespaces`.
    pub fn is_used_only_by(&self, is_one: impl Fn(&str) -> bool) -> bool {
        // A cut message may lack names.
        let is_whole = self.message.len() + char::MAX_LEN_UTF8 <= LONGEST_QUOTE;
        let Some((_, users)) = self.message.split_once(MULTI_ATTACH).filter(|_| is_whole) else {
            return false;
        };
        match users.split_once("used by pod(s) ") {
            Some((_, names)) => names.split(", ").all(|name| is_one(name.trim())),
            None => !users.contains("pod(s)"),
        }
    }

    /// The volume and what is missing for it, if its Secret or a key of its Secret does not exist:
    /// `MountVolume.SetUp failed for volume "ca" : secret "x" not found` or `... : references non-existent secret key: k`
    pub fn missing_secret(&self) -> Option<(&str, MissingSecret)> {
        let (step, why) = self.message.strip_prefix(MOUNTING)?.rsplit_once(" : ")?;
        let missing = if why.starts_with("secret \"") && why.ends_with("\" not found") {
            MissingSecret::Secret
        } else if why.starts_with("references non-existent secret key: ") {
            MissingSecret::Key
        } else {
            return None;
        };
        let volume = step.split_once(" for volume \"").and_then(|(_, volume)| volume.strip_suffix('"'));
        Some((volume.unwrap_or_default(), missing))
    }

    /// The cause, once the pod has waited for longer than is tolerated.
    pub fn finding(&self, pod: &PodView, now: Timestamp) -> Finding {
        let waited = pod.placed().map(|placed| elapsed(placed, now));
        let remaining = waited
            .and_then(|waited| self.tolerated_for.checked_sub(waited))
            .filter(|remaining| !remaining.is_zero());
        Finding { cause: remaining.is_none().then(|| self.cause_of(pod)), requeue_after: remaining }
    }

    /// However long it has lasted.
    pub fn cause_of(&self, pod: &PodView) -> Cause {
        let (name, node) = (pod.name(), pod.node.as_deref().unwrap_or_default());
        if self.message.starts_with(SANDBOX) {
            let message = format!(
                "pod {name} on node {node} cannot be set up: {}; look at the network plugin and the runtime of the node",
                self.message
            );
            return Cause { reason: reasons::SANDBOX_FAILED, message };
        }
        let reason = if self.missing_secret().is_some() {
            reasons::SECRET_NOT_FOUND
        } else if self.message.contains(" : configmap \"")
            || self.message.contains("non-existent config key: ")
        {
            reasons::CONFIG_MAP_NOT_FOUND
        } else {
            reasons::VOLUME_NOT_ATTACHED
        };
        Cause { reason, message: format!("pod {name} on node {node} waits for its volume: {}", self.message) }
    }
}

fn about(uid: &str) -> String {
    format!("volume of pod {uid}: ")
}

/// The API server generates uids of 36 bytes.
const LONGEST_UID: usize = 64;
/// The API server's limit.
const LONGEST_NAME: usize = 253;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventParts {
    metadata: ObjectMeta,
    involved_object: InvolvedParts,
    #[serde(default)]
    message: String,
    #[serde(default, deserialize_with = "timestamp")]
    last_timestamp: Option<Timestamp>,
    #[serde(default, deserialize_with = "timestamp")]
    event_time: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InvolvedParts {
    name: String,
    uid: String,
}

impl From<EventParts> for EventView {
    fn from(parts: EventParts) -> Self {
        let EventParts { metadata, involved_object, message, last_timestamp, event_time } = parts;
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        let short = |text: String, most| if text.len() <= most { text } else { String::new() };
        Self {
            metadata,
            object: short(involved_object.name, LONGEST_NAME),
            uid: short(involved_object.uid, LONGEST_UID),
            message: quote(&message),
            last: last_timestamp.or(event_time),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn event(uid: &str, message: &str, more: &str) -> Arc<EventView> {
        let text = format!(
            "{{metadata: {{name: a, namespace: demo}}, involvedObject: {{name: chat, uid: {uid}}}, message: \
             '{message}'{more}}}"
        );
        Arc::new(serde_saphyr::from_str(&text).unwrap())
    }

    fn pod(namespace: &str) -> PodView {
        let labels = "{app.kubernetes.io/managed-by: a-controller, app.kubernetes.io/name: a, \
                      app.kubernetes.io/instance: b}";
        let text = format!(
            "{{metadata: {{name: chat, namespace: {namespace}, uid: u, labels: {labels}}}, spec: {{nodeName: gpu-1, \
             containers: []}}, status: {{conditions: [{{type: PodScheduled, status: 'True', lastTransitionTime: \
             '{NOON}'}}]}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    const NOON: &str = "2026-01-01T12:00:00Z";

    fn at(seconds: i64) -> Timestamp {
        NOON.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
    }

    fn failure(attach: &[Arc<EventView>], mount: &[Arc<EventView>]) -> Option<SetupFailure> {
        SetupFailure::of(&pod("demo"), attach, mount, &BTreeMap::new())
    }

    #[test]
    fn the_text_of_an_event_is_sanitized_and_cut() {
        let large = "x".repeat(1 << 20);
        let kept = event("u", &large, "");
        assert!(kept.message.capacity() <= 1_024, "{}", kept.message.capacity());
        assert_eq!(event("u", "Multi-Attach\terror\u{202e}", "").message, "Multi-Attach error");
        assert_eq!(event(&large, "", "").uid, "");
    }

    #[test]
    fn an_event_is_about_the_pod_of_its_namespace_and_uid() {
        let (own, other) = (event("u", "a", ""), event("v", "a", ""));
        assert_eq!([own.is_about(&pod("demo")), own.is_about(&pod("attacker"))], [true, false]);
        assert!(!other.is_about(&pod("demo")));
        assert!(!event("''", "a", "").is_about(&PodView::default()));
    }

    #[test]
    fn the_latest_failure_to_attach_takes_precedence_over_a_failure_to_mount() {
        let message_of = |attach: &[Arc<EventView>], mount: &[Arc<EventView>]| {
            failure(attach, mount).map(|failure| failure.message)
        };
        let mount = [event("u", "MountVolume.SetUp failed", "")];
        assert_eq!(message_of(&[], &mount).as_deref(), Some("MountVolume.SetUp failed"));
        let attach = ["12:00:09", "12:00:10", "12:00:08"]
            .map(|time| event("u", time, &format!(", lastTimestamp: '2026-01-01T{time}Z'")));
        assert_eq!(message_of(&attach, &mount).as_deref(), Some("12:00:10"));
        let later = [event("u", "MountVolume.MountDevice failed", ", lastTimestamp: '2026-01-01T12:01:00Z'")];
        assert_eq!(
            message_of(&attach, &later).as_deref(),
            Some("MountVolume.MountDevice failed"),
            "it is attached"
        );
        let waits = [event("u", "Unable to attach or mount", ", lastTimestamp: '2026-01-01T12:01:00Z'")];
        assert_eq!(message_of(&attach, &waits).as_deref(), Some("12:00:10"));
        assert_eq!(message_of(&[], &[]), None);
    }

    #[test]
    fn a_failure_to_attach_is_known_after_its_event_is_deleted() {
        let first = failure(&[event("u", "Multi-Attach error", "")], &[]).unwrap();
        let facts: BTreeMap<String, Timestamp> =
            first.fact("u").into_iter().map(|fact| (fact, at(0))).collect();
        let mount = [event("u", "timed out waiting", "")];
        let kept = SetupFailure::of(&pod("demo"), &[], &mount, &facts);
        assert_eq!(kept.as_ref(), Some(&first));
        assert_eq!(kept.unwrap().fact("u"), first.fact("u"), "the fact can be recorded again");
        let another = first.fact("v").into_iter().map(|fact| (fact, at(0))).collect();
        assert_eq!(SetupFailure::of(&pod("demo"), &[], &[], &another), None);
        assert_eq!(failure(&[], &mount).unwrap().fact("u"), None, "kubelets repeat the event");
    }

    #[test]
    fn a_pod_may_wait_60_s_for_an_attachment_and_30_s_for_a_mount() {
        let found = |failure: &SetupFailure, seconds| {
            let Finding { cause, requeue_after } = failure.finding(&pod("demo"), at(seconds));
            (cause.map(|cause| cause.message), requeue_after.map(|wait| wait.as_secs()))
        };
        let attach = failure(&[event("u", "a", "")], &[]).unwrap();
        let message = "pod chat on node gpu-1 waits for its volume: a".to_owned();
        assert_eq!(found(&attach, -9), (None, Some(60)));
        assert_eq!(found(&attach, 59), (None, Some(1)));
        assert_eq!(found(&attach, 60), (Some(message.clone()), None));
        let mount = failure(&[], &[event("u", "a", "")]).unwrap();
        assert_eq!(found(&mount, 29), (None, Some(1)));
        assert_eq!(found(&mount, 30), (Some(message), None));
    }

    #[test]
    fn a_sandbox_that_cannot_be_created_is_named_after_a_minute() {
        let text = "Failed to create pod sandbox: rpc error: plugin type=\"calico\" failed (add)";
        let sandbox = failure(&[], &[event("u", text, "")]).unwrap();
        let Finding { cause, requeue_after } = sandbox.finding(&pod("demo"), at(59));
        assert_eq!((cause, requeue_after), (None, Some(Duration::from_secs(1))));
        let Cause { reason, message } = sandbox.finding(&pod("demo"), at(60)).cause.unwrap();
        assert_eq!(reason, reasons::SANDBOX_FAILED);
        assert!(
            message.starts_with("pod chat on node gpu-1 cannot be set up: Failed to create pod sandbox"),
            "{message}"
        );
        assert_eq!(sandbox.fact("u"), None);
        let earlier = [event("u", "Multi-Attach error", ", lastTimestamp: '2026-01-01T12:00:00Z'")];
        let later = [event("u", text, ", lastTimestamp: '2026-01-01T12:01:00Z'")];
        assert_eq!(failure(&earlier, &later).unwrap().message, text, "the volume is attached");
    }

    #[test]
    fn a_volume_of_a_secret_that_is_missing_is_about_the_secret() {
        let reason = |why: &str| {
            let said = format!("MountVolume.SetUp failed for volume \"store-ca\" : {why}");
            let found = failure(&[], &[event("u", &said, "")]).unwrap().finding(&pod("demo"), at(30));
            found.cause.unwrap().reason
        };
        assert_eq!(reason("secret \"private-ca\" not found"), reasons::SECRET_NOT_FOUND);
        assert_eq!(reason("references non-existent secret key: ca.crt"), reasons::SECRET_NOT_FOUND);
        assert_eq!(reason("configmap \"templates\" not found"), reasons::CONFIG_MAP_NOT_FOUND);
        assert_eq!(reason("references non-existent config key: chat.jinja"), reasons::CONFIG_MAP_NOT_FOUND);
        assert_eq!(reason("rpc error: no such share"), reasons::VOLUME_NOT_ATTACHED);
        let said =
            "MountVolume.SetUp failed for volume \"store-ca\" : references non-existent secret key: ca.crt";
        let found = failure(&[], &[event("u", said, "")]).unwrap();
        assert_eq!(found.missing_secret(), Some(("store-ca", MissingSecret::Key)));
    }

    #[test]
    fn a_volume_is_used_by_the_pods_that_the_event_names() {
        let held = |message: &str| {
            let failure = failure(&[event("u", message, "")], &[]).unwrap();
            failure.is_used_only_by(|name| ["old-0", "old-1"].contains(&name))
        };
        let multi =
            |rest: &str| held(&format!("Multi-Attach error for volume \"pvc-1\" Volume is already {rest}"));
        assert!(multi("exclusively attached to one node and can''t be attached to another"));
        assert!(multi("used by pod(s) old-0"));
        assert!(multi("used by pod(s) old-1, old-0"));
        for foreign in [
            "used by pod(s) notebook",
            "used by pod(s) old-0, notebook",
            "used by pod(s) old-0 and 1 pod(s) in different namespaces",
            "used by 1 pod(s) in different namespaces",
        ] {
            assert!(!multi(foreign), "{foreign}");
        }
        for before in ["", " ", "  ", "   ", "    ", "     ", "      "] {
            let many = format!("{before}used by pod(s) {}", ["old-0"; 99].join(", "));
            assert!(!multi(&many), "the message was cut and may lack names");
        }
        assert!(!held("AttachVolume.Attach failed for volume \"pvc-1\": maximum number of volumes reached"));
    }
}
