//! The bytes of one answer: what is due of a log, and, if it is followed, the rest as it becomes due, until the end of the
//! container.

use std::{collections::VecDeque, convert::Infallible, iter::Peekable, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};

use super::{
    ends::Known,
    request::{Query, Since},
    run::{self, End, Run},
    swift,
    timeline::{self, Timeline},
};

/// A client that reads slowly holds one chunk.
const CHUNK: usize = 32 * 1024;
/// The longest sleep; a later line is waited for again.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

struct Reader {
    run: Run,
    uid: String,
    query: Query,
    since: Timestamp,
    /// `None`: the log is not followed.
    changes: Option<watch::Receiver<Known>>,
    events: Option<Peekable<Timeline>>,
    /// The tail that was asked for; `None` once it is taken.
    tail: Option<usize>,
    /// Bytes that may still be sent.
    left: usize,
    is_over: bool,
}

/// The chunks of a log from `now` on.
pub(super) fn chunks(
    run: Run,
    uid: String,
    query: Query,
    changes: Option<watch::Receiver<Known>>,
    now: Timestamp,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + use<> {
    let since = match query.since {
        None => Timestamp::MIN,
        Some(Since::Time(time)) => time,
        Some(Since::Ago(time)) => now.saturating_sub(time).unwrap_or(Timestamp::MIN),
    };
    let events = timeline::timeline(&run).map(Iterator::peekable);
    let (tail, left) = (query.tail, query.limit_bytes.unwrap_or(usize::MAX));
    let reader = Reader { run, uid, query, since, changes, events, tail, left, is_over: false };
    stream::unfold(reader, async |mut reader| {
        let chunk = reader.next().await?;
        Some((Ok(chunk), reader))
    })
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut chunk = match self.tail.take() {
                Some(lines) => self.tail_of(lines, Timestamp::now()),
                None => self.due(Timestamp::now()),
            };
            chunk.truncate(self.left);
            self.left -= chunk.len();
            if !chunk.is_empty() {
                return Some(Bytes::from(chunk));
            }
            if self.is_over || self.left == 0 || self.changes.is_none() {
                return None;
            }
            self.wait().await;
        }
    }

    /// What is due and was not sent yet, about a chunk of it.
    fn due(&mut self, now: Timestamp) -> Vec<u8> {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK {
            let Some((at, lines)) = self.next_due(now) else { break };
            for line in lines {
                self.write(&mut chunk, at, &line);
            }
        }
        chunk
    }

    /// The last lines of what is due.
    fn tail_of(&mut self, most: usize, now: Timestamp) -> Vec<u8> {
        let mut last = VecDeque::new();
        while let Some((at, lines)) = self.next_due(now) {
            last.extend(lines.into_iter().map(|line| (at, line)));
            last.drain(..last.len().saturating_sub(most));
        }
        let mut chunk = Vec::new();
        for (at, line) in last {
            self.write(&mut chunk, at, &line);
        }
        chunk
    }

    fn write(&self, chunk: &mut Vec<u8>, at: Timestamp, line: &str) {
        if self.query.timestamps {
            chunk.extend_from_slice(format!("{at:.9} ").as_bytes());
        }
        chunk.extend_from_slice(line.as_bytes());
        chunk.push(b'\n');
    }

    /// The next lines whose time has come; `None`: none is due, or the log is over.
    fn next_due(&mut self, now: Timestamp) -> Option<(Timestamp, Vec<String>)> {
        loop {
            if self.is_over {
                return None;
            }
            let end = self.run.end.as_ref();
            let next = self.events.as_mut().and_then(|events| {
                events.next_if(|(at, _)| match end {
                    Some(end) => timeline::is_before(end, *at),
                    None => *at <= now,
                })
            });
            let (at, lines) = match (next, &self.run.training, end) {
                (Some((at, event)), Some(training), _) => (at, swift::lines(training, event)),
                (None, Some(_), Some(end)) => {
                    self.is_over = true;
                    (end.at, swift::failure(end))
                }
                (_, None, Some(_)) => {
                    self.is_over = true;
                    return None;
                }
                (None, _, None) | (Some(_), None, None) => return None,
            };
            if at >= self.since && !lines.is_empty() {
                return Some((at, lines));
            }
        }
    }

    /// Until the next line is due, or the pod has changed.
    async fn wait(&mut self) {
        let next = self.events.as_mut().and_then(|events| events.peek()).map(|(at, _)| *at);
        let until = next.map_or(LONGEST_WAIT, |at| {
            Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default().min(LONGEST_WAIT)
        });
        let Some(changes) = &mut self.changes else { return };
        tokio::select! {
            () = sleep(until) => return,
            changed = changes.changed() => if changed.is_err() {
                self.is_over = true;
                return;
            },
        }
        let end = match &*changes.borrow_and_update() {
            Known::Nothing => None,
            Known::Pod(pod) if pod.metadata.uid.as_deref() == Some(&self.uid) => {
                run::end_of(pod, &self.uid, &self.query.container)
            }
            // With the container its log is gone: what was due has been sent.
            Known::Pod(_) | Known::Gone => Some(End { at: Timestamp::now(), exit_code: GONE, error: None }),
        };
        self.run.end = end.or(self.run.end.take());
    }
}

/// Exit code of a container whose end was not seen.
const GONE: i32 = 137;

#[cfg(test)]
mod tests {
    use futures::TryStreamExt as _;

    use super::*;
    use crate::simulation::pod_logs::run::{Form, Training};

    /// A run of eleven seconds with ten steps, each of which is logged.
    fn run(started: Timestamp, end: Option<End>) -> Run {
        let training = Training {
            form: Form::Sft,
            length: Duration::from_secs(11),
            steps: 10,
            logged_every: 1,
            saved_every: 500,
            output: "/out".to_owned(),
            command: ["swift", "sft", "--model", "m"].map(str::to_owned).to_vec(),
        };
        Run { started, end, training: Some(training) }
    }

    async fn text(run: Run, query: Query) -> String {
        let chunks = chunks(run, "u".to_owned(), query, None, Timestamp::now());
        let bytes: Vec<Bytes> = chunks.try_collect().await.unwrap();
        String::from_utf8(bytes.concat()).unwrap()
    }

    fn ended(exit_code: i32, error: Option<&str>) -> (Timestamp, Option<End>) {
        let started: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = "2026-01-01T00:00:04Z".parse().unwrap();
        (started, Some(End { at, exit_code, error: error.map(str::to_owned) }))
    }

    #[tokio::test]
    async fn a_run_that_succeeded_has_the_whole_log() {
        let (started, end) = ended(0, None);
        let log = text(run(started, end), Query { timestamps: true, ..Query::default() }).await;
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 15, "{log}");
        assert!(lines[0].starts_with("2026-01-01T00:00:00.000000000Z run sh: "), "{log}");
        assert!(lines[10].starts_with("2026-01-01T00:00:10.000000000Z {'loss': "), "{log}");
    }

    #[tokio::test]
    async fn a_run_that_failed_has_what_was_printed_before_and_its_error() {
        let (started, end) = ended(1, Some("ValueError: no"));
        let log = text(run(started, end), Query::default()).await;
        assert!(log.contains("'4/10'") && !log.contains("'5/10'"), "{log}");
        assert!(
            log.contains("Traceback (most recent call last):\n") && log.ends_with("ValueError: no\n"),
            "{log}"
        );
    }

    #[tokio::test]
    async fn parts_of_a_log_are_those_of_the_whole() {
        let (started, end) = ended(0, None);
        let run = run(started, end);
        let whole = text(run.clone(), Query::default()).await;
        let since = Since::Time("2026-01-01T00:00:03Z".parse().unwrap());
        let later = text(run.clone(), Query { since: Some(since), ..Query::default() }).await;
        assert!(whole.ends_with(&later) && later.lines().count() == 12, "{later}");
        let tail = text(run.clone(), Query { tail: Some(2), ..Query::default() }).await;
        assert!(whole.ends_with(&tail) && tail.lines().count() == 2, "{tail}");
        let limited = text(run, Query { limit_bytes: Some(20), ..Query::default() }).await;
        assert_eq!(limited, whole[..20]);
    }

    #[tokio::test]
    async fn a_log_that_is_not_followed_ends_with_what_is_due() {
        let log = text(run(Timestamp::now() - Duration::from_millis(3_500), None), Query::default()).await;
        assert!(log.contains("'3/10'") && !log.contains("'4/10'"), "{log}");
    }

    #[tokio::test]
    async fn a_container_without_a_training_has_an_empty_log() {
        let silent = Run { training: None, ..run(Timestamp::now(), None) };
        assert_eq!(text(silent, Query { tail: Some(5), ..Query::default() }).await, "");
    }

    #[tokio::test]
    async fn a_log_that_is_followed_ends_with_its_container() {
        let (known, changes) = watch::channel(Known::Nothing);
        let running = run(Timestamp::now() - Duration::from_millis(3_500), None);
        let query = Query { follow: true, ..Query::default() };
        let chunks = chunks(running, "u".to_owned(), query, Some(changes), Timestamp::now());
        let read = chunks.try_collect::<Vec<Bytes>>();
        let gone = async {
            tokio::task::yield_now().await;
            known.send_replace(Known::Gone);
        };
        let (read, ()) =
            tokio::time::timeout(Duration::from_secs(20), futures::future::join(read, gone)).await.unwrap();
        let log = String::from_utf8(read.unwrap().concat()).unwrap();
        assert!(log.contains("'3/10'") && !log.contains("'4/10'"), "{log}");
    }
}
