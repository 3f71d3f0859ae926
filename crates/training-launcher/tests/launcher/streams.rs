//! The trainer's output on its way through the launcher.

use std::{
    fs,
    io::Read as _,
    process::{Command, Stdio},
};

use crate::scene::{Scene, until};

/// What the stand-in itself prints.
fn direct(launch: &crate::scene::Launch) -> (Vec<u8>, Vec<u8>) {
    let output = tempfile::tempdir().unwrap();
    let mut command = Command::new(&launch.trainer[0]);
    command.args(&launch.trainer[1..]).arg(format!("--output_dir={}", output.path().display())).env_clear();
    let printed =
        command.envs(launch.environment.iter().map(|(name, value)| (name, value))).output().unwrap();
    let own = output.path().to_str().unwrap();
    let given = launch.options.iter().find(|(name, _)| *name == "output-dir").unwrap().1.clone();
    let replaced = |bytes: Vec<u8>| {
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        let text = text.replace(&format!(" --output_dir={own}"), "").replace(own, &given);
        text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
    };
    (replaced(printed.stdout), replaced(printed.stderr))
}

/// Without the launcher's own lines.
fn of_trainer(stderr: &[u8]) -> Vec<u8> {
    let lines = stderr.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| !line.starts_with(b"training-launcher: ")).flatten().copied().collect()
}

#[test]
fn every_byte_of_both_streams_is_passed_on_unchanged() {
    for bar in ["true", "false"] {
        let scene = Scene::new();
        let launch =
            scene.launch(1).trainer_argument(&format!("--disable_tqdm={bar}")).faults("noise@2=3000000");
        let (stdout, stderr) = direct(&launch);
        assert!(stdout.len() > 1_000_000);
        let running = launch.start();
        until("it ends", || {
            !running.stderr().is_empty() && running.stderr().contains("training-launcher: ended")
        });
        let raw = fs::read(launch.file("stderr")).unwrap();
        let ended = running.end();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stdout == stdout, "{} bytes instead of {}", ended.stdout.len(), stdout.len());
        assert!(of_trainer(&raw) == stderr, "{} bytes instead of {}", raw.len(), stderr.len());
    }
}

#[test]
fn a_reader_that_is_slow_loses_nothing() {
    let scene = Scene::new();
    let launch = scene.launch(1).faults("noise@2=1000000");
    let (expected, _) = direct(&launch);
    let mut running = launch.start_as(launch.command().stdout(Stdio::piped()));
    let mut stdout = running.launcher.stdout.take().unwrap();
    // The pipe is full and the trainer is blocked: the noise comes before its second step is logged.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(running.is_running());
    let mut read = Vec::new();
    stdout.read_to_end(&mut read).unwrap();
    assert_eq!(running.end().code, 0);
    assert!(read == expected, "{} bytes instead of {}", read.len(), expected.len());
}

#[test]
fn what_is_on_its_way_when_the_trainer_ends_is_not_lost() {
    let scene = Scene::new();
    // More than one pipe holds, and less than two.
    let launch = scene.launch(1).faults("noise@10=100000");
    let (expected, _) = direct(&launch);
    let mut running = launch.start_as(launch.command().stdout(Stdio::piped()));
    until("the trainer has ended", || running.stderr().contains("End time") && running.alive().is_empty());
    // Time for a launcher that does not wait for its reader to end.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut read = Vec::new();
    running.launcher.stdout.take().unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(running.end().code, 0);
    assert!(read == expected, "{} bytes instead of {}", read.len(), expected.len());
}

#[test]
fn a_reader_that_hangs_does_not_block_the_handling_of_signals() {
    let scene = Scene::new();
    let launch = scene.launch(1).long().faults("noise@2=1000000").option("grace-seconds", "4");
    let mut running = launch.start_as(launch.command().stdout(Stdio::piped()).stderr(Stdio::piped()));
    let streams = (running.launcher.stdout.take(), running.launcher.stderr.take());
    until("the trainer runs", || !running.started().is_empty());
    // The pipes are full after the second step.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let began = std::time::Instant::now();
    running.signal(rustix::process::Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, api::launcher::ExitCode::Stopped.code());
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    drop(streams);
}

#[test]
fn a_reader_that_has_gone_does_not_stop_the_training() {
    let scene = Scene::new();
    let launch = scene.launch(1).faults("noise@2=1000000");
    let mut running = launch.start_as(launch.command().stdout(Stdio::piped()));
    drop(running.launcher.stdout.take());
    let ended = running.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.message.step, Some(10));
}

#[test]
fn output_is_passed_on_before_its_line_is_complete() {
    let scene = Scene::new();
    let launch = scene.launch(1).trainer_argument("--disable_tqdm=false").faults("hang@3");
    let running = launch.start();
    running.until_noted("2/10 [");
    assert!(!running.stderr().ends_with('\n'));
}

#[test]
fn the_message_is_whole_and_memory_is_bounded_when_the_log_is_noisy() {
    let scene = Scene::new();
    let launch = scene.launch(1).faults("noise@2=30000000,oom@9");
    let running = launch.start();
    running.until_step(1);
    let before = resident(running.launcher.id());
    running.until_step(8);
    let after = resident(running.launcher.id());
    assert!(after < before + (2 << 10), "{before} KiB before, {after} KiB after");
    let ended = running.end();
    assert_eq!((ended.code, ended.message.cause.as_deref()), (1, Some("CudaOutOfMemory")));
}

/// The most memory that a process has had resident, in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
