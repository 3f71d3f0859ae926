//! What can go wrong with a local cluster, each with the object and, where there is one, the fix.

use std::{io, path::PathBuf, time::Duration};

/// Why a cluster, a tool or a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {step} {}", path.display())]
    Io { step: &'static str, path: PathBuf, source: io::Error },

    #[error("failed to {step} {object}")]
    Api { step: &'static str, object: String, source: Box<kube::Error> },

    #[error("failed to {step} {object}: {reason}")]
    Invalid { step: &'static str, object: String, reason: String },

    #[error("Go is not installed: install Go {needed} or newer (https://go.dev/dl) so that `go` is on PATH")]
    GoMissing { needed: String },

    #[error("Go {found} is too old: install Go {needed} or newer (https://go.dev/dl)")]
    GoTooOld { found: String, needed: String },

    #[error(
        "{} has version {found}, and {wanted} is needed: name a folder with {wanted}, or none, and it is built \
         (unset KUBEBUILDER_ASSETS if that names this one)",
        path.display()
    )]
    WrongVersion { path: PathBuf, found: String, wanted: String },

    #[error("{} holds none of {programs}: name a folder that does, or none, and they are built", folder.display())]
    NoneGiven { folder: PathBuf, programs: String },

    #[error("failed to build {packages}; output of `go build`:\n{output}")]
    Build { packages: String, output: String },

    #[error(
        "Python is not installed: install it, for example the Debian package python3, so that `python3` is on PATH"
    )]
    PythonMissing,

    #[error("failed to install the Python package {package}; output of pip:\n{output}")]
    Pip { package: String, output: String },

    #[error("{} is missing: run `cargo build -p {package}` first", path.display())]
    BinaryMissing { path: PathBuf, package: String },

    #[error(
        "the path of the socket {} is {length} bytes long and the system allows {limit}: \
         set XDG_STATE_HOME to a folder with a shorter path",
        path.display()
    )]
    SocketPathTooLong { path: PathBuf, length: usize, limit: usize },

    #[error("neither {variable} nor HOME is set: set one of them")]
    NoHome { variable: &'static str },

    #[error(
        "{count} nodes are too few: use at least {minimum}, because Kubernetes taints no node and moves no pod \
         while all nodes of a small cluster look dead"
    )]
    TooFewNodes { count: u32, minimum: u32 },

    #[error("real nodes cannot be started here: {reason}")]
    NoRealNodes { reason: String },

    #[error(
        "real nodes do not see {}, because each has a /run of its own: set XDG_STATE_HOME and XDG_CACHE_HOME to \
         folders elsewhere",
        path.display()
    )]
    HiddenFromNodes { path: PathBuf },

    #[error("{count} real nodes: ask for 1 to {limit}, beside simulated ones")]
    WrongRealNodes { count: u32, limit: u32 },

    #[error("a cluster with simulated nodes needs at least one GPU product")]
    NoProducts,

    #[error("cluster {name} is already running: use it, or stop it with `cargo xtask down`")]
    AlreadyRunning { name: String },

    #[error("cluster {name} is not running: start it with `cargo xtask up`")]
    NotRunning { name: String },

    #[error("{component} ended while the cluster started ({exit}); its last log lines ({}):\n{tail}", log.display())]
    ComponentExited { component: String, exit: String, log: PathBuf, tail: String },

    #[error("{what} did not happen within {} s; logs are in {}", after.as_secs(), logs.display())]
    TimedOut { what: String, after: Duration, logs: PathBuf },

    #[error("cluster {name} did not start; its logs are kept in {} until the next one starts", logs.display())]
    StartFailed { name: String, logs: PathBuf, source: Box<Error> },

    #[error("failed to remove the stale state folder {}: remove it by hand, then try again", path.display())]
    StaleFolder { path: PathBuf, source: io::Error },

    #[error("the supervisor of cluster {name} refused to {request}: {reason}")]
    Refused { name: String, request: &'static str, reason: String },
}

impl Error {
    /// An input or output error with the step and the path that failed.
    pub(crate) fn io(step: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { step, path, source }
    }

    /// An API error with the step and the object that failed.
    pub(crate) fn api(step: &'static str, object: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let object = object.into();
        move |source| Self::Api { step, object, source: Box::new(source) }
    }

    /// Something that could not be read, written or understood.
    pub(crate) fn invalid(
        step: &'static str,
        object: impl Into<String>,
        reason: impl std::fmt::Display,
    ) -> Self {
        Self::Invalid { step, object: object.into(), reason: reason.to_string() }
    }
}

/// An error and all its causes in one line, for places where only text can pass.
pub fn explained(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
