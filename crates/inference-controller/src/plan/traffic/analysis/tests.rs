use std::collections::BTreeMap;

use serde_json::json;
use verdict::interval::Flow;

use super::*;
use crate::tests::at;

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
        ready_pods: Tracks { stable: 9, candidate: 1 },
        metrics: BTreeMap::from([(MetricName::ErrorRate, Found::Counted { flows, bound: None })]),
        fault: None,
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
    assert!(
        first.message().starts_with("needs ")
            && first.message().contains("more requests of the candidate, about"),
        "{}",
        first.message()
    );
    let looks: Vec<Look> = (2..=40).map(|number| good(0, number * 15)).collect();
    let (status, passed) = after(status, &canary, &looks);
    assert_eq!(passed.judgement.verdict, Verdict::Pass, "{}", passed.message());
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
    let message = failed.message();
    assert!(
        message.starts_with(
            "errorRate is worse than with stable: 20% of the candidate's requests, 0.2222% of stable's"
        ),
        "{message}"
    );
}

/// Whoever doubts a verdict computes it again.
#[test]
fn every_verdict_follows_from_the_record_in_the_status() {
    let canary = canary(&json!({"metrics": [{"name": "errorRate", "limitPercent": "0.5"}]}));
    let mut status = in_step(1, 0, None);
    for number in 1..=40 {
        let bad = u64::from(number % 4 == 0);
        let found = analysed(&status, &canary, &[look(0, number * 15, (450, bad), (50, bad))]).unwrap();
        let record: Record = serde_json::from_str(&found.status().record).unwrap();
        assert_eq!(judge(&record.inputs), found.judgement);
        assert_eq!(word(judge(&record.inputs).verdict), found.status().verdict);
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

#[test]
fn without_a_step_or_an_analysis_there_is_nothing() {
    let none: Canary = serde_json::from_value(json!({"image": "e:2", "weightPercent": 10})).unwrap();
    assert!(analysed(&in_step(1, 0, None), &none, &[]).is_none());
    let waits = CanaryStatus { step_started_at: None, ..in_step(1, 0, None) };
    assert!(analysed(&waits, &canary(&json!({})), &[]).is_none());
}
