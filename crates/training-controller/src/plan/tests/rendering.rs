//! The objects of an attempt.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{EnvVar, PodSpec},
};
use serde_json::Value;

use super::{GANG, LORA, World, arguments, flag};
use crate::{
    plan::{Child, children::pod::has_room_for_volumes},
    swift::TUNING_VARIABLES,
    tests::job,
    validate::{OWNED_VARIABLES, validate},
};

/// The first Job.
fn rendered(spec: &str) -> Job {
    let mut world = World::new(spec);
    world.settles();
    world.created.remove(0)
}

fn pod(job: &Job) -> PodSpec {
    job.spec.clone().unwrap().template.spec.unwrap()
}

fn environment(job: &Job) -> Vec<EnvVar> {
    pod(job).containers[0].env.clone().unwrap()
}

#[test]
fn the_job_of_a_lora_run() {
    insta::assert_yaml_snapshot!(rendered(LORA));
}

#[test]
fn the_job_of_a_dpo_run_on_two_nodes() {
    let spec = "{
model: qwen/Qwen-7B,
dataset: 'a/b,/data/train.jsonl#500',
method: dpo,
beta: 0.2,
gpus: 4,
nodes: 2,
gpuProductLabel: A100,
outputDir: /outputs/dpo,
output: {mountPath: /outputs, size: 200Gi, storageClassName: fast},
inputs: [{claimName: data, subPath: v2, mountPath: /data}],
extraArgs: [--max_length, '4096'],
env: [{name: HF_ENDPOINT, value: 'https://mirror.example'}],
resources: {limits: {memory: 256Gi}, requests: {cpu: 32}},
queueName: team,
scheduling: {priorityClassName: high, nodeSelector: {zone: a}},
imagePullSecrets: [{name: pull}],
podLabels: {team: search}
}";
    let mut world = World::new(spec);
    let claim =
        serde_saphyr::from_str("{metadata: {name: data}, spec: {accessModes: [ReadOnlyMany]}}").unwrap();
    world.claims.insert("data".into(), Some(std::sync::Arc::new(claim)));
    world.settles();
    insta::assert_yaml_snapshot!(world.created[0]);
}

#[test]
fn a_gang_has_a_claim_for_all_nodes_and_a_service_before_its_job() {
    let world = World::new(GANG);
    let plan = world.plan();
    let kinds: Vec<&str> = plan
        .children
        .iter()
        .map(|child| match child {
            Child::Claim(claim) => {
                assert_eq!(claim.spec.as_ref().unwrap().access_modes, Some(vec!["ReadWriteMany".to_owned()]));
                assert_eq!(claim.metadata.owner_references, None, "it stays when the job is deleted");
                "claim"
            }
            Child::Service(service) => {
                assert_eq!(service.spec.as_ref().unwrap().cluster_ip.as_deref(), Some("None"));
                "service"
            }
            Child::Job(_) => "job",
        })
        .collect();
    assert_eq!(kinds, ["claim", "service", "job"]);
}

#[test]
fn the_ranks_find_rank_0_by_the_name_of_its_pod_and_the_service() {
    let job = rendered(GANG);
    let value =
        |name: &str| environment(&job).into_iter().find(|one| one.name == name).and_then(|one| one.value);
    assert_eq!(value("MASTER_ADDR").as_deref(), Some("qwen-1-0.qwen-gang"));
    assert_eq!((value("NNODES").as_deref(), value("NPROC_PER_NODE").as_deref()), (Some("2"), Some("1")));
    assert_eq!(pod(&job).subdomain.as_deref(), Some("qwen-gang"));
}

#[test]
fn a_user_may_set_what_only_tunes_the_trainer() {
    let spec = "{model: m, dataset: d, method: lora, device: ascend, gpus: 8, env: [\
                {name: PYTHONUNBUFFERED, value: '0'}, {name: TQDM_POSITION, value: '0'}, \
                {name: TASK_QUEUE_ENABLE, value: '0'}, {name: MINE, value: x}]}";
    let all = environment(&rendered(spec));
    let values = |name: &str| -> Vec<String> {
        all.iter().filter(|one| one.name == name).filter_map(|one| one.value.clone()).collect()
    };
    assert_eq!(
        (values("PYTHONUNBUFFERED"), values("TASK_QUEUE_ENABLE"), values("MINE")),
        (vec!["0".to_owned()], vec!["0".to_owned()], vec!["x".to_owned()])
    );
    assert_eq!(
        (values("CPU_AFFINITY_CONF"), values("TQDM_POSITION")),
        (vec!["2".to_owned()], vec!["0".to_owned()])
    );
    let default = environment(&rendered(LORA)).into_iter().find(|one| one.name == "TQDM_POSITION");
    assert_eq!(default.and_then(|one| one.value).as_deref(), Some("-1"), "downloads show their bytes");
}

#[test]
fn each_variable_of_the_trainer_is_refused_in_a_spec_or_the_users_to_set() {
    let caches = ["HF_HOME", "HF_TOKEN_PATH", "HF_XET_CACHE", "MODELSCOPE_CACHE"];
    let defaults = [&["HOME", "USER", "HF_TOKEN"][..], &caches].concat();
    let mut seen = BTreeSet::new();
    for more in [", nodes: 2, gpus: 2", ", device: ascend, gpus: 8", ", device: mps", ", device: cpu"] {
        let spec = format!("{{model: m, dataset: d, method: lora{more}}}");
        for EnvVar { name, .. } in environment(&rendered(&spec)) {
            let name = name.as_str();
            let may_be_set = defaults.contains(&name) || TUNING_VARIABLES.contains(&name);
            assert_ne!(may_be_set, OWNED_VARIABLES.contains(&name), "{name} in {spec}");
            seen.insert(name.to_owned());
        }
    }
    for name in defaults.iter().chain(&TUNING_VARIABLES) {
        assert!(seen.contains(*name), "{name} is never set");
    }
}

#[test]
fn what_is_loaded_is_kept_in_the_claim_unless_the_user_decides_otherwise() {
    let value = |spec: &str, name: &str| {
        let found = environment(&rendered(spec)).into_iter().filter(|one| one.name == name);
        found.map(|one| one.value.unwrap_or_default()).collect::<Vec<_>>()
    };
    let spec = "{model: m, dataset: d, method: lora, output: {mountPath: /out}, outputDir: /out/a}";
    assert_eq!(value(spec, "HF_HOME"), ["/out/.cache/hub/qwen/huggingface"]);
    assert!(value(spec, "HF_TOKEN_PATH")[0].starts_with("/home/trainer/"), "a token is not kept");
    let own = spec.replace("method: lora", "method: lora, env: [{name: MODELSCOPE_CACHE, value: /mine}]");
    assert_eq!(value(&own, "MODELSCOPE_CACHE"), ["/mine"]);
    let none = spec.replace("{mountPath", "{cache: None, mountPath");
    assert!(value(&none, "HF_HOME").is_empty() && value(&none, "MODELSCOPE_CACHE").is_empty());
    assert!(!arguments(&rendered(&none)).iter().any(|word| word.starts_with("--hub-cache")));
}

#[test]
fn a_job_that_began_with_a_release_without_a_cache_has_none_in_its_next_attempt() {
    let mut world = World::training(LORA);
    world.job().status.as_mut().unwrap().resolved.as_mut().unwrap().hub_cache = None;
    world.is_preempted(Some(5));
    world.settles();
    assert_eq!(world.jobs().len(), 2);
    assert!(
        !environment(&world.created[1]).iter().any(|one| one.name == "HF_HOME"),
        "its claim may be too small"
    );
}

#[test]
fn every_variable_is_set_once() {
    let spec = "{model: m, dataset: d, method: lora, nodes: 2, gpus: 2, env: [{name: HOME, value: /h}, \
                {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: mine, key: t}}}]}";
    let mut names: Vec<String> = environment(&rendered(spec)).into_iter().map(|one| one.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
}

#[test]
fn a_token_is_only_in_the_environment_and_only_by_reference() {
    let job = rendered("{model: m, dataset: d, method: lora, tokenSecret: hub}");
    let token = environment(&job).into_iter().find(|one| one.name == "HF_TOKEN").unwrap();
    let reference = token.value_from.unwrap().secret_key_ref.unwrap();
    assert_eq!(
        (reference.name.as_str(), reference.key.as_str(), reference.optional),
        ("hub", "token", Some(true))
    );
    assert_eq!(token.value, None);
    assert!(!arguments(&job).iter().any(|argument| argument.contains("token")));
    assert!(pod(&job).volumes.unwrap().iter().all(|volume| volume.secret.is_none()));
}

#[test]
fn kubernetes_expands_no_variable_in_what_the_user_writes() {
    let spec = "{model: m, dataset: '/data/$(HOME).jsonl', modelInImage: true, method: lora, \
                inputs: [{claimName: data, mountPath: /data}], extraArgs: ['--system', '$(HF_TOKEN)'], \
                env: [{name: MINE, value: '$(HF_TOKEN)'}]}";
    let mut world = World::new(spec);
    let claim =
        serde_saphyr::from_str("{metadata: {name: data}, spec: {accessModes: [ReadOnlyMany]}}").unwrap();
    world.claims.insert("data".into(), Some(std::sync::Arc::new(claim)));
    world.settles();
    let text = serde_json::to_string(&world.created[0]).unwrap();
    assert_eq!(text.matches("$$(HF_TOKEN)").count(), 2, "{text}");
    assert_eq!(text.matches("$$(HOME)").count(), 1);
    assert!(!text.replace("$$(", "").contains("$("), "{text}");
}

#[test]
fn a_semicolon_stays_in_its_argument() {
    let job = rendered("{model: m, dataset: d, method: lora, extraArgs: ['--system', '; rm -rf / &']}");
    assert!(arguments(&job).contains(&"; rm -rf / &".to_owned()));
}

#[test]
fn flags_of_the_controller_come_after_those_of_the_user() {
    let spec = "{model: m, dataset: d, method: lora, extraArgs: [--max_length, '4096', --ddp_timeout, '60']}";
    let job = rendered(spec);
    let arguments = arguments(&job);
    let place = |text: &str| arguments.iter().rposition(|argument| argument == text).unwrap();
    for managed in [
        "--output_dir",
        "--add_version",
        "--save_steps",
        "--save_only_model",
        "--disable_tqdm",
        "--callbacks",
    ] {
        assert!(place(managed) > place("60"), "{managed}");
    }
    assert_eq!(
        (flag(&job, "--max_length").as_deref(), flag(&job, "--ddp_timeout").as_deref()),
        (Some("4096"), Some("60"))
    );
}

#[test]
fn no_pod_has_the_token_of_the_kubernetes_api() {
    for account in ["", ", serviceAccountName: reader"] {
        let job = rendered(&format!("{{model: m, dataset: d, method: lora{account}}}"));
        assert_eq!(pod(&job).automount_service_account_token, Some(false));
    }
}

#[test]
fn every_child_has_the_labels_of_its_job() {
    let plan = World::new(GANG).plan();
    for child in &plan.children {
        let child: Value = serde_json::to_value(child).unwrap();
        let (_, child) = child.as_object().unwrap().iter().next().unwrap();
        let metadata = &child["metadata"];
        let (labels, sync) =
            (&metadata["labels"], &metadata["annotations"]["argocd.argoproj.io/sync-options"]);
        assert_eq!(labels["app.kubernetes.io/managed-by"], "training-controller");
        if metadata["ownerReferences"].is_null() {
            assert_eq!(labels["ai.infra.example.com/instance"], "qwen");
            assert_eq!(labels["app.kubernetes.io/instance"], Value::Null, "Argo CD tracks by it");
            assert_eq!(sync, "Prune=false");
        } else {
            assert_eq!(labels["app.kubernetes.io/instance"], "qwen");
        }
    }
}

#[test]
fn node_autoscalers_leave_a_trainer_alone_unless_its_user_says_otherwise() {
    let annotations = |more: &str| {
        let job = rendered(&format!("{{model: m, dataset: d, method: lora{more}}}"));
        serde_json::to_value(job.spec.unwrap().template.metadata.unwrap().annotations).unwrap()
    };
    let both = serde_json::json!({
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    });
    assert_eq!(annotations(""), both);
    let own = annotations(", podAnnotations: {karpenter.sh/do-not-disrupt: 'false'}");
    assert_eq!(own["karpenter.sh/do-not-disrupt"], "false");
}

#[test]
fn shared_memory_is_half_of_the_memory_limit_or_what_the_user_sets() {
    let size = |more: &str| {
        let job = rendered(&format!("{{model: m, dataset: d, method: lora{more}}}"));
        let volumes = pod(&job).volumes.clone().unwrap();
        let shared = volumes.into_iter().find(|volume| volume.name == "shared-memory").unwrap();
        shared.empty_dir.unwrap().size_limit.map(|size| size.0)
    };
    assert_eq!(size(""), None);
    assert_eq!(size(", resources: {limits: {memory: 16Gi}}").as_deref(), Some("8Gi"));
    assert_eq!(size(", resources: {limits: {memory: 16Gi}}, sharedMemory: 1Gi").as_deref(), Some("1Gi"));
}

#[test]
fn volumes_of_the_user_do_not_meet_those_of_the_controller() {
    let reason = |mount: &str, name: &str| {
        let volume = format!("{{name: {name}, mountPath: {mount}, claimName: c}}");
        let valid = validate(&job(
            "qwen",
            &format!(
                "{{model: m, dataset: d, method: lora, inputs: [{{claimName: data, mountPath: /data}}], volumes: [{volume}]}}"
            ),
        ));
        has_room_for_volumes(valid.unwrap(), &[]).err().map(|invalid| invalid.0).unwrap_or_default()
    };
    for (mount, name) in [
        ("/dev/shm", "a"),
        ("/data/below", "a"),
        ("/opt/resume-from", "a"),
        ("/home/trainer", "a"),
        ("/x", "output"),
        ("/x", "input-4"),
    ] {
        let said = reason(mount, name);
        assert!(said.starts_with("spec.volumes: "), "{mount} {name}: {said}");
    }
    assert!(!reason("/home/trainer/.cache/more", "a").starts_with("spec.volumes: "));
}

#[test]
fn an_attempt_that_has_begun_keeps_its_image_and_version() {
    let mut world = World::training(LORA);
    world.job().status.as_mut().unwrap().resolved.as_mut().unwrap().image = "older:swift3.9".into();
    world.job().status.as_mut().unwrap().resolved.as_mut().unwrap().swift_version = "v3.9".into();
    world.is_preempted(None);
    let next = world.created.last().unwrap();
    assert_eq!(pod(next).containers[0].image.as_deref(), Some("older:swift3.9"));
    assert!(arguments(next).contains(&"--train_type".to_owned()));
}

#[test]
fn a_short_name_of_a_product_selects_every_label_of_it() {
    let keys = |product: &str| {
        let job = rendered(&LORA.replacen('{', &format!("{{gpuProductLabel: {product}, "), 1));
        let nodes = pod(&job).affinity.unwrap().node_affinity.unwrap();
        let terms = nodes.required_during_scheduling_ignored_during_execution.unwrap().node_selector_terms;
        let rules = terms.into_iter().map(|term| term.match_expressions.unwrap().remove(0));
        rules.map(|rule| format!("{} {}", rule.key, rule.values.unwrap().join(" "))).collect::<Vec<_>>()
    };
    assert_eq!(keys("A100"), ["nvidia.com/gpu.product A100"]);
    assert_eq!(
        keys("gb300"),
        ["nvidia.com/gpu.product gb300 NVIDIA-GB300", "cloud.google.com/gke-accelerator nvidia-gb300"]
    );
}

#[test]
fn the_same_observation_gives_the_same_bytes() {
    let text = || serde_json::to_string(&World::new(GANG).plan()).unwrap();
    assert_eq!(text(), text());
}
