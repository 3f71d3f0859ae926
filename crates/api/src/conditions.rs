//! Types of conditions. Their reasons are in `reasons`.
//!
//! A condition is absent while its feature is not used.

// Every kind but AIScaler.
/// The spec is valid. If False, the message says what to change, or which object to delete.
pub const ACCEPTED: &str = "Accepted";
/// Summary, with reason and message of the first failing condition. Not used by TrainingJob and ModelEvaluation.
pub const READY: &str = "Ready";
/// Present only while True: the current generation is in progress. Read by kstatus, Flux and Argo CD.
pub const RECONCILING: &str = "Reconciling";
/// Present only while True: the object needs a change of its spec or its environment. Reason and message are those of the
/// failing condition. Read by kstatus, Flux and Argo CD.
pub const STALLED: &str = "Stalled";

// AIInference and AIDispatcher.
/// At least one replica, of any revision, is ready.
pub const AVAILABLE: &str = "Available";
/// The current revision is complete or in progress.
pub const PROGRESSING: &str = "Progressing";

// AIInference.
/// A pod of the current revision has loaded the model.
pub const MODEL_LOADED: &str = "ModelLoaded";
/// Present only while True: the running release would render another pod template for the spec.
pub const TEMPLATE_OUTDATED: &str = "TemplateOutdated";

/// Absent without `spec.gateway`: all gateways have accepted the route.
pub const TRAFFIC_READY: &str = "TrafficReady";
/// Absent without `spec.canary`: the canary goes on, or is complete.
pub const CANARY_PROGRESSING: &str = "CanaryProgressing";
/// Absent without `spec.canary`: nothing speaks against the candidate.
pub const CANARY_HEALTHY: &str = "CanaryHealthy";

// AIInference and TrainingJob.
/// The scheduler has found a node for every pod.
pub const SCHEDULED: &str = "Scheduled";

// TrainingJob; the terminal ones are named as in batch/v1.
/// All dependencies have succeeded.
pub const DEPENDENCIES_READY: &str = "DependenciesReady";
/// An attempt runs.
pub const RUNNING: &str = "Running";
/// Abnormal when True: no progress of the trainer for `noProgressSeconds` or, with reason GPUIdle, idle GPUs for half of it.
pub const NO_PROGRESS: &str = "NoProgress";
/// Present only while True: the loss is no finite number, or 0 without a gradient, in 20 logged steps in a row.
pub const LOSS_NOT_FINITE: &str = "LossNotFinite";
/// The result has been uploaded; of a ModelEvaluation, the answers have been.
pub const UPLOADED: &str = "Uploaded";
/// `suspend` is set: no attempt starts. Pods of the last one may still save a checkpoint, and an upload goes on.
pub const SUSPENDED: &str = "Suspended";
/// Terminal: the job has succeeded.
pub const COMPLETE: &str = "Complete";
/// Terminal: the job has failed.
pub const FAILED: &str = "Failed";

// AIDispatcher.
/// The vector collection is preloaded.
pub const MEMORY_READY: &str = "MemoryReady";
/// A state was not saved, was lost, is damaged, or a worker has started without one; the reason says which. Present only while
/// True.
pub const CHECKPOINT_FAILED: &str = "CheckpointFailed";
/// Present only while True: the pool has no PodDisruptionBudget of its own. It serves all the same.
pub const DISRUPTION_BUDGET_OMITTED: &str = "DisruptionBudgetOmitted";
/// Present only while True: a Service of the pool could not be written. The workers run all the same.
pub const SERVICE_OMITTED: &str = "ServiceOmitted";

// AIDispatcher, AIScaler and InferenceEndpoint, as in autoscaling/v2.
/// The autoscaler can compute a replica count.
pub const SCALING_ACTIVE: &str = "ScalingActive";

// AIScaler, as in autoscaling/v2.
/// The autoscaler can read and write the target's scale.
pub const ABLE_TO_SCALE: &str = "AbleToScale";
/// A bound or a policy limits the replica count.
pub const SCALING_LIMITED: &str = "ScalingLimited";

// InferenceEndpoint.
/// A node has the accelerator. Absent with accelerator cpu, and where the controller may not read nodes.
pub const ACCELERATOR_RESOLVED: &str = "AcceleratorResolved";
/// As Ready of the AIInference.
pub const INFERENCE_READY: &str = "InferenceReady";

// ModelEvaluation.
/// The model of the present run is served. Absent after the end.
pub const SERVERS_READY: &str = "ServersReady";
/// Both models have answered all questions.
pub const EVALUATED: &str = "Evaluated";
/// There is a verdict; the reason is the verdict.
pub const COMPARED: &str = "Compared";
