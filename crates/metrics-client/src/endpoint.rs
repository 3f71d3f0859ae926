//! Where a source is, and what it may speak for.

use std::{fmt, sync::Arc};

use crate::snapshot::Snapshot;

/// A source of load: one stream is kept to each.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// First, so that the sources of a node stand together.
    pub origin: Origin,
    /// Host and port: `10.0.0.7:9401`, `[fd00::7]:9401`, `gpu-1.example:9401`.
    pub address: Arc<str>,
}

/// What a source measures, by a party that is trusted more than the source itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// The node with this name.
    Node(Arc<str>),
    /// The pod with this name.
    Pod { namespace: Arc<str>, name: Arc<str> },
    /// Not known: an address of the command line. What the source says of itself counts.
    Stated,
}

impl Endpoint {
    /// Whether the source may speak for what its snapshot names. One that names nothing contradicts nothing.
    pub(crate) fn admits(&self, snapshot: &Snapshot) -> bool {
        match &self.origin {
            Origin::Node(node) => snapshot.node.is_empty() || *snapshot.node == **node,
            Origin::Pod { namespace, name } => {
                snapshot.pod.as_ref().is_none_or(|pod| *pod.namespace == **namespace && *pod.name == **name)
            }
            Origin::Stated => true,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Node(node) => write!(f, "{} of node {node}", self.address),
            Origin::Pod { namespace, name } => write!(f, "{} of pod {namespace}/{name}", self.address),
            Origin::Stated => f.write_str(&self.address),
        }
    }
}
