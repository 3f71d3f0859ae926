//! `cargo xtask ci`: everything that must hold before a change lands, in the order in which it fails fastest.

use crate::{
    setup,
    steps::{Steps, cargo, succeed, workspace},
};

pub(crate) fn run() -> anyhow::Result<()> {
    let mut steps = Steps::default();
    steps.run("setup", setup::run)?;
    steps.run("format", || succeed(&mut cargo(["fmt", "--all", "--check"])))?;
    steps.run("bans, licences, sources", || {
        let mut deny = std::process::Command::new(setup::cargo_deny()?);
        succeed(deny.current_dir(workspace()).args(["--locked", "check", "bans", "licenses", "sources"]))
    })?;
    steps.run("lints", || {
        succeed(&mut cargo(["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    })?;
    steps.run("cargo xtask test", || succeed(&mut cargo(["xtask", "test"])))?;
    steps.run("docs", || {
        let mut doc = cargo(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"]);
        succeed(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    steps.summary();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use serde_json::Value;

    use super::*;

    fn workflows() -> Vec<(PathBuf, String)> {
        let folder = fs::read_dir(workspace().join(".github/workflows")).unwrap();
        folder
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
            .collect()
    }

    /// What runs in a job that can push and sign could release anything; cargo runs code of every dependency.
    #[test]
    fn no_job_that_can_push_or_sign_runs_cargo() {
        let mut found = Vec::new();
        for (path, text) in workflows() {
            let workflow: Value = serde_saphyr::from_str(&text).unwrap();
            for (name, job) in workflow["jobs"].as_object().unwrap() {
                let permissions = job.get("permissions").unwrap_or(&workflow["permissions"]);
                assert!(permissions.is_object(), "{name} in {}: name each permission", path.display());
                let may_write = |right: &str| permissions[right] == "write";
                if !["packages", "id-token", "attestations", "contents"].into_iter().any(may_write) {
                    continue;
                }
                let text = job.to_string();
                for builder in ["cargo", "rust", ".ci/"] {
                    assert!(!text.contains(builder), "{name} in {} runs {builder}", path.display());
                }
                found.push(name.clone());
            }
            if path.ends_with("release.yml") {
                assert_eq!(workflow["jobs"]["publish"]["environment"], "release");
            }
        }
        assert_eq!(found, ["provenance", "publish"]);
    }

    /// A tag can be moved to other code; a commit cannot.
    #[test]
    fn workflows_pin_every_action_by_its_commit_and_name_its_version() {
        let mut pinned = 0;
        for (path, text) in workflows() {
            for action in
                text.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: "))
            {
                let (_, version) = action.split_once('@').unwrap();
                let (commit, version) = version.split_once(" # v").unwrap_or((version, ""));
                let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
                assert!(is_commit && !version.is_empty(), "{action} in {}", path.display());
                pinned += 1;
            }
        }
        assert!(pinned >= 9, "{pinned}: have the workflows moved?");
    }
}
