//! Finds a state that no worker has claimed, claims it, and writes it into the folder of the new worker.

use std::{
    collections::HashSet,
    fs::{self, File},
    io, iter,
    path::Path,
    sync::Arc,
    time::Duration,
};

use api::monitor::ExitCode;
use directory::space::Volume;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    BEATS, CLOCK, MANIFEST, Manifest, REFUSED, RESTORED, Restored, Settings,
    choice::{Choice, KEYS_RENEWED_WITHIN, choice, has_ended_or_is_lost},
    claims::{Held, OwnClaims, claim_one},
    numbered,
    state::{self, StateFolder},
    storage::{Admitted, Listing, REQUEST_WITHIN, Storage, Text, of_disk, of_own_folder},
    survey::{Heartbeats, heartbeat_time, lineage, survey},
};
use crate::{fault::Fault, replace, retry::retry_transient};

/// A worker announces its end in its heartbeat. Its successor may start before that heartbeat is written.
const RESURVEY_AFTER: Duration = Duration::from_secs(2);
/// Random wait in milliseconds before a loader that could not create any claim searches again, so that loaders do not
/// retry at the same time.
const JITTER: std::ops::Range<u64> = 50..500;
/// While a heartbeat is awaited, another worker may end, whose state is restored then.
const SURVEYED_AGAIN_AFTER: Duration = Duration::from_secs(30);
const AWAIT_EVERY: Duration = Duration::from_millis(500);
/// A proxy or a store may give a wrong answer for a moment, and a checkpoint that counts as damaged is removed with the next
/// one.
const READ_AGAIN: u32 = 2;
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How a disk gets room for a state, or for a memory.
pub(crate) const MORE_SPACE: &str = "free space on the node";
/// Limit for the wait for late heartbeats, also if those of several workers are late one after the other.
fn watch_at_most(settings: &Settings) -> Duration {
    settings.beat_interval() * 3 + KEYS_RENEWED_WITHIN
}

/// Claims a state and restores it. `own_folder` is that of the monitor. If an earlier container of this pod has done
/// it, nothing is restored, so that files which the worker has written since are kept. `patience`: for how long a request
/// that fails is tried again, and the claims of other loaders are tried.
pub(crate) async fn restore(
    settings: &Settings,
    state: &StateFolder,
    own_folder: &Path,
    patience: Duration,
    claims: &OwnClaims,
) -> Result<(), Fault> {
    let marker = own_folder.join(RESTORED);
    if marker.exists() {
        info!("the state of this pod is there already");
        return Ok(());
    }
    let storage = Storage::open(&settings.place)?;
    let probe = format!("{}/{CLOCK}/{}.probe", settings.base(), settings.uid);
    if !retry_transient(patience, async || storage.has_conditional_writes(&probe).await).await? {
        let message = format!(
            "{} does not support conditional writes (If-None-Match), without which a state could be restored twice: \
             choose a store that does",
            storage.name()
        );
        return Err(Fault::lasting(ExitCode::StoreUnreachable, message));
    }
    claims.begin(settings, own_folder).map_err(|error| of_own_folder(own_folder, &error))?;
    // Those of an earlier container, which may have ended before it knew whether it could keep them.
    retry_transient(patience, async || claims.release_all_but(None, &storage).await).await?;
    let volume = Volume::of(&state.0, own_folder, MORE_SPACE).map_err(|error| of_disk(&error))?;
    let search = Search { settings, storage: &storage, state, patience, claims, volume: Arc::new(volume) };
    let restored = loop {
        let restored = search.find().await?;
        // Not before: a loader that fails during its search must not start its worker empty, and leave the damage out of
        // every report.
        for uid in &restored.damaged {
            claims.forget(uid)?;
        }
        // Otherwise a worker that announced its end and goes on running would find its state claimed.
        let kept = restored.from.as_deref();
        retry_transient(patience, async || claims.release_all_but(kept, &storage).await).await?;
        match restored.held(settings) {
            // While requests failed, the claim may have become too old.
            Some(held) if !retry_transient(patience, async || held.holds(&storage).await).await? => {
                warn!(worker = %held.uid, "the claim was too old; another worker has the state");
                state.clear().map_err(|error| of_disk(&error))?;
                sleep(RESURVEY_AFTER).await;
            }
            Some(_) => break restored,
            None => {
                // An earlier container of this loader may have restored a state, and has given it back.
                state.clear().map_err(|error| of_disk(&error))?;
                break restored;
            }
        }
    };
    let text = serde_json::to_vec(&restored).unwrap_or_default();
    replace(&marker, &text).map_err(|error| of_own_folder(own_folder, &error))
}

/// Whether the storage has refused what it was asked for so long. Then a container of the loader ends at once, and the next
/// one has other keys, if they were replaced: the first failure is noted in a file of the pod.
pub(crate) fn is_refused_for(patience: Duration, own_folder: &Path) -> Result<bool, Fault> {
    let path = own_folder.join(REFUSED);
    let noted = match File::create_new(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::metadata(&path),
        created => created.and_then(|file| file.metadata()),
    };
    let since =
        noted.and_then(|known| known.modified()).map_err(|error| of_own_folder(own_folder, &error))?;
    // After a clock was put back, it takes longer.
    Ok(since.elapsed().is_ok_and(|elapsed| elapsed >= patience))
}

/// The storage has answered since then.
pub(crate) fn end_refusal(own_folder: &Path) {
    // Mostly there is none.
    let _ = fs::remove_file(own_folder.join(REFUSED));
}

/// Lets the worker of this pod begin without a state. `false`: the storage may have a claim of this pod, which must be given
/// back first. With heartbeats of a worker that does not have the state, no other one would ever restore it.
pub(crate) fn begin_empty(
    settings: &Settings,
    state: &StateFolder,
    own_folder: &Path,
    claims: &OwnClaims,
) -> Result<bool, Fault> {
    if claims.may_hold_any(settings, own_folder).map_err(|error| of_own_folder(own_folder, &error))? {
        return Ok(false);
    }
    // What a restore has left that was interrupted.
    state.clear().map_err(|error| of_disk(&error))?;
    let restored = Restored { started_empty: true, ..Restored::default() };
    let text = serde_json::to_vec(&restored).unwrap_or_default();
    replace(&own_folder.join(RESTORED), &text).map_err(|error| of_own_folder(own_folder, &error))?;
    Ok(true)
}

/// The search of one loader for a state. What it has learned outlives requests that fail.
struct Search<'s> {
    settings: &'s Settings,
    storage: &'s Storage,
    state: &'s StateFolder,
    patience: Duration,
    claims: &'s OwnClaims,
    /// Of the folder of the state.
    volume: Arc<Volume>,
}

impl Search<'_> {
    /// Until a state is restored or none is available.
    async fn find(&self) -> Result<Restored, Fault> {
        let Self { settings, storage, patience, claims, .. } = *self;
        let (began, mut heartbeats) = (Instant::now(), Heartbeats::default());
        let (mut lost_since, mut has_looked_again) = (None, false);
        let (mut useless, mut damaged) = (HashSet::new(), Vec::new());
        loop {
            let surveyed =
                self.retried(&mut heartbeats, async |heartbeats| survey(settings, storage, heartbeats).await);
            let mut lineages = surveyed.await?;
            for lineage in &mut lineages {
                lineage.is_useless |= useless.contains(&lineage.uid);
            }
            let candidates = match choice(&lineages, &settings.uid, settings.beat_interval()) {
                Choice::Claim(candidates) => candidates,
                Choice::AwaitHeartbeat { uid, within } if began.elapsed() < watch_at_most(settings) => {
                    heartbeats.log_once(&uid);
                    let left = watch_at_most(settings).saturating_sub(began.elapsed());
                    self.until_next_heartbeat(&uid, within.min(left), &mut heartbeats).await?;
                    continue;
                }
                Choice::None { others_run: true } if !has_looked_again => {
                    has_looked_again = true;
                    sleep(RESURVEY_AFTER).await;
                    continue;
                }
                Choice::None { .. } | Choice::AwaitHeartbeat { .. } => {
                    info!(workers = lineages.len(), "there is no state to restore");
                    return Ok(Restored { damaged, ..Restored::default() });
                }
            };
            let claimed = self.retried(&mut heartbeats, async |_| {
                claim_one(settings, storage, candidates.clone(), claims).await
            });
            let Some((candidate, held)) = claimed.await? else {
                if lost_since.get_or_insert_with(Instant::now).elapsed() > patience {
                    warn!("no state restored: other workers created every claim first");
                    return Ok(Restored { damaged, ..Restored::default() });
                }
                sleep(Duration::from_millis(fastrand::u64(JITTER))).await;
                continue;
            };
            lost_since = None;
            let uid = candidate.uid.clone();
            match self.take(&held, candidate.within, &mut heartbeats).await? {
                Taken::Restored(manifest) => {
                    info!(worker = %uid, files = manifest.files.len(), bytes = manifest.bytes(), "restored a state");
                    return Ok(Restored {
                        from: Some(uid),
                        was_lost: !manifest.is_final,
                        claim: Some(held.number),
                        continues: manifest.continues,
                        damaged,
                        started_empty: false,
                    });
                }
                Taken::Damaged => {
                    warn!(worker = %uid, "the state is damaged; the next one is tried");
                    useless.insert(uid.clone());
                    damaged.push(uid);
                }
                Taken::NoState => {
                    self.retried(&mut heartbeats, async |_| held.release(storage).await).await?;
                    useless.insert(uid);
                }
                Taken::Runs => {
                    info!(worker = %uid, "the worker does not end any more; its state is not claimed any more");
                    self.retried(&mut heartbeats, async |_| held.release(storage).await).await?;
                }
                Taken::ByAnother => {
                    warn!(worker = %uid, "the claim was too old; another worker has the state");
                    // It gives back a claim that it should not have made.
                    sleep(RESURVEY_AFTER).await;
                }
            }
        }
    }

    /// As `retry_transient`, and workers are not taken for lost because of heartbeats that the storage refused meanwhile.
    async fn retried<T>(
        &self,
        heartbeats: &mut Heartbeats,
        mut request: impl AsyncFnMut(&mut Heartbeats) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut failing_since: Option<Instant> = None;
        let done = retry_transient(self.patience, async || {
            // Shorter failures cost no worker a heartbeat, and a storage may refuse a request now and then.
            let has_failed_for = failing_since.map(|since| since.elapsed()).unwrap_or_default();
            if has_failed_for >= self.settings.beat_interval() / BEATS {
                heartbeats.watch_again();
            }
            let began = Instant::now();
            let answer = request(heartbeats).await;
            if answer.is_err() {
                // It may consist of many requests, of which the last one failed.
                let earliest = Instant::now().checked_sub(REQUEST_WITHIN);
                failing_since.get_or_insert(earliest.map_or(began, |earliest| began.max(earliest)));
            }
            answer
        });
        done.await
    }

    /// Returns when this worker has another heartbeat or none, and at the latest after `within` or when a survey is due. One
    /// request each time, because all workers of a pool may start at once.
    async fn until_next_heartbeat(
        &self,
        uid: &str,
        within: Duration,
        heartbeats: &mut Heartbeats,
    ) -> Result<(), Fault> {
        let end = Instant::now() + within.min(SURVEYED_AGAIN_AFTER);
        let known = heartbeats.written(uid);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            sleep(left.min(RESURVEY_AFTER)).await;
            if left <= RESURVEY_AFTER {
                return Ok(());
            }
            let of_worker = self.settings.worker(uid);
            let listed = self.retried(heartbeats, async |_| unless_odd(self.storage.list(&of_worker).await));
            if listed.await?.is_none_or(|listing| heartbeat_time(&listing) != known) {
                return Ok(());
            }
        }
    }

    /// Waits for the last checkpoint if necessary and writes the state into its folder. Meanwhile the claim is renewed.
    async fn take(
        &self,
        held: &Held,
        within: Option<Duration>,
        heartbeats: &mut Heartbeats,
    ) -> Result<Taken, Fault> {
        let Self { settings, storage, state, ref volume, .. } = *self;
        let stop = CancellationToken::new();
        let taking = async {
            // Stops the renewal of the claim, also after a fault.
            let _stop = stop.clone().drop_guard();
            if let Some(within) = within {
                info!(worker = %held.uid, "waits for the state of a worker that ends");
                if !self.until_ended_or_lost(&held.uid, within, heartbeats).await? {
                    return Ok(Fetched::Not(Taken::Runs));
                }
            }
            self.retried(heartbeats, async |_| fetch(settings, storage, state, &held.uid, volume).await).await
        };
        // Joined, so that no request of the renewal is in flight afterwards.
        let (fetched, ()) = tokio::join!(taking, held.keep(storage, &stop));
        let (key, manifest) = match fetched? {
            Fetched::Whole { key, manifest } => (key, manifest),
            Fetched::Not(taken) => return Ok(taken),
        };
        // A worker that has taken the state over removes the checkpoints first and the claims later. The claim is
        // checked first, then the checkpoint.
        let is_own =
            self.retried(heartbeats, async |_| Ok(held.renew(storage).await? && storage.has(&key).await?));
        if is_own.await? {
            return Ok(Taken::Restored(manifest));
        }
        state.clear().map_err(|error| of_disk(&error))?;
        Ok(Taken::ByAnother)
    }

    /// Until the worker has saved its last state, is lost, or the time is over. `false`: it does not end any more.
    async fn until_ended_or_lost(
        &self,
        uid: &str,
        within: Duration,
        heartbeats: &mut Heartbeats,
    ) -> Result<bool, Fault> {
        let Self { settings, storage, .. } = *self;
        let began = Instant::now();
        while began.elapsed() < within {
            let awaited = self.retried(heartbeats, async |heartbeats| {
                let now = storage.now(&format!("{}/{CLOCK}", settings.base()), &settings.uid).await?;
                let mut awaited = lineage(settings, storage, uid.to_owned(), now).await?;
                awaited.heartbeat.iter_mut().for_each(|beat| heartbeats.note(uid, beat));
                Ok(awaited)
            });
            let awaited = awaited.await?;
            if awaited.heartbeat.is_some_and(|beat| beat.is_of_a_running_worker(settings.beat_interval())) {
                return Ok(false);
            }
            if has_ended_or_is_lost(&awaited, settings.beat_interval()) {
                return Ok(true);
            }
            sleep(AWAIT_EVERY).await;
        }
        warn!(worker = %uid, "its last state did not come in time; an earlier one is restored");
        Ok(true)
    }
}

/// The outcome of restoring a claimed state.
enum Taken {
    Restored(Manifest),
    Damaged,
    /// The worker has ended without one.
    NoState,
    /// The worker had announced its end, and its newest heartbeat says that it runs.
    Runs,
    ByAnother,
}

enum Fetched {
    /// Every file is as the manifest with this key says.
    Whole {
        key: String,
        manifest: Manifest,
    },
    Not(Taken),
}

/// The newest checkpoint whose files are all as its manifest says.
async fn fetch(
    settings: &Settings,
    storage: &Storage,
    state: &StateFolder,
    uid: &str,
    volume: &Arc<Volume>,
) -> Result<Fetched, Fault> {
    let of_worker = settings.worker(uid);
    let mut has_manifest = false;
    let Some(listing) = unless_odd(storage.list(&of_worker).await)? else {
        return Ok(Fetched::Not(Taken::Damaged));
    };
    for number in listing.numbers().iter().rev() {
        let folder = format!("{of_worker}/{}", numbered(*number));
        let key = format!("{folder}/{MANIFEST}");
        let mut attempts = 0;
        loop {
            let why = match storage.manifest::<Manifest>(&key).await? {
                Text::Missing => break,
                Text::Unreadable(_) => "its manifest cannot be read",
                Text::Read(manifest, _) => {
                    // Files of an earlier attempt.
                    state.clear().map_err(|error| of_disk(&error))?;
                    if all_of(storage, state, &folder, &manifest, volume).await? {
                        return Ok(Fetched::Whole { key, manifest });
                    }
                    "it differs from its manifest"
                }
            };
            if attempts == READ_AGAIN {
                has_manifest = true;
                warn!(worker = %uid, number, why, "a checkpoint is damaged; the one before it is tried");
                break;
            }
            attempts += 1;
            info!(worker = %uid, number, why, "a checkpoint is read again");
            sleep(READ_AGAIN_AFTER).await;
        }
    }
    state.clear().map_err(|error| of_disk(&error))?;
    Ok(Fetched::Not(if has_manifest { Taken::Damaged } else { Taken::NoState }))
}

/// `false`: a file is missing or differs, or the manifest is of more than a state may have: that is not written to the
/// disk of the node.
async fn all_of(
    storage: &Storage,
    state: &StateFolder,
    folder: &str,
    manifest: &Manifest,
    volume: &Arc<Volume>,
) -> Result<bool, Fault> {
    if !state::is_within_bounds(manifest.files.iter().map(|saved| saved.size)) {
        return Ok(false);
    }
    let folders = state::folders(manifest.files.iter().map(|saved| &*saved.path));
    // A folder takes a block.
    let sizes = manifest.files.iter().map(|saved| saved.size).chain(iter::repeat_n(1, folders));
    volume.holds(sizes).map_err(|error| of_disk(&error))?;
    for (index, saved) in manifest.files.iter().enumerate() {
        let (file, new) = match state.begin(&saved.path) {
            Ok(begun) => begun,
            Err(error) if is_of_path(&error) => return Ok(false),
            Err(error) => return Err(of_disk(&error)),
        };
        let mut written = file.try_clone().map_err(|error| of_disk(&error))?;
        let file = Admitted { file, volume: Arc::clone(volume) };
        if !storage.get_file(&format!("{folder}/{index}"), file, saved.size).await? {
            return Ok(false);
        }
        io::Seek::rewind(&mut written).map_err(|error| of_disk(&error))?;
        let (written, size, digest) =
            state::sha256(written, u64::MAX).await.map_err(|error| of_disk(&error))?;
        if size != saved.size || digest != saved.sha256 {
            return Ok(false);
        }
        // Before the marker is written: after a power failure of the node, nothing is restored again if it is there.
        state::sync(written).await.map_err(|error| of_disk(&error))?;
        match state.finish(&new, &saved.path) {
            Ok(()) => {}
            Err(error) if is_of_path(&error) => return Ok(false),
            Err(error) => return Err(of_disk(&error)),
        }
    }
    Ok(true)
}

/// Whether the path cannot be that of a file of this state: no worker has saved such paths.
fn is_of_path(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AlreadyExists, InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory,
    };
    matches!(
        error.kind(),
        InvalidData | InvalidInput | InvalidFilename | NotADirectory | IsADirectory | AlreadyExists
    )
}

/// `None`: an odd entry is in the way.
fn unless_odd(listed: Result<Listing, Fault>) -> Result<Option<Listing>, Fault> {
    match listed {
        Ok(listing) => Ok(Some(listing)),
        Err(fault) if fault.is_of_entry => Ok(None),
        Err(fault) => Err(fault),
    }
}
