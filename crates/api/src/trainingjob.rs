//! TrainingJob: one fine-tuning run with ms-swift, on one node or a gang of them.
//!
//! The type, its bounds and its rules, what may change after creation, and the flags of the trainer that only the
//! controller may set.

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, Time},
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    pods::{EnvVar, PodOptions, Resources},
    rules, schema,
};

/// What to train, on what, and what becomes of the result.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "aistudio.modelscope.cn",
    version = "v1alpha1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    shortname = "tj",
    category = "ai",
    namespaced,
    doc = "One fine-tuning run: it starts when what it reads is there, resumes from its last checkpoint when it is \
           interrupted, and keeps its result when it is deleted.",
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
#[schemars(transform = only_running_details_may_change)]
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
    validation = rules::owned_flags("extraArgs", "true", OWNED_FLAGS),
    validation = no_token_in_arguments()
)]
pub struct TrainingJobSpec {
    /// Base model: a hub id, or an absolute path. A path equal to, or below, the outputDir of another TrainingJob of
    /// this namespace makes this job wait for that job and read its result. Required. Cannot be changed.
    #[schemars(length(max = 512))]
    #[x_kube(validation = model_reference())]
    pub model: String,

    /// The path in `model` lies in the image, so no input and no other job has to provide it. Default: false. Cannot be
    /// changed.
    #[serde(default)]
    pub model_in_image: bool,

    /// Training data: hub ids or absolute paths, comma separated. Paths as for model. Required. Cannot be changed.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new(r"self.matches(r'^[^\s\pC,-][^\s\pC,]*( *, *[^\s\pC,-][^\s\pC,]*)*$')")
        .message("must be hub ids or paths separated by commas, none of them starting with '-'"))]
    pub dataset: String,

    /// How to train. Required. Cannot be changed.
    pub method: Method,

    /// Accelerators of each node. Default: 1. Cannot be changed.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub gpus: i32,

    /// Absolute path that checkpoints and the result go to. Default: /output. Cannot be changed.
    #[serde(default = "output_dir")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::mountable_path())]
    pub output_dir: String,

    /// Preference strength, 0 to 10, with method dpo only. Default: the trainer's. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10))]
    pub beta: Option<f64>,

    /// Kind of accelerator; decides image, resource name and environment. Default: nvidia. Cannot be changed.
    #[serde(default)]
    pub device: Device,

    /// Reward model: a hub id or an absolute path. Required with method ppo, refused otherwise. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = model_reference())]
    pub reward_model: Option<String>,

    /// Pods of the gang, each on `gpus` accelerators; they start together. Default: 1. Cannot be changed.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub nodes: i32,

    /// GPU product that the nodes must have: `A100` means the node label nvidia.com/gpu.product=A100, `label.key=value`
    /// any node label. Default: any product. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 381))]
    #[x_kube(validation = rules::product_label())]
    pub gpu_product_label: Option<String>,

    /// Resource that the device plugin offers. Default: by device, such as nvidia.com/gpu. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    #[x_kube(validation = rules::extended_resource())]
    pub accelerator_resource: Option<String>,

    /// Claims with the user's own data and models, mounted read-only. At most 16. Cannot be changed.
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

    /// Arguments added to the trainer's, at most 128, never split and never read by a shell. Flags that the controller
    /// sets and flags that carry a token are refused. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 1024)))]
    pub extra_args: Vec<String>,

    /// Environment variables of the trainer, at most 64. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// Requests and limits of the trainer, beside its accelerators. Default: none. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Version of ms-swift in the image, such as v4.1, which decides the names of its flags. Default: the version of
    /// the default image. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), pattern(r"^v?\d+\.\d+$"))]
    pub swift_version: Option<String>,

    /// Where hub ids are looked up. Default: modelscope. Cannot be changed.
    #[serde(default)]
    pub hub: Hub,

    /// Steps between two checkpoints: how much an interruption can lose. Default: 100. Cannot be changed.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1, max = 1000000))]
    pub save_steps: i32,

    /// Checkpoints to keep. Default: 2. Cannot be changed.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 100))]
    pub keep_checkpoints: i32,

    /// Names of TrainingJobs of this namespace that must have succeeded first. At most 16. Cannot be changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 63)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub depends_on: Vec<String>,

    /// The volume of outputDir and what becomes of it. Default: a claim of 50Gi made for the job, kept when the job is
    /// deleted. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,

    /// How often a failure that a retry may mend is retried. Preemption and node loss do not count. Default: 3. Can be
    /// changed at any time.
    #[serde(default = "three")]
    #[schemars(range(min = 0, max = 20))]
    pub retry_limit: i32,

    /// Seconds from the first start until an unfinished job fails. Default: no limit. Can be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31536000))]
    pub active_deadline_seconds: Option<i64>,

    /// Seconds from the end until the job is deleted, once its upload and the unfinished jobs that depend on it are
    /// through. -1 = never; use it under GitOps. Default: 604800 (7 days). Can be changed at any time, even after the
    /// end.
    #[serde(default = "a_week")]
    #[schemars(range(min = -1, max = 31536000))]
    pub ttl_seconds_after_finished: i64,

    /// No pods; set back to false the job resumes from its last checkpoint. Default: false. Can be changed at any time.
    #[serde(default)]
    pub suspend: bool,

    /// Queue of Kueue that admits each attempt. Default: none. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = rules::object_name())]
    pub queue_name: Option<String>,

    /// Seconds without a sign of life (a step, evaluation or save line) after the first step until the gang restarts.
    /// Default: 1800. Cannot be changed.
    #[serde(default = "half_an_hour")]
    #[schemars(range(min = 60, max = 86400))]
    pub no_progress_seconds: i32,

    /// Seconds after a node's Ready condition left True (itself about 40 s after the node died, on a default cluster)
    /// until the gang restarts elsewhere. Default: 30. Cannot be changed.
    #[serde(default = "half_a_minute")]
    #[schemars(range(min = 0, max = 3600))]
    pub node_failure_seconds: i32,

    /// Secret whose key `token` the trainer gets as HF_TOKEN, if it exists. Default: huggingface-secret. Cannot be
    /// changed.
    #[serde(default = "token_secret")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub token_secret: String,

    #[serde(flatten)]
    pub pods: PodOptions,
}

/// Flags of ms-swift that only the controller may set, as its documentation spells them; `-` may stand for `_`.
///
/// They decide what is trained and where the result goes, and keep a run resumable and its log readable. The one source
/// for the CEL rule and for the controller's own validation of undocumented spellings.
pub const OWNED_FLAGS: &[&str] = &[
    "--model",
    "--dataset",
    "--sft_type",
    "--train_type",
    "--tuner_type",
    "--rlhf_type",
    "--beta",
    "--reward_model",
    "--adapters",
    "--ref_adapters",
    "--quant_method",
    "--quant_bits",
    "--use_hf",
    "--output_dir",
    "--add_version",
    "--resume_from_checkpoint",
    "--save_steps",
    "--save_total_limit",
    "--save_only_model",
    "--disable_tqdm",
];

/// Size of the claim that is made for a job without `output.size`.
pub const DEFAULT_OUTPUT_SIZE: &str = "50Gi";

/// How to train.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    Lora,
    Qlora,
    Full,
    Dpo,
    Ppo,
}

/// Kind of accelerator.
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

/// Where hub ids are looked up.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Hub {
    #[default]
    Modelscope,
    Huggingface,
}

/// A claim with the user's own data, mounted read-only.
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

    /// Absolute path to mount it on.
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::mountable_path())]
    pub mount_path: String,
}

/// The volume of the result and what becomes of it.
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
        .message("must be Retain with claimName: a claim that the job did not make is not its to delete")
        .field_path(".retention"),
    validation = Rule::new("!has(self.snapshotClassName) || self.retention == 'Snapshot'")
        .message("must not be set unless retention is Snapshot").field_path(".snapshotClassName")
)]
pub struct Output {
    /// An existing claim to write to. Default: one is made for the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub claim_name: Option<String>,

    /// Size of the claim that is made. Default: 50Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::positive_quantity")]
    pub size: Option<Quantity>,

    /// StorageClass of the claim that is made. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub storage_class_name: Option<String>,

    /// Access mode of the claim that is made. Default: ReadWriteOnce, or ReadWriteMany when nodes is above 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,

    /// Absolute path that the claim is mounted on; outputDir equals it or lies below. Default: outputDir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::mountable_path())]
    pub mount_path: Option<String>,

    /// What becomes of the claim when the job is deleted: Retain keeps it, Delete deletes it, Snapshot takes a
    /// VolumeSnapshot and deletes it. Default: Retain.
    #[serde(default)]
    pub retention: Retention,

    /// VolumeSnapshotClass, with retention Snapshot. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub snapshot_class_name: Option<String>,

    /// Object store to upload the result to after success. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<Upload>,
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

/// Where the result is uploaded to.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Upload {
    /// Bucket and prefix, `s3://bucket[/prefix]`.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = rules::s3_uri())]
    pub uri: String,

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

    /// Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and optionally AWS_SESSION_TOKEN. Default: none, the
    /// identity of serviceAccountName is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: Option<String>,
}

/// What the controller has observed. A new object has the default until the controller has seen it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// Pending, Running, Succeeded or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::known")]
    #[schemars(with = "String", length(max = 64))]
    pub phase: Option<Phase>,

    /// When the first attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the job succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,

    /// What is going on, for a reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub message: Option<String>,

    /// What is going on, as one CamelCase word: the reason of the condition that explains the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,

    /// Attempts started, whatever ended them.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempts: i32,

    /// Attempts that count against retryLimit.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub retries: i32,

    /// Defaults of the release that were resolved when the job was first rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,

    /// Jobs that this one waits for or reads from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub dependencies: Vec<Dependency>,

    /// Latest figures of the trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,

    /// Loss over the whole run, thinned evenly to at most 64 points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
    pub loss_curve: Vec<LossPoint>,

    /// Checkpoint that the next attempt resumes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,

    /// What the controller changed to keep the job going.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub mitigations: Vec<Mitigation>,

    /// What has been uploaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub artifacts: Vec<Artifact>,

    /// The last failure of an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,

    /// Generation of the spec that this status speaks of. 0 until the controller has seen the object.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,

    /// Accepted, DependenciesReady, Scheduled, Running, NoProgress, Uploaded, Suspended, Complete and Failed; Reconciling and Stalled only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Derived summary of the conditions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// Defaults of a release, as they were when the job was first rendered.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// Image of the trainer.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub image: String,

    /// Version of ms-swift that the flags are written for.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub swift_version: String,
}

/// A job that this one waits for or reads from.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    /// Name of the job.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,

    /// Its uid: a later job of the same name is another job.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub uid: String,

    /// Path below its outputDir that this job reads; none for a job that is named in dependsOn only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub path: Option<String>,
}

/// Latest figures of the trainer. Fractions are decimal strings.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Steps done.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub step: i64,

    /// Steps of the whole run.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub total_steps: i64,

    /// Steps done, in percent.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub percent: i32,

    /// Epochs done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub epoch: Option<String>,

    /// Loss of the latest logged step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub loss: Option<String>,

    /// Learning rate of the latest logged step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub learning_rate: Option<String>,

    /// Seconds that a step takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub seconds_per_step: Option<String>,

    /// Time left, such as `1h32m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub eta: Option<String>,
}

/// A point of the loss curve.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LossPoint {
    /// Step.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub step: i64,

    /// Loss at this step, a decimal string.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub loss: String,
}

/// A complete checkpoint.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Its folder in the pod.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub path: String,

    /// Step that it was taken at.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub step: i64,

    /// When it was seen complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Something that the controller changed to keep the job going.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Mitigation {
    /// First attempt that it holds for.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempt: i32,

    /// Failure that it answers, such as CudaOutOfMemory.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,

    /// What was changed, from what to what.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub change: String,
}

/// Something that has been uploaded.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// Where it is.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub uri: String,

    /// Its size in bytes.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bytes: i64,

    /// Its SHA-256 in hexadecimal.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub sha256: String,
}

/// How an attempt failed.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Pod that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pod: Option<String>,

    /// Node that it ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,

    /// Exit code of the trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// Why, as one CamelCase word.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,

    /// End of its log, at most 1 KiB, with secrets blotted out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub log_tail: Option<String>,
}

/// A hub id or an absolute path. It becomes an argument of its own, so it must not look like a flag; and paths are
/// compared as strings, so they have one spelling.
fn model_reference() -> kube::core::Rule {
    kube::core::Rule::new(r"self.matches(r'^[A-Za-z0-9/][^\s\pC]*$') && !self.contains('..')")
        .message("must be a hub id such as qwen/Qwen-7B or an absolute path, without spaces and '..'")
}

/// A token on a command line ends up in the log: ms-swift prints its arguments.
fn no_token_in_arguments() -> kube::core::Rule {
    kube::core::Rule::new(
        "!has(self.extraArgs) || !self.extraArgs.exists(a, a.matches(r'^--?([A-Za-z0-9]+[-_])*token(=|$)'))",
    )
    .message("must not carry a token, because arguments are printed in the log: use tokenSecret or env")
    .field_path(".extraArgs")
    .reason(kube::core::Reason::FieldValueForbidden)
}

/// Fields that may change while the job is unfinished; every other field of the spec is as it was created.
const MUTABLE: [&str; 5] =
    ["suspend", "paused", "ttlSecondsAfterFinished", "retryLimit", "activeDeadlineSeconds"];

fn only_running_details_may_change(spec: &mut schemars::Schema) {
    schema::immutable_except(spec, &MUTABLE);
}

/// Of the mutable fields only the TTL means something once the job has ended.
fn finished_jobs_keep_their_spec() -> kube::core::Rule {
    kube::core::Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Succeeded', 'Failed']) || \
         (self.spec.suspend == oldSelf.spec.suspend && self.spec.paused == oldSelf.spec.paused && \
         self.spec.retryLimit == oldSelf.spec.retryLimit && \
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

fn a_week() -> i64 {
    604_800
}

fn output_dir() -> String {
    "/output".to_owned()
}

fn token_secret() -> String {
    "huggingface-secret".to_owned()
}
