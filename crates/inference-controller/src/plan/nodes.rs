//! What becomes of the pods of one AIInference that are on lost nodes, and what the status says of it. Pure.
//!
//! A pod leaves a lost node whatever is wrong with the rest of the spec or with the children, so only two fields of the
//! spec count here, which the API server has checked.

use std::time::Duration;

use api::{aiinference::Migration, reasons};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use runtime::{
    conditions::whole_seconds,
    events::{Note, Severity},
};
use workload::{
    departures::{Departure, MOST_OF_ONE},
    pace::Allowance,
    revision::Revision,
    stranded::{StrandedPods, Terms},
};

use super::pod::ENGINE;
use crate::{observe::Observed, validate::ValidInference};

/// A pod that is deleted because its node is lost: nothing but what identifies it, and what is kept and reported once
/// the deletion was accepted.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) pod: Pod,
    pub(crate) departure: Departure,
    pub(crate) note: Note,
}

/// What conditions say of the lost nodes under one AIInference.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// A pod has left its node, and its replacement does not serve yet.
    pub(super) under_way: bool,
    /// Which pods will be replaced, if their nodes do not come back.
    pub(super) waits_for: Option<String>,
}

/// uids of the pods that may be replaced now, if the pace allows it; in the order in which they go.
pub(crate) fn due(observed: &Observed, now: Timestamp) -> Vec<&str> {
    stranded(observed, now).due()
}

/// Those that the pace allows to go.
pub(crate) fn leaving(observed: &Observed, allowance: &Allowance, now: Timestamp) -> Vec<Leaving> {
    let stranded = stranded(observed, now);
    let leaving = stranded.leaving(allowance).map(|stranded| {
        let departure = stranded.departure(now);
        let (severity, reason, message) = (Severity::Warning, departure.reason, stranded.message());
        Leaving { pod: stranded.identity(), departure, note: Note { severity, reason, message } }
    });
    leaving.collect()
}

/// When the next one may go, after those that may go now have left.
pub(super) fn look_again(observed: &Observed, allowance: &Allowance, now: Timestamp) -> Option<Duration> {
    stranded(observed, now).look_again(allowance)
}

pub(super) fn moves(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    now: Timestamp,
) -> Moves {
    // From the first deletion until every replica of this revision is ready again.
    let complete = i32::try_from(revision.ready().count()).unwrap_or(i32::MAX) >= valid.replicas;
    let mut conditions = observed.model.status.iter().flat_map(|status| &status.conditions);
    let has_begun =
        !observed.departed.is_empty() || conditions.any(|condition| condition.reason == reasons::MIGRATING);
    Moves { under_way: has_begun && !complete, waits_for: stranded(observed, now).waits_for() }
}

fn stranded(observed: &Observed, now: Timestamp) -> StrandedPods<'_> {
    let spec = &observed.model.spec;
    let patience = Duration::from_secs(u64::from(spec.node_failure_seconds.unsigned_abs()));
    let terms = Terms { patience, is_paused: spec.pods.paused, container: ENGINE };
    StrandedPods::of(observed.pods(), &observed.nodes, &terms, now)
}

/// The last ones: those that the status has and those that it lacks, with the nodes that replacements have found.
pub(super) fn migrations(observed: &Observed) -> Vec<Migration> {
    let mut migrations = observed.model.status.clone().unwrap_or_default().migrations;
    migrations.extend(observed.departed.iter().map(|departure| Migration {
        pod: departure.pod.clone(),
        from_node: departure.node.clone(),
        to_node: None,
        reason: departure.reason.to_owned(),
        time: Some(whole_seconds(departure.time)),
    }));
    let surplus = migrations.len().saturating_sub(MOST_OF_ONE);
    migrations.drain(..surplus);
    let Some(first) = migrations.iter().filter(|reported| reported.to_node.is_none()).filter_map(time).min()
    else {
        return migrations;
    };
    let mut replacements: Vec<(Timestamp, &str, &str)> = observed
        .pods()
        .filter_map(|pod| Some((pod.created()?, pod.name(), pod.node.as_deref()?)))
        .filter(|(created, ..)| *created >= first)
        .collect();
    replacements.sort_unstable();
    // A replacement that is reported already is not reported twice.
    for reported in migrations.iter().filter(|reported| time(reported) >= Some(first)) {
        let known = replacements.iter().position(|(.., node)| reported.to_node.as_deref() == Some(node));
        known.map(|known| replacements.remove(known));
    }
    let mut replacements = replacements.into_iter();
    for reported in migrations.iter_mut().filter(|reported| reported.to_node.is_none()) {
        reported.to_node = replacements.next().map(|(.., node)| node.to_owned());
    }
    migrations
}

fn time(migration: &Migration) -> Option<Timestamp> {
    migration.time.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::conditions;

    use workload::{
        node::{Loss, Lost},
        stranded::Nodes,
    };

    use crate::{
        tests::{Scene, at, defaults},
        validate::validate,
    };

    use super::*;

    /// Two replicas on gpu-0 and gpu-1; gpu-1 has been lost for so many seconds.
    fn scene(how: Loss, for_seconds: i64) -> Scene {
        let mut scene = Scene::ready(2);
        scene.pods(&["{name: a, ready: true, node: gpu-0}", "{name: b, ready: true, node: gpu-1}"]);
        scene.write_status();
        lose(&mut scene, how, for_seconds, 1);
        scene
    }

    /// gpu-1 is one of so many nodes of four that are down.
    fn lose(scene: &mut Scene, how: Loss, for_seconds: i64, down: usize) {
        let lost = Lost { how, since: at(-for_seconds), reported: at(-for_seconds) };
        scene.observe(|observed| {
            observed.nodes =
                Nodes { lost: [("gpu-1".to_owned(), lost)].into(), down, all: 4, is_blind: false };
        });
    }

    fn due_in(scene: &Scene) -> Vec<String> {
        due(&scene.observed(), at(0)).into_iter().map(str::to_owned).collect()
    }

    fn allowing(pods: &[&str], look_again: Option<u64>) -> Allowance {
        Allowance {
            pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
            look_again: look_again.map(Duration::from_secs),
        }
    }

    fn plan(scene: &Scene, allowance: &Allowance) -> super::super::Plan {
        let observed = scene.observed();
        let valid = validate(&observed.model).unwrap();
        super::super::plan(&valid, &observed, allowance, &defaults(&[]), at(0))
    }

    /// Pod b has left its node; no status says it yet.
    fn departed() -> Scene {
        let mut scene = scene(Loss::Unreachable, 30);
        let left = leaving(&scene.observed(), &allowing(&["b"], None), at(0));
        scene.pods(&["{name: a, ready: true, node: gpu-0}"]);
        scene.observe(|observed| {
            observed.departed = left.into_iter().map(|leaving| leaving.departure).collect();
        });
        scene
    }

    #[test]
    fn a_pod_on_a_node_that_does_not_answer_is_not_counted_as_ready() {
        let status = plan(&scene(Loss::Unreachable, 1), &allowing(&[], None)).status;
        assert_eq!((status.ready_replicas, status.updated_ready_replicas), (1, 1));
        let ready = status.conditions.iter().find(|c| c.type_ == conditions::READY).unwrap();
        let message = "node gpu-1 does not answer; pod b is replaced unless the node comes back";
        assert_eq!((ready.reason.as_str(), ready.message.as_str()), (reasons::MIGRATING, message));
    }

    #[test]
    fn neither_a_wrong_spec_nor_a_refused_child_keeps_a_pod_on_a_lost_node() {
        let mut scene = scene(Loss::Unreachable, 12);
        scene.edit_spec(|spec| spec.model_source = "nonsense".to_owned());
        let observed = scene.observed();
        let invalid = validate(&observed.model).unwrap_err();
        let nothing = Allowance::default();
        let plan = super::super::rejected(&invalid, &observed, &nothing, at(0));
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(18)), "the very moment");
        lose(&mut scene, Loss::Unreachable, 30, 1);
        assert_eq!(due_in(&scene), ["b"]);

        let observed = self::scene(Loss::Unreachable, 12).observed();
        let valid = validate(&observed.model).unwrap();
        let refusal = runtime::refusal::Refusal::Denied("no".into());
        let plan = super::super::refused(&refusal, &valid, &observed, &nothing, &defaults(&[]), at(0));
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(18)), "sooner than the children");
    }

    #[test]
    fn whatever_is_planned_a_migration_that_the_status_lacks_is_recorded() {
        let mut scene = departed();
        let recorded = |plan: super::super::Plan| {
            let pods = plan.status.migrations.into_iter().map(|migration| migration.pod);
            pods.collect::<Vec<_>>()
        };
        // The status write met a conflict: it is planned again, on the same memory.
        for _ in 0..2 {
            assert_eq!(recorded(plan(&scene, &Allowance::default())), ["b"]);
        }
        let observed = scene.observed();
        let valid = validate(&observed.model).unwrap();
        let refusal = runtime::refusal::Refusal::Denied("no".into());
        let nothing = Allowance::default();
        let refused = super::super::refused(&refusal, &valid, &observed, &nothing, &defaults(&[]), at(0));
        assert_eq!(recorded(refused), ["b"]);
        scene.edit_spec(|spec| spec.model_source = "nonsense".to_owned());
        let observed = scene.observed();
        let invalid = validate(&observed.model).unwrap_err();
        assert_eq!(recorded(super::super::rejected(&invalid, &observed, &nothing, at(0))), ["b"]);
    }

    #[test]
    fn a_spec_that_is_paused_keeps_its_pods_even_if_it_is_wrong() {
        let mut scene = scene(Loss::Unreachable, 900);
        scene.edit_spec(|spec| {
            spec.model_source = "nonsense".to_owned();
            spec.pods.paused = true;
        });
        assert_eq!(due_in(&scene), [""; 0]);
    }

    #[test]
    fn pods_of_an_older_revision_are_replaced_too() {
        let mut scene = scene(Loss::Unreachable, 30);
        scene.roll();
        lose(&mut scene, Loss::Unreachable, 30, 1);
        assert_eq!(due_in(&scene), ["b"]);
    }

    #[test]
    fn what_may_go_goes_and_is_reported_once_it_has_left() {
        let before = scene(Loss::Unreachable, 30);
        let may_go = allowing(&["b"], None);
        let [Leaving { pod, note, .. }] = &*leaving(&before.observed(), &may_go, at(0)) else {
            panic!("one")
        };
        assert_eq!(pod.metadata.name.as_deref(), Some("b"));
        assert_eq!(note.message, "node gpu-1 does not answer; pod b is replaced");
        assert_eq!(plan(&before, &may_go).status.migrations, [], "its deletion was not accepted");

        let status = plan(&departed(), &may_go).status;
        let [migration] = status.migrations.as_slice() else { panic!("one") };
        assert_eq!((&*migration.pod, &*migration.from_node, &migration.to_node), ("b", "gpu-1", &None));
        assert_eq!((&*migration.reason, time(migration)), (reasons::NODE_UNREACHABLE, Some(at(0))));
        let progressing = status.conditions.iter().find(|c| c.type_ == conditions::PROGRESSING).unwrap();
        assert_eq!((progressing.status.as_str(), progressing.reason.as_str()), ("True", reasons::MIGRATING));
    }

    #[test]
    fn it_migrates_until_the_replacement_serves_and_the_node_that_it_found_is_reported() {
        let mut scene = departed();
        scene.write_status();
        scene.observe(|observed| observed.departed.clear());
        let progress = |scene: &Scene| {
            let status = plan(scene, &allowing(&[], None)).status;
            let reason = |type_| status.conditions.iter().find(|c| c.type_ == type_).unwrap().reason.clone();
            (reason(conditions::PROGRESSING), status.migrations[0].to_node.clone())
        };
        let replacement = |more: &str| format!("{{name: c, created: '{}', {more}}}", at(1));
        let kept = "{name: a, ready: true, node: gpu-0, created: '2025-01-01T00:00:00Z'}";
        scene.pods(&[kept, &replacement("phase: Pending")]);
        assert_eq!(progress(&scene), ("Migrating".into(), None));
        scene.pods(&[kept, &replacement("node: gpu-2")]);
        assert_eq!(progress(&scene), ("Migrating".into(), Some("gpu-2".into())));
        scene.write_status();
        scene.pods(&[kept, &replacement("ready: true, node: gpu-2")]);
        assert_eq!(progress(&scene), ("Complete".into(), Some("gpu-2".into())));
    }

    #[test]
    fn a_replacement_that_is_reported_for_one_pod_is_not_reported_for_another() {
        let mut scene = departed();
        scene.write_status();
        scene.observe(|observed| {
            let status = Arc::make_mut(&mut observed.model).status.as_mut().unwrap();
            status.migrations[0].to_node = Some("gpu-2".into());
        });
        scene.pods(&[&format!("{{name: c, node: gpu-2, created: '{}'}}", at(1))]);
        assert_eq!(plan(&scene, &allowing(&[], None)).status.migrations[1].to_node, None);
    }

    #[test]
    fn the_last_ten_migrations_are_kept() {
        let mut scene = departed();
        scene.write_status();
        scene.observe(|observed| {
            let departed =
                |index: usize| Departure { pod: index.to_string(), ..observed.departed[0].clone() };
            observed.departed = (0..10).map(departed).collect();
        });
        let kept = plan(&scene, &Allowance::default()).status.migrations;
        let pods: Vec<&str> = kept.iter().map(|migration| migration.pod.as_str()).collect();
        assert_eq!(pods, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    }
}
