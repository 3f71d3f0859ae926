use super::*;
use crate::{
    e_process::EProcess,
    evidence::Latest,
    interval::{Flow, Sample, Tracks},
    metric::{Kind, Ratio},
};

fn step() -> Step {
    Step {
        seconds: 600,
        min_seconds: 300,
        min_requests: 300,
        interval_seconds: 15,
        alpha: Alpha::ONE_PERCENT,
        steps: 1,
    }
}

fn metric(kind: Kind, limit: Option<f64>) -> Metric {
    Metric {
        name: "metric".to_owned(),
        kind,
        mode: Mode::Enforce,
        tolerated: Ratio::ONE,
        limit: limit.map(|percent| Share::from_percent(percent).unwrap()),
        warmup_seconds: Some(120),
    }
}

fn counts(requests: u64, bad: u64) -> Counts {
    Counts::new(requests, bad).unwrap()
}

/// A metric with these totals and no evidence for or against.
fn judged(kind: Kind, limit: Option<f64>, stable: (u64, u64), candidate: (u64, u64)) -> Judged {
    let totals = Tracks { stable: counts(stable.0, stable.1), candidate: counts(candidate.0, candidate.1) };
    let evidence = Evidence {
        totals,
        arrivals: Tracks { stable: stable.0, candidate: candidate.0 },
        counted: 40,
        latest: Latest::Counted,
        in_a_row: 1,
        ..Evidence::default()
    };
    Judged { metric: metric(kind, limit), evidence, bound: None, earlier: Earlier::default() }
}

fn earlier(requests: u64, bad: u64) -> Earlier {
    Earlier { counts: counts(requests, bad), bound: None }
}

fn failures(stable: (u64, u64), candidate: (u64, u64)) -> Judged {
    judged(Kind::Failure, Some(1.0), stable, candidate)
}

fn alarmed() -> Judged {
    let calm = failures((9_000, 0), (1_000, 0));
    let against_stable = EProcess { alarming: 2, intervals: 1_000_000, log_sums: [7_000_000; 5] };
    let totals = Tracks { candidate: counts(1_000, 20), ..calm.evidence.totals };
    Judged { evidence: Evidence { against_stable, totals, ..calm.evidence }, ..calm }
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
    assert_eq!(judgement.missing, Some(Missing { requests: 303, stable_requests: 0, seconds: Some(606) }));
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
    assert_eq!(missing, Missing { requests: 259, stable_requests: 0, seconds: Some(2_559) });
    assert_eq!(missing.seconds.unwrap().div_ceil(60), 43, "need 300 requests, have 41, about 43 min");
    // Intervals that did not count take time too.
    few.evidence.skipped = 27;
    assert_eq!(of(&[few]).missing.unwrap().seconds, Some(5_117));
    let none = of(&[failures((369, 0), (0, 0))]).missing.unwrap();
    assert_eq!(none, Missing { requests: 300, stable_requests: 0, seconds: None }, "no rate is known");
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
    assert_eq!((judgement.metrics[0].e_value, judgement.metrics[0].e_value_needed), (1_096_633, 100_000));
    let mut in_one_interval = alarmed();
    in_one_interval.evidence.against_stable.alarming = 1;
    assert_eq!(verdict(&[in_one_interval]), inconclusive(Reason::ShareTooHigh));
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
    weak.evidence.against_stable.log_sums = [5_010_636; 5];
    let mut other = failures((2_700, 0), (300, 0));
    assert_eq!(verdict(&[weak.clone()]).0, Verdict::Fail);
    assert_eq!(verdict(&[weak.clone(), other.clone()]), inconclusive(Reason::ShareTooHigh));
    other.metric.mode = Mode::Observe;
    assert_eq!(verdict(&[weak, other]).0, Verdict::Fail);
}

#[test]
fn alpha_is_split_over_the_steps() {
    // E is 1096: an alarm in one of ten steps, none in one of sixteen.
    let of_steps = |steps| judge(&Inputs { step: Step { steps, ..step() }, metrics: vec![alarmed()] });
    assert_eq!(of_steps(10).verdict, Verdict::Fail);
    assert_eq!(of_steps(16).verdict, Verdict::Inconclusive);
    assert_eq!(
        [0, 1, 16].map(|steps| of_steps(steps).metrics[0].e_value_needed),
        [100_000, 100_000, 1_600_000]
    );
}

#[test]
fn another_bound_spends_alpha_once() {
    let [narrow, wide] = [100, 250].map(|millis| Bound::from_millis(millis).ok());
    for limit in [None, Some(1.0)] {
        let begun = Judged::begin(
            metric(Kind::Latency, limit),
            narrow,
            Earlier { bound: narrow, ..earlier(9_000, 900) },
            300,
        );
        let bad =
            |requests, bad| Flow { arrivals: requests, ended: counts(requests, bad), ..Flow::default() };
        let looks = [
            Tracks { stable: bad(50, 0), candidate: bad(50, 2) },
            Tracks { candidate: bad(50, 2), ..Tracks::default() },
        ];
        let looks = looks.map(|flows| {
            Interval::Complete(Sample {
                flows,
                ready_pods: Tracks { stable: 1, candidate: 1 },
                age_seconds: 1_000,
            })
        });
        let before = looks.iter().fold(begun, |judged, look| judged.observe(look, narrow));
        let quiet = Interval::Complete(Sample {
            flows: Tracks::default(),
            ready_pods: Tracks::default(),
            age_seconds: 1_000,
        });
        let after = before.clone().observe(&quiet, wide);
        assert_eq!(after.evidence.totals, Tracks::default(), "bad is another thing now");
        assert_eq!(after.evidence.against_stable, before.evidence.against_stable, "the test goes on");
        assert_eq!(after.evidence.against_fixed.intervals, 1);
        assert_eq!(after.evidence.tests(), before.evidence.tests(), "each keeps its part of alpha");
    }
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
    assert_eq!(judgement.missing, Some(Missing { requests: 0, stable_requests: 0, seconds: Some(1) }));
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
    // Nothing is counted, so stable seems to have no requests.
    let none = judged(Kind::Latency, None, (0, 0), (0, 0));
    let none = Judged { evidence: Evidence { counted: 0, ..none.evidence }, ..none };
    assert_eq!(verdict(&[interrupted(&none, Latest::LoadMismatch, 3)]).1, Reason::LoadMismatch);
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
    alone.earlier = earlier(9_000, 90);
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
    let earlier = Judged { earlier: earlier(9_000, 90), ..without() };
    // 1.25 · 1 % + 0.5 %.
    let judgement = of(&[earlier]);
    assert_eq!(judgement.metrics[0].allowed.unwrap().to_string(), "1.75%");
    assert_eq!((judgement.verdict, judgement.reason), PASS);
}

#[test]
fn a_stable_version_with_few_requests_is_no_control_yet() {
    // One of three bad would allow 42 %. 3 requests took 600 s.
    for kind in [Kind::Failure, Kind::Latency, Kind::Abort] {
        let judgement = of(&[judged(kind, None, (3, 1), (300, 60))]);
        assert_eq!((judgement.verdict, judgement.reason), inconclusive(Reason::TooFewRequests), "{kind:?}");
        let missing = Missing { requests: 0, stable_requests: 297, seconds: Some(59_400) };
        assert_eq!(judgement.missing, Some(missing));
    }
}

/// Of 10 % bad requests at most, with so many in flight.
fn flying(ended: u64, stable: (u64, u64), candidate: (u64, u64)) -> Judged {
    let mut judged = judged(Kind::Failure, Some(10.0), (0, 0), (ended, 0));
    judged.evidence.arrivals = Tracks { stable: stable.0, candidate: candidate.0 };
    judged.evidence.in_flight = Tracks { stable: stable.1, candidate: candidate.1 };
    judged
}

#[test]
fn requests_that_may_hang_forbid_a_pass() {
    // A tenth of the ended ones is allowed to be bad.
    assert_eq!(verdict(&[flying(300, (0, 0), (330, 30))]), PASS);
    let judgement = of(&[flying(300, (0, 0), (331, 31))]);
    assert_eq!((judgement.verdict, judgement.reason), inconclusive(Reason::InFlight));
    assert_eq!(judgement.missing.unwrap().requests, 10);
    // The stable version has 60 of 400 in flight, so 120 of 400 are as expected.
    assert_eq!(verdict(&[flying(300, (400, 60), (400, 120))]), PASS);
    assert_eq!(verdict(&[flying(300, (400, 60), (400, 121))]), inconclusive(Reason::InFlight));
    let mut none_allowed = flying(u64::from(u32::MAX), (0, 0), (1, 1));
    none_allowed.metric.limit = Some(Share::NONE);
    assert_ne!(verdict(&[none_allowed]), PASS);
}

#[test]
fn counts_of_another_bound_are_no_control_and_begin_anew() {
    let [narrow, wide] = [100, 250].map(|millis| Bound::from_millis(millis).ok());
    let earlier = Earlier { bound: narrow, ..earlier(9_000, 900) };
    let metric = metric(Kind::Latency, None);
    let latency = Judged::begin(metric.clone(), narrow, earlier, 300);
    assert_eq!(latency.evidence.fixed.unwrap().to_string(), "13%", "1.25 · 10 % + 0.5 %");
    assert_eq!(Judged::begin(metric, wide, earlier, 300).evidence.fixed, None);
    let flow = |requests| Flow { arrivals: requests, ended: counts(requests, 0), in_flight: 0, restarts: 0 };
    let flows = Tracks { stable: flow(50), candidate: flow(50) };
    let sample = Sample { flows, ready_pods: Tracks { stable: 1, candidate: 1 }, age_seconds: 1_000 };
    let look = Interval::Complete(sample);
    let counted = latency.observe(&look, narrow).observe(&Interval::Incomplete, None).observe(&look, narrow);
    assert_eq!(counted.evidence.counted, 2);
    let anew = counted.observe(&look, wide);
    assert_eq!((anew.evidence.counted, anew.bound, anew.evidence.fixed), (1, wide, None));
    assert_eq!(of(&[anew]).metrics[0].allowed, None);
}

#[test]
fn a_broken_candidate_at_full_weight_fails() {
    let metric = metric(Kind::Failure, None);
    let mut judged = Judged::begin(metric, None, earlier(9_000, 90), 300);
    let ended = counts(300, 290);
    let candidate = Flow { arrivals: 300, ended, in_flight: 0, restarts: 0 };
    let flows = Tracks { candidate, ..Tracks::default() };
    let sample = Sample { flows, ready_pods: Tracks { stable: 0, candidate: 1 }, age_seconds: 1_000 };
    let looks = (1..10).find(|_| {
        judged = judged.clone().observe(&Interval::Complete(sample), None);
        verdict(&[judged.clone()]).0 == Verdict::Fail
    });
    assert_eq!(looks, Some(4));
    assert_eq!(of(&[judged]).metrics[0].e_value_needed, 200_000, "alpha is split over both tests");
}

#[test]
fn results_of_other_versions_and_damaged_results_can_be_read() {
    let judgement = of(&[failures((0, 0), (0, 0)), alarmed()]);
    let json = serde_json::to_string(&judgement).unwrap();
    assert!(!json.contains("null"), "{json}");
    let read = |json: &str| serde_json::from_str::<Judgement>(json).unwrap();
    assert_eq!(read(&json), judgement);
    let newer = json.replace(r#""Alarm""#, r#""Divination""#).replace(r#""shares""#, r#""more":1,"shares""#);
    assert_eq!((read(&newer).verdict, read(&newer).reason), (Verdict::Fail, Reason::NothingJudged));
    assert_eq!(read(r#"{"verdict":3,"metrics":{},"missing":"soon"}"#), Judgement::default());
    assert_eq!(
        read(r#"{"metrics":[{"shares":{"stable":null,"candidate":-1}}]}"#).metrics[0],
        MetricResult::default()
    );
    let inputs = Inputs { step: step(), metrics: vec![alarmed()] };
    let json = serde_json::to_string(&inputs).unwrap();
    let damaged = json.replace(r#""evidence":{"#, r#""evidence":[],"was":{"#);
    let read: Inputs = serde_json::from_str(&damaged).unwrap();
    assert_eq!(read.metrics[0].evidence, Evidence::default());
}

#[test]
fn of_several_reasons_the_first_is_named() {
    let few = failures((90, 0), (10, 0));
    let missing = interrupted(&few, Latest::Incomplete, 3);
    let judgement = of(&[few.clone(), missing, failures((2_700, 0), (300, 3))]);
    assert_eq!((judgement.verdict, judgement.reason), inconclusive(Reason::MetricsMissing));
    assert_eq!(judgement.missing, None, "waiting is not known to help");
    let slower = failures((2_700, 0), (20, 0));
    assert_eq!(
        of(&[few, slower]).missing,
        Some(Missing { requests: 290, stable_requests: 0, seconds: Some(17_400) })
    );
}

#[test]
fn a_step_is_judged_again_from_its_status() {
    let mut inputs = Inputs {
        step: step(),
        metrics: vec![failures((0, 0), (0, 0)), judged(Kind::Latency, None, (0, 0), (0, 0))],
    };
    for look in 0..40 {
        let flow = |ended: Counts| Flow { arrivals: ended.requests(), ended, in_flight: 1, restarts: 0 };
        let flows = Tracks { stable: flow(counts(90, look % 2)), candidate: flow(counts(50, look % 7 / 6)) };
        let sample = Sample { flows, ready_pods: Tracks { stable: 1, candidate: 1 }, age_seconds: look * 15 };
        for judged in &mut inputs.metrics {
            *judged = judged.clone().observe(&Interval::Complete(sample), None);
        }
        let status = serde_json::to_string(&(&inputs, judge(&inputs))).unwrap();
        let (read, judgement): (Inputs, Judgement) = serde_json::from_str(&status).unwrap();
        assert_eq!((&read, &judgement), (&inputs, &judge(&read)));
        inputs = read;
    }
}
