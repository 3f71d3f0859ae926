//! TrainingJob: one fine-tuning run with ms-swift, on one node or a gang of them.
//!
//! The spec, its bounds and validation rules, its mutable fields, and the flags of the trainer that only the controller may
//! set.

mod status;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    pods::{EnvVar, PodOptions, Resources},
    schema::{self, rules},
};

pub use crate::pods::store::{Artifact, Upload};
pub use status::{
    AvoidedNode, Checkpoint, Dependency, DependencyResult, Failure, FailureCount, LossPoint, Mitigation,
    Phase, Progress, Resolved, ResolvedResume, TrainingJobStatus,
};

/// Model, data, method, hardware and output.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "aistudio.modelscope.cn",
    version = "v1alpha1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    shortname = "tj",
    category = "ai",
    namespaced,
    doc = "One fine-tuning run. It starts when its inputs exist, resumes from its last checkpoint after an \
           interruption, and keeps its result when it is deleted.",
    status = "TrainingJobStatus",
    derive = "PartialEq",
    validation = rules::name_fits_a_label(),
    validation = finished_jobs_keep_their_spec(),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Progress", type_ = "integer", json_path = ".status.progress.percent"),
    printcolumn(name = "Loss", type_ = "string", json_path = ".status.progress.loss"),
    printcolumn(name = "ETA", type_ = "string", json_path = ".status.progress.eta"),
    printcolumn(name = "Retries", type_ = "integer", json_path = ".status.retries"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Method", type_ = "string", json_path = ".spec.method", priority = 1),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model", priority = 1),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".spec.gpus", priority = 1),
    printcolumn(name = "Device", type_ = "string", json_path = ".spec.device", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1),
    printcolumn(name = "Checkpoint", type_ = "string", json_path = ".status.checkpoint.path", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = make_other_fields_immutable)]
#[x_kube(
    validation = Rule::new("self.method == 'dpo' || !has(self.beta)")
        .message("must not be set unless method is dpo").field_path(".beta"),
    validation = Rule::new("self.method != 'ppo' || has(self.rewardModel)")
        .message("rewardModel is required with method ppo").field_path(".rewardModel")
        .reason(Reason::FieldValueRequired),
    validation = Rule::new("self.method == 'ppo' || !has(self.rewardModel)")
        .message("must not be set unless method is ppo").field_path(".rewardModel"),
    validation = Rule::new("self.method != 'qlora' || !(self.device in ['ascend', 'mps'])")
        .message("must not be ascend or mps with method qlora: the quantisation needs CUDA").field_path(".device"),
    validation = Rule::new("self.device != 'mps' || self.gpus == 1")
        .message("must be 1 with device mps").field_path(".gpus"),
    validation = Rule::new(
        "!has(self.output) || !has(self.output.mountPath) || self.outputDir == self.output.mountPath || \
         self.outputDir.startsWith(self.output.mountPath + '/')"
    ).message("must equal output.mountPath or lie below it").field_path(".outputDir"),
    validation = Rule::new(
        "!has(self.inputs) || !self.inputs.exists(input, input.mountPath == \
         (has(self.output) && has(self.output.mountPath) ? self.output.mountPath : self.outputDir))"
    ).message("must not be mounted where the output is").field_path(".inputs"),
    validation = Rule::new("self.method != 'ppo' || !has(self.resumeFrom)")
        .message("must not be set with method ppo: its trainer cannot go on from a checkpoint")
        .field_path(".resumeFrom"),
    validation = Rule::new("!has(self.adapters) || !(self.method in ['full', 'ppo'])")
        .message("must not be set with method full or ppo, which cannot start from LoRA adapters")
        .field_path(".adapters"),
    validation = owned_flags(),
    validation = no_token_in_arguments()
)]
pub struct TrainingJobSpec {
    /// Base model: a hub id, or an absolute path. A path at or below the outputDir of another TrainingJob of this namespace
    /// makes this job wait for that job and read its result. That outputDir must not be the default /output. Required.
    /// Cannot be changed.
    #[schemars(length(max = 512))]
    #[x_kube(validation = model_reference())]
    pub model: String,

    /// Whether the path in `model` is part of the image, so that no input and no other job must provide it. Default: false.
    /// Cannot be changed.
    #[serde(default)]
    pub model_in_image: bool,

    /// Training data: hub ids or absolute paths, separated by commas. Paths are treated as in model. Required. Cannot be
    /// changed.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[^\s\pC,-][^\s\pC,]*( *, *[^\s\pC,-][^\s\pC,]*)*$')")
        .message("must be hub ids or paths separated by commas, none of them starting with '-'"))]
    pub dataset: String,

    /// Training method. Required. Cannot be changed.
    pub method: Method,

    /// Accelerators of each of the pods (`nodes`). Default: 1. Cannot be changed.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub gpus: i32,

    /// Absolute path of checkpoints and result, of at most 32 levels and 512 bytes. A job whose result another job reads needs
    /// a path of its own in its namespace. Default: /output. Cannot be changed.
    #[serde(default = "output_dir")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::mountable_path())]
    pub output_dir: String,

    /// DPO's beta, 0 to 10, only with method dpo. Default: the trainer's. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10))]
    pub beta: Option<f64>,

    /// Type of accelerator; decides default image, resource name and environment. Default: nvidia. Cannot be changed.
    #[serde(default)]
    pub device: Device,

    /// Reward model: a hub id or an absolute path. Required with method ppo, refused otherwise. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = model_reference())]
    pub reward_model: Option<String>,

    /// LoRA adapters from which the training starts: an absolute path in an input, or in the outputDir of another TrainingJob of
    /// this namespace, which this job then waits for. To read what a deleted job has left, mount its claim with `inputs`. With
    /// method dpo they are the reference as well. Not with methods full and ppo. Default: none. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^/[^\s\pC]+$') && !self.contains('..')")
        .message("must be an absolute path without spaces and '..'"))]
    pub adapters: Option<String>,

    /// Number of pods, each with `gpus` accelerators. They start together. Default: 1. Cannot be changed.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub nodes: i32,

    /// GPU product of the nodes: `A100` selects the node label nvidia.com/gpu.product=A100, `label.key=value` any node label.
    /// A short name, such as `a100` or `l40s`, selects the labels of NVIDIA and of the clouds. Default: any product. Cannot be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 381))]
    #[x_kube(validation = rules::product_label())]
    pub gpu_product_label: Option<String>,

    /// Extended resource of the device plugin. Default: by device, such as nvidia.com/gpu. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    #[x_kube(validation = rules::extended_resource())]
    pub accelerator_resource: Option<String>,

    /// Claims with data and models, mounted read-only, at most 16. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"])
    )]
    pub inputs: Vec<Input>,

    /// Image of the trainer. Default: by device, resolved once and shown in status.resolved. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::image())]
    pub image: Option<String>,

    /// Additional arguments of the trainer, at most 128. They are passed unchanged, without a shell. Flags that the controller
    /// sets and flags with a token are refused. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 1024)))]
    pub extra_args: Vec<String>,

    /// Environment variables of the trainer, at most 64. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// Requests and limits of the trainer, without its accelerators. Default: none. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Version of ms-swift in the image, such as v4.1; decides the names of its flags. Default: by the tag of the image, such
    /// as `...-swift4.4.3`; 4.4 if the tag does not say it. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), pattern(r"^v?\d+\.\d+$"))]
    pub swift_version: Option<String>,

    /// Hub of hub ids. Default: modelscope. Cannot be changed.
    #[serde(default)]
    pub hub: Hub,

    /// Steps between two checkpoints, the maximum loss of an interruption. Default: 100. Cannot be changed.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1, max = 1000000))]
    pub save_steps: i32,

    /// Checkpoints to keep. Default: 2. Cannot be changed.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 100))]
    pub keep_checkpoints: i32,

    /// Names of TrainingJobs of this namespace that must succeed first, at most 16. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 63)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub depends_on: Vec<String>,

    /// Checkpoints of an ended or deleted job. The first attempt goes on from the newest complete one: optimizer, step and
    /// position in the data. Its claim is mounted read-only and stays as it is. Model, dataset and method must be those of
    /// that job and, where DeepSpeed is used, the number of accelerators. Not with method ppo. Default: none. Cannot be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<ResumeFrom>,

    /// Volume of outputDir and its retention. Default: a new claim of 50Gi, kept when the job is deleted. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,

    /// Maximum number of retries after failures while training, since the last newer checkpoint. Preemption, node loss and
    /// attempts that cannot start do not count. Default: 3. Can be changed until the job has ended.
    #[serde(default = "three")]
    #[schemars(range(min = 0, max = 20))]
    pub retry_limit: i32,

    /// Maximum seconds from the first start to the end of the job. An attempt that cannot start, except for want of GPUs, a node
    /// or a volume, starts the time as well. The time for which the job is suspended or waits for a quota does not count.
    /// Default: no limit. Can be changed until the job has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31536000))]
    pub active_deadline_seconds: Option<i64>,

    /// Seconds from the end of the job until it is deleted. The deletion waits for its upload and for unfinished jobs that
    /// depend on it. -1: never, as needed with GitOps. Default: 604800 (7 days). Can be changed at any time, also after the
    /// end.
    #[serde(default = "a_week")]
    #[schemars(range(min = -1, max = 31536000))]
    pub ttl_seconds_after_finished: i64,

    /// If true, no trainer runs; an upload goes on. Set to false again, the job resumes from its last checkpoint. Default:
    /// false. Can be changed until the job has ended.
    #[serde(default)]
    pub suspend: bool,

    /// Kueue queue that admits each attempt. Default: none. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rules::object_name())]
    pub queue_name: Option<String>,

    /// Seconds without progress (a log line of a step, an evaluation or a checkpoint) after the first step until all pods are
    /// restarted. Default: 1800. Cannot be changed.
    #[serde(default = "half_an_hour")]
    #[schemars(range(min = 60, max = 86400))]
    pub no_progress_seconds: i32,

    /// What follows if the loss is not a finite number, or 0 without a gradient, in 20 logged steps in a row. Report: the
    /// condition LossNotFinite and an event. Fail: also the attempt ends, and counts against retryLimit. Default: Report.
    /// Cannot be changed.
    #[serde(default)]
    pub on_non_finite_loss: OnNonFiniteLoss,

    /// Seconds after which all pods are restarted on other nodes, from the time at which a node's Ready condition left True.
    /// Kubernetes notices the failure of a node after about 40 s, and since 1.32 after about 50 s. A gang whose log still
    /// shows steps is not restarted. Default: 30. Can be changed until the job has ended; the pods of the next attempt have the
    /// new tolerations.
    #[serde(default = "half_a_minute")]
    #[schemars(range(min = 0, max = 3600))]
    pub node_failure_seconds: i32,

    /// Seconds from the start of all pods to the first logged step. They are counted anew from each progress of a download or
    /// of the preparation of data. Then all pods are restarted, which counts against retryLimit. The time is longer in proportion if extraArgs log
    /// fewer steps (--logging_steps). Default: 3600. Can be changed until the job has ended.
    #[serde(default = "an_hour")]
    #[schemars(range(min = 60, max = 86400))]
    pub first_step_seconds: i32,

    /// Grace period of the pods in seconds: the time to save a checkpoint when a pod is asked to end. Default: 300. Cannot be
    /// changed.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 30, max = 7200))]
    pub grace_seconds: i32,

    /// Secret whose key `token` is in the trainer's environment as HF_TOKEN, for Hugging Face; one that does not exist is
    /// ignored. For ModelScope, set MODELSCOPE_API_TOKEN in env by secretKeyRef. Default: huggingface-secret. Cannot be
    /// changed.
    #[serde(default = "token_secret")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub token_secret: String,

    #[serde(flatten)]
    pub pods: PodOptions,
}

/// Flags of ms-swift that only the controller may set, in the documented spelling; `-` and `_` are equivalent.
///
/// They set the model, the data and the output, and are needed to resume a run and to parse its log. Used by the CEL rule
/// and by the controller's validation of undocumented spellings.
pub const OWNED_FLAGS: &[&str] = &[
    "--model",
    "--dataset",
    "--sft_type",
    "--train_type",
    "--tuner_type",
    "--rlhf_type",
    "--beta",
    "--reward_model",
    "--reward_adapters",
    "--adapters",
    "--ref_adapters",
    "--quant_method",
    "--quant_bits",
    "--use_hf",
    "--output_dir",
    "--add_version",
    "--resume_from_checkpoint",
    "--save_strategy",
    "--save_steps",
    "--save_total_limit",
    "--save_only_model",
    "--disable_tqdm",
    "--callbacks",
    "--check_model",
];

/// Folder of the output of a job without `outputDir`.
pub const DEFAULT_OUTPUT_DIR: &str = "/output";

/// Size of the claim of a job without `output.size`.
pub const DEFAULT_OUTPUT_SIZE: &str = "50Gi";

/// Training method.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    Lora,
    Qlora,
    Full,
    Dpo,
    Ppo,
}

impl Method {
    pub const ALL: [Method; 5] = [Method::Lora, Method::Qlora, Method::Full, Method::Dpo, Method::Ppo];
}

/// Type of accelerator.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    #[default]
    Nvidia,
    Ascend,
    Mps,
    Cpu,
}

/// Hub of hub ids.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Hub {
    #[default]
    Modelscope,
    Huggingface,
}

/// What follows a loss that is not finite.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNonFiniteLoss {
    #[default]
    Report,
    Fail,
}

/// Where the checkpoints of an earlier job are.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.job) != has(self.claimName)")
        .message("exactly one of job and claimName must be set"),
    validation = Rule::new("!has(self.path) || has(self.claimName)")
        .message("must not be set without claimName").field_path(".path")
)]
pub struct ResumeFrom {
    /// Name of a TrainingJob of this namespace. This job waits until it has trained or is deleted. Of one that was deleted before
    /// this job was created, the claim `<name>-output` is read at its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::object_name())]
    pub job: Option<String>,

    /// Name of a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub claim_name: Option<String>,

    /// Folder of the claim with checkpoints, or one checkpoint, such as run-1/checkpoint-500. Default: the root of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[^/\s\pC][^\s\pC]*$') && !self.contains('..')")
        .message("must be a relative path without spaces and '..'"))]
    pub path: Option<String>,
}

/// A claim with data, mounted read-only.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Input {
    /// Name of the claim.
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub claim_name: String,

    /// Folder of the claim to mount. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[^/\pC][^\pC]*$') && !self.contains('..')")
        .message("must be a relative path without '..'"))]
    pub sub_path: Option<String>,

    /// Absolute mount path.
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::mountable_path())]
    pub mount_path: String,
}

/// Volume of the result and its retention.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.claimName) || !has(self.size)")
        .message("must not be set together with claimName").field_path(".size"),
    validation = Rule::new("!has(self.claimName) || !has(self.storageClassName)")
        .message("must not be set together with claimName").field_path(".storageClassName"),
    validation = Rule::new("!has(self.claimName) || !has(self.accessMode)")
        .message("must not be set together with claimName").field_path(".accessMode"),
    validation = Rule::new("!has(self.claimName) || self.retention == 'Retain'")
        .message("must be Retain with claimName: an existing claim is never deleted")
        .field_path(".retention"),
    validation = Rule::new("!has(self.snapshotClassName) || self.retention == 'Snapshot'")
        .message("must not be set unless retention is Snapshot").field_path(".snapshotClassName")
)]
pub struct Output {
    /// Existing claim for the output. Default: a new claim is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub claim_name: Option<String>,

    /// Whether the model and the data that an attempt has loaded from a hub are kept in the claim, in the folder .cache/hub below
    /// mountPath. A later attempt then needs no hub, except for datasets of ModelScope. Keep: until the training has succeeded.
    /// None: each attempt loads them into the disk of its node. Default: Keep.
    #[serde(default)]
    pub cache: HubCache,

    /// Size of the new claim. A checkpoint of method full has about 14 bytes for each parameter of the model.
    /// The claim must hold `keepCheckpoints` of them and one more, beside what is loaded from a hub (`cache`). Default: 50Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::positive_quantity")]
    pub size: Option<Quantity>,

    /// StorageClass of the new claim. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub storage_class_name: Option<String>,

    /// Access mode of the new claim. Default: ReadWriteOnce, or ReadWriteMany if nodes is above 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,

    /// Absolute mount path of the claim; outputDir must equal it or lie below it. Default: outputDir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::mountable_path())]
    pub mount_path: Option<String>,

    /// What becomes of the claim when the job is deleted. Retain: it is kept. Delete: it is deleted, unless `upload` has not
    /// uploaded the result yet. Checkpoints of a job that has no result are deleted, too. Snapshot: a VolumeSnapshot is taken,
    /// then the claim is deleted. A claim that an earlier job of the name has left is always kept. Default: Retain.
    #[serde(default)]
    pub retention: Retention,

    /// VolumeSnapshotClass, with retention Snapshot. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub snapshot_class_name: Option<String>,

    /// Upload of the result to an object store after success. Before the first attempt, a small object below the prefix is
    /// written, read and deleted; no GPU is taken before that has worked. With retention Delete, the claim of a result is
    /// deleted only after its upload. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<Upload>,
}

/// Whether loaded models and data are kept.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HubCache {
    #[default]
    Keep,
    None,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    ReadWriteOnce,
    ReadWriteMany,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    #[default]
    Retain,
    Delete,
    Snapshot,
}

/// A hub id or an absolute path. It becomes an argument, so it must not look like a flag; paths are compared as strings, so
/// they must be in canonical form.
fn model_reference() -> kube::core::Rule {
    kube::core::Rule::new(r"self.matches(r'^[A-Za-z0-9/][^\s\pC]*$') && !self.contains('..')")
        .message("must be a hub id such as qwen/Qwen-7B or an absolute path, without spaces and '..'")
}

/// Two of the flags have a field of their own.
fn owned_flags() -> kube::core::Rule {
    let flags = OWNED_FLAGS.join(", ");
    let message = format!(
        "must not set a flag that the controller sets: {flags}; instead of --resume_from_checkpoint use spec.resumeFrom, instead \
         of --adapters spec.adapters"
    );
    rules::owned_flags("extraArgs", "true", OWNED_FLAGS).message(message.as_str())
}

/// Refuses tokens in arguments, because ms-swift logs its arguments.
fn no_token_in_arguments() -> kube::core::Rule {
    kube::core::Rule::new(
        "!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches(r'^--?([A-Za-z0-9]+[-_])*token(=|$)'))",
    )
    .message("must not contain a token, because arguments are logged: use tokenSecret or env")
    .field_path(".extraArgs")
    .reason(kube::core::Reason::FieldValueForbidden)
}

/// Fields that may be changed until the job ends, the TTL also afterwards. All other fields of the spec are immutable.
const MUTABLE: [&str; 7] = [
    "suspend",
    "paused",
    "ttlSecondsAfterFinished",
    "retryLimit",
    "activeDeadlineSeconds",
    "nodeFailureSeconds",
    "firstStepSeconds",
];

fn make_other_fields_immutable(spec: &mut schemars::Schema) {
    schema::immutable_except(spec, &MUTABLE);
}

/// After the end of the job, only the TTL may be changed.
fn finished_jobs_keep_their_spec() -> kube::core::Rule {
    kube::core::Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Succeeded', 'Failed']) || \
         (self.spec.suspend == oldSelf.spec.suspend && self.spec.paused == oldSelf.spec.paused && \
         self.spec.retryLimit == oldSelf.spec.retryLimit && \
         self.spec.nodeFailureSeconds == oldSelf.spec.nodeFailureSeconds && \
         self.spec.firstStepSeconds == oldSelf.spec.firstStepSeconds && \
         has(self.spec.activeDeadlineSeconds) == has(oldSelf.spec.activeDeadlineSeconds) && \
         (!has(self.spec.activeDeadlineSeconds) || \
         self.spec.activeDeadlineSeconds == oldSelf.spec.activeDeadlineSeconds))",
    )
    .message("the job has ended: only ttlSecondsAfterFinished can still be changed")
    .field_path(".spec")
}

fn one() -> i32 {
    1
}

fn two() -> i32 {
    2
}

fn three() -> i32 {
    3
}

fn hundred() -> i32 {
    100
}

fn half_a_minute() -> i32 {
    30
}

fn half_an_hour() -> i32 {
    1800
}

fn an_hour() -> i32 {
    3600
}

fn five_minutes() -> i32 {
    300
}

fn a_week() -> i64 {
    604_800
}

fn output_dir() -> String {
    DEFAULT_OUTPUT_DIR.to_owned()
}

fn token_secret() -> String {
    "huggingface-secret".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json, to_value};

    use super::*;

    #[test]
    fn all_methods_are_those_of_the_schema() {
        let schema: Value = to_value(schemars::schema_for!(Method)).unwrap();
        assert_eq!(schema["enum"], json!(Method::ALL));
    }
}
