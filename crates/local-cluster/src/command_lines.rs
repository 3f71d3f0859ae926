//! The command line of each component, and why it has the flags it has. Pure: it starts nothing.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{ClusterSpec, Folder, NodeClock, credentials::Credentials};

pub(crate) const ETCD: &str = "etcd";
pub(crate) const API_SERVER: &str = "kube-apiserver";
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub(crate) const SCHEDULER: &str = "kube-scheduler";
pub(crate) const KWOK: &str = "kwok";

/// Nodes with this label are played by kwok; a node that loses it goes silent.
pub(crate) const MANAGED_LABEL: &str = "kwok.x-k8s.io/managed";

/// Controllers for things that a cluster without clouds, real nodes or bootstrapping does not have.
///
/// A name that the controller manager does not know is an error of its own, so an upgrade will tell.
const CONTROLLERS_LEFT_OUT: [&str; 15] = [
    "bootstrap-signer-controller",
    "token-cleaner-controller",
    "node-ipam-controller",
    "node-route-controller",
    "service-lb-controller",
    "cloud-node-lifecycle-controller",
    "ttl-controller",
    "certificatesigningrequest-signing-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "storage-version-migrator-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "replicationcontroller-controller",
];

/// A program that is about to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) working_dir: PathBuf,
}

pub(crate) fn etcd(folder: &Folder, spec: &ClusterSpec) -> CommandLine {
    let mut flags = Flags::default();
    flags
        .set("data-dir", folder.etcd().join("data").display())
        // Sockets, not ports; a relative path because etcd insists on host:port even here.
        .set("listen-client-urls", "unix://client:0")
        .set("advertise-client-urls", "unix://client:0")
        .set("listen-peer-urls", "unix://peer:0")
        .set("initial-advertise-peer-urls", "unix://peer:0")
        .set("initial-cluster", "default=unix://peer:0")
        // The data does not outlive the cluster.
        .set("unsafe-no-fsync", true)
        .set("auto-compaction-retention", "5m")
        .set("log-level", "warn");
    CommandLine { working_dir: folder.etcd(), ..command_line(folder, spec, ETCD, flags) }
}

pub(crate) fn api_server(folder: &Folder, spec: &ClusterSpec, port: u16) -> CommandLine {
    let files = Credentials::of(folder);
    let toleration = spec.clock.toleration.as_secs();
    let mut flags = Flags::default();
    flags
        .set("etcd-servers", format_args!("unix://{}", folder.etcd_socket().display()))
        .set("bind-address", "127.0.0.1")
        .set("secure-port", port)
        // The port is held by a socket of the supervisor, see `ReservedPort`.
        .set("permit-port-sharing", true)
        // Loopback cannot be an endpoint of Service `kubernetes`, and nothing runs inside the cluster.
        .set("endpoint-reconciler-type", "none")
        .set("service-cluster-ip-range", "10.96.0.0/16")
        .set("tls-cert-file", files.server_certificate().display())
        .set("tls-private-key-file", files.server_key().display())
        .set("client-ca-file", files.authority().display())
        .set("service-account-key-file", files.token_checking_key().display())
        .set("service-account-signing-key-file", files.token_signing_key().display())
        .set("service-account-issuer", "https://kubernetes.default.svc.cluster.local")
        .set("authorization-mode", "Node,RBAC")
        // Beside the default ones, of which PodSecurity is one.
        .set("enable-admission-plugins", "NodeRestriction")
        .set("anonymous-auth", false)
        .set("allow-privileged", true)
        .set("kubelet-preferred-address-types", "InternalIP")
        .set("kubelet-client-certificate", files.kubelet_client_certificate().display())
        .set("kubelet-client-key", files.kubelet_client_key().display())
        .set("default-not-ready-toleration-seconds", toleration)
        .set("default-unreachable-toleration-seconds", toleration)
        .set("audit-log-path", folder.audit_log().display())
        .set("audit-policy-file", folder.audit_policy().display())
        .set("profiling", false);
    if let Some(history) = spec.history {
        flags
            .set("etcd-compaction-interval", format_args!("{}ms", history.as_millis()))
            // All kinds: sizes cannot be set for custom resources.
            .set("watch-cache", false);
    }
    command_line(folder, spec, API_SERVER, flags)
}

pub(crate) fn controller_manager(folder: &Folder, spec: &ClusterSpec) -> CommandLine {
    let files = Credentials::of(folder);
    let NodeClock { grace, monitor_period, lease: _, toleration: _ } = spec.clock;
    let mut flags = client_flags(&files, CONTROLLER_MANAGER);
    flags
        .set("service-account-private-key-file", files.token_signing_key().display())
        .set("root-ca-file", files.authority().display())
        .set("use-service-account-credentials", true)
        .set("node-monitor-period", format_args!("{}ms", monitor_period.as_millis()))
        .set("node-monitor-grace-period", format_args!("{}ms", grace.as_millis()))
        .set("node-startup-grace-period", format_args!("{}ms", grace.as_millis()))
        .set("controllers", format_args!("*,-{}", CONTROLLERS_LEFT_OUT.join(",-")));
    command_line(folder, spec, CONTROLLER_MANAGER, flags)
}

pub(crate) fn scheduler(folder: &Folder, spec: &ClusterSpec) -> CommandLine {
    command_line(folder, spec, SCHEDULER, client_flags(&Credentials::of(folder), SCHEDULER))
}

/// kwok plays the kubelet of every node with the managed label.
pub(crate) fn kwok(folder: &Folder, spec: &ClusterSpec, port: u16) -> CommandLine {
    let files = Credentials::of(folder);
    let mut flags = Flags::default();
    flags
        .set("kubeconfig", files.kubeconfig(KWOK).display())
        .set("config", folder.stages().display())
        .set("manage-nodes-with-label-selector", format_args!("{MANAGED_LABEL}=true"))
        .set("node-ip", "127.0.0.1")
        .set("node-port", port)
        .set("tls-cert-file", files.server_certificate().display())
        .set("tls-private-key-file", files.server_key().display())
        .set("node-lease-duration-seconds", spec.clock.lease.as_secs())
        .set("cidr", "10.100.0.0/16")
        .set("node-name", KWOK);
    command_line(folder, spec, KWOK, flags)
}

fn client_flags(files: &Credentials, component: &str) -> Flags {
    let mut flags = Flags::default();
    flags
        .set("kubeconfig", files.kubeconfig(component).display())
        // No port: nobody asks it anything.
        .set("secure-port", 0)
        .set("leader-elect", false)
        // The default of 20 a second delays the start by seconds and a thousand pods by a minute.
        .set("kube-api-qps", 500)
        .set("kube-api-burst", 1000)
        .set("profiling", false);
    flags
}

fn command_line(folder: &Folder, spec: &ClusterSpec, component: &str, flags: Flags) -> CommandLine {
    CommandLine {
        program: spec.tools.join(component),
        args: flags.args,
        env: BTreeMap::new(),
        working_dir: folder.root().to_owned(),
    }
}

#[derive(Default)]
struct Flags {
    args: Vec<String>,
}

impl Flags {
    fn set(&mut self, flag: &str, value: impl std::fmt::Display) -> &mut Self {
        self.args.push(format!("--{flag}={value}"));
        self
    }
}
