//! What keeps a decision from being written, and what is asked before the first write of a process.

use runtime::{reconcile::Decision, write::refusal::Refusal};

use super::{
    Attempted, Doubt, Found, Observed, Plan, Target, at, condition, decided, found, observed, planned, queue,
    scaler,
};
use crate::{
    history::attempt::{Attempt, CarriedOut},
    samples::{Sampled, Samples},
    target::Reference,
};

/// Asks for 4 replicas in the place of 2, with what is remembered.
fn seen(remembered: Sampled) -> Observed {
    let Sampled { refused, outdated, .. } = remembered;
    Observed { refused, outdated, ..observed(&scaler(""), found(2), queue(20.0)) }
}

fn remembered(note: impl FnOnce(&Samples)) -> Sampled {
    let samples = Samples::default();
    note(&samples);
    samples.of("u")
}

fn outdated() -> Sampled {
    remembered(|samples| samples.note_outdated("u", "7", at(0)))
}

fn refused() -> Sampled {
    remembered(|samples| samples.note_refused("u", "d", 4, &Refusal::Denied("quota".into()), at(0)))
}

fn waits(plan: &Plan) -> bool {
    plan.scale.is_none() && plan.status.is_none() && plan.past.is_none() && plan.events.is_empty()
}

#[test]
fn a_version_of_the_target_that_was_called_outdated_is_not_written_for_a_moment() {
    let plan = planned(&seen(outdated()), at(1));
    assert!(waits(&plan), "{plan:?}");
    assert_eq!(plan.requeue_after.map(|wait| wait.as_secs()), Some(2));
    assert!(planned(&seen(outdated()), at(2)).scale.is_some(), "the conflict had another cause");
    let newer = Found {
        scaled: runtime::write::scale::Scaled { version: "8".into(), ..found(2).scaled },
        ..found(2)
    };
    let newer = Observed { target: Target::Found(Box::new(newer)), ..seen(outdated()) };
    assert!(planned(&newer, at(1)).scale.is_some());
}

#[test]
fn an_outdated_target_that_is_not_watched_waits_until_it_is_read_again() {
    let reference =
        Reference { api_version: "example.com/v1".into(), kind: "Pool".into(), name: "chat".into() };
    let pool = Target::Found(Box::new(Found { reference, ..found(2) }));
    assert!(waits(&planned(&Observed { target: pool, ..seen(outdated()) }, at(5))));
}

#[test]
fn a_write_that_was_refused_lately_is_reported_and_not_sent() {
    let plan = planned(&seen(refused()), at(14));
    assert!(plan.scale.is_none());
    assert_eq!(condition(&plan.status.unwrap(), "AbleToScale").1, "FailedUpdateScale");
    assert!(planned(&seen(refused()), at(15)).scale.is_some());
}

#[test]
fn only_a_write_of_replicas_needs_the_newest_version_of_the_object() {
    let of = |seen: Observed| decided(&Observed { is_confirmed: false, ..seen }, at(1));
    let doubt = of(seen(Sampled::default()));
    assert!(matches!(doubt, Decision::Doubt(Doubt::OutdatedScaler)), "{doubt:?}");
    let stays = observed(&scaler(""), found(2), queue(10.0));
    for seen in [seen(outdated()), seen(refused()), stays] {
        let decision = of(seen);
        assert!(matches!(decision, Decision::Plan(_)), "{decision:?}");
    }
}

#[test]
fn an_attempt_is_settled_before_the_object_is_asked_for() {
    let seen = Observed { attempted: Attempted::Failed, is_confirmed: false, ..seen(Sampled::default()) };
    let Decision::Plan(plan) = decided(&seen, at(1)) else { panic!("nothing is asked yet") };
    assert!(waits(&plan), "{plan:?}");
    assert_eq!(plan.attempted, Attempted::Failed);
}

#[test]
fn an_attempt_is_known_to_the_next_one_and_to_every_plan() {
    let attempt = planned(&seen(Sampled::default()), at(0)).scale.unwrap().attempt;
    let with = |attempted| Observed { attempted, ..seen(outdated()) };
    let next = planned(&with(Attempted::Open(Box::new(attempt.clone()))), at(5)).scale.unwrap();
    assert_eq!(next.before, Some(attempt.clone()));
    let status = planned(&seen(Sampled::default()), at(0)).status;
    let Attempt { note, .. } = attempt.clone();
    let now = runtime::write::scale::Scaled { version: "8".into(), replicas: 4, ..found(2).scaled };
    let known = attempt.judged(&now, &Default::default(), None, status.as_ref(), at(1));
    let Attempted::CarriedOut(carried_out) = &known else { panic!("{known:?}") };
    let CarriedOut { note: noted, .. } = &**carried_out;
    assert_eq!(*noted, note);
    let waiting = planned(&with(known.clone()), at(1));
    assert!(waits(&waiting), "{waiting:?}");
    assert_eq!(waiting.attempted, known, "its event is not lost while the plan waits");
}

#[test]
fn the_next_look_is_after_the_next_reading_which_wakes_the_object() {
    for queued in [queue(10.0), queue(20.0)] {
        let plan = planned(&observed(&scaler(""), found(2), queued), at(0));
        assert_eq!(plan.requeue_after.map(|wait| wait.as_millis()), Some(22_500));
    }
}
