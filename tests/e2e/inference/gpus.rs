//! Free GPUs are counted for the message about missing ones.

use api::{aiinference::AIInference, conditions};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::json;
use tests::{Scene, controller, fresh_name, start, tools, wait_for, within};

use super::{change, condition, create, until_not_ready, until_ready};

#[tokio::test]
async fn gpus_of_other_pods_are_not_free_until_those_pods_end() {
    let pool = NodePool { count: 3, gpus: 4, products: vec!["A100".to_owned()], without_gpus: 0 };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), pool)).await;
    cluster.start_controller(&controller("inference-controller")).await.unwrap();
    let scene = Scene::new(&cluster).await;
    create(&scene, "first", json!({"replicas": 3, "gpu": {"count": 3}})).await;
    until_ready(&scene, "first").await;

    let late = json!({"gpu": {"count": 2, "productLabel": "A100"}});
    create(&scene, "late", late).await;
    until_not_ready(&scene, "late", "InsufficientGPU").await;
    // The watch may deliver the unschedulable pod before the scheduled one.
    let counted = "needs 2 nvidia.com/gpu on A100; free: 3, at most 1 on one node";
    wait_for(&scene.api::<AIInference>(), "late", counted, within(), |inference: &AIInference| {
        condition(inference, conditions::SCHEDULED).is_some_and(|scheduled| scheduled.message == counted)
    })
    .await;
    change(&scene, "first", json!({"replicas": 2})).await;
    until_ready(&scene, "late").await;
}
