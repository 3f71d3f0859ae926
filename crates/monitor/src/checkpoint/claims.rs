//! Claims of states: only the pod that has the claim of a state restores it.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use api::monitor::ExitCode;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    BEATS, Claim, Settings,
    choice::{Candidate, Claimed, spread},
    newest::newest,
    numbered,
    storage::{Listing, Storage, of_own_folder},
};
use crate::{fault::Fault, replace};

/// Limit for the removal of a claim when the pod is deleted, because the storage may hang.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(2);

/// Creates the first of the claims that does not exist yet.
pub(super) async fn claim_one(
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
            claims.forget(&candidate.uid)?;
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
    pub(super) async fn holds(&self, storage: &Storage) -> Result<bool, Fault> {
        if !self.renew(storage).await? {
            return Ok(false);
        }
        let of_worker = self.settings.worker(&self.uid);
        let numbers = storage.list(&of_worker).await?.numbers();
        Ok(newest(storage, &of_worker, &numbers, SystemTime::now()).await?.is_some())
    }

    /// An earlier attempt had no answer in time, or an answer that was lost, and has created it.
    async fn is_there(&self, storage: &Storage) -> Result<bool, Fault> {
        let claim: Option<Claim> = storage.read(&self.key()).await?;
        Ok(claim.is_some_and(|claim| claim.by == self.settings.uid))
    }

    async fn is_newest(&self, storage: &Storage) -> Result<bool, Fault> {
        let newest = claim_of(&self.settings, storage, &self.uid, SystemTime::now()).await?;
        Ok(newest.is_some_and(|newest| newest.by == self.settings.uid && newest.number == self.number))
    }

    /// Another worker may claim the state again. After a request that failed, this pod may have earlier claims of its own.
    pub(super) async fn release(&self, storage: &Storage) -> Result<(), Fault> {
        let folder = self.settings.claims(&self.uid);
        let files = storage.list(&folder).await?.files;
        let mut names: Vec<String> = files.into_iter().map(|(name, _)| name).collect();
        // The oldest first: until the last one is removed, the newest one is this pod's.
        names.sort_unstable();
        for name in names {
            let key = format!("{folder}/{name}");
            let claim: Option<Claim> = storage.read(&key).await?;
            if claim.is_some_and(|claim| claim.by == self.settings.uid) {
                storage.delete(&key).await?;
            }
        }
        Ok(())
    }

    /// Renews the claim until `stop`.
    pub(super) async fn keep(&self, storage: &Storage, stop: &CancellationToken) {
        let pause = || sleep(self.settings.beat_interval() / BEATS);
        while stop.run_until_cancelled(pause()).await.is_some() {
            if let Err(fault) = self.renew(storage).await {
                // `take` checks at the end whether the claim is still the newest one.
                debug!("failed to renew the claim: {fault}");
            }
        }
    }
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

impl Tried {
    fn write(&self) -> Result<(), Fault> {
        let text = serde_json::to_vec(&self.uids).unwrap_or_default();
        replace(&self.file, &text).map_err(|error| of_own_folder(&self.file, &error))
    }
}

/// In the folder of the monitor.
const TRIED: &str = "claims.json";

impl OwnClaims {
    pub(super) fn begin(&self, settings: &Settings, own_folder: &Path) -> io::Result<()> {
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
    pub(super) fn note(&self, uid: &str) -> Result<bool, Fault> {
        let mut tried = self.0.borrow_mut();
        let Some(tried) = tried.as_mut() else { return Ok(false) };
        if !tried.uids.insert(uid.to_owned()) {
            return Ok(false);
        }
        tried.write().map(|()| true)
    }

    /// Whether this pod, or an earlier container of it, has tried to claim a state and not given it back.
    pub(super) fn may_hold_any(&self, settings: &Settings, own_folder: &Path) -> io::Result<bool> {
        if self.0.borrow().is_none() {
            self.begin(settings, own_folder)?;
        }
        Ok(self.0.borrow().as_ref().is_some_and(|tried| !tried.uids.is_empty()))
    }

    /// Nothing is to be given back: another worker has the claim, or the claim stays, as that of a damaged state, which other
    /// workers need not try.
    pub(super) fn forget(&self, uid: &str) -> Result<(), Fault> {
        let mut tried = self.0.borrow_mut();
        let Some(tried) = tried.as_mut() else { return Ok(()) };
        // The next container of the loader reads the file.
        if tried.uids.remove(uid) { tried.write() } else { Ok(()) }
    }

    pub(super) async fn release_all_but(&self, kept: Option<&str>, storage: &Storage) -> Result<(), Fault> {
        let tried = self.0.borrow().as_ref().map(|tried| (tried.settings.clone(), tried.uids.clone()));
        let Some((settings, uids)) = tried else { return Ok(()) };
        for uid in uids.into_iter().filter(|uid| Some(&**uid) != kept) {
            Held { settings: settings.clone(), uid: uid.clone(), number: 0 }.release(storage).await?;
            self.forget(&uid)?;
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

/// The claim with the largest number.
pub(crate) async fn claim_of(
    settings: &Settings,
    storage: &Storage,
    uid: &str,
    now: SystemTime,
) -> Result<Option<Claimed>, Fault> {
    let folder = settings.claims(uid);
    let Listing { files, odd, .. } = storage.list(&folder).await?;
    if let Some(name) = odd.iter().find(|name| name.parse::<u32>().is_ok()) {
        let message = format!("{}: {folder}/{name} is no file: remove it", storage.name());
        return Err(Fault::new(ExitCode::StoreUnreachable, message).of_entry());
    }
    let numbered =
        files.iter().filter_map(|(name, written)| Some((name.parse::<u32>().ok()?, name, written)));
    let Some((number, name, written)) = numbered.max_by_key(|(number, ..)| *number) else {
        return Ok(None);
    };
    let claim: Option<Claim> = storage.read(&format!("{folder}/{name}")).await?;
    let (by, pod) = claim.map(|claim| (claim.by, claim.pod)).unwrap_or_default();
    let age = now.duration_since(*written).unwrap_or_default();
    Ok(Some(Claimed { number, by, pod, written: *written, age }))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};

    use super::*;
    use crate::checkpoint::{MANIFEST, Manifest, Place};

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
        let next_container = OwnClaims::default();
        assert!(!next_container.may_hold_any(&own, own_folder.path()).unwrap());
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
        let file = folder.path().join(held.key());
        let old = FileTimes::new().set_modified(now - Duration::from_secs(600));
        File::options().write(true).open(file).unwrap().set_times(old).unwrap();
        let written = claim_of(&own, &storage, "first", now).await.unwrap().unwrap().written;
        assert!(held.renew(&storage).await.unwrap());
        assert!(claim_one(&own, &storage, first(1, Some(written)), &claims).await.unwrap().is_none());
        let newest = claim_of(&own, &storage, "first", now).await.unwrap().unwrap();
        assert_eq!((&*newest.by, newest.number), ("other", 0));
        let replaced = claim_one(&own, &storage, first(1, Some(newest.written)), &claims).await.unwrap();
        assert!(replaced.is_some() && !held.renew(&storage).await.unwrap());
    }

    #[tokio::test]
    async fn a_state_is_held_while_it_is_there_and_no_other_worker_has_claimed_it() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (settings(folder.path(), "own"), settings(folder.path(), "other"));
        let storage = Storage::open(&own.place).unwrap();
        let claims = OwnClaims::default();
        let (_, held) = claim_one(&own, &storage, first(0, None), &claims).await.unwrap().unwrap();
        assert!(!held.holds(&storage).await.unwrap(), "there is no checkpoint");
        let manifest = format!("{}/{}/{MANIFEST}", own.worker("first"), numbered(0));
        let text = serde_json::to_vec(&Manifest::default()).unwrap();
        storage.put(&manifest, text).await.unwrap();
        assert!(held.holds(&storage).await.unwrap());
        claim_one(&other, &storage, first(1, None), &claims).await.unwrap().unwrap();
        assert!(!held.holds(&storage).await.unwrap());
    }
}
