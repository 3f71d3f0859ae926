//! AIScaler: keeps a workload at the size that a measured value asks for.
//!
//! The type, its bounds and its rules. The arithmetic is in `scaling`.

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, Time},
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{rules, schema};

/// What to scale, by which measured value, within which bounds.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "ai.infra.example.com",
    version = "v1",
    kind = "AIScaler",
    plural = "aiscalers",
    shortname = "ais",
    category = "ai",
    namespaced,
    doc = "Keeps a workload at the size that its queue, its GPUs, its latency or its token rate asks for.",
    status = "AIScalerStatus",
    derive = "PartialEq",
    validation = rules::name_fits_a_label(),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec['deploymentName','targetRef.name']"),
    printcolumn(name = "Metric", type_ = "string", json_path = ".spec.metricType"),
    printcolumn(name = "Value", type_ = "string", json_path = ".status.metric.display"),
    printcolumn(name = "Min", type_ = "integer", json_path = ".spec.minReplicas"),
    printcolumn(name = "Max", type_ = "integer", json_path = ".spec.maxReplicas"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.currentReplicas"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.deploymentName) != has(self.targetRef)")
        .message("must have exactly one of deploymentName and targetRef"),
    validation = Rule::new("self.minReplicas <= self.maxReplicas")
        .message("must not be above maxReplicas").field_path(".minReplicas"),
    validation = Rule::new("self.minReplicas > 0 || (has(self.source) && has(self.source.prometheus))")
        .message("must be at least 1 without source.prometheus: with no pods left there is nothing else to measure")
        .field_path(".minReplicas"),
    validation = Rule::new("self.metricType != 'custom' || has(self.source)")
        .message("source is required with metricType custom").field_path(".source")
        .reason(Reason::FieldValueRequired)
)]
pub struct AIScalerSpec {
    /// Deployment of this namespace to scale. Exactly one of this and targetRef. Changing it restarts nothing; the old
    /// target stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub deployment_name: Option<String>,

    /// Object of this namespace with a scale sub-resource to scale. Exactly one of this and deploymentName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,

    /// What is measured. Required. queue_depth: requests waiting and running. gpu_util, gpu_memory: percent. latency:
    /// 95th percentile in milliseconds. tokens_per_minute. custom: as the source says.
    pub metric_type: MetricType,

    /// Value per replica that the target is kept at, in the unit of metricType. Required.
    #[schemars(range(min = 1, max = 1000000000000_i64))]
    pub target_value: i64,

    /// Fewest replicas. 0 requires source.prometheus. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: i32,

    /// Most replicas. Required.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,

    /// Where samples come from. Default: gpu_util and gpu_memory from the metrics agents, the others from the target's
    /// pods. Required with metricType custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,

    /// Metrics beside the first, at most 4. Each asks for a number of replicas, and the largest wins, as in a
    /// HorizontalPodAutoscaler. Default: none. Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "atomic"))]
    pub additional_metrics: Vec<AdditionalMetric>,

    /// How fast to scale, as in a HorizontalPodAutoscaler and with the same defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,

    /// What to do when the metric has been gone for long. Default: replicas are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,

    /// Apply: replicas of the target are set. DryRun: everything is measured, decided and recorded in the status, and no
    /// replicas are set, so that an AIScaler can be tried beside another autoscaler. Default: Apply. Changing it restarts
    /// nothing.
    #[serde(default)]
    pub mode: Mode,

    /// The controller leaves the target as it is and says so in the conditions. Default: false.
    #[serde(default)]
    pub paused: bool,
}

/// Whether decisions are carried out.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Apply,
    DryRun,
}

/// A metric beside the first one.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.metricType != 'custom' || has(self.source)")
        .message("source is required with metricType custom").field_path(".source")
        .reason(Reason::FieldValueRequired)
)]
pub struct AdditionalMetric {
    /// What is measured, as in metricType of the first metric. Required.
    pub metric_type: MetricType,

    /// Value per replica that the target is kept at, in the unit of metricType. Required.
    #[schemars(range(min = 1, max = 1000000000000_i64))]
    pub target_value: i64,

    /// Where samples come from, as in source of the first metric. Required with metricType custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// An object with a scale sub-resource.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// Its API version, such as apps/v1.
    #[schemars(length(max = 317))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+$')")
        .message("must be an API version such as apps/v1"))]
    pub api_version: String,

    /// Its kind, such as StatefulSet.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[A-Z][A-Za-z0-9]*$')")
        .message("must be a kind such as StatefulSet"))]
    pub kind: String,

    /// Its name.
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub name: String,
}

/// What is measured.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "snake_case")]
pub enum MetricType {
    QueueDepth,
    GpuUtil,
    GpuMemory,
    Latency,
    TokensPerMinute,
    Custom,
}

/// Where samples come from.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.prometheus) != has(self.pods)")
        .message("must have exactly one of prometheus and pods")
)]
pub struct Source {
    /// A query to a Prometheus server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusSource>,

    /// A metric that the target's pods serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsSource>,
}

/// A query to a Prometheus server.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusSource {
    /// URL of the server, http or https; the controller must allow it. Default: the one that the controller is
    /// configured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = rules::http_url())]
    pub url: Option<String>,

    /// PromQL query for the total over all replicas. `$namespace` and `$name` stand for the target's. The controller
    /// confines it to this namespace.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,

    /// Secret with the bearer token (key `token`). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: Option<String>,

    /// Secret with the server's CA certificate (key `ca.crt`). Default: the CAs of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub ca_secret_name: Option<String>,
}

/// A metric that the target's pods serve.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodsSource {
    /// Port that serves Prometheus text.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,

    /// Path on that port. Default: /metrics.
    #[serde(default = "metrics_path")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^/\S*$')").message("must start with '/' and contain no spaces"))]
    pub path: String,

    /// Name of the metric, without labels. Values of one pod are summed.
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[a-zA-Z_:][a-zA-Z0-9_:]*$')")
        .message("must be the name of a Prometheus metric, without labels"))]
    pub metric: String,
}

/// How fast to scale, in each direction.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Behavior {
    /// How fast to add replicas. Default: no window; per 15 s, the larger of 4 pods and 100 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScalingRules>,

    /// How fast to remove replicas. Default: a window of 300 s; per 15 s, 100 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ScalingRules>,
}

/// How fast to scale in one direction.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// Seconds over which the most cautious recommendation wins. Default: 0 up, 300 down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: Option<i32>,

    /// Which of several policies wins. Max: the one that allows most. Min: the one that allows least. Disabled: never
    /// scale in this direction. Default: Max.
    #[serde(default)]
    pub select_policy: SelectPolicy,

    /// Bounds of the change over a time, at most 8. Default: those of the direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub policies: Vec<ScalingPolicy>,

    /// Share by which the value may be off its target before replicas change, such as `0.05`. Default: 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub tolerance: Option<Quantity>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectPolicy {
    #[default]
    Max,
    Min,
    Disabled,
}

/// How much may change over a time.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicy {
    /// Unit of value: Pods, or Percent of the current replicas.
    #[serde(rename = "type")]
    pub unit: PolicyUnit,

    /// How much may change.
    #[schemars(range(min = 1, max = 1000000))]
    pub value: i32,

    /// Seconds over which it may change.
    #[schemars(range(min = 1, max = 1800))]
    pub period_seconds: i32,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyUnit {
    Pods,
    Percent,
}

/// What to do when the metric has been gone for long.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Fallback {
    /// Seconds without a sample.
    #[schemars(range(min = 30, max = 86400))]
    pub after_seconds: i32,

    /// Replicas to set then, within minReplicas and maxReplicas.
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
}

/// What the controller has observed and decided. A new object has the default until the controller has seen it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AIScalerStatus {
    /// Replicas of the target.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub current_replicas: i32,

    /// Replicas that the target should have.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub desired_replicas: i32,

    /// Latest value of the first metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricStatus>,

    /// Latest value of each metric and the replicas that it asks for: the first one, then additionalMetrics in their
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub metrics: Vec<MetricReading>,

    /// When the target was last scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,

    /// How long a new pod takes until it is ready, as measured on this target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ColdStart>,

    /// The last 10 changes of the replica count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub decisions: Vec<Decision>,

    /// What a restarted controller needs to go on as if it had not restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,

    /// Generation of the spec that this status speaks of. 0 until the controller has seen the object.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,

    /// AbleToScale, ScalingActive, ScalingLimited and Ready; Reconciling and Stalled only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Latest value of the metric, per replica. Fractions are decimal strings.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MetricStatus {
    /// Measured.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub value: String,

    /// Wanted.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub target: String,

    /// Both, as the VALUE column shows them: `12/5`.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub display: String,
}

/// Latest value of one of several metrics. Fractions are decimal strings.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MetricReading {
    /// What is measured, as in the spec.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub metric_type: String,

    /// Measured, per replica.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub value: String,

    /// Wanted, per replica.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub target: String,

    /// Both: `12/5`.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub display: String,

    /// Replicas that this metric asks for, before windows, policies and bounds. Absent while it cannot be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
}

/// Seconds from the creation of a pod until it is ready.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ColdStart {
    /// Half of the pods are faster.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub p50_seconds: i32,

    /// Nine of ten pods are faster.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub p90_seconds: i32,
}

/// A change of the replica count.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,

    /// Replicas before.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub from: i32,

    /// Replicas after.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub to: i32,

    /// Replicas that the metric alone asked for, before windows, policies and bounds.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub raw: i32,

    /// Figures that led to it.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub inputs: String,

    /// Why, as one CamelCase word.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
}

/// What happened inside the windows of the behavior.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct History {
    /// Recommendations, thinned to at most 64 buckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
    pub recommendations: Vec<Recommendation>,

    /// Replicas added or removed, thinned to at most 64 buckets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
    pub scale_events: Vec<ScaleEvent>,
}

/// A recommendation of the past.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Recommendation {
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,

    /// Replicas that were recommended.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub replicas: i32,
}

/// A change of the past.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScaleEvent {
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,

    /// Replicas added, or removed if negative.
    #[serde(default)]
    pub change: i32,
}

fn one() -> i32 {
    1
}

fn metrics_path() -> String {
    "/metrics".to_owned()
}
