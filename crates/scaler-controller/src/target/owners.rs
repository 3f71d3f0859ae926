//! Whether a pod that a target's selector matches is the target's: its chain of owners leads to the target. Selectors of
//! two workloads may match each other's pods. Pure.
//!
//! ```text
//!  pod ─▶ ReplicaSet ─▶ Deployment ─▶ AIInference, AIDispatcher, or an object of another kind
//!  pod ─▶ StatefulSet ─▶ an object of another kind
//!  pod ─▶ AIDispatcher, or an object of another kind
//! ```
//!
//! No ReplicaSet is read. One of a Deployment has the name of the Deployment, a hyphen and the label `pod-template-hash` of
//! its pods, in which there is no hyphen. So the name of the Deployment follows from the pod; whether there is such a
//! Deployment, and what owns it, is seen. A chain that cannot be followed to its end is no proof: its pods count. An owner
//! that does not control a workload counts as well: operators write such references. Some write none, so the end of a chain
//! proves nothing about a target of another kind.

use super::{Controller, WatchedKind, pod::PodView};

/// The end of the chain, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    ToTarget,
    /// It may lead to the target through an object that is not seen.
    Unknown,
    /// To this object, or to none.
    Elsewhere(Option<String>),
}

/// What the chain may lead to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetIdentity<'a> {
    /// `None`: of a kind whose children may be of any kind.
    pub(crate) watched: Option<WatchedKind>,
    pub(crate) group: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) uid: &'a str,
}

/// A Deployment or a StatefulSet in the namespace of the pod.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) uid: String,
    pub(crate) controller: Option<Controller>,
    /// See `Scalable::owner_uids`.
    pub(crate) owner_uids: Box<[Box<str>]>,
}

/// Which labels the Deployment controller gives the pods of its ReplicaSets.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// `owners`: those of the pod's namespace, by kind and name.
pub(crate) fn belongs(
    pod: &PodView,
    target: TargetIdentity<'_>,
    owners: &impl Fn(WatchedKind, &str) -> Option<Owner>,
) -> Belongs {
    let Some(owner) = &pod.owner else {
        // The controller of a watched kind makes its pods itself, and adopts those that match.
        return match target.watched {
            Some(_) => Belongs::Elsewhere(None),
            None => Belongs::Unknown,
        };
    };
    if *owner.uid == *target.uid {
        return Belongs::ToTarget;
    }
    let named = || Belongs::Elsewhere(Some(format!("{} {}", owner.kind, owner.name)));
    match (&*owner.group, &*owner.kind) {
        ("apps", "ReplicaSet") => {
            let Some(deployment) = deployment_of(pod, &owner.name) else { return Belongs::Unknown };
            match owners(WatchedKind::Deployment, deployment) {
                Some(known) => through(&known, target, || format!("Deployment {deployment}")),
                None => Belongs::Unknown,
            }
        }
        ("apps", "StatefulSet") => match (owners(WatchedKind::StatefulSet, &owner.name), target.watched) {
            (Some(known), _) if *known.uid == *owner.uid => {
                through(&known, target, || format!("StatefulSet {}", owner.name))
            }
            (_, Some(_)) => named(),
            (_, None) => Belongs::Unknown,
        },
        _ if target.watched.is_some() || is_of_kind(&owner.group, &owner.kind, target) => named(),
        _ => Belongs::Unknown,
    }
}

/// Of a pod whose owner is known.
fn through(owner: &Owner, target: TargetIdentity<'_>, name: impl Fn() -> String) -> Belongs {
    if owner.uid == target.uid || owner.owner_uids.iter().any(|uid| **uid == *target.uid) {
        return Belongs::ToTarget;
    }
    match &owner.controller {
        // It may follow more owners than are kept.
        Some(controller) if controller.uid == target.uid => Belongs::ToTarget,
        Some(controller) if is_of_kind(&controller.group, &controller.kind, target) => {
            Belongs::Elsewhere(Some(format!("{} {}", controller.kind, controller.name)))
        }
        // What is not seen may lie between it and the target.
        Some(_) | None if target.watched.is_none() => Belongs::Unknown,
        Some(_) | None => Belongs::Elsewhere(Some(name())),
    }
}

fn is_of_kind(group: &str, kind: &str, target: TargetIdentity<'_>) -> bool {
    group == target.group && kind == target.kind
}

/// The Deployment that has made a ReplicaSet of this name.
fn deployment_of<'n>(pod: &PodView, replica_set: &'n str) -> Option<&'n str> {
    let hash = pod.labels.get(TEMPLATE_HASH).filter(|hash| !hash.is_empty())?;
    replica_set.strip_suffix(hash.as_str())?.strip_suffix('-').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(hash: &str, owner: &str) -> PodView {
        let owners = if owner.is_empty() {
            String::new()
        } else {
            format!(", ownerReferences: [{{{owner}, controller: true}}]")
        };
        let labels =
            if hash.is_empty() { String::new() } else { format!(", labels: {{{TEMPLATE_HASH}: {hash}}}") };
        serde_saphyr::from_str(&format!("{{metadata: {{name: p{labels}{owners}}}}}")).unwrap()
    }

    fn of_replica_set(name: &str, hash: &str) -> PodView {
        pod(hash, &format!("apiVersion: apps/v1, kind: ReplicaSet, name: {name}, uid: rs"))
    }

    fn controller(group: &str, kind: &str, uid: &str) -> Controller {
        Controller { group: group.into(), kind: kind.into(), name: format!("of-{uid}"), uid: uid.into() }
    }

    /// Deployments `own` and `neighbour`, `of-model` of an AIInference, `of-pool` of another kind, and `beside-pool`, which
    /// that object owns and does not control; StatefulSet `set`.
    fn owners(kind: WatchedKind, name: &str) -> Option<Owner> {
        let owner = |controller: Option<Controller>| {
            let owner_uids = controller.iter().map(|owner| owner.uid.as_str().into()).collect();
            Some(Owner { uid: name.into(), controller, owner_uids })
        };
        match (kind, name) {
            (WatchedKind::Deployment, "own" | "neighbour") | (WatchedKind::StatefulSet, "set") => owner(None),
            (WatchedKind::Deployment, "of-model") => {
                owner(Some(controller("ai.infra.example.com", "AIInference", "model")))
            }
            (WatchedKind::Deployment, "of-pool") => owner(Some(controller("example.com", "Pool", "pool"))),
            (WatchedKind::Deployment, "beside-pool") => {
                let owner_uids = ["another".into(), "pool".into()].into();
                Some(Owner { uid: name.into(), controller: None, owner_uids })
            }
            _ => None,
        }
    }

    const DEPLOYMENT: TargetIdentity<'_> = TargetIdentity {
        watched: Some(WatchedKind::Deployment),
        group: "apps",
        kind: "Deployment",
        uid: "own",
    };
    const MODEL: TargetIdentity<'_> = TargetIdentity {
        watched: Some(WatchedKind::AIInference),
        group: "ai.infra.example.com",
        kind: "AIInference",
        uid: "model",
    };
    const POOL: TargetIdentity<'_> =
        TargetIdentity { watched: None, group: "example.com", kind: "Pool", uid: "pool" };

    fn elsewhere(name: &str) -> Belongs {
        Belongs::Elsewhere(Some(name.to_owned()))
    }

    #[test]
    fn a_pod_of_a_deployment_is_found_by_the_hash_of_its_template() {
        let of = |pod: &PodView| belongs(pod, DEPLOYMENT, &owners);
        assert_eq!(of(&of_replica_set("own-5d4f", "5d4f")), Belongs::ToTarget);
        assert_eq!(of(&of_replica_set("neighbour-5d4f", "5d4f")), elsewhere("Deployment neighbour"));
        assert_eq!(of(&of_replica_set("of-model-5d4f", "5d4f")), elsewhere("Deployment of-model"));
        // Made by hand, adopted, or of a Deployment that has gone a moment ago.
        for unknown in [("own", ""), ("own-5d4f", "77"), ("gone-5d4f", "5d4f"), ("-5d4f", "5d4f")] {
            assert_eq!(of(&of_replica_set(unknown.0, unknown.1)), Belongs::Unknown, "{unknown:?}");
        }
    }

    #[test]
    fn what_no_deployment_makes_is_of_none() {
        for (owner, words) in [
            ("apiVersion: batch/v1, kind: Job, name: j, uid: j", "Job j"),
            ("apiVersion: apps/v1, kind: DaemonSet, name: d, uid: d", "DaemonSet d"),
            ("apiVersion: apps/v1, kind: StatefulSet, name: set, uid: set", "StatefulSet set"),
            ("apiVersion: apps/v1, kind: StatefulSet, name: gone, uid: gone", "StatefulSet gone"),
            ("apiVersion: example.com/v1, kind: Deployment, name: own, uid: x", "Deployment own"),
        ] {
            assert_eq!(belongs(&pod("", owner), DEPLOYMENT, &owners), elsewhere(words));
        }
        assert_eq!(belongs(&pod("", ""), DEPLOYMENT, &owners), Belongs::Elsewhere(None));
    }

    #[test]
    fn pods_of_a_statefulset_and_of_this_projects_kinds_are_theirs() {
        let set = TargetIdentity {
            watched: Some(WatchedKind::StatefulSet),
            kind: "StatefulSet",
            uid: "set",
            ..DEPLOYMENT
        };
        let of_set = pod("", "apiVersion: apps/v1, kind: StatefulSet, name: set, uid: set");
        assert_eq!(belongs(&of_set, set, &owners), Belongs::ToTarget);
        let before = pod("", "apiVersion: apps/v1, kind: StatefulSet, name: set, uid: before");
        assert_eq!(belongs(&before, set, &owners), elsewhere("StatefulSet set"));
        assert_eq!(belongs(&of_replica_set("own-5d", "5d"), set, &owners), elsewhere("Deployment own"));
        assert_eq!(belongs(&of_replica_set("of-model-5d", "5d"), MODEL, &owners), Belongs::ToTarget);
        assert_eq!(belongs(&of_replica_set("own-5d", "5d"), MODEL, &owners), elsewhere("Deployment own"));
        let other = TargetIdentity { uid: "another", ..MODEL };
        let of_other = belongs(&of_replica_set("of-model-5d", "5d"), other, &owners);
        assert_eq!(of_other, elsewhere("AIInference of-model"));
        let worker = pod("", "apiVersion: southwest.ai/v1alpha1, kind: AIDispatcher, name: a, uid: a");
        let dispatcher = TargetIdentity {
            watched: Some(WatchedKind::AIDispatcher),
            group: "southwest.ai",
            kind: "AIDispatcher",
            uid: "a",
        };
        assert_eq!(belongs(&worker, dispatcher, &owners), Belongs::ToTarget);
    }

    #[test]
    fn of_another_kind_only_what_is_known_to_lead_elsewhere_does_not_count() {
        let of = |pod: &PodView| belongs(pod, POOL, &owners);
        assert_eq!(of(&of_replica_set("of-pool-5d", "5d")), Belongs::ToTarget);
        assert_eq!(of(&of_replica_set("of-model-5d", "5d")), Belongs::Unknown);
        assert_eq!(
            of(&pod("", "apiVersion: example.com/v1, kind: Pool, name: p, uid: pool")),
            Belongs::ToTarget
        );
        assert_eq!(
            of(&pod("", "apiVersion: example.com/v1, kind: Pool, name: q, uid: q")),
            elsewhere("Pool q")
        );
        for unknown in [
            "",
            "apiVersion: example.com/v1, kind: Shard, name: s, uid: s",
            "apiVersion: apps/v1, kind: StatefulSet, name: gone, uid: gone",
            "apiVersion: batch/v1, kind: Job, name: j, uid: j",
        ] {
            assert_eq!(of(&pod("", unknown)), Belongs::Unknown, "{unknown}");
        }
        let other = TargetIdentity { uid: "another", ..POOL };
        assert_eq!(belongs(&of_replica_set("of-pool-5d", "5d"), other, &owners), elsewhere("Pool of-pool"));
    }

    #[test]
    fn of_another_kind_an_owner_that_does_not_control_counts_and_a_chain_without_one_proves_nothing() {
        let of = |pod: &PodView| belongs(pod, POOL, &owners);
        assert_eq!(of(&of_replica_set("beside-pool-5d", "5d")), Belongs::ToTarget);
        // An operator may write no references at all.
        assert_eq!(of(&of_replica_set("own-5d", "5d")), Belongs::Unknown);
        let of_set = pod("", "apiVersion: apps/v1, kind: StatefulSet, name: set, uid: set");
        assert_eq!(of(&of_set), Belongs::Unknown);
    }
}
