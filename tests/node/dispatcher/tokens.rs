//! Load and tokens of real workers, and the sum of the tokens while programs are killed.

use std::{fs, process::Command};

use api::aidispatcher::AIDispatcher;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until,
    dispatcher::{CONTROLLER, change, create, until, until_ready, workers},
    follow, real, real_spec, start_real, until_renewed, wait_for, within,
};

use super::{agents, give, names, until_ended, until_workers};

/// 100 tokens.
const TEXT: &str = "ten chars.";
const TOKENS: i64 = 100;
/// Command lines in `/proc`.
const MONITOR: &[u8] = b"/monitor\0run\0";
const AGENT: &[u8] = b"/test-agent\0";
const CONTROLLER_PROGRAM: &[u8] = b"/dispatcher-controller\0";
/// Of the Lease, two seconds apart: several snapshots of each worker meanwhile.
const RENEWALS: usize = 3;

#[tokio::test]
async fn load_and_tokens_of_real_workers_reach_the_status_and_the_log_has_the_names_of_the_pool() {
    let scene = real().await;
    create(&scene, "coders", agents(json!({"autoscaling": {"maxReplicas": 3}}))).await;
    until_ready(&scene, "coders").await;
    let worker = names(&workers(&scene, "coders").await).remove(0);
    for number in 0..8 {
        assert!(give(&scene, &worker, &format!("s{number}"), "ten chars.", 1_500));
    }
    until(&scene, "coders", "more workers", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.desired_replicas >= 2)
    })
    .await;
    let used = until(&scene, "coders", "800 tokens", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.token_usage == 800)
    })
    .await;
    assert!(used.status.unwrap().token_usage <= 800);
    let log = scene.kubectl(&["logs", &worker, "-c", "monitor"]);
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let done = lines.iter().find(|line| line["body"] == "done").unwrap_or_else(|| panic!("{log}"));
    assert_eq!((&done["service.name"], &done["k8s.pod.name"]), (&json!("coders"), &json!(worker)));
}

/// SIGKILL is what the kernel sends to a program for whose memory there is no room.
#[tokio::test]
async fn token_usage_is_the_exact_sum_after_a_monitor_a_worker_and_the_controller_are_killed() {
    let cluster = start_real(real_spec(1)).await;
    let scene = Scene::restricted(&cluster).await;
    create(&scene, "coders", agents(json!({"replicas": 2}))).await;
    until_ready(&scene, "coders").await;
    let dispatchers = scene.api::<AIDispatcher>();
    let mut last = 0;
    let falls = follow(&dispatchers, "", |all| {
        let usage = all.values().filter_map(|dispatcher| dispatcher.status.as_ref()).map(|it| it.token_usage);
        let (before, now) = (last, usage.sum());
        last = now;
        (now < before).then(|| format!("from {before} to {now}"))
    });
    tokio::select! {
        fallen = falls => panic!("the sum falls {fallen}"),
        () = Box::pin(killed_one_after_the_other(&scene)) => {}
    }
}

async fn killed_one_after_the_other(scene: &Scene<'_>) {
    let pods = workers(scene, "coders").await;
    let [first, second] = pods.as_slice() else { panic!("two workers: {:?}", names(&pods)) };
    let [one, other] = [first, second].map(|pod| pod.metadata.name.clone().unwrap());

    for number in 0..6 {
        for worker in [&one, &other] {
            assert!(give(scene, worker, &format!("s{number}"), TEXT, 700));
        }
    }
    kill(first, MONITOR);
    until_restarted(scene, &one, "monitor").await;
    until_tokens(scene, 12 * TOKENS).await;

    kill(second, AGENT);
    until_restarted(scene, &other, "worker").await;
    for worker in [&one, &other] {
        ask_until("the worker takes a task", within(), async || {
            if give(scene, worker, "again", TEXT, 700) { Ok(()) } else { Err("it takes none") }
        })
        .await;
        for _ in 0..3 {
            assert!(give(scene, worker, "again", TEXT, 700));
        }
    }
    let controllers: Api<Pod> = Api::namespaced(scene.client(), "ai-system");
    for pod in controllers.list(&ListParams::default()).await.unwrap().items {
        if pod.metadata.name.as_deref().is_some_and(|name| name.starts_with(CONTROLLER)) {
            kill(&pod, CONTROLLER_PROGRAM);
        }
    }
    until_tokens(scene, 20 * TOKENS).await;

    // What an ended worker has used stays in the sum.
    change(scene, "coders", json!({"replicas": 1})).await;
    until_workers(scene, "coders", 1).await;
    until_ended(scene, "coders", 1).await;
    let left = names(&workers(scene, "coders").await).remove(0);
    assert!(give(scene, &left, "last", TEXT, 10));
    until_tokens(scene, 21 * TOKENS).await;
    until_renewed(scene, CONTROLLER, RENEWALS).await;
    until_tokens(scene, 21 * TOKENS).await;
}

/// Exactly so many, and never more.
async fn until_tokens(scene: &Scene<'_>, tokens: i64) {
    until(scene, "coders", &format!("{tokens} tokens"), |dispatcher| {
        let used = dispatcher.status.as_ref().map_or(0, |status| status.token_usage);
        assert!(used <= tokens, "{used} tokens instead of {tokens}");
        used == tokens
    })
    .await;
}

pub(super) async fn until_restarted(scene: &Scene<'_>, pod: &str, container: &str) {
    wait_for(&scene.api::<Pod>(), pod, &format!("{container} runs again"), within(), |pod| {
        let status = pod.status.as_ref();
        let all = status
            .map(|status| status.container_statuses.iter().chain(&status.init_container_statuses).flatten());
        let runs_again = |known: &ContainerStatus| {
            let is_running = known.state.as_ref().is_some_and(|state| state.running.is_some());
            known.name == container && known.restart_count > 0 && is_running
        };
        all.is_some_and(|mut all| all.any(runs_again))
    })
    .await;
}

/// Sends SIGKILL to the process in a pod whose command line begins so.
pub(super) fn kill(pod: &Pod, command: &[u8]) {
    let uid = pod.metadata.uid.as_deref().expect("a uid");
    let processes = fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.path());
    let mut of_pod = processes.filter(|process| {
        let is_it = fs::read(process.join("cmdline")).unwrap_or_default().starts_with(command);
        is_it && fs::read_to_string(process.join("cgroup")).unwrap_or_default().contains(uid)
    });
    let process = of_pod.next().unwrap_or_else(|| panic!("no process of {uid}"));
    let pid = process.file_name().expect("its pid");
    assert!(Command::new("kill").arg("-KILL").arg(pid).status().expect("kill starts").success());
}
