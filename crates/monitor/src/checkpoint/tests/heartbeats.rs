//! Heartbeats: which worker runs, and which one is lost.

use super::*;

/// A worker with a checkpoint that is not final, and with a heartbeat of an hour ago. Returns its heartbeat.
fn save_with_old_heartbeat(pool: &Pool, uid: &str) -> Vec<u8> {
    pool.save(uid, "one", &[]);
    let manifest = pool.path(&format!("workers/{uid}/0000000000/manifest.json"));
    let text = fs::read_to_string(&manifest).unwrap().replace("true", "false");
    fs::write(manifest, text).unwrap();
    let beat = serde_json::to_vec(&Heartbeat { interval_seconds: 8, ..Heartbeat::default() }).unwrap();
    let key = format!("workers/{uid}/heartbeat");
    pool.write(&key, &beat);
    pool.make_older(&key, HOUR);
    beat
}

/// After a second, no request is answered for so long.
async fn outage(pool: &Pool, lasts: Duration) {
    let (workers, away) = (pool.path("workers"), pool.path("away"));
    sleep(SECOND).await;
    fs::rename(&workers, &away).unwrap();
    File::create(&workers).unwrap();
    sleep(lasts).await;
    fs::remove_file(&workers).unwrap();
    fs::rename(&away, &workers).unwrap();
}

#[tokio::test]
async fn a_request_that_fails_does_not_begin_the_watch_of_a_heartbeat_again() {
    let pool = Pool::new();
    save_with_old_heartbeat(&pool, "lost");
    let pod = Pod::new(&pool, "pod", SECOND * 8);
    let began = Instant::now();
    // Longer than between two looks at the heartbeat.
    let (restored, ()) = tokio::join!(pod.load(), outage(&pool, SECOND * 5 / 2));
    assert_eq!(restored.from.as_deref(), Some("lost"));
    // Of six seconds.
    assert!((SECOND * 6..SECOND * 9).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// Its heartbeats were refused for as long as the requests of the loader.
#[tokio::test]
async fn a_worker_is_not_lost_because_of_an_outage_during_the_watch() {
    let pool = Pool::new();
    let beat = save_with_old_heartbeat(&pool, "runs");
    let pod = Pod::new(&pool, "pod", SECOND * 8);
    let beside = async {
        outage(&pool, SECOND * 6).await;
        // Later than the next survey of the loader.
        sleep(SECOND * 5).await;
        pool.write("workers/runs/heartbeat", &beat);
    };
    let (restored, ()) = tokio::join!(pod.load(), beside);
    assert_eq!(restored.from, None);
}

#[tokio::test]
async fn an_old_heartbeat_without_a_checkpoint_is_removed() {
    let pool = Pool::new();
    for uid in ["old", "young"] {
        pool.beat(uid, false);
    }
    pool.make_older("workers/old/heartbeat", HOUR * 25);
    Pod::new(&pool, "pod", SECOND).load().await;
    assert!(!pool.path("workers/old").exists() && pool.path("workers/young").exists());
}

/// Its replacement starts after little more than a minute.
#[tokio::test]
async fn the_heartbeat_of_a_lost_worker_is_late_after_a_minute_also_with_a_long_interval() {
    let pool = Pool::new();
    let lost = Pod::new(&pool, "lost", HOUR);
    fs::write(lost.state.path().join("state"), "one").unwrap();
    let sidecar = lost.run();
    until("a checkpoint", || sidecar.status.borrow().last.is_some()).await;
    drop(sidecar);
    pool.make_older("workers/lost/heartbeat", SECOND * 70);
    let next = Pod::new(&pool, "next", HOUR);
    assert!(timeout(SECOND * 5, next.load()).await.is_err(), "it waits until the worker is lost");
}

#[tokio::test]
async fn any_number_in_a_heartbeat_is_harmless() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    let text = format!(r#"{{"ending": true, "intervalSeconds": {0}, "graceSeconds": {0}}}"#, u64::MAX);
    pool.write("workers/first/heartbeat", text.as_bytes());
    let pod = Pod::new(&pool, "pod", SECOND);
    assert_eq!(pod.load().await.from.as_deref(), Some("first"));
}

/// A folder in its place makes the write of a heartbeat fail.
fn block_heartbeats(pool: &Pool) -> PathBuf {
    let heartbeat = pool.path("workers/pod/heartbeat");
    fs::create_dir_all(&heartbeat).unwrap();
    heartbeat
}

#[tokio::test]
async fn no_checkpoint_is_written_before_the_first_heartbeat() {
    let pool = Pool::new();
    let heartbeat = block_heartbeats(&pool);
    let pod = Pod::new(&pool, "pod", SECOND);
    fs::write(pod.state.path().join("state"), "one").unwrap();
    let sidecar = pod.run();
    let manifest = pool.path("workers/pod/0000000000/manifest.json");
    until("an error", || sidecar.error().is_some() || manifest.exists()).await;
    sleep(SECOND * 2).await;
    assert!(!manifest.exists(), "its worker would count as ended");
    fs::remove_dir(&heartbeat).unwrap();
    until("a checkpoint", || manifest.exists()).await;
    assert!(heartbeat.is_file());
}

#[tokio::test]
async fn a_heartbeat_that_failed_is_soon_written_again() {
    let pool = Pool::new();
    let heartbeat = block_heartbeats(&pool);
    // The next regular one is due in half a minute.
    let pod = Pod::new(&pool, "pod", HOUR);
    let sidecar = pod.run();
    until("an error", || sidecar.error().is_some()).await;
    fs::remove_dir(&heartbeat).unwrap();
    until("a heartbeat", || heartbeat.is_file()).await;
}
