//! Objects that come and go leave nothing behind: not in the caches and their indices, the queue, or the back-off.
//!
//! Every allocation is counted, so this takes a process without other tests in it: the test starts its own binary once
//! more, with nothing else to run.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    borrow::Cow,
    fmt::Display,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Resource;
use runtime::{
    controller::{Controller, Next, Options, ReconcileError},
    metrics::Metrics,
    watch::{Scope, Timings, Watches, cache::Cache},
    write::{apply::ApplyError, children::Children},
};
use tokio::{process::Command, sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    fake::{PATIENCE, ScriptedApi},
    given::{Child, client, deployment, metrics, rendered, value_of, within_patience, writer},
};

const WAVES: usize = 10;
/// Of one wave.
const OBJECTS: usize = 1_000;
/// Of so many, one fails for as long as it lives, and one asks to be looked at again in an hour.
const ODD_ONES: usize = 10;
/// Maps, buffers and connections grow with the first waves.
const SHAPING_WAVES: usize = 3;
/// Connections come and go; whatever is kept of an object would be thousands.
const SLACK_BLOCKS: usize = 100;
/// The buffers of a connection are as large as its last bursts were, up to 400 KiB.
const SLACK_BYTES: usize = 2 << 20;
/// How often is looked at what cannot be watched: a gauge of the queue, and the count of what is allocated.
const POLL: Duration = Duration::from_millis(10);
/// Set for the process that runs nothing but this test.
const ALONE: &str = "PROMISES_ALONE";

struct Counting;

static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator cannot be written without it; all of it is the system's own")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BLOCKS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(memory, layout) }
    }
}

#[tokio::test]
async fn ten_thousand_objects_that_come_and_go_leave_no_memory_behind() {
    if std::env::var_os(ALONE).is_some() {
        return churn().await;
    }
    let this = "churning::ten_thousand_objects_that_come_and_go_leave_no_memory_behind";
    let churned = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this])
        .env(ALONE, "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let churned = tokio::time::timeout(10 * PATIENCE, churned).await.expect("the churn ends").unwrap();
    let [said, complained] = [&churned.stdout, &churned.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(churned.status.success() && said.contains("1 passed"), "{said}{complained}");
}

async fn churn() {
    let churned = Churned::start().await;
    for wave in 0..SHAPING_WAVES {
        churned.wave(wave).await;
    }
    // What is freed late counts here, too, and makes it a little more lenient.
    let shaped = [&BLOCKS, &BYTES].map(|allocated| allocated.load(Ordering::Relaxed));
    for wave in SHAPING_WAVES..WAVES {
        churned.wave(wave).await;
        falls(wave, "blocks", &BLOCKS, shaped[0] + SLACK_BLOCKS).await;
        falls(wave, "bytes", &BYTES, shaped[1] + SLACK_BYTES).await;
    }
}

/// A controller of Deployments that own ConfigMaps, and the server it talks to.
struct Churned {
    fake: ScriptedApi,
    metrics: Arc<Metrics>,
    roots: watch::Receiver<usize>,
    children: watch::Receiver<usize>,
    _watches: Watches,
}

impl Churned {
    async fn start() -> Self {
        let (fake, metrics) = (ScriptedApi::start().await, metrics());
        let mut watches = Watches::new(client(&fake), Timings::default(), Arc::clone(&metrics));
        let roots = watches.watch::<Deployment>("Deployment", Scope::default());
        let children = watches.watch::<Child>("ConfigMap", Scope::default());
        let lengths = (length(&roots), length(&children));
        let controller = Controller::new(&roots, Options::default(), Arc::clone(&metrics)).owns(&children);
        let children = writer(&fake, &roots).of(children);
        watches.start(&CancellationToken::new());
        tokio::spawn(controller.run(CancellationToken::new(), move |root: Arc<Deployment>, _: Timestamp| {
            let children = children.clone();
            async move { reconcile(&children, &root).await }
        }));
        Self { fake, metrics, roots: lengths.0, children: lengths.1, _watches: watches }
    }

    /// All objects come, are reconciled, and go; their children are collected as garbage.
    async fn wave(&self, wave: usize) {
        let names: Vec<String> = (0..OBJECTS).map(|number| format!("wave-{wave:02}-{number:04}")).collect();
        for (number, name) in names.iter().enumerate() {
            // The generation says what becomes of it.
            self.fake.put(&deployment(name, i64::try_from(number % ODD_ONES).unwrap()));
        }
        reaches(&self.children, OBJECTS - OBJECTS / ODD_ONES).await;
        self.counts("workqueue_failing", OBJECTS / ODD_ONES).await;
        for name in &names {
            self.fake.remove("deployments", name);
        }
        reaches(&self.roots, 0).await;
        for (_, name) in names.iter().enumerate().filter(|(number, _)| number % ODD_ONES != FAILING) {
            self.fake.remove("configmaps", &format!("of-{name}"));
        }
        reaches(&self.children, 0).await;
        self.counts("workqueue_depth", 0).await;
        self.counts("workqueue_failing", 0).await;
        self.fake.clear_records();
    }

    async fn counts(&self, gauge: &str, wanted: usize) {
        let line = format!("{gauge}{{name=\"test\"}}");
        let wanted = u64::try_from(wanted).unwrap();
        comes_to(&format!("{gauge} of {wanted}"), || value_of(&self.metrics, &line), |now| now == wanted)
            .await;
    }
}

const FAILING: usize = 0;
const LOOKED_AT_AGAIN: usize = 1;

async fn reconcile(
    children: &Children<Child, k8s_openapi::api::core::v1::ConfigMap>,
    root: &Deployment,
) -> Result<Next, Failure> {
    let kind = usize::try_from(root.metadata.generation.unwrap()).unwrap();
    if kind == FAILING {
        return Err(Failure::OnPurpose);
    }
    let child = rendered(root, &format!("of-{}", root.metadata.name.as_deref().unwrap()));
    children.apply(&child).await?;
    Ok(if kind == LOOKED_AT_AGAIN { Next::After(Duration::from_hours(1)) } else { Next::Done })
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("failed on purpose")]
    OnPurpose,
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

impl ReconcileError for Failure {
    fn step(&self) -> Cow<'static, str> {
        match self {
            Self::OnPurpose => "on-purpose".into(),
            Self::Apply(error) => error.step(),
        }
    }

    fn is_stale(&self) -> bool {
        matches!(self, Self::Apply(error) if error.is_stale())
    }
}

#[tokio::test]
async fn a_standby_queues_nothing() {
    let (fake, metrics) = (ScriptedApi::start().await, metrics());
    let mut watches = Watches::new(client(&fake), Timings::default(), Arc::clone(&metrics));
    let roots = watches.watch::<Deployment>("Deployment", Scope::default());
    let lengths = length(&roots);
    let standby = Controller::new(&roots, Options::default(), Arc::clone(&metrics));
    watches.start(&CancellationToken::new());
    for number in 0..100 {
        fake.put(&deployment(&format!("root-{number}"), 1));
    }
    reaches(&lengths, 100).await;
    for number in 0..99 {
        fake.remove("deployments", &format!("root-{number}"));
    }
    reaches(&lengths, 1).await;
    assert_eq!(value_of(&metrics, "workqueue_depth{name=\"test\"}"), 0);
    let (sender, mut runs) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(standby.run(CancellationToken::new(), move |root: Arc<Deployment>, _: Timestamp| {
        sender.send(root.metadata.name.clone().unwrap()).unwrap();
        async { Ok::<_, Failure>(Next::Done) }
    }));
    assert_eq!(
        within_patience("a reconcile", runs.recv()).await.unwrap(),
        "root-99",
        "it begins with what is there"
    );
}

/// How many objects the cache holds, to be waited on.
fn length<K: Resource<DynamicType = ()> + Send + Sync + 'static>(cache: &Cache<K>) -> watch::Receiver<usize> {
    let (length, receiver) = watch::channel(0);
    let counted = cache.clone();
    cache.subscribe(move |_| {
        length.send_replace(counted.len());
    });
    receiver
}

async fn reaches(length: &watch::Receiver<usize>, wanted: usize) {
    let mut length = length.clone();
    let reached = length.wait_for(|length| *length == wanted);
    drop(within_patience(&format!("a cache of {wanted}"), reached).await.unwrap());
}

/// Waits until no more than this is allocated: some of it is freed late.
async fn falls(wave: usize, what: &str, allocated: &AtomicUsize, most: usize) {
    let what = format!("at most {most} allocated {what} after wave {wave}");
    comes_to(&what, || allocated.load(Ordering::Relaxed), |now| now <= most).await;
}

/// Looks until a number is as it should be. Neither a gauge nor an allocator can be watched.
async fn comes_to<N: Copy + Display>(what: &str, look: impl Fn() -> N, holds: impl Fn(N) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds(look()) {
        assert!(Instant::now() < deadline, "not {what}, but {}", look());
        tokio::time::sleep(POLL).await;
    }
}
