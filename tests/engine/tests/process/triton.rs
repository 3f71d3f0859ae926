//! What was seen of Triton alone: repositories, flags, restrictions, and a drain that its clients decide.

use std::os::unix::process::ExitStatusExt as _;

use serde_json::json;

use crate::scene::{Engine, Kept, MODEL, TRITON, ask, ask_with, status, until};

#[test]
fn its_ports_open_when_everything_is_loaded_and_each_model_is_ready() {
    let files = [MODEL, &[("mixtral/config.pbtxt", ""), ("mixtral/2/weights", "x")]].concat();
    let engine = Engine::start_with(&files, TRITON, &[]);
    // The lines come in this order: nothing is open before.
    let (port, metrics) = engine.ready_triton();
    for (request, expected) in [
        ("GET /v2/health/live", 200),
        ("GET /v2/health/ready", 200),
        ("GET /v2/models/llama/ready", 200),
        ("GET /v2/models/mixtral/ready", 200),
        ("GET /v2/models/other/ready", 400),
        ("POST /v2/models/mixtral/infer", 200),
        ("POST /v2/models/other/infer", 404),
        ("POST /v2/models/../infer", 404),
        ("GET /metrics", 404),
    ] {
        assert_eq!(status(port, request), expected, "{request}");
    }
    let counted = "nv_inference_request_success{model=\"mixtral\",version=\"1\"} 1";
    assert!(ask(metrics, "GET /metrics", "").unwrap().body.contains(counted));
}

#[test]
fn an_empty_repository_is_live_and_ready_and_has_no_model() {
    let engine = Engine::start_with(&[], TRITON, &[]);
    let (port, metrics) = engine.ready_triton();
    assert_eq!(status(port, "GET /v2/health/live"), 200);
    assert_eq!(status(port, "GET /v2/health/ready"), 200);
    assert_eq!(ask(port, "POST /v2/repository/index", "").unwrap().json(), json!([]));
    assert_eq!(status(port, "GET /v2/models/llama/ready"), 400);
    assert_eq!(ask(metrics, "GET /metrics", "").unwrap().body, "");
}

#[test]
fn a_repository_that_is_none_ends_it() {
    for files in [
        &[("config.json", "{}"), ("model.safetensors", "x")][..],
        &[("llama/1/weights", "x"), ("lost+found/", "")],
        &[("llama/1/weights", "x"), (".cache/huggingface/CACHEDIR.TAG", "x")],
        &[("llama/config.pbtxt", "")],
    ] {
        let (ended, said) = Engine::start_with(files, TRITON, &[]).last_words();
        assert_eq!(ended.code(), Some(1), "{files:?}: {said:?}");
        assert!(said[0].starts_with("error: creating server: Internal: "), "{said:?}");
    }
    let (ended, said) = Engine::start(&format!("{TRITON} --model-repository=/absent"), &[]).last_words();
    assert_eq!(ended.code(), Some(1), "{said:?}");
}

#[test]
fn a_command_line_that_it_does_not_understand_ends_it() {
    for more in [
        "--unknown=1",
        "stray",
        "--http=1",
        "--exit-on-error=maybe",
        "--http-restricted-api=logging,x-closed=secret",
        "--http-restricted-api=logging:x-closed=secret --http-restricted-api=trace,logging:x-other=secret",
    ] {
        let (ended, said) = Engine::start(&format!("{TRITON} {more}"), &[]).last_words();
        assert_eq!(ended.code(), Some(1), "{more}: {said:?}");
    }
    Engine::start(&format!("{TRITON} --exit-timeout=1"), &[]).ready_triton();
}

#[test]
fn what_is_open_to_every_client_is_closed_by_a_restriction() {
    let open = [
        "POST /v2/repository/index",
        "GET /v2/logging",
        "POST /v2/logging",
        "GET /v2/trace/setting",
        "GET /v2/systemsharedmemory/status",
        "POST /v2/systemsharedmemory/region/x/register",
        "GET /v2/cudasharedmemory/status",
    ];
    let engine = Engine::start(TRITON, &[]);
    let (port, _) = engine.ready_triton();
    for request in open {
        assert_eq!(status(port, request), 200, "{request}");
    }

    let apis = "shared-memory,model-repository,trace,logging";
    let engine = Engine::start(&format!("{TRITON} --http-restricted-api={apis}:x-closed=secret"), &[]);
    let (port, _) = engine.ready_triton();
    for request in open {
        let refused = ask(port, request, "{}").unwrap();
        assert_eq!(refused.status, 403, "{request}");
        assert_eq!(refused.json()["error"], "This API is restricted, expecting header 'x-closed'");
        let closed = |header: &str| ask_with(port, request, header, "{}").unwrap().status;
        assert_eq!((closed("x-closed: wrong"), closed("X-Closed: secret")), (403, 200), "{request}");
    }
    assert_eq!(status(port, "GET /v2/health/ready"), 200);
    assert_eq!(status(port, "POST /v2/models/llama/infer"), 200);
}

#[test]
fn as_the_first_process_it_loses_sigterm_while_it_loads() {
    let mut engine = Engine::start_as_first_process(TRITON, &[("ENGINE_LOAD_SECONDS", "2")]);
    engine.says("read ");
    engine.terminate();
    let [port, _, _] = [(); 3].map(|()| engine.opens_port());
    engine.says("ready");
    assert_eq!(status(port, "POST /v2/models/llama/infer"), 200);
    engine.terminate();
    engine.says("SIGTERM: draining");
    assert_eq!(engine.ended().code(), Some(0));
}

#[test]
fn below_another_process_it_ends_while_it_loads() {
    let mut engine = Engine::start(TRITON, &[("ENGINE_FAULT", "hang")]);
    engine.says("read ");
    engine.terminate();
    assert_eq!(engine.ended().signal(), Some(15));
}

#[test]
fn an_idle_connection_costs_the_whole_drain_and_code_1() {
    let mut engine = Engine::start(TRITON, &[("ENGINE_DRAIN_SECONDS", "0.3")]);
    let (port, _) = engine.ready_triton();
    let mut kept = Kept::open(port);
    assert_eq!(kept.status("GET /v2/health/live"), "200");
    engine.terminate();
    engine.says("SIGTERM: draining");
    engine.says("cut requests off after 0.3 s");
    assert_eq!(engine.ended().code(), Some(1));
}

#[test]
fn a_kept_connection_is_answered_while_it_drains_and_a_new_one_is_refused() {
    let mut engine = Engine::start(TRITON, &[]);
    let (port, _) = engine.ready_triton();
    let mut kept = Kept::open(port);
    assert_eq!(kept.status("GET /v2/health/live"), "200");
    engine.terminate();
    engine.says("SIGTERM: draining");
    until(|| ask(port, "GET /v2/health/live", "").is_err().then_some(()));
    assert_eq!(kept.status("GET /v2/health/live"), "200");
    drop(kept);
    engine.says("drained");
    assert_eq!(engine.ended().code(), Some(0));
}
