//! A real Gateway before the pods of real nodes: Contour, and the Envoy that it drives. They run beside the cluster, in the
//! network of its nodes, and end with it.

use std::net::SocketAddr;

use local_cluster::{explained, gateway::RoutesFrom};

use crate::Scene;

pub use local_cluster::gateway::GATEWAY;

/// One per cluster: Contour serves one Gateway, that of this scene.
pub struct Contour {
    address: SocketAddr,
}

impl Contour {
    /// Returns when the Gateway is programmed.
    pub async fn start(scene: &Scene<'_>) -> Self {
        let started = async {
            let tools = local_cluster::tools::ensure_gateway()?;
            scene.start_gateway(&tools, scene.namespace(), RoutesFrom::Same).await
        };
        let address = started.await.unwrap_or_else(|error| panic!("{}", explained(&error)));
        Self { address: address.expect("a cluster with real nodes has Envoy") }
    }

    /// Where a program of this machine reaches Envoy.
    pub async fn relayed(&self, scene: &Scene<'_>) -> SocketAddr {
        let relayed = scene.cluster().start_relay("clients-relay", self.address).await;
        relayed.unwrap_or_else(|error| panic!("{}", explained(&error)))
    }

    /// What clients call, for a host name of a route.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
