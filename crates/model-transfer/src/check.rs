//! Checks whether a folder holds a model that an engine can load, before the engine starts, because engines report a
//! missing model late or not at all.
//!
//! It reads names and file types of a few levels, writes nothing and follows no link out of the folder. `contents` also
//! reads samples of the files.

pub(crate) mod contents;
mod disk;
mod samples;

use std::{collections::BTreeMap, path::Path, time::Duration};

use api::{aiinference::source::GGUF, loader::Loaded};
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    digest::sums::SHA256SUMS,
    fault::{Cause, Fault},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    Vllm,
    Triton,
    Tgi,
}

/// A file or folder at the root of a model, or of a repository of models.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    File,
    Folder(Inside),
    /// A link that leads out of the folder.
    LeadsOut,
}

/// The entries of a model's folder that decide whether Triton loads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Inside {
    has_config: bool,
    has_version: bool,
    /// A file `model.*` in a version folder, from which Triton derives the configuration.
    has_model_file: bool,
}

/// Fails with the reason if the folder does not hold a model. `root`: the folder that links may lead into.
pub(crate) async fn check(folder: &Path, root: &Path, engine: Engine, within: Duration) -> Result<(), Fault> {
    let (path, root) = (folder.to_owned(), root.to_owned());
    let look = move || {
        let entries = disk::entries(&path, &root, engine)?;
        verdict(engine, &path.display().to_string(), &entries, is_gguf(&path))
    };
    in_time(folder, within, look).await
}

/// Endings of weights, of code and of templates that engines load.
const LOADED: [&str; 7] = ["safetensors", "gguf", "bin", "tensors", "py", "jinja", "tiktoken"];
/// Parts of the names of configurations and vocabularies. Results of an evaluation have none of them.
const PARTS: [&str; 8] =
    ["config", "token", "vocab", "merges", "params", "template", "index", "consolidated"];
/// What training leaves beside a model.
const LEFT_BY_TRAINING: &str = "training_args.bin";

/// Whether an engine loads a file, by its path below the model. Any other file may change while pods serve.
pub(crate) fn is_loaded(engine: Option<Engine>, path: &str) -> bool {
    if path.split('/').any(|part| part.starts_with('.')) {
        return false;
    }
    let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending);
    match engine {
        None => path != SHA256SUMS,
        // Folders of it are other models, or checkpoints.
        Some(Engine::Vllm | Engine::Tgi) => {
            let has_part = PARTS.iter().any(|part| path.contains(part));
            !path.contains('/') && path != LEFT_BY_TRAINING && (LOADED.contains(&ending) || has_part)
        }
        Some(Engine::Triton) => path.contains('/') && ending != "md",
    }
}

/// Limit for the reading of samples. A volume that is slower has no digest.
const SAMPLES_WITHIN: Duration = Duration::from_secs(20);

/// What a folder that holds a model consists of. `None`: it cannot be read, or not in time. That is no fault, because the
/// engine may still load it.
pub(crate) async fn contents(folder: &Path, root: &Path, engine: Engine, within: Duration) -> Option<Loaded> {
    let (path, root) = (folder.to_owned(), root.to_owned());
    let look = move || samples::contents(&path, &root, engine);
    match in_time(folder, within.min(SAMPLES_WITHIN), look).await {
        Ok(loaded) => Some(loaded),
        Err(fault) => {
            tracing::warn!("{fault}; the model is not compared with that of other pods");
            None
        }
    }
}

/// Whether the path names one file that is a whole model.
fn is_gguf(path: &Path) -> bool {
    path.to_string_lossy().ends_with(GGUF)
}

/// A volume that hangs blocks one thread; this function returns all the same.
async fn in_time<T: Send + 'static>(
    folder: &Path,
    within: Duration,
    look: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let folder = folder.display();
    match timeout(within, spawn_blocking(look)).await {
        Ok(looked) => {
            looked.map_err(|error| Fault::new(Cause::Local, format!("a thread panicked: {error}")))?
        }
        Err(_) => {
            let seconds = within.as_secs();
            let message = format!("{folder} has not answered for {seconds} s: check its volume");
            Err(Fault::new(Cause::Unreachable, message))
        }
    }
}

/// Checks a model that is still in the store, by the paths of its files and of its empty folders, which end with a slash.
/// `is_one_file`: the source names one file.
pub(crate) fn check_paths<'p>(
    engine: Engine,
    place: &str,
    paths: impl Iterator<Item = &'p str>,
    is_one_file: bool,
) -> Result<(), Fault> {
    verdict(engine, place, &entries_of(paths), is_one_file)
}

fn entries_of<'p>(paths: impl Iterator<Item = &'p str>) -> Vec<Entry> {
    let mut kinds = BTreeMap::<&str, Kind>::new();
    for path in paths {
        let (name, rest) = match path.split_once('/') {
            Some((name, rest)) => (name, Some(rest)),
            None => (path, None),
        };
        let kind = kinds.entry(name).or_insert(match rest {
            Some(_) => Kind::Folder(Inside::default()),
            None => Kind::File,
        });
        if let (Kind::Folder(inside), Some(rest)) = (kind, rest) {
            inside.has_config |= rest == CONFIG;
            if let Some((version, file)) = rest.split_once('/')
                && is_version(version)
            {
                inside.has_version = true;
                inside.has_model_file |= is_model_file(file);
            }
        }
    }
    kinds.into_iter().map(|(name, kind)| Entry { name: name.to_owned(), kind }).collect()
}

fn verdict(engine: Engine, place: &str, entries: &[Entry], is_one_file: bool) -> Result<(), Fault> {
    let wrong = match engine {
        Engine::Vllm => wrong_for_vllm(place, entries, is_one_file),
        Engine::Tgi => wrong_without_config(place, entries),
        Engine::Triton => wrong_for_triton(place, entries),
    };
    wrong.map_or(Ok(()), |message| Err(Fault::new(Cause::NotFound, message)))
}

/// The configuration of a model from Hugging Face.
const CONFIG_JSON: &str = "config.json";
/// The configuration of a model from Mistral, which vLLM accepts as well.
const PARAMS_JSON: &str = "params.json";
/// The configuration of a model in Triton's repository.
const CONFIG: &str = "config.pbtxt";

/// vLLM takes a folder with a configuration, or one file in the format GGUF. Of a folder it wants the configuration, also if
/// such a file is in it.
fn wrong_for_vllm(place: &str, entries: &[Entry], is_one_file: bool) -> Option<String> {
    let is_file = |entry: &&Entry| entry.kind == Kind::File;
    if entries.iter().filter(is_file).any(|entry| entry.name == PARAMS_JSON) {
        return None;
    }
    let mut ggufs = entries.iter().filter(is_file).filter(|entry| entry.name.ends_with(GGUF));
    match (ggufs.next(), is_one_file) {
        (Some(_), true) => None,
        (Some(Entry { name, .. }), false) => wrong_without_config(place, entries).map(|_| {
            format!(
                "{place} holds {name} and no {CONFIG_JSON}: name the file in the source, as in {place}/{name}"
            )
        }),
        (None, _) => wrong_without_config(place, entries),
    }
}

fn wrong_without_config(place: &str, entries: &[Entry]) -> Option<String> {
    match entries.iter().find(|entry| entry.name == CONFIG_JSON).map(|entry| &entry.kind) {
        Some(Kind::File) => None,
        Some(Kind::LeadsOut) => Some(leads_out(place, CONFIG_JSON)),
        Some(Kind::Folder(_)) | None => {
            let found = found(entries.iter().map(|entry| entry.name.as_str()));
            Some(format!("{place} holds no model: expected {CONFIG_JSON}{found}"))
        }
    }
}

/// Triton ends if any folder of its repository, also a hidden one, is not a model; it ignores files beside the folders.
fn wrong_for_triton(place: &str, entries: &[Entry]) -> Option<String> {
    let folders = || {
        entries.iter().filter_map(|entry| match &entry.kind {
            Kind::Folder(inside) => Some((entry.name.as_str(), inside)),
            Kind::File | Kind::LeadsOut => None,
        })
    };
    let expected = "expected a folder per model with a folder per version, as NAME/1/";
    if entries.iter().any(|entry| entry.name == CONFIG || is_version(&entry.name)) {
        return Some(format!("{place} is a model and not a repository of models: {expected}"));
    }
    if folders().next().is_none() && entries.iter().all(|entry| entry.kind != Kind::LeadsOut) {
        let found = found(entries.iter().map(|entry| entry.name.as_str()));
        return Some(format!("{place} holds no model: {expected}{found}"));
    }
    entries.iter().find_map(|Entry { name, kind }| match kind {
        Kind::File => None,
        Kind::LeadsOut => Some(leads_out(place, name)),
        Kind::Folder(Inside { has_version: false, .. }) if is_of_the_system(name) => Some(format!(
            "{place} has the folder {name:?}; Triton does not start with it: move the models into a folder \
             beside it, and name that as the path"
        )),
        Kind::Folder(Inside { has_version: false, .. }) => Some(format!(
            "{place}/{name} has no version; Triton does not start with it: expected {name}/1/, which in an \
             ensemble is empty"
        )),
        Kind::Folder(Inside { has_config: false, has_model_file: false, .. }) => Some(format!(
            "{place}/{name} has no {CONFIG}, and no model.* that replaces it in a version folder"
        )),
        Kind::Folder(_) => None,
    })
}

fn leads_out(place: &str, name: &str) -> String {
    format!("{place}/{name} is a link that leads out of the volume: copy its target into the volume")
}

/// Made by file systems and tools, not by users.
fn is_of_the_system(name: &str) -> bool {
    name == "lost+found" || name.starts_with('.')
}

/// Triton ignores folders whose number begins with 0.
fn is_version(name: &str) -> bool {
    !name.starts_with('0') && !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_model_file(name: &str) -> bool {
    name.starts_with("model.")
}

/// `; found: llama, qwen`, or an empty text if there are no names.
fn found<'n>(names: impl Iterator<Item = &'n str>) -> String {
    const MOST: usize = 10;
    const LONGEST: usize = 64;
    let mut names: Vec<&str> = names.filter(|name| !is_of_the_system(name)).collect();
    names.sort_unstable();
    let shown: Vec<String> =
        names.iter().take(MOST).map(|name| name.chars().take(LONGEST).collect()).collect();
    match names.len().saturating_sub(MOST) {
        _ if names.is_empty() => String::new(),
        0 => format!("; found: {}", shown.join(", ")),
        more => format!("; found: {} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    #[test]
    fn files_that_engines_load_count_and_what_tools_leave_beside_them_does_not() {
        for path in [
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer.model.v3",
            "vocab.txt",
            "merges.txt",
            "params.json",
            "consolidated.00.pth",
            "pytorch_model.bin",
            "modeling_qwen.py",
            "chat_template.jinja",
            "qwen.tiktoken",
            "q4.gguf",
        ] {
            assert!(is_loaded(Some(Engine::Vllm), path), "{path}");
        }
        for path in [
            "README.md",
            "eval_results.json",
            "trainer_state.json",
            "training_args.bin",
            "optimizer.pt",
            "SHA256SUMS",
            "rng_state_0.pth",
            ".gitattributes",
            "checkpoint-500/config.json",
            "events.out.tfevents.1",
            "train.txt",
        ] {
            assert!(!is_loaded(Some(Engine::Vllm), path), "{path}");
        }
        for (path, counts) in [
            ("m/1/model.py", true),
            ("m/env.tar.gz", true),
            ("m/README.md", false),
            ("log", false),
            ("m/.x", false),
        ] {
            assert_eq!(is_loaded(Some(Engine::Triton), path), counts, "{path}");
        }
    }

    use super::*;

    fn message(engine: Engine, paths: &[&str]) -> Option<String> {
        let fault = check_paths(engine, "/models", paths.iter().copied(), false).err()?;
        assert_eq!(fault.cause, Cause::NotFound);
        Some(fault.to_string())
    }

    #[test]
    fn engines_are_called_as_in_the_api() {
        let names: Vec<String> = Engine::value_variants()
            .iter()
            .filter_map(|engine| Some(engine.to_possible_value()?.get_name().to_owned()))
            .collect();
        assert_eq!(names, api::aiinference::Engine::ALL.map(api::aiinference::Engine::as_str));
    }

    #[test]
    fn vllm_and_tgi_need_a_configuration() {
        for engine in [Engine::Vllm, Engine::Tgi] {
            assert_eq!(message(engine, &["config.json", "model.safetensors"]), None);
            assert_eq!(
                message(engine, &[]).as_deref(),
                Some("SourceNotFound: /models holds no model: expected config.json")
            );
            assert_eq!(
                message(engine, &["qwen/config.json", "llama/config.json", ".cache/x"]).as_deref(),
                Some("SourceNotFound: /models holds no model: expected config.json; found: llama, qwen")
            );
        }
        assert_eq!(message(Engine::Vllm, &["params.json"]), None);
        assert!(message(Engine::Tgi, &["model.gguf"]).is_some());
        assert_eq!(message(Engine::Vllm, &["a.gguf", "b.gguf", "config.json"]), None);
    }

    #[test]
    fn a_gguf_file_is_named_by_the_source_and_not_its_folder() {
        let one = |engine| check_paths(engine, "s3://m/q4.gguf", ["q4.gguf"].into_iter(), true);
        assert!(one(Engine::Vllm).is_ok());
        assert!(one(Engine::Tgi).is_err());
        assert_eq!(
            message(Engine::Vllm, &["q4.gguf", "README.md"]).as_deref(),
            Some(
                "SourceNotFound: /models holds q4.gguf and no config.json: name the file in the source, as in \
                 /models/q4.gguf"
            )
        );
    }

    #[test]
    fn triton_needs_a_version_of_each_model() {
        let triton = |paths: &[&str]| message(Engine::Triton, paths);
        assert_eq!(triton(&["llama/config.pbtxt", "llama/1/weights"]), None);
        assert_eq!(triton(&["llama/1/model.onnx", "README.md"]), None);
        assert_eq!(triton(&["ensemble/config.pbtxt", "ensemble/1/.keep", "llama/12/model.plan"]), None);
        for (paths, words) in [
            (&[][..], "/models holds no model: expected a folder per model"),
            (
                &["config.json"],
                "expected a folder per model with a folder per version, as NAME/1/; found: config.json",
            ),
            (&["llama/config.pbtxt", "llama/1/x", "b/config.pbtxt"], "/models/b has no version"),
            (
                &["llama/1/model.onnx", "lost+found/x"],
                "has the folder \"lost+found\"; Triton does not start with it",
            ),
            (&["llama/1/model.onnx", ".cache/x"], "has the folder \".cache\"; Triton does not start with it"),
            (&["llama/01/model.onnx"], "/models/llama has no version"),
            (&["llama/1/weights.bin"], "/models/llama has no config.pbtxt"),
            (&["1/model.onnx", "config.pbtxt"], "/models is a model and not a repository"),
        ] {
            let message = triton(paths).unwrap_or_default();
            assert!(message.contains(words), "{paths:?}: {message}");
        }
    }

    #[test]
    fn at_most_ten_names_are_listed() {
        let names: Vec<String> = (0..12).map(|number| format!("m{number:02}")).collect();
        let found = found(names.iter().map(String::as_str));
        assert!(found.ends_with("m08, m09 and 2 more"), "{found}");
    }

    #[tokio::test]
    async fn a_volume_that_hangs_is_unreachable() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let hangs = move || {
            let _ = held.recv();
            Ok(())
        };
        let fault = in_time(Path::new("/models"), Duration::from_millis(10), hangs).await.unwrap_err();
        drop(release);
        assert_eq!(fault.cause, Cause::Unreachable);
        assert!(fault.to_string().contains("/models has not answered"), "{fault}");
    }
}
