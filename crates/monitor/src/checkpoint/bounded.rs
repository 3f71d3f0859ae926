//! Parts of a text of the storage, bounded while they are parsed: a short text may stand for many values.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};

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

    use crate::checkpoint::Manifest;

    fn is_read(manifest: serde_json::Value) -> bool {
        serde_json::from_value::<Manifest>(manifest).is_ok()
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
