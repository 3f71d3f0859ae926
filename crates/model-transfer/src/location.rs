//! Parses `s3://bucket/prefix` and the names of models on hubs, with the grammar by which the API server validates users'
//! objects. It accesses no store and no folder.

use std::{fmt, str::FromStr};

use api::aiinference::source::{Hub, ModelSource};

/// What can be pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Store(Location),
    Hub(HubModel),
}

/// A model on a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubModel {
    pub(crate) hub: Hub,
    /// `owner/name`.
    pub(crate) id: String,
    /// A branch, a tag or a commit.
    pub(crate) revision: Option<String>,
}

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

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a source: write s3://bucket/prefix, hf://owner/name@revision or ms://owner/name@revision, without \
     spaces, empty and relative segments"
)]
pub(crate) struct InvalidPullSource(String);

impl Source {
    /// See [`ModelSource::gguf_file`].
    pub(crate) fn gguf_file(&self) -> Option<String> {
        match self {
            Source::Store(location) => location.gguf_file(),
            Source::Hub(_) => None,
        }
    }
}

impl FromStr for Source {
    type Err = InvalidPullSource;

    fn from_str(text: &str) -> Result<Self, InvalidPullSource> {
        match text.parse() {
            Ok(ModelSource::Store { bucket, prefix }) => Ok(Self::Store(Location { bucket, prefix })),
            Ok(ModelSource::Hub { hub, id, revision }) => Ok(Self::Hub(HubModel { hub, id, revision })),
            // A claim is mounted and not copied.
            Ok(ModelSource::Claim { .. }) | Err(_) => Err(InvalidPullSource(text.to_owned())),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Store(location) => location.fmt(f),
            Source::Hub(HubModel { hub, id, revision }) => {
                let (hub, id, revision) = (*hub, id.clone(), revision.clone());
                ModelSource::Hub { hub, id, revision }.fmt(f)
            }
        }
    }
}

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
            // A claim is mounted and not copied, and nothing is pushed to a hub.
            Ok(ModelSource::Claim { .. } | ModelSource::Hub { .. }) | Err(_) => {
                Err(InvalidLocation(text.to_owned()))
            }
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
    fn a_pull_takes_what_the_api_server_takes_of_stores_and_hubs() {
        for (text, spelling) in api::aiinference::source::EXAMPLES {
            let spelling = spelling.filter(|spelling| !spelling.starts_with("pvc://"));
            let read = text.parse::<Source>().map(|source| source.to_string());
            assert_eq!(
                read,
                spelling.map(str::to_owned).ok_or_else(|| InvalidPullSource((*text).to_owned()))
            );
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
