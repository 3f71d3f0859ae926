//! The command lines and configuration files of a node's programs, and the reason of each setting.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    ClusterSpec, Error, Folder, Result,
    control_plane::credentials::Credentials,
    machine::network::{self, HUB, PODS, REGISTRY_PORT, node_name},
    spec::RealNodes,
};

use super::control_groups;

/// The image of the container that holds a pod's network.
pub(crate) const PAUSE: &str = "local.test/pause:1";
/// The program that runs containers.
pub(crate) const CONTAINERD: &str = "containerd";
/// While this file is there, a program that has ended is not started again.
pub(crate) fn kept_down(node: &Path, program: &str) -> PathBuf {
    node.join(format!("{program}.down"))
}

/// Below the node's own folder.
pub(crate) const KUBELET_FOLDER: &str = "kubelet";
/// Nodes with this label are real.
pub const REAL_LABEL: &str = "local-cluster/real";

/// A program that init is to keep running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
    /// Where it finds programs of its own.
    pub(crate) search: String,
}

/// The settings of one node.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    name: String,
    index: u32,
    spec: ClusterSpec,
    real: RealNodes,
    credentials: Credentials,
    control_group: String,
    /// The node's own folder as the node sees it.
    place: &'a Path,
}

impl<'a> Settings<'a> {
    pub(crate) fn new(folder: &Folder, index: u32, place: &'a Path) -> Result<Self> {
        let spec = ClusterSpec::read(folder)?;
        let name = node_name(index);
        let real = spec
            .real
            .clone()
            .ok_or_else(|| Error::invalid("start", &name, "its cluster has no real nodes"))?;
        let credentials = Credentials::of(folder);
        let control_group = control_groups::name(folder, &name);
        Ok(Self { name, index, spec, real, credentials, control_group, place })
    }

    /// Writes every file that the programs read.
    pub(crate) fn write(&self) -> Result<()> {
        let mirror = format!("server = \"http://{HUB}:{REGISTRY_PORT}\"\n");
        let names = format!("nameserver {HUB}\n");
        for (path, text) in [
            (self.at("containerd.toml"), self.containerd_settings()),
            (self.at("cni/pods.conflist"), self.pod_network().to_string()),
            // Every image comes from the cluster's own registry, under any name.
            (self.at("registries/_default/hosts.toml"), mirror),
            (self.at("kubelet.json"), self.kubelet_settings().to_string()),
            (self.at("resolv.conf"), names),
            (self.at("kube-proxy.json"), self.kube_proxy_settings().to_string()),
        ] {
            let folder = path.parent().unwrap_or(self.place);
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
            fs::write(&path, text).map_err(Error::io("write", path))?;
        }
        Ok(())
    }

    pub(crate) fn containerd_socket(&self) -> PathBuf {
        PathBuf::from("/run/containerd/containerd.sock")
    }

    pub(crate) fn containerd(&self) -> Program {
        let args = vec!["--config".to_owned(), self.at("containerd.toml").display().to_string()];
        self.program(CONTAINERD, &self.real.tools.containers, args)
    }

    pub(crate) fn kubelet(&self) -> Program {
        let labels = [
            (REAL_LABEL, "true"),
            ("nvidia.com/gpu.product", &self.real.product),
            ("nvidia.com/gpu.count", &self.real.gpus.to_string()),
            ("topology.kubernetes.io/zone", "zone-real"),
        ];
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let args = [
            ("config", self.at("kubelet.json").display().to_string()),
            ("kubeconfig", self.credentials.kubeconfig(&self.name).display().to_string()),
            ("hostname-override", self.name.clone()),
            ("node-ip", network::node_address(self.index).to_string()),
            ("node-labels", labels.join(",")),
            ("root-dir", self.at(KUBELET_FOLDER).display().to_string()),
            ("cert-dir", self.at(KUBELET_FOLDER).join("pki").display().to_string()),
        ];
        self.program("kubelet", &self.real.tools.kubelet, flags(args))
    }

    pub(crate) fn kube_proxy(&self) -> Program {
        let args = [("config", self.at("kube-proxy.json").display().to_string())];
        self.program("kube-proxy", &self.real.tools.kubelet, flags(args))
    }

    fn program(&self, name: &'static str, folder: &Path, args: Vec<String>) -> Program {
        let search = format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.real.tools.containers.display()
        );
        Program { name, path: folder.join(name), args, search }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.join(path)
    }

    fn containerd_settings(&self) -> String {
        let path = |path: &str| self.at(path).display().to_string();
        let binaries = self.real.tools.containers.display();
        format!(
            r#"version = 3
root = "{root}"
state = "/run/containerd"
# File systems and extensions that a machine need not have, and that nothing here uses.
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{socket}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"

[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "{registries}"

[plugins.'io.containerd.cri.v1.runtime']
  # Root in a container may not be allowed to protect a process from the kernel's choice.
  restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{binaries}"]
  conf_dir = "{cni}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{binaries}/runc"
  SystemdCgroup = false
"#,
            root = path("containerd"),
            socket = self.containerd_socket().display(),
            registries = path("registries"),
            cni = path("cni"),
        )
    }

    /// A cable for each pod and no bridge: replies always pass through the node, where Services undo what they did.
    fn pod_network(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [{
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    // In memory: pods do not outlive the node's init.
                    "dataDir": "/run/addresses",
                    "ranges": [[{ "subnet": network::pods_of(self.index) }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        })
    }

    fn kubelet_settings(&self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": self.credentials.authority() },
            },
            "authorization": { "mode": "Webhook" },
            "containerRuntimeEndpoint": format!("unix://{}", self.containerd_socket().display()),
            "clusterDNS": [HUB],
            "clusterDomain": "cluster.local",
            "resolvConf": self.at("resolv.conf"),
            "podLogsDir": self.at("pods"),
            "nodeLeaseDurationSeconds": self.spec.clock.lease.as_secs(),
            "nodeStatusUpdateFrequency": "5s",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.control_group,
            "enforceNodeAllocatable": [],
            // Machines of version 1 are few, but there are.
            "failCgroupV1": false,
            "failSwapOn": false,
            // The disk belongs to the machine; nothing is deleted to free space.
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": false,
            "makeIPTablesUtilChains": false,
            // Otherwise an image that was loaded under another name is pulled again and again.
            "imagePullCredentialsVerificationPolicy": "NeverVerify",
        })
    }

    fn kube_proxy_settings(&self) -> Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": { "kubeconfig": self.credentials.kubeconfig("kube-proxy") },
            "clusterCIDR": PODS,
            "hostnameOverride": self.name,
            // Limits of the machine's connection table, which must not change.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "metricsBindAddress": "127.0.0.1:10249",
            "healthzBindAddress": "127.0.0.1:10256",
        })
    }
}

fn flags<const N: usize>(flags: [(&str, String); N]) -> Vec<String> {
    flags.iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
}
