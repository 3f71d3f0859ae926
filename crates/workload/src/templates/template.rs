//! Parts of a pod template that pass Pod Security `restricted`, and the conversion of `api::pods` into Kubernetes types.
//! Pure and deterministic: equal input gives equal bytes.

use std::collections::BTreeMap;

use api::pods::{
    self, EnvVar as Variable, EnvVarSource, Ids, KeyRef, Scheduling, TaintEffect, TolerationOperator,
};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapKeySelector, EnvVar, EnvVarSource as CoreSource, PodSecurityContext,
        SeccompProfile, SecretKeySelector, SecurityContext, Toleration, VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use text::quantity::Bytes;

use crate::faults::gpu::GPU_TAINT;

/// Taints of nodes whose Ready condition is False, and Unknown.
const NOT_READY_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The user's tolerations, and the toleration of GPU nodes for pods with GPUs. Kubernetes evicts pods from a lost node after
/// `lost_node_seconds`, by default after five minutes. The controller replaces them earlier and at a limited rate. The
/// eviction is the fallback while the controller is down.
pub fn tolerations(
    scheduling: Option<&Scheduling>,
    has_gpus: bool,
    lost_node_seconds: Option<i64>,
) -> Option<Vec<Toleration>> {
    let tolerated = |key: &str, effect: Option<&str>, seconds| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: effect.map(str::to_owned),
        toleration_seconds: seconds,
        ..Toleration::default()
    };
    let gpu = has_gpus.then(|| tolerated(GPU_TAINT, None, None));
    let lost = lost_node_seconds
        .into_iter()
        .flat_map(|seconds| NOT_READY_TAINTS.map(|taint| tolerated(taint, Some("NoExecute"), Some(seconds))));
    let users = scheduling.map_or(&[][..], |scheduling| &scheduling.tolerations);
    non_empty(gpu.into_iter().chain(lost).chain(users.iter().map(toleration)).collect())
}

fn toleration(toleration: &pods::Toleration) -> Toleration {
    let pods::Toleration { key, operator, value, effect, toleration_seconds } = toleration.clone();
    let operator = match operator {
        TolerationOperator::Equal => "Equal",
        TolerationOperator::Exists => "Exists",
    };
    let effect = effect.map(|effect| match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    });
    Toleration {
        key,
        operator: Some(operator.to_owned()),
        value,
        effect: effect.map(str::to_owned),
        toleration_seconds,
    }
}

pub fn pod_security(context: &pods::SecurityContext) -> PodSecurityContext {
    let pods::SecurityContext { ids, run_as_user, run_as_group, fs_group } = *context;
    let fixed = |id| (ids == Ids::Fixed).then_some(id);
    let user = fixed(run_as_user);
    PodSecurityContext {
        run_as_user: user,
        run_as_group: fixed(run_as_group),
        run_as_non_root: (user != Some(0)).then_some(true),
        fs_group: fixed(fs_group),
        // Avoids a walk over all files of the model at every start.
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

/// A variable by reference alone.
pub fn variable_of_secret(variable: &str, secret: &str, key: &str, optional: Option<bool>) -> EnvVar {
    EnvVar {
        name: variable.to_owned(),
        value: None,
        value_from: Some(CoreSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.to_owned(),
                key: key.to_owned(),
                optional,
            }),
            ..CoreSource::default()
        }),
    }
}

/// Security context of every container. `read_only_root` is `None` where the image needs a writable root.
pub fn container_security(read_only_root: Option<bool>) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        read_only_root_filesystem: read_only_root,
        ..SecurityContext::default()
    }
}

/// Escapes `$`: Kubernetes would expand `$(NAME)` in arguments and values.
pub fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

pub fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

pub fn env_var(variable: &Variable) -> EnvVar {
    let Variable { name, value, value_from } = variable;
    EnvVar {
        name: name.clone(),
        value: value.as_deref().map(literal),
        value_from: value_from.as_ref().map(|EnvVarSource { secret_key_ref, config_map_key_ref }| {
            CoreSource {
                secret_key_ref: secret_key_ref.as_ref().map(|KeyRef { name, key, optional }| {
                    SecretKeySelector {
                        name: name.clone(),
                        key: key.clone(),
                        optional: optional.then_some(true),
                    }
                }),
                config_map_key_ref: config_map_key_ref.as_ref().map(|KeyRef { name, key, optional }| {
                    ConfigMapKeySelector {
                        name: name.clone(),
                        key: key.clone(),
                        optional: optional.then_some(true),
                    }
                }),
                ..CoreSource::default()
            }
        }),
    }
}

/// A writable mount of the whole volume.
pub fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

/// Adds `more` to an amount that is set; an absent amount stays absent.
pub fn raise(amounts: &mut BTreeMap<String, Quantity>, name: &str, more: Bytes) {
    if let Some(amount) = amounts.get_mut(name)
        && let Some(bytes) = Bytes::parse(&amount.0)
    {
        *amount = bytes.plus(more).quantity();
    }
}
