//! Whole processes and their signals: a process that is stopped, killed or suspended for too long leaves the work to a
//! standby.
//!
//! The processes are this test binary itself, started once more with only `replica` to run.

use std::{
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use runtime::{
    client::LeaderGuard,
    controller::Next,
    process::{
        self, Identity, Process, Started,
        args::RuntimeArgs,
        lease::{Elector, Timings},
    },
    watch::cache::Cache,
    write::apply::ApplyError,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::{
    io::AsyncReadExt,
    process::{Child as ChildProcess, Command},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    fake::{Answer, Call, Gate, On, ScriptedApi, Verb},
    given::{Child, STALL, client, deployment, rendered, within_patience},
};

const IDENTITY: Identity = Identity { name: "replica", version: "test", hash_annotation: "test/hash" };

/// Names the process; without it, there is nothing to be.
const NAME: &str = "PROMISES_REPLICA";
/// Seconds of its Lease.
const LEASE_SECONDS: &str = "PROMISES_LEASE_SECONDS";

/// For replicas that shall lose.
const LEASE: Duration = Duration::from_secs(3);
/// For upper bounds: the end of the Lease, and that of a second one, come more than `STALL` after what is promised.
const LONG_LEASE: Duration = Duration::from_secs(8);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// A process of its own under the name of a test: `Replica::start` runs this binary with nothing but it.
#[test]
#[ignore = "not a test: the body of the processes that the tests of this file start; returns at once without their environment"]
fn replica() {
    let Ok(name) = std::env::var(NAME) else { return };
    let lease: u64 = std::env::var(LEASE_SECONDS).unwrap().parse().unwrap();
    let deadline = (Duration::from_secs(lease) * 2 / 3).as_secs_f64().to_string();
    let lease = lease.to_string();
    let options = [
        ("--identity", &*name),
        ("--admin-address", "127.0.0.1:0"),
        ("--log-format", "text"),
        ("--lease-namespace", "demo"),
        ("--lease-duration", &lease),
        ("--lease-renew-deadline", &deadline),
        ("--lease-retry-period", "0.2"),
    ];
    let words = ["replica"].into_iter().chain(options.iter().flat_map(|(name, value)| [*name, *value]));
    let Cli { runtime } = Cli::parse_from(words);
    let ended = process::run(&IDENTITY, &runtime, |process| start(process, name));
    assert_eq!(ended, ExitCode::SUCCESS);
}

/// A controller whose only child says who has written it.
fn start(process: &mut Process, name: String) -> Started {
    let roots = process.watch::<Deployment>("Deployment");
    let children = process.watch::<Child>("ConfigMap");
    let children = process.writer(&roots).of(children);
    let controller = process.controller(&roots).owns(&children);
    process.control(controller, move |root: Arc<Deployment>, _: Timestamp| {
        let children = children.clone();
        let mut child = rendered(&root, &format!("of-{}", root.metadata.name.as_deref().unwrap()));
        let generation = root.metadata.generation.unwrap().to_string();
        child.data =
            Some([("writer".to_owned(), name.clone()), ("generation".to_owned(), generation)].into());
        async move {
            children.apply(&child).await?;
            Ok::<_, ApplyError>(Next::Done)
        }
    })
}

struct Replica {
    process: ChildProcess,
    kubeconfig: String,
}

impl Drop for Replica {
    fn drop(&mut self) {
        // Nothing depends on it any more.
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

impl Replica {
    fn start(fake: &ScriptedApi, name: &str, lease: Duration) -> Self {
        let port = fake.address().port();
        let kubeconfig = format!("{}/promises-{port}-{name}.kubeconfig", env!("CARGO_TARGET_TMPDIR"));
        write_kubeconfig(&kubeconfig, fake);
        let started = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "living::replica", "--nocapture"])
            .env("KUBECONFIG", &kubeconfig)
            .env(NAME, name)
            .env(LEASE_SECONDS, lease.as_secs().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        Self { process: started.unwrap(), kubeconfig }
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Returns when it really stands still: on a busy machine its threads run on for a moment after the signal.
    async fn stop(&self) {
        let pid = self.pid();
        kill_process(pid, Signal::STOP).unwrap();
        let stopped = move || waitpid(Some(pid), WaitOptions::UNTRACED);
        let waited = within_patience("the stop", tokio::task::spawn_blocking(stopped)).await.unwrap();
        let (_, status) = waited.unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id().unwrap()).unwrap()).unwrap()
    }

    /// Waits for its end; true if that was a success, and what it logged.
    async fn ended(mut self) -> (bool, String) {
        let mut log = String::new();
        let mut stderr = self.process.stderr.take().unwrap();
        let read = stderr.read_to_string(&mut log);
        let (_, status) =
            within_patience("the exit", async { tokio::join!(read, self.process.wait()) }).await;
        (status.unwrap().success(), log)
    }
}

/// The authority is of no use over plain HTTP, and spares the reading of the machine's own.
fn write_kubeconfig(path: &str, fake: &ScriptedApi) {
    let address = fake.address();
    let text = format!(
        r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{{"name": "fake", "cluster":
                {{"server": "http://{address}", "certificate-authority-data": "Cg=="}}}}],
            "users": [{{"name": "fake", "user": {{}}}}],
            "contexts": [{{"name": "fake", "context": {{"cluster": "fake", "user": "fake"}}}}]}}"#
    );
    std::fs::write(path, text).unwrap();
}

fn patches() -> On {
    Verb::Patch.of("configmaps")
}

/// The writes of the Lease by this replica.
fn lease_writes(fake: &ScriptedApi, name: &str) -> Vec<Call> {
    let mut writes = fake.calls(Verb::Create.of("leases"));
    writes.extend(fake.calls(Verb::Update.of("leases")));
    writes.retain(|write| {
        let holder = write.body["spec"]["holderIdentity"].as_str().unwrap_or_default();
        holder.starts_with(&format!("{name}_"))
    });
    writes
}

/// A leader "a" that has done the first work, and a standby "b" that waits.
async fn leader_and_standby(fake: &ScriptedApi) -> (Replica, Replica) {
    fake.put(&deployment("first", 1));
    let leader = Replica::start(fake, "a", LONG_LEASE);
    fake.until_called(patches(), 1).await;
    let waited_before = fake.calls(Verb::Get.of("leases")).len();
    let standby = Replica::start(fake, "b", LONG_LEASE);
    // Its caches are warm, and another replica than the leader has read the Lease.
    fake.until_called(Verb::Watch.of("configmaps"), 2).await;
    fake.until_called(Verb::Get.of("leases"), waited_before + 4).await;
    (leader, standby)
}

/// Waits until "b" does the work, and returns when it took the Lease.
async fn taken_over(fake: &ScriptedApi) -> Instant {
    let patched = fake.calls(patches()).len();
    fake.put(&deployment("second", 1));
    fake.until_called(patches(), patched + 1).await;
    assert_eq!(fake.calls(patches()).last().unwrap().body["data"]["writer"], "b");
    lease_writes(fake, "b")[0].at
}

/// A process that leads and whose write is not answered before the gate opens.
async fn in_the_middle_of_a_write() -> (ScriptedApi, Gate, Replica) {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("first", 1));
    let gate = Gate::default();
    fake.next(patches(), [Answer::Late(gate.clone())]);
    let replica = Replica::start(&fake, "a", LONG_LEASE);
    fake.until_called(patches(), 1).await;
    (fake, gate, replica)
}

#[tokio::test]
async fn a_process_that_gets_sigterm_finishes_running_reconciles_and_exits_0_within_2_s() {
    let (fake, gate, replica) = in_the_middle_of_a_write().await;
    replica.signal(Signal::TERM);
    // It goes on renewing, so that the drain may still write.
    let renewed = fake.calls(Verb::Update.of("leases")).len();
    fake.until_called(Verb::Update.of("leases"), renewed + 2).await;
    gate.open();
    let opened = Instant::now();
    let (success, log) = replica.ended().await;
    assert!(success, "{log}");
    assert!(opened.elapsed() < Duration::from_secs(2) + STALL, "{:?}\n{log}", opened.elapsed());
    assert_eq!(fake.stored("leases", "replica").unwrap()["spec"]["holderIdentity"], "", "{log}");
    assert!(log.contains("created"), "{log}");
}

#[tokio::test]
async fn a_standby_leads_within_1_s_of_a_sigterm() {
    let fake = ScriptedApi::start().await;
    let (leader, _standby) = leader_and_standby(&fake).await;
    let stopped = Instant::now();
    leader.signal(Signal::TERM);
    let (success, log) = leader.ended().await;
    assert!(success, "{log}");
    let took = taken_over(&fake).await - stopped;
    assert!(took <= Duration::from_secs(1) + STALL, "{took:?}");
}

#[tokio::test]
async fn a_standby_leads_within_a_lease_and_1_s_of_a_sigkill() {
    let fake = ScriptedApi::start().await;
    let (leader, _standby) = leader_and_standby(&fake).await;
    leader.signal(Signal::KILL);
    leader.ended().await;
    let last = lease_writes(&fake, "a").last().unwrap().at;
    let took = taken_over(&fake).await - last;
    assert!(took >= LONG_LEASE && took <= LONG_LEASE + Duration::from_secs(1) + STALL, "{took:?}");
}

/// The leader sleeps until this test leads instead; awake, it finds work waiting.
async fn sleep_too_long() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("first", 1));
    let leader = Replica::start(&fake, "a", LEASE);
    fake.until_called(patches(), 1).await;
    leader.stop().await;
    let timings = Timings { duration: LEASE, renew_deadline: LEASE / 2, retry: LEASE / 10 };
    let guard = LeaderGuard::default();
    let mut standby = Elector::new(client(&fake), "demo", "replica", "b".to_owned(), timings, guard);
    let never = CancellationToken::new();
    assert!(within_patience("leadership", standby.lead(&Cache::default(), &never)).await);
    for number in 0..10 {
        fake.put(&deployment(&format!("late-{number}"), 1));
    }
    leader.signal(Signal::CONT);
    let (success, log) = leader.ended().await;
    assert!(!success && log.contains("the lease was lost"), "{log}");
    assert_eq!(fake.calls(patches()).len(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_wakes_up_too_late_starts_no_write() {
    // Each round starts a process: more of them at once would lose their Leases on a busy machine.
    const AT_ONCE: usize = 4;
    let mut rounds = stream::iter(0..20).map(|_| tokio::spawn(sleep_too_long())).buffer_unordered(AT_ONCE);
    while let Some(round) = rounds.next().await {
        round.unwrap();
    }
}

#[tokio::test]
async fn a_process_that_lost_its_lease_exits_with_the_reason() {
    let fake = ScriptedApi::start().await;
    fake.put(&deployment("first", 1));
    let replica = Replica::start(&fake, "a", LONG_LEASE);
    fake.until_called(patches(), 1).await;
    let mut lease = fake.stored("leases", "replica").unwrap();
    lease["spec"]["holderIdentity"] = "another".into();
    fake.put_json("leases", lease);
    let (success, log) = replica.ended().await;
    assert!(!success && log.contains("the lease was lost: another replica holds it"), "{log}");
}

#[tokio::test]
async fn a_process_that_is_stopped_during_the_write_that_wins_leaves_the_lease_free() {
    let fake = ScriptedApi::start().await;
    let gate = Gate::default();
    fake.next(Verb::Create.of("leases"), [Answer::Late(gate.clone())]);
    let replica = Replica::start(&fake, "a", LONG_LEASE);
    fake.until_called(Verb::Create.of("leases"), 1).await;
    replica.signal(Signal::TERM);
    gate.open();
    let (success, log) = replica.ended().await;
    assert!(success, "{log}");
    assert_eq!(fake.stored("leases", "replica").unwrap()["spec"]["holderIdentity"], "", "{log}");
}
