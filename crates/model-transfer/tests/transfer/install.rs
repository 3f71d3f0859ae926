//! The copy of the program that the container of an engine runs.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, process::Command};

use tempfile::TempDir;

use crate::{program::Program, scene::Scene};

/// A folder with a model, and one for the program.
fn folders() -> [TempDir; 2] {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    fs::write(folders[0].path().join("config.json"), "{}").unwrap();
    folders
}

fn check(model: &TempDir, place: &Path) -> Program {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let install = format!("--install={}", place.display());
    Program::new(nowhere, ["check", model.path().to_str().unwrap(), "--engine=vllm", &install])
}

fn is_whole(place: &Path) {
    let names: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["model-transfer"]);
    let copy = place.join("model-transfer");
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o7777, 0o555);
    assert!(fs::read(&copy).unwrap() == fs::read(env!("CARGO_BIN_EXE_model-transfer")).unwrap());
    let ran = Command::new(&copy).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(ran.stdout).unwrap(),
        concat!("model-transfer ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn the_copy_is_whole_and_each_run_renews_it() {
    let [model, place] = folders();
    check(&model, place.path()).run().succeeded();
    is_whole(place.path());
    // Another release, and what a run has left that was killed.
    for name in ["model-transfer", ".model-transfer.new"] {
        let path = place.path().join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, "another").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    }
    check(&model, place.path()).run().succeeded();
    is_whole(place.path());
}

#[test]
fn a_pull_brings_it_too() {
    let (scene, place) = (Scene::new(), tempfile::tempdir().unwrap());
    scene.gateway.put("qwen/config.json", b"{}");
    scene.pull().arg(&format!("--install={}", place.path().display())).run().succeeded();
    is_whole(place.path());
}

#[test]
fn a_copy_that_cannot_be_made_is_an_error() {
    let [model, place] = folders();
    let absent = place.path().join("absent");
    let ended = check(&model, &absent).run();
    assert_eq!(ended.code, Some(1));
    let reason = format!("LocalFault: failed to copy this program to {}/", absent.display());
    assert!(ended.reported.starts_with(&reason), "{}", ended.reported);
}
