//! Parses and writes `SHA256SUMS` in the format of `sha256sum`: one line per file, with digest and relative path. Pure.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::digest::is_hex;

/// At the root of the model; `sha256sum --check SHA256SUMS` in the folder checks it by hand.
pub(crate) const SHA256SUMS: &str = "SHA256SUMS";

/// Path and digest of a line that `push` adds to the list while it runs. No object can have this path: a pull that reads
/// the list fails instead of combining files of two models.
pub(crate) const PUSH_UNDER_WAY: &str = ".model-transfer.push";
const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Limit for the size of the list. A line has about a hundred bytes: room for more files than any model has, and little
/// enough to keep in memory.
pub(crate) const LONGEST: u64 = 16 << 20;

/// Digest in lower case, by path.
pub(crate) type Sums = BTreeMap<String, String>;

/// Fails with the number of the first invalid line.
pub(crate) fn parse(text: &str) -> Result<Sums, usize> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(number, line)| entry(line).ok_or(number + 1)).collect()
}

/// `<digest>  <path>`, or `<digest> *<path>` for files that were read in binary mode.
fn entry(line: &str) -> Option<(String, String)> {
    let (digest, rest) = line.split_once(' ')?;
    let path = rest.strip_prefix(' ').or_else(|| rest.strip_prefix('*'))?;
    let path = path.strip_prefix("./").unwrap_or(path);
    (is_hex(digest, 64) && !path.is_empty()).then(|| (path.to_owned(), digest.to_ascii_lowercase()))
}

/// The list of a push that is under way.
pub(crate) fn under_way(sums: &Sums) -> Sums {
    let mut sums = sums.clone();
    sums.insert(PUSH_UNDER_WAY.to_owned(), NO_DIGEST.to_owned());
    sums
}

pub(crate) fn text(sums: &Sums) -> String {
    sums.iter().fold(String::new(), |mut text, (path, digest)| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{digest}  {path}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn what_sha256sum_writes_is_read() {
        let upper = DIGEST.to_uppercase();
        let read = parse(&format!("{DIGEST}  a b.bin\n{upper} *./sub/c\n\n")).unwrap();
        let paths: Vec<_> = read.iter().map(|(path, digest)| (path.as_str(), digest.as_str())).collect();
        assert_eq!(paths, [("a b.bin", DIGEST), ("sub/c", DIGEST)]);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let sums = Sums::from([("a".to_owned(), DIGEST.to_owned()), (" b  c".to_owned(), DIGEST.to_owned())]);
        assert_eq!(parse(&text(&sums)), Ok(sums));
    }

    #[test]
    fn an_invalid_line_is_named() {
        for line in
            ["x", DIGEST, &format!("{DIGEST} "), &format!("{DIGEST} a"), &format!("{}  a", &DIGEST[1..])]
        {
            assert_eq!(parse(&format!("{DIGEST}  a\n{line}")), Err(2), "{line:?}");
        }
    }
}
