//! Types of the conditions in status. What each can say is in `reasons`.
//!
//! A condition whose feature is off is absent. Only types are here; when a condition holds is decided by the
//! controllers.

// Every kind.
/// The spec can be carried out. False never heals by waiting, only by a change of the spec.
pub const ACCEPTED: &str = "Accepted";
/// Summary: reason and message are those of the first condition that fails. TrainingJob has none.
pub const READY: &str = "Ready";
/// Present only while True: the current generation is not done. Read by kstatus, Flux and Argo CD.
pub const RECONCILING: &str = "Reconciling";
/// Present only while True: the object will not get there without a change of the spec or of the world. Reason and message
/// are those of the condition that fails. Read by kstatus, Flux and Argo CD.
pub const STALLED: &str = "Stalled";

// AIInference and AIDispatcher.
/// At least the minimum of replicas serves, of any revision.
pub const AVAILABLE: &str = "Available";
/// The current revision is complete or on its way.
pub const PROGRESSING: &str = "Progressing";

// AIInference.
/// The weights are in place in a pod of the current revision.
pub const MODEL_LOADED: &str = "ModelLoaded";
/// Present only while True: this release renders the pods of the spec differently from those that run.
pub const TEMPLATE_OUTDATED: &str = "TemplateOutdated";

// AIInference and TrainingJob.
/// The scheduler has found a node for every pod.
pub const SCHEDULED: &str = "Scheduled";

// TrainingJob; the terminal ones are named as in batch/v1.
/// Everything that the job waits for has succeeded.
pub const DEPENDENCIES_READY: &str = "DependenciesReady";
/// An attempt runs.
pub const RUNNING: &str = "Running";
/// Abnormal when True: no sign of life from the trainer for `noProgressSeconds`.
pub const NO_PROGRESS: &str = "NoProgress";
/// The result has been uploaded.
pub const UPLOADED: &str = "Uploaded";
/// No pods run because `suspend` is set or the queue has not admitted the job.
pub const SUSPENDED: &str = "Suspended";
/// Terminal: the job has succeeded.
pub const COMPLETE: &str = "Complete";
/// Terminal: the job has failed.
pub const FAILED: &str = "Failed";

// AIDispatcher.
/// The vector collection is preloaded.
pub const MEMORY_READY: &str = "MemoryReady";

// AIDispatcher and AIScaler, as in autoscaling/v2.
/// The autoscaler can compute a replica count.
pub const SCALING_ACTIVE: &str = "ScalingActive";

// AIScaler, as in autoscaling/v2.
/// The autoscaler can read and write the target's scale.
pub const ABLE_TO_SCALE: &str = "AbleToScale";
/// A bound or a policy holds the replica count back.
pub const SCALING_LIMITED: &str = "ScalingLimited";
