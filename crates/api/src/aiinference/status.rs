//! The status of an AIInference.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::traffic::{CanaryStatus, RouteStatus};
use crate::schema;

/// Observed state. A new object has the default until the controller has processed it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AIInferenceStatus {
    /// Pending: no pod of the current revision is scheduled, or replicas is 0. Loading: its pods copy the model or warm up.
    /// Ready: all replicas are ready. Failed: it cannot become ready without a change; the conditions have the reason.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::known")]
    #[schemars(with = "String", length(max = 64))]
    pub phase: Option<Phase>,

    /// Ready pods of any revision.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ready_replicas: i32,

    /// Whether at least one pod of the current revision is ready.
    #[serde(default)]
    pub model_loaded: bool,

    /// When phase last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,

    /// Accepted, ModelLoaded, Scheduled, Available, Progressing and Ready; Reconciling, Stalled and TemplateOutdated only
    /// while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Pods of any revision.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Pods of the current revision.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub updated_replicas: i32,

    /// Ready pods of the current revision.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub updated_ready_replicas: i32,

    /// Accepted GPU products, as in the GPU column: `A100`, or `A100 or H100`. Absent if any product is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub gpu: Option<String>,

    /// URL of the Service inside the cluster: `http://service.namespace.svc:8000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub url: Option<String>,

    /// Selector of the pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub selector: Option<String>,

    /// Defaults that were resolved when this spec was first rendered. They stay until the spec changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,

    /// Generation of the spec that this status refers to. 0 until the controller has processed the object.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,

    /// The last 10 pods that were replaced because of their nodes or GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub migrations: Vec<Migration>,

    /// How long the last new pod took on its node until it served: images, model and engine. AIScaler begins with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_cold_start: Option<LastColdStart>,

    /// The model that the ready pods of the current revision have loaded, by the oldest of them. Absent until one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<LoadedModel>,

    /// The HTTPRoute. Absent without spec.gateway and spec.routeRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteStatus>,

    /// The canary. Absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryStatus>,

    /// Hash of the version of spec.canary that stable has after its promotion. Absent when the fields are at the top level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub promoted_revision: Option<String>,

    /// Pods that stable had when the canary began. AIScaler keeps at least these while it lasts, for a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_stable_replicas: Option<i32>,
}

/// Summary of the conditions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Loading,
    Ready,
    Failed,
}

/// Defaults that were resolved when a spec was first rendered.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// Image of the engine.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub image: String,

    /// Engine profile: arguments, probes and metric names of an engine, by version.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub profile: String,

    /// Digest of the pod template, to detect a Deployment whose template and record were both edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub template: Option<String>,
}

/// A pod that was replaced because of its node or its GPU.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Migration {
    /// Name of the replaced pod.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub pod: String,

    /// Node of the replaced pod.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub from_node: String,

    /// Node of the replacement, once it is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub to_node: Option<String>,

    /// NodeNotReady, NodeUnreachable, NodeDeleted or GPUFault.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,

    /// What the reason does not say: the error of a GPU, with its XID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,

    /// When the pod was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// How long a new pod took to serve.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastColdStart {
    /// Seconds from when the pod got its node until it was ready.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub seconds: i32,

    /// When the pod became ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A model as its loader has found it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LoadedModel {
    /// Digest of the list of its files, as `sha256:` and 64 hexadecimal digits. The same model in the same place has the
    /// same digest.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub digest: String,

    /// Number of files.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub files: i64,

    /// Bytes of all files.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bytes: i64,

    /// Of a model of a hub: the commit that its revision was resolved to. Later pods load this commit until the spec changes or
    /// the annotation ai.infra.example.com/refresh gets a new value. Absent if the hub does not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub revision: Option<String>,
}
