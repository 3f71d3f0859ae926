//! Two runs at once in one folder, as of two pods that mount one volume.

use std::{fs::File, time::Duration};

use rustix::{
    fs::{FlockOperation, flock},
    process::Signal,
};

use crate::{
    proxy::Break,
    scene::{MIB, Scene, files, noise},
};

const WAITS: &str = "another run copies into this folder";

fn slowly(scene: &Scene) {
    scene.proxy.rule(|request| {
        if request.is_object() { Break::Slow(Duration::from_millis(20)) } else { Break::Nothing }
    });
}

#[test]
fn a_second_run_waits_for_the_first_and_fetches_nothing_again() {
    let scene = Scene::new();
    let content = noise(60, 24 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    scene.gateway.put("qwen/config.json", b"small");
    slowly(&scene);
    let first = scene.pull().start();
    scene.proxy.until_object_bytes(4 * MIB);
    let second = scene.pull().start();
    second.until_says(WAITS, 1);
    scene.proxy.rule(|_| Break::Nothing);
    first.wait().succeeded();
    second.wait().succeeded();
    assert_eq!(scene.pulled(), files([("model.bin", &content), ("config.json", b"small")]));
    assert_eq!(scene.proxy.take_object_bytes(), content.len() as u64 + 5);
}

#[test]
fn a_run_that_is_killed_frees_the_folder_and_the_next_one_goes_on() {
    let scene = Scene::new();
    let content = noise(61, 48 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    slowly(&scene);
    let first = scene.pull().start();
    scene.proxy.until_object_bytes(24 * MIB);
    let second = scene.pull().start();
    second.until_says(WAITS, 1);
    first.send(Signal::KILL);
    scene.proxy.rule(|_| Break::Nothing);
    second.wait().succeeded();
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
    let fetched_twice = scene.proxy.take_object_bytes() - content.len() as u64;
    assert!(fetched_twice <= 16 * MIB as u64, "{fetched_twice} bytes were fetched twice");
}

#[test]
fn a_folder_that_stays_locked_is_reported() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", b"small");
    std::fs::create_dir(scene.folder()).unwrap();
    let lock = File::create(scene.folder().join(".model-transfer.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let ended = scene.pull().env("TRANSFER_TIMEOUT_SECONDS", "4").run();
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(ended.output.contains(WAITS), "{}", ended.output);
    assert!(ended.reported.starts_with("LocalFault: another run has held "), "{}", ended.reported);
    assert!(scene.proxy.take_requests().is_empty(), "it asked the store for a folder that it does not have");
    drop(lock);
    scene.pull().run().succeeded();
}
