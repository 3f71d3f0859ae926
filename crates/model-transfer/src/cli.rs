//! The command line. Environment variables of options and the token of a hub are read here. Those of AWS (credentials,
//! endpoint, region) are read by object_store in `store`, those of proxies and `SSL_CERT_FILE` by its HTTP client.

use std::{fmt, path::PathBuf, time::Duration};

use api::{
    aiinference::Addressing,
    loader::{self, Loaded, PATIENCE, STALL, TIMEOUT, options},
};
use clap::{Args, Parser, Subcommand};
use text::quantity::Bytes;

use crate::{
    check::Engine,
    digest::is_hex,
    location::{Location, Source},
    selection::Glob,
};

/// Copies a model between an S3-compatible store and a folder, or from a hub into a folder
///
/// Credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or from the files of workload
/// identity; without any, requests are anonymous. AWS_ENDPOINT_URL and AWS_REGION say where the store is. The token of a hub comes from
/// TRANSFER_HUB_TOKEN.
#[derive(Debug, Parser)]
#[command(name = "model-transfer", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ends an engine that does not serve yet, and waits where one does: the preStop hook of its container
    PreStop(PreStop),
    /// Whether an engine is healthy and works on its requests: the liveness probe of its container
    Alive(Alive),
    #[command(flatten)]
    Transfer(Transfer),
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Transfer {
    /// Copies everything below SOURCE into DIR
    Pull(Pull),
    /// Uploads everything in DIR below DESTINATION, and SHA256SUMS last
    Push {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// s3://bucket[/prefix]
        destination: Location,
    },
    /// Writes, reads and deletes a small object below DESTINATION, so that a push may be expected to work
    CheckStore {
        /// s3://bucket[/prefix]
        destination: Location,
        /// Part of the name of the object; another check must not use the same name at the same time
        #[arg(long, value_parser = object_name)]
        name: String,
    },
    /// Checks whether an engine can load the model in DIR; sends no request and writes nothing into DIR
    Check(Check),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Pull {
    /// s3://bucket[/prefix], hf://owner/name or ms://owner/name; the last two may end with @revision
    pub(crate) source: Source,
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Do not wait until the files are on disk; after a reboot of the machine they are fetched again
    #[arg(long = options::NO_SYNC, env = "TRANSFER_NO_SYNC")]
    pub(crate) no_sync: bool,
    /// Refuse what this engine cannot load: before the copy by its names, and after it as `check` does
    #[arg(long = options::ENGINE)]
    pub(crate) engine: Option<Engine>,
    /// What the volume may hold, in bytes or as 64Gi; a model that is larger is refused before a byte is fetched
    #[arg(long = options::SIZE_LIMIT, env = "TRANSFER_SIZE_LIMIT", value_parser = whole_bytes)]
    pub(crate) size_limit: Option<u64>,
    /// sha256:HEX of the model's SHA256SUMS; a model with another list, or with files that it does not name, is refused
    #[arg(long = options::MANIFEST_DIGEST, env = "TRANSFER_MANIFEST_DIGEST", value_parser = manifest_digest)]
    pub(crate) manifest_digest: Option<String>,
    /// URL of the hub or of a mirror, for hf:// and ms:// sources
    #[arg(long = options::HUB_ENDPOINT, env = loader::HUB_ENDPOINT, value_name = "URL")]
    pub(crate) hub_endpoint: Option<String>,
    /// Of a hub, copy only files whose path matches, once for each pattern; `*` matches any characters, `?` one
    #[arg(long = options::INCLUDE, value_name = "PATTERN")]
    pub(crate) include: Vec<Glob>,
    /// Of a hub, do not copy files whose path matches, once for each pattern
    #[arg(long = options::EXCLUDE, value_name = "PATTERN")]
    pub(crate) exclude: Vec<Glob>,
    /// Seconds after which a store without any good answer is reported as unreachable, the first time
    #[arg(long, env = "TRANSFER_FIRST_ANSWER_SECONDS", default_value_t = 20)]
    pub(crate) first_answer_seconds: u64,
    /// First copy this program into this folder, for the preStop hook of a container whose image does not have it
    #[arg(long = options::INSTALL, value_name = "DIR")]
    pub(crate) install: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) siblings: Siblings,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Check {
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    #[arg(long = options::ENGINE)]
    pub(crate) engine: Engine,
    /// Where links of the model may lead, if not only into DIR
    #[arg(long = options::ROOT, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Seconds to wait for the volume
    #[arg(long, env = "TRANSFER_DEADLINE_SECONDS", default_value_t = 60)]
    pub(crate) deadline_seconds: u64,
    /// First copy this program into this folder, for the preStop hook of a container whose image does not have it
    #[arg(long = options::INSTALL, value_name = "DIR")]
    pub(crate) install: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) siblings: Siblings,
}

/// What the pods beside this one have loaded.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Siblings {
    /// What pods that serve have loaded, as lines of a revision and a digest; any other model is refused
    #[arg(long, env = loader::DIGESTS, value_name = "LINES", default_value = "", hide_default_value = true)]
    pub(crate) model_digests: String,
    /// The revision of this pod, whose line counts
    #[arg(long, env = loader::REVISION, default_value = "", hide_default_value = true)]
    pub(crate) revision: String,
}

impl Siblings {
    /// The digest that this pod must load.
    pub(crate) fn digest(&self) -> Option<&str> {
        Loaded::digest_of(&self.model_digests, &self.revision)
    }

    /// The commit of a hub that this pod must load.
    pub(crate) fn commit(&self) -> Option<&str> {
        Loaded::commit_of(&self.model_digests, &self.revision)
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PreStop {
    /// A port of the engine, once for each; it serves while a socket has one of them
    #[arg(long = "port", value_name = "PORT", required = true)]
    pub(crate) ports: Vec<u16>,
    /// How long to wait where the engine serves, or where that cannot be seen
    #[arg(long, default_value_t = 10)]
    pub(crate) wait_seconds: u64,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Alive {
    /// Port of the engine
    #[arg(long)]
    pub(crate) port: u16,
    /// Path that is answered with success while the engine is healthy
    #[arg(long)]
    pub(crate) path: String,
    /// Path of its metrics, on the same port
    #[arg(long)]
    pub(crate) metrics_path: String,
    /// Metric with the number of requests that it works on
    #[arg(long, value_name = "METRIC")]
    pub(crate) running: String,
    /// Counter that grows while it works, once for each; one that it does not have is ignored
    #[arg(long, value_name = "METRIC", required = true)]
    pub(crate) moves: Vec<String>,
    /// Seconds after which an engine with running requests counts as stalled if no counter has grown
    #[arg(long)]
    pub(crate) stall_after_seconds: u64,
    /// File for what was seen, which lies in a folder of the container
    #[arg(long, value_name = "FILE")]
    pub(crate) state: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Maximum seconds for the transfer; the next run resumes it
    #[arg(long, global = true, env = TIMEOUT.variable, default_value_t = TIMEOUT.default)]
    pub(crate) timeout_seconds: u64,
    /// Seconds to wait, without any progress, for a store that does not answer or for a fault to be corrected
    #[arg(long, global = true, env = PATIENCE.variable, default_value_t = PATIENCE.default)]
    pub(crate) patience_seconds: u64,
    /// Seconds without a byte after which a request is sent anew
    #[arg(long, global = true, env = STALL.variable, default_value_t = STALL.default)]
    pub(crate) stall_seconds: u64,
    /// Seconds between two progress lines
    #[arg(long, global = true, env = "TRANSFER_PROGRESS_SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) progress_seconds: u64,
    /// How requests name the bucket: path, virtual-hosted, or auto, which is virtual-hosted for AWS S3, Alibaba Cloud OSS
    /// and Tencent Cloud COS, and path for any other endpoint
    #[arg(long = options::ADDRESSING, global = true, env = "TRANSFER_ADDRESSING", value_name = "STYLE",
          default_value = Addressing::Auto.as_option(), value_parser = addressing)]
    pub(crate) addressing: Addressing,
    /// PEM file with certificate authorities that are trusted beside those of the system
    #[arg(long = options::CA_FILE, global = true, env = "TRANSFER_CA_FILE", value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// The field of a Kubernetes object whose fields describe the store; messages name them
    #[arg(long, global = true, env = loader::FIELDS, value_name = "FIELD", default_value = loader::MODEL_STORE)]
    pub(crate) fields: String,
    /// File for the reason of a failure, and for what was loaded; written if it exists
    #[arg(long, global = true, default_value = "/dev/termination-log")]
    pub(crate) termination_log: PathBuf,
}

impl Options {
    pub(crate) fn patience(&self) -> Duration {
        let [patience, timeout] = [self.patience_seconds, self.timeout_seconds].map(Duration::from_secs);
        loader::patience(patience, timeout)
    }

    /// How long a run waits for another one that copies into its folder. Shorter than the total time, because the message
    /// of a time-out would not name the other run.
    pub(crate) fn wait_for_others(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds) / 4 * 3
    }

    pub(crate) fn progress(&self) -> Duration {
        Duration::from_secs(self.progress_seconds)
    }
}

/// What identifies a user to a hub. It is never an argument, because all processes of a machine can read those.
#[derive(Clone)]
pub(crate) struct Token(pub(crate) String);

impl Token {
    /// `None` for an empty one.
    pub(crate) fn of_environment() -> Option<Self> {
        let token = std::env::var(loader::HUB_TOKEN).ok()?;
        Some(token.trim().to_owned()).filter(|token| !token.is_empty()).map(Token)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// As the uid of an object has them.
fn object_name(text: &str) -> Result<String, String> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '-';
    let is_valid = (1..=64).contains(&text.len()) && text.chars().all(is_plain);
    let wrong = || format!("{text:?} is no name: write at most 64 letters, digits and dashes");
    is_valid.then(|| text.to_owned()).ok_or_else(wrong)
}

fn addressing(text: &str) -> Result<Addressing, String> {
    let known = Addressing::ALL.into_iter().find(|one| one.as_option() == text);
    known.ok_or_else(|| {
        let known = Addressing::ALL.map(Addressing::as_option).join(", ");
        format!("{text:?} is no addressing style: write one of {known}")
    })
}

/// The hexadecimal digits.
fn manifest_digest(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").filter(|digits| is_hex(digits, 64));
    let digits =
        digits.ok_or_else(|| format!("{text:?} is no digest: write sha256: and 64 hexadecimal digits"));
    digits.map(str::to_ascii_lowercase)
}

fn whole_bytes(text: &str) -> Result<u64, String> {
    let bytes = Bytes::parse_limit(text).and_then(|bytes| u64::try_from(bytes.count()).ok());
    bytes.ok_or_else(|| format!("{text:?} is no amount of bytes: write 1073741824, 1Gi or 1.5G"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_may_follow_the_command() {
        let line = ["model-transfer", "pull", "s3://models/qwen", "/models", "--timeout-seconds=60"];
        assert_eq!(Arguments::try_parse_from(line).unwrap().options.timeout_seconds, 60);
    }

    #[test]
    fn a_size_is_an_amount_as_kubernetes_writes_it_and_rounding_never_raises_it() {
        assert_eq!(whole_bytes("64Mi"), Ok(64 << 20));
        assert_eq!(whole_bytes("1500m"), Ok(1), "as the API server writes a fraction of a byte");
        assert!(whole_bytes("much").is_err_and(|error| error.contains("write 1073741824, 1Gi or 1.5G")));
    }

    #[test]
    fn a_manifest_digest_names_its_algorithm() {
        let digits = "AB".repeat(32);
        assert_eq!(manifest_digest(&format!("sha256:{digits}")), Ok(digits.to_lowercase()));
        for text in ["", "sha256:", &digits, &format!("sha512:{digits}"), &format!("sha256:{digits}0")] {
            assert!(manifest_digest(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_hook_needs_its_ports_and_nothing_else() {
        let parsed = |more: &[&str]| {
            Arguments::try_parse_from(["model-transfer", "pre-stop"].into_iter().chain(more.iter().copied()))
        };
        let Command::PreStop(hook) = parsed(&["--port=8000", "--port=8001"]).unwrap().command else {
            panic!("a hook")
        };
        assert_eq!((hook.ports, hook.wait_seconds), (vec![8000, 8001], 10));
        parsed(&[]).unwrap_err();
    }

    #[test]
    fn patience_ends_before_the_time_does() {
        let patience = |timeout: &str| {
            let line = ["model-transfer", "pull", "s3://models", "/models", "--timeout-seconds", timeout];
            Arguments::try_parse_from(line).unwrap().options.patience().as_secs()
        };
        assert_eq!([patience("3600"), patience("240"), patience("60")], [180, 180, 45]);
    }

    #[test]
    fn a_wrong_command_line_ends_with_the_code_of_usage() {
        let error =
            Arguments::try_parse_from(["model-transfer", "pull", "http://models", "/models"]).unwrap_err();
        assert_eq!(error.exit_code(), api::loader::ExitCode::Usage.code());
        assert!(error.to_string().contains("s3://bucket/prefix"), "{error}");
    }
}
