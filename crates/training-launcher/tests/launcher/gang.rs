//! Several nodes that share an output folder.

use std::{fs, time::Duration};

use api::launcher::ExitCode;
use rustix::process::Signal;

use crate::scene::{Scene, started, until};

#[test]
fn all_ranks_resume_from_the_checkpoint_that_rank_0_has_chosen() {
    let scene = Scene::new();
    scene.interrupted();
    let follower = scene.launch_rank(2, 1, 2).environment("FAKE_SWIFT_FAULTS", "hang@6");
    let running = follower.start();
    // The marker is still that of the first attempt.
    running.until_noted("waiting until rank 0 has chosen");
    assert!(running.started().is_empty());
    let leader = scene.launch_rank(2, 0, 2);
    let ended = leader.run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    crate::scene::until("rank 1 starts", || !running.started().is_empty());
    let resume = |launch| started(launch)[0].0.last().cloned().unwrap();
    assert_eq!(resume(&follower), scene.checkpoint(5).to_str().unwrap());
    assert_eq!(resume(&leader), resume(&follower));
    assert_eq!(
        scene.marker().unwrap()["run"].as_str(),
        leader.environment.iter().find(|(name, _)| name == "POD_UID").map(|(_, uid)| uid.as_str())
    );
}

#[test]
fn a_rank_without_rank_0_ends_after_a_while_and_names_the_fix() {
    let scene = Scene::new();
    // 30 minutes become 1.8 seconds.
    let launch = scene.launch_rank(1, 1, 2).option("time-divisor", "1000");
    let ended = launch.run();
    assert_eq!(ended.code, ExitCode::OutputUnusable.code(), "{}", ended.stderr);
    let error = ended.message.error.unwrap();
    assert!(error.contains("rank 0") && error.contains("ReadWriteMany"), "{error}");
    assert!(scene.marker().is_none(), "only rank 0 writes the marker");
}

#[test]
fn a_rank_of_an_earlier_attempt_is_superseded() {
    let scene = Scene::new();
    scene.write_marker("job", 3, "pod", "running");
    assert_eq!(scene.launch_rank(2, 1, 2).run().code, ExitCode::Superseded.code());
}

#[test]
fn all_ranks_save_and_end_when_any_pod_is_asked_to() {
    for asked in [0, 1] {
        let scene = Scene::new();
        let leader = scene.launch_rank(1, 0, 2).long().start();
        let follower = scene.launch_rank(1, 1, 2).long().start();
        leader.until_step(3);
        crate::scene::until("rank 1 runs", || !follower.started().is_empty());
        [&leader, &follower][asked].signal(Signal::TERM);
        let ended = leader.end();
        assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
        assert_eq!(ended.message.checkpoint.map(|checkpoint| checkpoint.step), ended.message.step);
        assert_eq!(follower.end().code, ExitCode::Stopped.code());
    }
}

#[test]
fn a_rank_does_not_outlive_rank_0_when_all_are_asked_to_end() {
    let scene = Scene::new();
    let leader = scene.launch_rank(1, 0, 2).long().environment("FAKE_SWIFT_START_MS", "60000").start();
    let follower = scene.launch_rank(1, 1, 2).long().faults("deaf@0").start();
    crate::scene::until("rank 1 runs", || !follower.started().is_empty());
    leader.until_noted("output_dir");
    let began = std::time::Instant::now();
    leader.signal(Signal::TERM);
    follower.signal(Signal::TERM);
    assert_eq!(leader.end().code, ExitCode::Stopped.code());
    let ended = follower.end();
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    // Of a grace period of 30 s.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_rank_that_is_asked_to_end_after_the_failure_of_rank_0_does_not_outlive_it() {
    let scene = Scene::new();
    let follower = scene.launch_rank(1, 1, 2).long().faults("deaf@0").start();
    let leader = scene.launch_rank(1, 0, 2).long().faults("exit@250").start();
    // It trains too, or rank 0 would have ended before it began.
    until("both ranks train", || !follower.alive().is_empty());
    assert_eq!(leader.end().code, 1);
    follower.until_noted("rank 0 has ended");
    let began = std::time::Instant::now();
    follower.signal(Signal::TERM);
    assert_eq!(follower.end().code, ExitCode::Stopped.code());
    // Of a grace period of 30 s.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// As in a collective that waits for the rank that has failed.
#[test]
fn rank_0_that_is_asked_to_end_after_the_failure_of_another_rank_does_not_wait_for_a_checkpoint() {
    let scene = Scene::new();
    let leader = scene.launch_rank(1, 0, 2).long().faults("hang@4").start();
    let follower = scene.launch_rank(1, 1, 2).long().faults("kill-rank@2=1").start();
    leader.until_step(3);
    assert_ne!(follower.end().code, 0);
    leader.until_noted("the trainer of another rank has failed");
    let began = std::time::Instant::now();
    leader.signal(Signal::TERM);
    let ended = leader.end();
    assert_eq!(ended.code, ExitCode::Stopped.code(), "{}", ended.stderr);
    // Of a grace period of 30 s.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // The next attempt has all its ranks.
    let next = scene.launch_rank(2, 0, 2).run();
    assert_eq!(next.code, 0, "{}", next.stderr);
    assert!(!next.stderr.contains("has failed"), "{}", next.stderr);
}

#[test]
fn a_rank_that_begins_after_the_end_of_rank_0_ends_at_once() {
    let scene = Scene::new();
    assert_eq!(scene.launch_rank(1, 0, 2).long().faults("exit@3").run().code, 1);
    let ended = scene.launch_rank(1, 1, 2).run();
    assert_eq!(ended.code, ExitCode::Stopped.code());
    assert!(ended.message.error.unwrap().contains("rank 0 has ended before this rank could start"));
}

#[test]
fn a_request_to_stop_does_not_reach_the_next_attempt() {
    let scene = Scene::new();
    let leader = scene.launch_rank(1, 0, 2).long().start();
    leader.until_step(3);
    leader.signal(Signal::TERM);
    assert_eq!(leader.end().code, ExitCode::Stopped.code());
    assert_eq!(scene.launch_rank(2, 0, 2).run().code, 0);
    let names = fs::read_dir(&scene.output).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_str().unwrap().contains(".stop")));
}
