//! Several workers of one pool, on addresses of loopback.

use std::{fs, net::TcpListener, path::Path};

use serde_json::json;

use crate::{
    fake_model::FakeModel,
    process::{Agent, request, state},
};

const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// Free on all addresses of loopback.
fn port() -> u16 {
    let listener = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn start(folder: &Path, model: &FakeModel, address: &str, port: u16) -> Agent {
    let peers = ADDRESSES.map(|address| format!("{address}:{port}")).join(",");
    Agent::start_with(
        folder,
        &[
            ("MODEL_ENDPOINT", &model.url),
            ("AGENT_ADDRESS", address),
            ("AGENT_PORT", &port.to_string()),
            ("AGENT_PEERS", &peers),
            ("POD_IP", address),
        ],
    )
}

fn two(folders: &[tempfile::TempDir; 2], model: &FakeModel) -> [Agent; 2] {
    let port = port();
    [0, 1].map(|n| start(folders[n].path(), model, ADDRESSES[n], port))
}

fn folders() -> [tempfile::TempDir; 2] {
    [(), ()].map(|()| tempfile::tempdir().unwrap())
}

#[test]
fn a_session_is_done_by_its_holder_whichever_worker_is_asked() {
    let (folders, model) = (folders(), FakeModel::start());
    let agents = two(&folders, &model);
    for session in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        agents[0].post(&json!({"session": session, "input": "first", "id": session})).output();
        let answer = agents[1].post(&json!({"session": session, "input": "second", "stream": true}));
        assert_eq!(answer.header("x-agent-session"), Some("held"));
        assert!(answer.body.contains("event: done\n"), "{}", answer.body);
        let sent = model.messages(model.chats().len() - 1);
        assert_eq!(sent[1].1, "first", "{session}: the history is there");
        // A task is found at each of them, too.
        assert!(agents.iter().all(|agent| agent.get(&format!("/v1/tasks/{session}")).status == 200));
    }
    let held: Vec<usize> = agents
        .iter()
        .map(|agent| agent.get("/v1/load").json()["sessions"].as_u64().unwrap() as usize)
        .collect();
    assert_eq!(held.iter().sum::<usize>(), 8, "each session once: {held:?}");
    assert!(held.iter().all(|count| *count > 0), "{held:?}");
}

#[test]
fn of_two_copies_the_newer_one_wins_and_the_other_is_set_aside() {
    let (folders, model) = (folders(), FakeModel::start());
    // Each has begun the session alone.
    for (folder, turns) in folders.iter().zip([3, 1]) {
        let agent = Agent::start(folder.path(), &model);
        for turn in 0..turns {
            agent.ask("s", &format!("turn {turn}")).output();
        }
        agent.stop();
    }
    let agents = two(&folders, &model);
    agents[1].ask("s", "next").output();
    let sent = model.messages(model.chats().len() - 1);
    assert_eq!(sent.len(), 8, "the longer history is sent");
    assert_eq!(agents[0].get("/v1/sessions/s").json()["turns"], 4);
    assert_eq!(agents[1].get("/v1/sessions/s").status, 404);
    assert!(state(folders[1].path()).join(".set-aside-s.json").exists());
    assert!(agents[1].log().iter().any(|line| line["body"].as_str().unwrap().contains("set aside")));
}

#[test]
fn a_worker_that_does_not_hold_a_session_says_so_to_a_sibling() {
    let (folders, model) = (folders(), FakeModel::start());
    let agents = two(&folders, &model);
    let task = json!({"session": "s", "input": "hello"}).to_string();
    let answer = request(agents[0].tasks, "POST", "/v1/tasks", &[("x-agent-hop", "held")], &task);
    assert_eq!(answer.status, 421);
    let answer = request(agents[0].tasks, "POST", "/v1/tasks", &[("x-agent-hop", "begin")], &task);
    assert_eq!(answer.output(), "echo of hello");
}

#[test]
fn a_session_that_a_silent_worker_may_hold_waits_up_to_the_bound_and_says_so() {
    let (folder, model, port) = (tempfile::tempdir().unwrap(), FakeModel::start(), port());
    let peers = format!("127.0.0.1:{port},127.0.0.2:{port}");
    let agent = Agent::start_with(
        folder.path(),
        &[
            ("MODEL_ENDPOINT", &model.url),
            ("AGENT_PORT", &port.to_string()),
            ("AGENT_PEERS", &peers),
            ("AGENT_RESTORE_SECONDS", "1"),
        ],
    );
    // The silent worker may know the task, too.
    let task = agent.get("/v1/tasks/a");
    assert!(task.status == 503 && task.header("retry-after").is_some(), "{task:?}");
    let answer = agent.ask("s", "hello");
    assert_eq!(
        (answer.output().as_str(), answer.header("x-agent-session")),
        ("echo of hello", Some("new-after-wait"))
    );
    assert_eq!(agent.get("/v1/tasks/a").status, 404);
    assert!(agent.log().iter().any(|line| line["body"].as_str().unwrap().contains("begins anew")));
}

#[test]
fn a_session_of_a_worker_that_starts_late_is_found() {
    let (folders, model, port) = (folders(), FakeModel::start(), port());
    let holder = start(folders[1].path(), &model, ADDRESSES[1], port);
    // The other worker is not there yet, so the session begins here after the bound, or at once in its own file.
    let begun = request(
        holder.tasks,
        "POST",
        "/v1/tasks",
        &[("x-agent-hop", "begin")],
        &json!({"session": "s", "input": "first"}).to_string(),
    );
    begun.output();
    holder.stop();
    let asked = start(folders[0].path(), &model, ADDRESSES[0], port);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| asked.ask("s", "second").output());
        // As a worker that restores its state while the session is asked for.
        let _holder = start(folders[1].path(), &model, ADDRESSES[1], port);
        waiting.join().unwrap();
    });
    assert_eq!(model.messages(1)[1].1, "first");
    assert!(!fs::exists(state(folders[0].path()).join("s-s.json")).unwrap());
}
