//! ModelEvaluation: is a candidate worse than a baseline, on which test sets, and by how much?
//!
//! The spec, its bounds and validation rules. Fields of a temporary server have the types of AIInference.

mod status;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Engine, ModelLoader, ModelStore, ModelVolume, source};
use crate::{
    pods::{
        EnvVar, PodOptions, Resources, Scheduling,
        store::{Addressing, Upload},
    },
    schema::{self, rules},
};

pub use status::{ModelEvaluationStatus, NullControl, Phase, Resolved, ResolvedSide, Run, TestSetResult};

/// `spec.server.accelerator` of a server without GPUs.
pub const CPU: &str = "cpu";

/// Before the name of an AIInference that runs already.
pub const RUNNING_SERVER: &str = "aiinference/";

/// Before the URL of an OpenAI API outside of this project.
pub const ENDPOINT: &str = "endpoint:";

/// Two models, the test sets, and how much worse the candidate may be.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "aistudio.modelscope.cn",
    version = "v1alpha1",
    kind = "ModelEvaluation",
    plural = "modelevaluations",
    shortname = "me",
    category = "ai",
    namespaced,
    doc = "A comparison of two models on the same questions. Its verdict is Passed, Regressed or Inconclusive. A model that \
           is not served yet gets a temporary AIInference, which is deleted as soon as it is not needed.",
    status = "ModelEvaluationStatus",
    derive = "PartialEq",
    validation = rules::name_fits_a_label(),
    printcolumn(name = "Baseline", type_ = "string", json_path = ".spec.baselineModel"),
    printcolumn(name = "Candidate", type_ = "string", json_path = ".spec.candidateModel"),
    printcolumn(name = "TestSet", type_ = "string", json_path = "..['status.testSets','spec.testSet']"),
    printcolumn(name = "Verdict", type_ = "string", json_path = ".status.verdict"),
    printcolumn(name = "Difference", type_ = "string", json_path = ".status.difference"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Summary", type_ = "string", json_path = ".status.summary", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = make_other_fields_immutable)]
#[x_kube(
    validation = Rule::new("has(self.output) || !has(oldSelf.output)")
        .message("must not be removed after creation").field_path(".output"),
    validation = Rule::new(
        "has(oldSelf.output) || !has(self.output) || !has(self.output.claimName) && !has(self.output.size) && \
         !has(self.output.storageClassName)",
    ).message("claimName, size and storageClassName must not be added after creation").field_path(".output"),
    validation = Rule::new("has(self.testSet) != has(self.testSets)")
        .message("exactly one of testSet and testSets must be set"),
    validation = Rule::new(
        "oldSelf.hasValue() || self.requests != 'Completions' || has(self.testSets) && \
         self.testSets.all(set, set.harness == 'lm-eval')",
    ).optional_old_self(true)
        .message("evalscope sends chat completions alone: must be Chat, or all testSets must have harness lm-eval")
        .field_path(".requests"),
    validation = Rule::new("self.baselineModel != self.candidateModel")
        .message("must not be the baselineModel: a model is no worse than itself").field_path(".candidateModel")
)]
pub struct ModelEvaluationSpec {
    /// Model to compare with. An AIInference of this namespace that runs is `aiinference/name`. A model of an OpenAI API is
    /// `endpoint:https://host/v1#name`, if the controller allows its URL. Without `#name` it is the only one there. Weights are
    /// `s3://bucket/prefix`, `pvc://claim/path`, `hf://owner/name` or `ms://owner/name`, as modelSource of an AIInference. A
    /// model of ModelScope, or of the controller's `--model-library`, is `owner/name`. An absolute path is what a TrainingJob of
    /// this namespace writes, at or below its outputDir. The evaluation waits for that job. Required. Cannot be changed.
    #[schemars(length(max = source::MAX_LENGTH))]
    #[x_kube(
        validation = model_reference(),
        validation = source::characters_rule(),
        validation = source::segments_rule()
    )]
    pub baseline_model: String,

    /// Model that may be worse, in the forms of baselineModel. Required. Cannot be changed.
    #[schemars(length(max = source::MAX_LENGTH))]
    #[x_kube(
        validation = model_reference(),
        validation = source::characters_rule(),
        validation = source::segments_rule()
    )]
    pub candidate_model: String,

    /// One test set by its name, in place of testSets. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = test_set_name())]
    pub test_set: Option<String>,

    /// Test sets, 1 to 16. Exactly one of testSet and testSets is required. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub test_sets: Vec<TestSet>,

    /// Loss that is still acceptable, in percentage points of right answers: a decimal number in quotes, 0.01 to 100. Default: "1.0". Cannot be changed.
    #[serde(default = "one_point")]
    #[schemars(length(max = 8))]
    #[x_kube(validation = points())]
    pub regression_budget_points: String,

    /// One-sided confidence of the verdict, "0.90" to "0.99", in quotes. Default: "0.95". Cannot be changed.
    #[serde(default = "ninety_five")]
    #[schemars(length(max = 4))]
    #[x_kube(validation = Rule::new("self.matches(r'^0[.]9[0-9]?$')")
        .message("must be a decimal number in quotes, from \"0.90\" to \"0.99\""))]
    pub confidence: String,

    /// Seed of the harness, the same for both models. Default: 42. Cannot be changed.
    #[serde(default = "seed")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub seed: i32,

    /// Temperature of the answers: a decimal number in quotes, "0" to "2". Default: "0". Cannot be changed.
    #[serde(default = "zero")]
    #[schemars(length(max = 4))]
    #[x_kube(validation = Rule::new("self.matches(r'^([01]([.][0-9]{1,2})?|2([.]0{1,2})?)$')")
        .message("must be a decimal number in quotes, from \"0\" to \"2\", with at most 2 digits after the point"))]
    pub temperature: String,

    /// Longest answer in tokens. Default: the harness's. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 131072))]
    pub max_tokens: Option<i32>,

    /// Requests that are sent at a time, 1 to 512. Another number changes answers, so it is the same for both models. Default:
    /// 8. Cannot be changed.
    #[serde(default = "eight")]
    #[schemars(range(min = 1, max = 512))]
    pub concurrency: i32,

    /// Whether the baseline answers up to 200 questions of the first test set twice. If its own answers differ by chance as
    /// much as a regression, the verdict is Inconclusive with reason UnstableMeasurement. Default: true. Cannot be changed.
    #[serde(default = "yes")]
    pub null_control: bool,

    /// Which requests are sent. Chat: chat completions, for which the server applies the chat template of the model. Completions:
    /// text completions without a template; all test sets must have harness lm-eval. Both judge generated answers; test sets that
    /// score log-likelihoods cannot be asked. Default: Chat. Cannot be changed.
    #[serde(default)]
    pub requests: Requests,

    /// Secret of this namespace whose key `token` is the API key of a model that is `endpoint:`. Default: none. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub api_key_secret_name: Option<String>,

    /// Whether the harness may load test sets from a hub. The controller must allow it, too (`--allow-online`). Default: false.
    /// Cannot be changed.
    #[serde(default)]
    pub allow_online: bool,

    /// Whether the harness may run programs that a model has written, as test sets of programming need. The controller must allow
    /// it, too (`--allow-code-execution`). Default: false. Cannot be changed.
    #[serde(default)]
    pub allow_code_execution: bool,

    /// Server of a model that is not served yet. Default: one GPU of any product with vllm. Cannot be changed.
    #[serde(default)]
    pub server: Server,

    /// Sequential: the baseline answers all test sets before the candidate, and one temporary server exists at a time. Parallel:
    /// both answer at the same time, with two servers, so the evaluation needs twice the GPUs and about half the time. Default:
    /// Sequential. Cannot be changed.
    #[serde(default)]
    pub order: Order,

    /// Image with the harness. Default: the controller's `--evalscope-image` or `--lm-eval-image`; without both the evaluation
    /// waits. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::image())]
    pub image: Option<String>,

    /// Environment variables of the harness, at most 64. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// Requests and limits of the harness, which needs no GPU. Default: none. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Volume of the answers, and where they are uploaded. Default: a new claim of 1Gi, deleted with the evaluation. The store can be
    /// changed until the upload has ended, the rest never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,

    /// Maximum seconds from the first child to the end. After suspend they are counted anew. Default: no limit. Cannot be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31536000))]
    pub active_deadline_seconds: Option<i64>,

    /// Seconds from the end until the evaluation is deleted, with its claim. With output.uri they count from the end of the upload.
    /// -1: never, as needed with GitOps. Default: 604800 (7 days). Can be changed at any time.
    #[serde(default = "a_week")]
    #[schemars(range(min = -1, max = 31536000))]
    pub ttl_seconds_after_finished: i64,

    /// If true, temporary servers and unfinished runs are deleted, and their GPUs are free. Finished runs stay; set to false
    /// again, the evaluation goes on with the next one. Default: false. Can be changed until the end.
    #[serde(default)]
    pub suspend: bool,

    #[serde(flatten)]
    pub pods: PodOptions,
}

/// Questions with right answers.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.path) || has(self.claimName)")
        .message("must not be set without claimName").field_path(".path")
)]
pub struct TestSet {
    /// Name of the set. Without dataset it is the name that the harness knows; `mmlu-zh` stands for cmmlu. Required.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = test_set_name())]
    pub name: String,

    /// Harness that asks the questions. Default: evalscope.
    #[serde(default)]
    pub harness: Harness,

    /// Name of the dataset in the harness, such as general_mcq for files of your own. Default: by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = test_set_name())]
    pub dataset: Option<String>,

    /// Subsets of the dataset, at most 64. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 128)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    #[x_kube(validation = Rule::new("self.all(subset, subset.matches(r'^[A-Za-z0-9_][A-Za-z0-9_. -]*$'))")
        .message("must be names of subsets: letters, digits, '_', '.', '-' and spaces"))]
    pub subsets: Vec<String>,

    /// Claim with the files of the dataset, mounted read-only. Default: the files are in the image, in /datasets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub claim_name: Option<String>,

    /// Folder of the claim. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = rules::sub_path())]
    pub path: Option<String>,

    /// Maximum number of questions of each subset. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub limit: Option<i32>,

    /// Metric of the harness. Default: its first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = test_set_name())]
    pub metric: Option<String>,

    /// Smallest score of the candidate, 0.01 to 100 points, in quotes: the lower end of its interval must not be below it. Default:
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[x_kube(validation = points())]
    pub minimum: Option<String>,

    /// Loss that is still acceptable for this set. Default: that of the evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[x_kube(validation = points())]
    pub regression_budget_points: Option<String>,
}

/// Program that asks the questions and judges the answers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Harness {
    #[default]
    #[serde(rename = "evalscope")]
    EvalScope,
    #[serde(rename = "lm-eval")]
    LmEval,
}

impl Harness {
    /// As in specs, and as the runner knows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Harness::EvalScope => "evalscope",
            Harness::LmEval => "lm-eval",
        }
    }
}

/// Kind of requests.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requests {
    #[default]
    Chat,
    Completions,
}

/// Whether the models answer one after the other.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Sequential,
    Parallel,
}

/// A temporary AIInference. Both models have the same settings.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.accelerator) || self.accelerator != 'cpu' || !has(self.gpus) || self.gpus == 0")
        .message("must be 0 or absent with accelerator cpu").field_path(".gpus"),
    validation = Rule::new("!has(self.gpus) || self.gpus > 0 || (has(self.accelerator) && self.accelerator == 'cpu')")
        .message("must be at least 1; to serve without GPUs, set accelerator cpu").field_path(".gpus"),
    validation = Rule::new("!has(self.accelerator) || self.accelerator != 'cpu' || has(self.image)")
        .message("must be set with accelerator cpu: the default images need a GPU")
        .field_path(".image").reason(Reason::FieldValueRequired),
    validation = Rule::new("self.engine != 'triton'")
        .message("must not be triton, which has no OpenAI API").field_path(".engine"),
    validation = Engine::Vllm.owned_flags_rule(),
    validation = Engine::Tgi.owned_flags_rule()
)]
pub struct Server {
    /// GPUs, 0 to 16. Default: 1, and 0 with accelerator `cpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16))]
    pub gpus: Option<i32>,

    /// GPU product of the nodes, as gpu.productLabel of an AIInference, or `cpu`. Default: any product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::product_label())]
    pub accelerator: Option<String>,

    /// Inference engine. LoRA adapters of a TrainingJob need vllm. Default: vllm.
    #[serde(default = "vllm")]
    pub engine: Engine,

    /// Image of the engine. Default: the inference-controller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::image())]
    pub image: Option<String>,

    /// Additional arguments of the engine, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    pub args: Vec<String>,

    /// Environment variables of the engine, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// Requests and limits of the engine, without its GPUs. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Maximum seconds from the start of the engine until it is ready, as in an AIInference. A large model needs more. Default:
    /// that of an AIInference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86400))]
    pub warmup_timeout_seconds: Option<i32>,

    /// Access to the object store of an s3:// source, or to a hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_store: Option<ModelStore>,

    /// Environment and resources of the loader, and the files that it copies from a hub. Default: those of an AIInference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_loader: Option<ModelLoader>,

    /// Volume of a copied model. Default: the node's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_volume: Option<ModelVolume>,

    /// Constraints on the nodes of the server. Default: any node with the requested resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,
}

/// As the API server completes an empty one.
impl Default for Server {
    fn default() -> Self {
        Self {
            gpus: None,
            accelerator: None,
            engine: vllm(),
            image: None,
            args: Vec::new(),
            env: Vec::new(),
            resources: None,
            warmup_timeout_seconds: None,
            model_store: None,
            model_loader: None,
            model_volume: None,
            scheduling: None,
        }
    }
}

/// Volume of the answers, and where they are uploaded.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = make_the_claim_immutable)]
#[x_kube(
    validation = Rule::new("!has(self.claimName) || !has(self.size)")
        .message("must not be set together with claimName").field_path(".size"),
    validation = Rule::new("!has(self.claimName) || !has(self.storageClassName)")
        .message("must not be set together with claimName").field_path(".storageClassName"),
    validation = Rule::new("has(self.uri) || !has(oldSelf.uri)")
        .message("must not be removed: the answers are uploaded there").field_path(".uri"),
    validation = Rule::new("has(self.uri) || !has(self.endpoint)")
        .message("must not be set without uri").field_path(".endpoint"),
    validation = Rule::new("has(self.uri) || !has(self.region)")
        .message("must not be set without uri").field_path(".region"),
    validation = Rule::new("has(self.uri) || !has(self.secretName)")
        .message("must not be set without uri").field_path(".secretName"),
    validation = Rule::new("has(self.uri) || !has(self.addressing)")
        .message("must not be set without uri").field_path(".addressing"),
    validation = Rule::new("has(self.uri) || !has(self.caSecretName)")
        .message("must not be set without uri").field_path(".caSecretName")
)]
pub struct Output {
    /// Existing claim. The evaluation writes into a folder of it that has the uid of the evaluation as its name, and never deletes it.
    /// Default: a new claim is created. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub claim_name: Option<String>,

    /// Size of the new claim. Default: 1Gi. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::positive_quantity")]
    pub size: Option<Quantity>,

    /// StorageClass of the new claim. Default: the cluster's. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub storage_class_name: Option<String>,

    /// Bucket and prefix, `s3://bucket[/prefix]`, to which the answers are uploaded when there is a verdict, also from claimName.
    /// They are below it in a folder that has the uid of the evaluation as its name. This field and the five of the store can be
    /// changed until the upload has ended. It cannot be removed. Default: none; nothing is uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 987))] // 1024 with the folder.
    // As the uploader parses it.
    #[x_kube(
        validation = rules::s3_uri(),
        validation = source::characters_rule(),
        validation = source::segments_rule()
    )]
    pub uri: Option<String>,

    /// URL of the store, http or https. Default: AWS S3 in the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = rules::http_url())]
    pub endpoint: Option<String>,

    /// Region of the bucket. Default: us-east-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = rules::region())]
    pub region: Option<String>,

    /// Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and optionally AWS_SESSION_TOKEN. Default: none; the identity
    /// of serviceAccountName is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: Option<String>,

    /// Addressing style of requests. Path: endpoint/bucket. VirtualHosted: bucket.endpoint, which Alibaba Cloud OSS and
    /// Tencent Cloud COS require. Auto: VirtualHosted for AWS, OSS and COS, Path for any other endpoint. Default: Auto.
    // An Option, so that the API server adds no field to a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addressing: Option<Addressing>,

    /// Secret with certificates (key `ca.crt`, PEM) of authorities that are trusted beside the public ones. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub ca_secret_name: Option<String>,
}

impl Output {
    /// Where the answers are uploaded, as a TrainingJob has it; `None`: nowhere.
    pub fn upload(&self) -> Option<Upload> {
        Some(Upload {
            uri: self.uri.clone()?,
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            secret_name: self.secret_name.clone(),
            addressing: self.addressing.unwrap_or_default(),
            ca_secret_name: self.ca_secret_name.clone(),
        })
    }
}

/// The forms of a model. Each becomes an argument or a URL, so none looks like a flag.
fn model_reference() -> kube::core::Rule {
    let source = source::endpoint_pattern();
    kube::core::Rule::new(format!(
        "self.matches(r'^aiinference/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$') || \
         self.matches(r'^endpoint:https?://[^\\s/?#@]+(/[^\\s?#]*)?(#[A-Za-z0-9][A-Za-z0-9._/:-]*)?$') || \
         self.matches(r'^(/[^/:\\s\\pC]+)+$') || self.matches(r'{source}')"
    ))
    .message(
        "must be aiinference/name, endpoint:https://host/v1, s3://bucket/prefix, pvc://claim/path, hf://owner/name, \
         ms://owner/name, owner/name or an absolute path without a slash at its end",
    )
}

/// It becomes an argument of the harness.
fn test_set_name() -> kube::core::Rule {
    kube::core::Rule::new("self.matches(r'^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')").message(
        "must be a name such as cmmlu: letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
    )
}

fn points() -> kube::core::Rule {
    kube::core::Rule::new(
        "self.matches(r'^[0-9]{1,3}([.][0-9]{1,2})?$') && double(self) > 0.0 && double(self) <= 100.0",
    )
    .message("must be a decimal number in quotes, from \"0.01\" to \"100\", such as \"1.0\"")
}

/// All other fields of the spec are immutable: another question is another evaluation.
const MUTABLE: [&str; 4] = ["suspend", "paused", "ttlSecondsAfterFinished", "output"];

fn make_other_fields_immutable(spec: &mut schemars::Schema) {
    schema::immutable_except(spec, &MUTABLE);
}

/// Fields of the output that describe the store. They decide nothing before the answers are uploaded.
const STORE: [&str; 6] = ["uri", "endpoint", "region", "secretName", "addressing", "caSecretName"];

fn make_the_claim_immutable(output: &mut schemars::Schema) {
    schema::immutable_except(output, &STORE);
}

fn one_point() -> String {
    "1.0".to_owned()
}

fn ninety_five() -> String {
    "0.95".to_owned()
}

fn zero() -> String {
    "0".to_owned()
}

fn seed() -> i32 {
    42
}

fn eight() -> i32 {
    8
}

fn yes() -> bool {
    true
}

fn vllm() -> Engine {
    Engine::Vllm
}

fn a_week() -> i64 {
    604_800
}
