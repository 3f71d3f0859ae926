//! Tasks, chat completions, history, memory, prompts and faults of the model.

use std::{fs, thread};

use serde_json::{Value, json};

use crate::{
    fake_model::{FakeModel, HOLD, TOKENS},
    process::{Agent, request},
};

fn one() -> (tempfile::TempDir, FakeModel, Agent) {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let agent = Agent::start(folder.path(), &model);
    (folder, model, agent)
}

fn said(role: &str, content: &str) -> (String, String) {
    (role.to_owned(), content.to_owned())
}

#[test]
fn a_task_is_answered_counted_logged_and_kept_by_its_id() {
    let (_folder, model, agent) = one();
    let answer = agent.post(&json!({"session": "s", "input": "hello", "id": "first"}));
    assert_eq!(answer.output(), "echo of hello");
    assert_eq!(answer.header("x-agent-session"), Some("new"));
    let kept = agent.get("/v1/tasks/first").json();
    assert_eq!((&kept["state"], &kept["output"]), (&json!("done"), &json!("echo of hello")));
    assert_eq!(agent.get("/v1/tasks/first?session=s").status, 200);
    assert_eq!(agent.get("/v1/tasks/other").status, 404);
    agent.until(&format!("agent_tokens_total {TOKENS}"));
    agent.until("agent_tasks_total{outcome=\"done\"} 1");
    let log = agent.log();
    let done = log.iter().find(|line| line["body"] == "task done").unwrap();
    assert_eq!(
        (&done["attributes"]["session"], &done["attributes"]["tokens"]),
        (&json!("s"), &json!(TOKENS))
    );
    assert!(!log.iter().any(|line| line.to_string().contains("hello")));
    assert_eq!(model.chats()[0]["model"], "m");
    assert_eq!(agent.ask("s", "again").header("x-agent-session"), Some("held"));
}

#[test]
fn the_page_of_metrics_has_the_names_of_the_contract() {
    let (_folder, _model, agent) = one();
    let page = agent.metrics();
    for name in
        ["agent_queue_depth", "agent_tasks_in_flight", "agent_tokens_total", "process_start_time_seconds"]
    {
        assert!(page.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {page}");
    }
    for path in ["/readyz", "/livez", "/v1/load"] {
        assert_eq!(agent.get(path).status, 200, "{path}");
    }
}

#[test]
fn a_chat_completion_is_answered_whole_or_in_pieces() {
    let (_folder, _model, agent) = one();
    let messages = json!([{"role": "user", "content": "hello"}]);
    let whole = agent.chat("s", &json!({"model": "any", "messages": messages})).json();
    assert_eq!(whole["choices"][0]["message"]["content"], "echo of hello");
    assert_eq!((&whole["model"], &whole["usage"]["total_tokens"]), (&json!("m"), &json!(TOKENS)));
    let streamed = agent.chat("s", &json!({"messages": messages, "stream": true}));
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    let events: Vec<&str> =
        streamed.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "echo of hello");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_task_streams_and_a_task_without_waiting_is_queued() {
    let (_folder, model, agent) = one();
    let streamed = agent.post(&json!({"session": "s", "input": "hello", "stream": true})).body;
    assert!(streamed.starts_with("event: delta\n") && streamed.contains("event: done\n"), "{streamed}");
    let queued = agent.post(&json!({"session": "s", "input": HOLD, "id": "held", "wait": false}));
    assert_eq!((queued.status, &queued.json()["id"]), (202, &json!("held")));
    agent.until("agent_tasks_in_flight 1");
    assert_eq!(agent.get("/v1/tasks/held").json()["state"], "working");
    let next = agent.post(&json!({"session": "s", "input": "next", "id": "next", "wait": false}));
    assert_eq!(next.status, 202);
    agent.until("agent_queue_depth 1");
    assert_eq!(agent.get("/v1/tasks/next").json()["state"], "queued");
    model.release();
    agent.until("agent_tasks_total{outcome=\"done\"} 3");
    // The order was kept.
    assert_eq!(model.messages(2)[3], said("user", HOLD));
}

#[test]
fn the_history_of_the_session_is_sent_with_the_next_task() {
    let (_folder, model, agent) = one();
    agent.ask("s", "first");
    agent.ask("other", "elsewhere");
    agent.ask("s", "second");
    let sent = model.messages(2);
    assert!(sent[0].0 == "system" && sent[0].1.contains("software engineer"), "{sent:?}");
    let wanted = [said("user", "first"), said("assistant", "echo of first"), said("user", "second")];
    assert_eq!(sent[1..], wanted);
}

#[test]
fn a_history_beyond_the_budget_is_summarised() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let agent =
        Agent::start_with(folder.path(), &[("MODEL_ENDPOINT", &model.url), ("AGENT_CONTEXT_TOKENS", "500")]);
    let long = "x".repeat(800);
    agent.ask("s", &long);
    agent.ask("s", "short");
    let sent: Vec<_> = (0..model.chats().len()).map(|request| model.messages(request)).collect();
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert!(sent[1][1].1.contains(&long), "the summary is made of the old messages");
    assert!(sent[2][0].1.contains("what was said before"), "the summary is sent");
    assert_eq!(sent[2][1..], [said("user", "short")]);
    agent.until(&format!("agent_tokens_total {}", 3 * TOKENS));
}

#[test]
fn a_task_that_fails_after_its_summary_leaves_the_history_as_it_was() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let variables = [
        ("MODEL_ENDPOINT", model.url.as_str()),
        ("AGENT_CONTEXT_TOKENS", "500"),
        ("AGENT_TASK_SECONDS", "1"),
    ];
    let agent = Agent::start_with(folder.path(), &variables);
    agent.ask("s", &"x".repeat(800)).output();
    assert_eq!(agent.ask("s", HOLD).status, 504);
    assert_eq!(model.chats().len(), 3, "a summary was made");
    assert_eq!(agent.get("/v1/sessions/s").json()["messages"], 2);
    let large = agent.ask("s", &"x".repeat(2_000));
    assert!(large.status == 400 && large.body.contains("AGENT_CONTEXT_TOKENS"), "{large:?}");
}

#[test]
fn a_model_that_refuses_for_a_while_is_asked_again() {
    let (_folder, model, agent) = one();
    model.refuse(2);
    assert_eq!(agent.ask("s", "hello").output(), "echo of hello");
    assert_eq!(model.chats().len(), 3);
}

#[test]
fn a_task_fails_at_its_deadline_and_may_be_sent_again() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let agent =
        Agent::start_with(folder.path(), &[("MODEL_ENDPOINT", &model.url), ("AGENT_TASK_SECONDS", "1")]);
    model.refuse(usize::MAX);
    let task = json!({"session": "s", "input": "hello", "id": "a"});
    let failed = agent.post(&task);
    assert_eq!(failed.status, 504);
    let message = failed.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("503") && message.contains("being loaded"), "{message}");
    assert_eq!(agent.get("/v1/tasks/a").json()["state"], "failed");
    let log = agent.log();
    let line = log.iter().find(|line| line["body"] == "task failed").unwrap();
    assert_eq!(line["attributes"]["cause"], "deadline");
    assert!(!line.to_string().contains("being loaded"), "{line}");
    model.refuse(0);
    assert_eq!(agent.post(&task).output(), "echo of hello");
    // What has failed left no message.
    assert_eq!(model.messages(model.chats().len() - 1).len(), 2);
}

#[test]
fn an_id_that_is_sent_again_is_not_done_twice() {
    let (_folder, model, agent) = one();
    let task = json!({"session": "s", "input": HOLD, "id": "a"});
    thread::scope(|scope| {
        let first = scope.spawn(|| agent.post(&task).output());
        agent.until("agent_tasks_in_flight 1");
        // As a client does it whose connection was cut.
        let second = scope.spawn(|| agent.post(&task).output());
        model.release();
        assert_eq!(first.join().unwrap(), second.join().unwrap());
    });
    assert_eq!(agent.post(&task).output(), "echo of hold");
    assert_eq!(model.chats().len(), 1);
}

#[test]
fn the_nearest_record_of_the_memory_is_in_the_prompt() {
    let record = |text: &str, vector: [f32; 2]| json!({"id": text, "document": text, "embedding": vector});
    let lines = format!(
        "{}\n{}\n",
        record("The deploy key is rotated on Mondays", [1.0, 0.0]),
        record("The parser reads tokens", [0.0, 1.0])
    );
    for has_vectors in [true, false] {
        let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start_with(has_vectors));
        fs::write(folder.path().join("memory.jsonl"), &lines).unwrap();
        let memory = folder.path().to_str().unwrap();
        let agent =
            Agent::start_with(folder.path(), &[("MODEL_ENDPOINT", &model.url), ("MEMORY_DIR", memory)]);
        // The vector is that of secrets, and no record has this word.
        let input = if has_vectors { "who changes the secret?" } else { "who rotated the key?" };
        agent.ask("s", input);
        let prompt = &model.messages(0)[0].1;
        assert!(prompt.contains("The deploy key is rotated on Mondays"), "{prompt}");
        assert!(!prompt.contains("The parser") || !has_vectors, "{prompt}");
        assert!(agent.log().iter().any(|line| line["attributes"]["records"] == 2));
    }
}

#[test]
fn a_prompt_of_the_folder_is_used_without_a_restart() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let prompts = folder.path().to_str().unwrap();
    let agent =
        Agent::start_with(folder.path(), &[("MODEL_ENDPOINT", &model.url), ("AGENT_PROMPTS_DIR", prompts)]);
    agent.ask("s", "hello");
    assert!(model.messages(0)[0].1.contains("software engineer"));
    fs::write(folder.path().join("coder.txt"), "Answer in verse.").unwrap();
    agent.ask("s", "hello");
    assert_eq!(model.messages(1)[0].1, "Answer in verse.");
}

#[test]
fn without_a_model_the_worker_is_ready_and_each_task_names_the_field() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start_with(folder.path(), &[("MODEL_ENDPOINT", "")]);
    assert_eq!(agent.get("/readyz").status, 200);
    let failed = agent.ask("s", "hello");
    assert_eq!(failed.status, 500);
    assert!(failed.body.contains("spec.modelEndpoint"), "{}", failed.body);
    let streamed = agent.post(&json!({"session": "s", "input": "hello", "stream": true}));
    assert_eq!(streamed.status, 500);
}

#[test]
fn the_key_goes_to_the_model_alone_and_redirects_are_not_followed() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let key = "very-private-key";
    let start = |endpoint: &str| {
        Agent::start_with(folder.path(), &[("MODEL_ENDPOINT", endpoint), ("MODEL_API_KEY", key)])
    };
    let agent = start(&model.url);
    agent.ask("s", "hello").output();
    assert_eq!(model.keys(), [format!("Bearer {key}")]);
    agent.stop();
    let agent = start(&model.url.replace("/v1", "/moved"));
    let failed = agent.ask("s", "hello");
    assert!(failed.status == 500 && failed.body.contains("redirects are not followed"), "{failed:?}");
    assert_eq!(model.keys().len(), 1);
    assert!(!failed.body.contains(key) && agent.log().iter().all(|line| !line.to_string().contains(key)));
}

#[test]
fn a_model_with_https_is_asked_if_its_authority_is_one_of_the_system() {
    let (folder, (model, certificate)) = (tempfile::tempdir().unwrap(), FakeModel::start_with_https());
    let rcgen::CertifiedKey { cert: other, .. } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let asked = |authority: &str| {
        let file = folder.path().join("authority.pem");
        fs::write(&file, authority).unwrap();
        let variables = [("MODEL_ENDPOINT", model.url.as_str()), ("SSL_CERT_FILE", file.to_str().unwrap())];
        Agent::start_with(folder.path(), &variables).ask("s", "hello")
    };
    assert_eq!(asked(&certificate).output(), "echo of hello");
    let failed = asked(&other.pem());
    assert!(failed.status == 500 && failed.body.contains("spec.modelEndpoint is not trusted"), "{failed:?}");
}

#[test]
fn wrong_requests_are_refused_with_the_reason() {
    let (_folder, model, agent) = one();
    let long = "x".repeat((1 << 20) + 1);
    for (task, status, reason) in [
        (json!({"input": "hello"}), 400, "session"),
        (json!({"session": "../x", "input": "hello"}), 400, "`session`"),
        (json!({"session": "s", "input": ""}), 400, "empty"),
        (json!({"session": "s", "input": "hello", "id": "a b"}), 400, "`id`"),
        (json!({"session": "s", "input": long}), 413, "bytes"),
    ] {
        let answer = agent.post(&task);
        assert_eq!(answer.status, status, "{}", answer.body);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(reason), "{message}");
    }
    let chat = json!({"messages": [{"role": "user", "content": "hello"}]}).to_string();
    let answer = request(agent.tasks, "POST", "/v1/chat/completions", &[], &chat);
    assert!(answer.status == 400 && answer.body.contains("x-session"), "{answer:?}");
    assert_eq!(agent.get("/v1/nothing").status, 404);
    assert_eq!(agent.get("/v1/sessions/s").status, 404);
    assert_eq!(agent.get("/v1/tasks/a%20b").status, 400);
    assert!(model.chats().is_empty());
}

#[test]
fn a_full_queue_is_answered_with_when_to_come_again() {
    let (folder, model) = (tempfile::tempdir().unwrap(), FakeModel::start());
    let variables =
        [("MODEL_ENDPOINT", model.url.as_str()), ("AGENT_QUEUE", "1"), ("AGENT_CONCURRENCY", "1")];
    let agent = Agent::start_with(folder.path(), &variables);
    let task = |session: &str| json!({"session": session, "input": HOLD, "wait": false});
    assert_eq!(agent.post(&task("a")).status, 202);
    agent.until("agent_tasks_in_flight 1");
    assert_eq!(agent.post(&task("b")).status, 202);
    let refused = agent.post(&task("c"));
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    model.release();
    agent.until("agent_tasks_total{outcome=\"done\"} 2");
}
