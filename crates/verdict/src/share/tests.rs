use super::*;

fn counts(requests: u64, bad: u64) -> Counts {
    Counts::new(requests, bad).unwrap()
}

fn percent(percent: f64) -> Share {
    Share::from_percent(percent).unwrap()
}

#[test]
fn no_bad_request_shows_at_most_a_percentage_from_so_many_requests_on() {
    for (limit, enough) in [(1.0, 268), (0.5, 539), (0.1, 2_703)] {
        assert!(upper_bound(counts(enough, 0)) <= Some(percent(limit)), "{limit} %");
        assert!(upper_bound(counts(enough - 1, 0)) > Some(percent(limit)), "{limit} %");
        assert_eq!(requests_needed(counts(0, 0), percent(limit)), Some(enough));
    }
}

/// By hand: p = 0.02, n = 300, z² = 2.705543; (0.02 + 0.004509 + 1.644854 · √(0.000065333 + 0.000007515)) / 1.009018.
#[test]
fn the_bound_is_that_of_wilson() {
    assert_eq!(upper_bound(counts(300, 6)), Share::from_millionths(38_204).ok());
    assert_eq!(upper_bound(counts(10, 10)), Some(Share::ALL));
    assert_eq!(upper_bound(counts(0, 0)), None, "nothing is known");
}

#[test]
fn with_the_requests_that_are_needed_the_bound_passes_and_with_fewer_it_does_not() {
    for (bad, requests) in [(0, 100), (1, 200), (1, 50), (3, 1_000), (1, 10_000), (1, 2)] {
        for allowed in [0.01, 0.5, 1.0, 3.0, 55.0, 99.9] {
            let Some(needed) = requests_needed(counts(requests, bad), percent(allowed)) else {
                assert!(bad as f64 / requests as f64 >= allowed / 100.0, "{bad} of {requests}, {allowed} %");
                continue;
            };
            // Whole numbers of bad requests with the same share.
            let at = |times: u64| upper_bound(counts(requests * times, bad * times)).unwrap();
            let enough = needed.div_ceil(requests);
            assert!(at(enough) <= percent(allowed), "{bad} of {requests}, {allowed} %: {needed}");
            let too_few = (needed - 1) / requests;
            assert!(
                too_few == 0 || at(too_few) > percent(allowed) || (needed - 1).is_multiple_of(requests),
                "{bad} of {requests}, {allowed} %: {needed}"
            );
        }
    }
}

#[test]
fn a_share_that_is_allowed_at_most_needs_more_requests_than_there_are() {
    assert_eq!(requests_needed(counts(100, 1), percent(1.0)), None);
    assert_eq!(requests_needed(counts(100, 2), percent(1.0)), None);
    assert_eq!(requests_needed(counts(0, 0), percent(1.0)), Some(268), "as though none will be bad");
    assert_eq!(requests_needed(counts(0, 0), Share::NONE), None);
    assert_eq!(requests_needed(counts(100, 100), Share::ALL), Some(1), "everything is allowed");
}

#[test]
fn a_share_is_shown_in_percent() {
    let shown = [0, 100, 8_000, 12_345, 999_999, 1_000_000]
        .map(|millionths| Share::from_millionths(millionths).unwrap().to_string());
    assert_eq!(shown, ["0%", "0.01%", "0.8%", "1.2345%", "99.9999%", "100%"]);
}

#[test]
fn shares_are_rounded_to_the_nearest_millionth() {
    assert_eq!(Share::of(counts(3, 2)), Share::from_millionths(666_667).ok());
    assert_eq!(Share::of(counts(3, 1)), Share::from_millionths(333_333).ok());
    assert_eq!(Share::of(counts(0, 0)), None);
    let most = crate::interval::MOST_REQUESTS;
    assert_eq!(Share::of(counts(most, most)), Some(Share::ALL));
}

#[test]
fn shares_that_cannot_be_are_refused() {
    for percent in [f64::NAN, -0.1, 100.1, f64::INFINITY] {
        assert!(Share::from_percent(percent).is_err(), "{percent}");
    }
    assert!(serde_json::from_str::<Share>("1000001").is_err());
    assert_eq!(percent(99.0).scaled(RELATIVE, Share::ALL), Share::ALL);
    assert_eq!(percent(0.8).scaled(RELATIVE, percent(0.5)), percent(1.5));
}

const RELATIVE: u32 = 125;
