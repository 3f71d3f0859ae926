//! Keys of labels, annotations and finalizers that we write or read, and their fixed values.
//!
//! A key used by any part of the project is a constant here, so that two parts cannot disagree on its spelling.

/// Prefix of everything that is ours: labels, annotations, finalizers and taints.
pub const PREFIX: &str = "ai.infra.example.com/";

/// Kind of the owning object in lower case (`aiinference`). Part of every selector.
pub const NAME: &str = "app.kubernetes.io/name";
/// Name of the owning object. Part of every selector.
pub const INSTANCE: &str = "app.kubernetes.io/instance";
/// Controller that wrote the object (`inference-controller`). Never part of a selector: a controller may be renamed.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Conventional label that dashboards and people look for; never part of a selector.
pub const APP: &str = "app";

/// Which of two versions that share traffic a pod belongs to. Part of the selectors of AIInference from the first
/// release, because a Deployment's selector can never change.
pub const TRACK: &str = "ai.infra.example.com/track";
/// Value of [`TRACK`] for pods of the version that users run today.
pub const TRACK_STABLE: &str = "stable";

/// What the child's pod template was rendered for, as JSON: a hash of the spec, the images, the profile and the value of
/// the refresh annotation.
pub const RESOLVED: &str = "ai.infra.example.com/resolved";
/// Generation of the owner's spec that the child was rendered from.
pub const GENERATION: &str = "ai.infra.example.com/generation";
/// The pod template of a child as it was rendered, as JSON, kept on the child so that a release that renders the same spec
/// differently restarts no pod.
pub const TEMPLATE: &str = "ai.infra.example.com/template";
/// Set by users on an object: each new value takes the pod template of today's release, and restarts pods if it differs.
pub const REFRESH: &str = "ai.infra.example.com/refresh";

/// Hash of what a controller last applied to a child, so that a field it stops setting is noticed and taken back.
pub const APPLIED: &str = "ai.infra.example.com/applied";

/// Aggregates a ClusterRole into the scaler-controller's, so that it may scale kinds we do not ship rules for.
pub const AGGREGATE_TO_SCALER: &str = "ai.infra.example.com/aggregate-to-scaler";

/// Queue of Kueue that admits an attempt of a TrainingJob.
pub const KUEUE_QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";

/// Node label that GPU feature discovery sets; a bare `gpu.productLabel` is a value of it.
pub const NVIDIA_GPU_PRODUCT: &str = "nvidia.com/gpu.product";
