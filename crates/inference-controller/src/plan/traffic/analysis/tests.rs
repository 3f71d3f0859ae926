use std::collections::BTreeMap;

use serde_json::json;
use verdict::{interval::Flow, judge::Reason};

use super::*;
use crate::{
    looks::{Faults, OfQueries},
    tests::at,
};

fn canary(analysis: &serde_json::Value) -> Canary {
    let steps = json!([
        {"weightPercent": 10, "minSeconds": 60, "minRequests": 100},
        {"weightPercent": 50, "minSeconds": 60, "minRequests": 100},
    ]);
    serde_json::from_value(json!({"image": "e:2", "steps": steps, "analysis": analysis})).unwrap()
}

/// A status in this step, which began so many seconds after noon.
fn in_step(step: i32, seconds: i64, analysis: Option<AnalysisStatus>) -> CanaryStatus {
    let since = Some(Time(at(seconds)));
    let (revision, stable_revision) = ("new".to_owned(), "old".to_owned());
    CanaryStatus {
        revision,
        stable_revision,
        step,
        step_started_at: since,
        analysis,
        ..CanaryStatus::default()
    }
}

fn flow(ended: u64, bad: u64) -> Flow {
    Flow { arrivals: ended, ended: Counts::new(ended, bad).unwrap(), in_flight: 0, restarts: 0 }
}

/// A look of a step that began so many seconds after noon: requests and bad ones of stable, and of the candidate.
fn look(since: i64, seconds: i64, stable: (u64, u64), candidate: (u64, u64)) -> Look {
    let flows = Tracks { stable: flow(stable.0, stable.1), candidate: flow(candidate.0, candidate.1) };
    Look {
        step_since: at(since).as_second(),
        at: at(seconds).as_second(),
        ended: at(seconds).as_second(),
        ready_pods: Tracks { stable: 9, candidate: 1 },
        requests: None,
        metrics: BTreeMap::from([(MetricName::ErrorRate, Found::Counted { flows, bound: None })]),
        tokens: None,
        fault: None,
        of_queries: None,
    }
}

fn good(since: i64, seconds: i64) -> Look {
    look(since, seconds, (450, 1), (50, 0))
}

/// All looks, each with the status that the one before has left.
fn after(mut status: CanaryStatus, canary: &Canary, looks: &[Look]) -> (CanaryStatus, Analysed) {
    let mut last = analysed(&status, canary, &[]).unwrap();
    for look in looks {
        last = analysed(&status, canary, std::slice::from_ref(look)).unwrap();
        status.analysis = Some(last.status());
    }
    (status, last)
}

#[test]
fn a_good_candidate_passes_and_says_before_what_is_missing() {
    let canary = canary(&json!({}));
    let (status, first) = after(in_step(1, 0, None), &canary, &[good(0, 15)]);
    assert_eq!(first.judgement.verdict, Verdict::Inconclusive);
    let message = first.message(Faults::default());
    let counts = "errorRate: 0 of 50 requests of the candidate (0 %) failed, 1 of 450 of stable (0.22 %); ";
    assert!(message.starts_with(counts) && message.contains(" more of the candidate, about "), "{message}");
    let looks: Vec<Look> = (2..=40).map(|number| good(0, number * 15)).collect();
    let (status, passed) = after(status, &canary, &looks);
    assert_eq!(passed.judgement.verdict, Verdict::Pass, "{}", passed.message(Faults::default()));
    let analysis = status.analysis.unwrap();
    assert_eq!((&*analysis.verdict, &*analysis.reason), ("Pass", "Passing"));
    let metric = &analysis.metrics[0];
    assert_eq!((metric.candidate.ended, metric.stable.bad), (2_000, 40));
    assert_eq!(metric.stable.bad_percent.as_deref(), Some("0.2222"));
}

#[test]
fn a_bad_candidate_fails_with_numbers() {
    let canary = canary(&json!({}));
    let looks: Vec<Look> = (1..=8).map(|number| look(0, number * 15, (450, 1), (50, 10))).collect();
    let (_, failed) = after(in_step(1, 0, None), &canary, &looks);
    assert_eq!((failed.judgement.verdict, failed.judgement.reason), (Verdict::Fail, Reason::Alarm));
    let message = failed.message(Faults::default());
    assert!(
        message.starts_with(
            "errorRate: 80 of 400 requests of the candidate (20 %) failed, 8 of 3600 of stable (0.22 %)"
        ),
        "{message}"
    );
    assert!(message.ends_with(", and 200 is enough"), "two steps of one metric at 0.01: {message}");
}

#[test]
fn requests_that_the_user_calls_bad_are_judged_as_errors_are() {
    let queries = |bad: &str| {
        let bad = format!(r#"{bad}{{service="$name"}} or vector(0)"#);
        json!({"requestsQuery": r#"a{service="$name"}"#, "badRequestsQuery": bad})
    };
    let canary = canary(&json!({
        "metrics": [{"name": "custom"}],
        "prometheus": queries("b"),
    }));
    let of_user = |number: i64| {
        let mut look = look(0, number * 15, (450, 1), (50, 10));
        look.metrics = look.metrics.into_values().map(|found| (MetricName::Custom, found)).collect();
        let hash = hash_of(canary.analysis.as_ref().unwrap()).unwrap();
        look.of_queries = Some(OfQueries { hash, fault: None, may_pass: true });
        look
    };
    let looks: Vec<Look> = (1..=8).map(of_user).collect();
    let (status, failed) = after(in_step(1, 0, None), &canary, &looks);
    assert_eq!((failed.judgement.verdict, failed.judgement.reason), (Verdict::Fail, Reason::Alarm));
    let again = analysed(&status, &canary, &[]).unwrap().status();
    assert_eq!(again.metrics[0].candidate.ended, 400);
    let message = failed.message(Faults::default());
    let counts = "custom: 80 of 400 requests of the candidate (20 %) were bad, 8 of 3600 of stable (0.22 %)";
    assert!(message.starts_with(counts), "{message}");
    let corrected = serde_json::from_value(json!({
        "image": "e:2", "steps": canary.steps,
        "analysis": {
            "metrics": [{"name": "custom"}],
            "prometheus": queries("c"),
        },
    }));
    // A look of the query of before may come later than the correction.
    let after_it = analysed(&status, &corrected.unwrap(), &[of_user(9)]).unwrap().status();
    assert_eq!(after_it.metrics[0].candidate.ended, 0, "what another query has counted");
    let pooled = Look { metrics: [(MetricName::Custom, Found::Pooled)].into(), ..of_user(9) };
    let after_it = analysed(&status, &canary, &[pooled]).unwrap();
    assert_eq!((after_it.until(), after_it.status().metrics[0].candidate.ended), (at(135).as_second(), 400));
    let missing = |number: i64| Look {
        metrics: BTreeMap::from([(MetricName::Custom, Found::Incomplete)]),
        ..of_user(number)
    };
    let (_, unknown) = after(in_step(1, 0, None), &canary, &[missing(1), missing(2), missing(3)]);
    assert_eq!(
        unknown.message(Faults { of_queries: Some("the server cannot be reached"), ..Faults::default() }),
        "custom: 3 looks in a row did not get all numbers: the server cannot be reached"
    );
}

#[test]
fn what_is_wrong_with_the_queries_is_said_where_it_may_be_the_cause() {
    let of_limit = |limit: Option<&str>| {
        canary(&json!({
            "metrics": [{"name": "custom", "limitPercent": limit}],
            "prometheus": {
                "requestsQuery": "a{service=\"$name\"}", "badRequestsQuery": "b{service=\"$name\"} or vector(0)",
            },
        }))
    };
    let said = |canary: &Canary, stable: (u64, u64), candidate: (u64, u64)| {
        let of_user = |number: i64| {
            let mut look = look(0, number * 15, stable, candidate);
            look.metrics = look.metrics.into_values().map(|found| (MetricName::Custom, found)).collect();
            let hash = hash_of(canary.analysis.as_ref().unwrap()).unwrap();
            look.of_queries = Some(OfQueries { hash, fault: None, may_pass: true });
            look
        };
        let (_, found) = after(in_step(1, 0, None), canary, &(1..=8).map(of_user).collect::<Vec<_>>());
        let of = |fault| found.message(Faults { of_queries: fault, ..Faults::default() });
        (of(None), of(Some("why")))
    };
    let (passes, with_cause) = said(&of_limit(Some("20")), (450, 1), (50, 0));
    assert_eq!((&*passes, &*with_cause), ("the candidate passes", "the candidate passes; why"));
    let (alone, with_cause) = said(&of_limit(None), (0, 0), (50, 0));
    assert_eq!(alone, "custom: stable has had no requests to compare with; set limitPercent");
    assert_eq!(with_cause, format!("{alone}; why"));
    let (few, with_cause) = said(&of_limit(None), (2, 0), (50, 0));
    assert!(few.contains("more of stable"), "{few}");
    assert_eq!(with_cause, format!("{few}; why"));
}

/// One long prompt is more load than a thousand chats.
#[test]
fn tokens_of_a_step_are_shown_and_begin_anew_with_the_next() {
    let canary = canary(&json!({}));
    let of = |tokens: Option<(u64, u64)>, seconds| Look {
        tokens: tokens.map(|(stable, candidate)| Tracks { stable, candidate }),
        ..good(0, seconds)
    };
    let shown = |status: &CanaryStatus| {
        let tokens = status.analysis.as_ref().unwrap().tokens.as_ref();
        tokens.map(|tokens| (tokens.stable, tokens.candidate))
    };
    let (status, _) = after(in_step(1, 0, None), &canary, &[of(None, 15)]);
    assert_eq!(shown(&status), None, "no engine has said");
    let looks = [of(Some((900, 500)), 30), of(None, 45), of(Some((100, 70)), 60)];
    let (status, _) = after(status, &canary, &looks);
    assert_eq!(shown(&status), Some((1_000, 570)));
    let next = in_step(2, 60, status.analysis.clone());
    let (next, _) = after(next, &canary, &[Look { step_since: at(60).as_second(), ..of(Some((7, 3)), 75) }]);
    assert_eq!(shown(&next), Some((7, 3)));
    // A record of an earlier release has none.
    let mut analysis = status.analysis.unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&analysis.record).unwrap();
    assert!(record.as_object_mut().unwrap().remove("tokens").is_some());
    analysis.record = record.to_string();
    let found = analysed(&in_step(1, 0, Some(analysis)), &canary, &[]).unwrap();
    assert!(found.record.inputs.metrics[0].evidence.totals.stable.requests() > 0, "its counts stay");
}

/// So a verdict can be checked by hand.
#[test]
fn every_verdict_follows_from_the_record_in_the_status() {
    let canary = canary(&json!({"metrics": [{"name": "errorRate", "limitPercent": "0.5"}]}));
    let mut status = in_step(1, 0, None);
    for number in 1..=40 {
        let bad = u64::from(number % 4 == 0);
        let found = analysed(&status, &canary, &[look(0, number * 15, (450, bad), (50, bad))]).unwrap();
        let record: Record = serde_json::from_str(&found.status().record).unwrap();
        assert_eq!(judge(&record.inputs), found.judgement);
        assert_eq!(judge(&record.inputs).verdict.as_str(), found.status().verdict);
        status.analysis = Some(found.status());
    }
}

#[test]
fn a_look_counts_once_however_often_it_is_seen() {
    let canary = canary(&json!({}));
    let looks = [good(0, 15), good(0, 30)];
    let first = analysed(&in_step(1, 0, None), &canary, &looks).unwrap().status();
    let again = analysed(&in_step(1, 0, Some(first.clone())), &canary, &looks).unwrap().status();
    assert_eq!(again, first);
    assert_eq!(first.metrics[0].candidate.ended, 100);
    let of_another_step =
        analysed(&in_step(1, 0, Some(first.clone())), &canary, &[good(-60, 45)]).unwrap().status();
    assert_eq!(of_another_step, first);
}

#[test]
fn a_record_that_cannot_be_read_begins_the_step_anew() {
    let canary = canary(&json!({}));
    let known = analysed(&in_step(1, 0, None), &canary, &[good(0, 15)]).unwrap().status();
    let other_format = known.record.replace("\"format\":1", "\"format\":2");
    let cut = known.record.replace("\"latest\":\"counted\"", "\"latest\":\"else\"");
    for record in [
        String::new(),
        "{}".to_owned(),
        other_format,
        known.record.replace("\"revision\":\"new\"", "\"revision\":\"x\""),
    ] {
        let status = in_step(1, 0, Some(AnalysisStatus { record, ..known.clone() }));
        assert_eq!(analysed(&status, &canary, &[]).unwrap().status().metrics[0].candidate.ended, 0);
    }
    assert_ne!(cut, known.record);
}

#[test]
fn the_next_step_counts_anew_and_knows_what_stable_was() {
    let canary = canary(&json!({}));
    let looks: Vec<Look> = (1..=10).map(|number| good(0, number * 15)).collect();
    let (status, _) = after(in_step(1, 0, None), &canary, &looks);
    let second = analysed(&in_step(2, 200, status.analysis), &canary, &[]).unwrap();
    assert_eq!(second.status().metrics[0].candidate.ended, 0);
    let judged = &second.record.inputs.metrics[0];
    assert_eq!((judged.earlier.counts.requests(), second.record.shared_since), (4_500, at(0).as_second()));
    assert!(judged.evidence.fixed.is_some(), "at weight 100 there is no other control");
}

#[test]
fn settings_may_change_and_another_threshold_counts_anew() {
    let before = canary(&json!({"metrics": [{"name": "errorRate"}]}));
    let known = analysed(&in_step(1, 0, None), &before, &[good(0, 15)]).unwrap().status();
    let after = canary(
        &json!({"alpha": "0.001", "metrics": [{"name": "errorRate", "limitPercent": "5"}, {"name": "e2e"}]}),
    );
    let found = analysed(&in_step(1, 0, Some(known)), &after, &[]).unwrap().status();
    assert_eq!((found.metrics[0].candidate.ended, found.metrics.len()), (50, 2));
    assert_eq!(found.metrics[0].allowed_percent.as_deref(), Some("5"));

    let slow = |threshold: i32| canary(&json!({"metrics": [{"name": "e2e", "thresholdMillis": threshold}]}));
    let of_bound = |seconds: i64, millis: u32| {
        let Some(Found::Counted { flows, .. }) = good(0, seconds).metrics.remove(&MetricName::ErrorRate)
        else {
            panic!()
        };
        let found = Found::Counted { flows, bound: Some(Bound::from_millis(millis).unwrap()) };
        Look { metrics: BTreeMap::from([(MetricName::E2e, found)]), ..good(0, seconds) }
    };
    let looks: Vec<Look> = (1..=12).map(|number| of_bound(number * 15, 500)).collect();
    let known = analysed(&in_step(1, 0, None), &slow(500), &looks).unwrap().status();
    assert_eq!(known.metrics[0].candidate.ended, 200, "the first two minutes are those of a cold version");
    assert_eq!(known.metrics[0].threshold_millis.as_deref(), Some("500"));
    let anew = analysed(&in_step(1, 0, Some(known.clone())), &slow(1_000), &[]).unwrap().status();
    assert_eq!(anew.metrics[0].candidate.ended, 0);
    let same = analysed(&in_step(1, 0, Some(known)), &slow(500), &[]).unwrap().status();
    assert_eq!(same.metrics[0].candidate.ended, 200);
}

#[test]
fn three_looks_without_numbers_hold_and_judge_nothing() {
    let canary = canary(&json!({}));
    let none = |number: i64| Look {
        metrics: BTreeMap::from([(MetricName::ErrorRate, Found::Incomplete)]),
        ..good(0, number * 15)
    };
    let looks: Vec<Look> = (1..=3).map(none).collect();
    let (_, found) = after(in_step(1, 0, None), &canary, &looks);
    assert_eq!(
        (found.judgement.verdict, found.judgement.reason),
        (Verdict::Inconclusive, Reason::MetricsMissing)
    );
}

/// Up to 15 s late each, as looks are.
fn idle(number: i64) -> Look {
    look(0, number * 15, (0, 0), (0, 0))
}

#[test]
fn only_time_with_looks_after_the_least_time_counts_as_waiting_for_a_verdict() {
    let canary = canary(&json!({}));
    let (status, early) = after(in_step(1, 0, None), &canary, &(1..=3).map(idle).collect::<Vec<_>>());
    assert_eq!(early.waited(), Duration::ZERO, "the step lasts 60 s at least");
    let (status, waits) = after(status, &canary, &(4..=8).map(idle).collect::<Vec<_>>());
    assert_eq!(waits.waited(), Duration::from_secs(75));
    let (status, back) = after(status, &canary, &[idle(1_000)]);
    assert_eq!(back.waited(), Duration::from_secs(105), "the controller was away for hours");
    let passing = look(0, 15_015, (20_000, 1), (2_000, 0));
    let (_, passed) = after(status, &canary, &[passing]);
    assert_eq!((passed.judgement.verdict, passed.waited()), (Verdict::Pass, Duration::ZERO));
}

#[test]
fn nobody_waits_for_the_verdict_of_a_fixed_share_an_approval_or_an_observation() {
    let looks: Vec<Look> = (1..=20).map(idle).collect();
    let steps = canary(&json!({}));
    let (status, waits) = after(in_step(1, 0, None), &steps, &looks);
    assert!(waits.waited() > Duration::ZERO);
    let now = |status: &CanaryStatus, canary: &Canary| analysed(status, canary, &[]).unwrap().waited();
    let fixed = Canary { steps: Vec::new(), weight_percent: 10, ..steps.clone() };
    let observed = canary(&json!({"mode": "Observe"}));
    let awaits = CanaryStatus { phase: Some(CanaryPhase::AwaitingApproval), ..status.clone() };
    for (status, canary) in [(&status, &fixed), (&status, &observed), (&awaits, &steps)] {
        assert_eq!(now(status, canary), Duration::ZERO);
    }
    assert!(now(&status, &Canary { approved_steps: 1, ..fixed }) > Duration::ZERO);
}

/// With Promote the time is over once, and the approval that follows must not begin it anew.
#[test]
fn an_approval_does_not_begin_a_time_anew_that_is_over() {
    let promotes = canary(&json!({"onInconclusive": "Promote"}));
    let looks: Vec<Look> = (1..=20).map(idle).collect();
    let (status, waits) = after(in_step(1, 0, None), &promotes, &looks);
    let awaits = CanaryStatus { phase: Some(CanaryPhase::AwaitingApproval), ..status };
    assert_eq!(analysed(&awaits, &promotes, &[]).unwrap().waited(), waits.waited());
}

#[test]
fn while_nobody_waits_a_look_is_written_once() {
    let observed = canary(&json!({"mode": "Observe"}));
    let (status, _) = after(in_step(1, 0, None), &observed, &(1..=10).map(idle).collect::<Vec<_>>());
    let again = analysed(&status, &observed, &[]).unwrap().status();
    assert_eq!(Some(again), status.analysis);
}

#[test]
fn a_limit_that_is_taken_back_is_forgotten_with_what_it_was_judged_by() {
    let limited = canary(&json!({"metrics": [{"name": "errorRate", "limitPercent": "50"}]}));
    let (status, _) = after(in_step(1, 0, None), &limited, &[good(0, 15), good(0, 30)]);
    let counted =
        |canary: &Canary| analysed(&status, canary, &[]).unwrap().status().metrics[0].candidate.ended;
    assert_eq!(counted(&limited), 100);
    assert_eq!(counted(&canary(&json!({"metrics": [{"name": "errorRate", "limitPercent": "20"}]}))), 100);
    assert_eq!(counted(&canary(&json!({}))), 0);
    // Also where it is taken back between two steps.
    let next = CanaryStatus { step: 2, step_started_at: Some(Time(at(60))), ..status.clone() };
    let given = |canary: &Canary| analysed(&next, canary, &[]).unwrap().record.inputs.metrics[0].clone();
    assert!(given(&limited).earlier.counts.requests() > 0);
    assert_eq!(given(&canary(&json!({}))).earlier.counts.requests(), 0);
}

#[test]
fn a_long_step_is_written_once_a_minute_unless_the_verdict_changes() {
    let canary = canary(&json!({}));
    let (status, _) = after(in_step(1, 0, None), &canary, &(1..=41).map(idle).collect::<Vec<_>>());
    let known = status.analysis.clone().unwrap();
    let looks: Vec<Look> = (42..=44).map(idle).collect();
    for number in 1..3 {
        let found = analysed(&status, &canary, &looks[..number]).unwrap().status();
        assert_eq!(found, known, "{number} looks");
    }
    assert_ne!(analysed(&status, &canary, &looks).unwrap().status(), known, "a minute is over");
    let passes = look(0, 630, (20_000, 1), (2_000, 0));
    assert_eq!(analysed(&status, &canary, &[passes]).unwrap().status().verdict, "Pass");
}

#[test]
fn a_step_that_begins_again_counts_no_look_twice() {
    let canary = canary(&json!({}));
    let (status, _) = after(in_step(2, 0, None), &canary, &[good(0, 15)]);
    // The last step was removed from the spec.
    let again = analysed(&in_step(1, 0, status.analysis), &canary, &[good(0, 15)]).unwrap().status();
    assert_eq!(again.metrics[0].candidate.ended, 0);
}

/// At weight 100 stable has no requests by which another bound could be chosen.
#[test]
fn the_next_step_keeps_the_bound_of_a_latency() {
    let canary = canary(&json!({"metrics": [{"name": "e2e"}]}));
    let bound = Bound::from_millis(500).ok();
    let timed = |seconds: i64| {
        let Some(Found::Counted { flows, .. }) = good(0, seconds).metrics.remove(&MetricName::ErrorRate)
        else {
            panic!()
        };
        let metrics = BTreeMap::from([(MetricName::E2e, Found::Counted { flows, bound })]);
        Look { metrics, ..good(0, seconds) }
    };
    let looks: Vec<Look> = (1..=12).map(|number| timed(number * 15)).collect();
    let (status, _) = after(in_step(1, 0, None), &canary, &looks);
    let next = analysed(&in_step(2, 200, status.analysis), &canary, &[]).unwrap();
    let judged = &next.record.inputs.metrics[0];
    assert_eq!((next.bound(MetricName::E2e), judged.earlier.bound), (bound, bound));
    assert!(judged.evidence.fixed.is_some());
}

#[test]
fn a_look_without_requests_changes_nothing_that_is_counted() {
    let canary = canary(&json!({"metrics": [{"name": "e2e"}]}));
    let none = |number: i64| Look {
        metrics: BTreeMap::from([(MetricName::E2e, Found::NoRequests)]),
        ..good(0, number * 15)
    };
    let (_, found) = after(in_step(1, 0, None), &canary, &(1..=10).map(none).collect::<Vec<_>>());
    assert_ne!(found.judgement.reason, Reason::MetricsMissing);
    assert_eq!(found.status().metrics[0].candidate.ended, 0);
}

#[test]
fn shares_have_two_digits_that_say_something() {
    let of = |millionths| words::rounded(Share::from_millionths(millionths).unwrap());
    assert_eq!([0, 2_222, 31_415, 200_000, 1_000_000].map(of), ["0", "0.22", "3.1", "20", "100"]);
}

#[test]
fn without_a_step_or_an_analysis_there_is_nothing() {
    let none: Canary = serde_json::from_value(json!({"image": "e:2", "weightPercent": 10})).unwrap();
    assert!(analysed(&in_step(1, 0, None), &none, &[]).is_none());
    let waits = CanaryStatus { step_started_at: None, ..in_step(1, 0, None) };
    assert!(analysed(&waits, &canary(&json!({})), &[]).is_none());
}
