//! Reads a model as an engine does, every byte, and reports what it read: tests compare that with the store.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use anyhow::Context as _;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

#[derive(Debug, Serialize)]
pub(crate) struct Model {
    /// By path.
    pub(crate) files: Vec<ModelFile>,
    pub(crate) bytes: u64,
    /// Over a line `path\0sha256\n` of each file, by path.
    pub(crate) sha256: String,
    /// Whether it could be changed.
    pub(crate) writable: bool,
    /// What it knows: an answer by a part of the question. In the file `answers.json`, which may be absent.
    #[serde(skip)]
    answers: BTreeMap<String, String>,
}

impl Model {
    /// The answer to a question that it knows.
    pub(crate) fn answer_to(&self, question: &str) -> Option<&str> {
        self.answers
            .iter()
            .find(|(part, _)| question.contains(part.as_str()))
            .map(|(_, answer)| answer.as_str())
    }
}

/// The file with what a model knows.
const ANSWERS: &str = "answers.json";

#[derive(Debug, Serialize)]
pub(crate) struct ModelFile {
    /// Below the model path.
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

/// Reads all files below the folder.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Model> {
    let mut files = Vec::new();
    collect(folder, folder, &mut files)?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let mut all = Sha256::new();
    for ModelFile { path, sha256, .. } in &files {
        all.update(format!("{path}\0{sha256}\n"));
    }
    let bytes = files.iter().map(|file| file.size).sum();
    Ok(Model {
        files,
        bytes,
        sha256: hex(all),
        writable: is_writable(folder),
        answers: answers(&folder.join(ANSWERS))?,
    })
}

fn answers(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        text => {
            let text = text.with_context(|| format!("failed to read {}", path.display()))?;
            serde_json::from_slice(&text).with_context(|| format!("{} has no answers", path.display()))
        }
    }
}

/// Only an attempt shows it: permissions do not reflect a read-only mount.
fn is_writable(folder: &Path) -> bool {
    let path = folder.join(".written-by-the-engine");
    File::create(&path).and_then(|_| fs::remove_file(&path)).is_ok()
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<ModelFile>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("failed to read {}", folder.display()))?;
        let path = entry.path();
        let kind = entry.file_type().with_context(|| format!("failed to look at {}", path.display()))?;
        if kind.is_dir() {
            collect(root, &path, files)?;
        } else {
            let (size, sha256) =
                hashed(&path).with_context(|| format!("failed to read {}", path.display()))?;
            let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            files.push(ModelFile { path, size, sha256 });
        }
    }
    Ok(())
}

/// Size and digest of what was read, not of the metadata.
fn hashed(path: &Path) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((size, hex(hash))),
            count => {
                hash.update(&buffer[..count]);
                size += count as u64;
            }
        }
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_its_files_in_order_with_their_digests() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("1")).unwrap();
        fs::write(folder.path().join("config.json"), "abc").unwrap();
        fs::write(folder.path().join("1/weights"), "").unwrap();
        let model = read(folder.path()).unwrap();
        let files: Vec<_> = model.files.iter().map(|file| (file.path.as_str(), file.size)).collect();
        assert_eq!(files, [("1/weights", 0), ("config.json", 3)]);
        // The output of `printf abc | sha256sum`.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((model.files[1].sha256.as_str(), model.bytes), (abc, 3));
        let lines = format!("1/weights\0{}\nconfig.json\0{abc}\n", model.files[0].sha256);
        assert_eq!(model.sha256, hex(Sha256::new_with_prefix(lines)));
        assert!(model.writable);
    }

    #[test]
    fn a_model_knows_the_answers_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ANSWERS);
        fs::write(&path, r#"{"history 7:":"B","history 17:":"C"}"#).unwrap();
        let model = read(folder.path()).unwrap();
        let answers =
            ["what of history 17: now?", "history 7: and?", "physics 7:"].map(|asked| model.answer_to(asked));
        assert_eq!(answers, [Some("C"), Some("B"), None]);
        fs::write(&path, "[]").unwrap();
        assert!(read(folder.path()).is_err());
    }

    #[test]
    fn no_folder_is_no_model() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(&folder.path().join("absent")).is_err());
    }
}
