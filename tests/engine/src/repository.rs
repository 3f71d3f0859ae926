//! Triton's model repository: which folders are models, and what keeps the server from starting.

use std::{fs, path::Path};

use anyhow::{Context as _, bail, ensure};

use crate::invocation::{Loads, Triton};

/// The names of the models that are loaded at the start; none in an empty repository, with which Triton is ready.
pub(crate) fn models(triton: &Triton) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for repository in &triton.repositories {
        for name in folders(repository)? {
            ensure!(!found.contains(&name), "model '{name}' appears in two or more repositories");
            found.push(name);
        }
    }
    let wanted = match &triton.loads {
        Loads::All => found,
        Loads::Named(names) => {
            let absent = names.iter().find(|name| !found.contains(name));
            if let Some(absent) = absent {
                bail!("failed to load all models: '{absent}': failed to poll from model repository");
            }
            names.clone()
        }
    };
    for name in &wanted {
        let has_version = triton.repositories.iter().any(|repository| has_version(&repository.join(name)));
        ensure!(
            has_version,
            "failed to load all models: '{name}': at least one version must be available under the version policy"
        );
    }
    Ok(wanted)
}

/// Every folder counts, also `lost+found` and hidden ones; plain files beside them do not.
fn folders(repository: &Path) -> anyhow::Result<Vec<String>> {
    let failed = || format!("failed to open model repository {}", repository.display());
    let (mut folders, mut has_files) = (Vec::new(), false);
    for entry in fs::read_dir(repository).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        match path.file_name() {
            Some(name) if path.is_dir() => folders.push(name.to_string_lossy().into_owned()),
            _ => has_files = true,
        }
    }
    ensure!(!has_files || !folders.is_empty(), "{} has files and no model folder", repository.display());
    folders.sort();
    Ok(folders)
}

/// A folder that cannot be read, as `lost+found`, has none. The configuration does not matter: an ensemble needs an
/// empty version, and of most models Triton finds the configuration by itself.
fn has_version(model: &Path) -> bool {
    let entries = fs::read_dir(model).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.is_dir() && is_version(&path))
}

/// A number that begins with 0 is passed over.
fn is_version(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with('0') && !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths that end with a slash are folders.
    fn models_of(paths: &[&str], loads: Loads) -> anyhow::Result<Vec<String>> {
        let root = tempfile::tempdir().unwrap();
        for path in paths {
            let place = root.path().join(path);
            fs::create_dir_all(if path.ends_with('/') { &place } else { place.parent().unwrap() }).unwrap();
            if !path.ends_with('/') {
                fs::write(place, "x").unwrap();
            }
        }
        models(&Triton { repositories: vec![root.path().to_owned()], loads, ..Triton::default() })
    }

    #[test]
    fn folders_with_a_version_are_models_and_files_beside_them_are_ignored() {
        let models = models_of(&["b/1/model.onnx", "a/config.pbtxt", "a/12/", "README.md"], Loads::All);
        assert_eq!(models.unwrap(), ["a", "b"]);
        assert_eq!(models_of(&[], Loads::All).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn anything_else_keeps_it_from_starting() {
        for paths in [
            &["config.json", "model.safetensors"][..],
            &["a/config.pbtxt"],
            &["a/1/model.onnx", "lost+found/"],
            &["a/1/model.onnx", ".cache/huggingface/"],
            &["a/v1/model.onnx"],
            &["a/01/model.onnx"],
            &["1/model.onnx", "config.pbtxt"],
        ] {
            assert!(models_of(paths, Loads::All).is_err(), "{paths:?}");
        }
        let absent = Triton { repositories: vec!["/absent".into()], ..Triton::default() };
        assert!(models(&absent).is_err());
    }

    #[test]
    fn explicit_control_looks_at_nothing_else() {
        let named = |name: &str| Loads::Named(vec![name.to_owned()]);
        assert_eq!(models_of(&["a/1/x", "lost+found/"], named("a")).unwrap(), ["a"]);
        assert!(models_of(&["a/1/x"], named("b")).is_err());
        assert_eq!(models_of(&["a/1/x"], Loads::Named(Vec::new())).unwrap(), Vec::<String>::new());
    }
}
