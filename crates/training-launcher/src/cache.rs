//! What the attempts of a job have loaded from hubs, in the claim of the output. It deletes nothing but that folder, and
//! writes nothing but the ids of models where a checkpoint has their paths in it.
//!
//! huggingface_hub uses a cached model if the hub cannot be reached. ModelScope's library does not: it gets the path of a
//! model that was loaded before.

use std::{
    borrow::Cow,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    path::{Component, Path, PathBuf},
};

use api::launcher::hub_folders::{BELOW_MOUNT, MODELSCOPE};

use crate::{
    checkpoints::{ARGUMENTS, LONGEST_ARGUMENTS},
    marker::write_new,
};

const MODEL: &str = "--model";
const HUB: &str = "--use_hf";
/// ModelScope's library writes it for a dot.
const DOT: &str = "___";
/// Every model has it.
const CONFIGURATION: &str = "config.json";

/// The trainer's command line with the path of a model that is in the cache, instead of its id on ModelScope.
///
/// Only for a run that goes on from a checkpoint of this job: the model was loaded completely before it was written.
pub(crate) fn with_local_model(cache: &Path, trainer: &[OsString]) -> Vec<OsString> {
    let mut words = trainer.to_vec();
    let value = |words: &[OsString], flag: &str| {
        let at = words.iter().rposition(|word| word == flag)?.checked_add(1)?;
        Some((at, words.get(at)?.to_str()?.to_owned()))
    };
    let is_modelscope = value(&words, HUB).is_some_and(|(_, hub)| hub == "false");
    if let Some((at, id)) = value(&words, MODEL).filter(|_| is_modelscope)
        && let Some(folder) = local_model(&cache.join(MODELSCOPE).join("models"), &id)
        && let Some(word) = words.get_mut(at)
    {
        *word = folder.into_os_string();
    }
    words
}

/// The folders of the library's releases before and since 1.38.
fn local_model(models: &Path, id: &str) -> Option<PathBuf> {
    let (owner, name) = id.split_once('/')?;
    let is_plain = |part: &str| {
        let mut parts = Path::new(part).components();
        matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !part.contains(':')
    };
    if !is_plain(owner) || !is_plain(name) {
        return None;
    }
    let folders = [
        models.join(owner).join(name.replace('.', DOT)),
        models.join(owner).join(name),
        models.join(format!("{owner}--{name}")).join("snapshots").join("master"),
    ];
    folders.into_iter().find(|folder| folder.join(CONFIGURATION).is_file())
}

/// The id of a model that was given as a folder of a cache.
pub(crate) fn id_of(path: &str) -> Option<String> {
    let (_, below) = path.split_once(&format!("/{BELOW_MOUNT}/"))?;
    let (_, model) = below.split_once(&format!("/{MODELSCOPE}/models/"))?;
    match model.split('/').collect::<Vec<_>>().as_slice() {
        [owner, name] => Some(format!("{owner}/{}", name.replace(DOT, "."))),
        [both, "snapshots", _] => both.split_once("--").map(|(owner, name)| format!("{owner}/{name}")),
        _ => None,
    }
}

/// Puts the ids of models back into the arguments of a checkpoint where they have paths in the cache: without it, such a path
/// leads nowhere.
pub(crate) fn restore_ids(cache: &Path, checkpoint: &Path) -> io::Result<()> {
    let path = checkpoint.join(ARGUMENTS);
    replace_paths(cache, checkpoint, &path).map_err(|error| {
        let message = format!("failed to write the id of the model into {}: {error}", path.display());
        io::Error::new(error.kind(), message)
    })
}

fn replace_paths(cache: &Path, checkpoint: &Path, path: &Path) -> io::Result<()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() > LONGEST_ARGUMENTS {
        return Err(io::Error::other(format!("it has more than {LONGEST_ARGUMENTS} bytes")));
    }
    let mut text = String::new();
    file.take(LONGEST_ARGUMENTS).read_to_string(&mut text)?;
    let replaced = with_ids(cache, &text);
    if replaced == text {
        return Ok(());
    }
    let new = checkpoint.join(format!(".{ARGUMENTS}.new"));
    let written = write_new(&new, replaced.as_bytes()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Only the strings are changed: what Python writes is not always JSON, and numbers stay as they are.
fn with_ids(cache: &Path, json: &str) -> String {
    let id = |text: &str| if Path::new(text).starts_with(cache) { id_of(text) } else { None };
    let texts = json.split('"').map(|text| id(text).map_or(Cow::Borrowed(text), Cow::Owned));
    texts.collect::<Vec<_>>().join("\"")
}

/// Deletes the folder, and the folders above it that are empty then: those of `BELOW_MOUNT`. A link in its path is not
/// followed.
pub(crate) fn remove(cache: &Path) -> io::Result<()> {
    for folder in cache.ancestors().take(3) {
        match fs::symlink_metadata(folder) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(io::Error::other(format!("{} is no folder", folder.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    fs::remove_dir_all(cache)?;
    // Another job may have a folder there.
    let _ = cache.ancestors().skip(1).take(2).try_for_each(fs::remove_dir);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_cached_model_of_modelscope_is_given_by_its_path() {
        let cache = tempfile::tempdir().unwrap();
        let line = "swift sft --model a/B-1.5 --dataset d --use_hf false";
        assert_eq!(with_local_model(cache.path(), &words(line)), words(line), "it is not there");
        let folder = cache.path().join("modelscope/models/a/B-1___5");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), "{}").unwrap();
        let shown = folder.to_str().unwrap();
        assert_eq!(with_local_model(cache.path(), &words(line)), words(&line.replace("a/B-1.5", shown)));
        let other = line.replace("false", "true");
        assert_eq!(
            with_local_model(cache.path(), &words(&other)),
            words(&other),
            "Hugging Face has its own way"
        );
        for id in ["/inputs/m", "B-1.5", "a/../b", "../a", "a/B-1.5:sub"] {
            let line = line.replace("a/B-1.5", id);
            assert_eq!(with_local_model(cache.path(), &words(&line)), words(&line));
        }
    }

    #[test]
    fn the_id_of_a_cached_model_is_known() {
        let id = |path: &str| id_of(&format!("/output/.cache/hub/qwen/modelscope/models/{path}"));
        assert_eq!(id("a/B-1___5").as_deref(), Some("a/B-1.5"));
        assert_eq!(id("a--B-1.5/snapshots/master").as_deref(), Some("a/B-1.5"));
        assert_eq!((id("a"), id_of("/inputs/a/b"), id_of("a/b")), (None, None, None));
    }

    #[test]
    fn the_arguments_of_a_checkpoint_have_ids_instead_of_paths_in_the_cache() {
        let output = tempfile::tempdir().unwrap();
        let cache = output.path().join(".cache/hub/qwen");
        let model = cache.join("modelscope/models/a/B-1___5");
        let (model, other) = (model.to_str().unwrap(), "/else/.cache/hub/qwen/modelscope/models/a/B");
        let text = |model: &str| {
            format!(
                "{{\n \"model\": \"{model}\", \"z\": NaN, \"learning_rate\": 1e-04, \"template\": \"say \\\"x\\\"\",\n \
                 \"ref_model\": [\"{model}\"], \"reward_model\": \"{other}\", \"a\": \"{model}/config.json\"}}\n"
            )
        };
        restore_ids(&cache, output.path()).unwrap();
        let path = output.path().join(ARGUMENTS);
        fs::write(&path, text(model)).unwrap();
        restore_ids(&cache, output.path()).unwrap();
        let last = format!("{model}/config.json");
        let expected = text("a/B-1.5").replace("a/B-1.5/config.json", &last);
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(fs::read_dir(output.path()).unwrap().count(), 1, "no other file is left");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(restore_ids(&cache, output.path()).unwrap_err().to_string().contains(ARGUMENTS));
    }

    #[test]
    fn only_the_cache_is_removed() {
        let output = tempfile::tempdir().unwrap();
        let hub = output.path().join(".cache/hub");
        fs::create_dir_all(hub.join("one/models")).unwrap();
        fs::create_dir(hub.join("other")).unwrap();
        fs::write(output.path().join("kept"), "").unwrap();
        std::os::unix::fs::symlink(output.path(), hub.join("one/link")).unwrap();
        remove(&hub.join("one")).unwrap();
        assert!(
            !hub.join("one").exists() && hub.join("other").exists() && output.path().join("kept").exists()
        );
        remove(&hub.join("one")).unwrap();
        remove(&hub.join("other")).unwrap();
        assert!(!output.path().join(".cache").exists());
        // What the trainer has put into its place.
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir_all(elsewhere.path().join("hub/one")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), output.path().join(".cache")).unwrap();
        assert!(remove(&hub.join("one")).is_err());
        assert!(elsewhere.path().join("hub/one").exists());
    }
}
