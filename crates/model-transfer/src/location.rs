//! Parses `s3://bucket/prefix`, with the grammar by which the API server validates users' objects. It accesses no store and
//! no folder.

use std::{fmt, str::FromStr};

use api::aiinference::source::ModelSource;

/// A bucket, and the folder in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) bucket: String,
    /// Without slashes at its beginning and end; empty for the whole bucket.
    pub(crate) prefix: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a location: write s3://bucket or s3://bucket/prefix, without spaces, empty and relative segments"
)]
pub(crate) struct InvalidLocation(String);

impl Location {
    /// See [`ModelSource::gguf_file`].
    pub(crate) fn gguf_file(&self) -> Option<String> {
        let Self { bucket, prefix } = self.clone();
        ModelSource::Store { bucket, prefix }.gguf_file().map(str::to_owned)
    }
}

impl FromStr for Location {
    type Err = InvalidLocation;

    fn from_str(text: &str) -> Result<Self, InvalidLocation> {
        match text.parse() {
            Ok(ModelSource::Store { bucket, prefix }) => Ok(Self { bucket, prefix }),
            // A claim is mounted and not copied.
            Ok(ModelSource::Claim { .. }) | Err(_) => Err(InvalidLocation(text.to_owned())),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, prefix } = self;
        match prefix.as_str() {
            "" => write!(f, "s3://{bucket}"),
            prefix => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_bucket_and_perhaps_a_prefix() {
        for (text, bucket, prefix) in [
            ("s3://models", "models", ""),
            ("s3://models/", "models", ""),
            ("s3://my.models-1/qwen/Qwen-7B-Chat/", "my.models-1", "qwen/Qwen-7B-Chat"),
            ("s3://m/a=b&c", "m", "a=b&c"),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!((location.bucket.as_str(), location.prefix.as_str()), (bucket, prefix));
        }
    }

    #[test]
    fn it_takes_what_the_api_server_takes_of_stores_and_nothing_else() {
        for (text, spelling) in api::aiinference::source::EXAMPLES {
            let spelling = spelling.filter(|spelling| spelling.starts_with("s3://"));
            let read = text.parse::<Location>().map(|location| location.to_string());
            assert_eq!(read, spelling.map(str::to_owned).ok_or_else(|| InvalidLocation((*text).to_owned())));
        }
    }
}
