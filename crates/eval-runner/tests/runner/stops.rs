//! A pod that is asked to end, and the run after it.

use std::time::{Duration, Instant};

use api::launcher::evaluator::ExitCode;
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{Run, Running, Scene};

fn asking(run: Run) -> Run {
    run.environment("FAKE_HARNESS_MS", "60000").environment("FAKE_HARNESS_STDERR", "asking")
}

fn terminate(running: &Running) {
    let pid = Pid::from_raw(i32::try_from(running.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

#[test]
fn a_stop_ends_the_harness_and_the_next_run_repeats_the_side() {
    let scene = Scene::new();
    let running = asking(scene.run("baseline")).start();
    running.until("asking\n");
    let began = Instant::now();
    terminate(&running);
    running.end().failed(ExitCode::Stopped, "its next run repeats it");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(!scene.scores("baseline").exists());
    assert!(!scene.run("baseline").end().side().reused);
}

#[test]
fn a_harness_that_ignores_the_signal_is_killed_within_the_grace_period() {
    let scene = Scene::new();
    let mut run = asking(scene.run("baseline"));
    // What is ignored stays ignored in the program that a shell becomes.
    let shell = ["/bin/sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""].map(str::to_owned);
    run.program = shell.into_iter().chain(run.program).collect();
    let running = run.start();
    running.until("asking\n");
    let began = Instant::now();
    terminate(&running);
    running.end().failed(ExitCode::Stopped, "");
    let took = began.elapsed();
    assert!(took > Duration::from_secs(2) && took < Duration::from_secs(6), "{took:?}");
}

#[test]
fn a_stop_before_the_server_answers_starts_no_harness() {
    let mut scene = Scene::new();
    scene.server.stop();
    let run = scene.run("baseline").option("time-divisor", "1");
    let running = run.start();
    running.until("waits for the server");
    terminate(&running);
    running.end().failed(ExitCode::Stopped, "");
    assert!(run.record().is_none());
}

#[test]
fn a_run_that_was_killed_leaves_nothing_that_counts() {
    let scene = Scene::new();
    for _ in 0..3 {
        let mut running = asking(scene.run("baseline")).start();
        running.until("asking\n");
        running.child.kill().unwrap();
        drop(running);
        assert!(!scene.scores("baseline").exists());
    }
    assert_eq!(scene.run("baseline").end().side().questions, 20);
}
