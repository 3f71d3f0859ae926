//! The program under test, as a process with an environment of its own.

use std::{
    borrow::Cow,
    fs::{self, File},
    io::{self, PipeReader, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use api::loader::{ExitCode, Loaded, Uploaded};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::gateway::{ACCESS_KEY, SECRET_KEY};

/// Limit for a program, so that one that hangs fails its test with the output.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// A command line and an environment, changed as a test needs.
pub(crate) struct Program {
    command: Command,
    files: TempDir,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None`: by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    /// The content of the termination log.
    pub(crate) reported: String,
}

/// One that runs.
pub(crate) struct Running {
    child: Child,
    files: TempDir,
    transcript: Arc<Transcript>,
}

/// The output so far, and whether it is closed, which it is when the program ends.
#[derive(Default)]
struct Transcript {
    said: Mutex<Said>,
    more: Condvar,
}

#[derive(Default)]
struct Said {
    output: Vec<u8>,
    ended: bool,
}

impl Program {
    pub(crate) fn new<const N: usize>(store: SocketAddr, arguments: [&str; N]) -> Self {
        // Not on the disk of the model, or a transfer depended on how full the disk of the machine is.
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_model-transfer"));
        command.args(arguments).env_clear().envs([
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", &format!("http://{store}")),
            // Short, so that a fault is reported soon; long enough for a loaded machine.
            ("TRANSFER_PATIENCE_SECONDS", "20"),
            ("TRANSFER_STALL_SECONDS", "2"),
        ]);
        Self { command, files }
    }

    pub(crate) fn arg(mut self, argument: &str) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Puts the termination log, which the kubelet keeps on the disk of the node, into this folder.
    pub(crate) fn on_disk_of(mut self, folder: &Path) -> Self {
        self.files = tempfile::tempdir_in(folder).unwrap();
        self
    }

    /// Runs it by a shell that does something before.
    pub(crate) fn after(self, setup: &str) -> Self {
        let Self { command, files } = self;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("{setup}; exec \"$0\" \"$@\"")]).arg(command.get_program());
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        shell.args(command.get_args()).env_clear().envs(set);
        Self { command: shell, files }
    }

    pub(crate) fn start(mut self) -> Running {
        let reported = self.files.path().join("termination-log");
        File::create(&reported).unwrap();
        self.command.arg("--termination-log").arg(reported);
        let (reader, writer) = io::pipe().unwrap();
        self.command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = self.command.spawn().unwrap();
        // The command holds ends of the pipe, too: with them the output would never close.
        drop(self.command);
        let transcript = Arc::<Transcript>::default();
        let listener = Arc::clone(&transcript);
        thread::spawn(move || listener.listen(reader));
        Running { child, files: self.files, transcript }
    }

    pub(crate) fn run(self) -> Ended {
        self.start().wait()
    }
}

impl Said {
    fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.output)
    }
}

impl Transcript {
    fn listen(&self, mut output: PipeReader) {
        let mut buffer = [0; 4096];
        loop {
            let read = output.read(&mut buffer).unwrap_or(0);
            let mut said = self.said.lock().unwrap();
            said.output.extend_from_slice(&buffer[..read]);
            said.ended = read == 0;
            self.more.notify_all();
            if said.ended {
                return;
            }
        }
    }

    /// Whether the condition became true in time.
    fn waits_until(&self, within: Duration, mut enough: impl FnMut(&Said) -> bool) -> bool {
        let said = self.said.lock().unwrap();
        !self.more.wait_timeout_while(said, within, |said| !enough(said)).unwrap().1.timed_out()
    }
}

impl Running {
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        assert!(self.ends_within(ENDS_WITHIN), "it does not end:\n{}", self.output());
        let status = self.child.wait().unwrap();
        let reported = fs::read_to_string(self.files.path().join("termination-log")).unwrap();
        Ended { code: status.code(), output: self.output(), reported }
    }

    pub(crate) fn ends_within(&self, time: Duration) -> bool {
        self.transcript.waits_until(time, |said| said.ended)
    }

    /// Waits until it has said this so many times.
    #[track_caller]
    pub(crate) fn until_says(&self, words: &str, times: usize) {
        let said =
            self.transcript.waits_until(ENDS_WITHIN, |said| said.text().matches(words).count() >= times);
        assert!(said, "it does not say {words:?} {times} times:\n{}", self.output());
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn output(&self) -> String {
        self.transcript.said.lock().unwrap().text().into_owned()
    }

    /// Whether one of its threads sleeps in this function of the kernel.
    pub(crate) fn waits_in(&self, function: &str) -> bool {
        let threads = fs::read_dir(proc_file(self.child.id(), "task")).into_iter().flatten().flatten();
        let mut functions = threads.filter_map(|thread| fs::read_to_string(thread.path().join("wchan")).ok());
        functions.any(|found| found.contains(function))
    }

    /// The most resident memory it has had, as the kernel counted it.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let status = fs::read_to_string(proc_file(self.child.id(), "status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    #[track_caller]
    pub(crate) fn succeeded(&self) {
        assert_eq!(self.code, Some(0), "{}", self.output);
        let report = Loaded::of_message(&self.reported);
        assert!(
            self.reported.is_empty() || report.is_some(),
            "a success writes no reason: {}",
            self.reported
        );
    }

    /// What a pull or a check reports of its success.
    #[track_caller]
    pub(crate) fn loaded(&self) -> Loaded {
        self.succeeded();
        Loaded::of_message(&self.reported).expect("a report")
    }

    /// What a push reports of its success.
    #[track_caller]
    pub(crate) fn uploaded(&self) -> Uploaded {
        assert_eq!(self.code, Some(0), "{}", self.output);
        serde_json::from_str(&self.reported).expect("a report")
    }

    /// With this code, and the reason for people and for the kubelet; never with a secret.
    #[track_caller]
    pub(crate) fn failed(&self, code: ExitCode, reason: &str) {
        assert_eq!(self.code, Some(code.code()), "{}", self.output);
        assert!(self.reported.starts_with(&format!("{}: ", code.reason())), "{}", self.reported);
        assert!(self.reported.contains(reason), "{}", self.reported);
        assert_eq!(self.reported.lines().count(), 1, "{}", self.reported);
        assert!(self.output.contains(&self.reported), "{}", self.output);
        assert!(!self.output.contains(SECRET_KEY) && !self.output.contains(ACCESS_KEY), "{}", self.output);
    }
}

fn proc_file(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}
