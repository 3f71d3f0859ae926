//! Runs on a temporary folder of an evaluation. Waiting times are a hundredth of the real ones.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use api::launcher::{
    LONGEST_MESSAGE,
    evaluator::{API_KEY, ExitCode, Message, Pair, Side},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::Server;

/// Longer than any run on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const RUNNER: &str = env!("CARGO_BIN_EXE_eval-runner");
pub(crate) const KEY: &str = "plain-key-of-a-test";

/// The folder of an evaluation, and a folder for everything else.
pub(crate) struct Scene {
    folder: TempDir,
    pub(crate) output: PathBuf,
    pub(crate) server: Server,
}

/// A run that has not been started.
pub(crate) struct Run {
    pub(crate) options: Vec<(&'static str, String)>,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) program: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    folder: PathBuf,
}

/// How a run has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) message: Message,
    /// The termination message as it was written.
    pub(crate) text: String,
    pub(crate) stderr: String,
}

pub(crate) struct Running {
    pub(crate) child: Child,
    folder: PathBuf,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("evaluation");
        fs::create_dir(&output).unwrap();
        Self { folder, output, server: Server::new("200 OK", &["m"]) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn own_folder(&self) -> PathBuf {
        let count = fs::read_dir(self.folder.path()).unwrap().count();
        let folder = self.path(&format!("run-{count}"));
        fs::create_dir(&folder).unwrap();
        File::create(folder.join("termination-log")).unwrap();
        folder
    }

    /// The recorded answers of EvalScope as those of a side.
    pub(crate) fn run(&self, side: &'static str) -> Run {
        let questions = self.path("questions");
        fs::create_dir_all(&questions).unwrap();
        for subset in ["history", "physics"] {
            File::create(questions.join(format!("{subset}_val.jsonl"))).unwrap();
        }
        let folder = self.own_folder();
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let recorded = if side == "control" { "baseline" } else { side };
        Run {
            options: vec![
                ("output-dir", path(&self.output)),
                ("side", side.to_owned()),
                ("test-set", "set".to_owned()),
                ("identity", format!("sha256:{side}")),
                ("harness", "evalscope".to_owned()),
                ("dataset", "general_mcq".to_owned()),
                ("dataset-path", path(&questions)),
                ("url", self.server.url()),
                ("grace-seconds", "6".to_owned()),
                ("server-seconds", "100".to_owned()),
                ("time-divisor", "100".to_owned()),
                ("termination-log", path(&folder.join("termination-log"))),
            ],
            flags: Vec::new(),
            program: vec![harness()],
            environment: vec![
                (API_KEY, KEY.to_owned()),
                ("FAKE_HARNESS_FILES", path(&fixtures("evalscope").join(recorded))),
                ("FAKE_HARNESS_RECORD", path(&folder.join("record"))),
            ],
            folder,
        }
    }

    /// The recorded answers of lm-eval.
    pub(crate) fn lm_eval(&self, side: &'static str) -> Run {
        let tasks = self.path("tasks");
        fs::create_dir_all(&tasks).unwrap();
        fs::write(tasks.join("capitals.yaml"), "task: capitals\n").unwrap();
        let tasks = tasks.to_str().unwrap().to_owned();
        let run = self.run(side).option("harness", "lm-eval").option("dataset", "capitals");
        let files = fixtures("lm-eval").join(side).to_str().unwrap().to_owned();
        let run = run.option("dataset-path", &tasks).flag("allow-code-execution");
        run.environment("FAKE_HARNESS_FILES", &files)
    }

    /// Answers that are made for a test: an index, a question, and a score each.
    pub(crate) fn answers(&self, name: &str, answers: impl Iterator<Item = Value>) -> String {
        let folder = self.path(name);
        let reviews = folder.join("reviews/model");
        fs::create_dir_all(&reviews).unwrap();
        let lines: String = answers.map(|answer| format!("{answer}\n")).collect();
        fs::write(reviews.join("general_mcq_history.jsonl"), lines).unwrap();
        folder.to_str().unwrap().to_owned()
    }

    pub(crate) fn pair(&self, arguments: &[&str]) -> Ended {
        let folder = self.own_folder();
        let mut command = Command::new(RUNNER);
        command.arg("pair").arg("--output-dir").arg(&self.output).args(["--test-set", "set"]).args(arguments);
        start(command, folder).end()
    }

    pub(crate) fn scores(&self, side: &str) -> PathBuf {
        self.output.join(side).join("set.scores")
    }
}

impl Run {
    pub(crate) fn option(mut self, name: &'static str, value: &str) -> Self {
        self.options.retain(|(known, _)| *known != name);
        self.options.push((name, value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.options.retain(|(known, _)| *known != name);
        self
    }

    pub(crate) fn flag(mut self, name: &'static str) -> Self {
        self.flags.push(name);
        self
    }

    pub(crate) fn environment(mut self, name: &'static str, value: &str) -> Self {
        self.environment.retain(|(known, _)| *known != name);
        self.environment.push((name, value.to_owned()));
        self
    }

    pub(crate) fn start(&self) -> Running {
        let mut command = Command::new(RUNNER);
        command.arg("run").args(self.options.iter().map(|(name, value)| format!("--{name}={value}")));
        command.args(self.flags.iter().map(|flag| format!("--{flag}"))).arg("--").args(&self.program);
        command.env_clear().env("PATH", "/usr/bin:/bin").envs(self.environment.clone());
        start(command, self.folder.clone())
    }

    pub(crate) fn end(&self) -> Ended {
        self.start().end()
    }

    /// What the harness was started with; absent if it was not.
    pub(crate) fn record(&self) -> Option<String> {
        fs::read_to_string(self.folder.join("record")).ok()
    }
}

fn start(mut command: Command, folder: PathBuf) -> Running {
    let log = folder.join("termination-log");
    if command.get_args().next().is_some_and(|argument| argument == "pair") {
        command.arg("--termination-log").arg(&log);
    }
    let stderr = File::create(folder.join("stderr")).unwrap();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    Running { child, folder }
}

impl Running {
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.folder.join("stderr")).unwrap()
    }

    /// Waits for a line of the runner or of the harness.
    pub(crate) fn until(&self, words: &str) {
        let began = Instant::now();
        while !self.stderr().contains(words) {
            assert!(began.elapsed() < PATIENCE, "waited in vain for {words:?}: {}", self.stderr());
            sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn end(mut self) -> Ended {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end: {}", self.stderr());
            sleep(Duration::from_millis(2));
        };
        let text = fs::read_to_string(self.folder.join("termination-log")).unwrap();
        assert!(text.len() <= LONGEST_MESSAGE, "{text}");
        let message = serde_json::from_str(&text).unwrap();
        let stderr = self.stderr();
        for shown in [&text, &stderr] {
            assert!(!shown.contains(KEY), "the key is shown: {shown}");
        }
        Ended { code: status.code().unwrap(), message, text, stderr }
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
    pub(crate) fn side(self) -> Side {
        assert_eq!(self.code, 0, "{} {}", self.text, self.stderr);
        self.message.side.unwrap()
    }

    #[track_caller]
    pub(crate) fn pairs(self) -> Vec<Pair> {
        assert_eq!(self.code, 0, "{} {}", self.text, self.stderr);
        self.message.pairs
    }

    /// The error, which has these words.
    #[track_caller]
    pub(crate) fn failed(self, code: ExitCode, words: &str) -> String {
        assert_eq!(self.code, code.code(), "{} {}", self.text, self.stderr);
        assert_eq!(self.message.reason.as_deref(), Some(code.as_reason()));
        let error = self.message.error.unwrap();
        assert!(error.contains(words), "{error}");
        error
    }
}

/// A line of a review file.
pub(crate) fn review(index: u64, question: &str, score: f64) -> Value {
    json!({
        "index": index,
        "target": "A",
        "messages": [
            { "id": format!("{index}-{score}"), "role": "user", "content": question },
            { "id": "x", "role": "assistant", "content": format!("answer with score {score}") },
        ],
        "agent_trace": null,
        "sample_score": {
            "score": { "value": { "acc": score }, "extracted_prediction": "A", "main_score_name": null },
            "sample_id": index,
            "group_id": index,
        },
    })
}

/// Answers to the questions with these numbers; those of the second list are right.
pub(crate) fn reviews(
    questions: impl Iterator<Item = u64>,
    is_right: impl Fn(u64) -> bool,
) -> impl Iterator<Item = Value> {
    questions.map(move |number| {
        review(number, &format!("question {number}"), f64::from(u8::from(is_right(number))))
    })
}

pub(crate) fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn harness() -> String {
    let own = std::env::current_exe().unwrap();
    let harness = own.ancestors().nth(2).unwrap().join("examples/harness");
    assert!(harness.exists(), "build it with `cargo test -p eval-runner --no-run`");
    harness.to_str().unwrap().to_owned()
}
