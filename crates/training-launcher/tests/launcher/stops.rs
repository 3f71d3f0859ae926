//! What happens when the pod is asked to end: a checkpoint where there is something to save, no orphan, and never a
//! success.

use std::{
    fs,
    time::{Duration, Instant},
};

use api::launcher::ExitCode;
use rustix::process::Signal;

use crate::scene::{Ended, Running, Scene, started};

/// Sends SIGTERM, and returns how the run ended and how long that took.
fn stop(running: Running) -> (Ended, Duration) {
    let began = Instant::now();
    running.signal(Signal::TERM);
    let ended = running.end();
    (ended, began.elapsed())
}

fn assert_saved(scene: &Scene, ended: &Ended) {
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    let message = &ended.message;
    let checkpoint = message.checkpoint.as_ref().expect("a checkpoint");
    assert_eq!(Some(checkpoint.step), message.step, "no step is lost: {message:?}");
    assert!(scene.checkpoint(checkpoint.step).join("trainer_state.json").exists());
    assert!(message.error.as_ref().unwrap().contains("the pod was asked to end"), "{message:?}");
    assert_eq!((&message.cause, message.stopped_early), (&None, false));
    assert_eq!(scene.marker().unwrap()["phase"], "ended");
}

#[test]
fn one_process_saves_a_checkpoint_and_the_run_is_no_success() {
    let scene = Scene::new();
    let running = scene.launch(1).long().start();
    running.until_step(3);
    let (ended, _) = stop(running);
    assert_saved(&scene, &ended);
    assert_eq!(ended.message.exit_code, Some(0), "the trainer itself ends without an error");
}

#[test]
fn two_processes_save_a_checkpoint() {
    let scene = Scene::new();
    let running = scene.launch(1).long().environment("NPROC_PER_NODE", "2").start();
    running.until_step(3);
    assert_eq!(running.alive().len(), 4, "swift, torchrun and two ranks");
    let (ended, _) = stop(running);
    assert_saved(&scene, &ended);
}

#[test]
fn sigint_is_handled_as_sigterm() {
    let scene = Scene::new();
    let running = scene.launch(1).long().start();
    running.until_step(3);
    running.signal(Signal::INT);
    assert_saved(&scene, &running.end());
}

#[test]
fn a_checkpoint_that_takes_long_is_waited_for_and_more_signals_change_nothing() {
    let scene = Scene::new();
    let running = scene.launch(1).long().environment("FAKE_SWIFT_SAVE_MS", "1500").start();
    running.until_step(3);
    running.signal(Signal::TERM);
    running.until_noted("Saving model checkpoint");
    running.signal(Signal::TERM);
    running.signal(Signal::INT);
    assert_saved(&scene, &running.end());
}

#[test]
fn before_the_first_step_the_trainer_is_ended_at_once() {
    let scene = Scene::new();
    let launch = scene.launch(1).long().environment("FAKE_SWIFT_START_MS", "60000");
    let running = launch.start();
    running.until_noted("output_dir");
    let (ended, took) = stop(running);
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(!launch.stop_file().exists());
    assert!(ended.message.error.unwrap().contains("before its first step"));
}

#[test]
fn without_a_stop_file_the_trainer_is_ended_at_once_and_leaves_no_orphan() {
    let scene = Scene::new();
    let running = scene.launch(1).long().without_stop_file().start();
    running.until_step(3);
    let (ended, took) = stop(running);
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_trainer_that_does_not_end_is_killed_within_the_grace_period() {
    for processes in ["1", "2"] {
        let scene = Scene::new();
        let launch = scene.launch(1).long().option("grace-seconds", "3").faults("deaf@0,orphan@2");
        let running = launch.environment("NPROC_PER_NODE", processes).start();
        running.until_step(3);
        let (ended, took) = stop(running);
        assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
        assert!(took > Duration::from_secs(1) && took < Duration::from_secs(3), "{took:?}");
    }
}

#[test]
fn a_trainer_that_ignores_sigterm_is_killed() {
    let scene = Scene::new();
    let path = "/usr/bin:/bin";
    let mut launch = scene.launch(1).long().environment("PATH", path).without_stop_file().faults("deaf@0");
    let rest = std::mem::take(&mut launch.trainer).join(" ");
    // What is ignored stays ignored in the program that a shell becomes.
    launch.trainer = ["/bin/sh", "-c", &format!("trap '' TERM; exec {rest}")].map(str::to_owned).to_vec();
    let running = launch.start();
    running.until_step(2);
    let (ended, took) = stop(running);
    assert_eq!((ended.code, ended.message.signal), (ExitCode::Stopped.code(), Some(9)), "{}", ended.stderr);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn ppo_saves_and_goes_on_and_is_ended_soon_after() {
    let scene = Scene::new();
    let launch = scene.launch(1).long().trainer_argument("--rlhf_type=ppo").option("grace-seconds", "60");
    let running = launch.start();
    crate::scene::until("a step", || String::from_utf8_lossy(&running.stdout()).contains("'eps'"));
    let (ended, took) = stop(running);
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    assert!(ended.message.checkpoint.is_some());
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_resumed_training_saves_before_it_has_logged_a_step() {
    let scene = Scene::new();
    scene.interrupted();
    let launch = scene.launch(2).long().trainer_argument("--logging_steps=100000");
    let running = launch.start();
    running.until_noted("The logging file will be saved in");
    let (ended, _) = stop(running);
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    assert!(ended.message.checkpoint.unwrap().step > 5);
}

#[test]
fn a_stop_that_comes_with_the_last_step_is_a_success() {
    let scene = Scene::new();
    let running = scene.launch(1).environment("FAKE_SWIFT_SAVE_MS", "700").start();
    running.until_noted("checkpoint-10");
    let (ended, _) = stop(running);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn a_stale_stop_file_is_removed_before_the_trainer_starts() {
    let scene = Scene::new();
    let launch = scene.launch(1);
    fs::write(launch.stop_file(), "").unwrap();
    assert_eq!(launch.run().code, 0);
}

#[test]
fn a_stop_before_the_trainer_starts_starts_none() {
    let scene = Scene::new();
    scene.write_marker("job", 1, "pod", "running");
    let launch = scene.launch(2).option("time-divisor", "1");
    let running = launch.start();
    running.until_noted("waiting");
    let (ended, took) = stop(running);
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(started(&launch).is_empty());
    assert_eq!(scene.marker().unwrap()["phase"], "ended", "the next attempt need not wait");
}
