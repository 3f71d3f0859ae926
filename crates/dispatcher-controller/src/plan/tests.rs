//! Plans of whole objects.

use std::time::Duration;

use api::{
    aidispatcher::{Phase, Role, State},
    conditions, reasons,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;

use crate::{
    pools::TokenRate,
    tests::{Scene, at, defaults, deployment_of, load},
    validate::{Invalid, validate},
    validated,
};

use super::Plan;

fn condition<'p>(plan: &'p Plan, type_: &str) -> Option<&'p Condition> {
    plan.status.conditions.iter().find(|condition| condition.type_ == type_)
}

fn reason<'p>(plan: &'p Plan, type_: &str) -> &'p str {
    condition(plan, type_).map_or("", |condition| &condition.reason)
}

fn replicas(plan: &Plan) -> i32 {
    deployment_of(plan).spec.unwrap().replicas.unwrap()
}

#[test]
fn the_first_plan() {
    let scene = Scene::new(
        "{role: coder, modelRef: qwen, modelEndpoint: 'http://chat', credentials: {secretName: key}, replicas: 2,
          memoryConfig: {collection: code, dim: 768, endpoint: 'http://chroma:8000', secretName: memory},
          checkpoint: {uri: 's3://states/pool', secretName: store}}",
    );
    insta::assert_yaml_snapshot!(scene.plan());
}

#[test]
fn a_pool_without_memory_and_checkpoint_has_no_loader() {
    let pod = deployment_of(&Scene::new("{role: coder}").plan()).spec.unwrap().template.spec.unwrap();
    let names: Vec<String> = pod.init_containers.unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["monitor"]);
    assert_eq!(pod.termination_grace_period_seconds, Some(30));
    assert!(pod.containers[0].lifecycle.is_none());
}

#[test]
fn a_pool_that_is_ready_changes_nothing() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    let plan = scene.plan();
    assert_eq!(plan.status.current_phase, Some(Phase::Ready));
    assert_eq!(plan.status.state, Some(State::Idle));
    assert_eq!(reason(&plan, conditions::PROGRESSING), reasons::COMPLETE);
    assert!(condition(&plan, conditions::MEMORY_READY).is_none(), "it has no memory");
    assert!(condition(&plan, conditions::SCALING_ACTIVE).is_none());
    scene.write_status();
    let again = scene.plan_at(at(5));
    assert_eq!(again.status, plan.status);
    assert!(again.events.is_empty() && again.costs.is_empty());
}

#[test]
fn busy_workers_are_processing_and_all_of_them_with_a_queue_are_saturated() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.loads(vec![load(0, 1), load(0, 0)]);
    let plan = scene.plan_at(at(0));
    assert_eq!(plan.status.active_workers, 0, "measured numbers wait");
    scene.observe(|observed| {
        let facts: Vec<_> = plan.facts.iter().map(|fact| (fact.clone(), at(-20))).collect();
        observed.facts = facts.into_iter().collect();
    });
    let status = scene.plan().status;
    assert_eq!((status.current_phase, status.state), (Some(Phase::Processing), Some(State::Working)));
    assert_eq!((status.active_workers, status.queue_depth), (1, Some(0)));
    scene.loads(vec![load(3, 1), load(4, 2)]);
    scene.observe(|observed| {
        observed.dispatcher = std::sync::Arc::new(crate::tests::dispatcher("{role: coder, replicas: 2}"))
    });
    let status = scene.plan().status;
    assert_eq!((status.state, status.queue_depth), (Some(State::Saturated), Some(7)));
}

#[test]
fn a_wrong_dimension_is_a_failure_with_its_reason() {
    let spec = "{role: coder, memoryConfig: {collection: c, dim: 3, endpoint: 'http://m'}}";
    let mut scene = Scene::ready(spec, 1);
    scene.pods(&["{node: a, phase: Pending, init: [{name: memory-loader, restartCount: 4, state: {waiting: {reason: \
                  CrashLoopBackOff}}, lastState: {terminated: {exitCode: 21, message: collection c has 768}}}]}"]);
    scene.loads(Vec::new());
    let plan = scene.plan();
    assert_eq!(plan.status.current_phase, Some(Phase::Failed));
    for type_ in [conditions::MEMORY_READY, conditions::READY, conditions::STALLED] {
        assert_eq!(reason(&plan, type_), reasons::DIM_MISMATCH, "{type_}");
    }
    assert!(condition(&plan, conditions::READY).unwrap().message.contains("collection c has 768"));
    assert_eq!(plan.status.available_replicas, 0);
}

#[test]
fn an_image_that_cannot_be_pulled_takes_no_worker_down() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let before = scene.observed().deployed.clone().unwrap();
    scene.edit_spec(|spec| spec.image = Some("agent:typo".to_owned()));
    scene.settle(0);
    scene.observe(|observed| {
        observed.older =
            vec![workload::deployment::OlderRevision { revision: Default::default(), pods: before }];
    });
    scene.pods(&[
        "{name: coder-1, node: a, phase: Pending, containers: [{name: worker, state: {waiting: {reason: \
                  ImagePullBackOff, message: no such image}}}]}",
    ]);
    scene.loads(Vec::new());
    let plan = scene.plan();
    assert_eq!(reason(&plan, conditions::READY), reasons::IMAGE_PULL_FAILED);
    assert_eq!(reason(&plan, conditions::AVAILABLE), reasons::MINIMUM_REPLICAS);
    let strategy = deployment_of(&plan).spec.unwrap().strategy.unwrap().rolling_update.unwrap();
    assert_eq!(serde_json::to_value(strategy.max_unavailable).unwrap(), 0);
}

#[test]
fn idle_workers_go_first() {
    let mut scene = Scene::ready("{role: coder, replicas: 4}", 4);
    scene.loads(vec![load(0, 1), load(0, 0), load(2, 0)]);
    scene.edit_spec(|spec| spec.replicas = 2);
    let marking = scene.plan();
    let costs: Vec<(String, i32)> =
        marking.costs.iter().map(|cost| (cost.pod.metadata.name.clone().unwrap(), cost.cost)).collect();
    assert_eq!(
        costs,
        [("coder-0".to_owned(), 1_000), ("coder-2".to_owned(), 1_000), ("coder-3".to_owned(), 100)]
    );
    assert_eq!((replicas(&marking), marking.status.desired_replicas), (4, 2));

    let node = "ready: true, node: a, phase: Running";
    scene.pods(&[
        &format!("{{name: coder-0, cost: 1000, {node}}}"),
        &format!("{{name: coder-1, {node}}}"),
        &format!("{{name: coder-2, cost: 1000, {node}}}"),
        &format!("{{name: coder-3, cost: 100, {node}}}"),
    ]);
    let marked = scene.plan();
    assert!(marked.costs.is_empty());
    assert_eq!(replicas(&marked), 4, "the ReplicaSet controller may not have seen them yet");
    scene.observe(|observed| {
        observed.facts = marked.facts.iter().map(|fact| (fact.clone(), at(-1))).collect();
    });
    assert_eq!(replicas(&scene.plan()), 2);
}

#[test]
fn a_load_that_changes_all_the_time_holds_a_smaller_number_back_for_a_while_only() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.loads(vec![load(0, 1), load(0, 0)]);
    scene.edit_spec(|spec| spec.replicas = 1);
    let marking = scene.plan();
    assert_eq!((marking.costs.len(), replicas(&marking)), (1, 2));
    scene.observe(|observed| {
        observed.facts = marking.facts.iter().map(|fact| (fact.clone(), at(-6))).collect();
    });
    let overdue = scene.plan();
    assert_eq!((overdue.costs.len(), replicas(&overdue)), (1, 1), "the newest costs come before the number");
}

/// A busy pod `coder-0` whose node does not report, and two idle ones that are ready.
fn with_a_lost_kubelet(pod: &str) -> Scene {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    let ready = "ready: true, node: b, phase: Running";
    scene.pods(&[
        &format!("{{name: coder-0, {pod}}}"),
        &format!("{{name: coder-1, {ready}}}"),
        &format!("{{name: coder-2, {ready}}}"),
    ]);
    scene.loads(vec![load(0, 1), load(0, 0), load(0, 0)]);
    scene.edit_spec(|spec| spec.replicas = 2);
    scene
}

fn unready(seconds: i64) -> String {
    format!(
        "node: a, phase: Running, conditions: [{{type: Ready, status: 'False', lastTransitionTime: '{}'}}], \
         containers: [{{name: worker, ready: true, started: true, state: {{running: {{startedAt: '{}'}}}}}}]",
        at(-seconds),
        at(-seconds - 60),
    )
}

#[test]
fn a_busy_worker_that_is_not_ready_holds_a_smaller_number_back_for_a_while_only() {
    let mut scene = with_a_lost_kubelet(&unready(5));
    let waiting = scene.plan();
    assert_eq!((replicas(&waiting), waiting.costs.len(), waiting.facts.len()), (3, 0, 0));
    let message = &condition(&waiting, conditions::PROGRESSING).unwrap().message;
    assert!(message.starts_with("3 workers exist, 2 wanted; pod coder-0 is not ready"), "{message}");
    assert_eq!(waiting.requeue_after, Some(std::time::Duration::from_secs(115)));
    // Its load may be unknown, too.
    scene.loads(vec![Default::default(), load(0, 0), load(0, 0)]);
    assert_eq!((replicas(&scene.plan()), scene.plan().costs.len()), (3, 0));
    // It is deleted by the tolerations of its pod by then, or is not waited for any more.
    scene.loads(vec![load(0, 1), load(0, 0), load(0, 0)]);
    assert_eq!(scene.plan_at(at(116)).costs.len(), 1);
    // Fewer than one idle worker would be left: the number is about the busy one.
    scene.edit_spec(|spec| spec.replicas = 1);
    assert_eq!(replicas(&scene.plan()), 3);
    scene.loads(vec![load(0, 1); 3]);
    assert_eq!(replicas(&scene.plan()), 1);
}

#[test]
fn a_pod_that_cannot_start_holds_no_smaller_number_back() {
    let since = format!("lastTransitionTime: '{}'", at(-5));
    let conditions = format!("conditions: [{{type: Ready, status: 'False', {since}}}]");
    let crashing = "name: worker, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}, lastState: \
                    {terminated: {exitCode: 1}}";
    let never = format!("name: worker, state: {{running: {{startedAt: '{}'}}}}", at(-4));
    for pod in [
        format!("phase: Pending, {conditions}"),
        format!("node: a, phase: Running, {conditions}, containers: [{{{crashing}}}]"),
        format!("node: a, phase: Running, {conditions}, containers: [{{{never}}}]"),
    ] {
        let mut scene = with_a_lost_kubelet(&pod);
        scene.loads(vec![Default::default(), load(0, 0), load(0, 0)]);
        assert_eq!(scene.plan().costs.len(), 1, "it is only marked: {pod}");
    }
}

#[test]
fn a_pool_that_was_scaled_to_zero_by_hand_comes_back() {
    let mut scene = Scene::ready("{role: coder, autoscaling: {minReplicas: 2, maxReplicas: 10}}", 0);
    assert_eq!(scene.observed().deployment.as_ref().unwrap().replicas, 0);
    let plan = scene.plan();
    assert_eq!((replicas(&plan), plan.status.desired_replicas), (2, 2));
    assert_ne!(reason(&plan, conditions::SCALING_ACTIVE), reasons::SCALING_DISABLED);
    scene.settle(2);
    assert_eq!(replicas(&scene.plan()), 2);
}

#[test]
fn a_change_that_was_not_written_is_not_reported() {
    let mut scene = Scene::ready(SCALED, 1);
    scene.write_status();
    let before = scene.observed().dispatcher.status.clone().unwrap();
    scene.loads(vec![load(14, 1)]);
    let mut plan = scene.plan();
    assert!(plan.rescaled.is_some() && plan.past.is_some());
    assert!(plan.status.last_scale_time.is_some());
    plan.forget_rescale(Some(&before));
    assert!(plan.rescaled.is_none() && plan.past.is_none());
    assert_eq!(plan.status.last_scale_time, None);
    assert_eq!(plan.status.scaling_history, before.scaling_history);
    // What was only looked at is remembered whether something else was written or not.
    scene.loads(vec![load(0, 1)]);
    let mut plan = scene.plan();
    plan.forget_rescale(Some(&before));
    assert!(plan.past.is_some());
}

#[test]
fn tokens_per_minute_are_a_second_limit() {
    let spec = "{role: coder, autoscaling: {maxReplicas: 50, tokensPerMinutePerWorker: 60}}";
    let mut scene = Scene::ready(spec, 2);
    scene.loads(vec![load(0, 1), load(0, 1)]);
    scene.observe(|observed| observed.token_rate.per_minute = Some(600));
    // A first addition may be limited by the default rates.
    let plan = scene.plan();
    assert_eq!(plan.status.desired_replicas, replicas(&plan));
    assert!(plan.rescaled.unwrap().message.contains("tokens per minute"));
    assert_eq!(replicas(&scene.plan()), 6, "at most four more within 15 s");
    let mut scene = Scene::ready(spec, 6);
    scene.loads(vec![load(0, 1); 6]);
    scene.observe(|observed| observed.token_rate.per_minute = Some(600));
    assert_eq!(replicas(&scene.plan()), 10, "600 / 60");
}

#[test]
fn tokens_per_minute_that_change_without_another_load_are_observed_again() {
    let falling = TokenRate { per_minute: Some(600), changes_in: Some(Duration::from_secs(10)) };
    for is_paused in [false, true] {
        let mut scene = Scene::ready("{role: coder}", 1);
        scene.edit_spec(|spec| spec.pods.paused = is_paused);
        scene.write_status();
        scene.observe(|observed| observed.token_rate = falling);
        let plan = scene.plan();
        assert!(plan.requeue_after.is_some_and(|wait| wait <= Duration::from_secs(10)), "{plan:?}");
    }
    assert_eq!(Scene::ready("{role: coder}", 1).plan().requeue_after, None);
}

#[test]
fn while_tokens_are_not_known_workers_are_only_added() {
    let spec = "{role: coder, autoscaling: {tokensPerMinutePerWorker: 60, behavior: {scaleDown: \
                {stabilizationWindowSeconds: 0}}}}";
    let mut scene = Scene::ready(spec, 4);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 4, "the queue alone asks for one");
    let message = &condition(&plan, conditions::SCALING_ACTIVE).unwrap().message;
    let why = "no worker is removed, because tokens per minute are not known: workers must serve agent_tokens_total \
               (autoscaling.tokensPerMinutePerWorker)";
    assert_eq!(message, why);
    scene.loads(vec![load(14, 1); 4]);
    assert_eq!(replicas(&scene.plan()), 8);
    scene.loads(vec![load(0, 0); 4]);
    scene.observe(|observed| observed.token_rate.per_minute = Some(0));
    assert_eq!(scene.plan().status.desired_replicas, 1);
}

#[test]
fn a_pool_that_is_busy_for_an_hour_keeps_its_number() {
    let mut scene = Scene::ready(SCALED, 4);
    for minute in 0..60 {
        let now = at(minute * 60);
        let busy = crate::monitors::WorkerLoad { queued: Some((0, now)), ..load(0, 1) };
        scene.loads(vec![busy; 4]);
        let plan = scene.plan_at(now);
        assert_eq!((replicas(&plan), plan.rescaled.is_none()), (4, true), "{minute}");
        let past = plan.past.unwrap();
        scene.observe(|observed| observed.history = past);
    }
}

#[test]
fn more_workers_than_wanted_are_said_as_such() {
    let mut scene = Scene::ready("{role: coder, replicas: 4}", 4);
    scene.loads(vec![load(0, 1), load(0, 0), load(0, 0), load(0, 0)]);
    scene.edit_spec(|spec| spec.replicas = 2);
    let plan = scene.plan();
    let message = |type_: &str| condition(&plan, type_).unwrap().message.clone();
    assert_eq!(
        message(conditions::PROGRESSING),
        "4 workers exist, 2 wanted; busy ones get a higher deletion cost before any is removed"
    );
    assert_eq!(message(conditions::READY), "4 workers ready, 2 wanted");
    let plan = Scene::ready("{role: coder}", 1).plan();
    let message = &condition(&plan, conditions::PROGRESSING).unwrap().message;
    assert_eq!(message, "1 worker ready, with the current revision");
}

#[test]
fn options_of_pods_are_rendered() {
    let scene = Scene::new(
        "{role: reviewer, image: 'agent:2', podLabels: {team: a}, podAnnotations: {note: b, prometheus.io/scrape: 'false'},
          imagePullSecrets: [{name: registry}], serviceAccountName: agents, resources: {limits: {nvidia.com/gpu: 1}},
          scheduling: {nodeSelector: {pool: cpu}, tolerations: [{key: spot, operator: Exists}],
            priorityClassName: batch, runtimeClassName: gvisor, schedulerName: other}}",
    );
    let template = deployment_of(&scene.plan()).spec.unwrap().template;
    insta::assert_yaml_snapshot!((
        template.metadata,
        template.spec.map(|spec| json!({
            "nodeSelector": spec.node_selector,
            "tolerations": spec.tolerations,
            "priorityClassName": spec.priority_class_name,
            "runtimeClassName": spec.runtime_class_name,
            "schedulerName": spec.scheduler_name,
            "imagePullSecrets": spec.image_pull_secrets,
            "serviceAccountName": spec.service_account_name,
        }))
    ));
}

#[test]
fn a_default_whose_option_is_gone_stays_that_of_the_pods() {
    let without = defaults(&["--monitor-image=monitor:1"]);
    let mut scene = Scene::ready("{role: coder}", 1);
    assert!(validate(&scene.observed().dispatcher, &without).is_err());
    assert_eq!(validated(scene.observed(), &without).unwrap().image, "agent:1");
    scene.edit_spec(|spec| spec.role = Role::Reviewer);
    assert!(validated(scene.observed(), &without).is_err(), "no pod of this spec was rendered");
    let scene = Scene::new(
        "{role: coder, memoryConfig: {collection: code, dim: 768, endpoint: 'http://chroma', secretName: memory}}",
    );
    let template = serde_json::to_value(deployment_of(&scene.plan()).spec.unwrap().template).unwrap();
    let pinned = without.or_pinned(Role::Coder, &template);
    assert_eq!(pinned.memory_endpoint.as_deref(), Some("http://chroma"));
    assert_eq!(pinned.memory_secret.as_deref(), Some("memory"));
}

#[test]
fn a_state_that_is_not_saved_is_reported_beside_an_invalid_spec() {
    let mut scene = Scene::ready("{role: coder}", 1);
    scene.loads(vec![crate::monitors::WorkerLoad { unsaved: Some("away".to_owned()), ..load(0, 0) }]);
    let plan = super::rejected(&Invalid("spec.env: remove it".to_owned()), scene.observed(), at(0));
    assert_eq!(reason(&plan, conditions::CHECKPOINT_FAILED), reasons::STATE_NOT_SAVED);
    assert_eq!(reason(&plan, conditions::READY), reasons::INVALID_SPEC);
}

#[test]
fn a_damaged_state_is_reported_unless_the_state_of_a_worker_is_not_saved() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let damaged = crate::monitors::WorkerLoad { damaged: Some("1 saved state".to_owned()), ..load(0, 0) };
    scene.loads(vec![damaged.clone()]);
    let plan = scene.plan();
    let failed = condition(&plan, conditions::CHECKPOINT_FAILED).unwrap();
    assert_eq!((failed.status.as_str(), failed.reason.as_str()), ("True", reasons::STATE_DAMAGED));
    assert!(failed.message.contains("coder-0") && failed.message.contains("1 saved state"));
    scene.loads(vec![crate::monitors::WorkerLoad { unsaved: Some("away".to_owned()), ..damaged }]);
    assert_eq!(reason(&scene.plan(), conditions::CHECKPOINT_FAILED), reasons::STATE_NOT_SAVED);
}

#[test]
fn a_worker_whose_stream_is_cut_may_be_busy_whatever_prometheus_had_of_it() {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    let known = |streamed| crate::monitors::WorkerLoad { has_tasks: streamed, ..load(0, 0) };
    scene.loads(vec![known(Some(false)), known(None), known(Some(true))]);
    scene.edit_spec(|spec| spec.replicas = 1);
    let costs: Vec<i32> = scene.plan().costs.iter().map(|cost| cost.cost).collect();
    assert_eq!(costs, [100, 1_000]);
}

#[test]
fn a_worker_that_is_idle_by_its_stream_is_idle_whatever_prometheus_had_of_it() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    let ended = crate::monitors::WorkerLoad { has_tasks: Some(false), ..load(0, 1) };
    scene.loads(vec![load(0, 1), ended]);
    scene.edit_spec(|spec| spec.replicas = 1);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 2, "the number waits for the deletion costs");
    assert_eq!(plan.costs.iter().map(|cost| cost.cost).collect::<Vec<_>>(), [1_000]);
}

#[test]
fn a_worker_on_a_slice_of_a_gpu_tolerates_gpu_nodes() {
    let tolerates = |resources: &str| {
        let template = deployment_of(&Scene::new(&format!("{{role: coder, {resources}}}")).plan())
            .spec
            .unwrap()
            .template;
        let tolerations = template.spec.unwrap().tolerations.unwrap();
        tolerations.iter().any(|toleration| toleration.key.as_deref() == Some("nvidia.com/gpu"))
    };
    assert!(tolerates("resources: {limits: {nvidia.com/mig-1g.5gb: 1}}"));
    assert!(!tolerates("resources: {limits: {cpu: 1}}"));
}

#[test]
fn a_pool_whose_memory_is_loaded_waits_for_something_else() {
    let mut scene =
        Scene::ready("{role: coder, memoryConfig: {collection: code, dim: 3, endpoint: 'http://chroma'}}", 1);
    let ready = |loader: &str| {
        format!(
            "{{name: coder-0, node: a, phase: Pending, init: [{{name: memory-loader, state: {loader}}}]}}"
        )
    };
    scene.pods(&[&ready("{running: {}}")]);
    assert_eq!(reason(&scene.plan_at(at(-100)), conditions::READY), reasons::LOADING);
    scene.pods(&[&ready("{terminated: {exitCode: 0}}")]);
    let plan = scene.plan_at(at(-100));
    assert_ne!(reason(&plan, conditions::READY), reasons::LOADING);
    assert_eq!(
        reason(&plan, conditions::MEMORY_READY),
        reasons::LOADED,
        "also while its worker cannot start"
    );
    scene.pods(&[&ready("{terminated: {exitCode: 26, message: the bucket is away}}")]);
    let plan = scene.plan_at(at(-100));
    assert_eq!(reason(&plan, conditions::MEMORY_READY), reasons::LOADED, "the bucket is another matter");
    assert_eq!(reason(&plan, conditions::PROGRESSING), reasons::STORE_UNREACHABLE);
    assert_eq!(reason(&plan, conditions::READY), reasons::STORE_UNREACHABLE);
}

#[test]
fn the_deployment_of_a_long_name_has_a_name_that_fits_a_label() {
    let mut scene = Scene::new("{role: coder}");
    scene.observe(|observed| {
        let dispatcher = std::sync::Arc::make_mut(&mut observed.dispatcher);
        dispatcher.metadata.name = Some("a".repeat(63));
    });
    let plan = scene.plan();
    let name = deployment_of(&plan).metadata.name.unwrap();
    assert!(name.len() <= 63 && name.starts_with("aaaa") && name.ends_with("-workers"), "{name}");
}

#[test]
fn workers_that_are_all_alike_need_no_marks() {
    for alike in [Some(load(0, 0)), Some(load(0, 3)), None] {
        let mut scene = Scene::ready("{role: coder, replicas: 4}", 4);
        scene.loads(vec![alike.clone().unwrap_or_default(); 4]);
        scene.edit_spec(|spec| spec.replicas = 2);
        let plan = scene.plan();
        assert_eq!((plan.costs.len(), replicas(&plan)), (0, 2), "{alike:?}");
    }
}

#[test]
fn a_process_that_has_just_begun_waits_for_the_first_loads() {
    let mut scene = Scene::ready(SCALED, 3);
    scene.loads(vec![load(0, 1); 3]);
    scene.write_status();
    let before = scene.observed().dispatcher.status.clone().unwrap();
    scene.loads(Vec::new());
    scene.observe(|observed| observed.first_observed = at(-5));
    let waiting = scene.plan();
    assert_eq!((replicas(&waiting), waiting.past.is_none()), (3, true));
    assert_eq!(waiting.status.conditions, before.conditions);
    assert_eq!(waiting.requeue_after, Some(std::time::Duration::from_secs(10)));
    scene.observe(|observed| observed.first_observed = at(-20));
    assert_eq!(reason(&scene.plan(), conditions::SCALING_ACTIVE), reasons::METRIC_MISSING);
}

const SCALED: &str = "{role: coder, autoscaling: {minReplicas: 1, maxReplicas: 10}}";

#[test]
fn the_number_follows_the_queue() {
    let mut scene = Scene::ready(SCALED, 1);
    assert_eq!(replicas(&scene.plan()), 1);
    scene.loads(vec![load(14, 1)]);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 4, "ceil(14 / 5) + 1 busy");
    assert_eq!(reason(&plan, conditions::SCALING_ACTIVE), reasons::VALID_METRIC_FOUND);
    let rescaled = plan.rescaled.unwrap();
    assert_eq!(rescaled.reason, reasons::SUCCESSFUL_RESCALE);
    let message = "the number of workers changes from 1 to 4: queued tasks; busy workers: 1";
    assert_eq!(rescaled.message, message);
    assert_eq!(plan.past.unwrap().scale_events.len(), 1);
    assert!(plan.status.last_scale_time.is_some());
}

#[test]
fn without_load_the_number_stays_and_the_condition_says_why() {
    let mut scene = Scene::ready(SCALED, 3);
    let silent = crate::monitors::WorkerLoad {
        fault: Some("port 9100 refused the connection".to_owned()),
        ..Default::default()
    };
    scene.loads(vec![silent; 3]);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 3);
    let active = condition(&plan, conditions::SCALING_ACTIVE).unwrap();
    assert_eq!((&*active.status, &*active.reason), ("False", reasons::METRIC_MISSING));
    assert!(
        active.message.contains("port 9100") && active.message.contains("2 others"),
        "{}",
        active.message
    );
    assert_eq!(reason(&plan, conditions::READY), reasons::READY, "the pool works");
}

#[test]
fn a_silent_worker_counts_as_busy_where_workers_are_removed() {
    let silent = crate::monitors::WorkerLoad {
        fault: Some("port 9100 refused the connection".to_owned()),
        ..Default::default()
    };
    let at_once = "{role: coder, autoscaling: {minReplicas: 1, maxReplicas: 10, behavior: {scaleDown: \
                   {stabilizationWindowSeconds: 0}}}}";
    for (queued, last, wanted) in [(14, silent.clone(), 5), (0, silent, 3), (0, load(0, 0), 2)] {
        let mut scene = Scene::ready(at_once, 4);
        let is_silent = last.fault.is_some();
        scene.loads(vec![load(queued, 1), load(0, 1), load(0, 0), last]);
        let plan = scene.plan();
        assert_eq!(plan.status.desired_replicas, wanted, "{queued} are queued");
        let active = condition(&plan, conditions::SCALING_ACTIVE).unwrap();
        assert_eq!((&*active.status, &*active.reason), ("True", reasons::VALID_METRIC_FOUND));
        assert_eq!(active.message.contains("not known count as busy"), is_silent, "{}", active.message);
        assert_eq!(active.message.contains("port 9100"), is_silent, "{}", active.message);
    }
}

#[test]
fn queues_that_were_read_too_long_ago_change_nothing() {
    let mut scene = Scene::ready(SCALED, 2);
    let old = |queued| crate::monitors::WorkerLoad { queued: Some((queued, at(-60))), ..load(queued, 1) };
    scene.loads(vec![old(40), old(0)]);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 2);
    assert_eq!(reason(&plan, conditions::SCALING_ACTIVE), reasons::METRIC_STALE);
}

#[test]
fn a_deployment_that_was_deleted_comes_back_with_its_number() {
    let mut scene = Scene::ready(SCALED, 1);
    scene.loads(vec![load(14, 1)]);
    scene.write_status();
    scene.observe(|observed| (observed.deployment, observed.deployed) = (None, None));
    assert_eq!(replicas(&scene.plan()), 4);
}

#[test]
fn a_pool_that_is_paused_is_left_alone() {
    let mut scene = Scene::ready(SCALED, 1);
    scene.loads(vec![load(14, 1)]);
    scene.edit_spec(|spec| spec.pods.paused = true);
    let plan = scene.plan();
    assert!(plan.deployment.is_none() && plan.costs.is_empty());
    assert_eq!(reason(&plan, conditions::READY), reasons::PAUSED);
    assert_eq!(reason(&plan, conditions::SCALING_ACTIVE), reasons::PAUSED);
    assert!(plan.past.unwrap().scale_events.is_empty());
}

#[test]
fn a_store_that_does_not_take_the_state_of_a_worker_is_told() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let unsaved = crate::monitors::WorkerLoad {
        unsaved: Some("s3://states does not answer".to_owned()),
        saved: Some(1_767_268_000),
        ..load(0, 0)
    };
    scene.loads(vec![unsaved]);
    let plan = scene.plan();
    let failed = condition(&plan, conditions::CHECKPOINT_FAILED).unwrap();
    assert_eq!(failed.reason, reasons::STATE_NOT_SAVED);
    assert!(failed.message.contains("s3://states"), "{}", failed.message);
    assert_eq!(plan.status.last_checkpoint_time.unwrap().0.as_second(), 1_767_268_000);
    assert_eq!(plan.status.current_phase, Some(Phase::Ready), "the pool works");
}

#[test]
fn state_that_was_lost_is_told_once_and_stays_in_the_status_for_a_while() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let ended = "{name: coder-9, phase: Succeeded, init: [{name: monitor, state: {terminated: {exitCode: 0, message: \
                 '{\"tokens\": 7, \"error\": \"bucket states does not exist\"}'}}}]}";
    scene.observe(|observed| observed.ending = vec![std::sync::Arc::new(crate::tests::pod(ended))]);
    let plan = scene.plan();
    let failed = condition(&plan, conditions::CHECKPOINT_FAILED).unwrap();
    assert_eq!(failed.reason, reasons::STATE_LOST);
    assert!(failed.message.contains("coder-9") && failed.message.contains("bucket states"));
    assert_eq!(plan.events.iter().filter(|note| note.reason == reasons::STATE_LOST).count(), 1);
    scene.write_status();
    assert!(scene.plan().events.is_empty());
    // The state of another worker is not saved now; the loss is still reported.
    scene.loads(vec![crate::monitors::WorkerLoad { unsaved: Some("away".to_owned()), ..load(0, 0) }]);
    scene.observe(|observed| {
        observed.ending.clear();
        observed.facts = plan.facts.iter().map(|fact| (fact.clone(), at(0))).collect();
    });
    let reason_at = |seconds| {
        condition(&scene.plan_at(at(seconds)), conditions::CHECKPOINT_FAILED).unwrap().reason.clone()
    };
    assert_eq!(reason_at(60), reasons::STATE_LOST);
    assert_eq!(reason_at(700), reasons::STATE_NOT_SAVED);
}

#[test]
fn a_process_that_has_just_begun_shrinks_no_pool_before_it_knows_the_loads() {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    scene.edit_spec(|spec| spec.replicas = 1);
    scene.loads(Vec::new());
    scene.observe(|observed| observed.first_observed = at(-1));
    let plan = scene.plan();
    assert_eq!((replicas(&plan), plan.costs.len()), (3, 0), "another process may have marked them");
    assert!(plan.requeue_after.is_some());
    scene.loads(vec![load(0, 0), load(0, 1), load(0, 0)]);
    assert_eq!(scene.plan().costs.len(), 1);
    // They never become known.
    scene.loads(Vec::new());
    scene.observe(|observed| observed.first_observed = at(-15));
    assert_eq!(replicas(&scene.plan()), 1);
}

#[test]
fn while_a_pool_is_paused_its_workers_do_not_become_overdue() {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    scene.edit_spec(|spec| {
        spec.replicas = 1;
        spec.pods.paused = true;
    });
    scene.loads(vec![load(0, 0), load(0, 1), load(0, 0)]);
    assert_eq!(scene.plan().facts, [""; 0]);
}

#[test]
fn a_pool_that_has_its_new_number_causes_no_event_of_its_own() {
    let worker = |index: usize| format!("{{name: coder-{index}, ready: true, node: a, phase: Running}}");
    let workers: Vec<String> = (0..3).map(worker).collect();
    let workers: Vec<&str> = workers.iter().map(String::as_str).collect();
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.edit_spec(|spec| spec.replicas = 3);
    scene.write_status();
    let plan = scene.plan();
    assert_eq!((reason(&plan, conditions::READY), plan.events.len()), (reasons::SCALING, 0));
    scene.pods(&workers);
    let plan = scene.plan();
    assert_eq!((reason(&plan, conditions::READY), plan.events.len()), (reasons::READY, 0));
    let mut first = Scene::new("{role: coder, replicas: 3}");
    first.settle(0);
    first.write_status();
    first.pods(&workers);
    assert_eq!(first.plan().events.len(), 1, "it is ready for the first time");
}

#[test]
fn a_status_that_is_held_back_comes_with_no_event() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let unsaved =
        |why: &str| vec![crate::monitors::WorkerLoad { unsaved: Some(why.to_owned()), ..load(0, 0) }];
    scene.pods(&["{name: coder-0, ready: true, node: a, phase: Running, created: '2026-01-01T11:59:59Z'}"]);
    scene.loads(unsaved("away"));
    assert_eq!(scene.plan().events.len(), 1);
    scene.write_status();
    scene.loads(unsaved("full"));
    let plan = scene.plan();
    let written = scene.observed().dispatcher.status.as_ref();
    assert_eq!((Some(&plan.status), plan.events.len()), (written, 0), "other words are written later");
    let later = scene.plan_at(at(10));
    assert_eq!((later.events.len(), later.events[0].message.contains("full")), (1, true));
}

/// A pod that has failed, and whose state was not saved.
fn failed(name: &str, finished: i64) -> std::sync::Arc<workload::pod::PodView> {
    std::sync::Arc::new(crate::tests::pod(&format!(
        "{{name: {name}, phase: Failed, init: [{{name: monitor, state: {{terminated: {{exitCode: 0, message: \
         '{{\"tokens\": 7, \"error\": \"away\"}}', finishedAt: '{}'}}}}}}]}}",
        at(finished)
    )))
}

#[test]
fn a_loss_is_reported_for_ten_minutes_however_long_the_pod_is_kept() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let is_reported = |plan: &Plan| condition(plan, conditions::CHECKPOINT_FAILED).is_some();
    scene.observe(|observed| observed.ending = vec![failed("coder-7", -700)]);
    assert!(!is_reported(&scene.plan()), "this process has just begun");
    scene.observe(|observed| observed.ending = vec![failed("coder-7", -500)]);
    let plan = scene.plan();
    assert!(is_reported(&plan));
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(100)));
    scene.write_status();
    scene.observe(|observed| {
        observed.facts = plan.facts.iter().map(|fact| (fact.clone(), at(0))).collect();
    });
    assert!(!is_reported(&scene.plan_at(at(101))));
    // Also after the pod was deleted.
    scene.observe(|observed| observed.ending.clear());
    assert!(is_reported(&scene.plan_at(at(99))) && !is_reported(&scene.plan_at(at(101))));
}

#[test]
fn an_event_tells_of_a_new_loss_and_not_of_another_first_pod() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let losses = |plan: &Plan| plan.events.iter().filter(|note| note.reason == reasons::STATE_LOST).count();
    let note = |scene: &mut Scene| {
        let facts = scene.plan().facts;
        scene.write_status();
        scene.observe(|observed| observed.facts = facts.into_iter().map(|fact| (fact, at(0))).collect());
    };
    scene.observe(|observed| observed.ending = vec![failed("coder-7", -10), failed("coder-8", -5)]);
    assert_eq!(losses(&scene.plan()), 1);
    note(&mut scene);
    scene.observe(|observed| observed.ending = vec![failed("coder-8", -5)]);
    assert_eq!(losses(&scene.plan()), 0);
    note(&mut scene);
    scene.observe(|observed| observed.ending = vec![failed("coder-8", -5), failed("coder-9", -1)]);
    assert_eq!(losses(&scene.plan()), 1);
}

#[test]
fn several_losses_are_counted() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let ended = |name: &str| failed(name, 0);
    scene.observe(|observed| observed.ending = vec![ended("coder-7"), ended("coder-8"), ended("coder-9")]);
    let plan = scene.plan();
    let message = &condition(&plan, conditions::CHECKPOINT_FAILED).unwrap().message;
    assert!(message.starts_with("the state of pod coder-7 and 2 others was not saved"), "{message}");
}

/// The strategy while an old worker on node `a` holds the claim and a new pod is as given, with its deadline.
fn strategy(modes: &str, new: &str) -> (serde_json::Value, Option<std::time::Duration>) {
    strategy_beside(1, modes, new)
}

fn strategy_beside(old: usize, modes: &str, new: &str) -> (serde_json::Value, Option<std::time::Duration>) {
    let spec = format!("{{role: coder, replicas: {old}, checkpoint: {{claimName: states}}}}");
    let mut scene = Scene::ready(&spec, old);
    let old = scene.observed().deployed.clone().unwrap();
    let record = workload::deployment::TemplateRecord {
        resolved: "{}".into(),
        template: "{\"claimName\":\"states\"}".into(),
        token_account: None,
    };
    let revision = workload::deployment::ReplicaSetView {
        rendered: Some(Box::new(record)),
        ..workload::deployment::ReplicaSetView::default()
    };
    let claim = format!("{{metadata: {{name: states}}, spec: {{accessModes: [{modes}]}}}}");
    scene.observe(|observed| {
        observed.claim = Some(std::sync::Arc::new(serde_saphyr::from_str(&claim).unwrap()));
        observed.older = vec![workload::deployment::OlderRevision { revision: revision.into(), pods: old }];
    });
    scene.pods(&[&format!("{{name: coder-9, {new}}}")]);
    let plan = scene.plan();
    let strategy = deployment_of(&plan).spec.unwrap().strategy.unwrap().rolling_update.unwrap();
    (serde_json::to_value(strategy).unwrap(), plan.requeue_after)
}

#[test]
fn a_worker_ends_before_its_successor_begins_only_if_that_waits_for_the_claim() {
    let surge = json!({"maxSurge": 1, "maxUnavailable": 0});
    let replace = json!({"maxSurge": 0, "maxUnavailable": 1});
    let once = |new: &str| strategy("ReadWriteOnce", new);
    // Pods of the tests are two minutes old.
    let creating =
        "phase: Pending, containers: [{name: worker, state: {waiting: {reason: PodInitializing}}}]";
    assert_eq!(once(&format!("node: b, {creating}")).0, replace);
    let beside_two = strategy_beside(2, "ReadWriteOnce", &format!("node: b, {creating}"));
    assert_eq!(beside_two.0, surge, "the other old one would still hold the volume");
    assert_eq!(strategy("ReadWriteMany", &format!("node: b, {creating}")).0, surge);
    assert_eq!(once(&format!("node: a, {creating}")).0, surge, "one node may mount it twice");
    let young = format!("node: b, created: '{}', {creating}", at(-10));
    assert_eq!(once(&young), (surge.clone(), Some(std::time::Duration::from_secs(50))));
    for reason in ["ImagePullBackOff", "CreateContainerConfigError", "CrashLoopBackOff"] {
        let fails = format!(
            "node: b, phase: Pending, containers: [{{name: worker, state: {{waiting: {{reason: {reason}}}}}}}]"
        );
        assert_eq!(once(&fails).0, surge, "{reason}");
    }
    let unschedulable = |why: &str| {
        format!("phase: Pending, conditions: [{{type: PodScheduled, status: 'False', message: '{why}'}}]")
    };
    let in_use = "0/2 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and \
                  ReadWriteOncePod access mode";
    assert_eq!(strategy("ReadWriteOncePod", &unschedulable(in_use)).0, replace);
    let short = format!("{in_use}, 1 Insufficient cpu.");
    assert_eq!(strategy("ReadWriteOncePod", &unschedulable(&short)).0, surge);
    let plain = deployment_of(&Scene::new("{role: coder}").plan()).spec.unwrap().strategy.unwrap();
    assert_eq!(
        serde_json::to_value(plain.rolling_update).unwrap(),
        json!({"maxSurge": "25%", "maxUnavailable": 0})
    );
}
