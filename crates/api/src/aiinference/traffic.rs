//! How requests reach an AIInference, and how two versions of it share them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    KubeSchema,
    core::{Reason, Rule},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    analysis::{Analysis, AnalysisStatus, DEFAULT_STEP_REQUESTS},
    source,
};
use crate::{
    pods::{EnvVar, Resources},
    schema::{self, rules},
};

/// Steps of a canary, at most.
pub const MAX_STEPS: usize = 16;

/// Gateways of an HTTPRoute, at most.
const MOST_PARENTS: usize = 32;

/// Default of `minSeconds` of a step.
pub const DEFAULT_STEP_SECONDS: i32 = 300;

fn host_names() -> Rule {
    Rule::new(
        r"self.all(host, host.matches(r'^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'))",
    )
    .message("must be host names in lower case, such as chat.example.com or *.example.com, without port")
}

/// Of a spec with `gateway`, `routeRef` and `canary`, whichever kind has it.
pub(crate) fn grpc_is_of_triton() -> Rule {
    Rule::new("!has(self.gateway) || !has(self.gateway.grpc) || self.engine == 'triton'")
        .message("must have grpc only with engine triton: no other engine has a gRPC API")
        .field_path(".gateway")
}

pub(crate) fn has_one_route() -> Rule {
    Rule::new("!has(self.gateway) || !has(self.routeRef)")
        .message("must not be set together with gateway: one of them has the route")
        .field_path(".routeRef")
}

pub(crate) fn shares_have_a_route() -> Rule {
    Rule::new(
        "!has(self.canary) || has(self.gateway) || has(self.routeRef) || \
         (self.canary.weightPercent == 0 && size(self.canary.steps) == 0)",
    )
    .message("or routeRef is required by canary.weightPercent and canary.steps")
    .field_path(".gateway")
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn matches_have_a_gateway() -> Rule {
    Rule::new(
        "!has(self.canary) || has(self.gateway) || \
         (size(self.canary.match) == 0 && !self.canary.mirror && self.canary.pin == 'None')",
    )
    .message("is required by canary.match, canary.mirror and canary.pin, which routeRef cannot have")
    .field_path(".gateway")
    .reason(Reason::FieldValueRequired)
}

pub(crate) fn rules_fit_a_route() -> Rule {
    Rule::new(
        "!has(self.canary) || !has(self.gateway) || size(self.gateway.pathPrefixes) * \
         (1 + size(self.canary.match) + (self.canary.pin == 'Cookie' ? 2 : 0)) <= 16",
    )
    .message(
        "has too many entries: pathPrefixes times (match + 1) must be at most 16, the rules of an HTTPRoute; pin counts as two of match",
    )
    .field_path(".canary")
}

pub(crate) fn analysis_reads_what_engines_count() -> Rule {
    Rule::new(
        "!has(self.canary) || !has(self.canary.analysis) || self.engine == 'vllm' || self.canary.analysis.metrics.all(metric, \
         metric.name in ['errorRate', 'custom'] || (self.engine == 'tgi' && metric.name in ['tpot', 'e2e']))",
    )
    .message("has a metric that the engine does not count: vLLM has all of them, TGI errorRate, tpot and e2e, Triton errorRate; custom needs no engine")
    .field_path(".canary")
}

pub(crate) fn evaluations_compare_what_is_served() -> Rule {
    Rule::new("!has(self.canary) || !has(self.canary.evaluationName) || self.engine != 'triton'")
        .message("must not have evaluationName with engine triton: a ModelEvaluation serves no model with it")
        .field_path(".canary")
}

/// The route through a Gateway of the Gateway API.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("size(self.hostnames) > 0 || (size(self.pathPrefixes) > 0 && \
                            self.pathPrefixes.all(prefix, !(prefix in ['/v1', '/v2'])))")
        .message("needs hostnames, or pathPrefixes other than /v1 and /v2: routes with the same match hide each other")
        .field_path(".hostnames"),
    validation = Rule::new("!has(self.grpc) || size(self.grpc.hostnames) > 0 || size(self.hostnames) > 0")
        .message("needs hostnames, because calls have no path that differs by model").field_path(".grpc")
)]
pub struct Gateway {
    /// Name of the Gateway. Required.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub name: String,

    /// Namespace of the Gateway, whose listener must allow routes from this namespace. Default: that of this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::object_name())]
    pub namespace: Option<String>,

    /// Listener of the Gateway. Default: all that allow this route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub section_name: Option<String>,

    /// Further Gateways, at most 7. All of them must accept the route before a canary goes on. Default: none.
    #[serde(default)]
    #[schemars(length(max = 7))]
    pub more: Vec<ParentGateway>,

    /// Host names of the requests, at most 16; `*.example.com` for all below a domain. Default: those of the listener, and then
    /// pathPrefixes must differ from /v1 and /v2.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    #[x_kube(validation = host_names())]
    pub hostnames: Vec<String>,

    /// Paths of the requests, at most 8. A longer path that ends with /v1 or /v2, such as /chat/v1, reaches the engine without
    /// what is before that. Each has a part /v1 or /v2. Paths outside of them are not served: engines have dangerous ones.
    /// Default: /v1, and /v2 with triton.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 2, max = 256)))]
    #[x_kube(validation = Rule::new(concat!(
        r"self.all(path, path.matches(r'^(/[-A-Za-z0-9_~][-A-Za-z0-9._~]*)*/v[12](/[-A-Za-z0-9_~][-A-Za-z0-9._~]*)*$') && ",
        "self.exists_one(other, other == path))"
    )).message("must be different paths with /v1 or /v2, such as /v1 or /chat/v1, without a slash at the end"))]
    pub path_prefixes: Vec<String>,

    /// A GRPCRoute NAME-grpc, for Triton's gRPC API, through the same Gateways. Both routes have the same shares, and a
    /// canary goes on only when the gateways have accepted both. Its match and mirror hold for both: header names are keys of
    /// gRPC metadata. Nothing in the kind limits the time of a call. While the cluster does not serve GRPCRoutes, the
    /// HTTPRoute works without it. Only with engine triton. Default: none, and the gateway does not lead to gRPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcGateway>,

    /// An InferencePool of the Gateway API Inference Extension for each version, in place of its Service in the HTTPRoute. The
    /// gateway then asks an endpoint picker which pod gets a request. Pools need a gateway that serves them. While the
    /// cluster does not serve InferencePools, the route leads to the Services. A GRPCRoute, and the copies of mirror, always
    /// do. A change between Services and pools waits while the candidate has a share. Another picker is used at once.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference_pool: Option<InferencePoolGateway>,

    /// Seconds after which the gateway ends a request. 0: never. A gateway with Envoy ends requests after 15 s unless the
    /// route says otherwise, and this route always does. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 86_400))]
    pub request_timeout_seconds: i32,
}

/// The route of gRPC calls.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GrpcGateway {
    /// Host names of gRPC calls, at most 16; `*.example.com` for all below a domain. By the rules of the Gateway API, a listener
    /// that has an HTTPRoute with one of them refuses the GRPCRoute: give gRPC a host name of its own. Default: those of the
    /// gateway, for gateways that do not keep to that.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    #[x_kube(validation = host_names())]
    pub hostnames: Vec<String>,
}

/// The InferencePools of both versions.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InferencePoolGateway {
    /// The endpoint picker of the pools. It is yours: the controller sets nothing of it. Required.
    pub endpoint_picker: EndpointPicker,

    /// The endpoint picker of the candidate's pool. A picker of the Inference Extension serves a single pool, so a canary needs
    /// a second one. Default: endpointPicker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate_endpoint_picker: Option<EndpointPicker>,
}

/// A Service of an endpoint picker.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPicker {
    /// Name of the Service, in the namespace of this object. While it does not answer, requests fail. Required.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub name: String,

    /// Port of the Service, often 9002. Required.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i32,
}

/// A rule of an HTTPRoute that a user has written.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RouteRef {
    /// Name of the HTTPRoute, in the namespace of this object, whose name has 56 characters at most. Required.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub name: String,

    /// Name of the rule, or its number counted from 0. Its backends are the Services of stable and of the candidate, no others.
    /// Default: the only rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub rule: Option<String>,
}

/// Another Gateway.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ParentGateway {
    /// Name of the Gateway. Required.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub name: String,

    /// Namespace of the Gateway. Default: that of this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::object_name())]
    pub namespace: Option<String>,

    /// Listener of the Gateway. Default: all that allow this route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub section_name: Option<String>,
}

/// A second version, the candidate, which gets a share of the requests.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "has(self.modelSource) || has(self.manifestDigest) || has(self.image) || has(self.engineVersion) || \
         has(self.args) || has(self.env) || has(self.resources)"
    ).message("must differ from the top level: set modelSource, manifestDigest, image, engineVersion, args, env or resources"),
    validation = Rule::new("self.weightPercent == 0 || size(self.steps) == 0")
        .message("must not be set together with steps").field_path(".weightPercent"),
    validation = Rule::new("self.promotion != 'Auto' || size(self.steps) > 0")
        .message("must not be Auto without steps, whose end it waits for").field_path(".promotion"),
    validation = Rule::new(
        "!self.mirror || (self.weightPercent == 0 && size(self.steps) == 0 && size(self.match) == 0)"
    ).message("must not be set together with weightPercent, steps and match").field_path(".mirror")
)]
pub struct Canary {
    /// Location of the candidate's weights, as spec.modelSource. Default: as stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = source::MAX_LENGTH))]
    #[x_kube(
        validation = source::location_rule(),
        validation = source::characters_rule(),
        validation = source::segments_rule()
    )]
    pub model_source: Option<String>,

    /// Digest of the candidate's SHA256SUMS file, as spec.modelStore.manifestDigest. Default: as stable, and none with another
    /// modelSource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    #[x_kube(validation = rules::sha256_digest())]
    pub manifest_digest: Option<String>,

    /// Image of the candidate's engine. Default: as stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::image())]
    pub image: Option<String>,

    /// Version of the engine in that image, as spec.engineVersion. Default: as stable, and none with another image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^v?[0-9]+[.][0-9]+([.][0-9]+)?$')")
        .message("must be a version such as 0.17 or v0.17.1"))]
    pub engine_version: Option<String>,

    /// Arguments of the candidate's engine, in place of spec.args. Default: as stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    pub args: Option<Vec<String>>,

    /// Environment of the candidate's engine, in place of spec.env. Default: as stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Option<Vec<EnvVar>>,

    /// Requests and limits of the candidate's engine, in place of spec.resources. Default: as stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Pods of the candidate, beside those of stable. No autoscaler changes them. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: i32,

    /// Share of the requests in percent that the candidate gets until this field is changed. 0 without steps: none, to
    /// try the candidate by its own Service or by match. Not together with steps. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub weight_percent: i32,

    /// Shares that the candidate gets one after the other, at most 16, each larger than the one before. Default: none.
    #[serde(default)]
    #[schemars(length(max = MAX_STEPS))]
    #[x_kube(validation = Rule::new(
        "self.map(step, step.weightPercent).isSorted() && \
         self.all(step, self.exists_one(other, other.weightPercent == step.weightPercent))"
    ).message("must have rising values of weightPercent"))]
    pub steps: Vec<CanaryStep>,

    /// Requests with one of these headers always go to the candidate once it is ready, at most 4. An analysis counts them too,
    /// although they are not chosen at random. Default: none.
    #[serde(default, rename = "match")]
    #[schemars(length(max = 4))]
    pub matches: Vec<HeaderMatch>,

    /// Cookie: browsers, and other callers that keep cookies, come back to the version that has answered them. Each share draws
    /// them once. The gateway sets the cookie: it must support filters of backends and regular expressions for headers, as
    /// Contour does. If it refuses the route, the candidate is rolled back; if it ignores the filter, no caller stays.
    /// Programs that call the OpenAI API keep no cookies: use match for them. gRPC calls are not pinned. Needs gateway. None: each request is
    /// drawn anew. Default: None.
    #[serde(default)]
    pub pin: Pin,

    /// Copies all requests of stable to the candidate once it is ready, and throws its answers away. It has the load of stable
    /// then, so it needs as many replicas. Not together with weightPercent, steps, match and routeRef. Default: false.
    #[serde(default)]
    pub mirror: bool,

    /// Name of a ModelEvaluation of this namespace. The candidate has no pods before its verdict is Passed. Then its pods start
    /// without requests, until the digest of their files equals status.resolved.candidate.digest of the evaluation. If a
    /// step is under way when this field is set, the candidate keeps its share; the next step and the promotion wait. A pass
    /// is recorded in status.canary.evaluation, and holds for this version after the evaluation is deleted. Images, arguments,
    /// environment and the baseline are not checked. Not with engine triton. Default: no evaluation is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub evaluation_name: Option<String>,

    /// Judges the candidate by the requests that it and stable answer, as their engines count them: a step ends when enough of
    /// them are good. Default: steps end by time and by approval alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Analysis>,

    /// What follows the last step. Manual: the candidate keeps its share until approvedSteps is larger than the number of steps.
    /// Auto: it becomes stable. Default: Manual.
    #[serde(default)]
    pub promotion: Promotion,

    /// Steps that are approved. A step with approval begins when this is at least its number, counted from 1. The candidate
    /// becomes stable when this is larger than the number of steps: 1 without steps. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_STEPS + 1))]
    pub approved_steps: i32,

    /// Takes all requests from the candidate at once. Its pods stay until canary is removed. During a promotion, requests fail
    /// while no pod of stable is ready; to keep them, remove canary instead. Default: false.
    #[serde(default)]
    pub abort: bool,
}

/// A share that the candidate gets for a time.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStep {
    /// Share of the requests in percent, 1 to 100. Required.
    #[schemars(range(min = 1, max = 100))]
    pub weight_percent: i32,

    /// Pods of the candidate in this step; they are ready before it begins. Default: canary.replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: Option<i32>,

    /// Seconds that the step lasts at least, from when all gateways have accepted its share. Default: 300.
    #[serde(default = "step_seconds")]
    #[schemars(range(min = 5, max = 604_800))]
    pub min_seconds: i32,

    /// With analysis: requests that the candidate, and stable, must at least have answered in the step. More are needed in
    /// practice: 539 if no request of either is a bad one and limitPercent is not set. Default: 300.
    #[serde(default = "step_requests")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_requests: i32,

    /// Whether the step begins only when canary.approvedSteps is at least its number. Default: false.
    #[serde(default)]
    pub approval: bool,
}

/// A header of requests.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// Name of the header. Required.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[A-Za-z0-9-]+$')")
        .message("must be the name of a header: letters, digits and '-'"))]
    pub header: String,

    /// Its whole value. Required.
    #[schemars(length(min = 1, max = 1024))]
    pub value: String,
}

/// Whether callers stay with the version that has answered them.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    #[default]
    None,
    Cookie,
}

/// What follows the last step.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promotion {
    #[default]
    Manual,
    Auto,
}

/// The canary as it was observed.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStatus {
    /// AwaitingEvaluation: the evaluation of canary.evaluationName has not passed for its files. Starting: its pods come up. Dark: it is ready and
    /// gets no share. Analysing: it has the share of a step. AwaitingApproval: it keeps the share until approvedSteps rises. Held: analysis.timeoutSeconds have passed without a verdict. Promoting: stable gets its version. Promoted: stable has
    /// it. RollingBack: its requests end. RolledBack: it was not good enough, and has no pods. Aborted: canary.abort is set.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::known")]
    #[schemars(with = "String", length(max = 64))]
    pub phase: Option<CanaryPhase>,

    /// Hash of the candidate's version: the top level with the fields of canary.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub revision: String,

    /// Hash of the stable version that it is compared with.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub stable_revision: String,

    /// Number of the step, counted from 1. 0 before the first.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub step: i32,

    /// Share in percent that the route has, and all gateways have accepted.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub weight_percent: i32,

    /// Pods of the candidate.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Ready pods of the candidate.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ready_replicas: i32,

    /// When the canary of this version began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,

    /// When all gateways had accepted the share of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_started_at: Option<Time>,

    /// Whether the route has sent it requests.
    #[serde(default)]
    pub served: bool,

    /// When all gateways had accepted that it gets no requests any more. Its pods stay while requests may still run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<Time>,

    /// Value of approvedSteps that was given to the version before this one. It approves nothing until it changes.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub stale_approvals: i32,

    /// Value of approvedSteps with which the candidate becomes stable. When steps are removed, it falls, and earlier approvals do
    /// not count any more.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub approvals_needed: i32,

    /// How often it lost its last ready pod while it had a share. After the third time it is rolled back.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub lost: i32,

    /// The pass of the evaluation of canary.evaluationName, for this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<PassedEvaluation>,

    /// What the requests of the newest step say. Absent without canary.analysis, and before the first step begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<AnalysisStatus>,

    /// The last version that was rolled back. It is not tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_rollback: Option<Rollback>,
}

/// Where a canary is.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CanaryPhase {
    AwaitingEvaluation,
    Starting,
    Dark,
    Analysing,
    AwaitingApproval,
    Held,
    Promoting,
    Promoted,
    RollingBack,
    RolledBack,
    Aborted,
}

/// A ModelEvaluation with the verdict Passed.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PassedEvaluation {
    /// Name of the ModelEvaluation.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,

    /// uid of the ModelEvaluation.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub uid: String,

    /// Digest of the files that were evaluated.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub digest: String,

    /// Whether ready pods of the candidate have loaded these files.
    #[serde(default)]
    pub confirmed: bool,
}

/// A version that was not good enough.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// Hash of the version.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub revision: String,

    /// Why, as in the condition CanaryHealthy.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,

    /// What was seen.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,

    /// When it was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// The route as it was observed.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    /// Name of the HTTPRoute.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,

    /// Whether all gateways have accepted the present rules of the HTTPRoute, the GRPCRoute and the InferencePools, and found
    /// the Services.
    #[serde(default)]
    pub accepted: bool,

    /// Host and path for clients: `chat.example.com/v1`. The listener of the Gateway decides between http and https. Absent
    /// without a host name in spec.gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub address: Option<String>,

    /// The Gateways of the HTTPRoute, and which of them has accepted it. Those of a GRPCRoute are in its own status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_PARENTS))]
    pub parents: Vec<RouteParentStatus>,
}

/// What a Gateway says of the HTTPRoute.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RouteParentStatus {
    /// Name of the Gateway.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,

    /// Its namespace.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub namespace: String,

    /// Listener of the Gateway that the route names. Absent: all that allow the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub section_name: Option<String>,

    /// Whether it has accepted the present rules and found the Services.
    #[serde(default)]
    pub accepted: bool,
}

fn one() -> i32 {
    1
}

fn step_seconds() -> i32 {
    DEFAULT_STEP_SECONDS
}

fn step_requests() -> i32 {
    DEFAULT_STEP_REQUESTS
}
