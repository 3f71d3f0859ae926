//! InferenceEndpoint: a model by its name, on an accelerator by its name, with an optional autoscaler.
//!
//! The type, its bounds and validation rules. Fields that an AIInference has too have the types of AIInference.

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Engine, ModelStore, ModelVolume, source,
    traffic::{self, Canary, Gateway, RouteRef},
};
use crate::{
    aiscaler::{Behavior, Fallback, MetricType, Source},
    pods::{EnvVar, Resources, Scheduling},
    schema::{self, rules},
};

/// `spec.accelerator` of an endpoint without GPUs.
pub const CPU: &str = "cpu";

/// Fields that are those of the AIInference, with its types and its texts.
pub const PASSED_THROUGH: [&str; 11] = [
    "engine",
    "image",
    "modelStore",
    "modelVolume",
    "args",
    "env",
    "resources",
    "scheduling",
    "gateway",
    "routeRef",
    "canary",
];

/// Which model to serve, on which accelerator.
#[derive(CustomResource, Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[kube(
    group = "aistudio.modelscope.cn",
    version = "v1alpha1",
    kind = "InferenceEndpoint",
    plural = "inferenceendpoints",
    shortname = "ie",
    category = "ai",
    namespaced,
    doc = "A model that is served by its name. It is an AIInference of this name, and one autoscaler at most. What has no \
           field here is set by writing an AIInference.",
    status = "InferenceEndpointStatus",
    derive = "PartialEq",
    validation = rules::name_fits_a_label(),
    validation = super::a_route_names_the_service_of_the_candidate(),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model"),
    printcolumn(name = "Accelerator", type_ = "string", json_path = ".spec.accelerator"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Min", type_ = "integer", json_path = ".spec.autoscaling.minReplicas"),
    printcolumn(name = "Max", type_ = "integer", json_path = ".spec.autoscaling.maxReplicas"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "URL", type_ = "string", json_path = ".status.url", priority = 1),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.accelerator != 'cpu' || !has(self.gpus) || self.gpus == 0")
        .message("must be 0 or absent with accelerator cpu").field_path(".gpus"),
    validation = Rule::new("self.accelerator == 'cpu' || !has(self.gpus) || self.gpus > 0")
        .message("must be at least 1; to serve without GPUs, set accelerator cpu").field_path(".gpus"),
    validation = Rule::new("self.accelerator != 'cpu' || self.engine == 'triton' || has(self.image)")
        .message("must be set with accelerator cpu, or engine must be triton: the default images of the others need a GPU")
        .field_path(".image").reason(Reason::FieldValueRequired),
    validation = Rule::new("!has(self.autoscaling) || self.replicas > 0")
        .message("must not be 0 with autoscaling: remove autoscaling to stop the endpoint").field_path(".replicas"),
    validation = traffic::grpc_is_of_triton(),
    validation = traffic::has_one_route(),
    validation = traffic::shares_have_a_route(),
    validation = traffic::matches_have_a_gateway(),
    validation = traffic::rules_fit_a_route(),
    validation = traffic::analysis_reads_what_engines_count(),
    validation = traffic::evaluations_compare_what_is_served(),
    validation = Engine::Vllm.owned_flags_rule(),
    validation = Engine::Triton.owned_flags_rule(),
    validation = Engine::Tgi.owned_flags_rule()
)]
pub struct InferenceEndpointSpec {
    /// Model. `owner/name` is a model of ModelScope, as is `ms://owner/name`; with the controller's `--model-library`,
    /// `owner/name` is a folder of that library. Of Hugging Face: `hf://owner/name`. In a store or a claim:
    /// `s3://bucket/prefix`, `pvc://claim/path`. `@revision` may follow the name of a hub's model. Required. Changing it
    /// restarts pods.
    #[schemars(length(max = 512))]
    #[x_kube(
        validation = source::endpoint_rule(),
        validation = source::characters_rule(),
        validation = source::segments_rule()
    )]
    pub model: String,

    /// Number of pods. 0 stops the endpoint. With autoscaling it is the number to begin with, within minReplicas and
    /// maxReplicas. An autoscaler of yours that has the AIInference as its target sets the pods instead. Default: 1. Changing it
    /// restarts no pod that stays.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: i32,

    /// Accelerator of the nodes. A short name, such as `h100` or `l40s`, selects the labels of NVIDIA and of the clouds. A
    /// product, such as `NVIDIA-H100-PCIe`, is a value of NVIDIA's label. `label.key=value` is any node label, and `cpu` any
    /// node. Required. Changing it restarts pods.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::product_label())]
    pub accelerator: String,

    /// Accelerators of each pod, 0 to 16. Default: 1, and 0 with accelerator `cpu`. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16))]
    pub gpus: Option<i32>,

    /// Autoscaler of the pods. It begins with the number of pods that there are. When it is removed, replicas counts again.
    /// Default: none. Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,

    /// Inference engine; decides the default image, arguments, probes and metric names. Default: vllm. Changing it restarts
    /// pods.
    #[serde(default = "vllm")]
    pub engine: Engine,

    /// Image of the engine. Default: the controller's default for the engine, resolved once per spec change and shown in
    /// status.resolved of the AIInference. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = rules::image())]
    pub image: Option<String>,

    /// Access to the object store of an s3:// source, or to the hub of an hf:// or ms:// source. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_store: Option<ModelStore>,

    /// Volume of a copied model. Default: the node's disk. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_volume: Option<ModelVolume>,

    /// Additional arguments of the engine, at most 64. They are passed unchanged, without a shell. Flags that the controller
    /// sets (port, model path, number of GPUs …) are refused. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024)))]
    pub args: Vec<String>,

    /// Environment variables of the engine, at most 64. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,

    /// Requests and limits of the engine, without its GPUs. Default: none. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Constraints on the nodes of the pods. Default: any node with the requested resources. Changing it restarts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,

    /// Route through a Gateway of the Gateway API, as an HTTPRoute of this object's name. Default: none; clients use the Service.
    /// Callers inside the cluster who use the Service reach stable alone; status.route.address of the AIInference has all
    /// versions. Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Gateway>,

    /// An HTTPRoute of yours, in place of gateway. While canary gives the candidate a share, the inference-controller changes
    /// two numbers of it: the weights of the two backends in one rule. Default: none. Changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_ref: Option<RouteRef>,

    /// A second version, the candidate, which gets a share of the requests and may become stable. What is set here replaces
    /// the field of the AIInference. After the promotion, move the fields to the top level and remove canary: no pod restarts.
    /// Removing it before that ends the canary. Default: none. For stable, changing it restarts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

/// Bounds and metrics of the autoscaler.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.minReplicas <= self.maxReplicas")
        .message("must not be above maxReplicas").field_path(".minReplicas"),
    validation = Rule::new("has(self.metrics) != has(self.metricType)")
        .message("must have exactly one of metrics (a HorizontalPodAutoscaler) and metricType (an AIScaler)"),
    validation = Rule::new("has(self.metricType) == has(self.targetValue)")
        .message("must be set together with metricType").field_path(".targetValue"),
    validation = Rule::new("has(self.metricType) || !has(self.source)")
        .message("needs metricType").field_path(".source"),
    validation = Rule::new("has(self.metricType) || !has(self.behavior)")
        .message("needs metricType").field_path(".behavior"),
    validation = Rule::new("has(self.metricType) || !has(self.fallback)")
        .message("needs metricType").field_path(".fallback"),
    validation = Rule::new("!has(self.metricType) || self.metricType != 'custom' || has(self.source)")
        .message("source is required with metricType custom").field_path(".source")
        .reason(Reason::FieldValueRequired),
    validation = Rule::new(
        "!has(self.metricType) || self.metricType == 'queue_depth' || !has(self.source) || \
         !has(self.source.prometheus) || !has(self.source.prometheus.completionsQuery)"
    ).message("completionsQuery needs metricType queue_depth").field_path(".source")
)]
pub struct Autoscaling {
    /// Minimum number of pods. Required.
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: i32,

    /// Maximum number of pods. Required.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,

    /// Metrics of a HorizontalPodAutoscaler, at most 8, of type Resource or ContainerResource. CPU and memory do not show
    /// the load of an engine on GPUs; metricType does. Exactly one of metrics and metricType is required.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub metrics: Vec<MetricSpec>,

    /// Metric of an AIScaler. queue_depth: waiting and running requests. gpu_util, gpu_memory: percent. latency: 95th
    /// percentile in milliseconds. tokens_per_minute. custom: the values of source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric_type: Option<MetricType>,

    /// Target value of the AIScaler in the unit of metricType: per pod, of latency for all requests together. Required
    /// with metricType.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::target_value")]
    pub target_value: Option<Quantity>,

    /// Source of the samples of the AIScaler. Default: the metrics agents for gpu_util and gpu_memory, the pods for the
    /// others. Required with metricType custom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,

    /// Scaling rates of the AIScaler. Default: those of a HorizontalPodAutoscaler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,

    /// Replicas while the metric of the AIScaler is missing. Default: the replicas stay unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// A metric of a HorizontalPodAutoscaler, as in autoscaling/v2.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.resource) == (self.type == 'Resource')")
        .message("must be set with type Resource, and only then").field_path(".resource"),
    validation = Rule::new("has(self.containerResource) == (self.type == 'ContainerResource')")
        .message("must be set with type ContainerResource, and only then").field_path(".containerResource")
)]
pub struct MetricSpec {
    /// Resource: of all containers of a pod. ContainerResource: of one container.
    #[serde(rename = "type")]
    pub kind: MetricKind,

    /// CPU or memory of all containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceMetric>,

    /// CPU or memory of one container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_resource: Option<ContainerResourceMetric>,
}

/// Type of a metric.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Resource,
    ContainerResource,
}

/// A resource of all containers of a pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceMetric {
    /// Name of the resource, such as cpu or memory.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Target value.
    pub target: MetricTarget,
}

/// A resource of one container of each pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContainerResourceMetric {
    /// Name of the resource, such as cpu or memory.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Name of the container. The engine's is `engine`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::volume_name())]
    pub container: String,

    /// Target value.
    pub target: MetricTarget,
}

/// Target value of a metric.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.averageUtilization) == (self.type == 'Utilization')")
        .message("must be set with type Utilization, and only then").field_path(".averageUtilization"),
    validation = Rule::new("has(self.averageValue) == (self.type == 'AverageValue')")
        .message("must be set with type AverageValue, and only then").field_path(".averageValue")
)]
pub struct MetricTarget {
    /// Utilization: percent of what the pods request. AverageValue: an amount per pod.
    #[serde(rename = "type")]
    pub kind: TargetKind,

    /// Percent of the request of all pods together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub average_utilization: Option<i32>,

    /// Amount per pod, such as 500m or 2Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::positive_quantity")]
    pub average_value: Option<Quantity>,
}

/// Type of a target value.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    Utilization,
    AverageValue,
}

/// Observed state. A new object has the default until the controller has processed it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InferenceEndpointStatus {
    /// Pending: there is no AIInference yet, or no pod serves and pods wait for nodes with free GPUs. Progressing: pods start
    /// or are replaced. Ready: all pods are ready. Degraded: pods serve, and others cannot start or the spec cannot be applied.
    /// Failed: it cannot serve without a change. Stopped: no pod is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::known")]
    #[schemars(with = "String", length(max = 64))]
    pub phase: Option<Phase>,

    /// URL of the Service inside the cluster: `http://service.namespace.svc:8000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub url: Option<String>,

    /// Ready pods.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub ready_replicas: i32,

    /// Wanted pods, which an autoscaler may set.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// Ready and wanted pods, as in the READY column: `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub ready: Option<String>,

    /// What the names of the spec mean: the model until spec.model changes, the rest once for each generation of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,

    /// Objects of this endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub children: Vec<Child>,

    /// Generation of the spec that this status refers to. 0 until the controller has processed the object.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,

    /// Accepted, AcceleratorResolved, InferenceReady, ScalingActive and Ready; Reconciling and Stalled only while they are
    /// True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Summary of the conditions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Progressing,
    Ready,
    Degraded,
    Failed,
    Stopped,
}

/// What the names of a spec mean.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// Generation of the spec that this was resolved for.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub generation: i64,

    /// `spec.model` that this was resolved from. Its location stays while this is the model of the spec.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub model: String,

    /// Location of the weights, as in modelSource of the AIInference.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub model_source: String,

    /// Node labels that the accelerator stands for: those that nodes had at that time, and all of them if no node had one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 512)), extend("x-kubernetes-list-type" = "atomic"))]
    pub product_labels: Vec<String>,

    /// Inference engine.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub engine: String,
}

/// An object of this endpoint.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Child {
    /// Kind.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub kind: String,

    /// Name.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,

    /// Uid.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub uid: String,
}

fn one() -> i32 {
    1
}

fn vllm() -> Engine {
    Engine::Vllm
}
