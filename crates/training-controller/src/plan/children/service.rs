//! The headless Service by which the pods of a gang find rank 0. Pure.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::metadata::{metadata, selector};
use crate::{names, swift::MASTER_PORT, validate::ValidJob};

/// `None`: one pod needs no rendezvous.
pub(crate) fn service(valid: &ValidJob) -> Option<Service> {
    (valid.nodes > 1).then(|| Service {
        metadata: metadata(valid, names::service(&valid.name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(selector(&valid.name)),
            ports: Some(vec![ServicePort {
                name: Some("rendezvous".to_owned()),
                port: i32::from(MASTER_PORT),
                ..ServicePort::default()
            }]),
            // The ranks look for each other before any of them is ready.
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    })
}
