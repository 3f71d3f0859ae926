//! The cluster that `up` starts and the other commands find. Tests and benches use other names.

use local_cluster::Cluster;

pub(crate) const NAME: &str = "dev";

/// The running cluster, or an error with the command that starts it.
pub(crate) fn running() -> anyhow::Result<Cluster> {
    let cluster = local_cluster::running(NAME)?;
    Ok(cluster.ok_or_else(|| local_cluster::Error::NotRunning { name: NAME.to_owned() })?)
}
