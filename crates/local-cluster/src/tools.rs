//! The programs of a cluster, and the services that tests run beside it: built from Go modules, once per version, into
//! the user's cache folder.
//!
//! `tools/<group>/go.mod` says which modules and versions; there is no Go code of ours. An explicit list of packages is
//! built, so that nobody waits for a kubelet that nothing here needs.

mod go;
mod progress;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Error, Result, folder::home_folder, process::write_atomically};
use progress::Progress;

/// Also in `tools/cluster/go.mod`; a test compares them.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

/// Everything that the default environment runs.
const CLUSTER: Group = Group {
    name: "cluster",
    go_mod: include_str!("../tools/cluster/go.mod"),
    go_sum: include_str!("../tools/cluster/go.sum"),
    linkage: Linkage::Static,
    programs: &[
        Program { name: "etcd", package: "go.etcd.io/etcd/server/v3" },
        Program { name: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl" },
        Program { name: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver" },
        Program { name: "kube-controller-manager", package: "k8s.io/kubernetes/cmd/kube-controller-manager" },
        Program { name: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler" },
        Program { name: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok" },
    ],
};

/// What of Kubernetes itself runs on a real node.
const KUBELET: Group = Group {
    name: "kubelet",
    programs: &[
        Program { name: "kube-proxy", package: "k8s.io/kubernetes/cmd/kube-proxy" },
        Program { name: "kubelet", package: "k8s.io/kubernetes/cmd/kubelet" },
    ],
    ..CLUSTER
};

/// What runs the containers of a real node, and gives them addresses.
const NODE: Group = Group {
    name: "node",
    go_mod: include_str!("../tools/node/go.mod"),
    go_sum: include_str!("../tools/node/go.sum"),
    linkage: Linkage::WithC { tags: "seccomp no_btrfs no_devmapper no_zfs" },
    programs: &[
        Program { name: "containerd", package: "github.com/containerd/containerd/v2/cmd/containerd" },
        // containerd finds it by this name.
        Program {
            name: "containerd-shim-runc-v2",
            package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        },
        Program {
            name: "host-local",
            package: "github.com/containernetworking/plugins/plugins/ipam/host-local",
        },
        Program { name: "loopback", package: "github.com/containernetworking/plugins/plugins/main/loopback" },
        Program { name: "ptp", package: "github.com/containernetworking/plugins/plugins/main/ptp" },
        Program { name: "runc", package: "github.com/opencontainers/runc" },
    ],
};

/// What a cluster with real nodes offers them: names and images.
const ADDONS: Group = Group {
    name: "addons",
    go_mod: include_str!("../tools/addons/go.mod"),
    go_sum: include_str!("../tools/addons/go.sum"),
    linkage: Linkage::Static,
    programs: &[
        Program { name: "coredns", package: "github.com/coredns/coredns" },
        Program { name: "crane", package: "github.com/google/go-containerregistry/cmd/crane" },
    ],
};

/// What is reached over the network: an object store.
const SERVICES: Group = Group {
    name: "services",
    go_mod: include_str!("../tools/services/go.mod"),
    go_sum: include_str!("../tools/services/go.sum"),
    linkage: Linkage::Static,
    programs: &[Program { name: "versitygw", package: "github.com/versity/versitygw/cmd/versitygw" }],
};

/// What figures of ours are compared with; only a bench needs it.
const BENCH: Group = Group {
    name: "bench",
    go_mod: include_str!("../tools/bench/go.mod"),
    go_sum: include_str!("../tools/bench/go.sum"),
    linkage: Linkage::Static,
    programs: &[Program { name: "rclone", package: "github.com/rclone/rclone" }],
};

/// Programs of one Go module graph: they are upgraded and built together.
#[derive(Debug, Clone, Copy)]
struct Group {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    linkage: Linkage,
    programs: &'static [Program],
}

/// What a program needs to run.
#[derive(Debug, Clone, Copy)]
enum Linkage {
    /// Nothing.
    Static,
    /// The C library, and to build it a C compiler and headers.
    WithC { tags: &'static str },
}

/// A program and the Go package that it is built from.
#[derive(Debug, Clone, Copy)]
struct Program {
    name: &'static str,
    package: &'static str,
}

/// The folder with all programs of a cluster; builds what is missing, which takes minutes the first time.
///
/// Progress goes to standard error. Blocks; only one process of the user builds at a time.
pub fn ensure() -> Result<PathBuf> {
    CLUSTER.ensure()
}

/// The folder with the services, as [`ensure`].
pub fn ensure_services() -> Result<PathBuf> {
    SERVICES.ensure()
}

/// The programs of real nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTools {
    /// kubelet and kube-proxy.
    pub kubelet: PathBuf,
    /// containerd, runc and the CNI plugins.
    pub containers: PathBuf,
    /// CoreDNS and crane, which is also a registry.
    pub addons: PathBuf,
}

/// The folders with the programs of real nodes, as [`ensure`]. Building them takes libseccomp's headers.
pub fn ensure_nodes() -> Result<NodeTools> {
    Ok(NodeTools { kubelet: KUBELET.ensure()?, containers: NODE.ensure()?, addons: ensure_addons()? })
}

/// The folder with CoreDNS and crane, as [`ensure`].
pub fn ensure_addons() -> Result<PathBuf> {
    ADDONS.ensure()
}

/// The folder with the programs that a bench compares ours with, as [`ensure`].
pub fn ensure_bench() -> Result<PathBuf> {
    BENCH.ensure()
}

impl Group {
    fn ensure(&self) -> Result<PathBuf> {
        let go = go::find(self.go_mod)?;
        let cache = home_folder("XDG_CACHE_HOME", ".cache")?.join("ai-controllers/tools");
        let folder = cache.join(format!("{}-{}", self.name, self.fingerprint(&go)));
        if self.is_complete(&folder) {
            return Ok(folder);
        }
        fs::create_dir_all(&cache).map_err(Error::io("create", &cache))?;
        let _lock = lock(&cache)?;
        if !self.is_complete(&folder) {
            self.build(&go, &cache, &folder)?;
        }
        Ok(folder)
    }

    /// Builds beside the final folder and renames at the end, so that a folder that is there is whole.
    fn build(&self, go: &go::Go, cache: &Path, folder: &Path) -> Result<()> {
        let building = cache.join("building");
        let source = building.join("source");
        let binaries = building.join("binaries");
        if building.exists() {
            fs::remove_dir_all(&building).map_err(Error::io("remove", &building))?;
        }
        for folder in [&source, &binaries] {
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        write_atomically(&source.join("go.mod"), self.go_mod.as_bytes())?;
        write_atomically(&source.join("go.sum"), self.go_sum.as_bytes())?;

        let mut progress = Progress::new(self.name, self.programs.len());
        for Program { name, package } in self.programs {
            progress.begin(name);
            let flags = self.build_flags();
            go.build(&source, package, &binaries.join(name), &flags, self.linkage.c_enabled(), || {
                progress.tick();
            })?;
            progress.end();
        }
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(Error::io("remove", folder))?;
        }
        fs::rename(&binaries, folder).map_err(Error::io("move the programs to", folder))?;
        fs::remove_dir_all(&building).map_err(Error::io("remove", &building))
    }

    fn build_flags(&self) -> Vec<String> {
        let mut flags = go::build_flags();
        if let Linkage::WithC { tags } = self.linkage {
            flags.extend(["-tags".to_owned(), tags.to_owned()]);
        }
        flags
    }

    /// Changes with everything that the programs are made from.
    fn fingerprint(&self, go: &go::Go) -> String {
        let mut hash = Sha256::new();
        for part in [self.go_mod, self.go_sum, &go.version, &self.build_flags().join(" ")] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        for Program { name, package } in self.programs {
            hash.update(name.as_bytes());
            hash.update(package.as_bytes());
        }
        hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    fn is_complete(&self, folder: &Path) -> bool {
        self.programs.iter().all(|program| folder.join(program.name).is_file())
    }
}

impl Linkage {
    fn c_enabled(self) -> bool {
        matches!(self, Self::WithC { .. })
    }
}

fn lock(cache: &Path) -> Result<File> {
    let path = cache.join(".lock");
    let file = File::options().create(true).append(true).open(&path).map_err(Error::io("open", &path))?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another build of programs from Go modules");
        file.lock().map_err(Error::io("lock", &path))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_go_module() {
        assert!(CLUSTER.go_mod.contains(&format!("require k8s.io/kubernetes {KUBERNETES_VERSION} ")));
    }

    #[test]
    fn every_program_is_a_tool_of_its_go_module() {
        for group in [CLUSTER, KUBELET, NODE, ADDONS, SERVICES, BENCH] {
            for Program { name, package } in group.programs {
                assert!(group.go_mod.lines().any(|line| line == format!("tool {package}")), "{name}");
            }
        }
    }
}
