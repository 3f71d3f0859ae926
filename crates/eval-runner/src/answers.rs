//! Reads the answers of a harness, line by line, and keeps of each a hash of the question and a score.
//!
//! A file that is cut, a line that cannot be read, and a question that has two lines are errors: they never make a
//! result.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
};

use api::launcher::evaluator::ExitCode;
use sha2::{Digest as _, Sha256};

use crate::{
    cli::Harness,
    fault::Fault,
    scores::{MOST, Record},
};

mod evalscope;
mod lm_eval;

pub(crate) use evalscope::MODEL as EVALSCOPE_MODEL;

/// A line has a question with its answer; images in it take megabytes.
const LONGEST_LINE: u64 = 64 << 20;
/// Folders of a harness have fewer files.
const MOST_FILES: usize = 10_000;

/// What a harness wrote about one side.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Sorted by question.
    pub(crate) records: Vec<Record>,
    /// Subsets with at least one answer.
    pub(crate) subsets: u64,
    /// The score that was read.
    pub(crate) metric: String,
    /// Questions that the harness says it asked; absent if its files do not say it.
    pub(crate) asked: Option<u64>,
    pub(crate) harness_version: Option<String>,
}

/// All answers below `work`, the folder of one run of the harness.
pub(crate) fn read(
    harness: Harness,
    work: &Path,
    dataset: &str,
    metric: Option<&str>,
) -> Result<Answers, Fault> {
    let mut answers = match harness {
        Harness::Evalscope => evalscope::read(work, dataset, metric)?,
        Harness::LmEval => lm_eval::read(work, metric)?,
    };
    answers.records.sort_unstable();
    let twice =
        answers.records.windows(2).find(|two| (two[0].key, two[0].index) == (two[1].key, two[1].index));
    if let Some([record, ..]) = twice {
        let number = record.index;
        return Err(unreadable(
            work,
            format!("question {number} has two answers: the folder has files of two runs"),
        ));
    }
    if answers.records.is_empty() {
        return Err(unreadable(work, "the harness wrote no answer"));
    }
    Ok(answers)
}

fn unreadable(path: &Path, what: impl std::fmt::Display) -> Fault {
    Fault::new(
        ExitCode::OutputUnreadable,
        format!("the answers in {} cannot be read: {what}", path.display()),
    )
}

/// The files of a folder by name, sorted; none if there is no folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Fault> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder)?.take(MOST_FILES + 1);
        entries.map(|entry| Ok(entry?.path())).collect()
    };
    let mut found = match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.map_err(|error| Fault::volume("read", folder, &error))?,
    };
    if found.len() > MOST_FILES {
        return Err(unreadable(folder, format!("it has more than {MOST_FILES} files")));
    }
    found.sort();
    Ok(found)
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Gives each line of a file to a function, whose error names the line.
fn each_line(path: &Path, mut line: impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), Fault> {
    let failed = |error: io::Error| Fault::volume("read", path, &error);
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let count = file.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes).map_err(failed)?;
        if count == 0 {
            break;
        }
        if number > MOST {
            return Err(unreadable(path, format!("it has more than {MOST} lines")));
        }
        if bytes.last() != Some(&b'\n') {
            return Err(unreadable(
                path,
                format!("line {number} is cut, or longer than {LONGEST_LINE} bytes"),
            ));
        }
        line(&bytes).map_err(|what| unreadable(path, format!("line {number}: {what}")))?;
    }
    Ok(())
}

/// The key of a question, from what identifies it. Each part ends with a byte that text does not have.
#[derive(Clone)]
struct Key(Sha256);

impl Key {
    fn new() -> Self {
        Self(Sha256::new())
    }

    fn with(mut self, part: &str) -> Self {
        self.0.update(part);
        self.0.update([0xff]);
        self
    }

    /// Words alone: layout is no part of a question.
    fn with_words(mut self, text: &str) -> Self {
        for word in text.split_whitespace() {
            self.0.update(word);
            self.0.update(b" ");
        }
        self.0.update([0xff]);
        self
    }

    fn finish(self) -> [u8; 16] {
        let mut key = [0; 16];
        key.copy_from_slice(&self.0.finalize()[..16]);
        key
    }

    fn group(self) -> u64 {
        let mut group = [0; 8];
        group.copy_from_slice(&self.0.finalize()[..8]);
        u64::from_le_bytes(group)
    }
}

/// The largest score, in either direction.
const LARGEST: f64 = 1_000.0;

/// In millionths.
fn score(value: f64) -> Result<i64, String> {
    if value.is_finite() && value.abs() <= LARGEST {
        // The range was just checked.
        return Ok((value * 1e6).round() as i64);
    }
    Err(format!("the score {value} is not from -{LARGEST} to {LARGEST}"))
}

/// The score of all lines is the same one.
fn same_metric(known: &mut Option<String>, found: &str) -> Result<(), String> {
    match known {
        Some(known) if known == found => Ok(()),
        Some(known) => Err(format!("it has the score {found:?} instead of {known:?}: set metric")),
        None if is_better_when_smaller(found) => {
            Err(format!("a smaller {found:?} is better, which is not compared: set metric to another score"))
        }
        None => {
            *known = Some(found.to_owned());
            Ok(())
        }
    }
}

/// Of the scores that the harnesses have. Both say it of some scores only.
fn is_better_when_smaller(score: &str) -> bool {
    const WORDS: [&str; 14] = [
        "wer",
        "cer",
        "ter",
        "mer",
        "perplexity",
        "ppl",
        "bpb",
        "loss",
        "error",
        "errors",
        "brier",
        "mse",
        "mae",
        "rmse",
    ];
    const PARTS: [&str; 3] = ["likelihood_diff", "bits_per_byte", "edit_distance"];
    let score = score.to_lowercase();
    PARTS.iter().any(|part| score.contains(part))
        || score.split(|char: char| !char.is_ascii_alphanumeric()).any(|word| WORDS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the worse model would pass.
    #[test]
    fn a_score_that_is_better_when_it_is_smaller_is_not_compared() {
        for score in ["wer", "word_perplexity,none", "likelihood_diff,none", "bits_per_byte", "brier_score"] {
            let refused = same_metric(&mut None, score).unwrap_err();
            assert!(refused.contains("set metric to another score"), "{refused}");
        }
        for score in ["acc", "acc_norm,none", "exact_match,flexible-extract", "mean_acc", "Rouge-L-R", "f1"] {
            assert_eq!(same_metric(&mut None, score), Ok(()));
        }
    }
}
