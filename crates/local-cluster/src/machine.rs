//! What a cluster needs of the machine that it runs on: files, processes, ports, and networks of its own.

pub(crate) mod files;
pub(crate) mod namespaces;
pub(crate) mod network;
pub mod own_network;
pub(crate) mod ports;
pub(crate) mod process;
