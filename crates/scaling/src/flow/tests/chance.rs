//! How unevenly requests arrive.

use super::*;

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
