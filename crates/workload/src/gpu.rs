//! GPUs on nodes: how many are free, why a pod finds none, and whether it would fit if others were given back. Pure.
//!
//! The scheduler names no product and no number, so both are counted here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use api::{
    pods::{Scheduling, Toleration, TolerationOperator},
    reasons,
};

use crate::{
    Cause,
    container::quote,
    node::{NodeView, is_known_label},
    pod::PodView,
};

/// The accelerators of each pod; there is at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpus {
    pub count: i32,
    pub resource: String,
    /// Any of these; none: any product.
    pub products: Vec<NodeLabel>,
}

/// One node label and the values of it that are accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLabel {
    pub key: String,
    pub values: Vec<String>,
}

/// A node and how much of one resource it offers.
#[derive(Clone, Debug)]
pub struct Room {
    pub node: Arc<NodeView>,
    /// 0 on a node without it, and on one whose device plugin does not run.
    pub offered: i64,
    pub free: i64,
}

/// Whether a pod would have enough GPUs in the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Fits,
    TooSmall,
    /// A node label that decides is not kept.
    Unknown,
}

/// What a pod asks of its node: accelerators, and where it may run.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    pub gpus: &'a Gpus,
    pub scheduling: Option<&'a Scheduling>,
}

/// What GPU operators taint their nodes with; every pod with GPUs tolerates it.
pub const GPU_TAINT: &str = "nvidia.com/gpu";

/// A cluster has a handful of products; more would make the message unreadable.
const PRODUCTS_SHOWN: usize = 8;

/// Of every node, in the order of their names.
pub fn rooms<'a>(
    nodes: impl Iterator<Item = Arc<NodeView>>,
    pods: impl Iterator<Item = &'a PodView>,
    resource: &str,
) -> Vec<Room> {
    let mut held: HashMap<&str, i64> = HashMap::new();
    for pod in pods {
        let amount = pod.held.of(resource);
        if amount > 0
            && let Some(node) = pod.node.as_deref()
        {
            *held.entry(node).or_default() += amount;
        }
    }
    let mut rooms: Vec<Room> = nodes
        .map(|node| {
            let offered = node.allocatable.of(resource);
            let free = (offered - held.get(node.name()).copied().unwrap_or_default()).max(0);
            Room { node, offered, free }
        })
        .collect();
    rooms.sort_by(|one, other| one.node.name().cmp(other.node.name()));
    rooms
}

impl Gpus {
    /// The products, as users write them.
    pub fn product_names(&self) -> Option<String> {
        let values: Vec<&str> =
            self.products.iter().flat_map(|product| &product.values).map(String::as_str).collect();
        (!values.is_empty()).then(|| values.join(" or "))
    }

    /// `2 nvidia.com/gpu on A100`.
    pub fn wanted(&self) -> String {
        let on = self.product_names().map(|names| format!(" on {names}")).unwrap_or_default();
        format!("{} {}{on}", self.count, self.resource)
    }

    fn needed(&self) -> i64 {
        i64::from(self.count)
    }
}

impl Demand<'_> {
    /// `None` if enough GPUs are free, as far as is known: then something else keeps the pod from a node.
    pub fn shortage(&self, rooms: &[Room]) -> Option<Cause> {
        let products = &self.gpus.products;
        if products.iter().any(|product| !is_known_label(&product.key)) {
            return None;
        }
        let of_product: Vec<&Room> = rooms.iter().filter(|room| is_of(&room.node, products)).collect();
        if of_product.is_empty() && !products.is_empty() {
            let message = format!("no node has {}; found: {}", wanted(products), found(products, rooms));
            return Some(Cause { reason: reasons::NO_SUCH_PRODUCT, message });
        }
        if of_product.iter().all(|room| room.offered == 0) {
            let of_it = if products.is_empty() { "" } else { " of it" };
            let resource = &self.gpus.resource;
            let message = format!("needs {}; no node{of_it} offers {resource}", self.gpus.wanted());
            return Some(Cause { reason: reasons::INSUFFICIENT_GPU, message });
        }
        let free: Vec<i64> =
            of_product.iter().filter(|room| self.may_run_on(&room.node)).map(|room| room.free).collect();
        let (most, all) = (free.iter().copied().max().unwrap_or_default(), free.iter().sum::<i64>());
        if most >= self.gpus.needed() {
            return None;
        }
        let spread = if all > most { format!(", at most {most} on one node") } else { String::new() };
        let message = format!("needs {}; free: {all}{spread}", self.gpus.wanted());
        Some(Cause { reason: reasons::INSUFFICIENT_GPU, message })
    }

    /// Whether the pod would find its GPUs if `other` gave its own back.
    pub fn fit_instead_of(&self, other: &PodView, rooms: &[Room]) -> Fit {
        let mut keys =
            self.gpus.products.iter().map(|product| &product.key).chain(self.node_selector().keys());
        if !keys.all(|key| is_known_label(key)) {
            return Fit::Unknown;
        }
        let room = rooms.iter().find(|room| other.node.as_deref() == Some(room.node.name()));
        let fits = room.is_some_and(|room| {
            is_of(&room.node, &self.gpus.products)
                && self.may_run_on(&room.node)
                && (room.free + other.held.of(&self.gpus.resource)).min(room.offered) >= self.gpus.needed()
        });
        if fits { Fit::Fits } else { Fit::TooSmall }
    }

    fn may_run_on(&self, node: &NodeView) -> bool {
        let tolerations = self.scheduling.map_or(&[][..], |scheduling| &scheduling.tolerations);
        let is_selected =
            |(key, value): (&String, &String)| !is_known_label(key) || node.label(key) == Some(value);
        node.lost().is_none()
            && node.taints.iter().all(|taint| is_tolerated(taint, tolerations))
            && self.node_selector().iter().all(is_selected)
    }

    fn node_selector(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.scheduling.map_or(&NONE, |scheduling| &scheduling.node_selector)
    }
}

/// Why no node takes a pod; `demand`: `None` without GPUs. What is not counted as too few GPUs, because something else is
/// wrong, or because the scheduler knows more, is said in the scheduler's words.
pub fn unplaced(demand: Option<Demand<'_>>, pod: &PodView, rooms: Option<&[Room]>) -> Option<Cause> {
    let scheduled = pod.scheduled.as_ref().filter(|_| pod.is_unschedulable())?;
    if scheduled.reason != "Unschedulable" {
        return None;
    }
    let said = quote(&scheduled.message);
    let cause = |reason, message| Some(Cause { reason, message });
    let Some(demand) = demand else { return cause(reasons::UNSCHEDULABLE, said) };
    if let Some(short) = rooms.and_then(|rooms| demand.shortage(rooms)) {
        return Some(short);
    }
    let gpus = demand.gpus;
    if pod.lacks().any(|resource| resource == gpus.resource) {
        let message = format!("needs {}; the scheduler says: {said}", gpus.wanted());
        return cause(reasons::INSUFFICIENT_GPU, message);
    }
    let is_about_labels = said.contains("didn't match Pod's node affinity") && pod.lacks().next().is_none();
    match gpus.product_names().filter(|_| is_about_labels) {
        Some(products) => {
            let message = format!("no node has {products}; the scheduler says: {said}");
            cause(reasons::NO_SUCH_PRODUCT, message)
        }
        None => cause(reasons::UNSCHEDULABLE, said),
    }
}

/// Any of the products is accepted, and any node if there are none.
fn is_of(node: &NodeView, products: &[NodeLabel]) -> bool {
    let has = |product: &NodeLabel| {
        node.label(&product.key).is_some_and(|value| product.values.iter().any(|wanted| wanted == value))
    };
    products.is_empty() || products.iter().any(has)
}

fn is_tolerated(taint: &str, tolerations: &[Toleration]) -> bool {
    taint == GPU_TAINT
        || tolerations.iter().any(|toleration| match &toleration.key {
            Some(key) => key == taint,
            None => toleration.operator == TolerationOperator::Exists,
        })
}

fn wanted(products: &[NodeLabel]) -> String {
    let pairs: Vec<String> = products
        .iter()
        .flat_map(|product| product.values.iter().map(|value| format!("{}={value}", product.key)))
        .collect();
    pairs.join(" or ")
}

fn found(products: &[NodeLabel], rooms: &[Room]) -> String {
    let values: BTreeSet<&str> = rooms
        .iter()
        .flat_map(|room| products.iter().filter_map(|product| room.node.label(&product.key)))
        .collect();
    if values.is_empty() {
        return "none".to_owned();
    }
    let more = if values.len() > PRODUCTS_SHOWN { ", …" } else { "" };
    let shown: Vec<&str> = values.into_iter().take(PRODUCTS_SHOWN).collect();
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(product: &str, free: i64, more: &str) -> Room {
        let text =
            format!("{{metadata: {{name: a, labels: {{nvidia.com/gpu.product: {product}}}}}, {more}}}");
        Room { node: std::sync::Arc::new(serde_saphyr::from_str(&text).unwrap()), offered: 8, free }
    }

    /// On which the device plugin does not run.
    fn without_plugin(product: &str) -> Room {
        Room { offered: 0, ..room(product, 0, "") }
    }

    fn gpus(count: i32, products: &[&str]) -> Gpus {
        let values = products.iter().map(|&product| product.to_owned()).collect();
        let label = NodeLabel { key: api::labels::NVIDIA_GPU_PRODUCT.to_owned(), values };
        let products = if products.is_empty() { Vec::new() } else { vec![label] };
        Gpus { count, resource: "nvidia.com/gpu".to_owned(), products }
    }

    fn shortage(gpus: &Gpus, rooms: &[Room]) -> Option<(&'static str, String)> {
        let cause = Demand { gpus, scheduling: None }.shortage(rooms);
        cause.map(|Cause { reason, message }| (reason, message))
    }

    fn short(message: &str) -> Option<(&'static str, String)> {
        Some((reasons::INSUFFICIENT_GPU, message.to_owned()))
    }

    #[test]
    fn free_is_what_no_pod_holds() {
        let nodes = ["b", "a", "cpu-only"].map(|name| {
            let gpus = if name == "cpu-only" { "{cpu: 4}" } else { "{cpu: 4, nvidia.com/gpu: '8'}" };
            let text = format!("{{metadata: {{name: {name}}}, status: {{allocatable: {gpus}}}}}");
            Arc::new(serde_saphyr::from_str::<NodeView>(&text).unwrap())
        });
        let pods = [holder("b", 2), holder("b", 2)];
        let rooms = rooms(nodes.into_iter(), pods.iter(), "nvidia.com/gpu");
        let free: Vec<(&str, i64)> = rooms.iter().map(|room| (room.node.name(), room.free)).collect();
        assert_eq!(free, [("a", 8), ("b", 4), ("cpu-only", 0)]);
    }

    #[test]
    fn what_is_free_is_counted_on_nodes_of_the_product() {
        let rooms = [room("A100", 1, ""), room("H100", 8, "")];
        assert_eq!(shortage(&gpus(2, &["A100"]), &rooms), short("needs 2 nvidia.com/gpu on A100; free: 1"));
        assert_eq!(shortage(&gpus(2, &["A100", "H100"]), &rooms), None, "something else is the cause");
        assert_eq!(
            shortage(&gpus(16, &[]), &rooms),
            short("needs 16 nvidia.com/gpu; free: 9, at most 8 on one node")
        );
    }

    #[test]
    fn a_node_that_takes_no_pods_has_nothing_free() {
        let unready = "status: {conditions: [{type: Ready, status: Unknown, \
                       lastTransitionTime: '2026-01-01T00:00:00Z'}]}";
        let tainted = |key: &str| format!("spec: {{taints: [{{key: {key}, effect: NoSchedule}}]}}");
        for more in [unready, &tainted("theirs"), &tainted("node.kubernetes.io/unschedulable")] {
            assert_eq!(
                shortage(&gpus(1, &[]), &[room("A100", 8, more)]),
                short("needs 1 nvidia.com/gpu; free: 0")
            );
        }
        assert_eq!(shortage(&gpus(1, &[]), &[room("A100", 8, &tainted("nvidia.com/gpu"))]), None);
    }

    #[test]
    fn a_product_that_no_node_has_is_named_with_those_that_exist() {
        let rooms = [room("NVIDIA-H100", 8, ""), room("NVIDIA-A100-SXM4-80GB", 8, "")];
        let message =
            "no node has nvidia.com/gpu.product=A100; found: NVIDIA-A100-SXM4-80GB, NVIDIA-H100".to_owned();
        let wanted = gpus(1, &["A100"]);
        assert_eq!(shortage(&wanted, &rooms), Some((reasons::NO_SUCH_PRODUCT, message)));
        let none = shortage(&wanted, &[]).unwrap().1;
        assert_eq!(none, "no node has nvidia.com/gpu.product=A100; found: none");
    }

    #[test]
    fn a_product_whose_nodes_offer_no_gpus_exists_all_the_same() {
        let rooms = [room("H100", 8, ""), without_plugin("A100")];
        let message = "needs 1 nvidia.com/gpu on A100; no node of it offers nvidia.com/gpu";
        assert_eq!(shortage(&gpus(1, &["A100"]), &rooms), short(message));
        let message = "needs 1 nvidia.com/gpu; no node offers nvidia.com/gpu";
        assert_eq!(shortage(&gpus(1, &[]), &[without_plugin("A100")]), short(message));
    }

    #[test]
    fn a_label_that_is_not_kept_is_not_judged() {
        let mut unknown = gpus(99, &["p4d"]);
        unknown.products[0].key = "beta.kubernetes.io/instance-type".to_owned();
        assert_eq!(shortage(&unknown, &[room("A100", 1, "")]), None);
        let old = holder("a", 1);
        let demand = Demand { gpus: &unknown, scheduling: None };
        assert_eq!(demand.fit_instead_of(&old, &[room("A100", 99, "")]), Fit::Unknown);
    }

    fn holder(node: &str, gpus: i64) -> PodView {
        let text = format!(
            "{{metadata: {{name: old}}, spec: {{nodeName: {node}, containers: \
             [{{resources: {{requests: {{nvidia.com/gpu: '{gpus}'}}}}}}]}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    #[test]
    fn a_pod_fits_instead_of_another_only_where_it_may_run_and_finds_enough() {
        let fits = |gpus: &Gpus, scheduling: &str, room: Room, held: i64| {
            let scheduling: Scheduling = serde_saphyr::from_str(scheduling).unwrap();
            let demand = Demand { gpus, scheduling: Some(&scheduling) };
            demand.fit_instead_of(&holder("a", held), &[room])
        };
        let a100 = || room("A100", 0, "");
        assert_eq!(fits(&gpus(1, &["A100"]), "{}", a100(), 1), Fit::Fits);
        assert_eq!(fits(&gpus(1, &["H100"]), "{}", a100(), 1), Fit::TooSmall);
        let gone = without_plugin("A100");
        assert_eq!(
            fits(&gpus(1, &["A100"]), "{}", gone, 1),
            Fit::TooSmall,
            "what it holds cannot be given again"
        );
        assert_eq!(fits(&gpus(2, &["A100"]), "{}", a100(), 1), Fit::TooSmall);
        assert_eq!(fits(&gpus(2, &["A100"]), "{}", room("A100", 1, ""), 1), Fit::Fits);
        let tainted = room("A100", 0, "spec: {taints: [{key: theirs, effect: NoSchedule}]}");
        assert_eq!(fits(&gpus(1, &[]), "{}", tainted, 1), Fit::TooSmall);
        assert_eq!(fits(&gpus(1, &[]), "{nodeSelector: {disk: fast}}", a100(), 1), Fit::TooSmall);
        let unknown = "{nodeSelector: {kubernetes.io/os: linux}}";
        assert_eq!(fits(&gpus(1, &[]), unknown, a100(), 1), Fit::Unknown);
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
        unplaced(Some(Demand { gpus: &gpus, scheduling: None }), &pod, None).unwrap().reason
    }

    #[test]
    fn the_schedulers_words_become_a_reason() {
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
