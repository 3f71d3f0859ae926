//! Checks that the questions are there, and that asking them is allowed, before anything is started.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use api::launcher::evaluator::ExitCode;

use crate::{
    cli::{Harness, Run},
    fault::Fault,
    message::note,
};

/// The questions of a test set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Questions {
    pub(crate) path: Option<PathBuf>,
    pub(crate) subsets: Vec<String>,
}

/// Benchmarks of EvalScope 1.10.0 that run what a model wrote, by the begin of their names. lm-eval itself refuses to
/// run such a task without a flag, which the runner does not give.
const RUN_CODE: [&str; 19] = [
    "bigcodebench",
    "claw_eval",
    "deep_swe",
    "gdpval",
    "humaneval",
    "job_bench",
    "live_code_bench",
    "mbpp",
    "multipl_e",
    "officeqa",
    "omnidoc_bench",
    "scicode",
    "skillsbench",
    "swe_bench",
    "tau",
    "terminal_bench",
    "toolathlon",
    "wide_search",
    "gaia",
];

/// Custom benchmarks of EvalScope, with the end of the names of their files.
const CUSTOM: [(&str, &str); 2] = [("general_mcq", "val"), ("general_qa", "test")];
const FORMS: [&str; 3] = ["jsonl", "csv", "tsv"];

/// A folder of tasks has fewer entries; a folder with more is something else.
const MOST_ENTRIES: usize = 10_000;
/// A task file is a few kilobytes.
const LARGEST_TASK: u64 = 1 << 20;

pub(crate) fn questions(wanted: &Run) -> Result<Questions, Fault> {
    let runs_code = match wanted.harness {
        Harness::Evalscope => RUN_CODE.iter().any(|name| wanted.dataset.starts_with(name)),
        Harness::LmEval => false,
    };
    if runs_code && !wanted.allow_code_execution {
        let message =
            format!("{} runs code that a model wrote: allow it by allowCodeExecution", wanted.dataset);
        return Err(Fault::new(ExitCode::CodeExecutionForbidden, message));
    }
    let Some(path) = &wanted.dataset_path else {
        if wanted.allow_online {
            return Ok(Questions { path: None, subsets: wanted.subsets.clone() });
        }
        let message = format!(
            "{} would be loaded from a hub: name a claim or a path with its questions, or set allowOnline",
            wanted.dataset
        );
        return Err(Fault::new(ExitCode::DatasetOnlineForbidden, message));
    };
    let found = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    let subsets = match wanted.harness {
        Harness::Evalscope if found.is_dir() && wanted.subsets.is_empty() => subsets(&wanted.dataset, path)?,
        Harness::Evalscope => wanted.subsets.clone(),
        Harness::LmEval => {
            if !wanted.allow_code_execution {
                refuse_code(if found.is_dir() { path } else { path.parent().unwrap_or(path) })?;
            }
            wanted.subsets.clone()
        }
    };
    Ok(Questions { path: Some(path.clone()), subsets })
}

fn unreadable(path: &Path, error: &io::Error) -> Fault {
    let message = format!("cannot read the questions in {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => Fault::new(ExitCode::DatasetNotFound, message),
        _ => Fault::new(ExitCode::VolumeUnusable, message),
    }
}

/// The subsets of a custom benchmark, by its files: `history_val.jsonl`. Others have their own list.
fn subsets(dataset: &str, folder: &Path) -> Result<Vec<String>, Fault> {
    let Some((_, split)) = CUSTOM.iter().find(|(name, _)| *name == dataset) else { return Ok(Vec::new()) };
    let mut subsets = Vec::new();
    for name in entries(folder)? {
        let Some((stem, form)) = name.rsplit_once('.') else { continue };
        if let Some(subset) = stem.strip_suffix(split).and_then(|stem| stem.strip_suffix('_'))
            && FORMS.contains(&form)
            && !subset.is_empty()
        {
            subsets.push(subset.to_owned());
        }
    }
    subsets.sort();
    subsets.dedup();
    if subsets.is_empty() {
        let folder = folder.display();
        let message =
            format!("{folder} has no questions: {dataset} reads files such as history_{split}.jsonl");
        return Err(Fault::new(ExitCode::DatasetNotFound, message));
    }
    note(&format!("subsets: {}", text::cut(subsets.join(", "), 1_024)));
    Ok(subsets)
}

/// A task file of lm-eval can name functions of a Python file beside it.
fn refuse_code(folder: &Path) -> Result<(), Fault> {
    let refused = |path: &Path| {
        let message =
            format!("{} has code that lm-eval would run: allow it by allowCodeExecution", path.display());
        Err(Fault::new(ExitCode::CodeExecutionForbidden, message))
    };
    let mut folders = vec![folder.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for name in entries(&folder)? {
            seen += 1;
            if seen > MOST_ENTRIES {
                let message = format!(
                    "{} has more than {MOST_ENTRIES} files: name the folder of the task",
                    folder.display()
                );
                return Err(Fault::new(ExitCode::DatasetNotFound, message));
            }
            let path = folder.join(&name);
            let found = fs::metadata(&path).map_err(|error| unreadable(&path, &error))?;
            let form = name.rsplit_once('.').map_or("", |(_, form)| form);
            match form {
                // Links to folders could make a circle.
                _ if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) => folders.push(path),
                _ if found.is_dir() => {}
                "py" => return refused(&path),
                "yaml" | "yml" => {
                    let text = match found.len() {
                        ..=LARGEST_TASK => fs::read(&path).map_err(|error| unreadable(&path, &error))?,
                        _ => return refused(&path),
                    };
                    if String::from_utf8_lossy(&text).contains("!function") {
                        return refused(&path);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<String>, Fault> {
    let read = || -> io::Result<Vec<String>> {
        let names = fs::read_dir(folder)?.take(MOST_ENTRIES + 1);
        names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    read().map_err(|error| unreadable(folder, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_of_a_custom_benchmark_are_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let of = |dataset| subsets(dataset, folder.path());
        assert_eq!(of("general_mcq").unwrap_err().code, ExitCode::DatasetNotFound);
        for name in
            ["b_val.csv", "a_val.jsonl", "a_val.tsv", "a_dev.jsonl", "_val.jsonl", "c_test.jsonl", "x_val.md"]
        {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(of("general_mcq").unwrap(), ["a", "b"]);
        assert_eq!(of("general_qa").unwrap(), ["c"]);
        assert_eq!(of("cmmlu").unwrap(), [""; 0]);
    }

    #[test]
    fn code_beside_a_task_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let task = folder.path().join("more").join("task.yaml");
        fs::create_dir(folder.path().join("more")).unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("circle")).unwrap();
        fs::write(&task, "task: capitals\n").unwrap();
        assert!(refuse_code(folder.path()).is_ok());
        fs::write(&task, "process_results: !function utils.f\n").unwrap();
        assert_eq!(refuse_code(folder.path()).unwrap_err().code, ExitCode::CodeExecutionForbidden);
        fs::write(&task, "").unwrap();
        fs::write(folder.path().join("utils.py"), "").unwrap();
        assert_eq!(refuse_code(folder.path()).unwrap_err().code, ExitCode::CodeExecutionForbidden);
    }
}
