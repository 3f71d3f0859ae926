//! What the counts of pods add up to.

use std::collections::BTreeSet;

use super::*;

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
