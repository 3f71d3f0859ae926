//! Several workers of one pool, on addresses of loopback.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::Path,
    thread,
};

use serde_json::json;

use crate::{
    fake_model::{FakeModel, HOLD},
    process::{Agent, request, state, until},
};

const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// Free on all addresses of loopback.
fn port() -> u16 {
    let listener = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn start(folder: &Path, model: &FakeModel, address: &str, port: u16) -> Agent {
    start_with(folder, model, address, port, &[])
}

fn start_with(
    folder: &Path,
    model: &FakeModel,
    address: &str,
    port: u16,
    variables: &[(&str, &str)],
) -> Agent {
    let (peers, port) = (ADDRESSES.map(|address| format!("{address}:{port}")).join(","), port.to_string());
    let own = [
        ("MODEL_ENDPOINT", model.url.as_str()),
        ("AGENT_ADDRESS", address),
        ("AGENT_PORT", &port),
        ("AGENT_PEERS", &peers),
        ("POD_IP", address),
    ];
    Agent::start_with(folder, &[&own, variables].concat())
}

/// The worker that holds the session, and the other.
fn by_holder(agents: [Agent; 2], session: &str) -> [Agent; 2] {
    let [first, second] = agents;
    match first.get(&format!("/v1/sessions/{session}")).status {
        200 => [first, second],
        _ => [second, first],
    }
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
    for session in (0..32).map(|number| format!("s-{number}")) {
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
    assert_eq!(held.iter().sum::<usize>(), 32, "each session once: {held:?}");
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
fn new_tasks_go_to_the_newer_copy_while_an_older_one_has_tasks() {
    let (folders, model) = (folders(), FakeModel::start());
    for (folder, turns) in folders.iter().zip([3, 1]) {
        let agent = Agent::start(folder.path(), &model);
        (0..turns).for_each(|turn| drop(agent.ask("s", &format!("turn {turn}")).output()));
        agent.stop();
    }
    // The older copy has a task that is not done.
    let alone = Agent::start(folders[1].path(), &model);
    let held = json!({"session": "s", "input": HOLD, "id": "held", "wait": false});
    assert_eq!(alone.post(&held).status, 202);
    alone.until("agent_tasks_in_flight 1");
    alone.kill();
    let agents = two(&folders, &model);
    agents[1].until("agent_tasks_in_flight 1");
    assert_eq!(agents[1].ask("s", "next").output(), "echo of next");
    assert_eq!(agents[0].get("/v1/sessions/s").json()["turns"], 4);
    // The task is still known where it waits.
    assert_eq!(agents[1].post(&held).status, 202);
    model.release();
    agents[1].until("agent_tasks_total{outcome=\"done\"} 1");
    // Its answer is saved first. Then the next comparison sets it aside.
    until("one copy", || {
        agents[1].ask("s", "last").output();
        agents[1].get("/v1/sessions/s").status == 404
    });
    assert!(agents[0].get("/v1/sessions/s").json()["turns"].as_u64().unwrap() >= 5);
}

#[test]
fn sessions_of_a_worker_that_ends_go_on_at_its_sibling_at_once() {
    let (folders, model) = (folders(), FakeModel::start());
    let [stays, mut ends] = two(&folders, &model);
    let sessions: Vec<String> = (0..32).map(|number| format!("s-{number}")).collect();
    for session in &sessions {
        stays.ask(session, "first").output();
    }
    assert!(ends.get("/v1/load").json()["sessions"].as_u64().unwrap() > 0);
    ends.terminate();
    ends.ended();
    assert_eq!(stays.get("/v1/load").json()["sessions"], 32);
    for session in &sessions {
        let answer = stays.ask(session, "second");
        assert_eq!(answer.header("x-agent-session"), Some("held"), "{answer:?}");
        let sent = model.messages(model.chats().len() - 1);
        assert_eq!((sent.len(), sent[1].1.as_str()), (4, "first"), "{session}: the history is there");
    }
    let left = fs::read_dir(state(folders[1].path())).unwrap();
    let left: Vec<String> = left.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|file| file.starts_with(".set-aside-")), "no checkpoint has them: {left:?}");
}

#[test]
fn what_a_worker_that_ends_has_not_finished_is_done_by_its_sibling() {
    let (folders, model, port) = (folders(), FakeModel::start(), port());
    let agents = [0, 1]
        .map(|n| start_with(folders[n].path(), &model, ADDRESSES[n], port, &[("AGENT_GRACE_SECONDS", "20")]));
    agents[0].ask("s", "first").output();
    let [mut ends, stays] = by_holder(agents, "s");
    let held = json!({"session": "s", "input": HOLD, "id": "held"});
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ends.post(&held));
        ends.until("agent_tasks_in_flight 1");
        ends.terminate();
        until("the refusal", || ends.get("/readyz").status == 503);
        // A client that asks the sibling meanwhile waits, and is not refused.
        let later = scope.spawn(|| stays.ask("s", "later"));
        let refused = waiting.join().unwrap();
        assert!(refused.status == 503 && refused.header("retry-after").is_some(), "{refused:?}");
        assert_eq!(refused.header("x-task-id"), Some("held"), "the client needs it");
        model.release();
        assert_eq!(later.join().unwrap().output(), "echo of later");
    });
    ends.ended();
    assert_eq!(stays.post(&held).output(), "echo of hold", "the client sends it once more");
    let last = model.messages(model.chats().len() - 1);
    assert_eq!(last.iter().filter(|(role, _)| role == "user").count(), 3, "it is done once: {last:?}");
}

#[test]
fn a_session_is_taken_over_only_if_it_is_newer_and_whole() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let agent = Agent::start(folder.path(), &model);
    for turn in ["one", "two"] {
        agent.ask("s", turn).output();
    }
    let own = fs::read_to_string(state(folder.path()).join("s-s.json")).unwrap();
    let put = |path: &str, text: &str| request(agent.tasks, "PUT", path, &[], text).status;
    assert_eq!(put("/v1/sessions/s", &own), 409);
    assert_eq!(put("/v1/sessions/s", "{}"), 400);
    assert_eq!(put("/v1/sessions/other", &own), 400);
    let newer = own.replace("\"turns\":2", "\"turns\":7");
    assert_eq!(put("/v1/sessions/s", &newer), 200);
    assert_eq!(agent.get("/v1/sessions/s").json()["turns"], 7);
    assert!(state(folder.path()).join(".set-aside-s.json").exists());
}

#[test]
fn another_program_at_the_address_of_a_sibling_is_asked_nothing() {
    let (folder, model, port) = (tempfile::tempdir().unwrap(), FakeModel::start(), port());
    let foreign = TcpListener::bind((ADDRESSES[1], port)).unwrap();
    thread::spawn(move || {
        let report = json!({"worker": "x", "ending": false, "queue": 0, "in_flight": 0, "sessions": 1,
                            "turns": 9, "updated": 9, "messages": 18})
        .to_string();
        for mut stream in foreign.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let length = report.len();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
            let _ = stream.write_all((head + &report).as_bytes());
        }
    });
    let restore = [("AGENT_RESTORE_SECONDS", "0")];
    let agent = start_with(folder.path(), &model, ADDRESSES[0], port, &restore);
    assert_eq!(agent.ask("s", "hello").output(), "echo of hello");
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
