use super::*;

fn bound_of(millis: u32) -> Bound {
    Bound::from_millis(millis).unwrap()
}

/// Cumulative counts of buckets that end at 0.1, 0.25, 1 and +Inf seconds.
fn histogram(counts: [u64; 4]) -> Vec<Bucket> {
    [0.1, 0.25, 1.0, f64::INFINITY].into_iter().zip(counts).map(|(le, count)| Bucket { le, count }).collect()
}

fn candidate() -> Vec<Bound> {
    bounds([0.1, 0.25, 2.0, f64::INFINITY])
}

#[test]
fn a_given_bound_is_one_of_both_tracks() {
    let stable = histogram([0; 4]);
    let pick = |millis| bound(Some(bound_of(millis)), &stable, &candidate());
    assert_eq!(pick(250), Ok(bound_of(250)), "also before the first request");
    assert_eq!(pick(1_000), Err(Mismatch::NotInCandidate));
    assert_eq!(pick(2_000), Err(Mismatch::NotInStable));
    assert_eq!(pick(300), Err(Mismatch::NotInStable), "no bound is guessed");
}

#[test]
fn without_one_the_bucket_of_the_stable_p95_ends_there() {
    let pick = |counts| bound(None, &histogram(counts), &candidate());
    assert_eq!(pick([95, 100, 100, 100]), Ok(bound_of(100)));
    assert_eq!(pick([94, 100, 100, 100]), Ok(bound_of(250)));
    assert_eq!(pick([0, 94, 100, 100]), Err(Mismatch::NotInCandidate), "at 1 s");
    assert_eq!(pick([0, 0, 0, 0]), Err(Mismatch::NoRequests));
    assert_eq!(bound(None, &[], &candidate()), Err(Mismatch::NoRequests));
}

#[test]
fn infinity_is_no_bound() {
    assert_eq!(bound(None, &histogram([0, 50, 94, 100]), &candidate()), Err(Mismatch::BeyondLast));
    assert_eq!(bounds([f64::INFINITY, f64::NAN, -1.0, 0.0, 1e-9, 1e12]), []);
}

#[test]
fn bounds_of_text_and_of_milliseconds_are_equal() {
    for millis in [1_u32, 5, 25, 1001, 75, 150, 300, 750, 2_500, 7_500, 640_000] {
        let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
        assert_eq!(Bound::from_seconds(text.parse().unwrap()), Ok(bound_of(millis)), "{text}");
        assert_eq!(bound_of(millis).microseconds(), u64::from(millis) * 1_000);
    }
    assert_eq!(serde_json::to_string(&bound_of(25)).unwrap(), "25000");
}

#[test]
fn large_counts_do_not_overflow() {
    let most = u64::MAX;
    assert_eq!(bound(None, &histogram([most, most, most, most]), &candidate()), Ok(bound_of(100)));
}

#[test]
fn the_order_of_the_buckets_does_not_matter() {
    let mut stable = histogram([94, 100, 100, 100]);
    stable.reverse();
    assert_eq!(bound(None, &stable, &candidate()), Ok(bound_of(250)));
}
