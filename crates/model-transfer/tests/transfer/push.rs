//! The objects that a push writes.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path};

use api::loader::ExitCode;
use rustix::process::Signal;

use crate::{
    checks::sha256sums,
    manifest::digest_of,
    program::Program,
    proxy::{Break, Request},
    scene::{MIB, Scene, files, noise, until},
};

fn push(scene: &Scene, folder: &Path) -> Program {
    Program::new(scene.proxy.address, ["push", folder.to_str().unwrap(), "s3://models/out"])
}

/// The objects that requests wrote to, and how often.
fn written(requests: &[Request]) -> BTreeMap<String, usize> {
    let mut written = BTreeMap::new();
    for request in requests.iter().filter(|request| ["PUT", "POST"].contains(&request.method.as_str())) {
        *written.entry(request.path.clone()).or_default() += 1;
    }
    written
}

#[test]
fn what_was_pushed_can_be_pulled() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    let large = noise(50, 20 * MIB + 3);
    fs::create_dir(folder.path().join("checkpoint 1")).unwrap();
    fs::write(folder.path().join("checkpoint 1/ü.bin"), &large).unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    fs::write(folder.path().join("empty"), "").unwrap();
    push(&scene, folder.path()).run().uploaded();

    let pull = scene.pull_from("s3://models/out").run();
    pull.succeeded();
    assert!(pull.output.contains("by SHA-256: 4, by MD5: 0"), "{}", pull.output);
    let mut pulled = scene.pulled();
    assert!(pulled.remove("SHA256SUMS").is_some());
    assert_eq!(pulled, files([("checkpoint 1/ü.bin", &large), ("config.json", b"{}"), ("empty", b"")]));
}

#[test]
fn the_list_of_checksums_comes_last() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), noise(51, 9 * MIB)).unwrap();
    fs::write(folder.path().join("z.bin"), "z").unwrap();
    push(&scene, folder.path()).run().uploaded();
    let requests = scene.proxy.take_requests();
    let last = requests.iter().rfind(|request| request.method != "GET").unwrap();
    assert_eq!((last.method.as_str(), last.path.as_str()), ("PUT", "/models/out/SHA256SUMS"));
}

#[test]
fn a_second_push_sends_nothing() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), noise(52, 9 * MIB)).unwrap();
    fs::write(folder.path().join("b.bin"), "b").unwrap();
    push(&scene, folder.path()).run().uploaded();
    scene.proxy.take_requests();
    push(&scene, folder.path()).run().uploaded();
    assert_eq!(written(&scene.proxy.take_requests()), BTreeMap::new());

    fs::write(folder.path().join("b.bin"), "B").unwrap();
    push(&scene, folder.path()).run().uploaded();
    let changed = written(&scene.proxy.take_requests());
    let paths: Vec<&str> = changed.keys().map(String::as_str).collect();
    assert_eq!(paths, ["/models/out/SHA256SUMS", "/models/out/b.bin"]);
}

#[test]
fn a_push_that_was_killed_sends_whole_files_only_once() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), noise(53, 10 * MIB)).unwrap();
    fs::write(folder.path().join("b.bin"), noise(54, 10 * MIB)).unwrap();
    // The second never completes.
    scene.proxy.rule(
        |request| {
            if request.path.ends_with("b.bin") { Break::Status(503, "") } else { Break::Nothing }
        },
    );
    let first = push(&scene, folder.path()).start();
    until("the first is there", || scene.gateway.get("out/a.bin").is_some());
    first.send(Signal::KILL);
    first.wait();
    scene.proxy.take_requests();
    scene.proxy.rule(|_| Break::Nothing);
    push(&scene, folder.path()).run().uploaded();
    let written = written(&scene.proxy.take_requests());
    assert!(!written.contains_key("/models/out/a.bin"), "{written:?}");
    assert_eq!(scene.gateway.get("out/b.bin").unwrap(), noise(54, 10 * MIB));
}

#[test]
fn transient_errors_are_retried_and_others_reported() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), noise(55, 20 * MIB)).unwrap();
    let mut answers = 0;
    scene.proxy.rule(move |_| {
        answers += 1;
        if answers % 3 == 1 { Break::Status(503, "") } else { Break::Nothing }
    });
    push(&scene, folder.path()).run().uploaded();
    assert_eq!(scene.gateway.get("out/a.bin").unwrap(), noise(55, 20 * MIB));

    scene.proxy.rule(|_| Break::Nothing);
    push(&scene, folder.path())
        .env("AWS_SECRET_ACCESS_KEY", "another")
        .run()
        .failed(ExitCode::SourceUnauthorized, "refused the credentials");
    let nowhere =
        Program::new(scene.proxy.address, ["push", folder.path().to_str().unwrap(), "s3://nowhere/out"]);
    nowhere.run().failed(ExitCode::SourceNotFound, "there is no such bucket");
}

#[test]
fn a_lost_answer_to_the_last_request_does_not_send_all_again() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), noise(56, 20 * MIB)).unwrap();
    let mut completions = 0;
    scene.proxy.rule(move |request| {
        if request.method != "POST" || !request.query.starts_with("uploadId") {
            return Break::Nothing;
        }
        completions += 1;
        // The store did it, and has since forgotten the upload, as it may.
        if completions == 1 { Break::CutAfter(0) } else { Break::Status(404, "") }
    });
    push(&scene, folder.path()).run().uploaded();
    let parts =
        scene.proxy.take_requests().iter().filter(|request| request.query.contains("partNumber")).count();
    assert_eq!(parts, 3);
    assert_eq!(scene.gateway.get("out/a.bin").unwrap(), noise(56, 20 * MIB));
}

#[test]
fn links_out_of_the_folder_are_left_out_and_named() {
    let scene = Scene::new();
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::write(folder.path().join("a.bin"), "a").unwrap();
    symlink(outside.path().join("secret"), folder.path().join("link")).unwrap();
    let ended = push(&scene, folder.path()).run();
    ended.uploaded();
    assert!(ended.output.contains("\"link\" is left out"), "{}", ended.output);
    assert_eq!(scene.gateway.get("out/link"), None);
}

#[test]
fn lines_of_files_that_are_still_there_stay_in_the_list() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    push(&scene, folder.path()).run().uploaded();
    fs::remove_file(folder.path().join("a")).unwrap();
    fs::remove_file(folder.path().join("b")).unwrap();
    fs::remove_file(scene.gateway.file("out/b")).unwrap();
    push(&scene, folder.path()).run().uploaded();
    let list = String::from_utf8(scene.gateway.get("out/SHA256SUMS").unwrap()).unwrap();
    let listed: Vec<&str> = list.lines().map(|line| &line[66..]).collect();
    assert_eq!(listed, ["a", "c"]);
}

#[test]
fn an_object_that_another_program_has_written_is_sent_again() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), "mine").unwrap();
    push(&scene, folder.path()).run().uploaded();
    scene.gateway.put("out/a.bin", b"bad!");
    push(&scene, folder.path()).run().uploaded();
    assert_eq!(scene.gateway.get("out/a.bin").unwrap(), b"mine");
    let list = scene.gateway.get("out/SHA256SUMS").unwrap();
    assert!(String::from_utf8(list).unwrap().ends_with("  a.bin\n"));
}

/// Paths that the list in the store has now.
fn listed(list: &Path) -> Vec<String> {
    let list = fs::read_to_string(list).unwrap_or_default();
    list.lines().map(|line| line[66..].to_owned()).collect()
}

#[test]
fn a_list_that_is_longer_than_it_was_listed_is_not_read_to_its_end() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), "a").unwrap();
    scene.gateway.put("out/SHA256SUMS", b"x");
    let long = " ".repeat(17 * MIB);
    scene.proxy.rule(
        move |request| {
            if request.is_object() { Break::Answer(long.clone()) } else { Break::Nothing }
        },
    );
    let ended = push(&scene, folder.path()).run();
    ended.failed(ExitCode::ChecksumMismatch, "SHA256SUMS is larger than 16.0 MiB");
}

#[test]
fn while_objects_are_replaced_the_list_does_not_name_them() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.bin", "b.bin"] {
        fs::write(folder.path().join(name), "old").unwrap();
    }
    push(&scene, folder.path()).run().uploaded();
    fs::remove_file(folder.path().join("b.bin")).unwrap();
    fs::write(folder.path().join("a.bin"), "new").unwrap();
    let list = scene.gateway.file("out/SHA256SUMS");
    let at_list = list.clone();
    let (seen, sees) = std::sync::mpsc::channel();
    scene.proxy.rule(move |request| {
        if request.method == "PUT" && request.path.ends_with("a.bin") {
            seen.send(listed(&at_list)).unwrap();
            return Break::Status(403, "");
        }
        Break::Nothing
    });
    push(&scene, folder.path()).run().failed(ExitCode::SourceUnauthorized, "refused the credentials");
    assert_eq!(sees.try_recv().unwrap(), [".model-transfer.push", "b.bin"]);
    let under_way = "a push to s3://models/out is under way or was interrupted: run it again";
    scene.pull_from("s3://models/out").run().failed(ExitCode::ChecksumMismatch, under_way);
    let pinned = scene.pull_from("s3://models/out").arg(&format!("--manifest-digest=sha256:{:064}", 0));
    pinned.env("TRANSFER_PATIENCE_SECONDS", "1").run().failed(ExitCode::ChecksumMismatch, under_way);

    // A push that was interrupted there loses no line.
    scene.proxy.rule(|_| Break::Nothing);
    push(&scene, folder.path()).run().uploaded();
    assert_eq!(listed(&list), ["a.bin", "b.bin"]);
    assert_eq!(scene.gateway.get("out/a.bin").unwrap(), b"new");
}

#[test]
fn a_first_push_that_was_interrupted_is_not_pulled() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.bin", "b.bin"] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    let refused = |request: &Request| request.method == "PUT" && request.path.ends_with("b.bin");
    scene.proxy.rule(move |request| if refused(request) { Break::Status(403, "") } else { Break::Nothing });
    push(&scene, folder.path()).run().failed(ExitCode::SourceUnauthorized, "refused the credentials");
    scene
        .pull_from("s3://models/out")
        .run()
        .failed(ExitCode::ChecksumMismatch, "is under way or was interrupted");
}

#[test]
fn lines_of_objects_that_the_store_refuses_to_describe_stay_in_the_list() {
    for status in [403, 400] {
        let scene = Scene::new();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.bin"), "a").unwrap();
        scene.gateway.put("out/other.bin", b"other");
        scene.gateway.put("out/SHA256SUMS", &sha256sums([("other.bin", b"other")]));
        let refused = |request: &Request| request.method == "HEAD" && request.path.ends_with("other.bin");
        scene
            .proxy
            .rule(move |request| if refused(request) { Break::Status(status, "") } else { Break::Nothing });
        push(&scene, folder.path()).run().uploaded();
        assert_eq!(listed(&scene.gateway.file("out/SHA256SUMS")), ["a.bin", "other.bin"], "{status}");
    }
}

#[test]
fn the_first_part_that_fails_ends_an_upload() {
    for fault in [Break::Status(403, ""), Break::Refuse] {
        let scene = Scene::new();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.bin"), noise(57, 80 * MIB)).unwrap();
        let of_parts = fault.clone();
        scene.proxy.rule(move |request| {
            if request.query.contains("partNumber") { of_parts.clone() } else { Break::Nothing }
        });
        let ended = push(&scene, folder.path()).env("TRANSFER_PATIENCE_SECONDS", "1").run();
        assert!(matches!(ended.code, Some(10 | 12)), "{}", ended.output);
        let requests = scene.proxy.take_requests();
        let parts: std::collections::BTreeSet<&str> = requests
            .iter()
            .filter_map(|request| request.query.split('&').find(|part| part.starts_with("partNumber=")))
            .collect();
        // As many as there is room for at once.
        assert!((1..=3).contains(&parts.len()), "{fault:?}: {parts:?}");
    }
}

#[test]
fn empty_folders_come_into_the_store() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("ensemble/1")).unwrap();
    fs::write(folder.path().join("ensemble/config.pbtxt"), "y").unwrap();
    push(&scene, folder.path()).run().uploaded();
    scene.proxy.take_requests();
    push(&scene, folder.path()).run().uploaded();
    assert_eq!(written(&scene.proxy.take_requests()), BTreeMap::new());
    scene.pull_from("s3://models/out").arg("--engine=triton").run().succeeded();
    assert!(scene.folder().join("ensemble/1").is_dir());
    assert_eq!(fs::read_dir(scene.folder().join("ensemble/1")).unwrap().count(), 0);
}

#[test]
fn a_push_prints_the_digest_of_its_list() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let digest = || {
        let ended = push(&scene, folder.path()).run();
        let report = ended.uploaded();
        let (_, digest) = ended.output.rsplit_once("manifest digest: ").unwrap();
        assert_eq!(format!("sha256:{}", report.manifest_digest), digest.trim());
        assert_eq!((report.count, report.bytes), (1, 2));
        let list = scene.gateway.get("out/SHA256SUMS").unwrap();
        assert_eq!(usize::try_from(report.manifest_bytes), Ok(list.len()));
        digest.trim().to_owned()
    };
    let first = digest();
    assert_eq!(first, digest_of(&scene.gateway.get("out/SHA256SUMS").unwrap()));
    assert_eq!(digest(), first);
    scene.pull_from("s3://models/out").arg(&format!("--manifest-digest={first}")).run().succeeded();
}
