use super::*;

#[test]
fn the_mass_of_all_intervals_is_one() {
    let begun: f64 = (0..1_000).map(start_mass).sum();
    assert!((begun + 0.5 / 1_000.0 - 1.0).abs() < 1e-12, "{begun}");
}

#[test]
fn without_evidence_e_stays_at_one() {
    let mut test = EProcess::default();
    assert_eq!(test.e_value(), 1_000);
    for _ in 0..1_000 {
        test = test.with([0.0; 5], false);
        assert!((998..=1_000).contains(&test.e_value()), "rounded down only: {}", test.e_value());
    }
}

#[test]
fn a_factor_has_a_limit() {
    let once = EProcess::default().with([50.0; 5], true);
    assert_eq!(once.e_value(), 10_499, "half of 20, and the half that has not begun");
    assert!(!once.is_alarm(5_000), "in one interval only");
    let twice = once.with([50.0; 5], true);
    assert!(twice.is_alarm(205_000) && !twice.is_alarm(206_000), "{}", twice.e_value());
    let three = twice.with([50.0; 5], true);
    assert!(three.is_alarm(4_101_000) && !three.is_alarm(4_102_000), "{}", three.e_value());
}
