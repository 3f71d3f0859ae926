//! The state of a worker is saved and restored, in a folder that workers share and in a real S3 server.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use api::monitor::{ExitCode, Message};
use rustix::process::{Pid, Signal, kill_process};
use s3_server::{Keys, Server};
use tempfile::TempDir;

use crate::{
    counting::LABELS,
    process::{Monitor, PATIENCE},
    proxy::{Break, Proxy},
    worker::{Says, Worker},
};

mod outages;

const BUCKET: &str = "states";
const KEYS: [(&str, &str); 2] =
    [("AWS_ACCESS_KEY_ID", "AKIATESTACCESSKEY"), ("AWS_SECRET_ACCESS_KEY", "test-secret-key-of-checkpoints")];

/// Where the checkpoints of a test are.
pub(crate) struct Storage {
    folder: TempDir,
    /// A real S3 server over the folder.
    server: Option<Server>,
    /// Of the server, instead of its own address.
    proxy: Option<Proxy>,
}

impl Storage {
    pub(crate) fn folder() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), server: None, proxy: None }
    }

    fn bucket() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let keys = Keys::new(KEYS[0].1, KEYS[1].1);
        let server = Some(Server::start(folder.path(), keys, Vec::new()).unwrap());
        Self { folder, server, proxy: None }
    }

    /// A bucket, and requests to it that are broken.
    fn broken(how: Break, rule: impl Fn(&str, &str) -> bool + Send + Sync + 'static) -> (Self, Proxy) {
        let mut storage = Self::bucket();
        let server = storage.server.as_ref().unwrap().address();
        let proxy = Proxy::start(server, how, rule);
        storage.proxy = Some(proxy.clone());
        (storage, proxy)
    }

    fn both() -> [Self; 2] {
        [Self::folder(), Self::bucket()]
    }

    fn start(&mut self) {
        if let Some(server) = &mut self.server {
            server.run().unwrap();
        }
    }

    fn stop(&mut self) {
        if let Some(server) = &mut self.server {
            server.stop();
        }
    }

    fn args(&self, more: &[&str]) -> Vec<String> {
        let place = match self.server {
            None => format!("--checkpoint-dir={}", self.folder.path().display()),
            Some(_) => format!("--checkpoint-uri=s3://{BUCKET}/pools"),
        };
        std::iter::once(place).chain(more.iter().map(|more| (*more).to_owned())).collect()
    }

    fn env(&self) -> Vec<(&'static str, String)> {
        let Some(server) = &self.server else { return Vec::new() };
        let keys = KEYS.map(|(name, value)| (name, value.to_owned()));
        let address = self.proxy.as_ref().map_or_else(|| server.address(), |proxy| proxy.address);
        keys.into_iter().chain([("AWS_ENDPOINT_URL", format!("http://{address}"))]).collect()
    }

    /// What is stored of the pool.
    pub(crate) fn pool(&self) -> PathBuf {
        match self.server {
            None => self.folder.path().join("demo/coder"),
            Some(_) => self.folder.path().join(BUCKET).join("pools/demo/coder"),
        }
    }
}

/// The volumes of one pod.
pub(crate) struct Pod<'s> {
    uid: &'static str,
    storage: &'s Storage,
    pub(crate) own: TempDir,
    pub(crate) state: TempDir,
    worker: Worker,
}

pub(crate) const QUICK: [&str; 2] = ["--checkpoint-seconds=1", "--grace-seconds=20"];

impl<'s> Pod<'s> {
    pub(crate) fn new(storage: &'s Storage, uid: &'static str) -> Self {
        let worker = Worker::start(Says::default());
        // On another disk than the state, or a restore depended on how full the disk of the machine is.
        let own = tempfile::tempdir_in("/dev/shm").unwrap();
        Self { uid, storage, own, state: tempfile::tempdir().unwrap(), worker }
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.state.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The files of the state.
    fn state(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        read_all(self.state.path(), self.state.path(), &mut files);
        files
    }

    fn state_arg(&self) -> String {
        format!("--state={}", self.state.path().display())
    }

    /// The init container.
    fn loader(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_monitor"));
        command
            .args(["load-memory", "--pool=demo/coder", "--pod-name=coder-1", "--patience-seconds=5"])
            .arg(format!("--pod-uid={}", self.uid))
            .arg(self.state_arg())
            .arg(format!("--folder={}", self.own.path().display()))
            .arg(format!("--termination-log={}", self.own.path().join("loader-log").display()))
            .args(self.storage.args(more))
            .envs(self.storage.env())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn load(&self) -> Output {
        let output = self.loader(&QUICK).output().unwrap();
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Returns when the worker was scraped: a worker that has never listened has not ended.
    pub(crate) fn run(&self, more: &[&str]) -> Monitor {
        let monitor = self.run_beside(self.worker.port, more);
        monitor.until(&format!("agent_queue_depth{LABELS} 0.0"));
        monitor
    }

    /// With another worker than the one that the test plays.
    pub(crate) fn run_beside(&self, worker_port: u16, more: &[&str]) -> Monitor {
        let mut args = self.storage.args(more);
        args.push(self.state_arg());
        Monitor::start_with(self.own.path(), worker_port, self.uid, &args, &self.storage.env())
    }

    pub(crate) fn end_worker(&self) {
        self.worker.stop();
    }

    /// A worker that ends with this state.
    fn live(&self, name: &str, text: &str) -> Message {
        let monitor = self.run(&QUICK);
        self.write(name, text);
        self.worker.stop();
        monitor.stop()
    }
}

fn read_all(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_all(root, &path, files);
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        // Files and other processes cannot be watched.
        thread::sleep(Duration::from_millis(20));
    }
}

fn only(name: &str, text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(name.to_owned(), text.to_owned())])
}

#[test]
fn the_state_of_a_worker_that_ends_is_restored_once() {
    for storage in Storage::both() {
        let first = Pod::new(&storage, "first");
        let message = first.live("sessions/a.json", "one");
        assert!(message.error.is_none() && message.checkpoint.is_some(), "{message:?}");

        let second = Pod::new(&storage, "second");
        assert!(second.load().status.success());
        assert_eq!(second.state(), only("sessions/a.json", "one"));
        let third = Pod::new(&storage, "third");
        assert!(third.load().status.success());
        assert_eq!(third.state(), BTreeMap::new());

        // What belongs to the second one is removed with its first checkpoint, and its own can be restored.
        let monitor = second.run(&QUICK);
        until("the first state is removed", || !storage.pool().join("workers/first").exists());
        second.worker.stop();
        let message = monitor.stop();
        assert_eq!(message.restored.as_deref(), Some("first"));
        let fourth = Pod::new(&storage, "fourth");
        assert!(fourth.load().status.success());
        assert_eq!(fourth.state(), only("sessions/a.json", "one"));
    }
}

#[test]
fn two_workers_that_start_at_once_never_restore_the_same_state() {
    for storage in Storage::both() {
        for (uid, text) in [("a", "1"), ("b", "2"), ("c", "3")] {
            Pod::new(&storage, uid).live("state", text);
        }
        let pods = ["p", "q", "r", "s", "t"].map(|uid| Pod::new(&storage, uid));
        let loaders: Vec<Child> = pods.iter().map(|pod| pod.loader(&QUICK).spawn().unwrap()).collect();
        for loader in loaders {
            let output = loader.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut restored: Vec<String> =
            pods.iter().filter_map(|pod| pod.state().get("state").cloned()).collect();
        restored.sort();
        assert_eq!(restored, ["1", "2", "3"]);
    }
}

#[test]
fn a_worker_that_is_killed_loses_at_most_one_interval() {
    for storage in Storage::both() {
        let pod = Pod::new(&storage, "killed");
        pod.write("state", "saved");
        let monitor = pod.run(&QUICK);
        let saved = storage.pool().join("workers/killed/0000000000/manifest.json");
        until("a periodic checkpoint", || saved.exists());
        monitor.kill();
        pod.write("state", "after the last checkpoint");

        // The loader waits until the worker is lost.
        let next = Pod::new(&storage, "next");
        assert!(next.load().status.success());
        assert_eq!(next.state(), only("state", "saved"));
    }
}

/// As by the kernel, which has no memory left for it.
#[test]
fn a_monitor_that_is_killed_beside_its_worker_goes_on_with_the_restored_state() {
    for storage in Storage::both() {
        Pod::new(&storage, "first").live("state", "one");
        let pod = Pod::new(&storage, "second");
        assert!(pod.load().status.success());
        pod.run(&QUICK).kill();
        pod.write("state", "two");
        let again = pod.run(&QUICK);
        pod.worker.stop();
        let left = again.stop();
        assert_eq!((left.error, left.restored.as_deref()), (None, Some("first")));
        let third = Pod::new(&storage, "third");
        assert!(third.load().status.success());
        assert_eq!(third.state(), only("state", "two"));
        let fourth = Pod::new(&storage, "fourth");
        assert!(fourth.load().status.success());
        assert_eq!(fourth.state(), BTreeMap::new(), "restored once");
    }
}

#[test]
fn a_worker_that_was_taken_for_lost_does_not_save_when_it_is_back() {
    for storage in Storage::both() {
        let pod = Pod::new(&storage, "lost");
        pod.write("state", "one");
        let monitor = pod.run(&QUICK);
        until("a checkpoint", || storage.pool().join("workers/lost/0000000000/manifest.json").exists());
        // Its node is cut off: the container ends for the test, and its volume is still there.
        monitor.kill();
        let next = Pod::new(&storage, "next");
        assert!(next.load().status.success());
        assert_eq!(next.state(), only("state", "one"));
        let successor = next.run(&QUICK);
        until("the state is the successor's", || {
            storage.pool().join("workers/next/0000000000/manifest.json").exists()
                && !storage.pool().join("workers/lost").exists()
        });
        let back = pod.run(&QUICK);
        back.announce_end();
        pod.worker.stop();
        let error = back.stop().error.expect("it is not saved");
        assert!(error.contains("(uid next)"), "{error}");
        assert!(!storage.pool().join("workers/lost/heartbeat").exists());
        next.worker.stop();
        assert!(successor.stop().error.is_none());
    }
}

#[test]
fn what_a_worker_has_removed_from_its_state_does_not_come_back() {
    let storage = Storage::folder();
    Pod::new(&storage, "first").live("state", "one");
    let pod = Pod::new(&storage, "second");
    assert!(pod.load().status.success());
    let monitor = pod.run(&QUICK);
    fs::remove_file(pod.state.path().join("state")).unwrap();
    until("the first state is removed", || !storage.pool().join("workers/first").exists());
    pod.worker.stop();
    assert!(monitor.stop().error.is_none());
    let next = Pod::new(&storage, "next");
    assert!(next.load().status.success());
    assert_eq!(next.state(), BTreeMap::new());
    assert!(!storage.pool().join("workers/second").exists());
}

#[test]
fn a_half_written_checkpoint_is_never_restored() {
    for storage in Storage::both() {
        let pod = Pod::new(&storage, "first");
        pod.live("state", "whole");
        let workers = storage.pool().join("workers/first");
        fs::create_dir(workers.join("0000000007")).unwrap();
        fs::write(workers.join("0000000007/0"), "half").unwrap();
        let next = Pod::new(&storage, "next");
        assert!(next.load().status.success());
        assert_eq!(next.state(), only("state", "whole"));
    }
}

#[test]
fn a_file_that_differs_from_its_manifest_is_not_restored() {
    for (storage, text) in Storage::both().into_iter().zip(["wrong", "longer than in the manifest"]) {
        let pod = Pod::new(&storage, "first");
        pod.live("state", "whole");
        // There may be two: one of when the file was not written yet.
        for checkpoint in fs::read_dir(storage.pool().join("workers/first")).unwrap().flatten() {
            fs::write(checkpoint.path().join("0"), text).unwrap();
        }
        Pod::new(&storage, "second").live("state", "of the second");
        let next = Pod::new(&storage, "next");
        assert!(next.load().status.success());
        assert_eq!(
            next.state(),
            only("state", "of the second"),
            "a damaged state does not stop the restore of the next one"
        );
    }
}

#[test]
fn a_new_worker_waits_for_the_state_of_one_that_is_about_to_end() {
    for storage in Storage::both() {
        let ending = Pod::new(&storage, "ending");
        ending.write("state", "early");
        let monitor = ending.run(&["--checkpoint-seconds=60", "--grace-seconds=20"]);
        let heartbeat = storage.pool().join("workers/ending/heartbeat");
        until("a heartbeat", || heartbeat.exists());
        monitor.announce_end();
        let next = Pod::new(&storage, "next");
        let loader = next.loader(&["--checkpoint-seconds=60"]).spawn().unwrap();
        until("the claim", || storage.pool().join("claims/ending/0000000000").exists());
        ending.write("state", "late");
        ending.worker.stop();
        assert!(monitor.stop().error.is_none());
        assert!(loader.wait_with_output().unwrap().status.success());
        assert_eq!(next.state(), only("state", "late"));
    }
}

/// It waits for a worker that ends, and its own pod is deleted.
#[test]
fn a_loader_that_is_terminated_gives_its_claim_back_and_ends_at_once() {
    for storage in Storage::both() {
        let ending = Pod::new(&storage, "ending");
        ending.write("state", "early");
        let monitor = ending.run(&["--checkpoint-seconds=60", "--grace-seconds=20"]);
        until("a heartbeat", || storage.pool().join("workers/ending/heartbeat").exists());
        monitor.announce_end();
        let deleted = Pod::new(&storage, "deleted");
        let mut loader = deleted.loader(&["--checkpoint-seconds=60"]).spawn().unwrap();
        let claim = storage.pool().join("claims/ending/0000000000");
        until("the claim", || claim.exists());
        let terminated = Instant::now();
        kill_process(Pid::from_child(&loader), Signal::TERM).unwrap();
        assert_eq!(loader.wait().unwrap().code(), Some(143));
        assert!(terminated.elapsed() < Duration::from_secs(3));
        assert!(!claim.exists());
        ending.write("state", "late");
        ending.worker.stop();
        assert!(monitor.stop().error.is_none());
        // A claim that was left would last for three minutes.
        let next = Pod::new(&storage, "next");
        assert!(next.load().status.success());
        assert_eq!(next.state(), only("state", "late"));
    }
}

#[test]
fn a_claim_whose_pod_is_gone_before_its_worker_ran_is_given_back() {
    for storage in Storage::both() {
        Pod::new(&storage, "first").live("state", "one");
        let lost = Pod::new(&storage, "lost");
        assert!(lost.load().status.success());
        assert_eq!(lost.state(), only("state", "one"));
        // Its node fails before the sidecar runs. The claim expires after three intervals.
        until("another one has it", || {
            let pod = Pod::new(&storage, "other");
            assert!(pod.load().status.success());
            !pod.state().is_empty()
        });
        // The first one comes back, too late: it must not save over the other.
        let monitor = lost.run(&QUICK);
        lost.worker.stop();
        let message = monitor.stop();
        assert!(message.error.is_some_and(|error| error.contains("(uid other)")));
    }
}

#[test]
fn a_loader_that_runs_again_in_its_pod_keeps_what_the_worker_has_written() {
    let storage = Storage::folder();
    Pod::new(&storage, "first").live("state", "one");
    let pod = Pod::new(&storage, "second");
    assert!(pod.load().status.success());
    pod.write("state", "two");
    assert!(pod.load().status.success());
    assert_eq!(pod.state(), only("state", "two"));
}

#[test]
fn a_store_that_is_away_at_the_end_is_tried_again_within_the_grace_period() {
    let mut storage = Storage::bucket();
    storage.stop();
    let pod = Pod::new(&storage, "first");
    let monitor = pod.run(&QUICK);
    pod.write("state", "one");
    pod.worker.stop();
    monitor.terminate();
    let message = pod.own.path().join("termination-log");
    until("the loss is reported before it happens", || {
        fs::read_to_string(&message).unwrap().contains("had saved the state")
    });
    // The borrow of the storage ends with the pod.
    let (own, state, worker) = (pod.own, pod.state, pod.worker);
    storage.start();
    let message = monitor.ended();
    assert!(message.error.is_none() && message.checkpoint.is_some(), "{message:?}");
    drop((own, state, worker));
    let next = Pod::new(&storage, "next");
    assert!(next.load().status.success());
    assert_eq!(next.state(), only("state", "one"));
}

/// The manifests of a worker.
fn manifests(storage: &Storage, uid: &str) -> Vec<String> {
    let checkpoints = fs::read_dir(storage.pool().join("workers").join(uid)).unwrap().flatten();
    checkpoints.filter_map(|folder| fs::read_to_string(folder.path().join("manifest.json")).ok()).collect()
}

#[test]
fn only_a_worker_whose_port_is_closed_has_left_its_last_state() {
    let storage = Storage::folder();
    let is_final = |uid: &str| manifests(&storage, uid).iter().any(|text| text.contains("\"final\":true"));
    let of_hanging = Pod::new(&storage, "hangs");
    of_hanging.write("state", "one");
    let monitor = of_hanging.run(&QUICK);
    of_hanging.worker.hang();
    monitor.announce_end();
    assert!(monitor.stop().checkpoint.is_some());
    assert!(!is_final("hangs"));
    assert!(storage.pool().join("workers/hangs/heartbeat").exists());

    // It may serve no metrics at all.
    let of_silent = Pod::new(&storage, "silent");
    of_silent.write("state", "one");
    of_silent.worker.stop();
    let monitor = of_silent.run_beside(of_silent.worker.port, &QUICK);
    assert!(monitor.stop().checkpoint.is_some());
    assert!(!is_final("silent"));

    let of_ended = Pod::new(&storage, "ended");
    of_ended.live("state", "one");
    assert!(is_final("ended"));
    assert!(!storage.pool().join("workers/ended/heartbeat").exists());
}

/// As after a failed liveness probe: the kubelet runs the hook, and ends the sidecar alone.
#[test]
fn a_monitor_that_is_started_again_leaves_no_last_state() {
    let storage = Storage::folder();
    let pod = Pod::new(&storage, "first");
    let monitor = pod.run(&QUICK);
    pod.write("state", "one");
    monitor.announce_end();
    assert!(monitor.stop().checkpoint.is_some());
    let of_pool = |path: &str| fs::read_to_string(storage.pool().join("workers/first").join(path)).unwrap();
    assert!(of_pool("heartbeat").contains("\"ending\":false"));
    assert!(manifests(&storage, "first").iter().all(|text| text.contains("\"final\":false")));
    // The restarted monitor runs until its worker ends.
    let monitor = pod.run(&QUICK);
    pod.write("state", "two");
    pod.worker.stop();
    assert!(monitor.stop().error.is_none());
    let next = Pod::new(&storage, "next");
    assert!(next.load().status.success());
    assert_eq!(next.state(), only("state", "two"));
}

#[test]
fn a_worker_that_ends_too_late_loses_only_what_it_wrote_last() {
    let storage = Storage::folder();
    let pod = Pod::new(&storage, "first");
    // The 30 s for the upload begin at once.
    let monitor = pod.run(&["--checkpoint-seconds=60", "--grace-seconds=30"]);
    until("a heartbeat", || storage.pool().join("workers/first/heartbeat").exists());
    pod.write("state", "one");
    monitor.announce_end();
    until("a checkpoint while the worker runs", || {
        storage.pool().join("workers/first/0000000000/manifest.json").exists()
    });
    monitor.kill();
}

#[test]
fn what_could_not_be_saved_in_time_is_reported() {
    let mut storage = Storage::bucket();
    storage.stop();
    let pod = Pod::new(&storage, "first");
    let monitor = pod.run(&["--grace-seconds=5"]);
    pod.write("state", "one");
    pod.worker.stop();
    let error = monitor.stop().error.expect("it was not saved");
    assert!(error.starts_with("s3://states"), "{error}");
}

#[test]
fn a_bucket_that_is_not_there_is_named() {
    let storage = Storage::bucket();
    fs::remove_dir(storage.folder.path().join(BUCKET)).unwrap();
    let pod = Pod::new(&storage, "first");
    let output = pod.load();
    assert_eq!(output.status.code(), Some(ExitCode::BucketNotFound.code()));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no such bucket") && !said.contains(KEYS[1].1), "{said}");
}

#[test]
fn a_worker_without_state_leaves_nothing() {
    let storage = Storage::folder();
    let pod = Pod::new(&storage, "first");
    let monitor = pod.run(&QUICK);
    until("a heartbeat", || storage.pool().join("workers/first/heartbeat").exists());
    pod.worker.stop();
    let message = monitor.stop();
    assert!(message.error.is_none() && message.checkpoint.is_none(), "{message:?}");
    assert!(!storage.pool().join("workers/first").exists());
}

#[test]
fn a_state_of_several_parts_is_restored() {
    let storage = Storage::bucket();
    let large = "0123456789abcdef".repeat(700_000);
    Pod::new(&storage, "first").live("state", &large);
    let next = Pod::new(&storage, "next");
    assert!(next.load().status.success());
    assert_eq!(next.state(), only("state", &large));
}

/// The folders of a worker's checkpoints.
fn checkpoints(storage: &Storage, uid: &str) -> usize {
    let entries = fs::read_dir(storage.pool().join("workers").join(uid));
    entries.map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count())
}

#[test]
fn what_a_worker_uses_while_its_pod_ends_is_counted() {
    let storage = Storage::folder();
    let pod = Pod::new(&storage, "first");
    let monitor = pod.run(&QUICK);
    monitor.announce_end();
    // In far less time than between two readings of a worker that does not end.
    for tokens in 1..=5 {
        let said = Instant::now();
        pod.worker.says(Says { tokens, started: 1, ..Says::default() });
        monitor.until(&format!("agent_tokens_total{LABELS} {tokens}.0"));
        assert!(said.elapsed() < Duration::from_millis(700), "{:?}", said.elapsed());
    }
    pod.worker.stop();
    assert_eq!(monitor.stop().tokens, 5);
}
