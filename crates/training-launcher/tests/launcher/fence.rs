//! Two attempts never write at once.

use std::{
    fs,
    time::{Duration, Instant, SystemTime},
};

use api::launcher::ExitCode;
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, Signal},
};

use crate::scene::{Running, Scene, started, state, until};

/// All processes of a trainer are suspended.
fn is_suspended(running: &Running) -> bool {
    let alive = running.alive();
    !alive.is_empty() && alive.iter().all(|pid| state(*pid) == Some('T'))
}

#[test]
fn a_later_attempt_ends_the_one_before_and_starts_after_its_end() {
    let scene = Scene::new();
    let first = scene.launch(1).long().faults("deaf@0,orphan@1").environment("NPROC_PER_NODE", "2").start();
    first.until_step(3);
    let launch = scene.launch(2);
    let second = launch.start();
    let ended = first.end();
    let ended_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    assert_eq!(ended.code, ExitCode::Superseded.code(), "{}", ended.stderr);
    assert!(ended.message.error.unwrap().contains("attempt 2"));
    assert_eq!(second.end().code, 0);
    assert!(
        started(&launch)[0].1 > ended_at,
        "the second trainer starts when no process of the first one is left"
    );
    let marker = scene.marker().unwrap();
    assert_eq!(
        (&marker["attempt"], &marker["phase"]),
        (&2.into(), &"ended".into()),
        "the first one has not written it"
    );
}

#[test]
fn an_attempt_that_is_frozen_meanwhile_does_not_write_when_it_comes_back() {
    let scene = Scene::new();
    let first = scene.launch(1).long().start();
    first.until_step(3);
    let frozen = first.alive();
    first.signal(Signal::STOP);
    for pid in &frozen {
        rustix::process::kill_process(Pid::from_raw(*pid).unwrap(), Signal::STOP).unwrap();
    }
    // The first attempt does not answer, and its successor waits for its fence.
    let second = scene.launch(2).run();
    assert_eq!(second.code, 0, "{}", second.stderr);
    assert!(second.stderr.contains("waiting"), "{}", second.stderr);
    first.signal(Signal::CONT);
    let ended = first.end();
    assert_eq!(ended.code, ExitCode::Superseded.code(), "{}", ended.stderr);
    assert_eq!(scene.marker().unwrap()["attempt"], 2);
}

#[test]
fn an_attempt_waits_only_for_one_that_has_not_ended() {
    let scene = Scene::new();
    scene.interrupted();
    let second = scene.launch(2).option("time-divisor", "1").faults("exit@7").run();
    assert!(!second.stderr.contains("waiting"), "{}", second.stderr);
    scene.write_marker("job", 2, "pod", "claimed");
    assert!(scene.launch(3).run().stderr.contains("waiting"));
}

#[test]
fn another_pod_of_the_same_attempt_supersedes_too() {
    let scene = Scene::new();
    let first = scene.launch(1).long().start();
    first.until_step(1);
    let second = scene.launch(1).start();
    assert_eq!(first.end().code, ExitCode::Superseded.code());
    assert_eq!(second.end().code, 0);
}

#[test]
fn an_earlier_attempt_that_starts_late_touches_nothing() {
    let scene = Scene::new();
    scene.write_marker("job", 3, "pod", "running");
    fs::create_dir(scene.checkpoint(5)).unwrap();
    let before = scene.marker();
    let launch = scene.launch(2);
    let ended = launch.run();
    assert_eq!(ended.code, ExitCode::Superseded.code(), "{}", ended.stderr);
    assert_eq!(scene.marker(), before);
    assert!(scene.checkpoint(5).exists() && started(&launch).is_empty());
}

#[test]
fn an_output_in_which_another_job_runs_is_not_used() {
    let scene = Scene::new();
    scene.write_marker("other", 1, "pod", "running");
    let ended = scene.launch(5).run();
    assert_eq!(ended.code, ExitCode::OutputNotEmpty.code(), "{}", ended.stderr);
    assert!(ended.message.error.unwrap().contains("uid other"));
}

#[test]
fn a_trainer_is_suspended_while_the_marker_cannot_be_read() {
    let scene = Scene::new();
    let mut running = scene.launch(1).long().environment("NPROC_PER_NODE", "2").start();
    running.until_step(3);
    let away = scene.output.join("away");
    fs::rename(scene.marker_path(), &away).unwrap();
    until("the trainer is suspended", || is_suspended(&running));
    let steps = running.steps();
    fs::rename(&away, scene.marker_path()).unwrap();
    until("the trainer goes on", || running.steps() > steps);
    assert!(running.is_running());
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, ExitCode::Stopped.code());
}

#[test]
fn an_output_that_is_gone_for_good_ends_the_run() {
    let scene = Scene::new();
    // 15 minutes become 0.9 seconds.
    let running = scene.launch(1).long().option("time-divisor", "1000").start();
    running.until_step(1);
    fs::remove_file(scene.marker_path()).unwrap();
    let ended = running.end();
    assert_eq!(ended.code, ExitCode::OutputUnusable.code(), "{}", ended.stderr);
    assert!(ended.message.error.unwrap().contains("the marker has been deleted"));
}

#[test]
fn a_file_system_that_hangs_suspends_the_trainer_and_blocks_no_signal() {
    let scene = Scene::new();
    let running = scene.launch(1).long().option("grace-seconds", "3").start();
    running.until_step(3);
    // Opening a pipe without a writer hangs.
    let pipe = scene.output.join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::rename(&pipe, scene.marker_path()).unwrap();
    until("the trainer is suspended", || is_suspended(&running));
    let began = Instant::now();
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn a_late_write_of_an_earlier_attempt_does_not_end_the_owner() {
    let scene = Scene::new();
    let running = scene.launch(2).long().start();
    running.until_step(1);
    scene.write_marker("job", 1, "pod", "ended");
    until("the marker is restored", || scene.marker().is_some_and(|marker| marker["attempt"] == 2));
    let steps = running.steps();
    until("the training goes on", || running.steps() > steps);
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, ExitCode::Stopped.code());
}
