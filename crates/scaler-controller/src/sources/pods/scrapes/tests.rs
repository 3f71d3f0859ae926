//! Rates and percentiles of scripted scrapes.

use proptest::prelude::*;

use super::*;
use text::exposition::parse;

const WINDOW: Duration = Duration::from_secs(60);
const SECONDS: MillisecondsPerUnit = MillisecondsPerUnit(1_000.0);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn times(le_1: f64, le_2: f64, total: f64) -> Scraped {
    let text = format!(
        "x_bucket{{le=\"1\"}} {le_1}\nx_bucket{{le=\"2\"}} {le_2}\nx_bucket{{le=\"+Inf\"}} {total}\n"
    );
    Scraped::Times(Buckets::of(parse(&text, |_| true).series.iter()).unwrap(), SECONDS, InFlight::Unknown)
}

/// One pod that is scraped at these seconds.
struct Pod(Scrapes);

impl Pod {
    fn new() -> Self {
        Self(Scrapes::new(WINDOW))
    }

    fn scraped(&mut self, seconds: i64, reading: Scraped) -> Result<f64, Fault> {
        self.0.record("uid-a", "demo/a", "x", reading, at(seconds)).map(|sampled| sampled.sample.value)
    }
}

fn is_first(sampled: &Result<f64, Fault>) -> bool {
    matches!(sampled, Err(Fault::FirstScrape { .. }))
}

#[test]
fn a_gauge_is_a_sample_at_once() {
    let sampled = Scrapes::new(WINDOW).record("uid-a", "demo/a", "x", Scraped::Level(7.0), at(3)).unwrap();
    assert_eq!(sampled.sample, Sample { value: 7.0, at: at(3), caution: None });
}

#[test]
fn a_rate_needs_two_scrapes() {
    let mut pod = Pod::new();
    assert!(is_first(&pod.scraped(0, Scraped::Count(1_000.0))));
    assert_eq!(pod.scraped(15, Scraped::Count(1_300.0)), Ok(1_200.0), "300 in 15 s are 1200 in a minute");
}

#[test]
fn a_counter_that_falls_has_begun_anew() {
    let mut pod = Pod::new();
    let _ = pod.scraped(0, Scraped::Count(1_000.0));
    assert_eq!(pod.scraped(15, Scraped::Count(30.0)), Ok(120.0));
    assert_eq!(
        pod.scraped(30, Scraped::Count(60.0)),
        Ok(120.0),
        "60 in 30 s, although it counted 1000 before"
    );
}

#[test]
fn a_counter_that_stands_still_is_zero_and_not_missing() {
    let mut pod = Pod::new();
    let _ = pod.scraped(0, Scraped::Count(5.0));
    assert_eq!(pod.scraped(15, Scraped::Count(5.0)), Ok(0.0));
}

#[test]
fn a_rate_is_that_of_the_window() {
    let mut pod = Pod::new();
    let _ = pod.scraped(0, Scraped::Count(0.0));
    for step in 1..=20 {
        // 600 a minute for five minutes, then nothing.
        let _ = pod.scraped(step * 15, Scraped::Count(150.0 * step as f64));
    }
    assert_eq!(pod.scraped(315, Scraped::Count(3_000.0)), Ok(450.0), "45 s of 60 s");
    assert_eq!(pod.scraped(330, Scraped::Count(3_000.0)), Ok(300.0));
    assert_eq!(pod.scraped(345, Scraped::Count(3_000.0)), Ok(150.0));
    assert_eq!(pod.scraped(360, Scraped::Count(3_000.0)), Ok(0.0));
}

#[test]
fn fast_scrapes_take_no_more_memory() {
    let mut pod = Pod::new();
    for step in 0..1_000 {
        let sampled = pod.scraped(step, Scraped::Count(10.0 * step as f64));
        if step >= 10 {
            assert_eq!(sampled, Ok(600.0), "{step}");
        }
        assert!(pod.0.pods["uid-a"].points.len() <= 6, "{}", pod.0.pods["uid-a"].points.len());
    }
}

#[test]
fn scrapes_within_ten_seconds_give_no_rate() {
    let mut scrapes = Scrapes::new(WINDOW);
    let now = at(0);
    let _ = scrapes.record("uid-a", "demo/a", "x", Scraped::Count(0.0), now);
    let soon = now + SignedDuration::from_millis(9_999);
    let sampled = scrapes.record("uid-a", "demo/a", "x", Scraped::Count(1e6), soon);
    assert!(matches!(sampled, Err(Fault::FirstScrape { .. })));
    let sampled = scrapes.record("uid-a", "demo/a", "x", Scraped::Count(100.0), at(10)).unwrap();
    assert_eq!(sampled.sample.value, 600.0, "all of the ten seconds");
}

#[test]
fn after_a_pause_or_a_step_of_the_clock_the_history_begins_anew() {
    let mut pod = Pod::new();
    let _ = pod.scraped(0, Scraped::Count(0.0));
    assert!(is_first(&pod.scraped(121, Scraped::Count(60.0))), "twice the window");
    assert!(pod.scraped(136, Scraped::Count(120.0)).is_ok());
    assert!(is_first(&pod.scraped(100, Scraped::Count(180.0))), "the clock went back");
    assert!(is_first(&pod.scraped(100, Scraped::Count(180.0))), "no time has passed");
    assert!(pod.scraped(110, Scraped::Count(180.0)).is_ok());
}

#[test]
fn another_pod_of_the_same_name_has_a_history_of_its_own() {
    let mut scrapes = Scrapes::new(WINDOW);
    let _ = scrapes.record("uid-a", "demo/a-0", "x", Scraped::Count(1_000.0), at(0));
    let sampled = scrapes.record("uid-b", "demo/a-0", "x", Scraped::Count(1_001.0), at(15));
    assert!(matches!(sampled, Err(Fault::FirstScrape { .. })));
}

#[test]
fn pods_that_are_gone_are_forgotten_and_their_number_is_limited() {
    let mut scrapes = Scrapes::new(WINDOW);
    for index in 0..MOST_PODS {
        let _ = scrapes.record(&format!("uid-{index}"), "demo/a", "x", Scraped::Count(0.0), at(0));
    }
    let sampled = scrapes.record("one-more", "demo/a", "x", Scraped::Count(0.0), at(0));
    assert!(matches!(sampled, Err(Fault::TooManyPods { .. })));
    assert!(scrapes.record("one-more", "demo/a", "x", Scraped::Level(1.0), at(0)).is_ok(), "needs no memory");
    scrapes.retain(|uid| uid == "uid-7");
    assert_eq!(scrapes.len(), 1);
    assert!(scrapes.record("uid-7", "demo/a", "x", Scraped::Count(1.0), at(15)).is_ok());
}

#[test]
fn latency_is_the_percentile_of_what_was_gained() {
    let mut pod = Pod::new();
    assert!(is_first(&pod.scraped(0, times(900.0, 1_000.0, 1_000.0))));
    // 100 requests, all between one and two seconds: the rank 95 of 100 is at 1.95 s.
    assert_eq!(pod.scraped(15, times(900.0, 1_100.0, 1_100.0)), Ok(1_950.0));
}

#[test]
fn an_idle_pod_has_no_latency_and_not_zero() {
    let mut pod = Pod::new();
    let _ = pod.scraped(0, times(1.0, 1.0, 1.0));
    let idle =
        Fault::NoRequests { pod: "demo/a".into(), metric: "x".into(), within: Duration::from_secs(15) };
    assert_eq!(pod.scraped(15, times(1.0, 1.0, 1.0)), Err(idle));
}

#[test]
fn a_histogram_that_falls_has_begun_anew() {
    let mut pod = Pod::new();
    let _ = pod.scraped(0, times(900.0, 1_000.0, 1_000.0));
    assert_eq!(pod.scraped(15, times(0.0, 10.0, 10.0)), Ok(1_950.0));
}

#[test]
fn other_buckets_or_another_metric_begin_anew() {
    let mut pod = Pod::new();
    let _ = pod.scraped(0, times(1.0, 1.0, 1.0));
    let text = "x_bucket{le=\"+Inf\"} 9\nx_bucket{le=\"5\"} 9\n";
    let other = Buckets::of(parse(text, |_| true).series.iter()).unwrap();
    assert!(is_first(&pod.scraped(15, Scraped::Times(other, SECONDS, InFlight::Unknown))));
    assert!(is_first(&pod.scraped(30, Scraped::Count(5.0))));
    assert!(pod.scraped(45, Scraped::Count(6.0)).is_ok());
}

#[test]
fn the_percentile_of_all_pods_is_of_their_requests_together() {
    let mut scrapes = Scrapes::new(WINDOW);
    let mut gained = |uid: &str, reading: Scraped| {
        let zero = match &reading {
            Scraped::Times(buckets, unit, in_flight) => {
                Scraped::Times(buckets.since(buckets).unwrap(), *unit, *in_flight)
            }
            _ => panic!(),
        };
        let _ = scrapes.record(uid, uid, "x", zero, at(0));
        scrapes.record(uid, uid, "x", reading, at(15)).unwrap().times.unwrap()
    };
    let busy = gained("busy", times(1_000.0, 1_000.0, 1_000.0));
    let slow = gained("slow", times(0.0, 10.0, 10.0));
    let all = combined([&busy, &slow]).unwrap();
    assert!(all < 1_000.0, "ten slow requests of 1010 do not make the percentile: {all}");
    assert_eq!(combined([&slow]), Some(1_950.0));
    assert_eq!(combined([]), None);
    let milliseconds = Times { unit: MillisecondsPerUnit(1.0), ..slow.clone() };
    assert_eq!(combined([&milliseconds, &slow]), Some(1_950.0), "units are not mixed");
}

proptest! {
    #[test]
    fn any_scrapes_give_finite_rates_that_are_not_negative(
        scrapes in prop::collection::vec((-20_i64..200, 0.0..1e12_f64), 0..60)
    ) {
        let (mut pod, mut now) = (Pod::new(), 0);
        for (step, count) in scrapes {
            now += step;
            if let Ok(rate) = pod.scraped(now, Scraped::Count(count)) {
                prop_assert!(rate.is_finite() && rate >= 0.0, "{rate}");
            }
            prop_assert!(pod.0.pods["uid-a"].points.len() <= 8);
        }
    }

    /// The growth of an undisturbed counter is not lost between two windows.
    #[test]
    fn a_steady_counter_has_a_steady_rate(step in 1_i64..60, per_second in 0.0..1e6_f64) {
        let mut pod = Pod::new();
        for index in 0..50 {
            let now = index * step;
            let rate = pod.scraped(now, Scraped::Count(per_second * now as f64));
            if now >= 10 {
                prop_assert!((rate.unwrap() - per_second * 60.0).abs() <= 1e-6 * (1.0 + per_second * 60.0));
            }
        }
    }
}

#[test]
fn an_engine_without_requests_has_no_load_and_one_that_hangs_has_no_value() {
    let idle = |in_flight| match times(1.0, 2.0, 3.0) {
        Scraped::Times(buckets, unit, _) => Scraped::Times(buckets, unit, in_flight),
        other => other,
    };
    for (in_flight, expected) in [
        (InFlight::None, Some(0.0)),
        // Requests wait or run, and none ends.
        (InFlight::Some, None),
        (InFlight::Unknown, None),
    ] {
        let mut pod = Pod::new();
        assert!(is_first(&pod.scraped(0, idle(in_flight))));
        assert_eq!(pod.scraped(30, idle(in_flight)).ok(), expected, "{in_flight:?}");
    }
    let mut pod = Pod::new();
    assert!(is_first(&pod.scraped(0, idle(InFlight::None))));
    let busy = times(1.0, 3.0, 4.0);
    assert!(pod.scraped(30, busy).is_ok_and(|value| value > 0.0), "a request ended since");
}
