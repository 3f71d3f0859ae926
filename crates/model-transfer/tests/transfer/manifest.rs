//! The list of checksums, and its pinned digest.

use std::fs;

use api::loader::{DIGESTS, ExitCode, Loaded, REVISION};
use sha2::{Digest as _, Sha256};

use crate::{
    checks::{flip_in_store, sha256sums},
    program::{Ended, Program},
    scene::{MIB, Scene, files, noise},
};

pub(crate) fn digest_of(list: &[u8]) -> String {
    let digest: String = Sha256::digest(list).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digest}")
}

fn pull(scene: &Scene, digest: &str) -> Ended {
    // A new folder: a run that meets the fault of the run before waits.
    let _ = fs::remove_dir_all(scene.folder());
    again(scene, digest).run()
}

fn again(scene: &Scene, digest: &str) -> Program {
    scene.pull().arg(&format!("--manifest-digest={digest}"))
}

#[test]
fn a_model_is_pulled_by_the_digest_of_its_list_and_no_other_model_is() {
    let scene = Scene::new();
    let content = noise(70, 6 * MIB);
    let list = sha256sums([("model.bin", &content), ("config.json", b"{}")]);
    let digest = digest_of(&list);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    scene.gateway.put("qwen/config.json", b"{}");
    pull(&scene, &digest).failed(ExitCode::ChecksumMismatch, "SHA256SUMS of s3://models/qwen is not there");
    assert!(scene.pulled().is_empty());

    scene.gateway.put("qwen/SHA256SUMS", &list);
    let ended = pull(&scene, &digest);
    ended.succeeded();
    assert!(ended.output.contains("by SHA-256: 3, by MD5: 0"), "{}", ended.output);
    again(&scene, &digest).run().succeeded();
    let whole = [("model.bin", &*content), ("config.json", b"{}"), ("SHA256SUMS", &*list)];
    assert_eq!(scene.pulled(), files(whole));

    let other = digest_of(b"another list");
    let ended = pull(&scene, &other);
    ended.failed(ExitCode::ChecksumMismatch, &format!("has the digest {digest}"));
    ended.failed(ExitCode::ChecksumMismatch, &format!("the manifest digest is {other}"));
    assert!(scene.pulled().is_empty());

    // A model that is in place already is looked at in the same way.
    pull(&scene, &digest).succeeded();
    let changed = noise(71, 6 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &changed);
    scene.gateway.put("qwen/SHA256SUMS", &sha256sums([("model.bin", &changed), ("config.json", b"{}")]));
    again(&scene, &digest).run().failed(ExitCode::ChecksumMismatch, "was changed");
    assert_eq!(scene.pulled(), files(whole));
}

#[test]
fn with_a_digest_every_file_is_listed_and_checked() {
    let scene = Scene::new();
    let list = sha256sums([("model.bin", b"weights")]);
    scene.gateway.put("qwen/model.bin", b"weights");
    scene.gateway.put("qwen/modeling.py", b"import os");
    scene.gateway.put("qwen/SHA256SUMS", &list);
    let ended = pull(&scene, &digest_of(&list));
    ended.failed(ExitCode::ChecksumMismatch, "does not list \"modeling.py\", one of 1 such objects");
    assert!(scene.pulled().is_empty());

    fs::remove_file(scene.gateway.file("qwen/modeling.py")).unwrap();
    scene.gateway.put("qwen/model.bin", b"Weights");
    pull(&scene, &digest_of(&list))
        .failed(ExitCode::ChecksumMismatch, "\"qwen/model.bin\" does not match its checksum");
    assert!(!scene.pulled().contains_key("model.bin"));
}

#[test]
fn one_object_is_checked_by_the_list_beside_it() {
    let scene = Scene::new();
    let content = noise(72, 6 * MIB);
    let list = sha256sums([("model.gguf", &content), ("other.gguf", b"other")]);
    scene.gateway.put_in_parts("qwen/model.gguf", &content);
    scene.gateway.put("qwen/SHA256SUMS", &list);
    let one = || {
        let _ = fs::remove_dir_all(scene.folder());
        scene.pull_from("s3://models/qwen/model.gguf")
    };
    let ended = one().arg(&format!("--manifest-digest={}", digest_of(&list))).run();
    ended.succeeded();
    assert!(ended.output.contains("by SHA-256: 1, by MD5: 0"), "{}", ended.output);
    assert_eq!(scene.pulled(), files([("model.gguf", &content)]));

    flip_in_store(&scene, "qwen/model.gguf");
    one().run().failed(ExitCode::ChecksumMismatch, "\"qwen/model.gguf\" does not match its checksum");
    let ended = one().arg(&format!("--manifest-digest={}", digest_of(b"another list"))).run();
    ended.failed(ExitCode::ChecksumMismatch, "has the digest");
}

#[test]
fn another_model_than_that_of_the_ready_pods_is_refused_before_a_byte_is_fetched() {
    let scene = Scene::new();
    scene.gateway.put("qwen/config.json", b"{}");
    scene.gateway.put("qwen/model.bin", b"weights");
    let loaded = scene.pull().run().loaded();
    assert_eq!((loaded.files, loaded.bytes), (2, 9));
    let as_others = |revision: &str| {
        let _ = fs::remove_dir_all(scene.folder());
        let digests = Loaded::line("7f9c", &loaded.digest);
        scene.pull().env(DIGESTS, &digests).env(REVISION, revision).run()
    };
    assert_eq!(as_others("7f9c").loaded(), loaded);

    scene.gateway.put("qwen/model.bin", b"Weights");
    let ended = as_others("7f9c");
    ended.failed(ExitCode::ModelChanged, "s3://models/qwen was changed: it has sha256:");
    ended.failed(ExitCode::ModelChanged, "the annotation ai.infra.example.com/refresh");
    assert!(scene.pulled().is_empty());
    assert_ne!(as_others("5d4").loaded().digest, loaded.digest, "another revision loads what is there");
}

/// With SHA256SUMS the content alone counts; without it the store's version of the object.
#[test]
fn a_model_that_is_uploaded_again_unchanged_is_the_same() {
    let scene = Scene::new();
    let content = noise(73, 6 * MIB);
    scene.gateway.put("qwen/config.json", b"{}");
    scene.gateway.put("qwen/SHA256SUMS", &sha256sums([("model.bin", &content), ("config.json", b"{}")]));
    scene.gateway.put("qwen/model.bin", &content);
    let loaded = scene.pull().run().loaded();
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    assert_eq!(scene.pull().run().loaded(), loaded);
}
