//! Splits the bytes of a log into segments, at line feeds and carriage returns, and where a progress bar moves the cursor.
//!
//! It must not keep more than one segment, and of an overlong one only its beginning.

use crate::{Entry, line::Lines};

/// In bytes. A logged step of a training with many metrics has 2 KiB; container runtimes split lines at 16 KiB.
pub(crate) const LONGEST_SEGMENT: usize = 16 * 1024;

/// Splits the bytes of a log into segments, at line feeds and carriage returns, and reads each.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    /// The bytes of the segment that is not finished.
    segment: Vec<u8>,
    lines: Lines,
}

impl Parser {
    /// Reads a chunk, and reports each entry that it completes. Blank segments have no entry.
    pub fn feed(&mut self, chunk: &[u8], report: &mut dyn FnMut(Entry<'_>)) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (piece, after) = rest.split_at(end);
            rest = &after[1..];
            if self.segment.is_empty() {
                read(&mut self.lines, &piece[..piece.len().min(LONGEST_SEGMENT)], report);
            } else {
                self.keep(piece);
                self.finish(report);
            }
        }
        self.keep(rest);
    }

    /// Reports what an unfinished last segment says. Its text may be cut, so call it at the end of a log, and replace
    /// the parser if only the connection ended.
    pub fn finish(&mut self, report: &mut dyn FnMut(Entry<'_>)) {
        read(&mut self.lines, &self.segment, report);
        self.segment.clear();
    }

    fn keep(&mut self, piece: &[u8]) {
        let free = LONGEST_SEGMENT - self.segment.len();
        self.segment.extend_from_slice(&piece[..piece.len().min(free)]);
    }
}

/// tqdm writes it after a bar that is not at the first line, as with `TQDM_POSITION`: whatever is printed next follows.
const CURSOR_UP: &str = "\x1b[A";

/// Only a segment that is no UTF-8 is copied.
fn read(lines: &mut Lines, segment: &[u8], report: &mut dyn FnMut(Entry<'_>)) {
    for text in String::from_utf8_lossy(segment).split(CURSOR_UP) {
        let text = text.trim_ascii_end();
        if !text.is_empty() {
            lines.read(text, report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_without_an_end_of_line() {
        let mut parser = Parser::default();
        for _ in 0..1_000 {
            parser.feed(&[b'x'; 10_000], &mut |entry| panic!("{entry:?}"));
        }
        assert!(parser.segment.capacity() <= 2 * LONGEST_SEGMENT, "{}", parser.segment.capacity());
    }

    /// As tqdm 4.70 has written it with `TQDM_POSITION=-1`.
    const MOVED: &str = "\n\rTrain:  33%|###3  | 1/3 [00:00<00:00,  6.66it/s]\x1b[A[INFO:swift] Saving model checkpoint \
                         to /o/checkpoint-1\n\n\rmodel.safetensors:  12%|#2  | 598M/4.98G [00:05<00:37, 117MB/s]\x1b[A\n\r\
                         Train:  67%|######6   | 2/3 [00:00<00:00,  6.65it/s]\x1b[A\rTrain: 100%|###| 3/3 \
                         [00:00<00:00,  6.64it/s]\nafter\n";

    #[test]
    fn what_follows_a_bar_that_moves_the_cursor_is_an_entry_of_its_own() {
        for size in [1, 7, MOVED.len()] {
            let mut parser = Parser::default();
            let mut seen = Vec::new();
            for chunk in MOVED.as_bytes().chunks(size) {
                parser.feed(chunk, &mut |entry| {
                    seen.push(match entry {
                        Entry::Bar(position) => format!("bar {}", position.step),
                        Entry::Saving(folder) => format!("saving {folder}"),
                        Entry::Text(text) => crate::shown_progress(text).unwrap_or(text).to_owned(),
                        other => format!("{other:?}"),
                    });
                });
            }
            let download = "model.safetensors:  12%|#2  | 598M/4.98G";
            assert_eq!(seen, ["bar 1", "saving /o/checkpoint-1", download, "bar 2", "bar 3", "after"]);
        }
    }

    #[test]
    fn of_an_overlong_segment_the_beginning_is_read_and_the_next_one_is_whole() {
        let mut log = vec![b'x'; 3 * LONGEST_SEGMENT];
        log.extend(b"\r{'loss': 1, 'global_step/max_steps': '1/2'}\n");
        for size in [1, 7_000, log.len()] {
            let mut parser = Parser::default();
            let mut seen = Vec::new();
            for chunk in log.chunks(size) {
                parser.feed(chunk, &mut |entry| {
                    seen.push(match entry {
                        Entry::Text(text) => text.len().to_string(),
                        other => format!("{:?}", other.position().map(|position| position.step)),
                    });
                });
            }
            assert_eq!(seen, [LONGEST_SEGMENT.to_string(), "Some(1)".to_owned()]);
        }
    }
}
