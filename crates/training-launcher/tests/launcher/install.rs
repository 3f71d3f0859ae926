//! The copy of the program for the trainer's container.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Output},
};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_training-launcher");

fn install(folder: &std::path::Path) -> Output {
    Command::new(LAUNCHER).arg("install").arg(folder).output().unwrap()
}

#[test]
fn the_program_is_copied_whole_and_is_executable_for_all() {
    let folder = tempfile::tempdir().unwrap();
    // Also over the remains of a run that was interrupted, and over a copy that runs.
    fs::write(folder.path().join(".training-launcher.new"), "half").unwrap();
    for _ in 0..2 {
        let output = install(folder.path());
        assert!(output.status.success(), "{output:?}");
    }
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["training-launcher"]);
    let copy = folder.path().join("training-launcher");
    assert!(fs::read(&copy).unwrap() == fs::read(LAUNCHER).unwrap());
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o555);
    assert!(Command::new(copy).arg("--version").output().unwrap().status.success());
}

#[test]
fn a_folder_that_does_not_exist_is_named() {
    let output = install("/no/such/folder".as_ref());
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/folder"), "{output:?}");
}
