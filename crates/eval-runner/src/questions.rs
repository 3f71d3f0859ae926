//! Checks that the questions are there, and that asking them is allowed, before anything is started.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
};

use api::launcher::evaluator::{
    ExitCode,
    limits::{Question, refusal},
};

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
    /// Questions of each subset, if its files are lists of them.
    counts: Option<Vec<u64>>,
}

impl Questions {
    /// How many are asked with this limit of each subset; `None`: the files do not say it.
    pub(crate) fn asked(&self, limit: Option<u64>) -> Option<u64> {
        let of_each = |count: &u64| limit.map_or(*count, |limit| limit.min(*count));
        Some(self.counts.as_ref()?.iter().map(of_each).sum())
    }
}

/// Custom benchmarks of EvalScope, with the end of the names of their files.
const CUSTOM: [(&str, &str); 2] = [("general_mcq", "val"), ("general_qa", "test")];
const FORMS: [&str; 3] = [LINES, "csv", "tsv"];
/// The form with a question on each line.
const LINES: &str = "jsonl";

/// A folder of tasks has fewer entries; a folder with more is something else.
const MOST_ENTRIES: usize = 10_000;

pub(crate) fn questions(wanted: &Run) -> Result<Questions, Fault> {
    let question = Question {
        harness: wanted.harness.of_spec(),
        requests: wanted.endpoint.of_spec(),
        dataset: &wanted.dataset,
        has_files: wanted.dataset_path.is_some(),
        allow_code_execution: wanted.allow_code_execution,
    };
    if let Some(refusal) = refusal(&question) {
        return Err(Fault::new(refusal.code(), refusal.to_string()));
    }
    let Some(path) = &wanted.dataset_path else {
        if wanted.allow_online {
            return Ok(Questions { path: None, subsets: wanted.subsets.clone(), counts: None });
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
        Harness::Evalscope | Harness::LmEval => wanted.subsets.clone(),
    };
    let counts = match wanted.harness {
        Harness::Evalscope => counts(&wanted.dataset, path, &subsets)?,
        Harness::LmEval => None,
    };
    Ok(Questions { path: Some(path.clone()), subsets, counts })
}

/// Each line of a custom benchmark in JSONL is a question. In the other forms a question may have several lines.
fn counts(dataset: &str, folder: &Path, subsets: &[String]) -> Result<Option<Vec<u64>>, Fault> {
    let Some((_, split)) = CUSTOM.iter().find(|(name, _)| *name == dataset) else { return Ok(None) };
    let mut counts = Vec::new();
    // A subset that is named twice is asked once.
    for subset in subsets.iter().collect::<BTreeSet<_>>() {
        let file = |form: &str| folder.join(format!("{subset}_{split}.{form}"));
        let forms: Vec<&str> = FORMS.into_iter().filter(|form| file(form).exists()).collect();
        if forms != [LINES] {
            return Ok(None);
        }
        let place = file(LINES);
        counts.push(lines(&place).map_err(|error| unreadable(&place, &error))?);
    }
    Ok((!counts.is_empty()).then_some(counts))
}

/// The lines of a file that are not empty, however long they are.
fn lines(path: &Path) -> io::Result<u64> {
    let mut file = BufReader::new(File::open(path)?);
    let (mut count, mut has_text) = (0, false);
    loop {
        let bytes = file.fill_buf()?;
        if bytes.is_empty() {
            return Ok(count + u64::from(has_text));
        }
        for byte in bytes {
            if *byte == b'\n' {
                count += u64::from(has_text);
                has_text = false;
            } else {
                has_text |= !byte.is_ascii_whitespace();
            }
        }
        let length = bytes.len();
        file.consume(length);
    }
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

    #[test]
    fn files_with_a_question_on_each_line_say_how_many_are_asked() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a_val.jsonl"), "{}\n\n{}\r\n \n{}").unwrap();
        fs::write(folder.path().join("b_val.jsonl"), "{}\n").unwrap();
        fs::write(folder.path().join("c_val.csv"), "question,A\n\"1\n2\",3\n").unwrap();
        let of = |dataset, subsets: &[&str], limit| {
            let subsets: Vec<String> = subsets.iter().map(|&subset| subset.to_owned()).collect();
            let counts = counts(dataset, folder.path(), &subsets).unwrap();
            Questions { path: None, subsets, counts }.asked(limit)
        };
        assert_eq!(of("general_mcq", &["a", "b"], None), Some(4));
        assert_eq!(of("general_mcq", &["a", "b"], Some(2)), Some(3));
        assert_eq!(of("general_mcq", &["b", "b"], None), Some(1));
        assert_eq!(of("general_mcq", &["a", "c"], None), None);
        assert_eq!((of("general_mcq", &["none"], None), of("cmmlu", &[], None)), (None, None));
    }
}
