//! What of a text of another program may stand in a message of a condition or an event. Pure.
//!
//! Messages repeat words of webhooks, nodes and engines: nothing of them may act on a terminal, or make a text look like
//! another one. A crate of its own, because both `workload` and `runtime` need it and neither may use the other.

#![forbid(unsafe_code)]

/// A text in one line without what a terminal acts on, and without characters that have no shape: they hide words, or turn
/// the direction of those around them.
pub fn printable(text: &str) -> String {
    let mut chars = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        if c == '\u{1b}' && chars.next_if_eq(&'[').is_some() {
            // Colours and movements: parameters, and one letter at their end.
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

/// At most so many bytes of a text, without half a character at its end.
pub fn cut(mut text: String, longest: usize) -> String {
    text.truncate(text.floor_char_boundary(longest));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_a_terminal_or_hides_in_a_text() {
        assert_eq!(printable("a\u{1b}[31mred\u{1b}[0m\nb\u{202e}c\u{200b}"), "ared bc");
        assert_eq!(cut("aé".to_owned(), 2), "a");
    }
}
