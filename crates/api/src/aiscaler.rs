//! AIScaler: scales a workload by measured values.
//!
//! The type, its bounds and validation rules.

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, Time},
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{self, rules};

/// Target, metric and bounds.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "ai.infra.example.com",
    version = "v1",
    kind = "AIScaler",
    plural = "aiscalers",
    shortname = "ais",
    category = "ai",
    namespaced,
    doc = "Scales a workload by its queue, its GPU utilization, its latency or its token rate.",
    status = "AIScalerStatus",
    derive = "PartialEq",
    validation = rules::name_fits_a_label(),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec['deploymentName','targetRef.name']"),
    printcolumn(name = "Metric", type_ = "string", json_path = ".spec.metricType"),
    printcolumn(name = "Value", type_ = "string", json_path = ".status.metric.display"),
    printcolumn(name = "Min", type_ = "integer", json_path = ".spec.minReplicas"),
    printcolumn(name = "Max", type_ = "integer", json_path = ".spec.maxReplicas"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.currentReplicas"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.deploymentName) != has(self.targetRef)")
        .message("must have exactly one of deploymentName and targetRef"),
    validation = Rule::new("self.minReplicas <= self.maxReplicas")
        .message("must not be above maxReplicas").field_path(".minReplicas"),
    validation = Rule::new("self.minReplicas > 0 || (has(self.source) && has(self.source.prometheus))")
        .message("must be at least 1 without source.prometheus: pods cannot be measured while there are none")
        .field_path(".minReplicas"),
    validation = Rule::new("self.metricType != 'custom' || has(self.source)")
        .message("source is required with metricType custom").field_path(".source")
        .reason(Reason::FieldValueRequired),
    validation = rules::completions_are_of_a_queue()
)]
pub struct AIScalerSpec {
    /// Deployment of this namespace to scale. Exactly one of deploymentName and targetRef is required. A change leaves the
    /// replicas of the previous target unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub deployment_name: Option<String>,

    /// Object of this namespace with the scale subresource. Exactly one of deploymentName and targetRef is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,

    /// Metric. Required. queue_depth: waiting and running requests. gpu_util, gpu_memory: percent. latency: 95th percentile in
    /// milliseconds. tokens_per_minute. custom: the values of source.
    pub metric_type: MetricType,

    /// Target value in the unit of metricType: per replica, of latency for all requests together. A whole number, or a quantity:
    /// `800m` and, in quotes, `"0.8"` are the same. From 1m to 1T, in thousandths. Required.
    #[schemars(schema_with = "schema::target_value")]
    pub target_value: Quantity,

    /// Minimum number of replicas. 0 requires source.prometheus, with a query that has a value while the target has no pods.
    /// Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: i32,

    /// Maximum number of replicas. Required.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,

    /// Source of the samples. Default: the metrics agents for gpu_util and gpu_memory, the target's pods for the others.
    /// Required with metricType custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,

    /// Additional metrics, at most 4. The largest recommendation of all metrics is used, as in a HorizontalPodAutoscaler.
    /// Default: none. Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "atomic"))]
    pub additional_metrics: Vec<AdditionalMetric>,

    /// Scaling rates, as `behavior` of a HorizontalPodAutoscaler and with the defaults of its fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,

    /// Replicas while the metric is missing. It does not apply while the target has 0 replicas and the query no series.
    /// Default: the replicas stay unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,

    /// Rules of the decisions. Auto: queue_depth, latency and tokens_per_minute follow what arrives and how long it takes, if engines
    /// count finished requests, or for queue_depth a completionsQuery does; other metrics follow the value. Ratio: the rules of a HorizontalPodAutoscaler; pods that start are not counted.
    /// Default: Auto. Changing it restarts nothing.
    #[serde(default)]
    pub algorithm: Algorithm,

    /// Apply: sets the replicas of the target. DryRun: measures, decides and records in the status, but does not set replicas,
    /// for a trial beside another autoscaler. Default: Apply. Changing it restarts nothing.
    #[serde(default)]
    pub mode: Mode,

    /// If true, the controller does not change the target, and the reason of Ready is Paused. Default: false.
    #[serde(default)]
    pub paused: bool,
}

/// Rules of the decisions.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    #[default]
    Auto,
    Ratio,
}

/// Whether decisions are applied.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Apply,
    DryRun,
}

/// An additional metric.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.metricType != 'custom' || has(self.source)")
        .message("source is required with metricType custom").field_path(".source")
        .reason(Reason::FieldValueRequired),
    validation = rules::completions_are_of_a_queue()
)]
pub struct AdditionalMetric {
    /// Metric, as in spec.metricType. Required.
    pub metric_type: MetricType,

    /// Value per replica that the target is kept at, in the unit of metricType and in the form of spec.targetValue. Required.
    #[schemars(schema_with = "schema::target_value")]
    pub target_value: Quantity,

    /// Source of the samples, as in spec.source. Required with metricType custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// An object with the scale subresource.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// API version, such as apps/v1.
    #[schemars(length(max = 317))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+$')")
        .message("must be an API version such as apps/v1"))]
    pub api_version: String,

    /// Kind, such as StatefulSet.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[A-Z][A-Za-z0-9]*$')")
        .message("must be a kind such as StatefulSet"))]
    pub kind: String,

    /// Name of the object.
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub name: String,
}

/// Metric.
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

/// Source of the samples.
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
    /// URL of the server, http or https; the controller's configuration must allow it. Default: the configured server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = rules::http_url())]
    pub url: Option<String>,

    /// PromQL query with one number as its result. With latency: the 95th percentile in milliseconds. With any other
    /// metricType: the total over all replicas, as of sum(...), which is divided by their number. `$namespace` and `$name` are
    /// replaced by the target's. The controller restricts the query to this namespace.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,

    /// PromQL query of the requests that all replicas finish per second, such as a sum of rates over a minute. Replicas then
    /// follow what arrives. It needs metricType queue_depth, and a query that counts requests that wait and requests that run.
    /// Default: none; replicas follow the queue alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub completions_query: Option<String>,

    /// Secret with the bearer token (key `token`). It is sent to a URL of https alone, unless the controller has
    /// `--tokens-over-http`. Default: none.
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
    /// Port of the metrics in Prometheus text format.
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

/// Scaling rates by direction.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Behavior {
    /// Rate of adding replicas. Default: no window; per 15 s, the larger of 4 pods and 100 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScalingRules>,

    /// Rate of removing replicas. Default: a window of 300 s; per 15 s, 100 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ScalingRules>,
}

/// Scaling rate in one direction.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// Window in seconds, of which the most conservative recommendation is used. Default: 0 up, 300 down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: Option<i32>,

    /// Selection among several policies. Max: the one that allows the largest change. Min: the smallest change. Disabled: no
    /// scaling in this direction. Default: Max.
    #[serde(default)]
    pub select_policy: SelectPolicy,

    /// Limits of the change per period, at most 8. Default: those of the direction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub policies: Vec<ScalingPolicy>,

    /// Relative deviation of the value from its target that changes no replicas, in quotes: `"0.05"`. It does not apply where
    /// arrivals count. Default: 0.1.
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

/// Limit of the change per period.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicy {
    /// Unit of value: Pods, or Percent of the current replicas.
    #[serde(rename = "type")]
    pub unit: PolicyUnit,

    /// Maximum change.
    #[schemars(range(min = 1, max = 1000000))]
    pub value: i32,

    /// Period in seconds.
    #[schemars(range(min = 1, max = 1800))]
    pub period_seconds: i32,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyUnit {
    Pods,
    Percent,
}

/// Replicas while the metric is missing.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Fallback {
    /// Seconds without a sample.
    #[schemars(range(min = 30, max = 86400))]
    pub after_seconds: i32,

    /// Replicas to set after that time, within minReplicas and maxReplicas.
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,
}

/// Observed state and decisions. A new object has the default until the controller has processed it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AIScalerStatus {
    /// Replicas of the target.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub current_replicas: i32,

    /// Desired replicas of the target.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub desired_replicas: i32,

    /// Latest value of the first metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricStatus>,

    /// Latest value and recommendation of each metric: the first metric, then additionalMetrics in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub metrics: Vec<MetricReading>,

    /// When the target was last scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,

    /// Measured time until a new pod of this target is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ColdStart>,

    /// The last 10 changes of the replica count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub decisions: Vec<Decision>,

    /// State that a restarted controller needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,

    /// Generation of the spec that this status refers to. 0 until the controller has processed the object.
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
    /// Measured value.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub value: String,

    /// Target value.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub target: String,

    /// Value and target, as in the VALUE column: `12/5`.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub display: String,
}

/// Latest value of one of several metrics. Fractions are decimal strings.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MetricReading {
    /// Metric, as in the spec.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub metric_type: String,

    /// Measured value per replica.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub value: String,

    /// Target value per replica.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub target: String,

    /// Value and target: `12/5`.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub display: String,

    /// Recommended replicas before windows, policies and bounds. Absent while the metric cannot be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
}

/// Seconds from when a pod gets its node until it is ready.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ColdStart {
    /// Median.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub p50_seconds: i32,

    /// 90th percentile.
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

    /// Recommended replicas before windows, policies and bounds.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub raw: i32,

    /// Measured values of the decision.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub inputs: String,

    /// Reason, one CamelCase word.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
}

/// Recommendations and changes within the windows of behavior.
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

    /// What was learned of the pods and of each metric, as JSON for the controller alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub learned: Option<String>,
}

/// A past recommendation.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Recommendation {
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,

    /// Recommended replicas.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub replicas: i32,
}

/// A past change.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ScaleEvent {
    /// When the first of several changes was made. Absent if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// When the last change was made.
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
