//! Whole plans: rendered children, pinned templates, and the status for an observation.

use std::{sync::Arc, time::Duration};

use api::{
    aiinference::{AIInferenceStatus, Engine, Phase, Rollout},
    conditions, labels, reasons,
};
use k8s_openapi::{api::core::v1::PodTemplateSpec, apimachinery::pkg::apis::meta::v1::Time};
use runtime::{events::Severity, refusal::Refusal};
use workload::{
    crashes::Crash,
    deployment::{OlderRevision, ReplicaSetView, TemplateRecord},
    gpu::NodeCapacity,
    pace::Allowance,
};

use super::{Child, LEFTOVER_RETRY, OVERDUE_RETRY, Plan, refused, rejected};
use crate::{
    observe::Observed,
    tests::{REFUSAL_RETRY, Scene, at, defaults, deployment_of},
    validate::{Invalid, validate},
};

const CHAT: &str = "{modelSource: s3://models/qwen/Qwen-7B-Chat, engine: vllm, gpu: {productLabel: A100, count: 1}, replicas: 2}";

fn template(plan: &Plan) -> PodTemplateSpec {
    deployment_of(plan).spec.clone().unwrap().template
}

/// Status, reason and message of one condition.
fn condition<'a>(status: &'a AIInferenceStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    let found = status.conditions.iter().find(|condition| condition.type_ == type_);
    found.map_or(("absent", "", ""), |c| (&c.status, &c.reason, &c.message))
}

fn reason<'a>(status: &'a AIInferenceStatus, type_: &str) -> (&'a str, &'a str) {
    let (status, reason, _) = condition(status, type_);
    (status, reason)
}

#[test]
fn a_new_object_gets_all_its_children() {
    let mut plan = Scene::new(CHAT).plan();
    for child in &mut plan.children {
        if let Child::Deployment(deployment) = child {
            // Removes the copy of the template in the annotation.
            deployment.metadata.annotations.as_mut().unwrap().remove(labels::TEMPLATE);
        }
    }
    insta::assert_yaml_snapshot!(plan);
}

#[test]
fn a_vllm_pod_from_a_store() {
    let spec = "
modelSource: s3://models/qwen
engine: vllm
gpu: {productLabels: [A100, H100], count: 4}
args: [--max-model-len=8192, '$(HOME)']
env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}, {name: USER, value: me}]
servedModelName: qwen
modelStore: {endpoint: 'https://minio.example', secretName: store}
modelVolume: {medium: Memory, size: 16Gi}
modelLoader: {env: [{name: HTTPS_PROXY, value: 'http://proxy:3128'}], resources: {limits: {memory: 1Gi, cpu: 2}}}
resources: {limits: {memory: 32Gi}, requests: {cpu: 4}}
scheduling: {runtimeClassName: kata, schedulerName: volcano, nodeSelector: {zone: a}, tolerations: [{key: spot, operator: Exists, effect: NoSchedule}], priorityClassName: high}
imagePullSecrets: [{name: registry}]
podLabels: {team: search}
podAnnotations: {prometheus.io/scrape: 'false'}
";
    insta::assert_yaml_snapshot!(template(&Scene::new(spec).plan()));
}

/// What an object without these fields gets is in the snapshots, and stays what it was.
#[test]
fn the_loader_gets_the_style_the_authority_and_the_digest_of_the_store() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    let pod = |store: &str, source: &str| {
        let spec =
            format!("{{modelSource: {source}, engine: vllm, gpu: {{count: 1}}, modelStore: {{{store}}}}}");
        template(&Scene::new(&spec).plan()).spec.unwrap()
    };
    let all = format!("addressing: VirtualHosted, caSecretName: private-ca, manifestDigest: '{digest}'");
    let with = pod(&all, "s3://models/qwen");
    let loader = &with.init_containers.as_ref().unwrap()[0];
    let arguments = loader.args.as_ref().unwrap();
    for expected in [
        "--addressing=virtual-hosted".to_owned(),
        "--ca-file=/etc/model-store/ca.crt".to_owned(),
        format!("--manifest-digest={digest}"),
    ] {
        assert!(arguments.contains(&expected), "{expected}: {arguments:?}");
    }
    let volume = with.volumes.as_ref().unwrap().iter().find(|volume| volume.name == "store-ca").unwrap();
    let secret = volume.secret.as_ref().unwrap();
    assert_eq!((secret.secret_name.as_deref(), secret.optional), (Some("private-ca"), None));
    assert_eq!(secret.items.as_ref().unwrap()[0].key, "ca.crt");
    let mounts = |container: &k8s_openapi::api::core::v1::Container| {
        let mounts = container.volume_mounts.as_ref().unwrap().iter();
        mounts
            .filter(|mount| mount.name == "store-ca")
            .map(|mount| mount.mount_path.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (mounts(loader), mounts(&with.containers[0])),
        (vec!["/etc/model-store".to_owned()], Vec::new())
    );

    assert_eq!(pod("addressing: Auto", "s3://models/qwen"), pod("", "s3://models/qwen"));
    assert_eq!(pod("addressing: Path, caSecretName: private-ca", "pvc://models"), pod("", "pvc://models"));
}

#[test]
fn a_triton_pod_from_a_claim() {
    let spec = "
modelSource: pvc://models/vision
engine: triton
gpu: {productLabel: nvidia.com/gpu.product=A100, count: 2}
serviceAccountName: reader
";
    insta::assert_yaml_snapshot!(template(&Scene::new(spec).plan()));
}

#[test]
fn a_tgi_pod_with_an_ephemeral_volume() {
    let spec = "
modelSource: s3://models/qwen
engine: tgi
gpu: {count: 1, resourceName: nvidia.com/mig-1g.10gb}
modelVolume: {medium: Volume, size: 50Gi, storageClassName: fast}
securityContext: {runAsUser: 0}
";
    insta::assert_yaml_snapshot!(template(&Scene::new(spec).plan()));
}

#[test]
fn a_pod_never_mounts_the_token_of_the_kubernetes_api_whatever_its_account_is() {
    for account in [None, Some("reader")] {
        let mut scene = Scene::new(CHAT);
        scene.edit_spec(|spec| spec.pods.service_account_name = account.map(str::to_owned));
        let pod = template(&scene.plan()).spec.unwrap();
        assert_eq!(
            (pod.service_account_name.as_deref(), pod.automount_service_account_token),
            (account, Some(false))
        );
    }
}

#[test]
fn node_failure_seconds_does_not_change_the_template() {
    let tolerations = |seconds: u32| {
        let mut scene = Scene::new(CHAT);
        scene.edit_spec(|spec| spec.node_failure_seconds = seconds.try_into().unwrap());
        template(&scene.plan()).spec.unwrap().tolerations.unwrap()
    };
    assert_eq!(tolerations(0), tolerations(3_600));
    let seconds: Vec<i64> = tolerations(0).iter().filter_map(|one| one.toleration_seconds).collect();
    assert_eq!(seconds, [3_900, 3_900]);
}

#[test]
fn the_same_observation_gives_the_same_bytes() {
    let rendered = || serde_json::to_string(&Scene::new(CHAT).plan()).unwrap();
    assert_eq!(rendered(), rendered());
}

#[test]
fn every_child_has_the_owner_reference_and_the_labels() {
    for child in &Scene::new(CHAT).plan().children {
        let child = serde_json::to_value(child).unwrap();
        let (_, child) = child.as_object().unwrap().iter().next().unwrap();
        let owner = &child["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["controller"], &owner["uid"]), (&true.into(), &"uid-of-chat".into()));
        assert_eq!(owner["blockOwnerDeletion"], true);
        assert_eq!(child["metadata"]["labels"][labels::MANAGED_BY], "inference-controller");
        assert_eq!(child["metadata"]["labels"][labels::INSTANCE], "chat");
    }
}

#[test]
fn every_selector_matches_the_labels_of_the_pods() {
    let plan = Scene::new(CHAT).plan();
    let pod = template(&plan).metadata.unwrap().labels.unwrap();
    for child in &plan.children {
        let selector = match child {
            Child::ConfigMap(_) => continue,
            Child::Deployment(_) => deployment_of(&plan).spec.unwrap().selector.match_labels,
            Child::Service(child) => child.spec.clone().unwrap().selector,
            Child::PodDisruptionBudget(child) => child.spec.clone().unwrap().selector.unwrap().match_labels,
        };
        for (key, value) in selector.unwrap() {
            assert_eq!(pod.get(&key), Some(&value));
        }
    }
}

#[test]
fn new_defaults_do_not_change_existing_templates() {
    let old = Scene::ready(2);
    let upgraded = defaults(&["--vllm-image=vllm:99", "--loader-image=loader:99"]);
    let bytes = |plan: &Plan| serde_json::to_string(&template(plan)).unwrap();
    let before = bytes(&old.plan());
    assert_eq!(bytes(&old.plan_with(&upgraded, at(0))), before);

    let mut scaled = Scene::ready(2);
    scaled.edit_spec(|spec| {
        spec.replicas = 5;
        spec.rollout = Rollout::Replace;
        spec.node_failure_seconds = 90;
    });
    assert_eq!(bytes(&scaled.plan_with(&upgraded, at(0))), before, "scaling restarts no pods");

    let mut changed = Scene::ready(2);
    changed.edit_spec(|spec| spec.warmup_timeout_seconds = 900);
    let after = bytes(&changed.plan_with(&upgraded, at(0)));
    assert!(
        after.contains("vllm:99") && after.contains("loader:99"),
        "a changed spec gets the present defaults"
    );
}

/// The plan after an edit of the Deployment's record, and the template before it.
fn with_record(edit: impl FnOnce(&mut workload::deployment::DeploymentView)) -> (Plan, PodTemplateSpec) {
    let mut scene = Scene::ready(1);
    let before = template(&scene.plan());
    scene.observe(|observed| edit(observed.deployment.as_mut().unwrap()));
    (scene.plan(), before)
}

#[test]
fn a_template_of_another_release_stays_and_the_status_names_the_difference() {
    let (plan, before) = with_record(|deployment| {
        let pinned = deployment.pinned_template.as_ref().unwrap();
        assert!(pinned.contains("loader:1"));
        deployment.pinned_template = Some(pinned.replace("loader:1", "loader:0").into());
    });
    assert_ne!(template(&plan), before);
    let (status, reason, message) = condition(&plan.status, conditions::TEMPLATE_OUTDATED);
    assert_eq!((status, reason), ("True", reasons::NEWER_TEMPLATE));
    assert!(message.contains("spec.initContainers[model-loader].image (loader:0 -> loader:1)"), "{message}");
    assert_eq!(reason_of(&plan, conditions::READY), ("True", reasons::READY), "it is no fault");
}

#[test]
fn the_image_in_the_status_is_that_of_the_pinned_template() {
    let (plan, _) = with_record(|deployment| {
        let pinned: String = deployment.pinned_template.take().unwrap().into();
        let at = pinned.find("\"image\":\"").unwrap() + 9;
        let end = at + pinned[at..].find('"').unwrap();
        deployment.pinned_template = Some(format!("{}vllm:0{}", &pinned[..at], &pinned[end..]).into());
    });
    assert_eq!(plan.status.resolved.unwrap().image, "vllm:0");
}

#[test]
fn a_template_that_is_too_long_for_an_annotation_is_not_recorded() {
    let recorded = |length: usize| {
        let mut scene = Scene::new(CHAT);
        scene.edit_spec(|spec| spec.args = vec!["x".repeat(length)]);
        deployment_of(&scene.plan()).metadata.annotations.unwrap().contains_key(labels::TEMPLATE)
    };
    assert_eq!([recorded(100 << 10), recorded(128 << 10)], [true, false]);
}

fn reason_of<'a>(plan: &'a Plan, type_: &str) -> (&'a str, &'a str) {
    reason(&plan.status, type_)
}

#[test]
fn a_spec_that_is_changed_back_gets_the_template_of_its_remaining_pods() {
    let mut scene = Scene::ready(1);
    scene.observe(|observed| {
        let known = observed.deployment.as_mut().unwrap();
        known.pinned_template =
            known.pinned_template.as_ref().map(|pinned| pinned.replace("loader:1", "loader:0").into());
    });
    scene.edit_spec(|spec| {
        spec.rollout = Rollout::Replace;
        spec.image = Some("typo:1".into());
    });
    scene.roll();
    let loader =
        |plan: &Plan| template(plan).spec.unwrap().init_containers.unwrap()[0].image.clone().unwrap();
    assert_eq!(loader(&scene.plan()), "loader:1");
    scene.edit_spec(|spec| spec.image = None);
    let back = scene.plan();
    assert_eq!(loader(&back), "loader:0", "and no announcement");
    assert_eq!(reason(&back.status, conditions::READY), ("True", reasons::READY));
    assert_eq!(reason(&back.status, conditions::TEMPLATE_OUTDATED).0, "True");
    let mut two = scene.observed().older;
    two[0].pods[0] = std::sync::Arc::new(crate::tests::pod("{node: gpu-1}"));
    let revision = std::sync::Arc::make_mut(&mut two[0].revision).rendered.as_mut().unwrap();
    revision.template = revision.template.replace("loader:0", "loader:9").into();
    scene.observe(|observed| observed.older.extend(two));
    assert_eq!(loader(&scene.plan()), "loader:0", "of several revisions, the one with ready pods");

    let refreshed = |scene: &mut Scene, value: &str| {
        scene.observe(|observed| {
            let meta = &mut std::sync::Arc::make_mut(&mut observed.inference).metadata;
            meta.annotations = Some([(labels::REFRESH.to_owned(), value.to_owned())].into());
        });
        scene.write_status();
        loader(&scene.plan())
    };
    assert_eq!(refreshed(&mut scene, "now"), "loader:1", "a new rendering is requested");
}

/// The admission policy lets a Deployment keep the token that an older release gave its pods, and gives none back.
#[test]
fn a_token_of_an_older_release_is_kept_while_it_serves_and_never_given_back() {
    let has_token =
        |scene: &Scene| template(&scene.plan()).spec.unwrap().automount_service_account_token.unwrap();
    let given = |token_account: Option<&str>| {
        let mut scene = Scene::ready(1);
        scene.edit_spec(|spec| spec.pods.service_account_name = Some("reader".into()));
        scene.settle(1);
        scene.observe(|observed| {
            let known = observed.deployment.as_mut().unwrap();
            let pinned = known.pinned_template.take().unwrap();
            let field = "\"automountServiceAccountToken\":";
            known.pinned_template =
                Some(pinned.replace(&format!("{field}false"), &format!("{field}true")).into());
            known.token_account = token_account.map(Into::into);
        });
        scene.write_status();
        scene
    };
    let mut scene = given(Some("reader"));
    assert!(has_token(&scene));
    scene.edit_spec(|spec| spec.image = Some("typo:1".into()));
    scene.roll();
    assert!(!has_token(&scene));
    scene.edit_spec(|spec| spec.image = None);
    assert!(!has_token(&scene), "the mistake is taken back");

    let hardened = given(None);
    assert!(!has_token(&hardened), "the field of the Deployment was set to false by hand");
}

#[test]
fn a_flag_that_became_invalid_is_tolerated_while_pods_of_that_spec_exist() {
    let mut scene = Scene::ready(1);
    scene.edit_spec(|spec| spec.args = vec!["--port=1".into()]);
    scene.settle(1);
    scene.edit_spec(|spec| spec.image = Some("typo:1".into()));
    scene.roll();
    scene.edit_spec(|spec| spec.image = None);
    let has_pods =
        |scene: &Scene| super::has_pods(&validate(&scene.observed().inference).unwrap(), &scene.observed());
    assert!(has_pods(&scene));
    scene.observe(|observed| observed.older.clear());
    assert!(!has_pods(&scene));
}

#[test]
fn unknown_fields_of_a_pinned_template_are_kept() {
    let (plan, _) = with_record(|deployment| {
        let mut pinned: serde_json::Value =
            serde_json::from_str(deployment.pinned_template.as_ref().unwrap()).unwrap();
        pinned["spec"]["fieldOfTheFuture"] = true.into();
        deployment.pinned_template = Some(pinned.to_string().into());
        deployment.resolved = Some("{\"version\": 9}".into());
    });
    let deployment = plan.children.iter().find_map(|child| match child {
        Child::Deployment(deployment) => Some(deployment),
        Child::ConfigMap(_) | Child::Service(_) | Child::PodDisruptionBudget(_) => None,
    });
    assert_eq!(deployment.unwrap().spec["template"]["spec"]["fieldOfTheFuture"], true);
}

#[test]
fn a_new_value_of_the_refresh_annotation_takes_the_newer_template_once() {
    let mut scene = Scene::ready(1);
    scene.observe(|observed| {
        let deployment = observed.deployment.as_mut().unwrap();
        deployment.pinned_template =
            deployment.pinned_template.as_ref().map(|pinned| pinned.replace("loader:1", "loader:0").into());
    });
    let loader = |scene: &Scene| {
        let containers = template(&scene.plan()).spec.unwrap().init_containers.unwrap();
        containers[0].image.clone().unwrap()
    };
    assert_eq!(loader(&scene), "loader:0");
    let refresh = |scene: &mut Scene, value: Option<&str>| {
        scene.observe(|observed| {
            let meta = &mut std::sync::Arc::make_mut(&mut observed.inference).metadata;
            meta.annotations = value.map(|value| [(labels::REFRESH.to_owned(), value.to_owned())].into());
        });
    };
    refresh(&mut scene, Some("now"));
    assert_eq!(loader(&scene), "loader:1");
    scene.settle(1);
    scene.observe(|observed| {
        let deployment = observed.deployment.as_mut().unwrap();
        deployment.pinned_template =
            deployment.pinned_template.as_ref().map(|pinned| pinned.replace("loader:1", "loader:2").into());
    });
    assert_eq!(loader(&scene), "loader:2", "the value is the same");
    refresh(&mut scene, None);
    assert_eq!(loader(&scene), "loader:2", "removing the annotation is no new value");
    scene.settle(1);
    refresh(&mut scene, Some("now"));
    assert_eq!(loader(&scene), "loader:2", "the last value again is no new value");
}

#[test]
fn an_object_with_all_replicas_ready_is_ready() {
    let status = Scene::ready(2).plan().status;
    assert_eq!((status.phase, status.ready_replicas, status.model_loaded), (Some(Phase::Ready), 2, true));
    for (type_, expected) in [
        (conditions::ACCEPTED, reasons::VALID),
        (conditions::MODEL_LOADED, reasons::LOADED),
        (conditions::SCHEDULED, reasons::SCHEDULED),
        (conditions::AVAILABLE, reasons::MINIMUM_REPLICAS),
        (conditions::PROGRESSING, reasons::COMPLETE),
        (conditions::READY, reasons::READY),
    ] {
        assert_eq!(reason(&status, type_), ("True", expected));
    }
    assert_eq!(status.url.as_deref(), Some("http://chat.demo.svc:8000"));
    let selector = "ai.infra.example.com/track=stable,app.kubernetes.io/instance=chat,app.kubernetes.io/name=aiinference";
    assert_eq!(status.selector.as_deref(), Some(selector));
}

#[test]
fn at_rest_nothing_changes_and_nothing_is_reported() {
    let scene = Scene::ready(2);
    let plan = scene.plan_with(&defaults(&[]), at(3600));
    assert_eq!(Some(&plan.status), scene.observed().inference.status.as_ref());
    assert!(plan.events.is_empty() && plan.budget_deletions.is_empty() && plan.requeue_after.is_none());
}

#[test]
fn a_changed_spec_is_ready_only_when_its_own_pods_are() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.args = vec!["--max-model-len=1".into()]);
    let status = scene.plan().status;
    assert_eq!(status.phase, Some(Phase::Pending));
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(reason(&status, conditions::PROGRESSING), ("True", reasons::ROLLING));
    assert_eq!(
        reason(&status, conditions::AVAILABLE),
        ("True", reasons::MINIMUM_REPLICAS),
        "the old pods still serve"
    );
    assert_eq!((status.ready_replicas, status.updated_ready_replicas, status.model_loaded), (2, 0, false));
    assert_eq!(status.observed_generation, 2);
}

#[test]
fn the_first_status_waits_until_there_is_something_to_say_and_its_phase_has_a_time() {
    let mut scene = Scene::new("{modelSource: s3://models/qwen, engine: vllm, gpu: {count: 1}}");
    // As the API server fills it in.
    let default = AIInferenceStatus { phase: Some(Phase::Pending), ..AIInferenceStatus::default() };
    scene.observe(|observed| {
        std::sync::Arc::make_mut(&mut observed.inference).status = Some(default.clone());
    });
    let plan = scene.plan_with(&defaults(&[]), at(100));
    assert!(!plan.children.is_empty(), "its children wait for nothing");
    assert_eq!((&plan.status, plan.events.len()), (&default, 0));
    let wait = plan.requeue_after.unwrap();
    assert!(wait <= std::time::Duration::from_secs(2), "{wait:?}");

    let since = plan.facts.into_iter().map(|fact| (fact, at(100)));
    scene.observe(|observed| observed.facts = since.collect());
    let plan = scene.plan_with(&defaults(&[]), at(102));
    let status = plan.status;
    assert_eq!((status.phase, status.last_transition_time.is_some()), (Some(Phase::Pending), true));
    assert_eq!(status.observed_generation, 1);

    // As `FactTimes` does it, and the write has failed.
    scene.observe(|observed| observed.facts.retain(|fact, _| plan.facts.contains(fact)));
    let soon = at(102) + jiff::SignedDuration::from_millis(5);
    let again = scene.plan_with(&defaults(&[]), soon).status;
    assert_eq!(again.observed_generation, 1, "it is tried again without another wait");

    scene.observe(|observed| observed.facts.clear());
    scene.settle(1);
    scene.observe(|observed| {
        std::sync::Arc::make_mut(&mut observed.inference).status = Some(default.clone());
    });
    let plan = scene.plan_with(&defaults(&[]), at(100));
    assert_eq!(
        (plan.status.phase, plan.events.len()),
        (Some(Phase::Ready), 1),
        "this is worth saying at once"
    );
}

#[test]
fn pods_of_another_template_do_not_make_it_ready() {
    let mut scene = Scene::ready(2);
    // As after an edit of the Deployment: there is no revision of that template yet.
    scene.older_pods(2);
    scene.observe(|observed| observed.deployed = None);
    let status = scene.plan().status;
    assert_eq!(reason(&status, conditions::READY).0, "False");
    assert_eq!((status.ready_replicas, status.updated_ready_replicas), (2, 0));
}

#[test]
fn progress_causes_no_events_and_completion_causes_one() {
    let mut scene = Scene::new(CHAT);
    scene.edit_spec(|spec| spec.replicas = 3);
    scene.settle(0);
    scene.pods(&["{node: gpu-0}", "{node: gpu-1}", "{node: gpu-2}"]);
    scene.write_status();
    scene.pods(&["{ready: true, node: gpu-0}", "{node: gpu-1}", "{node: gpu-2}"]);
    let plan = scene.plan();
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::ROLLING), "another reason");
    assert!(plan.events.is_empty());
    scene.write_status();
    scene.pods(&["{ready: true, node: gpu-0}", "{ready: true, node: gpu-1}", "{ready: true, node: gpu-2}"]);
    assert_eq!(scene.plan().events.len(), 1);
}

#[test]
fn counts_of_new_pods_are_delayed_and_condition_changes_are_not() {
    let mut scene = Scene::new(CHAT);
    scene.settle(0);
    let new = |more: &str| format!("{{created: '{}', {more}}}", at(0));
    scene.pods(&[&new("phase: Pending")]);
    let seen = |scene: &Scene, seconds| {
        let plan = scene.plan_with(&defaults(&[]), at(seconds));
        (plan.status.replicas, plan.requeue_after.map(|wait| wait.as_secs()))
    };
    assert_eq!(seen(&scene, 0), (0, Some(5)));
    assert_eq!(seen(&scene, 4), (0, Some(1)));
    assert_eq!(seen(&scene, 5), (1, None));
    assert_eq!(seen(&scene, -5), (1, None), "clock skew delays nothing");
    scene.pods(&[&new("node: gpu-0")]);
    assert_eq!(seen(&scene, 0), (1, None), "the pod was scheduled");
}

#[test]
fn a_change_of_measured_numbers_is_written_after_ten_seconds_and_other_changes_at_once() {
    let mut scene = Scene::new(CHAT);
    scene.settle(0);
    let stuck = |name: &str| {
        format!(
            "{{name: {name}, conditions: [{{type: PodScheduled, status: 'False', reason: Unschedulable, message: \
             '1 Insufficient nvidia.com/gpu.'}}]}}"
        )
    };
    scene.pods(&[&stuck("a")]);
    let free = |scene: &mut Scene, free: i64| {
        let node = "{metadata: {name: gpu-0, labels: {nvidia.com/gpu.product: A100}}}";
        let capacity = NodeCapacity {
            node: std::sync::Arc::new(serde_saphyr::from_str(node).unwrap()),
            allocatable: 8,
            free,
        };
        // Fewer than are requested.
        scene.observe(|observed| observed.capacities = Some(vec![capacity]));
    };
    scene.edit_spec(|spec| spec.gpu.count = 4);
    scene.settle(0);
    scene.pods(&[&stuck("a")]);
    free(&mut scene, 1);
    scene.write_status();
    free(&mut scene, 2);
    let seen = |scene: &Scene, seconds| {
        let plan = scene.plan_with(&defaults(&[]), at(seconds));
        let message = condition(&plan.status, conditions::SCHEDULED).2;
        (message[message.len() - 1..].to_owned(), plan.facts, plan.requeue_after.map(|wait| wait.as_secs()))
    };
    let (number, measured, wait) = seen(&scene, 0);
    assert_eq!((&*number, measured.len(), wait), ("1", 1, Some(10)));
    scene.observe(|observed| observed.facts = [(measured[0].clone(), at(0))].into());
    assert_eq!(seen(&scene, 9), ("1".into(), measured.clone(), Some(1)));
    assert_eq!(seen(&scene, 10), ("2".into(), measured, Some(30)));

    // As `FactTimes` does it, and the write has failed.
    let noted = scene.plan_with(&defaults(&[]), at(10)).facts;
    scene.observe(|observed| observed.facts.retain(|fact, _| noted.contains(fact)));
    assert_eq!(seen(&scene, 11).0, "2", "it is tried again without another wait");

    let written = scene.plan_with(&defaults(&[]), at(11)).status;
    let stored = scene.observed().inference.status.clone();
    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).status = Some(written));
    free(&mut scene, 3);
    assert_eq!(seen(&scene, 12).0, "2", "a written number waits for the next one as long again");
    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).status = stored);

    free(&mut scene, 1);
    assert_eq!(seen(&scene, 9).1, [""; 0], "the status equals the written one");

    scene.pods(&[&stuck("a"), &stuck("b")]);
    free(&mut scene, 2);
    assert_eq!(seen(&scene, 1).0, "2", "the number of pods has changed, too");
    free(&mut scene, 4);
    assert_eq!(reason(&scene.plan().status, conditions::SCHEDULED).1, reasons::INSUFFICIENT_GPU);
    scene.observe(|observed| observed.capacities = None);
    assert!(scene.plan().facts.is_empty(), "another message is no measured number");
}

#[test]
fn a_changed_reason_is_never_delayed() {
    let mut scene = Scene::new(CHAT);
    scene.settle(0);
    let crashed = |why: &str| {
        let state = format!("restartCount: 2, state: {{terminated: {{exitCode: 1, reason: {why}}}}}");
        format!("{{created: '{}', node: gpu-0, containers: [{{name: engine, {state}}}]}}", at(0))
    };
    for (why, expected) in [("Error", reasons::CRASH_LOOP), ("OOMKilled", reasons::OUT_OF_MEMORY)] {
        scene.pods(&[&crashed(why)]);
        assert_eq!(reason(&scene.plan().status, conditions::READY), ("False", expected));
        scene.write_status();
    }
}

#[test]
fn scaling_up_is_not_ready_and_scaling_down_is() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.replicas = 3);
    let status = scene.plan().status;
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::SCALING));
    assert_eq!(reason(&status, conditions::PROGRESSING), ("True", reasons::SCALING));
    assert!(status.model_loaded);

    let mut scene = Scene::ready(3);
    scene.edit_spec(|spec| spec.replicas = 2);
    assert_eq!(scene.plan().status.phase, Some(Phase::Ready));
}

#[test]
fn no_replicas_means_stopped() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.replicas = 0);
    let plan = scene.plan();
    assert_eq!(deployment_of(&plan).spec.as_ref().unwrap().replicas, Some(0));
    assert_eq!((plan.status.phase, plan.status.model_loaded), (Some(Phase::Pending), false));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::STOPPED));
}

#[test]
fn a_paused_object_is_not_changed_and_has_the_reason_paused() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| {
        spec.pods.paused = true;
        spec.replicas = 7;
    });
    let plan = scene.plan();
    assert!(plan.children.is_empty() && plan.budget_deletions.is_empty());
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::PAUSED));

    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.pods.paused = true);
    let (status, reason, message) = {
        let plan = scene.plan();
        let (status, reason, message) = condition(&plan.status, conditions::READY);
        (status.to_owned(), reason.to_owned(), message.to_owned())
    };
    assert_eq!((status.as_str(), reason.as_str()), ("True", reasons::PAUSED), "it still serves");
    assert!(message.contains("2 of 2 replicas are ready"), "{message}");
}

#[test]
fn an_announcement_is_made_once_even_if_the_change_is_denied() {
    let announced = |edit: fn(&mut api::aiinference::AIInferenceSpec)| {
        let mut scene = Scene::ready(1);
        scene.edit_spec(|spec| {
            spec.rollout = Rollout::Replace;
            spec.args = vec!["--x".into()];
            edit(spec);
        });
        scene
    };
    let mut scene = announced(|_| {});
    let first = scene.plan();
    assert!(first.children.is_empty() && first.requeue_after == Some(Duration::ZERO));
    scene.write_status();
    assert!(!scene.plan().children.is_empty());
    // A webhook denies the announced change.
    let observed = scene.observed();
    let valid = validate(&observed.inference).unwrap();
    let denied = refused(
        &Refusal::Denied("no".into()),
        &valid,
        &observed,
        &Allowance::default(),
        &defaults(&[]),
        at(0),
    )
    .status;
    assert_eq!(reason(&denied, conditions::PROGRESSING), ("False", reasons::DENIED));
    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).status = Some(denied));
    assert!(!scene.plan().children.is_empty());

    let stopped = announced(|spec| spec.replicas = 0);
    assert!(!stopped.plan().children.is_empty(), "stopping needs no announcement");
}

#[test]
fn scaling_to_one_replica_deletes_the_budget() {
    let budget = Scene::ready(2).plan().children.into_iter().find_map(|child| match child {
        Child::PodDisruptionBudget(budget) => Some(*budget),
        Child::ConfigMap(_) | Child::Deployment(_) | Child::Service(_) => None,
    });
    let mut scene = Scene::ready(1);
    assert!(scene.plan().budget_deletions.is_empty());
    scene.observe(|observed| observed.budget = budget.map(|budget| budget.metadata));
    let plan = scene.plan();
    assert_eq!(plan.budget_deletions.len(), 1);
    assert!(!plan.children.iter().any(|child| matches!(child, Child::PodDisruptionBudget(_))));
}

#[test]
fn a_scheduled_pod_is_loading_and_an_unscheduled_one_pending() {
    let mut scene = Scene::ready(1);
    scene.pods(&["{phase: Pending}"]);
    let status = scene.plan().status;
    assert_eq!(status.phase, Some(Phase::Pending));
    assert_eq!(reason(&status, conditions::SCHEDULED).0, "absent");

    scene.pods(&["{phase: Pending, node: gpu-0}"]);
    let status = scene.plan().status;
    assert_eq!(status.phase, Some(Phase::Loading));
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(reason(&status, conditions::SCHEDULED), ("True", reasons::SCHEDULED));
}

#[test]
fn a_crash_fails_the_revision_while_older_pods_still_serve() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.image = Some("broken:1".into()));
    scene.settle(2);
    scene.older_pods(2);
    scene.pods(&["{node: gpu-0, containers: [{name: engine, restartCount: 2, lastState: {terminated: {exitCode: 1}}}]}"]);
    let plan = scene.plan();
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    let (status, reason_, message) = condition(&plan.status, conditions::PROGRESSING);
    assert_eq!((status, reason_), ("False", reasons::CRASH_LOOP));
    assert!(message.ends_with("2 pods of an older revision still ready"), "{message}");
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::CRASH_LOOP));
    assert_eq!(reason(&plan.status, conditions::AVAILABLE).0, "True");
    assert_eq!(plan.events[0].severity, Severity::Warning);
    assert_eq!(plan.events[0].reason, reasons::CRASH_LOOP);
}

#[test]
fn a_missing_model_is_the_reason_of_ready() {
    let mut scene = Scene::ready(1);
    scene.pods(&["{node: gpu-0, init: [{name: model-loader, state: {terminated: {exitCode: 11, message: no such key}}}]}"]);
    let status = scene.plan().status;
    assert_eq!(status.phase, Some(Phase::Failed));
    assert_eq!(reason(&status, conditions::MODEL_LOADED), ("False", reasons::SOURCE_NOT_FOUND));
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::SOURCE_NOT_FOUND));
    assert!(condition(&status, conditions::READY).2.ends_with("no such key"));
}

#[test]
fn a_volume_that_is_not_attached_within_a_minute_fails_the_revision() {
    let mut scene = Scene::ready(1);
    let placed = format!("{{type: PodScheduled, status: 'True', lastTransitionTime: '{}'}}", at(0));
    scene.pods(&[&format!("{{phase: Pending, node: gpu-1, conditions: [{placed}]}}")]);
    scene.unattached("Multi-Attach error");
    let plan = scene.plan_with(&defaults(&[]), at(59));
    assert_eq!(
        (plan.status.phase, plan.requeue_after.map(|wait| wait.as_secs())),
        (Some(Phase::Loading), Some(1))
    );
    let status = scene.plan_with(&defaults(&[]), at(60)).status;
    assert_eq!(status.phase, Some(Phase::Failed));
    let message = "pod chat-0 on node gpu-1 waits for its volume: Multi-Attach error";
    assert_eq!(condition(&status, conditions::READY), ("False", reasons::VOLUME_NOT_ATTACHED, message));
}

#[test]
fn a_missing_secret_of_authorities_is_a_fault_of_the_model_that_names_the_secret_and_the_field() {
    let mut scene = Scene::new(
        "{modelSource: s3://models/qwen, engine: vllm, gpu: {count: 1}, modelStore: {caSecretName: private-ca}}",
    );
    scene.settle(1);
    let placed = format!("{{type: PodScheduled, status: 'True', lastTransitionTime: '{}'}}", at(0));
    scene.pods(&[&format!("{{phase: Pending, node: gpu-1, conditions: [{placed}]}}")]);
    for (why, message) in [
        (
            "references non-existent secret key: ca.crt",
            "Secret demo/private-ca has no key \"ca.crt\" (spec.modelStore.caSecretName)",
        ),
        (
            "secret \"private-ca\" not found",
            "Secret demo/private-ca not found (spec.modelStore.caSecretName)",
        ),
    ] {
        scene.unmounted(&format!("MountVolume.SetUp failed for volume \"store-ca\" : {why}"));
        assert_eq!(scene.plan_with(&defaults(&[]), at(29)).status.phase, Some(Phase::Loading));
        let status = scene.plan_with(&defaults(&[]), at(30)).status;
        let expected = ("False", reasons::SECRET_NOT_FOUND, message);
        assert_eq!(condition(&status, conditions::MODEL_LOADED), expected);
        assert_eq!(condition(&status, conditions::READY), expected);
    }
    scene.unmounted("MountVolume.SetUp failed for volume \"home\" : secret \"x\" not found");
    let status = scene.plan_with(&defaults(&[]), at(30)).status;
    assert_eq!(reason(&status, conditions::PROGRESSING), ("False", reasons::SECRET_NOT_FOUND));
}

#[test]
fn an_unreachable_source_is_a_fault_until_the_loader_has_run_longer_than_its_stall_timeout() {
    let mut scene = Scene::ready(1);
    scene.pods(&[&format!(
        "{{node: gpu-0, init: [{{name: model-loader, restartCount: 1, state: {{running: {{startedAt: '{}'}}}}, \
         lastState: {{terminated: {{exitCode: 12}}}}}}]}}",
        at(0)
    )]);
    let seen = |seconds| {
        let plan = scene.plan_with(&defaults(&[]), at(seconds));
        (reason_of(&plan, conditions::READY).1.to_owned(), plan.requeue_after.map(|wait| wait.as_secs()))
    };
    assert_eq!(
        seen(200),
        (reasons::SOURCE_UNREACHABLE.to_owned(), Some(50)),
        "the loader ends after 250 s without progress"
    );
    assert_eq!(seen(250), (reasons::LOADING.to_owned(), None), "so it makes progress");
}

#[test]
fn evictions_are_the_reason_until_a_pod_survives_longer() {
    let mut scene = Scene::ready(1);
    let rejected = |seconds| {
        std::sync::Arc::new(crate::tests::pod(&format!("{{phase: Failed, created: '{}'}}", at(seconds))))
    };
    scene.observe(|observed| observed.failed = vec![rejected(-9), rejected(-8)]);
    scene.pods(&[&format!("{{node: gpu-0, created: '{}'}}", at(-7))]);
    assert_eq!(reason_of(&scene.plan(), conditions::READY).1, reasons::EVICTED);
    scene.pods(&[&format!(
        "{{node: gpu-0, created: '{}', init: [{{name: model-loader, state: {{running: {{}}}}}}]}}",
        at(-7)
    )]);
    assert_eq!(reason_of(&scene.plan(), conditions::READY).1, reasons::LOADING);
}

#[test]
fn a_lack_of_gpus_is_pending_and_no_failure() {
    let mut scene = Scene::ready(1);
    scene.pods(&[
        "{phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, \
                 message: '0/4 nodes are available: 4 Insufficient nvidia.com/gpu.'}]}",
    ]);
    let plan = scene.plan();
    assert_eq!(plan.status.phase, Some(Phase::Pending));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::INSUFFICIENT_GPU));
    assert!(condition(&plan.status, conditions::READY).2.starts_with("needs 1 nvidia.com/gpu"));
    assert_eq!(plan.events[0].severity, Severity::Warning);
}

#[test]
fn a_refused_creation_of_pods_is_the_reason() {
    let mut scene = Scene::ready(1);
    scene.pods(&[]);
    scene.observe(|observed| {
        let failure = "{type: ReplicaFailure, status: 'True', message: exceeded quota}";
        observed.deployment.as_mut().unwrap().creation_failure =
            Some(serde_saphyr::from_str(failure).unwrap());
    });
    let status = scene.plan().status;
    let expected = ("False", reasons::UNSCHEDULABLE, "pods cannot be created: exceeded quota");
    assert_eq!(condition(&status, conditions::READY), expected);
    assert_eq!(status.phase, Some(Phase::Pending));
}

fn warming_up(for_seconds: i64, more: &str) -> Scene {
    let mut scene = Scene::ready(1);
    scene.pods(&[&format!(
        "{{node: gpu-0, containers: [{{name: engine, started: false, \
         state: {{running: {{startedAt: '{}'}}}}{more}}}]}}",
        at(-for_seconds)
    )]);
    scene
}

#[test]
fn the_stage_of_a_pod_is_reported_once_it_takes_long() {
    let plan = warming_up(3, "").plan();
    assert_eq!(condition(&plan.status, conditions::READY).2, "no pod of the current revision is ready yet");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(7)));
    let plan = warming_up(10, "").plan();
    assert_eq!(condition(&plan.status, conditions::READY).2, "engine of pod chat-0 is warming up");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(290)));
}

#[test]
fn a_warm_up_fails_exactly_at_its_timeout() {
    let plan = warming_up(299, "").plan();
    assert_eq!(plan.status.phase, Some(Phase::Loading));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(1)));
    let plan = warming_up(300, "").plan();
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::WARMUP_TIMEOUT));
    assert_eq!(plan.requeue_after, None);
}

#[test]
fn the_kubelets_restart_does_not_hide_a_warm_up_timeout() {
    let mut scene = warming_up(300, "");
    scene.write_status();
    scene.pods(&["{node: gpu-0, containers: [{name: engine, restartCount: 1, state: {running: {}}, \
                 lastState: {terminated: {exitCode: 137, reason: Error}}}]}"]);
    let status = scene.plan().status;
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::WARMUP_TIMEOUT));
    scene.write_status();
    scene.pods(&[
        "{node: gpu-0, containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 1}}}]}",
    ]);
    assert_eq!(
        reason(&scene.plan().status, conditions::READY).1,
        reasons::CRASH_LOOP,
        "the kubelet did not end it"
    );
    scene.pods(&[
        "{ready: true, node: gpu-0, containers: [{name: engine, restartCount: 1, state: {running: {}}}]}",
    ]);
    assert_eq!(scene.plan().status.phase, Some(Phase::Ready));
}

#[test]
fn a_transition_time_changes_only_with_the_status() {
    let mut scene = Scene::ready(1);
    let time = |status: &AIInferenceStatus, type_: &str| {
        status.conditions.iter().find(|c| c.type_ == type_).unwrap().last_transition_time.0
    };
    scene.pods(&["{phase: Pending, node: gpu-0}"]);
    let changed = scene.plan_with(&defaults(&[]), at(60)).status;
    assert_eq!(time(&changed, conditions::READY), at(60));
    assert_eq!(time(&changed, conditions::ACCEPTED), at(0));
    assert_eq!(changed.last_transition_time.clone().unwrap().0, at(60));

    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).status = Some(changed));
    scene.pods(&[
        "{node: gpu-0, containers: [{name: engine, restartCount: 2, state: {terminated: {exitCode: 1}}}]}",
    ]);
    let still = scene.plan_with(&defaults(&[]), at(90)).status;
    assert_eq!(reason(&still, conditions::READY), ("False", reasons::CRASH_LOOP));
    assert_eq!(time(&still, conditions::READY), at(60), "another reason is no transition");
}

#[test]
fn an_invalid_spec_does_not_change_the_children() {
    let mut scene = Scene::ready(2);
    scene.edit_spec(|spec| spec.args = vec!["--port=1".into()]);
    let observed = scene.observed();
    let invalid = validate(&observed.inference).unwrap().tolerated.unwrap();
    let plan = rejected(&invalid, &observed, &Allowance::default(), at(0));
    assert!(plan.children.is_empty() && plan.budget_deletions.is_empty());
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    assert_eq!(reason(&plan.status, conditions::ACCEPTED), ("False", reasons::INVALID_SPEC));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::INVALID_SPEC));
    assert_eq!((plan.status.ready_replicas, plan.status.model_loaded), (2, false));
    assert_eq!(plan.status.url, observed.inference.status.as_ref().unwrap().url);
    assert!(plan.events[0].message.contains("--port"));
    assert_eq!(
        rejected(&Invalid("x".into()), &observed, &Allowance::default(), at(0)).requeue_after,
        None,
        "only a change of the spec helps"
    );
}

#[test]
fn an_ownership_conflict_is_reported_and_retried() {
    let observed = Scene::new(CHAT).observed();
    let valid = validate(&observed.inference).unwrap();
    let refusal = Refusal::OwnershipConflict("Deployment demo/chat exists and has no owner".into());
    let plan = refused(&refusal, &valid, &observed, &Allowance::default(), &defaults(&[]), at(0));
    assert!(plan.children.is_empty());
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::OWNERSHIP_CONFLICT));
    assert_eq!(reason(&plan.status, conditions::ACCEPTED), ("True", reasons::VALID));
    assert_eq!(plan.requeue_after, Some(REFUSAL_RETRY));
}

#[test]
fn children_of_a_deleted_predecessor_are_waited_for() {
    let observed = Scene::new(CHAT).observed();
    let valid = validate(&observed.inference).unwrap();
    let leftover = Refusal::Leftover { deleted: Some(at(-30)), message: "is still there".into() };
    let plan = refused(&leftover, &valid, &observed, &Allowance::default(), &defaults(&[]), at(0));
    assert!(plan.children.is_empty());
    assert_eq!(plan.status.phase, Some(Phase::Pending));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(plan.requeue_after, Some(LEFTOVER_RETRY));
}

#[test]
fn a_child_of_a_deleted_predecessor_that_is_not_deleted_in_time_is_a_conflict() {
    let mut scene = Scene::new(CHAT);
    scene.observe(|observed| {
        std::sync::Arc::make_mut(&mut observed.inference).metadata.creation_timestamp = Some(Time(at(-31)));
    });
    let observed = scene.observed();
    let valid = validate(&observed.inference).unwrap();
    for deleted in [Some(at(-31)), None] {
        let leftover = Refusal::Leftover { deleted, message: "Service demo/chat is still there".into() };
        let plan = refused(&leftover, &valid, &observed, &Allowance::default(), &defaults(&[]), at(0));
        let expected = ("False", reasons::OWNERSHIP_CONFLICT, "Service demo/chat is still there");
        assert_eq!(condition(&plan.status, conditions::READY), expected);
        assert_eq!(plan.requeue_after, Some(OVERDUE_RETRY));
    }
}

/// Three crashing replicas.
fn crashing() -> Scene {
    let mut scene = Scene::ready(3);
    let crashed = |name: &str| {
        format!(
            "{{name: {name}, node: gpu-0, phase: Running, containers: [{{name: engine, restartCount: 3, \
             state: {{waiting: {{reason: CrashLoopBackOff}}}}, lastState: {{terminated: {{exitCode: 1}}}}}}]}}"
        )
    };
    scene.pods(&["a", "b", "c"].map(crashed).each_ref().map(String::as_str));
    for pod in ["a", "b", "c"] {
        set_crash(&mut scene, pod, Crash::Unread);
    }
    scene
}

fn set_crash(scene: &mut Scene, pod: &str, crash: Crash) {
    scene.observe(|observed| {
        observed.crashes.insert(pod.to_owned(), crash);
    });
}

#[test]
fn at_most_two_logs_are_read_at_a_time_and_none_when_a_cause_is_known() {
    let mut scene = crashing();
    let asked = |scene: &Scene| scene.plan().logs.into_iter().map(|log| log.pod).collect::<Vec<_>>();
    assert_eq!(asked(&scene), ["a", "b"]);
    for pod in ["a", "b"] {
        set_crash(&mut scene, pod, Crash::Unknown { restarts: 3 });
    }
    assert_eq!(asked(&scene), ["c"]);
    set_crash(&mut scene, "c", Crash::Known { cause: "SafetensorError: x".into() });
    assert!(asked(&scene).is_empty());
    set_crash(&mut scene, "a", Crash::Unknown { restarts: 2 });
    assert!(asked(&scene).is_empty(), "one cause is enough");
    assert_eq!(
        condition(&scene.plan().status, conditions::READY).2,
        "engine of pod a ended with code 1 (3 restarts): pod c ended with SafetensorError: x; see kubectl logs a -c engine --previous"
    );
}

#[test]
fn after_a_restart_of_the_controller_the_written_cause_stays_until_the_log_is_read() {
    let mut scene = crashing();
    set_crash(&mut scene, "a", Crash::Known { cause: "ValueError: a (b); c".into() });
    scene.write_status();
    let written = scene.observed().inference.status.clone();
    set_crash(&mut scene, "a", Crash::Unread);
    let plan = scene.plan();
    assert_eq!(
        Some(&plan.status),
        written.as_ref(),
        "a restart of the controller must not cost a write per object"
    );
    assert_eq!(plan.logs[0].pod, "a");
    set_crash(&mut scene, "a", Crash::Unknown { restarts: 3 });
    assert!(
        !condition(&scene.plan().status, conditions::READY).2.contains("ValueError"),
        "the log names no cause now"
    );
}

#[test]
fn a_denied_child_is_reported_with_the_api_servers_message_and_retried() {
    let observed = Scene::new(CHAT).observed();
    let valid = validate(&observed.inference).unwrap();
    let words = "the API server denies Deployment demo/chat: exceeded quota: gpus";
    let plan = refused(
        &Refusal::Denied(words.into()),
        &valid,
        &observed,
        &Allowance::default(),
        &defaults(&[]),
        at(0),
    );
    assert_eq!(condition(&plan.status, conditions::READY), ("False", reasons::DENIED, words));
    assert_eq!(reason(&plan.status, conditions::ACCEPTED), ("True", reasons::VALID));
    assert_eq!(plan.status.phase, Some(Phase::Failed));
    assert_eq!(plan.requeue_after, Some(REFUSAL_RETRY));
}

#[test]
fn a_child_refused_as_invalid_is_a_fault_of_the_spec() {
    let observed = Scene::new(CHAT).observed();
    let valid = validate(&observed.inference).unwrap();
    let plan = refused(
        &Refusal::Invalid("no".into()),
        &valid,
        &observed,
        &Allowance::default(),
        &defaults(&[]),
        at(0),
    );
    assert_eq!(condition(&plan.status, conditions::ACCEPTED), ("False", reasons::INVALID_SPEC, "no"));
    assert_eq!(reason(&plan.status, conditions::READY), ("False", reasons::INVALID_SPEC));
}

#[test]
fn only_replace_allows_an_unavailable_pod() {
    let surge = |rollout: Rollout| {
        let mut scene = Scene::new(CHAT);
        scene.edit_spec(|spec| spec.rollout = rollout);
        let rolling = deployment_of(&scene.plan()).spec.unwrap().strategy.unwrap().rolling_update.unwrap();
        serde_json::to_string(&(rolling.max_surge, rolling.max_unavailable)).unwrap()
    };
    assert_eq!(surge(Rollout::Auto), "[1,0]");
    assert_eq!(surge(Rollout::Surge), "[1,0]");
    assert_eq!(surge(Rollout::Replace), "[0,1]");
}

#[test]
fn the_replacement_of_a_pod_is_no_rollout() {
    let mut scene = Scene::ready(2);
    scene.pods(&["{ready: true, node: gpu-0}", "{phase: Pending}"]);
    let status = scene.plan().status;
    assert_eq!(reason(&status, conditions::PROGRESSING), ("True", reasons::COMPLETE));
    assert_eq!(reason(&status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(status.phase, Some(Phase::Loading));
}

/// Users who may edit the Deployment may also edit its record.
#[test]
fn a_template_that_was_edited_together_with_its_record_is_restored() {
    let mut scene = Scene::ready(2);
    let served = template(&scene.plan());
    let forge = |observed: &mut Observed, keeps_record: bool| {
        let deployment = observed.deployment.as_mut().unwrap();
        let template = deployment.pinned_template.take().unwrap();
        deployment.pinned_template = Some(template.replace("vllm/vllm-openai", "evil/vllm").into());
        let resolved = deployment.resolved.clone().unwrap();
        let token_account = None;
        let rendered = keeps_record.then(|| Box::new(TemplateRecord { resolved, template, token_account }));
        let revision = Arc::new(ReplicaSetView { rendered, ..ReplicaSetView::default() });
        observed.older = vec![OlderRevision { revision, pods: observed.deployed.take().unwrap() }];
    };
    scene.observe(|observed| forge(observed, true));
    let plan = scene.plan();
    assert_eq!(template(&plan), served);
    assert_eq!(condition(&plan.status, conditions::TEMPLATE_OUTDATED).0, "absent");

    // The reported template is not recorded anywhere; then no pod is restarted.
    let mut scene = Scene::ready(2);
    scene.observe(|observed| forge(observed, false));
    assert_ne!(template(&scene.plan()), served);
}

#[test]
fn a_service_keeps_the_ports_of_older_pods_while_the_engine_changes() {
    let mut scene = Scene::new("{modelSource: pvc://m, engine: triton, gpu: {count: 1}}");
    scene.settle(1);
    let ports = |scene: &Scene| {
        let plan = scene.plan();
        let services = plan.children.iter().filter_map(|child| match child {
            Child::Service(service) => Some(service.clone()),
            Child::ConfigMap(_) | Child::Deployment(_) | Child::PodDisruptionBudget(_) => None,
        });
        let ports = services.flat_map(|service| service.spec.unwrap().ports.unwrap());
        ports.filter_map(|port| port.name).collect::<Vec<_>>()
    };
    scene.edit_spec(|spec| spec.engine = Engine::Vllm);
    assert_eq!(ports(&scene), ["http", "grpc", "metrics"], "before the new revision is deployed");
    scene.roll();
    assert_eq!(ports(&scene), ["http", "grpc", "metrics"], "during the rollout");
    scene.settle(1);
    assert_eq!(ports(&scene), ["http"]);
}

#[test]
fn a_claim_created_with_the_object_is_not_reported_as_missing_at_once() {
    let mut scene = Scene::new("{modelSource: pvc://models, engine: triton, gpu: {count: 1}}");
    scene.observe(|observed| {
        Arc::make_mut(&mut observed.inference).metadata.creation_timestamp = Some(Time(at(0)));
    });
    let status = |seconds| scene.plan_with(&defaults(&[]), at(seconds));
    assert_eq!(reason(&status(1).status, conditions::READY), ("False", reasons::LOADING));
    assert_eq!(status(1).requeue_after, Some(Duration::from_secs(2)));
    assert_eq!(reason(&status(3).status, conditions::READY), ("False", reasons::CLAIM_NOT_FOUND));
}
