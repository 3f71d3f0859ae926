//! Examines files of safetensors by their header: eight bytes with its length, then JSON with the place of each
//! tensor. Tensors are not read.

use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io::{self, BufReader, Read as _},
    path::Path,
};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// The longest header that the format allows.
const LONGEST_HEADER: u64 = 100_000_000;
const LENGTH: u64 = 8;

/// Whether the file ends where its last tensor ends.
pub(super) fn is_whole(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut length = [0; LENGTH as usize];
    match file.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER {
        return Ok(false);
    }
    match serde_json::from_reader::<_, DataEnd>(BufReader::new(file.take(length))) {
        Ok(DataEnd(end)) => {
            Ok(LENGTH.checked_add(length).and_then(|header| header.checked_add(end)) == Some(size))
        }
        Err(error) if error.is_io() => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// The files that an index names. `None` if the index is not complete.
pub(super) fn shards(index: &Path) -> io::Result<Option<BTreeSet<String>>> {
    match serde_json::from_reader::<_, Index>(BufReader::new(File::open(index)?)) {
        Ok(index) => Ok(Some(index.weight_map.0)),
        Err(error) if error.is_io() => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// Where the last tensor ends, behind the header.
struct DataEnd(u64);

#[derive(Deserialize)]
struct Tensor {
    /// Absent in the entry `__metadata__`.
    data_offsets: Option<(u64, u64)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: Files,
}

/// The values of a map, each once: an index has an entry for each tensor.
struct Files(BTreeSet<String>);

impl<'de> Deserialize<'de> for DataEnd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;

        impl<'de> Visitor<'de> for Header {
            type Value = DataEnd;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the header of a safetensors file")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DataEnd, A::Error> {
                let mut end = 0;
                while let Some((IgnoredAny, tensor)) = map.next_entry::<IgnoredAny, Tensor>()? {
                    end = tensor.data_offsets.map_or(end, |(_, tensor_end)| end.max(tensor_end));
                }
                Ok(DataEnd(end))
            }
        }

        deserializer.deserialize_map(Header)
    }
}

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WeightMap;

        impl<'de> Visitor<'de> for WeightMap {
            type Value = Files;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the weight map of an index")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Files, A::Error> {
                let mut files = BTreeSet::new();
                while let Some((IgnoredAny, file)) = map.next_entry::<IgnoredAny, String>()? {
                    files.insert(file);
                }
                Ok(Files(files))
            }
        }

        deserializer.deserialize_map(WeightMap)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One tensor of four bytes, after a header that is padded with blanks, as the format allows.
    pub(in super::super) fn file() -> Vec<u8> {
        let header =
            r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   "#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend([0; 4]);
        file
    }

    #[test]
    fn only_a_file_that_ends_with_its_last_tensor_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let whole = file();
        let is_whole = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            is_whole(&path).unwrap()
        };
        assert!(is_whole(&whole));
        for length in 0..whole.len() {
            assert!(!is_whole(&whole[..length]), "{length} bytes");
        }
        assert!(!is_whole(&[whole.as_slice(), &[0]].concat()));
        assert!(!is_whole(&[0; 4096]), "zeros, as a crash may leave them");
        assert!(!is_whole(&[0xff; 4096]));
    }
}
