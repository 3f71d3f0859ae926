//! Reads one segment of the log.
//!
//! A segment may have several entries: a bar has no end of line, so what is printed after it continues its segment. It
//! must not look for entries in the middle of other text, which may be the user's data.

use crate::{Cause, Entry, bar, dict, exception, megatron};

const SAVING: &str = "Saving model checkpoint to ";
const LAST_CHECKPOINT: &str = "last_model_checkpoint: ";

/// The state between segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    /// Python has announced an exception that it ignores, in a destructor for example.
    is_ignored: bool,
}

impl Lines {
    /// The text has no whitespace at its end.
    pub(crate) fn read(&mut self, text: &str, report: &mut dyn FnMut(Entry<'_>)) {
        let mut rest = text;
        while !rest.is_empty() {
            let (entry, after) = self.first(rest);
            report(entry);
            rest = after;
        }
    }

    /// The first entry of a text, and what follows it.
    fn first<'a>(&mut self, text: &'a str) -> (Entry<'a>, &'a str) {
        if let Some((entry, after)) = bar::leading(text) {
            return (entry, after);
        }
        if let Some((entry, after)) = dict::leading(text) {
            self.is_ignored = false;
            return (entry, after);
        }
        (self.whole(text), "")
    }

    fn whole<'a>(&mut self, text: &'a str) -> Entry<'a> {
        if let Some(message) = text.strip_prefix("[INFO:swift] ") {
            return of_swift(message).unwrap_or(Entry::Text(text));
        }
        if let Some(step) = megatron::step(text) {
            return Entry::Step(step);
        }
        if exception::announces_ignored(text) {
            self.is_ignored = true;
            return Entry::Text(text);
        }
        match exception::cause_of(text) {
            None => Entry::Text(text),
            Some(cause) => {
                let is_ignored = std::mem::take(&mut self.is_ignored) && cause == Some(Cause::UserError);
                if is_ignored {
                    Entry::Text(text)
                } else {
                    Entry::Error { cause, line: text.trim_ascii_start() }
                }
            }
        }
    }
}

/// What ms-swift's logger says.
fn of_swift(message: &str) -> Option<Entry<'_>> {
    if let Some(folder) = message.strip_prefix(SAVING) {
        return Some(Entry::Saving(folder.trim_ascii()));
    }
    let folder = message.strip_prefix(LAST_CHECKPOINT)?.trim_ascii();
    (folder != "None").then_some(Entry::LastCheckpoint(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<String> {
        let mut all = Vec::new();
        let mut lines = Lines::default();
        for line in text.lines() {
            lines.read(line, &mut |entry| all.push(format!("{entry:?}")));
        }
        all
    }

    #[test]
    fn what_is_printed_after_a_bar_is_read() {
        let bar = "Train:   0%|          | 6/3200 [00:01<11:32,  4.61it/s]";
        let position = "Bar(Position { step: 6, total: 3200 })";
        assert_eq!(entries(bar), [position]);
        let saving = format!("{bar}[INFO:swift] Saving model checkpoint to /data/run/H/checkpoint-6");
        assert_eq!(entries(&saving), [position, "Saving(\"/data/run/H/checkpoint-6\")"]);
        let error = format!("{bar}[rank1]: MemoryError");
        let expected = "Error { cause: Some(HostOutOfMemory), line: \"[rank1]: MemoryError\" }";
        assert_eq!(entries(&error), [position, expected]);
        assert_eq!(entries(&format!("{bar}{bar}/opt/x.py")), [position, position, "Text(\"/opt/x.py\")"]);
    }

    #[test]
    fn checkpoints_have_folders() {
        let last = entries("[INFO:swift] last_model_checkpoint: /data/my run/checkpoint-27");
        assert_eq!(last, ["LastCheckpoint(\"/data/my run/checkpoint-27\")"]);
        for text in [
            "[INFO:swift] last_model_checkpoint: None",
            "[INFO:swift] best_model_checkpoint: /data/run/checkpoint-27",
            "Saving model checkpoint to /x",
            "my model says: [INFO:swift] Saving model checkpoint to /x",
        ] {
            assert_eq!(entries(text), [format!("Text({text:?})")]);
        }
    }

    #[test]
    fn an_exception_that_python_ignores_is_text() {
        let ignored = "Exception ignored in: <function X.__del__ at 0x7f>\n  File \"a.py\"\nAttributeError: 'X' has no y";
        assert!(entries(ignored).iter().all(|entry| entry.starts_with("Text")), "{:?}", entries(ignored));
        let then = format!("{ignored}\nKeyError: 'z'");
        assert!(entries(&then).iter().any(|entry| entry.contains("line: \"KeyError: 'z'\"")));
        let other = "Exception ignored in: <x>\n[rank1]: torch.OutOfMemoryError: CUDA out of memory.";
        assert!(entries(other).iter().any(|entry| entry.contains("CudaOutOfMemory")));
    }
}
