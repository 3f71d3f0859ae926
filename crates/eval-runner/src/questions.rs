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

/// Benchmarks of EvalScope 1.10.0 that run what a model wrote, by the begin of their names. lm-eval itself needs a flag
/// for such a task.
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
            // They name functions, include other files, and have templates without a sandbox.
            if !wanted.allow_code_execution {
                let message = format!(
                    "{} has task files of lm-eval, which can run code: allow it by allowCodeExecution, or use evalscope",
                    path.display()
                );
                return Err(Fault::new(ExitCode::CodeExecutionForbidden, message));
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
}
