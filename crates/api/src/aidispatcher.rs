//! AIDispatcher: a pool of agent workers of one role.
//!
//! The type, its bounds and validation rules.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    aiscaler::Behavior,
    pods::{EnvVar, PodOptions, Resources},
    schema::{self, rules},
};

/// Role, number and configuration of the workers.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "southwest.ai",
    version = "v1alpha1",
    kind = "AIDispatcher",
    plural = "aidispatchers",
    shortname = "ad",
    category = "ai",
    namespaced,
    doc = "A pool of agent workers of one role. Their memory is preloaded before they start, their number follows the \
           queue, and their state is saved when they end.",
    status = "AIDispatcherStatus",
    derive = "PartialEq",
    validation = rules::name_fits_a_label(),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Role", type_ = "string", json_path = ".spec.role"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.desiredReplicas"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.currentPhase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.activeWorkers", priority = 1),
    printcolumn(name = "Queue", type_ = "integer", json_path = ".status.queueDepth", priority = 1),
    printcolumn(name = "Tokens", type_ = "integer", json_path = ".status.tokenUsage", priority = 1),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.modelRef", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct AIDispatcherSpec {
    /// Role of the workers: AGENT_ROLE, and which option of the controller sets their default image. Required. Changing it restarts pods.
    pub role: Role,

    /// Model that the workers call, in their environment as MODEL_REF. Default: none. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub model_ref: Option<String>,

    /// URL of the model's server, http or https, in the workers' environment as MODEL_ENDPOINT. Default: none. Changing it
    /// restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = rules::http_url())]
    pub model_endpoint: Option<String>,

    /// Number of workers. Ignored while autoscaling is set. Default: 1. Changing it restarts no pod that stays.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: i32,

    /// Vector collection that is preloaded before a worker starts. Default: none. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_config: Option<MemoryConfig>,

    /// Scales the number of workers with the queue. Default: none; replicas sets the number. Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,

    /// Storage for the state of workers, which is saved periodically and when a worker ends; a new worker resumes from it.
    /// Default: none; the state is lost. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,

    /// Image of the worker. Default: the agent that ships, or the image that the controller's option for the role names;
    /// resolved once per spec change and shown in status.resolved. Workers with another image are not replaced by the agent
    /// that ships: such a spec is invalid. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::image())]
    pub image: Option<String>,

    /// Environment variables of the worker, at most 64. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// Requests and limits of the worker. Default: none. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Credentials for the model's server. Default: none. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,

    /// Paths of the worker's HTTP server that the kubelet asks, beside the metrics port. Default: none. Changing it
    /// restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,

    /// Services of the pool: `<name>` sends tasks on port 8080 to ready workers, and the headless `<name>-workers` has the
    /// address of each worker. Default: none. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<TaskService>,

    #[serde(flatten)]
    pub pods: PodOptions,
}

/// Role of the workers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Coder,
    Reviewer,
    Planner,
}

/// A vector collection.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.collection) || has(self.dim)")
        .message("dim is required with collection").field_path(".dim").reason(Reason::FieldValueRequired),
    validation = Rule::new("!has(self.dim) || has(self.collection)")
        .message("collection is required with dim").field_path(".collection").reason(Reason::FieldValueRequired)
)]
pub struct MemoryConfig {
    /// Name of the collection. Requires dim. Default: none; no collection is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub collection: Option<String>,

    /// Dimension of the collection's vectors. Requires collection. If it differs, no worker starts, and MemoryReady has
    /// the reason DimMismatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub dim: Option<i32>,

    /// URL of the vector store, http or https. Default: --memory-endpoint of the controller; required if that is not
    /// set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = rules::http_url())]
    pub endpoint: Option<String>,

    /// Secret whose key `api-key` is sent to the vector store. Default: --memory-secret-name of the controller if endpoint
    /// is not set; otherwise none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: Option<String>,
}

/// Scaling with the queue, by rule, within the bounds.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.minReplicas <= self.maxReplicas")
        .message("must not be above maxReplicas").field_path(".minReplicas")
)]
pub struct Autoscaling {
    /// Minimum number of workers. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: i32,

    /// Maximum number of workers. Default: 100.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,

    /// Queued tasks per worker. Default: 5.
    #[serde(default = "five")]
    #[schemars(range(min = 1, max = 10000))]
    pub tasks_per_worker: i32,

    /// Tokens per minute that one worker may use; workers are added when the average is higher. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000000_i64))]
    pub tokens_per_minute_per_worker: Option<i64>,

    /// Whose tasks each worker reports as its queue depth. Default: PerWorker. Changing it restarts nothing.
    // As `rule`.
    #[serde(default, skip_serializing_if = "Queue::is_default")]
    #[schemars(extend("default" = "PerWorker"))]
    pub queue: Queue,

    /// How the number follows the load. Default: QueueAndBusyWorkers.
    // The default is not serialized, so that the hash of specs without this field does not change.
    #[serde(default, skip_serializing_if = "QueueRule::is_default")]
    #[schemars(extend("default" = "QueueAndBusyWorkers"))]
    pub rule: QueueRule,

    /// Stabilization windows and scaling policies, as in AIScaler; fields that are not set have the defaults of
    /// HorizontalPodAutoscaler. Default: those defaults; with rule QueueOnly, no windows or limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,
}

/// How the number of workers follows the load.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueRule {
    /// ceil(queued / tasksPerWorker) + busy workers, or what arrives if all workers count ended tasks. By default workers are removed when fewer were enough for five minutes.
    /// Idle workers are removed first; a busy one only if maxReplicas requires it or deletion costs cannot be set in time.
    #[default]
    QueueAndBusyWorkers,
    /// ceil(queued / tasksPerWorker), at once in both directions. Busy workers do not count, so they may be removed after the
    /// idle ones.
    QueueOnly,
}

impl QueueRule {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Whose tasks a worker reports as its queue depth.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The tasks that wait for this worker alone: the depths of all workers are added.
    #[default]
    PerWorker,
    /// The tasks of one queue that all workers take from: the largest depth that a worker reports counts once.
    Shared,
}

impl Queue {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Storage of a worker's state.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.claimName) != has(self.uri)")
        .message("must have exactly one of claimName and uri"),
    validation = Rule::new("has(self.uri) || !has(self.endpoint)")
        .message("must not be set without uri").field_path(".endpoint"),
    validation = Rule::new("has(self.uri) || !has(self.secretName)")
        .message("must not be set without uri").field_path(".secretName"),
    validation = Rule::new("has(self.uri) || !has(self.caSecretName)")
        .message("must not be set without uri").field_path(".caSecretName")
)]
pub struct Checkpoint {
    /// PersistentVolumeClaim that all workers can write to. Several workers need access mode ReadWriteMany.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub claim_name: Option<String>,

    /// Bucket and prefix, `s3://bucket[/prefix]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = rules::s3_uri())]
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

    /// Secret with certificates (key `ca.crt`, PEM) of authorities that are trusted beside the public ones. A pod reads it when
    /// it starts. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub ca_secret_name: Option<String>,

    /// Seconds in which a worker must write its state after SIGTERM. The pod gets 30 more seconds for the upload.
    /// Default: 60.
    #[serde(default = "a_minute")]
    #[schemars(range(min = 0, max = 3600))]
    pub grace_seconds: i32,

    /// What a new worker does if the storage cannot be used for a minute. It does not apply to the vector store of
    /// memoryConfig. Default: Wait.
    // The default is not serialized, so that the hash of specs without this field does not change.
    #[serde(default, skip_serializing_if = "WhenUnavailable::is_default")]
    #[schemars(extend("default" = "Wait"))]
    pub when_unavailable: WhenUnavailable,
}

/// What a new worker does if the storage of states cannot be used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenUnavailable {
    /// It does not start before the storage answers.
    #[default]
    Wait,
    /// It starts without a state, and CheckpointFailed has the reason StartedEmpty until it has saved its own and no older
    /// state waits. Older states stay for later workers: more replicas restore them, each one. A worker that may have claimed a state waits, as does one whose volume cannot be mounted.
    StartEmpty,
}

impl WhenUnavailable {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What the kubelet asks a worker beside its metrics port. A worker is ready once its monitor has read a load, and these
/// paths must answer, too. They are asked at the address of the pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.readinessPath) || has(self.livenessPath)")
        .message("must have readinessPath or livenessPath")
)]
pub struct Probes {
    /// Path that answers with a status from 200 to 399 once the worker can take tasks. It must answer also while the worker is
    /// busy, because Kubernetes may remove pods that are not ready first. Asked every 5 seconds; a worker that fails three times is
    /// not ready. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    #[x_kube(validation = rules::url_path())]
    pub readiness_path: Option<String>,

    /// Path that answers while the worker does not hang. A worker that fails for a minute is restarted in its pod and keeps
    /// its state; one that starts has 30 minutes for its first answer. Default: none; a worker that hangs is not
    /// restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    #[x_kube(validation = rules::url_path())]
    pub liveness_path: Option<String>,

    /// Port of both paths. Default: AGENT_METRICS_PORT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
}

/// Where workers take tasks.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TaskService {
    /// Port on which each worker takes tasks, in its environment as AGENT_PORT. 9410 and 9411 belong to the monitor.
    /// Default: 8080.
    #[serde(default = "task_port")]
    #[schemars(range(min = 1, max = 65535))]
    #[x_kube(validation = Rule::new("!(self in [9410, 9411])").message("must not be 9410 or 9411, the monitor's ports"))]
    pub port: i32,
}

/// Credentials for the model's server.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Secret whose key `api-key` is in the workers' environment as MODEL_API_KEY.
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub secret_name: String,
}

/// Observed state. A new object has the default until the controller has processed it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AIDispatcherStatus {
    /// Ready workers.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub available_replicas: i32,

    /// Initializing, Processing, Ready or Failed. Between Processing and Ready it changes with the load, at most every 10
    /// seconds.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::known")]
    #[schemars(with = "String", length(max = 64))]
    pub current_phase: Option<Phase>,

    /// Workers that process a task.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub active_workers: i32,

    /// Tokens used since creation. Never decreases; may miss the last second of a killed worker.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub token_usage: i64,

    /// Idle, Working or Saturated. It changes with the load, at most every 10 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::known")]
    #[schemars(with = "String", length(max = 64))]
    pub state: Option<State>,

    /// Workers of any revision.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Desired number of workers, from replicas or from the queue.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub desired_replicas: i32,

    /// Queued tasks: the sum of what workers report, or the largest with autoscaling.queue Shared. Absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub queue_depth: Option<i64>,

    /// Tokens per minute, measured over the last 20 to 60 seconds. Keeps its last value while no monitor reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub tokens_per_minute: Option<i64>,

    /// When a worker last saved its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint_time: Option<Time>,

    /// Selector of the pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub selector: Option<String>,

    /// Defaults that were resolved when this spec was first rendered. They stay until the spec changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,

    /// The parts of tokenUsage, by pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,

    /// When the number of workers was last changed because of the queue or of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,

    /// Past recommendations and changes that a restarted controller needs, as JSON, for the controller alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub scaling_history: Option<String>,

    /// Generation of the spec that this status refers to. 0 until the controller has processed the object.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,

    /// Accepted, MemoryReady with a collection, Available, Progressing, ScalingActive with autoscaling, and Ready;
    /// CheckpointFailed, DisruptionBudgetOmitted, Reconciling, ServiceOmitted, Stalled and TemplateOutdated only while they are
    /// True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Summary of the conditions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Initializing,
    Processing,
    Ready,
    Failed,
}

/// Utilization of the workers.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Idle,
    Working,
    Saturated,
}

/// Defaults that were resolved when a spec was first rendered.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// Image of the worker.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub image: String,

    /// Digest of the pod template, to detect a Deployment whose template and record were both edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub template: Option<String>,

    /// A worker with this template has reported a load.
    #[serde(default)]
    pub reported: bool,

    /// A worker with this template has been ready. Its later loss is not the fault of the spec.
    #[serde(default)]
    pub ready: bool,
}

/// Tokens of the workers.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Tokens {
    /// Tokens of pods that are no longer in `pods`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ended: i64,

    /// Tokens of pods that exist or were deleted in the last two minutes, at most 2000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2000), extend("x-kubernetes-list-type" = "atomic"))]
    pub pods: Vec<PodTokens>,
}

/// Tokens of one pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodTokens {
    /// Uid of the pod.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub uid: String,

    /// Tokens that all runs of the worker in this pod have used.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub tokens: i64,

    /// When the controller first found that the pod does not exist. Two minutes later its tokens are added to `ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_time: Option<Time>,
}

fn one() -> i32 {
    1
}

fn five() -> i32 {
    5
}

fn hundred() -> i32 {
    100
}

fn task_port() -> i32 {
    8080
}

fn a_minute() -> i32 {
    60
}
