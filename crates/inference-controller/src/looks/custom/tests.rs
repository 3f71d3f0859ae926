use std::net::{Ipv4Addr, SocketAddr};

use api::aiinference::analysis::{AnalysisPrometheus, MetricName};
use runtime::read::secrets::Secrets;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::{
    looks::{Ask, AskedMetric, Looks, Read},
    tests::parsed,
};

fn series(of: &[(u64, f64)]) -> Counters {
    of.iter().copied().collect()
}

/// A version with these series, and then others: what it has gained.
fn gained(requests: [&[(u64, f64)]; 2], bad: [&[(u64, f64)]; 2]) -> (u64, u64) {
    let answer =
        |[before, now]: [&[(u64, f64)]; 2]| Answer { before: Some(series(before)), now: series(now) };
    let mut version = Version::default();
    version.advance(&Answers { requests: answer(requests), bad: answer(bad) });
    (version.gained.requests, version.gained.bad)
}

#[test]
fn what_the_series_have_gained_is_counted() {
    let two = gained([&[(1, 100.0), (2, 7.0)], &[(1, 160.0), (2, 47.0)]], [&[(1, 3.0)], &[(1, 5.0)]]);
    assert_eq!(two, (100, 2));
}

#[test]
fn a_counter_that_begins_anew_adds_its_value_and_a_replica_that_is_behind_adds_nothing() {
    let restarted = gained([&[(1, 100.0), (2, 9.0)], &[(1, 30.0), (2, 19.0)]], [&[(1, 8.0)], &[(1, 1.0)]]);
    assert_eq!(restarted, (40, 1));
    let mut known = Known(series(&[(1, 100.0)]));
    // As two replicas of a server answer in turn.
    let gains = [95.0, 105.0, 99.0, 110.0].map(|value| known.advance(&series(&[(1, value)]), true));
    assert_eq!(gains, [0, 5, 0, 5]);
}

#[test]
fn a_series_that_was_away_goes_on_where_it_was() {
    let mut known = Known(series(&[(1, 100.0), (2, 500.0)]));
    let gains =
        [&[(1, 110.0)][..], &[(1, 120.0), (2, 503.0)][..]].map(|now| known.advance(&series(now), true));
    assert_eq!(gains, [10, 13], "a scrape has failed");
}

#[test]
fn the_first_error_and_a_new_pod_count_and_new_labels_of_all_series_do_not() {
    let first_error = gained([&[(1, 100.0)], &[(1, 130.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 4.0)]]);
    assert_eq!(first_error, (30, 4));
    let new_pod = gained([&[(1, 100.0)], &[(1, 130.0), (2, 20.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 4.0)]]);
    assert_eq!(new_pod, (50, 4));
    let renamed = gained([&[(1, 9_000.0)], &[(2, 9_010.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 800.0)]]);
    assert_eq!(renamed, (0, 0));
    let of_a_predecessor = gained([&[], &[(2, 9_010.0)]], [&[(9, 0.0)], &[(9, 0.0), (5, 800.0)]]);
    assert_eq!(of_a_predecessor, (0, 0), "its first look begins with what is there");
}

#[test]
fn what_is_known_is_bounded() {
    let mut known = Known::default();
    for pod in 0..4_000_u64 {
        known.advance(&series(&[(pod, 1.0)]), true);
    }
    assert!(known.0.len() <= MOST_SERIES * 2 + 1);
}

/// Both versions at this time: requests and bad ones so far, of stable and of the candidate.
fn looked(stable: (f64, f64), candidate: Option<(f64, f64)>) -> Answered {
    let answers = |(requests, bad): (f64, f64)| Answers {
        requests: Answer { before: None, now: series(&[(1, requests)]) },
        bad: Answer { before: None, now: series(&[(1, bad)]) },
    };
    let read = Tracks { stable: answers(stable), candidate: candidate.map(answers).unwrap_or_default() };
    Answered { queries: queries("b"), read: Ok(read) }
}

/// A step that began at 100 with these counters.
fn counting(stable: (f64, f64), candidate: Option<(f64, f64)>) -> Counting {
    let mut begun = looked(stable, candidate);
    if let Ok(Tracks { stable, candidate }) = &mut begun.read {
        for answer in [&mut stable.requests, &mut stable.bad, &mut candidate.requests, &mut candidate.bad] {
            answer.before = Some(answer.now.clone());
        }
    }
    let mut counting = Counting::default();
    assert_eq!(counting.found(&begun, (100, 101), 1), (Found::NoRequests, None));
    counting
}

fn counts(found: (Found, Option<String>)) -> Option<[(u64, u64); 2]> {
    let (Found::Counted { flows, .. }, None) = found else { return None };
    Some([flows.stable, flows.candidate].map(|flow| (flow.ended.requests(), flow.ended.bad())))
}

#[test]
fn a_look_between_the_scrapes_of_both_versions_waits_for_the_other_one() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let stable_alone = counting.found(&looked((190.0, 1.0), Some((10.0, 0.0))), (100, 115), 15);
    assert_eq!(stable_alone, (Found::NoRequests, None));
    let both = counting.found(&looked((190.0, 1.0), Some((20.0, 3.0))), (115, 130), 30);
    assert_eq!(counts(both), Some([(90, 1), (10, 3)]));
    let nothing = counting.found(&looked((190.0, 1.0), Some((20.0, 3.0))), (130, 145), 45);
    assert_eq!(nothing, (Found::NoRequests, None));
    // A candidate without requests does not keep those of stable from being counted.
    let over = counting.found(&looked((990.0, 1.0), Some((20.0, 3.0))), (235, 250), 150);
    assert_eq!(counts(over), Some([(800, 0), (0, 0)]));
}

#[test]
fn bad_requests_that_come_later_than_their_requests_are_not_lost() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let first = counting.found(&looked((190.0, 0.0), Some((70.0, 0.0))), (100, 115), 15);
    assert_eq!(counts(first), Some([(90, 0), (60, 0)]));
    let later = counting.found(&looked((280.0, 0.0), Some((72.0, 6.0))), (115, 130), 30);
    assert_eq!(counts(later), Some([(90, 0), (2, 2)]), "no more than requests");
    let rest = counting.found(&looked((370.0, 0.0), Some((82.0, 6.0))), (130, 145), 45);
    assert_eq!(counts(rest), Some([(90, 0), (10, 4)]));
}

fn failed() -> Answered {
    Answered { queries: queries("b"), read: Err("no server".to_owned()) }
}

#[test]
fn a_gap_is_counted_with_the_next_look_until_it_is_too_long() {
    let mut counting = counting((100.0, 0.0), Some((10.0, 0.0)));
    let missing = (Found::Incomplete, Some("no server".to_owned()));
    for at in [115, 130] {
        assert_eq!(counting.found(&failed(), (100, at), at - 100), missing);
    }
    let next = counting.found(&looked((190.0, 0.0), Some((20.0, 0.0))), (130, 145), 45);
    assert_eq!(counts(next), Some([(90, 0), (10, 0)]));
    for at in [160, 175, 190] {
        assert!(!counting.begins(&queries("b")), "{at}");
        assert_eq!(counting.found(&failed(), (100, at), at - 100), missing);
    }
    assert!(counting.begins(&queries("b")), "the next look begins with the values of its time");
    assert!(counting.begins(&queries("c")));
}

#[test]
fn a_version_without_series_is_waited_for_and_then_it_is_said() {
    let mut silent = counting((100.0, 0.0), None);
    let waits = silent.found(&looked((190.0, 0.0), None), (100, 115), 15);
    assert_eq!(waits, (Found::NoRequests, None));
    let (found, fault) = silent.found(&looked((290.0, 0.0), None), (300, 315), 215);
    assert_eq!(found, Found::Incomplete);
    assert!(fault.unwrap().contains("requestsQuery has no series for the Service chat-canary"));
    // The pods of both were scraped, and now those of stable are not.
    let mut gone = counting((100.0, 0.0), Some((10.0, 0.0)));
    let mut half = looked((0.0, 0.0), Some((20.0, 0.0)));
    half.read.as_mut().unwrap().stable.requests.now.clear();
    let (found, fault) = gone.found(&half, (100, 115), 15);
    assert_eq!(found, Found::Incomplete);
    assert!(fault.unwrap().contains("no series for the Service chat:"));
    let back = gone.found(&looked((190.0, 0.0), Some((30.0, 0.0))), (115, 130), 30);
    assert_eq!(counts(back), Some([(90, 0), (20, 0)]), "of the same time");
}

/// Answers queries of a Service at a time, which is 15 s after the request if it names none, with a counter: that of requests
/// has ten times the time, that of errors of the candidate twice the time.
async fn server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = vec![0; 8_192];
                let count = stream.read(&mut bytes).await.unwrap();
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                let time = text.rsplit_once("&time=").map(|(_, time)| time.parse::<i64>().unwrap());
                let time = time.unwrap_or(SINCE + 15);
                let is_of_candidate = text.contains("chat-canary");
                let times = match (text.contains("errors"), is_of_candidate) {
                    (true, true) => 2,
                    (true, false) => 0,
                    (false, _) => 10,
                };
                let body = format!(
                    r#"{{"status":"success","data":{{"resultType":"vector","result":[{{"metric":{{}},"value":[{time},"{}"]}}]}}}}"#,
                    times * time
                );
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}

fn asking(flags: &[&str]) -> Prometheus {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, kube::Error>(kube::Error::Service("no server".into()))
    });
    let secrets = Secrets::new(kube::Client::new(service, "demo"));
    Prometheus::new(parsed(flags).unwrap().prometheus, secrets, "test/1")
}

fn queries(bad: &str) -> Queries {
    Queries {
        prometheus: Box::new(AnalysisPrometheus {
            url: None,
            requests_query: r#"requests{service="$name"}"#.to_owned(),
            bad_requests_query: bad.to_owned(),
            secret_name: None,
            ca_secret_name: None,
        }),
        services: Tracks { stable: "chat".to_owned(), candidate: "chat-canary".to_owned() },
    }
}

const SINCE: i64 = 1_700_000_000;

fn asked_at() -> Timestamp {
    Timestamp::from_second(SINCE + 15).unwrap()
}

#[tokio::test]
async fn both_versions_are_asked_and_the_first_time_also_for_the_time_before() {
    let prometheus = asking(&[&format!("--prometheus-url=http://{}", server().await)]);
    let turns = Bodies::new(1, 1);
    let asked = queries(r#"errors{service="$name"} or vector(0)"#);
    let of = async |since| answered((&prometheus, &turns), &asked, "demo", since, asked_at()).await;
    let mut counting = Counting::default();
    assert!(counting.begins(&asked));
    let first = counting.found(&of(Some(SINCE)).await, (SINCE, SINCE + 15), 15);
    assert_eq!(counts(first), Some([(150, 0), (150, 30)]));
    assert!(!counting.begins(&asked));
    let again = counting.found(&of(None).await, (SINCE + 15, SINCE + 30), 30);
    assert_eq!(again, (Found::NoRequests, None), "the same values");
}

#[tokio::test]
async fn what_cannot_be_asked_names_its_field() {
    let without = asking(&[]);
    let turns = Bodies::new(1, 1);
    let of = async |bad: &str| {
        answered((&without, &turns), &queries(bad), "demo", None, asked_at()).await.read.unwrap_err()
    };
    let said = of("vector(0)").await;
    assert!(said.starts_with("spec.canary.analysis.prometheus: prometheus.url is not set"), "{said}");
    let said = of("sum(").await;
    assert!(
        said.starts_with("spec.canary.analysis.prometheus.badRequestsQuery: the query cannot be used: at "),
        "{said}"
    );
    let said = of("sum(increase(errors[1m])) or vector(0)").await;
    assert!(
        said.starts_with(
            "spec.canary.analysis.prometheus.badRequestsQuery has increase(): write the counter"
        ),
        "{said}"
    );
}

/// The counters of a look are those that the next one goes on from, in one step and with the same queries.
#[test]
fn only_the_first_look_of_a_step_asks_for_the_time_before() {
    let looks = Looks::default();
    let metrics = vec![AskedMetric { name: MetricName::Custom, given: None, known: None }];
    let ask = Ask {
        step_since: 100,
        counted_until: 100,
        engine: engine_metrics::engine::Engine::Vllm,
        port: 8_000,
        path: "/metrics",
        pods: Vec::new(),
        metrics,
        queries: Some(queries("b")),
    };
    let since = |ask: &Ask| {
        looks.ask("uid", ask);
        let (_, since) = looks.begin("uid").unwrap();
        since
    };
    let note = |ask: &Ask, queries: Answered, at: i64| {
        looks.note("uid", ask, &Read { pods: Vec::new(), queries: Some(queries) }, at);
        looks.of("uid", None).looks.last().unwrap().clone()
    };
    assert_eq!(since(&ask), Some(100));
    note(&ask, looked((100.0, 0.0), Some((10.0, 0.0))), 115);
    assert_eq!(since(&ask), None);
    let look = note(&ask, looked((190.0, 0.0), Some((20.0, 5.0))), 130);
    let Found::Counted { flows, .. } = look.metrics[&MetricName::Custom] else { panic!("{look:?}") };
    assert_eq!((flows.candidate.ended.requests(), flows.candidate.ended.bad()), (10, 5));
    assert_eq!(since(&Ask { queries: Some(queries("c")), ..ask.clone() }), Some(130));
    assert_eq!(since(&Ask { step_since: 200, counted_until: 210, ..ask.clone() }), Some(210));
    for at in [145, 160, 175] {
        assert_eq!(note(&ask, failed(), at).fault_of_queries.as_deref(), Some("no server"));
    }
    assert_eq!(since(&ask), Some(175));
}
