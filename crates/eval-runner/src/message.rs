//! The termination message: always whole JSON of at most `LONGEST_MESSAGE` bytes, printable and without secrets.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use api::launcher::{LONGEST_MESSAGE, evaluator::Message};

use crate::cli::Key;

const LONGEST_TAIL: usize = 1_536;
const LONGEST_ERROR: usize = 1_536;

/// A line of the runner's own, without secrets.
pub(crate) fn note(message: &str) {
    let _ = writeln!(io::stderr(), "eval-runner: {}", text::redacted(&text::printable(message)));
}

/// Outside of a pod the file does not exist, which is not an error.
pub(crate) fn write(termination_log: &Path, message: Message, key: &Key) {
    let text = render(message, key);
    let written = File::options().write(true).truncate(true).open(termination_log);
    match written.and_then(|mut file| file.write_all(text.as_bytes())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            note(&format!("failed to write {}: {error}", termination_log.display()));
        }
        Ok(()) | Err(_) => {}
    }
}

/// Shortens the end of the log first, then the error.
fn render(mut message: Message, key: &Key) -> String {
    let clean = |line: &str| text::redacted(&text::printable(&key.removed(line)));
    message.error = message.error.map(|error| text::cut(clean(&error), LONGEST_ERROR));
    message.tail = message.tail.map(|tail| {
        let lines: Vec<String> = tail.lines().map(clean).collect();
        text::end(lines.join("\n"), LONGEST_TAIL)
    });
    let steps: [fn(&mut Message); 4] = [
        |message| message.tail = message.tail.take().map(|tail| text::end(tail, LONGEST_TAIL / 4)),
        |message| message.tail = None,
        |message| message.error = message.error.take().map(|error| text::cut(error, LONGEST_ERROR / 4)),
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
    use api::launcher::evaluator::{Graded, Pair};

    use super::*;

    #[test]
    fn a_message_is_short_enough_whatever_the_log_has() {
        for text in ["\"\\".repeat(9_000), "\u{0}\u{1b}\n".repeat(9_000), "é漢\u{1f600}".repeat(9_000)] {
            let reason = Some("HarnessFailed".to_owned());
            let message =
                Message { reason, error: Some(text.clone()), tail: Some(text), ..Message::default() };
            let rendered = render(message, &Key::none());
            assert!(rendered.len() <= LONGEST_MESSAGE, "{}", rendered.len());
            let read: Message = serde_json::from_str(&rendered).unwrap();
            assert_eq!(read.reason.as_deref(), Some("HarnessFailed"));
        }
    }

    #[test]
    fn the_results_of_sixteen_test_sets_fit() {
        let number = || "-0.123456".to_owned();
        let graded = Graded {
            n: 199_999,
            groups: 199_999,
            baseline: number(),
            candidate: number(),
            difference: number(),
            low: number(),
            high: number(),
            candidate_low: number(),
            p_value: number(),
        };
        let pair = Pair { graded: Some(graded), ..Pair::default() };
        let message = Message { pairs: vec![pair.clone(); 16], control: Some(pair), ..Message::default() };
        let length = render(message, &Key::none()).len();
        assert!(length <= LONGEST_MESSAGE, "{length}");
    }
}
