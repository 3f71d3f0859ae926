//! The checkpoints of the output folder: which are complete, and which can be resumed from. It reads only, except that
//! `remove` deletes one folder.
//!
//! Complete means that `trainer_state.json`, which ms-swift writes last, is there, and that no file was truncated when
//! a machine crashed afterwards. Contents are not verified, and memory does not grow with a checkpoint.

mod archive;
mod safetensors;
mod state;

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use api::launcher::{Checkpoint, checkpoint_step};

pub(crate) use state::State;

/// Folders of a checkpoint that DeepSpeed and FSDP write have one more level.
const DEPTH: usize = 2;

/// The arguments that it was written with, in a few kilobytes.
pub(crate) const ARGUMENTS: &str = "args.json";
pub(crate) const LONGEST_ARGUMENTS: u64 = 4 << 20;

/// A folder `checkpoint-<step>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) step: i64,
}

/// A complete checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Complete {
    pub(crate) folder: Folder,
    pub(crate) state: State,
    /// It has the state of the optimizer.
    pub(crate) is_resumable: bool,
    pub(crate) stamp: Stamp,
}

/// Identifies one writing of a checkpoint: another run that writes a checkpoint of the same step changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Complete {
    pub(crate) fn reference(&self) -> Checkpoint {
        self.folder.reference()
    }
}

impl Folder {
    pub(crate) fn reference(&self) -> Checkpoint {
        Checkpoint { path: self.path.to_string_lossy().into_owned(), step: self.step }
    }
}

/// All folders `checkpoint-<step>`, the newest first. Links are none.
pub(crate) fn list(output: &Path) -> io::Result<Vec<Folder>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(output)? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(step) = name.to_str().and_then(checkpoint_step)
            && entry.file_type()?.is_dir()
        {
            found.push(Folder { path: entry.path(), step });
        }
    }
    found.sort_by_key(|folder| std::cmp::Reverse(folder.step));
    Ok(found)
}

/// `None` if the checkpoint is incomplete. An error is one of the file system.
pub(crate) fn examine(folder: &Folder) -> io::Result<Option<Complete>> {
    let state_file = folder.path.join(state::FILE);
    let Some((state, metadata)) = state::read(&state_file)? else { return Ok(None) };
    if state.global_step != folder.step {
        return Ok(None);
    }
    let mut seen = Seen::default();
    if !is_intact(&folder.path, DEPTH, &mut seen)? || !seen.has_weights || !has_all_shards(&folder.path)? {
        return Ok(None);
    }
    let stamp = Stamp {
        inode: metadata.ino(),
        size: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    };
    Ok(Some(Complete { folder: folder.clone(), state, is_resumable: seen.has_optimizer, stamp }))
}

/// The newest complete checkpoint that satisfies a condition.
pub(crate) fn newest(output: &Path, accept: impl Fn(&Complete) -> bool) -> io::Result<Option<Complete>> {
    for folder in list(output)? {
        if let Some(complete) = examine(&folder)?.filter(&accept) {
            return Ok(Some(complete));
        }
    }
    Ok(None)
}

/// Deletes a checkpoint. Its links are deleted, and not what they point to.
pub(crate) fn remove(folder: &Folder) -> io::Result<()> {
    // Without it, a crash in the middle could leave a folder that looks complete.
    match fs::remove_file(folder.path.join(state::FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::remove_dir_all(&folder.path)
}

#[derive(Debug, Default)]
struct Seen {
    has_weights: bool,
    has_optimizer: bool,
}

/// Whether no file of a folder is truncated.
fn is_intact(folder: &Path, depth: usize, seen: &mut Seen) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if kind.is_dir() {
            seen.has_weights |= name.starts_with("global_step") || name.starts_with("pytorch_model_fsdp");
            seen.has_optimizer |= name.starts_with("global_step") || name.starts_with("optimizer");
            if depth > 1 && !is_intact(&path, depth - 1, seen)? {
                return Ok(false);
            }
        } else if kind.is_file() {
            seen.has_weights |= is_weights(name);
            seen.has_optimizer |= matches!(name, "optimizer.pt" | "optimizer.bin");
            let is_whole = match name.rsplit_once('.').map(|(_, suffix)| suffix) {
                Some("safetensors") => safetensors::is_whole(&path)?,
                Some("pt" | "bin" | "pth") => archive::is_whole(&path)?,
                Some(_) | None => true,
            };
            if !is_whole {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn is_weights(name: &str) -> bool {
    let of_model = ["adapter_model", "model", "pytorch_model"].iter().any(|prefix| name.starts_with(prefix));
    of_model && (name.ends_with(".safetensors") || name.ends_with(".bin"))
}

/// Whether every file that an index names is there: a crash may have lost the whole entry of a file.
fn has_all_shards(folder: &Path) -> io::Result<bool> {
    for index in ["model.safetensors.index.json", "pytorch_model.bin.index.json"] {
        let shards: BTreeSet<String> = match safetensors::shards(&folder.join(index)) {
            Ok(Some(shards)) => shards,
            Ok(None) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for shard in shards {
            if !folder.join(shard).try_exists()? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = r#"{"global_step": 5, "max_steps": 27}"#;

    /// A complete LoRA checkpoint of step 5.
    fn checkpoint(output: &Path) -> Folder {
        let path = output.join("checkpoint-5");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("adapter_model.safetensors"), safetensors::tests::file()).unwrap();
        fs::write(path.join("optimizer.pt"), archive::tests::file()).unwrap();
        fs::write(path.join("trainer_state.json"), STATE).unwrap();
        Folder { path, step: 5 }
    }

    fn truncate(path: &Path) {
        let content = fs::read(path).unwrap();
        fs::write(path, &content[..content.len() - 1]).unwrap();
    }

    #[test]
    fn a_checkpoint_with_weights_optimizer_and_state_is_complete_and_resumable() {
        let output = tempfile::tempdir().unwrap();
        let folder = checkpoint(output.path());
        let complete = examine(&folder).unwrap().unwrap();
        assert_eq!((complete.folder.step, complete.state.max_steps), (5, 27));
        assert!(complete.is_resumable);
        fs::remove_file(folder.path.join("optimizer.pt")).unwrap();
        assert!(!examine(&folder).unwrap().unwrap().is_resumable);
    }

    #[test]
    fn a_checkpoint_without_its_state_or_with_that_of_another_step_is_incomplete() {
        for text in ["", "{", r#"{"global_step": 4, "max_steps": 27}"#] {
            let output = tempfile::tempdir().unwrap();
            let folder = checkpoint(output.path());
            fs::write(folder.path.join("trainer_state.json"), text).unwrap();
            assert!(examine(&folder).unwrap().is_none(), "{text}");
            fs::remove_file(folder.path.join("trainer_state.json")).unwrap();
            assert!(examine(&folder).unwrap().is_none());
        }
    }

    #[test]
    fn a_truncated_file_makes_a_checkpoint_incomplete() {
        for file in ["adapter_model.safetensors", "optimizer.pt", "global_step5/optim_states.pt"] {
            let output = tempfile::tempdir().unwrap();
            let folder = checkpoint(output.path());
            fs::create_dir(folder.path.join("global_step5")).unwrap();
            fs::write(folder.path.join("global_step5/optim_states.pt"), archive::tests::file()).unwrap();
            assert!(examine(&folder).unwrap().is_some());
            truncate(&folder.path.join(file));
            assert!(examine(&folder).unwrap().is_none(), "{file}");
        }
    }

    #[test]
    fn weights_may_be_in_shards_and_all_of_them_must_be_there() {
        let output = tempfile::tempdir().unwrap();
        let folder = checkpoint(output.path());
        fs::remove_file(folder.path.join("adapter_model.safetensors")).unwrap();
        assert!(examine(&folder).unwrap().is_none(), "no weights");
        let index =
            r#"{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        fs::write(folder.path.join("model.safetensors.index.json"), index).unwrap();
        fs::write(folder.path.join("model-1.safetensors"), safetensors::tests::file()).unwrap();
        assert!(examine(&folder).unwrap().is_none(), "one shard is missing");
        fs::write(folder.path.join("model-2.safetensors"), safetensors::tests::file()).unwrap();
        assert!(examine(&folder).unwrap().is_some());
    }

    #[test]
    fn the_newest_is_chosen_by_number_and_links_are_no_checkpoints() {
        let output = tempfile::tempdir().unwrap();
        for name in
            ["checkpoint-9", "checkpoint-10", "checkpoint-010", "checkpoint--1", "checkpoint-x", "runs"]
        {
            fs::create_dir(output.path().join(name)).unwrap();
        }
        fs::write(output.path().join("checkpoint-12"), "a file").unwrap();
        std::os::unix::fs::symlink("checkpoint-9", output.path().join("checkpoint-11")).unwrap();
        let steps: Vec<i64> = list(output.path()).unwrap().iter().map(|folder| folder.step).collect();
        assert_eq!(steps, [10, 9]);
        checkpoint(output.path());
        assert_eq!(newest(output.path(), |_| true).unwrap().unwrap().folder.step, 5);
    }

    #[test]
    fn a_removed_checkpoint_takes_nothing_with_it() {
        let output = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("kept"), "").unwrap();
        let folder = checkpoint(output.path());
        std::os::unix::fs::symlink(elsewhere.path(), folder.path.join("link")).unwrap();
        remove(&folder).unwrap();
        assert!(!folder.path.exists());
        assert!(elsewhere.path().join("kept").exists());
    }
}
