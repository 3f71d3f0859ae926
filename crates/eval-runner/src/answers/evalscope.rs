//! The review files of EvalScope: `reviews/MODEL/BENCHMARK_SUBSET.jsonl`, one line for each answer, as of version
//! 1.10.0.
//!
//! Its report is not read: it is rounded, and pools subsets of unequal size.

use std::{borrow::Cow, fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{Answers, Key, each_line, file_name, files, same_metric, score};
use crate::{fault::Fault, scores::Record};

/// The folder of the answers; the runner names the model.
pub(crate) const MODEL: &str = "model";

pub(super) fn read(work: &Path, dataset: &str, metric: Option<&str>) -> Result<Answers, Fault> {
    let (mut records, mut subsets, mut found) = (Vec::new(), 0, None);
    for path in files(&work.join("reviews").join(MODEL))? {
        let name = file_name(&path).strip_prefix(dataset).and_then(|name| name.strip_prefix('_'));
        let Some(subset) = name.and_then(|name| name.strip_suffix(".jsonl")) else { continue };
        let before = records.len();
        let question = Key::new().with("evalscope").with(dataset).with(subset);
        each_line(&path, |line| {
            let review: Review<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
            records.push(record(&review, &question, metric, &mut found)?);
            Ok(())
        })?;
        subsets += u64::from(records.len() > before);
    }
    Ok(Answers { records, subsets, metric: found.unwrap_or_default(), asked: None, harness_version: None })
}

fn record(
    review: &Review<'_>,
    question: &Key,
    metric: Option<&str>,
    found: &mut Option<String>,
) -> Result<Record, String> {
    let Score { value: Values(values), extracted_prediction, main_score_name } = &review.sample_score.score;
    let named =
        metric.or(main_score_name.as_deref().filter(|name| values.iter().any(|(known, _)| known == name)));
    let (name, value) = match named {
        Some(name) => values.iter().find(|(known, _)| known == name),
        None => values.first(),
    }
    .ok_or_else(|| {
        let names: Vec<&str> = values.iter().map(|(name, _)| name.as_ref()).collect();
        format!("it has no score {:?}, it has: {}", named.unwrap_or_default(), names.join(", "))
    })?;
    same_metric(found, name)?;
    let index =
        u32::try_from(review.index).map_err(|_| format!("the index {} is too large", review.index))?;
    let group = match review.sample_score.group_id {
        Some(group) => question.clone().with(group.get()),
        None => question.clone().with(&index.to_string()),
    };
    let key = asked(review).try_fold(question.clone(), |key, message| with_message(key, message))?;
    Ok(Record {
        key: key.with(review.target.map_or("", RawValue::get)).finish(),
        index,
        group: group.group(),
        score: score(*value)?,
        is_parsed: extracted_prediction.as_deref().is_some_and(|text| !text.trim().is_empty()),
    })
}

/// Without what the model says, which differs between models.
fn asked<'r>(review: &'r Review<'r>) -> impl Iterator<Item = &'r Message<'r>> {
    review.messages.iter().filter(|message| matches!(message.role.as_ref(), "system" | "user"))
}

fn with_message(key: Key, message: &Message<'_>) -> Result<Key, String> {
    let key = key.with(&message.role);
    // Texts, or a list with texts and images.
    match message.content.get() {
        text if text.starts_with('"') => {
            let text: Cow<'_, str> = serde_json::from_str(text).map_err(|error| error.to_string())?;
            Ok(key.with_words(&text))
        }
        other => Ok(key.with(other)),
    }
}

#[derive(Deserialize)]
struct Review<'a> {
    index: u64,
    #[serde(borrow, default)]
    target: Option<&'a RawValue>,
    #[serde(borrow, default)]
    messages: Vec<Message<'a>>,
    #[serde(borrow)]
    sample_score: SampleScore<'a>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct SampleScore<'a> {
    #[serde(borrow)]
    score: Score<'a>,
    #[serde(borrow, default)]
    group_id: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Score<'a> {
    #[serde(borrow)]
    value: Values<'a>,
    #[serde(borrow, default)]
    extracted_prediction: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    main_score_name: Option<Cow<'a, str>>,
}

/// Scores by name, in the order of the file: the first one is the main one.
struct Values<'a>(Vec<(Cow<'a, str>, f64)>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Number(f64),
    Flag(bool),
    Other(IgnoredAny),
}

impl<'de: 'a, 'a> Deserialize<'de> for Values<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Vec<(Cow<'de, str>, f64)>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("scores by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some((name, value)) = map.next_entry::<Cow<'de, str>, Value>()? {
                    match value {
                        Value::Number(number) => values.push((name, number)),
                        Value::Flag(flag) => values.push((name, f64::from(u8::from(flag)))),
                        Value::Other(IgnoredAny) => {}
                    }
                }
                Ok(values)
            }
        }
        deserializer.deserialize_map(Each).map(Values)
    }
}
