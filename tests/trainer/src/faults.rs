//! Faults that a test orders. See the library for their names.

use std::{collections::BTreeMap, env, fs::File, path::Path, time::Duration};

use tokio::signal::unix::{SignalKind, signal};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Name, step and value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(BTreeMap<String, (i64, Option<String>)>);

impl Faults {
    pub(crate) fn of(datasets: &[String], rank: u64) -> Self {
        if env::var_os("FAKE_SWIFT_FAULTS_ONCE").is_some_and(|folder| !is_first_run(folder.as_ref(), rank)) {
            return Self::default();
        }
        let variable = env::var("FAKE_SWIFT_FAULTS").unwrap_or_default();
        let ordered = datasets.iter().filter_map(|dataset| dataset.strip_prefix("fault:"));
        Self(ordered.chain(variable.split(',')).filter_map(parse).collect())
    }

    /// Whether a fault happens at this step.
    pub(crate) fn at(&self, name: &str, step: i64) -> bool {
        self.0.get(name).is_some_and(|(at, _)| *at == step)
    }

    /// Whether a fault has happened at this step or before.
    pub(crate) fn since(&self, name: &str, step: i64) -> bool {
        self.0.get(name).is_some_and(|(at, _)| *at <= step)
    }

    pub(crate) fn value<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.0.get(name)?.1.as_ref()?.parse().ok()
    }
}

/// The first run of a rank leaves a file.
fn is_first_run(folder: &Path, rank: u64) -> bool {
    File::create_new(folder.join(format!("faults-of-rank-{rank}"))).is_ok()
}

fn parse(fault: &str) -> Option<(String, (i64, Option<String>))> {
    let (name, rest) = fault.split_once('@')?;
    let (step, value) = match rest.split_once('=') {
        Some((step, value)) => (step, Some(value.to_owned())),
        None => (rest, None),
    };
    Some((name.to_owned(), (step.parse().ok()?, value)))
}

/// An orphan in a session of its own, which ignores SIGTERM.
pub(crate) fn sleep_for_long() -> i32 {
    let _ = rustix::process::setsid();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return 1 };
    runtime.block_on(async {
        let _ignored = signal(SignalKind::terminate());
        tokio::time::sleep(LONG).await;
    });
    0
}

/// For ever.
pub(crate) async fn hang() {
    tokio::time::sleep(LONG).await;
}
