//! Reasons of conditions, events and failures, for every kind.
//!
//! Alerts and scripts match on them. A reason of several conditions or kinds is listed under the first.

// Accepted.
/// `Accepted`: the spec is valid.
pub const VALID: &str = "Valid";
/// The spec is wrong; the message names the field.
pub const INVALID_SPEC: &str = "InvalidSpec";
/// `Accepted`: a path could be the output of several TrainingJobs.
pub const AMBIGUOUS_DEPENDENCY: &str = "AmbiguousDependency";
/// The output has checkpoints of another job, or another job still writes there.
pub const OUTPUT_NOT_EMPTY: &str = "OutputNotEmpty";

// Ready, in addition to the reason of the first failing condition.
/// `Ready`: the object does what its spec asks for.
pub const READY: &str = "Ready";
/// `Ready`: the spec asks for no replicas.
pub const STOPPED: &str = "Stopped";
/// `Ready`: `spec.paused` is set.
pub const PAUSED: &str = "Paused";
/// A child with the needed name belongs to another owner.
pub const OWNERSHIP_CONFLICT: &str = "OwnershipConflict";
/// The API server has refused a write, because of an admission policy, a webhook or a quota.
pub const DENIED: &str = "Denied";

// Events only.
/// The claim of a deleted TrainingJob stays although its retention says otherwise.
pub const OUTPUT_KEPT: &str = "OutputKept";
/// Event: another manager keeps changing a field of a child.
pub const FIELD_CONFLICT: &str = "FieldConflict";
/// An idle worker without state is replaced by one that restores a saved state.
pub const STATE_UNCLAIMED: &str = "StateUnclaimed";

// ModelLoaded of AIInference.
/// `ModelLoaded`, `MemoryReady`: the files are in the pod.
pub const LOADED: &str = "Loaded";
/// `ModelLoaded`, `MemoryReady`: the files are being copied into the pod.
pub const LOADING: &str = "Loading";
/// The store or the hub refuses the credentials.
pub const SOURCE_UNAUTHORIZED: &str = "SourceUnauthorized";
/// The store or the hub has no such model, dataset or file.
pub const SOURCE_NOT_FOUND: &str = "SourceNotFound";
/// The store or the hub does not answer.
pub const SOURCE_UNREACHABLE: &str = "SourceUnreachable";
/// A file differs from its checksum.
pub const CHECKSUM_MISMATCH: &str = "ChecksumMismatch";
/// A volume or a disk has no room, or the data is larger than a limit.
pub const OUT_OF_SPACE: &str = "OutOfSpace";
/// A pod found another model than the ready pods of its revision have loaded.
pub const MODEL_CHANGED: &str = "ModelChanged";
/// The PersistentVolumeClaim does not exist.
pub const CLAIM_NOT_FOUND: &str = "ClaimNotFound";
/// The access mode of the PersistentVolumeClaim does not allow pods on several nodes.
pub const CLAIM_NOT_SHAREABLE: &str = "ClaimNotShareable";
/// The claim that an earlier TrainingJob of the name has left has another class, size or access mode, and no volume yet.
pub const CLAIM_DIFFERS: &str = "ClaimDiffers";

// Scheduled.
/// `Scheduled`: the scheduler has found a node for every pod.
pub const SCHEDULED: &str = "Scheduled";
/// `Scheduled`: no node has enough free GPUs.
pub const INSUFFICIENT_GPU: &str = "InsufficientGPU";
/// `Scheduled`: no node has the requested GPU product.
pub const NO_SUCH_PRODUCT: &str = "NoSuchProduct";
/// `AcceleratorResolved`: a node has the accelerator.
pub const RESOLVED: &str = "Resolved";
/// `Scheduled`: the scheduler finds no node; the message has its reason.
pub const UNSCHEDULABLE: &str = "Unschedulable";
/// A scheduling gate holds a pod back.
pub const SCHEDULING_GATED: &str = "SchedulingGated";
/// No scheduler has looked at a pod.
pub const NO_SCHEDULER: &str = "NoScheduler";
/// Kueue, or a ResourceQuota, does not admit the pods.
pub const QUOTA_PENDING: &str = "QuotaPending";

// Available.
/// `Available`: at least one replica is ready.
pub const MINIMUM_REPLICAS: &str = "MinimumReplicas";
/// `Available`: no replica is ready.
pub const NO_READY_REPLICAS: &str = "NoReadyReplicas";

// Progressing.
/// `Progressing`: pods of the current revision replace older pods.
pub const ROLLING: &str = "Rolling";
/// `Progressing`: pods are being added or removed.
pub const SCALING: &str = "Scaling";
/// `Progressing`: pods of a lost node or of a broken GPU are being replaced.
pub const MIGRATING: &str = "Migrating";
/// `Progressing`: all pods have the current revision and are ready.
pub const COMPLETE: &str = "Complete";
/// An engine was not ready within `warmupTimeoutSeconds`.
pub const WARMUP_TIMEOUT: &str = "WarmupTimeout";
/// A container ends again and again.
pub const CRASH_LOOP: &str = "CrashLoop";
/// An engine had running requests and gave no token for `stallSeconds`.
pub const ENGINE_STALLED: &str = "EngineStalled";
/// A container used more memory than its limit.
pub const OUT_OF_MEMORY: &str = "OutOfMemory";
/// A kubelet cannot pull an image.
pub const IMAGE_PULL_FAILED: &str = "ImagePullFailed";
/// A Secret that a container or a volume refers to, or a key of the Secret, does not exist.
pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
/// A ConfigMap that a container refers to, or a key of the ConfigMap, does not exist.
pub const CONFIG_MAP_NOT_FOUND: &str = "ConfigMapNotFound";
/// A volume of a pod cannot be attached or mounted.
pub const VOLUME_NOT_ATTACHED: &str = "VolumeNotAttached";
/// A kubelet cannot create the sandbox of a pod, most often because of the network plugin.
pub const SANDBOX_FAILED: &str = "SandboxFailed";
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
/// `TemplateOutdated`: the running release renders another pod template for the spec.
pub const NEWER_TEMPLATE: &str = "NewerTemplate";

// Migrations of AIInference.
/// Migration: the kubelet of the node reports a fault.
pub const NODE_NOT_READY: &str = "NodeNotReady";
/// Migration: the kubelet of the node does not report.
pub const NODE_UNREACHABLE: &str = "NodeUnreachable";
/// Migration: the node does not exist any more.
pub const NODE_DELETED: &str = "NodeDeleted";
/// Migration: a GPU of the pod has a fatal error.
pub const GPU_FAULT: &str = "GPUFault";

// DependenciesReady of TrainingJob.
/// `DependenciesReady`: all dependencies have succeeded.
pub const ALL_SUCCEEDED: &str = "AllSucceeded";
/// Something else comes first: a job, an upload, or the first samples of an AIScaler. The message names it.
pub const WAITING: &str = "Waiting";
/// A dependency has failed.
pub const DEPENDENCY_FAILED: &str = "DependencyFailed";
/// `DependenciesReady`: a dependency does not exist.
pub const DEPENDENCY_NOT_FOUND: &str = "DependencyNotFound";
/// `DependenciesReady`: dependencies wait for each other.
pub const CYCLE: &str = "Cycle";

// Suspended of TrainingJob, as in batch/v1.
/// `Suspended`: `spec.suspend` is set.
pub const SUSPENDED: &str = "Suspended";
/// `Suspended`: `spec.suspend` is not set any more.
pub const RESUMED: &str = "Resumed";

// Running of TrainingJob.
/// `Running`: the pods of an attempt are being scheduled or started.
pub const STARTING: &str = "Starting";
/// `Running`: an attempt loads its model and data.
pub const PREPARING: &str = "Preparing";
/// `Running`: the trainer has logged a step.
pub const TRAINING: &str = "Training";
/// `Running`: an attempt has ended, and the next attempt follows.
pub const RETRYING: &str = "Retrying";
/// `Running`: no attempt runs.
pub const NOT_RUNNING: &str = "NotRunning";

// Uploaded of TrainingJob and ModelEvaluation, with DeadlineExceeded of an upload that was given up.
/// `Uploaded`: the result is in the store; of an evaluation, the answers are.
pub const UPLOADED: &str = "Uploaded";
/// `Uploaded`: the result is being uploaded; of an evaluation, the answers are.
pub const UPLOADING: &str = "Uploading";
/// `Uploaded` of an evaluation without a verdict: the store takes a small object.
pub const STORE_CHECKED: &str = "StoreChecked";
/// The last try has failed; it is tried again.
pub const UPLOAD_FAILED: &str = "UploadFailed";

// Stalled of TrainingJob.
/// Before the first attempt: the store of `output.upload` takes no object. Of an evaluation without a verdict: that of `output`
/// takes none.
pub const UPLOAD_NOT_POSSIBLE: &str = "UploadNotPossible";

// Complete and Failed of TrainingJob, with DependencyFailed from above, and status.failure with the reasons of pods from above.
/// `Complete`: the training has succeeded.
pub const SUCCEEDED: &str = "Succeeded";
/// A GPU had too little memory.
pub const CUDA_OUT_OF_MEMORY: &str = "CudaOutOfMemory";
/// The memory limit of a trainer, or the memory of its node, ran out.
pub const HOST_OUT_OF_MEMORY: &str = "HostOutOfMemory";
/// ms-swift has refused its arguments.
pub const INVALID_ARGUMENTS: &str = "InvalidArguments";
/// The trainer has failed; the message has its error.
pub const USER_ERROR: &str = "UserError";
/// The connection to another rank ended; why that one ended is not known.
pub const PEER_LOST: &str = "PeerLost";
/// A pod was deleted, preempted or drained, or was asked to end. An eviction for disk or memory has a reason of its own.
pub const PREEMPTED: &str = "Preempted";
/// The node of a pod was lost.
pub const NODE_LOST: &str = "NodeLost";
/// A kubelet has refused a pod, for example because its device plugin does not answer.
pub const POD_REFUSED: &str = "PodRefused";
/// The trainer has made no progress for `noProgressSeconds`, or no first step for `firstStepSeconds`.
pub const NO_PROGRESS: &str = "NoProgress";
/// The loss was no finite number, or 0 without a gradient, in 20 logged steps in a row.
pub const LOSS_NOT_FINITE: &str = "LossNotFinite";
/// The trainer cannot continue from the checkpoints of spec.resumeFrom.
pub const CANNOT_RESUME: &str = "CannotResume";
/// The volume of the output, or that of spec.resumeFrom, cannot be read or written.
pub const OUTPUT_UNUSABLE: &str = "OutputUnusable";
/// The GPUs of a trainer that runs do nothing.
pub const GPU_IDLE: &str = "GPUIdle";
/// `Failed`: `activeDeadlineSeconds` has passed.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// `Failed`: more attempts have failed than `retryLimit` allows, or 21 interruptions in a row left no newer checkpoint.
pub const RETRIES_EXHAUSTED: &str = "RetriesExhausted";
/// The trainer has ended before its last step, without an error.
pub const STOPPED_EARLY: &str = "StoppedEarly";

// MemoryReady of AIDispatcher, with Loaded and Loading from above.
/// `MemoryReady`: the vector store has no such collection.
pub const COLLECTION_NOT_FOUND: &str = "CollectionNotFound";
/// `MemoryReady`: the vectors of the collection have another dimension than `memoryConfig.dim`.
pub const DIM_MISMATCH: &str = "DimMismatch";
/// The vector store or the checkpoint store does not answer.
pub const STORE_UNREACHABLE: &str = "StoreUnreachable";
/// The vector store or the checkpoint store refuses the credentials.
pub const STORE_UNAUTHORIZED: &str = "StoreUnauthorized";
/// The bucket of `checkpoint.uri` does not exist.
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
/// `AbleToScale`: replicas can be set.
pub const READY_FOR_NEW_SCALE: &str = "ReadyForNewScale";
/// `AbleToScale`: the scale of the target was read.
pub const SUCCEEDED_GET_SCALE: &str = "SucceededGetScale";
/// Event: replicas were set.
pub const SUCCESSFUL_RESCALE: &str = "SuccessfulRescale";
/// Event: replicas that others have set were replaced at once.
pub const REPLICAS_SET_BACK: &str = "ReplicasSetBack";
/// No replicas are removed while pods start that may be needed.
pub const WAITING_FOR_PODS: &str = "WaitingForPods";
/// No replicas are added while their pods could not start: an image cannot be pulled, or a Secret does not exist.
pub const CANNOT_START: &str = "CannotStart";
/// `AbleToScale`: a larger number of the stabilization window is kept.
pub const SCALE_DOWN_STABILIZED: &str = "ScaleDownStabilized";
/// `AbleToScale`: a smaller number of the stabilization window is kept.
pub const SCALE_UP_STABILIZED: &str = "ScaleUpStabilized";
/// `AbleToScale`: the scale of the target cannot be read.
pub const FAILED_GET_SCALE: &str = "FailedGetScale";
/// `AbleToScale`: the replicas of the target cannot be set.
pub const FAILED_UPDATE_SCALE: &str = "FailedUpdateScale";
/// False: others have set the replicas of the target several times within minutes; none are set until a pause has ended.
/// True: they have done so again and again within the last hour, and each time the replicas were set back.
pub const REPLICAS_CONTESTED: &str = "ReplicasContested";
/// The first value of a metric asks for far more than the maximum, or for a fraction of the replicas. Replicas are added a
/// period later, and removed once the window of scale-downs allows it.
pub const IMPLAUSIBLE_VALUE: &str = "ImplausibleValue";

// ScalingActive: the first three as in the HorizontalPodAutoscaler.
/// `ScalingActive`: a number of replicas was computed from the metrics.
pub const VALID_METRIC_FOUND: &str = "ValidMetricFound";
/// `ScalingActive`: the target has 0 replicas, which its user has set.
pub const SCALING_DISABLED: &str = "ScalingDisabled";
/// `ScalingActive`: the selector of the target is missing or cannot be read.
pub const INVALID_SELECTOR: &str = "InvalidSelector";
/// `ScalingActive`: a metric has no value; the message names the source.
pub const METRIC_MISSING: &str = "MetricMissing";
/// `ScalingActive`: the last value of a metric is too old.
pub const METRIC_STALE: &str = "MetricStale";
/// What is known of the pods may be out of date, because a watch fails: no worker is added or removed.
pub const PODS_UNKNOWN: &str = "PodsUnknown";
/// The metric asks for fewer replicas, and its source says that some of its data was missing: replicas stay.
pub const METRIC_PARTIAL: &str = "MetricPartial";
/// `ScalingActive`: the metric does not change when the number of replicas changes.
pub const METRIC_NOT_LOAD_SENSITIVE: &str = "MetricNotLoadSensitive";
/// `ScalingActive`: the cluster has no API of CPU and memory metrics, so a HorizontalPodAutoscaler cannot scale.
pub const METRICS_API_MISSING: &str = "MetricsAPIMissing";
/// True: a counter is used where a gauge is needed, by its name or by its values.
pub const METRIC_ONLY_GROWS: &str = "MetricOnlyGrows";
/// The target has 0 replicas, and the metric no value: one that only the target's own pods have never starts any.
pub const METRIC_NEEDS_PODS: &str = "MetricNeedsPods";
/// True: the selector matches pods that are not the target's. They do not count.
pub const FOREIGN_PODS: &str = "ForeignPods";
/// `ScalingActive`: another autoscaler has the same target.
pub const TARGET_MANAGED_BY_OTHER: &str = "TargetManagedByOther";

// ScalingLimited, as the HorizontalPodAutoscaler has them.
/// `ScalingLimited`: nothing limits the number of replicas.
pub const DESIRED_WITHIN_RANGE: &str = "DesiredWithinRange";
/// `ScalingLimited`: the metrics ask for fewer replicas than the minimum.
pub const TOO_FEW_REPLICAS: &str = "TooFewReplicas";
/// `ScalingLimited`: the metrics ask for more replicas than the maximum.
pub const TOO_MANY_REPLICAS: &str = "TooManyReplicas";
/// `ScalingLimited`: a rate of `behavior.scaleUp` limits the number of replicas.
pub const SCALE_UP_LIMIT: &str = "ScaleUpLimit";
/// `ScalingLimited`: a rate of `behavior.scaleDown` limits the number of replicas.
pub const SCALE_DOWN_LIMIT: &str = "ScaleDownLimit";

// TrafficReady of AIInference.
/// `TrafficReady`: all gateways have accepted the route.
pub const ROUTE_ACCEPTED: &str = "RouteAccepted";
/// The cluster has no HTTPRoutes.
pub const GATEWAY_API_NOT_INSTALLED: &str = "GatewayAPINotInstalled";
/// The cluster has no InferencePools.
pub const INFERENCE_POOL_NOT_INSTALLED: &str = "InferencePoolNotInstalled";
/// No gateway has answered for the route: the Gateway does not exist, or no controller serves its class.
pub const ROUTE_NOT_OBSERVED: &str = "RouteNotObserved";
/// A gateway does not accept the route; the message is the gateway's.
pub const ROUTE_REJECTED: &str = "RouteRejected";
/// A gateway does not find a Service of the route, or may not use it.
pub const BACKEND_NOT_RESOLVED: &str = "BackendNotResolved";
/// Another manager keeps changing the route.
pub const ROUTE_CONTESTED: &str = "RouteContested";
/// The cluster has a release of the Gateway API without a field of the route.
pub const EXPERIMENTAL_FIELD_REFUSED: &str = "ExperimentalFieldRefused";

// CanaryProgressing and CanaryHealthy of AIInference.
/// `CanaryProgressing`: the pods of the candidate come up.
pub const CANARY_STARTING: &str = "Starting";
/// `CanaryProgressing`: the candidate is ready and gets no share.
pub const CANARY_DARK: &str = "Dark";
/// `CanaryProgressing`: the candidate has the share of a step.
pub const CANARY_ANALYSING: &str = "Analysing";
/// `CanaryProgressing`: a step has no verdict within its time, and the candidate keeps its share.
pub const CANARY_HELD: &str = "Held";
/// `CanaryProgressing`: the canary waits until `approvedSteps` rises.
pub const AWAITING_APPROVAL: &str = "AwaitingApproval";
/// `CanaryProgressing`: the evaluation of `canary.evaluationName`, or its kind, does not exist.
pub const EVALUATION_NOT_FOUND: &str = "EvaluationNotFound";
/// `CanaryProgressing`: the evaluation of `canary.evaluationName` has no verdict, or has passed and no pod is ready yet.
pub const EVALUATION_PENDING: &str = "EvaluationPending";
/// `CanaryProgressing`: the evaluation of `canary.evaluationName` has ended, and is not Passed.
pub const EVALUATION_NOT_PASSED: &str = "EvaluationNotPassed";
/// `CanaryProgressing`: the evaluation of `canary.evaluationName` has no digest, is about LoRA adapters, or is about other files
/// than the candidate has loaded.
pub const EVALUATION_FOR_OTHER_MODEL: &str = "EvaluationForOtherModel";
/// `CanaryProgressing`: a ready pod of the candidate does not say which files it has loaded.
pub const EVALUATION_MODEL_UNKNOWN: &str = "EvaluationModelUnknown";
/// `CanaryProgressing`: stable gets the version of the candidate.
pub const CANARY_PROMOTING: &str = "Promoting";
/// `CanaryProgressing`: requests of the candidate end.
pub const CANARY_ROLLING_BACK: &str = "RollingBack";
/// `CanaryProgressing`: the candidate was not good enough.
pub const CANARY_ROLLED_BACK: &str = "RolledBack";
/// `CanaryHealthy`: nothing speaks against the candidate, or it has passed.
pub const CANARY_PASSING: &str = "Passing";
/// `CanaryHealthy`: the requests of the candidate are judged, and there is no verdict yet.
pub const CANARY_JUDGING: &str = "Judging";
/// `CanaryHealthy`: the candidate has lost its last ready pod while it had a share.
pub const CANDIDATE_UNREADY: &str = "CandidateUnready";
/// `CanaryHealthy`: an engine of the candidate has failed while it had a share, or shortly before its last ready pod was lost for
/// the third time.
pub const CANDIDATE_CRASHED: &str = "CandidateCrashed";
/// `CanaryHealthy`: the candidate's requests are worse than stable's.
pub const ANALYSIS_FAILED: &str = "AnalysisFailed";
/// `CanaryHealthy`: a step had no verdict within its time.
pub const CANARY_INCONCLUSIVE: &str = "Inconclusive";
/// `CanaryHealthy`: engines, or the server of the metric custom, give no numbers for three looks in a row.
pub const METRICS_MISSING: &str = "MetricsMissing";
/// `CanaryHealthy`: both versions have so different loads that their latencies cannot be compared.
pub const LOAD_MISMATCH: &str = "LoadMismatch";
/// `CanaryHealthy`: no bucket of both versions ends where a request becomes slow.
pub const BUCKET_MISMATCH: &str = "BucketMismatch";
/// `canary.abort` is set.
pub const CANARY_ABORTED: &str = "Aborted";

// Events of a canary.
/// Event: a canary begins.
pub const CANARY_STARTED: &str = "CanaryStarted";
/// Event: the share of the candidate changes.
pub const TRAFFIC_SHIFTED: &str = "TrafficShifted";
/// Event: the candidate has passed a step.
pub const CANARY_PASSED: &str = "CanaryPassed";
/// Event: a step has no verdict within its time.
pub const CANARY_HELD_EVENT: &str = "CanaryHeld";
/// Event: stable has the version of the candidate.
pub const CANARY_PROMOTED: &str = "CanaryPromoted";
/// Event: all requests go to stable again.
pub const CANARY_ROLLED_BACK_EVENT: &str = "CanaryRolledBack";

// Accepted of ModelEvaluation.
/// `Accepted`: neither the spec nor the controller names an image with the harness.
pub const HARNESS_IMAGE_MISSING: &str = "HarnessImageMissing";
/// The questions would have to be loaded from a hub, which the spec or the controller does not allow.
pub const DATASET_ONLINE_FORBIDDEN: &str = "DatasetOnlineForbidden";
/// A test set runs programs of the model, which the spec or the controller does not allow.
pub const CODE_EXECUTION_FORBIDDEN: &str = "CodeExecutionForbidden";
/// The controller does not allow the URL of a model.
pub const ENDPOINT_NOT_ALLOWED: &str = "EndpointNotAllowed";
/// What a TrainingJob has written cannot be served, for example LoRA adapters on a model that is only in an image.
pub const UNSUPPORTED_ARTIFACT: &str = "UnsupportedArtifact";

// ServersReady of ModelEvaluation.
/// `ServersReady`: the model of the present run is served.
pub const SERVING: &str = "Serving";

// Evaluated of ModelEvaluation.
/// `Evaluated`: questions are asked.
pub const EVALUATING: &str = "Evaluating";
/// `Evaluated`: both models have answered all questions.
pub const EVALUATED: &str = "Evaluated";

// Compared of ModelEvaluation.
/// `Compared`: the answers of both models are paired.
pub const COMPARING: &str = "Comparing";
/// `Compared`: the candidate is not worse than the budget allows.
pub const PASSED: &str = "Passed";
/// `Compared`: the candidate is worse than the budget allows.
pub const REGRESSED: &str = "Regressed";
/// `Compared`: the questions are too few to tell.
pub const INCONCLUSIVE: &str = "Inconclusive";
/// `Compared`: the baseline differs from itself, so no verdict can rest on such answers.
pub const UNSTABLE_MEASUREMENT: &str = "UnstableMeasurement";

// Failed of ModelEvaluation, beside ModelChanged, OutOfSpace and DeadlineExceeded.
/// The file or the folder of a test set does not exist, or has no questions.
pub const DATASET_NOT_FOUND: &str = "DatasetNotFound";
/// The server of a model did not start, or does not answer.
pub const SERVER_FAILED: &str = "ServerFailed";
/// The harness has ended with an error.
pub const HARNESS_FAILED: &str = "HarnessFailed";
/// The image has no program of the harness.
pub const HARNESS_NOT_FOUND: &str = "HarnessNotFound";
/// The harness cannot ask this test set, such as one of lm-eval that scores log-likelihoods.
pub const TEST_SET_UNSUPPORTED: &str = "TestSetUnsupported";
/// What the harness has written cannot be read, or a file of the answers is damaged.
pub const OUTPUT_UNREADABLE: &str = "OutputUnreadable";
/// More than 0.5 % of the questions were asked of one model only.
pub const PAIRING_FAILED: &str = "PairingFailed";
/// More than 1 % of the requests had no answer.
pub const TOO_MANY_ERRORS: &str = "TooManyErrors";
/// The volume of the answers cannot be read or written.
pub const VOLUME_UNUSABLE: &str = "VolumeUnusable";
