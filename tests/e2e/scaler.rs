//! AIScaler on simulated nodes: the real controller with its own rights, and a server whose answers the tests set
//! (`fake_prometheus`).

mod canary;
mod faults;
mod owners;
mod parity;
mod prometheus;
mod replicas;
mod restarts;

use tests::{Scene, scaler::deployment};

/// A name that no other test queries, so that its answer can be set.
fn load_of(scene: &Scene<'_>, name: &str) -> String {
    format!("load_{}_{name}", scene.namespace().replace('-', "_"))
}

/// Creates a Deployment with so many replicas.
async fn deploy(scene: &Scene<'_>, name: &str, replicas: i32) {
    scene.apply(&deployment(name, replicas).to_string()).await.expect("it is accepted");
}
