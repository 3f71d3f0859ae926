//! The sample files of lm-eval: `MODEL/samples_TASK_DATE.jsonl`, one line for each answer and filter, as of version
//! 0.4.12. `results_DATE.json` says how many questions were asked.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::File,
    io::{BufReader, Read as _},
    path::Path,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{Answers, Key, each_line, file_name, files, same_metric, score, unreadable};
use crate::{fault::Fault, scores::Record};

/// What lm-eval writes if a filter finds no answer.
const INVALID: &str = r#"["[invalid]"]"#;
/// Results have the settings of each task, and no answers.
const LARGEST_RESULTS: u64 = 64 << 20;

pub(super) fn read(work: &Path, metric: Option<&str>) -> Result<Answers, Fault> {
    let (mut records, mut subsets, mut found) = (Vec::new(), 0, None);
    let (mut asked, mut harness_version) = (None, None);
    // One folder, with the name of the model.
    for folder in files(work)?.iter().filter(|path| path.is_dir()) {
        for path in files(folder)? {
            let name = file_name(&path);
            if name.starts_with("results_") && name.ends_with(".json") {
                let results = results(&path)?;
                asked = Some(results.asked());
                harness_version = results.lm_eval_version;
            }
            let Some(task) = task(name) else { continue };
            let before = records.len();
            let question = Key::new().with("lm-eval").with(task);
            let mut filter = None;
            each_line(&path, |line| {
                let fields: Fields<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
                records.extend(record(&fields, &question, metric, &mut filter, &mut found)?);
                Ok(())
            })?;
            subsets += u64::from(records.len() > before);
        }
    }
    Ok(Answers { records, subsets, metric: found.unwrap_or_default(), asked, harness_version })
}

/// `samples_TASK_DATE.jsonl`; a date has no `_`.
fn task(name: &str) -> Option<&str> {
    let name = name.strip_prefix("samples_")?.strip_suffix(".jsonl")?;
    name.rsplit_once('_').map(|(task, _)| task)
}

/// Scores are beside the other fields of a line.
type Fields<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// `None` for a line of another filter. A metric is `NAME` or `NAME,FILTER`.
fn record(
    fields: &Fields<'_>,
    question: &Key,
    metric: Option<&str>,
    filter: &mut Option<String>,
    found: &mut Option<String>,
) -> Result<Option<Record>, String> {
    let (wanted, wanted_filter) = match metric.and_then(|metric| metric.split_once(',')) {
        Some((name, filter)) => (Some(name), Some(filter)),
        None => (metric, None),
    };
    let of_line: String = field(fields, "filter")?;
    // Without a wish the first filter counts.
    let filter = filter.get_or_insert_with(|| wanted_filter.unwrap_or(&of_line).to_owned());
    if *filter != of_line {
        return Ok(None);
    }
    let names: Vec<String> = field(fields, "metrics")?;
    let name = match wanted {
        Some(wanted) => names.iter().find(|name| *name == wanted),
        None => names.first(),
    };
    let name = name.ok_or_else(|| format!("it has no score {wanted:?}, it has: {}", names.join(", ")))?;
    same_metric(found, &format!("{name},{filter}"))?;
    let index: u32 = field(fields, "doc_id")?;
    let value = raw(fields, name)?.get();
    let value = match value {
        "true" => 1.0,
        "false" => 0.0,
        number => number.parse().map_err(|_| {
            format!("the score {name} is {}, which is no number", text::cut(number.to_owned(), 64))
        })?,
    };
    let [document, target] = ["doc_hash", "target_hash"].map(|name| field::<String>(fields, name));
    Ok(Some(Record {
        key: question.clone().with(&document?).with(&target?).finish(),
        index,
        group: question.clone().with(&index.to_string()).group(),
        score: score(value)?,
        is_parsed: raw(fields, "filtered_resps")?.get() != INVALID,
    }))
}

fn raw<'a>(fields: &Fields<'a>, name: &str) -> Result<&'a RawValue, String> {
    fields.get(name).copied().ok_or_else(|| format!("it has no {name}"))
}

fn field<T: DeserializeOwned>(fields: &Fields<'_>, name: &str) -> Result<T, String> {
    serde_json::from_str(raw(fields, name)?.get()).map_err(|error| format!("{name}: {error}"))
}

#[derive(Deserialize)]
struct Results {
    #[serde(rename = "n-samples", default)]
    n_samples: BTreeMap<String, Samples>,
    #[serde(default)]
    lm_eval_version: Option<String>,
}

#[derive(Deserialize)]
struct Samples {
    effective: u64,
}

impl Results {
    fn asked(&self) -> u64 {
        self.n_samples.values().fold(0, |sum, task| sum.saturating_add(task.effective))
    }
}

fn results(path: &Path) -> Result<Results, Fault> {
    let file = File::open(path).map_err(|error| Fault::volume("read", path, &error))?;
    serde_json::from_reader(BufReader::new(file.take(LARGEST_RESULTS)))
        .map_err(|error| unreadable(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_has_the_task() {
        assert_eq!(task("samples_ceval-valid_law_2026-11-29T22-55-41.055154.jsonl"), Some("ceval-valid_law"));
        assert_eq!(task("results_2026-11-29T22-55-41.055154.json"), None);
    }
}
