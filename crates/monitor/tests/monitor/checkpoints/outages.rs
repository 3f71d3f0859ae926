//! Storages that break: outages, refusals, removed buckets and changed keys.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::*;

#[test]
fn workers_that_live_are_not_taken_for_lost_after_an_outage_of_the_storage() {
    let mut storage = Storage::bucket();
    let pod = Pod::new(&storage, "first");
    pod.write("state", "one");
    let monitor = pod.run(&QUICK);
    let heartbeat = storage.pool().join("workers/first/heartbeat");
    until("a checkpoint", || storage.pool().join("workers/first/0000000000/manifest.json").exists());
    let (own, state, worker) = (pod.own, pod.state, pod.worker);
    storage.stop();
    // The heartbeat is older than that of a lost worker.
    until("a heartbeat of long ago", || {
        let written = heartbeat.metadata().unwrap().modified().unwrap();
        written.elapsed().unwrap_or_default() > Duration::from_secs(5)
    });
    storage.start();
    let next = Pod::new(&storage, "next");
    assert!(next.load().status.success());
    assert_eq!(next.state(), BTreeMap::new());
    worker.stop();
    assert!(monitor.stop().error.is_none());
    drop((own, state, worker));
}

/// The worker of a pod whose storage was away at its start.
#[test]
fn a_worker_that_starts_empty_claims_nothing_and_leaves_the_older_state_to_the_next() {
    let (storage, proxy) = Storage::broken(Break::Unavailable, |_, _| true);
    proxy.mend();
    Pod::new(&storage, "first").live("state", "one");
    proxy.resume();
    let waits = Pod::new(&storage, "waits");
    let loader = |pod: &Pod<'_>, more: &[&str]| pod.loader(&[&QUICK[..], more].concat()).output().unwrap();
    assert_eq!(loader(&waits, &[]).status.code(), Some(26), "it waits by default");
    let empty = Pod::new(&storage, "empty");
    assert!(loader(&empty, &["--start-empty"]).status.success());
    assert_eq!(empty.state(), BTreeMap::new());
    // Another container of its loader keeps what the worker has written.
    empty.write("state", "of its own");
    assert!(loader(&empty, &["--start-empty"]).status.success());
    assert_eq!(empty.state(), only("state", "of its own"));
    let monitor = empty.run(&QUICK);
    proxy.mend();
    until("its own checkpoint", || storage.pool().join("workers/empty/0000000000/manifest.json").exists());
    assert!(storage.pool().join("workers/first/0000000000/manifest.json").exists());
    assert!(!storage.pool().join("claims/first").exists());
    let next = Pod::new(&storage, "next");
    assert!(next.load().status.success());
    assert_eq!(next.state(), only("state", "one"));
    empty.worker.stop();
    assert!(monitor.stop().error.is_none());
}

/// As of keys that are replaced, of which a pod may have the old ones for minutes.
#[test]
fn one_refusal_starts_no_worker_without_its_state() {
    let (storage, proxy) = Storage::broken(Break::Forbidden, |_, _| true);
    proxy.mend();
    Pod::new(&storage, "first").live("state", "one");
    proxy.resume();
    let start_empty = [&QUICK[..], &["--start-empty"]].concat();
    let (early, late) = (Pod::new(&storage, "early"), Pod::new(&storage, "late"));
    for pod in [&early, &late] {
        let refused = pod.loader(&start_empty).output().unwrap();
        assert_eq!(refused.status.code(), Some(27), "{}", String::from_utf8_lossy(&refused.stderr));
    }
    // For as long as the store is tried again, and the kubelet starts the next containers.
    let began = Instant::now();
    until("it starts empty", || late.loader(&start_empty).output().unwrap().status.success());
    assert!(began.elapsed() > Duration::from_secs(3), "{:?}", began.elapsed());
    proxy.mend();
    assert!(early.loader(&start_empty).output().unwrap().status.success());
    assert_eq!((early.state(), late.state()), (only("state", "one"), BTreeMap::new()));
}

#[test]
fn a_damaged_state_is_not_forgotten_where_the_store_fails_after_it() {
    let has_read = AtomicBool::new(false);
    let (storage, proxy) = Storage::broken(Break::Unavailable, move |method, path| {
        let is_file = method == "GET" && path.ends_with("/first/0000000000/0");
        let is_survey = path.contains("list-type=2") && path.contains("workers%2F&");
        has_read.fetch_or(is_file, Ordering::SeqCst) && is_survey
    });
    proxy.mend();
    Pod::new(&storage, "first").live("state", "one");
    for checkpoint in fs::read_dir(storage.pool().join("workers/first")).unwrap().flatten() {
        fs::write(checkpoint.path().join("0"), "two").unwrap();
    }
    proxy.resume();
    let pod = Pod::new(&storage, "second");
    let ended = pod.loader(&[&QUICK[..], &["--start-empty"]].concat()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(proxy.broken() > 0, "{said}");
    assert_eq!(ended.status.code(), Some(26), "{said}");
    proxy.mend();
    assert!(pod.load().status.success());
    let restored = fs::read_to_string(pod.own.path().join("restored.json")).unwrap();
    assert!(restored.contains(r#""damaged":["first"]"#), "{restored}");
}

#[test]
fn a_loader_that_has_given_its_claim_back_may_start_empty() {
    let is_all_away = Arc::<AtomicBool>::default();
    let shared = Arc::clone(&is_all_away);
    let (storage, proxy) = Storage::broken(Break::Unavailable, move |method, path| {
        let is_file = method == "GET" && path.ends_with("/first/0000000000/0");
        is_file || shared.load(Ordering::SeqCst)
    });
    proxy.mend();
    Pod::new(&storage, "first").live("state", "one");
    proxy.resume();
    let pod = Pod::new(&storage, "second");
    let start_empty = [&QUICK[..], &["--start-empty"]].concat();
    assert_eq!(pod.loader(&start_empty).output().unwrap().status.code(), Some(26));
    assert!(!storage.pool().join("claims/first/0000000000").exists());
    is_all_away.store(true, Ordering::SeqCst);
    let ended = pod.loader(&start_empty).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(pod.state(), BTreeMap::new());
}

#[test]
fn a_loader_that_may_have_claimed_a_state_does_not_start_empty() {
    let is_file = |method: &str, path: &str| method == "GET" && path.ends_with("/first/0000000000/0");
    let (storage, proxy) = Storage::broken(Break::Unavailable, is_file);
    proxy.mend();
    Pod::new(&storage, "first").live("state", "one");
    proxy.resume();
    let pod = Pod::new(&storage, "second");
    let start_empty = [&QUICK[..], &["--start-empty"]].concat();
    let ended = pod.loader(&start_empty).output().unwrap();
    assert_eq!(ended.status.code(), Some(26), "{}", String::from_utf8_lossy(&ended.stderr));
    proxy.mend();
    assert!(pod.load().status.success());
    assert_eq!(pod.state(), only("state", "one"));
}

#[test]
fn failed_attempts_do_not_fill_the_storage() {
    // The second file of each checkpoint.
    let is_second = |method: &str, path: &str| method == "PUT" && path.ends_with("/1");
    let (storage, proxy) = Storage::broken(Break::Unavailable, is_second);
    let pod = Pod::new(&storage, "first");
    pod.write("a", "one");
    pod.write("b", "two");
    let monitor = pod.run(&["--checkpoint-seconds=1", "--grace-seconds=8"]);
    until("many attempts", || proxy.broken() > 5);
    assert!(checkpoints(&storage, "first") <= 2);
    pod.worker.stop();
    assert!(monitor.stop().error.is_some());
    assert_eq!(checkpoints(&storage, "first"), 0);
    proxy.mend();
    let monitor = pod.run_beside(pod.worker.port, &QUICK);
    monitor.until(&format!("agent_checkpoint_failing{LABELS} 0"));
}

fn is_removal(method: &str, path: &str) -> bool {
    method == "DELETE" || method == "POST" && path.ends_with("?delete")
}

#[test]
fn a_state_is_saved_also_where_nothing_can_be_removed() {
    let (storage, proxy) = Storage::broken(Break::Hold, is_removal);
    let pod = Pod::new(&storage, "first");
    for (number, text) in ["one", "two", "three"].into_iter().enumerate() {
        pod.write("state", text);
        let monitor = pod.run(&["--checkpoint-seconds=60", "--grace-seconds=6"]);
        let number = format!("workers/first/{number:010}/manifest.json");
        until("a checkpoint", || storage.pool().join(&number).exists());
        if text == "three" {
            until("an older one is to be removed", || proxy.broken() > 0);
            pod.worker.stop();
        }
        let message = monitor.stop();
        assert!(message.error.is_none() && message.checkpoint.is_some(), "{message:?}");
    }
    assert!(manifests(&storage, "first").iter().any(|text| text.contains("\"final\":true")));
}

/// With its bucket its last checkpoint is gone.
#[test]
fn the_state_of_a_worker_whose_bucket_was_removed_is_lost() {
    let storage = Storage::bucket();
    let pod = Pod::new(&storage, "first");
    pod.write("state", "one");
    let monitor = pod.run(&["--checkpoint-seconds=1", "--grace-seconds=8"]);
    until("a checkpoint", || storage.pool().join("workers/first/0000000000/manifest.json").exists());
    fs::remove_dir_all(storage.folder.path().join(BUCKET)).unwrap();
    monitor.until(&format!("agent_checkpoint_failing{LABELS} 1"));
    pod.worker.stop();
    let error = monitor.stop().error.unwrap();
    assert!(error.contains("there is no such bucket"), "{error}");
}

/// It would restore nothing, and save over the newest checkpoint.
#[test]
fn a_proxy_that_does_not_find_the_store_hides_no_state() {
    let (storage, proxy) = Storage::broken(Break::NotFound, |_, path| path.contains("list-type=2"));
    proxy.mend();
    Pod::new(&storage, "first").live("state", "one");
    let second = Pod::new(&storage, "second");
    proxy.resume();
    let loader = second.loader(&QUICK).spawn().unwrap();
    until("nothing is found", || proxy.broken() > 0);
    proxy.mend();
    let output = loader.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(second.state(), only("state", "one"));
}

#[test]
fn what_could_not_be_removed_is_removed_later_also_if_the_state_does_not_change() {
    let (storage, proxy) = Storage::broken(Break::Unavailable, is_removal);
    proxy.mend();
    let first = storage.pool().join("workers/first");
    Pod::new(&storage, "first").live("state", "one");
    let second = Pod::new(&storage, "second");
    assert!(second.load().status.success());
    proxy.resume();
    let monitor = second.run(&QUICK);
    until("a removal fails", || proxy.broken() > 0);
    assert!(first.exists());
    proxy.mend();
    until("the state before is removed", || !first.exists());
    assert_eq!(checkpoints(&storage, "second"), 1);
    monitor.kill();
}

#[test]
fn a_monitor_that_is_killed_in_an_upload_leaves_the_checkpoint_before_it() {
    let (storage, proxy) = Storage::broken(Break::Hold, |_, path| path.contains("partNumber=2"));
    let pod = Pod::new(&storage, "first");
    pod.write("state", "whole");
    let monitor = pod.run(&QUICK);
    until("a checkpoint", || storage.pool().join("workers/first/0000000000/manifest.json").exists());
    // Of three parts.
    pod.write("later", &"0123456789abcdef".repeat(700_000));
    until("the second part is on its way", || proxy.broken() > 0);
    monitor.kill();
    let next = Pod::new(&storage, "next");
    assert!(next.load().status.success());
    assert_eq!(next.state(), only("state", "whole"));
}

#[test]
fn keys_that_expire_are_replaced_while_the_worker_runs() {
    let storage = Storage::bucket();
    let pod = Pod::new(&storage, "first");
    pod.write("state", "one");
    let (keys, monitor) = with_keys_of_a_folder(&storage, &pod, "expired");
    monitor.until(&format!("agent_checkpoint_failing{LABELS} 1"));
    fs::write(keys.path().join(KEYS[1].0), KEYS[1].1).unwrap();
    monitor.until(&format!("agent_checkpoint_failing{LABELS} 0"));
}

/// The other keys are those of the environment.
fn with_keys_of_a_folder(storage: &Storage, pod: &Pod, secret: &str) -> (TempDir, Monitor) {
    let keys = tempfile::tempdir().unwrap();
    fs::write(keys.path().join(KEYS[0].0), KEYS[0].1).unwrap();
    fs::write(keys.path().join(KEYS[1].0), secret).unwrap();
    let mut env = storage.env();
    env.iter_mut()
        .filter(|(name, _)| *name == KEYS[1].0)
        .for_each(|(_, value)| *value = "expired".to_owned());
    let mut args = storage.args(&QUICK);
    args.extend([pod.state_arg(), format!("--keys-dir={}", keys.path().display())]);
    let monitor = Monitor::start_with(pod.own.path(), pod.worker.port, pod.uid, &args, &env);
    (keys, monitor)
}

/// A new worker has the new keys at once, and the kubelet brings them to running ones later.
#[test]
fn a_worker_that_waits_for_new_keys_is_not_taken_for_lost() {
    let storage = Storage::bucket();
    let pod = Pod::new(&storage, "first");
    pod.write("state", "one");
    let (keys, monitor) = with_keys_of_a_folder(&storage, &pod, KEYS[1].1);
    monitor.until(&format!("agent_queue_depth{LABELS} 0.0"));
    until("a checkpoint", || storage.pool().join("workers/first/0000000000/manifest.json").exists());
    fs::write(keys.path().join(KEYS[1].0), "expired").unwrap();
    monitor.until(&format!("agent_checkpoint_failing{LABELS} 1"));
    // The server knows one pair of keys: the last heartbeat had another one.
    let heartbeat = storage.pool().join("workers/first/heartbeat");
    let text = fs::read_to_string(&heartbeat).unwrap();
    let (before, after) = text.split_once("\"keys\":\"").unwrap();
    fs::write(&heartbeat, format!("{before}\"keys\":\"00000000{}", &after[8..])).unwrap();
    let next = Pod::new(&storage, "next");
    let mut loader = next.loader(&QUICK).spawn().unwrap();
    // Far longer than a worker on a dead node is watched.
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        assert!(loader.try_wait().unwrap().is_none() && !storage.pool().join("claims/first").exists());
        thread::sleep(Duration::from_millis(20));
    }
    fs::write(keys.path().join(KEYS[1].0), KEYS[1].1).unwrap();
    let output = loader.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(next.state(), BTreeMap::new());
    pod.worker.stop();
    assert!(monitor.stop().error.is_none());
}
