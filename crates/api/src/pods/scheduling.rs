//! On which nodes pods run.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{self, rules};

/// Constraints on the nodes of pods.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels that a node must have, at most 16. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::node_selector")]
    pub node_selector: BTreeMap<String, String>,

    /// Tolerations of the pods, at most 16. Pods with GPUs always tolerate `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,

    /// PriorityClass of the pods. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub priority_class_name: Option<String>,

    /// RuntimeClass of the pods, such as `nvidia`. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub runtime_class_name: Option<String>,

    /// Scheduler of the pods. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = rules::object_name())]
    pub scheduler_name: Option<String>,

    /// Rules about the labels of a node, at most 16, all of which must hold. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub node_expressions: Vec<NodeExpression>,

    /// How the pods of this object are spread, at most 4 rules. Default: as the scheduler does it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 4),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["topologyKey"])
    )]
    pub topology_spread: Vec<TopologySpread>,

    /// Whether two pods of this object may run on one node. None: they may. Preferred: only where no other node has room.
    /// Required: never; during a rollout, an old and a new pod may. Default: None.
    #[serde(default, skip_serializing_if = "PodAntiAffinity::is_none")]
    #[schemars(extend("default" = "None"))]
    pub pod_anti_affinity: PodAntiAffinity,
}

/// A rule about a label of a node, as in the node affinity of a pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || size(self.values) == 0 : \
         has(self.values) && (self.operator in ['In', 'NotIn'] ? size(self.values) >= 1 : size(self.values) == 1)"
    )
    .message("must have at least one value for In and NotIn, one for Gt and Lt, and none for Exists and DoesNotExist")
    .field_path(".values"),
    validation = Rule::new(
        "!(self.operator in ['Gt', 'Lt']) || !has(self.values) || self.values.all(v, v.matches(r'^-?[0-9]{1,18}$'))"
    )
    .message("must be a whole number for Gt and Lt").field_path(".values")
)]
pub struct NodeExpression {
    /// Key of the label.
    #[schemars(length(min = 1, max = 317))]
    #[x_kube(validation = rules::label_key())]
    pub key: String,

    /// In, NotIn: the value is, or is not, one of values. Exists, DoesNotExist: the label is there, or is not. Gt, Lt: the value
    /// is a number above, or below, the one in values.
    pub operator: NodeOperator,

    /// Values, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

/// How the pods of an object are spread over the domains of a topology, as in a pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// Label of nodes whose values are the domains, such as topology.kubernetes.io/zone.
    #[schemars(length(min = 1, max = 317))]
    #[x_kube(validation = rules::label_key())]
    pub topology_key: String,

    /// How many pods one domain may have more than another. Default: 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_skew: i32,

    /// DoNotSchedule: a pod waits for a node that keeps the rule. ScheduleAnyway: nodes that keep it are preferred. Default:
    /// DoNotSchedule.
    #[serde(default)]
    pub when_unsatisfiable: WhenUnsatisfiable,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenUnsatisfiable {
    #[default]
    DoNotSchedule,
    ScheduleAnyway,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodAntiAffinity {
    #[default]
    None,
    Preferred,
    Required,
}

impl PodAntiAffinity {
    fn is_none(&self) -> bool {
        *self == PodAntiAffinity::None
    }
}

/// A toleration, as in a pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.key) || self.operator == 'Exists'")
        .message("operator must be Exists when key is not set").field_path(".operator"),
    validation = Rule::new("self.operator == 'Equal' || !has(self.value)")
        .message("must not be set with operator Exists").field_path(".value")
)]
pub struct Toleration {
    /// Key of the taint. Without a key, operator must be Exists, and every taint is tolerated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,

    /// Equal: tolerates taints with this value. Exists: tolerates any value. Default: Equal.
    #[serde(default)]
    pub operator: TolerationOperator,

    /// Value of the taint, with operator Equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,

    /// Effect of the taint. Default: every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,

    /// Seconds until the pod is evicted after a NoExecute taint was added. Default: no eviction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31536000))]
    pub toleration_seconds: Option<i64>,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TolerationOperator {
    #[default]
    Equal,
    Exists,
}

#[derive(Serialize, Deserialize, schemars::JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

fn one() -> i32 {
    1
}
