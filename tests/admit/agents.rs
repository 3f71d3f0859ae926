//! The manifests of the metrics-agent: the API server accepts them, and they ask for no more than the README says.

use std::collections::BTreeSet;

use api::controllers::CONTROLLERS;
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Namespace, Service},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api, Resource,
    api::{DynamicObject, PostParams},
};
use serde::de::DeserializeOwned;
use tests::{
    api_server,
    monitoring::{built, of_kind},
    workspace,
};

const FOLDERS: [&str; 4] = ["base", "overlays/dev", "overlays/prod", "overlays/recorded"];
const NAMESPACE: &str = "ai-metrics";

#[tokio::test]
async fn the_base_and_every_overlay_of_the_agent_are_accepted_without_a_warning() {
    let scene = api_server().await;
    // A dry run does not create the namespace that the other objects need.
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(NAMESPACE.to_owned());
    let namespaces: Api<Namespace> = scene.cluster_api();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    for folder in FOLDERS {
        let folder = workspace().join("deploy/metrics-agent").join(folder);
        let args = ["apply", "--server-side", "--dry-run=server", "--kustomize", folder.to_str().unwrap()];
        // The namespace of the test is not that of these objects, which kubectl would refuse.
        let output = scene.kubectl_with_input(&[&["--namespace", NAMESPACE], &args[..]].concat(), "");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !complaint.contains("Warning"), "{folder:?}: {complaint}");
        let applied = String::from_utf8_lossy(&output.stdout);
        for object in ["daemonset.apps", "service", "serviceaccount", "networkpolicy.networking.k8s.io"] {
            assert!(applied.contains(&format!("{object}/metrics-agent ")), "{folder:?}: {applied}");
        }
    }
}

#[test]
fn the_agent_mounts_the_kubelets_socket_alone_and_can_write_nothing() {
    for folder in FOLDERS {
        let objects = built(&format!("metrics-agent/{folder}"));
        let pod = one::<DaemonSet>(&objects, "DaemonSet").spec.unwrap().template.spec.unwrap();
        let volumes = pod.volumes.iter().flatten();
        let host: Vec<String> =
            volumes.filter_map(|volume| volume.host_path.clone()).map(|it| it.path).collect();
        assert_eq!(host, ["/var/lib/kubelet/pod-resources"], "{folder}");
        assert_eq!(pod.automount_service_account_token, Some(false), "{folder}");
        assert!(pod.host_network.is_none() && pod.host_pid.is_none() && pod.host_ipc.is_none(), "{folder}");
        let [agent] = pod.containers.as_slice() else { panic!("one container") };
        assert!(agent.volume_mounts.iter().flatten().all(|mount| mount.read_only == Some(true)), "{folder}");
        let security = agent.security_context.as_ref().unwrap();
        assert_eq!(security.read_only_root_filesystem, Some(true), "{folder}");
        assert_eq!(security.allow_privilege_escalation, Some(false), "{folder}");
        assert!(security.privileged.is_none(), "{folder}");
        let dropped = security.capabilities.as_ref().and_then(|capabilities| capabilities.drop.clone());
        assert_eq!(dropped, Some(vec!["ALL".to_owned()]), "{folder}");
    }
}

#[test]
fn every_agent_can_be_found_and_the_controllers_alone_may_subscribe() {
    for folder in FOLDERS {
        let objects = built(&format!("metrics-agent/{folder}"));
        let service = one::<Service>(&objects, "Service").spec.unwrap();
        assert_eq!(service.cluster_ip.as_deref(), Some("None"), "{folder}");
        let policy = one::<NetworkPolicy>(&objects, "NetworkPolicy").spec.unwrap();
        let types = policy.policy_types.unwrap_or_default();
        assert_eq!(types, ["Ingress", "Egress"], "{folder}");
        assert!(policy.egress.unwrap_or_default().is_empty(), "{folder}");
        let mut allowed = BTreeSet::new();
        for rule in policy.ingress.unwrap() {
            let ports = rule.ports.unwrap();
            assert!(ports.iter().all(|port| port.end_port.is_none()), "{folder}");
            let ports: Vec<IntOrString> = ports.into_iter().filter_map(|port| port.port).collect();
            if ports == [IntOrString::String("admin".to_owned())] {
                continue;
            }
            assert_eq!(ports, [IntOrString::String("grpc".to_owned())], "{folder}");
            for peer in rule.from.expect("peers") {
                let namespaces = peer.namespace_selector.expect("a namespace").match_labels.unwrap();
                assert_eq!(namespaces["kubernetes.io/metadata.name"], "ai-system", "{folder}");
                let pods = peer.pod_selector.expect("pods").match_expressions.unwrap();
                allowed.extend(pods.into_iter().flat_map(|expression| expression.values.unwrap()));
            }
        }
        let readers = CONTROLLERS.iter().filter(|known| known.reads_agents);
        let readers: BTreeSet<String> = readers.map(|known| known.name.to_owned()).collect();
        assert_eq!(allowed, readers, "{folder}");
    }
}

/// The only object of a kind.
fn one<K>(objects: &[DynamicObject], kind: &str) -> K
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let [object] = of_kind(objects, kind)[..] else { panic!("one {kind}") };
    object.clone().try_parse().unwrap()
}
