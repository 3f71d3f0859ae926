//! Loaders and sidecars of several pods side by side in one process, over a folder. The test plays the workers.

use std::{
    fs::{self, File, FileTimes},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::join_all;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep, timeout},
};

use super::{
    Claim, Heartbeat, Manifest, Place, RESTORED, Restored, SavedFile, Settings,
    restore::{OwnClaims, restore},
    save::{Final, Saved, Saver},
    state::StateFolder,
};

const PATIENCE: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn digest_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A pool's storage.
struct Pool(TempDir);

impl Pool {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join("demo/coder").join(path)
    }

    fn write(&self, path: &str, text: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The final checkpoint of a worker.
    fn save(&self, uid: &str, text: &str, continues: &[&str]) {
        self.write(&format!("workers/{uid}/0000000000/0"), text.as_bytes());
        let (size, sha256) = (text.len() as u64, digest_of(text.as_bytes()));
        let manifest = Manifest {
            files: vec![SavedFile { path: "state".to_owned(), size, sha256 }],
            is_final: true,
            time: 0,
            continues: continues.iter().map(|uid| (*uid).to_owned()).collect(),
        };
        let text = serde_json::to_vec(&manifest).unwrap();
        self.write(&format!("workers/{uid}/0000000000/manifest.json"), &text);
    }

    fn claim(&self, uid: &str, number: u32, by: &str) {
        let claim = Claim { by: by.to_owned(), pod: format!("pod-{by}") };
        self.write(&format!("claims/{uid}/{number:010}"), &serde_json::to_vec(&claim).unwrap());
    }

    fn beat(&self, uid: &str, ending: bool) {
        let beat = Heartbeat { ending, interval_seconds: 60, grace_seconds: 60, ..Heartbeat::default() };
        self.write(&format!("workers/{uid}/heartbeat"), &serde_json::to_vec(&beat).unwrap());
    }

    fn make_older(&self, path: &str, by: Duration) {
        let file = File::options().write(true).open(self.path(path)).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::now() - by)).unwrap();
    }

    fn age(&self, path: &str) -> Duration {
        self.path(path).metadata().unwrap().modified().unwrap().elapsed().unwrap_or_default()
    }
}

/// The volumes of a pod.
struct Pod {
    settings: Settings,
    own: TempDir,
    state: TempDir,
}

impl Pod {
    fn new(pool: &Pool, uid: &str, interval: Duration) -> Self {
        let settings = Settings {
            place: Place::Folder(pool.0.path().to_owned()),
            namespace: "demo".to_owned(),
            pool: "coder".to_owned(),
            uid: uid.to_owned(),
            pod: format!("pod-{uid}"),
            interval,
            grace: PATIENCE,
        };
        Self { settings, own: tempfile::tempdir().unwrap(), state: tempfile::tempdir().unwrap() }
    }

    async fn load(&self) -> Restored {
        let state = StateFolder(self.state.path().to_owned());
        let claims = OwnClaims::default();
        let restored = restore(&self.settings, &state, self.own.path(), PATIENCE, &claims);
        timeout(PATIENCE * 3, restored).await.expect("it ends").unwrap();
        serde_json::from_slice(&fs::read(self.own.path().join(RESTORED)).unwrap()).unwrap()
    }

    fn state(&self) -> Option<String> {
        fs::read_to_string(self.state.path().join("state")).ok()
    }

    /// The sidecar, until the end of the test.
    fn run(&self) -> Sidecar {
        let state = StateFolder(self.state.path().to_owned());
        let saver = Saver::new(self.settings.clone(), state, self.own.path(), Arc::default()).unwrap();
        let status = saver.status();
        let (ended, last) = mpsc::channel(1);
        Sidecar { task: tokio::spawn(saver.run(last)), status, ended }
    }
}

struct Sidecar {
    task: JoinHandle<()>,
    status: tokio::sync::watch::Receiver<Saved>,
    ended: mpsc::Sender<Final>,
}

impl Sidecar {
    fn error(&self) -> Option<String> {
        self.status.borrow().error.clone()
    }

    fn damage(&self) -> Option<String> {
        self.status.borrow().damage.clone()
    }

    /// After the end of its worker.
    async fn end(&self) {
        let (done, is_done) = oneshot::channel();
        let last = Final { until: Instant::now() + PATIENCE, worker_runs: false, done };
        assert!(self.ended.send(last).await.is_ok());
        timeout(PATIENCE, is_done).await.expect("it ends").unwrap();
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        // Files cannot be watched.
        sleep(Duration::from_millis(20)).await;
    }
}

/// A file whose reader waits until it is written.
fn make_slow(path: &Path) {
    fs::remove_file(path).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

async fn write_slow(path: PathBuf, text: &'static str) {
    spawn_blocking(move || fs::write(path, text).unwrap()).await.unwrap();
}

#[tokio::test]
async fn loaders_that_start_at_once_restore_every_state_exactly_once() {
    let pool = Pool::new();
    let numbers = || (100..160).map(|number: u32| number.to_string());
    numbers().for_each(|number| pool.save(&format!("before-{number}"), &number, &[]));
    let pods: Vec<Pod> = numbers().map(|number| Pod::new(&pool, &format!("pod-{number}"), HOUR)).collect();
    join_all(pods.iter().map(Pod::load)).await;
    let mut restored: Vec<String> = pods.iter().filter_map(Pod::state).collect();
    restored.sort();
    assert_eq!(restored, numbers().collect::<Vec<_>>());
    assert_eq!(Pod::new(&pool, "late", HOUR).load().await.from, None);
}

#[tokio::test]
async fn a_loader_that_loses_every_claim_but_one_restores_that_state() {
    let pool = Pool::new();
    for number in 100..160 {
        let uid = format!("before-{number}");
        pool.save(&uid, &number.to_string(), &[]);
        if number < 159 {
            // The survey does not see it, and the claim cannot be created: as if another loader were faster with it.
            fs::create_dir_all(pool.path(&format!("claims/{uid}/0000000000"))).unwrap();
        }
    }
    let pod = Pod::new(&pool, "pod", HOUR);
    assert_eq!(pod.load().await.from.as_deref(), Some("before-159"));
    assert_eq!(pod.state().as_deref(), Some("159"));
}

#[tokio::test]
async fn a_claim_stays_young_while_a_large_file_is_copied() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    let file = pool.path("workers/first/0000000000/0");
    make_slow(&file);
    let (slow, other) = (Pod::new(&pool, "slow", SECOND), Pod::new(&pool, "other", SECOND));
    let beside = async {
        // A claim is too old after three intervals.
        sleep(SECOND * 5).await;
        let found = timeout(SECOND * 10, other.load()).await;
        write_slow(file, "one").await;
        assert_eq!(found.map(|found| found.from), Ok(None));
    };
    let (restored, ()) = tokio::join!(slow.load(), beside);
    assert_eq!((restored.from.as_deref(), slow.state().as_deref()), (Some("first"), Some("one")));
}

#[tokio::test]
async fn a_state_that_another_worker_has_claimed_meanwhile_is_not_restored() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    let file = pool.path("workers/first/0000000000/0");
    make_slow(&file);
    let slow = Pod::new(&pool, "slow", SECOND);
    let beside = async {
        until("the claim", || pool.path("claims/first/0000000000").exists()).await;
        // As after this pod was cut off from the storage.
        pool.claim("first", 1, "other");
        write_slow(file, "one").await;
    };
    let (restored, ()) = tokio::join!(slow.load(), beside);
    assert_eq!((restored.from, slow.state()), (None, None));
}

#[tokio::test]
async fn the_sidecar_keeps_the_claim_until_its_first_checkpoint() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    let pod = Pod::new(&pool, "pod", SECOND);
    pod.load().await;
    let claim = "claims/first/0000000000";
    pool.make_older(claim, HOUR);
    // Without the folder of the state no checkpoint succeeds.
    let aside = pod.state.path().with_extension("aside");
    fs::rename(pod.state.path(), &aside).unwrap();
    let sidecar = pod.run();
    until("a young claim", || pool.age(claim) < HOUR / 2).await;
    fs::rename(&aside, pod.state.path()).unwrap();
    until("the state is adopted", || !pool.path("claims/first").exists()).await;
    assert!(!pool.path("workers/first").exists());
    until("no error", || sidecar.error().is_none()).await;
}

#[tokio::test]
async fn a_worker_whose_state_was_adopted_by_another_one_does_not_save() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    let pod = Pod::new(&pool, "pod", SECOND);
    pod.load().await;
    // What the other one has done while this one was cut off.
    fs::remove_dir_all(pool.path("workers/first")).unwrap();
    fs::remove_dir_all(pool.path("claims/first")).unwrap();
    let sidecar = pod.run();
    until("an error", || sidecar.error().is_some_and(|error| error.contains("not saved any more"))).await;
    sleep(SECOND * 2).await;
    assert!(!pool.path("workers/pod/0000000000").exists() && !pool.path("claims/first").exists());
}

#[tokio::test]
async fn a_state_that_was_adopted_does_not_come_back_after_a_second_death() {
    let pool = Pool::new();
    // The second worker has restored the first one's state, and died before it had removed it.
    pool.save("first", "days old", &[]);
    pool.claim("first", 0, "second");
    pool.make_older("claims/first/0000000000", HOUR);
    pool.save("second", "newer", &["../../../outside", "first"]);
    let outside = pool.0.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let pod = Pod::new(&pool, "third", SECOND);
    assert_eq!(pod.load().await.from.as_deref(), Some("second"));
    let _sidecar = pod.run();
    until("the state is adopted", || !pool.path("workers/second").exists()).await;
    assert!(!pool.path("workers/first").exists());
    assert!(outside.exists(), "a manifest names no other folder");
    assert_eq!(Pod::new(&pool, "fourth", SECOND).load().await.from, None);
}

#[tokio::test]
async fn the_removal_of_an_adopted_state_is_tried_again_while_nothing_changes() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    let pod = Pod::new(&pool, "second", SECOND);
    pod.load().await;
    let before = pool.path("workers/first");
    fs::remove_dir_all(&before).unwrap();
    // It cannot be removed as a folder.
    fs::write(&before, "").unwrap();
    let _sidecar = pod.run();
    let manifest = pool.path("workers/second/0000000000/manifest.json");
    until("a checkpoint", || manifest.exists()).await;
    sleep(SECOND * 2).await;
    let saved: Manifest = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
    assert_eq!(saved.continues, ["first"]);
    fs::remove_file(&before).unwrap();
    fs::create_dir(&before).unwrap();
    until("it is removed", || !before.exists()).await;
    assert!(!pool.path("workers/second/0000000001").exists());
}

#[tokio::test]
async fn a_claim_in_advance_is_given_back_if_the_worker_does_not_end_after_all() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    fs::remove_dir_all(pool.path("workers/first")).unwrap();
    pool.beat("first", true);
    // Of an attempt of this pod before a request that failed.
    pool.claim("first", 0, "pod");
    let pod = Pod::new(&pool, "pod", SECOND);
    let beside = async {
        until("the claim", || pool.path("claims/first/0000000001").exists()).await;
        pool.beat("first", false);
    };
    let (restored, ()) = tokio::join!(pod.load(), beside);
    assert_eq!(restored.from, None);
    assert!(!pool.path("claims/first/0000000000").exists() && !pool.path("claims/first/0000000001").exists());
}

/// The loader was killed while it waited for a worker that has announced its end and now goes on running.
#[tokio::test]
async fn a_claim_of_an_earlier_container_of_the_loader_is_given_back_if_its_state_is_not_restored() {
    let pool = Pool::new();
    pool.beat("first", false);
    pool.claim("first", 0, "pod");
    let pod = Pod::new(&pool, "pod", SECOND);
    fs::write(pod.own.path().join("claims.json"), r#"["first"]"#).unwrap();
    pool.save("second", "two", &[]);
    assert_eq!(pod.load().await.from.as_deref(), Some("second"));
    assert!(!pool.path("claims/first/0000000000").exists());
    assert!(pool.path("claims/second/0000000000").exists());
}

#[tokio::test]
async fn a_request_that_fails_does_not_begin_the_watch_of_a_heartbeat_again() {
    let pool = Pool::new();
    pool.save("lost", "one", &[]);
    let manifest = pool.path("workers/lost/0000000000/manifest.json");
    let text = fs::read_to_string(&manifest).unwrap().replace("true", "false");
    fs::write(manifest, text).unwrap();
    let beat = Heartbeat { interval_seconds: 8, ..Heartbeat::default() };
    pool.write("workers/lost/heartbeat", &serde_json::to_vec(&beat).unwrap());
    pool.make_older("workers/lost/heartbeat", HOUR);
    let pod = Pod::new(&pool, "pod", SECOND * 8);
    let (workers, away) = (pool.path("workers"), pool.path("away"));
    let began = Instant::now();
    let outage = async {
        // Longer than between two looks at the heartbeat.
        sleep(SECOND).await;
        fs::rename(&workers, &away).unwrap();
        File::create(&workers).unwrap();
        sleep(SECOND * 5 / 2).await;
        fs::remove_file(&workers).unwrap();
        fs::rename(&away, &workers).unwrap();
    };
    let (restored, ()) = tokio::join!(pod.load(), outage);
    assert_eq!(restored.from.as_deref(), Some("lost"));
    // Of six seconds.
    assert!((SECOND * 6..SECOND * 9).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// Its heartbeats were refused for as long as the requests of the loader.
#[tokio::test]
async fn a_worker_is_not_lost_because_of_an_outage_during_the_watch() {
    let pool = Pool::new();
    pool.save("runs", "one", &[]);
    let manifest = pool.path("workers/runs/0000000000/manifest.json");
    let text = fs::read_to_string(&manifest).unwrap().replace("true", "false");
    fs::write(manifest, text).unwrap();
    let beat = Heartbeat { interval_seconds: 8, ..Heartbeat::default() };
    let beat = serde_json::to_vec(&beat).unwrap();
    pool.write("workers/runs/heartbeat", &beat);
    pool.make_older("workers/runs/heartbeat", HOUR);
    let pod = Pod::new(&pool, "pod", SECOND * 8);
    let (workers, away) = (pool.path("workers"), pool.path("away"));
    let outage = async {
        sleep(SECOND).await;
        fs::rename(&workers, &away).unwrap();
        File::create(&workers).unwrap();
        sleep(SECOND * 6).await;
        fs::remove_file(&workers).unwrap();
        fs::rename(&away, &workers).unwrap();
        // Later than the next survey of the loader.
        sleep(SECOND * 5).await;
        pool.write("workers/runs/heartbeat", &beat);
    };
    let (restored, ()) = tokio::join!(pod.load(), outage);
    assert_eq!(restored.from, None);
}

/// An earlier container of the loader had restored a state, and has given its claim back because a request failed.
#[tokio::test]
async fn without_a_state_to_restore_the_worker_starts_without_files() {
    let pool = Pool::new();
    let pod = Pod::new(&pool, "pod", SECOND);
    fs::write(pod.state.path().join("state"), "of another worker by now").unwrap();
    assert_eq!(pod.load().await.from, None);
    assert_eq!(fs::read_dir(pod.state.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_claim_that_another_worker_found_too_old_while_others_were_released_is_not_used() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    let pod = Pod::new(&pool, "pod", SECOND);
    fs::write(pod.own.path().join("claims.json"), r#"["other"]"#).unwrap();
    // The claims of this one cannot be listed.
    pool.write("claims/other", b"");
    let beside = async {
        until("it is restored", || pod.state().is_some()).await;
        pool.save("heir", "one", &["first"]);
        pool.claim("first", 1, "heir");
        fs::remove_file(pool.path("claims/other")).unwrap();
    };
    let (restored, ()) = tokio::join!(pod.load(), beside);
    assert_eq!(restored.from.as_deref(), Some("heir"));
    assert!(!pool.path("claims/first/0000000000").exists());
}

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

#[tokio::test]
async fn a_worker_without_state_counts_the_states_that_no_worker_has_claimed() {
    let pool = Pool::new();
    let (empty, busy) = (Pod::new(&pool, "empty", SECOND), Pod::new(&pool, "busy", SECOND));
    empty.load().await;
    busy.load().await;
    fs::write(busy.state.path().join("state"), "own").unwrap();
    let (empty, busy) = (empty.run(), busy.run());
    let found = |sidecar: &Sidecar| sidecar.status.borrow().unclaimed;
    until("nothing is found", || found(&empty) == Some(0)).await;
    pool.save("before", "last", &[]);
    until("a state", || found(&empty) == Some(1)).await;
    assert_eq!(found(&busy), None, "it would not restore it");
    pool.claim("before", 0, "another");
    until("it is claimed", || found(&empty) != Some(1)).await;
}

/// Its state is lost if it is replaced.
#[tokio::test]
async fn a_worker_whose_state_cannot_be_saved_counts_no_other_states() {
    let pool = Pool::new();
    let pod = Pod::new(&pool, "large", SECOND);
    pod.load().await;
    let sidecar = pod.run();
    until("nothing is found", || sidecar.status.borrow().unclaimed == Some(0)).await;
    for number in 0..10_001 {
        File::create(pod.state.path().join(number.to_string())).unwrap();
    }
    pool.save("before", "last", &[]);
    until("it is not saved", || sidecar.error().is_some()).await;
    let mut status = sidecar.status.clone();
    let counted =
        timeout(SECOND * 3, status.wait_for(|saved| saved.unclaimed.is_some_and(|states| states > 0)));
    assert!(counted.await.is_err(), "it would be replaced");
}

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
