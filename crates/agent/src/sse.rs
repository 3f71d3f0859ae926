//! Server-sent events, as the API of OpenAI uses them: one `data:` line for each event. Pure.

use serde_json::Value;

/// Bytes of one line. A piece of an answer has some hundred.
const LONGEST_LINE: usize = 256 << 10;

/// A line is longer than any event of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Splits a stream of bytes into events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    begun: Vec<u8>,
}

impl Events {
    /// The data of the events that end within these bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut found = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.begun.len() + part.len() > LONGEST_LINE {
                return Err(TooLong);
            }
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                if let Some(data) = line.trim_ascii_end().strip_prefix(b"data:") {
                    found.push(String::from_utf8_lossy(data.trim_ascii()).into_owned());
                }
            }
        }
        Ok(found)
    }
}

/// An event with a name.
pub(crate) fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// An event without a name.
pub(crate) fn data(data: &Value) -> String {
    format!("data: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_whatever_the_pieces_of_the_stream_are() {
        let stream = b": comment\r\ndata: {\"a\":\"\xc3\xa9\"}\r\n\r\ndata:[DONE]\n\n";
        for size in 1..stream.len() {
            let mut events = Events::default();
            let found: Vec<String> =
                stream.chunks(size).flat_map(|piece| events.push(piece).unwrap()).collect();
            assert_eq!(found, ["{\"a\":\"é\"}", "[DONE]"], "{size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut events = Events::default();
        events.push(&vec![b'x'; LONGEST_LINE]).unwrap();
        assert_eq!(events.push(b"x"), Err(TooLong));
    }

    #[test]
    fn an_event_is_one_line_of_data() {
        let value = serde_json::json!({"delta": "a\nb"});
        assert_eq!(event("done", &value), "event: done\ndata: {\"delta\":\"a\\nb\"}\n\n");
    }
}
