//! The replicas change their writer, and no pod.

use std::{
    collections::BTreeSet,
    future::Future,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::{
    aiinference::AIInference, aiinference::endpoint::InferenceEndpoint, aiscaler::AIScaler, conditions,
    labels,
};
use k8s_openapi::api::{autoscaling::v2::HorizontalPodAutoscaler, coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, controller, follow, fresh_name,
    inference::endpoint::{
        by_cpu, by_queue, change, condition, create, until_condition, until_inference, until_ready,
    },
    inference::pods_of,
    is_ready, simulated, start, tools, until_renewed, wait_for, wait_until_gone, within,
};

/// What a watch has seen.
#[derive(Debug, Default)]
struct Seen {
    /// Values of `spec.replicas` of the AIInference.
    replicas: BTreeSet<i32>,
    /// Numbers of ready pods.
    ready: BTreeSet<usize>,
    pods: BTreeSet<String>,
}

/// Watches the replicas and the pods of `chat` while this is done. It begins when the watches have both.
async fn watched(scene: &Scene<'_>, act: impl Future<Output = ()>) -> Seen {
    let seen = Mutex::new(Seen::default());
    let (listed, mut is_listed) = tokio::sync::watch::channel(false);
    let note = |change: &dyn Fn(&mut Seen)| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut seen);
        listed.send_replace(!seen.replicas.is_empty() && !seen.ready.is_empty());
    };
    let (inferences, pods) = (scene.api::<AIInference>(), scene.api::<Pod>());
    let replicas = follow(&inferences, "", |all| {
        note(&|seen| seen.replicas.extend(all.values().map(|inference| inference.spec.replicas)));
        None::<()>
    });
    let of_chat = pods_of("chat");
    let ready = follow(&pods, &of_chat, |all| {
        note(&|seen| {
            seen.ready.insert(all.values().filter(|pod| is_ready(pod)).count());
            seen.pods.extend(all.keys().cloned());
        });
        None::<()>
    });
    let act = Box::pin(async {
        is_listed.wait_for(|is_listed| *is_listed).await.expect("the watches go on");
        act.await;
    });
    tokio::select! {
        () = replicas => {}
        () = ready => {}
        () = act => {}
    }
    seen.into_inner().unwrap()
}

fn setter(inference: &AIInference) -> Option<&str> {
    inference.metadata.annotations.as_ref()?.get(labels::REPLICAS).map(String::as_str)
}

async fn until_set_by(scene: &Scene<'_>, who: &str) {
    until_inference(scene, "chat", &format!("with replicas of {who}"), |inference| {
        setter(inference) == Some(who)
    })
    .await;
}

/// As a tool that keeps a cluster as its repository says.
async fn apply_again(scene: &Scene<'_>, autoscaling: Value) {
    let object = json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "InferenceEndpoint",
        "metadata": {"name": "chat"},
        "spec": {"model": "qwen/Qwen-7B-Chat", "accelerator": "H100", "replicas": 3, "autoscaling": autoscaling},
    });
    let params = PatchParams::apply("gitops").force();
    scene.api::<InferenceEndpoint>().patch("chat", &params, &Patch::Apply(&object)).await.unwrap();
}

/// To each kind of autoscaler, from the one to the other and back, and while a tool applies the same again.
async fn round(scene: &Scene<'_>) {
    let (hpas, scalers) = (scene.api::<HorizontalPodAutoscaler>(), scene.api::<AIScaler>());
    apply_again(scene, by_cpu()).await;
    wait_for(&hpas, "chat", "there", within(), |_| true).await;
    until_set_by(scene, labels::REPLICAS_OF_SCALER).await;
    apply_again(scene, by_cpu()).await;
    apply_again(scene, by_queue()).await;
    apply_again(scene, by_queue()).await;
    wait_until_gone(&hpas, "chat", within()).await;
    wait_for(&scalers, "chat", "there", within(), |_: &AIScaler| true).await;
    apply_again(scene, by_cpu()).await;
    wait_until_gone(&scalers, "chat", within()).await;
    wait_for(&hpas, "chat", "there", within(), |_| true).await;
    let without = json!({"spec": {"autoscaling": null}});
    let endpoints = scene.api::<InferenceEndpoint>();
    endpoints.patch("chat", &PatchParams::default(), &Patch::Merge(without)).await.unwrap();
    wait_until_gone(&hpas, "chat", within()).await;
    until_set_by(scene, labels::REPLICAS_OF_SPEC).await;
}

#[tokio::test]
async fn a_change_of_the_autoscaler_changes_no_number_of_ready_pods() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"replicas": 3})).await;
    until_ready(&scene, "chat").await;
    let seen = watched(&scene, Box::pin(round(&scene))).await;
    assert_eq!(seen.replicas, BTreeSet::from([3]), "{seen:?}");
    assert_eq!(seen.ready, BTreeSet::from([3]), "{seen:?}");
    assert_eq!(seen.pods.len(), 3, "{seen:?}");
}

/// Where an autoscaler has set another number than the spec, it stays until the autoscaler is gone.
#[tokio::test]
async fn the_number_of_the_autoscaler_stays_until_the_spec_counts_again() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"replicas": 3, "autoscaling": by_queue()})).await;
    until_set_by(&scene, labels::REPLICAS_OF_SCALER).await;
    let scale = Patch::Merge(json!({"spec": {"replicas": 4}}));
    let inferences = scene.api::<AIInference>();
    inferences.patch_scale("chat", &PatchParams::default(), &scale).await.unwrap();
    until_ready(&scene, "chat").await;
    // Neither a change of the spec nor another autoscaler takes it back.
    let script = async {
        change(&scene, "chat", json!({"replicas": 2, "args": ["--seed=1"]})).await;
        until_inference(&scene, "chat", "with the argument", |inference| !inference.spec.args.is_empty())
            .await;
        let other = json!({"metrics": by_cpu()["metrics"], "metricType": null, "targetValue": null});
        change(&scene, "chat", json!({"autoscaling": other})).await;
        wait_for(&scene.api::<HorizontalPodAutoscaler>(), "chat", "there", within(), |_| true).await;
    };
    let seen = watched(&scene, Box::pin(script)).await;
    assert_eq!(seen.replicas, BTreeSet::from([4]), "{seen:?}");
    change(&scene, "chat", json!({"replicas": 2, "autoscaling": null})).await;
    until_inference(&scene, "chat", "with 2 replicas", |inference| inference.spec.replicas == 2).await;
    let hpas = scene.api::<HorizontalPodAutoscaler>();
    assert!(hpas.get_opt("chat").await.unwrap().is_none(), "it is gone before the spec counts");
}

/// For example that of KEDA. Neither takes the replicas of the other back.
#[tokio::test]
async fn an_autoscaler_of_another_sets_the_replicas_until_it_is_gone() {
    let scene = simulated().await;
    create(&scene, "chat", json!({"replicas": 3})).await;
    until_ready(&scene, "chat").await;
    let (hpas, inferences) = (scene.api::<HorizontalPodAutoscaler>(), scene.api::<AIInference>());
    let of_another = serde_json::from_value(json!({
        "metadata": {"name": "keda-hpa-chat"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "ai.infra.example.com/v1alpha1", "kind": "AIInference", "name": "chat"},
            "maxReplicas": 8,
        },
    }))
    .unwrap();
    let script = async {
        hpas.create(&PostParams::default(), &of_another).await.unwrap();
        until_set_by(&scene, labels::REPLICAS_OF_SCALER).await;
        let scale = Patch::Merge(json!({"spec": {"replicas": 4}}));
        inferences.patch_scale("chat", &PatchParams::default(), &scale).await.unwrap();
        let expected = ("True", "TargetManagedByOther");
        let endpoint = until_condition(&scene, "chat", conditions::SCALING_ACTIVE, expected).await;
        let status = endpoint.status.unwrap();
        let said = status.conditions.iter().find(|known| known.type_ == conditions::SCALING_ACTIVE).unwrap();
        assert!(said.message.contains("/keda-hpa-chat sets the replicas"), "{said:?}");
        change(&scene, "chat", json!({"args": ["--seed=1"]})).await;
        until_inference(&scene, "chat", "with the argument", |inference| !inference.spec.args.is_empty())
            .await;
    };
    let seen = watched(&scene, Box::pin(script)).await;
    assert_eq!(seen.replicas, BTreeSet::from([3, 4]), "{seen:?}");
    // It may come back, so its pods stay until the spec is changed.
    let seen = watched(&scene, async {
        hpas.delete("keda-hpa-chat", &DeleteParams::default()).await.unwrap();
        let what = "without an autoscaler";
        wait_for(&scene.api(), "chat", what, within(), |endpoint: &InferenceEndpoint| {
            let said = condition(endpoint, conditions::SCALING_ACTIVE);
            said.is_some_and(|said| said.message.contains("is gone; spec.replicas counts again"))
        })
        .await;
    })
    .await;
    assert_eq!(seen.replicas, BTreeSet::from([4]), "{seen:?}");
    change(&scene, "chat", json!({"args": ["--seed=2"]})).await;
    until_inference(&scene, "chat", "with 3 replicas", |inference| inference.spec.replicas == 3).await;
    until_set_by(&scene, labels::REPLICAS_OF_SPEC).await;
}

/// How often the process is killed at least.
const KILLS: usize = 12;

/// The process ends at any moment of a hand-over, and between its two writes.
#[tokio::test]
async fn a_controller_that_is_killed_in_a_hand_over_changes_no_number_of_ready_pods() {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let quick = ["--lease-duration=2", "--lease-renew-deadline=1.5", "--lease-retry-period=0.2"];
    for name in ["inference-controller", "scaler-controller"] {
        cluster.start_controller(&controller(name)).await.unwrap();
    }
    cluster.start_controller(&controller("endpoint-controller").with_args(quick)).await.unwrap();
    let scene = Scene::new(&cluster).await;
    let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
    create(&scene, "chat", json!({"replicas": 3})).await;
    until_ready(&scene, "chat").await;
    let kills_done = std::cell::Cell::new(0);
    let script = async {
        // Between the two writes: the first one of them was made by a process that is gone.
        cluster.stop_component("endpoint-controller").await.unwrap();
        let held = json!({
            "apiVersion": "ai.infra.example.com/v1alpha1",
            "kind": "AIInference",
            "spec": {"replicas": 3},
        });
        let params = PatchParams::apply("endpoint-controller-handover").force();
        scene.api::<AIInference>().patch("chat", &params, &Patch::Apply(&held)).await.unwrap();
        apply_again(&scene, by_cpu()).await;
        cluster.start_component("endpoint-controller").await.unwrap();
        until_set_by(&scene, labels::REPLICAS_OF_SCALER).await;
        let rounds = async {
            while kills_done.get() < KILLS {
                round(&scene).await;
            }
        };
        let kills = async {
            for number in 0_u64.. {
                // A fixed sequence that hits other moments each time. Some are long enough for a whole step.
                tokio::time::sleep(Duration::from_millis(100 + number * 37 % 61 * 25)).await;
                let killed = cluster.kill_component("endpoint-controller").await;
                kills_done.set(kills_done.get() + usize::from(killed.is_ok()));
                // The next process waits neither for its turn nor for the end of the Lease.
                let _ = leases.delete("endpoint-controller", &DeleteParams::default()).await;
                cluster.start_component("endpoint-controller").await.unwrap();
                // Some are killed before they lead.
                if number % 3 > 0 {
                    until_renewed(&scene, "endpoint-controller", 1).await;
                }
            }
        };
        tokio::select! {
            () = rounds => {}
            () = kills => {}
        }
    };
    let seen = tokio::time::timeout(3 * within(), watched(&scene, Box::pin(script))).await;
    let seen = seen.unwrap_or_else(|_| panic!("only {} times killed", kills_done.get()));
    assert_eq!(seen.replicas, BTreeSet::from([3]), "{seen:?}");
    assert_eq!(seen.ready, BTreeSet::from([3]), "{seen:?}");
    assert_eq!(seen.pods.len(), 3, "{seen:?}");
}
