//! The model: an OpenAI API at MODEL_ENDPOINT, for answers and for vectors.
//!
//! A call ends at the deadline of its task. Until then it is tried again after a fault that may pass, with growing
//! pauses. The key is in no message: what a server says is repeated without it.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    connections::{Client, cause, client, is_untrusted, read_body},
    session::{Cause, Message, OUTPUT_BYTES, Usage, tokens, tokens_of},
    sse::Events,
};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Between two pieces of an answer. A server under load gives several in a second.
const PIECE_WITHIN: Duration = Duration::from_secs(120);
/// A vector is one pass of a model, so a slow server has a fault.
const VECTOR_WITHIN: Duration = Duration::from_secs(30);
/// Pauses double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// Of a `Retry-After`.
const LONGEST_ASKED: Duration = Duration::from_secs(60);
/// Bytes of an answer that is not streamed, with JSON around the text.
const ANSWER_BYTES: usize = 4 * OUTPUT_BYTES;
/// Bytes of a vector: 8,192 numbers of 20 characters.
const VECTOR_BYTES: usize = 1 << 20;
/// Bytes of the body of an error that are read.
const ERROR_BYTES: usize = 64 << 10;
/// Of a message.
const LONGEST_WHY: usize = 300;
const USER_AGENT: &str = concat!("agent/", env!("CARGO_PKG_VERSION"));

/// A key, which no output shows.
#[derive(Clone)]
pub(crate) struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(redacted)")
    }
}

impl Key {
    pub(crate) fn new(key: &str) -> Self {
        // A file that a key comes from often ends with a line feed.
        Self(key.trim().to_owned())
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) cause: Cause,
    /// In the words of this program. It may be logged.
    pub(crate) why: String,
    /// The words of the model's server. They may repeat an input, so they are for the client alone.
    pub(crate) said: Option<String>,
}

impl Fault {
    pub(crate) fn new(cause: Cause, why: impl Into<String>) -> Self {
        Self { cause, why: why.into(), said: None }
    }

    /// For the client.
    pub(crate) fn message(self) -> String {
        match self.said {
            Some(said) => format!("{}: {said}", self.why),
            None => self.why,
        }
    }
}

/// What an answer has so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// An attempt begins: earlier pieces are void.
    Attempt,
    Text(&'t str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) text: String,
    pub(crate) usage: Usage,
    /// The model stopped at its limit of tokens.
    pub(crate) is_cut: bool,
}

pub(crate) struct Model {
    /// The error names the field of the spec that is missing or wrong.
    server: Result<Server, String>,
}

struct Server {
    client: Client,
    /// Without a slash at the end.
    url: String,
    authorization: Option<HeaderValue>,
    key: Option<Key>,
    model: String,
    embedding_model: String,
}

/// Why one attempt failed.
enum Failure {
    /// Another attempt may succeed, after a time that the server may name.
    Passing {
        fault: Fault,
        after: Option<Duration>,
    },
    Lasting(Fault),
}

impl Model {
    pub(crate) fn new(
        endpoint: Option<&str>,
        key: Option<Key>,
        model: Option<&str>,
        embedding_model: Option<&str>,
    ) -> Self {
        Self { server: server(endpoint, key, model, embedding_model) }
    }

    /// The name of the model, for answers.
    pub(crate) fn name(&self) -> &str {
        self.server.as_ref().map_or("none", |server| &server.model)
    }

    /// Why no task can be done, as far as the environment says.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.server.as_ref().err().map(String::as_str)
    }

    /// Asks until there is an answer, a lasting fault or the deadline.
    pub(crate) async fn complete(
        &self,
        messages: &[Message],
        most_tokens: Option<usize>,
        until: Instant,
        mut pieces: impl FnMut(Piece<'_>),
    ) -> Result<Completion, Fault> {
        let server = self.server()?;
        let mut body = json!({
            "model": server.model,
            "messages": messages,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(most) = most_tokens {
            body["max_tokens"] = most.into();
        }
        let body = Bytes::from(body.to_string());
        let mut last = Fault::new(Cause::Model, "the model has not answered");
        for attempt in 0.. {
            pieces(Piece::Attempt);
            let asked = timeout_at(until, server.complete(body.clone(), messages, &mut pieces)).await;
            let after = match asked {
                Ok(Ok(completion)) => return Ok(completion),
                Ok(Err(Failure::Lasting(fault))) => return Err(fault),
                Ok(Err(Failure::Passing { fault, after })) => {
                    last = fault;
                    after
                }
                Err(_) => break,
            };
            let pause = pause(attempt, fastrand::f64(), after);
            if Instant::now() + pause >= until {
                break;
            }
            sleep(pause).await;
        }
        let Fault { cause: _, why, said } = last;
        let why = format!("the time of the task has run out: {why}");
        Err(Fault { cause: Cause::Deadline, why, said })
    }

    /// The vector of a text. There is one attempt, because a task can do without it.
    pub(crate) async fn embed(&self, text: &str, until: Instant) -> Result<Vec<f32>, Fault> {
        let server = self.server()?;
        let within = (Instant::now() + VECTOR_WITHIN).min(until);
        match timeout_at(within, server.embed(text)).await {
            Ok(Ok(vector)) => Ok(vector),
            Ok(Err(Failure::Lasting(fault) | Failure::Passing { fault, after: _ })) => Err(fault),
            Err(_) => Err(Fault::new(Cause::Deadline, "no vector in time")),
        }
    }

    fn server(&self) -> Result<&Server, Fault> {
        self.server.as_ref().map_err(|why| Fault::new(Cause::Spec, why.as_str()))
    }
}

fn server(
    endpoint: Option<&str>,
    key: Option<Key>,
    model: Option<&str>,
    embedding_model: Option<&str>,
) -> Result<Server, String> {
    let endpoint = endpoint.ok_or("the worker has no model: set spec.modelEndpoint and spec.modelRef")?;
    let uri: http::Uri = endpoint.parse().map_err(|_| "spec.modelEndpoint is not a URL".to_owned())?;
    let is_https = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        Some(_) | None => return Err("spec.modelEndpoint must begin with http:// or https://".to_owned()),
    };
    if uri.query().is_some() || uri.authority().is_none_or(|authority| authority.as_str().contains('@')) {
        return Err("spec.modelEndpoint must have neither a user nor a query".to_owned());
    }
    let model = model.ok_or("the worker has no model: set spec.modelRef")?.to_owned();
    let authorization = key.as_ref().map(|Key(key)| HeaderValue::from_str(&format!("Bearer {key}")));
    let authorization = authorization.transpose().map_err(
        |_| "the key api-key of spec.credentials.secretName has characters that no header may have",
    )?;
    let authorization = authorization.map(|mut value| {
        value.set_sensitive(true);
        value
    });
    let client = client(is_https, CONNECT_WITHIN).map_err(|error| {
        format!("the authorities for https of spec.modelEndpoint cannot be used: {error}")
    })?;
    Ok(Server {
        client,
        url: endpoint.trim_end_matches('/').to_owned(),
        authorization,
        key,
        embedding_model: embedding_model.unwrap_or(&model).to_owned(),
        model,
    })
}

/// The pause after an attempt. `chance`: from 0 to 1, so that workers do not ask at the same moment.
fn pause(attempt: u32, chance: f64, asked: Option<Duration>) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(attempt)).min(LONGEST_PAUSE);
    doubled.mul_f64(0.5 + chance / 2.0).max(asked.unwrap_or_default().min(LONGEST_ASKED))
}

/// A part of a streamed answer, or a whole answer.
#[derive(Default, Deserialize)]
struct Answer {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Reported>,
    error: Option<Value>,
}

/// Tokens that a server reports. It may leave out each of them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Reported {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

impl Reported {
    fn or(self, before: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.or(before.prompt_tokens),
            completion_tokens: self.completion_tokens.or(before.completion_tokens),
        }
    }

    /// What is not reported is estimated.
    fn usage(self, messages: &[Message], text: &str) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens.unwrap_or_else(|| tokens_of(messages) as u64),
            completion_tokens: self.completion_tokens.unwrap_or_else(|| tokens(text) as u64),
        }
    }
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Content>,
    message: Option<Content>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Content {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Vectors {
    data: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    embedding: Vec<f32>,
}

impl Server {
    async fn complete(
        &self,
        body: Bytes,
        messages: &[Message],
        pieces: &mut impl FnMut(Piece<'_>),
    ) -> Result<Completion, Failure> {
        let answer = self.post("chat/completions", body).await?;
        let mut heard = Heard::default();
        if is_stream(answer.headers()) {
            self.stream(answer.into_body(), &mut heard, pieces).await?;
        } else {
            let bytes = timeout(PIECE_WITHIN, read_body(answer.into_body(), ANSWER_BYTES));
            let bytes = bytes.await.map_err(|_| slow())?.map_err(passing)?;
            let whole: Answer = serde_json::from_slice(&bytes)
                .map_err(|_| lasting("the model gives an answer that is not of the OpenAI API"))?;
            self.take(whole, &mut heard, pieces)?;
            heard.is_whole = true;
        }
        if !heard.is_whole {
            return Err(passing("the model has cut its answer".to_owned()));
        }
        let usage = heard.reported.usage(messages, &heard.text);
        Ok(Completion { usage, text: heard.text, is_cut: heard.is_cut })
    }

    async fn stream(
        &self,
        mut body: Incoming,
        heard: &mut Heard,
        pieces: &mut impl FnMut(Piece<'_>),
    ) -> Result<(), Failure> {
        let mut events = Events::default();
        while let Some(frame) = timeout(PIECE_WITHIN, body.frame()).await.map_err(|_| slow())? {
            let frame = frame.map_err(|error| passing(cause(&error)))?;
            let Ok(data) = frame.into_data() else { continue };
            let found = events.push(&data);
            for event in found.map_err(|_| lasting("the model sends a line without an end"))? {
                if event == "[DONE]" {
                    heard.is_whole = true;
                    return Ok(());
                }
                let part: Answer = serde_json::from_str(&event)
                    .map_err(|_| lasting("the model streams what is not of the OpenAI API"))?;
                self.take(part, heard, pieces)?;
            }
        }
        Ok(())
    }

    fn take(
        &self,
        part: Answer,
        heard: &mut Heard,
        pieces: &mut impl FnMut(Piece<'_>),
    ) -> Result<(), Failure> {
        let Answer { choices, usage, error } = part;
        if let Some(error) = error {
            let said = Some(self.repeated(&error.to_string()));
            let why = "the model reports an error".to_owned();
            return Err(Failure::Passing { fault: Fault { cause: Cause::Model, why, said }, after: None });
        }
        heard.reported = usage.unwrap_or_default().or(heard.reported);
        for Choice { delta, message, finish_reason } in choices.into_iter().take(1) {
            heard.is_whole |= finish_reason.is_some();
            heard.is_cut |= finish_reason.as_deref() == Some("length");
            let Some(text) = delta.or(message).and_then(|content| content.content) else { continue };
            if heard.text.len() + text.len() > OUTPUT_BYTES {
                return Err(lasting(&format!("the answer of the model has more than {OUTPUT_BYTES} bytes")));
            }
            if !text.is_empty() {
                heard.text.push_str(&text);
                pieces(Piece::Text(&text));
            }
        }
        Ok(())
    }

    async fn embed(&self, text: &str) -> Result<Vec<f32>, Failure> {
        let body = json!({"model": self.embedding_model, "input": text}).to_string();
        let answer = self.post("embeddings", body.into()).await?;
        let bytes = read_body(answer.into_body(), VECTOR_BYTES).await.map_err(passing)?;
        let vectors: Vectors = serde_json::from_slice(&bytes)
            .map_err(|_| lasting("the answer to an embedding has no vector"))?;
        let vector = vectors.data.into_iter().next().map(|vector| vector.embedding);
        vector.filter(|vector| !vector.is_empty()).ok_or_else(|| lasting("the vector of the text is empty"))
    }

    /// The answer, if it is one.
    async fn post(&self, path: &str, body: Bytes) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::post(format!("{}/{path}", self.url))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream, application/json")
            .header(header::USER_AGENT, USER_AGENT);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|_| Failure::Lasting(Fault::new(Cause::Spec, "spec.modelEndpoint is not a URL")))?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| match is_untrusted(&error) {
            true => Failure::Lasting(Fault::new(
                Cause::Spec,
                format!("the certificate of spec.modelEndpoint is not trusted: {}", cause(&error)),
            )),
            false => passing(format!("the model does not answer: {}", cause(&error))),
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let after = retry_after(answer.headers());
        let body = timeout(VECTOR_WITHIN, read_body(answer.into_body(), ERROR_BYTES)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        Err(self.failure(status, after, &String::from_utf8_lossy(&body)))
    }

    fn failure(&self, status: StatusCode, after: Option<Duration>, body: &str) -> Failure {
        let why = format!("the model answers with status {}", status.as_u16());
        let said = Some(self.repeated(body)).filter(|said| !said.is_empty());
        let of_spec = |why: String| Failure::Lasting(Fault { cause: Cause::Spec, why, said: said.clone() });
        let passing = |why: String| Failure::Passing {
            fault: Fault { cause: Cause::Model, why, said: said.clone() },
            after,
        };
        match status {
            _ if status.is_redirection() => {
                of_spec(format!("{why} (redirects are not followed: correct spec.modelEndpoint)"))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                of_spec(format!("{why} (see the key api-key of spec.credentials.secretName)"))
            }
            StatusCode::NOT_FOUND => of_spec(format!("{why} (see spec.modelEndpoint and spec.modelRef)")),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => passing(why),
            _ if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => passing(why),
            _ => Failure::Lasting(Fault { cause: Cause::Model, why, said }),
        }
    }

    /// The words of a server in one line, cut and without secrets.
    fn repeated(&self, text: &str) -> String {
        let text = match &self.key {
            Some(Key(key)) if !key.is_empty() => text.replace(key.as_str(), "(redacted)"),
            Some(_) | None => text.to_owned(),
        };
        text::cut(text::redacted(&text::printable(&text)), LONGEST_WHY)
    }
}

#[derive(Default)]
struct Heard {
    text: String,
    reported: Reported,
    /// The server has said that the answer ends. A connection that is cut says nothing.
    is_whole: bool,
    is_cut: bool,
}

fn passing(why: String) -> Failure {
    Failure::Passing { fault: Fault::new(Cause::Model, why), after: None }
}

fn lasting(why: &str) -> Failure {
    Failure::Lasting(Fault::new(Cause::Model, why))
}

fn slow() -> Failure {
    passing(format!("the model has been silent for {} s", PIECE_WITHIN.as_secs()))
}

fn is_stream(headers: &HeaderMap) -> bool {
    let content = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content.is_some_and(|content| content.starts_with("text/event-stream"))
}

/// Seconds alone: a date is the other form, which models' servers do not use.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(endpoint: Option<&str>, model: Option<&str>) -> Option<String> {
        Model::new(endpoint, None, model, None).fault().map(str::to_owned)
    }

    #[test]
    fn a_missing_or_wrong_field_of_the_spec_is_named() {
        assert!(fault(None, Some("m")).unwrap().contains("spec.modelEndpoint"));
        assert!(fault(Some("http://m:8000/v1"), None).unwrap().contains("spec.modelRef"));
        for wrong in ["", "m:8000/v1", "ftp://m/v1", "http://user@m/v1", "http://m/v1?key=x", "http://a b/"] {
            assert!(fault(Some(wrong), Some("m")).unwrap().contains("spec.modelEndpoint"), "{wrong}");
        }
        assert_eq!(fault(Some("http://m:8000/v1/"), Some("m")), None);
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_follow_the_server() {
        assert_eq!(pause(0, 1.0, None), FIRST_PAUSE);
        assert_eq!(pause(2, 1.0, None), 4 * FIRST_PAUSE);
        assert_eq!(pause(2, 0.0, None), 2 * FIRST_PAUSE);
        assert_eq!(pause(u32::MAX, 1.0, None), LONGEST_PAUSE);
        assert_eq!(pause(0, 0.0, Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(pause(0, 0.0, Some(Duration::from_secs(7_000))), LONGEST_ASKED);
    }

    #[test]
    fn the_key_is_in_no_message() {
        let key = "very-private";
        let model = Model::new(Some("http://m/v1"), Some(Key::new(&format!("{key}\n"))), Some("m"), None);
        let server = model.server().unwrap();
        let Failure::Lasting(fault) =
            server.failure(StatusCode::UNAUTHORIZED, None, "no: very-private, sk-1234")
        else {
            panic!("it passes")
        };
        // The words of the server are in the message, but not in what is logged.
        assert!(fault.why.contains("secretName") && !fault.why.contains("no:"), "{}", fault.why);
        let message = fault.message();
        assert!(message.contains("no: ") && !message.contains(key), "{message}");
        assert!(!message.contains("sk-1234"), "{message}");
        assert!(!format!("{:?} {:?}", server.key, server.authorization).contains(key));
    }

    #[test]
    fn tokens_that_are_not_reported_are_estimated() {
        let messages = [Message::new(crate::session::Role::User, "x".repeat(40))];
        for (reported, prompt, completion) in [
            (r#"{"prompt_tokens": 7, "completion_tokens": 9}"#, 7, 9),
            (r#"{"prompt_tokens": null, "completion_tokens": 9}"#, 14, 9),
            (r#"{"prompt_tokens": 7}"#, 7, 2),
            ("{}", 14, 2),
        ] {
            let reported: Reported = serde_json::from_str(reported).unwrap();
            let usage = reported.or(Reported::default()).usage(&messages, "12345678");
            assert_eq!(usage, Usage { prompt_tokens: prompt, completion_tokens: completion });
        }
    }

    #[test]
    fn faults_that_may_pass_are_tried_again() {
        let model = Model::new(Some("http://m/v1"), None, Some("m"), None);
        let passes = |status: u16| {
            let status = StatusCode::from_u16(status).unwrap();
            matches!(model.server().unwrap().failure(status, None, ""), Failure::Passing { .. })
        };
        for status in [408, 429, 500, 502, 503, 504] {
            assert!(passes(status), "{status}");
        }
        for status in [301, 307, 400, 401, 403, 404, 413, 422, 501] {
            assert!(!passes(status), "{status}");
        }
    }
}
