//! Tasks are given before or while workers come and go. Afterwards the workers hold each task that was taken exactly once.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use api::{aidispatcher::AIDispatcher, reasons};
use serde_json::{Value, json};
use tests::{
    AGENT_IMAGE, Scene, ask_until,
    dispatcher::{CONTROLLER, change, create, until, until_ready, workers},
    real, until_renewed, within,
};

use super::{
    agents, give, held, names, states_in_a_volume, until_ended, until_sessions_within, until_workers,
};
use crate::store::Store;

const POOL: &str = "coders";
const SESSIONS: usize = 4;
/// Of a task.
const MILLIS: u64 = 100;
/// Of a task whose text is `session-N/NNNN`.
const TOKENS: i64 = 140;
/// Workers that end when four become one.
const ENDED: usize = 3;
/// The image of the agent by a second name.
const NEXT_IMAGE: &str = "local.test/test-agent:2";

/// Tasks for the sessions in turn, each with a text of its own.
struct Load<'a> {
    scene: &'a Scene<'a>,
    offered: usize,
    /// Texts that a worker has taken.
    taken: BTreeSet<String>,
    /// The worker that took the last task of each session.
    last: BTreeMap<String, String>,
}

impl<'a> Load<'a> {
    fn of(scene: &'a Scene<'a>) -> Self {
        Self { scene, offered: 0, taken: BTreeSet::new(), last: BTreeMap::new() }
    }

    /// Gives a task to the worker that took the last one of its session, or to another one if that takes none.
    async fn give_one(&mut self) {
        let mut workers = names(&workers(self.scene, POOL).await);
        let turn = self.offered % SESSIONS;
        let session = format!("session-{turn}");
        let count = workers.len().max(1);
        workers.rotate_left(turn % count);
        if let Some(last) = self.last.get(&session) {
            workers.sort_by_key(|worker| worker != last);
        }
        for worker in workers {
            // A worker may take a task whose answer is lost: the next one gets another text.
            let text = format!("{session}/{:04}", self.offered);
            self.offered += 1;
            if give(self.scene, &worker, &session, &text, MILLIS) {
                self.taken.insert(text);
                self.last.insert(session, worker);
                break;
            }
        }
        // The next one is of the next session, however many workers were asked.
        self.offered = self.offered.next_multiple_of(SESSIONS) + (turn + 1) % SESSIONS;
    }

    /// Gives tasks until the other future is ready.
    async fn throughout<T>(&mut self, other: impl Future<Output = T>) -> T {
        let before = self.taken.len();
        let done = tokio::select! {
            done = other => done,
            never = self.give_forever() => match never {},
        };
        assert!(self.taken.len() > before, "no worker has taken a task meanwhile");
        done
    }

    async fn give_forever(&mut self) -> Infallible {
        loop {
            self.give_one().await;
        }
    }

    /// Each task that was taken is done, at one worker, and after the earlier ones of its session there. Returns the texts
    /// that are done.
    async fn until_held_once(&self) -> BTreeSet<String> {
        let done = ask_until("each task done exactly once", within(), async || {
            let mut texts = Vec::new();
            for worker in names(&workers(self.scene, POOL).await) {
                let held = held(self.scene, &worker).ok_or_else(|| format!("{worker} does not answer"))?;
                if !held["in_hand"].is_null() || held["waiting"] != json!([]) {
                    return Err(format!("{worker} works: {held}"));
                }
                for (session, done) in held["sessions"].as_object().expect("sessions") {
                    let done =
                        done.as_array().expect("texts").iter().map(|text| text.as_str().expect("a text"));
                    let done: Vec<String> = done.map(str::to_owned).collect();
                    assert!(done.is_sorted(), "{session} at {worker}: {done:?}");
                    texts.extend(done);
                }
            }
            let distinct: BTreeSet<String> = texts.iter().cloned().collect();
            assert_eq!(distinct.len(), texts.len(), "a text is held twice: {texts:?}");
            let lost: Vec<&String> = self.taken.difference(&distinct).collect();
            if lost.is_empty() {
                Ok(distinct)
            } else {
                Err(format!("{lost:?} of {} tasks", self.taken.len()))
            }
        })
        .await;
        println!("{} tasks were taken", self.taken.len());
        done
    }
}

/// Four workers with a session each become one and four again, under load.
async fn sessions_survive(scene: &Scene<'_>, checkpoint: Value) {
    create(scene, POOL, agents(json!({"replicas": 4, "checkpoint": checkpoint}))).await;
    until_ready(scene, POOL).await;
    let mut load = Load::of(scene);
    for _ in 0..2 * SESSIONS {
        load.give_one().await;
    }
    assert_eq!(load.last.values().collect::<BTreeSet<_>>().len(), 4, "{:?}", load.last);
    change(scene, POOL, json!({"replicas": 1})).await;
    load.throughout(async {
        until_workers(scene, POOL, 1).await;
        until_ended(scene, POOL, 1).await;
    })
    .await;
    change(scene, POOL, json!({"replicas": 4})).await;
    load.throughout(until_workers(scene, POOL, 4)).await;
    let done = load.until_held_once().await;
    let used = |texts: usize| i64::try_from(texts).expect("a number") * TOKENS;
    // After the last reading of a worker that ends, it can end two tasks.
    let (least, most) = (used(done.len().saturating_sub(2 * ENDED)), used(done.len()));
    let usage = |dispatcher: &AIDispatcher| dispatcher.status.as_ref().map_or(0, |status| status.token_usage);
    let counted =
        until(scene, POOL, "the tokens of all tasks", |dispatcher| usage(dispatcher) >= least).await;
    assert!(usage(&counted) <= most, "{} tokens of {} tasks", usage(&counted), done.len());
    // They are written every ten seconds, and nothing is counted again later.
    until_renewed(scene, CONTROLLER, 6).await;
    let later = until(scene, POOL, "the status", |_| true).await;
    assert!((least..=most).contains(&usage(&later)), "{} tokens of {} tasks", usage(&later), done.len());
    println!("{} tokens of {most} were counted", usage(&later));
}

#[tokio::test]
async fn every_task_survives_scaling_under_load_with_checkpoints_in_a_bucket() {
    let scene = real().await;
    let store = Store::start(&scene).await;
    sessions_survive(&scene, store.checkpoint("pools")).await;
    until(&scene, POOL, "the time of the last checkpoint", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.last_checkpoint_time.is_some())
    })
    .await;
}

#[tokio::test]
async fn every_task_survives_scaling_under_load_with_checkpoints_in_a_volume() {
    let scene = real().await;
    let checkpoint = states_in_a_volume(&scene).await;
    sessions_survive(&scene, checkpoint).await;
}

/// A state that no new worker has restored waits for the next one, so the pool grows at the end.
#[tokio::test]
async fn no_task_is_lost_while_a_new_image_is_rolled_out_under_load() {
    let scene = real().await;
    scene.load_image(&tests::layout(AGENT_IMAGE), NEXT_IMAGE).unwrap();
    let store = Store::start(&scene).await;
    let spec = json!({"replicas": 2, "checkpoint": store.checkpoint("pools")});
    create(&scene, POOL, agents(spec)).await;
    until_ready(&scene, POOL).await;
    let mut load = Load::of(&scene);
    for _ in 0..2 * SESSIONS {
        load.give_one().await;
    }
    change(&scene, POOL, json!({"image": NEXT_IMAGE})).await;
    load.throughout(async {
        until_ready(&scene, POOL).await;
        until_ended(&scene, POOL, 2).await;
    })
    .await;
    for worker in workers(&scene, POOL).await {
        let spec = worker.spec.expect("a spec");
        let images: Vec<Option<String>> =
            spec.containers.into_iter().map(|container| container.image).collect();
        assert!(images.contains(&Some(NEXT_IMAGE.to_owned())), "{images:?}");
    }
    change(&scene, POOL, json!({"replicas": 4})).await;
    load.throughout(until_workers(&scene, POOL, 4)).await;
    load.until_held_once().await;
}

/// The longest time of a rollout, of two replacements of idle workers and of a survey of the states that was too early.
const FOUND_AGAIN_WITHIN: Duration = Duration::from_secs(300);

/// The first new worker starts before an old one ends, so it has no state, and the last old one has no successor.
#[tokio::test]
async fn every_session_of_idle_workers_is_found_again_after_a_rollout_with_as_many_workers() {
    let scene = real().await;
    scene.load_image(&tests::layout(AGENT_IMAGE), NEXT_IMAGE).unwrap();
    let store = Store::start(&scene).await;
    let spec = json!({"replicas": 2, "checkpoint": store.checkpoint("pools")});
    create(&scene, POOL, agents(spec)).await;
    until_ready(&scene, POOL).await;
    let mut wanted = BTreeSet::new();
    for (index, worker) in names(&workers(&scene, POOL).await).iter().enumerate() {
        let session = format!("session-{index}");
        assert!(give(&scene, worker, &session, "hello", 10));
        wanted.insert(session);
    }
    assert_eq!(wanted.len(), 2);
    change(&scene, POOL, json!({"image": NEXT_IMAGE})).await;
    until_ready(&scene, POOL).await;
    until_sessions_within(&scene, POOL, &wanted, FOUND_AGAIN_WITHIN).await;
    until_workers(&scene, POOL, 2).await;
    ask_until("an event of the replacement", within(), async || {
        let reason = format!("--field-selector=reason={}", reasons::STATE_UNCLAIMED);
        let events = scene.kubectl(&["get", "events", &reason, "--output=name"]);
        if events.is_empty() { Err("none of an unclaimed state") } else { Ok(()) }
    })
    .await;
}

/// Of each worker the first task is in hand and the second waits.
#[tokio::test]
async fn tasks_of_an_hour_are_in_hand_again_exactly_once_after_replicas_shrink_and_grow() {
    const HOUR: u64 = 3_600_000;
    let scene = real().await;
    let store = Store::start(&scene).await;
    let mut checkpoint = store.checkpoint("pools");
    checkpoint["graceSeconds"] = json!(5);
    let env = json!([{"name": "AGENT_ENDS_AFTER", "value": "3000"}]);
    create(&scene, POOL, agents(json!({"replicas": 4, "checkpoint": checkpoint, "env": env}))).await;
    until_ready(&scene, POOL).await;
    for (index, worker) in names(&workers(&scene, POOL).await).iter().enumerate() {
        assert!(give(&scene, worker, &format!("session-{index}"), &format!("long-{index}"), HOUR));
        assert!(give(&scene, worker, &format!("session-{index}"), &format!("short-{index}"), 10));
    }
    let long: Vec<String> = (0..4).map(|index| format!("long-{index}")).collect();
    let short: Vec<String> = (0..4).map(|index| format!("short-{index}")).collect();
    until_in_hand(&scene, &long, &short).await;
    change(&scene, POOL, json!({"replicas": 1})).await;
    until_workers(&scene, POOL, 1).await;
    until_ended(&scene, POOL, 1).await;
    change(&scene, POOL, json!({"replicas": 4})).await;
    until_workers(&scene, POOL, 4).await;
    until_in_hand(&scene, &long, &short).await;
}

/// Of all workers, the texts of the tasks in hand and of those that wait, in their order.
async fn until_in_hand(scene: &Scene<'_>, in_hand: &[String], waiting: &[String]) {
    ask_until("the tasks in hand", within(), async || {
        let (mut hand, mut wait) = (Vec::new(), Vec::new());
        let text = |task: &Value| task["text"].as_str().expect("a text").to_owned();
        for worker in names(&workers(scene, POOL).await) {
            let held = held(scene, &worker).ok_or_else(|| format!("{worker} does not answer"))?;
            assert_eq!(held["sessions"], json!({}), "no task is done");
            hand.extend(Some(&held["in_hand"]).filter(|task| !task.is_null()).map(text));
            wait.extend(held["waiting"].as_array().expect("tasks").iter().map(text));
        }
        hand.sort();
        wait.sort();
        if hand == in_hand && wait == waiting { Ok(()) } else { Err(format!("{hand:?}, {wait:?}")) }
    })
    .await;
}
