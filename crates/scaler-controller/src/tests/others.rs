//! Other autoscalers of a target, and other workloads whose pods its selector matches.

use std::sync::Arc;

use api::aiscaler::AIScaler;
use fake_api::ScriptedApi;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ApiResource;
use runtime::{polling::Polled, write::scale::Scaled};
use serde_json::{Value, json};

use super::{
    Context, OLD, Prometheus, context, is_twelve, now, of_deployment, put_deployment, query, reconcile,
    secret, stored_scaler,
};
use crate::{
    collect,
    observe::{Target, observe},
    target::other_kinds::ScaleRead,
    target::{Reference, Scalable},
};

fn hpa() -> Value {
    json!({
        "metadata": {"name": "chat", "namespace": "demo", "uid": "h", "resourceVersion": "6"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}},
    })
}

fn answers(ctx: &Context, scaler: &AIScaler) -> usize {
    ctx.samples.of(scaler.metadata.uid.as_deref().unwrap()).answers.len()
}

#[tokio::test]
async fn an_object_that_gives_way_is_not_read_until_the_other_goes() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    put_deployment(&api, &ctx, 2, json!({}));
    secret(&api, "demo", "token", OLD);
    let scaler = stored_scaler(&api, &ctx, of_deployment(query(server.address)));
    collect::read(&ctx, &scaler, now()).await;
    assert_eq!((server.requests(), answers(&ctx, &scaler)), (1, 1));
    let other: crate::target::contender::HpaView = serde_json::from_value(hpa()).unwrap();
    ctx.hpas.upsert(other.clone());
    assert_eq!(collect::read(&ctx, &scaler, now()).await, Polled::Unchanged);
    assert_eq!((server.requests(), answers(&ctx, &scaler)), (1, 0), "and what it has read is out of date");
    ctx.hpas.remove(&other.metadata);
    collect::read(&ctx, &scaler, now()).await;
    assert!(is_twelve(&ctx, &scaler));
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn an_object_that_is_paused_is_not_read_and_one_on_trial_is() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    put_deployment(&api, &ctx, 2, json!({}));
    secret(&api, "demo", "token", OLD);
    let read = async |more: (&str, Value)| {
        let mut spec = of_deployment(query(server.address));
        spec[more.0] = more.1;
        let scaler = stored_scaler(&api, &ctx, spec);
        collect::read(&ctx, &scaler, now()).await;
        server.requests()
    };
    assert_eq!(read(("paused", json!(true))).await, 0);
    ctx.hpas.upsert(serde_json::from_value(hpa()).unwrap());
    assert_eq!(read(("mode", json!("DryRun"))).await, 1, "beside another autoscaler");
}

/// A pod that is Ready, of a ReplicaSet with this name.
fn put_pod(ctx: &Context, name: &str, replica_set: &str) {
    let hash = replica_set.rsplit_once('-').unwrap().1;
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "uid": replica_set, "controller": true});
    let pod = json!({
        "metadata": {"name": name, "namespace": "demo", "uid": name, "resourceVersion": "1",
                     "labels": {"app": "chat", "pod-template-hash": hash}, "ownerReferences": [owner]},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    ctx.pods.upsert(serde_json::from_value(pod).unwrap());
}

#[tokio::test]
async fn the_pods_of_another_deployment_do_not_count_although_the_selector_matches_them() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    put_deployment(&api, &ctx, 2, json!({}));
    let neighbour = json!({
        "metadata": {"name": "neighbour", "namespace": "demo", "uid": "n", "resourceVersion": "5"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "chat"}}},
    });
    ctx.deployments.upsert(serde_json::from_value::<Scalable<Deployment>>(neighbour).unwrap());
    for (pod, replica_set) in [
        ("chat-a", "chat-5d4f"),
        // Of a rollout.
        ("chat-b", "chat-77c9"),
        ("neighbour-a", "neighbour-5d4f"),
        ("neighbour-b", "neighbour-5d4f"),
        // Nothing says whose they are.
        ("gone-a", "gone-5d4f"),
    ] {
        put_pod(&ctx, pod, replica_set);
    }
    let scaler = stored_scaler(&api, &ctx, json!({"deploymentName": "chat"}));
    let Target::Found(found) = observe(&ctx, &scaler, now()).target else { panic!("it is there") };
    let names: Vec<&str> =
        found.pods.iter().flatten().map(|pod| pod.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["chat-a", "chat-b", "gone-a"]);
    assert_eq!(found.foreign.as_deref(), Some("Deployment neighbour"));
    reconcile(&ctx, Arc::clone(&scaler), now()).await.unwrap();
}

#[tokio::test]
async fn the_pods_of_an_operator_count_whose_deployment_no_object_controls() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    let target = json!({"apiVersion": "example.com/v1", "kind": "Pool", "name": "chat"});
    let scaler = stored_scaler(&api, &ctx, json!({"targetRef": target}));
    let (reference, uid) = (Reference::of(&scaler.spec), scaler.metadata.uid.as_deref().unwrap());
    let resource = ApiResource {
        group: "example.com".into(),
        version: "v1".into(),
        api_version: "example.com/v1".into(),
        kind: "Pool".into(),
        plural: "pools".into(),
    };
    let scaled = Scaled {
        uid: "pool".into(),
        version: "1".into(),
        replicas: 2,
        status_replicas: 2,
        selector: "app=chat".into(),
    };
    ctx.samples.note_read_scale(uid, &reference, ScaleRead::Found { resource, scaled }, None);
    put_pod(&ctx, "chat-a", "chat-5d4f");
    let owner = |uid: &str| json!({"apiVersion": "example.com/v1", "kind": "Pool", "name": "p", "uid": uid, "controller": false});
    for owners in [json!([owner("pool")]), json!([])] {
        let deployment = json!({
            "metadata": {"name": "chat", "namespace": "demo", "uid": "d", "resourceVersion": "5", "ownerReferences": owners},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "chat"}}},
        });
        ctx.deployments.upsert(serde_json::from_value::<Scalable<Deployment>>(deployment).unwrap());
        let Target::Found(found) = observe(&ctx, &scaler, now()).target else { panic!("it was read") };
        assert_eq!((found.pods.map(|pods| pods.len()), found.foreign), (Some(1), None), "{owners}");
    }
}
