//! Refused writes of children: an ownership conflict, a quota, an admission policy.

use api::aiinference::{AIInference, Phase};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicyBinding, policy::v1::PodDisruptionBudget,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ResourceQuota, Service},
};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tests::{ask_until, simulated, wait_for, wait_until_gone, within};

use super::{change, create, is_ready, until_not_ready, until_ready};

#[tokio::test]
async fn a_foreign_deployment_of_the_same_name_is_not_changed() {
    let scene = simulated().await;
    let deployments = scene.api::<Deployment>();
    let foreign = serde_json::from_value(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "foreign"}},
            "template": {
                "metadata": {"labels": {"app": "foreign"}},
                "spec": {"containers": [{"name": "foreign", "image": "foreign:1"}]},
            },
        },
    }))
    .unwrap();
    let foreign = deployments.create(&PostParams::default(), &foreign).await.unwrap();

    create(&scene, "chat", json!({})).await;
    let inference = until_not_ready(&scene, "chat", "OwnershipConflict").await;
    assert_eq!(inference.status.as_ref().unwrap().phase, Some(Phase::Failed));
    let message = &super::condition(&inference, "Ready").unwrap().message;
    assert!(message.contains(&format!("Deployment {}/chat", scene.namespace())), "{message}");
    assert_eq!(deployments.get("chat").await.unwrap().spec, foreign.spec);
    assert!(
        scene.api::<Service>().get_opt("chat").await.unwrap().is_none(),
        "later children are not applied"
    );

    deployments.delete("chat", &DeleteParams::default()).await.unwrap();
    wait_for(&scene.api::<AIInference>(), "chat", "healed", within(), is_ready).await;
}

#[tokio::test]
async fn a_child_that_a_quota_denies_is_reported_and_created_after_the_quota_is_deleted() {
    let scene = simulated().await;
    let quotas = scene.api::<ResourceQuota>();
    let quota = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"count/deployments.apps": "0"}},
    }))
    .unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    wait_for(&quotas, "none", "enforced", within(), |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|status| status.hard.is_some())
    })
    .await;

    create(&scene, "chat", json!({})).await;
    let inference = until_not_ready(&scene, "chat", "Denied").await;
    assert_eq!(inference.status.as_ref().unwrap().phase, Some(Phase::Failed));
    let message = &super::condition(&inference, "Ready").unwrap().message;
    assert!(message.contains("exceeded quota: none"), "{message}");

    quotas.delete("none", &DeleteParams::default()).await.unwrap();
    wait_for(&scene.api::<AIInference>(), "chat", "healed", within(), is_ready).await;
}

#[tokio::test]
async fn a_deletion_that_a_policy_denies_is_reported_and_made_after_the_policy_is_deleted() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"replicas": 2})).await;
    until_ready(&scene, "chat").await;
    let budgets = scene.api::<PodDisruptionBudget>();
    let policy = format!("keep-budgets-of-{}", scene.namespace());
    let match_constraints = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace()}},
        "resourceRules": [{
            "apiGroups": ["policy"], "apiVersions": ["v1"], "resources": ["poddisruptionbudgets"],
            "operations": ["DELETE"],
        }],
    });
    for (kind, spec) in [
        (
            "ValidatingAdmissionPolicy",
            json!({
                "matchConstraints": match_constraints,
                "validations": [{"expression": "false", "message": "budgets stay here"}],
            }),
        ),
        ("ValidatingAdmissionPolicyBinding", json!({"policyName": policy, "validationActions": ["Deny"]})),
    ] {
        let api_version = "admissionregistration.k8s.io/v1";
        let object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": policy}, "spec": spec});
        scene.apply(&object.to_string()).await.unwrap();
    }
    ask_until("the policy is enforced", within(), async || {
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        match budgets.delete("chat", &dry_run).await {
            Ok(_) => Err("a deletion is allowed"),
            Err(_) => Ok(()),
        }
    })
    .await;

    change(&scene, "chat", json!({"replicas": 1, "disruption": "Allow"})).await;
    let inference = until_not_ready(&scene, "chat", "Denied").await;
    let message = &super::condition(&inference, "Ready").unwrap().message;
    let expected = format!("denies PodDisruptionBudget {}/chat", scene.namespace());
    assert!(message.contains(&expected) && message.contains("budgets stay here"), "{message}");
    assert!(budgets.get_opt("chat").await.unwrap().is_some());

    let bindings = scene.cluster_api::<ValidatingAdmissionPolicyBinding>();
    bindings.delete(&policy, &DeleteParams::default()).await.unwrap();
    wait_until_gone(&budgets, "chat", within()).await;
    until_ready(&scene, "chat").await;
}
