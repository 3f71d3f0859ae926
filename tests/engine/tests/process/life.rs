//! What an engine does from start to end, by the names of what AIInference relies on.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    thread,
};

use serde_json::json;

use crate::scene::{Engine, PATIENCE, TGI, TRITON, VLLM, ask, status, until};

#[test]
fn vllm_opens_its_port_when_it_is_ready_and_not_before() {
    let engine = Engine::start(VLLM, &[("ENGINE_LOAD_SECONDS", "0.2")]);
    // The lines come in this order.
    engine.says("read 1 files, 3 bytes, sha256 ");
    let port = engine.opens_port();
    engine.says("ready");
    assert_eq!(status(port, "GET /health"), 200);
}

#[test]
fn triton_lives_but_answers_503_until_its_model_is_loaded() {
    let engine = Engine::start(TRITON, &[("ENGINE_FAULT", "hang")]);
    let (port, metrics) = (engine.opens_port(), engine.opens_port());
    assert_eq!(status(port, "GET /v2/health/live"), 200);
    assert_eq!(status(port, "GET /v2/health/ready"), 503);
    assert_eq!(status(port, "POST /v2/models/llama/infer"), 503);
    assert_eq!(status(metrics, "GET /metrics"), 200);
    assert_eq!(status(port, "GET /metrics"), 404);
}

#[test]
fn each_engine_answers_on_its_own_paths_and_counts_under_its_own_names() {
    for (line, health, inference, unknown, counted) in [
        (
            VLLM,
            "GET /health",
            "POST /v1/chat/completions",
            "POST /generate",
            "vllm:request_success_total{model_name=\"llama\"} 1",
        ),
        (TGI, "GET /health", "POST /generate", "POST /v1/completions", "tgi_request_success 1"),
        (
            TRITON,
            "GET /v2/health/ready",
            "POST /v2/models/llama/infer",
            "POST /v1/completions",
            "nv_inference_request_success{model=\"model\",version=\"1\"} 1",
        ),
    ] {
        let engine = Engine::start(line, &[]);
        let (port, metrics) = match line {
            VLLM => {
                let port = engine.ready();
                (port, port)
            }
            TRITON => (engine.opens_port(), engine.opens_port()),
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
    let told = answer.json();
    assert_eq!(
        (&told["pod"], &told["revision"], &told["model"]),
        (&json!("llama-0"), &json!("1"), &json!("llama"))
    );
    assert_eq!(ask(port, "POST /v1/completions", r#"{"model":"other"}"#).unwrap().status, 404);
    assert_eq!(ask(port, "POST /v1/completions", "no JSON").unwrap().status, 400);
}

#[test]
fn triton_knows_its_models_by_their_folders() {
    let engine = Engine::start(TRITON, &[]);
    let port = engine.opens_port();
    until(|| (status(port, "GET /v2/health/ready") == 200).then_some(()));
    assert_eq!(status(port, "POST /v2/models/other/infer"), 400);
    assert_eq!(status(port, "POST /v2/models/../infer"), 400);
}

#[test]
fn a_test_can_compare_the_bytes_that_were_read() {
    let engine = Engine::start(VLLM, &[]);
    let port = engine.ready();
    let model = ask(port, "GET /model", "").unwrap().json();
    // As `printf abc | sha256sum` says.
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(model["files"], json!([{ "path": "llama/weights", "size": 3, "sha256": abc }]));
    assert_eq!(model["bytes"], json!(3));
}

#[test]
fn after_sigterm_what_is_in_flight_is_answered_and_nothing_new_is_accepted() {
    let mut engine = Engine::start(VLLM, &[("ENGINE_ANSWER_MILLISECONDS", "1000")]);
    let port = engine.ready();
    let in_flight = thread::spawn(move || {
        // Without `connection: close`: the engine says it.
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = "POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.to_ascii_lowercase()
    });
    is_in_flight(port);
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
    is_in_flight(port);
    engine.terminate();
    engine.says("SIGTERM: draining");
    engine.says("cut requests off");
    assert!(in_flight.join().unwrap().is_err());
    assert_eq!(engine.ended().code(), Some(0));
}

#[test]
fn an_idle_connection_is_closed_when_the_engine_drains() {
    let mut engine = Engine::start(VLLM, &[]);
    let port = engine.ready();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: engine\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    engine.terminate();
    // To the end of the connection.
    stream.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(engine.ended().code(), Some(0));
}

#[test]
fn sigterm_ends_an_engine_that_still_loads() {
    let mut engine = Engine::start(VLLM, &[("ENGINE_FAULT", "hang")]);
    engine.says("read ");
    engine.terminate();
    assert_eq!(engine.ended().code(), Some(143));
}

fn is_in_flight(port: u16) {
    let running = "vllm:num_requests_running{model_name=\"llama\"} 1";
    until(|| ask(port, "GET /metrics", "").unwrap().body.contains(running).then_some(()));
}
