//! What an engine does from start to end, by the names of what AIInference relies on.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    thread,
};

use serde_json::json;

use crate::scene::{Engine, Kept, PATIENCE, TGI, TRITON, VLLM, ask, status, until};

#[test]
fn vllm_opens_its_port_when_it_is_ready_and_not_before() {
    let engine = Engine::start(VLLM, &[("ENGINE_LOAD_SECONDS", "0.2")]);
    // The lines come in this order.
    engine.says("read 2 files, 5 bytes, sha256 ");
    let port = engine.opens_port();
    engine.says("ready");
    assert_eq!(status(port, "GET /health"), 200);
}

#[test]
fn each_engine_answers_on_its_own_paths_and_counts_under_its_own_names() {
    for (line, health, inference, unknown, counted) in [
        (
            VLLM,
            "GET /health",
            "POST /v1/chat/completions",
            "POST /generate",
            "vllm:request_success_total{model_name=\"llama\",finished_reason=\"stop\"} 1",
        ),
        (TGI, "GET /health", "POST /generate", "POST /v1/completions", "tgi_request_success 1"),
        (
            TRITON,
            "GET /v2/health/ready",
            "POST /v2/models/llama/infer",
            "POST /v1/completions",
            "nv_inference_request_success{model=\"llama\",version=\"1\"} 1",
        ),
    ] {
        let engine = Engine::start(line, &[]);
        let (port, metrics) = match line {
            VLLM => {
                let port = engine.ready();
                (port, port)
            }
            TRITON => engine.ready_triton(),
            _ => {
                let port = engine.opens_port();
                (port, port)
            }
        };
        until(|| (status(port, health) == 200).then_some(()));
        assert_eq!(status(port, inference), 200, "{line}");
        assert_eq!(status(port, unknown), 404, "{line}");
        let metrics = ask(metrics, "GET /metrics", "").unwrap().body;
        assert!(metrics.lines().any(|line| line == counted), "{line}: {metrics}");
    }
}

#[test]
fn an_answer_tells_who_gave_it_and_another_model_does_not_exist() {
    let engine = Engine::start(VLLM, &[]);
    let port = engine.ready();
    let answer = ask(port, "POST /v1/completions", r#"{"model":"llama"}"#).unwrap();
    let reported = answer.json();
    assert_eq!(
        (&reported["pod"], &reported["revision"], &reported["model"]),
        (&json!("llama-0"), &json!("1"), &json!("llama"))
    );
    assert_eq!(ask(port, "POST /v1/completions", r#"{"model":"other"}"#).unwrap().status, 404);
    assert_eq!(ask(port, "POST /v1/completions", "no JSON").unwrap().status, 400);
}

#[test]
fn a_test_can_compare_the_bytes_that_were_read() {
    let engine = Engine::start(VLLM, &[]);
    let port = engine.ready();
    let model = ask(port, "GET /model", "").unwrap().json();
    // The output of `printf abc | sha256sum`.
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(model["files"][1], json!({ "path": "llama/1/weights", "size": 3, "sha256": abc }));
    assert_eq!(model["bytes"], json!(5));
}

#[test]
fn vllm_answers_what_is_in_flight_and_refuses_what_is_new_while_it_drains() {
    let mut engine = Engine::start(VLLM, &[("ENGINE_ANSWER_MILLISECONDS", "5000")]);
    let port = engine.ready();
    let in_flight = in_flight(port, "POST /v1/completions");
    is_in_flight(port, VLLM_RUNNING);
    engine.terminate();
    engine.says("SIGTERM: draining");
    let refused = ask(port, "POST /v1/completions", "{}").unwrap();
    assert_eq!(refused.status, 500);
    assert!(refused.body.contains("cannot schedule new futures after shutdown"), "{}", refused.body);
    engine.says("Traceback");
    assert_eq!(status(port, "GET /health"), 200);
    let answer = in_flight.join().unwrap();
    assert!(answer.starts_with("http/1.1 200 ok"), "{answer}");
    engine.says("drained");
    assert_eq!(engine.ended().code(), Some(0));
}

#[test]
fn tgi_answers_what_is_in_flight_and_accepts_nothing_while_it_drains() {
    let mut engine = Engine::start(TGI, &[("ENGINE_ANSWER_MILLISECONDS", "5000")]);
    let port = engine.opens_port();
    engine.says("read ");
    engine.says("ready");
    let in_flight = in_flight(port, "POST /generate");
    is_in_flight(port, "tgi_batch_current_size 1");
    engine.terminate();
    engine.says("SIGTERM: draining");
    until(|| ask(port, "GET /health", "").is_err().then_some(()));
    let answer = in_flight.join().unwrap();
    assert!(answer.starts_with("http/1.1 200 ok") && answer.contains("connection: close"), "{answer}");
    engine.says("drained");
    assert_eq!(engine.ended().code(), Some(0));
}

#[test]
fn what_takes_longer_than_the_drain_is_cut_off() {
    let environment = [("ENGINE_ANSWER_MILLISECONDS", "60000"), ("ENGINE_DRAIN_SECONDS", "0.1")];
    let mut engine = Engine::start(VLLM, &environment);
    let port = engine.ready();
    let in_flight = thread::spawn(move || ask(port, "POST /v1/completions", "{}"));
    is_in_flight(port, VLLM_RUNNING);
    engine.terminate();
    engine.says("SIGTERM: draining");
    engine.says("cut requests off");
    assert!(in_flight.join().unwrap().is_err());
    assert_eq!(engine.ended().code(), Some(0));
}

#[test]
fn an_idle_connection_is_closed_when_vllm_drains() {
    let mut engine = Engine::start(VLLM, &[]);
    let mut kept = Kept::open(engine.ready());
    assert_eq!(kept.status("GET /health"), "200");
    engine.terminate();
    kept.closed();
    assert_eq!(engine.ended().code(), Some(0));
}

#[test]
fn vllm_loses_sigterm_while_it_loads_and_a_second_one_ends_it() {
    let mut engine = Engine::start(VLLM, &[("ENGINE_LOAD_SECONDS", "5")]);
    engine.says("read ");
    engine.terminate();
    engine.says("SIGTERM: lost while loading");
    let port = engine.opens_port();
    engine.says("ready");
    assert_eq!(status(port, "POST /v1/completions"), 200);
    engine.terminate();
    engine.says("SIGTERM: draining");
    assert_eq!(engine.ended().code(), Some(0));

    let mut hangs = Engine::start(VLLM, &[("ENGINE_FAULT", "hang")]);
    hangs.says("read ");
    hangs.terminate();
    hangs.says("SIGTERM: lost while loading");
    hangs.terminate();
    assert_eq!(hangs.ended().code(), Some(143));
}

#[test]
fn sigterm_ends_a_tgi_that_still_loads() {
    let mut engine = Engine::start(TGI, &[("ENGINE_FAULT", "hang")]);
    engine.opens_port();
    engine.says("read ");
    engine.terminate();
    assert_eq!(engine.ended().code(), Some(143));
}

const VLLM_RUNNING: &str = "vllm:num_requests_running{model_name=\"llama\"} 1";

/// All that comes back until the connection is closed, in lower case.
fn in_flight(port: u16, request: &'static str) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        // Without `connection: close`: the engine closes it.
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nhost: engine\r\ncontent-length: 2\r\n\r\n{{}}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.to_ascii_lowercase()
    })
}

fn is_in_flight(port: u16, running: &str) {
    until(|| ask(port, "GET /metrics", "").unwrap().body.contains(running).then_some(()));
}
