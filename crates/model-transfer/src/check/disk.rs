//! Lists the names in a local folder that decide whether it holds a model. Blocking. Depth and number of names are bounded.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    CONFIG, CONFIG_JSON, Engine, Entry, Inside, Kind, PARAMS_JSON, found, is_gguf, is_model_file, is_version,
};
use crate::fault::{Cause, Fault};

/// Limit for the names of one folder; Triton's repositories and models have far fewer.
pub(super) const MOST_NAMES: usize = 10_000;

/// `root`: the folder that links may lead into.
pub(super) fn entries(folder: &Path, root: &Path, engine: Engine) -> Result<Vec<Entry>, Fault> {
    let (root, real) = without_links(folder, root)?;
    let place = folder.display();
    // By its own name: in a cache it is a link to a file with another one.
    if real.is_file() && engine == Engine::Vllm && is_gguf(folder) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(vec![Entry { name, kind: Kind::File }]);
    }
    if !real.is_dir() {
        let message = format!("{place} is not a folder: name the folder that holds the model");
        return Err(Fault::new(Cause::NotFound, message));
    }
    let mut entries = Vec::new();
    // By name, because they may be beyond the limit for names.
    for name in [CONFIG_JSON, PARAMS_JSON] {
        entries.extend(entry(&root, &real, name, engine));
    }
    for name in names(&real).map_err(failed("read", folder))? {
        if ![CONFIG_JSON, PARAMS_JSON].contains(&name.as_str()) {
            entries.extend(entry(&root, &real, &name, engine));
        }
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

/// The root and the folder, which must be in it.
pub(super) fn without_links(folder: &Path, root: &Path) -> Result<(PathBuf, PathBuf), Fault> {
    if let Some(missing) = first_missing(folder)? {
        return Err(Fault::new(Cause::NotFound, no_such_folder(&missing, root)));
    }
    let read = |path: &Path| path.canonicalize().map_err(failed("read", path));
    let (real_root, real) = (read(root)?, read(folder)?);
    if !real.starts_with(&real_root) {
        let (place, root) = (folder.display(), root.display());
        let message = format!("{place} is a link that leads out of {root}: name a folder in it");
        return Err(Fault::new(Cause::NotFound, message));
    }
    Ok((real_root, real))
}

/// A volume that is no longer reachable is not a fault of this machine.
pub(super) fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Fault {
    move |error| match error.kind() {
        io::ErrorKind::StaleNetworkFileHandle
        | io::ErrorKind::TimedOut
        | io::ErrorKind::NotConnected
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => {
            Fault::new(Cause::Unreachable, format!("failed to {step} {}: {error}", path.display()))
        }
        _ => Fault::io(step, path)(error),
    }
}

/// The shortest part of the path, from its beginning, that does not exist.
fn first_missing(folder: &Path) -> Result<Option<PathBuf>, Fault> {
    let mut parts: Vec<&Path> = folder.ancestors().filter(|part| !part.as_os_str().is_empty()).collect();
    parts.reverse();
    for part in parts {
        match part.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(part.to_owned())),
            Err(error) => return Err(failed("look at", part)(error)),
            Ok(_) => {}
        }
    }
    Ok(None)
}

/// Names the folders beside it, unless a link from within `root` leads there: names outside `root` must not be printed.
fn no_such_folder(missing: &Path, root: &Path) -> String {
    let is_inside = |parent: &&Path| match (parent.canonicalize(), root.canonicalize()) {
        (Ok(parent), Ok(root)) => parent.starts_with(root),
        // The root itself is missing, so no link within it was followed.
        (Ok(_), Err(_)) => true,
        (Err(_), _) => false,
    };
    let parent = missing.parent().filter(|parent| !parent.as_os_str().is_empty());
    let beside = parent.filter(is_inside).and_then(|parent| names(parent).ok()).unwrap_or_default();
    let is_folder = |name: &&String| missing.with_file_name(name).is_dir();
    let found = found(beside.iter().filter(is_folder).map(String::as_str));
    format!("{}: no such folder{found}", missing.display())
}

pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?
        .take(MOST_NAMES)
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// `None` if the name does not exist, or is a link to nothing.
fn entry(root: &Path, folder: &Path, name: &str, engine: Engine) -> Option<Entry> {
    let path = folder.join(name);
    let kind = match kind(root, &path)? {
        Kind::Folder(_) if engine == Engine::Triton => Kind::Folder(inside(root, &path)),
        kind => kind,
    };
    Some(Entry { name: name.to_owned(), kind })
}

fn kind(root: &Path, path: &Path) -> Option<Kind> {
    let is_link = path.symlink_metadata().ok()?.is_symlink();
    if is_link && !path.canonicalize().ok()?.starts_with(root) {
        return Some(Kind::LeadsOut);
    }
    Some(if path.metadata().ok()?.is_dir() { Kind::Folder(Inside::default()) } else { Kind::File })
}

/// A folder that cannot be read, such as `lost+found`, counts as empty.
fn inside(root: &Path, model: &Path) -> Inside {
    let mut inside =
        Inside { has_config: kind(root, &model.join(CONFIG)) == Some(Kind::File), ..Inside::default() };
    for version in names(model).unwrap_or_default().iter().filter(|name| is_version(name)) {
        let version = model.join(version);
        if matches!(kind(root, &version), Some(Kind::Folder(_))) {
            inside.has_version = true;
            if inside.has_config {
                break;
            }
            inside.has_model_file |=
                names(&version).unwrap_or_default().iter().any(|name| is_model_file(name));
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;
    use crate::check::verdict;

    /// Paths that end with a slash are folders.
    fn folder(paths: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for path in paths {
            let place = folder.path().join(path);
            fs::create_dir_all(if path.ends_with('/') { &place } else { place.parent().unwrap() }).unwrap();
            if !path.ends_with('/') {
                fs::write(place, "x").unwrap();
            }
        }
        folder
    }

    fn message(root: &TempDir, below: &str, engine: Engine) -> Option<String> {
        let folder = root.path().join(below);
        let looked = entries(&folder, root.path(), engine)
            .and_then(|entries| verdict(engine, "/models", &entries, is_gguf(&folder)));
        let fault = looked.err()?;
        assert_eq!(fault.cause, Cause::NotFound);
        Some(fault.to_string())
    }

    #[test]
    fn what_is_on_disk_is_what_would_be_in_the_store() {
        for (paths, engine) in [
            (&["config.json", "a/b/c"][..], Engine::Vllm),
            (&["model.gguf", "x"], Engine::Vllm),
            (&["llama/config.pbtxt", "llama/1/weights", "llama/notes"], Engine::Triton),
            (&["llama/2/model.onnx", "a/config.pbtxt", "file"], Engine::Triton),
        ] {
            let root = folder(paths);
            let on_disk = entries(root.path(), root.path(), engine).unwrap();
            let in_store = crate::check::entries_of(paths.iter().copied());
            // A configuration makes the look into versions superfluous; engines but Triton do not look into folders.
            let verdicts =
                [on_disk, in_store].map(|entries| verdict(engine, "/models", &entries, false).is_ok());
            assert_eq!(verdicts[0], verdicts[1], "{paths:?}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_reported_with_those_that_are() {
        let root = folder(&["qwen/config.json", "llama/config.json", "README.md", ".cache/x"]);
        for below in ["typo", "typo/deeper"] {
            let message = message(&root, below, Engine::Vllm).unwrap();
            let typo = root.path().join("typo");
            assert_eq!(
                message,
                format!("SourceNotFound: {}: no such folder; found: llama, qwen", typo.display())
            );
        }
        assert!(message(&root, "README.md", Engine::Vllm).unwrap().contains("is not a folder"));
        assert_eq!(message(&root, "qwen", Engine::Vllm), None);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 4, "nothing was made");
    }

    #[test]
    fn a_gguf_file_is_a_whole_model() {
        let root = folder(&["qwen/q4.gguf", "folder.gguf/x"]);
        assert_eq!(message(&root, "qwen/q4.gguf", Engine::Vllm), None);
        assert!(message(&root, "qwen", Engine::Vllm).unwrap().contains("name the file in the source"));
        fs::write(root.path().join("blob"), "x").unwrap();
        symlink("blob", root.path().join("q6.gguf")).unwrap();
        assert_eq!(message(&root, "q6.gguf", Engine::Vllm), None);
        assert!(message(&root, "qwen/q4.gguf", Engine::Tgi).unwrap().contains("is not a folder"));
        assert!(message(&root, "qwen/q5.gguf", Engine::Vllm).unwrap().contains("no such folder"));
        assert!(message(&root, "folder.gguf", Engine::Vllm).unwrap().contains("expected config.json"));
    }

    #[test]
    fn an_empty_version_is_one() {
        let root = folder(&["ensemble/config.pbtxt", "ensemble/1/", "llama/1/model.onnx"]);
        assert_eq!(message(&root, "", Engine::Triton), None);
        fs::create_dir(root.path().join("lost+found")).unwrap();
        assert!(message(&root, "", Engine::Triton).unwrap().contains("lost+found"));
    }

    #[test]
    fn links_lead_anywhere_in_the_root_and_nowhere_else() {
        let outside = folder(&["config.json", "1/model.onnx"]);
        let root = folder(&["blobs/abc", "snapshots/1/", "models/llama/"]);
        symlink("../../blobs/abc", root.path().join("snapshots/1/config.json")).unwrap();
        assert_eq!(message(&root, "snapshots/1", Engine::Vllm), None);

        symlink(outside.path(), root.path().join("out")).unwrap();
        assert!(message(&root, "out", Engine::Vllm).unwrap().contains("leads out of"));
        symlink(outside.path().join("config.json"), root.path().join("config.json")).unwrap();
        assert!(message(&root, "", Engine::Vllm).unwrap().contains("config.json is a link that leads out"));
        symlink(outside.path().join("1"), root.path().join("models/llama/1")).unwrap();
        assert!(message(&root, "models", Engine::Triton).unwrap().contains("has no version"));
        // To nothing.
        symlink("nothing", root.path().join("snapshots/config.json")).unwrap();
        assert!(message(&root, "snapshots", Engine::Tgi).unwrap().contains("expected config.json"));
    }
}
