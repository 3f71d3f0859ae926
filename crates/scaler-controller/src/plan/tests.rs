//! What is decided for an AIScaler in each situation.

use std::{sync::Arc, time::Duration};

use api::aiscaler::{AIScaler, AIScalerStatus, ColdStart, Decision as StoredDecision};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use proptest::prelude::*;
use runtime::{
    key::Key,
    reconcile::Decision,
    write::{events::Note, refusal::Refusal, scale::Scaled},
};
use scaling::{
    decide::{
        conclusion::{Able, Active, Limited, recompute},
        record::{Inputs, Record},
    },
    policy::Extras,
    reading::{Fault, Milli, PodSample, Reading},
};

use prometheus_api::promql::Scope;

use super::{Doubt, Plan, plan, refused, rejected};
use crate::{
    history::{
        Past,
        attempt::{Attempted, Unwritten},
        stored,
    },
    observe::{Found, Observed, Target},
    sources::answer::Answer,
    target::{Reference, WatchedKind, contender::Contender, pod::PodView},
    validate::{Allowed, validate},
};

mod arrivals;
mod owners;
mod permission;
mod pods;
mod restarts;
mod values;

const PERIOD: Duration = Duration::from_secs(15);
const ALLOWED: Allowed = Allowed { extras: Extras::all(), scope: Scope::Namespace };

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

fn scaler(more: &str) -> Arc<AIScaler> {
    let counted = ", source: {prometheus: {query: 'sum(waiting)', completionsQuery: 'sum(done)'}}";
    let source = if more.starts_with(", source:") { "" } else { counted };
    let spec = format!(
        "{{deploymentName: chat, metricType: queue_depth, targetValue: 5, maxReplicas: 10{source}{more}}}"
    );
    let metadata =
        "{name: chat, namespace: demo, uid: u, generation: 1, creationTimestamp: '2026-01-01T00:00:00Z'}";
    let text = format!(
        "{{apiVersion: ai.infra.example.com/v1, kind: AIScaler, metadata: {metadata}, spec: {spec}}}"
    );
    Arc::new(serde_saphyr::from_str(&text).unwrap())
}

fn ready_pods(count: i32) -> Vec<Arc<PodView>> {
    let ready = "conditions: [{type: Ready, status: 'True', lastTransitionTime: '2026-01-01T00:01:00Z'}]";
    let pod = |number: i32| {
        let metadata = format!(
            "{{name: p{number}, namespace: demo, uid: p{number}, creationTimestamp: '2026-01-01T00:00:00Z'}}"
        );
        let text =
            format!("{{metadata: {metadata}, spec: {{nodeName: n}}, status: {{phase: Running, {ready}}}}}");
        Arc::new(serde_saphyr::from_str(&text).unwrap())
    };
    (0..count).map(pod).collect()
}

fn found(replicas: i32) -> Found {
    Found {
        reference: Reference {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: "chat".into(),
        },
        resource: WatchedKind::Deployment.resource(),
        key: Key::new("demo", "chat"),
        scaled: Scaled {
            uid: "d".into(),
            version: "7".into(),
            replicas,
            status_replicas: replicas,
            selector: String::new(),
        },
        is_deleted: false,
        scales_itself: false,
        cold_start: None,
        least: None,
        pods: Some(ready_pods(replicas)),
        foreign: None,
        keeps_one: false,
    }
}

fn queue(depth: f64) -> Answer {
    queue_at(depth, 0)
}

fn queue_at(depth: f64, seconds: i64) -> Answer {
    Answer::new(Reading::total(depth, at(seconds)), String::new())
}

fn missing(fault: Fault, message: &str) -> Answer {
    Answer::new(Reading::Missing(fault), message.to_owned())
}

fn observed(scaler: &Arc<AIScaler>, found: Found, answer: Answer) -> Observed {
    Observed {
        scaler: Arc::clone(scaler),
        target: Target::Found(Box::new(found)),
        contender: None,
        unwatched: None,
        answers: vec![answer],
        past: Past::default(),
        is_resumed: false,
        written: None,
        unwritten: None,
        attempted: Attempted::Nothing,
        refused: None,
        outdated: None,
        is_confirmed: true,
    }
}

fn planned(observed: &Observed, now: Timestamp) -> Plan {
    match decided(observed, now) {
        Decision::Plan(plan) => plan,
        other => panic!("{other:?}"),
    }
}

fn decided(observed: &Observed, now: Timestamp) -> Decision<Plan, Doubt> {
    plan(&validate(&observed.scaler, &ALLOWED).unwrap(), observed, PERIOD, now)
}

fn condition(status: &AIScalerStatus, type_: &str) -> (String, String, String) {
    let found: &Condition = status.conditions.iter().find(|known| known.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

#[test]
fn a_queue_above_its_target_adds_replicas() {
    let plan = planned(&observed(&scaler(""), found(2), queue(20.0)), at(0));
    assert_eq!(
        plan.scale.as_ref().map(|write| (write.target.scaled.version.as_str(), write.to())),
        Some(("7", 4))
    );
    let status = plan.status.unwrap();
    assert_eq!((status.current_replicas, status.desired_replicas), (2, 4));
    assert_eq!(status.metric.unwrap().display, "5/5", "per replica of what was asked for");
    assert_eq!(
        plan.scale.unwrap().attempt.note.message,
        "Deployment chat: 2 to 4 replicas: queue_depth is 10 per replica, targetValue 5 (DesiredWithinRange)"
    );
    assert_eq!(status.metrics[0].metric_type, "queue_depth");
}

#[test]
fn a_target_below_one_is_scaled_by_and_shown_as_it_is() {
    let mut below = AIScaler::clone(&scaler(""));
    for (written, shown) in [("800m", "0.8"), ("0.8", "0.8")] {
        below.spec.target_value = serde_json::from_value(written.into()).unwrap();
        let plan = planned(&observed(&Arc::new(below.clone()), found(2), queue(3.3)), at(0));
        let scale = plan.scale.unwrap();
        assert_eq!(scale.to(), 5, "3.3 / 0.8, rounded up");
        let metric = plan.status.unwrap().metric.unwrap();
        assert_eq!((&*metric.value, &*metric.target), ("0.66", shown));
        assert_eq!(metric.display, "0.66/0.8");
        let message = &scale.attempt.note.message;
        assert!(message.contains("queue_depth is 1.65 per replica, targetValue 0.8"), "{message}");
    }
}

#[test]
fn the_cold_start_is_that_of_the_targets_own_controller_until_one_was_seen() {
    let shown =
        |found: Found| planned(&observed(&scaler(""), found, queue(1.0)), at(0)).status.unwrap().cold_start;
    assert_eq!(shown(found(2)), None);
    let measured = || Found { cold_start: Some(Duration::from_secs(95)), ..found(2) };
    let expected = ColdStart { p50_seconds: 95, p90_seconds: 95 };
    assert_eq!(shown(measured()), Some(expected));
    let young = "{metadata: {name: new, uid: new, creationTimestamp: '2026-01-01T11:50:00Z'}, spec: {nodeName: n}, \
        status: {phase: Running, conditions: [{type: Ready, status: 'True', lastTransitionTime: '2026-01-01T11:50:40Z'}]}}";
    let pods = Some(vec![Arc::new(serde_saphyr::from_str(young).unwrap())]);
    let expected = ColdStart { p50_seconds: 40, p90_seconds: 40 };
    assert_eq!(shown(Found { pods, ..measured() }), Some(expected));
}

/// A rollback gives stable all requests at once.
#[test]
fn stable_keeps_its_replicas_while_a_canary_has_a_share_of_the_requests() {
    let planned = |least: Option<i32>| {
        let found = Found { least, ..found(2) };
        let plan = planned(&observed(&scaler(""), found, queue(1.0)), at(0));
        let conditions = plan.status.unwrap().conditions;
        let limited = conditions.into_iter().find(|known| known.type_ == "ScalingLimited").unwrap();
        (limited.reason, limited.message)
    };
    let (reason, message) = planned(Some(3));
    assert_eq!(reason, "TooFewReplicas");
    assert!(message.contains("keeps at least 3"), "{message}");
    assert!(!planned(None).1.contains("keeps at least"));
    assert!(planned(Some(99)).1.contains("keeps at least 10"), "maxReplicas counts all the same");
}

/// The records of a status.
fn records(status: &AIScalerStatus) -> Vec<Record> {
    let record = |entry: &StoredDecision| {
        assert!(entry.inputs.len() <= 4_096);
        Record {
            time: entry.time.clone().unwrap().0,
            from: entry.from,
            to: entry.to,
            raw: entry.raw,
            inputs: serde_json::from_str::<Inputs>(&entry.inputs).unwrap(),
            reason: entry.reason.clone(),
        }
    };
    status.decisions.iter().map(record).collect()
}

#[test]
fn the_runbooks_read_conditions_that_an_aiscaler_has() {
    let runbooks = include_str!("../../../../docs/runbooks.md");
    let broken = scaler(", behavior: {scaleDown: {tolerance: a}}");
    let invalid = validate(&broken, &ALLOWED).unwrap_err();
    let scaler = scaler("");
    let conditions = |plan: Plan| plan.status.unwrap().conditions;
    let seen = observed(&scaler, found(2), queue(20.0));
    for (alert, conditions) in [
        (
            "AIScalersBlind",
            conditions(planned(&observed(&scaler, found(2), missing(Fault::Slow, "")), at(0))),
        ),
        ("AIScalersUnable", conditions(planned(&seen, at(0)))),
        ("AIScalersInvalid", conditions(rejected(&invalid, &seen, at(0)))),
    ] {
        let (_, section) = runbooks.split_once(&format!("### {alert}\n")).unwrap();
        let section = section.split("\n### ").next().unwrap();
        let (_, read) = section.split_once("@.type==\"").unwrap();
        let read = read.split('"').next().unwrap();
        assert!(conditions.iter().any(|known| known.type_ == read), "{alert} reads {read}");
    }
}

#[test]
fn a_target_that_is_missing_or_unknown_is_said_apart() {
    let mut seen = observed(&scaler(""), found(1), queue(0.0));
    for (target, words) in [
        (Target::Missing("Deployment chat does not exist".into()), "Deployment chat does not exist"),
        (Target::Unknown("the watch fails".into()), "the watch fails"),
    ] {
        seen.target = target;
        let plan = planned(&seen, at(0));
        assert!(plan.scale.is_none());
        let (status, reason, message) = condition(plan.status.as_ref().unwrap(), "AbleToScale");
        assert_eq!((&*status, &*reason, &*message), ("False", "FailedGetScale", words));
    }
}

#[test]
fn a_status_is_written_at_once_for_news_and_later_for_numbers() {
    let mut seen = observed(&scaler(""), found(2), queue(9.0));
    let first = planned(&seen, at(0));
    let mut scaler = AIScaler::clone(&seen.scaler);
    scaler.status = first.status;
    seen.scaler = Arc::new(scaler);
    seen.past = first.past.unwrap();
    seen.written = Some(at(0));
    assert!(planned(&seen, at(15)).status.is_none(), "nothing is new");
    seen.answers = vec![queue_at(10.0, 15)];
    assert!(planned(&seen, at(15)).status.is_none(), "a number alone waits");
    seen.answers = vec![queue_at(10.0, 30)];
    assert!(planned(&seen, at(30)).status.is_some(), "and is written after a while");
    seen.answers = vec![missing(Fault::Empty, "none")];
    let faulty = planned(&seen, at(16));
    let mut scaler = AIScaler::clone(&seen.scaler);
    scaler.status = Some(faulty.status.expect("a fault is news"));
    seen.scaler = Arc::new(scaler);
    seen.answers[0].message = "http://prometheus failed with 500".into();
    assert!(planned(&seen, at(17)).status.is_some(), "and so is another cause");
}

#[test]
fn a_spec_that_cannot_be_used_names_the_field() {
    let scaler = scaler(", behavior: {scaleDown: {tolerance: a}}");
    let invalid = validate(&scaler, &ALLOWED).unwrap_err();
    let plan = rejected(&invalid, &observed(&scaler, found(2), queue(1.0)), at(0));
    let (_, reason, message) = condition(plan.status.as_ref().unwrap(), "Ready");
    assert_eq!(reason, "InvalidSpec");
    assert!(message.contains("tolerance"), "{message}");
}

/// What the API server and this process know after each plan: the status, the past and the replicas.
struct World {
    seen: Observed,
    /// Replicas that were written, by second.
    written: Vec<(i64, i32)>,
    events: Vec<Note>,
}

impl World {
    fn new(spec: &str, replicas: i32) -> Self {
        let seen = observed(&scaler(spec), found(replicas), queue(0.0));
        Self { seen, written: Vec::new(), events: Vec::new() }
    }

    fn found(&mut self) -> &mut Found {
        match &mut self.seen.target {
            Target::Found(found) => found,
            other => panic!("{other:?}"),
        }
    }

    /// Another sets the replicas.
    fn set(&mut self, replicas: i32) {
        self.found().scaled.replicas = replicas;
        self.settle();
    }

    /// Every replica has a Ready pod.
    fn settle(&mut self) {
        let replicas = self.found().scaled.replicas;
        self.found().scaled.status_replicas = replicas;
        self.found().pods = Some(ready_pods(replicas));
    }

    /// A look at this time.
    fn looks(&mut self, seconds: i64, answer: Answer) {
        self.seen.answers = vec![answer];
        self.looks_again(seconds);
    }

    fn looks_again(&mut self, seconds: i64) {
        let Plan { scale, status, events, past, .. } = planned(&self.seen, at(seconds));
        if let Some(write) = scale {
            self.written.push((seconds, write.to()));
            self.set(write.to());
            self.events.push(write.attempt.note);
        }
        if let Some(status) = status {
            let mut scaler = AIScaler::clone(&self.seen.scaler);
            scaler.status = Some(status);
            self.seen.scaler = Arc::new(scaler);
            self.seen.written = Some(at(seconds));
        }
        if let Some(past) = past {
            self.seen.past = past;
            self.seen.is_resumed = false;
        }
        self.events.extend(events);
    }

    /// A new process knows what is in the status.
    fn restarts(&mut self, seconds: i64) {
        let status = self.seen.scaler.status.as_ref();
        self.seen.past = status.map(stored).unwrap_or_default().resumed(at(seconds));
        self.seen.written = None;
        self.seen.is_resumed = true;
    }

    /// A look whose process ends after its write of the replicas, and a new process.
    fn looks_and_ends(&mut self, seconds: i64, answer: Answer) {
        self.seen.answers = vec![answer];
        if let Some(write) = planned(&self.seen, at(seconds)).scale {
            self.written.push((seconds, write.to()));
            self.set(write.to());
        }
        self.restarts(seconds + 1);
    }

    fn status(&self) -> &AIScalerStatus {
        self.seen.scaler.status.as_ref().unwrap()
    }

    fn condition(&self, type_: &str) -> (String, String, String) {
        condition(self.status(), type_)
    }

    /// With another spec.
    fn edits(&mut self, spec: &str) {
        let mut edited = AIScaler::clone(&scaler(spec));
        edited.status.clone_from(&self.seen.scaler.status);
        edited.metadata.generation = self.seen.scaler.metadata.generation.map(|known| known + 1);
        self.seen.scaler = Arc::new(edited);
    }
}

/// One pod with this status.
fn pod(name: &str, node: &str, status: &str) -> Arc<PodView> {
    let metadata =
        format!("{{name: {name}, namespace: demo, uid: {name}, creationTimestamp: '2026-01-01T12:00:00Z'}}");
    let text = format!("{{metadata: {metadata}, spec: {{nodeName: '{node}'}}, status: {status}}}");
    Arc::new(serde_saphyr::from_str(&text).unwrap())
}

#[test]
fn wishes_that_are_not_written_cost_no_more_statuses_than_other_numbers() {
    let statuses = |world: &mut World, from: i64| {
        let mut statuses = 0;
        for seconds in from..from + 60 {
            world.looks(seconds, queue_at(if seconds % 2 == 0 { 20.0 } else { 15.0 }, seconds));
            statuses += u32::from(world.seen.written == Some(at(seconds)));
        }
        statuses
    };
    let mut dry_run = World::new(", mode: DryRun", 2);
    assert!(statuses(&mut dry_run, 0) <= 3);
    assert!(!dry_run.status().decisions.is_empty());
    let mut contested = World::new("", 4);
    for (seconds, by_another) in [(0, 4), (60, 2), (120, 2), (180, 2)] {
        contested.set(by_another);
        contested.looks(seconds, queue_at(20.0, seconds));
    }
    assert!(statuses(&mut contested, 181) <= 3);
}

#[test]
fn the_same_step_taken_twice_is_two_decisions() {
    let mut world = World::new("", 2);
    world.looks(0, queue_at(20.0, 0));
    world.set(2);
    world.looks(60, queue_at(20.0, 60));
    assert_eq!(world.written, [(0, 4), (60, 4)]);
    assert_eq!(world.status().decisions.len(), 2);
}

#[test]
fn bounds_that_change_in_a_burst_apply_at_once_and_forget_no_sample() {
    let mut world = World::new("", 4);
    world.looks(0, queue_at(20.0, 0));
    for (second, (min, max, expected)) in (1..).zip([(6, 10, 6), (1, 3, 3), (5, 8, 5), (1, 20, 4)]) {
        world.edits(&format!(", minReplicas: {min}"));
        let mut scaler = AIScaler::clone(&world.seen.scaler);
        scaler.spec.max_replicas = max;
        world.seen.scaler = Arc::new(scaler);
        world.looks_again(second);
        assert_eq!(world.found().scaled.replicas, expected, "{min} to {max}");
        assert_eq!(world.condition("Ready").0, "True");
    }
    assert!(world.events.iter().all(|note| note.reason == "SuccessfulRescale"), "{:?}", world.events);
}

#[test]
fn a_name_of_a_target_that_is_typed_wrong_is_said_once_and_costs_nothing() {
    let mut world = World::new("", 2);
    let why = "Deployment chta does not exist in namespace demo; create it or correct the name";
    world.seen.target = Target::Missing(why.into());
    world.looks(0, queue_at(20.0, 0));
    world.looks(15, queue_at(20.0, 15));
    assert_eq!(world.condition("AbleToScale").2, why);
    assert_eq!(world.condition("Stalled").1, "FailedGetScale");
    assert_eq!(world.events.len(), 1);
    world.seen.target = Target::Found(Box::new(found(2)));
    world.looks(30, queue_at(20.0, 30));
    assert_eq!((world.condition("Ready").0.as_str(), world.written.len()), ("True", 1));
}

#[test]
fn a_refused_write_is_no_decision() {
    let seen = observed(&scaler(""), found(2), queue(20.0));
    let valid = validate(&seen.scaler, &ALLOWED).unwrap();
    let refusal = Refusal::Denied("the API server denies Scale demo/chat: quota".into());
    let plan = refused(&refusal, &planned(&seen, at(0)), &valid, &seen, PERIOD, at(0));
    assert!(plan.scale.is_none());
    let status = plan.status.unwrap();
    assert_eq!(condition(&status, "AbleToScale").1, "FailedUpdateScale");
    assert!(status.decisions.is_empty() && status.last_scale_time.is_none());
}

#[test]
fn a_refusal_is_not_that_of_a_newer_decision() {
    let seen = observed(&scaler(""), found(2), queue(20.0));
    let valid = validate(&seen.scaler, &ALLOWED).unwrap();
    let refusal = Refusal::Denied("quota".into());
    let of_others = Found { scaled: Scaled { uid: "e".into(), ..found(2).scaled }, ..found(2) };
    for (newer, to) in [
        (observed(&scaler(""), found(2), queue(15.0)), 3),
        (observed(&scaler(""), of_others, queue(20.0)), 4),
    ] {
        assert_eq!(planned(&newer, at(0)).scale.unwrap().to(), to);
        let plan = refused(&refusal, &planned(&seen, at(0)), &valid, &newer, PERIOD, at(0));
        assert!(plan.scale.is_none() && plan.status.is_none() && plan.past.is_none(), "{plan:?}");
        assert_eq!(plan.requeue_after, Some(Duration::from_secs(2)), "it is sent soon");
    }
}

#[test]
fn words_of_the_arithmetic_are_reasons_of_the_api() {
    let file = include_str!("../../../api/src/reasons.rs");
    let words = [
        Active::ValidMetricFound.as_str(),
        Active::ScalingDisabled.as_str(),
        Active::MetricMissing(Fault::Slow).as_str(),
        Active::MetricStale.as_str(),
        Active::MetricPartial.as_str(),
        Active::MetricNotLoadSensitive.as_str(),
        Able::ReadyForNewScale.as_str(),
        Able::ScaleUpStabilized.as_str(),
        Able::ScaleDownStabilized.as_str(),
        Able::WaitingForPods.as_str(),
        Able::CrashLoop.as_str(),
        Able::CannotStart.as_str(),
        Limited::DesiredWithinRange.as_str(),
        Limited::TooFewReplicas.as_str(),
        Limited::TooManyReplicas.as_str(),
        Limited::ScaleUpLimit.as_str(),
        Limited::ScaleDownLimit.as_str(),
    ];
    for word in words {
        assert!(file.contains(&format!("= \"{word}\";")), "{word}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any course of loads, faults, pods, bounds and foreign writes: each entry of the status follows from what it records,
    /// and the target stays within its bounds.
    #[test]
    fn every_entry_of_the_status_can_be_computed_again(
        steps in prop::collection::vec((1_i64..120, 0_u32..400, 0_u8..12, 0_usize..6, 1_i32..30), 1..60),
        min in 0_i32..3,
    ) {
        let mut world = World::new(&format!(", minReplicas: {min}"), 3);
        let mut now = 0;
        for (wait, load, event, ready, replicas) in steps {
            now += wait;
            let settled = ready_pods(world.found().scaled.replicas);
            world.found().pods = Some(settled.into_iter().take(ready + 2).collect());
            match event {
                0 => world.set(replicas),
                1 => world.restarts(now),
                2 => world.edits(&format!(", minReplicas: {min}, additionalMetrics: [{{metricType: tokens_per_minute, targetValue: 9}}]")),
                3 => world.edits(&format!(", minReplicas: {min}")),
                _ => {}
            }
            let answer = if event == 4 { missing(Fault::Slow, "slow") } else { queue_at(f64::from(load), now - wait / 2) };
            let from = world.found().scaled.replicas;
            let before = world.written.len();
            world.looks(now, answer);
            if let Some((_, to)) = world.written.get(before) {
                let last = world.status().decisions.last().unwrap();
                prop_assert_eq!((last.from, last.to), (from, *to));
                prop_assert!((min..=10).contains(to));
            }
            let records = records(world.status());
            prop_assert!(records.len() <= 10);
            for record in records {
                prop_assert_eq!(recompute(&record), record.to, "{:?}", record);
            }
        }
    }
}
