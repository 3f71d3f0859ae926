//! Pods and Jobs of every kind in a namespace with the policies of other people: Pod Security `restricted`, a quota on requests and
//! limits, a LimitRange with a minimum, a platform that chooses the user ids, and labels and tags that are demanded.

use std::collections::BTreeSet;

use api::{aiinference::evaluation as evaluated, conditions, labels, reasons, trainingjob::Phase};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until,
    inference::{
        condition,
        evaluation::{self, of_models},
        until_ready,
    },
    simulated, training, wait_for, within,
};

/// Three of the policies. The others are the label of the namespace, and what the API server does.
async fn demanding(shared: &Scene<'static>) -> Scene<'static> {
    let scene = Scene::restricted(shared.cluster()).await;
    let amounts = |cpu: &str, memory: &str, disk: &str| json!({"cpu": cpu, "memory": memory, "ephemeral-storage": disk});
    let hard: Value = ["requests", "limits"]
        .iter()
        .flat_map(|kind| {
            [("cpu", "200"), ("memory", "900Gi"), ("ephemeral-storage", "900Gi")]
                .map(|(name, most)| (format!("{kind}.{name}"), json!(most)))
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let name = scene.namespace().to_owned();
    let refused_ids = "!has(object.spec.securityContext) || !(has(object.spec.securityContext.runAsUser) || \
                       has(object.spec.securityContext.runAsGroup) || has(object.spec.securityContext.fsGroup))";
    let all_containers =
        "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            },
            "validations": [
                {"expression": refused_ids, "message": "runAsUser, runAsGroup and fsGroup must be absent"},
                {"expression": "has(object.metadata.labels) && 'team' in object.metadata.labels", "message": "the label team is required"},
                {
                    "expression": format!("({all_containers}).all(c, c.image.contains(':') && !c.image.endsWith(':latest'))"),
                    "message": "images need a tag other than latest",
                },
            ],
        },
    });
    for object in [
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "compute"}, "spec": {"hard": hard}}),
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "containers"}, "spec": {"limits": [{
            "type": "Container",
            "min": amounts("150m", "24Mi", "1Mi"),
            "max": amounts("64", "256Gi", "256Gi"),
            "default": {"ephemeral-storage": "2Gi"},
        }]}}),
        policy,
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        }),
    ] {
        scene.apply(&object.to_string()).await.unwrap();
    }
    wait_for(&scene.api::<ResourceQuota>(), "compute", "enforced", within(), |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|status| status.hard.is_some())
    })
    .await;
    // Policies take effect a moment after they are written.
    ask_until("the policy refuses a pod", within(), async || {
        let amounts = amounts("1", "1Gi", "1Gi");
        let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        let pod = json!({"metadata": {"name": "probe"}, "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "image": "a:1", "securityContext": security,
                "resources": {"requests": amounts, "limits": amounts}}],
        }});
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let pod: Pod = serde_json::from_value(pod).unwrap();
        match scene.api::<Pod>().create(&dry_run, &pod).await {
            Err(error) if error.to_string().contains("must be absent") => Ok(()),
            other => Err(format!("{:?}", other.map(|_| ()))),
        }
    })
    .await;
    scene
}

/// What a user sets in such a namespace, for every kind.
fn options() -> Value {
    let disk = json!({"ephemeral-storage": "10Mi"});
    json!({
        "podLabels": {"team": "a"},
        "securityContext": {"ids": "Platform"},
        "helperResources": {
            "requests": {"cpu": "150m", "memory": "64Mi", "ephemeral-storage": "10Mi"},
            "limits": disk,
        },
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "1Gi"},
        },
    })
}

async fn create(scene: &Scene<'_>, api_version: &str, kind: &str, name: &str, spec: Value) {
    let mut all = options();
    if let (Some(all), Value::Object(spec)) = (all.as_object_mut(), spec) {
        all.extend(spec);
    }
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": all});
    scene.apply(&object.to_string()).await.unwrap();
}

/// Names of the containers of all pods that were ever seen.
async fn until_containers(scene: &Scene<'_>, wanted: &[&str]) {
    let mut seen = BTreeSet::new();
    ask_until("all containers", within(), async || {
        for pod in scene.api::<Pod>().list(&ListParams::default()).await.unwrap() {
            let spec = pod.spec.unwrap();
            let containers = spec.init_containers.unwrap_or_default().into_iter().chain(spec.containers);
            seen.extend(containers.map(|container| container.name));
        }
        let missing: Vec<&&str> = wanted.iter().filter(|name| !seen.contains(**name)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    })
    .await;
}

/// Waits until an object has so many pods.
async fn until_admitted(scene: &Scene<'_>, instance: &str, count: usize) {
    let of_instance = ListParams::default().labels(&format!("{}={instance}", labels::INSTANCE));
    ask_until(&format!("the pods of {instance}"), within(), async || {
        let pods = scene.api::<Pod>().list(&of_instance).await.unwrap().items.len();
        if pods == count { Ok(()) } else { Err(format!("{pods} of {count}")) }
    })
    .await;
}

#[tokio::test]
async fn every_pod_and_job_is_admitted_with_the_fields_of_the_spec() {
    let shared = simulated().await;
    let scene = demanding(&shared).await;
    let inference = "ai.infra.example.com/v1alpha1";
    let vllm = json!({"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}});
    create(&scene, inference, "AIInference", "chat", vllm).await;
    let triton = json!({"modelSource": "s3://models/repository", "engine": "triton", "gpu": {"count": 1}});
    create(&scene, inference, "AIInference", "vision", triton).await;
    let pool = json!({
        "role": "coder",
        "image": "registry.example.com/agents/coder:1",
        "memoryConfig": {"collection": "code", "dim": 3, "endpoint": "http://chroma:8000"},
        "checkpoint": {"uri": "s3://states/pool"},
    });
    create(&scene, "southwest.ai/v1alpha1", "AIDispatcher", "pool", pool).await;
    let tune = json!({
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "dataset": "a/b",
        "method": "lora",
        "gpus": 1,
        "output": {"size": "1Gi", "upload": {"uri": "s3://results/tune"}},
    });
    create(&scene, "aistudio.modelscope.cn/v1alpha1", "TrainingJob", "tune", tune).await;
    // Claims and Secrets that do not exist keep pods from starting, and not from being admitted.
    let claimed = json!({"modelSource": "pvc://weights/qwen", "engine": "vllm", "gpu": {"count": 1}});
    create(&scene, inference, "AIInference", "claimed", claimed).await;
    let trusting = json!({"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}, "modelStore": {
        "endpoint": "https://minio.store:9000", "secretName": "keys", "caSecretName": "authorities"}});
    create(&scene, inference, "AIInference", "trusting", trusting).await;
    let saved = json!({"role": "coder", "image": "registry.example.com/agents/coder:1", "checkpoint": {"claimName": "states"}});
    create(&scene, "southwest.ai/v1alpha1", "AIDispatcher", "saved", saved).await;
    let gang = json!({"model": "Qwen/Qwen2.5-7B-Instruct", "dataset": "a/b", "method": "lora", "gpus": 1, "nodes": 2,
        "output": {"size": "1Gi"}});
    create(&scene, "aistudio.modelscope.cn/v1alpha1", "TrainingJob", "gang", gang).await;
    for (instance, count) in [("claimed", 1), ("trusting", 1), ("saved", 1), ("gang", 2)] {
        until_admitted(&scene, instance, count).await;
    }
    until_ready(&scene, "chat").await;
    until_ready(&scene, "vision").await;
    let containers =
        ["memory-loader", "monitor", "worker", "model-loader", "engine", "launcher-installer", "trainer"];
    until_containers(&scene, &containers).await;
    training::until_phase(&scene, "tune", Phase::Succeeded).await;
    // The upload of an evaluation has a container of the same name.
    until_containers(&scene, &["uploader"]).await;
    let server = json!({"resources": options()["resources"]});
    let compare = of_models(json!({"output": {"uri": "s3://evaluations/compare"}, "server": server}));
    create(&scene, "aistudio.modelscope.cn/v1alpha1", "ModelEvaluation", "compare", compare).await;
    // Its runs, their comparison and its upload are Jobs.
    let compared = evaluation::until_reason(&scene, "compare", conditions::UPLOADED, reasons::UPLOADED).await;
    assert_eq!(compared.status.unwrap().phase, Some(evaluated::Phase::Succeeded));
}

#[tokio::test]
async fn what_is_refused_is_named_with_its_field() {
    let shared = simulated().await;
    let scene = demanding(&shared).await;
    let vllm = json!({"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}});
    for (name, without, field) in [
        ("ids", json!({"securityContext": {}}), "spec.securityContext"),
        ("helpers", json!({"helperResources": {}}), "spec.helperResources"),
    ] {
        let mut spec = vllm.clone();
        spec.as_object_mut().unwrap().extend(without.as_object().unwrap().clone());
        create(&scene, "ai.infra.example.com/v1alpha1", "AIInference", name, spec).await;
        let said = |inference: &api::aiinference::AIInference| {
            condition(inference, conditions::READY)
                .filter(|ready| ready.reason == reasons::UNSCHEDULABLE)
                .map(|ready| ready.message.clone())
        };
        let inference =
            wait_for(&scene.api(), name, "refused", within(), |inference| said(inference).is_some()).await;
        let message = said(&inference).unwrap();
        let fix = message.rsplit_once("; set ").map(|(_, fix)| fix).unwrap_or_default();
        assert!(fix.contains(field), "{name}: {message}");
    }
}
