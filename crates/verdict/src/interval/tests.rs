use super::*;

fn load(in_hand: f64, ready_pods: u32) -> Load {
    Load::new(in_hand, ready_pods).unwrap()
}

fn are_comparable(stable: Load, candidate: Load) -> bool {
    let both = Tracks { stable, candidate }.are_comparable();
    assert_eq!(both, Tracks { stable: candidate, candidate: stable }.are_comparable(), "either way");
    both
}

#[test]
fn counts_that_cannot_be_are_refused() {
    assert_eq!(Counts::new(3, 4), Err(Invalid::MoreBadThanRequests { requests: 3, bad: 4 }));
    assert_eq!(Counts::new(MOST_REQUESTS + 1, 0), Err(Invalid::TooLarge { most: MOST_REQUESTS }));
    assert!(Counts::new(MOST_REQUESTS, MOST_REQUESTS).is_ok());
    assert!(serde_json::from_str::<Counts>(r#"{"requests":3,"bad":4}"#).is_err(), "from a status neither");
    assert!(serde_json::from_str::<Counts>(r#"{"requests":3,"bad":-1}"#).is_err());
}

#[test]
fn sums_end_at_the_largest_count_and_stay_valid() {
    let most = Counts::new(MOST_REQUESTS, MOST_REQUESTS).unwrap();
    assert_eq!(most.plus(most), most);
    let some = Counts::new(5, 2).unwrap().plus(Counts::new(7, 1).unwrap());
    assert_eq!((some.requests(), some.bad()), (12, 3));
}

#[test]
fn a_bad_event_that_comes_before_its_request_counts_as_a_request() {
    let added = Counts::new(100, 6).unwrap().since(Counts::new(100, 5).unwrap()).unwrap();
    assert_eq!((added.requests(), added.bad()), (1, 1));
}

#[test]
fn loads_are_comparable_within_a_factor_of_two_per_pod() {
    assert!(are_comparable(load(40.0, 4), load(20.0, 1)), "10 and 20");
    assert!(!are_comparable(load(40.0, 4), load(20.1, 1)));
    // A tenth of the requests at one of five pods has less than half of the load of the others.
    assert!(!are_comparable(load(90.0, 4), load(10.0, 1)));
}

#[test]
fn little_load_is_comparable_with_none() {
    assert!(are_comparable(load(0.0, 1), load(8.0, 4)));
    assert!(!are_comparable(load(0.0, 1), load(9.0, 4)));
    assert!(are_comparable(load(0.0, 4), load(2.0, 1)), "the floor is that of each pod");
}

#[test]
fn a_track_without_ready_pods_has_no_load_to_compare() {
    assert!(!are_comparable(load(0.0, 0), load(0.0, 0)));
    assert!(!are_comparable(load(0.0, 1), load(0.0, 0)));
}

#[test]
fn loads_that_cannot_be_are_refused() {
    assert_eq!(Load::new(f64::NAN, 1), Err(Invalid::NotFinite));
    assert_eq!(Load::new(f64::INFINITY, 1), Err(Invalid::NotFinite));
    assert_eq!(Load::new(-0.1, 1), Err(Invalid::Negative));
    assert_eq!(Load::new(2e9, 1), Err(Invalid::TooLarge { most: MOST_IN_HAND }));
    // The largest are compared without overflow.
    assert!(are_comparable(load(1e9, u32::MAX), load(1e9, u32::MAX)));
}
