//! Reads positions: `21/27`, or with padding `       5/     100`.

use crate::Position;

/// Digits of a step: no training has 10¹² steps.
const MOST_DIGITS: usize = 12;

impl Position {
    pub(crate) fn of(text: &str) -> Option<Position> {
        let (step, total) = text.split_once('/')?;
        let position = Position { step: count(step)?, total: count(total)? };
        (position.total > 0 && position.step <= position.total).then_some(position)
    }
}

fn count(text: &str) -> Option<i64> {
    let text = text.trim_ascii();
    let is_count = (1..=MOST_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_count.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_bounded() {
        let read = |text| Position::of(text).map(|position| (position.step, position.total));
        assert_eq!(read("21/27"), Some((21, 27)));
        assert_eq!(read("0/1"), Some((0, 1)));
        assert_eq!(read("        5/     100"), Some((5, 100)));
        assert_eq!(read("999999999999/999999999999"), Some((999_999_999_999, 999_999_999_999)));
        for text in
            ["", "/", "5", "5/", "-1/5", "5/-1", "0/0", "28/27", "5/1000000000000", "+1/5", "1.0/5", "1/2/3"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
