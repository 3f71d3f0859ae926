//! Checks for a model that the engine can load, of a folder and as part of a pull.

use std::{fs, net::SocketAddr, path::Path};

use api::loader::{DIGESTS, ExitCode, Loaded, REVISION};
use serde_json::Value;

use crate::{
    program::Program,
    proxy::Break,
    scene::{MIB, Scene, files, noise},
};

/// Nothing listens there: a check asks no store.
fn check(folder: &Path, engine: &str) -> Program {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    Program::new(nowhere, ["check", folder.to_str().unwrap(), "--engine", engine])
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_folder_with_a_model_passes_and_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("llama/1")).unwrap();
    fs::write(root.path().join("llama/1/model.onnx"), "x").unwrap();
    fs::write(root.path().join("config.json"), "{}").unwrap();
    for engine in ["vllm", "triton", "tgi"] {
        check(root.path(), engine).run().succeeded();
    }
    assert_eq!(names(root.path()), ["config.json", "llama"]);
}

#[test]
fn a_model_that_other_pods_have_not_loaded_is_refused() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("config.json"), "{}").unwrap();
    let loaded = check(root.path(), "vllm").run().loaded();
    assert_eq!((loaded.files, loaded.bytes), (1, 2));
    let again = || {
        let digests = Loaded::line("7f9c", &loaded.digest);
        check(root.path(), "vllm").env(DIGESTS, &digests).env(REVISION, "7f9c").run()
    };
    assert_eq!(again().loaded(), loaded);
    fs::write(root.path().join("config.json"), "[]").unwrap();
    again().failed(ExitCode::ModelChanged, &format!("have loaded {}", loaded.digest));
}

#[test]
fn a_folder_without_a_model_is_reported_with_what_is_there() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().display();
    check(root.path(), "vllm")
        .run()
        .failed(ExitCode::SourceNotFound, &format!("{place} holds no model: expected config.json"));
    fs::create_dir(root.path().join("qwen")).unwrap();
    fs::create_dir(root.path().join("lost+found")).unwrap();
    let typo = root.path().join("typo");
    let reason = format!("{}: no such folder; found: qwen", typo.display());
    check(&typo, "triton").run().failed(ExitCode::SourceNotFound, &reason);
    check(root.path(), "triton").run().failed(ExitCode::SourceNotFound, "\"lost+found\"");
    assert_eq!(names(root.path()), ["lost+found", "qwen"]);
}

#[test]
fn what_is_outside_of_the_root_does_not_show_in_an_error() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(outside.path().join("secret")).unwrap();
    let link = root.path().join("link");
    std::os::unix::fs::symlink(outside.path(), &link).unwrap();
    let typo = link.join("typo");
    let wanted = format!("--root={}", root.path().display());
    let ran = check(&typo, "vllm").arg(&wanted).run();
    ran.failed(ExitCode::SourceNotFound, &format!("{}: no such folder", typo.display()));
    assert!(!ran.output.contains("secret"), "{}", ran.output);
}

#[test]
fn a_check_needs_an_engine_that_there_is() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(check(root.path(), "llama.cpp").run().code, Some(ExitCode::Usage.code()));
}

#[test]
fn a_model_that_the_engine_cannot_load_is_refused_before_it_is_fetched() {
    let scene = Scene::new();
    scene.gateway.put("qwen/model.safetensors", &noise(50, 5000));
    let ended = scene.pull().arg("--engine=vllm").run();
    ended.failed(ExitCode::SourceNotFound, "s3://models/qwen holds no model: expected config.json");
    assert_eq!(scene.proxy.object_bytes(), 0);

    // Started again, it waits for the rest.
    let again = scene.pull().arg("--engine=vllm").start();
    again.until_says("looking again", 1);
    scene.gateway.put("qwen/config.json", b"{}");
    again.wait().succeeded();
    assert_eq!(scene.pulled(), files([("config.json", b"{}"), ("model.safetensors", &noise(50, 5000))]));
}

#[test]
fn what_else_is_in_the_volume_is_looked_at_after_the_copy() {
    let scene = Scene::new();
    scene.gateway.put("qwen/llama/1/model.onnx", b"x");
    scene.pull().arg("--engine=triton").run().succeeded();
    fs::create_dir(scene.folder().join("lost+found")).unwrap();
    scene.pull().arg("--engine=triton").run().failed(ExitCode::SourceNotFound, "\"lost+found\"");
    scene.pull().run().succeeded();
}

#[test]
fn how_far_it_is_can_be_read_by_a_program() {
    let scene = Scene::new();
    let content = noise(51, 4 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    scene.proxy.rule(|request| {
        if request.is_object() { Break::Slow(std::time::Duration::from_millis(50)) } else { Break::Nothing }
    });
    let ended = scene.pull().env("TRANSFER_PROGRESS_SECONDS", "1").run();
    ended.succeeded();
    let reports: Vec<Value> = ended
        .output
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(reports.len() >= 3, "{}", ended.output);
    let copied: Vec<u64> = reports.iter().map(|report| report["copied_bytes"].as_u64().unwrap()).collect();
    assert!(copied[0] == 0 && copied.is_sorted() && copied[1] > 0, "{copied:?}");
    assert!(reports.iter().all(|report| report["total_bytes"] == 4 * MIB), "{reports:?}");
    assert!(reports[1]["bytes_per_second"].as_u64() > Some(0), "{reports:?}");
}
