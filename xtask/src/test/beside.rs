//! Runs test programs beside each other. Cargo runs one after the other, and most of their time they wait.

use std::{
    collections::VecDeque,
    env, fs,
    io::Read as _,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::steps::{cargo, without_cargos_variables};

/// At most so many at once, one for each core. Each has some threads of its own, and some of its tests have deadlines.
const AT_ONCE: usize = 2;

/// Limit for one program; the longest takes three to four minutes beside a compilation. A run that hangs has to say where
/// before its own limit ends it.
const ENDS_WITHIN: Duration = Duration::from_secs(15 * 60);

/// Between two looks at a program that runs.
const POLL: Duration = Duration::from_millis(100);

/// Where property tests begin to draw their cases.
const SEED: &str = "PROPTEST_RNG_SEED";

/// The kind of a message of cargo.
#[derive(Deserialize)]
struct Message {
    reason: String,
}

/// A message of cargo about what it has built.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    profile: Profile,
    target: Target,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// A program whose `main` runs tests.
struct TestProgram {
    /// Package and target.
    name: String,
    executable: PathBuf,
    /// The folder of its package, in which cargo starts it.
    folder: PathBuf,
    is_integration: bool,
}

/// One that has run.
struct Ran {
    name: String,
    took: Duration,
    /// `None`: it did not end, and was killed.
    status: Option<ExitStatus>,
}

impl Ran {
    fn passed(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs the tests of the default packages, doc tests excepted, with so many threads for each program.
pub(super) fn run(threads: usize, filters: &[String]) -> anyhow::Result<()> {
    let mut build = cargo(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"]);
    let built = build.stderr(Stdio::inherit()).output().context("failed to start cargo")?;
    ensure!(built.status.success(), "cargo failed to build the tests: {}", built.status);
    let mut programs = test_programs(&built.stdout)?;
    ensure!(!programs.is_empty(), "cargo built no test");
    // They take longest.
    programs.sort_by_key(|program| !program.is_integration);
    let ran = run_all(programs, threads, filters)?;
    let mut slowest: Vec<&Ran> = ran.iter().collect();
    slowest.sort_by_key(|ran| std::cmp::Reverse(ran.took));
    eprintln!("\nseconds  slowest test programs of {}", ran.len());
    for Ran { name, took, .. } in slowest.iter().take(10) {
        eprintln!("{:7.1}  {name}", took.as_secs_f64());
    }
    let failed: Vec<&str> = ran.iter().filter(|ran| !ran.passed()).map(|ran| ran.name.as_str()).collect();
    ensure!(failed.is_empty(), "tests failed in {}", failed.join(", "));
    Ok(())
}

fn run_all(programs: Vec<TestProgram>, threads: usize, filters: &[String]) -> anyhow::Result<Vec<Ran>> {
    let left = Mutex::new(VecDeque::from(programs));
    let worker = || -> anyhow::Result<Vec<Ran>> {
        let mut ran = Vec::new();
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(program) = next else { return Ok(ran) };
            ran.push(run_one(program, threads, filters, ENDS_WITHIN)?);
        }
    };
    thread::scope(|scope| {
        let at_once = thread::available_parallelism().map_or(AT_ONCE, usize::from).min(AT_ONCE);
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        let mut all = Vec::new();
        for worker in workers {
            let ran = worker.join().map_err(|_| anyhow::anyhow!("a thread that ran tests panicked"))?;
            all.extend(ran?);
        }
        Ok(all)
    })
}

/// Prints the whole output at its end, so that outputs do not mix. It goes to a file: a pipe would stay open as long as a
/// process that the tests have left behind.
fn run_one(
    program: TestProgram,
    threads: usize,
    filters: &[String],
    ends_within: Duration,
) -> anyhow::Result<Ran> {
    let TestProgram { name, executable, folder, .. } = program;
    let mut test = Command::new(&executable);
    without_cargos_variables(&mut test);
    test.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
    test.args(["--test-threads", &threads.to_string()]).args(filters);
    // Whether a change lands is no matter of luck. `docs/testing.md` says how to draw other cases.
    if env::var_os(SEED).is_none() {
        test.env(SEED, "1");
    }
    let printed = tempfile::NamedTempFile::new().context("failed to create a file for the output")?;
    let to_file = || printed.as_file().try_clone().context("failed to share the file for the output");
    test.stdin(Stdio::null()).stdout(to_file()?).stderr(to_file()?);
    eprintln!("--- {name}: started");
    let began = Instant::now();
    let mut test = test.spawn().with_context(|| format!("failed to start {}", executable.display()))?;
    let status = loop {
        let status = test.try_wait().context("failed to ask for the end of a test program")?;
        if status.is_some() {
            break status;
        }
        if began.elapsed() >= ends_within {
            for line in waiting(test.id()) {
                eprintln!("{line}");
            }
            test.kill().context("failed to kill a test program")?;
            test.wait().context("failed to wait for a test program")?;
            break None;
        }
        thread::sleep(POLL);
    };
    let took = began.elapsed();
    let mut output = Vec::new();
    printed
        .reopen()
        .and_then(|mut file| file.read_to_end(&mut output))
        .context("failed to read the output")?;
    let ended = status.map_or_else(|| "does not end, killed".to_owned(), |status| status.to_string());
    eprintln!(
        "\n--- {name}: {ended} after {:.1} s\n{}",
        took.as_secs_f64(),
        String::from_utf8_lossy(&output)
    );
    Ok(Ran { name, took, status })
}

/// A line for each thread of the process and of its children: its name, which begins with that of its test, and the function
/// of the kernel in which it waits.
fn waiting(process: u32) -> Vec<String> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads
        .map(|thread| thread.path())
        .flat_map(|thread| {
            let [name, function] = ["comm", "wchan"].map(|file| read(thread.join(file)));
            let children = read(thread.join("children"));
            let children = children.split_whitespace().filter_map(|child| child.parse().ok());
            let below: Vec<String> = children.flat_map(waiting).collect();
            [format!("process {process}: {name} waits in {function}")].into_iter().chain(below)
        })
        .collect()
}

fn test_programs(messages: &[u8]) -> anyhow::Result<Vec<TestProgram>> {
    let mut artifacts = Vec::new();
    for line in messages.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Message = serde_json::from_slice(line).context("cargo has written another message")?;
        if message.reason == "compiler-artifact" {
            let artifact: Artifact =
                serde_json::from_slice(line).context("cargo describes a target otherwise")?;
            artifacts.push(artifact);
        }
    }
    artifacts
        .into_iter()
        .filter(|artifact| artifact.profile.test)
        .filter_map(|Artifact { executable, manifest_path, target, .. }| {
            Some((executable?, manifest_path, target))
        })
        .map(|(executable, manifest, target)| {
            let folder = manifest.parent().context("a manifest is in no folder")?.to_owned();
            let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_integration = target.kind.iter().any(|kind| kind == "test");
            let kind = target.kind.first().map(String::as_str).unwrap_or_default();
            Ok(TestProgram {
                name: format!("{package}: {kind} {}", target.name),
                executable,
                folder,
                is_integration,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;

    #[test]
    fn of_what_cargo_builds_only_test_programs_are_run() {
        let messages = [
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/text/Cargo.toml","target":{"kind":["lib"],"name":"text"},"profile":{"test":false},"executable":null}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/text/Cargo.toml","target":{"kind":["lib"],"name":"text"},"profile":{"test":true},"executable":"/t/text-1"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/monitor/Cargo.toml","target":{"kind":["bin"],"name":"monitor"},"profile":{"test":false},"executable":"/t/monitor"}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/monitor/Cargo.toml","target":{"kind":["test"],"name":"monitor"},"profile":{"test":true},"executable":"/t/monitor-2"}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let found = test_programs(messages.join("\n").as_bytes()).unwrap();
        let found: Vec<(&str, bool)> =
            found.iter().map(|program| (program.name.as_str(), program.is_integration)).collect();
        assert_eq!(found, [("text: lib text", false), ("monitor: test monitor", true)]);
    }

    /// A shell that takes the arguments of a test program.
    fn shell(folder: &Path, text: &str) -> TestProgram {
        let executable = folder.join("program");
        fs::write(&executable, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
        TestProgram { name: "shell".to_owned(), executable, folder: folder.to_owned(), is_integration: true }
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_and_has_failed() {
        let folder = tempfile::tempdir().unwrap();
        let began = Instant::now();
        let ran = run_one(shell(folder.path(), "exec sleep 60"), 1, &[], Duration::from_millis(300)).unwrap();
        assert!(!ran.passed() && ran.status.is_none());
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[test]
    fn threads_that_wait_are_named() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let waits = waiting(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        let of_child = format!("process {}: ", child.id());
        assert!(waits.iter().any(|line| line.starts_with(&of_child)), "{waits:?}");
        assert!(waits.iter().any(|line| line.contains(": test::beside::")), "{waits:?}");
    }

    #[test]
    fn a_program_that_fails_is_reported_and_the_others_run() {
        let program = |name: &str, executable: &str| TestProgram {
            name: name.to_owned(),
            executable: executable.into(),
            folder: "/".into(),
            is_integration: true,
        };
        let programs =
            vec![program("good", "/bin/true"), program("bad", "/bin/false"), program("last", "/bin/true")];
        let ran = run_all(programs, 1, &[]).unwrap();
        let mut ended: Vec<(&str, bool)> = ran.iter().map(|ran| (ran.name.as_str(), ran.passed())).collect();
        ended.sort_unstable();
        assert_eq!(ended, [("bad", false), ("good", true), ("last", true)]);
    }
}
