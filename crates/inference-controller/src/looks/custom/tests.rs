use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
};

use api::aiinference::analysis::AnalysisPrometheus;
use runtime::read::secrets::Secrets;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::tests::parsed;

fn series(of: &[(&str, f64)]) -> Counters {
    let labels = |pod: &str| BTreeMap::from([("pod".to_owned(), pod.to_owned())]);
    of.iter().map(|(pod, value)| (labels(pod), *value)).collect()
}

fn of(requests: [&[(&str, f64)]; 2], bad: [&[(&str, f64)]; 2]) -> Result<Gained, String> {
    gained(&[requests[0], requests[1], bad[0], bad[1]].map(series), "chat")
}

#[test]
fn what_the_series_have_gained_is_counted() {
    let two = of([&[("a", 100.0), ("b", 7.0)], &[("a", 160.0), ("b", 47.0)]], [&[("a", 3.0)], &[("a", 5.0)]]);
    assert_eq!(two, Ok(Gained { requests: Some(100), bad: 2 }));
}

#[test]
fn a_counter_that_begins_anew_or_ends_adds_nothing() {
    let restarted =
        of([&[("a", 100.0), ("b", 9.0)], &[("a", 30.0), ("b", 19.0)]], [&[("a", 8.0)], &[("a", 1.0)]]);
    assert_eq!(restarted, Ok(Gained { requests: Some(10), bad: 0 }));
    let gone = of([&[("a", 100.0), ("b", 9.0)], &[("b", 19.0)]], [&[("a", 8.0)], &[("zero", 0.0)]]);
    assert_eq!(gone, Ok(Gained { requests: Some(10), bad: 0 }));
}

#[test]
fn the_first_error_makes_its_series_and_an_old_counter_of_a_new_name_is_no_request() {
    let first_error =
        of([&[("a", 100.0)], &[("a", 130.0)]], [&[("zero", 0.0)], &[("zero", 0.0), ("500", 4.0)]]);
    assert_eq!(first_error, Ok(Gained { requests: Some(30), bad: 4 }));
    // As after a change of the labels: everything has another name.
    let renamed = of([&[("a", 9_000.0)], &[("b", 9_010.0)]], [&[("a", 800.0)], &[("b", 801.0)]]);
    assert_eq!(renamed, Ok(Gained { requests: Some(0), bad: 0 }), "no more bad ones than requests");
}

#[test]
fn a_query_of_bad_requests_without_a_value_is_no_proof_that_there_are_none() {
    let refused = of([&[("a", 1.0)], &[("a", 9.0)]], [&[], &[]]).unwrap_err();
    assert!(refused.contains("badRequestsQuery has no value for the Service chat"), "{refused}");
    assert!(refused.contains("or vector(0)"), "{refused}");
}

fn answer(until: i64, candidate: Option<u64>) -> Answered {
    let gained = |requests| Gained { requests, bad: 0 };
    Answered { until, read: Ok(Tracks { stable: gained(Some(90)), candidate: gained(candidate) }) }
}

fn failed() -> Answered {
    Answered { until: 0, read: Err("no server".to_owned()) }
}

#[test]
fn a_gap_is_counted_with_the_next_look_until_it_is_too_long() {
    let mut counted = Counted::default();
    let mut fault = None;
    assert!(matches!(counted.found(&answer(115, Some(10)), 15, &mut fault), Found::Counted { .. }));
    for _ in 0..2 {
        assert_eq!(counted.found(&failed(), 30, &mut fault), Found::Incomplete);
        assert_eq!(counted.until(), Some(115), "the next look counts from there");
    }
    assert_eq!(fault.as_deref(), Some("no server"));
    assert_eq!(counted.found(&failed(), 60, &mut fault), Found::Incomplete);
    assert_eq!(counted.until(), None);
}

#[test]
fn a_candidate_without_series_is_waited_for_and_then_it_is_said() {
    let mut counted = Counted::default();
    let mut fault = None;
    assert_eq!(counted.found(&answer(115, None), 15, &mut fault), Found::NoRequests);
    assert_eq!(fault, None);
    assert_eq!(counted.found(&answer(315, None), 215, &mut fault), Found::Incomplete);
    assert!(fault.unwrap().contains("requestsQuery has no series for the Service of the candidate"));
}

/// Answers queries of a Service and a time with a counter: `requests` has ten times the time, `errors` twice the time.
async fn server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = vec![0; 8_192];
                let count = stream.read(&mut bytes).await.unwrap();
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                let time = text.rsplit_once("time=").map(|(_, time)| time.parse::<i64>().unwrap()).unwrap();
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
        prometheus: AnalysisPrometheus {
            url: None,
            requests_query: r#"requests{service="$name"}"#.to_owned(),
            bad_requests_query: bad.to_owned(),
            secret_name: None,
            ca_secret_name: None,
        },
        services: Tracks { stable: "chat".to_owned(), candidate: "chat-canary".to_owned() },
    }
}

fn window() -> Window {
    Window { since: 1_700_000_000, now: Timestamp::from_second(1_700_000_015).unwrap() }
}

#[tokio::test]
async fn both_versions_are_asked_for_two_times_half_a_minute_ago() {
    let prometheus = asking(&[&format!("--prometheus-url=http://{}", server().await)]);
    let bad = r#"errors{service="$name"} or vector(0)"#;
    let answered = answered(&prometheus, &queries(bad), "demo", window()).await;
    let expected = Tracks {
        stable: Gained { requests: Some(150), bad: 0 },
        candidate: Gained { requests: Some(150), bad: 30 },
    };
    assert_eq!((answered.until, answered.read), (1_700_000_015, Ok(expected)));
}

#[tokio::test]
async fn what_cannot_be_asked_names_its_field() {
    let without = asking(&[]);
    let of = async |prometheus: &Prometheus, bad: &str| {
        answered(prometheus, &queries(bad), "demo", window()).await.read.unwrap_err()
    };
    let said = of(&without, "vector(0)").await;
    assert!(
        said.starts_with("spec.canary.analysis.prometheus.") && said.contains("PROMETHEUS_URL"),
        "{said}"
    );
    let said = of(&without, "sum(").await;
    assert!(
        said.starts_with("spec.canary.analysis.prometheus.badRequestsQuery: the query cannot be used: at "),
        "{said}"
    );
}
