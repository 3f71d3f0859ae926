//! Finds a state that no worker has claimed, claims it, and writes it into the folder of the new worker.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use api::monitor::ExitCode;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    BEATS, CLOCK, Claim, HEARTBEAT, Heartbeat, MANIFEST, Manifest, RESTORED, Restored, Settings, WORKERS,
    choice::{
        Beat, Candidate, Choice, Claimed, KEYS_RENEWED_WITHIN, Lineage, Newest, choice, has_ended_or_is_lost,
        remains, spread, unclaimed,
    },
    numbered,
    state::{self, StateFolder},
    storage::{Listing, REQUEST_WITHIN, Storage, of_disk, of_own_folder},
};
use crate::{fault::Fault, replace, retry::retry_transient};

/// Workers whose objects are read concurrently.
const AT_ONCE: usize = 8;
/// A worker announces its end in its heartbeat. Its successor may start before that heartbeat is written.
const RESURVEY_AFTER: Duration = Duration::from_secs(2);
/// Random wait in milliseconds before a loader that could not create any claim searches again, so that loaders do not
/// retry at the same time.
const JITTER: std::ops::Range<u64> = 50..500;
/// While a heartbeat is awaited, another worker may end, whose state is restored then.
const SURVEYED_AGAIN_AFTER: Duration = Duration::from_secs(30);
const AWAIT_EVERY: Duration = Duration::from_millis(500);
/// Limit for the removal of a claim when the pod is deleted, because the storage may hang.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(2);
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
        return Err(Fault::new(ExitCode::StoreUnreachable, message));
    }
    claims.begin(settings, own_folder).map_err(|error| of_own_folder(own_folder, &error))?;
    let search = Search { settings, storage: &storage, state, patience, claims };
    let restored = loop {
        let restored = search.find().await?;
        // Otherwise a worker that announced its end and goes on running would find its state claimed.
        let kept = restored.from.as_deref();
        retry_transient(patience, async || claims.release_all_but(kept, &storage).await).await?;
        match restored.held(settings) {
            // While requests failed, the claim may have become too old.
            Some(held) if !retry_transient(patience, async || held.holds(&storage).await).await? => {
                warn!(worker = %held.uid, "the claim was too old; another worker has the state");
                state.clear().map_err(|error| of_disk(&error))?;
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

/// The search of one loader for a state. What it has learned outlives requests that fail.
struct Search<'s> {
    settings: &'s Settings,
    storage: &'s Storage,
    state: &'s StateFolder,
    patience: Duration,
    claims: &'s OwnClaims,
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
                lineage.is_useless = useless.contains(&lineage.uid);
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
                    });
                }
                Taken::Damaged => {
                    warn!(worker = %uid, "the state is damaged; the next one is tried");
                    claims.forget(&uid);
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
            let listing = self.retried(heartbeats, async |_| self.storage.list(&of_worker).await).await?;
            if heartbeat_time(&listing) != known {
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
        let Self { settings, storage, state, .. } = *self;
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
            self.retried(heartbeats, async |_| fetch(settings, storage, state, &held.uid).await).await
        };
        // Joined, so that no request of the renewal is in flight afterwards.
        let (fetched, ()) = tokio::join!(taking, held.keep(storage, &stop));
        let (key, manifest) = match fetched? {
            Fetched::Whole { key, manifest } => (key, manifest),
            Fetched::Not(taken) => return Ok(taken),
        };
        // A worker that has taken the state over removes the checkpoints first and the claims later. The claim is
        // checked first, then the checkpoint.
        let is_own = self.retried(heartbeats, async |_| {
            Ok(held.renew(storage).await? && storage.get(&key).await?.is_some())
        });
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

/// Creates the first of the claims that does not exist yet.
async fn claim_one(
    settings: &Settings,
    storage: &Storage,
    candidates: Vec<Candidate>,
    claims: &OwnClaims,
) -> Result<Option<(Candidate, Held)>, Fault> {
    for candidate in spread(candidates, &settings.uid) {
        let held = Held { settings: settings.clone(), uid: candidate.uid.clone(), number: candidate.claim };
        // Before the request: the storage may have the claim also without an answer.
        let is_first_try = claims.note(&candidate.uid)?;
        if storage.create(&held.key(), held.text()).await? || held.is_there(storage).await? {
            if held.replaces(storage, candidate.replaces).await? {
                return Ok(Some((candidate, held)));
            }
            held.release(storage).await?;
        } else if is_first_try {
            claims.forget(&candidate.uid);
        }
    }
    Ok(None)
}

/// A claim that this pod has created.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// Of this pod.
    pub(crate) settings: Settings,
    /// The worker whose state it is.
    pub(crate) uid: String,
    pub(crate) number: u32,
}

/// The workers whose states this pod has claimed or tried to claim, also those of earlier containers of the loader: they are
/// in a file of the pod. What it does not keep is given back.
#[derive(Default)]
pub(crate) struct OwnClaims(RefCell<Option<Tried>>);

struct Tried {
    settings: Settings,
    file: PathBuf,
    uids: BTreeSet<String>,
}

/// In the folder of the monitor.
const TRIED: &str = "claims.json";

impl OwnClaims {
    fn begin(&self, settings: &Settings, own_folder: &Path) -> io::Result<()> {
        let file = own_folder.join(TRIED);
        let uids = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        *self.0.borrow_mut() = Some(Tried { settings: settings.clone(), file, uids });
        Ok(())
    }

    /// Whether it was not noted before.
    fn note(&self, uid: &str) -> Result<bool, Fault> {
        let mut tried = self.0.borrow_mut();
        let Some(tried) = tried.as_mut() else { return Ok(false) };
        if !tried.uids.insert(uid.to_owned()) {
            return Ok(false);
        }
        let text = serde_json::to_vec(&tried.uids).unwrap_or_default();
        replace(&tried.file, &text).map_err(|error| of_own_folder(&tried.file, &error))?;
        Ok(true)
    }

    /// Nothing is to be given back: another worker has the claim, or the claim stays, as that of a damaged state, which other
    /// workers need not try.
    fn forget(&self, uid: &str) {
        if let Some(tried) = self.0.borrow_mut().as_mut() {
            tried.uids.remove(uid);
        }
    }

    async fn release_all_but(&self, kept: Option<&str>, storage: &Storage) -> Result<(), Fault> {
        let tried = self.0.borrow().as_ref().map(|tried| (tried.settings.clone(), tried.uids.clone()));
        let Some((settings, uids)) = tried else { return Ok(()) };
        for uid in uids.into_iter().filter(|uid| Some(&**uid) != kept) {
            Held { settings: settings.clone(), uid: uid.clone(), number: 0 }.release(storage).await?;
            self.forget(&uid);
        }
        Ok(())
    }

    /// Of a loader that is interrupted or has failed: other workers may claim the states at once.
    pub(crate) async fn give_up(&self) {
        let Some(place) = self.0.borrow().as_ref().map(|tried| tried.settings.place.clone()) else { return };
        let given_up =
            timeout(GIVE_UP_WITHIN, async { self.release_all_but(None, &Storage::open(&place)?).await });
        match given_up.await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => warn!("failed to give back the state that this pod has claimed: {fault}"),
            Err(_) => warn!("failed to give back the state that this pod has claimed: no answer in time"),
        }
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

impl Held {
    fn key(&self) -> String {
        format!("{}/{}", self.settings.claims(&self.uid), numbered(u64::from(self.number)))
    }

    fn text(&self) -> Vec<u8> {
        let claim = Claim { by: self.settings.uid.clone(), pod: self.settings.pod.clone() };
        serde_json::to_vec(&claim).unwrap_or_default()
    }

    /// Writes the claim again, which resets its age. `false`: it is not the newest one, or was removed with the state.
    pub(crate) async fn renew(&self, storage: &Storage) -> Result<bool, Fault> {
        if !self.is_newest(storage).await? {
            return Ok(false);
        }
        storage.put(&self.key(), self.text()).await?;
        // Another loader that has found the claim too old creates its own one first, and then looks whether this one was
        // written again. So at least one of both sees what the other has written.
        self.is_newest(storage).await
    }

    /// Whether the claim before this one is still the one that was found too old, or is gone. `written`: when it was
    /// written; `None`: there was none.
    async fn replaces(&self, storage: &Storage, written: Option<SystemTime>) -> Result<bool, Fault> {
        let (Some(written), Some(before)) = (written, self.number.checked_sub(1)) else { return Ok(true) };
        let name = numbered(u64::from(before));
        let files = storage.list(&self.settings.claims(&self.uid)).await?.files;
        Ok(files.into_iter().find(|(known, _)| *known == name).is_none_or(|(_, time)| time == written))
    }

    /// Whether the state is still there and this pod's.
    async fn holds(&self, storage: &Storage) -> Result<bool, Fault> {
        if !self.renew(storage).await? {
            return Ok(false);
        }
        let of_worker = self.settings.worker(&self.uid);
        let numbers = storage.list(&of_worker).await?.numbers();
        Ok(newest(storage, &of_worker, &numbers, SystemTime::now()).await?.is_some())
    }

    /// An earlier attempt had no answer in time, or an answer that was lost, and has created it.
    async fn is_there(&self, storage: &Storage) -> Result<bool, Fault> {
        let claim: Option<Claim> = read(storage, &self.key()).await?;
        Ok(claim.is_some_and(|claim| claim.by == self.settings.uid))
    }

    async fn is_newest(&self, storage: &Storage) -> Result<bool, Fault> {
        let newest = claim_of(&self.settings, storage, &self.uid, SystemTime::now()).await?;
        Ok(newest.is_some_and(|newest| newest.by == self.settings.uid && newest.number == self.number))
    }

    /// Another worker may claim the state again. After a request that failed, this pod may have earlier claims of its own.
    async fn release(&self, storage: &Storage) -> Result<(), Fault> {
        let folder = self.settings.claims(&self.uid);
        let files = storage.list(&folder).await?.files;
        let mut names: Vec<String> = files.into_iter().map(|(name, _)| name).collect();
        // The oldest first: until the last one is removed, the newest one is this pod's.
        names.sort_unstable();
        for name in names {
            let key = format!("{folder}/{name}");
            let claim: Option<Claim> = read(storage, &key).await?;
            if claim.is_some_and(|claim| claim.by == self.settings.uid) {
                storage.delete(&key).await?;
            }
        }
        Ok(())
    }

    /// Renews the claim until `stop`.
    async fn keep(&self, storage: &Storage, stop: &CancellationToken) {
        let pause = || sleep(self.settings.beat_interval() / BEATS);
        while stop.run_until_cancelled(pause()).await.is_some() {
            if let Err(fault) = self.renew(storage).await {
                // `take` checks at the end whether the claim is still the newest one.
                debug!("failed to renew the claim: {fault}");
            }
        }
    }
}

/// The last heartbeat of each worker, and since when it is watched.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    seen: HashMap<String, (SystemTime, Instant)>,
    logged: Option<String>,
}

impl Heartbeats {
    fn note(&mut self, uid: &str, beat: &mut Beat) {
        let now = Instant::now();
        let seen = self.seen.entry(uid.to_owned()).or_insert((beat.written, now));
        if seen.0 != beat.written {
            *seen = (beat.written, now);
        }
        beat.watched = now - seen.1;
    }

    /// For all workers, from now on.
    fn watch_again(&mut self) {
        let now = Instant::now();
        self.seen.values_mut().for_each(|(_, since)| *since = now);
    }

    /// When the last one was written.
    fn written(&self, uid: &str) -> Option<SystemTime> {
        self.seen.get(uid).map(|(written, _)| *written)
    }

    fn log_once(&mut self, uid: &str) {
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
async fn survey(
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

async fn lineage(
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
                read(storage, &format!("{of_worker}/{HEARTBEAT}")).await?.unwrap_or_default();
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
fn heartbeat_time(listing: &Listing) -> Option<SystemTime> {
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
    let folder = settings.claims(uid);
    let files = storage.list(&folder).await?.files;
    let numbered =
        files.iter().filter_map(|(name, written)| Some((name.parse::<u32>().ok()?, name, written)));
    let Some((number, name, written)) = numbered.max_by_key(|(number, ..)| *number) else {
        return Ok(None);
    };
    let claim: Option<Claim> = read(storage, &format!("{folder}/{name}")).await?;
    let (by, pod) = claim.map(|claim| (claim.by, claim.pod)).unwrap_or_default();
    let age = now.duration_since(*written).unwrap_or_default();
    Ok(Some(Claimed { number, by, pod, written: *written, age }))
}

/// A text that is not in the expected form counts as missing: it was not written by a monitor.
async fn read<T: DeserializeOwned>(storage: &Storage, key: &str) -> Result<Option<T>, Fault> {
    Ok(storage.get(key).await?.and_then(|text| serde_json::from_slice(&text).ok()))
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
) -> Result<Fetched, Fault> {
    let of_worker = settings.worker(uid);
    let mut has_manifest = false;
    for number in storage.list(&of_worker).await?.numbers().iter().rev() {
        let folder = format!("{of_worker}/{}", numbered(*number));
        let key = format!("{folder}/{MANIFEST}");
        let Some(manifest): Option<Manifest> = read(storage, &key).await? else { continue };
        has_manifest = true;
        // Files of an earlier attempt.
        state.clear().map_err(|error| of_disk(&error))?;
        if all_of(storage, state, &folder, &manifest).await? {
            return Ok(Fetched::Whole { key, manifest });
        }
        warn!(worker = %uid, number, "a checkpoint differs from its manifest; the one before it is tried");
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
) -> Result<bool, Fault> {
    if !state::is_within_bounds(manifest.files.iter().map(|saved| saved.size)) {
        return Ok(false);
    }
    for (index, saved) in manifest.files.iter().enumerate() {
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
        let (written, size, digest) =
            state::sha256(written, u64::MAX).await.map_err(|error| of_disk(&error))?;
        if size != saved.size || digest != saved.sha256 {
            return Ok(false);
        }
        // Before the marker is written: after a power failure of the node, nothing is restored again if it is there.
        state::sync(written).await.map_err(|error| of_disk(&error))?;
        state.finish(&new, &saved.path).map_err(|error| of_disk(&error))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Place;

    fn settings(folder: &Path, uid: &str) -> Settings {
        Settings {
            place: Place::Folder(folder.to_owned()),
            namespace: "demo".to_owned(),
            pool: "coder".to_owned(),
            uid: uid.to_owned(),
            pod: format!("pod-{uid}"),
            interval: Duration::from_secs(60),
            grace: Duration::from_secs(60),
        }
    }

    fn first(claim: u32, replaces: Option<SystemTime>) -> Vec<Candidate> {
        vec![Candidate { uid: "first".to_owned(), claim, replaces, within: None }]
    }

    #[tokio::test]
    async fn a_claim_whose_creation_had_no_answer_belongs_to_this_pod() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::open(&settings(folder.path(), "own").place).unwrap();
        let claim = async |uid: &str| {
            let (settings, claims) = (settings(folder.path(), uid), OwnClaims::default());
            claim_one(&settings, &storage, first(0, None), &claims).await.unwrap().is_some()
        };
        assert!(claim("own").await);
        assert!(claim("own").await);
        assert!(!claim("other").await);
    }

    /// The storage may still carry out the request that had no answer.
    #[tokio::test]
    async fn a_claim_that_is_tried_again_is_given_back_although_another_worker_seems_to_have_it() {
        let (folder, own_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (own, other) = (settings(folder.path(), "own"), settings(folder.path(), "other"));
        let storage = Storage::open(&own.place).unwrap();
        assert!(claim_one(&other, &storage, first(0, None), &OwnClaims::default()).await.unwrap().is_some());
        let claims = OwnClaims::default();
        claims.begin(&own, own_folder.path()).unwrap();
        let tried = |claims: &OwnClaims| claims.0.borrow().as_ref().unwrap().uids.len();
        assert!(claim_one(&own, &storage, first(0, None), &claims).await.unwrap().is_none());
        assert_eq!(tried(&claims), 0, "another worker has it");
        assert!(claims.note("first").unwrap());
        assert!(claim_one(&own, &storage, first(0, None), &claims).await.unwrap().is_none());
        assert_eq!(tried(&claims), 1);
    }

    #[tokio::test]
    async fn a_claim_that_was_written_again_since_it_was_found_too_old_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (settings(folder.path(), "own"), settings(folder.path(), "other"));
        let storage = Storage::open(&own.place).unwrap();
        let (claims, now) = (OwnClaims::default(), SystemTime::now());
        let (_, held) = claim_one(&other, &storage, first(0, None), &claims).await.unwrap().unwrap();
        let written = claim_of(&own, &storage, "first", now).await.unwrap().unwrap().written;
        assert!(held.renew(&storage).await.unwrap());
        assert!(claim_one(&own, &storage, first(1, Some(written)), &claims).await.unwrap().is_none());
        let newest = claim_of(&own, &storage, "first", now).await.unwrap().unwrap();
        assert_eq!((&*newest.by, newest.number), ("other", 0));
        let replaced = claim_one(&own, &storage, first(1, Some(newest.written)), &claims).await.unwrap();
        assert!(replaced.is_some() && !held.renew(&storage).await.unwrap());
    }
}
