//! Passes the worker's log on: what it appends to a file, a JSON object in each line, comes out of the monitor with the names
//! of the pool as fields, so that a collector of logs needs no parser.
//!
//! The position is kept in a file of the pod, so that a monitor that is started again goes on. A file of which everything was
//! passed on is emptied once it is large.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::warn;

/// Between two looks at the file.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A longer line is cut.
const LONGEST_LINE: usize = 64 << 10;
/// Read in one look, so that a worker that floods its log delays nothing else.
const MOST_BYTES: usize = 4 << 20;
/// A file of this size is emptied once all of it was passed on.
const LARGE: u64 = 16 << 20;
const POSITION: &str = "log-position.json";

/// Where the next line begins.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    /// Of the file: another one is read from its begin.
    inode: u64,
    bytes: u64,
}

/// The log of one worker.
#[derive(Debug)]
pub(crate) struct Log {
    file: PathBuf,
    kept: PathBuf,
    position: Position,
    fields: Map<String, Value>,
    /// A line of which the end was not read yet is too long.
    is_cut: bool,
}

impl Log {
    /// `fields` are added to each line.
    pub(crate) fn of(file: &Path, own_folder: &Path, fields: Map<String, Value>) -> Self {
        let kept = own_folder.join(POSITION);
        let position = fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self { file: file.to_owned(), kept, position: position.unwrap_or_default(), fields, is_cut: false }
    }

    /// Passes on what is new. Only whole lines are; the rest comes with the next look.
    pub(crate) fn pass_on(&mut self, out: &mut impl Write) -> io::Result<()> {
        let mut file = match File::open(&self.file) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let known = file.metadata()?;
        if known.ino() != self.position.inode || known.len() < self.position.bytes {
            self.position = Position { inode: known.ino(), bytes: 0 };
            self.is_cut = false;
        }
        let before = self.position;
        let mut left = MOST_BYTES;
        file.seek(SeekFrom::Start(self.position.bytes))?;
        let mut buffer = Vec::new();
        while left > 0 {
            buffer.clear();
            let read = (&mut file).take(2 * LONGEST_LINE as u64).read_to_end(&mut buffer)?;
            let used = self.lines(&buffer, out)?;
            if used == 0 {
                break;
            }
            left = left.saturating_sub(used);
            self.position.bytes += used as u64;
            file.seek(SeekFrom::Start(self.position.bytes))?;
            if read < 2 * LONGEST_LINE {
                break;
            }
        }
        if self.position != before {
            out.flush()?;
            self.empty_if_large()?;
            self.keep();
        }
        Ok(())
    }

    /// Writes the whole lines of a text, and returns their bytes.
    fn lines(&mut self, text: &[u8], out: &mut impl Write) -> io::Result<usize> {
        let mut used = 0;
        while let Some(rest) = text.get(used..).filter(|rest| !rest.is_empty()) {
            match rest.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    // The end of a line whose begin was written.
                    if !std::mem::take(&mut self.is_cut) {
                        self.line(rest.get(..end).unwrap_or_default(), out)?;
                    }
                    used += end + 1;
                }
                None if rest.len() > LONGEST_LINE => {
                    if !self.is_cut {
                        self.line(rest, out)?;
                        self.is_cut = true;
                    }
                    used += rest.len();
                }
                None => break,
            }
        }
        Ok(used)
    }

    fn line(&self, line: &[u8], out: &mut impl Write) -> io::Result<()> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let is_long = line.len() > LONGEST_LINE;
        let whole = line.get(..LONGEST_LINE).unwrap_or(line);
        let mut object = match serde_json::from_slice::<Map<String, Value>>(whole) {
            Ok(object) if !is_long => object,
            Ok(_) | Err(_) => {
                let body = String::from_utf8_lossy(whole).into_owned();
                let mut object = Map::from_iter([("body".to_owned(), Value::String(body))]);
                if is_long {
                    object.insert("truncated".to_owned(), Value::Bool(true));
                }
                object
            }
        };
        object.extend(self.fields.clone());
        serde_json::to_writer(&mut *out, &object)?;
        out.write_all(b"\n")
    }

    /// The worker appends: after it, its next line is at the begin.
    fn empty_if_large(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.file)?;
        let size = file.metadata()?.len();
        if size >= LARGE && size == self.position.bytes {
            file.set_len(0)?;
            self.position.bytes = 0;
        }
        Ok(())
    }

    fn keep(&self) {
        let new = self.kept.with_extension("new");
        let text = serde_json::to_vec(&self.position).unwrap_or_default();
        if let Err(error) = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.kept)) {
            warn!(%error, "failed to keep the position in the worker's log");
        }
    }
}

/// What is added to each line, with the names of OpenTelemetry where it has one.
pub(crate) fn fields(namespace: &str, pool: &str, role: &str, pod: &str, uid: &str) -> Map<String, Value> {
    [
        ("service.name", pool),
        ("service.namespace", namespace),
        ("service.instance.id", uid),
        ("k8s.namespace.name", namespace),
        ("k8s.pod.name", pod),
        ("k8s.pod.uid", uid),
        ("agent.pool", pool),
        ("agent.role", role),
        ("agent.worker", pod),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), Value::String(value.to_owned())))
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    struct Scene {
        folder: tempfile::TempDir,
        log: Log,
    }

    impl Scene {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let log = log_in(folder.path());
            Self { folder, log }
        }

        fn append(&self, text: &str) {
            append(&self.folder.path().join("agent.jsonl"), text);
        }

        fn passed(&mut self) -> Vec<Value> {
            let mut out = Vec::new();
            self.log.pass_on(&mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }
    }

    fn log_in(folder: &Path) -> Log {
        let fields = Map::from_iter([("agent.pool".to_owned(), json!("coder"))]);
        Log::of(&folder.join("agent.jsonl"), folder, fields)
    }

    #[test]
    fn lines_are_passed_on_once_with_the_names_of_the_pool() {
        let mut scene = Scene::new();
        assert!(scene.passed().is_empty(), "there is no file yet");
        scene.append("{\"body\": \"one\", \"n\": 1}\nplain text\n\n{\"body\": \"ha");
        assert_eq!(
            scene.passed(),
            [
                json!({"body": "one", "n": 1, "agent.pool": "coder"}),
                json!({"body": "plain text", "agent.pool": "coder"})
            ]
        );
        scene.append("lf\"}\n");
        assert_eq!(scene.passed(), [json!({"body": "half", "agent.pool": "coder"})]);
        assert!(scene.passed().is_empty());
    }

    #[test]
    fn a_monitor_that_is_started_again_goes_on() {
        let mut scene = Scene::new();
        scene.append("one\n");
        assert_eq!(scene.passed().len(), 1);
        scene.log = log_in(scene.folder.path());
        scene.append("two\n");
        assert_eq!(scene.passed(), [json!({"body": "two", "agent.pool": "coder"})]);
    }

    #[test]
    fn a_file_that_was_replaced_or_emptied_is_read_from_its_begin() {
        let mut scene = Scene::new();
        scene.append("one\n");
        scene.passed();
        let path = scene.folder.path().join("agent.jsonl");
        fs::write(&path, "").unwrap();
        scene.append("a\n");
        assert_eq!(scene.passed().len(), 1);
        fs::rename(&path, scene.folder.path().join("agent.jsonl.1")).unwrap();
        scene.append("b\n");
        assert_eq!(scene.passed(), [json!({"body": "b", "agent.pool": "coder"})]);
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_one_is_whole() {
        let mut scene = Scene::new();
        scene.append(&"x".repeat(5 * LONGEST_LINE));
        let passed = scene.passed();
        assert_eq!(passed.len(), 1);
        assert_eq!(
            (passed[0]["truncated"].clone(), passed[0]["body"].as_str().unwrap().len()),
            (json!(true), LONGEST_LINE)
        );
        scene.append("xxx\nnext\n");
        assert_eq!(scene.passed(), [json!({"body": "next", "agent.pool": "coder"})]);
    }

    #[test]
    fn a_large_file_is_emptied_once_all_of_it_was_passed_on() {
        let mut scene = Scene::new();
        let line = format!("{}\n", "y".repeat(1_023));
        scene.append(&line.repeat((LARGE >> 10) as usize));
        let mut passed = 0;
        for _ in 0..8 {
            passed += scene.passed().len();
        }
        assert_eq!(passed as u64, LARGE >> 10);
        assert_eq!(fs::metadata(scene.folder.path().join("agent.jsonl")).unwrap().len(), 0);
        scene.append("next\n");
        assert_eq!(scene.passed().len(), 1);
    }
}
