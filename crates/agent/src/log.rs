//! The log of the contract: a JSON object in each line of AGENT_LOG_FILE, or of stderr without it.
//!
//! No line has the text of a task, of an answer or of a key. Names and errors are bounded where they are made, so each
//! line is far below the 64 KiB of the contract.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{Mutex, PoisonError},
};

use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct Log {
    /// `None`: stderr.
    file: Option<Mutex<File>>,
}

impl Log {
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        Ok(Self { file: file.map(Mutex::new) })
    }

    pub(crate) fn info(&self, body: &str, attributes: &Value) {
        self.write("INFO", body, attributes);
    }

    pub(crate) fn warn(&self, body: &str, attributes: &Value) {
        self.write("WARN", body, attributes);
    }

    fn write(&self, severity: &str, body: &str, attributes: &Value) {
        let line = json!({"severityText": severity, "body": body, "attributes": attributes});
        // One write for each line: the monitor may read at any moment.
        let line = format!("{line}\n");
        // A disk that is full must not end tasks.
        let _ = match &self.file {
            Some(file) => file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_are_json_and_are_appended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.jsonl");
        fs::write(&path, "{}\n").unwrap();
        Log::open(Some(&path)).unwrap().info("task done", &json!({"session": "s"}));
        let text = fs::read_to_string(&path).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(
            last,
            json!({"severityText": "INFO", "body": "task done", "attributes": {"session": "s"}})
        );
        assert_eq!(text.lines().count(), 2);
    }
}
