//! Finds a state that no worker has, claims it, and writes it into the folder of the new worker.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{
    CLAIMS, CLOCK, Claim, HEARTBEAT, Heartbeat, MANIFEST, Manifest, RESTORED, Restored, Settings, WORKERS,
    choice::{Beat, Choice, Claimed, Lineage, Newest, choice, is_gone, is_late},
    numbered,
    state::{self, StateFolder},
    storage::{Listing, Storage, of_disk},
};
use crate::{fault::Fault, memory::patiently, replace};

/// Workers that are looked at side by side.
const AT_ONCE: usize = 8;
/// Another worker may be faster with a claim.
const MOST_CLAIMS: usize = 50;
/// A worker that is asked to end says so at once, and its successor may be here before it has.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(2);
const AWAIT_EVERY: Duration = Duration::from_millis(500);
/// In intervals: workers whose heartbeats are late one after the other do not hold a new one back for longer.
const WATCH_AT_MOST: u32 = 3;

/// Claims a state and restores it. `own_folder` is that of the monitor. An earlier run of this loader is not repeated: what the worker has
/// written since stays.
pub(crate) async fn restore(
    settings: &Settings,
    state: &StateFolder,
    own_folder: &Path,
    patience: Duration,
) -> Result<(), Fault> {
    let marker = own_folder.join(RESTORED);
    if marker.exists() {
        info!("the state of this pod is there already");
        return Ok(());
    }
    let storage = Storage::open(&settings.place)?;
    let restored = patiently(patience, async || find(settings, &storage, state).await).await?;
    let text = serde_json::to_vec(&restored).unwrap_or_default();
    replace(&marker, &text).map_err(|error| of_disk(&error))
}

async fn find(settings: &Settings, storage: &Storage, state: &StateFolder) -> Result<Restored, Fault> {
    let (began, mut watch) = (Instant::now(), Watch::default());
    let (mut claims, mut has_looked_again) = (0, false);
    let mut damaged = HashSet::new();
    while claims < MOST_CLAIMS {
        let mut lineages = survey(settings, storage, &mut watch).await?;
        lineages.retain(|lineage| !damaged.contains(&lineage.uid));
        let (uid, number, within) = match choice(&lineages, &settings.uid, settings.interval) {
            Choice::Restore { uid, claim } => (uid, claim, None),
            Choice::Await { uid, claim, within } => (uid, claim, Some(within)),
            Choice::Watch { uid } if began.elapsed() < settings.interval * WATCH_AT_MOST => {
                watch.tell_once(&uid);
                sleep(LOOK_AGAIN_AFTER).await;
                continue;
            }
            Choice::None { others_live: true } if !has_looked_again => {
                has_looked_again = true;
                sleep(LOOK_AGAIN_AFTER).await;
                continue;
            }
            Choice::None { .. } | Choice::Watch { .. } => {
                info!(workers = lineages.len(), "there is no state to restore");
                return Ok(Restored::default());
            }
        };
        claims += 1;
        let claim = Claim { by: settings.uid.clone(), pod: settings.pod.clone() };
        let key = format!("{}/{CLAIMS}/{uid}/{}", settings.base(), numbered(u64::from(number)));
        if !storage.create(&key, serde_json::to_vec(&claim).unwrap_or_default()).await? {
            continue;
        }
        let (written, key) = (Cell::new(Instant::now()), &key);
        let keep = || refresh(storage, key, &claim, &written, settings.interval);
        if let Some(within) = within {
            info!(worker = %uid, "waits for the state of a worker that ends");
            until_gone(settings, storage, &uid, within, &mut watch, &keep).await?;
        }
        match fetch(settings, storage, state, &uid, &keep).await? {
            Some(manifest) => {
                info!(worker = %uid, files = manifest.files.len(), bytes = manifest.bytes(), "restored a state");
                return Ok(Restored { from: Some(uid), was_lost: !manifest.is_final });
            }
            None => {
                warn!(worker = %uid, "its state is damaged and not restored; another one is looked for");
                damaged.insert(uid);
            }
        }
    }
    warn!("other workers were faster with every claim");
    Ok(Restored::default())
}

/// The last heartbeat of each worker, and since when it is known.
#[derive(Debug, Default)]
struct Watch {
    seen: HashMap<String, (SystemTime, Instant)>,
    told: Option<String>,
}

impl Watch {
    fn note(&mut self, uid: &str, beat: &mut Beat) {
        let now = Instant::now();
        let seen = self.seen.entry(uid.to_owned()).or_insert((beat.written, now));
        if seen.0 != beat.written {
            *seen = (beat.written, now);
        }
        beat.watched = now - seen.1;
    }

    fn tell_once(&mut self, uid: &str) {
        if self.told.as_deref() != Some(uid) {
            info!(worker = %uid, "the heartbeat of a worker is late; waits until it is there or the worker is lost");
            self.told = Some(uid.to_owned());
        }
    }
}

impl Settings {
    /// The folder of the pool.
    pub(crate) fn base(&self) -> String {
        format!("{}/{}", self.namespace, self.pool)
    }

    /// The folder of one worker.
    pub(crate) fn worker(&self, uid: &str) -> String {
        format!("{}/{WORKERS}/{uid}", self.base())
    }
}

/// A claim that is written again stays young while a state is awaited or restored.
async fn refresh(
    storage: &Storage,
    key: &str,
    claim: &Claim,
    written: &Cell<Instant>,
    interval: Duration,
) -> Result<(), Fault> {
    if written.get().elapsed() < interval {
        return Ok(());
    }
    storage.put(key, serde_json::to_vec(claim).unwrap_or_default()).await?;
    written.set(Instant::now());
    Ok(())
}

/// All workers that the storage has something of.
async fn survey(settings: &Settings, storage: &Storage, watch: &mut Watch) -> Result<Vec<Lineage>, Fault> {
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
        heartbeat.iter_mut().for_each(|beat| watch.note(uid, beat));
    }
    Ok(lineages)
}

async fn lineage(
    settings: &Settings,
    storage: &Storage,
    uid: String,
    now: SystemTime,
) -> Result<Lineage, Fault> {
    let of_worker = settings.worker(&uid);
    let Listing { folders, files } = storage.list(&of_worker).await?;
    let age = |time: SystemTime| now.duration_since(time).unwrap_or_default();
    let beaten = files.iter().find(|(name, _)| name == HEARTBEAT).map(|(_, time)| *time);
    let heartbeat = match beaten {
        None => None,
        Some(written) => {
            let said: Heartbeat =
                read(storage, &format!("{of_worker}/{HEARTBEAT}")).await?.unwrap_or_default();
            Some(Beat {
                written,
                age: age(written),
                watched: Duration::ZERO,
                is_ending: said.ending,
                interval: Duration::from_secs(said.interval_seconds),
                grace: Duration::from_secs(said.grace_seconds),
            })
        }
    };
    let mut numbers: Vec<u64> = folders.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let lives = heartbeat.is_some_and(|beat| !beat.is_ending && !is_late(&beat, settings.interval));
    let newest = match numbers.last() {
        // It has saved and goes on: which one is its newest does not matter.
        Some(number) if lives => Some(Newest { number: *number, age: Duration::ZERO, is_final: false }),
        Some(_) => newest(storage, &of_worker, &numbers, now).await?,
        None => None,
    };
    let claim = if lives { None } else { claim_of(settings, storage, &uid, now).await? };
    Ok(Lineage { uid, newest, heartbeat, claim })
}

/// The newest checkpoint that is complete.
async fn newest(
    storage: &Storage,
    of_worker: &str,
    numbers: &[u64],
    now: SystemTime,
) -> Result<Option<Newest>, Fault> {
    for number in numbers.iter().rev() {
        let folder = format!("{of_worker}/{}", numbered(*number));
        let listing = storage.list(&folder).await?;
        let Some((_, written)) = listing.files.iter().find(|(name, _)| name == MANIFEST) else { continue };
        let manifest: Option<Manifest> = read(storage, &format!("{folder}/{MANIFEST}")).await?;
        if let Some(manifest) = manifest {
            let age = now.duration_since(*written).unwrap_or_default();
            return Ok(Some(Newest { number: *number, age, is_final: manifest.is_final }));
        }
    }
    Ok(None)
}

/// The claim with the largest number.
pub(crate) async fn claim_of(
    settings: &Settings,
    storage: &Storage,
    uid: &str,
    now: SystemTime,
) -> Result<Option<Claimed>, Fault> {
    let folder = format!("{}/{CLAIMS}/{uid}", settings.base());
    let files = storage.list(&folder).await?.files;
    let Some((name, written)) = files.iter().max_by(|(one, _), (other, _)| one.cmp(other)) else {
        return Ok(None);
    };
    let claim: Option<Claim> = read(storage, &format!("{folder}/{name}")).await?;
    let number = name.parse().unwrap_or(u32::MAX - 1);
    let (by, pod) = claim.map(|claim| (claim.by, claim.pod)).unwrap_or_default();
    Ok(Some(Claimed { number, by, pod, age: now.duration_since(*written).unwrap_or_default() }))
}

/// A text that is not in the expected form counts as missing: it was not written by a monitor.
async fn read<T: DeserializeOwned>(storage: &Storage, key: &str) -> Result<Option<T>, Fault> {
    Ok(storage.get(key).await?.and_then(|text| serde_json::from_slice(&text).ok()))
}

/// Until the worker has saved its last state, is lost, or the time is over.
async fn until_gone(
    settings: &Settings,
    storage: &Storage,
    uid: &str,
    within: Duration,
    watch: &mut Watch,
    keep: &impl AsyncFn() -> Result<(), Fault>,
) -> Result<(), Fault> {
    let began = Instant::now();
    while began.elapsed() < within {
        keep().await?;
        let now = storage.now(&format!("{}/{CLOCK}", settings.base()), &settings.uid).await?;
        let mut awaited = lineage(settings, storage, uid.to_owned(), now).await?;
        awaited.heartbeat.iter_mut().for_each(|beat| watch.note(uid, beat));
        if is_gone(&awaited, settings.interval) {
            return Ok(());
        }
        sleep(AWAIT_EVERY).await;
    }
    warn!(worker = %uid, "its last state did not come in time; an earlier one is restored");
    Ok(())
}

/// The newest checkpoint whose files are all as its manifest says. `None`: there is none.
async fn fetch(
    settings: &Settings,
    storage: &Storage,
    state: &StateFolder,
    uid: &str,
    keep: &impl AsyncFn() -> Result<(), Fault>,
) -> Result<Option<Manifest>, Fault> {
    let of_worker = settings.worker(uid);
    let mut numbers: Vec<u64> =
        storage.list(&of_worker).await?.folders.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    for number in numbers.iter().rev() {
        let folder = format!("{of_worker}/{}", numbered(*number));
        let Some(manifest): Option<Manifest> = read(storage, &format!("{folder}/{MANIFEST}")).await? else {
            continue;
        };
        // What an attempt before has left.
        state.clear().map_err(|error| of_disk(&error))?;
        if all_of(storage, state, &folder, &manifest, keep).await? {
            return Ok(Some(manifest));
        }
        warn!(worker = %uid, number, "a checkpoint differs from its manifest; the one before it is tried");
    }
    state.clear().map_err(|error| of_disk(&error))?;
    Ok(None)
}

/// `false`: a file is missing or differs.
async fn all_of(
    storage: &Storage,
    state: &StateFolder,
    folder: &str,
    manifest: &Manifest,
    keep: &impl AsyncFn() -> Result<(), Fault>,
) -> Result<bool, Fault> {
    for (index, saved) in manifest.files.iter().enumerate() {
        keep().await?;
        let (file, new) = match state.begin(&saved.path) {
            Ok(begun) => begun,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(false),
            Err(error) => return Err(of_disk(&error)),
        };
        let mut written = file.try_clone().map_err(|error| of_disk(&error))?;
        if !storage.get_file(&format!("{folder}/{index}"), file, saved.size).await? {
            return Ok(false);
        }
        io::Seek::rewind(&mut written).map_err(|error| of_disk(&error))?;
        let (_, size, digest) = state::sha256(written, u64::MAX).await.map_err(|error| of_disk(&error))?;
        if size != saved.size || digest != saved.sha256 {
            return Ok(false);
        }
        state.finish(&new, &saved.path).map_err(|error| of_disk(&error))?;
    }
    Ok(true)
}
