//! The checkpoints of an earlier job, in a folder that this job only reads: the newest one, and whether this trainer can go
//! on from it.
//!
//! ms-swift writes its arguments into each checkpoint. What would load other weights, another state of the optimizer or
//! other samples is an error that names the difference; what a checkpoint does not say is accepted.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, DirEntry, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use api::launcher::{ExitCode, checkpoint_step};
use serde_json::Value;

use crate::{
    checkpoints::{self, ARGUMENTS, Complete, Folder, LONGEST_ARGUMENTS},
    fault::Fault,
};

#[derive(Clone, Debug)]
pub(crate) struct ResumeSource {
    /// A folder of checkpoints, or one checkpoint.
    pub(crate) path: PathBuf,
    pub(crate) wanted: Wanted,
}

/// What the trainer is to do, by its command line.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    flags: BTreeMap<String, Vec<String>>,
    /// Of all nodes.
    processes: u32,
}

/// The name of the argument depends on the version.
const TUNER: [&str; 3] = ["tuner_type", "train_type", "sft_type"];
/// Of a value in a message, in bytes.
const LONGEST_VALUE: usize = 160;
/// Checkpoints that an error names.
const NAMED: usize = 3;

impl Wanted {
    pub(crate) fn of(trainer: &[OsString], processes: u32) -> Self {
        let mut flags: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut last = String::new();
        for word in trainer.iter().map(|word| word.to_string_lossy()) {
            // As argparse does: of a flag that is given twice the last one counts.
            match word.strip_prefix("--") {
                Some(flag) => {
                    let (name, value) =
                        flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
                    last = name.replace('-', "_");
                    flags.insert(last.clone(), value.map(str::to_owned).into_iter().collect());
                }
                None => flags.entry(last.clone()).or_default().push(word.into_owned()),
            }
        }
        Self { flags, processes }
    }

    /// `None`: it is not set.
    fn value(&self, names: &[&str]) -> Option<String> {
        let values = names.iter().find_map(|name| self.flags.get(*name))?;
        (!values.is_empty()).then(|| values.join(","))
    }
}

/// The newest complete checkpoint with the state of the optimizer.
pub(crate) fn newest(source: &ResumeSource) -> Result<Complete, Fault> {
    let path = &source.path;
    let folders = folders(path).map_err(|error| unreadable(path, &error))?;
    for folder in &folders {
        let complete = checkpoints::examine(folder).map_err(|error| unreadable(&folder.path, &error))?;
        if let Some(complete) = complete.filter(|complete| complete.is_resumable) {
            fit(&complete, &source.wanted)?;
            return Ok(complete);
        }
    }
    let names: Vec<String> = folders.iter().take(NAMED).map(|folder| folder.reference().path).collect();
    let found = match names.as_slice() {
        [] => "there is no folder checkpoint-<step>".to_owned(),
        names => {
            format!("{} and older ones are incomplete, or lack the state of the optimizer", names.join(", "))
        }
    };
    Err(refused(format!(
        "{}: {found}; use another path, or create the job again without resumeFrom",
        path.display()
    )))
}

fn folders(path: &Path) -> io::Result<Vec<Folder>> {
    let step = path.file_name().and_then(|name| name.to_str()).and_then(checkpoint_step);
    match step {
        Some(step) => fs::metadata(path).map(|_| vec![Folder { path: path.to_owned(), step }]),
        None => checkpoints::list(path),
    }
}

fn refused(message: String) -> Fault {
    Fault::new(ExitCode::CannotResume, message)
}

/// A storage that is away for a while comes back. What is not there, or is no folder, ends the job.
fn unreadable(path: &Path, error: &io::Error) -> Fault {
    let failed = format!("{} cannot be read: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => refused(failed),
        _ => {
            let fix = "check the claim of spec.resumeFrom and its storage";
            Fault::new(ExitCode::OutputUnusable, format!("{failed}; {fix}"))
        }
    }
}

fn fit(complete: &Complete, wanted: &Wanted) -> Result<(), Fault> {
    let path = &complete.folder.path;
    let arguments = arguments(path).map_err(|error| unreadable(path, &error))?;
    let state = state(path).map_err(|error| unreadable(path, &error))?;
    let mut found = differences(&arguments, wanted);
    found.extend(deepspeed(state, wanted));
    if found.is_empty() {
        return Ok(());
    }
    Err(refused(format!(
        "{}: {}; create the job again with the same, or start a new training with spec.adapters or spec.model",
        path.display(),
        found.join(", and ")
    )))
}

/// Empty if there is no such file, or one that is no JSON.
fn arguments(checkpoint: &Path) -> io::Result<Value> {
    let mut text = Vec::new();
    match File::open(checkpoint.join(ARGUMENTS)) {
        Ok(file) => file.take(LONGEST_ARGUMENTS).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(error),
    };
    Ok(serde_json::from_slice(&text).unwrap_or_default())
}

fn differences(arguments: &Value, wanted: &Wanted) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, names: &[&str], is_optional: bool| {
        let Some(is) = names.iter().find_map(|name| arguments.get(name)) else { return };
        let (is, wanted) = (text_of(is).map(without_cache), wanted.value(names));
        if is == wanted || (is_optional && wanted.is_none()) {
            return;
        }
        let shown = |value: Option<String>| {
            value.map_or_else(|| "none".to_owned(), |value| text::cut(value, LONGEST_VALUE))
        };
        found.push(format!("its {what} is {}, and that of this job {}", shown(is), shown(wanted)));
    };
    compare("model", &["model"], false);
    compare("dataset", &["dataset"], false);
    // Defaults of ms-swift are written, too.
    compare("tuner", &TUNER, true);
    compare("rlhf_type", &["rlhf_type"], false);
    compare("quant_bits", &["quant_bits"], false);
    compare("lora_rank", &["lora_rank"], true);
    if arguments.get("rlhf_type").is_none()
        && !arguments.is_null()
        && let Some(kind) = wanted.value(&["rlhf_type"])
    {
        found.push(format!("it has no rlhf_type, and that of this job is {kind}"));
    }
    found
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(values) if values.is_empty() => None,
        Value::Array(values) => Some(values.iter().filter_map(text_of).collect::<Vec<_>>().join(",")),
        other => Some(other.to_string()),
    }
}

/// The id of a model that was read from the folder of an earlier job's hub cache.
fn without_cache(value: String) -> String {
    crate::cache::id_of(&value).unwrap_or(value)
}

/// Each rank of DeepSpeed has a part of the optimizer's state, which no other number of ranks can read.
fn deepspeed(state: Option<DeepSpeedState>, wanted: &Wanted) -> Option<String> {
    let config = wanted.value(&["deepspeed"]);
    match (state, config) {
        (None, None) => None,
        (None, Some(config)) => Some(format!("it has no state of DeepSpeed, and this job uses {config}")),
        (Some(_), None) => Some("its state is that of DeepSpeed, which this job does not use".to_owned()),
        (Some(state), Some(config)) => {
            let (ranks, processes) = (state.ranks, wanted.processes);
            let stage = if state.has_parameters { "zero3" } else { "zero2" };
            if ranks != processes {
                Some(format!(
                    "its DeepSpeed state is that of {ranks} accelerators (gpus x nodes), and this job has {processes}"
                ))
            } else if ["zero2", "zero3"].contains(&&*config) && config != stage {
                Some(format!("its DeepSpeed state is that of {stage}, and this job uses {config}"))
            } else {
                None
            }
        }
    }
}

struct DeepSpeedState {
    ranks: u32,
    /// Of stage 3.
    has_parameters: bool,
}

/// `None`: DeepSpeed has written none.
fn state(checkpoint: &Path) -> io::Result<Option<DeepSpeedState>> {
    let entries: Vec<DirEntry> = fs::read_dir(checkpoint)?.collect::<io::Result<_>>()?;
    let is_state = |entry: &&DirEntry| {
        entry.file_name().to_string_lossy().starts_with("global_step") && entry.path().is_dir()
    };
    let Some(folder) = entries.iter().find(is_state) else { return Ok(None) };
    let mut state = DeepSpeedState { ranks: 0, has_parameters: false };
    for entry in fs::read_dir(folder.path())? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let Some((_, rest)) = name.split_once("zero_pp_rank_") else { continue };
        let rank = rest.split('_').next().and_then(|rank| rank.parse::<u32>().ok());
        state.ranks = state.ranks.max(rank.map_or(0, |rank| rank.saturating_add(1)));
        state.has_parameters |= name.ends_with("model_states.pt");
    }
    Ok(Some(state))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use serde_json::json;

    use super::*;

    fn wanted(words: &str, processes: u32) -> Wanted {
        Wanted::of(&words.split(' ').map(OsString::from).collect::<Vec<_>>(), processes)
    }

    const LORA: &str =
        "swift sft --tuner_type lora --model Qwen/Qwen2.5-7B --dataset a/b#5 c/d --lora_rank 8";

    #[test]
    fn the_same_arguments_fit_also_by_other_spellings() {
        let arguments = json!({"model": "Qwen/Qwen2.5-7B", "dataset": ["a/b#5", "c/d"], "tuner_type": "lora",
            "lora_rank": 8, "quant_bits": null, "learning_rate": 1e-4});
        assert_eq!(differences(&arguments, &wanted(LORA, 1)), Vec::<String>::new());
        let again = LORA.replace("--tuner_type lora", "--train-type=full --tuner-type=lora");
        assert_eq!(differences(&arguments, &wanted(&again, 1)), Vec::<String>::new());
        let cached = json!({"model": "/output/.cache/hub/qwen/modelscope/models/Qwen/Qwen2___5-7B"});
        assert_eq!(differences(&cached, &wanted(LORA, 1)), Vec::<String>::new());
        assert_eq!(differences(&Value::Null, &wanted(LORA, 1)), Vec::<String>::new(), "it says nothing");
    }

    #[test]
    fn each_difference_is_named() {
        let arguments = json!({"model": "Qwen/Qwen2.5-14B", "dataset": ["c/d"], "tuner_type": "full", "lora_rank": 16,
            "quant_bits": 4, "rlhf_type": "dpo"});
        let found = differences(&arguments, &wanted(LORA, 1)).join("\n");
        for part in [
            "its model is Qwen/Qwen2.5-14B, and that of this job Qwen/Qwen2.5-7B",
            "its dataset is c/d, and that of this job a/b#5,c/d",
            "its tuner is full, and that of this job lora",
            "its lora_rank is 16",
            "its quant_bits is 4, and that of this job none",
            "its rlhf_type is dpo, and that of this job none",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
        let dpo = format!("{LORA} --rlhf_type dpo");
        assert!(differences(&json!({"tuner_type": "lora"}), &wanted(&dpo, 1))[0].contains("dpo"));
    }

    #[test]
    fn a_storage_that_cannot_be_read_now_is_no_reason_to_give_up() {
        let folder = tempfile::tempdir().unwrap();
        let code = |name: &str| {
            let path = folder.path().join(name);
            newest(&ResumeSource { path, wanted: wanted(LORA, 1) }).unwrap_err().code
        };
        // Reading a link to itself fails for every user, also for root.
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        assert_eq!(code("loop"), ExitCode::OutputUnusable);
        assert_eq!(code("missing"), ExitCode::CannotResume);
        assert_eq!(code("missing/checkpoint-5"), ExitCode::CannotResume);
        fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(code("file"), ExitCode::CannotResume);
        for error in [Errno::IO, Errno::STALE, Errno::ACCESS] {
            let fault = unreadable(folder.path(), &error.into());
            assert_eq!(fault.code, ExitCode::OutputUnusable);
            assert!(fault.message.contains("the claim of spec.resumeFrom"), "{}", fault.message);
        }
    }

    #[test]
    fn arguments_and_state_that_cannot_be_read_now_are_no_difference() {
        let checkpoint = tempfile::tempdir().unwrap();
        let file = checkpoint.path().join(ARGUMENTS);
        std::os::unix::fs::symlink(ARGUMENTS, &file).unwrap();
        assert!(arguments(checkpoint.path()).is_err());
        fs::remove_file(&file).unwrap();
        fs::write(&file, "{").unwrap();
        assert_eq!(arguments(checkpoint.path()).unwrap(), Value::Null, "it says nothing");
        assert!(state(&file).is_err());
    }

    #[test]
    fn the_state_of_deepspeed_needs_as_many_accelerators_and_the_same_stage() {
        let checkpoint = tempfile::tempdir().unwrap();
        let with =
            |words: &str, processes| deepspeed(state(checkpoint.path()).unwrap(), &wanted(words, processes));
        assert_eq!(with("swift sft", 2), None);
        assert!(with("swift sft --deepspeed zero2", 2).unwrap().contains("no state of DeepSpeed"));
        let folder = checkpoint.path().join("global_step5");
        fs::create_dir(&folder).unwrap();
        for rank in [0, 1] {
            fs::write(folder.join(format!("bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")), "")
                .unwrap();
        }
        fs::write(folder.join("mp_rank_00_model_states.pt"), "").unwrap();
        assert_eq!(with("swift sft --deepspeed zero2", 2), None);
        assert!(with("swift sft", 2).unwrap().contains("does not use"));
        assert!(with("swift sft --deepspeed zero2", 4).unwrap().contains("2 accelerators"));
        assert!(with("swift sft --deepspeed zero3", 2).unwrap().contains("zero2, and this job uses zero3"));
        assert_eq!(with("swift sft --deepspeed /inputs/own.json", 2), None, "the user's own");
        fs::write(folder.join("zero_pp_rank_0_mp_rank_00_model_states.pt"), "").unwrap();
        assert_eq!(with("swift sft --deepspeed zero3", 2), None);
    }
}
