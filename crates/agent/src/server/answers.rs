//! Answers to clients: JSON or server-sent events, of tasks or as the API of OpenAI has them.
//!
//! Errors have one form everywhere, the one of OpenAI, so that its clients show the message.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::{Stream, stream};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use crate::{
    server::requests::Protocol,
    session::{Cause, Name, Outcome},
    sse::{data, event},
    worker::{End, Progress, Refusal, State},
};

/// Proxies close a connection that is silent for a minute.
const PING_EVERY: Duration = Duration::from_secs(15);
/// For a client that asks again after the worker has ended. Another worker has the session then.
const AFTER_END_SECONDS: u64 = 5;
/// For a client that asks again when fewer tasks wait.
const AFTER_FULL_SECONDS: u64 = 10;

/// The task that is answered.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) session: Name,
    pub(crate) id: Name,
    pub(crate) protocol: Protocol,
    pub(crate) model: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
}

/// An error in the form of OpenAI. `retry_after`: when another attempt may succeed.
pub(crate) fn problem(status: StatusCode, message: &str, retry_after: Option<u64>) -> Response {
    let kind = match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => "unavailable",
        _ if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    };
    let mut answer = json_answer(status, &json!({"error": {"message": message, "type": kind}}));
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}

pub(crate) fn refused(refusal: Refusal) -> Response {
    let unavailable = |message, seconds| problem(StatusCode::SERVICE_UNAVAILABLE, message, Some(seconds));
    match refusal {
        Refusal::Ending => unavailable("the worker ends and takes no new task", AFTER_END_SECONDS),
        Refusal::QueueFull => unavailable("the queue of the worker is full", AFTER_FULL_SECONDS),
        Refusal::SessionFull => problem(
            StatusCode::TOO_MANY_REQUESTS,
            "too many tasks of this session wait",
            Some(AFTER_FULL_SECONDS),
        ),
        Refusal::TooLarge { context_tokens } => {
            let message = format!(
                "the input does not fit beside the prompt of the role: AGENT_CONTEXT_TOKENS is {context_tokens}"
            );
            problem(StatusCode::BAD_REQUEST, &message, None)
        }
        Refusal::NotSaved => unavailable("the session cannot be read or saved", AFTER_FULL_SECONDS),
        Refusal::NotTaken => unavailable("the session cannot be taken over now", AFTER_FULL_SECONDS),
    }
}

/// A task that has not ended yet.
pub(crate) fn queued(task: &Answered, state: &State) -> Response {
    json_answer(StatusCode::ACCEPTED, &task_value(&task.session, &task.id, state))
}

pub(crate) fn task(session: &Name, id: &Name, state: &State) -> Response {
    json_answer(StatusCode::OK, &task_value(session, id, state))
}

fn task_value(session: &Name, id: &Name, state: &State) -> Value {
    let name = match state {
        State::Queued => "queued",
        State::Working => "working",
        State::Ended(outcome) => return outcome_value(session, id, outcome),
    };
    json!({"id": id, "session": session, "state": name})
}

fn outcome_value(session: &Name, id: &Name, outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Done { output, usage, is_cut: _ } => json!({
            "id": id,
            "session": session,
            "state": "done",
            "output": output,
            "usage": usage,
            "finish_reason": finish_reason(outcome),
        }),
        Outcome::Failed { error, cause } => {
            let error = json!({"message": error, "type": cause});
            json!({"id": id, "session": session, "state": "failed", "error": error})
        }
    }
}

/// The whole answer to a task that has ended.
pub(crate) fn ended(task: &Answered, end: &End) -> Response {
    let outcome = match end {
        End::Unfinished => {
            let message = "the worker ends, and the task is saved: send it again with the same id";
            return problem(StatusCode::SERVICE_UNAVAILABLE, message, Some(AFTER_END_SECONDS));
        }
        End::Outcome(outcome) => outcome,
    };
    let status = match outcome {
        Outcome::Done { .. } => StatusCode::OK,
        Outcome::Failed { error: _, cause: Cause::Spec } => StatusCode::INTERNAL_SERVER_ERROR,
        Outcome::Failed { error: _, cause: Cause::Model } => StatusCode::BAD_GATEWAY,
        Outcome::Failed { error: _, cause: Cause::Deadline } => StatusCode::GATEWAY_TIMEOUT,
    };
    let value = match (task.protocol, outcome) {
        (Protocol::Chat, Outcome::Done { output, .. }) => json!({
            "id": task.id,
            "object": "chat.completion",
            "created": task.created,
            "model": task.model,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": output},
                "finish_reason": finish_reason(outcome),
            }],
            "usage": usage_value(outcome),
        }),
        (Protocol::Chat, Outcome::Failed { .. }) | (Protocol::Tasks, _) => {
            outcome_value(&task.session, &task.id, outcome)
        }
    };
    json_answer(status, &value)
}

/// As OpenAI names it.
fn finish_reason(outcome: &Outcome) -> &'static str {
    if matches!(outcome, Outcome::Done { is_cut: true, .. }) { "length" } else { "stop" }
}

fn usage_value(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Done { usage, .. } => json!({
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total(),
        }),
        Outcome::Failed { .. } => Value::Null,
    }
}

fn json_answer(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// The answer in pieces.
pub(crate) fn streamed(task: Answered, progress: watch::Receiver<Progress>) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(pieces(task, progress))).into_response()
}

/// What a client has got.
struct Sent {
    task: Answered,
    progress: watch::Receiver<Progress>,
    attempt: u32,
    bytes: usize,
    has_ended: bool,
}

fn pieces(
    task: Answered,
    progress: watch::Receiver<Progress>,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let sent = Sent { task, progress, attempt: 0, bytes: 0, has_ended: false };
    stream::unfold(sent, |mut sent| async move {
        while !sent.has_ended {
            let piece = sent.next();
            if !piece.is_empty() {
                return Some((Ok(Bytes::from(piece)), sent));
            }
            match timeout(PING_EVERY, sent.progress.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    sent.has_ended = true;
                    return Some((Ok(Bytes::from(last(&sent.task, &End::Unfinished))), sent));
                }
                Err(_) => return Some((Ok(Bytes::from_static(b": ping\n\n")), sent)),
            }
        }
        None
    })
}

impl Sent {
    /// What is new. Empty: nothing.
    fn next(&mut self) -> String {
        let progress = self.progress.borrow_and_update();
        let mut new = String::new();
        if progress.attempt != self.attempt {
            if self.bytes > 0 {
                match self.task.protocol {
                    Protocol::Tasks => new.push_str(&event("restart", &json!({}))),
                    Protocol::Chat => {
                        // This protocol cannot take back what was sent.
                        self.has_ended = true;
                        return data(&json!({"error": {
                            "message": "the model has cut its answer and begins anew: send the task again with its id",
                            "type": "unavailable",
                        }}));
                    }
                }
            }
            (self.attempt, self.bytes) = (progress.attempt, 0);
        }
        if let Some(text) = progress.text.get(self.bytes..).filter(|text| !text.is_empty()) {
            new.push_str(&delta(&self.task, text));
            self.bytes = progress.text.len();
        }
        if let Some(end) = &progress.end {
            self.has_ended = true;
            new.push_str(&last(&self.task, end));
        }
        new
    }
}

fn delta(task: &Answered, text: &str) -> String {
    match task.protocol {
        Protocol::Tasks => event("delta", &json!({"text": text})),
        Protocol::Chat => {
            data(&chunk(task, &json!({"role": "assistant", "content": text}), None, &Value::Null))
        }
    }
}

fn last(task: &Answered, end: &End) -> String {
    match (task.protocol, end) {
        (Protocol::Tasks, End::Outcome(outcome)) => {
            let name = match outcome {
                Outcome::Done { .. } => "done",
                Outcome::Failed { .. } => "failed",
            };
            event(name, &outcome_value(&task.session, &task.id, outcome))
        }
        (Protocol::Tasks, End::Unfinished) => {
            event("unfinished", &json!({"id": task.id, "session": task.session, "state": "queued"}))
        }
        (Protocol::Chat, End::Outcome(outcome @ Outcome::Done { .. })) => {
            let end = chunk(task, &json!({}), Some(finish_reason(outcome)), &usage_value(outcome));
            format!("{}data: [DONE]\n\n", data(&end))
        }
        (Protocol::Chat, End::Outcome(Outcome::Failed { error, cause })) => {
            data(&json!({"error": {"message": error, "type": cause}}))
        }
        (Protocol::Chat, End::Unfinished) => data(&json!({"error": {
            "message": "the worker ends, and the task is saved: send it again with the same id",
            "type": "unavailable",
        }})),
    }
}

fn chunk(task: &Answered, delta: &Value, finish: Option<&str>, usage: &Value) -> Value {
    let mut chunk = json!({
        "id": task.id,
        "object": "chat.completion.chunk",
        "created": task.created,
        "model": task.model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    });
    if !usage.is_null() {
        chunk["usage"] = usage.clone();
    }
    chunk
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use crate::session::Usage;

    fn answered(protocol: Protocol) -> Answered {
        let name = |text| Name::parse(text).unwrap();
        Answered { session: name("s"), id: name("t"), protocol, model: "m".to_owned(), created: 1 }
    }

    fn done(output: &str) -> End {
        let usage = Usage { prompt_tokens: 2, completion_tokens: 1 };
        End::Outcome(Outcome::Done { output: output.to_owned(), usage, is_cut: false })
    }

    async fn all(protocol: Protocol, change: impl FnOnce(&watch::Sender<Progress>)) -> String {
        let (sender, receiver) = watch::channel(Progress { attempt: 1, text: "on".into(), end: None });
        let mut pieces = Box::pin(pieces(answered(protocol), receiver));
        let mut all = pieces.next().await.unwrap().unwrap().to_vec();
        change(&sender);
        drop(sender);
        while let Some(Ok(piece)) = pieces.next().await {
            all.extend_from_slice(&piece);
        }
        String::from_utf8(all).unwrap()
    }

    #[tokio::test]
    async fn a_stream_of_a_task_has_each_text_once_and_the_whole_at_its_end() {
        let all = all(Protocol::Tasks, |sender| {
            sender.send_modify(|progress| progress.text.push('e'));
            sender.send_modify(|progress| progress.end = Some(done("one")));
        });
        let all = all.await;
        assert!(all.starts_with(
            "event: delta\ndata: {\"text\":\"on\"}\n\nevent: delta\ndata: {\"text\":\"e\"}\n\n"
        ));
        assert!(all.contains("event: done\n") && all.contains("\"output\":\"one\""), "{all}");
    }

    #[tokio::test]
    async fn a_stream_of_a_chat_ends_as_clients_of_openai_expect_it() {
        let all = all(Protocol::Chat, |sender| {
            sender.send_modify(|progress| progress.end = Some(done("on")));
        });
        let all = all.await;
        assert!(all.ends_with("data: [DONE]\n\n") && all.contains("\"finish_reason\":\"stop\""), "{all}");
        assert!(all.contains("\"total_tokens\":3"), "{all}");
    }

    #[tokio::test]
    async fn a_model_that_begins_anew_is_named_in_the_stream() {
        let again = |sender: &watch::Sender<Progress>| {
            sender.send_modify(|progress| {
                *progress = Progress { attempt: 2, text: "two".into(), end: Some(done("two")) };
            });
        };
        let of_task = all(Protocol::Tasks, again).await;
        assert!(of_task.contains("event: restart\n") && of_task.contains("{\"text\":\"two\"}"), "{of_task}");
        let of_chat = all(Protocol::Chat, again).await;
        assert!(of_chat.contains("\"error\"") && !of_chat.contains("[DONE]"), "{of_chat}");
    }

    #[tokio::test]
    async fn a_worker_that_ends_says_that_the_task_is_unfinished() {
        let all = all(Protocol::Tasks, |_| {}).await;
        assert!(all.contains("event: unfinished\n"), "{all}");
    }

    #[tokio::test]
    async fn an_answer_that_the_model_has_cut_says_so() {
        let cut = || {
            let usage = Usage { prompt_tokens: 2, completion_tokens: 1 };
            End::Outcome(Outcome::Done { output: "on".to_owned(), usage, is_cut: true })
        };
        for protocol in [Protocol::Tasks, Protocol::Chat] {
            let streamed =
                all(protocol, |sender| sender.send_modify(|progress| progress.end = Some(cut()))).await;
            assert!(streamed.contains("\"finish_reason\":\"length\""), "{streamed}");
            let whole = axum::body::to_bytes(ended(&answered(protocol), &cut()).into_body(), 1 << 10).await;
            let whole = String::from_utf8(whole.unwrap().to_vec()).unwrap();
            assert!(whole.contains("\"finish_reason\":\"length\""), "{whole}");
        }
    }

    #[test]
    fn the_status_says_why_a_task_failed() {
        let failed = |cause| End::Outcome(Outcome::Failed { error: "e".to_owned(), cause });
        let status = |end: &End| ended(&answered(Protocol::Chat), end).status().as_u16();
        assert_eq!(status(&failed(Cause::Spec)), 500);
        assert_eq!(status(&failed(Cause::Model)), 502);
        assert_eq!(status(&failed(Cause::Deadline)), 504);
        assert_eq!(status(&End::Unfinished), 503);
        assert!(refused(Refusal::Ending).headers().contains_key(header::RETRY_AFTER));
    }
}
