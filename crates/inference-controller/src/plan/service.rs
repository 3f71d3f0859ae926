//! The Service: one address for the pods that are ready, whatever their revision.

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{
    metadata::{metadata, selector},
    resolved::Resolved,
};
use crate::{engine::HTTP_PORT, names, validate::ValidInference};

pub(super) fn service(valid: &ValidInference, resolved: &Resolved) -> Service {
    let ports = resolved.profile.ports.iter().map(|port| ServicePort {
        name: Some(port.name.to_owned()),
        port: port.number,
        target_port: Some(IntOrString::String(port.name.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    });
    Service {
        metadata: metadata(valid, names::service(&valid.name)),
        spec: Some(ServiceSpec {
            selector: Some(selector(&valid.name)),
            ports: Some(ports.collect()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Where clients inside the cluster reach the engine.
pub(super) fn url(valid: &ValidInference) -> String {
    format!("http://{}.{}.svc:{HTTP_PORT}", names::service(&valid.name), valid.namespace)
}
