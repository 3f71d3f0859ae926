//! What `deploy/monitoring` says of the metrics of this project, by a real Prometheus on loopback and its promtool. No
//! cluster and no root.

#![cfg(test)]

mod agent;
mod alerts;
mod dashboards;
mod scrapes;
mod server;
