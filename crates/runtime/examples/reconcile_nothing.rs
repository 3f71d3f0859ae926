//! A controller of ConfigMaps that does nothing, for `cargo xtask bench runtime`: what remains is the engine's own cost.
//!
//! Called with the address of an API server and a number of objects. Says `all` once so many reconciles have ended, and
//! for each object with `data.mark` one line: `marked <mark> <samples> <p50> <p99>`, where the samples are the
//! microseconds from `data.sent` (nanoseconds since 1970) to the start of the reconcile, since the last mark.
#![expect(clippy::print_stdout, reason = "standard output is how the bench hears of it")]

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use runtime::{
    client::{self, Deadlines, WriteGuard},
    clock::Clock,
    controller::{Controller, Next, Options, ReconcileError},
    metrics::Metrics,
    watch::{Scope, Timings, Watches},
};
use tokio_util::sync::CancellationToken;

/// A reconcile of nothing cannot fail.
#[derive(Debug)]
struct Never(Infallible);

impl fmt::Display for Never {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

impl std::error::Error for Never {}

impl ReconcileError for Never {
    fn step(&self) -> std::borrow::Cow<'static, str> {
        match self.0 {}
    }
}

struct Seen {
    reconciles: AtomicUsize,
    all: usize,
    /// Microseconds.
    delays: Mutex<Vec<i128>>,
}

/// With as many threads as a controller has.
#[tokio::main(worker_threads = 1)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(all)) = (args.next(), args.next()) else {
        return Err("usage: reconcile_nothing <address of an API server> <number of objects>".into());
    };
    let seen =
        Arc::new(Seen { reconciles: AtomicUsize::new(0), all: all.parse()?, delays: Mutex::default() });
    let metrics = Arc::new(Metrics::new("reconcile-nothing"));
    let config = kube::Config::new(address.parse()?);
    let client = client::build(
        &config,
        Deadlines::default(),
        WriteGuard::Always,
        Arc::clone(&metrics),
        Clock::default(),
    )?;
    let mut watches = Watches::new(client, Timings::default(), Arc::clone(&metrics));
    let objects = watches.watch::<ConfigMap>("ConfigMap", Scope::default());
    let controller = Controller::new(&objects, Options::default(), metrics);
    // The bench ends this process.
    let stop = CancellationToken::new();
    watches.start(&stop);
    controller
        .run(stop, move |object, now| {
            let seen = Arc::clone(&seen);
            async move {
                seen.note(&object, now);
                Ok::<_, Never>(Next::Done)
            }
        })
        .await;
    Ok(())
}

impl Seen {
    fn note(&self, object: &ConfigMap, now: Timestamp) {
        if self.reconciles.fetch_add(1, Ordering::Relaxed) + 1 == self.all {
            println!("all");
        }
        let field = |name: &str| object.data.as_ref()?.get(name);
        let sent = field("sent").and_then(|sent| sent.parse::<i128>().ok());
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.extend(sent.map(|sent| (now.as_nanosecond() - sent) / 1_000));
        if let Some(mark) = field("mark") {
            let mut sorted = std::mem::take(&mut *delays);
            sorted.sort_unstable();
            let at = |percent: usize| {
                sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
            };
            let [p50, p99] = [50, 99].map(|percent| at(percent).copied().unwrap_or_default());
            println!("marked {mark} {} {p50} {p99}", sorted.len());
        }
    }
}
