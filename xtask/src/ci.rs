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
    steps.run("docs", || {
        let mut doc = cargo(["doc", "--locked", "--workspace", "--no-deps", "--document-private-items"]);
        succeed(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    steps.run("cargo xtask test", || succeed(&mut cargo(["xtask", "test"])))?;
    steps.summary();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

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
            for name in ["publish", "provenance"].iter().filter(|_| path.ends_with("release.yml")) {
                assert_eq!(workflow["jobs"][name]["environment"], "release", "{name}");
            }
        }
        assert_eq!(found, ["provenance", "publish"]);
    }

    fn release() -> Value {
        let text = fs::read_to_string(workspace().join(".github/workflows/release.yml")).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    }

    /// Runs the step that pushes with a registry that answers `crane digest` in this way. Returns what was pushed.
    fn pushed(answer: &str) -> Result<String, String> {
        let steps = release()["jobs"]["publish"]["steps"].as_array().unwrap().clone();
        let push =
            steps.iter().find(|step| step["name"] == "Push").unwrap()["run"].as_str().unwrap().to_owned();
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        program("jq", "echo controller sha256:new layout");
        let log = folder.path().join("pushed");
        let push_to_log = format!("echo pushed >>{}; echo {{}}@sha256:new", log.display());
        program("crane", &format!("if [ $1 = digest ]; then {answer}; else {push_to_log}; fi"));
        let output = std::process::Command::new("bash")
            .args(["--noprofile", "--norc", "-eo", "pipefail", "-c", &push])
            .env("PATH", format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap()))
            .env("RUNNER_TEMP", folder.path())
            .envs([("GITHUB_REF_NAME", "v1.0.0"), ("REGISTRY", "registry"), ("FOLDER", "images")])
            .output()
            .unwrap();
        let pushed = fs::read_to_string(&log).unwrap_or_default();
        if output.status.success() { Ok(pushed) } else { Err(pushed) }
    }

    /// The job that builds runs code of dependencies, and could list an image of any name.
    #[test]
    fn only_the_images_of_this_project_are_pushed_signed_and_recorded() {
        let release = release();
        let (publish, provenance) = (&release["jobs"]["publish"], &release["jobs"]["provenance"]);
        let images = publish["env"]["IMAGES"].as_str().unwrap();
        let released: Vec<&str> = api::controllers::released().iter().map(|program| program.name).collect();
        assert_eq!(images.split(' ').collect::<Vec<_>>(), released);
        let steps = publish["steps"].as_array().unwrap();
        let at = |found: &dyn Fn(&Value) -> bool| steps.iter().position(found).unwrap();
        let checked = at(&|step| step["id"] == "names");
        assert!(checked < at(&|step| step["name"] == "Push"));
        assert!(publish["outputs"]["images"].as_str().unwrap().contains("steps.names.outputs.images"));
        let recorded = provenance["strategy"]["matrix"]["image"].as_str().unwrap();
        assert_eq!(recorded, "${{ fromJson(needs.publish.outputs.images) }}");

        let passes = |found: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let jq = folder.path().join("jq");
            fs::write(&jq, "#!/bin/bash\ntest \"$2\" != .[].name || printf '%s\\n' $FOUND\n").unwrap();
            fs::set_permissions(&jq, fs::Permissions::from_mode(0o755)).unwrap();
            let status = std::process::Command::new("bash")
                .args(["--noprofile", "--norc", "-eo", "pipefail", "-c"])
                .arg(steps[checked]["run"].as_str().unwrap())
                .env("PATH", format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap()))
                .env("GITHUB_OUTPUT", folder.path().join("output"))
                .envs([("IMAGES", images), ("FOLDER", "images"), ("FOUND", &*found.join(" "))])
                .status();
            status.unwrap().success()
        };
        assert!(passes(&released));
        assert!(passes(&released.iter().rev().copied().collect::<Vec<_>>()));
        assert!(!passes(&released[1..]), "one is missing");
        assert!(!passes(&[&released[1..], &["other"]].concat()));
        assert!(!passes(&[&released[..], &["other"]].concat()));
    }

    /// The tag of a release stays, also while the registry fails.
    #[test]
    fn a_release_is_pushed_only_where_the_registry_has_no_other_image() {
        let absent = "echo MANIFEST_UNKNOWN: manifest unknown >&2; exit 1";
        assert_eq!(pushed(absent), Ok("pushed\n".to_owned()));
        assert_eq!(pushed("echo sha256:new"), Ok("pushed\n".to_owned()), "repeated after a failure");
        assert_eq!(pushed("echo sha256:old"), Err(String::new()));
        assert_eq!(pushed("echo unexpected status code 503 >&2; exit 1"), Err(String::new()));
    }

    #[test]
    fn a_release_with_a_known_vulnerability_is_not_built() {
        let steps = release()["jobs"]["build"]["steps"].as_array().unwrap().clone();
        let of = |found: &dyn Fn(&Value) -> bool| steps.iter().position(found).unwrap();
        let checked = of(&|step| step["with"]["command"] == "check advisories");
        assert_ne!(steps[checked]["continue-on-error"], true);
        assert!(checked < of(&|step| step["name"] == "Build"));
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
