//! A pull that was killed at any point is resumed.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    proxy::Break,
    scene::{MIB, Scene, files, noise},
};

/// What the connections of six parts may hold that is not yet written, and what is on its way to them. Less than the 24 MiB
/// that a run without the earlier parts fetches again.
const UNDER_WAY: u64 = 16 * MIB as u64;

/// Before every 64 KiB.
const PAUSE: Duration = Duration::from_millis(20);

/// Limit for the end after SIGTERM. The promise is a second, on a machine that is not busy; what the program must not wait for
/// takes longer than this.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Slow enough to be interrupted in the middle.
fn slowly(scene: &Scene) {
    scene.proxy.rule(|request| if request.is_object() { Break::Slow(PAUSE) } else { Break::Nothing });
}

#[test]
fn a_killed_pull_fetches_only_what_was_not_there() {
    let scene = Scene::new();
    let content = noise(30, 96 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    scene.gateway.put("qwen/config.json", b"small");
    for part in 1..=3 {
        slowly(&scene);
        let pull = scene.pull().start();
        scene.proxy.until_object_bytes(part * 24 * MIB);
        pull.send(Signal::KILL);
        assert_eq!(pull.wait().code, None);
        assert!(!scene.pulled().contains_key("model.bin"), "what is not whole must not be in its place");
    }
    scene.proxy.rule(|_| Break::Nothing);
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([("model.bin", &content), ("config.json", b"small")]));
    let fetched_twice = scene.proxy.take_object_bytes() - content.len() as u64;
    assert!(fetched_twice <= 3 * UNDER_WAY, "{fetched_twice} bytes were fetched twice in three kills");
}

#[test]
fn sigterm_ends_it_soon_and_the_next_run_goes_on() {
    /// Of 16 MiB each.
    const PARTS: usize = 3;
    let scene = Scene::new();
    let content = noise(31, 48 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    // The second half of each part takes eight requests, each of which is given up after two seconds without a byte.
    scene.proxy.rule(|request| {
        let bytes = if request.number < PARTS { 8 * MIB } else { MIB };
        if request.is_object() { Break::SlowThenStall(PAUSE, bytes as u64) } else { Break::Nothing }
    });
    let pull = scene.pull().start();
    scene.proxy.until_object_bytes(24 * MIB);
    let signalled = Instant::now();
    pull.send(Signal::TERM);
    let ended = pull.wait();
    assert!(signalled.elapsed() < ENDS_WITHIN, "{:?}", signalled.elapsed());
    assert_eq!(ended.code, Some(143), "{}", ended.output);
    assert!(ended.reported.starts_with("Stopped: stopped by SIGTERM"), "{}", ended.reported);

    scene.proxy.rule(|_| Break::Nothing);
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
    let fetched_twice = scene.proxy.take_object_bytes() - content.len() as u64;
    assert!(fetched_twice <= UNDER_WAY, "{fetched_twice} bytes were fetched twice");
}

#[test]
fn sigterm_is_obeyed_while_it_waits() {
    let scene = Scene::new();
    scene.proxy.rule(|_| Break::Status(503, "Retry-After: 30\r\n"));
    let pull = scene.pull().start();
    pull.until_says("trying again", 1);
    let signalled = Instant::now();
    pull.send(Signal::TERM);
    assert_eq!(pull.wait().code, Some(143));
    assert!(signalled.elapsed() < ENDS_WITHIN, "{:?}", signalled.elapsed());
}

#[test]
fn what_is_there_of_an_object_that_has_changed_is_not_used() {
    let scene = Scene::new();
    scene.gateway.put_in_parts("qwen/model.bin", &noise(32, 24 * MIB));
    slowly(&scene);
    let pull = scene.pull().start();
    scene.proxy.until_object_bytes(12 * MIB);
    pull.send(Signal::KILL);
    pull.wait();
    let new = noise(33, 24 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &new);
    scene.proxy.rule(|_| Break::Nothing);
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([("model.bin", &new)]));
}

#[test]
fn after_a_write_that_failed_nothing_of_the_file_is_trusted() {
    let scene = Scene::new();
    let content = noise(37, 48 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    slowly(&scene);
    let pull = scene.pull().start();
    scene.proxy.until_object_bytes(24 * MIB);
    pull.send(Signal::KILL);
    pull.wait();
    scene.proxy.rule(|_| Break::Nothing);
    // Of the three parts at least two go on beyond this many blocks.
    let ended = scene.pull().after("trap '' XFSZ; ulimit -f 1024").run();
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(ended.reported.starts_with("LocalFault: failed to write"), "{}", ended.reported);

    scene.proxy.take_object_bytes();
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
    assert_eq!(scene.proxy.take_object_bytes(), content.len() as u64);
}

#[test]
fn sigterm_ends_it_while_its_volume_hangs() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", b"x");
    std::fs::create_dir(scene.folder()).unwrap();
    // Opened for writing, a pipe without a reader is waited for without an end.
    let hangs = scene.folder().join(".model-transfer.jsonl");
    rustix::fs::mkfifoat(rustix::fs::CWD, &hangs, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let pull = scene.pull().start();
    crate::scene::until("it waits for the volume", || pull.waits_in("wait_for_partner"));
    pull.send(Signal::TERM);
    assert!(pull.ends_within(Duration::from_secs(10)), "a volume that hangs holds it");
    assert_eq!(pull.wait().code, Some(143));
}
