//! Copies of a session at other workers: comparing them, giving one up, giving one away and taking one over.

use std::time::Duration;

use serde_json::json;
use tokio::{task::spawn_blocking, time::Instant};

use super::{Refusal, Shared, Worker, files::MOST_SESSIONS, lock, queue::Ticket};
use crate::session::{Name, Session, Standing};

impl Worker {
    /// Whether siblings were asked within this time for newer copies of a session. `None`: the session is not held.
    pub(crate) fn was_compared(&self, session: &Name, within: Duration) -> Option<bool> {
        let held = self.0.held();
        let known = held.known.get(session)?;
        Some(known.compared.is_some_and(|at| at.elapsed() < within))
    }

    pub(crate) fn compared(&self, session: &Name) {
        if let Some(known) = self.0.held().known.get_mut(session) {
            known.compared = Some(Instant::now());
        }
    }

    /// Whether this task has not ended here. It is answered here, even if another worker has a newer copy of its session.
    pub(crate) fn has_task(&self, session: &Name, id: &Name) -> bool {
        let ticket = Ticket { session: session.clone(), id: id.clone() };
        self.0.held().progress.contains_key(&ticket)
    }

    /// Gives a session up, because another worker has a newer copy than this one. A session with tasks stays until they are
    /// done.
    pub(crate) async fn set_aside(&self, session: &Name, copy: Standing) -> bool {
        let (shared, session) = (self.0.clone(), session.clone());
        let is_aside = spawn_blocking(move || shared.set_aside(&session, copy)).await;
        is_aside.unwrap_or(false)
    }

    /// The sessions that are held, those with tasks first. `are_idle`: only those without tasks.
    pub(crate) async fn sessions(&self, are_idle: bool) -> Vec<Name> {
        let shared = self.0.clone();
        spawn_blocking(move || shared.sessions(are_idle)).await.unwrap_or_default()
    }

    /// A session as another worker takes it over. `None`: it cannot be read, or is not held any more.
    pub(crate) async fn copy(&self, session: &Name) -> Option<Vec<u8>> {
        let (shared, session) = (self.0.clone(), session.clone());
        spawn_blocking(move || shared.copy(&session)).await.ok().flatten()
    }

    /// Another worker has taken the session over. Its file is kept, but it is in no checkpoint.
    pub(crate) async fn given(&self, session: &Name) {
        let (shared, session) = (self.0.clone(), session.clone());
        let _ = spawn_blocking(move || shared.given(&session)).await;
    }

    /// Takes a session over. `false`: this worker has a copy that is as new.
    pub(crate) async fn take_over(&self, session: Session) -> Result<bool, Refusal> {
        let shared = self.0.clone();
        let taken = spawn_blocking(move || shared.take_over(session)).await;
        taken.unwrap_or(Err(Refusal::NotSaved))
    }
}

impl Shared {
    fn set_aside(&self, name: &Name, copy: Standing) -> bool {
        let _disk = lock(&self.disk);
        {
            let held = self.held();
            // A newer one may have been taken over meanwhile.
            let is_it = held.known.get(name).is_some_and(|known| known.standing == copy);
            if held.live.contains_key(name) || !is_it {
                return false;
            }
        }
        let moved = self.store.set_aside(name);
        let attributes =
            json!({"session": name.as_str(), "error": moved.as_ref().map_err(ToString::to_string).err()});
        self.log.warn("a session is set aside: another worker has a newer copy", &attributes);
        if moved.is_ok() {
            self.held().known.remove(name);
        }
        moved.is_ok()
    }

    fn sessions(&self, are_idle: bool) -> Vec<Name> {
        // One that is just being taken over is among them.
        let _disk = lock(&self.disk);
        let held = self.held();
        let (live, idle): (Vec<&Name>, Vec<&Name>) =
            held.known.keys().partition(|name| held.live.contains_key(*name));
        live.into_iter().filter(|_| !are_idle).chain(idle).cloned().collect()
    }

    fn copy(&self, name: &Name) -> Option<Vec<u8>> {
        let _disk = lock(&self.disk);
        serde_json::to_vec(&self.own(name)?).ok()
    }

    /// The caller has the disk.
    fn own(&self, name: &Name) -> Option<Session> {
        let live = self.held().live.get(name).cloned();
        live.or_else(|| self.store.read(name).ok().flatten())
    }

    fn given(&self, name: &Name) {
        let _disk = lock(&self.disk);
        {
            let mut held = self.held();
            held.known.remove(name);
            held.live.remove(name);
            held.unsaved.remove(name);
        }
        if let Err(error) = self.store.set_aside(name) {
            // The next worker with this state has an equal copy, and one of them is set aside.
            let attributes = json!({"session": name.as_str(), "error": error.to_string()});
            self.log.warn("the file of a session that was handed over cannot be set aside", &attributes);
        }
    }

    fn take_over(&self, session: Session) -> Result<bool, Refusal> {
        let _disk = lock(&self.disk);
        let name = session.name.clone();
        let (known, is_live, is_full) = {
            let held = self.held();
            if held.is_ending {
                return Err(Refusal::Ending);
            }
            let known = held.known.get(&name).map(|known| known.standing);
            (known, held.live.contains_key(&name), held.known.len() >= MOST_SESSIONS)
        };
        if known >= Some(session.standing()) {
            // The sibling gives its copy up, so its tasks must be here.
            let own = self.own(&name).ok_or(Refusal::NotTaken)?;
            let has_all = session.waiting().all(|task| own.place(&task.id).is_some());
            return if has_all { Ok(false) } else { Err(Refusal::NotTaken) };
        }
        // Nothing of a sibling is worth the loss of a session that is held here.
        if is_live || (known.is_none() && is_full) {
            return Err(Refusal::NotTaken);
        }
        let is_known = known.is_some();
        let older = if is_known { self.store.copy_aside(&name) } else { Ok(()) };
        let text = serde_json::to_vec(&session).map_err(std::io::Error::from);
        let written = older.and(text).and_then(|text| self.store.write(&name, &text));
        if let Err(error) = written {
            let attributes = json!({"session": name.as_str(), "error": error.to_string()});
            self.log.warn("a session cannot be taken over", &attributes);
            return Err(Refusal::NotSaved);
        }
        self.held().restore(session);
        self.arrived.notify_one();
        Ok(true)
    }
}
