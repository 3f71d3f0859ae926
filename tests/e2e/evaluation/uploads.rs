//! Uploads of answers on simulated nodes, where the store is whatever the fate of the pods says.

use api::{
    aiinference::evaluation::{ModelEvaluation, Phase},
    conditions, reasons,
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    batch::v1::Job,
    core::v1::PersistentVolumeClaim,
};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tests::{
    ask_until,
    inference::evaluation::{condition, create, fate, of_endpoints, until_reason},
    simulated, wait_for, wait_until_gone, within,
};

#[tokio::test]
async fn the_answers_are_uploaded_after_the_verdict_and_then_the_evaluation_may_go() {
    let scene = simulated().await;
    let output = json!({"uri": "s3://evaluations/chat"});
    create(&scene, "chat", of_endpoints(json!({"output": output}))).await;
    let job = wait_for(&scene.api::<Job>(), "chat-answers", "there", within(), |_: &Job| true).await;
    let done = until_reason(&scene, "chat", conditions::UPLOADED, reasons::UPLOADED).await;
    let (uid, status) = (done.metadata.uid.clone().unwrap(), done.status.clone().unwrap());
    assert_eq!((status.phase, status.verdict.as_deref()), (Some(Phase::Succeeded), Some("Passed")));
    let uri = format!("s3://evaluations/chat/{uid}");
    let said = &condition(&done, conditions::UPLOADED).unwrap().message;
    assert_eq!(said, &format!("2 files, 2048 bytes, to {uri}"));
    assert_eq!(status.artifacts[0].uri, format!("{uri}/SHA256SUMS"));
    let pod = job.spec.unwrap().template.spec.unwrap();
    let args = pod.containers[0].args.clone().unwrap();
    assert_eq!(args, ["push".to_owned(), format!("/evaluation/{uid}"), uri]);

    let gone = json!({"output": output, "ttlSecondsAfterFinished": 0});
    create(&scene, "short", of_endpoints(gone)).await;
    wait_for(&scene.api::<Job>(), "short-answers", "there", within(), |_: &Job| true).await;
    wait_until_gone(&scene.api::<ModelEvaluation>(), "short", within()).await;
}

#[tokio::test]
async fn a_store_that_refuses_changes_no_verdict_and_keeps_the_evaluation() {
    let scene = simulated().await;
    let words = "SourceUnauthorized: the store refuses the key";
    let mut spec = of_endpoints(fate(&[
        ("crash-only", "push"),
        ("crash-reason", "Error"),
        ("crash-exit-code", "10"),
        ("crash-message", words),
    ]));
    spec["output"] = json!({"uri": "s3://evaluations/chat", "secretName": "store"});
    spec["ttlSecondsAfterFinished"] = json!(0);
    create(&scene, "chat", spec).await;
    let failed = until_reason(&scene, "chat", conditions::UPLOADED, reasons::UPLOAD_FAILED).await;
    let said = &condition(&failed, conditions::UPLOADED).unwrap().message;
    let fix = format!("put keys that may write there into Secret {}/store", scene.namespace());
    assert!(said.contains(words) && said.contains(&fix), "{said}");
    let status = failed.status.clone().unwrap();
    assert_eq!((status.phase, status.verdict.as_deref()), (Some(Phase::Succeeded), Some("Passed")));
    assert!(condition(&failed, conditions::COMPLETE).is_some_and(|complete| complete.status == "True"));
    assert!(condition(&failed, conditions::STALLED).is_none());
    let claims = scene.api::<PersistentVolumeClaim>();
    let claim = claims.get("chat-evaluation").await.expect("the only copy");
    assert!(claim.metadata.deletion_timestamp.is_none());

    // The user may delete it at any time.
    let evaluations = scene.api::<ModelEvaluation>();
    assert!(evaluations.get("chat").await.unwrap().metadata.deletion_timestamp.is_none());
    evaluations.delete("chat", &DeleteParams::default()).await.unwrap();
    wait_until_gone(&scene.api::<Job>(), "chat-answers", within()).await;
}

/// No question has been asked: one model is not there yet.
#[tokio::test]
async fn a_store_that_takes_nothing_is_named_before_the_verdict_and_can_be_corrected() {
    let scene = simulated().await;
    let mut spec = of_endpoints(fate(&[
        ("crash-only", "check-store"),
        ("crash-reason", "Error"),
        ("crash-exit-code", "11"),
        ("crash-message", "SourceNotFound: the bucket does not exist"),
    ]));
    spec["candidateModel"] = json!("aiinference/later");
    spec["output"] = json!({"uri": "s3://evaluations/chat"});
    create(&scene, "chat", spec).await;
    let known = until_reason(&scene, "chat", conditions::UPLOADED, reasons::UPLOAD_NOT_POSSIBLE).await;
    let said = &condition(&known, conditions::UPLOADED).unwrap().message;
    assert!(said.contains("create bucket evaluations of spec.output.uri at AWS S3"), "{said}");
    assert_ne!(known.status.as_ref().unwrap().phase, Some(Phase::Failed));
    let jobs = scene.api::<Job>();
    let first = jobs.get("chat-answers-check").await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"output": {"uri": "s3://answers/chat"}}}));
    scene.api::<ModelEvaluation>().patch("chat", &PatchParams::default(), &patch).await.unwrap();
    let other = |job: &Job| job.metadata.uid != first.metadata.uid;
    let second = wait_for(&jobs, "chat-answers-check", "for the other store", within(), other).await;
    let pod = second.spec.unwrap().template.spec.unwrap();
    assert!(pod.containers[0].args.as_ref().unwrap()[1].starts_with("s3://answers/chat/"));
}

#[tokio::test]
async fn a_policy_that_denies_the_job_is_named_and_costs_no_verdict() {
    let scene = simulated().await;
    let name = format!("no-uploads-of-{}", scene.namespace());
    let rule = json!({"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["CREATE"]});
    let is_other =
        format!("request.namespace != '{}' || object.metadata.name != 'chat-answers'", scene.namespace());
    let policy = json!({
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": is_other, "message": "no uploads"}],
    });
    let binding = json!({"policyName": name, "validationActions": ["Deny"]});
    for (kind, spec) in [("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)]
    {
        let api_version = "admissionregistration.k8s.io/v1";
        let object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        scene.apply(&object.to_string()).await.unwrap();
    }
    let job = serde_json::from_value::<Job>(json!({
        "metadata": {"name": "chat-answers"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}}},
    }))
    .unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    ask_until("the policy is enforced", within(), async || {
        match scene.api::<Job>().create(&dry_run, &job).await {
            Ok(_) => Err("the Job is allowed"),
            Err(_) => Ok(()),
        }
    })
    .await;
    create(&scene, "chat", of_endpoints(json!({"output": {"uri": "s3://evaluations/chat"}}))).await;
    let refused = until_reason(&scene, "chat", conditions::UPLOADED, reasons::DENIED).await;
    let said = &condition(&refused, conditions::UPLOADED).unwrap().message;
    assert!(said.contains("no uploads"), "{said}");
    assert_eq!(refused.status.unwrap().verdict.as_deref(), Some("Passed"));
    let bindings = scene.cluster_api::<ValidatingAdmissionPolicyBinding>();
    bindings.delete(&name, &DeleteParams::default()).await.unwrap();
    let policies = scene.cluster_api::<ValidatingAdmissionPolicy>();
    policies.delete(&name, &DeleteParams::default()).await.unwrap();
    until_reason(&scene, "chat", conditions::UPLOADED, reasons::UPLOADED).await;
}
