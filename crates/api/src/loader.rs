//! The interface between controllers and the model loader: options, timeouts and exit codes.
//!
//! Controllers set the options on an init container. The exit code of the loader is the reason of a missing model, and its
//! termination message the details.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::reasons;

/// Names of options, without dashes.
pub mod options {
    pub const ADDRESSING: &str = "addressing";
    pub const CA_FILE: &str = "ca-file";
    pub const ENGINE: &str = "engine";
    pub const EXCLUDE: &str = "exclude";
    pub const HUB_ENDPOINT: &str = "hub-endpoint";
    pub const INCLUDE: &str = "include";
    pub const INSTALL: &str = "install";
    pub const MANIFEST_DIGEST: &str = "manifest-digest";
    pub const NO_SYNC: &str = "no-sync";
    pub const ROOT: &str = "root";
    pub const SIZE_LIMIT: &str = "size-limit";
}

/// URL of the hub of an hf:// or ms:// source. Default: the public hub.
pub const HUB_ENDPOINT: &str = "TRANSFER_HUB_ENDPOINT";
/// Token of the hub. A variable and no option, because arguments are visible to every process of the machine.
pub const HUB_TOKEN: &str = "TRANSFER_HUB_TOKEN";

/// Begins what the liveness probe of an engine that stalls writes to the termination log.
pub const STALLED: &str = "EngineStalled: ";

/// The field of a user's object whose fields describe the store; messages name them. A variable, because programs of
/// earlier releases refuse an option that they do not know.
pub const FIELDS: &str = "TRANSFER_FIELDS";
/// Its default.
pub const MODEL_STORE: &str = "spec.modelStore";

/// What pods of each revision have loaded: lines of a revision, a space and a digest. Of a model of a hub there are also lines
/// of a revision, a space and `commit:` with the commit. It is a key of a ConfigMap. Digests are absent while no pod serves.
pub const DIGESTS: &str = "TRANSFER_MODEL_DIGESTS";
/// The revision of the loader's own pod.
pub const REVISION: &str = "TRANSFER_REVISION";

/// Seconds that a transfer may take.
pub const TIMEOUT: Setting = Setting { variable: "TRANSFER_TIMEOUT_SECONDS", default: 3_600 };
/// Seconds without progress after which a transfer fails.
pub const PATIENCE: Setting = Setting { variable: "TRANSFER_PATIENCE_SECONDS", default: 180 };
/// Seconds without a received byte after which a request is repeated.
pub const STALL: Setting = Setting { variable: "TRANSFER_STALL_SECONDS", default: 30 };
/// Longest pause between two attempts of the loader.
pub const LONGEST_STEP: Duration = Duration::from_secs(30);

/// A default in seconds, and the environment variable that overrides it.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub variable: &'static str,
    pub default: u64,
}

/// Time for the last request and the exit of the process.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Upper bound of the stall timeout.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The time without progress after which the loader fails. Shorter than `timeout`, because the error of a timeout would not
/// name the cause.
pub fn patience(patience: Duration, timeout: Duration) -> Duration {
    patience.min(timeout / 4 * 3)
}

/// The maximum duration of a run of the loader without progress: a run that takes longer has overcome the fault of the
/// previous run. `value`: the value of an environment variable in seconds, if it is set.
pub fn stall_timeout(value: impl Fn(&str) -> Option<u64>) -> Duration {
    let [timeout, waits, stall] = [TIMEOUT, PATIENCE, STALL]
        .map(|setting| Duration::from_secs(value(setting.variable).unwrap_or(setting.default)));
    // The patience may end during a pause, after which there is one more request.
    let last = LONGEST_STEP.saturating_add(stall);
    patience(waits, timeout).saturating_add(last).min(timeout).saturating_add(ENDS_WITHIN).min(LONGEST)
}

/// Why the loader failed. The numbers are a contract between images of different releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The command line or the environment of the loader is invalid: a fault of the controller, not of the user.
    Usage = 2,
    SourceUnauthorized = 10,
    SourceNotFound = 11,
    SourceUnreachable = 12,
    ChecksumMismatch = 13,
    OutOfSpace = 14,
    /// The model is not the one that the other pods of the revision have loaded.
    ModelChanged = 15,
}

impl ExitCode {
    pub const ALL: [ExitCode; 7] = [
        ExitCode::Usage,
        ExitCode::SourceUnauthorized,
        ExitCode::SourceNotFound,
        ExitCode::SourceUnreachable,
        ExitCode::ChecksumMismatch,
        ExitCode::OutOfSpace,
        ExitCode::ModelChanged,
    ];

    /// The exit code of a terminated container, if the loader defines it.
    pub fn from_code(code: i32) -> Option<ExitCode> {
        ExitCode::ALL.into_iter().find(|known| known.code() == code)
    }

    /// The number in the state of a container.
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }

    /// Reason of the failed condition. A usage error counts as a crash.
    pub fn reason(self) -> &'static str {
        match self {
            ExitCode::Usage => reasons::CRASH_LOOP,
            ExitCode::SourceUnauthorized => reasons::SOURCE_UNAUTHORIZED,
            ExitCode::SourceNotFound => reasons::SOURCE_NOT_FOUND,
            ExitCode::SourceUnreachable => reasons::SOURCE_UNREACHABLE,
            ExitCode::ChecksumMismatch => reasons::CHECKSUM_MISMATCH,
            ExitCode::OutOfSpace => reasons::OUT_OF_SPACE,
            ExitCode::ModelChanged => reasons::MODEL_CHANGED,
        }
    }
}

/// What a loader reports in its termination message when the model is in place, as JSON.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub struct Loaded {
    /// `sha256:` and the hexadecimal SHA-256 of the list of its files. The same model in the same place has the same digest.
    pub digest: String,
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Of a model of a hub: the commit that its revision was resolved to, in hexadecimal. Empty for other sources, and if
    /// the hub does not name it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub commit: String,
}

/// Before the commit in a line of [`DIGESTS`].
const COMMIT: &str = "commit:";

impl Loaded {
    pub fn message(&self) -> String {
        // Strings and numbers; serialization cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// `None` for any other message, such as that of an older release.
    pub fn of_message(message: &str) -> Option<Self> {
        let loaded: Self = serde_json::from_str(message).ok()?;
        let has_commit = loaded.commit.is_empty() || is_commit(&loaded.commit);
        (is_digest(&loaded.digest) && has_commit).then_some(loaded)
    }

    /// The line of the commit of this revision in [`DIGESTS`].
    pub fn commit_line(revision: &str, commit: &str) -> String {
        format!("{revision} {COMMIT}{commit}\n")
    }

    /// The commit of a revision in [`DIGESTS`].
    pub fn commit_of<'d>(digests: &'d str, revision: &str) -> Option<&'d str> {
        let mut lines = digests.lines().filter_map(|line| line.split_once(' '));
        lines.find_map(|(known, text)| {
            text.strip_prefix(COMMIT).filter(|commit| known == revision && is_commit(commit))
        })
    }

    /// The line of this revision in [`DIGESTS`].
    pub fn line(revision: &str, digest: &str) -> String {
        format!("{revision} {digest}\n")
    }

    /// The digest of a revision in [`DIGESTS`].
    pub fn digest_of<'d>(digests: &'d str, revision: &str) -> Option<&'d str> {
        let mut lines = digests.lines().filter_map(|line| line.split_once(' '));
        lines.find_map(|(known, digest)| (known == revision && is_digest(digest)).then_some(digest))
    }
}

/// Whether it is the name of a commit: SHA-1, or SHA-256 in newer repositories, in hexadecimal.
pub fn is_commit(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:");
    digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// What an upload reports in its termination message: JSON of at most `Uploaded::LONGEST` bytes.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Uploaded {
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of all files.
    pub count: usize,
    /// SHA-256 of SHA256SUMS, in hexadecimal.
    pub manifest_digest: String,
    /// Size of SHA256SUMS; 0 in reports of uploaders that do not know it.
    pub manifest_bytes: u64,
    /// The largest files, as many as fit.
    pub files: Vec<UploadedFile>,
}

/// A file at the destination.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub struct UploadedFile {
    /// Below the destination.
    pub path: String,
    pub bytes: u64,
    /// In hexadecimal.
    pub sha256: String,
}

impl Uploaded {
    /// The longest termination message that a kubelet reads.
    const LONGEST: usize = 4_096;

    /// The termination message.
    pub fn message(mut self) -> String {
        self.files.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.path.cmp(&other.path)));
        loop {
            let text = serde_json::to_string(&self).unwrap_or_default();
            if text.len() <= Self::LONGEST || self.files.pop().is_none() {
                return text;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_as_many_of_the_largest_files_as_fit() {
        let file = |bytes: u64| UploadedFile { path: format!("part-{bytes}"), bytes, sha256: "a".repeat(64) };
        let whole = Uploaded {
            bytes: 3,
            count: 2,
            manifest_digest: "b".into(),
            manifest_bytes: 5,
            files: vec![file(1), file(2)],
        };
        let read: Uploaded = serde_json::from_str(&whole.message()).unwrap();
        assert_eq!((read.count, read.files.len(), &*read.files[0].path), (2, 2, "part-2"));
        assert_eq!(read.manifest_bytes, 5);
        let many = Uploaded { files: (0..200).map(file).collect(), ..Uploaded::default() };
        let text = many.message();
        let read: Uploaded = serde_json::from_str(&text).unwrap();
        assert!(
            text.len() <= Uploaded::LONGEST && read.files.len() > 20 && read.files[0].bytes == 199,
            "{text}"
        );
    }

    #[test]
    fn a_digest_is_found_by_its_revision_and_nothing_else_counts_as_one() {
        let [one, other] = ["a", "b"].map(|digit| format!("sha256:{}", digit.repeat(64)));
        let digests = [Loaded::line("7f9c", &one), Loaded::line("5d4", &other), "6b sha256:short\n".into()];
        let digests = digests.concat();
        assert_eq!(Loaded::digest_of(&digests, "7f9c"), Some(&*one));
        assert_eq!(Loaded::digest_of(&digests, "5d4"), Some(&*other));
        for revision in ["", "6b", "7f9", "sha256"] {
            assert_eq!(Loaded::digest_of(&digests, revision), None, "{revision}");
        }
        let loaded = Loaded { digest: one, files: 2, bytes: 3, commit: String::new() };
        assert!(!loaded.message().contains("commit"));
        assert_eq!(Loaded::of_message(&loaded.message()), Some(loaded.clone()));
        let of_hub = Loaded { commit: "a1".repeat(20), ..loaded.clone() };
        assert_eq!(Loaded::of_message(&of_hub.message()), Some(of_hub));
        let wrong = Loaded { commit: "main".to_owned(), ..loaded };
        assert_eq!(Loaded::of_message(&wrong.message()), None);
        for message in ["", "SourceNotFound: s3://models/qwen", "{}", r#"{"digest": "token=secret"}"#] {
            assert_eq!(Loaded::of_message(message), None, "{message}");
        }
    }

    #[test]
    fn a_commit_is_found_beside_a_digest_and_loaders_that_do_not_know_it_skip_it() {
        let (digest, commit) = (format!("sha256:{}", "a".repeat(64)), "b".repeat(40));
        let digests = [
            Loaded::commit_line("7f9c", &commit),
            Loaded::line("7f9c", &digest),
            Loaded::commit_line("5d4", "main"),
        ];
        let digests = digests.concat();
        assert_eq!(Loaded::commit_of(&digests, "7f9c"), Some(&*commit));
        assert_eq!(Loaded::digest_of(&digests, "7f9c"), Some(&*digest));
        assert_eq!((Loaded::commit_of(&digests, "5d4"), Loaded::digest_of(&digests, "5d4")), (None, None));
    }

    #[test]
    fn the_stall_timeout_is_the_patience_one_pause_and_one_request() {
        let stall_timeout_of = |set: &[(&str, u64)]| {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            stall_timeout(value).as_secs()
        };
        assert_eq!(stall_timeout_of(&[]), 180 + 30 + 30 + 10);
        assert_eq!(stall_timeout_of(&[("TRANSFER_PATIENCE_SECONDS", 600)]), 600 + 30 + 30 + 10);
        assert_eq!(stall_timeout_of(&[("TRANSFER_STALL_SECONDS", 60)]), 180 + 30 + 60 + 10);
        assert_eq!(stall_timeout_of(&[("TRANSFER_TIMEOUT_SECONDS", 60)]), 60 + 10, "the timeout ends first");
        let endless = [("TRANSFER_PATIENCE_SECONDS", u64::MAX), ("TRANSFER_TIMEOUT_SECONDS", u64::MAX)];
        assert_eq!(stall_timeout_of(&endless), 86_400);
    }

    #[test]
    fn the_patience_is_shorter_than_the_timeout() {
        let of = |timeout| patience(Duration::from_secs(180), Duration::from_secs(timeout)).as_secs();
        assert_eq!([of(3_600), of(240), of(60)], [180, 180, 45]);
    }

    #[test]
    fn only_exit_codes_of_the_loader_are_parsed() {
        for known in ExitCode::ALL {
            assert_eq!(ExitCode::from_code(known.code()), Some(known));
        }
        for foreign in [0, 1, 9, 16, 137, 143, -1] {
            assert_eq!(ExitCode::from_code(foreign), None);
        }
    }
}
