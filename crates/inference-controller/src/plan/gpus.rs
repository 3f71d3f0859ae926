//! Why no node has the GPUs that a pod needs, counted instead of quoted: the scheduler names no product and no number.
//! Pure.

use std::collections::BTreeSet;

use api::{
    pods::{Toleration, TolerationOperator},
    reasons,
};

use super::{
    faults::{About, Fault},
    pod::GPU_TAINT,
};
use crate::{
    observe::{NodeView, Room, is_known_label},
    validate::{Gpus, NodeLabel, ValidInference},
};

/// A cluster has a handful of products; more would make the message unreadable.
const PRODUCTS_SHOWN: usize = 8;

/// `None` if there are enough of them, as far as we see: then something else keeps the pod from a node.
pub(super) fn shortage(valid: &ValidInference, gpus: &Gpus, rooms: &[Room]) -> Option<Fault> {
    let Gpus { count, resource, products } = gpus;
    if products.iter().any(|product| !is_known_label(&product.key)) {
        return None;
    }
    let fault = |reason, message| Some(Fault { about: About::Scheduled, reason, message });
    let fitting: Vec<&Room> = rooms.iter().filter(|room| is_of(&room.node, products)).collect();
    if fitting.is_empty() && !products.is_empty() {
        let message = format!("no node has {}; found: {}", wanted(products), found(products, rooms));
        return fault(reasons::NO_SUCH_PRODUCT, message);
    }
    let tolerations = valid.pods.scheduling.as_ref().map_or(&[][..], |scheduling| &scheduling.tolerations);
    let free: Vec<i64> =
        fitting.iter().filter(|room| is_open(&room.node, tolerations)).map(|room| room.free).collect();
    let (most, all) = (free.iter().copied().max().unwrap_or_default(), free.iter().sum::<i64>());
    if most >= i64::from(*count) {
        return None;
    }
    let on = match products.as_slice() {
        [] => String::new(),
        products => {
            let values: Vec<&str> =
                products.iter().flat_map(|product| &product.values).map(String::as_str).collect();
            format!(" on {}", values.join(" or "))
        }
    };
    let spread = if all > most { format!(", at most {most} on one node") } else { String::new() };
    fault(reasons::INSUFFICIENT_GPU, format!("needs {count} {resource}{on}; free: {all}{spread}"))
}

/// Any of the products will do, and any node if there are none.
fn is_of(node: &NodeView, products: &[NodeLabel]) -> bool {
    let has = |product: &NodeLabel| {
        node.label(&product.key).is_some_and(|value| product.values.iter().any(|wanted| wanted == value))
    };
    products.is_empty() || products.iter().any(has)
}

fn is_open(node: &NodeView, tolerations: &[Toleration]) -> bool {
    node.lost().is_none() && node.taints.iter().all(|taint| is_tolerated(taint, tolerations))
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
    use crate::{tests::model, validate::validate};

    use super::*;

    fn room(product: &str, free: i64, more: &str) -> Room {
        let text =
            format!("{{metadata: {{name: a, labels: {{nvidia.com/gpu.product: {product}}}}}, {more}}}");
        Room { node: std::sync::Arc::new(serde_saphyr::from_str(&text).unwrap()), free }
    }

    fn told(gpu: &str, rooms: &[Room]) -> Option<(&'static str, String)> {
        let spec = format!("{{modelSource: s3://m, engine: vllm, gpu: {gpu}}}");
        let valid = validate(&model(&spec)).unwrap();
        let fault = shortage(&valid, valid.gpus.as_ref().unwrap(), rooms);
        fault.map(|Fault { about: _, reason, message }| (reason, message))
    }

    fn short(message: &str) -> Option<(&'static str, String)> {
        Some((reasons::INSUFFICIENT_GPU, message.to_owned()))
    }

    #[test]
    fn what_is_free_is_counted_on_nodes_of_the_product() {
        let rooms = [room("A100", 1, ""), room("H100", 8, "")];
        let needs = |gpu| told(gpu, &rooms);
        assert_eq!(needs("{count: 2, productLabel: A100}"), short("needs 2 nvidia.com/gpu on A100; free: 1"));
        assert_eq!(needs("{count: 2, productLabels: [A100, H100]}"), None, "something else is the cause");
        assert_eq!(needs("{count: 16}"), short("needs 16 nvidia.com/gpu; free: 9, at most 8 on one node"));
    }

    #[test]
    fn a_node_that_takes_no_pods_has_nothing_free() {
        let unready = "status: {conditions: [{type: Ready, status: Unknown, \
                       lastTransitionTime: '2026-01-01T00:00:00Z'}]}";
        let tainted = |key: &str| format!("spec: {{taints: [{{key: {key}, effect: NoSchedule}}]}}");
        for more in [unready, &tainted("theirs"), &tainted("node.kubernetes.io/unschedulable")] {
            assert_eq!(
                told("{count: 1}", &[room("A100", 8, more)]),
                short("needs 1 nvidia.com/gpu; free: 0")
            );
        }
        assert_eq!(told("{count: 1}", &[room("A100", 8, &tainted("nvidia.com/gpu"))]), None);
    }

    #[test]
    fn a_product_that_no_node_has_is_told_with_those_that_there_are() {
        let rooms = [room("NVIDIA-H100", 8, ""), room("NVIDIA-A100-SXM4-80GB", 8, "")];
        let message =
            "no node has nvidia.com/gpu.product=A100; found: NVIDIA-A100-SXM4-80GB, NVIDIA-H100".to_owned();
        let no_such = Some((reasons::NO_SUCH_PRODUCT, message));
        assert_eq!(told("{count: 1, productLabel: A100}", &rooms), no_such);
        let none = told("{count: 1, productLabel: A100}", &[]).unwrap().1;
        assert_eq!(none, "no node has nvidia.com/gpu.product=A100; found: none");
    }

    #[test]
    fn a_label_that_is_not_kept_is_not_judged() {
        let gpu = "{count: 99, productLabel: node.kubernetes.io/instance-type=p4d}";
        assert_eq!(told(gpu, &[room("A100", 1, "")]), None);
    }
}
