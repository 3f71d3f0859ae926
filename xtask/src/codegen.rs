//! `cargo xtask codegen`: writes `deploy/crds` from the types in `crates/api`, the admission policies from its table of
//! controllers, the generated part of `proto` and the pages of `docs/reference`, or names what would change.
//!
//! It moves bytes between the crate and the folder and does not depend on their content; the text of the
//! policies is in `policy`, and what is generated from .proto files in `proto`.

mod policy;
mod proto;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context;
use api::controllers::CONTROLLERS;

use crate::steps::{cargo, succeed, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Changes nothing and fails if a file is not what would be written
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    generated(args)?;
    // A program of its own, because it needs every controller; its tests compare the pages, too.
    let mut reference = cargo(["run", "--locked", "--package", "manual", "--", "reference"]);
    succeed(reference.args(args.check.then_some("--check")))
}

/// Everything but the pages of the manual.
fn generated(args: &Args) -> anyhow::Result<()> {
    let folder = workspace().join("deploy/crds");
    let manifests = api::crds::manifests().context("failed to write the definitions as YAML")?;
    if args.check {
        check(&folder, &manifests)?
    } else {
        write(&folder, &manifests)?
    }
    for controller in CONTROLLERS {
        let path = workspace().join("deploy").join(controller.name).join(policy::PATH);
        let text = policy::policy(controller);
        if !args.check {
            fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
            continue;
        }
        let committed =
            fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        anyhow::ensure!(
            committed == text,
            "{} is not what crates/api/src/controllers.rs gives; run `cargo xtask codegen` and commit the result",
            path.display()
        );
    }
    for proto::Generated { path, bytes } in proto::generated()? {
        let path = workspace().join("proto").join(path);
        if !args.check {
            fs::write(&path, bytes).with_context(|| format!("failed to write {}", path.display()))?;
            continue;
        }
        let committed = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        anyhow::ensure!(
            committed == bytes,
            "{} is not what the .proto files give; run `cargo xtask codegen` and commit the result",
            path.display()
        );
    }
    Ok(())
}

fn write(folder: &Path, manifests: &[api::crds::Manifest]) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    for manifest in manifests {
        let path = folder.join(&manifest.file_name);
        fs::write(&path, &manifest.text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    for path in leftovers(folder, manifests)? {
        fs::remove_file(&path).with_context(|| format!("failed to remove {}", path.display()))?;
    }
    Ok(())
}

fn check(folder: &Path, manifests: &[api::crds::Manifest]) -> anyhow::Result<()> {
    let mut stale = leftovers(folder, manifests)?;
    for manifest in manifests {
        let path = folder.join(&manifest.file_name);
        match fs::read_to_string(&path) {
            Ok(committed) if committed == manifest.text => {}
            Ok(_) => stale.push(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => stale.push(path),
            Err(error) => return Err(error).with_context(|| format!("failed to read {}", path.display())),
        }
    }
    let names: BTreeSet<_> = stale.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    anyhow::ensure!(
        names.is_empty(),
        "deploy/crds differs from crates/api ({}); run `cargo xtask codegen` and commit the result",
        names.into_iter().collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// Definitions of kinds that are no more.
fn leftovers(folder: &Path, manifests: &[api::crds::Manifest]) -> anyhow::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("failed to list {}", folder.display())),
    };
    let mut leftovers = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("failed to list {}", folder.display()))?.path();
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml");
        let is_ours = manifests.iter().any(|manifest| path.ends_with(&manifest.file_name));
        // The folder is also a kustomize base.
        if is_yaml && !is_ours && !path.ends_with("kustomization.yaml") {
            leftovers.push(path);
        }
    }
    Ok(leftovers)
}

#[cfg(test)]
mod tests {
    use super::{Args, check, generated, write};
    use api::crds::Manifest;

    #[test]
    fn what_is_committed_is_what_the_types_and_the_table_give() {
        generated(&Args { check: true }).unwrap();
    }

    fn manifests() -> Vec<Manifest> {
        vec![Manifest { file_name: "a.yaml".to_owned(), text: "kind: A\n".to_owned() }]
    }

    #[test]
    fn what_was_written_passes_the_check() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &manifests()).unwrap();
        check(folder.path(), &manifests()).unwrap();
    }

    #[test]
    fn a_changed_missing_or_leftover_file_fails_the_check_and_is_named_with_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let complaint = check(folder.path(), &manifests()).unwrap_err().to_string();
        assert!(complaint.contains("(a.yaml)") && complaint.contains("cargo xtask codegen"), "{complaint}");

        write(folder.path(), &manifests()).unwrap();
        std::fs::write(folder.path().join("a.yaml"), "kind: B\n").unwrap();
        std::fs::write(folder.path().join("old.yaml"), "kind: Old\n").unwrap();
        let complaint = check(folder.path(), &manifests()).unwrap_err().to_string();
        assert!(complaint.contains("(a.yaml, old.yaml)"), "{complaint}");

        write(folder.path(), &manifests()).unwrap();
        check(folder.path(), &manifests()).unwrap();
    }
}
