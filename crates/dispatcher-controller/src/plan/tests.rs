//! Plans of whole objects.

use std::time::Duration;

use api::{
    aidispatcher::{Phase, Role, State},
    conditions, reasons,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;

use crate::{
    records::pools::TokenRate,
    tests::{Scene, at, defaults, deployment_of, load},
    validate::{Invalid, defaults::Defaults, validate},
};

use super::{Plan, validated};

mod checkpoints;
mod refusals;
mod scaling;

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
    assert!(again.events.is_empty() && again.marks.is_empty());
}

#[test]
fn workers_of_which_none_reports_a_load_are_not_called_idle() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.loads(vec![crate::load::WorkerLoad::default(), crate::load::WorkerLoad::default()]);
    assert_eq!(scene.plan_at(at(0)).status.state, Some(State::Idle), "measured values wait");
    let plan = scene.plan();
    scene.note(&plan, at(0));
    let plan = scene.plan_at(at(10));
    assert_eq!((plan.status.current_phase, plan.status.state), (Some(Phase::Ready), None));
    scene.loads(vec![crate::load::WorkerLoad::default(), load(0, 0)]);
    assert_eq!(scene.plan_at(at(10)).status.state, Some(State::Idle));
}

#[test]
fn busy_workers_are_processing_and_all_of_them_with_a_queue_are_saturated() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.loads(vec![load(0, 1), load(0, 0)]);
    let plan = scene.plan_at(at(0));
    assert_eq!(plan.status.active_workers, 0, "measured numbers wait");
    scene.note(&plan, at(-20));
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
        observed.older = vec![workload::templates::deployment::OlderRevision {
            revision: Default::default(),
            pods: before,
        }];
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
    let scene = Scene::new(
        "{role: coder, memoryConfig: {collection: code, dim: 768, endpoint: 'http://chroma', secretName: memory}}",
    );
    let template = serde_json::to_value(deployment_of(&scene.plan()).spec.unwrap().template).unwrap();
    let pinned = without.or_pinned(&template);
    assert_eq!(pinned.memory_endpoint.as_deref(), Some("http://chroma"));
    assert_eq!(pinned.memory_secret.as_deref(), Some("memory"));
}

#[test]
fn workers_are_not_replaced_by_the_agent_that_ships_unless_they_are_it() {
    let release = defaults(&["--monitor-image=monitor:1", "--agent-image=shipped:1"]);
    let mut scene = Scene::ready("{role: coder}", 1);
    assert!(validated(scene.observed(), &release).is_ok(), "the pods of this spec keep their template");
    let of_template = |scene: &Scene, defaults: &Defaults| {
        let plan = scene.planned(defaults, at(0)).unwrap();
        plan.deployment.map(|deployment| {
            deployment.spec["template"]["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
        })
    };
    assert_eq!(of_template(&scene, &release).as_deref(), Some("agent:1"));
    scene.edit_spec(|spec| spec.role = Role::Reviewer);
    let Err(Invalid(refused)) = validated(scene.observed(), &release) else { panic!("they are replaced") };
    assert!(refused.contains("the workers run agent:1,") && refused.contains("or to shipped:1"), "{refused}");
    assert_eq!(of_template(&scene, &release), None, "nothing is written");
    scene.edit_spec(|spec| spec.image = Some("shipped:1".to_owned()));
    assert_eq!(of_template(&scene, &release).as_deref(), Some("shipped:1"));
    // The spec may leave it out again.
    let written = serde_json::to_value(deployment_of(&scene.planned(&release, at(0)).unwrap())).unwrap();
    scene.observe(|observed| observed.deployment = Some(serde_json::from_value(written).unwrap()));
    scene.edit_spec(|spec| spec.image = None);
    assert_eq!(of_template(&scene, &release).as_deref(), Some("shipped:1"));
    // A pool of the agent follows its spec, and its release.
    let mut scene = Scene::new("{role: coder}");
    let written = serde_json::to_value(deployment_of(&scene.planned(&release, at(0)).unwrap())).unwrap();
    scene.observe(|observed| observed.deployment = Some(serde_json::from_value(written).unwrap()));
    assert_eq!(of_template(&scene, &release).as_deref(), Some("shipped:1"));
    scene.edit_spec(|spec| spec.role = Role::Reviewer);
    let newer = defaults(&["--monitor-image=monitor:1", "--agent-image=shipped:2"]);
    assert_eq!(of_template(&scene, &newer).as_deref(), Some("shipped:2"));
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
fn a_status_that_is_held_back_comes_with_no_event() {
    let mut scene = Scene::ready("{role: coder}", 1);
    let unsaved = |why: &str| vec![crate::load::WorkerLoad { unsaved: Some(why.to_owned()), ..load(0, 0) }];
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

/// The strategy while an old worker on node `a` holds the claim and a new pod is as given, with its deadline.
fn strategy(modes: &str, new: &str) -> (serde_json::Value, Option<std::time::Duration>) {
    strategy_beside(1, modes, new)
}

fn strategy_beside(old: usize, modes: &str, new: &str) -> (serde_json::Value, Option<std::time::Duration>) {
    let spec = format!("{{role: coder, replicas: {old}, checkpoint: {{claimName: states}}}}");
    let mut scene = Scene::ready(&spec, old);
    let old = scene.observed().deployed.clone().unwrap();
    let record = workload::templates::deployment::TemplateRecord {
        resolved: "{}".into(),
        template: "{\"claimName\":\"states\"}".into(),
        token_account: None,
    };
    let revision = workload::templates::deployment::ReplicaSetView {
        rendered: Some(Box::new(record)),
        ..workload::templates::deployment::ReplicaSetView::default()
    };
    let claim = format!("{{metadata: {{name: states}}, spec: {{accessModes: [{modes}]}}}}");
    scene.observe(|observed| {
        observed.claim = Some(std::sync::Arc::new(serde_saphyr::from_str(&claim).unwrap()));
        observed.older =
            vec![workload::templates::deployment::OlderRevision { revision: revision.into(), pods: old }];
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

/// Workers of a new revision that run and are not ready, beside a ready one of the revision before.
fn unreported(spec: &str, started: i64) -> Scene {
    let mut scene = Scene::ready(spec, 1);
    let before = scene.observed().deployed.clone().unwrap();
    scene.edit_spec(|spec| spec.model_endpoint = Some("http://mistake".to_owned()));
    scene.settle(0);
    scene.observe(|observed| {
        observed.deployment.as_mut().unwrap().replicas = 1;
        observed.older = vec![workload::templates::deployment::OlderRevision {
            revision: Default::default(),
            pods: before,
        }];
    });
    scene.pods(&[&format!(
        "{{name: coder-9, node: a, phase: Running, init: [{{name: monitor, state: {{running: {{}}}}}}], containers: [{{name: \
         worker, state: {{running: {{startedAt: '{}'}}}}}}]}}",
        at(started)
    )]);
    scene.loads(vec![crate::load::WorkerLoad {
        fault: Some("port 9100 of the worker refuses connections".to_owned()),
        ..Default::default()
    }]);
    scene
}

#[test]
fn a_revision_that_never_reports_a_load_stops_the_rollout() {
    let scene = unreported("{role: coder}", -59);
    let plan = scene.plan();
    assert_eq!(reason(&plan, conditions::PROGRESSING), reasons::ROLLING);
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(1)));
    let plan = unreported("{role: coder}", -60).plan();
    let progressing = condition(&plan, conditions::PROGRESSING).unwrap();
    assert_eq!((&*progressing.status, &*progressing.reason), ("False", reasons::NEVER_REPORTED));
    for part in ["coder-9", "port 9100", "AGENT_METRICS_PORT", "1 worker of an older revision still ready"] {
        assert!(progressing.message.contains(part), "{}", progressing.message);
    }
    assert_eq!(reason(&plan, conditions::READY), reasons::NEVER_REPORTED);
    assert_eq!(reason(&plan, conditions::AVAILABLE), reasons::MINIMUM_REPLICAS);
    let strategy = deployment_of(&plan).spec.unwrap().strategy.unwrap().rolling_update.unwrap();
    assert_eq!(serde_json::to_value(strategy.max_unavailable).unwrap(), 0, "its predecessor stays");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(120)));
    let phase = |started: i64| unreported("{role: coder}", started).plan().status.current_phase;
    assert_eq!(
        (phase(-179), phase(-180)),
        (Some(Phase::Ready), Some(Phase::Failed)),
        "some agents read their memory first"
    );
}

#[test]
fn a_probe_that_does_not_answer_is_named() {
    let mut scene = unreported("{role: coder, probes: {readinessPath: /ready}}", -60);
    scene.loads(vec![load(0, 0)]);
    let plan = scene.plan();
    assert_eq!(reason(&plan, conditions::PROGRESSING), reasons::PROBE_FAILED);
    assert!(condition(&plan, conditions::PROGRESSING).unwrap().message.contains("/ready on port 9100"));
}

const PROBED: &str = "{role: coder, probes: {readinessPath: /ready, livenessPath: /live}}";

#[test]
fn a_worker_whose_startup_probe_runs_is_not_called_one_that_reports_nothing() {
    let starts = |started: bool| {
        let mut scene = unreported(PROBED, -1_700);
        scene.pods(&[&format!(
            "{{name: coder-9, node: a, phase: Running, containers: [{{name: worker, started: {started}, state: \
             {{running: {{startedAt: '{}'}}}}}}]}}",
            at(-1_700)
        )]);
        scene.loads(Vec::new());
        scene
    };
    assert_eq!(reason(&starts(false).plan(), conditions::PROGRESSING), reasons::ROLLING);
    let mut scene = starts(true);
    let plan = scene.plan();
    assert_eq!(reason(&plan, conditions::PROGRESSING), reasons::ROLLING, "it has just succeeded");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(60)));
    scene.note(&plan, at(-60));
    assert_eq!(reason(&scene.plan(), conditions::PROGRESSING), reasons::NEVER_REPORTED);
}

#[test]
fn a_worker_of_a_pool_in_service_that_does_not_come_back_is_no_failure_of_its_revision() {
    let mut scene = Scene::ready("{role: coder, probes: {readinessPath: /ready}}", 1);
    let resolved = scene.observed().dispatcher.status.as_ref().unwrap().resolved.clone().unwrap();
    assert!(resolved.reported && resolved.ready);
    scene.pods(&[&format!(
        "{{name: coder-0, node: a, phase: Running, conditions: [{{type: Ready, status: 'False', lastTransitionTime: \
         '{}'}}], containers: [{{name: worker, started: true, restartCount: 1, state: {{running: {{startedAt: '{}'}}}}}}]}}",
        at(-200),
        at(-180)
    )]);
    for known in [crate::load::WorkerLoad::default(), load(0, 0)] {
        scene.loads(vec![known]);
        let plan = scene.plan();
        assert_eq!(reason(&plan, conditions::PROGRESSING), reasons::WORKERS_NOT_READY);
        assert_eq!(plan.status.current_phase, Some(Phase::Initializing));
        assert_eq!(plan.status.resolved.as_ref(), Some(&resolved), "it is not forgotten");
    }
    scene.edit_spec(|spec| spec.model_endpoint = Some("http://other".to_owned()));
    assert!(!scene.plan().status.resolved.unwrap().ready, "nothing is known of another template");
}

#[test]
fn a_revision_that_has_reported_a_load_is_not_said_to_have_never_done_so() {
    let mut scene = unreported(PROBED, -60);
    let silent = scene.observed().loads.clone();
    scene.loads(vec![load(0, 0)]);
    scene.write_status();
    scene.observe(|observed| observed.loads = silent);
    let plan = scene.plan();
    scene.note(&plan, at(-180));
    assert_eq!(reason(&scene.plan(), conditions::PROGRESSING), reasons::WORKERS_NOT_READY);
}

#[test]
fn a_pod_is_ready_once_its_monitor_has_read_a_load_and_the_paths_answer() {
    let pod = |spec: &str| deployment_of(&Scene::new(spec).plan()).spec.unwrap().template.spec.unwrap();
    let plain = pod("{role: coder}");
    let ready = plain.init_containers.unwrap()[0].readiness_probe.clone().unwrap().http_get.unwrap();
    assert_eq!(
        (ready.path.as_deref(), serde_json::to_value(ready.port).unwrap()),
        (Some("/readyz"), json!(9410))
    );
    let worker = &plain.containers[0];
    let probes = [&worker.readiness_probe, &worker.liveness_probe, &worker.startup_probe];
    assert!(probes.iter().all(|probe| probe.is_none()), "a worker may listen on loopback alone");
    let worker =
        &pod("{role: coder, probes: {readinessPath: /ready, livenessPath: /live, port: 8000}}").containers[0];
    let path = |probe: &Option<k8s_openapi::api::core::v1::Probe>| {
        let asked = probe.as_ref().unwrap().http_get.clone().unwrap();
        (asked.path.unwrap(), serde_json::to_value(asked.port).unwrap(), asked.host)
    };
    assert_eq!(path(&worker.readiness_probe), ("/ready".to_owned(), json!(8000), None));
    assert_eq!(path(&worker.liveness_probe), ("/live".to_owned(), json!(8000), None));
    assert_eq!(path(&worker.startup_probe), ("/live".to_owned(), json!(8000), None));
}
