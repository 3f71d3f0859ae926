//! Keys of labels and annotations, and their fixed values.
//!
//! Every key that the project uses is a constant here.

/// Prefix of the project's own keys.
pub const PREFIX: &str = "ai.infra.example.com/";

/// Kind of the owning object in lower case (`aiinference`). Part of every selector.
pub const NAME: &str = "app.kubernetes.io/name";
/// Name of the owning object. Part of every selector.
pub const INSTANCE: &str = "app.kubernetes.io/instance";
/// Controller that wrote the object (`inference-controller`). Never part of a selector: a controller may be renamed.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Conventional label for dashboards; never part of a selector.
pub const APP: &str = "app";

/// The version that a pod belongs to when two versions share traffic. Part of AIInference's selectors since the first
/// release, because a Deployment's selector is immutable.
pub const TRACK: &str = "ai.infra.example.com/track";
/// Value of [`TRACK`] for pods of the stable version.
pub const TRACK_STABLE: &str = "stable";
/// Value of [`TRACK`] for pods of the candidate.
pub const TRACK_CANARY: &str = "canary";

/// JSON record of the rendering of a child's pod template: hash of the spec, images, profile and value of [`REFRESH`].
pub const RESOLVED: &str = "ai.infra.example.com/resolved";
/// Generation of the owner's spec that the child was rendered from.
pub const GENERATION: &str = "ai.infra.example.com/generation";
/// The rendered pod template of a child, as JSON. It stays in use until the spec changes, so that a release that renders the
/// same spec differently restarts no pods.
pub const TEMPLATE: &str = "ai.infra.example.com/template";
/// Set by users: each new value renders the pod template with the running release, and restarts the pods. Pods have it, too.
pub const REFRESH: &str = "ai.infra.example.com/refresh";

/// Hash of the configuration that a controller last applied to a child, so that fields it no longer sets are removed.
pub const APPLIED: &str = "ai.infra.example.com/applied";

/// Of the AIInference of an InferenceEndpoint: who sets its replicas, [`REPLICAS_OF_SPEC`] or [`REPLICAS_OF_SCALER`].
pub const REPLICAS: &str = "ai.infra.example.com/replicas";
/// Value of [`REPLICAS`]: the controller, from the spec.
pub const REPLICAS_OF_SPEC: &str = "spec";
/// Value of [`REPLICAS`]: an autoscaler. The controller does not set them.
pub const REPLICAS_OF_SCALER: &str = "scaler";

/// Aggregates a ClusterRole into the scaler-controller's, for scaling kinds without built-in rules.
pub const AGGREGATE_TO_SCALER: &str = "ai.infra.example.com/aggregate-to-scaler";

/// Of a Job of a ModelEvaluation: the server that answers, as uid, version and digest of its model. Another one then means that
/// two models have answered. Of a Job that speaks to a store: a digest of the fields that describe the store.
pub const ASKED_SERVER: &str = "ai.infra.example.com/server";
/// Number of the attempt that a Job of a TrainingJob is.
pub const ATTEMPT: &str = "ai.infra.example.com/attempt";
/// Uid of the TrainingJob that a claim or a VolumeSnapshot was made for. It outlives the TrainingJob, and a later one of the
/// same name must not delete it.
pub const MADE_FOR: &str = "ai.infra.example.com/made-for";
/// Name of the TrainingJob that a claim or a VolumeSnapshot was made for. It stands in place of [`INSTANCE`], by which deployment
/// tools know their objects: what has that label and is not in git is deleted.
pub const KEPT_INSTANCE: &str = "ai.infra.example.com/instance";
/// Argo CD's own: options of its treatment of an object.
pub const ARGO_SYNC_OPTIONS: &str = "argocd.argoproj.io/sync-options";
/// Value of [`ARGO_SYNC_OPTIONS`]: Argo CD never deletes the object.
pub const NO_PRUNE: &str = "Prune=false";
/// Finalizer of a TrainingJob whose output is deleted with it.
pub const OUTPUT_FINALIZER: &str = "ai.infra.example.com/output";

/// Kueue's label for the queue that admits an attempt of a TrainingJob.
pub const KUEUE_QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";

/// Kueue's label for the priority of an attempt; copied from the TrainingJob.
pub const KUEUE_PRIORITY_CLASS: &str = "kueue.x-k8s.io/priority-class";

/// Node label of GPU feature discovery; a `gpu.productLabel` without a key is a value of this label.
pub const NVIDIA_GPU_PRODUCT: &str = "nvidia.com/gpu.product";

/// Kubernetes' own: the revision of a Deployment, on each pod of it.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
/// Kubernetes' own: the name of its Job, on each pod of it.
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Kubernetes' own: the index of a pod of an Indexed Job. A label since Kubernetes 1.28, and always an annotation.
pub const JOB_COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Uid of an idle pod without state that ends once the additional worker of its Deployment is ready. With `first ` before
/// it, the pod ends before the next worker starts.
pub const GIVES_WAY: &str = "ai.infra.example.com/gives-way";

/// Karpenter's own: with the value `true` it does not disrupt the node of the pod.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// The cluster autoscaler's own: with the value `false` it does not remove the node of the pod.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// The annotations of a pod that no node autoscaler moves, with their values.
pub const STAYS_ON_ITS_NODE: [(&str, &str); 2] = [(DO_NOT_DISRUPT, "true"), (SAFE_TO_EVICT, "false")];

/// Kubernetes' own: of a ReplicaSet's pods, those with the lowest cost are deleted first, after those that are not ready.
pub const POD_DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The annotations of a pod that say whether it may go: what a controller may change of pods.
pub const POD_MARKS: [&str; 3] = [POD_DELETION_COST, DO_NOT_DISRUPT, SAFE_TO_EVICT];
