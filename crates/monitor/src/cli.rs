//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use api::monitor::{
    ADMIN_PORT, ANNOUNCE_END, FOLDER, LOAD_MEMORY, MEMORY_BYTES, RUN, STREAM_PORT, options, variables,
};
use clap::{Args, Parser, Subcommand};

use crate::{
    checkpoint::{Place, Settings},
    memory::Wanted,
};

/// Beside an agent: its memory, its load, its tokens
#[derive(Debug, Parser)]
#[command(name = "monitor", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Loads a vector collection into a folder (Chroma with API v2, or Qdrant, whichever answers), and restores a state
    #[command(name = LOAD_MEMORY)]
    LoadMemory(LoadMemory),
    /// Reads the worker's metrics each second until SIGTERM, and serves them; saves the worker's state, and passes its log on
    #[command(name = RUN)]
    Run(Run),
    /// Announces the end of the pod while its worker ends (preStop hook of the sidecar)
    #[command(name = ANNOUNCE_END)]
    AnnounceEnd {
        /// Folder of the monitor's own files
        #[arg(long, default_value = FOLDER)]
        folder: PathBuf,
    },
}

/// Where the states of workers are saved.
#[derive(Clone, Debug, Args)]
pub(crate) struct Checkpoints {
    /// A folder that all workers share, for checkpoints [default: none are written]
    #[arg(long = options::CHECKPOINT_DIR, conflicts_with = "checkpoint_uri")]
    checkpoint_dir: Option<PathBuf>,

    /// Bucket for checkpoints: s3://bucket[/prefix] [default: none are written]
    #[arg(long = options::CHECKPOINT_URI, value_parser = bucket)]
    checkpoint_uri: Option<Place>,

    /// Folder with the keys of the bucket, one in each file, named as the variables: read for each request
    #[arg(long = options::KEYS_DIR, requires = "checkpoint_uri")]
    keys_dir: Option<PathBuf>,

    /// PEM file with certificate authorities that are trusted beside those of the system, for the bucket
    #[arg(long = options::CA_FILE, requires = "checkpoint_uri")]
    ca_file: Option<PathBuf>,

    /// Seconds between two checkpoints of a worker that runs
    #[arg(long = options::CHECKPOINT_SECONDS, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    checkpoint_seconds: u64,

    /// Seconds from when the pod is asked to end until it is killed
    #[arg(long = options::GRACE_SECONDS, default_value_t = 30)]
    grace_seconds: u64,

    /// Folder of the worker's state
    #[arg(long, env = variables::STATE_DIR)]
    pub(crate) state: Option<PathBuf>,

    /// Folder of the monitor's own files, which must outlive its container
    #[arg(long, default_value = FOLDER)]
    pub(crate) folder: PathBuf,
}

impl Checkpoints {
    /// `None`: none are written.
    pub(crate) fn settings(&self, pool: &Pool, uid: &str, pod: &str) -> Option<(Settings, PathBuf)> {
        let place = match (&self.checkpoint_dir, &self.checkpoint_uri) {
            (Some(folder), _) => Place::Folder(folder.clone()),
            (None, place) => match place.clone()? {
                Place::Bucket { bucket, prefix, .. } => Place::Bucket {
                    bucket,
                    prefix,
                    keys: self.keys_dir.clone(),
                    authorities: self.ca_file.clone(),
                },
                folder @ Place::Folder(_) => folder,
            },
        };
        let settings = Settings {
            place,
            namespace: pool.namespace.clone(),
            pool: pool.name.clone(),
            uid: uid.to_owned(),
            pod: pod.to_owned(),
            interval: Duration::from_secs(self.checkpoint_seconds),
            grace: Duration::from_secs(self.grace_seconds),
        };
        Some((settings, self.state.clone()?))
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LoadMemory {
    /// URL of the vector store [default: no memory is loaded]
    #[arg(long, env = variables::MEMORY_ENDPOINT, requires_all = ["collection", "dim", "memory_folder"])]
    endpoint: Option<String>,

    /// Name of the collection
    #[arg(long, env = variables::MEMORY_COLLECTION)]
    collection: Option<String>,

    /// Dimension of its vectors
    #[arg(long, env = variables::MEMORY_DIM, value_parser = clap::value_parser!(u64).range(1..))]
    dim: Option<u64>,

    /// Folder for its content
    #[arg(long, env = variables::MEMORY_DIR)]
    memory_folder: Option<PathBuf>,

    /// Bytes of the records in the folder, at most
    #[arg(long, default_value_t = MEMORY_BYTES)]
    memory_bytes: u64,

    /// Key for the vector store
    #[arg(long, env = variables::MEMORY_API_KEY, hide_env_values = true)]
    key: Option<String>,

    /// Seconds for which failed requests to the store are retried; the next container continues
    #[arg(long, default_value_t = 60)]
    patience_seconds: u64,

    /// Start without a state if the storage of checkpoints cannot be used for that time [default: fail]
    #[arg(long = options::START_EMPTY)]
    pub(crate) start_empty: bool,

    /// Namespace and name of the pool: NAMESPACE/NAME; with checkpoints
    #[arg(long = options::POOL, value_parser = pool)]
    pool: Option<Pool>,

    /// Name of the pod
    #[arg(long, env = variables::POD_NAME, default_value = "")]
    pod_name: String,

    /// uid of the pod; with checkpoints
    #[arg(long, env = variables::POD_UID, default_value = "")]
    pod_uid: String,

    #[command(flatten)]
    pub(crate) checkpoints: Checkpoints,

    /// File for the termination message, written if it exists
    #[arg(long, default_value = "/dev/termination-log")]
    pub(crate) termination_log: PathBuf,
}

impl LoadMemory {
    /// `None`: no memory is loaded.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        Some(Wanted {
            endpoint: self.endpoint.clone()?,
            key: self.key.clone().filter(|key| !key.is_empty()),
            collection: self.collection.clone()?,
            dim: self.dim?,
            folder: self.memory_folder.clone()?,
            patience: self.patience(),
            most_bytes: self.memory_bytes,
            on_node: self.checkpoints.folder.clone(),
        })
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience_seconds)
    }

    /// `None`: no state is restored.
    pub(crate) fn settings(&self) -> Option<(Settings, PathBuf)> {
        let pool = self.pool.as_ref().filter(|_| !self.pod_uid.is_empty())?;
        self.checkpoints.settings(pool, &self.pod_uid, &self.pod_name)
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Run {
    /// Namespace and name of the pool: NAMESPACE/NAME
    #[arg(long = options::POOL, value_parser = pool)]
    pub(crate) pool: Pool,

    /// Role of the worker
    #[arg(long = options::ROLE)]
    pub(crate) role: String,

    /// Name of the pod
    #[arg(long, env = variables::POD_NAME)]
    pub(crate) pod_name: String,

    /// uid of the pod
    #[arg(long, env = variables::POD_UID, default_value = "")]
    pub(crate) pod_uid: String,

    /// Port on which the worker serves its metrics, with the path /metrics
    #[arg(long, env = variables::AGENT_METRICS_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) worker_port: u16,

    /// Address of the stream
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], STREAM_PORT)))]
    pub(crate) listen: SocketAddr,

    /// Address of health and metrics
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], ADMIN_PORT)))]
    pub(crate) admin_address: SocketAddr,

    #[command(flatten)]
    pub(crate) checkpoints: Checkpoints,

    /// File to which the worker appends its log, a JSON object in each line [default: none is read]
    #[arg(long = options::LOG_FILE, env = variables::AGENT_LOG_FILE)]
    pub(crate) log_file: Option<PathBuf>,

    /// File for the termination message, written if it exists
    #[arg(long, default_value = "/dev/termination-log")]
    pub(crate) termination_log: PathBuf,
}

/// A pool of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

fn pool(text: &str) -> Result<Pool, String> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let (namespace, name) = parts.ok_or_else(|| format!("{text:?} is not NAMESPACE/NAME"))?;
    Ok(Pool { namespace: namespace.to_owned(), name: name.to_owned() })
}

fn bucket(text: &str) -> Result<Place, String> {
    let wrong = || format!("{text:?} is not s3://bucket[/prefix]");
    let (bucket, prefix) = text
        .strip_prefix("s3://")
        .map(|rest| rest.split_once('/').unwrap_or((rest, "")))
        .ok_or_else(wrong)?;
    if bucket.is_empty() {
        return Err(wrong());
    }
    let (bucket, prefix) = (bucket.to_owned(), prefix.trim_matches('/').to_owned());
    Ok(Place::Bucket { bucket, prefix, keys: None, authorities: None })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_bucket_may_have_a_prefix() {
        let place = |bucket: &str, prefix: &str| {
            let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
            Ok(Place::Bucket { bucket, prefix, keys: None, authorities: None })
        };
        assert_eq!(bucket("s3://states"), place("states", ""));
        assert_eq!(bucket("s3://states/of/pools/"), place("states", "of/pools"));
        for wrong in ["", "states", "s3://", "s3:///x", "http://states"] {
            assert!(bucket(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pool_has_a_namespace_and_a_name() {
        let wanted = Pool { namespace: "demo".to_owned(), name: "coder".to_owned() };
        assert_eq!(pool("demo/coder"), Ok(wanted));
        for wrong in ["", "coder", "/coder", "demo/"] {
            assert!(pool(wrong).is_err(), "{wrong}");
        }
    }
}
