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
    claims::OwnClaims,
    restore::{begin_empty, restore},
    save::{Final, Saved, Saver},
    state::StateFolder,
};

mod damage;
mod ending;
mod heartbeats;

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
        // On another disk than the state, or a restore depended on how full the disk of the machine is.
        let own = tempfile::tempdir_in("/dev/shm").unwrap();
        Self { settings, own, state: tempfile::tempdir().unwrap() }
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

/// Its loader has found that the claim before it was written again.
#[tokio::test]
async fn a_claim_that_is_soon_given_back_is_no_error() {
    let pool = Pool::new();
    pool.save("first", "one", &[]);
    let pod = Pod::new(&pool, "pod", SECOND);
    pod.load().await;
    pool.claim("first", 1, "other");
    let mut sidecar = pod.run();
    sleep(SECOND).await;
    fs::remove_file(pool.path("claims/first/0000000001")).unwrap();
    let saved = sidecar.status.wait_for(|saved| saved.error.is_some() || saved.last.is_some());
    let saved = timeout(PATIENCE, saved).await.unwrap().unwrap().clone();
    assert_eq!(saved.error, None);
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

/// The states of both may be of the same sessions, and the next worker restores the older one.
#[tokio::test]
async fn a_worker_that_has_started_empty_counts_the_states_that_wait_beside_its_own() {
    let pool = Pool::new();
    pool.save("before", "last", &[]);
    let (empty, other) = (Pod::new(&pool, "empty", SECOND), Pod::new(&pool, "other", SECOND));
    let state = StateFolder(empty.state.path().to_owned());
    let claims = OwnClaims::default();
    assert!(begin_empty(&empty.settings, &state, empty.own.path(), &claims).unwrap());
    for pod in [&empty, &other] {
        fs::write(pod.state.path().join("state"), "own").unwrap();
    }
    let (empty, other) = (empty.run(), other.run());
    let waiting = |sidecar: &Sidecar| sidecar.status.borrow().waiting.map(|(states, _)| states);
    until("a state waits", || waiting(&empty) == Some(1)).await;
    assert!(empty.status.borrow().last.is_some() && empty.status.borrow().unclaimed.is_none());
    pool.claim("before", 0, "another");
    until("none waits", || waiting(&empty).is_none()).await;
    assert_eq!(waiting(&other), None, "it has found no state, or restored one");
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

/// An upload of all of it would be for nothing, in each interval.
#[tokio::test]
async fn a_state_whose_manifest_would_be_too_large_is_not_uploaded() {
    let pool = Pool::new();
    let pod = Pod::new(&pool, "large", SECOND);
    let folder = pod.state.path().join("f".repeat(250)).join("g".repeat(250));
    fs::create_dir_all(&folder).unwrap();
    for number in 0..8_000 {
        File::create(folder.join(number.to_string())).unwrap();
    }
    let sidecar = pod.run();
    until("it is not saved", || sidecar.error().is_some()).await;
    let error = sidecar.error().unwrap();
    assert!(error.contains("paths of the files of the state") && error.contains("4 MiB"), "{error}");
    assert!(!pool.path("workers/large/0000000000").exists());
}
