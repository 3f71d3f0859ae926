//! Follows the log of a container while it is written: without gap or repetition over broken connections, as far as the
//! kubelet still has the log.
//!
//! A kubelet can be asked for the lines from a time on, by the second, so a reopened log repeats lines. Each line comes with
//! its time in nanoseconds, and what was delivered before is left out. A stream that is silent is opened again, because a
//! kubelet that has rotated a log may never end the stream of the old file.
//!
//! A container may print faster than its lines can be understood without taking a core from other work. A log is therefore
//! read at a bounded rate. Nothing is left out: the connection is read slower, and the kubelet, whose file is the buffer,
//! waits. Lines are lost only if the kubelet deletes the file before they were read, as it does after rotations.

use std::time::Duration;

use bytes::{Buf, Bytes};
use http::StatusCode;
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, Resource,
    api::LogParams,
    client::Body,
    core::{Request, Status},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{backoff, causes::with_causes, read::logs::Logs};

/// What a log stream yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of one line, with its line feed if that has been written. `at`: when the line was begun.
    Bytes { at: Timestamp, bytes: Bytes },
    /// The log can be read, and nothing was added to it for the time of silence.
    Silent,
    /// The stream has ended: the container has, or the connection broke.
    Closed,
    /// The log cannot be read now. A pod that is not found may be found later: a kubelet that starts does not know its pods
    /// yet.
    Unreadable(String),
    /// This controller has no right to read it.
    Forbidden,
}

/// The log of one container.
pub struct LogStream {
    client: Client,
    namespace: String,
    pod: String,
    container: String,
    silence: Duration,
    open: Option<Open>,
    position: Position,
    failures: u32,
    budget: Budget,
}

/// Limits the bytes that are read of one log in a second.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// When all that was read is paid for.
    paid: Instant,
}

/// A connection, and the piece of it that has arrived and was not yielded yet.
struct Open {
    body: Body,
    unread: Bytes,
    lines: Lines,
}

/// Until where the log was yielded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    /// Of the last line.
    at: Option<Timestamp>,
    /// Complete lines that were begun at this time.
    lines: u64,
    /// Of the line after them.
    bytes: u64,
}

/// A log is opened again after these.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const JITTER: f64 = 0.25;
/// Bytes of a log in a second. A thousand lines of 250 bytes, each with its time, are half of it.
const RATE: f64 = 512.0 * 1024.0;
/// A log that was not read for so long is read at once: 4 MiB of it.
const BURST: Duration = Duration::from_secs(8);
/// `2026-01-01T00:00:00.123456789+00:00` is the longest form.
const LONGEST_TIME: usize = 40;

impl Logs {
    /// Follows the log of a container from a time on, or from its beginning. After `silence` without a byte it is opened
    /// again.
    pub fn follow(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        since: Option<Timestamp>,
        silence: Duration,
    ) -> LogStream {
        LogStream {
            client: self.client.clone(),
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
            silence,
            open: None,
            position: Position { at: since, ..Position::default() },
            failures: 0,
            budget: Budget { paid: Instant::now() },
        }
    }
}

impl Budget {
    fn spend(&mut self, bytes: usize, now: Instant) {
        self.paid = self.paid.max(now) + Duration::from_secs_f64(bytes as f64 / RATE);
    }

    /// How long until more may be read.
    fn pause(&self, now: Instant) -> Duration {
        self.paid.saturating_duration_since(now).saturating_sub(BURST)
    }
}

/// When a piece was received.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// By the clock of this machine, which may be set.
    pub at: Timestamp,
    /// By a clock that never jumps.
    pub instant: Instant,
}

impl Received {
    fn now() -> Self {
        Self { at: Timestamp::now(), instant: Instant::now() }
    }

    /// By a clock that shows `now` at present. Since it was received the clock may have been set.
    pub fn by(self, now: Timestamp) -> Timestamp {
        now.checked_sub(self.instant.elapsed()).unwrap_or(self.at)
    }
}

impl LogStream {
    /// The next piece, and when it was received. Opens the log if it is not open, after a pause if it could not be read the
    /// last time.
    pub async fn next(&mut self) -> (Piece, Received) {
        (self.piece().await, Received::now())
    }

    async fn piece(&mut self) -> Piece {
        if self.open.is_none() {
            if self.failures > 0 {
                sleep(backoff::spread(
                    backoff::doubled(SHORTEST_PAUSE, LONGEST_PAUSE, self.failures),
                    JITTER,
                ))
                .await;
            }
            match self.connect().await {
                Ok(open) => self.open = Some(open),
                Err(piece) => {
                    self.failures = self.failures.saturating_add(1);
                    return piece;
                }
            }
        }
        loop {
            let Some(open) = &mut self.open else { return Piece::Closed };
            if let Some((at, bytes)) = open.lines.next(&mut open.unread, &mut self.position) {
                self.failures = 0;
                return Piece::Bytes { at, bytes };
            }
            let pause = self.budget.pause(Instant::now());
            if !pause.is_zero() {
                sleep(pause).await;
            }
            match timeout(self.silence, open.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    open.unread = frame.into_data().unwrap_or_default();
                    self.budget.spend(open.unread.len(), Instant::now());
                }
                Ok(None | Some(Err(_))) => {
                    self.open = None;
                    self.failures = self.failures.saturating_add(1);
                    return Piece::Closed;
                }
                Err(_) => {
                    self.open = None;
                    return Piece::Silent;
                }
            }
        }
    }

    /// Mutable, because what is read is not `Sync`.
    async fn connect(&mut self) -> Result<Open, Piece> {
        let since = self.position.at.and_then(|at| Timestamp::from_second(at.as_second()).ok());
        let params = LogParams {
            container: Some(self.container.clone()),
            follow: true,
            timestamps: true,
            since_time: since,
            ..LogParams::default()
        };
        let unreadable = |error: kube::Error| Piece::Unreadable(with_causes(&error));
        let mut request = Request::new(Pod::url_path(&(), Some(&self.namespace)))
            .logs(&self.pod, &params)
            .map_err(|error| unreadable(kube::Error::BuildRequest(error)))?;
        // Its body has no deadline, as that of a watch.
        request.extensions_mut().insert("watch_log");
        let answer = self.client.send(request.map(Body::from)).await.map_err(unreadable)?;
        let (status, body) = (answer.status(), answer.into_body());
        match status {
            _ if status.is_success() => {
                Ok(Open { body, unread: Bytes::new(), lines: Lines::after(self.position) })
            }
            StatusCode::FORBIDDEN => Err(Piece::Forbidden),
            _ => {
                // The client has read it, within its limits.
                let text = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let answer: Option<Status> = serde_json::from_slice(&text).ok();
                let why = answer
                    .map_or_else(|| String::from_utf8_lossy(&text).into_owned(), |answer| answer.message);
                Err(Piece::Unreadable(format!("{status}: {why}")))
            }
        }
    }
}

/// Splits the bytes of one connection into lines, and leaves out those that an earlier one has delivered.
#[derive(Debug, Default)]
struct Lines {
    /// Until where an earlier connection has come; `None` once this one is beyond.
    delivered: Option<Position>,
    /// Complete lines of the time of `delivered` that were left out.
    left_out: u64,
    prefix: Vec<u8>,
    /// The line that is being read; `None`: its time has not arrived.
    line: Option<Line>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    at: Timestamp,
    /// Bytes at its beginning that were delivered before.
    skip: u64,
}

impl Lines {
    fn after(position: Position) -> Self {
        Self { delivered: position.at.map(|_| position), ..Self::default() }
    }

    /// Takes the next piece of a line off `unread`; `None`: more has to arrive.
    fn next(&mut self, unread: &mut Bytes, position: &mut Position) -> Option<(Timestamp, Bytes)> {
        while !unread.is_empty() {
            let Some(line) = self.line else {
                self.read_time(unread);
                continue;
            };
            let end = unread.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let mut piece = unread.split_to(end.unwrap_or(unread.len()));
            let skipped = usize::try_from(line.skip).unwrap_or(usize::MAX).min(piece.len());
            piece.advance(skipped);
            self.line = end.is_none().then_some(Line { skip: line.skip - skipped as u64, ..line });
            if piece.is_empty() {
                continue;
            }
            if position.at != Some(line.at) {
                *position = Position { at: Some(line.at), ..Position::default() };
            }
            if end.is_some() {
                (position.lines, position.bytes) = (position.lines + 1, 0);
            } else {
                position.bytes += piece.len() as u64;
            }
            return Some((line.at, piece));
        }
        None
    }

    fn read_time(&mut self, unread: &mut Bytes) {
        let end = unread.iter().position(|byte| matches!(byte, b' ' | b'\n'));
        let taken = unread.split_to(end.unwrap_or(unread.len()).min(LONGEST_TIME - self.prefix.len()));
        self.prefix.extend_from_slice(&taken);
        if end.is_none() && self.prefix.len() < LONGEST_TIME {
            return;
        }
        let time = str::from_utf8(&self.prefix).ok().and_then(|text| text.parse().ok());
        self.prefix.clear();
        if unread.first() == Some(&b' ') {
            unread.advance(1);
        }
        // A line without a time is the kubelet's own, such as an error in the middle of a log: it is left out.
        let skip = time.map_or(u64::MAX, |time| self.delivered_of(time));
        self.line = Some(Line { at: time.unwrap_or(Timestamp::UNIX_EPOCH), skip });
    }

    /// How many bytes of a line of this time were delivered before.
    fn delivered_of(&mut self, time: Timestamp) -> u64 {
        let Some(Position { at: Some(at), lines, bytes }) = self.delivered else { return 0 };
        if time < at {
            return u64::MAX;
        }
        if time == at && self.left_out < lines {
            self.left_out += 1;
            return u64::MAX;
        }
        self.delivered = None;
        if time == at { bytes } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Mutex};

    use futures::{Stream, StreamExt, stream};
    use http::Response;
    use http_body::Frame;
    use http_body_util::{StreamBody, combinators::UnsyncBoxBody};
    use proptest::prelude::*;

    use super::*;

    type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

    /// The log of an API server whose answers are these, and that then answers no more.
    fn log(answers: Vec<Answer>) -> LogStream {
        let left = Mutex::new(answers.into_iter());
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let next = left.lock().unwrap().next();
            async move {
                match next {
                    Some(answer) => Ok::<_, Infallible>(answer),
                    None => std::future::pending().await,
                }
            }
        });
        Logs::new(Client::new(service, "demo")).follow("demo", "p", "trainer", None, Duration::from_secs(60))
    }

    fn answer(body: impl Stream<Item = Bytes> + Send + 'static) -> Answer {
        let frames = body.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }

    /// A thousand lines of 250 bytes.
    fn thousand_lines() -> Bytes {
        format!("{A} {}\n", "x".repeat(249)).repeat(1_000).into()
    }

    /// Bytes and lines until the log was closed.
    async fn read_all(stream: &mut LogStream) -> (usize, usize) {
        let (mut bytes, mut lines) = (0, 0);
        loop {
            match stream.next().await.0 {
                Piece::Bytes { at: _, bytes: piece } => {
                    bytes += piece.len();
                    lines += usize::from(piece.ends_with(b"\n"));
                }
                Piece::Closed => return (bytes, lines),
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_slowly_and_completely() {
        let sent = thousand_lines();
        let seconds = (100 * sent.len()) as f64 / RATE - BURST.as_secs_f64();
        let mut stream = log(vec![answer(stream::repeat(sent).take(100))]);
        let started = Instant::now();
        assert_eq!(read_all(&mut stream).await, (100 * 1_000 * 250, 100 * 1_000));
        let took = started.elapsed().as_secs_f64();
        assert!((seconds - 1.0..seconds + 1.0).contains(&took), "{took} s instead of {seconds} s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_that_is_read_again_is_no_silence() {
        let seconds = 20.0 * thousand_lines().len() as f64 / RATE;
        // A network is never ahead of its reader.
        let again = || {
            stream::iter(0..20).then(|_| async {
                sleep(Duration::from_millis(1)).await;
                thousand_lines()
            })
        };
        let last = stream::iter([Bytes::from(format!("{A} last\n"))]);
        let mut stream = log(vec![answer(again()), answer(again().chain(last))]);
        stream.silence = Duration::from_secs(2);
        assert!(seconds > 2.0 + BURST.as_secs_f64(), "{seconds} s");
        assert_eq!(read_all(&mut stream).await.1, 20_000);
        assert_eq!(read_all(&mut stream).await, (5, 1), "the rest was read before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_lines_a_second_are_read_when_they_are_written() {
        let written = stream::iter(0..600).then(|_| async {
            sleep(Duration::from_secs(1)).await;
            thousand_lines()
        });
        let mut stream = log(vec![answer(written)]);
        let started = Instant::now();
        assert_eq!(read_all(&mut stream).await.1, 600_000);
        assert!(started.elapsed() < Duration::from_millis(600_100), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_was_not_read_for_a_while_is_read_at_once() {
        let mut stream = log(vec![answer(stream::repeat(thousand_lines()).take(10))]);
        let started = Instant::now();
        assert_eq!(read_all(&mut stream).await.1, 10_000);
        assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_not_found_is_asked_for_again() {
        let mut missing = answer(stream::iter([Bytes::from_static(b"{\"message\": \"no pod\"}")]));
        *missing.status_mut() = StatusCode::NOT_FOUND;
        let line = answer(stream::iter([Bytes::from(format!("{A} one\n"))]));
        let mut stream = log(vec![missing, line]);
        let Piece::Unreadable(why) = stream.next().await.0 else { panic!() };
        assert!(why.starts_with("404"), "{why}");
        assert_eq!(read_all(&mut stream).await, (4, 1));
    }

    /// The pieces of a connection that brings `text` in chunks of this size.
    fn read(text: &str, chunk: usize, position: &mut Position) -> String {
        let mut lines = Lines::after(*position);
        let mut read = Vec::new();
        for chunk in text.as_bytes().chunks(chunk) {
            let mut unread = Bytes::copy_from_slice(chunk);
            while let Some((_, bytes)) = lines.next(&mut unread, position) {
                read.extend_from_slice(&bytes);
            }
        }
        String::from_utf8(read).unwrap()
    }

    const A: &str = "2026-01-01T00:00:01.000000001Z";
    const B: &str = "2026-01-01T00:00:01.000000002Z";

    #[test]
    fn a_reopened_log_goes_on_where_it_ended() {
        let log = format!("{A} one\n{A} two\n{A} \n{B} three\rthree and a half\n{B} four");
        for cut in 0..log.len() {
            for chunk in [1, 7, 1_000] {
                let mut position = Position::default();
                let first = read(&log[..cut], chunk, &mut position);
                // The kubelet gives the lines of the whole second again.
                let second = read(&format!("{log}\n"), chunk, &mut position);
                let whole = "one\ntwo\n\nthree\rthree and a half\nfour\n";
                assert_eq!(format!("{first}{second}"), whole, "cut at {cut}, chunks of {chunk}");
            }
        }
    }

    #[test]
    fn a_log_that_was_rotated_away_goes_on_with_what_is_there() {
        let mut position = Position::default();
        assert_eq!(read(&format!("{A} one\n{A} tw"), 3, &mut position), "one\ntw");
        assert_eq!(read(&format!("{B} three\n"), 3, &mut position), "three\n");
    }

    #[test]
    fn a_clock_that_is_set_back_loses_no_line_of_an_open_stream() {
        let mut position = Position::default();
        assert_eq!(read(&format!("{B} one\n{A} two\n"), 100, &mut position), "one\ntwo\n");
        assert_eq!(read(&format!("{A} two\n{A} three\n"), 100, &mut position), "three\n");
    }

    #[test]
    fn a_line_without_a_time_is_left_out() {
        let text = format!("{A} one\nfailed to watch file: no such file\n{A} two\n");
        assert_eq!(read(&text, 5, &mut Position::default()), "one\ntwo\n");
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_chunks_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300), chunk in 1_usize..50) {
            let mut lines = Lines::default();
            let mut position = Position::default();
            let mut count = 0;
            for chunk in bytes.chunks(chunk) {
                let mut unread = Bytes::copy_from_slice(chunk);
                while let Some((_, bytes)) = lines.next(&mut unread, &mut position) {
                    count += bytes.len();
                }
                prop_assert!(lines.prefix.len() <= LONGEST_TIME);
            }
            prop_assert!(count <= bytes.len());
        }
    }
}
