//! The end of a worker: its last checkpoint, and for how long it is tried.

use super::*;

/// The storage is away while workers are removed.
#[tokio::test]
async fn a_worker_that_ends_reports_no_loss_of_what_it_has_saved_or_never_had() {
    let cases = [(false, false), (true, false), (true, true)];
    join_all(cases.map(async |(has_state, is_lost)| {
        let pool = Pool::new();
        let pod = Pod::new(&pool, "pod", SECOND);
        pod.load().await;
        if has_state {
            fs::write(pod.state.path().join("state"), "one").unwrap();
        }
        let sidecar = pod.run();
        let known = || {
            let saved = sidecar.status.borrow();
            if has_state { saved.last.is_some() } else { saved.unclaimed == Some(0) }
        };
        until("a checkpoint, or none is needed", known).await;
        fs::rename(pool.path("workers"), pool.path("away")).unwrap();
        for folder in ["workers", "claims"] {
            let _ = fs::remove_dir(pool.path(folder));
            File::create(pool.path(folder)).unwrap();
        }
        until("the storage is away", || sidecar.error().is_some()).await;
        if is_lost {
            fs::write(pod.state.path().join("state"), "two").unwrap();
        }
        let began = Instant::now();
        sidecar.end().await;
        assert_eq!(sidecar.error().is_some(), is_lost, "{has_state}");
        assert_eq!(began.elapsed() < PATIENCE * 4 / 5, !is_lost, "a loss is tried to the end");
    }))
    .await;
}

/// Its GPU is not kept for what no further attempt mends.
#[tokio::test]
async fn a_worker_that_has_ended_is_not_kept_for_a_state_that_cannot_be_saved() {
    let pool = Pool::new();
    let pod = Pod::new(&pool, "pod", HOUR);
    let sidecar = pod.run();
    until("its heartbeat", || pool.path("workers/pod/heartbeat").exists()).await;
    (0..=10_000).for_each(|number| fs::write(pod.state.path().join(number.to_string()), "").unwrap());
    let began = Instant::now();
    sidecar.end().await;
    assert!(began.elapsed() < PATIENCE * 3 / 4, "{:?}", began.elapsed());
    let error = sidecar.error().unwrap();
    assert!(
        error.contains("more than 10000 files, and nothing is saved: let the worker keep less"),
        "{error}"
    );
}

/// The successor has claimed the state in advance, took this worker for lost, and has saved since then.
#[tokio::test]
async fn a_worker_that_ends_does_not_save_over_a_successor_that_has_saved() {
    let pool = Pool::new();
    let pod = Pod::new(&pool, "pod", SECOND);
    pod.load().await;
    fs::write(pod.state.path().join("state"), "one").unwrap();
    let state = StateFolder(pod.state.path().to_owned());
    let saver = Saver::new(pod.settings.clone(), state, pod.own.path(), Arc::default()).unwrap();
    let (mut status, announce) = (saver.status(), saver.announcer());
    let (_ended, last) = mpsc::channel(1);
    let saving = tokio::spawn(saver.run(last));
    until("a checkpoint", || status.borrow().last.is_some()).await;
    announce().await;
    pool.claim("pod", 0, "other");
    fs::write(pod.state.path().join("state"), "two, for which it waits").unwrap();
    let second = pool.path("workers/pod/0000000001/manifest.json");
    until("it saves for its successor", || second.exists()).await;
    pool.save("other", "newer", &["pod"]);
    fs::write(pod.state.path().join("state"), "three, which is too late").unwrap();
    let refused = status.wait_for(|saved| saved.error.is_some());
    timeout(PATIENCE, refused).await.expect("an error").unwrap();
    assert!(!pool.path("workers/pod/0000000002/manifest.json").exists());
    saving.abort();
}

/// Its loader was killed after it had created the claim.
#[tokio::test]
async fn a_claim_without_text_does_not_stop_the_last_save() {
    let pool = Pool::new();
    let pod = Pod::new(&pool, "pod", SECOND);
    let state = StateFolder(pod.state.path().to_owned());
    let saver = Saver::new(pod.settings.clone(), state, pod.own.path(), Arc::default()).unwrap();
    let announce = saver.announcer();
    let (_ended, last) = mpsc::channel(1);
    let saving = tokio::spawn(saver.run(last));
    until("a heartbeat", || pool.path("workers/pod/heartbeat").exists()).await;
    announce().await;
    pool.write("claims/pod/0000000000", b"");
    fs::write(pod.state.path().join("state"), "last").unwrap();
    let manifest = pool.path("workers/pod/0000000000/manifest.json");
    until("a checkpoint", || manifest.exists()).await;
    saving.abort();
}
