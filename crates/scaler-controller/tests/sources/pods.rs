//! Scrapes of pods that answer well, badly, late and not at all.

use std::time::Duration;

use prometheus_api::Fault as ServerFault;
use scaler_controller::sources::{
    Fault,
    engines::{Load, Meaning, Requests, Scrape, Scraped, Wanted},
    pods::{Batch, Bodies, Limits, Pod, poll_once},
};
use scripted_server::{SOON, Script, Server, closed_port, in_time};
use tokio::time::{sleep, timeout};

const VLLM: &str = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\"} 3.0\n\
                    # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\"} 4.0\n";

/// What [`VLLM`] says: a histogram without a series has counted nothing yet.
fn queued() -> Scrape {
    let requests = Requests { waiting: 4.0, running: 3.0, finished: 0.0, tokens: 0.0 };
    Scrape { value: Ok(Scraped::Level(7.0)), requests: Some(requests) }
}

fn limits() -> Limits {
    Limits { deadline: Duration::from_secs(20), bytes: 8_192 }
}

/// A scrape with a share of its own.
async fn poll_alone(pod: Pod<'_>, wanted: &Wanted, limits: Limits) -> Result<Scrape, Fault> {
    poll_one(pod, wanted, limits, &Batch::new(&Bodies::new(1, 1), "demo")).await
}

/// With one value, which is there.
async fn poll_one(pod: Pod<'_>, wanted: &Wanted, limits: Limits, batch: &Batch<'_>) -> Result<Scrape, Fault> {
    let scrape = poll_once(pod, &[wanted], limits, batch).await?.remove(0);
    scrape.value.clone().map(|_| scrape)
}

fn queue_depth() -> Wanted {
    Wanted::OfEngine(None, Load::QueueDepth)
}

async fn given(script: Script, limits: Limits) -> Result<Scrape, Fault> {
    let server = Server::start(script).await;
    let pod = Pod { name: "demo/llm-0", address: server.address, path: "/metrics" };
    poll_alone(pod, &queue_depth(), limits).await
}

fn name() -> String {
    "pod demo/llm-0".to_owned()
}

#[tokio::test]
async fn a_pod_is_scraped_on_a_connection_that_ends() {
    let server = Server::start(Script::metrics(VLLM)).await;
    let pod = Pod { name: "demo/llm-0", address: server.address, path: "/custom/metrics?x=y" };
    assert_eq!(poll_alone(pod, &queue_depth(), limits()).await, Ok(queued()));
    let request = server.requests().concat();
    assert!(request.starts_with("get /custom/metrics?x=y http/1.1"), "{request}");
    assert!(request.contains("connection: close") && request.contains("accept: text/plain"), "{request}");
}

#[tokio::test]
async fn several_metrics_of_a_page_take_one_scrape() {
    let server = Server::start(Script::metrics(VLLM)).await;
    let pod = Pod { name: "demo/llm-0", address: server.address, path: "/metrics" };
    let running = Wanted::Named("vllm:num_requests_running".to_owned(), Meaning::Level);
    let wanted = [&Wanted::OfEngine(None, Load::Latency), &queue_depth(), &running];
    let read = poll_once(pod, &wanted, limits(), &Batch::new(&Bodies::new(1, 1), "demo")).await.unwrap();
    assert!(
        matches!(read[0].value, Err(Fault::NoSuchMetric { .. })),
        "nothing has been served yet: {read:?}"
    );
    assert_eq!(read[0].requests, queued().requests);
    assert_eq!((&read[1], &read[2].value), (&queued(), &Ok(Scraped::Level(3.0))));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_body_without_a_length_ends_with_the_connection() {
    let answer = format!("HTTP/1.0 200 OK\r\n\r\n{VLLM}");
    assert_eq!(given(Script::Bytes(answer.into_bytes()), limits()).await, Ok(queued()));
}

#[tokio::test]
async fn a_pod_that_is_late_is_slow() {
    for begun in ["", "HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\nvllm:"] {
        let brief = Limits { deadline: SOON, ..limits() };
        let slow = Fault::Server(ServerFault::Slow { server: name(), limit: SOON });
        assert_eq!(in_time(given(Script::Stalled(begun.into()), brief)).await, Err(slow), "{begun}");
    }
}

#[tokio::test]
async fn a_body_beyond_those_that_are_read_at_once_waits_and_is_not_late() {
    /// Long enough to connect and to get the head of the answer on a busy machine.
    const DEADLINE: Duration = Duration::from_secs(2);
    let withheld = "HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\nvllm:";
    let withholding = Server::start(Script::Stalled(withheld.into())).await;
    let prompt = Server::start(Script::metrics(VLLM)).await;
    let (bodies, wanted) = (Bodies::new(2, 1), queue_depth());
    let (batch, of_others) = (Batch::new(&bodies, "demo"), Batch::new(&bodies, "other"));
    let pod = |server: &Server| Pod { name: "demo/llm-0", address: server.address, path: "/metrics" };
    let mut first = Box::pin(poll_one(pod(&withholding), &wanted, limits(), &batch));
    while bodies.available() > 1 {
        assert!(timeout(Duration::from_millis(1), &mut first).await.is_err());
    }
    let brief = Limits { deadline: DEADLINE, ..limits() };
    let mut second = Box::pin(poll_one(pod(&prompt), &wanted, brief, &batch));
    tokio::select! {
        read = &mut second => panic!("{read:?} while another body is read"),
        () = sleep(DEADLINE * 2) => {}
    }
    assert_eq!(prompt.requests().len(), 1, "only the body waits");
    let other = poll_one(pod(&prompt), &wanted, brief, &of_others);
    assert_eq!(in_time(other).await, Ok(queued()), "in another namespace");
    drop(first);
    assert_eq!(in_time(second).await, Ok(queued()));
}

#[tokio::test]
async fn a_body_without_end_is_given_up() {
    let given = given(Script::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()), limits()).await;
    assert_eq!(given, Err(Fault::Server(ServerFault::TooLarge { server: name(), limit: 8_192 })));
}

/// A connection that waits for its body to be read holds its head, and any number of connections may wait.
#[tokio::test]
async fn a_head_larger_than_any_that_a_server_needs_is_given_up() {
    let with_head_of = |bytes: usize| {
        let header = format!("x-padding: {}\r\n", "x".repeat(bytes));
        Script::Bytes(format!("HTTP/1.1 200 OK\r\n{header}\r\n{VLLM}").into_bytes())
    };
    assert_eq!(given(with_head_of(8 << 10), limits()).await, Ok(queued()));
    let refused = given(with_head_of(32 << 10), limits()).await;
    assert_eq!(refused, Err(Fault::Server(ServerFault::HeadTooLarge { server: name(), limit: 16 << 10 })));
}

#[tokio::test]
async fn other_answers_are_faults_and_not_zero() {
    let redirect = "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n";
    assert!(matches!(
        given(Script::Bytes(redirect.into()), limits()).await,
        Err(Fault::Server(ServerFault::Redirected { .. }))
    ));
    let missing = given(Script::answer("404 Not Found", "text/plain", ""), limits()).await.unwrap_err();
    assert!(missing.to_string().contains("correct port and path"), "{missing}");
    let failed = given(Script::answer("500 No", "text/plain", ""), limits()).await;
    assert!(matches!(failed, Err(Fault::Server(ServerFault::Failed { status: 500, .. }))));
    let page = given(Script::answer("200 OK", "text/html", "<html>\n</html>\n"), limits()).await;
    assert!(matches!(page, Err(Fault::Server(ServerFault::WrongContent { .. }))), "{page:?}");
    let empty = given(Script::metrics(""), limits()).await;
    assert_eq!(empty, Err(Fault::UnknownEngine { pod: "demo/llm-0".into() }));
    let cut =
        given(Script::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nvllm:".to_vec()), limits()).await;
    assert!(matches!(cut, Err(Fault::Server(ServerFault::Unreachable { .. }))), "{cut:?}");
}

#[tokio::test]
async fn a_pod_that_is_not_there_is_unreachable() {
    let pod = Pod { name: "demo/llm-0", address: closed_port().await, path: "/metrics" };
    let fault = poll_alone(pod, &queue_depth(), limits()).await.unwrap_err();
    assert!(
        matches!(&fault, Fault::Server(ServerFault::Unreachable { why, .. }) if why.contains("refused")),
        "{fault}"
    );
}

#[tokio::test]
async fn a_metric_typed_wrong_names_what_the_pod_serves() {
    let server = Server::start(Script::metrics(VLLM)).await;
    let pod = Pod { name: "demo/llm-0", address: server.address, path: "/metrics" };
    let wanted = Wanted::Named("vllm:num_request_waiting".to_owned(), Meaning::Level);
    let fault = poll_alone(pod, &wanted, limits()).await.unwrap_err();
    let message = "pod demo/llm-0 does not serve vllm:num_request_waiting; it serves vllm:num_requests_waiting, \
                   vllm:num_requests_running";
    assert_eq!(fault.to_string(), message);
}

#[tokio::test]
async fn names_are_compared_for_one_pod_of_a_target() {
    let server = Server::start(Script::metrics(VLLM)).await;
    let pod = Pod { name: "demo/llm-0", address: server.address, path: "/metrics" };
    let wanted = Wanted::Named("vllm:num_request_waiting".to_owned(), Meaning::Level);
    let bodies = Bodies::new(1, 1);
    let batch = Batch::new(&bodies, "demo");
    let mut named = Vec::new();
    for _ in 0..2 {
        match poll_one(pod, &wanted, limits(), &batch).await {
            Err(Fault::NoSuchMetric { similar, .. }) => named.push(similar.len()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(named, [2, 0]);
}

#[tokio::test]
async fn a_name_longer_than_any_is_in_no_message() {
    let long = "a".repeat(4_000);
    let server = Server::start(Script::metrics(&format!("{long} 1\n{VLLM}"))).await;
    let pod = Pod { name: "demo/llm-0", address: server.address, path: "/metrics" };
    let wanted = Wanted::Named("a".repeat(256), Meaning::Level);
    let fault = poll_alone(pod, &wanted, limits()).await.unwrap_err();
    assert!(fault.to_string().len() < 1_024, "{fault}");
}

#[tokio::test]
async fn bytes_that_are_no_text_hide_no_metric() {
    let mut body = b"\xff\xfe{} 1\n".to_vec();
    body.extend_from_slice(VLLM.as_bytes());
    let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(&body);
    assert_eq!(given(Script::Bytes(answer), limits()).await, Ok(queued()));
}
