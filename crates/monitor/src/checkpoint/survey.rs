//! What the storage has of the workers of a pool, and for how long a heartbeat was the last one.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, SystemTime},
};

use api::monitor::ExitCode;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::{
    CLOCK, HEARTBEAT, Heartbeat, Settings, WORKERS,
    choice::{Beat, Claimed, Lineage, Newest, remains, unclaimed},
    claims::claim_of,
    newest::newest,
    storage::{Listing, Storage},
};
use crate::fault::Fault;

/// Workers whose objects are read concurrently.
const AT_ONCE: usize = 8;
/// Of a survey, far longer than one of the largest pool takes. A storage may answer each request slowly.
const SURVEYED_WITHIN: Duration = Duration::from_secs(600);
/// Odd entries that are named in the log.
const MOST_NAMED: usize = 100;

/// The last heartbeat of each worker, and since when it is watched.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    seen: HashMap<String, (SystemTime, Instant)>,
    logged: Option<String>,
    /// Odd entries that were named in the log.
    named: BTreeSet<String>,
}

impl Heartbeats {
    /// `why`: it names the entry.
    fn name_once(&mut self, why: &str) {
        if self.named.len() < MOST_NAMED && self.named.insert(why.to_owned()) {
            warn!("skipped an entry of the storage: {why}");
        }
    }

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
    let workers = storage.list_pool(&format!("{}/{WORKERS}", settings.base())).await?.folders;
    if !is_surveyed(workers.len(), fastrand::usize(..workers.len().max(1))) {
        return Ok(None);
    }
    let mut lineages = survey(settings, storage, heartbeats).await?;
    for lineage in &mut lineages {
        lineage.is_useless |= damaged.contains(&lineage.uid);
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
    let within = timeout(SURVEYED_WITHIN, survey_all(settings, storage, heartbeats));
    within.await.unwrap_or_else(|_| {
        let (name, minutes) = (storage.name(), SURVEYED_WITHIN.as_secs() / 60);
        let message = format!("{name} did not show the states of the pool within {minutes} minutes");
        Err(Fault::new(ExitCode::StoreUnreachable, message))
    })
}

async fn survey_all(
    settings: &Settings,
    storage: &Storage,
    heartbeats: &mut Heartbeats,
) -> Result<Vec<Lineage>, Fault> {
    let folder = format!("{}/{WORKERS}", settings.base());
    let Listing { folders: workers, odd, .. } = storage.list_pool(&folder).await?;
    for name in odd {
        heartbeats.name_once(&format!("{}: {folder}/{name:?} is not of a worker: remove it", storage.name()));
    }
    if workers.is_empty() {
        return Ok(Vec::new());
    }
    let now = storage.now(&format!("{}/{CLOCK}", settings.base()), &settings.uid).await?;
    let mut lineages: Vec<Lineage> = stream::iter(workers)
        .map(|uid| lineage(settings, storage, uid, now))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    for Lineage { uid, heartbeat, odd, .. } in &mut lineages {
        heartbeat.iter_mut().for_each(|beat| heartbeats.note(uid, beat));
        odd.take().iter().for_each(|why| heartbeats.name_once(why));
    }
    for uid in remains(&lineages) {
        // The next survey tries it again.
        if let Err(fault) = storage.delete_all(&settings.worker(uid)).await {
            debug!("failed to remove what a worker has left: {fault}");
        }
    }
    Ok(lineages)
}

/// One with an odd entry is not restored, and counts as a worker with a state: what it has claimed is not claimed again.
pub(super) async fn lineage(
    settings: &Settings,
    storage: &Storage,
    uid: String,
    now: SystemTime,
) -> Result<Lineage, Fault> {
    match known(settings, storage, &uid, now).await {
        Err(fault) if fault.is_of_entry => Ok(Lineage {
            uid,
            newest: Some(Newest { number: 0, age: Duration::ZERO, is_final: false }),
            is_useless: true,
            odd: Some(fault.message),
            ..Lineage::default()
        }),
        known => known,
    }
}

async fn known(settings: &Settings, storage: &Storage, uid: &str, now: SystemTime) -> Result<Lineage, Fault> {
    let of_worker = settings.worker(uid);
    let listing = storage.list(&of_worker).await?;
    if listing.odd.iter().any(|name| name == HEARTBEAT) {
        let message = format!("{}: {of_worker}/{HEARTBEAT} is no file: remove it", storage.name());
        return Err(Fault::new(ExitCode::StoreUnreachable, message).of_entry());
    }
    let heartbeat = match heartbeat_time(&listing) {
        None => None,
        Some(written) => {
            let said: Heartbeat =
                storage.read(&format!("{of_worker}/{HEARTBEAT}")).await?.unwrap_or_default();
            let age = now.duration_since(written).unwrap_or_default();
            Some(Beat::of(&said, written, age, storage.keys(uid).await.as_deref()))
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
    let claim = if runs { None } else { claim_of(settings, storage, uid, now).await? };
    // Of many workers, the name of a pod is not needed.
    let claim = claim.map(|claim| Claimed { pod: String::new(), ..claim });
    let is_empty = numbers.is_empty();
    Ok(Lineage { uid: uid.to_owned(), newest, heartbeat, claim, is_empty, ..Lineage::default() })
}

/// When the heartbeat of a worker was written, by the folder of the worker.
pub(super) fn heartbeat_time(listing: &Listing) -> Option<SystemTime> {
    listing.files.iter().find(|(name, _)| name == HEARTBEAT).map(|(_, time)| *time)
}
