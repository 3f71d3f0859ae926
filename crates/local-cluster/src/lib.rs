//! A real Kubernetes on this machine, for development (`cargo xtask up`) and for tests.
//!
//! ```text
//!  up, tests ──▶ Cluster ──spec.json──▶ supervisor ──▶ etcd  kube-apiserver  kube-controller-manager
//!                   ╰────control socket────╯   ╰─────▶ kube-scheduler  kwok  controllers
//! ```
//!
//! [`tools`] builds the programs. [`Cluster`] starts one supervisor process per cluster and talks to it. The
//! [`supervisor`] holds every process of that cluster. Nodes and pods are simulated; the API server is not. With root,
//! [`real`] nodes run containers beside them. For a cluster that exists ([`ClusterSpec::existing`]) the supervisor
//! holds controllers alone.
//!
//! The crate depends on no custom kind of this project: CRDs, roles and samples are files that it is given. It contains how controllers
//! are deployed and started ([`Controller`]), and the stages of the simulation name the containers of their pods.
//! Without real nodes it needs no root and keeps nothing outside its cache and state folders. Real nodes also have
//! control groups, which end with the nodes.
//!
//! **Invariant:** nothing that runs in a user's cluster depends on this crate.
//!
//! Files:
//!
//! - `cluster.rs`: starts, asks and ends a cluster from outside.
//! - `spec.rs`: what a cluster consists of.
//! - `folder.rs`: where a cluster keeps its files.
//! - `supervisor.rs`: the process that holds a cluster; its start, its components, its tokens and the requests of its
//!   control socket are in `supervisor`.
//! - `control_plane/command_lines.rs`: the flags of each component, and why it has them.
//! - `control_plane/credentials.rs`: keys, certificates and kubeconfigs.
//! - `control_plane/storage.rs`: the default StorageClass.
//! - `api_server/admin_client.rs`: the client with all rights.
//! - `api_server/install.rs`: applies files to a cluster.
//! - `api_server/watch.rs`: waits for an object with a deadline.
//! - `api_server/audit.rs`: the audit log as values.
//! - `controller.rs`: runs a controller with the rights of its deployment.
//! - `controller/admin.rs`: asks the admin server of a controller.
//! - `gateway.rs`: Contour and Envoy before the cluster.
//! - `simulation.rs`: how simulated pods behave.
//! - `simulation/nodes.rs`: the simulated nodes.
//! - `simulation/pod_logs.rs`: serves the logs of simulated pods, those of trainers in the form of ms-swift.
//! - `real.rs`: real nodes, with a picture; its parts are in `real`.
//! - `tools.rs`: builds programs from `tools/*/go.mod`; the project has no Go code.
//! - `machine.rs`: files, processes, ports, namespaces and networks of this machine, a file each in `machine`.
//! - `error.rs`: errors, with the object and the fix.

pub mod api_server;
mod cluster;
pub mod control_plane;
pub mod controller;
mod error;
mod folder;
pub mod gateway;
mod machine;
pub mod real;
pub mod simulation;
mod spec;
pub mod supervisor;
pub mod tools;

pub use crate::{
    cluster::{Cluster, remove, running, sibling_binary, sweep},
    controller::Controller,
    error::{Error, explained},
    folder::Folder,
    machine::{network::HUB as HUB_ADDRESS, own_network},
    spec::{ClusterSpec, Detail, NodeClock, NodePool, RealNodes},
    supervisor::protocol::{ComponentState, ComponentStatus, Phase, Service, Status},
};

/// What every fallible function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Lets rustls use ring; to be called once before the first client of the process. Later calls change nothing.
pub fn install_crypto_provider() {
    // An error means that a provider is already installed, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
