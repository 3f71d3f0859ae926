use std::collections::BTreeSet;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

/// So many requests arrive per second and take so long, with as many replicas as are needed; seen every 5 s for 5 min.
fn steady(rate: f64, takes: f64) -> Meter {
    let mut meter = Meter::default();
    for seconds in (0..=300).step_by(5) {
        let totals = Totals {
            arrived: rate * f64::from(seconds),
            finished: rate * f64::from(seconds),
            waiting: 0.0,
            running: rate * takes,
            replicas: 4,
            full: None,
            tokens: 0.0,
        };
        meter.observe(totals, at(seconds.into()));
    }
    meter
}

fn thousandths(value: i64) -> Milli {
    Milli::from(value)
}

#[test]
fn a_steady_load_has_its_rate_and_its_time() {
    let flow = steady(12.0, 5.0).flow(Window::FIVE_MINUTES).unwrap();
    assert_eq!((flow.rate, flow.recent_rate), (thousandths(12_000), thousandths(12_000)));
    let takes = flow.takes.count();
    assert!((4_900..=5_100).contains(&takes), "{takes}");
    assert_eq!(flow.dispersion, thousandths(1_000), "nothing varies");
    let needs = flow.needs(5.0, 14, 60.0);
    // 60 in hand and √60 for chance, 5 per replica. Each was seen to work on 15 at a time.
    assert!((13.5..13.6).contains(&needs.arrivals), "{needs:?}");
    assert!(needs.backlog <= needs.arrivals, "{needs:?}");
}

#[test]
fn arrivals_are_known_while_nothing_is_finished() {
    let mut meter = steady(2.0, 5.0);
    let before = meter.flow(Window::FIVE_MINUTES).unwrap();
    for step in 1..=4 {
        let waiting = f64::from(step) * 5.0 * 12.0;
        let totals = Totals {
            arrived: 600.0 + waiting,
            finished: 600.0,
            waiting,
            running: 10.0,
            replicas: 2,
            full: Some(5.0),
            tokens: 0.0,
        };
        meter.observe(totals, at(300 + i64::from(step) * 5));
    }
    let flow = meter.flow(Window::FIVE_MINUTES).unwrap();
    assert_eq!(before.recent_rate, thousandths(2_000));
    assert_eq!(flow.recent_rate, thousandths(12_000), "the queue has grown by 12 per second");
    assert!(flow.rate < flow.recent_rate, "the long window follows later");
    assert_eq!(flow.at_a_time, thousandths(5_000), "of 2 replicas, while others wait");
}

#[test]
fn what_waits_asks_for_replicas_beside_the_arrivals() {
    let flow = Flow {
        rate: thousandths(2_000),
        recent_rate: thousandths(12_000),
        takes: thousandths(5_000),
        at_a_time: thousandths(5_000),
        dispersion: thousandths(1_000),
        waiting: thousandths(100_000),
        running: thousandths(10_000),
        is_full: true,
        ..Flow::default()
    };
    let calm = Flow { recent_rate: flow.rate, waiting: Milli::ZERO, ..flow };
    let (needs, calmly) = (flow.needs(5.0, 2, 60.0), calm.needs(5.0, 2, 60.0));
    assert_eq!(needs.arrivals.to_bits(), calmly.arrivals.to_bits(), "chance and bursts are no lasting need");
    assert!(needs.backlog > 20.0 && calmly.backlog < 3.0, "{needs:?} {calmly:?}");
    let slower = flow.needs(5.0, 2, 300.0);
    assert!(
        slower.backlog < needs.backlog,
        "what comes after a long cold start has longer for it: {slower:?}"
    );
    let served = flow.needs(5.0, 40, 60.0);
    assert!(served.backlog < needs.backlog, "ready replicas drain the queue: {served:?}");
}

#[test]
fn what_a_replica_can_do_is_learnt_without_a_queue_and_follows_one_in_both_directions() {
    let mut meter = Meter::default();
    let mut now = 0;
    let mut finished = 0.0;
    let mut seen = |meter: &mut Meter, running: f64, full: Option<f64>, looks: i64| {
        for _ in 0..looks {
            now += 5;
            finished += 30.0;
            let waiting = if full.is_some() { 50.0 } else { 0.0 };
            meter.observe(
                Totals { arrived: finished, finished, waiting, running, replicas: 4, full, tokens: 0.0 },
                at(now),
            );
        }
        let flow = meter.flow(Window::FIVE_MINUTES).unwrap();
        (flow.at_a_time.count() / 1_000, flow.is_full)
    };
    assert_eq!(seen(&mut meter, 26.0, None, 20), (6, false), "26 run on 4 replicas, and none waits");
    assert_eq!(seen(&mut meter, 1_024.0, Some(256.0), 1), (256, true));
    let (at_a_time, _) = seen(&mut meter, 128.0, Some(32.0), 60);
    assert!((32..36).contains(&at_a_time), "longer prompts: {at_a_time}");
    assert_eq!(seen(&mut meter, 160.0, None, 2), (40, true), "it does more than was thought");
    assert_eq!(seen(&mut meter, 40.0, None, 350), (40, true), "not yet half an hour later");
    let (at_a_time, _) = seen(&mut meter, 40.0, None, 360);
    assert!((60..80).contains(&at_a_time), "one hour later: {at_a_time}");
}

#[test]
fn a_model_with_smaller_batches_is_known_at_its_second_look_with_a_queue() {
    let mut meter = Meter::default();
    let mut seen = |step: i64, running: f64, full: Option<f64>| {
        let finished = (step * 30) as f64;
        let totals =
            Totals { arrived: finished, finished, waiting: 9.0, running, replicas: 4, full, tokens: 0.0 };
        meter.observe(totals, at(step * 5));
        meter.flow(Window::FIVE_MINUTES).map_or(0, |flow| flow.at_a_time.count() / 1_000)
    };
    assert_eq!((0..30).map(|step| seen(step, 256.0, Some(64.0))).max(), Some(64));
    assert_eq!((30..40).map(|step| seen(step, 16.0, None)).min(), Some(64), "none waits for what it can do");
    assert_eq!(seen(40, 32.0, Some(8.0)), 59, "a batch may have ended together");
    assert_eq!(seen(41, 32.0, Some(8.0)), 8, "a rollout");
    let (longer, kept) = (seen(42, 24.0, Some(5.0)), seen(43, 24.0, Some(5.0)));
    assert!(longer == 7 && kept >= 6, "longer prompts are followed within a minute: {longer} {kept}");
}

#[test]
fn a_margin_for_chance_is_one_of_whole_requests() {
    let flow = Flow { at_a_time: Milli::units(8), takes: Milli::units(10), ..calm(400) };
    // 4 in hand. A replica with a tenth of a request at its target: one request more needs one replica more.
    let needs = flow.needs(0.1, 40, 30.0);
    assert!((42.0..=44.0).contains(&needs.arrivals), "{needs:?}");
}

#[test]
fn a_latency_shorter_than_a_request_asks_for_one_replica_each() {
    let flow = Flow { is_full: true, takes: Milli::units(10), at_a_time: Milli::units(2), ..calm(400) };
    let in_hand = |target| flow.in_hand_at_target(Kind::Latency, TargetValue::units(target).unwrap());
    assert_eq!([in_hand(2_000), in_hand(10_000)], [Some(1.0), Some(2.0)]);
}

/// So many thousandths of a request per second.
fn calm(rate: i64) -> Flow {
    let rate = thousandths(rate);
    Flow { rate, recent_rate: rate, dispersion: Milli::units(1), ..Flow::default() }
}

#[test]
fn long_requests_ask_for_no_more_replicas_than_they_can_use() {
    // 60 in hand of 600 s each on 10 replicas of 8 at a time.
    let flow = Flow {
        rate: thousandths(100),
        recent_rate: thousandths(200),
        takes: thousandths(600_000),
        at_a_time: thousandths(8_000),
        dispersion: thousandths(1_000),
        waiting: thousandths(5_000),
        running: thousandths(60_000),
        is_full: true,
        ..Flow::default()
    };
    let needs = flow.needs(5.0, 10, 60.0);
    assert!((13.0..16.0).contains(&needs.replicas()), "{needs:?}");
    let rising = Flow { recent_rate: thousandths(400), ..flow };
    let more = rising.needs(5.0, 10, 60.0).backlog - needs.backlog;
    assert!(more < 4.0, "4 more requests within 20 s: {more}");
    let ended = Flow { rate: Milli::ZERO, recent_rate: Milli::ZERO, waiting: Milli::ZERO, ..flow };
    assert_eq!(ended.needs(5.0, 10, 60.0).arrivals.ceil() as i64, 8, "60 run on, 8 at a time");
}

#[test]
fn a_rate_is_not_known_before_a_minute_unless_something_waits() {
    for (waiting, is_known) in [(0.0, false), (5.0, true)] {
        let mut meter = Meter::default();
        for step in 0..6 {
            let finished = f64::from(step) * 60.0;
            let arrived = finished + waiting;
            meter.observe(
                Totals { arrived, finished, waiting, running: 20.0, replicas: 4, full: None, tokens: 0.0 },
                at(i64::from(step) * 5),
            );
        }
        assert_eq!(meter.flow(Window::FIVE_MINUTES).is_some(), is_known, "{waiting}");
    }
}

#[test]
fn requests_that_run_for_longer_than_is_remembered_have_no_time() {
    let mut meter = Meter::default();
    for seconds in (0..3_600).step_by(5) {
        // 20 at a time, ten minutes each.
        let finished = f64::from((seconds / 600) * 20);
        meter.observe(
            Totals {
                arrived: finished,
                finished,
                waiting: 0.0,
                running: 20.0,
                replicas: 4,
                full: None,
                tokens: 0.0,
            },
            at(seconds.into()),
        );
        if let Some(flow) = meter.flow(Window::FIVE_MINUTES) {
            let in_hand = flow.rate.count() * flow.takes.count() / 1_000_000;
            assert!(in_hand <= 60, "{seconds}: {flow:?}");
        }
    }
}

#[test]
fn while_far_more_runs_than_has_ended_no_time_is_known() {
    let mut meter = Meter::default();
    for step in 0..60 {
        // 30 run, and one ends each 40 s.
        let finished = f64::from(step / 8);
        let totals = Totals {
            arrived: finished + 30.0,
            finished,
            waiting: 0.0,
            running: 30.0,
            replicas: 4,
            full: None,
            tokens: 0.0,
        };
        meter.observe(totals, at(i64::from(step) * 5));
    }
    assert_eq!(meter.flow(Window::FIVE_MINUTES), None, "seven have ended");
}

#[test]
fn a_pause_or_a_clock_that_goes_back_begins_anew_and_keeps_what_a_replica_can() {
    for later in [362, 200] {
        let mut meter = steady(12.0, 5.0);
        meter.most_at_a_time = 8.0;
        meter.observe(Totals { finished: 1e6, ..Totals::default() }, at(later));
        assert_eq!((meter.flow(Window::FIVE_MINUTES), meter.most_at_a_time), (None, 8.0), "{later}");
    }
}

#[test]
fn bursts_raise_the_dispersion_within_its_bounds() {
    let mut meter = Meter::default();
    let mut finished = 0.0;
    for step in 0..60 {
        finished += if step % 6 == 0 { 900.0 } else { 3.0 };
        meter.observe(
            Totals {
                arrived: finished,
                finished,
                waiting: 0.0,
                running: 10.0,
                replicas: 1,
                full: None,
                tokens: 0.0,
            },
            at(step * 15),
        );
    }
    assert_eq!(meter.flow(Window::FIVE_MINUTES).unwrap().dispersion, Milli::units(100));
    assert!(meter.bins.len() <= BINS + BEFORE_A_STEP && meter.intervals.len() <= MOST_INTERVALS);
}

/// The dispersion of arrivals, given by each quarter of a minute.
fn dispersion_of(bins: impl IntoIterator<Item = f64>) -> f64 {
    let mut meter = Meter::default();
    let mut finished = 0.0;
    meter.observe(Totals { running: 10.0, replicas: 4, ..Totals::default() }, at(0));
    for (quarter, arrived) in (0..).zip(bins) {
        for third in 1..=3 {
            finished += arrived / 3.0;
            let totals =
                Totals { arrived: finished, finished, running: 10.0, replicas: 4, ..Totals::default() };
            meter.observe(totals, at(quarter * 15 + third * 5));
        }
    }
    meter.flow(Window::FIVE_MINUTES).unwrap().dispersion.count() as f64 / 1_000.0
}

/// So many quarters of a minute with so many arrivals each.
fn load<const N: usize>(parts: [(usize, f64); N]) -> impl Iterator<Item = f64> {
    parts.into_iter().flat_map(|(quarters, arrived)| std::iter::repeat_n(arrived, quarters))
}

#[test]
fn a_rise_and_a_fall_that_last_are_no_chance() {
    let dispersion = |load: &[f64]| dispersion_of(load.iter().copied());
    let rise: Vec<f64> = load([(20, 30.0), (20, 180.0)]).collect();
    assert_eq!(dispersion(&rise), 1.0);
    let burst: Vec<f64> = load([(20, 30.0), (8, 180.0), (20, 30.0)]).collect();
    assert_eq!(dispersion(&burst), 1.0);
    // At any time after it, also while it is forgotten.
    for quarters in 2..=80 {
        let burst: Vec<f64> = load([(20, 30.0), (8, 180.0), (quarters, 30.0)]).collect();
        assert_eq!(dispersion(&burst), 1.0, "{quarters}");
    }
    // It begins in the middle of a quarter.
    let late: Vec<f64> = load([(20, 30.0), (1, 90.0), (20, 180.0)]).collect();
    assert_eq!(dispersion(&late), 1.0);
}

#[test]
fn what_does_not_last_or_comes_again_is_chance() {
    let short = dispersion_of(load([(20, 30.0), (1, 180.0), (20, 30.0)]));
    assert!(short > 15.0, "a burst of a quarter of a minute: {short}");
    let again = || (0..4).flat_map(|_| load([(4, 30.0), (4, 180.0)]));
    let bursts = dispersion_of(again());
    assert!(bursts > 10.0, "bursts of a minute: {bursts}");
    let little = dispersion_of(load([(4, 200.0), (4, 259.0)]));
    assert!(little > 1.0, "too little to be known: {little}");
    let few = dispersion_of(load([(3, 30.0), (4, 180.0)]));
    assert!(few > 1.0, "too few bins: {few}");
}

#[test]
fn the_memory_is_bounded_whatever_the_pace() {
    for pace in [1, 5, 60] {
        let mut meter = Meter::default();
        for step in 0..2_000 {
            let finished = f64::from(step);
            meter.observe(
                Totals {
                    arrived: finished,
                    finished,
                    waiting: 0.0,
                    running: 1.0,
                    replicas: 1,
                    full: None,
                    tokens: 0.0,
                },
                at(i64::from(step) * pace),
            );
        }
        assert!(
            meter.bins.len() <= BINS + BEFORE_A_STEP && meter.intervals.len() <= MOST_INTERVALS,
            "{pace}"
        );
        assert!(meter.flow(Window::FIVE_MINUTES).is_some(), "{pace}");
    }
}

/// Two pods that finish 6 requests per second each, seen every 5 s for five minutes; the next step is `NEXT`.
fn two_pods() -> PodMeter {
    let mut meter = PodMeter::default();
    for step in 0..NEXT {
        look(&mut meter, &[pod("a", step), pod("b", step)], step);
    }
    meter
}

const NEXT: i64 = 61;

fn pod(uid: &str, step: i64) -> PodCounts {
    PodCounts { uid: uid.to_owned(), finished: (step * 30) as f64, waiting: 0.0, running: 15.0, tokens: 0.0 }
}

/// All Ready pods are those that answer, and these.
fn look_without(meter: &mut PodMeter, answered: &[PodCounts], silent: &[&str], step: i64) {
    let ready = answered.iter().map(|pod| pod.uid.as_str()).chain(silent.iter().copied()).collect();
    meter.observe(answered, &ready, at(step * 5));
}

fn look(meter: &mut PodMeter, answered: &[PodCounts], step: i64) {
    look_without(meter, answered, &[], step);
}

fn is_calm(meter: &PodMeter) {
    let flow = meter.flow(Window::FIVE_MINUTES).unwrap();
    for value in [flow.rate, flow.recent_rate] {
        assert!((10_800..=13_200).contains(&value.count()), "{flow:?}");
    }
    assert!(flow.dispersion.count() <= 1_100, "{flow:?}");
}

#[test]
fn pods_add_up_and_a_counter_that_begins_anew_counts_from_zero() {
    let mut meter = two_pods();
    is_calm(&meter);
    look(&mut meter, &[pod("a", NEXT), PodCounts { finished: 30.0, ..pod("b", 0) }], NEXT);
    is_calm(&meter);
}

#[test]
fn tokens_are_those_of_the_requests_that_were_finished() {
    let mut meter = PodMeter::default();
    // The counter of one pod has begun anew on the way.
    let since = |step: i64| if step < 10 { step } else { step - 10 };
    for step in 0..30 {
        let pod = |uid, step: i64| PodCounts { tokens: (step * 30 * 250) as f64, ..pod(uid, step) };
        let restarted = PodCounts { tokens: (since(step) * 30 * 250) as f64, ..pod("b", step) };
        look(&mut meter, &[pod("a", step), restarted], step);
    }
    let tokens = meter.flow(Window::FIVE_MINUTES).unwrap().tokens.count();
    assert!((240_000..=250_000).contains(&tokens), "{tokens}");
    let mut away = PodMeter::default();
    for step in 0..30 {
        // One of two series is not served once.
        let share = if step == 20 { 0.5 } else { 1.0 };
        let pod = PodCounts { tokens: (step * 30 * 250) as f64 * share + 2e7 * share, ..pod("a", step) };
        look(&mut away, &[pod], step);
    }
    let tokens = away.flow(Window::FIVE_MINUTES).unwrap().tokens.count();
    assert!((230_000..=252_000).contains(&tokens), "{tokens}");
    assert_eq!(two_pods().flow(Window::FIVE_MINUTES).unwrap().tokens, Milli::ZERO);
}

#[test]
fn a_queue_after_hours_without_one_says_at_once_how_many_run_at_a_time() {
    let mut meter = Meter::default();
    for step in 0..6_000_i64 {
        let full = (step == 0 || step == 5_999).then_some(8.0);
        let finished = (step * 20) as f64;
        let totals =
            Totals { arrived: finished, finished, running: 16.0, replicas: 2, full, ..Totals::default() };
        meter.observe(totals, at(step * 5));
    }
    assert_eq!(meter.flow(Window::FIVE_MINUTES).unwrap().at_a_time, Milli::units(8));
}

#[test]
fn hours_without_a_queue_promise_no_latency() {
    let mut meter = Meter::default();
    let target = TargetValue::units(10_000).unwrap();
    for step in 0..720_i64 {
        let finished = (step * 20) as f64;
        let full = (step == 30).then_some(8.0);
        let totals =
            Totals { arrived: finished, finished, running: 16.0, replicas: 2, full, ..Totals::default() };
        meter.observe(totals, at(step * 5));
        let flow = meter.flow(Window::FIVE_MINUTES);
        let promised = flow.and_then(|flow| flow.in_hand_at_target(Kind::Latency, target));
        if step > 30 {
            assert_eq!(promised.is_some(), step < 30 + 360, "{step}");
        }
    }
}

#[test]
fn a_queue_explains_latencies_for_half_a_minute_and_two_requests() {
    let mut meter = Meter::default();
    let mut lately = |step: i64, waiting: f64| {
        let finished = (step * 20) as f64;
        let arrived = finished + waiting;
        let totals =
            Totals { arrived, finished, waiting, running: 20.0, replicas: 4, full: None, tokens: 0.0 };
        meter.observe(totals, at(step * 5));
        meter.flow(Window::FIVE_MINUTES).map(|flow| flow.in_hand_lately.count())
    };
    assert!((20..40).all(|step| lately(step, 0.0).is_none_or(|each| each == 5_000)));
    assert_eq!(lately(40, 40.0), Some(15_000));
    // A request takes 5 s.
    assert!((41..48).all(|step| lately(step, 0.0) == Some(15_000)));
    assert!((48..60).all(|step| lately(step, 0.0) == Some(5_000)));
}

#[test]
fn a_pod_that_goes_takes_no_arrivals_back_and_one_that_returns_brings_none_twice() {
    let mut meter = two_pods();
    let doubled = |step| PodCounts { finished: (NEXT * 30 + (step - NEXT) * 60) as f64, ..pod("a", step) };
    for step in NEXT..NEXT + 6 {
        look(&mut meter, &[doubled(step)], step);
    }
    is_calm(&meter);
    let after = doubled(NEXT + 6).finished;
    for step in NEXT + 6..NEXT + 12 {
        let a = PodCounts { finished: after + ((step - NEXT - 6) * 30) as f64, ..pod("a", step) };
        let b = PodCounts { finished: ((step - 6) * 30) as f64, ..pod("b", step) };
        look(&mut meter, &[a, b], step);
    }
    is_calm(&meter);
}

#[test]
fn a_new_pod_brings_what_it_has_in_hand_and_not_what_it_has_counted() {
    let mut meter = two_pods();
    let new = PodCounts { finished: 1e6, ..pod("c", NEXT) };
    look(&mut meter, &[pod("a", NEXT), pod("b", NEXT), new], NEXT);
    assert_eq!(meter.flow(Window::FIVE_MINUTES).unwrap().recent_rate.count(), 12_000 + 15_000 / 20);
}

#[test]
fn a_silent_pod_hides_the_flow_and_makes_no_burst_when_it_answers_again() {
    for steps in [3, 6, 12, 120] {
        let mut meter = two_pods();
        for step in NEXT..NEXT + steps {
            look_without(&mut meter, &[pod("a", step)], &["b"], step);
        }
        assert_eq!(meter.flow(Window::FIVE_MINUTES).is_some(), steps <= 4, "{steps}");
        // After more than a minute the rate begins anew.
        let looks = if steps >= 12 { 14 } else { 2 };
        for step in NEXT + steps..NEXT + steps + looks {
            look(&mut meter, &[pod("a", step), pod("b", step)], step);
        }
        is_calm(&meter);
    }
}

#[test]
fn what_is_known_of_a_silent_pod_is_rough_until_it_answers() {
    let mut meter = two_pods();
    let is_rough = |meter: &PodMeter| meter.flow(Window::FIVE_MINUTES).unwrap().is_rough;
    assert!(!is_rough(&meter));
    look_without(&mut meter, &[pod("a", NEXT)], &["b"], NEXT);
    assert!(is_rough(&meter));
    look(&mut meter, &[pod("a", NEXT + 1), pod("b", NEXT + 1)], NEXT + 1);
    assert!(!is_rough(&meter));
}

#[test]
fn without_the_counts_of_every_ready_pod_nothing_is_known() {
    let mut meter = PodMeter::default();
    for step in 0..NEXT {
        look_without(&mut meter, &[pod("a", step)], &["counts-nothing"], step);
    }
    assert_eq!(meter.flow(Window::FIVE_MINUTES), None);
    let mut meter = two_pods();
    for (step, finished) in (NEXT..).zip([f64::NAN, f64::INFINITY, -1.0, f64::NAN, f64::NAN]) {
        look(&mut meter, &[PodCounts { finished, ..pod("a", step) }, pod("b", step)], step);
    }
    assert_eq!(meter.flow(Window::FIVE_MINUTES), None, "it is no count");
    let mut meter = two_pods();
    for step in NEXT..NEXT + 5 {
        look(&mut meter, &[], step);
    }
    assert_eq!(meter.flow(Window::FIVE_MINUTES), None, "no pod is Ready");
}

/// Whether pods are full, and of how many requests at a time, after a minute with these counts.
fn fullness(counts: impl Fn(i64) -> Vec<PodCounts>) -> (i64, bool) {
    let mut meter = two_pods();
    for step in NEXT..NEXT + 12 {
        look(&mut meter, &counts(step), step);
    }
    let flow = meter.flow(Window::FIVE_MINUTES).unwrap();
    (flow.at_a_time.count() / 1_000, flow.is_full)
}

#[test]
fn a_standing_queue_shows_what_a_pod_can_do_and_a_moment_of_waiting_does_not() {
    let waits = |step: i64, waiting: f64| PodCounts { waiting, ..pod("a", step) };
    let now_and_then =
        fullness(|step| vec![waits(step, if step % 6 == 0 { 1.0 } else { 0.0 }), pod("b", step)]);
    assert_eq!(now_and_then, (15, false), "the most that was seen");
    let full = fullness(|step| vec![PodCounts { running: 8.0, ..waits(step, 30.0) }, pod("b", step)]);
    assert_eq!(full, (11, true), "not below the mean of both");
    let hung = fullness(|step| {
        let hung = PodCounts { finished: (NEXT * 30) as f64, running: 0.0, waiting: 30.0, ..pod("a", 0) };
        vec![hung, pod("b", step)]
    });
    assert_eq!(hung, (14, false), "a pod that works on nothing shows nothing");
}

#[test]
fn a_burst_on_a_new_pod_does_not_show_what_it_can_do() {
    let mut meter = two_pods();
    let mut is_full = |step: i64| {
        let new = PodCounts { finished: 0.0, waiting: 100.0, running: 1.0, ..pod("c", 0) };
        look(&mut meter, &[pod("a", step), pod("b", step), new], step);
        meter.flow(Window::FIVE_MINUTES).unwrap().is_full
    };
    assert!((NEXT..NEXT + 6).all(|step| !is_full(step)), "it begins its first requests");
    assert!(is_full(NEXT + 6));
}

#[test]
fn a_pod_that_returns_after_minutes_brings_no_arrivals() {
    let mut meter = two_pods();
    for step in NEXT..NEXT + 30 {
        look(
            &mut meter,
            &[PodCounts { finished: (step * 60) as f64 - (NEXT * 30) as f64, ..pod("a", step) }],
            step,
        );
    }
    let returned = NEXT + 30;
    let a = PodCounts { finished: (returned * 60) as f64 - (NEXT * 30) as f64, ..pod("a", returned) };
    let b = PodCounts { running: 15.0, waiting: 100.0, finished: 1e6, ..pod("b", returned) };
    look(&mut meter, &[a, b], returned);
    let recent = meter.flow(Window::FIVE_MINUTES).unwrap().recent_rate.count();
    assert!((11_000..=13_000).contains(&recent), "{recent}");
}

#[test]
fn series_that_are_away_for_a_look_are_no_burst_when_they_are_back() {
    let mut meter = two_pods();
    for step in NEXT..NEXT + 3 {
        let half = PodCounts { finished: (step * 15) as f64, ..pod("a", step) };
        look(&mut meter, &[half, pod("b", step)], step);
    }
    for step in NEXT + 3..NEXT + 8 {
        look(&mut meter, &[pod("a", step), pod("b", step)], step);
    }
    let recent = meter.flow(Window::FIVE_MINUTES).unwrap().recent_rate.count();
    assert!((10_800..=13_200).contains(&recent), "{recent}");
    let mut meter = two_pods();
    for step in NEXT..NEXT + 12 {
        look(
            &mut meter,
            &[PodCounts { finished: ((step - NEXT) * 30) as f64, ..pod("a", step) }, pod("b", step)],
            step,
        );
    }
    is_calm(&meter);
}

#[test]
fn a_clock_that_is_set_back_hides_the_flow() {
    let mut meter = two_pods();
    look_without(&mut meter, &[pod("a", NEXT)], &["b"], 1);
    assert_eq!(meter.flow(Window::FIVE_MINUTES), None);
}

#[test]
fn a_shorter_window_of_removals_forgets_a_burst_sooner() {
    let mut meter = steady(12.0, 5.0);
    for step in 1..=12 {
        let arrived = 3_600.0 + f64::from(step) * 10.0;
        let totals = Totals { arrived, finished: arrived, running: 10.0, replicas: 4, ..Totals::default() };
        meter.observe(totals, at(300 + i64::from(step) * 5));
    }
    let rate = |seconds: u64| {
        let window = Window::new(Duration::from_secs(seconds)).unwrap();
        meter.flow(window).unwrap().rate.count()
    };
    // Of a minute with 2 per second, after three with 12.
    assert_eq!([0, 60, 120, 300, 3_600].map(rate), [2_000, 2_000, 7_000, 9_500, 9_500]);
}

#[test]
fn a_task_that_goes_from_the_shared_queue_to_a_pod_has_arrived_once() {
    let mut meter = PodMeter::default();
    let ready = BTreeSet::from(["a", "b"]);
    let pod = |uid: &str, finished: f64, running: f64| PodCounts {
        uid: uid.to_owned(),
        finished,
        waiting: 0.0,
        running,
        tokens: 0.0,
    };
    for step in 0..=24 {
        let seconds = f64::from(step) * 5.0;
        // Two a second arrive, and each pod finishes one; the queue of both changes between four and eight.
        let shared = if step % 2 == 0 { 4.0 } else { 8.0 };
        let pods =
            [pod("a", seconds - (shared - 4.0) / 2.0, 1.0), pod("b", seconds - (shared - 4.0) / 2.0, 1.0)];
        meter.observe_pool(&pods, shared, &ready, &ready, at(i64::from(step) * 5));
    }
    let flow = meter.flow(Window::FIVE_MINUTES).unwrap();
    assert_eq!((flow.rate, flow.waiting), (Milli::units(2), Milli::units(4)));
    // The queue is that of all: it stays when a pod goes.
    let alone = BTreeSet::from(["b"]);
    meter.observe_pool(&[pod("b", 130.0, 1.0)], 4.0, &alone, &alone, at(125));
    let recent = meter.flow(Window::FIVE_MINUTES).unwrap().recent_rate;
    assert!(recent <= Milli::units(3), "{recent:?}");
    meter.observe_pool(&[pod("b", 135.0, 1.0)], f64::NAN, &alone, &alone, at(130));
    assert!(meter.flow(Window::FIVE_MINUTES).is_some(), "the look before is five seconds old");
}

#[test]
fn tasks_that_go_from_a_worker_that_ends_to_its_successor_have_arrived_once() {
    let mut meter = PodMeter::default();
    let pod = |uid: &str, finished: f64| PodCounts {
        uid: uid.to_owned(),
        finished,
        waiting: 4.0,
        running: 1.0,
        tokens: 0.0,
    };
    for step in 0..=24 {
        let both = BTreeSet::from(["a", "b"]);
        let finished = f64::from(step);
        meter.observe_pool(
            &[pod("a", finished), pod("b", finished)],
            0.0,
            &both,
            &both,
            at(i64::from(step) * 5),
        );
    }
    let before = meter.flow(Window::FIVE_MINUTES).unwrap();
    let after = BTreeSet::from(["b", "c"]);
    meter.observe_pool(&[pod("b", 25.0), pod("c", 0.0)], 0.0, &after, &after, at(125));
    let flow = meter.flow(Window::FIVE_MINUTES).unwrap();
    assert!(flow.recent_rate <= before.recent_rate, "{flow:?} {before:?}");
}

#[test]
fn a_light_load_does_not_change_between_known_and_unknown_with_each_request() {
    let mut meter = Meter::default();
    let (mut changes, mut was_known) = (0, false);
    for step in 0..720_i32 {
        // One each 100 s.
        let finished = f64::from(step / 20);
        let totals = Totals { arrived: finished, finished, running: 0.2, replicas: 1, ..Totals::default() };
        meter.observe(totals, at(i64::from(step) * 5));
        let is_known = meter.flow(Window::FIVE_MINUTES).is_some();
        changes += i32::from(is_known != was_known);
        was_known = is_known;
    }
    assert!(changes <= 1, "{changes}");
}

#[test]
fn requests_of_minutes_are_not_counted_over_one_of_them() {
    let mut meter = Meter::default();
    for step in 0..=60 {
        let arrived = f64::from(step / 12);
        let totals = Totals { arrived, finished: arrived, running: 2.0, replicas: 2, ..Totals::default() };
        meter.observe(totals, at(i64::from(step) * 5));
    }
    // One a minute, each of two: over a minute alone the rate would be 0 or twice as high.
    let rate = meter.flow(Window::NONE).unwrap().rate.count();
    assert!((12..=21).contains(&rate), "{rate}");
}

#[test]
fn requests_that_take_no_time_are_no_flow() {
    let mut meter = Meter::default();
    for step in 0..=60 {
        let finished = 1e6 * step as f64;
        let totals = Totals { arrived: finished, finished, running: 16.0, replicas: 4, ..Totals::default() };
        meter.observe(totals, at(step * 5));
    }
    assert_eq!(meter.flow(Window::FIVE_MINUTES), None, "a counter in the place of a rate");
}

#[test]
fn a_pool_needs_no_more_workers_than_it_has_tasks_and_will_get() {
    // Ten minutes each, of which a moment has seen too many.
    let flow = Flow {
        rate: thousandths(200),
        recent_rate: thousandths(200),
        takes: Milli::units(600),
        at_a_time: Milli::units(1),
        running: Milli::units(30),
        ..Flow::default()
    };
    let needs = flow.needs_of_tasks(5.0, 30, 30.0);
    assert_eq!((needs.arrivals, needs.backlog), (36.0, 36.0), "30 and 6 within a cold start, not 120");
}

#[test]
fn a_shorter_window_of_removals_forgets_that_requests_came_in_bursts() {
    let mut meter = Meter::default();
    for step in 0..=150 {
        // A burst in the first two minutes, then twelve minutes in which nothing varies.
        let arrived = f64::from(step) * 10.0 + 900.0 * f64::from((step / 6).min(4));
        let totals = Totals { arrived, finished: arrived, running: 10.0, replicas: 4, ..Totals::default() };
        meter.observe(totals, at(i64::from(step) * 5));
    }
    let dispersion = |window| meter.flow(window).unwrap().dispersion;
    assert!(dispersion(Window::FIVE_MINUTES) > Milli::units(10));
    assert_eq!(dispersion(Window::NONE), Milli::units(1));
}
