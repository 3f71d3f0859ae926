//! The manifests of the metrics-agent: the API server accepts them, and they ask for no more than the README says.

use std::{collections::BTreeSet, fs, path::Path};

use api::controllers::CONTROLLERS;
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Namespace, PodSpec, Service},
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
    monitoring::{built, built_at, of_kind},
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

/// A component, the labels by which it selects nodes, and the folder of the kubelet.
const COMPONENTS: [(&str, &[&str], &str); 8] = [
    ("aks", &["kubernetes.azure.com/accelerator", "karpenter.azure.com/sku-gpu-manufacturer"], KUBELET),
    (
        "eks",
        &[
            "eks.amazonaws.com/instance-gpu-manufacturer",
            "karpenter.k8s.aws/instance-gpu-manufacturer",
            "k8s.amazonaws.com/accelerator",
        ],
        KUBELET,
    ),
    ("gke", &["cloud.google.com/gke-accelerator"], KUBELET),
    ("kubelet-k0s", &[], "/var/lib/k0s/kubelet"),
    ("kubelet-microk8s", &[], "/var/snap/microk8s/common/var/lib/kubelet"),
    ("labelled-nodes", &["ai.infra.example.com/metrics-agent"], KUBELET),
    ("metrics-without-pods", &[], KUBELET),
    ("runtime-class", &[], KUBELET),
];
const KUBELET: &str = "/var/lib/kubelet";
/// Of the base.
const NVIDIA_LABELS: [&str; 2] = ["nvidia.com/gpu.present", "nvidia.com/gpu.product"];

#[test]
fn every_component_changes_what_it_says_in_a_copy_of_each_overlay() {
    let folder = workspace().join("deploy/metrics-agent/components");
    let mut there: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(there, COMPONENTS.map(|(name, ..)| name));
    let manual = fs::read_to_string(workspace().join("deploy/metrics-agent/README.md")).unwrap();
    for overlay in ["overlays/dev", "overlays/prod"] {
        for (name, labels, kubelet) in COMPONENTS {
            let pod = pod_with(overlay, &[name]);
            assert_eq!(node_labels(&pod), [&NVIDIA_LABELS, labels].concat(), "{overlay} {name}");
            let volumes = pod.volumes.iter().flatten();
            let host: BTreeSet<String> =
                volumes.filter_map(|volume| volume.host_path.clone()).map(|it| it.path).collect();
            let driver = (name == "gke").then(|| "/home/kubernetes/bin/nvidia".to_owned());
            let wanted: BTreeSet<String> =
                [format!("{kubelet}/pod-resources")].into_iter().chain(driver).collect();
            assert_eq!(host, wanted, "{overlay} {name}");
            let [agent] = pod.containers.as_slice() else { panic!("one container") };
            let security = agent.security_context.as_ref().unwrap();
            assert_eq!(security.privileged, (name == "gke").then_some(true), "{overlay} {name}");
            assert_eq!(security.read_only_root_filesystem, Some(true), "{overlay} {name}");
            let mounts = agent.volume_mounts.iter().flatten();
            assert!(mounts.clone().all(|mount| mount.read_only == Some(true)), "{overlay} {name}");
            let inner: Vec<&str> = mounts.map(|mount| mount.mount_path.as_str()).collect();
            assert!(inner.contains(&"/var/lib/kubelet/pod-resources"), "{overlay} {name}: {inner:?}");
            let without = agent.env.iter().flatten().find(|variable| variable.name == "METRICS_WITHOUT_PODS");
            let value = without.and_then(|variable| variable.value.as_deref());
            assert_eq!(value, (name == "metrics-without-pods").then_some("true"), "{overlay} {name}");
            assert!(manual.contains(&format!("`components/{name}`")), "README.md does not name {name}");
            for label in labels {
                assert!(manual.contains(&format!("`{label}")), "README.md does not name {label}");
            }
        }
    }
}

#[test]
fn components_of_several_clouds_select_any_of_their_labels() {
    let all = COMPONENTS.map(|(name, ..)| name);
    let labels = node_labels(&pod_with("overlays/prod", &all));
    assert_eq!(
        labels.len(),
        NVIDIA_LABELS.len() + COMPONENTS.iter().map(|(_, labels, _)| labels.len()).sum::<usize>()
    );
}

/// Of the DaemonSet of a copy of an overlay, with these components.
fn pod_with(overlay: &str, components: &[&str]) -> PodSpec {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&workspace().join("deploy/metrics-agent"), copy.path());
    let lines: String = components.iter().map(|name| format!("  - ../../components/{name}\n")).collect();
    let path = copy.path().join(overlay).join("kustomization.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}components:\n{lines}")).unwrap();
    let objects = built_at(&copy.path().join(overlay));
    one::<DaemonSet>(&objects, "DaemonSet").spec.unwrap().template.spec.unwrap()
}

/// The labels of the terms, any of which selects a node.
fn node_labels(pod: &PodSpec) -> Vec<String> {
    let nodes = pod.affinity.as_ref().unwrap().node_affinity.as_ref().unwrap();
    let required = nodes.required_during_scheduling_ignored_during_execution.as_ref().unwrap();
    let terms = required.node_selector_terms.iter().map(|term| term.match_expressions.as_ref().unwrap());
    terms.map(|rules| rules.iter().map(|rule| rule.key.as_str()).collect::<Vec<_>>().join(" and ")).collect()
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
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
