//! Parts of a text of the storage, bounded while they are parsed: a short text may stand for many values.

use std::{fmt, io, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

/// Bytes of a manifest: one of the most files whose paths have 300 bytes on average.
pub(crate) const LARGEST_MANIFEST: u64 = 4 << 20;

pub(crate) fn beyond_manifest() -> io::Error {
    beyond(format!(
        "the paths of the files of the state have more than {} MiB together",
        LARGEST_MANIFEST >> 20
    ))
}

/// A limit of a state.
pub(super) fn beyond(what: String) -> io::Error {
    let message = format!("{what}, and nothing is saved: let the worker keep less");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// A string of at most so many bytes.
pub(super) fn short<'de, D: Deserializer<'de>, const MOST: usize>(text: D) -> Result<String, D::Error> {
    struct Short<const MOST: usize>;
    impl<const MOST: usize> Visitor<'_> for Short<MOST> {
        type Value = String;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "a string of at most {MOST} bytes")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            if text.len() <= MOST { Ok(text.to_owned()) } else { Err(E::invalid_length(text.len(), &self)) }
        }
    }
    text.deserialize_str(Short::<MOST>)
}

/// At most so many values.
pub(crate) fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(
    values: D,
) -> Result<Vec<T>, D::Error> {
    struct Few<T, const MOST: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Few<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "at most {MOST} values")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Vec<T>, A::Error> {
            let mut read = Vec::new();
            while let Some(value) = values.next_element()? {
                if read.len() == MOST {
                    return Err(A::Error::invalid_length(MOST + 1, &self));
                }
                read.push(value);
            }
            Ok(read)
        }
    }
    values.deserialize_seq(Few::<T, MOST>(PhantomData))
}

/// Whether no array or object of a text is deeper than `most` in others. A parser keeps a byte for each level, also of a
/// field that it skips.
pub(crate) fn is_nested_within(text: &[u8], most: usize) -> bool {
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most {
            return false;
        }
    }
    true
}

/// uids of at most so many workers.
pub(super) fn uids<'de, D: Deserializer<'de>, const MOST: usize>(uids: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct Uid(#[serde(deserialize_with = "short::<_, 64>")] String);
    let read: Vec<Uid> = few::<D, Uid, MOST>(uids)?;
    Ok(read.into_iter().map(|Uid(uid)| uid).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::is_nested_within;
    use crate::checkpoint::Manifest;

    fn is_read(manifest: serde_json::Value) -> bool {
        serde_json::from_value::<Manifest>(manifest).is_ok()
    }

    #[test]
    fn the_depth_of_a_text_is_that_of_its_arrays_and_objects() {
        for (text, depth) in [
            ("", 0),
            ("1", 0),
            (r#"{"a":[{"b":[]}],"c":{}}"#, 4),
            ("[[[", 3),
            ("[],[],[]", 1),
            ("]]][", 1),
            (r#"["[[\"[[\\",[]]"#, 2),
        ] {
            assert!(is_nested_within(text.as_bytes(), depth), "{text}");
            assert!(depth == 0 || !is_nested_within(text.as_bytes(), depth - 1), "{text}");
        }
    }

    #[test]
    fn a_manifest_has_bounded_parts() {
        let file = |path: usize| json!({"path": "p".repeat(path), "size": 1, "sha256": "0".repeat(64)});
        assert!(is_read(json!({"files": vec![file(1024); 10], "continues": ["a"]})));
        assert!(!is_read(json!({"files": [file(1025)]})));
        assert!(!is_read(json!({"files": vec![file(1); 10_001]})));
        assert!(!is_read(json!({"files": [{"path": "p", "size": 1, "sha256": "0".repeat(65)}]})));
        assert!(!is_read(json!({"continues": vec![""; 1_001]})));
        assert!(!is_read(json!({"continues": ["u".repeat(65)]})));
    }
}
