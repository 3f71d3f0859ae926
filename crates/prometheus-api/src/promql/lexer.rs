//! Splits a query into tokens with their positions. Pure.
//!
//! It accepts less than the servers do: what one of them might read in another way is refused. Strings are decoded, so
//! that two spellings of one text are equal; comments are dropped.

use super::Refusal;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spanned {
    pub(super) token: Token,
    /// Byte offset in the query.
    pub(super) at: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name: of a metric, a label, a function or an operator. Only those of metrics contain a colon.
    Word(String),
    /// As written.
    Number(String),
    /// As written: `1h30m`.
    Duration(String),
    /// A decoded string.
    Text(String),
    /// `$namespace` or `$name` outside of a string.
    Variable(String),
    /// Brackets, separators and operators.
    Symbol(&'static str),
}

/// Longer ones first.
const SYMBOLS: [&str; 24] = [
    "=~", "!~", "!=", "==", ">=", "<=", "=", ">", "<", "+", "-", "*", "/", "%", "^", "@", "(", ")", "{", "}",
    "[", "]", ",", ":",
];
const DURATION_UNITS: [&str; 7] = ["ms", "s", "m", "h", "d", "w", "y"];

pub(super) fn tokens(query: &str) -> Result<Vec<Spanned>, Refusal> {
    let mut found = Vec::new();
    let (mut at, mut in_brackets) = (0, false);
    while let Some(first) = query[at..].chars().next() {
        let rest = &query[at..];
        let (token, length) = match first {
            ' ' | '\t' | '\n' | '\r' => {
                at += 1;
                continue;
            }
            '#' => {
                at += rest.find(['\n', '\r']).unwrap_or(rest.len());
                continue;
            }
            '"' | '\'' | '`' => text(rest, first).map_err(|why| Refusal::new(query, at, why))?,
            '0'..='9' | '.' => number(rest).ok_or_else(|| {
                Refusal::new(query, at, "there is a number that not every server reads in the same way")
            })?,
            // Within brackets a colon separates the range from the step.
            _ if is_start(first) && !(in_brackets && first == ':') => {
                let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                (Token::Word(rest[..length].to_owned()), length)
            }
            '$' => {
                let length = 1 + rest[1..].find(|c| !is_variable_part(c)).unwrap_or(rest.len() - 1);
                (Token::Variable(rest[1..length].to_owned()), length)
            }
            _ => match SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
                Some(symbol) => (Token::Symbol(symbol), symbol.len()),
                None => {
                    return Err(Refusal::new(query, at, "there is a character that PromQL does not have"));
                }
            },
        };
        match token {
            Token::Symbol("[") => in_brackets = true,
            Token::Symbol("]") => in_brackets = false,
            _ => {}
        }
        found.push(Spanned { token, at });
        at += length;
    }
    Ok(found)
}

/// `[a-zA-Z_:][a-zA-Z0-9_:]*`, the names that need no quotes.
fn is_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || c == ':'
}

fn is_part(c: char) -> bool {
    is_start(c) || c.is_ascii_digit()
}

/// The name of a label that needs no quotes.
pub(super) fn is_label(name: &str) -> bool {
    name.starts_with(|c: char| is_start(c) && c != ':') && name.chars().all(is_variable_part)
}

/// What may follow `$` as part of the name of a variable.
pub(super) fn is_variable_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A number or a duration, and its length. A number that is followed by a letter, such as `1Ki`, is neither.
fn number(rest: &str) -> Option<(Token, usize)> {
    let length = hexadecimal(rest).or_else(|| duration(rest)).or_else(|| decimal(rest))?;
    let (number, after) = rest.split_at(length);
    if after.starts_with(|c| is_part(c) && c != ':' || c == '.') {
        return None;
    }
    let is_duration = !number.starts_with("0x") && number.ends_with(|c| "smhdwy".contains(c));
    let number = number.to_owned();
    Some((if is_duration { Token::Duration(number) } else { Token::Number(number) }, length))
}

fn digits(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())
}

fn hexadecimal(rest: &str) -> Option<usize> {
    let digits = rest.strip_prefix("0x")?;
    let count = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    (count > 0).then_some(2 + count)
}

fn duration(rest: &str) -> Option<usize> {
    let mut length = 0;
    loop {
        let count = digits(&rest[length..]);
        let after = &rest[length + count..];
        match DURATION_UNITS.into_iter().find(|unit| after.starts_with(unit)) {
            Some(unit) if count > 0 => length += count + unit.len(),
            _ => return (length > 0).then_some(length),
        }
    }
}

fn decimal(rest: &str) -> Option<usize> {
    let whole = digits(rest);
    let mut length = whole;
    if rest[length..].starts_with('.') {
        length += 1 + digits(&rest[length + 1..]);
    }
    if length < 1 || &rest[..length] == "." {
        return None;
    }
    if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let count = digits(&exponent[sign..]);
        if count > 0 {
            length += 1 + sign + count;
        }
    }
    Some(length)
}

/// A decoded string, and its length in the query.
fn text(rest: &str, quote: char) -> Result<(Token, usize), &'static str> {
    const OPEN: &str = "a string is not closed";
    let mut decoded = Vec::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => {
                let decoded = String::from_utf8(decoded).map_err(|_| "a string is not UTF-8")?;
                return Ok((Token::Text(decoded), at + 1));
            }
            '\\' if quote != '`' => {
                let (_, escape) = chars.next().ok_or(OPEN)?;
                let bytes = escaped(escape, quote, &mut chars).ok_or("a string has an unknown escape")?;
                decoded.extend_from_slice(&bytes);
            }
            '\n' if quote != '`' => return Err(OPEN),
            _ => decoded.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Err(OPEN)
}

/// The bytes of an escape as Go reads it.
fn escaped(escape: char, quote: char, chars: &mut impl Iterator<Item = (usize, char)>) -> Option<Vec<u8>> {
    let mut coded = |first: Option<char>, count: usize, radix: u32| {
        let mut code = first.map_or(Some(0), |digit| digit.to_digit(radix))?;
        for _ in 0..count {
            code = code.checked_mul(radix)?.checked_add(chars.next()?.1.to_digit(radix)?)?;
        }
        Some(code)
    };
    Some(match escape {
        'a' => vec![0x07],
        'b' => vec![0x08],
        'f' => vec![0x0c],
        'n' => vec![b'\n'],
        'r' => vec![b'\r'],
        't' => vec![b'\t'],
        'v' => vec![0x0b],
        '\\' => vec![b'\\'],
        _ if escape == quote => vec![u8::try_from(quote).ok()?],
        'x' => vec![u8::try_from(coded(None, 2, 16)?).ok()?],
        '0'..='7' => vec![u8::try_from(coded(Some(escape), 2, 8)?).ok()?],
        'u' => char::from_u32(coded(None, 4, 16)?)?.to_string().into_bytes(),
        'U' => char::from_u32(coded(None, 8, 16)?)?.to_string().into_bytes(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(query: &str) -> Vec<Token> {
        tokens(query).unwrap().into_iter().map(|spanned| spanned.token).collect()
    }

    #[test]
    fn strings_are_decoded_as_go_reads_them() {
        for (query, decoded) in [
            (r#""a\"b""#, "a\"b"),
            (r"'a\'b'", "a'b"),
            (r#"'a"b'"#, "a\"b"),
            (r"`a\nb`", r"a\nb"),
            (r#""\x41\101\u0041\U00000041""#, "AAAA"),
            (r#""\xc3\xa9""#, "é"),
            (r#""}""#, "}"),
        ] {
            assert_eq!(kinds(query), [Token::Text(decoded.to_owned())], "{query}");
        }
        for wrong in [
            "\"a",
            "'a",
            "`a",
            "\"a\nb\"",
            r#""\q""#,
            r#""\'""#,
            r#"'\"'"#,
            r#""\xff""#,
            r#""\400""#,
            r#""\ud800""#,
            r#""\U00110000""#,
            r#""\u12""#,
            r#""\"#,
        ] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_and_durations_are_kept_as_written() {
        for number in ["1", "1.5", ".5", "5.", "1e3", "1E-3", "0x1F", "007"] {
            assert_eq!(kinds(number), [Token::Number(number.to_owned())], "{number}");
        }
        for duration in ["5m", "1h30m", "1500ms", "1y2w3d"] {
            assert_eq!(kinds(duration), [Token::Duration(duration.to_owned())], "{duration}");
        }
        for other in ["1Ki", "1_000", "5mm", "1.2.3", ".", "0x", "5m3", "1.5h", "1e", "0b1"] {
            assert!(tokens(other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_colon_belongs_to_a_name_except_within_brackets() {
        assert_eq!(kinds("a:b"), [Token::Word("a:b".to_owned())]);
        let step = [
            Token::Symbol("["),
            Token::Duration("5m".to_owned()),
            Token::Symbol(":"),
            Token::Duration("1m".to_owned()),
            Token::Symbol("]"),
        ];
        assert_eq!(kinds("[5m:1m]"), step);
    }

    #[test]
    fn comments_end_with_their_line() {
        assert_eq!(kinds("a # b \" {\n"), [Token::Word("a".to_owned())]);
        assert_eq!(kinds("# a"), []);
    }

    #[test]
    fn other_characters_are_refused_with_their_position() {
        let refused = tokens("é;").unwrap_err();
        assert_eq!(refused.position, 1);
        assert_eq!(tokens("a ;").unwrap_err().position, 3);
    }
}
