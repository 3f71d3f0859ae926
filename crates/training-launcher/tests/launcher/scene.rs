//! Launchers on a temporary output folder. Waiting times are a tenth of the real ones.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use api::launcher::{LONGEST_MESSAGE, Message, variables};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than any run on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
const MARKER: &str = ".training-launcher.json";

/// An output folder, and a folder for everything else.
pub(crate) struct Scene {
    folder: TempDir,
    pub(crate) output: PathBuf,
}

/// A launcher that has not been started.
#[derive(Clone)]
pub(crate) struct Launch {
    /// Of this launch.
    folder: PathBuf,
    /// Options of the launcher, by name.
    pub(crate) options: Vec<(&'static str, String)>,
    pub(crate) has_stop_file: bool,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) fresh_args: Vec<&'static str>,
    pub(crate) trainer: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

pub(crate) struct Running {
    pub(crate) launcher: Child,
    launch: Launch,
}

/// How a launcher has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) message: Message,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    /// The checkpoint from which the trainer was started, by the launcher's own line.
    pub(crate) fn resumed(&self) -> Option<&str> {
        self.stderr.lines().find_map(|line| line.strip_prefix("training-launcher: resuming from "))
    }
}

impl Scene {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("output");
        fs::create_dir(&output).unwrap();
        Self { folder, output }
    }

    /// A training of ten steps with a checkpoint at the fifth, as rank 0 of one node, in a pod of its own.
    pub(crate) fn launch(&self, attempt: u32) -> Launch {
        self.launch_rank(attempt, 0, 1)
    }

    pub(crate) fn launch_rank(&self, attempt: u32, rank: u32, nodes: u32) -> Launch {
        let count = fs::read_dir(self.folder.path()).unwrap().count();
        let folder = self.folder.path().join(format!("launch-{count}"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(folder.join("pids")).unwrap();
        File::create(folder.join("termination-log")).unwrap();
        let output = self.output.to_str().unwrap().to_owned();
        let program = swift();
        let trainer = [
            program.as_str(),
            "sft",
            "--model=m",
            "--dataset=d",
            "--max_steps=10",
            "--save_steps=5",
            "--logging_steps=1",
            "--disable_tqdm=true",
            "--add_version=false",
            "--callbacks=graceful_exit",
            &format!("--output_dir={output}"),
        ];
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let mut environment = vec![
            ("FAKE_SWIFT_STEP_MS", "20".to_owned()),
            ("FAKE_SWIFT_STOP_FILE", path("stop")),
            ("FAKE_SWIFT_PIDS", path("pids")),
            ("FAKE_SWIFT_ARGUMENTS", path("arguments")),
            (variables::RANK, rank.to_string()),
            (variables::POD_UID, format!("pod-{count}")),
        ];
        if nodes > 1 {
            environment.extend([("NNODES", nodes.to_string()), ("NODE_RANK", rank.to_string())]);
        }
        Launch {
            options: vec![
                ("attempt", attempt.to_string()),
                ("job-uid", "job".to_owned()),
                ("nodes", nodes.to_string()),
                ("grace-seconds", "30".to_owned()),
                ("time-divisor", "10".to_owned()),
                ("output-dir", output),
                ("termination-log", path("termination-log")),
            ],
            has_stop_file: true,
            flags: Vec::new(),
            fresh_args: Vec::new(),
            trainer: trainer.map(str::to_owned).to_vec(),
            environment: environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            folder,
        }
    }

    /// A run that has ended before this one, after the fifth step.
    pub(crate) fn interrupted(&self) {
        assert_eq!(self.launch(1).faults("exit@7").run().code, 1);
        assert_eq!(self.checkpoints(), ["checkpoint-5"]);
    }

    pub(crate) fn checkpoint(&self, step: i64) -> PathBuf {
        self.output.join(format!("checkpoint-{step}"))
    }

    pub(crate) fn checkpoints(&self) -> Vec<String> {
        let names = fs::read_dir(&self.output)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("checkpoint-")).collect();
        names.sort_by_key(|name| name.len());
        names
    }

    pub(crate) fn marker_path(&self) -> PathBuf {
        self.output.join(MARKER)
    }

    /// `None` while there is none.
    pub(crate) fn marker(&self) -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(self.marker_path()).ok()?).ok()
    }

    pub(crate) fn write_marker(&self, job: &str, attempt: u32, run: &str, phase: &str) {
        let text = format!(
            r#"{{"job": "{job}", "attempt": {attempt}, "run": "{run}", "phase": "{phase}", "resume": null}}"#
        );
        let new = self.output.join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.marker_path()).unwrap();
    }
}

impl Launch {
    pub(crate) fn option(mut self, name: &'static str, value: &str) -> Self {
        self.options.retain(|(known, _)| *known != name);
        self.options.push((name, value.to_owned()));
        self
    }

    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn faults(self, faults: &str) -> Self {
        self.environment("FAKE_SWIFT_FAULTS", faults)
    }

    pub(crate) fn trainer_argument(mut self, argument: &str) -> Self {
        self.trainer.push(argument.to_owned());
        self
    }

    pub(crate) fn without_stop_file(mut self) -> Self {
        self.has_stop_file = false;
        self
    }

    /// A training that lasts until it is ended.
    pub(crate) fn long(self) -> Self {
        self.trainer_argument("--max_steps=100000").trainer_argument("--save_steps=100000")
    }

    /// `stdout`, `stderr` or `termination-log`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn stop_file(&self) -> PathBuf {
        self.folder.join("stop")
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_training-launcher"));
        command.arg("run");
        for (name, value) in &self.options {
            command.arg(format!("--{name}={value}"));
        }
        command.args(&self.flags);
        if self.has_stop_file {
            command.arg(format!("--stop-file={}", self.stop_file().display()));
        }
        command.args(self.fresh_args.iter().map(|argument| format!("--fresh-arg={argument}")));
        command.arg("--").args(&self.trainer).env_clear();
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command.stdout(File::create(self.folder.join("stdout")).unwrap());
        command.stderr(File::create(self.folder.join("stderr")).unwrap());
        command
    }

    pub(crate) fn start(&self) -> Running {
        self.start_as(&mut self.command())
    }

    pub(crate) fn start_as(&self, command: &mut Command) -> Running {
        Running { launcher: command.spawn().unwrap(), launch: self.clone() }
    }

    pub(crate) fn run(&self) -> Ended {
        self.start().end()
    }
}

impl Running {
    pub(crate) fn end(mut self) -> Ended {
        until("the launcher ends", || self.launcher.try_wait().unwrap().is_some());
        let code = self.launcher.wait().unwrap().code().unwrap_or(-1);
        assert_eq!(self.alive(), Vec::<i32>::new(), "the launcher leaves no process behind");
        let message = fs::read(self.launch.folder.join("termination-log")).unwrap();
        assert!(message.len() <= LONGEST_MESSAGE, "{} bytes", message.len());
        let message = match message.as_slice() {
            [] => Message::default(),
            message => serde_json::from_slice(message).unwrap(),
        };
        Ended { code, message, stdout: self.stdout(), stderr: self.stderr() }
    }

    pub(crate) fn stdout(&self) -> Vec<u8> {
        fs::read(self.launch.folder.join("stdout")).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.launch.folder.join("stderr")).unwrap()).into_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.launcher.try_wait().unwrap().is_none()
    }

    /// Steps that rank 0 has logged.
    pub(crate) fn steps(&self) -> usize {
        String::from_utf8_lossy(&self.stdout()).matches("{'loss': ").count()
    }

    pub(crate) fn until_step(&self, step: usize) {
        until("a step is logged", || self.steps() >= step);
    }

    pub(crate) fn until_noted(&self, text: &str) {
        until(text, || self.stderr().contains(text));
    }

    /// Processes of the trainer that have not ended.
    pub(crate) fn alive(&self) -> Vec<i32> {
        let pids = fs::read_dir(self.launch.folder.join("pids")).unwrap();
        let pids = pids.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
        pids.filter(|pid| state(*pid).is_some_and(|state| state != 'Z')).collect()
    }

    /// The arguments with which each trainer was started, and when.
    pub(crate) fn started(&self) -> Vec<(Vec<String>, f64)> {
        started(&self.launch)
    }
}

/// The arguments with which each trainer of a launch was started, and when.
pub(crate) fn started(launch: &Launch) -> Vec<(Vec<String>, f64)> {
    let Ok(file) = File::open(launch.folder.join("arguments")) else { return Vec::new() };
    let lines =
        BufReader::new(file).lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let arguments = |line: &Value| line["arguments"].as_array().unwrap().iter().map(text).collect();
    lines.map(|line| (arguments(&line), line["at"].as_f64().unwrap())).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Does not outlive a test that fails.
impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            let _ = self.launcher.kill();
        }
        let _ = self.launcher.wait();
        for pid in self.alive() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
    }
}

/// The letter of a process's state, if there is such a process of the stand-in.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.rsplit_once(')')?;
    name.ends_with("(swift").then(|| rest.trim().chars().next().unwrap())
}

/// The stand-in, which cargo has built as an example.
pub(crate) fn swift() -> String {
    let own = std::env::current_exe().unwrap();
    let swift = own.ancestors().nth(2).unwrap().join("examples/swift");
    assert!(swift.exists(), "build it with `cargo test -p training-launcher --no-run`");
    swift.to_str().unwrap().to_owned()
}

pub(crate) fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        sleep(POLL);
    }
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
