//! What the pod options of a spec (`api::pods`) make of a pod: nodes, volumes, variables, and the resources of helpers. Pure.

use std::collections::BTreeMap;

use api::pods::{
    EmptyDir, EnvFrom, NodeExpression, NodeOperator, PodAntiAffinity, PodOptions, Resources, Scheduling,
    TopologySpread, UserVolume, WhenUnsatisfiable,
};
use k8s_openapi::{
    api::core::v1::{
        Affinity, ConfigMapEnvSource, ConfigMapVolumeSource, EmptyDirVolumeSource, EnvFromSource,
        LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
        PersistentVolumeClaimVolumeSource, PodAffinityTerm, PodAntiAffinity as CoreAntiAffinity, PodSpec,
        ResourceRequirements, SecretEnvSource, SecretVolumeSource, TopologySpreadConstraint, Volume,
        VolumeMount, WeightedPodAffinityTerm,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector},
};
use text::quantity::{Bytes, is_less};

use super::template::{mount, non_empty, pod_security};
use crate::{faults::gpu::Gpus, products::Excluded};

/// Of a rule that the scheduler prefers to keep.
const HIGHEST_WEIGHT: i32 = 100;
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The pods of one object, and of one revision of it.
#[derive(Clone, Debug)]
pub struct Siblings<'a> {
    pub selector: BTreeMap<String, String>,
    /// Label whose value differs between revisions, so that a rollout is not held up by the pods that it replaces.
    pub revision_label: &'a str,
}

/// What every pod of an object has, also those of its helpers. Containers, volumes and node affinity are not part of it.
pub fn pod(options: &PodOptions) -> PodSpec {
    let scheduling = options.scheduling.as_ref();
    let secrets = options.image_pull_secrets.iter();
    PodSpec {
        node_selector: scheduling
            .map(|scheduling| scheduling.node_selector.clone())
            .filter(|selector| !selector.is_empty()),
        priority_class_name: scheduling.and_then(|scheduling| scheduling.priority_class_name.clone()),
        runtime_class_name: scheduling.and_then(|scheduling| scheduling.runtime_class_name.clone()),
        scheduler_name: scheduling.and_then(|scheduling| scheduling.scheduler_name.clone()),
        image_pull_secrets: non_empty(
            secrets.map(|secret| LocalObjectReference { name: secret.name.clone() }).collect(),
        ),
        service_account_name: options.service_account_name.clone(),
        // No pod needs the token of the Kubernetes API. Workload identity does not, either: the webhooks of clouds add a volume
        // with a token for their own audience.
        automount_service_account_token: Some(false),
        // A Service named `vllm` or `memory` would set VLLM_PORT or MEMORY_PORT in every container.
        enable_service_links: Some(false),
        security_context: Some(pod_security(&options.security_context)),
        ..PodSpec::default()
    }
}

/// Rules about nodes and about pods of the same object. `siblings`: `None` for an object with one pod.
pub fn affinity(
    gpus: Option<&Gpus>,
    scheduling: Option<&Scheduling>,
    siblings: Option<&Siblings<'_>>,
) -> Option<Affinity> {
    let node_affinity =
        node_affinity(gpus, scheduling.map_or(&[], |scheduling| &scheduling.node_expressions));
    let pod_anti_affinity = scheduling.zip(siblings).and_then(|(scheduling, siblings)| {
        let term = PodAffinityTerm {
            label_selector: Some(selects(siblings)),
            match_label_keys: Some(vec![siblings.revision_label.to_owned()]),
            topology_key: HOSTNAME.to_owned(),
            ..PodAffinityTerm::default()
        };
        match scheduling.pod_anti_affinity {
            PodAntiAffinity::None => None,
            PodAntiAffinity::Preferred => Some(CoreAntiAffinity {
                preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                    weight: HIGHEST_WEIGHT,
                    pod_affinity_term: term,
                }]),
                ..CoreAntiAffinity::default()
            }),
            PodAntiAffinity::Required => Some(CoreAntiAffinity {
                required_during_scheduling_ignored_during_execution: Some(vec![term]),
                ..CoreAntiAffinity::default()
            }),
        }
    });
    (node_affinity.is_some() || pod_anti_affinity.is_some()).then(|| Affinity {
        node_affinity,
        pod_anti_affinity,
        ..Affinity::default()
    })
}

/// Nodes that have any of the products, and keep all rules: terms are alternatives, so each one has all rules.
fn node_affinity(gpus: Option<&Gpus>, rules: &[NodeExpression]) -> Option<NodeAffinity> {
    let rules: Vec<NodeSelectorRequirement> = rules.iter().map(requirement).collect();
    let products = gpus.map_or(&[][..], |gpus| &gpus.products);
    let of_products = products.iter().map(|product| {
        let accepted = NodeSelectorRequirement {
            key: product.key.clone(),
            operator: "In".to_owned(),
            values: Some(product.values.clone()),
        };
        std::iter::once(accepted).chain(product.without.iter().map(excluded)).collect()
    });
    let without_product = (products.is_empty() && !rules.is_empty()).then(Vec::new);
    let terms: Vec<NodeSelectorTerm> = of_products
        .chain(without_product)
        .map(|own| NodeSelectorTerm {
            match_expressions: Some(own.into_iter().chain(rules.iter().cloned()).collect()),
            ..NodeSelectorTerm::default()
        })
        .collect();
    (!terms.is_empty()).then(|| NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector {
            node_selector_terms: terms,
        }),
        ..NodeAffinity::default()
    })
}

fn excluded(Excluded { key, values }: &Excluded) -> NodeSelectorRequirement {
    let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
    let operator = if values.is_empty() { "DoesNotExist" } else { "NotIn" };
    NodeSelectorRequirement {
        key: (*key).to_owned(),
        operator: operator.to_owned(),
        values: Some(values).filter(|values| !values.is_empty()),
    }
}

fn requirement(NodeExpression { key, operator, values }: &NodeExpression) -> NodeSelectorRequirement {
    let operator = match operator {
        NodeOperator::In => "In",
        NodeOperator::NotIn => "NotIn",
        NodeOperator::Exists => "Exists",
        NodeOperator::DoesNotExist => "DoesNotExist",
        NodeOperator::Gt => "Gt",
        NodeOperator::Lt => "Lt",
    };
    NodeSelectorRequirement {
        key: key.clone(),
        operator: operator.to_owned(),
        values: non_empty(values.clone()),
    }
}

pub fn topology_spread(
    scheduling: Option<&Scheduling>,
    siblings: &Siblings<'_>,
) -> Option<Vec<TopologySpreadConstraint>> {
    let rules = scheduling.map_or(&[][..], |scheduling| &scheduling.topology_spread);
    let rules = rules.iter().map(|TopologySpread { topology_key, max_skew, when_unsatisfiable }| {
        let when = match when_unsatisfiable {
            WhenUnsatisfiable::DoNotSchedule => "DoNotSchedule",
            WhenUnsatisfiable::ScheduleAnyway => "ScheduleAnyway",
        };
        TopologySpreadConstraint {
            topology_key: topology_key.clone(),
            max_skew: *max_skew,
            when_unsatisfiable: when.to_owned(),
            label_selector: Some(selects(siblings)),
            match_label_keys: Some(vec![siblings.revision_label.to_owned()]),
            ..TopologySpreadConstraint::default()
        }
    });
    non_empty(rules.collect())
}

fn selects(siblings: &Siblings<'_>) -> LabelSelector {
    LabelSelector { match_labels: Some(siblings.selector.clone()), ..LabelSelector::default() }
}

/// The user's volumes, and where the main container mounts them.
pub fn user_volumes(options: &PodOptions) -> (Vec<Volume>, Vec<VolumeMount>) {
    options.volumes.iter().map(|volume| (source(volume), mounted(volume))).unzip()
}

fn source(volume: &UserVolume) -> Volume {
    let UserVolume { name, config_map_name, secret_name, claim_name, empty_dir, .. } = volume;
    Volume {
        name: name.clone(),
        config_map: config_map_name
            .as_ref()
            .map(|name| ConfigMapVolumeSource { name: name.clone(), ..ConfigMapVolumeSource::default() }),
        secret: secret_name.as_ref().map(|name| SecretVolumeSource {
            secret_name: Some(name.clone()),
            ..SecretVolumeSource::default()
        }),
        persistent_volume_claim: claim_name.as_ref().map(|name| PersistentVolumeClaimVolumeSource {
            claim_name: name.clone(),
            ..PersistentVolumeClaimVolumeSource::default()
        }),
        empty_dir: empty_dir.as_ref().map(|EmptyDir { size_limit }| EmptyDirVolumeSource {
            size_limit: size_limit.clone(),
            medium: None,
        }),
        ..Volume::default()
    }
}

fn mounted(volume: &UserVolume) -> VolumeMount {
    let is_read_only = volume.read_only.unwrap_or(volume.empty_dir.is_none());
    VolumeMount {
        read_only: is_read_only.then_some(true),
        sub_path: volume.sub_path.clone(),
        ..mount(&volume.name, &volume.mount_path)
    }
}

/// Why a volume of the user cannot be mounted beside the controller's own, and what to change. `own`: the controller's volumes and
/// mounts of the same pod.
pub fn volume_conflict(options: &PodOptions, own: &[Volume], own_mounts: &[VolumeMount]) -> Option<String> {
    let mut users = options.volumes.iter().enumerate();
    users.find_map(|(index, volume)| {
        let UserVolume { name, mount_path, .. } = volume;
        if own.iter().any(|own| own.name == *name) {
            return Some(format!(
                "spec.volumes: {name:?} is the name of a volume of the controller; rename it"
            ));
        }
        let mut others = options.volumes.iter().enumerate().filter(|(other, _)| *other != index);
        let met = others.find(|(_, other)| {
            other.mount_path == *mount_path
                || is_below(mount_path, &other.mount_path) && mounted(other).read_only == Some(true)
        });
        if let Some((_, other)) = met {
            return Some(format!(
                "spec.volumes: the mountPath {mount_path} of {name:?} meets {} of {:?}, which is read-only or the same; \
                 choose another",
                other.mount_path, other.name
            ));
        }
        let hidden = own_mounts.iter().find(|own| {
            let is_below_read_only = own.read_only == Some(true) && is_below(mount_path, &own.mount_path);
            own.mount_path == *mount_path || is_below(&own.mount_path, mount_path) || is_below_read_only
        })?;
        Some(format!(
            "spec.volumes: the mountPath {mount_path} of {name:?} meets {}, a folder of the controller; choose another",
            hidden.mount_path
        ))
    })
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

pub fn env_from(options: &PodOptions) -> Option<Vec<EnvFromSource>> {
    let sources = options.env_from.iter().map(|from| {
        let EnvFrom { config_map_name, secret_name, prefix, optional } = from;
        let optional = optional.then_some(true);
        EnvFromSource {
            prefix: prefix.clone(),
            config_map_ref: config_map_name
                .as_ref()
                .map(|name| ConfigMapEnvSource { name: name.clone(), optional }),
            secret_ref: secret_name.as_ref().map(|name| SecretEnvSource { name: name.clone(), optional }),
        }
    });
    non_empty(sources.collect())
}

/// Amounts of a helper container where the user sets none: request and limit. A quota on limits refuses a pod with a container
/// that has no limit.
#[derive(Clone, Copy, Debug)]
pub struct HelperAmounts {
    pub cpu: [&'static str; 2],
    pub memory: [Bytes; 2],
}

/// If the user sets only one of request and limit, the default of the other keeps the request within the limit.
pub fn helper_resources(users: Option<&Resources>, own: &HelperAmounts) -> ResourceRequirements {
    let Resources { mut requests, mut limits } = users.cloned().unwrap_or_default();
    let [cpu_request, cpu_limit] = own.cpu.map(|amount| Quantity(amount.to_owned()));
    let [memory_request, memory_limit] = own.memory.map(Bytes::quantity);
    for (name, request, limit) in [("cpu", cpu_request, cpu_limit), ("memory", memory_request, memory_limit)]
    {
        let request =
            limits.get(name).filter(|limit| is_less(&limit.0, &request.0)).cloned().unwrap_or(request);
        let request = requests.entry(name.to_owned()).or_insert(request);
        let limit = if is_less(&limit.0, &request.0) { request.clone() } else { limit };
        limits.entry(name.to_owned()).or_insert(limit);
    }
    ResourceRequirements { requests: Some(requests), limits: Some(limits), ..ResourceRequirements::default() }
}

#[cfg(test)]
mod tests {
    use api::labels::NVIDIA_GPU_PRODUCT;

    use super::*;

    fn options(text: &str) -> PodOptions {
        serde_saphyr::from_str(text).unwrap()
    }

    fn json(value: &impl serde::Serialize) -> serde_json::Value {
        serde_json::to_value(value).unwrap()
    }

    fn yaml(text: &str) -> serde_json::Value {
        serde_saphyr::from_str(text).unwrap()
    }

    fn products(keys: &[&str]) -> Gpus {
        let spelled: Vec<String> = keys.iter().map(|key| format!("{key}=x")).collect();
        Gpus::new(1, "nvidia.com/gpu", spelled.iter().map(String::as_str))
    }

    fn siblings() -> Siblings<'static> {
        Siblings { selector: [("a".to_owned(), "b".to_owned())].into(), revision_label: "hash" }
    }

    #[test]
    fn every_alternative_product_has_all_rules_about_nodes() {
        let options = options(
            "scheduling: {nodeExpressions: [{key: zone, operator: NotIn, values: [c]}, {key: spot, operator: DoesNotExist}]}",
        );
        let rules = "{key: zone, operator: NotIn, values: [c]}, {key: spot, operator: DoesNotExist}";
        let terms = |gpus: Option<&Gpus>| {
            let affinity = affinity(gpus, options.scheduling.as_ref(), Some(&siblings())).unwrap();
            json(&affinity)["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
        };
        assert_eq!(terms(None), yaml(&format!("[{{matchExpressions: [{rules}]}}]")));
        let term =
            |key: &str| format!("{{matchExpressions: [{{key: {key}, operator: In, values: [x]}}, {rules}]}}");
        let both = yaml(&format!("[{}, {}]", term("p"), term("q")));
        assert_eq!(terms(Some(&products(&["p", "q"]))), both);
        let short = crate::products::Products::with_file("x1: q=x").unwrap();
        let short = Gpus::new(1, "nvidia.com/gpu", ["p=x", "x1"]).resolved(&short);
        let nvidia = format!(
            "{{matchExpressions: [{{key: {NVIDIA_GPU_PRODUCT}, operator: In, values: [x1]}}, {rules}]}}"
        );
        assert_eq!(terms(Some(&short)), yaml(&format!("[{}, {nvidia}, {}]", term("p"), term("q"))));
        let cloud = Gpus::new(1, "nvidia.com/gpu", ["gb300"]).resolved(&crate::products::Products::default());
        let without = "{key: cloud.google.com/gke-gpu-partition-size, operator: DoesNotExist}, \
                       {key: cloud.google.com/gke-gpu-sharing-strategy, operator: DoesNotExist}";
        let nvidia = format!(
            "{{matchExpressions: [{{key: {NVIDIA_GPU_PRODUCT}, operator: In, values: [gb300, NVIDIA-GB300]}}, {rules}]}}"
        );
        let gke = format!(
            "{{matchExpressions: [{{key: cloud.google.com/gke-accelerator, operator: In, values: [nvidia-gb300]}}, \
             {{key: {NVIDIA_GPU_PRODUCT}, operator: DoesNotExist}}, {without}, {rules}]}}"
        );
        assert_eq!(terms(Some(&cloud)), yaml(&format!("[{nvidia}, {gke}]")));
        assert_eq!(affinity(Some(&products(&[])), None, Some(&siblings())), None);
    }

    #[test]
    fn pods_of_one_revision_keep_apart() {
        let of = |kind: &str| {
            let options = options(&format!("scheduling: {{podAntiAffinity: {kind}}}"));
            affinity(None, options.scheduling.as_ref(), Some(&siblings())).map(|affinity| json(&affinity))
        };
        assert_eq!(of("None"), None);
        let term = "{labelSelector: {matchLabels: {a: b}}, matchLabelKeys: [hash], topologyKey: kubernetes.io/hostname}";
        let required =
            format!("{{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{term}]}}}}");
        assert_eq!(of("Required"), Some(yaml(&required)));
        let preferred = format!(
            "{{podAntiAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: [{{weight: 100, podAffinityTerm: {term}}}]}}}}"
        );
        assert_eq!(of("Preferred"), Some(yaml(&preferred)));
    }

    #[test]
    fn volumes_are_read_only_unless_they_are_empty_or_the_user_says_otherwise() {
        let options = options(
            "volumes: [{name: a, mountPath: /a, configMapName: c}, {name: b, mountPath: /b, emptyDir: {sizeLimit: 1Gi}}, \
             {name: d, mountPath: /d, claimName: e, readOnly: false, subPath: f}, {name: g, mountPath: /g, secretName: h}]",
        );
        let (volumes, mounts) = user_volumes(&options);
        let volumes_text = "[{name: a, configMap: {name: c}}, {name: b, emptyDir: {sizeLimit: 1Gi}}, \
                            {name: d, persistentVolumeClaim: {claimName: e}}, {name: g, secret: {secretName: h}}]";
        assert_eq!(json(&volumes), yaml(volumes_text));
        let mounts_text = "[{name: a, mountPath: /a, readOnly: true}, {name: b, mountPath: /b}, \
                           {name: d, mountPath: /d, subPath: f}, {name: g, mountPath: /g, readOnly: true}]";
        assert_eq!(json(&mounts), yaml(mounts_text));
    }

    #[test]
    fn a_volume_that_meets_the_controllers_own_is_named() {
        let own = [Volume { name: "model".to_owned(), ..Volume::default() }];
        let own_mounts = [
            VolumeMount { read_only: Some(true), ..mount("model", "/models") },
            mount("home", "/home/engine"),
        ];
        let conflict = |name: &str, path: &str| {
            let options = options(&format!("volumes: [{{name: {name}, mountPath: {path}, claimName: c}}]"));
            volume_conflict(&options, &own, &own_mounts)
        };
        for (name, path) in [
            ("model", "/x"),
            ("x", "/models"),
            ("x", "/models/adapters"),
            ("x", "/home"),
            ("x", "/home/engine"),
        ] {
            assert!(
                conflict(name, path).is_some_and(|said| said.starts_with("spec.volumes: ")),
                "{name} {path}"
            );
        }
        for path in ["/modelsx", "/home/engine/vllm", "/templates", "/home/other"] {
            assert_eq!(conflict("x", path), None, "{path}");
        }
        let twice = options(
            "volumes: [{name: a, mountPath: /a, claimName: c}, {name: b, mountPath: /a, claimName: c}]",
        );
        assert!(volume_conflict(&twice, &[], &[]).is_some_and(|said| said.contains("/a")));
        let nested = |read_only: bool| {
            let volumes = format!(
                "volumes: [{{name: b, mountPath: /a/b, claimName: c}}, {{name: a, mountPath: /a, claimName: d, readOnly: {read_only}}}]"
            );
            volume_conflict(&options(&volumes), &[], &[]).is_some()
        };
        assert_eq!((nested(true), nested(false)), (true, false), "a mount point cannot be made in it");
    }

    #[test]
    fn no_default_request_of_a_helper_exceeds_its_limit() {
        let own =
            HelperAmounts { cpu: ["100m", "2"], memory: [Bytes::mebibytes(128), Bytes::mebibytes(512)] };
        for (users, cpu, memory) in [
            ("{}", ("100m", "2"), ("128Mi", "512Mi")),
            ("{limits: {memory: 64Mi, cpu: 50m}}", ("50m", "50m"), ("64Mi", "64Mi")),
            ("{requests: {memory: 1Gi, cpu: 4}}", ("4", "4"), ("1Gi", "1Gi")),
            ("{requests: {memory: 32Mi}, limits: {memory: 96Mi}}", ("100m", "2"), ("32Mi", "96Mi")),
        ] {
            let users: Resources = serde_saphyr::from_str(users).unwrap();
            let is = json(&helper_resources(Some(&users), &own));
            let wanted = yaml(&format!(
                "{{requests: {{cpu: '{}', memory: {}}}, limits: {{cpu: '{}', memory: {}}}}}",
                cpu.0, memory.0, cpu.1, memory.1
            ));
            assert_eq!(is, wanted);
        }
        let disk = "{requests: {ephemeral-storage: 1Gi}, limits: {ephemeral-storage: 2Gi}}";
        let disk: Resources = serde_saphyr::from_str(disk).unwrap();
        let is = json(&helper_resources(Some(&disk), &own));
        assert_eq!(
            (&is["requests"]["ephemeral-storage"], &is["limits"]["ephemeral-storage"]),
            (&"1Gi".into(), &"2Gi".into())
        );
    }
}
