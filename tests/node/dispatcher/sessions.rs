//! The agent that ships, as the workers of a pool, with a model that an AIInference serves. Sessions keep their whole history
//! while workers come, go and are killed, and clients send a task again at most once.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tests::{
    Scene, ask_until,
    dispatcher::{change, create, until_ready, workers},
    inference, real, within,
};
use tokio::time::{Instant, sleep};

use super::{
    agents, names, states_in_a_volume,
    tokens::{kill, until_restarted},
    until_ended, until_workers,
};
use crate::{
    claims,
    store::{Model, on_real_nodes},
};

const POOL: &str = "coders";
const SESSIONS: usize = 200;
/// Tasks that clients have given at the same time.
const AT_ONCE: usize = 16;
/// Command line in `/proc`.
const AGENT: &[u8] = b"/agent\0";
/// Begins what the API server says of a pod that it cannot reach.
const UNREACHED: &str = "error trying to reach service";
/// Of a task, with its second attempt.
const ANSWERED_WITHIN: Duration = Duration::from_secs(90);
/// The answer to a refused task says when to send it again; where there is none, the API server has lost the connection.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Clients of the pool, one for each session.
struct Clients<'a> {
    scene: &'a Scene<'a>,
    /// How many tasks each session has had.
    turns: Mutex<BTreeMap<usize, usize>>,
    tasks: AtomicUsize,
    repeated: AtomicUsize,
}

impl<'a> Clients<'a> {
    fn of(scene: &'a Scene<'a>) -> Self {
        Self { scene, turns: Mutex::default(), tasks: AtomicUsize::new(0), repeated: AtomicUsize::new(0) }
    }

    /// Each client gives one task, and hears its whole history.
    async fn round(&self) {
        stream::iter(0..SESSIONS).for_each_concurrent(AT_ONCE, |session| self.turn(session)).await;
    }

    async fn turn(&self, session: usize) {
        let turn = *self.turns.lock().unwrap().get(&session).unwrap_or(&0);
        let task = json!({"session": format!("s-{session}"), "id": format!("{session}-{turn}"),
                          "input": format!("{session}/{turn}")});
        let heard: Vec<String> = (0..=turn).map(|turn| format!("{session}/{turn}")).collect();
        let heard = format!("heard: {}", heard.join("; "));
        let began = Instant::now();
        let mut refusals = 0;
        let answer = loop {
            match self.ask(&task).await {
                Ok(answer) => break answer,
                Err(why) => {
                    println!("task {} after {:?}: {why}", task["id"], began.elapsed());
                    // The API server has chosen a pod that is gone, which is no answer of a worker.
                    refusals += usize::from(!why.contains(UNREACHED));
                    assert!(
                        refusals < 2 && began.elapsed() < ANSWERED_WITHIN,
                        "{task} is refused twice: {why}"
                    );
                    self.repeated.fetch_add(1, Ordering::Relaxed);
                    sleep(AGAIN_AFTER).await;
                }
            }
        };
        assert_eq!(answer["output"], heard, "{task}: {answer}");
        self.tasks.fetch_add(1, Ordering::Relaxed);
        self.turns.lock().unwrap().insert(session, turn + 1);
    }

    /// Through the Service of the pool.
    async fn ask(&self, task: &Value) -> Result<Value, String> {
        let namespace = self.scene.namespace();
        let uri = format!("/api/v1/namespaces/{namespace}/services/{POOL}:http/proxy/v1/tasks");
        let request = http::Request::post(uri).header("content-type", "application/json");
        let request = request.body(task.to_string().into_bytes()).expect("a request");
        let answered = tokio::time::timeout(ANSWERED_WITHIN, self.scene.client().request_text(request)).await;
        let answer = answered.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
        serde_json::from_str(&answer).map_err(|error| format!("{error}: {answer}"))
    }

    /// Rounds until the other future is ready.
    async fn throughout(&self, what: &str, other: impl Future<Output = ()>) {
        let (before, is_over) = (self.tasks.load(Ordering::Relaxed), AtomicBool::new(false));
        let rounds = async {
            while !is_over.load(Ordering::Relaxed) {
                self.round().await;
            }
        };
        let other = async {
            other.await;
            is_over.store(true, Ordering::Relaxed);
        };
        tokio::join!(rounds, other);
        let (tasks, repeated) = (self.tasks.load(Ordering::Relaxed), self.repeated.load(Ordering::Relaxed));
        println!("{what}: {} tasks; {repeated} repeated so far", tasks - before);
    }
}

/// How many sessions the workers hold together.
async fn held(scene: &Scene<'_>) -> Result<u64, String> {
    let mut sum = 0;
    for worker in names(&workers(scene, POOL).await) {
        let uri = format!("/api/v1/namespaces/{}/pods/{worker}:8080/proxy/v1/load", scene.namespace());
        let request = http::Request::get(uri).body(Vec::new()).expect("a request");
        let load = scene.client().request_text(request).await.map_err(|error| error.to_string())?;
        let load: Value = serde_json::from_str(&load).map_err(|error| format!("{error}: {load}"))?;
        sum += load["sessions"].as_u64().ok_or_else(|| load.to_string())?;
    }
    Ok(sum)
}

#[tokio::test]
async fn two_hundred_sessions_of_the_agent_that_ships_outlive_scaling_a_kill_and_a_deletion() {
    let scene = real().await;
    let folder = claims::folder(&scene);
    Model::small().write_to(&folder.join("vllm"));
    claims::claim(&scene, &folder).await;
    inference::create(&scene, "chat", on_real_nodes("pvc://models/vllm")).await;
    let checkpoint = states_in_a_volume(&scene).await;
    let pool = agents(json!({
        "image": null,
        "replicas": 4,
        "modelRef": "chat",
        "modelEndpoint": "http://chat:8000/v1",
        "service": {},
        "checkpoint": checkpoint,
    }));
    create(&scene, POOL, pool).await;
    inference::until_ready(&scene, "chat").await;
    until_ready(&scene, POOL).await;

    let clients = Clients::of(&scene);
    clients.round().await;
    assert_eq!(held(&scene).await, Ok(SESSIONS as u64));
    let scaled = |count: i32| {
        let scene = &scene;
        async move {
            change(scene, POOL, json!({"replicas": count})).await;
            until_workers(scene, POOL, count).await;
            until_ended(scene, POOL, count as usize).await;
        }
    };
    clients.throughout("four workers become one", scaled(1)).await;
    clients.throughout("one worker becomes four", scaled(4)).await;
    let pods = workers(&scene, POOL).await;
    let name = pods[0].metadata.name.as_deref().unwrap();
    clients
        .throughout("a worker is killed", async {
            kill(&pods[0], AGENT);
            until_restarted(&scene, name, "worker").await;
        })
        .await;
    clients
        .throughout("a pod is deleted", async {
            scene.api::<Pod>().delete(name, &DeleteParams::default()).await.unwrap();
            tests::wait_until_gone(&scene.api::<Pod>(), name, within()).await;
            until_workers(&scene, POOL, 4).await;
        })
        .await;
    // Each hears its whole history.
    clients.round().await;
    let repeated = clients.repeated.load(Ordering::Relaxed);
    println!("{} tasks, of which {repeated} were given twice", clients.tasks.load(Ordering::Relaxed));
    ask_until("each session at one worker", within(), async || {
        let sessions = held(&scene).await?;
        if sessions == SESSIONS as u64 {
            return Ok(());
        }
        // A worker compares its copies when they are asked for.
        clients.round().await;
        Err(format!("{sessions} are held"))
    })
    .await;
}
