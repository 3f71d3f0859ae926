//! How a candidate is judged by the requests that it and stable answer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::rules;

/// Metrics of an analysis, at most: one of each name.
const MOST_METRICS: usize = 7;

/// Default of `minRequests` of a step. With 300 requests and no bad one, the share of bad ones is below 1 % with 95 %
/// confidence.
pub const DEFAULT_STEP_REQUESTS: i32 = 300;

/// How the candidate is judged by its requests.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.prometheus) == (has(self.metrics) && self.metrics.exists(m, m.name == 'custom'))")
        .message("must be set with the metric custom, and only with it").field_path(".prometheus")
)]
pub struct Analysis {
    /// Enforce: a step ends only when the candidate passes. One that fails is rolled back, and so is one with an engine that
    /// ends with an error while it has a share. Observe: status shows the verdict, and steps go on without it. Default: Enforce.
    #[serde(default)]
    pub mode: AnalysisMode,

    /// What makes a request a bad one, at most one entry of each name. Default: errorRate.
    #[serde(default = "error_rate")]
    #[schemars(
        length(min = 1, max = MOST_METRICS),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub metrics: Vec<AnalysisMetric>,

    /// Server and queries of the metric custom. Required with custom, and only with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<Box<AnalysisPrometheus>>,

    /// Chance that a candidate which is as good as stable is rolled back, in the whole canary, "0.0001" to "0.1". A smaller
    /// chance needs more bad requests to find a bad candidate. Default: "0.01".
    #[serde(default = "alpha")]
    #[schemars(length(max = 8))]
    #[x_kube(validation = Rule::new("self.matches(r'^0[.][0-9]{1,4}$') && double(self) >= 0.0001 && double(self) <= 0.1")
        .message("must be a number in quotes from \"0.0001\" to \"0.1\""))]
    pub alpha: String,

    /// Seconds between two scrapes of the engines of both versions. Default: 15.
    #[serde(default = "interval")]
    #[schemars(range(min = 5, max = 300))]
    pub interval_seconds: i32,

    /// Seconds that a step waits for a verdict after its minSeconds, and again after each pass. Then onInconclusive says what
    /// follows. With weightPercent, only the promotion waits. With mode Enforce, it is also how long something may keep the
    /// candidate's pods from becoming ready before the first step. Then it is rolled back. Default: 3600.
    #[serde(default = "timeout")]
    #[schemars(range(min = 60, max = 2_592_000))]
    pub timeout_seconds: i32,

    /// What follows a step without a verdict. Hold: the candidate keeps its share, and analysis goes on. Rollback: it is rolled
    /// back. Promote: the canary goes on as if the step had passed. Default: Hold.
    #[serde(default)]
    pub on_inconclusive: OnInconclusive,
}

/// A Prometheus-compatible server, and queries that count requests. The controller asks each query once for each version, and
/// adds the label namespace to its selectors. `$namespace` is replaced by the namespace, and `$name` by the Service of the
/// version: NAME for stable, NAME-canary for the candidate. Both can be written with braces: `${name}`. Each query must have
/// `$name`. Results are series of counters, which only ever rise but for restarts, with a label of each pod: at most 500, and
/// 128 KiB.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisPrometheus {
    /// URL of the server, http or https; the controller's configuration must allow it. Default: the configured server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = rules::http_url())]
    pub url: Option<String>,

    /// PromQL query of all requests that ended, such as `http_requests_total{service="$name"}`. Required.
    #[schemars(length(min = 1, max = 4096))]
    pub requests_query: String,

    /// PromQL query of the bad ones of them. It must have a value also when there are none: end it with `or vector(0)`.
    /// Required.
    #[schemars(length(min = 1, max = 4096))]
    pub bad_requests_query: String,

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

/// Whether a verdict has an effect.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnalysisMode {
    #[default]
    Enforce,
    Observe,
}

/// What follows a step without a verdict.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInconclusive {
    #[default]
    Hold,
    Rollback,
    Promote,
}

/// What makes a request a bad one.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.thresholdMillis) || self.name in ['ttft', 'tpot', 'e2e']")
        .message("must be set only with ttft, tpot and e2e").field_path(".thresholdMillis")
)]
pub struct AnalysisMetric {
    /// What makes a request a bad one. With errorRate, the engine ended it with an internal error. With abortRate, the caller
    /// hung up. With repetitionRate, the engine stopped an endless repetition. With ttft, the first token came late. With tpot,
    /// tokens came slowly. With e2e, the whole request took long. With custom, prometheus.badRequestsQuery counts it. The others
    /// are of the engines: refused requests and answers of the gateway are not counted. The newest versions of vLLM have all of
    /// them. TGI has errorRate, tpot and e2e. Triton has errorRate. Times are counted from 120 s after the share rose from 0.
    /// For them, pods of both versions must get similar numbers of requests, up to a factor of 2. Required.
    pub name: MetricName,

    /// Milliseconds above which a request is slow; must be the end of a bucket of the engines' histogram. No bucket of TGI ends
    /// at a whole millisecond. Default: the end of the bucket with stable's 95th percentile since its pods started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub threshold_millis: Option<i32>,

    /// Percent of bad requests that pass whatever stable does, "0" to "100". A candidate below it is not rolled back. Default:
    /// none; 1.25 times stable's percentage and 0.5 percentage points pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 6))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^([0-9]{1,2}([.][0-9]{1,3})?|100)$')")
        .message("must be a number in quotes from \"0\" to \"100\", such as \"0.5\""))]
    pub limit_percent: Option<String>,

    /// The candidate is rolled back if its requests are surely more than so many times as often bad as stable's, "1" to "10". It
    /// does not change what passes: see limitPercent. Default: "1", and "1.25" for ttft, tpot and e2e.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^([1-9]([.][0-9]{1,3})?|10)$')")
        .message("must be a number in quotes from \"1\" to \"10\", such as \"1.5\""))]
    pub max_ratio: Option<String>,
}

/// Name of a metric of an analysis.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum MetricName {
    ErrorRate,
    AbortRate,
    RepetitionRate,
    Ttft,
    Tpot,
    E2e,
    Custom,
}

impl MetricName {
    pub const ALL: [Self; 7] = [
        Self::ErrorRate,
        Self::AbortRate,
        Self::RepetitionRate,
        Self::Ttft,
        Self::Tpot,
        Self::E2e,
        Self::Custom,
    ];

    /// As it is written in a spec.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ErrorRate => "errorRate",
            Self::AbortRate => "abortRate",
            Self::RepetitionRate => "repetitionRate",
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::E2e => "e2e",
            Self::Custom => "custom",
        }
    }
}

/// What the requests of a step say of the candidate.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisStatus {
    /// Pass, Fail or Inconclusive.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub verdict: String,

    /// Why, such as TooFewRequests.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub reason: String,

    /// Up to when requests are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_until: Option<Time>,

    /// What is known of each metric in this step.
    #[serde(default)]
    #[schemars(length(max = MOST_METRICS))]
    pub metrics: Vec<AnalysisMetricStatus>,

    /// Tokens of prompts and answers that both versions have processed in this step, with TGI of answers alone. A share of the
    /// requests may be another share of the tokens. Absent with triton, and until an engine has said how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenCounts>,

    /// What the verdict is computed from, as JSON. For the controller only.
    #[serde(default)]
    #[schemars(length(max = 32_768))]
    pub record: String,
}

/// A metric as it was observed in this step.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisMetricStatus {
    /// Name of the metric.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub name: String,

    /// Pass, Fail or Inconclusive. Empty if it cannot be judged in this step.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub verdict: String,

    /// Why.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub reason: String,

    /// Requests of stable that ended, and how many of them were bad.
    #[serde(default)]
    pub stable: RequestCounts,

    /// Requests of the candidate that ended, and how many of them were bad.
    #[serde(default)]
    pub candidate: RequestCounts,

    /// The candidate's share of bad requests is below this with 95 % confidence, in percent. It passes when this is at most
    /// allowedPercent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub upper_bound_percent: Option<String>,

    /// Largest upper bound that passes, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub allowed_percent: Option<String>,

    /// Evidence of the sequential test (e-value): how many times likelier the counts are if the candidate is worse than if it is
    /// not. It fails when this reaches evidenceNeeded.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub evidence: String,

    /// Number of steps times metrics times tests, divided by alpha. A metric has a second test, against a fixed percentage, if
    /// limitPercent or an earlier step gives one.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub evidence_needed: String,

    /// Milliseconds above which a request is slow in this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub threshold_millis: Option<String>,
}

/// Tokens of both versions.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TokenCounts {
    /// Those of stable.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub stable: i64,

    /// Those of the candidate.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub candidate: i64,
}

/// Requests that ended.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RequestCounts {
    /// Requests that ended.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ended: i64,

    /// Requests that ended and were bad.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bad: i64,

    /// Bad requests in percent; absent without requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub bad_percent: Option<String>,
}

fn error_rate() -> Vec<AnalysisMetric> {
    let (threshold_millis, limit_percent, max_ratio) = (None, None, None);
    vec![AnalysisMetric { name: MetricName::ErrorRate, threshold_millis, limit_percent, max_ratio }]
}

fn alpha() -> String {
    "0.01".to_owned()
}

fn interval() -> i32 {
    15
}

fn timeout() -> i32 {
    3_600
}
