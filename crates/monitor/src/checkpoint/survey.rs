//! What the storage has of the workers of a pool, and for how long a heartbeat was the last one.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::Instant;
use tracing::{debug, info};

use super::{
    CLOCK, HEARTBEAT, Heartbeat, MANIFEST, Manifest, Settings, WORKERS,
    choice::{Beat, Lineage, Newest, remains, unclaimed},
    claims::claim_of,
    numbered,
    storage::{Listing, Storage},
};
use crate::fault::Fault;

/// Workers whose objects are read concurrently.
const AT_ONCE: usize = 8;

/// The last heartbeat of each worker, and since when it is watched.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    seen: HashMap<String, (SystemTime, Instant)>,
    logged: Option<String>,
}

impl Heartbeats {
    pub(super) fn note(&mut self, uid: &str, beat: &mut Beat) {
        let now = Instant::now();
        let seen = self.seen.entry(uid.to_owned()).or_insert((beat.written, now));
        if seen.0 != beat.written {
            *seen = (beat.written, now);
        }
        beat.watched = now - seen.1;
    }

    /// For all workers, from now on.
    pub(super) fn watch_again(&mut self) {
        let now = Instant::now();
        self.seen.values_mut().for_each(|(_, since)| *since = now);
    }

    /// When the last one was written.
    pub(super) fn written(&self, uid: &str) -> Option<SystemTime> {
        self.seen.get(uid).map(|(written, _)| *written)
    }

    pub(super) fn log_once(&mut self, uid: &str) {
        if self.logged.as_deref() != Some(uid) {
            info!(worker = %uid, "the heartbeat of a worker is late; waits until it is there or the worker is lost");
            self.logged = Some(uid.to_owned());
        }
    }
}

/// The number of states that no worker has claimed, without those whose uid is in `damaged`. `None`: the pool is too
/// large for a survey.
pub(crate) async fn count_unclaimed(
    settings: &Settings,
    storage: &Storage,
    heartbeats: &mut Heartbeats,
    damaged: &[String],
) -> Result<Option<u64>, Fault> {
    let workers = storage.list(&format!("{}/{WORKERS}", settings.base())).await?.folders;
    if !is_surveyed(workers.len(), fastrand::usize(..workers.len().max(1))) {
        return Ok(None);
    }
    let mut lineages = survey(settings, storage, heartbeats).await?;
    for lineage in &mut lineages {
        lineage.is_useless = damaged.contains(&lineage.uid);
    }
    Ok(Some(unclaimed(&lineages, &settings.uid, settings.beat_interval())))
}

/// A survey asks for every worker, and all workers of an idle pool may be without state. `random` is below the number of
/// workers.
fn is_surveyed(workers: usize, random: usize) -> bool {
    workers <= MOST_SURVEYED && random < SURVEYORS
}

const MOST_SURVEYED: usize = 200;
/// Surveys of a pool in one interval, on average.
const SURVEYORS: usize = 4;

/// All workers with objects in the storage. Removes old remains of workers without a checkpoint.
pub(super) async fn survey(
    settings: &Settings,
    storage: &Storage,
    heartbeats: &mut Heartbeats,
) -> Result<Vec<Lineage>, Fault> {
    let workers = storage.list(&format!("{}/{WORKERS}", settings.base())).await?.folders;
    if workers.is_empty() {
        return Ok(Vec::new());
    }
    let now = storage.now(&format!("{}/{CLOCK}", settings.base()), &settings.uid).await?;
    let mut lineages: Vec<Lineage> = stream::iter(workers)
        .map(|uid| lineage(settings, storage, uid, now))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    for Lineage { uid, heartbeat, .. } in &mut lineages {
        heartbeat.iter_mut().for_each(|beat| heartbeats.note(uid, beat));
    }
    for uid in remains(&lineages) {
        // The next survey tries it again.
        if let Err(fault) = storage.delete_all(&settings.worker(uid)).await {
            debug!("failed to remove what a worker has left: {fault}");
        }
    }
    Ok(lineages)
}

pub(super) async fn lineage(
    settings: &Settings,
    storage: &Storage,
    uid: String,
    now: SystemTime,
) -> Result<Lineage, Fault> {
    let of_worker = settings.worker(&uid);
    let listing = storage.list(&of_worker).await?;
    let heartbeat = match heartbeat_time(&listing) {
        None => None,
        Some(written) => {
            let said: Heartbeat =
                storage.read(&format!("{of_worker}/{HEARTBEAT}")).await?.unwrap_or_default();
            let age = now.duration_since(written).unwrap_or_default();
            Some(Beat::of(&said, written, age, storage.keys(&uid).await.as_deref()))
        }
    };
    let numbers = listing.numbers();
    let runs = heartbeat.is_some_and(|beat| beat.is_of_a_running_worker(settings.beat_interval()));
    let newest = match numbers.last() {
        // The worker runs, so its state is not restored, and its newest complete checkpoint is not needed.
        Some(number) if runs => Some(Newest { number: *number, age: Duration::ZERO, is_final: false }),
        Some(_) => newest(storage, &of_worker, &numbers, now).await?,
        None => None,
    };
    let claim = if runs { None } else { claim_of(settings, storage, &uid, now).await? };
    let is_empty = numbers.is_empty();
    Ok(Lineage { uid, newest, heartbeat, claim, is_empty, is_useless: false })
}

/// When the heartbeat of a worker was written, by the folder of the worker.
pub(super) fn heartbeat_time(listing: &Listing) -> Option<SystemTime> {
    listing.files.iter().find(|(name, _)| name == HEARTBEAT).map(|(_, time)| *time)
}

/// The newest checkpoint that is complete.
pub(crate) async fn newest(
    storage: &Storage,
    of_worker: &str,
    numbers: &[u64],
    now: SystemTime,
) -> Result<Option<Newest>, Fault> {
    for number in numbers.iter().rev() {
        let folder = format!("{of_worker}/{}", numbered(*number));
        let listing = storage.list(&folder).await?;
        let Some((_, written)) = listing.files.iter().find(|(name, _)| name == MANIFEST) else { continue };
        let manifest: Option<Manifest> = storage.read(&format!("{folder}/{MANIFEST}")).await?;
        if let Some(manifest) = manifest {
            let age = now.duration_since(*written).unwrap_or_default();
            return Ok(Some(Newest { number: *number, age, is_final: manifest.is_final }));
        }
    }
    Ok(None)
}
