//! What is known of a TrainingJob: the controller writes it, and users read it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{pods::store::Artifact, schema};

/// Observed state. A new object has the default until the controller has processed it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// Pending, Running, Succeeded or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::known")]
    #[schemars(with = "String", length(max = 64))]
    pub phase: Option<Phase>,

    /// When all pods of an attempt ran for the first time, or the first attempt that had run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the job succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,

    /// Details of the phase, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub message: Option<String>,

    /// Reason of the phase, one CamelCase word: the reason of the condition that explains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,

    /// Number of started attempts.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempts: i32,

    /// Number of attempts that count against retryLimit: those that failed since the last newer checkpoint.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub retries: i32,

    /// Number of the last attempt that has ended. If it is less than attempts, the attempt with the number attempts runs.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ended_attempts: i32,

    /// Ended attempts in a row that have started and left no newer checkpoint.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempts_without_progress: i32,

    /// Ended attempts in a row that could not start. The pause before the next attempt grows with their number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failed_starts: Option<i32>,

    /// Since when activeDeadlineSeconds counts. Absent while the job is suspended or waits for a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Time>,

    /// Seconds that had counted against activeDeadlineSeconds when the clock stopped last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub active_seconds: Option<i64>,

    /// Nodes that the next attempts avoid, at most 16, each for an hour.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub avoided_nodes: Vec<AvoidedNode>,

    /// Earliest start of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,

    /// Failed and interrupted attempts, by reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub failures: Vec<FailureCount>,

    /// Defaults that were resolved when the job was first rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,

    /// Jobs that this one waits for or reads from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub dependencies: Vec<Dependency>,

    /// Checkpoints from which the first attempt goes on, recorded as soon as they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<ResolvedResume>,

    /// Latest progress of the trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,

    /// Loss over the whole run, thinned evenly to at most 64 points.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
    pub loss_curve: Vec<LossPoint>,

    /// Newest checkpoint that the log or the launcher has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,

    /// Changes by which the controller avoids a repeated failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub mitigations: Vec<Mitigation>,

    /// When the store of output.upload took, gave back and deleted a small object, before the first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_check_time: Option<Time>,

    /// Uploaded files, at most 64: the manifest, then the largest files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub artifacts: Vec<Artifact>,

    /// Failure of the last failed attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,

    /// Generation of the spec that this status refers to. 0 until the controller has processed the object.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,

    /// Accepted, DependenciesReady, Scheduled, Running, NoProgress, LossNotFinite, Uploaded, Suspended, Complete and Failed;
    /// Reconciling and Stalled only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Summary of the conditions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// Defaults that were resolved when the job was first rendered.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// Image of the trainer.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub image: String,

    /// Version of ms-swift that decides the flags.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub swift_version: String,

    /// Model that the training starts from: that of the spec, or what another job has trained.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub model: String,

    /// LoRA adapters of that model that the training starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub adapters: Option<String>,

    /// Folder in which attempts keep what they load from hubs; absent if they keep nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub hub_cache: Option<String>,
}

/// Checkpoints of an earlier job.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedResume {
    /// Claim with the checkpoints.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub claim_name: String,

    /// Folder of the claim; absent: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub path: Option<String>,

    /// uid of the job of spec.resumeFrom.job, if it existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub uid: Option<String>,
}

/// How often attempts ended for a reason.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FailureCount {
    /// Reason, one CamelCase word.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,

    /// Number of attempts.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub count: i32,
}

/// A node that the next attempts avoid.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AvoidedNode {
    /// Name of the node.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub node: String,

    /// Why, one CamelCase word: PodRefused or GPUFault.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,

    /// Details for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,

    /// Since when. It is forgotten an hour later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A job that this one waits for or reads from.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Dependency {
    /// Name of the job.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,

    /// Its uid, to distinguish it from a later job of the same name.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub uid: String,

    /// Path below its outputDir that this job reads; absent for a job that is only in dependsOn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub path: Option<String>,

    /// What it left when it succeeded. From then on it may be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<DependencyResult>,
}

/// What a job left when it succeeded.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DependencyResult {
    /// Claim of its output.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub claim_name: String,

    /// Where it had mounted the claim; this job mounts it there read-only.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub mount_path: String,

    /// Its model: the base of the adapters, or the trained model.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub model: String,

    /// The LoRA adapters that it has trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub adapters: Option<String>,
}

/// Progress of the trainer. Fractions are decimal strings.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Completed steps.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub step: i64,

    /// Total number of steps.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub total_steps: i64,

    /// Completed steps in percent.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub percent: i32,

    /// Completed epochs.
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

    /// Seconds per step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub seconds_per_step: Option<String>,

    /// Estimated remaining time, such as `1h32m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub eta: Option<String>,

    /// Time of the line in the log, by the clock of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,

    /// Attempt that wrote the line.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempt: i32,
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
    /// Path in the pod.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub path: String,

    /// Step of the checkpoint.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub step: i64,

    /// When the checkpoint was observed to be complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A change by which the controller avoids a repeated failure.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Mitigation {
    /// First attempt with the change.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempt: i32,

    /// Reason of the failure, such as CudaOutOfMemory.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,

    /// The changed setting with its old and new value.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub change: String,
}

/// Failure of an attempt.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Number of the attempt.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub attempt: i32,

    /// Pod that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub pod: Option<String>,

    /// Node of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,

    /// Exit code of the trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// Reason, one CamelCase word.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,

    /// What happened, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub message: Option<String>,

    /// Step of the newest checkpoint at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub checkpoint_step: Option<i64>,

    /// End of its log, at most 1 KiB, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub log_tail: Option<String>,

    /// Requested size of the claim of the output, if its volume was full. A larger request starts the next attempt at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub output_size: Option<String>,
}
