//! What a worker holds in memory, and its file.

use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    path::Path,
};

use serde::{Deserialize, Serialize};

const FILE: &str = "sessions.json";
/// The monitor saves no file whose name begins with a dot.
const NEW: &str = ".sessions.new";

/// Text to be added to a session, after so many milliseconds of work.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) session: String,
    pub(crate) text: String,
    pub(crate) millis: u64,
}

/// Sessions, and tasks that wait.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    pub(crate) sessions: BTreeMap<String, Vec<String>>,
    pub(crate) waiting: VecDeque<Task>,
    /// Grows with time; see `AGENT_COUNTS_EVERY`.
    #[serde(default)]
    pub(crate) count: u64,
}

impl Sessions {
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        match fs::read(folder.join(FILE)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Under another name first, so that the file is always whole.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let new = folder.join(NEW);
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(&new, folder.join(FILE))
    }

    pub(crate) fn done(&mut self, task: Task) {
        self.sessions.entry(task.session).or_default().push(task.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Sessions::read(folder.path()).unwrap(), Sessions::default());
        let task = Task { session: "a".into(), text: "one".into(), millis: 5 };
        let mut sessions = Sessions { waiting: [task.clone()].into(), ..Sessions::default() };
        sessions.done(task);
        sessions.write(folder.path()).unwrap();
        assert_eq!(Sessions::read(folder.path()).unwrap(), sessions);
    }
}
