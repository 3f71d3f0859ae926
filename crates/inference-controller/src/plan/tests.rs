//! Whole plans: rendered children, pinned templates, and the status for an observation.

use std::{sync::Arc, time::Duration};

use api::{
    aiinference::{AIInferenceStatus, Engine, Phase, Rollout},
    conditions, labels, reasons,
};
use k8s_openapi::{api::core::v1::PodTemplateSpec, apimachinery::pkg::apis::meta::v1::Time};
use runtime::write::{
    events::Severity,
    refusal::{LEFTOVER_RETRY, OVERDUE_RETRY, Refusal},
};
use workload::{
    faults::{crashes::Crash, gpu::NodeCapacity, pace::Allowance},
    templates::deployment::{OlderRevision, ReplicaSetView, TemplateRecord},
};

use super::{Plan, children::Child, defaults::Defaults, of_refused, rejected};
use crate::{
    observe::Observed,
    tests::{REFUSAL_RETRY, Scene, at, defaults, defaults_with_products, deployment_of},
    validate::{Invalid, validate},
};

mod deletions;
mod faults;
mod pinned;
mod refusals;
mod status;
mod traffic;

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

fn reason_of<'a>(plan: &'a Plan, type_: &str) -> (&'a str, &'a str) {
    reason(&plan.status, type_)
}

#[test]
fn a_service_that_needs_no_budget_has_none() {
    let budget = Scene::ready(2).plan().children.into_iter().find_map(|child| match child {
        Child::PodDisruptionBudget(budget) => Some(*budget),
        Child::ConfigMap(_) | Child::Deployment(_) | Child::Service(_) => None,
    });
    let mut scene = Scene::ready(1);
    assert!(scene.plan().superfluous.is_empty());
    scene.observe(|observed| observed.budget = budget.map(|budget| budget.metadata));
    assert!(scene.plan().superfluous.is_empty(), "the only pod has one");
    scene.edit_spec(|spec| spec.disruption = api::aiinference::Disruption::Allow);
    let plan = scene.plan();
    assert_eq!(plan.superfluous.len(), 1);
    assert!(!plan.children.iter().any(|child| matches!(child, Child::PodDisruptionBudget(_))));
}

#[test]
fn the_headless_service_follows_its_field_and_restarts_nothing() {
    let mut scene = Scene::ready(2);
    let before = scene.plan();
    assert!(before.headless.is_none() && before.superfluous.is_empty());
    scene.edit_spec(|spec| spec.service = Some(api::aiinference::ServiceOptions { headless: true }));
    let with = scene.plan();
    let service = with.headless.clone().unwrap();
    assert_eq!(service.metadata.name.as_deref(), Some("chat-pods"));
    let spec = service.spec.clone().unwrap();
    assert_eq!((spec.cluster_ip.as_deref(), spec.publish_not_ready_addresses), (Some("None"), None));
    let template = |plan: &Plan| deployment_of(plan).spec.unwrap().template;
    assert_eq!(template(&with), template(&before));
    scene.observe(|observed| observed.headless = Some(service.metadata.clone()));
    scene.edit_spec(|spec| spec.service = None);
    assert_eq!(scene.plan().superfluous.len(), 1);
}

#[test]
fn the_service_gets_both_families_once_all_pods_listen_there() {
    let policy = |scene: &Scene| {
        let children = scene.plan().children;
        let service = children.iter().find_map(|child| match child {
            Child::Service(service) => service.spec.clone(),
            _ => None,
        });
        service.unwrap().ip_family_policy
    };
    let mut scene = Scene::ready(1);
    scene.edit_spec(|spec| spec.listen = api::aiinference::Listen::Dual);
    assert_eq!(policy(&scene), None, "the pods listen on IPv4");
    scene.settle(1);
    assert_eq!(policy(&scene).as_deref(), Some("PreferDualStack"));
    scene.older_pods(1);
    assert_eq!(policy(&scene), None);
    scene.edit_spec(|spec| spec.listen = api::aiinference::Listen::IPv6);
    scene.settle(1);
    assert_eq!(policy(&scene), None);
}

#[test]
fn an_engine_is_asked_for_its_steps_only_if_the_user_says_how_long_is_too_long() {
    let probe = |spec: &str| {
        let template = template(&Scene::new(spec).plan());
        serde_json::to_value(&template.spec.unwrap().containers[0].liveness_probe).unwrap()
    };
    let plain = probe("{modelSource: s3://m, engine: vllm, gpu: {count: 1}}");
    assert_eq!(plain["httpGet"]["path"], "/health");
    let asked =
        probe("{modelSource: s3://m, engine: vllm, gpu: {count: 1}, stallSeconds: 900, drainSeconds: 7200}");
    let command = asked["exec"]["command"].to_string();
    for part in
        ["model-transfer\",\"alive", "--path=/health", "--stall-after-seconds=900", "--state=/home/engine/"]
    {
        assert!(command.contains(part), "{part}: {command}");
    }
    assert!(asked.get("httpGet").is_none());
    assert_eq!(asked["terminationGracePeriodSeconds"], 30, "nothing is drained");
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
