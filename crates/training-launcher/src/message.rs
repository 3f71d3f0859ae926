//! The termination message: always whole JSON of at most `LONGEST_MESSAGE` bytes, printable and without secrets.

use std::{fs::File, io::Write as _, path::Path};

use api::launcher::{LONGEST_MESSAGE, Message};

use crate::{log::Log, output};
use redaction::Secrets;

pub(crate) mod redaction;

/// The end of the log, in bytes.
const LONGEST_TAIL: usize = 1_024;
const LONGEST_ERROR: usize = 1_536;

/// The last lines of the log, in their order.
pub(crate) fn tail(log: &Log) -> Option<String> {
    let lines: Vec<&str> = log.tail().collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Outside of a pod the file does not exist, which is not an error.
pub(crate) fn write(termination_log: &Path, message: Message, secrets: &Secrets) {
    let text = render(message, secrets);
    let written = File::options().write(true).truncate(true).open(termination_log);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            output::note(&format!("failed to write {}: {error}", termination_log.display()));
        }
        Ok(()) | Err(_) => {}
    }
}

/// Shortens the end of the log first, then the error; then optional fields are left out.
fn render(mut message: Message, secrets: &Secrets) -> String {
    message.error = message.error.map(|error| text::cut(secrets.removed(&error), LONGEST_ERROR));
    message.tail = message.tail.map(|tail| {
        let lines: Vec<String> = tail.lines().map(|line| secrets.removed(line)).collect();
        text::end(lines.join("\n"), LONGEST_TAIL)
    });
    let steps: [fn(&mut Message); 5] = [
        |message| message.tail = message.tail.take().map(|tail| text::end(tail, LONGEST_TAIL / 4)),
        |message| message.tail = None,
        |message| message.error = message.error.take().map(|error| text::cut(error, LONGEST_ERROR / 4)),
        |message| message.checkpoint = None,
        |message| message.error = None,
    ];
    let mut text = json(&message);
    for shorten in steps {
        if text.len() <= LONGEST_MESSAGE {
            break;
        }
        shorten(&mut message);
        text = json(&message);
    }
    text
}

/// A `Message` has no field that cannot be written.
fn json(message: &Message) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use api::launcher::Checkpoint;

    use super::*;

    fn rendered(message: Message) -> Message {
        let text = render(message, &Secrets::default());
        assert!(text.len() <= LONGEST_MESSAGE, "{} bytes", text.len());
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_message_is_short_enough_whatever_the_log_has() {
        for text in [
            "\"\\".repeat(9_000),
            "\u{0}\u{1b}\n".repeat(9_000),
            "é漢\u{1f600}".repeat(9_000),
            "x".repeat(99_999),
        ] {
            let checkpoint = Some(Checkpoint { path: format!("/{}", "d".repeat(300)), step: 5 });
            let message = Message {
                step: Some(5),
                checkpoint: checkpoint.clone(),
                error: Some(text.clone()),
                tail: Some(text),
                ..Message::default()
            };
            let rendered = rendered(message);
            assert_eq!((rendered.step, rendered.checkpoint), (Some(5), checkpoint));
        }
        let path = "\"".repeat(4_000);
        let checkpoint = Some(Checkpoint { path, step: 5 });
        let message = Message { checkpoint, step: Some(5), ..Message::default() };
        assert_eq!(rendered(message), Message { step: Some(5), ..Message::default() });
    }

    #[test]
    fn the_tail_is_the_end_of_the_log_in_whole_lines() {
        let tail: String = (0..1_000).map(|number| format!("line {number}\n")).collect();
        let tail = rendered(Message { tail: Some(tail), ..Message::default() }).tail.unwrap();
        assert!(
            tail.len() <= LONGEST_TAIL && tail.starts_with("line ") && tail.ends_with("line 999"),
            "{tail}"
        );
    }
}
