//! Reasons of conditions, events and failures, for every kind.
//!
//! Alerts and scripts match on them. A reason of several conditions or kinds is listed under the first.

// Accepted.
pub const VALID: &str = "Valid";
pub const INVALID_SPEC: &str = "InvalidSpec";
pub const AMBIGUOUS_DEPENDENCY: &str = "AmbiguousDependency";
pub const OUTPUT_NOT_EMPTY: &str = "OutputNotEmpty";

// Ready, in addition to the reason of the first failing condition.
pub const READY: &str = "Ready";
pub const STOPPED: &str = "Stopped";
pub const PAUSED: &str = "Paused";
pub const OWNERSHIP_CONFLICT: &str = "OwnershipConflict";
pub const DENIED: &str = "Denied";

// Events only.
/// The claim of a deleted TrainingJob stays although its retention says otherwise.
pub const OUTPUT_KEPT: &str = "OutputKept";
pub const FIELD_CONFLICT: &str = "FieldConflict";
/// An idle worker without state is replaced by one that restores a saved state.
pub const STATE_UNCLAIMED: &str = "StateUnclaimed";

// ModelLoaded of AIInference.
pub const LOADED: &str = "Loaded";
pub const LOADING: &str = "Loading";
pub const SOURCE_UNAUTHORIZED: &str = "SourceUnauthorized";
pub const SOURCE_NOT_FOUND: &str = "SourceNotFound";
pub const SOURCE_UNREACHABLE: &str = "SourceUnreachable";
pub const CHECKSUM_MISMATCH: &str = "ChecksumMismatch";
pub const OUT_OF_SPACE: &str = "OutOfSpace";
pub const CLAIM_NOT_FOUND: &str = "ClaimNotFound";
pub const CLAIM_NOT_SHAREABLE: &str = "ClaimNotShareable";
/// The claim that an earlier TrainingJob of the name has left has another class, size or access mode, and no volume yet.
pub const CLAIM_DIFFERS: &str = "ClaimDiffers";

// Scheduled.
pub const SCHEDULED: &str = "Scheduled";
pub const INSUFFICIENT_GPU: &str = "InsufficientGPU";
pub const NO_SUCH_PRODUCT: &str = "NoSuchProduct";
pub const UNSCHEDULABLE: &str = "Unschedulable";
pub const QUOTA_PENDING: &str = "QuotaPending";

// Available.
pub const MINIMUM_REPLICAS: &str = "MinimumReplicas";
pub const NO_READY_REPLICAS: &str = "NoReadyReplicas";

// Progressing.
pub const ROLLING: &str = "Rolling";
pub const SCALING: &str = "Scaling";
pub const MIGRATING: &str = "Migrating";
pub const COMPLETE: &str = "Complete";
pub const WARMUP_TIMEOUT: &str = "WarmupTimeout";
pub const CRASH_LOOP: &str = "CrashLoop";
pub const OUT_OF_MEMORY: &str = "OutOfMemory";
pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
/// A Secret or a ConfigMap that a container refers to, or a key of it, does not exist.
pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
pub const CONFIG_MAP_NOT_FOUND: &str = "ConfigMapNotFound";
/// A volume of a pod cannot be attached or mounted.
pub const VOLUME_NOT_ATTACHED: &str = "VolumeNotAttached";
/// A kubelet ended pods, for example because the node was short of memory or disk.
pub const EVICTED: &str = "Evicted";

// Progressing of AIDispatcher.
/// No worker of the current revision has ever reported a load, so older workers stay.
pub const NEVER_REPORTED: &str = "NeverReported";
/// Workers report their load, and a path of spec.probes has never answered.
pub const PROBE_FAILED: &str = "ProbeFailed";
/// No worker of a revision that has worked is ready: they report no load now, or a path of spec.probes does not answer.
pub const WORKERS_NOT_READY: &str = "WorkersNotReady";

// DisruptionBudgetOmitted of AIDispatcher, beside OwnershipConflict, Denied and InvalidSpec.
/// A PodDisruptionBudget of the user selects the workers.
pub const OTHER_BUDGET: &str = "OtherBudget";

// TemplateOutdated of AIInference.
pub const NEWER_TEMPLATE: &str = "NewerTemplate";

// Migrations of AIInference.
pub const NODE_NOT_READY: &str = "NodeNotReady";
pub const NODE_UNREACHABLE: &str = "NodeUnreachable";
pub const NODE_DELETED: &str = "NodeDeleted";
pub const GPU_FAULT: &str = "GPUFault";

// DependenciesReady of TrainingJob.
pub const ALL_SUCCEEDED: &str = "AllSucceeded";
pub const WAITING: &str = "Waiting";
pub const DEPENDENCY_FAILED: &str = "DependencyFailed";
pub const DEPENDENCY_NOT_FOUND: &str = "DependencyNotFound";
pub const CYCLE: &str = "Cycle";

// Suspended of TrainingJob, as in batch/v1.
pub const SUSPENDED: &str = "Suspended";
pub const RESUMED: &str = "Resumed";

// Running of TrainingJob.
pub const STARTING: &str = "Starting";
pub const PREPARING: &str = "Preparing";
pub const TRAINING: &str = "Training";
pub const RETRYING: &str = "Retrying";
pub const NOT_RUNNING: &str = "NotRunning";

// Uploaded of TrainingJob.
pub const UPLOADED: &str = "Uploaded";
pub const UPLOADING: &str = "Uploading";
/// The last try has failed; it is tried again.
pub const UPLOAD_FAILED: &str = "UploadFailed";

// Stalled of TrainingJob.
/// Before the first attempt: the store of `output.upload` takes no object.
pub const UPLOAD_NOT_POSSIBLE: &str = "UploadNotPossible";

// Complete and Failed of TrainingJob, with DependencyFailed from above, and status.failure with the reasons of pods from above.
pub const SUCCEEDED: &str = "Succeeded";
pub const CUDA_OUT_OF_MEMORY: &str = "CudaOutOfMemory";
pub const HOST_OUT_OF_MEMORY: &str = "HostOutOfMemory";
pub const INVALID_ARGUMENTS: &str = "InvalidArguments";
pub const USER_ERROR: &str = "UserError";
/// The connection to another rank ended; why that one ended is not known.
pub const PEER_LOST: &str = "PeerLost";
pub const PREEMPTED: &str = "Preempted";
pub const NODE_LOST: &str = "NodeLost";
/// A kubelet has refused a pod, for example because its device plugin does not answer.
pub const POD_REFUSED: &str = "PodRefused";
pub const NO_PROGRESS: &str = "NoProgress";
/// Also the reason of the condition LossNotFinite.
pub const LOSS_NOT_FINITE: &str = "LossNotFinite";
/// The trainer cannot continue from the checkpoints of spec.resumeFrom.
pub const CANNOT_RESUME: &str = "CannotResume";
/// The volume of the output, or that of spec.resumeFrom, cannot be read or written.
pub const OUTPUT_UNUSABLE: &str = "OutputUnusable";
/// The GPUs of a trainer that runs do nothing.
pub const GPU_IDLE: &str = "GPUIdle";
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
pub const RETRIES_EXHAUSTED: &str = "RetriesExhausted";
pub const STOPPED_EARLY: &str = "StoppedEarly";

// MemoryReady of AIDispatcher, with Loaded and Loading from above.
pub const COLLECTION_NOT_FOUND: &str = "CollectionNotFound";
pub const DIM_MISMATCH: &str = "DimMismatch";
pub const STORE_UNREACHABLE: &str = "StoreUnreachable";
pub const STORE_UNAUTHORIZED: &str = "StoreUnauthorized";
/// The bucket for checkpoints.
pub const BUCKET_NOT_FOUND: &str = "BucketNotFound";

// CheckpointFailed of AIDispatcher.
/// Workers that run cannot save their state now; it is tried again.
pub const STATE_NOT_SAVED: &str = "StateNotSaved";
/// A worker has ended before its state was saved.
pub const STATE_LOST: &str = "StateLost";
/// Saved states differ from their manifests; they are kept and not restored.
pub const STATE_DAMAGED: &str = "StateDamaged";
/// A worker has started without a state, because the storage could not be used (checkpoint.whenUnavailable).
pub const STARTED_EMPTY: &str = "StartedEmpty";

// AbleToScale, as the HorizontalPodAutoscaler has them.
pub const READY_FOR_NEW_SCALE: &str = "ReadyForNewScale";
pub const SUCCEEDED_GET_SCALE: &str = "SucceededGetScale";
/// Event: replicas were set.
pub const SUCCESSFUL_RESCALE: &str = "SuccessfulRescale";
/// Event: replicas that others have set were replaced at once.
pub const REPLICAS_SET_BACK: &str = "ReplicasSetBack";
/// No replicas are removed while pods start that may be needed.
pub const WAITING_FOR_PODS: &str = "WaitingForPods";
/// No replicas are added while their pods could not start: an image cannot be pulled, or a Secret does not exist.
pub const CANNOT_START: &str = "CannotStart";
pub const SCALE_DOWN_STABILIZED: &str = "ScaleDownStabilized";
pub const SCALE_UP_STABILIZED: &str = "ScaleUpStabilized";
pub const FAILED_GET_SCALE: &str = "FailedGetScale";
pub const FAILED_UPDATE_SCALE: &str = "FailedUpdateScale";
/// False: others have set the replicas of the target several times within minutes; none are set until a pause has ended.
/// True: they have done so again and again within the last hour, and each time the replicas were set back.
pub const REPLICAS_CONTESTED: &str = "ReplicasContested";
/// The first value of a metric asks for far more than the maximum, or for a fraction of the replicas; they are added a
/// period later, and removed once the window of scale-downs allows it.
pub const IMPLAUSIBLE_VALUE: &str = "ImplausibleValue";

// ScalingActive: the first three as in the HorizontalPodAutoscaler.
pub const VALID_METRIC_FOUND: &str = "ValidMetricFound";
pub const SCALING_DISABLED: &str = "ScalingDisabled";
pub const INVALID_SELECTOR: &str = "InvalidSelector";
pub const METRIC_MISSING: &str = "MetricMissing";
pub const METRIC_STALE: &str = "MetricStale";
/// What is known of the pods may be out of date, because a watch fails: no worker is added or removed.
pub const PODS_UNKNOWN: &str = "PodsUnknown";
/// The metric asks for fewer replicas, and its source says that some of its data was missing: replicas stay.
pub const METRIC_PARTIAL: &str = "MetricPartial";
pub const METRIC_NOT_LOAD_SENSITIVE: &str = "MetricNotLoadSensitive";
/// True: a counter is used where a gauge is needed, by its name or by its values.
pub const METRIC_ONLY_GROWS: &str = "MetricOnlyGrows";
/// The target has 0 replicas, and the metric no value: one that only the target's own pods have never starts any.
pub const METRIC_NEEDS_PODS: &str = "MetricNeedsPods";
/// True: the selector matches pods that are not the target's. They do not count.
pub const FOREIGN_PODS: &str = "ForeignPods";
pub const TARGET_MANAGED_BY_OTHER: &str = "TargetManagedByOther";

// ScalingLimited, as the HorizontalPodAutoscaler has them.
pub const DESIRED_WITHIN_RANGE: &str = "DesiredWithinRange";
pub const TOO_FEW_REPLICAS: &str = "TooFewReplicas";
pub const TOO_MANY_REPLICAS: &str = "TooManyReplicas";
pub const SCALE_UP_LIMIT: &str = "ScaleUpLimit";
pub const SCALE_DOWN_LIMIT: &str = "ScaleDownLimit";
