//! States that differ from their manifests, or of which nothing is left.

use super::*;

#[tokio::test]
async fn an_awaited_worker_that_ends_without_a_state_is_no_damage() {
    let pool = Pool::new();
    pool.beat("first", true);
    let pod = Pod::new(&pool, "pod", SECOND);
    let beside = async {
        until("the claim", || pool.path("claims/first/0000000000").exists()).await;
        fs::remove_dir_all(pool.path("workers/first")).unwrap();
    };
    let (restored, ()) = tokio::join!(pod.load(), beside);
    assert_eq!(restored, Restored::default());
    assert!(!pool.path("claims/first/0000000000").exists());
}

#[tokio::test]
async fn a_damaged_state_is_reported_until_the_worker_has_saved_its_own_and_is_no_error() {
    let pool = Pool::new();
    pool.save("broken", "one", &[]);
    // The end of it would be the end of the volume.
    pool.write("workers/broken/0000000000/0", b"one and much more");
    let pod = Pod::new(&pool, "pod", SECOND);
    let restored = pod.load().await;
    assert_eq!((restored.from, restored.damaged), (None, vec!["broken".to_owned()]));
    assert_eq!(fs::read_dir(pod.state.path()).unwrap().count(), 0);
    let sidecar = pod.run();
    let damage =
        "1 saved state differs from its manifest and was not restored; it is of the worker with uid broken";
    assert_eq!((sidecar.damage().as_deref(), sidecar.error()), (Some(damage), None));
    sleep(SECOND * 2).await;
    assert_eq!((sidecar.damage().as_deref(), sidecar.error()), (Some(damage), None), "nothing was saved yet");
    fs::write(pod.state.path().join("state"), "new").unwrap();
    until("it is saved", || sidecar.damage().is_none()).await;
    assert_eq!(sidecar.error(), None);
}

/// Its own state is not lost: it has none.
#[tokio::test]
async fn a_damaged_state_is_no_error_of_a_worker_that_ends_without_a_state() {
    let pool = Pool::new();
    pool.save("broken", "one", &[]);
    pool.write("workers/broken/0000000000/0", b"another");
    let pod = Pod::new(&pool, "pod", SECOND);
    pod.load().await;
    let sidecar = pod.run();
    sidecar.end().await;
    assert!(sidecar.damage().is_some());
    assert_eq!(sidecar.error(), None);
}

/// Neither is ever saved.
#[tokio::test]
async fn a_manifest_of_too_many_bytes_or_files_is_damaged() {
    let pool = Pool::new();
    let file = |path: String, size| SavedFile { path, size, sha256: digest_of(b"") };
    let large = [("small".to_owned(), 0), ("large".to_owned(), 11 << 30)];
    let large = large.map(|(path, size)| file(path, size)).into();
    let many = (0..10_001).map(|number| file(number.to_string(), 0)).collect();
    for (uid, files) in [("large", large), ("many", many)] {
        let manifest = Manifest { files, is_final: true, ..Manifest::default() };
        pool.write(
            &format!("workers/{uid}/0000000000/manifest.json"),
            &serde_json::to_vec(&manifest).unwrap(),
        );
    }
    (0..10_001).for_each(|number| pool.write(&format!("workers/many/0000000000/{number}"), b""));
    pool.write("workers/large/0000000000/0", b"");
    pool.write("workers/large/0000000000/1", b"");
    let pod = Pod::new(&pool, "pod", HOUR);
    let mut restored = pod.load().await;
    restored.damaged.sort();
    assert_eq!((restored.from, restored.damaged), (None, vec!["large".to_owned(), "many".to_owned()]));
    assert_eq!(fs::read_dir(pod.state.path()).unwrap().count(), 0);
}

/// The state is not free: the worker that restored it has saved, although its checkpoint is damaged.
#[tokio::test]
async fn what_a_damaged_state_continues_is_not_counted() {
    let pool = Pool::new();
    pool.save("before", "old", &[]);
    pool.save("heir", "new", &["before"]);
    pool.claim("before", 0, "heir");
    pool.make_older("claims/before/0000000000", HOUR);
    fs::write(pool.path("workers/heir/0000000000/0"), "damaged").unwrap();
    let pod = Pod::new(&pool, "pod", SECOND);
    assert_eq!(pod.load().await.damaged, ["heir"]);
    let sidecar = pod.run();
    let mut status = sidecar.status.clone();
    let first = status.wait_for(|saved| saved.unclaimed.is_some());
    let first = timeout(PATIENCE, first).await.expect("a survey").unwrap().unclaimed;
    assert_eq!(first, Some(0));
}

/// No state has both, and no loader can have both.
#[tokio::test]
async fn a_manifest_with_a_file_in_the_place_of_a_folder_is_damaged() {
    let pool = Pool::new();
    let file = |path: &str| SavedFile { path: path.to_owned(), size: 0, sha256: digest_of(b"") };
    let manifest = Manifest { files: vec![file("a"), file("a/b")], is_final: true, ..Manifest::default() };
    let text = serde_json::to_vec(&manifest).unwrap();
    pool.write("workers/crossed/0000000000/manifest.json", &text);
    pool.write("workers/crossed/0000000000/0", b"");
    pool.write("workers/crossed/0000000000/1", b"");
    assert_eq!(Pod::new(&pool, "pod", HOUR).load().await.damaged, ["crossed"]);
}

/// What is in their place is of other programs, and says nothing about the worker.
#[tokio::test]
async fn odd_entries_stop_no_start_and_what_they_belong_to_is_not_restored() {
    let pool = Pool::new();
    for uid in ["piped", "foldered", "unclaimed", "claimed-by-piped", "good"] {
        pool.save(uid, uid, &[]);
    }
    pool.make_older("workers/good/0000000000/manifest.json", SECOND);
    let pipe = pool.path("workers/piped/heartbeat");
    rustix::fs::mkfifoat(rustix::fs::CWD, pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    fs::create_dir(pool.path("workers/foldered/heartbeat")).unwrap();
    pool.write("claims/unclaimed", b"a file in the place of a folder");
    pool.claim("claimed-by-piped", 0, "piped");
    pool.make_older("claims/claimed-by-piped/0000000000", HOUR);
    pool.write("workers/a note of a user", b"");
    let restored = Pod::new(&pool, "pod", SECOND).load().await;
    assert_eq!((restored.from.as_deref(), restored.damaged.len()), (Some("good"), 0));
    let restored = Pod::new(&pool, "next", SECOND).load().await;
    assert_eq!((restored.from, restored.damaged.len()), (None, 0));
}

/// A short manifest could otherwise take every inode of the node's disk.
#[tokio::test]
async fn a_manifest_with_more_folders_than_a_worker_may_have_is_damaged() {
    let pool = Pool::new();
    let path = |folders: usize| format!("{}state", "a/".repeat(folders));
    for (uid, folders) in [("deep", 17), ("deepest", 16)] {
        let (path, sha256) = (path(folders), digest_of(b""));
        let files = vec![SavedFile { path, size: 0, sha256 }];
        let manifest = Manifest { files, is_final: true, ..Manifest::default() };
        let text = serde_json::to_vec(&manifest).unwrap();
        pool.write(&format!("workers/{uid}/0000000000/manifest.json"), &text);
        pool.write(&format!("workers/{uid}/0000000000/0"), b"");
    }
    pool.make_older("workers/deep/0000000000/manifest.json", SECOND);
    let pod = Pod::new(&pool, "pod", HOUR);
    let restored = pod.load().await;
    assert_eq!((restored.from.as_deref(), &*restored.damaged), (Some("deepest"), &["deep".to_owned()][..]));
    assert!(pod.state.path().join(path(16)).exists());
}
