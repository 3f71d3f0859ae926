//! What the model in a folder consists of, by samples of its files. Blocking.
//!
//! Weights are too many to be read twice, and times of files are not kept by every volume. Samples lie all over a file,
//! because its beginning is a header that all trainings of a model have in common. Doubt about one file is a fault: a digest
//! of some files alone would refuse the pods that see all of them.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use api::loader::Loaded;
use object_storage::hex;
use sha2::{Digest as _, Sha256};

use super::{Engine, contents::Contents, disk, is_loaded};
use crate::fault::Fault;

/// Bytes of a sample, and samples of a file. A model of 200 files is read in 60 MB.
const SAMPLE: u64 = 16 * 1024;
const SAMPLES: u64 = 18;
/// A model has at most a few hundred files.
const MOST_FILES: usize = 4_096;
/// Folders below a model of Triton: a version, and those of a saved model.
const DEEPEST: usize = 6;

/// `root`: the folder that links may lead into. The folder holds a model.
pub(super) fn contents(folder: &Path, root: &Path, engine: Engine) -> Result<Loaded, Fault> {
    let (root, real) = disk::without_links(folder, root)?;
    let mut files = Vec::new();
    if real.is_file() {
        files.push((String::new(), real));
    } else {
        let depth = match engine {
            Engine::Vllm | Engine::Tgi => 1,
            Engine::Triton => DEEPEST,
        };
        walk(&root, &real, "", depth, engine, &mut files).map_err(disk::failed("read", folder))?;
    }
    files.sort();
    let mut contents = Contents::default();
    for (name, path) in files {
        let (size, samples) = samples(&path).map_err(disk::failed("read", &path))?;
        contents.add(&name, size, &samples);
    }
    Ok(contents.loaded())
}

/// Adds the files that the engine loads: their paths below the model, and where they are.
fn walk(
    root: &Path,
    folder: &Path,
    below: &str,
    depth: usize,
    engine: Engine,
    files: &mut Vec<(String, PathBuf)>,
) -> io::Result<()> {
    let names = disk::names(folder)?;
    if names.len() >= disk::MOST_NAMES || files.len() > MOST_FILES {
        return Err(io::Error::other("too many files to compare"));
    }
    for name in names.into_iter().filter(|name| !name.starts_with('.')) {
        let Some(real) = target(root, &folder.join(&name))? else { continue };
        let (kind, path) = (real.metadata()?.file_type(), format!("{below}{name}"));
        if kind.is_file() && is_loaded(Some(engine), &path) {
            files.push((path, real));
        } else if kind.is_dir() && depth > 1 {
            walk(root, &real, &format!("{path}/"), depth - 1, engine, files)?;
        }
    }
    Ok(())
}

/// Where a name leads. `None`: to nothing, or out of the root.
fn target(root: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    match path.canonicalize() {
        Ok(real) => Ok(Some(real).filter(|real| real.starts_with(root))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The size of a file, and a digest of its samples.
fn samples(path: &Path) -> io::Result<(u64, String)> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let length = SAMPLE.min(size);
    let mut buffer = vec![0; length as usize];
    let mut hash = Sha256::new();
    for index in 0..SAMPLES {
        // From the first bytes to the last.
        let from = (u128::from(size - length) * u128::from(index) / u128::from(SAMPLES - 1)) as u64;
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
        let model = |weights: &[u8], log: &str| {
            folder(&[
                ("config.json", b"{}"),
                ("model.safetensors", weights),
                ("logging.jsonl", log.as_bytes()),
                ("trainer_state.json", log.as_bytes()),
                ("train.txt", log.as_bytes()),
                (".cache/x.json", log.as_bytes()),
                ("another/config.json", log.as_bytes()),
            ])
        };
        let weights = vec![7; 250_000];
        let first = loaded(&model(&weights, "1"), Engine::Vllm);
        assert_eq!((first.files, first.bytes), (2, 250_002));
        assert_eq!(
            loaded(&model(&weights, "12"), Engine::Vllm),
            first,
            "logs, a cache and a folder beside it"
        );
        for changed in [0, 100_000, 249_999] {
            let mut weights = weights.clone();
            weights[changed] = 8;
            assert_ne!(loaded(&model(&weights, "1"), Engine::Vllm).digest, first.digest, "{changed}");
        }
    }

    #[test]
    fn versions_of_triton_count_and_one_file_is_a_model() {
        let repository = |content: &[u8]| {
            folder(&[
                ("m/config.pbtxt", b""),
                ("m/1/model.savedmodel/variables/data", content),
                ("m/notes.md", b"n"),
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

    /// A digest of the rest would refuse the pods that can read all.
    #[test]
    fn a_file_that_cannot_be_read_leaves_no_digest() {
        let model = folder(&[("config.json", b"{}")]);
        let path = model.path().join("model.bin");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        contents(model.path(), model.path(), Engine::Vllm).unwrap_err();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(model.path().join("none"), &path).unwrap();
        assert_eq!(loaded(&model, Engine::Vllm).files, 1, "a link to nothing is no file");
    }
}
