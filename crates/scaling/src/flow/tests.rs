mod chance;
mod pods;

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
