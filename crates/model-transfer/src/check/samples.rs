//! What the model in a folder consists of, by samples of its files. Blocking.
//!
//! Weights are too many to be read twice, and times of files are not kept by every volume. Training changes all of a file,
//! so its beginning and its end are compared. Only files that an engine loads count: a log beside them may grow.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use api::loader::Loaded;
use sha2::{Digest as _, Sha256};

use super::{CONFIG, Engine, Kind, disk, is_version};
use crate::{
    contents::Contents,
    fault::{Cause, Fault},
};
use object_storage::hex;

/// What is read of the beginning and of the end of each file.
const SAMPLE: u64 = 64 * 1024;
/// A model has at most a few hundred files.
const MOST_FILES: usize = 4_096;

/// Endings of files with weights, configurations and vocabularies.
const LOADED: [&str; 12] =
    ["safetensors", "bin", "pt", "pth", "gguf", "json", "model", "jinja", "txt", "py", "tiktoken", "msgpack"];

/// `root`: the folder that links may lead into. The folder holds a model.
pub(super) fn contents(folder: &Path, root: &Path, engine: Engine) -> Result<Loaded, Fault> {
    let (root, real) = disk::without_links(folder, root)?;
    let mut files = files_of(&root, &real, engine).map_err(disk::failed("read", folder))?;
    if files.len() > MOST_FILES {
        let message = format!("{} has more than {MOST_FILES} files", folder.display());
        return Err(Fault::new(Cause::Local, message));
    }
    files.sort();
    let mut contents = Contents::default();
    for (name, path) in files {
        let (size, sample) = sample(&path).map_err(disk::failed("read", &path))?;
        contents.add(&name, size, &sample);
    }
    Ok(contents.loaded())
}

/// Names below the folder, and where the files are.
fn files_of(root: &Path, folder: &Path, engine: Engine) -> io::Result<Vec<(String, PathBuf)>> {
    let is_file = |path: &Path| {
        disk::kind(root, path) == Some(Kind::File) && path.metadata().is_ok_and(|found| found.is_file())
    };
    if is_file(folder) {
        return Ok(vec![(String::new(), folder.to_owned())]);
    }
    let mut files = Vec::new();
    for name in disk::names(folder)? {
        let path = folder.join(&name);
        match engine {
            Engine::Vllm | Engine::Tgi if is_loaded(&name) && is_file(&path) => files.push((name, path)),
            Engine::Vllm | Engine::Tgi => {}
            Engine::Triton => files.extend(files_of_triton(root, &name, &path)?),
        }
    }
    Ok(files.into_iter().filter(|(_, path)| is_file(path)).collect())
}

/// The configuration of one model, and the files of its versions.
fn files_of_triton(root: &Path, model: &str, path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let is_folder = |path: &Path| matches!(disk::kind(root, path), Some(Kind::Folder(_)));
    if !is_folder(path) {
        return Ok(Vec::new());
    }
    let mut files = vec![(format!("{model}/{CONFIG}"), path.join(CONFIG))];
    for version in disk::names(path)?.into_iter().filter(|name| is_version(name)) {
        let place = path.join(&version);
        if is_folder(&place) {
            let below = disk::names(&place)?.into_iter();
            files.extend(below.map(|name| (format!("{model}/{version}/{name}"), place.join(name))));
        }
    }
    Ok(files)
}

fn is_loaded(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    !name.starts_with('.') && ending.is_some_and(|ending| LOADED.contains(&ending))
}

/// The size of a file, and a digest of its beginning and its end.
fn sample(path: &Path) -> io::Result<(u64, String)> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut hash = Sha256::new();
    for from in [0, size.saturating_sub(SAMPLE)] {
        let mut buffer = vec![0; SAMPLE.min(size - from) as usize];
        file.read_exact_at(&mut buffer, from)?;
        hash.update(&buffer);
    }
    Ok((size, hex(&hash.finalize())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        folder
    }

    fn loaded(folder: &TempDir, engine: Engine) -> Loaded {
        contents(folder.path(), folder.path(), engine).unwrap()
    }

    #[test]
    fn a_model_is_another_one_when_a_file_that_is_loaded_changes() {
        let mut weights = vec![7; 300_000];
        let model = |weights: &[u8], log: &str| {
            folder(&[
                ("config.json", b"{}"),
                ("model.safetensors", weights),
                ("logging.jsonl", log.as_bytes()),
                (".cache/x.json", log.as_bytes()),
                ("another/config.json", log.as_bytes()),
            ])
        };
        let first = loaded(&model(&weights, "1"), Engine::Vllm);
        assert_eq!((first.files, first.bytes), (2, 300_002));
        assert_eq!(
            loaded(&model(&weights, "12"), Engine::Vllm),
            first,
            "a log, a cache and a folder beside it"
        );
        weights[0] = 8;
        let changed = loaded(&model(&weights, "1"), Engine::Vllm);
        assert_ne!(changed.digest, first.digest);
        weights[0] = 7;
        *weights.last_mut().unwrap() = 8;
        assert_ne!(loaded(&model(&weights, "1"), Engine::Vllm).digest, first.digest);
    }

    #[test]
    fn versions_of_triton_count_and_one_file_is_a_model() {
        let repository = |content: &[u8]| {
            folder(&[
                ("m/config.pbtxt", b""),
                ("m/1/model.onnx", content),
                ("m/notes", b"n"),
                ("README", b"r"),
            ])
        };
        let first = loaded(&repository(b"a"), Engine::Triton);
        assert_eq!(first.files, 2);
        assert_ne!(loaded(&repository(b"b"), Engine::Triton).digest, first.digest);
        let one = folder(&[("model.gguf", b"GGUF")]);
        let found = contents(&one.path().join("model.gguf"), one.path(), Engine::Vllm).unwrap();
        assert_eq!((found.files, found.bytes), (1, 4));
    }
}
