//! What clients send: a task, or a chat completion of the OpenAI API. Pure.

use serde::Deserialize;
use serde_json::Value;

use crate::session::{INPUT_BYTES, Name};

/// The session of a chat completion.
pub(crate) const SESSION: &str = "x-session";
/// The id of a task, also of a chat completion.
pub(crate) const TASK_ID: &str = "x-task-id";

/// How the answer looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tasks,
    Chat,
}

/// When the answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// When the task has ended.
    Wait,
    /// In pieces.
    Stream,
    /// At once: the task is queued.
    Queue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Submission {
    pub(crate) session: Name,
    /// `None`: the worker chooses one.
    pub(crate) id: Option<Name>,
    pub(crate) input: String,
    pub(crate) mode: Mode,
    pub(crate) protocol: Protocol,
}

#[derive(Deserialize)]
struct Task {
    session: String,
    input: String,
    id: Option<String>,
    #[serde(default)]
    stream: bool,
    wait: Option<bool>,
}

/// `id`: of the header, which replaces the one of the body.
pub(crate) fn task(body: &[u8], id: Option<&str>) -> Result<Submission, String> {
    let Task { session, input, id: of_body, stream, wait } =
        serde_json::from_slice(body).map_err(|error| format!("the body is not a task: {error}"))?;
    let mode = match (stream, wait) {
        (true, Some(false)) => return Err("`stream` and `wait: false` exclude each other".to_owned()),
        (true, Some(true) | None) => Mode::Stream,
        (false, Some(false)) => Mode::Queue,
        (false, Some(true) | None) => Mode::Wait,
    };
    Ok(Submission {
        session: name("session", &session)?,
        id: id.or(of_body.as_deref()).map(|id| name("id", id)).transpose()?,
        input: bounded(input)?,
        mode,
        protocol: Protocol::Tasks,
    })
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Said>,
    #[serde(default)]
    stream: bool,
    n: Option<u32>,
    tools: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Said {
    role: String,
    content: Option<Value>,
}

/// The last message is the input. The session has the earlier ones, so those of the request are not used.
pub(crate) fn chat(body: &[u8], session: Option<&str>, id: Option<&str>) -> Result<Submission, String> {
    let Chat { messages, stream, n, tools } = serde_json::from_slice(body)
        .map_err(|error| format!("the body is not a chat completion: {error}"))?;
    if n.unwrap_or(1) != 1 {
        return Err("`n` must be 1".to_owned());
    }
    if tools.is_some_and(|tools| !tools.is_empty()) {
        return Err("the worker has no tools: leave `tools` out".to_owned());
    }
    let session = session.ok_or_else(|| format!("the header {SESSION} is missing: it names the session"))?;
    let last = messages.last().filter(|message| message.role == "user");
    let last = last.ok_or("the last message must have the role `user`")?;
    Ok(Submission {
        session: name(SESSION, session)?,
        id: id.map(|id| name(TASK_ID, id)).transpose()?,
        input: bounded(said(last.content.as_ref())?)?,
        mode: if stream { Mode::Stream } else { Mode::Wait },
        protocol: Protocol::Chat,
    })
}

/// A text, or parts that are texts.
fn said(content: Option<&Value>) -> Result<String, String> {
    const WRONG: &str = "the content of the last message must be a text, or parts of the type `text`";
    match content {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| {
                let is_text = part["type"] == "text";
                part["text"].as_str().filter(|_| is_text).ok_or_else(|| WRONG.to_owned())
            });
            Ok(texts.collect::<Result<Vec<&str>, String>>()?.join("\n"))
        }
        Some(_) | None => Err(WRONG.to_owned()),
    }
}

fn name(field: &str, text: &str) -> Result<Name, String> {
    Name::parse(text).ok_or_else(|| format!("`{field}` must have {}", Name::RULE))
}

fn bounded(input: String) -> Result<String, String> {
    if input.trim().is_empty() {
        return Err("the input is empty".to_owned());
    }
    if input.len() > INPUT_BYTES {
        return Err(format!("the input has more than {INPUT_BYTES} bytes"));
    }
    Ok(input)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task_of(value: &Value) -> Result<Submission, String> {
        task(value.to_string().as_bytes(), None)
    }

    fn chat_of(value: &Value) -> Result<Submission, String> {
        chat(value.to_string().as_bytes(), Some("s"), None)
    }

    #[test]
    fn a_task_waits_streams_or_is_queued() {
        let mode = |extra: &Value| {
            let mut value = json!({"session": "s", "input": "hello"});
            value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            task_of(&value).map(|task| task.mode)
        };
        assert_eq!(mode(&json!({})), Ok(Mode::Wait));
        assert_eq!(mode(&json!({"stream": true})), Ok(Mode::Stream));
        assert_eq!(mode(&json!({"wait": false})), Ok(Mode::Queue));
        assert!(mode(&json!({"wait": false, "stream": true})).is_err());
    }

    #[test]
    fn the_id_of_the_header_is_that_of_the_task() {
        let body = json!({"session": "s", "input": "hello", "id": "a"}).to_string();
        assert_eq!(task(body.as_bytes(), Some("b")).unwrap().id, Name::parse("b"));
        assert_eq!(task(body.as_bytes(), None).unwrap().id, Name::parse("a"));
    }

    #[test]
    fn a_wrong_task_is_refused_with_the_field() {
        let long = "x".repeat(INPUT_BYTES + 1);
        for (value, field) in [
            (json!({"input": "hello"}), "session"),
            (json!({"session": "a/b", "input": "hello"}), "`session`"),
            (json!({"session": "s", "id": "", "input": "hello"}), "`id`"),
            (json!({"session": "s", "input": " "}), "empty"),
            (json!({"session": "s", "input": long}), "bytes"),
            (json!([]), "not a task"),
        ] {
            let error = task_of(&value).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn the_last_message_of_a_chat_is_the_input() {
        let text =
            json!({"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "hello"}]});
        assert_eq!(chat_of(&text).unwrap().input, "hello");
        let parts = json!({"messages": [{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "stream": true});
        let chat = chat_of(&parts).unwrap();
        assert_eq!((chat.input.as_str(), chat.mode), ("a\nb", Mode::Stream));
    }

    #[test]
    fn what_the_worker_cannot_do_is_refused() {
        let user = json!({"role": "user", "content": "hello"});
        for value in [
            json!({"messages": []}),
            json!({"messages": [{"role": "assistant", "content": "hello"}]}),
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            json!({"messages": [user], "n": 2}),
            json!({"messages": [user], "tools": [{}]}),
        ] {
            assert!(chat_of(&value).is_err(), "{value}");
        }
        let body = json!({"messages": [user]}).to_string();
        assert!(chat(body.as_bytes(), None, None).unwrap_err().contains(SESSION));
    }
}
