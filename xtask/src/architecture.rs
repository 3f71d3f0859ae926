//! The invariants of ARCHITECTURE.md that can be read off the sources, as tests.
//!
//! Each test fails when it finds nothing to look at, so that a moved folder does not make it pass.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::steps::workspace;

const CONTROLLERS: [&str; 4] =
    ["inference-controller", "training-controller", "dispatcher-controller", "scaler-controller"];

/// Path below the workspace, and text.
type Source = (String, String);

/// All Rust files of the workspace whose path passes, without those that are all tests; never none.
fn sources(wanted: impl Fn(&str) -> bool) -> Vec<Source> {
    let root = workspace();
    let mut found = Vec::new();
    for folder in ["crates", "tests", "xtask"] {
        collect(root, &root.join(folder), &mut found);
    }
    // Inline tests that have outgrown their file are tests all the same.
    found.retain(|(path, _)| wanted(path) && !path.ends_with("/tests.rs"));
    assert!(!found.is_empty(), "no file to look at: has a folder moved?");
    found
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<Source>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() && !path.ends_with("target") {
            collect(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The part of a file that is not its inline tests.
fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]").map_or(text, |(code, _)| code)
}

fn is_of_a_controller(path: &str) -> bool {
    CONTROLLERS.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")))
}

/// `file: word` for each file that uses a word it must not.
fn uses(sources: &[Source], forbidden: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources {
        for word in forbidden.iter().filter(|word| without_tests(text).contains(**word)) {
            found.push(format!("{path}: {word}"));
        }
    }
    found
}

#[test]
fn decisions_are_pure() {
    let deciding = sources(|path| {
        let decides =
            |part: &str| path.contains(&format!("/src/{part}.rs")) || path.contains(&format!("/src/{part}/"));
        (is_of_a_controller(path) && (decides("plan") || decides("validate")))
            || path.starts_with("crates/scaling/src/")
    });
    assert_eq!(uses(&deciding, &["async fn", "async move", ".await", "Client", "Api<", "Cache<"]), [""; 0]);
}

#[test]
fn only_runtime_reads_the_clock_and_only_args_read_the_environment() {
    let clockless = sources(|path| is_of_a_controller(path) || path.starts_with("crates/api/src/"));
    let forbidden = ["Timestamp::now", "SystemTime", "Instant::now", "std::env", "env::var", "Zoned::now"];
    assert_eq!(uses(&clockless, &forbidden), [""; 0]);
    let runtime = sources(|path| path.starts_with("crates/runtime/src/"));
    assert_eq!(uses(&runtime, &["std::env", "env::var"]), [""; 0]);
}

#[test]
fn keys_with_our_prefix_are_constants_of_api() {
    let others = sources(|path| {
        (path.starts_with("crates/") && path.contains("/src/"))
            && !path.starts_with("crates/api/")
            // Its annotations script the simulation; no product code reads them.
            && !path.starts_with("crates/local-cluster/")
    });
    assert_eq!(uses(&others, &["\"ai.infra.example.com/", "\"app.kubernetes.io/"]), [""; 0]);
}

#[test]
fn every_file_says_what_it_is() {
    let silent: Vec<String> = sources(|_| true)
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(silent, [""; 0]);
}

#[test]
fn no_file_is_called_mod_or_by_an_empty_name() {
    let empty = ["mod.rs", "utils.rs", "common.rs", "helpers.rs", "types.rs", "util.rs", "misc.rs"];
    let found: Vec<String> = sources(|_| true)
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| empty.iter().any(|name| path.ends_with(&format!("/{name}"))))
        .collect();
    assert_eq!(found, [""; 0]);
}

#[test]
fn nothing_depends_on_a_controller_but_the_tests_and_xtask() {
    let mut checked = 0;
    for entry in fs::read_dir(workspace().join("crates")).unwrap() {
        let manifest = fs::read_to_string(entry.unwrap().path().join("Cargo.toml")).unwrap();
        checked += 1;
        let found = CONTROLLERS.iter().find(|name| manifest.contains(&format!("\n{name}.workspace")));
        assert_eq!(found, None, "in\n{manifest}");
    }
    assert!(checked > 0);
}
