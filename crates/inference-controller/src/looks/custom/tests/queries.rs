//! Queries, and what Prometheus answers to them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use jiff::Timestamp;
use runtime::read::secrets::Secrets;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::Barrier,
};

use super::*;
use crate::tests::parsed;

/// Answers queries of a Service with a counter. That of requests has ten times the time of the query. That of the
/// candidate's errors has twice that time, and stable has none. Without a time, the query is of 15 s after the beginning.
/// Answers of earlier times wait until all of them are asked for: two of each query for each Service.
async fn server() -> SocketAddr {
    let earlier = Arc::new(Barrier::new(8));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let earlier = earlier.clone();
            tokio::spawn(async move {
                let mut bytes = vec![0; 8_192];
                let count = stream.read(&mut bytes).await.unwrap();
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                let time = text.rsplit_once("&time=").map(|(_, time)| time.parse::<i64>().unwrap());
                if time.is_some() {
                    earlier.wait().await;
                }
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

const SINCE: i64 = 1_700_000_000;

fn asked_at() -> Moment {
    let now = Timestamp::from_second(SINCE + 15).unwrap();
    Moment { now, wall: now }
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
    assert_eq!(again, (Found::Pooled, None), "the same values");
}

#[tokio::test]
async fn what_cannot_be_asked_names_its_field() {
    let without = asking(&[]);
    let turns = Bodies::new(1, 1);
    let of = async |bad: &str| {
        answered((&without, &turns), &queries(bad), "demo", None, asked_at()).await.read.unwrap_err()
    };
    let said = of(r#"errors{service="$name"} or vector(0)"#).await;
    assert!(said.starts_with("spec.canary.analysis.prometheus: prometheus.url is not set"), "{said}");
    let said = of("sum(").await;
    assert!(
        said.starts_with("spec.canary.analysis.prometheus.badRequestsQuery: the query cannot be used: at "),
        "{said}"
    );
    let said = of("sum(errors) or vector(0)").await;
    assert!(
        said.contains("badRequestsQuery has sum() of several pods: keep the label pod or instance"),
        "{said}"
    );
    let mut without_end = queries("vector(0)");
    without_end.prometheus.requests_query += " or vector(0)";
    let said = answered((&without, &turns), &without_end, "demo", None, asked_at()).await.read.unwrap_err();
    assert!(said.contains("requestsQuery has vector(): leave it out"), "{said}");
    let said = of("sum(increase(errors[1m])) or vector(0)").await;
    assert!(
        said.starts_with(
            "spec.canary.analysis.prometheus.badRequestsQuery has increase(): write the counter"
        ),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn queries_that_are_not_answered_in_time_say_what_helps() {
    let (without, turns) = (asking(&[]), Bodies::new(1, 1));
    let _other = turns.permit("demo").await;
    let late = answered((&without, &turns), &queries("b"), "demo", None, asked_at()).await.read.unwrap_err();
    let fix = "within 8 s; select fewer series, or raise intervalSeconds";
    assert!(late.ends_with(fix), "{late}");
}

/// Both versions would have the same requests: nothing that is judged would be of the candidate.
#[tokio::test]
async fn a_query_that_is_the_same_for_both_versions_is_refused() {
    let (without, turns) = (asking(&[]), Bodies::new(1, 1));
    let of = async |asked: Queries| {
        answered((&without, &turns), &asked, "demo", None, asked_at()).await.read.unwrap_err()
    };
    let wrong = |field: &str| {
        format!(
            "spec.canary.analysis.prometheus.{field} is the same query for both versions: write $name as the value of a \
             label, as in service=\"$name\""
        )
    };
    assert_eq!(of(queries("errors or vector(0)")).await, wrong("badRequestsQuery"));
    let mut of_all = queries(r#"errors{service="$name"} or vector(0)"#);
    of_all.prometheus.requests_query = r#"requests{namespace="$namespace"}"#.to_owned();
    assert_eq!(of(of_all).await, wrong("requestsQuery"));
}
