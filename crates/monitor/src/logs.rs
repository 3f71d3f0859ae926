//! Copies the worker's log to stdout. Each line that the worker appends to a file is written as a JSON object with the
//! names of the pool as fields, so that a log collector needs no parser.
//!
//! The position is stored in a file of the pod, so that a restarted monitor continues there. Once the file takes many
//! blocks, those of copied lines are freed; the length of the file does not change, so the worker can append at the
//! same time. The worker controls the folder of its log: the monitor follows no link in it and reads only a regular
//! file.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use directory::Directory;
use rustix::{
    fs::{FallocateFlags, FileType, OFlags, fallocate, fstat},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Between two passes.
const READ_EVERY: Duration = Duration::from_millis(500);
/// A longer line is cut.
const LONGEST_LINE: usize = 64 << 10;
/// Read in one pass, so that a worker that floods its log delays nothing else.
const MOST_BYTES: usize = 4 << 20;
/// A file that takes so many bytes of the volume is emptied up to the next line.
const LARGE: u64 = 16 << 20;
/// Of `st_blocks`.
const BLOCK: u64 = 512;
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
    /// Why the last pass failed.
    error: Option<String>,
}

/// Copies the log to stdout until `stop`, and then its last lines. Writes to stdout block while the container runtime does
/// not read, so they have a thread of their own: heartbeats and checkpoints must not wait for them.
pub(crate) async fn pass_on(mut log: Log, stop: CancellationToken) {
    let mut ticks = interval(READ_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let is_last = stop.run_until_cancelled(ticks.tick()).await.is_none();
        let before = log.position;
        let pass = spawn_blocking(move || {
            log.pass_on_to_stdout();
            log
        });
        match pass.await {
            Ok(passed) if is_last && passed.position == before => return,
            Ok(passed) => log = passed,
            Err(error) => return warn!(%error, "the worker's log is not passed on any more"),
        }
    }
}

impl Log {
    /// `fields` are added to each line.
    pub(crate) fn of(file: &Path, own_folder: &Path, fields: Map<String, Value>) -> Self {
        let kept = own_folder.join(POSITION);
        let position = fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self {
            file: file.to_owned(),
            kept,
            position: position.unwrap_or_default(),
            fields,
            is_cut: false,
            error: None,
        }
    }

    /// Passes on what is new, and reports why it cannot.
    fn pass_on_to_stdout(&mut self) {
        let error = self.pass_on(&mut io::stdout().lock()).err().map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|_| error != self.error) {
            warn!(%error, file = %self.file.display(), "failed to pass the worker's log on");
        }
        self.error = error;
    }

    /// Passes on what is new. Only whole lines are; the rest comes with the next pass.
    fn pass_on(&mut self, out: &mut impl Write) -> io::Result<()> {
        let Some(mut file) = self.open()? else { return Ok(()) };
        let known = file.metadata()?;
        if known.ino() != self.position.inode || known.len() < self.position.bytes {
            self.position = Position { inode: known.ino(), bytes: begin(&file)? };
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
            self.keep();
            self.empty_if_large(&file)?;
        }
        Ok(())
    }

    /// `None`: there is none yet.
    fn open(&self) -> io::Result<Option<File>> {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let parts = self.file.parent().zip(self.file.file_name());
        let (folder, name) = parts.ok_or_else(|| wrong("it is not the path of a file"))?;
        let folder = Directory::open(folder)?;
        // To write, so that it can be emptied; the worker may have another user.
        let opened =
            folder.open_file(name, OFlags::RDWR | OFlags::NONBLOCK).or_else(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => folder.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK),
                _ => Err(error),
            });
        match opened {
            Ok(file) if FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() => Ok(Some(file)),
            Ok(_) => Err(wrong("it is not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
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
        // Of the block in which an emptied file begins.
        let begin = line.iter().position(|byte| *byte != 0).unwrap_or(line.len());
        let line = line.get(begin..).unwrap_or_default();
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

    /// Frees the blocks of copied lines. With holes, no line is lost that the worker writes at the same time.
    fn empty_if_large(&mut self, file: &File) -> io::Result<()> {
        let known = file.metadata()?;
        if known.blocks() * BLOCK < LARGE {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(file, flags, 0, self.position.bytes) {
            // This file system has no holes. A line that is written at this moment is lost.
            Err(Errno::OPNOTSUPP) if known.len() == self.position.bytes => {
                file.set_len(0)?;
                self.position.bytes = 0;
                self.keep();
                Ok(())
            }
            // Or the file cannot be written to.
            Err(Errno::OPNOTSUPP | Errno::BADF) => Ok(()),
            emptied => Ok(emptied?),
        }
    }

    /// Not synced, because the only thread of the runtime would wait for the disk twice a second. After a power failure
    /// of the node, lines may be copied again.
    fn keep(&self) {
        let new = self.kept.with_extension("new");
        let text = serde_json::to_vec(&self.position).unwrap_or_default();
        if let Err(error) = fs::write(&new, text).and_then(|()| fs::rename(&new, &self.kept)) {
            warn!(%error, "failed to keep the position in the worker's log");
        }
    }
}

/// The first byte with data, for an emptied file whose position is unknown.
fn begin(file: &File) -> io::Result<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(0)) {
        Ok(begin) => Ok(begin),
        // It has no data.
        Err(Errno::NXIO) => Ok(0),
        Err(error) => Err(error.into()),
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
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};
    use serde_json::json;

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
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
    fn a_large_file_gives_its_bytes_back_also_when_it_never_ends_with_a_whole_line() {
        let mut scene = Scene::new();
        let line = format!("{}\n", "y".repeat(1_023));
        let mut passed = 0;
        for _ in 0..8 {
            scene.append(&line.repeat(LARGE as usize >> 12));
            scene.append("{\"body\": \"ha");
            passed += scene.passed().len();
            scene.append("lf\"}\n");
            passed += scene.passed().len();
        }
        assert_eq!(passed as u64, 8 * ((LARGE >> 12) + 1));
        let path = scene.folder.path().join("agent.jsonl");
        let known = fs::metadata(&path).unwrap();
        assert!(known.len() > 2 * LARGE && known.blocks() * BLOCK < LARGE + (1 << 20), "{known:?}");
        scene.append("next\n");
        assert_eq!(scene.passed(), [json!({"body": "next", "agent.pool": "coder"})]);

        // Without the position, it continues where the file was emptied.
        fs::remove_file(scene.folder.path().join(POSITION)).unwrap();
        scene.log = log_in(scene.folder.path());
        let again = scene.passed();
        assert!(again.len() < 20 << 10 && !again.iter().any(|line| line.get("truncated").is_some()));
        assert!(again.iter().all(|line| line["body"].as_str().is_some_and(|body| !body.contains('\0'))));
    }

    #[test]
    fn a_link_or_a_pipe_in_the_place_of_the_log_is_not_read() {
        let mut scene = Scene::new();
        let (log, outside) = (scene.folder.path().join("agent.jsonl"), scene.folder.path().join("outside"));
        let text = "key\n".repeat(LARGE as usize >> 2);
        fs::write(&outside, &text).unwrap();
        symlink(&outside, &log).unwrap();
        let mut out = Vec::new();
        for _ in 0..5 {
            assert!(scene.log.pass_on(&mut out).is_err());
        }
        assert_eq!(fs::metadata(&outside).unwrap().len(), text.len() as u64);
        fs::remove_file(&log).unwrap();
        mkfifoat(CWD, &log, Mode::RUSR | Mode::WUSR).unwrap();
        let error = scene.log.pass_on(&mut out).unwrap_err();
        assert_eq!((error.to_string().as_str(), out.len()), ("it is not a regular file", 0));
    }
}
