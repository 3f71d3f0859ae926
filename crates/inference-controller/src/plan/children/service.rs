//! The Service, which selects the pods of all revisions, and the headless one with the address of each.

use api::aiinference::Listen;
use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use serde_json::Value;
use workload::templates::revision::Revision;

use crate::{
    engine::HTTP_PORT,
    names,
    observe::Observed,
    plan::{
        metadata::{metadata, selector},
        revision::engine_of,
    },
    validate::ValidInference,
};

pub(super) fn service(valid: &ValidInference, revision: &Revision<'_>, observed: &Observed) -> Service {
    // Pods of an older revision may listen on IPv4 alone.
    let is_dual = valid.listen == Listen::Dual && revision.is_deployed && observed.others().next().is_none();
    Service {
        metadata: metadata(valid, names::service(&valid.name, valid.track)),
        spec: Some(ServiceSpec {
            selector: Some(selector(&valid.name, valid.track)),
            ports: Some(all_ports(revision, observed)),
            ip_family_policy: is_dual.then(|| "PreferDualStack".to_owned()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// Of ready pods: a client that has the address sends requests there, whatever probes say.
pub(in crate::plan) fn headless(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
) -> Option<Service> {
    let Service { spec, .. } = service(valid, revision, observed);
    let spec = spec.filter(|_| valid.is_headless)?;
    Some(Service {
        metadata: metadata(valid, names::headless_service(&valid.name)),
        spec: Some(ServiceSpec { cluster_ip: Some("None".to_owned()), ..spec }),
        ..Service::default()
    })
}

/// The headless Service to delete where none is wanted; only its metadata is set.
pub(super) fn superfluous(valid: &ValidInference, observed: &Observed) -> Option<Service> {
    let is_kept = |known: &ObjectMeta| valid.is_headless || known.deletion_timestamp.is_some();
    let metadata = observed.headless.clone().filter(|known| !is_kept(known))?;
    Some(Service { metadata, ..Service::default() })
}

/// Ports of all revisions that have pods. A named port that a pod lacks routes only to the other pods.
fn all_ports(revision: &Revision<'_>, observed: &Observed) -> Vec<ServicePort> {
    let mut all = ports(&revision.template);
    let records = observed.older.iter().filter_map(|older| older.revision.rendered.as_deref());
    let older = records.map(|rendered| &*rendered.template);
    let deployed =
        observed.deployment.iter().filter(|_| !revision.is_deployed && observed.pods().next().is_some());
    let deployed = deployed.filter_map(|deployment| deployment.pinned_template.as_deref());
    for template in older.chain(deployed).filter_map(|template| serde_json::from_str(template).ok()) {
        let more =
            ports(&template).into_iter().filter(|port| all.iter().all(|known| known.name != port.name));
        all.extend(more.collect::<Vec<_>>());
    }
    all
}

/// The ports of the engine's container.
fn ports(template: &Value) -> Vec<ServicePort> {
    let ports = engine_of(template).and_then(|engine| engine["ports"].as_array()).into_iter().flatten();
    let port = |port: &Value| {
        let name = port["name"].as_str()?;
        Some(ServicePort {
            name: Some(name.to_owned()),
            port: i32::try_from(port["containerPort"].as_i64()?).ok()?,
            target_port: Some(IntOrString::String(name.to_owned())),
            protocol: Some("TCP".to_owned()),
            ..ServicePort::default()
        })
    };
    ports.filter_map(port).collect()
}

/// The URL of the Service inside the cluster.
pub(in crate::plan) fn url(valid: &ValidInference) -> String {
    format!("http://{}.{}.svc:{HTTP_PORT}", names::service(&valid.name, valid.track), valid.namespace)
}
