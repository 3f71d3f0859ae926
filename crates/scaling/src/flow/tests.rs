use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

/// So many requests arrive per second and take so long, with as many replicas as are needed; seen every 5 s for 5 min.
fn steady(rate: f64, takes: f64) -> Meter {
    let mut meter = Meter::default();
    for seconds in (0..=300).step_by(5) {
        let totals =
            Totals { finished: rate * f64::from(seconds), waiting: 0.0, running: rate * takes, replicas: 4 };
        meter.observe(totals, at(seconds.into()));
    }
    meter
}

fn thousandths(value: i64) -> Milli {
    Milli::from(value)
}

fn five() -> TargetValue {
    TargetValue::units(5).unwrap()
}

#[test]
fn a_steady_load_has_its_rate_and_its_time() {
    let flow = steady(12.0, 5.0).flow().unwrap();
    assert_eq!((flow.rate, flow.recent_rate), (thousandths(12_000), thousandths(12_000)));
    let takes = flow.takes.count();
    assert!((4_900..=5_100).contains(&takes), "{takes}");
    assert_eq!(flow.dispersion, thousandths(1_000), "nothing varies");
    let needs = flow.needs(five(), 14, 60.0);
    // 60 in hand and 1.65 √60 for chance, 5 per replica; 14 replicas serve that without a queue.
    assert!((14.5..14.7).contains(&needs.arrivals), "{needs:?}");
    assert!(needs.backlog <= needs.arrivals, "{needs:?}");
}

#[test]
fn arrivals_are_known_while_nothing_is_finished() {
    let mut meter = steady(2.0, 5.0);
    let before = meter.flow().unwrap();
    for step in 1..=4 {
        let waiting = f64::from(step) * 5.0 * 12.0;
        let totals = Totals { finished: 600.0, waiting, running: 10.0, replicas: 2 };
        meter.observe(totals, at(300 + i64::from(step) * 5));
    }
    let flow = meter.flow().unwrap();
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
    };
    let calm = Flow { recent_rate: flow.rate, waiting: Milli::ZERO, ..flow };
    let (needs, calmly) = (flow.needs(five(), 2, 60.0), calm.needs(five(), 2, 60.0));
    assert_eq!(needs.arrivals.to_bits(), calmly.arrivals.to_bits(), "chance and bursts are no lasting need");
    assert!(needs.backlog > 20.0 && calmly.backlog < 3.0, "{needs:?} {calmly:?}");
    let slower = flow.needs(five(), 2, 300.0);
    assert!(slower.backlog > needs.backlog, "more will wait until a slow start is over");
    let served = flow.needs(five(), 40, 60.0);
    assert!(served.backlog < needs.backlog, "ready replicas drain the queue: {served:?}");
}

#[test]
fn requests_that_run_for_longer_than_is_remembered_have_no_time() {
    let mut meter = Meter::default();
    for seconds in (0..3_600).step_by(5) {
        // 20 at a time, ten minutes each.
        let finished = f64::from((seconds / 600) * 20);
        meter.observe(Totals { finished, waiting: 0.0, running: 20.0, replicas: 4 }, at(seconds.into()));
        if let Some(flow) = meter.flow() {
            let in_hand = flow.rate.count() * flow.takes.count() / 1_000_000;
            assert!(in_hand <= 60, "{seconds}: {flow:?}");
        }
    }
}

#[test]
fn a_pause_or_a_clock_that_goes_back_begins_anew_and_keeps_what_a_replica_can() {
    for later in [362, 200] {
        let mut meter = steady(12.0, 5.0);
        meter.at_a_time = 8.0;
        meter.observe(Totals { finished: 1e6, ..Totals::default() }, at(later));
        assert_eq!((meter.flow(), meter.at_a_time), (None, 8.0), "{later}");
    }
}

#[test]
fn bursts_raise_the_dispersion_within_its_bounds() {
    let mut meter = Meter::default();
    let mut finished = 0.0;
    for step in 0..60 {
        finished += if step % 6 == 0 { 900.0 } else { 3.0 };
        meter.observe(Totals { finished, waiting: 0.0, running: 10.0, replicas: 1 }, at(step * 15));
    }
    assert_eq!(meter.flow().unwrap().dispersion, Milli::units(100));
    assert!(meter.bins.len() <= BINS && meter.intervals.len() <= MOST_INTERVALS);
}

#[test]
fn the_memory_is_bounded_whatever_the_pace() {
    for pace in [1, 5, 60] {
        let mut meter = Meter::default();
        for step in 0..2_000 {
            let finished = f64::from(step);
            meter.observe(
                Totals { finished, waiting: 0.0, running: 1.0, replicas: 1 },
                at(i64::from(step) * pace),
            );
        }
        assert!(meter.bins.len() <= BINS && meter.intervals.len() <= MOST_INTERVALS, "{pace}");
        assert!(meter.flow().is_some(), "{pace}");
    }
}

/// Two pods that finish 6 requests per second each, seen every 5 s for a minute.
fn two_pods() -> PodMeter {
    let mut meter = PodMeter::default();
    for step in 0..=12 {
        meter.observe(&[pod("a", step, 0.0), pod("b", step, 0.0)], |_| true, at(step * 5));
    }
    meter
}

fn pod(uid: &str, step: i64, waiting: f64) -> PodCounts {
    PodCounts { uid: uid.to_owned(), finished: (step * 30) as f64, waiting, running: 15.0 }
}

fn rate(meter: &PodMeter) -> i64 {
    meter.flow().unwrap().recent_rate.count()
}

#[test]
fn a_counter_that_begins_anew_counts_from_zero() {
    let mut meter = two_pods();
    assert_eq!(rate(&meter), 12_000);
    let restarted = PodCounts { finished: 30.0, ..pod("b", 0, 0.0) };
    meter.observe(&[pod("a", 13, 0.0), restarted], |_| true, at(65));
    assert_eq!(rate(&meter), 12_000);
}

#[test]
fn a_pod_that_goes_takes_no_arrivals_back() {
    let mut meter = two_pods();
    for step in 13..=16 {
        meter.observe(
            &[PodCounts { finished: (step * 60) as f64, ..pod("a", step, 0.0) }],
            |uid| uid == "a",
            at(step * 5),
        );
    }
    let rate = meter.flow().unwrap().rate.count();
    assert!((11_000..=24_000).contains(&rate), "{rate}");
    assert_eq!(meter.flow().unwrap().waiting, Milli::ZERO);
}

#[test]
fn a_new_pod_brings_what_it_has_in_hand() {
    let mut meter = two_pods();
    let new = PodCounts { finished: 1e6, waiting: 0.0, running: 15.0, uid: "c".to_owned() };
    meter.observe(&[pod("a", 13, 0.0), pod("b", 13, 0.0), new], |_| true, at(65));
    let recent = rate(&meter);
    assert!((12_000..=13_000).contains(&recent), "its count is not of this interval: {recent}");
}

#[test]
fn a_silent_pod_counts_as_before_for_a_minute_and_hides_the_flow_afterwards() {
    let mut meter = two_pods();
    for step in 13..=24 {
        meter.observe(&[pod("a", step, 0.0)], |_| true, at(step * 5));
        assert!(meter.flow().is_some(), "{step}");
    }
    meter.observe(&[pod("a", 25, 0.0)], |_| true, at(125));
    assert_eq!(meter.flow(), None);
    meter.observe(&[pod("a", 26, 0.0), pod("b", 26, 0.0)], |_| true, at(130));
    assert!(meter.flow().is_some(), "it answers again");
}

#[test]
fn what_is_no_count_is_no_answer_and_without_pods_nothing_is_known() {
    let mut meter = two_pods();
    let wrong = [f64::NAN, f64::INFINITY, -1.0].map(|finished| PodCounts { finished, ..pod("a", 0, 0.0) });
    for (step, wrong) in (13..).zip(wrong) {
        meter.observe(&[wrong, pod("b", step, 0.0)], |_| true, at(step * 5));
        assert!(meter.flow().is_some_and(|flow| flow.rate < Milli::units(13)));
    }
    meter.observe(&[], |_| false, at(80));
    assert_eq!(meter.flow(), None);
}
