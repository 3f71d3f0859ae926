//! The files of a worker's sessions. Everything here may wait for the disk, so it runs on threads that may wait.

use std::{io, sync::MutexGuard};

use serde_json::json;

use super::{
    Refusal, Shared,
    held::{Held, Known},
    lock, now,
};
use crate::session::{Name, Session};

/// Each is a file, and files of a checkpoint are limited to 10,000 and 10 GiB.
pub(super) const MOST_SESSIONS: usize = 5_000;

impl Shared {
    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    pub(super) fn read(&self, name: &Name) -> Result<(), Refusal> {
        let _disk = lock(&self.disk);
        {
            let mut held = self.held();
            if held.live.contains_key(name) {
                return Ok(());
            }
            // A new session is known once it is saved.
            if !held.known.contains_key(name) {
                held.live.insert(name.clone(), Session::new(name.clone(), now()));
                return Ok(());
            }
        }
        match self.store.read(name) {
            Ok(Some(session)) => {
                self.held().live.insert(name.clone(), session);
                Ok(())
            }
            Ok(None) => Err(self.unreadable(name, "it does not exist any more")),
            Err(error) => Err(self.unreadable(name, &error.to_string())),
        }
    }

    pub(super) fn unreadable(&self, name: &Name, why: &str) -> Refusal {
        let attributes = json!({"session": name.as_str(), "error": text::cut(why.to_owned(), 300)});
        self.log.warn("the file of a session cannot be read", &attributes);
        Refusal::NotSaved
    }

    pub(super) fn save(&self, name: &Name) -> io::Result<()> {
        let _disk = lock(&self.disk);
        let (standing, text, change) = {
            let held = self.held();
            // A session that has left the memory has everything in its file.
            let Some(session) = held.live.get(name) else { return Ok(()) };
            (session.standing(), serde_json::to_vec(session), held.unsaved.get(name).copied())
        };
        text.map_err(io::Error::from).and_then(|text| self.store.write(name, &text))?;
        let mut held = self.held();
        // A change that came while the file was written is still to be saved.
        if held.unsaved.get(name).copied() == change {
            held.unsaved.remove(name);
        }
        let compared = held.known.get(name).and_then(|known| known.compared);
        held.known.insert(name.clone(), Known { standing, compared });
        self.drop_oldest(&mut held);
        Ok(())
    }

    /// A worker that never forgets would some day be too large for a checkpoint.
    fn drop_oldest(&self, held: &mut Held) {
        while held.known.len() > MOST_SESSIONS {
            let idle = held.known.iter().filter(|(name, _)| !held.live.contains_key(*name));
            let oldest = idle.min_by_key(|(_, known)| known.standing.updated).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { return };
            held.known.remove(&oldest);
            let removed = self.store.remove(&oldest).map_err(|error| error.to_string()).err();
            let attributes = json!({"session": oldest.as_str(), "most": MOST_SESSIONS, "error": removed});
            self.log.warn("the session that was not used for longest is removed", &attributes);
        }
    }
}
