//! The events that a user reads.

use api::{reasons, trainingjob::Phase};
use runtime::write::events::Severity;

use super::{GANG, LORA, World, because, message_at};

#[test]
fn an_undisturbed_job_is_noted_when_it_trains_and_when_it_has_succeeded() {
    let mut world = World::training(LORA);
    for step in [5, 10, 15] {
        world.passes(10);
        world.steps(step, 100);
    }
    world.succeeds(&message_at(Some(100)));
    assert_eq!(world.notes(), [reasons::TRAINING, reasons::SUCCEEDED]);
    assert!(world.events.iter().all(|note| note.severity == Severity::Normal));
}

#[test]
fn each_failure_is_noted_with_its_attempt_and_its_reason() {
    let mut world = World::training(LORA);
    world.is_preempted(Some(5));
    world.starts();
    world.fails(1, &because(reasons::USER_ERROR));
    let texts: Vec<&str> = world.events.iter().map(|note| note.message.as_str()).collect();
    assert_eq!(world.notes(), [reasons::PREEMPTED, reasons::USER_ERROR]);
    assert!(
        texts[0].starts_with("attempt 1 failed: pod qwen-1-0-abcde on node node-0 was interrupted"),
        "{texts:?}"
    );
    assert!(texts[1].starts_with("attempt 2 failed: pod qwen-2-0-abcde"), "{texts:?}");
    assert!(world.events.iter().all(|note| note.severity == Severity::Warning));
}

#[test]
fn the_end_of_a_job_that_failed_is_a_warning() {
    let mut world = World::training("{model: m, dataset: d, method: lora, retryLimit: 1}");
    world.fails(1, &because(reasons::USER_ERROR));
    world.wakes();
    world.starts();
    world.fails(1, &because(reasons::USER_ERROR));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.notes(), [reasons::USER_ERROR, reasons::USER_ERROR, reasons::RETRIES_EXHAUSTED]);
    assert_eq!(world.events.last().unwrap().severity, Severity::Warning);
}

#[test]
fn waiting_for_a_node_or_a_pull_is_no_event() {
    let mut world = World::new(GANG);
    world.settles();
    world.pod(0, &serde_json::json!({"phase": "Pending", "node": null}));
    world.passes(5);
    world.starts();
    assert_eq!(world.notes(), [""; 0]);
}

#[test]
fn a_dependency_that_is_missing_is_noted_once() {
    let mut world = World::new("{model: m, dataset: d, method: lora, dependsOn: [a]}");
    world.settles();
    world.passes(1_000);
    assert_eq!(world.notes(), [reasons::DEPENDENCY_NOT_FOUND]);
    assert_eq!(world.events[0].severity, Severity::Warning);
}

#[test]
fn a_suspension_and_its_end_are_noted_without_a_failure() {
    let mut world = World::training(LORA);
    world.edits(|job| job.spec.suspend = true);
    world.pods_go();
    world.edits(|job| job.spec.suspend = false);
    world.starts();
    assert!(world.events.iter().all(|note| note.severity == Severity::Normal), "{:?}", world.events);
    assert_eq!(world.notes(), [reasons::SUSPENDED]);
}

#[test]
fn a_transition_time_moves_only_with_its_status() {
    let mut world = World::training(LORA);
    world.passes(50);
    world.steps(5, 100);
    let running = world.status().conditions.iter().find(|known| known.type_ == "Running").unwrap();
    assert_eq!(
        (running.reason.as_str(), running.last_transition_time.0),
        (reasons::TRAINING, crate::tests::at(0))
    );
}
