//! AIInference: a model, served by an engine on GPUs.
//!
//! The type, its bounds and validation rules, and the flags of each engine that only the controller may set.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::status::{AIInferenceStatus, LastColdStart, LoadedModel, Migration, Phase, Resolved};
use self::traffic::{Canary, Gateway, RouteRef};
pub use crate::pods::store::Addressing;
use crate::{
    pods::{EnvVar, PodOptions, Resources},
    schema::{self, rules},
};

pub mod analysis;
pub mod endpoint;
pub mod evaluation;
pub mod source;
mod status;
pub mod traffic;

/// Upper bound of `spec.nodeFailureSeconds`.
pub const MAX_NODE_FAILURE_SECONDS: i32 = 3_600;

/// Default of `surgeTimeoutSeconds`.
pub const DEFAULT_SURGE_TIMEOUT_SECONDS: i32 = 300;

/// Weights of the old HTTPRoute would stay as they are.
fn a_route_stays_while_it_has_shares() -> kube::core::Rule {
    kube::core::Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.canary) || !has(oldSelf.status.canary.phase) || \
         !(oldSelf.status.canary.phase in ['Analysing', 'AwaitingApproval', 'Held', 'Promoting', 'RollingBack'] || \
         has(oldSelf.status.canary.weightPercent) && oldSelf.status.canary.weightPercent > 0) || \
         (has(self.spec.routeRef) == has(oldSelf.spec.routeRef) && \
         (!has(self.spec.routeRef) || self.spec.routeRef == oldSelf.spec.routeRef))",
    )
    .message("must not change while the candidate has a share: remove canary, and wait until status.canary is gone")
    .field_path(".spec.routeRef")
}

/// The admission policy knows the Services of a route by these names.
pub(crate) fn a_route_names_the_service_of_the_candidate() -> kube::core::Rule {
    kube::core::Rule::new("!has(self.spec.routeRef) || size(self.metadata.name) <= 56")
        .message("must not be set with a metadata.name of more than 56 characters: the route names the Service <name>-canary")
        .field_path(".spec.routeRef")
}

/// What to serve, with which engine, on which GPUs.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "ai.infra.example.com",
    version = "v1alpha1",
    kind = "AIInference",
    plural = "aiinferences",
    shortname = "aii",
    category = "ai",
    namespaced,
    doc = "A model that an inference engine serves on GPUs. The weights are copied or mounted before the engine starts, \
           pods are scheduled by GPU product, and pods on lost nodes are replaced.",
    status = "AIInferenceStatus",
    derive = "PartialEq",
    validation = rules::name_fits_a_label(),
    validation = a_route_stays_while_it_has_shares(),
    validation = a_route_names_the_service_of_the_candidate(),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Engine", type_ = "string", json_path = ".spec.engine"),
    // The first field that is set: a new object has no status.gpu yet. The path must begin with a dot; two dots select
    // from the object itself.
    printcolumn(name = "GPU", type_ = "string", json_path = "..['status.gpu','spec.gpu.productLabel']"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.modelSource", priority = 1),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url", priority = 1),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.gpu.count > 0 || has(self.image) || self.engine == 'triton'")
        .message("image is required when gpu.count is 0, because the default image of this engine needs a GPU")
        .field_path(".image").reason(Reason::FieldValueRequired),
    validation = Rule::new(
        "!has(self.resources) || !((has(self.resources.limits) && self.gpu.resourceName in self.resources.limits) || \
         (has(self.resources.requests) && self.gpu.resourceName in self.resources.requests))"
    ).message("must not name gpu.resourceName: gpu.count sets it").field_path(".resources"),
    validation = Rule::new(
        "!has(self.modelLoader) || !has(self.modelLoader.resources) || \
         !((has(self.modelLoader.resources.limits) && self.gpu.resourceName in self.modelLoader.resources.limits) || \
         (has(self.modelLoader.resources.requests) && self.gpu.resourceName in self.modelLoader.resources.requests))"
    ).message("must not name gpu.resourceName: the loader needs no GPU").field_path(".modelLoader.resources"),
    validation = Rule::new("self.gpu.count > 0 || !has(self.parallelism)")
        .message("must not be set when gpu.count is 0").field_path(".parallelism"),
    validation = Rule::new("self.engine != 'triton' || !has(self.stallSeconds)")
        .message("must not be set with engine triton, which does not report tokens").field_path(".stallSeconds"),
    validation = Rule::new("self.engine != 'triton' || !has(self.listen) || self.listen != 'Dual'")
        .message("must not be Dual with engine triton, which listens on one family").field_path(".listen"),
    validation = Rule::new("self.engine != 'triton' || !has(self.parallelism)")
        .message("must not be set with engine triton: the configuration of each model decides").field_path(".parallelism"),
    validation = Rule::new(
        "self.engine != 'tgi' || !has(self.parallelism) || (self.parallelism.pipeline == 1 && self.parallelism.data == 1)"
    ).message("must not set pipeline or data with engine tgi, which has neither").field_path(".parallelism"),
    validation = Rule::new(
        "!has(self.parallelism) || self.gpu.count == 0 || (has(self.parallelism.tensor) ? \
         self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data == self.gpu.count : \
         self.gpu.count % (self.parallelism.pipeline * self.parallelism.data) == 0)"
    ).message("tensor times pipeline times data must be gpu.count").field_path(".parallelism"),
    validation = traffic::grpc_is_of_triton(),
    validation = traffic::has_one_route(),
    validation = traffic::shares_have_a_route(),
    validation = traffic::matches_have_a_gateway(),
    validation = traffic::rules_fit_a_route(),
    validation = traffic::analysis_reads_what_engines_count(),
    validation = traffic::evaluations_compare_what_is_served(),
    validation = Engine::Vllm.owned_flags_rule(),
    validation = Engine::Triton.owned_flags_rule(),
    validation = Engine::Tgi.owned_flags_rule()
)]
pub struct AIInferenceSpec {
    /// Location of the weights: in an S3-compatible store (`s3://bucket[/prefix]`), on Hugging Face
    /// (`hf://owner/name[@revision]`), on ModelScope (`ms://owner/name[@revision]`), or in a claim (`pvc://claim[/path]`).
    /// A claim is mounted without a copy. Other sources are copied into the pod's model volume before the engine starts.
    /// Read-only for the engine. A revision is a branch, a tag or a commit, resolved once for the pods of a spec: see
    /// status.model. Required. Changing it restarts pods.
    #[schemars(length(max = source::MAX_LENGTH))]
    #[x_kube(
        validation = source::location_rule(),
        validation = source::characters_rule(),
        validation = source::segments_rule()
    )]
    pub model_source: String,

    /// Inference engine; decides the default image, arguments, probes and metric names. Required. Changing it restarts pods.
    pub engine: Engine,

    /// GPUs of each pod. Required. Changing it restarts pods.
    pub gpu: Gpu,

    /// Number of pods. 0 stops the service. Default: 1. An autoscaler must be the only owner of this field. Changing it
    /// restarts no pod that stays.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,

    /// Services beside the one for clients. Default: none. Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceOptions>,

    /// Maximum seconds from the start of the engine until it is ready. After that, Ready is False with reason WarmupTimeout.
    /// Default: 300. Changing it restarts pods.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 10, max = 86400))]
    pub warmup_timeout_seconds: i32,

    /// Image of the engine. Default: the controller's default for the engine, resolved once per spec change and shown in
    /// status.resolved of the AIInference. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::image())]
    pub image: Option<String>,

    /// Additional arguments of the engine, at most 64. They are passed unchanged, without a shell. Flags that the controller
    /// sets (port, model path, number of GPUs …) are refused. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    pub args: Vec<String>,

    /// Program of the engine's container, in place of the image's entry point, at most 16 words. With vllm, the model is the
    /// first argument; with a word that names the module `api_server`, it is passed as `--model`. With triton, the
    /// server's program must be named. Default: the image's. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 1024)))]
    pub command: Vec<String>,

    /// Version of the engine in the image, such as `0.17.1`, where the image's tag does not tell it. It decides which flags
    /// are passed: without a known version, only flags that every supported version has. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^v?[0-9]+[.][0-9]+([.][0-9]+)?$')")
        .message("must be a version such as 0.17 or v0.17.1"))]
    pub engine_version: Option<String>,

    /// How the GPUs of a pod share the model. The product of tensor, pipeline and data must be gpu.count. Not with triton,
    /// whose models configure it; tgi knows tensor alone. Default: tensor is gpu.count. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<Parallelism>,

    /// Environment variables of the engine, at most 64. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// Requests and limits of the engine, without its GPUs. Default: none. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Name of the model in requests. Default: the name of this object. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[A-Za-z0-9]([-A-Za-z0-9._:@/]*[A-Za-z0-9])?$')")
        .message("must consist of letters, digits and - . _ : @ /, and start and end with a letter or digit"))]
    pub served_model_name: Option<String>,

    /// Access to the object store of an s3:// source, or to the hub of an hf:// or ms:// source. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_store: Option<ModelStore>,

    /// Environment, resources and choice of files of the loader, which copies the model of an s3://, hf:// or ms:// source.
    /// Default: none. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_loader: Option<ModelLoader>,

    /// Volume of a copied model. Default: the node's disk. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_volume: Option<ModelVolume>,

    /// Strategy of a rollout. Surge: a new pod becomes ready before an old one is deleted. Replace: an old pod is deleted
    /// before a new one is created. Auto: Surge, and Replace where a new pod has waited for surgeTimeoutSeconds, and the deletion
    /// of an old pod makes it fit. It waits for GPUs, quota or a claim that cannot be shared. Default: Auto. Changing it restarts nothing.
    #[serde(default)]
    pub rollout: Rollout,

    /// Seconds that a new pod waits for GPUs, quota or its claim before rollout Auto deletes an old pod. Should exceed the
    /// time in which a node autoscaler adds a node. Not used by Surge and Replace. Default: 300. Changing it restarts nothing.
    // The default is not serialized, so that the hash of specs without this field does not change.
    #[serde(default = "default_surge_timeout", skip_serializing_if = "is_default_surge_timeout")]
    #[schemars(range(min = 30, max = 86400), extend("default" = DEFAULT_SURGE_TIMEOUT_SECONDS))]
    pub surge_timeout_seconds: i32,

    /// Seconds from the time at which the node's Ready condition left True until its pods are replaced. Kubernetes notices the
    /// failure of a node after about 40 s, and since 1.32 after about 50 s. Pods on unreachable or deleted nodes are replaced; pods that are ready on a NotReady
    /// node, for example during a restart of containerd, are not. Pods are never deleted by force: the old pod stays
    /// Terminating until its node is back, is deleted, or is shut down and has the taint node.kubernetes.io/out-of-service.
    /// Default: 30. Changing it restarts nothing.
    #[serde(default = "half_a_minute")]
    #[schemars(range(min = 0, max = MAX_NODE_FAILURE_SECONDS))]
    pub node_failure_seconds: i32,

    /// What happens to the only ready pod when its node is emptied: cordoned, drained, or tainted by Karpenter or the cluster
    /// autoscaler. Surge: another pod becomes ready elsewhere before it goes. Evictions are held back meanwhile, for at most
    /// surgeTimeoutSeconds. Allow: it may be evicted at any time. Used with replicas 1; of more, one is evicted at a time. Default:
    /// Surge. Changing it restarts nothing.
    // The default is not serialized, so that the hash of specs without this field does not change.
    #[serde(default, skip_serializing_if = "Disruption::is_surge")]
    #[schemars(extend("default" = "Surge"))]
    pub disruption: Disruption,

    /// Maximum seconds that running requests get when a pod ends, 0 to 7200. The grace period of the pod and the engine's own
    /// time limit follow. vllm before 0.18, or of an unknown version (see engineVersion), cannot wait. Default: 60, and 90
    /// with tgi. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 7200))]
    pub drain_seconds: Option<i32>,

    /// Seconds after which an engine with running requests and without a token counts as stalled, 60 to 86400. It is restarted,
    /// and the reason is EngineStalled. Must be longer than the engine reads the longest prompt. Not with triton, which does
    /// not report tokens. Default: none, and no engine is restarted for it. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 86_400))]
    pub stall_seconds: Option<i32>,

    /// Addresses that the engine accepts requests on. IPv4: as its image does. IPv6: for clusters whose pods have IPv6
    /// addresses; vllm and tgi also listen on IPv4, triton does not. Dual: both families, and the Service gets an address of
    /// each where the cluster has both; not with triton. Default: IPv4. Changing it restarts pods.
    // The default is not serialized, so that the hash of specs without this field does not change.
    #[serde(default, skip_serializing_if = "Listen::is_ipv4")]
    #[schemars(extend("default" = "IPv4"))]
    pub listen: Listen,

    /// Route through a Gateway of the Gateway API, as an HTTPRoute of this object's name. Default: none; clients use the Service.
    /// Callers inside the cluster who use the Service reach stable alone; status.route.address has all versions.
    /// Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Gateway>,

    /// An HTTPRoute of yours, in place of gateway. While canary gives the candidate a share, the controller changes two numbers
    /// of it: the weights of the two backends in one rule. Default: none. Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_ref: Option<RouteRef>,

    /// A second version, the candidate, which gets a share of the requests and may become stable. What is set here replaces
    /// the field of the top level. After the promotion, move the fields to the top level and remove canary: no pod restarts.
    /// Removing it before that ends the canary. Default: none. For stable, changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,

    #[serde(flatten)]
    pub pods: PodOptions,
}

/// Addresses that an engine accepts requests on.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    #[default]
    IPv4,
    IPv6,
    Dual,
}

impl Listen {
    fn is_ipv4(&self) -> bool {
        *self == Listen::IPv4
    }
}

/// How the GPUs of a pod share the model.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Parallelism {
    /// GPUs that share each layer; must divide the number of attention heads. Default: gpu.count divided by pipeline and data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub tensor: Option<i32>,

    /// Groups of consecutive layers. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub pipeline: i32,

    /// Copies of the model, or of its attention layers for a mixture of experts. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub data: i32,
}

/// Inference engine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    Vllm,
    Triton,
    Tgi,
}

impl Engine {
    pub const ALL: [Engine; 3] = [Engine::Vllm, Engine::Triton, Engine::Tgi];

    /// The value in the spec.
    pub fn as_str(self) -> &'static str {
        match self {
            Engine::Vllm => "vllm",
            Engine::Triton => "triton",
            Engine::Tgi => "tgi",
        }
    }

    /// Flags that only the controller may set, in every documented spelling: model path, ports, number of GPUs, drain.
    ///
    /// Used by the CEL rule and by the controller's validation of undocumented spellings.
    pub fn owned_flags(self) -> &'static [&'static str] {
        match self {
            Engine::Vllm => &[
                "--model",
                "--served-model-name",
                "--host",
                "--port",
                "--uds",
                "--tensor-parallel-size",
                "-tp",
                "--pipeline-parallel-size",
                "-pp",
                "--data-parallel-size",
                "-dp",
                "--shutdown-timeout",
                "--headless",
                "--ssl-keyfile",
                "--ssl-certfile",
            ],
            Engine::Triton => &[
                "--model-repository",
                "--model-store",
                "--http-address",
                "--http-port",
                "--grpc-address",
                "--grpc-port",
                "--metrics-address",
                "--metrics-port",
                "--allow-http",
                "--allow-grpc",
                "--allow-metrics",
                "--exit-timeout-secs",
                "--model-control-mode",
                "--http-restricted-api",
                "--grpc-restricted-protocol",
            ],
            Engine::Tgi => &[
                "--model-id",
                "--hostname",
                "--port",
                "-p",
                "--prometheus-port",
                "--sharded",
                "--num-shard",
                "--graceful-termination-timeout",
            ],
        }
    }

    pub(crate) fn owned_flags_rule(self) -> kube::core::Rule {
        rules::owned_flags("args", &format!("self.engine == '{}'", self.as_str()), self.owned_flags())
    }
}

/// Services beside the one for clients.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceOptions {
    /// Whether there is also a headless Service, `<name>-pods`, which has the address of each ready pod: for clients that spread
    /// their requests themselves, and for long connections. Default: false.
    #[serde(default)]
    pub headless: bool,
}

/// GPUs of each pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.productLabel) && has(self.productLabels))")
        .message("must not be set together with productLabel").field_path(".productLabels"),
    validation = Rule::new("self.count > 0 || !has(self.productLabel)")
        .message("must not be set when count is 0").field_path(".productLabel"),
    validation = Rule::new("self.count > 0 || !has(self.productLabels)")
        .message("must not be set when count is 0").field_path(".productLabels")
)]
pub struct Gpu {
    /// GPU product of the nodes: `A100` selects the node label nvidia.com/gpu.product=A100, `label.key=value` any node
    /// label. A short name, such as `a100` or `l40s`, selects the labels of NVIDIA and of the clouds. Default: any product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 381))]
    #[x_kube(validation = rules::product_label())]
    pub product_label: Option<String>,

    /// Alternative GPU products, at most 8, each in the form of productLabel. Not together with productLabel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8), inner(length(max = 381)))]
    #[x_kube(validation = Rule::new(format!("self.all(label, label.matches(r'{}'))", rules::PRODUCT_LABEL))
        .message("must be GPU products such as A100, or node labels such as nvidia.com/gpu.product=A100"))]
    pub product_labels: Vec<String>,

    /// GPUs per pod, 0 to 16. Required. 0 serves on the CPU: the pods request no GPU, productLabel is refused, and image is
    /// required unless the engine is triton.
    #[schemars(range(min = 0, max = 16))]
    pub count: i32,

    /// Extended resource of the device plugin, for MIG slices and other vendors. Default: nvidia.com/gpu.
    #[serde(default = "nvidia_gpu")]
    #[schemars(length(max = 317))]
    #[x_kube(validation = rules::extended_resource())]
    pub resource_name: String,
}

/// Access to an S3-compatible store or to a hub.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ModelStore {
    /// URL of the store, or of the hub or a mirror, http or https. Default: AWS S3 in the region; of a hub, the controller's,
    /// which is the public hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = rules::http_url())]
    pub endpoint: Option<String>,

    /// Region of the bucket. Default: us-east-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::region())]
    pub region: Option<String>,

    /// Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and optionally AWS_SESSION_TOKEN; of a hub, with the key
    /// `token`. Default: none; the store is read anonymously or with the identity of serviceAccountName, a hub anonymously.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: Option<String>,

    /// Maximum seconds for one copy of the model. Default: 3600.
    #[serde(default = "an_hour")]
    #[schemars(range(min = 60, max = 86400))]
    pub timeout_seconds: i32,

    /// Addressing style of requests. Path: endpoint/bucket. VirtualHosted: bucket.endpoint, which Alibaba Cloud OSS and
    /// Tencent Cloud COS require. Auto: VirtualHosted for AWS, OSS and COS, Path for any other endpoint. Default: Auto.
    // The default is not serialized, so that the hash of specs without this field does not change.
    #[serde(default, skip_serializing_if = "Addressing::is_auto")]
    #[schemars(extend("default" = "Auto"))]
    pub addressing: Addressing,

    /// Secret with certificates (key `ca.crt`, PEM) of authorities that are trusted beside the public ones. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub ca_secret_name: Option<String>,

    /// Digest of the model's SHA256SUMS file, `sha256:` and 64 hexadecimal digits in lower case. A store that holds
    /// another model is refused with reason ChecksumMismatch. Needs an s3:// source. Default: none, the SHA256SUMS of the
    /// store is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 71))]
    #[x_kube(validation = rules::sha256_digest())]
    pub manifest_digest: Option<String>,
}

/// As the API server completes an empty one.
impl Default for ModelStore {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            secret_name: None,
            timeout_seconds: an_hour(),
            addressing: Addressing::Auto,
            ca_secret_name: None,
            manifest_digest: None,
        }
    }
}

/// Environment, resources and choice of files of the loader.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ModelLoader {
    /// Environment variables of the loader, such as HTTPS_PROXY and NO_PROXY, at most 64. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// Patterns of the files that are copied from a hub, at most 32. A pattern is for whole paths: `*` stands for any
    /// characters, slashes too, `?` for one. The name of a folder with a slash at its end is everything below it. Default: all
    /// files, and where weights are there as safetensors, without their copies in other formats. Other sources are copied
    /// whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub include: Vec<String>,

    /// Patterns of files that are not copied from a hub, at most 32, in the form of include, which they restrict. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub exclude: Vec<String>,

    /// Requests and limits of the loader. It runs before the engine, so the pod's request is the larger of the two, not the
    /// sum. Default: the controller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// Volume of a copied model.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.medium == 'Disk' || has(self.size)")
        .message("size is required with medium Memory and with medium Volume")
        .field_path(".size").reason(Reason::FieldValueRequired),
    validation = Rule::new("self.medium == 'Volume' || !has(self.storageClassName)")
        .message("must not be set unless medium is Volume").field_path(".storageClassName")
)]
pub struct ModelVolume {
    /// Disk: an emptyDir on the node. Memory: an emptyDir in memory. Volume: an ephemeral claim per pod, deleted with the pod.
    /// Default: Disk.
    #[serde(default)]
    pub medium: Medium,

    /// Size of the volume, such as 50Gi. Disk: limit and ephemeral-storage request, optional. Memory: required, and
    /// added to the memory limits of loader and engine. Volume: required, size of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::positive_quantity")]
    pub size: Option<Quantity>,

    /// StorageClass of the claim, with medium Volume. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub storage_class_name: Option<String>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    #[default]
    Disk,
    Memory,
    Volume,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rollout {
    #[default]
    Auto,
    Surge,
    Replace,
}

/// What happens to the only ready pod when its node is emptied.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disruption {
    #[default]
    Surge,
    Allow,
}

impl Disruption {
    fn is_surge(&self) -> bool {
        *self == Disruption::Surge
    }
}

fn one() -> i32 {
    1
}

fn half_a_minute() -> i32 {
    30
}

fn five_minutes() -> i32 {
    300
}

fn default_surge_timeout() -> i32 {
    DEFAULT_SURGE_TIMEOUT_SECONDS
}

fn is_default_surge_timeout(seconds: &i32) -> bool {
    *seconds == DEFAULT_SURGE_TIMEOUT_SECONDS
}

fn an_hour() -> i32 {
    3600
}

fn nvidia_gpu() -> String {
    "nvidia.com/gpu".to_owned()
}
