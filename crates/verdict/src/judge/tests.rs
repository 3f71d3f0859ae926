use super::*;
use crate::{
    interval::{Interval, Load, Sample},
    metric::Ratio,
};

fn step() -> Step {
    Step {
        seconds: 600,
        min_seconds: 300,
        min_requests: 300,
        interval_seconds: 15,
        alpha: Alpha::ONE_PERCENT,
    }
}

fn metric(kind: Kind, limit: Option<f64>) -> Metric {
    Metric {
        name: "metric".to_owned(),
        kind,
        mode: Mode::Enforce,
        tolerated: Ratio::ONE,
        limit: limit.map(|percent| Share::from_percent(percent).unwrap()),
        warmup_seconds: 120,
    }
}

fn counts(requests: u64, bad: u64) -> Counts {
    Counts::new(requests, bad).unwrap()
}

/// A metric with these totals and no evidence for or against.
fn judged(kind: Kind, limit: Option<f64>, stable: (u64, u64), candidate: (u64, u64)) -> Judged {
    let totals = Tracks { stable: counts(stable.0, stable.1), candidate: counts(candidate.0, candidate.1) };
    let evidence =
        Evidence { totals, counted: 40, latest: Latest::Counted, in_a_row: 1, ..Evidence::default() };
    Judged { metric: metric(kind, limit), evidence, earlier: Counts::default() }
}

fn failures(stable: (u64, u64), candidate: (u64, u64)) -> Judged {
    judged(Kind::Failure, Some(1.0), stable, candidate)
}

fn alarmed() -> Judged {
    let calm = failures((9_000, 0), (1_000, 0));
    let evidence = Evidence { alarming: 2, log_ratios: [7_000_000; 5], ..calm.evidence };
    Judged { evidence, ..calm }
}

fn interrupted(judged: &Judged, latest: Latest, in_a_row: u32) -> Judged {
    Judged { evidence: Evidence { latest, in_a_row, ..judged.evidence }, ..judged.clone() }
}

fn of(metrics: &[Judged]) -> Judgement {
    judge(&Inputs { step: step(), metrics: metrics.to_vec() })
}

fn verdict(metrics: &[Judged]) -> (Verdict, Reason) {
    let judgement = of(metrics);
    (judgement.verdict, judgement.reason)
}

const PASS: (Verdict, Reason) = (Verdict::Pass, Reason::Passing);

fn inconclusive(reason: Reason) -> (Verdict, Reason) {
    (Verdict::Inconclusive, reason)
}

#[test]
fn enough_good_requests_pass() {
    assert_eq!(verdict(&[failures((2_700, 0), (300, 0))]), PASS);
}

#[test]
fn a_bound_that_is_the_limit_passes() {
    // z² / (300 + z²) = 0.8938 %.
    let with_limit = |percent| judged(Kind::Failure, Some(percent), (0, 0), (300, 0));
    assert_eq!(verdict(&[with_limit(0.8938)]), PASS);
    assert_eq!(verdict(&[with_limit(0.8937)]), inconclusive(Reason::TooFewRequests));
}

#[test]
fn the_bound_decides_and_not_the_share() {
    // 1 of 300 has a bound of 1.5 %.
    let judgement = of(&[failures((2_700, 0), (300, 1))]);
    assert_eq!((judgement.verdict, judgement.reason), inconclusive(Reason::TooFewRequests));
    let result = &judgement.metrics[0];
    assert_eq!(result.shares.candidate.unwrap().to_string(), "0.3333%");
    assert_eq!(result.upper_bound.unwrap().to_string(), "1.4801%");
    assert_eq!(result.allowed.unwrap().to_string(), "1%");
    // z² · 0.01 · 0.99 / (0.01 − 0.003333)² = 602.7; 300 took 600 s.
    assert_eq!(judgement.missing, Some(Missing { requests: 303, seconds: Some(606) }));
}

#[test]
fn a_worse_stable_version_allows_more() {
    // 1.25 · 2 % + 0.5 % = 3 %.
    let judgement = of(&[failures((2_700, 54), (1_000, 20))]);
    assert_eq!(judgement.metrics[0].allowed.unwrap().to_string(), "3%");
    assert_eq!((judgement.verdict, judgement.reason), PASS);
    let without_limit = Judged { metric: metric(Kind::Failure, None), ..failures((2_700, 54), (1_000, 20)) };
    assert_eq!(verdict(&[without_limit]), PASS);
}

#[test]
fn missing_requests_have_a_number_and_an_estimate() {
    // 41 requests in 408 s of 15 s each.
    let mut few = failures((369, 0), (41, 0));
    few.evidence.counted = 27;
    let judgement = of(&[few.clone()]);
    assert_eq!((judgement.verdict, judgement.reason), inconclusive(Reason::TooFewRequests));
    let missing = judgement.missing.unwrap();
    assert_eq!(missing, Missing { requests: 259, seconds: Some(2_559) });
    assert_eq!(missing.seconds.unwrap().div_ceil(60), 43, "need 300 requests, have 41, about 43 min");
    // Intervals that did not count take time too.
    few.evidence.skipped = 27;
    assert_eq!(of(&[few]).missing.unwrap().seconds, Some(5_117));
    let none = of(&[failures((369, 0), (0, 0))]).missing.unwrap();
    assert_eq!(none, Missing { requests: 300, seconds: None }, "no rate is known");
}

#[test]
fn a_share_that_is_too_high_is_not_waited_for() {
    let judgement = of(&[failures((2_700, 0), (300, 3))]);
    assert_eq!((judgement.verdict, judgement.reason), inconclusive(Reason::ShareTooHigh));
    assert_eq!(judgement.missing, None);
    // Of five requests, the share says nothing yet.
    let judgement = of(&[failures((45, 0), (5, 1))]);
    assert_eq!(judgement.reason, Reason::TooFewRequests);
    assert_eq!(judgement.missing.unwrap().requests, 295);
}

#[test]
fn an_alarm_fails() {
    let judgement = of(&[alarmed()]);
    assert_eq!((judgement.verdict, judgement.reason), (Verdict::Fail, Reason::Alarm));
    // e^7 = 1096.633.
    assert_eq!((judgement.metrics[0].evidence, judgement.metrics[0].evidence_needed), (1_096_633, 100_000));
    let mut in_one_interval = alarmed();
    in_one_interval.evidence.alarming = 1;
    assert_eq!(verdict(&[in_one_interval]), PASS);
}

#[test]
fn one_failing_metric_fails_and_all_must_pass() {
    let good = failures((2_700, 0), (300, 0));
    let few = failures((90, 0), (10, 0));
    assert_eq!(verdict(&[good.clone(), good.clone()]), PASS);
    assert_eq!(verdict(&[good.clone(), few.clone()]), inconclusive(Reason::TooFewRequests));
    assert_eq!(verdict(&[few, good, alarmed()]), (Verdict::Fail, Reason::Alarm));
}

#[test]
fn alpha_is_split_over_the_enforced_metrics() {
    // E is 150: an alarm alone, none beside another enforced metric.
    let mut weak = alarmed();
    weak.evidence.log_ratios = [5_010_636; 5];
    let mut other = failures((2_700, 0), (300, 0));
    assert_eq!(verdict(&[weak.clone()]).0, Verdict::Fail);
    assert_eq!(verdict(&[weak.clone(), other.clone()]), PASS);
    other.metric.mode = Mode::Observe;
    assert_eq!(verdict(&[weak, other]).0, Verdict::Fail);
}

#[test]
fn an_observed_metric_is_shown_and_decides_nothing() {
    let mut observed = alarmed();
    observed.metric.mode = Mode::Observe;
    let judgement = of(&[observed.clone(), failures((2_700, 0), (300, 0))]);
    assert_eq!((judgement.verdict, judgement.reason), PASS);
    assert_eq!(judgement.metrics[0].verdict, Some(Verdict::Fail));
    assert_eq!(verdict(&[observed]), inconclusive(Reason::NothingJudged));
    assert_eq!(verdict(&[]), inconclusive(Reason::NothingJudged));
    assert_eq!(of(&[]).missing, None);
}

#[test]
fn a_young_step_waits() {
    let mut inputs = Inputs { step: step(), metrics: vec![failures((2_700, 0), (300, 0))] };
    inputs.step.seconds = 299;
    let judgement = judge(&inputs);
    assert_eq!((judgement.verdict, judgement.reason), inconclusive(Reason::TooEarly));
    assert_eq!(judgement.missing, Some(Missing { requests: 0, seconds: Some(1) }));
    inputs.step.seconds = 300;
    assert_eq!(judge(&inputs).verdict, Verdict::Pass);
    // An alarm does not wait.
    let early = Inputs { step: Step { seconds: 30, ..step() }, metrics: vec![alarmed()] };
    assert_eq!(judge(&early).verdict, Verdict::Fail);
}

#[test]
fn missing_data_never_passes_and_never_fails() {
    let good = failures((2_700, 0), (300, 0));
    assert_eq!(verdict(&[interrupted(&good, Latest::Incomplete, 2)]), PASS);
    let missing = interrupted(&good, Latest::Incomplete, 3);
    assert_eq!(verdict(&[missing]), inconclusive(Reason::MetricsMissing));
    // What was found before stays found.
    assert_eq!(verdict(&[interrupted(&alarmed(), Latest::Incomplete, 3)]).0, Verdict::Fail);
}

#[test]
fn loads_that_differ_are_named_while_requests_are_missing() {
    let few = judged(Kind::Latency, Some(5.0), (90, 0), (10, 0));
    assert_eq!(verdict(&[interrupted(&few, Latest::LoadMismatch, 2)]).1, Reason::TooFewRequests);
    assert_eq!(verdict(&[interrupted(&few, Latest::LoadMismatch, 3)]).1, Reason::LoadMismatch);
    let enough = judged(Kind::Latency, Some(5.0), (2_700, 0), (300, 0));
    assert_eq!(verdict(&[interrupted(&enough, Latest::LoadMismatch, 3)]), PASS);
}

#[test]
fn tracks_without_a_common_bucket_are_not_compared() {
    let latency = judged(Kind::Latency, Some(5.0), (2_700, 0), (300, 0));
    let judgement = verdict(&[interrupted(&latency, Latest::BucketMismatch, 1)]);
    assert_eq!(judgement, inconclusive(Reason::BucketMismatch));
}

#[test]
fn a_warm_up_is_named_while_nothing_is_counted() {
    let nothing = failures((0, 0), (0, 0));
    assert_eq!(verdict(&[interrupted(&nothing, Latest::WarmingUp, 2)]), inconclusive(Reason::WarmingUp));
}

#[test]
fn aborts_are_judged_with_a_control_of_the_same_step_only() {
    let with_control = judged(Kind::Abort, None, (2_700, 27), (300, 2));
    assert_eq!(verdict(&[with_control]), inconclusive(Reason::TooFewRequests));
    let good = failures((2_700, 0), (300, 0));
    let mut alone = judged(Kind::Abort, Some(5.0), (0, 0), (300, 200));
    alone.earlier = counts(9_000, 90);
    let judgement = of(&[alone.clone(), good]);
    assert_eq!((judgement.verdict, judgement.reason), PASS);
    assert_eq!((judgement.metrics[0].verdict, judgement.metrics[0].reason), (None, Reason::NoControl));
    assert_eq!(judgement.metrics[0].shares.candidate.unwrap().to_string(), "66.6667%", "it is shown");
    assert_eq!(verdict(&[alone]), inconclusive(Reason::NothingJudged));
    // A limit allows more beside a control.
    let limited = judged(Kind::Abort, Some(5.0), (2_700, 27), (300, 2));
    assert_eq!(verdict(&[limited]), PASS);
}

#[test]
fn at_full_weight_the_limit_or_earlier_counts_are_the_control() {
    let without = || judged(Kind::Failure, None, (0, 0), (300, 0));
    assert_eq!(verdict(&[without()]), inconclusive(Reason::NoControl));
    assert_eq!(verdict(&[failures((0, 0), (300, 0))]), PASS);
    let earlier = Judged { earlier: counts(9_000, 90), ..without() };
    // 1.25 · 1 % + 0.5 %.
    let judgement = of(&[earlier]);
    assert_eq!(judgement.metrics[0].allowed.unwrap().to_string(), "1.75%");
    assert_eq!((judgement.verdict, judgement.reason), PASS);
}

#[test]
fn a_stable_version_with_few_requests_is_no_control() {
    // One of three bad would allow 42 %.
    let few = judged(Kind::Failure, None, (3, 1), (300, 60));
    assert_eq!(verdict(&[few]), inconclusive(Reason::NoControl));
}

#[test]
fn of_several_reasons_the_first_is_named() {
    let few = failures((90, 0), (10, 0));
    let missing = interrupted(&few, Latest::Incomplete, 3);
    let judgement = of(&[few.clone(), missing, failures((2_700, 0), (300, 3))]);
    assert_eq!((judgement.verdict, judgement.reason), inconclusive(Reason::MetricsMissing));
    assert_eq!(judgement.missing, None, "waiting is not known to help");
    let slower = failures((2_700, 0), (20, 0));
    assert_eq!(of(&[few, slower]).missing, Some(Missing { requests: 290, seconds: Some(17_400) }));
}

#[test]
fn a_step_is_judged_again_from_its_status() {
    let load = Load::new(1.0, 1).unwrap();
    let mut inputs = Inputs {
        step: step(),
        metrics: vec![failures((0, 0), (0, 0)), judged(Kind::Latency, None, (0, 0), (0, 0))],
    };
    for look in 0..40 {
        let counts = Tracks { stable: counts(90, look % 2), candidate: counts(10, look % 7 / 6) };
        let loads = Tracks { stable: load, candidate: load };
        let interval = Interval::Complete(Sample { counts, loads, age_seconds: look * 15 });
        for judged in &mut inputs.metrics {
            judged.evidence = judged.evidence.observe(&interval, &judged.metric);
        }
        let status = serde_json::to_string(&(&inputs, judge(&inputs))).unwrap();
        let (read, judgement): (Inputs, Judgement) = serde_json::from_str(&status).unwrap();
        assert_eq!((&read, &judgement), (&inputs, &judge(&read)));
        inputs = read;
    }
}
