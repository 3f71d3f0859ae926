//! `s3://bucket/prefix`, parsed once. It knows nothing of stores and folders.

use std::{fmt, str::FromStr};

/// A bucket, and the folder in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) bucket: String,
    /// Without slashes at its ends; empty for the whole bucket.
    pub(crate) prefix: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no location: write s3://bucket or s3://bucket/prefix, without empty or relative segments")]
pub(crate) struct NoLocation(String);

impl FromStr for Location {
    type Err = NoLocation;

    fn from_str(text: &str) -> Result<Self, NoLocation> {
        let wrong = || NoLocation(text.to_owned());
        let rest = text.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_bucket = !bucket.is_empty()
            && bucket.starts_with(|first: char| first.is_ascii_alphanumeric())
            && bucket.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char));
        let is_relative = |segment: &str| matches!(segment, "" | "." | "..");
        if !is_bucket
            || prefix.chars().any(char::is_control)
            || (!prefix.is_empty() && prefix.split('/').any(is_relative))
        {
            return Err(wrong());
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
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
    fn anything_else_is_refused() {
        for text in [
            "",
            "models",
            "s3://",
            "s3:///a",
            "http://m/a",
            "s3://m/../a",
            "s3://m//a",
            "s3://m/a\n",
            "s3://a b/c",
        ] {
            assert_eq!(text.parse::<Location>(), Err(NoLocation(text.to_owned())));
        }
    }
}
