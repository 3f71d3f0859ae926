//! An engine that was told to fail fails in that way and in no other.

use crate::scene::{Engine, VLLM, ask, status, until};

#[test]
fn one_that_fails_ends_while_it_loads_and_says_why() {
    let mut engine = Engine::start(VLLM, &[("ENGINE_FAULT", "fail")]);
    engine.says("read ");
    engine.says("error: failed to load the model: ENGINE_FAULT asks for it");
    assert_eq!(engine.ended().code(), Some(1));
}

#[test]
fn one_without_a_model_ends() {
    let mut engine = Engine::start("/absent --port=0", &[]);
    assert!(engine.says("error: failed to load the model: ").contains("/absent"));
    assert_eq!(engine.ended().code(), Some(1));
}

#[test]
fn one_that_crashes_was_ready_before() {
    let mut engine = Engine::start(VLLM, &[("ENGINE_FAULT", "crash-after:0.1")]);
    engine.ready();
    engine.says("error: crashed: ENGINE_FAULT asks for it");
    assert_eq!(engine.ended().code(), Some(1));
}

#[test]
fn one_that_is_no_longer_ready_still_answers() {
    let engine = Engine::start(VLLM, &[("ENGINE_FAULT", "not-ready-after:0.1")]);
    let port = engine.ready();
    until(|| (status(port, "GET /health") == 503).then_some(()));
    assert_eq!(status(port, "POST /v1/completions"), 200);
}

#[test]
fn one_that_takes_memory_has_really_taken_it() {
    let engine = Engine::start(VLLM, &[("ENGINE_FAULT", "allocate:64")]);
    engine.says("read ");
    engine.says("taking 64 MiB");
    let port = engine.opens_port();
    assert!(ask(port, "GET /health", "").is_ok());
    assert!(engine.resident_mebibytes() >= 64);
}

#[test]
fn a_misspelt_fault_is_an_error() {
    let mut engine = Engine::start(VLLM, &[("ENGINE_FAULT", "fails")]);
    engine.says("error: ENGINE_FAULT=fails: none of fail, hang");
    assert_eq!(engine.ended().code(), Some(1));
}
