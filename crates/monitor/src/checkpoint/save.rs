//! Saves the state of the worker of this pod: from time to time while it runs, and when it has ended.

use std::{
    fs, io,
    path::Path,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{SetOnce, mpsc, oneshot, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    BEATS, HEARTBEAT, Heartbeat, KEPT, MANIFEST, Manifest, RESTORED, Restored, SavedFile, Settings,
    choice::Claimed,
    claims::claim_of,
    newest::newest,
    numbered,
    state::{Found, StateFolder, sha256, within_bound},
    storage::{Storage, of_disk, of_manifest, of_own_folder},
    survey::{Heartbeats, count_unclaimed},
};
use crate::fault::Fault;
use api::monitor::{ExitCode, UPLOAD_SECONDS};

/// The result of the last save, as the monitor reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saved {
    /// When the last complete checkpoint was written, in seconds since 1970.
    pub(crate) last: Option<i64>,
    /// Why the state is not saved now.
    pub(crate) error: Option<String>,
    /// States of other workers that were not restored, until this worker has saved its own.
    pub(crate) damage: Option<String>,
    /// uid of the worker whose state was restored.
    pub(crate) restored: Option<String>,
    /// Saved states that no worker has claimed, if this worker has no state and has just looked for them.
    pub(crate) unclaimed: Option<u64>,
    /// Saved states without a claim, and when they were counted. Known only to a worker that started without a state because
    /// the storage could not be used, and has one by now.
    pub(crate) waiting: Option<(u64, Instant)>,
}

/// The monitor ends: the state of the worker is to be saved until then.
pub(crate) struct Final {
    pub(crate) until: Instant,
    /// The worker still runs, so probably only the monitor is restarted, and the saved state is not the last one.
    pub(crate) worker_runs: bool,
    pub(crate) done: oneshot::Sender<()>,
}

/// Whether the end of the pod was requested and announced.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// When the kubelet has requested it.
    requested: SetOnce<Instant>,
    /// The heartbeat announces the end, so a new worker may have claimed the last state in advance.
    announced: SetOnce<()>,
}

impl End {
    pub(crate) fn requested(&self) -> Option<Instant> {
        self.requested.get().copied()
    }

    /// Returns when the kubelet has requested the end.
    pub(crate) async fn until_requested(&self) {
        self.requested.wait().await;
    }

    /// Returns when the time for the worker is over, and the rest of `grace` is reserved for its last state.
    async fn overdue(&self, grace: Duration) {
        let requested = *self.requested.wait().await;
        sleep_until(requested + grace.saturating_sub(Duration::from_secs(UPLOAD_SECONDS.into()))).await;
    }
}

/// Saves the state of one worker.
pub(crate) struct Saver {
    settings: Settings,
    storage: Storage,
    state: StateFolder,
    restored: Restored,
    /// The number of the next checkpoint; `None`: the storage was not listed yet.
    next: Option<u64>,
    /// What the last checkpoint has.
    last: Option<(u64, Vec<Found>, Manifest)>,
    end: Arc<End>,
    /// The restored state, if any, belongs to this worker: it has saved a checkpoint of its own.
    owned: Arc<SetOnce<()>>,
    /// Whether the storage has no checkpoint of the workers before.
    is_predecessor_removed: bool,
    /// A checkpoint may be there that is not complete or not needed any more.
    has_leftovers: bool,
    status: watch::Sender<Saved>,
    survey: Survey,
}

/// When a worker without state searches for states that no worker has claimed.
#[derive(Debug)]
struct Survey {
    heartbeats: Heartbeats,
    due: Instant,
    /// Until the one after it. It grows while there is none, or while this worker has a state of its own: each survey takes
    /// some requests for every worker.
    pause: Duration,
    /// How many in a row have found none.
    found_none: u32,
}

/// In intervals.
const LONGEST_SURVEY_PAUSE: u32 = 60;
/// A worker that has started empty looks for no more states after so many surveys in a row without one. The heartbeats of all
/// workers are old after an outage, and the first survey takes none for lost.
const LAST_SURVEYS: u32 = 3;

/// Limit for requests that the kubelet waits for, because the storage may hang.
const ENDING_WITHIN: Duration = Duration::from_millis(1_500);
/// Limit for removals before an upload. On a volume, an operation that has begun continues after it.
const REMOVE_WITHIN: Duration = Duration::from_secs(2);
/// A worker that ends tries for so long to save its state, and to say which checkpoint is the final one. Its GPU is not kept
/// for longer: a new worker restores the last checkpoint once the heartbeats are missing.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);
/// Of a heartbeat that could not be written.
const BEAT_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// By a loader that finds that the claim before its own was written again.
const CLAIM_GIVEN_BACK_WITHIN: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

impl Saver {
    pub(crate) fn new(
        settings: Settings,
        state: StateFolder,
        own_folder: &Path,
        end: Arc<End>,
    ) -> Result<Self, Fault> {
        let storage = Storage::open(&settings.place)?;
        let restored = match fs::read(own_folder.join(RESTORED)) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Restored::default(),
            Err(error) => return Err(of_own_folder(own_folder, &error)),
        };
        let damage = damage(&restored);
        let status =
            watch::Sender::new(Saved { restored: restored.from.clone(), damage, ..Saved::default() });
        let pause = settings.interval;
        let survey =
            Survey { heartbeats: Heartbeats::default(), due: Instant::now() + pause, pause, found_none: 0 };
        let is_new = restored.from.is_none();
        let owned = Arc::new(SetOnce::new_with(is_new.then_some(())));
        Ok(Self {
            settings,
            storage,
            state,
            restored,
            next: None,
            last: None,
            end,
            owned,
            is_predecessor_removed: is_new,
            has_leftovers: false,
            status,
            survey,
        })
    }

    pub(crate) fn status(&self) -> watch::Receiver<Saved> {
        self.status.subscribe()
    }

    /// Announces the end of the pod, so that a new worker waits for the last state.
    pub(crate) fn announcer(&self) -> impl Fn() -> futures::future::BoxFuture<'static, ()> + use<> {
        let (heartbeats, settings) = (self.own_heartbeats(), self.settings.clone());
        move || {
            let (heartbeats, settings) = (heartbeats.clone(), settings.clone());
            Box::pin(async move {
                let OwnHeartbeats { storage, end, .. } = &heartbeats;
                // The kubelet can repeat the request; the first one counts.
                let _ = end.requested.set(Instant::now());
                let announced = timeout(ENDING_WITHIN, async {
                    // A claim that is there already was not made in advance.
                    if claim_of(&settings, storage, &settings.uid, SystemTime::now()).await?.is_none() {
                        // Before the write: the storage may have it also without an answer in time, and each heartbeat
                        // repeats it.
                        let _ = end.announced.set(());
                        heartbeats.put(true).await?;
                    }
                    Ok::<_, Fault>(())
                });
                match announced.await {
                    Ok(Ok(())) => {}
                    Ok(Err(fault)) => warn!("failed to announce the end of the pod: {fault}"),
                    Err(_) => warn!("failed to announce the end of the pod: no answer in time"),
                }
            })
        }
    }

    /// Saves until the worker has ended.
    pub(crate) async fn run(mut self, mut ended: mpsc::Receiver<Final>) {
        let stop = CancellationToken::new();
        let mut beats = pin!(self.beats(stop.clone()));
        let last = tokio::select! {
            () = &mut beats => None,
            last = self.save(&mut ended) => last,
        };
        let Some(Final { until, worker_runs, done }) = last else { return };
        stop.cancel();
        // A heartbeat that is being written must not arrive after its removal.
        let _ = timeout(ENDING_WITHIN, beats).await;
        let left = until.saturating_duration_since(Instant::now()).clamp(ENDING_WITHIN, CLOSED_WITHIN);
        let left_behind = timeout(left, async {
            if worker_runs && !self.has_no_state() {
                // The hook of this container has announced the end of the pod.
                return self.own_heartbeats().put(false).await;
            }
            self.leave().await
        });
        // New workers wait for this worker only until its heartbeat is too old.
        if !matches!(left_behind.await, Ok(Ok(()))) {
            warn!("failed to write or remove the heartbeat");
        }
        // Fails only if the receiver was dropped.
        let _ = done.send(());
    }

    /// Heartbeats until `stop`, also while a large state is uploaded.
    fn beats(&self, stop: CancellationToken) -> impl Future<Output = ()> + use<> {
        let (storage, heartbeats) = (self.storage.clone(), self.own_heartbeats());
        let (held, owned) = (self.restored.held(&self.settings), Arc::clone(&self.owned));
        let mut ticks = interval(self.settings.beat_interval() / BEATS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        async move {
            let mut has_failed = false;
            loop {
                let due = async {
                    tokio::select! {
                        _ = ticks.tick() => {}
                        // A loader waits for little more than one heartbeat before it takes this worker for lost.
                        () = sleep(BEAT_AGAIN_AFTER), if has_failed => {}
                    }
                };
                if stop.run_until_cancelled(due).await.is_none() {
                    break;
                }
                has_failed = false;
                if let Err(fault) = heartbeats.write().await {
                    // A checkpoint fails for the same reason, and reports it.
                    debug!("failed to write the heartbeat: {fault}");
                    has_failed = true;
                }
                if let (Some(held), None) = (&held, owned.get())
                    && let Err(fault) = held.renew(&storage).await
                {
                    debug!("failed to renew the claim: {fault}");
                    has_failed = true;
                }
            }
        }
    }

    fn own_heartbeats(&self) -> OwnHeartbeats {
        OwnHeartbeats {
            storage: self.storage.clone(),
            key: self.key(HEARTBEAT),
            uid: self.settings.uid.clone(),
            end: Arc::clone(&self.end),
            heartbeat: Heartbeat {
                pod: self.settings.pod.clone(),
                interval_seconds: self.settings.beat_interval().as_secs().max(1),
                grace_seconds: self.settings.grace.as_secs(),
                ..Heartbeat::default()
            },
        }
    }

    /// Until the last state is saved, or the time is over. A checkpoint that is interrupted by the end has no manifest.
    async fn save(&mut self, ended: &mut mpsc::Receiver<Final>) -> Option<Final> {
        let mut ticks = interval(self.settings.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (end, grace) = (Arc::clone(&self.end), self.settings.grace);
        let mut is_saved_late = false;
        let last = loop {
            tokio::select! {
                biased;
                last = ended.recv() => break last?,
                () = async {
                    tokio::select! {
                        _ = ticks.tick() => {}
                        // The worker may write until it is killed, and then no time is left for an upload.
                        () = end.overdue(grace), if !is_saved_late => is_saved_late = true,
                    }
                    let is_saved = self.periodic().await;
                    self.look_for_states(is_saved).await;
                } => {}
            }
        };
        self.last_one(last.until, !last.worker_runs).await;
        Some(last)
    }

    /// Of a worker that has ended there is no heartbeat, and nothing at all if it has no state.
    async fn leave(&self) -> Result<(), Fault> {
        if self.has_no_state() {
            return self.storage.delete_all(&self.settings.worker(&self.settings.uid)).await;
        }
        self.storage.delete(&self.key(HEARTBEAT)).await?;
        self.remove_partial().await
    }

    fn has_no_state(&self) -> bool {
        match &self.last {
            // Without a checkpoint of this worker, that of its predecessor would be restored again.
            Some((_, files, _)) => files.is_empty() && self.is_predecessor_removed,
            None => self.next == Some(0),
        }
    }

    /// Whether the state is saved, or there is none.
    async fn periodic(&mut self) -> bool {
        let saved = self.checkpoint(false).await;
        let is_saved = saved.is_ok();
        self.report(saved);
        if is_saved && let Err(fault) = self.clear_up().await {
            // The objects take space until the next attempt removes them.
            warn!("failed to remove what is not needed any more: {fault}");
        }
        is_saved
    }

    /// Counts the states that no worker has claimed, if this worker has none, or has started without one because the storage
    /// could not be used. The controller decides whether to replace it.
    async fn look_for_states(&mut self, is_saved: bool) {
        let has_none = self.restored.from.is_none() && self.last.is_none() && self.next == Some(0);
        // Its own state and an older one may be of the same sessions. Those of workers that ended later are no news.
        let may_shadow = self.restored.started_empty && self.survey.found_none < LAST_SURVEYS;
        let is_due = is_saved && (has_none || may_shadow) && Instant::now() >= self.survey.due;
        let mut found = None;
        if !is_saved {
            // The storage was away, and what was not seen meanwhile was not watched.
            self.survey.heartbeats = Heartbeats::default();
        }
        if is_due {
            let Self { settings, storage, survey, restored, .. } = self;
            let counted = count_unclaimed(settings, storage, &mut survey.heartbeats, &restored.damaged);
            match timeout(settings.interval, counted).await {
                Ok(Ok(counted)) => found = counted,
                Ok(Err(fault)) => debug!("failed to look for states: {fault}"),
                Err(_) => debug!("failed to look for states in time"),
            }
            let longest = settings.interval * LONGEST_SURVEY_PAUSE;
            survey.pause = match found {
                Some(states) if states == 0 || !has_none => (survey.pause * 2).min(longest),
                Some(_) => settings.interval,
                None => survey.pause,
            };
            survey.found_none = match found {
                Some(0) => survey.found_none.saturating_add(1),
                Some(_) => 0,
                None => survey.found_none,
            };
            // The ticks of the interval are not exact.
            survey.due = Instant::now() + survey.pause - settings.interval / 2;
        }
        self.status.send_if_modified(|status| {
            let before = (status.unclaimed, status.waiting);
            status.unclaimed = found.filter(|_| has_none);
            if let Some(states) = found.filter(|_| !has_none) {
                let known = status.waiting.map_or(0, |(states, _)| states);
                if states > known {
                    warn!(states, "saved states wait for a new worker: this one has started without them");
                }
                status.waiting = (states > 0).then(|| (states, Instant::now()));
            }
            before != (status.unclaimed, status.waiting)
        });
    }

    /// Tries until it is saved, or the time is over.
    async fn last_one(&mut self, until: Instant, is_final: bool) {
        if Instant::now() >= until {
            let message = "the worker ended too late for its last state to be saved: let it exit sooner after \
                           SIGTERM, or raise spec.checkpoint.graceSeconds";
            return self.report(Err(Fault::new(ExitCode::StoreUnreachable, message.to_owned())));
        }
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let saved = match timeout(left, self.checkpoint(is_final)).await {
                Ok(saved) => saved,
                Err(_) => Err(self.too_late()),
            };
            // Without its bucket the last checkpoint is gone, too.
            if let Err(fault) = &saved
                && fault.code != ExitCode::BucketNotFound
                && began.elapsed() > CLOSED_WITHIN.min(until.saturating_duration_since(began) / 2)
                && self.is_all_saved().await
            {
                info!("{fault}; there is nothing of this worker that is not saved");
                return self.report(Ok(None));
            }
            let is_saved = saved.is_ok();
            // A claim of another worker may have been made in advance and given back.
            let is_hopeless =
                saved.as_ref().is_err_and(|fault| fault.is_lasting) && began.elapsed() > CLOSED_WITHIN;
            self.report(saved);
            if is_saved {
                break;
            }
            if is_hopeless || Instant::now() + pause >= until {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let left = until.saturating_duration_since(Instant::now()).min(REMOVE_WITHIN);
        if !matches!(timeout(left, self.clear_up()).await, Ok(Ok(()))) {
            warn!("failed to remove what is not needed any more");
        }
    }

    /// Whether the worker has no state, or its last checkpoint has these very files.
    async fn is_all_saved(&self) -> bool {
        let Ok(files) = self.state.files().await else { return false };
        match &self.last {
            Some((_, known, _)) => *known == files,
            None => files.is_empty() && self.next == Some(0) && self.restored.from.is_none(),
        }
    }

    fn too_late(&self) -> Fault {
        let message = format!("{} did not accept the state within the grace period", self.storage.name());
        Fault::new(ExitCode::StoreUnreachable, message)
    }

    fn report(&self, saved: Result<Option<i64>, Fault>) {
        if let Err(fault) = &saved
            && self.status.borrow().error.as_ref() != Some(&fault.message)
        {
            warn!("the state is not saved: {}", fault.message);
        }
        self.status.send_modify(|status| match saved {
            Ok(last) => {
                status.last = last.or(status.last);
                status.error = None;
                status.damage = status.damage.take().filter(|_| status.last.is_none());
            }
            Err(fault) => status.error = Some(fault.message),
        });
    }

    /// `None`: there is nothing to save.
    async fn checkpoint(&mut self, is_final: bool) -> Result<Option<i64>, Fault> {
        let files = self.state.files().await.map_err(|error| of_disk(&error))?;
        let next = self.next().await?;
        self.check_ownership().await?;
        let is_same = self.last.as_ref().is_some_and(|(_, known, _)| *known == files);
        // An empty folder is saved, too, if it was not empty before: what the worker has removed must not come back.
        let was_empty = next == 0 && self.restored.from.is_none();
        if files.is_empty() && was_empty || is_same && !is_final {
            return Ok(self.last.as_ref().map(|(_, _, manifest)| manifest.time));
        }
        let time = seconds(SystemTime::now());
        let (number, manifest) = match &self.last {
            // The files are the same; only the flag and the time change.
            Some((number, _, known)) if is_same => (*number, Manifest { is_final, time, ..known.clone() }),
            Some(_) | None => {
                // A slow or failed removal must not prevent the save.
                let _ = timeout(REMOVE_WITHIN, self.remove_partial()).await;
                self.next = Some(next + 1);
                self.has_leftovers = true;
                let saved = self.upload(next, &files).await?;
                // The upload may have taken longer than a worker may be silent.
                self.check_ownership().await?;
                (next, Manifest { files: saved, is_final, time, continues: self.continued() })
            }
        };
        let text = of_manifest(&manifest)?;
        self.storage.put(&format!("{}/{MANIFEST}", self.key(&numbered(number))), text).await?;
        self.last = Some((number, files, manifest));
        let _ = self.owned.set(());
        info!(number, is_final, "the state is saved");
        Ok(Some(time))
    }

    /// The workers before, whose checkpoints may still exist, the oldest first.
    fn continued(&self) -> Vec<String> {
        if self.is_predecessor_removed {
            return Vec::new();
        }
        let before = self.restored.continues.iter().filter(|uid| is_name(uid));
        before.chain(&self.restored.from).cloned().collect()
    }

    async fn upload(&self, number: u64, files: &[Found]) -> Result<Vec<SavedFile>, Fault> {
        let folder = self.key(&numbered(number));
        let (mut saved, mut bytes) = (Vec::new(), 0);
        for found in files {
            let opened = self.state.open(&found.path).map_err(|error| of_disk(&error))?;
            let Some(file) = opened else { continue };
            // It may be another file than the one that was found.
            let size = file.metadata().map_err(|error| of_disk(&error))?.len();
            bytes = within_bound(bytes, size).map_err(|error| of_disk(&error))?;
            let (file, size, sha256) = sha256(file, size).await.map_err(|error| of_disk(&error))?;
            self.storage.put_file(&format!("{folder}/{}", saved.len()), file, size).await?;
            saved.push(SavedFile { path: found.path.clone(), size, sha256 });
        }
        Ok(saved)
    }

    /// After what the storage has of this pod: an earlier container of the monitor may have saved.
    async fn next(&mut self) -> Result<u64, Fault> {
        if let Some(next) = self.next {
            return Ok(next);
        }
        // A worker with a checkpoint and without a heartbeat counts as ended.
        self.own_heartbeats().write().await?;
        let numbers = self.numbers().await?;
        let own = self.settings.worker(&self.settings.uid);
        if newest(&self.storage, &own, &numbers, SystemTime::now()).await?.is_some() {
            let _ = self.owned.set(());
        }
        self.has_leftovers = !numbers.is_empty();
        let next = numbers.last().map_or(0, |largest| largest.saturating_add(1));
        self.next = Some(next);
        Ok(next)
    }

    /// Of the checkpoints of this worker, in their order.
    async fn numbers(&self) -> Result<Vec<u64>, Fault> {
        Ok(self.storage.list(&self.settings.worker(&self.settings.uid)).await?.numbers())
    }

    async fn is_complete(&self, number: u64) -> Result<bool, Fault> {
        self.storage.has(&format!("{}/{MANIFEST}", self.key(&numbered(number)))).await
    }

    /// What failed attempts have left, so that they do not fill the storage.
    async fn remove_partial(&self) -> Result<(), Fault> {
        if !self.has_leftovers {
            return Ok(());
        }
        for number in self.numbers().await? {
            if !self.is_complete(number).await? {
                self.storage.delete_all(&self.key(&numbered(number))).await?;
            }
        }
        Ok(())
    }

    /// Fails if another worker has claimed the state of this one, which counts as lost after a long loss of the
    /// storage.
    async fn check_ownership(&mut self) -> Result<(), Fault> {
        // A claim in advance is given back if this pod does not end after all.
        match self.other_owner().await? {
            None => Ok(()),
            Some(Claimed { pod, by, .. }) => {
                let message = format!(
                    "the state of this worker was restored by the worker of pod {pod} (uid {by}), because this one was taken for \
                     lost; it is not saved any more: delete this pod"
                );
                Err(Fault::lasting(ExitCode::StoreUnreachable, message))
            }
        }
    }

    async fn other_owner(&self) -> Result<Option<Claimed>, Fault> {
        let now = SystemTime::now();
        let (settings, storage) = (&self.settings, &self.storage);
        if let (Some(held), None) = (self.restored.held(settings), self.owned.get()) {
            // Written again before each checkpoint, so that no loader finds it too old while the first one is saved. One that
            // did so just before gives its own claim back.
            if held.renew(storage).await? {
                return Ok(None);
            }
            sleep(CLAIM_GIVEN_BACK_WITHIN).await;
            if held.renew(storage).await? {
                return Ok(None);
            }
            // A worker that has taken the state over and saved it removes the claims.
            let unknown = || Claimed {
                number: 0,
                by: "unknown".to_owned(),
                pod: "unknown".to_owned(),
                written: now,
                age: Duration::ZERO,
            };
            let newest = claim_of(settings, storage, &held.uid, now).await?.unwrap_or_else(unknown);
            return Ok(Some(newest));
        }
        let Some(claim) = claim_of(settings, storage, &settings.uid, now).await? else { return Ok(None) };
        if self.end.announced.get().is_none() {
            return Ok(Some(claim));
        }
        if !is_name(&claim.by) {
            // Its loader was killed before it had written the text.
            return Ok(None);
        }
        // It was claimed in advance: the new worker waits for this state, unless it has saved one of its own.
        let by = settings.worker(&claim.by);
        let numbers = storage.list(&by).await?.numbers();
        Ok(newest(storage, &by, &numbers, now).await?.map(|_| claim))
    }

    /// After a checkpoint: removes older ones, and all that the storage has of the workers before. The oldest goes first:
    /// without the claimer of a state, the state would be restored again.
    async fn clear_up(&mut self) -> Result<(), Fault> {
        if self.last.is_none() {
            return Ok(());
        }
        if self.has_leftovers {
            self.remove_partial().await?;
            for old in self.numbers().await?.iter().rev().skip(KEPT) {
                self.storage.delete_all(&self.key(&numbered(*old))).await?;
            }
            self.has_leftovers = false;
        }
        for before in self.continued() {
            self.storage.delete_all(&self.settings.worker(&before)).await?;
        }
        if let (Some(from), false) = (&self.restored.from, self.is_predecessor_removed) {
            // A worker that comes back finds the claim, and does not save.
            if !self.restored.was_lost {
                self.storage.delete_all(&self.settings.claims(from)).await?;
            }
            self.is_predecessor_removed = true;
        }
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.settings.worker(&self.settings.uid))
    }
}

/// The heartbeats of the worker of this pod.
#[derive(Clone)]
struct OwnHeartbeats {
    storage: Storage,
    key: String,
    uid: String,
    end: Arc<End>,
    heartbeat: Heartbeat,
}

impl OwnHeartbeats {
    async fn write(&self) -> Result<(), Fault> {
        let is_ending = || self.end.announced.get().is_some();
        if !is_ending() {
            self.put(false).await?;
            if !is_ending() {
                return Ok(());
            }
            // It may have replaced the announcement.
        }
        self.put(true).await
    }

    /// With the keys that the request has: until the monitor has changed ones, the last heartbeat says so.
    async fn put(&self, ending: bool) -> Result<(), Fault> {
        let keys = self.storage.keys(&self.uid).await;
        let heartbeat = Heartbeat { ending, keys, ..self.heartbeat.clone() };
        self.storage.put(&self.key, serde_json::to_vec(&heartbeat).unwrap_or_default()).await
    }
}

/// What the loader could not restore.
fn damage(restored: &Restored) -> Option<String> {
    let uid = restored.damaged.first()?;
    Some(match restored.damaged.len() {
        1 => format!(
            "1 saved state differs from its manifest and was not restored; it is of the worker with uid {uid}"
        ),
        count => format!(
            "{count} saved states differ from their manifests and were not restored; the first is of the worker with \
             uid {uid}"
        ),
    })
}

/// A manifest is not trusted: what it names is one folder.
fn is_name(uid: &str) -> bool {
    !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
