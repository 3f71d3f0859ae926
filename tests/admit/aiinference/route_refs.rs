//! What the API server makes of `spec.routeRef` with names and a status.

use api::aiinference::AIInference;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::table::{api, message};

fn named(name: &str) -> DynamicObject {
    let spec = json!({
        "modelSource": "s3://models", "engine": "vllm", "gpu": {"count": 1}, "routeRef": {"name": "web"},
        "canary": {"image": "engine:2", "weightPercent": 30},
    });
    DynamicObject::new(name, &ApiResource::erase::<AIInference>(&())).data(json!({"spec": spec}))
}

#[tokio::test]
async fn the_name_leaves_room_for_the_candidates_service() {
    let scene = tests::api_server().await;
    let objects = api::<AIInference>(scene.client(), scene.namespace());
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let long = objects.create(&dry_run, &named(&"n".repeat(57))).await.map_err(message).unwrap_err();
    assert!(long.contains("spec.routeRef: ") && long.contains("more than 56 characters"), "{long}");
    objects.create(&dry_run, &named(&"n".repeat(56))).await.unwrap();
}

/// Also after the canary has ended in the status: the weights could not be written yet.
#[tokio::test]
async fn a_reference_stays_while_the_route_gives_the_candidate_requests() {
    let scene = tests::api_server().await;
    let objects = api::<AIInference>(scene.client(), scene.namespace());
    objects.create(&PostParams::default(), &named("chat")).await.unwrap();
    let params = PatchParams::default();
    let has = async |phase: &str, share: i32| {
        let canary = json!({"phase": phase, "weightPercent": share});
        let status = Patch::Merge(json!({"status": {"canary": canary}}));
        objects.patch_status("chat", &params, &status).await.map(drop).map_err(message)
    };
    let change = async |spec: Value| {
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let changed = objects.patch("chat", &dry_run, &Patch::Merge(json!({"spec": spec}))).await;
        changed.map(drop).map_err(message)
    };
    let (removed, another) = (json!({"routeRef": null, "canary": null}), json!({"routeRef": {"name": "b"}}));
    for (phase, share, is_refused) in [
        ("Analysing", 0, true),
        ("Aborted", 30, true),
        ("Promoted", 30, true),
        ("Aborted", 0, false),
        ("RolledBack", 0, false),
    ] {
        has(phase, share).await.unwrap();
        for spec in [&removed, &another] {
            let refused = change(spec.clone()).await.err().unwrap_or_default();
            let is_right = refused.contains("must not change while the candidate has a share");
            assert_eq!(is_right, is_refused, "{phase} {share}: {spec}: {refused}");
        }
    }
}
