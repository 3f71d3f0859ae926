//! Empty folders, for which a store has an object with a slash at the end of its key.

use std::fs;

use api::loader::ExitCode;

use crate::scene::{Scene, files};

/// An ensemble of Triton: its version is an empty folder.
fn put_ensemble(scene: &Scene) {
    scene.gateway.put("qwen/llama/1/model.onnx", b"x");
    scene.gateway.put("qwen/ensemble/config.pbtxt", b"y");
    scene.gateway.put_folder("qwen/ensemble/1");
}

#[test]
fn the_empty_version_of_an_ensemble_is_pulled_and_goes_with_it() {
    let scene = Scene::new();
    put_ensemble(&scene);
    scene.gateway.put("qwen/llama/1/empty", b"");
    scene.pull().arg("--engine=triton").run().succeeded();
    let expected =
        files([("llama/1/model.onnx", b"x"), ("llama/1/empty", b""), ("ensemble/config.pbtxt", b"y")]);
    assert_eq!(scene.pulled(), expected);
    assert!(scene.folder().join("ensemble/1").is_dir());
    scene.pull().arg("--engine=triton").run().succeeded();
    assert!(scene.folder().join("ensemble/1").is_dir());

    fs::remove_dir_all(scene.gateway.file("qwen/ensemble")).unwrap();
    scene.pull().arg("--engine=triton").run().succeeded();
    assert!(
        !scene.folder().join("ensemble").exists(),
        "Triton does not start with a folder that is no model"
    );
}

#[test]
fn an_ensemble_without_its_version_is_refused_before_a_byte_is_fetched() {
    let scene = Scene::new();
    put_ensemble(&scene);
    fs::remove_dir(scene.gateway.file("qwen/ensemble/1")).unwrap();
    let ended = scene.pull().arg("--engine=triton").run();
    ended.failed(ExitCode::SourceNotFound, "s3://models/qwen/ensemble has no version");
    assert_eq!(scene.proxy.object_bytes(), 0);
}
