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
    programs: &[
        Program { name: "etcd", package: "go.etcd.io/etcd/server/v3" },
        Program { name: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl" },
        Program { name: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver" },
        Program { name: "kube-controller-manager", package: "k8s.io/kubernetes/cmd/kube-controller-manager" },
        Program { name: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler" },
        Program { name: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok" },
    ],
};

/// What is reached over the network: an object store.
const SERVICES: Group = Group {
    name: "services",
    go_mod: include_str!("../tools/services/go.mod"),
    go_sum: include_str!("../tools/services/go.sum"),
    programs: &[Program { name: "versitygw", package: "github.com/versity/versitygw/cmd/versitygw" }],
};

/// What figures of ours are compared with; only a bench needs it.
const BENCH: Group = Group {
    name: "bench",
    go_mod: include_str!("../tools/bench/go.mod"),
    go_sum: include_str!("../tools/bench/go.sum"),
    programs: &[Program { name: "rclone", package: "github.com/rclone/rclone" }],
};

/// Programs of one Go module graph: they are upgraded and built together.
#[derive(Debug, Clone, Copy)]
struct Group {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    programs: &'static [Program],
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
            go.build(&source, package, &binaries.join(name), name, || progress.tick())?;
            progress.end();
        }
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(Error::io("remove", folder))?;
        }
        fs::rename(&binaries, folder).map_err(Error::io("move the programs to", folder))?;
        fs::remove_dir_all(&building).map_err(Error::io("remove", &building))
    }

    /// Changes with everything that the programs are made from.
    fn fingerprint(&self, go: &go::Go) -> String {
        let mut hash = Sha256::new();
        for part in [self.go_mod, self.go_sum, &go.version, &go::build_flags().join(" ")] {
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
        for group in [CLUSTER, SERVICES, BENCH] {
            for Program { name, package } in group.programs {
                assert!(group.go_mod.lines().any(|line| line == format!("tool {package}")), "{name}");
            }
        }
    }
}
