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
    use std::fs;

    use super::*;

    /// A tag can be moved to other code; a commit cannot.
    #[test]
    fn workflows_pin_every_action_by_its_commit_and_name_its_version() {
        let mut pinned = 0;
        for entry in fs::read_dir(workspace().join(".github/workflows")).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
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
