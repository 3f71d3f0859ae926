//! The command line of each component, and why it has the flags it has. Pure: it starts nothing.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use crate::{
    ClusterSpec, Folder, NodeClock, control_plane::credentials::Credentials, machine::network,
    tools::NodeTools,
};

pub(crate) const ETCD: &str = "etcd";
pub(crate) const API_SERVER: &str = "kube-apiserver";
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub(crate) const SCHEDULER: &str = "kube-scheduler";
pub(crate) const KWOK: &str = "kwok";
pub(crate) const STORAGE: &str = "storage";
/// Serves the logs of pods on simulated nodes.
pub(crate) const POD_LOGS: &str = "pod-logs";
/// Holds the network of a cluster with real nodes.
pub(crate) const HUB: &str = "hub";
pub(crate) const RELAY: &str = "relay";
pub(crate) const REGISTRY: &str = "registry";
/// Resolves names for pods on real nodes.
pub(crate) const COREDNS: &str = "coredns";

/// Nodes with this label are played by kwok; a node that loses it goes silent.
pub(crate) const MANAGED_LABEL: &str = "kwok.x-k8s.io/managed";

/// Controllers for things that a cluster without clouds, attached volumes or bootstrapping does not have.
///
/// The controller manager refuses unknown names, so an upgrade that removes one fails at the start.
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
    /// The network namespace that it runs in, if not the machine's.
    pub(crate) network: Option<PathBuf>,
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
    // Beside the default ones, of which PodSecurity is one. Hardened clusters enforce owner references, so a right that
    // this asks for must be missed here first.
    let mut admission = vec!["NodeRestriction", "OwnerReferencesPermissionEnforcement"];
    if spec.real.is_some() {
        // An image that was built anew has its old name, and the registry is near.
        admission.push("AlwaysPullImages");
    }
    let mut flags = Flags::default();
    flags
        .set("etcd-servers", format_args!("unix://{}", folder.etcd_socket().display()))
        .set("secure-port", port)
        .set("service-cluster-ip-range", "10.96.0.0/16")
        .set("tls-cert-file", files.server_certificate().display())
        .set("tls-private-key-file", files.server_key().display())
        .set("client-ca-file", files.authority().display())
        .set("service-account-key-file", files.token_checking_key().display())
        .set("service-account-signing-key-file", files.token_signing_key().display())
        .set("service-account-issuer", "https://kubernetes.default.svc.cluster.local")
        .set("authorization-mode", "Node,RBAC")
        .set("enable-admission-plugins", admission.join(","))
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
    if spec.real.is_some() {
        flags
            .set("bind-address", "0.0.0.0")
            // The endpoint of Service `kubernetes`.
            .set("advertise-address", network::HUB)
            // Webhooks are dialled at their pods: no kube-proxy runs where the API server does.
            .set("enable-aggregator-routing", true);
    } else {
        flags
            .set("bind-address", "127.0.0.1")
            // The port is held by a socket of the supervisor, see `ReservedPort`.
            .set("permit-port-sharing", true)
            // Loopback cannot be an endpoint of Service `kubernetes`, and nothing runs inside the cluster.
            .set("endpoint-reconciler-type", "none");
    }
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
    if let Some(period) = spec.hpa_period {
        flags.set("horizontal-pod-autoscaler-sync-period", format_args!("{}ms", period.as_millis()));
    }
    command_line(folder, spec, CONTROLLER_MANAGER, flags)
}

pub(crate) fn scheduler(folder: &Folder, spec: &ClusterSpec) -> CommandLine {
    command_line(folder, spec, SCHEDULER, client_flags(&Credentials::of(folder), SCHEDULER))
}

/// kwok plays the kubelet of every node with the managed label. It listens nowhere: [`pod_logs`] serves logs.
pub(crate) fn kwok(folder: &Folder, spec: &ClusterSpec) -> CommandLine {
    let files = Credentials::of(folder);
    let mut flags = Flags::default();
    flags
        .set("kubeconfig", files.kubeconfig(KWOK).display())
        .set("config", folder.stages().display())
        .set("manage-nodes-with-label-selector", format_args!("{MANAGED_LABEL}=true"))
        .set("node-ip", "127.0.0.1")
        .set("node-lease-duration-seconds", spec.clock.lease.as_secs())
        .set("cidr", network::SIMULATED_PODS)
        .set("node-name", KWOK);
    command_line(folder, spec, KWOK, flags)
}

/// A process that holds a network, which begins empty.
pub(crate) fn hub(folder: &Folder, own_program: &Path) -> CommandLine {
    in_new_network(folder, own_program, &["hub"])
}

/// What makes the volumes of claims.
pub(crate) fn storage(folder: &Folder, own_program: &Path) -> CommandLine {
    let args = ["storage".to_owned(), format!("--dir={}", folder.root().display())];
    plain(folder, own_program.to_owned(), args.into())
}

/// What serves the logs of pods on simulated nodes.
pub(crate) fn pod_logs(folder: &Folder, own_program: &Path, port: u16) -> CommandLine {
    let mut flags = Flags::default();
    flags.set("dir", folder.root().display()).set("listen", format_args!("127.0.0.1:{port}"));
    let args = std::iter::once(POD_LOGS.to_owned()).chain(flags.args).collect();
    plain(folder, own_program.to_owned(), args)
}

/// A node; it makes the rest of its namespaces by itself.
pub(crate) fn node(folder: &Folder, own_program: &Path, index: u32) -> CommandLine {
    in_new_network(folder, own_program, &["node", "--index", &index.to_string()])
}

/// From this machine to an address in the hub.
pub(crate) fn relay(
    folder: &Folder,
    own_program: &Path,
    listen: SocketAddr,
    to: SocketAddr,
    hub: &Path,
) -> CommandLine {
    let mut flags = Flags::default();
    flags.set("listen", listen).set("network", hub.display()).set("to", to);
    let args = std::iter::once("relay".to_owned()).chain(flags.args).collect();
    plain(folder, own_program.to_owned(), args)
}

pub(crate) fn registry(folder: &Folder, tools: &NodeTools) -> CommandLine {
    let mut flags = Flags::default();
    flags
        .set("address", format_args!("{}:{}", network::HUB, network::REGISTRY_PORT))
        .set("disk", folder.registry().display());
    let args = ["registry", "serve"].map(str::to_owned).into_iter().chain(flags.args).collect();
    plain(folder, tools.addons.join("crane"), args)
}

pub(crate) fn coredns(folder: &Folder, tools: &NodeTools) -> CommandLine {
    let args = vec!["-conf".to_owned(), folder.names().display().to_string()];
    plain(folder, tools.addons.join(COREDNS), args)
}

/// What CoreDNS answers: names of Services and pods.
pub(crate) fn names(folder: &Folder) -> String {
    let kubeconfig = Credentials::of(folder).kubeconfig(COREDNS);
    format!(
        r#".:53 {{
    bind {}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {}
        ttl 5
    }}
    cache 5
}}
"#,
        network::HUB,
        kubeconfig.display()
    )
}

fn in_new_network(folder: &Folder, own_program: &Path, command: &[&str]) -> CommandLine {
    let own_program = own_program.display().to_string();
    let root = folder.root().display().to_string();
    let args = [&["--net", "--", &own_program], command, &["--dir", &root]].concat();
    plain(folder, PathBuf::from("unshare"), args.into_iter().map(str::to_owned).collect())
}

fn plain(folder: &Folder, program: PathBuf, args: Vec<String>) -> CommandLine {
    let working_dir = folder.root().to_owned();
    CommandLine { program, args, env: BTreeMap::new(), working_dir, network: None }
}

fn client_flags(files: &Credentials, component: &str) -> Flags {
    let mut flags = Flags::default();
    flags
        .set("kubeconfig", files.kubeconfig(component).display())
        // No port: nothing connects to it.
        .set("secure-port", 0)
        .set("leader-elect", false)
        // The default of 20 a second delays the start by seconds and a thousand pods by a minute. More than a machine can do:
        // what is measured is what the API server takes.
        .set("kube-api-qps", 10_000)
        .set("kube-api-burst", 20_000)
        .set("profiling", false);
    flags
}

fn command_line(folder: &Folder, spec: &ClusterSpec, component: &str, flags: Flags) -> CommandLine {
    plain(folder, spec.tools.join(component), flags.args)
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
