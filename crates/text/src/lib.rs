//! Text of other programs: what of it goes into messages, and what it says. Pure.
//!
//! Messages quote webhooks, nodes and engines. A message contains no terminal control sequences, no invisible
//! characters and no secrets of a log. The crate is separate, because programs use it that share nothing else.
//!
//! Files:
//!
//! - `redaction.rs`: removes secrets from text of logs.
//! - `quantity.rs`: reads quantities of Kubernetes.
//! - `exposition.rs`: reads the text format of Prometheus.

#![forbid(unsafe_code)]

pub mod exposition;
pub mod quantity;
mod redaction;

pub use redaction::{beginning, redacted};

/// The text in one line, without control sequences of terminals and without invisible characters, which can hide words or
/// change the direction of text.
pub fn printable(text: &str) -> String {
    let mut chars = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        if c == '\u{1b}' && chars.next_if_eq(&'[').is_some() {
            // A control sequence: parameters, and a final letter.
            while chars.next_if(|c| matches!(c, ' '..='?')).is_some() {}
            chars.next_if(char::is_ascii);
        } else if c.is_control() {
            shown.push(' ');
        } else if !is_format(c) {
            shown.push(c);
        }
    }
    shown
}

fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// At most `longest` bytes of a text, cut at a character boundary.
pub fn cut(mut text: String, longest: usize) -> String {
    text.truncate(text.floor_char_boundary(longest));
    text
}

/// At most `longest` bytes of the end of a text, from the begin of a line if there is one.
pub fn end(text: String, longest: usize) -> String {
    if text.len() <= longest {
        return text;
    }
    let rest = &text[text.ceil_char_boundary(text.len() - longest)..];
    rest.split_once('\n').map_or(rest, |(_, lines)| lines).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_and_invisible_characters_are_removed() {
        assert_eq!(printable("a\u{1b}[31mred\u{1b}[0m\nb\u{202e}c\u{200b}"), "ared bc");
        assert_eq!(cut("aé".to_owned(), 2), "a");
    }

    #[test]
    fn the_end_of_a_text_begins_with_a_line() {
        let of = |text: &str, longest| end(text.to_owned(), longest);
        assert_eq!(of("one\ntwo\nthree", 20), "one\ntwo\nthree");
        assert_eq!(of("one\ntwo\nthree", 8), "three");
        assert_eq!(of("aéb", 2), "b", "a line that is too long itself");
    }
}
