//! A real Kubernetes on this machine, for development (`cargo xtask up`) and for tests.
//!
//! ```text
//!  up, tests ──▶ Cluster ──spec.json──▶ supervisor ──▶ etcd  kube-apiserver  kube-controller-manager
//!                   ╰────control socket────╯   ╰─────▶ kube-scheduler  kwok  controllers
//! ```
//!
//! [`tools`] builds the programs, [`Cluster`] starts one supervisor process per cluster and talks to it, and the
//! [`supervisor`] holds every process of that cluster. Nodes and pods are simulated; the API server is not. With root,
//! [`real`] nodes run containers beside them. For a cluster that exists ([`ClusterSpec::existing`]) the supervisor holds
//! controllers alone.
//!
//! This crate depends on no custom kind: CRDs, roles and samples are files that it is given. It contains how controllers are
//! deployed and started ([`Controller`]), and the stages of the simulation name the containers of their pods. Without
//! real nodes it needs no root and keeps nothing outside its cache and state folders; real nodes also have control
//! groups, which end with them. Nothing that runs in a user's cluster may depend on it.

pub mod admin;
mod admin_client;
pub mod audit;
mod cluster;
mod command_lines;
mod controller;
mod credentials;
mod error;
mod folder;
pub mod install;
pub mod nodes;
pub mod pod_logs;
mod ports;
mod process;
mod protocol;
pub mod real;
mod simulation;
mod spec;
pub mod storage;
pub mod supervisor;
pub mod tools;
pub mod watch;

pub use crate::{
    cluster::{Cluster, remove, running, sibling_binary, sweep},
    controller::Controller,
    error::{Error, explained},
    folder::Folder,
    protocol::{ComponentState, ComponentStatus, Phase, Service, Status},
    real::network::HUB as HUB_ADDRESS,
    spec::{ClusterSpec, Detail, NodeClock, NodePool, RealNodes},
};

/// What every fallible function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Lets rustls use ring; to be called once before the first client of the process. Later calls change nothing.
pub fn install_crypto_provider() {
    // An error means that a provider is already installed, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
