//! The end of the worker, and the next process with its state.

use std::{fs, net::TcpStream, thread};

use serde_json::json;

use crate::{
    fake_model::{FakeModel, HOLD},
    process::{Agent, state, until},
};

#[test]
fn a_worker_that_ends_refuses_new_tasks_finishes_what_it_has_and_saves() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let mut agent = Agent::start(folder.path(), &model);
    let held = json!({"session": "s", "input": HOLD, "id": "held"});
    thread::scope(|scope| {
        let waiting = scope.spawn(|| agent.post(&held).output());
        agent.until("agent_tasks_in_flight 1");
        agent.terminate();
        until("the refusal", || agent.get("/readyz").status == 503);
        let refused = agent.ask("other", "hello");
        assert_eq!(refused.status, 503);
        assert!(refused.header("retry-after").is_some());
        assert!(agent.metrics().contains("agent_tasks_in_flight 1\n"));
        model.release();
        assert_eq!(waiting.join().unwrap(), "echo of hold");
    });
    agent.ended();
    assert!(TcpStream::connect(agent.metrics).is_err());
    assert!(agent.log().iter().any(|line| line["body"] == "ended"));
    let files: Vec<_> =
        fs::read_dir(state(folder.path())).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["s-s.json"]);
}

#[test]
fn the_next_process_keeps_sessions_and_goes_on_with_what_was_not_finished() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let start =
        || Agent::start_with(folder.path(), &[("MODEL_ENDPOINT", &model.url), ("AGENT_GRACE_SECONDS", "0")]);
    let agent = start();
    agent.ask("s", "first");
    let held = json!({"session": "s", "input": HOLD, "id": "held"});
    thread::scope(|scope| {
        let waiting = scope.spawn(|| agent.post(&held));
        agent.until("agent_tasks_in_flight 1");
        agent.terminate();
        let answer = waiting.join().unwrap();
        assert_eq!(answer.status, 503);
        assert!(answer.body.contains("same id") && answer.header("retry-after").is_some(), "{answer:?}");
    });
    agent.stop();
    model.release();
    let agent = start();
    assert_eq!(agent.post(&held).output(), "echo of hold");
    agent.ask("s", "last");
    let last = model.messages(model.chats().len() - 1);
    let users: Vec<&str> =
        last.iter().filter(|(role, _)| role == "user").map(|(_, content)| content.as_str()).collect();
    assert_eq!(users, ["first", HOLD, "last"]);
}

#[test]
fn an_answer_that_could_not_be_saved_is_saved_once_the_disk_allows_it() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let agent = Agent::start(folder.path(), &model);
    let (state, away) = (state(folder.path()), folder.path().join("away"));
    let held = json!({"session": "s", "input": HOLD, "id": "a", "wait": false});
    assert_eq!(agent.post(&held).status, 202);
    agent.until("agent_tasks_in_flight 1");
    fs::rename(&state, &away).unwrap();
    model.release();
    agent.until("agent_tasks_total{outcome=\"done\"} 1");
    until("the failed write", || agent.log().iter().any(|line| line["body"] == "a session cannot be saved"));
    fs::rename(&away, &state).unwrap();
    until("the saved answer", || {
        fs::read_to_string(state.join("s-s.json")).unwrap().contains("echo of hold")
    });
}

#[test]
fn a_killed_worker_has_saved_what_it_had_accepted() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let agent = Agent::start(folder.path(), &model);
    for (id, input) in [("a", HOLD), ("b", "next")] {
        let task = json!({"session": "s", "input": input, "id": id, "wait": false});
        assert_eq!(agent.post(&task).status, 202);
    }
    agent.until("agent_tasks_in_flight 1");
    agent.kill();
    model.release();
    let agent = Agent::start(folder.path(), &model);
    agent.until("agent_tasks_total{outcome=\"done\"} 2");
    // A task is counted before its answer is saved, and shows the answer afterwards.
    until("the saved answer", || agent.get("/v1/tasks/b").json()["output"] == "echo of next");
    assert_eq!(agent.get("/v1/sessions/s").json()["messages"], 4);
}
