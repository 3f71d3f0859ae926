//! An engine that is made to fail fails in that way and in no other.

use crate::scene::{Engine, MODEL, VLLM, ask, status, until};

#[test]
fn one_that_fails_ends_while_it_loads_and_says_why() {
    let mut engine = Engine::start(VLLM, &[("ENGINE_FAULT", "fail")]);
    engine.says("read ");
    engine.says("error: failed to load the model: ENGINE_FAULT asks for it");
    assert_eq!(engine.ended().code(), Some(1));
}

#[test]
fn vllm_without_a_model_ends() {
    for files in [&[][..], &[("model.safetensors", "x")], &[("qwen/config.json", "{}")]] {
        let mut engine = Engine::start_with(files, VLLM, &[]);
        let invalid = format!("Invalid repository ID or local directory specified: '{}'", engine.folder());
        let (ended, said) = engine.last_words();
        assert_eq!(ended.code(), Some(1));
        assert!(said.iter().any(|line| line.ends_with(&invalid)), "{said:?}");
    }
    let (ended, _) = Engine::start("/absent --port=0", &[]).last_words();
    assert_eq!(ended.code(), Some(1));
}

#[test]
fn vllm_with_broken_weights_names_the_cause_far_from_its_end() {
    let broken = &[("config.json", "{}"), ("model.safetensors", "broken weights")][..];
    for (files, fault) in [(broken, ""), (MODEL, "broken-model")] {
        let (ended, said) = Engine::start_with(files, VLLM, &[("ENGINE_FAULT", fault)]).last_words();
        assert_eq!(ended.code(), Some(1));
        let cause = "SafetensorError: Error while deserializing header: header too large";
        let place = said.iter().rposition(|line| line.ends_with(cause)).unwrap();
        assert!((90..110).contains(&(said.len() - place)), "{} lines", said.len() - place);
        let last = said.last().unwrap();
        assert!(last.ends_with("Engine core initialization failed. See root cause above."), "{last}");
    }
}

#[test]
fn vllm_without_its_worker_ends_with_0() {
    let environment = [("ENGINE_FAULT", "worker-killed-after:0.1"), ("ENGINE_END_SECONDS", "5")];
    let mut engine = Engine::start(VLLM, &environment);
    let port = engine.ready();
    engine.says("the worker was killed");
    assert_eq!(status(port, "GET /health"), 503);
    assert_eq!(status(port, "POST /v1/completions"), 500);
    assert_eq!(engine.ended().code(), Some(0));
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
