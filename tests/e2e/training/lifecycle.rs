//! From the first write to the end: create, succeed, fail, retry.

use api::{
    conditions, reasons,
    trainingjob::{Phase, TrainingJob, TrainingJobStatus},
};
use futures::future::join_all;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use kube::{ResourceExt as _, api::DeleteParams};
use local_cluster::{Cluster, ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until, controller, fresh_name, simulated, start, tools,
    training::{CONTROLLER, change, condition, create, fate, pods, until_phase, until_reason},
    wait_for, wait_until_gone, within,
};

#[tokio::test]
async fn a_job_runs_to_its_end_in_one_attempt() {
    let scene = simulated().await;
    let created = create(&scene, "qwen", json!({"gpus": 2})).await;
    let job = until_phase(&scene, "qwen", Phase::Succeeded).await;
    let status = job.status.as_ref().unwrap();
    assert_eq!((status.attempts, status.ended_attempts, status.retries), (1, 1, 0));
    assert!(status.start_time.is_some() && status.completion_time >= status.start_time);
    assert!(condition(&job, conditions::COMPLETE).is_some_and(|complete| complete.status == "True"));
    let attempt: Job = scene.api().get("qwen-1").await.unwrap();
    assert_eq!(attempt.owner_references()[0].uid, created.uid().unwrap());
    let claim: PersistentVolumeClaim = scene.api().get("qwen-output").await.unwrap();
    assert!(claim.owner_references().is_empty(), "the result outlives the job");
    assert!(scene.api::<Service>().get_opt("qwen-gang").await.unwrap().is_none());
    let [pod] = pods(&scene, "qwen").await.try_into().unwrap();
    let limits = pod.spec.unwrap().containers[0].resources.clone().unwrap().limits.unwrap();
    assert_eq!(limits["nvidia.com/gpu"].0, "2");
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again_up_to_the_limit() {
    let scene = simulated().await;
    let mut spec = fate(&[("crash-reason", "Error")]);
    spec["retryLimit"] = json!(1);
    create(&scene, "qwen", spec).await;
    let job = until_phase(&scene, "qwen", Phase::Failed).await;
    let status = job.status.as_ref().unwrap();
    assert_eq!((status.attempts, status.retries), (2, 1));
    assert_eq!(status.reason.as_deref(), Some(reasons::RETRIES_EXHAUSTED));
    let failure = status.failure.as_ref().unwrap();
    assert_eq!((failure.attempt, failure.exit_code, &*failure.reason), (2, Some(1), reasons::USER_ERROR));
}

#[tokio::test]
async fn each_end_of_a_trainer_has_its_reason() {
    let of_cause = |reason| (reason, "1", Some(reason));
    let ends = [
        of_cause(reasons::HOST_OUT_OF_MEMORY),
        of_cause(reasons::SOURCE_NOT_FOUND),
        of_cause(reasons::SOURCE_UNAUTHORIZED),
        of_cause(reasons::PEER_LOST),
        of_cause(reasons::INVALID_ARGUMENTS),
        (reasons::HOST_OUT_OF_MEMORY, "247", None),
        (reasons::OUTPUT_NOT_EMPTY, "82", None),
        (reasons::STOPPED_EARLY, "83", None),
        (reasons::INVALID_ARGUMENTS, "87", None),
    ];
    let scene = simulated().await;
    let scene = &scene;
    join_all(ends.iter().enumerate().map(async |(number, (reason, code, cause))| {
        let name = format!("job-{number}");
        create(scene, &name, ends_before_its_first_step(code, *cause)).await;
        let status = until_phase(scene, &name, Phase::Failed).await.status.unwrap();
        let failure = status.failure.as_ref().unwrap();
        assert_eq!((status.attempts, status.retries, failure.reason.as_str()), (1, 0, *reason), "{status:?}");
        assert_eq!(failure.exit_code, code.parse().ok(), "{failure:?}");
    }))
    .await;
}

/// A trainer that ends with this code and, in the launcher's message, with this cause. Nothing is retried.
fn ends_before_its_first_step(code: &str, cause: Option<&str>) -> Value {
    let message = cause.map(|cause| json!({"exitCode": 1, "cause": cause}).to_string()).unwrap_or_default();
    let settings = [
        ("crash-reason", "Error"),
        ("crash-exit-code", code),
        ("crash-message", message.as_str()),
        ("run-time", "1h"),
    ];
    let mut spec = fate(&settings);
    spec["retryLimit"] = json!(0);
    spec
}

/// What may come back is waited for, whatever `retryLimit` says.
#[tokio::test]
async fn a_job_that_cannot_start_waits_without_pods() {
    let scene = simulated().await;
    let scene = &scene;
    let ends = [
        (reasons::OUT_OF_SPACE, "1", Some(reasons::OUT_OF_SPACE)),
        (reasons::OUT_OF_SPACE, "84", None),
        (reasons::SOURCE_UNREACHABLE, "1", Some(reasons::SOURCE_UNREACHABLE)),
    ];
    join_all(ends.iter().enumerate().map(async |(number, (reason, code, cause))| {
        let name = format!("job-{number}");
        create(scene, &name, ends_before_its_first_step(code, *cause)).await;
        let job = until_reason(scene, &name, conditions::STALLED, reason).await;
        let status = job.status.unwrap();
        assert_eq!((status.phase, status.retries), (Some(Phase::Pending), 0), "{status:?}");
        let again =
            wait_for(&scene.api::<TrainingJob>(), &name, "another attempt", within(), |job: &TrainingJob| {
                job.status.as_ref().is_some_and(|status| status.ended_attempts >= 2)
            })
            .await;
        assert_eq!(again.status.unwrap().retries, 0);
    }))
    .await;
}

/// Each fits alone, and they do not fit together: they must not begin together again and again.
#[tokio::test]
async fn of_two_gangs_that_do_not_fit_together_one_trains_within_a_few_rounds() {
    let pool = NodePool { count: 4, gpus: 8, ..NodePool::default() };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), pool)).await;
    let quick = controller(CONTROLLER).with_args(["--placement-seconds=5"]);
    cluster.start_controller(&quick).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let mut gang = fate(&[("run-time", "24h")]);
    gang["gpus"] = json!(8);
    gang["nodes"] = json!(3);
    join_all(["one", "other"].map(|name| create(&scene, name, gang.clone()))).await;
    let runs = |name: &'static str| {
        let scene = &scene;
        async move {
            wait_for(&scene.api::<TrainingJob>(), name, "Running", within() * 4, |job: &TrainingJob| {
                job.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Running))
            })
            .await
        }
    };
    let status = tokio::select! {
        job = runs("one") => job.status,
        job = runs("other") => job.status,
    };
    let status = status.unwrap();
    assert!(status.attempts <= 8 && status.retries == 0, "{status:?}");
}

/// Something in its node asks it to end, again and again: it is no failure of the trainer, and no reason to hurry.
#[tokio::test]
async fn a_trainer_that_stops_by_itself_costs_no_retry() {
    let scene = simulated().await;
    create(&scene, "qwen", fate(&[("crash-reason", "Error"), ("crash-exit-code", "80")])).await;
    let job =
        wait_for(&scene.api::<TrainingJob>(), "qwen", "another attempt", within(), |job: &TrainingJob| {
            job.status.as_ref().is_some_and(|status| status.ended_attempts == 2)
        })
        .await;
    let status = job.status.unwrap();
    assert_eq!((status.retries, status.phase), (0, Some(Phase::Pending)));
    assert_eq!((status.failures[0].reason.as_str(), status.failures[0].count), (reasons::PREEMPTED, 2));
}

#[tokio::test]
async fn a_job_ends_with_its_time() {
    let scene = simulated().await;
    let mut spec = fate(&[("run-time", "24h")]);
    spec["activeDeadlineSeconds"] = json!(3);
    create(&scene, "qwen", spec).await;
    let job = until_phase(&scene, "qwen", Phase::Failed).await;
    let status = job.status.unwrap();
    assert_eq!((status.reason.as_deref(), status.attempts), (Some(reasons::DEADLINE_EXCEEDED), 1));
    let took = status.completion_time.unwrap().0.duration_since(status.start_time.unwrap().0);
    assert!((3..6).contains(&took.as_secs()), "{took}");
}

/// Two gangs that hold half of the GPUs each would wait for each other for ever.
#[tokio::test]
async fn a_gang_that_is_placed_in_part_gives_its_gpus_back() {
    let cluster = three_nodes().await;
    let scene = with_room_for_a_part(&cluster).await;
    let status = given_back(&scene).await;
    assert_eq!((status.retries, status.failures[0].reason.as_str()), (0, reasons::UNSCHEDULABLE));
    let message = status.failure.unwrap().message.unwrap();
    assert!(message.contains("found no node for") && message.contains("they were given back"), "{message}");
    change(&scene, "other", json!({"suspend": true})).await;
    until_reason(&scene, "other", conditions::SUSPENDED, reasons::SUSPENDED).await;
    let status = until_phase(&scene, "gang", Phase::Succeeded).await.status.unwrap();
    assert_eq!(status.retries, 0);
}

/// Its pods end with its Job: the garbage collector may delete them.
#[tokio::test]
async fn a_failed_attempt_ends_although_a_policy_denies_the_deletion_of_its_pods() {
    let cluster = three_nodes().await;
    let scene = with_room_for_a_part(&cluster).await;
    let is_controller = format!("request.userInfo.username.endsWith(':{CONTROLLER}')");
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["DELETE"]});
    let policy = json!({
        "matchConstraints": {"resourceRules": [rule]},
        // A dry run of the test shows that it is enforced.
        "validations": [{"expression": format!("!request.dryRun && !{is_controller}"), "message": "pods stay here"}],
    });
    let binding = json!({"policyName": "keep-pods", "validationActions": ["Deny"]});
    for (kind, spec) in [("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)]
    {
        let api_version = "admissionregistration.k8s.io/v1";
        let object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "keep-pods"}, "spec": spec});
        scene.apply(&object.to_string()).await.unwrap();
    }
    ask_until("the policy is enforced", within(), async || {
        let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
        let pod = pods(&scene, "other").await;
        match scene.api::<Pod>().delete(&pod.first().ok_or("no pod")?.name_any(), &dry_run).await {
            Ok(_) => Err("a deletion is allowed"),
            Err(_) => Ok(()),
        }
    })
    .await;
    given_back(&scene).await;
    wait_until_gone(&scene.api::<Job>(), "gang-1", within()).await;
}

async fn three_nodes() -> Cluster {
    let pool = NodePool { count: 3, gpus: 8, ..NodePool::default() };
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), pool)).await;
    let quick = controller(CONTROLLER).with_args(["--placement-seconds=2", "--refusal-retry-period=2"]);
    cluster.start_controller(&quick).await.unwrap();
    cluster
}

/// Another job has one of the nodes.
async fn with_room_for_a_part(cluster: &Cluster) -> Scene<'_> {
    let scene = Scene::new(cluster).await;
    let mut other = fate(&[("run-time", "24h")]);
    other["gpus"] = json!(8);
    create(&scene, "other", other).await;
    until_phase(&scene, "other", Phase::Running).await;
    scene
}

/// A gang that needs all three, once its first attempt has ended.
async fn given_back(scene: &Scene<'_>) -> TrainingJobStatus {
    // Simulated ranks do not wait for each other: the first two must not end before the third is missed.
    let mut gang = fate(&[("run-time", "20s")]);
    gang["gpus"] = json!(8);
    gang["nodes"] = json!(3);
    create(scene, "gang", gang).await;
    let job = wait_for(&scene.api::<TrainingJob>(), "gang", "given back", within(), |job: &TrainingJob| {
        job.status.as_ref().is_some_and(|status| !status.failures.is_empty())
    })
    .await;
    job.status.unwrap()
}
