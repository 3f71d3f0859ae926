//! Load counts what it sent and what came back, whatever comes back.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use serde_json::{Value, json};

use crate::scene::{Engine, VLLM, ask, until};

/// Twenty requests, whatever comes back.
pub(crate) fn requests(port: u16) {
    assert_eq!(load(port, &["--timeout-seconds", "60"])["sent"], json!(20));
}

/// Twenty requests within a second.
fn load(port: u16, more: &[&str]) -> Value {
    load_for("1", port, more)
}

/// Twenty requests a second.
fn load_for(seconds: &str, port: u16, more: &[&str]) -> Value {
    let url = format!("http://localhost:{port}/v1/completions");
    let output = Command::new(env!("CARGO_BIN_EXE_test-engine"))
        .args(["load", "--url", &url, "--rate", "20", "--seconds", seconds])
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_request_is_counted_with_who_answered_it() {
    let engine = Engine::start(VLLM, &[]);
    let port = engine.ready();
    for more in [&[][..], &["--keep-alive"]] {
        let report = load(port, more);
        assert_eq!(
            (&report["sent"], &report["succeeded"], &report["failed"]),
            (&json!(20), &json!(20), &json!(0))
        );
        assert_eq!((&report["by_pod"], &report["by_revision"]), (&json!({"llama-0": 20}), &json!({"1": 20})));
        assert_eq!(report["reconnected"], json!(0));
        assert!(report["p50_ms"].as_f64().unwrap() >= 20.0, "an answer takes that long: {report}");
    }
}

#[test]
fn answers_that_come_late_do_not_make_requests_late() {
    let engine = Engine::start(VLLM, &[("ENGINE_ANSWER_MILLISECONDS", "1500")]);
    let port = engine.ready();
    let began = Instant::now();
    let report = load(port, &[]);
    assert_eq!(report["succeeded"], json!(20));
    // One after the other they would take 30 s.
    assert!(began.elapsed().as_secs() < 10, "{report}");
}

#[test]
fn a_status_that_is_no_success_is_a_failure_of_that_kind() {
    let engine = Engine::start(VLLM, &[]);
    let report = load(engine.ready(), &["--body", r#"{"model":"other"}"#]);
    assert_eq!(report["failures"], json!({ "status 404": 20 }));
    assert_eq!(report["first_failures"].as_array().unwrap().len(), 10);
    assert_eq!(report["first_failures"][1], json!({ "second": 0.05, "kind": "status 404" }));
}

#[test]
fn no_listener_and_no_answer_are_two_kinds() {
    // The system accepts connections, and no answer comes.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    assert_eq!(load(port, &["--timeout-seconds", "1"])["failures"], json!({ "timeout": 20 }));
    drop(silent);
    assert_eq!(load(port, &[])["failures"], json!({ "refused": 20 }));
}

#[test]
fn a_kept_connection_that_was_closed_is_opened_anew_and_counted() {
    let (port, closed) = closes_after_one_answer();
    // The first answer leaves a kept connection before the load begins. How many later requests find one depends on how
    // fast the machine is, so the server counts them.
    let patient = ["--keep-alive", "--first-answer-seconds", "60", "--timeout-seconds", "60"];
    let report = load(port, &patient);
    assert_eq!((&report["succeeded"], &report["failed"]), (&json!(20), &json!(0)), "{report}");
    let closed_under_load = closed.load(Ordering::SeqCst);
    assert!(closed_under_load > 0, "{report}");
    assert_eq!(report["reconnected"], json!(closed_under_load), "{report}");
    let report = load(port, &["--timeout-seconds", "60"]);
    assert_eq!((&report["succeeded"], &report["reconnected"]), (&json!(20), &json!(0)), "{report}");
}

#[test]
fn an_engine_that_goes_away_costs_what_was_sent_to_it_afterwards() {
    let mut engine = Engine::start(VLLM, &[]);
    let port = engine.ready();
    let loading = thread::spawn(move || load_for("5", port, &["--keep-alive"]));
    until(|| {
        let metrics = ask(port, "GET /metrics", "").unwrap().body;
        metrics
            .contains("vllm:request_success_total{model_name=\"llama\",finished_reason=\"stop\"} 2")
            .then_some(())
    });
    engine.terminate();
    assert!(engine.ended().success());
    let report = loading.join().unwrap();
    let (succeeded, refused) = (&report["succeeded"], &report["failures"]["refused"]);
    assert!(succeeded.as_u64().unwrap() >= 2 && refused.as_u64().unwrap() > 0, "{report}");
    // While it drained, 500.
    let mut kinds = report["failures"].as_object().unwrap().keys();
    assert!(kinds.all(|kind| ["refused", "status 500"].contains(&kind.as_str())), "{report}");
}

#[test]
fn a_load_begins_with_the_first_answer_if_it_may_wait() {
    let report = load(refuses_the_first(3), &["--first-answer-seconds", "20"]);
    assert_eq!((&report["sent"], &report["failed"]), (&json!(20), &json!(0)), "{report}");
    let report = load(refuses_the_first(3), &[]);
    assert_eq!((&report["sent"], &report["failed"]), (&json!(20), &json!(3)), "{report}");
}

fn streams(port: u16) -> Value {
    let url = format!("http://localhost:{port}/v1/completions");
    let output = Command::new(env!("CARGO_BIN_EXE_test-engine"))
        .args(["streams", "--url", &url, "--count", "5", "--tokens", "20", "--seconds", "1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn streams_end_with_their_last_token() {
    let engine = Engine::start(VLLM, &[("ENGINE_TOKEN_MILLISECONDS", "100")]);
    let port = engine.ready();
    let report = streams(port);
    assert_eq!((&report["cut"], &report["failures"]), (&json!(0), &json!({})), "{report}");
    assert_eq!((&report["complete"], &report["by_revision"]), (&json!(5), &json!({"1": 5})), "{report}");
    assert!(report["longest_seconds"].as_f64().unwrap() >= 2.0, "one token in 100 ms: {report}");
    let metrics = ask(port, "GET /metrics", "").unwrap().body;
    let ended = "vllm:request_success_total{model_name=\"llama\",finished_reason=\"stop\"} 5\n";
    assert!(metrics.contains(ended), "{metrics}");
    assert!(metrics.contains("vllm:num_requests_running{model_name=\"llama\"} 0\n"), "{metrics}");
    let first = "vllm:time_to_first_token_seconds_bucket{model_name=\"llama\",le=\"0.08\"} 0\n";
    assert!(metrics.contains(first), "{metrics}");
}

#[test]
fn streams_of_an_engine_that_crashes_are_cut() {
    let faulty = [("ENGINE_TOKEN_MILLISECONDS", "100"), ("ENGINE_FAULT", "crash-after:1")];
    let engine = Engine::start(VLLM, &faulty);
    let report = streams(engine.ready());
    assert_eq!((&report["cut"], &report["complete"]), (&json!(5), &json!(0)), "{report}");
}

/// A server that closes so many connections without an answer, and then answers one request of each.
fn refuses_the_first(count: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It lives as long as the test program.
    thread::spawn(move || {
        for connection in listener.incoming().skip(count) {
            let mut connection = connection.unwrap();
            let mut request = [0; 4096];
            let _ = connection.read(&mut request);
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
        }
    });
    port
}

/// A server that answers one request of each connection, and closes it when the next one comes; and how often that was.
fn closes_after_one_answer() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let closed = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&closed);
    // It lives as long as the test program.
    thread::spawn(move || {
        for connection in listener.incoming() {
            let (mut connection, counter) = (connection.unwrap(), Arc::clone(&counter));
            thread::spawn(move || {
                if !read_request(&mut connection) {
                    return;
                }
                let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
                if read_request(&mut connection) {
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    (port, closed)
}

/// Reads one whole request with a body of JSON; false if the connection ends before.
fn read_request(connection: &mut TcpStream) -> bool {
    let mut request = Vec::new();
    let mut part = [0; 4096];
    while !request.ends_with(b"}") {
        match connection.read(&mut part) {
            Ok(0) | Err(_) => return false,
            Ok(read) => request.extend_from_slice(&part[..read]),
        }
    }
    true
}
