//! Endpoints out of the EndpointSlices of a headless Service. Pure.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::{api::discovery::v1::EndpointSlice, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::endpoint::{Endpoint, Origin};

/// The label by which the slices of a Service are selected.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// The API server accepts no more in one slice.
const MOST_IN_SLICE: usize = 1_000;

/// An EndpointSlice, as far as addresses are read from it.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = EndpointSlice)]
#[serde(from = "Parts")]
pub struct SliceView {
    pub metadata: ObjectMeta,
    found: Vec<Found>,
    /// By name.
    ports: Vec<(Box<str>, u16)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Found {
    ip: IpAddr,
    source: Source,
}

/// What an address leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    node: Arc<str>,
    /// Of the namespace of the slice.
    pod: Option<Arc<str>>,
}

/// The sources behind a Service: in each of its pods one. Those that are ending are left out; those that are not ready are
/// not, because their stream says more about them than their readiness. An address without a node is left out too: it could
/// speak for every node.
pub fn endpoints<'s>(slices: impl IntoIterator<Item = &'s SliceView>, port: &str) -> Vec<Endpoint> {
    // A cluster with two families of addresses has each pod in two slices: the smaller address is the one of IPv4.
    let mut chosen: BTreeMap<Source, SocketAddr> = BTreeMap::new();
    for slice in slices {
        let named = slice.ports.iter().find(|(name, _)| **name == *port);
        let Some((_, number)) = named else { continue };
        for Found { ip, source } in &slice.found {
            let address = SocketAddr::new(*ip, *number);
            let known = chosen.entry(source.clone()).or_insert(address);
            *known = address.min(*known);
        }
    }
    let endpoint = |(source, address): (Source, SocketAddr)| Endpoint {
        origin: Origin::Node(source.node),
        address: address.to_string().into(),
    };
    chosen.into_iter().map(endpoint).collect()
}

#[derive(Deserialize)]
struct Parts {
    metadata: ObjectMeta,
    #[serde(default)]
    endpoints: Option<Vec<EndpointParts>>,
    #[serde(default)]
    ports: Option<Vec<PortParts>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointParts {
    #[serde(default)]
    addresses: Vec<String>,
    node_name: Option<Box<str>>,
    target_ref: Option<TargetParts>,
    #[serde(default)]
    conditions: ConditionParts,
}

#[derive(Deserialize)]
struct TargetParts {
    name: Option<Box<str>>,
}

#[derive(Default, Deserialize)]
struct ConditionParts {
    terminating: Option<bool>,
}

#[derive(Deserialize)]
struct PortParts {
    #[serde(default)]
    name: Option<Box<str>>,
    port: Option<u16>,
}

impl From<Parts> for SliceView {
    fn from(Parts { metadata, endpoints, ports }: Parts) -> Self {
        let found = endpoints.into_iter().flatten().take(MOST_IN_SLICE).filter_map(|endpoint| {
            let EndpointParts { addresses, node_name, target_ref, conditions } = endpoint;
            // All addresses of an endpoint are of the same pod; a name instead of an address is of no pod.
            let ip = addresses.first()?.parse().ok()?;
            let is_ending = conditions.terminating == Some(true);
            let pod = target_ref.and_then(|target| target.name).map(Arc::from);
            let node = node_name.filter(|node| !node.is_empty())?.into();
            (!is_ending).then_some(Found { ip, source: Source { node, pod } })
        });
        let ports = ports.into_iter().flatten();
        let ports = ports.filter_map(|PortParts { name, port }| Some((name.unwrap_or_default(), port?)));
        Self {
            found: found.collect(),
            ports: ports.collect(),
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                ..ObjectMeta::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(text: &str) -> SliceView {
        serde_saphyr::from_str(&format!("{{metadata: {{name: s}}, {text}}}")).unwrap()
    }

    fn found(slices: &[SliceView]) -> Vec<String> {
        endpoints(slices, "grpc").iter().map(ToString::to_string).collect()
    }

    const PORTS: &str = "ports: [{name: admin, port: 9400}, {name: grpc, port: 9401}]";

    #[test]
    fn each_node_has_one_endpoint_also_with_two_families_of_addresses() {
        let one = slice(&format!(
            "{PORTS}, endpoints: [{{addresses: [10.0.0.1], nodeName: a, targetRef: {{name: agent-a}}}},
                                  {{addresses: [10.0.0.2], nodeName: b, targetRef: {{name: agent-b}}}}]"
        ));
        let other = slice(&format!(
            "{PORTS}, endpoints: [{{addresses: ['fd00::1'], nodeName: a, targetRef: {{name: agent-a}}}},
                                  {{addresses: ['fd00::3'], nodeName: c, targetRef: {{name: agent-c}}}}]"
        ));
        let wanted = ["10.0.0.1:9401 of node a", "10.0.0.2:9401 of node b", "[fd00::3]:9401 of node c"];
        assert_eq!(found(&[one.clone(), other.clone()]), wanted);
        assert_eq!(found(&[other, one]), wanted);
    }

    #[test]
    fn an_endpoint_that_ends_is_left_out_and_one_that_is_not_ready_is_not() {
        let slice = slice(&format!(
            "{PORTS}, endpoints: [{{addresses: [10.0.0.1], nodeName: a, conditions: {{ready: false}}}},
                                  {{addresses: [10.0.0.2], nodeName: b, conditions: {{terminating: true}}}}]"
        ));
        assert_eq!(found(&[slice]), ["10.0.0.1:9401 of node a"]);
    }

    #[test]
    fn an_endpoint_without_a_node_is_left_out() {
        let slice = slice(&format!(
            "{PORTS}, endpoints: [{{addresses: [10.0.0.1], nodeName: a}}, {{addresses: [10.0.0.2], nodeName: ''}},
                                  {{addresses: [10.0.0.3], targetRef: {{name: agent-c}}}}]"
        ));
        assert_eq!(found(&[slice]), ["10.0.0.1:9401 of node a"]);
    }

    #[test]
    fn slices_without_addresses_ports_or_endpoints_give_nothing() {
        assert_eq!(found(&[slice("endpoints: null, ports: null")]), [""; 0]);
        assert_eq!(
            found(&[slice("endpoints: [{addresses: [10.0.0.1]}], ports: [{name: other, port: 1}]")]),
            [""; 0]
        );
        let names =
            slice(&format!("{PORTS}, endpoints: [{{addresses: [agent.example]}}, {{addresses: []}}]"));
        assert_eq!(found(&[names]), [""; 0]);
    }
}
