//! GPUs on nodes: how many are free, why a pod finds none, and whether it would fit in the place of another pod. Pure.
//!
//! The scheduler's messages have neither products nor numbers, so both are computed here.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::{
    pods::{
        NodeExpression, NodeOperator, PodAntiAffinity, Scheduling, Toleration, TolerationOperator,
        WhenUnsatisfiable,
    },
    reasons,
};

use crate::{
    Cause,
    faults::container::quote,
    products::{self, Excluded, INSTANCE_TYPE, NodeLabel, Products},
    views::{
        node::{NodeView, is_kept_label},
        pod::PodView,
    },
};

/// The accelerators of each pod, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpus {
    pub count: i32,
    pub resource: String,
    /// Accepted products as the spec spells them; empty accepts any product.
    pub(crate) spelled: Vec<String>,
    /// Their labels, any of which selects a node.
    pub products: Vec<NodeLabel>,
}

/// A node and its amounts of one resource.
#[derive(Clone, Debug)]
pub struct NodeCapacity {
    pub node: Arc<NodeView>,
    /// 0 if the node has none, or its device plugin does not run.
    pub allocatable: i64,
    pub free: i64,
}

/// Whether a pod would find enough GPUs if another pod were deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Fits,
    TooSmall,
    /// The answer depends on a node label that views do not keep, or on where the other pods are.
    Unknown,
}

/// Requirements of a pod: accelerators and scheduling constraints.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    pub gpus: &'a Gpus,
    pub scheduling: Option<&'a Scheduling>,
}

/// The taint that GPU operators add to nodes; every pod with GPUs tolerates it.
pub const GPU_TAINT: &str = "nvidia.com/gpu";

/// Maximum number of products of one label in a message.
const PRODUCTS_SHOWN: usize = 8;

/// The capacity of every node, sorted by name.
pub fn capacities<'a>(
    nodes: impl Iterator<Item = Arc<NodeView>>,
    pods: impl Iterator<Item = &'a PodView>,
    resource: &str,
) -> Vec<NodeCapacity> {
    let mut held: HashMap<&str, i64> = HashMap::new();
    for pod in pods {
        let amount = pod.held.of(resource);
        if amount > 0
            && let Some(node) = pod.node.as_deref()
        {
            *held.entry(node).or_default() += amount;
        }
    }
    let mut capacities: Vec<NodeCapacity> = nodes
        .map(|node| {
            let allocatable = node.allocatable.of(resource);
            let free = (allocatable - held.get(node.name()).copied().unwrap_or_default()).max(0);
            NodeCapacity { node, allocatable, free }
        })
        .collect();
    capacities.sort_by(|one, other| one.node.name().cmp(other.node.name()));
    capacities
}

impl Gpus {
    /// `spelled`: products as in a spec, `A100` or `label=value`. `resolved` adds the labels of short names.
    pub fn new<'a>(count: i32, resource: &str, spelled: impl IntoIterator<Item = &'a str>) -> Self {
        let spelled: Vec<String> = spelled.into_iter().map(str::to_owned).collect();
        Self { count, resource: resource.to_owned(), products: products::labels(&spelled), spelled }
    }

    /// With the labels of short names.
    pub fn resolved(self, products: &Products) -> Self {
        Self { products: products.labels(&self.spelled), ..self }
    }

    /// The accepted products as the spec names them, joined with `or`.
    pub fn product_names(&self) -> Option<String> {
        let labels = products::labels(&self.spelled);
        let values: Vec<&str> =
            labels.iter().flat_map(|product| &product.values).map(String::as_str).collect();
        (!values.is_empty()).then(|| values.join(" or "))
    }

    /// The accepted labels, or only the names if the labels are too many to read.
    fn wanted(&self) -> String {
        let values = self.products.iter().map(|product| product.values.len()).sum::<usize>();
        match self.product_names() {
            Some(names) if values > PRODUCTS_SHOWN => names,
            Some(_) | None => product_labels(&self.products),
        }
    }

    /// `2 nvidia.com/gpu on A100`.
    pub fn request(&self) -> String {
        let on = self.product_names().map(|names| format!(" on {names}")).unwrap_or_default();
        format!("{} {}{on}", self.count, self.resource)
    }

    fn needed(&self) -> i64 {
        i64::from(self.count)
    }
}

impl Demand<'_> {
    /// Why no node has enough free GPUs; `None` if one has, or if the labels of the products are not kept.
    pub fn shortage(&self, capacities: &[NodeCapacity]) -> Option<Cause> {
        let products = &self.gpus.products;
        if products.iter().any(|product| !is_kept_label(&product.key)) {
            return None;
        }
        let of_product: Vec<&NodeCapacity> =
            capacities.iter().filter(|capacity| is_of(&capacity.node, products)).collect();
        if of_product.is_empty() && !products.is_empty() {
            let found = found_products(products, capacities);
            let message = format!("no node has {}; found: {found}", self.gpus.wanted());
            return Some(Cause { reason: reasons::NO_SUCH_PRODUCT, message });
        }
        if of_product.iter().all(|capacity| capacity.allocatable == 0) {
            let which = if products.is_empty() { "" } else { " of this product" };
            let resource = &self.gpus.resource;
            let message = format!("needs {}; no node{which} has allocatable {resource}", self.gpus.request());
            return Some(Cause { reason: reasons::INSUFFICIENT_GPU, message });
        }
        let free: Vec<i64> = of_product
            .iter()
            .filter(|capacity| self.may_run_on(&capacity.node))
            .map(|capacity| capacity.free)
            .collect();
        let (most, all) = (free.iter().copied().max().unwrap_or_default(), free.iter().sum::<i64>());
        if most >= self.gpus.needed() {
            return None;
        }
        let spread = if all > most { format!(", at most {most} on one node") } else { String::new() };
        let message = format!("needs {}; free: {all}{spread}", self.gpus.request());
        Some(Cause { reason: reasons::INSUFFICIENT_GPU, message })
    }

    /// Whether the pod would find its GPUs on the node of `other` if `other` were deleted.
    pub fn fit_in_place_of(&self, other: &PodView, capacities: &[NodeCapacity]) -> Fit {
        let products = self.gpus.products.iter().map(|product| &product.key);
        let rules = self.node_expressions().iter().map(|rule| &rule.key);
        let mut keys = products.chain(self.node_selector().keys()).chain(rules);
        if !keys.all(|key| is_kept_label(key)) || self.depends_on_other_pods() {
            return Fit::Unknown;
        }
        let capacity = capacities.iter().find(|capacity| other.node.as_deref() == Some(capacity.node.name()));
        let fits = capacity.is_some_and(|capacity| {
            is_of(&capacity.node, &self.gpus.products)
                && self.may_run_on(&capacity.node)
                && (capacity.free + other.held.of(&self.gpus.resource)).min(capacity.allocatable)
                    >= self.gpus.needed()
        });
        if fits { Fit::Fits } else { Fit::TooSmall }
    }

    fn may_run_on(&self, node: &NodeView) -> bool {
        let tolerations = self.scheduling.map_or(&[][..], |scheduling| &scheduling.tolerations);
        let is_selected =
            |(key, value): (&String, &String)| !is_kept_label(key) || node.label(key) == Some(value);
        node.lost().is_none()
            && node.taints.iter().all(|taint| is_tolerated(taint, tolerations))
            && self.node_selector().iter().all(is_selected)
            && self.node_expressions().iter().all(|rule| !is_kept_label(&rule.key) || holds(rule, node))
    }

    /// Whether the scheduler looks at where the other pods are, which is not computed here.
    fn depends_on_other_pods(&self) -> bool {
        self.scheduling.is_some_and(|scheduling| {
            let spreads = scheduling.topology_spread.iter();
            scheduling.pod_anti_affinity == PodAntiAffinity::Required
                || spreads
                    .map(|rule| rule.when_unsatisfiable)
                    .any(|when| when == WhenUnsatisfiable::DoNotSchedule)
        })
    }

    fn node_expressions(&self) -> &[NodeExpression] {
        self.scheduling.map_or(&[], |scheduling| &scheduling.node_expressions)
    }

    fn node_selector(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.scheduling.map_or(&NONE, |scheduling| &scheduling.node_selector)
    }
}

/// Why a pod is unschedulable. `demand` is `None` for pods without GPUs. Causes other than too few GPUs are quoted from the
/// scheduler's message.
pub fn unschedulable(
    demand: Option<Demand<'_>>,
    pod: &PodView,
    capacities: Option<&[NodeCapacity]>,
) -> Option<Cause> {
    let scheduled = pod.scheduled.as_ref().filter(|_| pod.is_unschedulable())?;
    if scheduled.reason != "Unschedulable" {
        return None;
    }
    let message = quote(&scheduled.message);
    let cause = |reason, message| Some(Cause { reason, message });
    let Some(demand) = demand else { return cause(reasons::UNSCHEDULABLE, message) };
    if let Some(short) = capacities.and_then(|capacities| demand.shortage(capacities)) {
        return Some(short);
    }
    let gpus = demand.gpus;
    if pod.insufficient_resources().any(|resource| resource == gpus.resource) {
        let message = format!("needs {}; scheduler: {message}", gpus.request());
        return cause(reasons::INSUFFICIENT_GPU, message);
    }
    let is_about_labels =
        message.contains("didn't match Pod's node affinity") && pod.insufficient_resources().next().is_none();
    match gpus.product_names().filter(|_| is_about_labels) {
        Some(products) => {
            let message = format!("no node has {products}; scheduler: {message}");
            cause(reasons::NO_SUCH_PRODUCT, message)
        }
        None => cause(reasons::UNSCHEDULABLE, message),
    }
}

/// Whether a node keeps a rule about one of its labels.
fn holds(NodeExpression { key, operator, values }: &NodeExpression, node: &NodeView) -> bool {
    let label = node.label(key);
    let is_listed = || label.is_some_and(|label| values.iter().any(|value| value == label));
    let compared = || -> Option<Ordering> {
        let number = |text: &str| text.parse::<i64>().ok();
        Some(number(label?)?.cmp(&number(values.first()?)?))
    };
    match operator {
        NodeOperator::In => is_listed(),
        NodeOperator::NotIn => !is_listed(),
        NodeOperator::Exists => label.is_some(),
        NodeOperator::DoesNotExist => label.is_none(),
        NodeOperator::Gt => compared() == Some(Ordering::Greater),
        NodeOperator::Lt => compared() == Some(Ordering::Less),
    }
}

/// Whether the node has one of the products; true if none are given.
/// Whether a node has one of these labels, of those that views keep. No label is every node.
pub fn is_of(node: &NodeView, products: &[NodeLabel]) -> bool {
    let has = |product: &NodeLabel| {
        node.label(&product.key).is_some_and(|value| product.values.iter().any(|wanted| wanted == value))
            && !product.without.iter().any(|excluded| is_excluded(node, excluded))
    };
    products.is_empty() || products.iter().any(has)
}

fn is_excluded(node: &NodeView, Excluded { key, values }: &Excluded) -> bool {
    node.label(key).is_some_and(|value| values.is_empty() || values.contains(&value))
}

fn is_tolerated(taint: &str, tolerations: &[Toleration]) -> bool {
    taint == GPU_TAINT
        || tolerations.iter().any(|toleration| match &toleration.key {
            Some(key) => key == taint,
            None => toleration.operator == TolerationOperator::Exists,
        })
}

fn product_labels(products: &[NodeLabel]) -> String {
    let pairs: Vec<String> = products
        .iter()
        .flat_map(|product| product.values.iter().map(|value| format!("{}={value}", product.key)))
        .collect();
    pairs.join(" or ")
}

/// The values of the label, or of each of several labels that nodes have.
fn found_products(products: &[NodeLabel], capacities: &[NodeCapacity]) -> String {
    let found = products.iter().map(|NodeLabel { key, .. }| (key, found_values(key, capacities)));
    let found: Vec<(&String, String)> = found.filter(|(_, values)| !values.is_empty()).collect();
    match (products, found.as_slice()) {
        (_, []) => "none".to_owned(),
        ([_], [(_, values)]) => values.clone(),
        (_, found) => {
            let of_labels: Vec<String> =
                found.iter().map(|(key, values)| format!("{key}: {values}")).collect();
            of_labels.join("; ")
        }
    }
}

fn found_values(key: &str, capacities: &[NodeCapacity]) -> String {
    // Every node of a cloud has an instance type; those without GPUs are no products.
    let is_product = |capacity: &&NodeCapacity| key != INSTANCE_TYPE || capacity.allocatable > 0;
    let nodes = capacities.iter().filter(is_product);
    let values: BTreeSet<&str> = nodes.filter_map(|capacity| capacity.node.label(key)).collect();
    let more = if values.len() > PRODUCTS_SHOWN { ", …" } else { "" };
    let shown: Vec<&str> = values.into_iter().take(PRODUCTS_SHOWN).collect();
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(product: &str, free: i64, more: &str) -> NodeCapacity {
        let text =
            format!("{{metadata: {{name: a, labels: {{nvidia.com/gpu.product: {product}}}}}, {more}}}");
        NodeCapacity {
            node: std::sync::Arc::new(serde_saphyr::from_str(&text).unwrap()),
            allocatable: 8,
            free,
        }
    }

    /// A node without a running device plugin.
    fn without_plugin(product: &str) -> NodeCapacity {
        NodeCapacity { allocatable: 0, ..capacity(product, 0, "") }
    }

    fn gpus(count: i32, products: &[&str]) -> Gpus {
        Gpus::new(count, "nvidia.com/gpu", products.iter().copied())
    }

    fn shortage(gpus: &Gpus, capacities: &[NodeCapacity]) -> Option<(&'static str, String)> {
        let cause = Demand { gpus, scheduling: None }.shortage(capacities);
        cause.map(|Cause { reason, message }| (reason, message))
    }

    fn short(message: &str) -> Option<(&'static str, String)> {
        Some((reasons::INSUFFICIENT_GPU, message.to_owned()))
    }

    #[test]
    fn free_gpus_are_allocatable_minus_requested() {
        let nodes = ["b", "a", "cpu-only"].map(|name| {
            let gpus = if name == "cpu-only" { "{cpu: 4}" } else { "{cpu: 4, nvidia.com/gpu: '8'}" };
            let text = format!("{{metadata: {{name: {name}}}, status: {{allocatable: {gpus}}}}}");
            Arc::new(serde_saphyr::from_str::<NodeView>(&text).unwrap())
        });
        let pods = [holder("b", 2), holder("b", 2)];
        let capacities = capacities(nodes.into_iter(), pods.iter(), "nvidia.com/gpu");
        let free: Vec<(&str, i64)> =
            capacities.iter().map(|capacity| (capacity.node.name(), capacity.free)).collect();
        assert_eq!(free, [("a", 8), ("b", 4), ("cpu-only", 0)]);
    }

    #[test]
    fn free_gpus_are_counted_on_nodes_of_the_product() {
        let capacities = [capacity("A100", 1, ""), capacity("H100", 8, "")];
        assert_eq!(
            shortage(&gpus(2, &["A100"]), &capacities),
            short("needs 2 nvidia.com/gpu on A100; free: 1")
        );
        assert_eq!(shortage(&gpus(2, &["A100", "H100"]), &capacities), None, "something else is the cause");
        assert_eq!(
            shortage(&gpus(16, &[]), &capacities),
            short("needs 16 nvidia.com/gpu; free: 9, at most 8 on one node")
        );
    }

    #[test]
    fn gpus_of_lost_and_tainted_nodes_are_not_free() {
        let unready = "status: {conditions: [{type: Ready, status: Unknown, \
                       lastTransitionTime: '2026-01-01T00:00:00Z'}]}";
        let tainted = |key: &str| format!("spec: {{taints: [{{key: {key}, effect: NoSchedule}}]}}");
        for more in [unready, &tainted("reserved"), &tainted("node.kubernetes.io/unschedulable")] {
            assert_eq!(
                shortage(&gpus(1, &[]), &[capacity("A100", 8, more)]),
                short("needs 1 nvidia.com/gpu; free: 0")
            );
        }
        assert_eq!(shortage(&gpus(1, &[]), &[capacity("A100", 8, &tainted("nvidia.com/gpu"))]), None);
    }

    #[test]
    fn a_missing_product_is_reported_with_the_existing_ones() {
        let capacities = [capacity("NVIDIA-H100", 8, ""), capacity("NVIDIA-A100-SXM4-80GB", 8, "")];
        let message =
            "no node has nvidia.com/gpu.product=A100; found: NVIDIA-A100-SXM4-80GB, NVIDIA-H100".to_owned();
        let wanted = gpus(1, &["A100"]);
        assert_eq!(shortage(&wanted, &capacities), Some((reasons::NO_SUCH_PRODUCT, message)));
        let none = shortage(&wanted, &[]).unwrap().1;
        assert_eq!(none, "no node has nvidia.com/gpu.product=A100; found: none");
    }

    #[test]
    fn a_missing_product_is_reported_with_what_each_of_its_labels_has() {
        let node = |labels: &str, allocatable: i64| NodeCapacity {
            node: Arc::new(
                serde_saphyr::from_str(&format!("{{metadata: {{name: a, labels: {{{labels}}}}}}}")).unwrap(),
            ),
            allocatable,
            free: allocatable,
        };
        let t4 = node(
            "cloud.google.com/gke-accelerator: nvidia-tesla-t4, node.kubernetes.io/instance-type: n1",
            1,
        );
        let cpu = node("node.kubernetes.io/instance-type: e2-small", 0);
        let capacities = [capacity("Tesla-T4", 8, ""), t4, cpu];
        let wanted = |spelled: &[&str]| gpus(1, spelled).resolved(&Products::default());
        let found = "nvidia.com/gpu.product: Tesla-T4; cloud.google.com/gke-accelerator: nvidia-tesla-t4; \
                     node.kubernetes.io/instance-type: n1";
        let message = format!("no node has h200 or b200; found: {found}");
        let missing = wanted(&["h200", "b200"]);
        assert_eq!(shortage(&missing, &capacities), Some((reasons::NO_SUCH_PRODUCT, message)));
        let few =
            "no node has nvidia.com/gpu.product=l40 or nvidia.com/gpu.product=NVIDIA-L40; found: Tesla-T4";
        assert_eq!(shortage(&wanted(&["l40"]), &capacities).unwrap().1, few);
        assert_eq!(shortage(&wanted(&["h200"]), &[]).unwrap().1, "no node has h200; found: none");
        assert_eq!(shortage(&wanted(&["t4"]), &capacities), None, "two nodes of two discoveries have it");
        assert_eq!(
            shortage(&wanted(&["t4"]), &[capacity("Tesla-T4", 0, "")]),
            short("needs 1 nvidia.com/gpu on t4; free: 0")
        );
    }

    /// The labels of clouds are those of whole GPUs, too.
    #[test]
    fn a_short_name_is_no_slice_and_no_share() {
        let has = |product: &str, labels: &str| {
            let node: NodeView =
                serde_saphyr::from_str(&format!("{{metadata: {{name: a, labels: {{{labels}}}}}}}")).unwrap();
            is_of(&node, &gpus(1, &[product]).resolved(&Products::default()).products)
        };
        let g6 = "node.kubernetes.io/instance-type: g6.xlarge";
        assert!(has("l4", g6) && has("l4", &format!("{g6}, nvidia.com/gpu.product: NVIDIA-L4")));
        assert!(!has("l4", &format!("{g6}, nvidia.com/gpu.product: NVIDIA-L4-SHARED")));
        let gke = "cloud.google.com/gke-accelerator: nvidia-tesla-a100";
        assert!(has("a100", gke));
        assert!(!has("a100", &format!("{gke}, cloud.google.com/gke-gpu-partition-size: 1g.5gb")));
        assert!(!has("a100", &format!("{gke}, cloud.google.com/gke-gpu-sharing-strategy: time-sharing")));
        let karpenter = "karpenter.k8s.aws/instance-gpu-name: l4";
        assert!(has("l4", &format!("{karpenter}, karpenter.k8s.aws/instance-family: g6")));
        assert!(!has("l4", &format!("{karpenter}, karpenter.k8s.aws/instance-family: g6f")));
    }

    #[test]
    fn a_product_whose_nodes_have_no_gpus_is_not_missing() {
        let capacities = [capacity("H100", 8, ""), without_plugin("A100")];
        let message =
            "needs 1 nvidia.com/gpu on A100; no node of this product has allocatable nvidia.com/gpu";
        assert_eq!(shortage(&gpus(1, &["A100"]), &capacities), short(message));
        let message = "needs 1 nvidia.com/gpu; no node has allocatable nvidia.com/gpu";
        assert_eq!(shortage(&gpus(1, &[]), &[without_plugin("A100")]), short(message));
    }

    #[test]
    fn a_label_that_views_drop_decides_nothing() {
        let mut unknown = gpus(99, &["p4d"]);
        unknown.products[0].key = "beta.kubernetes.io/instance-type".to_owned();
        assert_eq!(shortage(&unknown, &[capacity("A100", 1, "")]), None);
        let old = holder("a", 1);
        let demand = Demand { gpus: &unknown, scheduling: None };
        assert_eq!(demand.fit_in_place_of(&old, &[capacity("A100", 99, "")]), Fit::Unknown);
    }

    fn holder(node: &str, gpus: i64) -> PodView {
        let text = format!(
            "{{metadata: {{name: old}}, spec: {{nodeName: {node}, containers: \
             [{{resources: {{requests: {{nvidia.com/gpu: '{gpus}'}}}}}}]}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    #[test]
    fn a_pod_fits_in_place_of_another_if_the_node_allows_it_and_has_enough() {
        let fits = |gpus: &Gpus, scheduling: &str, capacity: NodeCapacity, held: i64| {
            let scheduling: Scheduling = serde_saphyr::from_str(scheduling).unwrap();
            let demand = Demand { gpus, scheduling: Some(&scheduling) };
            demand.fit_in_place_of(&holder("a", held), &[capacity])
        };
        let a100 = || capacity("A100", 0, "");
        assert_eq!(fits(&gpus(1, &["A100"]), "{}", a100(), 1), Fit::Fits);
        assert_eq!(fits(&gpus(1, &["H100"]), "{}", a100(), 1), Fit::TooSmall);
        let gone = without_plugin("A100");
        assert_eq!(
            fits(&gpus(1, &["A100"]), "{}", gone, 1),
            Fit::TooSmall,
            "the GPUs of the deleted pod are not allocatable"
        );
        assert_eq!(fits(&gpus(2, &["A100"]), "{}", a100(), 1), Fit::TooSmall);
        assert_eq!(fits(&gpus(2, &["A100"]), "{}", capacity("A100", 1, ""), 1), Fit::Fits);
        let tainted = capacity("A100", 0, "spec: {taints: [{key: reserved, effect: NoSchedule}]}");
        assert_eq!(fits(&gpus(1, &[]), "{}", tainted, 1), Fit::TooSmall);
        assert_eq!(fits(&gpus(1, &[]), "{nodeSelector: {disk: fast}}", a100(), 1), Fit::TooSmall);
        let unknown = "{nodeSelector: {kubernetes.io/os: linux}}";
        assert_eq!(fits(&gpus(1, &[]), unknown, a100(), 1), Fit::Unknown);
        for (rule, fit) in [
            ("{key: nvidia.com/gpu.product, operator: In, values: [A100]}", Fit::Fits),
            ("{key: nvidia.com/gpu.product, operator: NotIn, values: [A100]}", Fit::TooSmall),
            ("{key: disk, operator: DoesNotExist}", Fit::Fits),
            ("{key: disk, operator: Exists}", Fit::TooSmall),
            ("{key: disk, operator: Gt, values: ['3']}", Fit::TooSmall),
            ("{key: kubernetes.io/os, operator: In, values: [linux]}", Fit::Unknown),
        ] {
            let scheduling = format!("{{nodeExpressions: [{rule}]}}");
            assert_eq!(fits(&gpus(1, &[]), &scheduling, a100(), 1), fit, "{rule}");
        }
        let zones = |when: &str| {
            format!(
                "{{topologySpread: [{{topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: {when}}}]}}"
            )
        };
        assert_eq!(fits(&gpus(1, &[]), &zones("DoNotSchedule"), a100(), 1), Fit::Unknown);
        assert_eq!(fits(&gpus(1, &[]), &zones("ScheduleAnyway"), a100(), 1), Fit::Fits);
        for (kind, fit) in [("Required", Fit::Unknown), ("Preferred", Fit::Fits)] {
            let scheduling = format!("{{podAntiAffinity: {kind}}}");
            assert_eq!(fits(&gpus(1, &[]), &scheduling, a100(), 1), fit);
        }
    }

    #[test]
    fn a_rule_about_a_number_compares_numbers() {
        let node: NodeView = serde_saphyr::from_str("{metadata: {name: a, labels: {memory: '80'}}}").unwrap();
        for (operator, value, expected) in
            [("Gt", "9", true), ("Gt", "80", false), ("Lt", "100", true), ("Lt", "x", false)]
        {
            let rule = format!("{{key: memory, operator: {operator}, values: ['{value}']}}");
            assert_eq!(holds(&serde_saphyr::from_str(&rule).unwrap(), &node), expected, "{rule}");
        }
    }

    fn placement(message: &str) -> &'static str {
        let pod: PodView = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "new", "labels": {
                api::labels::MANAGED_BY: "a-controller", api::labels::NAME: "a", api::labels::INSTANCE: "b",
            }},
            "status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            }]},
        }))
        .unwrap();
        let gpus = gpus(2, &["A100"]);
        unschedulable(Some(Demand { gpus: &gpus, scheduling: None }), &pod, None).unwrap().reason
    }

    #[test]
    fn the_schedulers_message_is_mapped_to_a_reason() {
        assert_eq!(
            placement(
                "0/4 nodes are available: 2 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector."
            ),
            reasons::INSUFFICIENT_GPU
        );
        assert_eq!(
            placement("0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector."),
            reasons::NO_SUCH_PRODUCT
        );
        assert_eq!(placement("0/4 nodes are available: 4 Insufficient cpu."), reasons::UNSCHEDULABLE);
    }
}
