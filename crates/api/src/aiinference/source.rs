//! The location of a model's weights: `s3://bucket[/prefix]`, `pvc://claim[/path]`, `hf://owner/name[@revision]` or
//! `ms://owner/name[@revision]`.
//!
//! The CEL rules and the parser of controllers and loader implement the same grammar; both are tested with [`EXAMPLES`].

use std::{error::Error, fmt, str::FromStr};

use kube::core::Rule;

/// The location of a model in canonical form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A prefix in an S3-compatible store.
    Store {
        bucket: String,
        /// Without a trailing slash; empty for the whole bucket.
        prefix: String,
    },
    /// A folder in a claim.
    Claim {
        name: String,
        /// Without leading and trailing slashes, empty and `.` segments; empty for the root of the volume.
        path: String,
    },
    /// A model by its name on a public hub or a mirror of it.
    Hub {
        hub: Hub,
        /// `owner/name`.
        id: String,
        /// A branch, a tag or a commit; `None` for the hub's default branch.
        revision: Option<String>,
    },
}

/// Where models have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hub {
    HuggingFace,
    ModelScope,
}

impl Hub {
    pub const ALL: [Hub; 2] = [Hub::HuggingFace, Hub::ModelScope];

    /// The beginning of a source.
    pub fn scheme(self) -> &'static str {
        match self {
            Hub::HuggingFace => "hf://",
            Hub::ModelScope => "ms://",
        }
    }

    /// The branch of a source without a revision.
    pub fn default_branch(self) -> &'static str {
        match self {
            Hub::HuggingFace => "main",
            Hub::ModelScope => "master",
        }
    }

    /// The public hub.
    pub fn default_endpoint(self) -> &'static str {
        match self {
            Hub::HuggingFace => "https://huggingface.co",
            Hub::ModelScope => "https://www.modelscope.cn",
        }
    }
}

/// Why a text is not a model source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSource {
    text: String,
    why: &'static str,
}

impl ModelSource {
    /// The name of the file, where the source is one file in the format GGUF, which vLLM takes instead of a folder.
    pub fn gguf_file(&self) -> Option<&str> {
        let path = match self {
            ModelSource::Store { prefix: path, .. } | ModelSource::Claim { path, .. } => path,
            ModelSource::Hub { .. } => return None,
        };
        path.rsplit('/').next().filter(|name| name.ends_with(GGUF))
    }
}

impl FromStr for ModelSource {
    type Err = InvalidSource;

    fn from_str(text: &str) -> Result<Self, InvalidSource> {
        parse(text).map_err(|why| InvalidSource { text: text.to_owned(), why })
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, container, folder) = match self {
            ModelSource::Store { bucket, prefix } => (S3, bucket, prefix),
            ModelSource::Claim { name, path } => (PVC, name, path),
            ModelSource::Hub { hub, id, revision } => {
                let revision = revision.as_ref().map_or(String::new(), |revision| format!("@{revision}"));
                return write!(f, "{}{id}{revision}", hub.scheme());
            }
        };
        match folder.as_str() {
            "" => write!(f, "{scheme}{container}"),
            folder => write!(f, "{scheme}{container}/{folder}"),
        }
    }
}

impl fmt::Display for InvalidSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, why } = self;
        write!(
            f,
            "{text:?} {why}: use s3://bucket/prefix, pvc://claim/path, hf://owner/name@revision or \
             ms://owner/name@revision"
        )
    }
}

impl Error for InvalidSource {}

/// Maximum length in characters.
pub const MAX_LENGTH: u32 = 1024;

/// At the end of the name of such a file.
pub const GGUF: &str = ".gguf";

const S3: &str = "s3://";
const PVC: &str = "pvc://";

/// Ranges (first, last) of whitespace, control characters and invisible characters.
const INVISIBLE: [(char, char); 11] = [
    ('\0', ' '),
    ('\u{7f}', '\u{a0}'),
    ('\u{ad}', '\u{ad}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{2000}', '\u{200f}'),
    ('\u{2028}', '\u{202f}'),
    ('\u{205f}', '\u{206f}'),
    ('\u{3000}', '\u{3000}'),
    ('\u{feff}', '\u{feff}'),
];

fn parse(text: &str) -> Result<ModelSource, &'static str> {
    if text.chars().count() > MAX_LENGTH as usize {
        return Err("has more than 1024 characters");
    }
    if text.contains("..") || text.chars().any(is_invisible) {
        return Err("contains '..', whitespace or control characters");
    }
    if let Some(rest) = text.strip_prefix(S3) {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let ends_with_slash = prefix.strip_suffix('/');
        let prefix = ends_with_slash.unwrap_or(prefix);
        if !is_bucket(bucket) {
            return Err("names no bucket");
        }
        let is_whole_bucket = prefix.is_empty() && ends_with_slash.is_none();
        if !is_whole_bucket && prefix.split('/').any(|segment| matches!(segment, "" | ".")) {
            return Err("has an empty or '.' segment");
        }
        return Ok(ModelSource::Store { bucket: bucket.to_owned(), prefix: prefix.to_owned() });
    }
    if let Some(rest) = text.strip_prefix(PVC) {
        let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !is_object_name(name) {
            return Err("names no claim");
        }
        let segments: Vec<&str> = path.split('/').filter(|segment| !matches!(*segment, "" | ".")).collect();
        return Ok(ModelSource::Claim { name: name.to_owned(), path: segments.join("/") });
    }
    for hub in Hub::ALL {
        if let Some(rest) = text.strip_prefix(hub.scheme()) {
            return of_hub(hub, rest);
        }
    }
    Err("has no known scheme")
}

fn of_hub(hub: Hub, rest: &str) -> Result<ModelSource, &'static str> {
    let (id, revision) = match rest.split_once('@') {
        Some((id, revision)) => (id, Some(revision)),
        None => (rest, None),
    };
    let is_id = id.split_once('/').is_some_and(|(owner, name)| is_hub_name(owner) && is_hub_name(name));
    if !is_id {
        return Err("names no model of a hub");
    }
    if revision.is_some_and(|revision| !revision.split('/').all(is_part_of_revision)) {
        return Err("names no revision");
    }
    Ok(ModelSource::Hub { hub, id: id.to_owned(), revision: revision.map(str::to_owned) })
}

/// As [`HUB_NAME`].
fn is_hub_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char))
}

/// As [`PART_OF_REVISION`].
fn is_part_of_revision(text: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '_';
    text.starts_with(is_plain) && text.chars().all(|char| is_plain(char) || ".+-".contains(char))
}

fn is_invisible(char: char) -> bool {
    INVISIBLE.iter().any(|(first, last)| (*first..=*last).contains(&char))
}

fn is_bucket(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char))
}

fn is_object_name(text: &str) -> bool {
    let is_alphanumeric = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
    text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text.chars().all(|char| is_alphanumeric(char) || ".-".contains(char))
}

/// The owner or the name of a model on a hub.
const HUB_NAME: &str = "[A-Za-z0-9][A-Za-z0-9._-]*";
/// Between the slashes of a branch or tag.
const PART_OF_REVISION: &str = "[A-Za-z0-9_][A-Za-z0-9._+-]*";

/// Checks the scheme and the name of the bucket, the claim or the model on a hub.
pub(crate) fn location_rule() -> Rule {
    let (bucket, claim) = ("s3://[A-Za-z0-9][A-Za-z0-9._-]*", "pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?");
    let hub = format!("(hf|ms)://{HUB_NAME}/{HUB_NAME}(@{PART_OF_REVISION}(/{PART_OF_REVISION})*)?");
    Rule::new(format!("self.matches(r'^(({bucket}|{claim})(/|$)|{hub}$)')")).message(
        "must be s3://bucket, s3://bucket/prefix, pvc://claim, pvc://claim/path, hf://owner/name, ms://owner/name, or \
         one of the last two with @revision",
    )
}

/// As `location_rule`, and `owner/name[@revision]`, whose hub or library the controller knows.
pub(crate) fn endpoint_rule() -> Rule {
    Rule::new(format!("self.matches(r'{}')", endpoint_pattern())).message(
        "must be owner/name, hf://owner/name, ms://owner/name, one of these with @revision, s3://bucket/prefix or \
         pvc://claim/path",
    )
}

/// The regular expression of [`endpoint_rule`].
pub(crate) fn endpoint_pattern() -> String {
    let (bucket, claim) = ("s3://[A-Za-z0-9][A-Za-z0-9._-]*", "pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?");
    let model = format!("{HUB_NAME}/{HUB_NAME}(@{PART_OF_REVISION}(/{PART_OF_REVISION})*)?");
    format!("^(({bucket}|{claim})(/|$)|((hf|ms)://)?{model}$)")
}

pub(crate) fn characters_rule() -> Rule {
    let invisible: String = INVISIBLE
        .iter()
        .map(|(first, last)| format!(r"\x{{{:x}}}-\x{{{:x}}}", u32::from(*first), u32::from(*last)))
        .collect();
    Rule::new(format!("!self.contains('..') && !self.matches(r'[{invisible}]')"))
        .message("must not contain '..', whitespace or control characters")
}

/// In a store, `a//b` and `a/./b` are different keys than `a/b`.
pub(crate) fn segments_rule() -> Rule {
    Rule::new(r"!self.matches(r'^s3://.*[^/]/(\.?/|\.$)')")
        .message("must not contain an empty or '.' segment: use s3://bucket/prefix")
}

/// Test cases for every implementation of the grammar: a text, and its canonical form if it is valid.
pub const EXAMPLES: &[(&str, Option<&str>)] = &[
    ("s3://models", Some("s3://models")),
    ("s3://m", Some("s3://m")),
    ("s3://models/", Some("s3://models")),
    ("s3://models/qwen/", Some("s3://models/qwen")),
    ("s3://My.models-1_a/qwen/Qwen-7B-Chat", Some("s3://My.models-1_a/qwen/Qwen-7B-Chat")),
    ("s3://m/a=b&c%20d+e,f;g@h", Some("s3://m/a=b&c%20d+e,f;g@h")),
    ("s3://m/.hidden/a.", Some("s3://m/.hidden/a.")),
    ("s3://m/ä/模型", Some("s3://m/ä/模型")),
    ("s3://m/pvc://a", None),
    ("s3://m/a:/b", Some("s3://m/a:/b")),
    ("pvc://models", Some("pvc://models")),
    ("pvc://models/", Some("pvc://models")),
    ("pvc://models//", Some("pvc://models")),
    ("pvc://my-claim.v2/qwen", Some("pvc://my-claim.v2/qwen")),
    ("pvc://models/a//b/./c/", Some("pvc://models/a/b/c")),
    ("pvc://models/.", Some("pvc://models")),
    ("pvc://models/Path/.hidden", Some("pvc://models/Path/.hidden")),
    ("pvc://0", Some("pvc://0")),
    ("hf://Qwen/Qwen2.5-7B_Instruct", Some("hf://Qwen/Qwen2.5-7B_Instruct")),
    ("hf://a/b@main", Some("hf://a/b@main")),
    ("hf://a/b@refs/pr/1", Some("hf://a/b@refs/pr/1")),
    ("hf://a/b@v1.0+gguf-4", Some("hf://a/b@v1.0+gguf-4")),
    (
        "hf://a/b@0123456789abcdef0123456789abcdef01234567",
        Some("hf://a/b@0123456789abcdef0123456789abcdef01234567"),
    ),
    ("ms://qwen/Qwen-7B-Chat", Some("ms://qwen/Qwen-7B-Chat")),
    ("ms://qwen/Qwen-7B-Chat@master", Some("ms://qwen/Qwen-7B-Chat@master")),
    ("", None),
    ("models", None),
    ("models/qwen", None),
    ("gs://models", None),
    ("http://host/x", None),
    ("S3://models", None),
    (" s3://models", None),
    ("s3:/models", None),
    ("s3://", None),
    ("s3:///prefix", None),
    ("s3://-m", None),
    ("s3://a b/c", None),
    ("s3://m:9000/a", None),
    ("s3://m//", None),
    ("s3://m//q", None),
    ("s3://m/./q", None),
    ("s3://m/q//", None),
    ("s3://m/q/.", None),
    ("s3://m/a://b", None),
    ("s3://m/../q", None),
    ("s3://m/a..b", None),
    ("s3://m/a\u{2028}b", None),
    ("s3://m/a\u{200b}b", None),
    ("s3://m/a\u{7}", None),
    ("s3://m/a\n", None),
    ("pvc://", None),
    ("pvc://Models/a", None),
    ("pvc://models-/a", None),
    ("pvc://models/../b", None),
    ("hf://", None),
    ("hf://gpt2", None),
    ("hf://a/", None),
    ("hf:///b", None),
    ("hf://a/b/", None),
    ("hf://a/b/c", None),
    ("hf://a/b/c@main", None),
    ("hf://-a/b", None),
    ("hf://a/.b", None),
    ("hf://a/b c", None),
    ("hf://a/b@", None),
    ("hf://a/b@/main", None),
    ("hf://a/b@main/", None),
    ("hf://a/b@a//b", None),
    ("hf://a/b@a/.b", None),
    ("hf://a/b@a..b", None),
    ("hf://a/b@a@b", None),
    ("hf://a/b@a?b", None),
    ("hf://a/b#main", None),
    ("hf://a/b@main\n", None),
    ("hf://ä/b", None),
    ("HF://a/b", None),
    ("ms://a", None),
    ("ms://a/b@-x", None),
    ("ms://s3://a/b", None),
];

#[cfg(test)]
mod tests {
    use super::{EXAMPLES, MAX_LENGTH, ModelSource};

    #[test]
    fn every_example_is_parsed_or_refused() {
        for (text, canonical) in EXAMPLES {
            let read = text.parse::<ModelSource>().ok().map(|source| source.to_string());
            assert_eq!(read.as_deref(), *canonical, "{text:?}");
        }
    }

    #[test]
    fn display_and_parse_are_inverse() {
        for (text, _) in EXAMPLES {
            let Ok(source) = text.parse::<ModelSource>() else { continue };
            assert_eq!(source.to_string().parse(), Ok(source));
        }
    }

    #[test]
    fn a_source_has_a_container_and_a_folder() {
        let store = ModelSource::Store { bucket: "m".into(), prefix: "a/b".into() };
        let claim = ModelSource::Claim { name: "m".into(), path: "a/b".into() };
        assert_eq!("s3://m/a/b/".parse(), Ok(store));
        assert_eq!("pvc://m/./a//b".parse(), Ok(claim));
        let store = ModelSource::Store { bucket: "m".into(), prefix: String::new() };
        let claim = ModelSource::Claim { name: "m".into(), path: String::new() };
        assert_eq!("s3://m/".parse(), Ok(store));
        assert_eq!("pvc://m/".parse(), Ok(claim));
    }

    #[test]
    fn a_source_that_ends_in_gguf_is_a_file() {
        let file = |text: &str| text.parse::<ModelSource>().unwrap().gguf_file().map(str::to_owned);
        assert_eq!(file("s3://m/qwen/q4.gguf").as_deref(), Some("q4.gguf"));
        assert_eq!(file("s3://m/q4.gguf").as_deref(), Some("q4.gguf"));
        assert_eq!(file("pvc://m/qwen/q4.gguf").as_deref(), Some("q4.gguf"));
        for folder in ["s3://m.gguf", "pvc://m.gguf", "s3://m/q4.gguf.d", "s3://m/a.gguf/b", "s3://m"] {
            assert_eq!(file(folder), None, "{folder}");
        }
    }

    #[test]
    fn the_length_is_counted_in_characters() {
        let of = |count: usize| format!("s3://{}", "ä".repeat(count).replacen("ää", "m/", 1));
        let longest = MAX_LENGTH as usize - "s3://".len();
        assert!(of(longest).parse::<ModelSource>().is_ok());
        let refused = of(longest + 1).parse::<ModelSource>().unwrap_err().to_string();
        assert!(refused.contains("has more than 1024 characters: use s3://"), "{refused}");
    }

    #[test]
    fn an_error_names_the_text_the_reason_and_the_fix() {
        let refused = |text: &str| text.parse::<ModelSource>().unwrap_err().to_string();
        let fix = "use s3://bucket/prefix, pvc://claim/path, hf://owner/name@revision or \
                   ms://owner/name@revision";
        for (text, why) in [
            ("s3://m//q", "has an empty or '.' segment"),
            ("s3://", "names no bucket"),
            ("pvc:///x", "names no claim"),
            ("models", "has no known scheme"),
            ("hf://gpt2", "names no model of a hub"),
            ("ms://a/b@", "names no revision"),
            ("s3://m/a b", "contains '..', whitespace or control characters"),
        ] {
            assert_eq!(refused(text), format!("{text:?} {why}: {fix}"));
        }
    }
}
