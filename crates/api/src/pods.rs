//! What users may say about the pods of any kind: placement, identity, security, environment, resources.
//!
//! Narrow structs of our own instead of the core types: an embedded pod template makes a CRD too large for
//! client-side apply, and every field here is one that a controller really honours.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{rules, schema};

/// The part of a spec that every kind with pods has; flattened into it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodOptions {
    /// User and groups that the containers run as. Default: 1000 for each, which Pod Security `restricted` admits.
    /// Changing it restarts pods.
    #[serde(default)]
    pub security_context: SecurityContext,

    /// Where the pods may run. Default: any node with the resources that they ask for. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,

    /// Secrets of this namespace to pull the images with. At most 8. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<ImagePullSecret>,

    /// ServiceAccount of the pods, for workload identity: the webhook of a cloud adds a token for that cloud. The token
    /// of the Kubernetes API is never mounted. The account of the controller itself is refused. Changing it restarts
    /// pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub service_account_name: Option<String>,

    /// Labels added to the pods, at most 32. The labels that the controller sets are refused. Changing it restarts
    /// pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::pod_labels")]
    pub pod_labels: BTreeMap<String, String>,

    /// Annotations added to the pods, at most 32. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::pod_annotations")]
    pub pod_annotations: BTreeMap<String, String>,

    /// The controller leaves everything as it is and says so in the conditions. Default: false. Changing it
    /// restarts nothing.
    #[serde(default)]
    pub paused: bool,
}

/// User and groups of the containers.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContext {
    /// Numeric user. Default: 1000. 0 is allowed, and the pod is then no longer `restricted`.
    #[serde(default = "unprivileged")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub run_as_user: i64,

    /// Numeric group. Default: 1000.
    #[serde(default = "unprivileged")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub run_as_group: i64,

    /// Numeric group that owns the volumes, changed only if their root has another. Default: 1000.
    #[serde(default = "unprivileged")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub fs_group: i64,
}

// By hand: a derived Default would publish 0 (root) as the default of the whole struct.
impl Default for SecurityContext {
    fn default() -> Self {
        Self { run_as_user: unprivileged(), run_as_group: unprivileged(), fs_group: unprivileged() }
    }
}

/// Where pods may run.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels that a node must have, at most 16. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::node_selector")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints that the pods put up with, at most 16. `nvidia.com/gpu` is always tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,

    /// PriorityClass of the pods. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub priority_class_name: Option<String>,

    /// RuntimeClass of the pods, such as `nvidia`. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub runtime_class_name: Option<String>,

    /// Scheduler of the pods. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub scheduler_name: Option<String>,
}

/// A taint that pods put up with, as in a pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.key) || self.operator == 'Exists'")
        .message("operator must be Exists when key is not set").field_path(".operator"),
    validation = Rule::new("self.operator == 'Equal' || !has(self.value)")
        .message("must not be set with operator Exists").field_path(".value")
)]
pub struct Toleration {
    /// Key of the taint. Without one, operator must be Exists, and every taint is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,

    /// Equal: the taint has this value. Exists: whatever its value. Default: Equal.
    #[serde(default)]
    pub operator: TolerationOperator,

    /// Value of the taint, with operator Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,

    /// Effect of the taint. Default: every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,

    /// Seconds that a pod stays after a NoExecute taint appeared. Default: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31536000))]
    pub toleration_seconds: Option<i64>,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TolerationOperator {
    #[default]
    Equal,
    Exists,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// A Secret of this namespace with registry credentials.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ImagePullSecret {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub name: String,
}

/// An environment variable: a value, or a reference to a Secret or ConfigMap of this namespace.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.value) && has(self.valueFrom))")
        .message("must not be set together with value").field_path(".valueFrom")
)]
pub struct EnvVar {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = rules::env_name())]
    pub name: String,

    /// Its value. Default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub value: Option<String>,

    /// Where the value comes from instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Where the value of a variable comes from.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
        .message("must have exactly one of secretKeyRef and configMapKeyRef")
)]
pub struct EnvVarSource {
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,

    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

/// A key of a Secret or ConfigMap of this namespace.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// Name of the Secret or ConfigMap.
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub name: String,

    /// Key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,

    /// The pod starts even if the key is missing, without the variable. Default: false.
    #[serde(default)]
    pub optional: bool,
}

/// Requests and limits of a container. The accelerators are counted by their own field, not here.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What the scheduler sets aside, by resource name (`cpu: 4`, `memory: 16Gi`). At most 16.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub requests: BTreeMap<String, Quantity>,

    /// What the container may use at most, by resource name. At most 16.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub limits: BTreeMap<String, Quantity>,
}

/// Not root, and the number that images conventionally give to their first user.
fn unprivileged() -> i64 {
    1000
}
