use super::*;

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
fn the_flow_of_pods_adds_up_and_ends_at_the_largest() {
    let flow =
        |arrivals, in_flight| Flow { arrivals, ended: Counts::new(5, 1).unwrap(), in_flight, restarts: 0 };
    let sum = flow(3, 4).plus(flow(10, 20));
    assert_eq!(sum, Flow { arrivals: 13, ended: Counts::new(10, 2).unwrap(), in_flight: 24, restarts: 0 });
    assert_eq!(flow(u64::MAX, u64::MAX).plus(flow(1, 1)).arrivals, MOST_REQUESTS);
}
