//! Pod options of all kinds: scheduling, identity, security, environment, resources.
//!
//! Separate types instead of an embedded pod template, which would make the CRD too large for client-side apply and would
//! have fields that no controller uses.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{self, rules};

mod scheduling;
pub mod store;
mod volumes;

pub use scheduling::{
    NodeExpression, NodeOperator, PodAntiAffinity, Scheduling, TaintEffect, Toleration, TolerationOperator,
    TopologySpread, WhenUnsatisfiable,
};
pub use volumes::{EmptyDir, UserVolume};

/// Fields of every kind with pods, flattened into its spec.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodOptions {
    /// User and groups of the containers. Default: 1000 for each, which passes Pod Security `restricted`.
    /// Changing it restarts pods.
    #[serde(default)]
    pub security_context: SecurityContext,

    /// Constraints on the nodes of the pods. Default: any node with the requested resources. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,

    /// Secrets of this namespace with registry credentials, at most 8. Changing it restarts pods.
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

    /// Requests and limits of every container that the controller adds to the pods: loader, installer, monitor, uploader. An
    /// amount that is not set has its default; every default has a CPU limit and a memory limit. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper_resources: Option<Resources>,

    /// Volumes of the main container, at most 16: ConfigMaps, Secrets, claims and empty folders. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<UserVolume>,

    /// ConfigMaps and Secrets whose keys become environment variables of the main container, at most 16. Variables of env and
    /// those of the controller take precedence. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub env_from: Vec<EnvFrom>,

    /// Size of `/dev/shm` in the main container, such as 8Gi. What is written there counts as memory of the container.
    /// Default: 2Gi for AIInference; half of the memory limit for TrainingJob, and no limit without one; the container
    /// runtime's 64 MiB for AIDispatcher. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::positive_quantity")]
    pub shared_memory: Option<Quantity>,

    /// If true, the controller creates, changes and deletes no child objects, and the conditions say so. The disruption
    /// budget of an AIDispatcher and the marks of its busy pods still follow the load. The budget of a single replica of an
    /// AIInference still ends in time when its node is emptied. Default: false. Changing it restarts nothing.
    #[serde(default)]
    pub paused: bool,
}

/// User and groups of the containers.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContext {
    /// Fixed: runAsUser, runAsGroup and fsGroup are set. Platform: they are left out of the pods, and not used, so that the
    /// platform chooses them, as OpenShift does. The image must then run with any user. Default: Fixed.
    // The default is not serialized, so that the hash of specs without this field does not change.
    #[serde(default, skip_serializing_if = "Ids::is_fixed")]
    #[schemars(extend("default" = "Fixed"))]
    pub ids: Ids,

    /// Numeric user. Default: 1000. With 0 the pod no longer passes Pod Security `restricted`.
    #[serde(default = "unprivileged")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub run_as_user: i64,

    /// Numeric group. Default: 1000.
    #[serde(default = "unprivileged")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub run_as_group: i64,

    /// Numeric group of the volumes. The ownership is changed only if that of a volume's root differs. Default: 1000.
    #[serde(default = "unprivileged")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub fs_group: i64,
}

// Not derived, because that would publish 0 (root) as the default.
impl Default for SecurityContext {
    fn default() -> Self {
        Self {
            ids: Ids::Fixed,
            run_as_user: unprivileged(),
            run_as_group: unprivileged(),
            fs_group: unprivileged(),
        }
    }
}

/// Who chooses the user and groups of the containers.
#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ids {
    #[default]
    Fixed,
    Platform,
}

impl Ids {
    fn is_fixed(&self) -> bool {
        *self == Ids::Fixed
    }
}

/// Variables from all keys of a ConfigMap or a Secret of this namespace.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.configMapName) != has(self.secretName)")
        .message("must have exactly one of configMapName and secretName")
)]
pub struct EnvFrom {
    /// ConfigMap with the variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub config_map_name: Option<String>,

    /// Secret with the variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: Option<String>,

    /// Text before the name of each variable. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::env_name())]
    pub prefix: Option<String>,

    /// If true, the pod starts without the variables if the object does not exist. Default: false.
    #[serde(default)]
    pub optional: bool,
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

    /// Value of the variable. Default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub value: Option<String>,

    /// Source of the value. Not together with value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Source of the value of a variable.
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

    /// Key in the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,

    /// If true, the pod starts without the variable if the object or the key does not exist. Default: false.
    #[serde(default)]
    pub optional: bool,
}

/// Requests and limits of a container, without its accelerators, which have their own field.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Amounts that the scheduler reserves, by resource name (`cpu: 4`, `memory: 16Gi`). At most 16.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub requests: BTreeMap<String, Quantity>,

    /// Maximum amounts, by resource name. At most 16.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::resource_list")]
    pub limits: BTreeMap<String, Quantity>,
}

/// The conventional id of the first unprivileged user.
fn unprivileged() -> i64 {
    1000
}
