//! Wrong bytes never become a file of the model: the checks of each file, and mismatches.

use std::sync::mpsc;

use api::loader::ExitCode;
use rustix::process::Signal;
use sha2::{Digest as _, Sha256};

use crate::{
    program::Program,
    proxy::{Break, COMES_WITHIN},
    scene::{MIB, Scene, files, noise},
};

pub(crate) fn sha256sums<const N: usize>(files: [(&str, &[u8]); N]) -> Vec<u8> {
    let line = |(path, content): (&str, &[u8])| {
        let digest: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digest}  {path}\n")
    };
    files.into_iter().map(line).collect::<String>().into_bytes()
}

#[test]
fn a_flipped_byte_is_found_and_fetched_again() {
    let scene = Scene::new();
    let content = noise(20, 18 * MIB);
    scene.gateway.put("qwen/model.bin", &content);
    // In the second part, which is fetched beside the first.
    scene.proxy.rule(|request| match request.number {
        1 if request.is_object() => Break::FlipAt(MIB as u64 + 5),
        _ => Break::Nothing,
    });
    let ended = scene.pull().run();
    ended.succeeded();
    assert!(
        ended.output.contains("\"model.bin\" does not match its checksum; fetching it again"),
        "{}",
        ended.output
    );
    assert!(ended.output.contains("by MD5: 1"), "{}", ended.output);
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
}

#[test]
fn a_store_that_answers_no_head_is_pulled_from() {
    let scene = Scene::new();
    let content = noise(26, 18 * MIB);
    scene.gateway.put("qwen/model.bin", &content);
    for status in [405, 501, 500] {
        scene.proxy.rule(
            move |request| if request.method == "HEAD" { Break::Status(status, "") } else { Break::Nothing },
        );
        let ended = scene.pull().run();
        ended.succeeded();
        assert!(ended.output.contains("by MD5: 1"), "{status}: {}", ended.output);
        std::fs::remove_dir_all(scene.folder()).unwrap();
    }
}

#[test]
fn an_object_that_is_corrupt_in_the_store_is_reported_and_heals_when_it_is_uploaded_again() {
    let scene = Scene::new();
    let content = noise(21, 70_000);
    scene.gateway.put("qwen/model.bin", &content);
    scene.gateway.put("qwen/config.json", b"fine");
    flip_in_store(&scene, "qwen/model.bin");
    scene.pull().run().failed(ExitCode::ChecksumMismatch, "\"qwen/model.bin\" does not match its checksum");
    assert!(!scene.pulled().contains_key("model.bin"), "a file that is wrong must not be in its place");

    let again = scene.pull().start();
    again.until_says("looking again", 1);
    let fetched = scene.proxy.object_bytes();
    again.until_says("looking again", 2);
    assert_eq!(scene.proxy.object_bytes(), fetched, "the same wrong bytes were fetched again");
    scene.gateway.put("qwen/model.bin", &noise(22, 70_000));
    again.wait().succeeded();
    assert_eq!(scene.pulled(), files([("config.json", b"fine"), ("model.bin", &noise(22, 70_000))]));
}

#[test]
fn sha256sums_finds_what_the_etag_of_parts_cannot() {
    let scene = Scene::new();
    let content = noise(23, 6 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    scene.gateway.put("qwen/SHA256SUMS", &sha256sums([("model.bin", &content)]));
    let ended = scene.pull().run();
    ended.succeeded();
    assert!(
        ended.output.contains("by SHA-256: 2, by MD5: 0, by CRC-64: 0, by length only: 0"),
        "{}",
        ended.output
    );

    std::fs::remove_dir_all(scene.folder()).unwrap();
    flip_in_store(&scene, "qwen/model.bin");
    scene.pull().run().failed(ExitCode::ChecksumMismatch, "\"qwen/model.bin\" does not match its checksum");
}

#[test]
fn the_digest_that_a_push_leaves_with_each_object_is_checked_without_the_list() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.bin"), noise(29, 20 * MIB)).unwrap();
    let arguments = ["push", folder.path().to_str().unwrap(), "s3://models/qwen"];
    Program::new(scene.gateway.address, arguments).run().uploaded();
    std::fs::remove_file(scene.gateway.file("qwen/SHA256SUMS")).unwrap();
    let ended = scene.pull().run();
    ended.succeeded();
    assert!(ended.output.contains("by SHA-256: 1, by MD5: 0"), "{}", ended.output);

    std::fs::remove_dir_all(scene.folder()).unwrap();
    flip_in_store(&scene, "qwen/model.bin");
    scene.pull().run().failed(ExitCode::ChecksumMismatch, "\"qwen/model.bin\" does not match its checksum");
}

#[test]
fn the_crc_that_a_store_keeps_of_a_whole_object_is_checked() {
    let scene = Scene::new();
    let (small, large) = (noise(34, 5000), noise(35, 40 * MIB + 5));
    scene.gateway.put_in_parts("qwen/small.bin", &small);
    scene.gateway.put_in_parts("qwen/large.bin", &large);
    let ended = scene.pull().run();
    ended.succeeded();
    assert!(ended.output.contains("by CRC-64: 2, by length only: 0"), "{}", ended.output);
    assert_eq!(scene.pulled(), files([("small.bin", &small), ("large.bin", &large)]));
    for key in ["qwen/small.bin", "qwen/large.bin"] {
        std::fs::remove_dir_all(scene.folder()).unwrap();
        flip_in_store(&scene, key);
        scene.pull().run().failed(ExitCode::ChecksumMismatch, "does not match its checksum");
        flip_in_store(&scene, key);
    }
}

#[test]
fn a_crc_takes_in_what_an_earlier_run_has_fetched() {
    let scene = Scene::new();
    let content = noise(36, 48 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    for spoil in [false, true] {
        scene.proxy.rule(|request| match request.is_object() {
            true => Break::Slow(std::time::Duration::from_millis(20)),
            false => Break::Nothing,
        });
        let pull = scene.pull().start();
        scene.proxy.until_object_bytes(24 * MIB);
        pull.send(Signal::KILL);
        pull.wait();
        if spoil {
            flip_on_the_way(&scene);
        }
        scene.proxy.rule(|_| Break::Nothing);
        let ended = scene.pull().run();
        ended.succeeded();
        assert!(ended.output.contains("by CRC-64: 1"), "{}", ended.output);
        assert_eq!(ended.output.contains("fetching it again"), spoil, "{}", ended.output);
        assert_eq!(scene.pulled(), files([("model.bin", &content)]));
        std::fs::remove_dir_all(scene.folder()).unwrap();
        scene.proxy.take_object_bytes();
    }
}

/// Changes the first byte of what an interrupted run has left.
fn flip_on_the_way(scene: &Scene) {
    let left = std::fs::read_dir(scene.folder().join(".model-transfer.partial")).unwrap();
    let mut data = left
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|name| name == "data"));
    let data = data.next().unwrap();
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&data, bytes).unwrap();
}

#[test]
fn without_any_checksum_only_the_length_is_claimed() {
    let scene = Scene::new();
    scene.gateway.put_in_parts("qwen/model.bin", &noise(24, 6 * MIB));
    scene.proxy.rule(|_| Break::Header("x-amz-checksum-crc64nvme: none"));
    let ended = scene.pull().run();
    ended.succeeded();
    assert!(
        ended.output.contains("by SHA-256: 0, by MD5: 0, by CRC-64: 0, by length only: 1"),
        "{}",
        ended.output
    );
}

#[test]
fn the_etag_of_an_object_that_a_key_service_encrypted_is_not_taken_for_its_md5() {
    let scene = Scene::new();
    scene.gateway.put("qwen/model.bin", &noise(28, 5000));
    flip_in_store(&scene, "qwen/model.bin");
    scene
        .proxy
        .rule(|_| Break::Header("x-amz-server-side-encryption: aws:kms\r\nx-amz-checksum-crc64nvme: none"));
    let ended = scene.pull().run();
    ended.succeeded();
    assert!(ended.output.contains("by MD5: 0, by CRC-64: 0, by length only: 1"), "{}", ended.output);
}

#[test]
fn a_model_without_a_file_that_sha256sums_lists_is_not_whole() {
    let scene = Scene::new();
    scene.gateway.put("qwen/a.bin", b"a");
    scene.gateway.put("qwen/SHA256SUMS", &sha256sums([("a.bin", b"a"), ("b.bin", b"b")]));
    scene.pull().run().failed(ExitCode::ChecksumMismatch, "lists \"b.bin\", which is not there");
}

#[test]
fn a_list_of_checksums_that_is_invalid_is_reported() {
    let scene = Scene::new();
    scene.gateway.put("qwen/a.bin", b"a");
    scene.gateway.put("qwen/SHA256SUMS", b"<html>");
    scene.pull().run().failed(ExitCode::ChecksumMismatch, "no digest and path in line 1");
}

#[test]
fn answers_that_are_too_short_or_too_long_are_not_taken() {
    for broken in [Break::Shorten(10), Break::ClaimLonger] {
        let scene = Scene::new();
        let content = noise(25, 100_000);
        scene.gateway.put_in_parts("qwen/model.bin", &content);
        let once = broken.clone();
        scene.proxy.rule(move |request| {
            if request.is_object() && request.number == 0 { once.clone() } else { Break::Nothing }
        });
        scene.pull().run().succeeded();
        assert_eq!(scene.pulled(), files([("model.bin", &content)]), "{broken:?}");

        std::fs::remove_dir_all(scene.folder()).unwrap();
        let always = broken.clone();
        scene.proxy.rule(move |request| if request.is_object() { always.clone() } else { Break::Nothing });
        scene.pull().run().failed(ExitCode::ChecksumMismatch, "qwen/model.bin");
        assert!(scene.pulled().is_empty(), "{broken:?}");
    }
}

#[test]
fn an_object_that_changes_on_the_way_is_never_mixed() {
    let scene = Scene::new();
    let (old, new) = (noise(26, 20 * MIB), noise(27, 20 * MIB));
    scene.gateway.put_in_parts("qwen/model.bin", &old);
    let (reached, halfway) = mpsc::channel();
    let (changed, go_on) = mpsc::channel();
    scene.proxy.rule(move |request| match request.number {
        // Of both parts a beginning is there,
        0 | 1 if request.is_object() => Break::CutAfter(2 * MIB as u64),
        // and nothing else is asked for until the object is another.
        2 if request.is_object() => {
            reached.send(()).unwrap();
            go_on.recv_timeout(COMES_WITHIN).unwrap();
            Break::Nothing
        }
        _ => Break::Nothing,
    });
    let pull = scene.pull().start();
    halfway.recv_timeout(COMES_WITHIN).unwrap();
    scene.gateway.put_in_parts("qwen/model.bin", &new);
    changed.send(()).unwrap();
    pull.wait().succeeded();
    assert!(scene.pulled() == files([("model.bin", &new)]), "a mixture");
}

pub(crate) fn flip_in_store(scene: &Scene, key: &str) {
    let file = scene.gateway.file(key);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[1000] ^= 1;
    // In place: the ETag is an attribute of the file.
    std::fs::write(&file, bytes).unwrap();
}
