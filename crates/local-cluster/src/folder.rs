//! Where a cluster keeps what it needs on disk. Paths only; the doc of each function names the writer of
//! the file.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::{Error, Result, machine::files::home_folder};

/// What the address of a unix socket can hold, without its closing zero byte (104 on macOS, 108 on Linux).
const SOCKET_PATH_LIMIT: usize = if cfg!(target_os = "macos") { 103 } else { 107 };

/// The state folder of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder of the cluster of this name, which need not exist.
    pub fn of(name: &str) -> Result<Self> {
        Ok(Self { root: Self::all()?.join(name) })
    }

    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder that holds the folders of all clusters of this user.
    pub(crate) fn all() -> Result<PathBuf> {
        Ok(home_folder("XDG_STATE_HOME", ".local/state")?.join("ai-controllers/clusters"))
    }

    pub(crate) fn name(&self) -> String {
        self.root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// One file per component, and the supervisor's own.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub fn log(&self, component: &str) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }

    /// Where the logs of a cluster are that did not start.
    pub(crate) fn failed_logs(&self) -> PathBuf {
        self.root.with_file_name(format!(".failed-{}", self.name()))
    }

    /// Written by the API server, one JSON event per line.
    pub fn audit_log(&self) -> PathBuf {
        self.root.join("audit.log")
    }

    /// Written by the process that starts the cluster.
    pub(crate) fn spec(&self) -> PathBuf {
        self.root.join("spec.json")
    }

    /// Locked by the supervisor for as long as it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Pid and start time of each process, written by the supervisor.
    pub(crate) fn processes(&self) -> PathBuf {
        self.root.join("processes.json")
    }

    /// The socket on which the supervisor answers.
    pub(crate) fn control(&self) -> PathBuf {
        self.root.join("control")
    }

    pub(crate) fn credentials(&self) -> PathBuf {
        self.root.join("credentials")
    }

    pub(crate) fn audit_policy(&self) -> PathBuf {
        self.root.join("audit-policy.yaml")
    }

    pub(crate) fn stages(&self) -> PathBuf {
        self.root.join("stages.yaml")
    }

    /// Which process the hub is, written by it when its network is there.
    pub(crate) fn hub(&self) -> PathBuf {
        self.root.join("hub.json")
    }

    /// What a real node keeps: images, containers, settings.
    pub(crate) fn node(&self, name: &str) -> PathBuf {
        self.root.join("nodes").join(name)
    }

    /// The volumes of claims, a folder each.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// The images that real nodes find.
    pub(crate) fn registry(&self) -> PathBuf {
        self.root.join("registry")
    }

    pub(crate) fn names(&self) -> PathBuf {
        self.root.join("Corefile")
    }

    /// What Contour and Envoy start with. It is there if the cluster has a Gateway.
    pub fn gateway(&self) -> PathBuf {
        self.root.join("gateway")
    }

    /// etcd's working directory: it makes its sockets there.
    pub(crate) fn etcd(&self) -> PathBuf {
        self.root.join("etcd")
    }

    /// etcd requires `host:port` even in a unix URL and names the socket file after it.
    pub(crate) fn etcd_socket(&self) -> PathBuf {
        self.etcd().join("client:0")
    }

    /// Makes the folder with what every cluster needs in it. Keys are inside, so it is for its user alone.
    pub(crate) fn create(&self) -> Result<()> {
        self.check_socket_paths()?;
        for folder in [self.root.clone(), self.logs(), self.etcd(), self.credentials(), self.registry()] {
            fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        }
        fs::set_permissions(&self.root, fs::Permissions::from_mode(0o700))
            .map_err(Error::io("protect", &self.root))
    }

    fn check_socket_paths(&self) -> Result<()> {
        for path in [self.control(), self.etcd_socket()] {
            let length = path.as_os_str().len();
            if length > SOCKET_PATH_LIMIT {
                return Err(Error::SocketPathTooLong { path, length, limit: SOCKET_PATH_LIMIT });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_whose_sockets_have_no_room_is_refused_with_the_fix() {
        let folder = Folder::at(PathBuf::from(format!("/{}", "x".repeat(100))));
        let refused = folder.check_socket_paths().unwrap_err().to_string();
        assert!(refused.contains("XDG_STATE_HOME"), "{refused}");
    }
}
