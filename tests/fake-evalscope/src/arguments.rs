//! The command line, as far as the runner of an evaluation uses it. What it does not use is refused.

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::{Map, Value, json};

/// The one benchmark that is known here.
pub(crate) const DATASET: &str = "general_mcq";

/// Options that have one value which this program can follow, or none.
const FIXED: [(&str, &str); 5] = [
    ("datasets", DATASET),
    ("eval-type", "openai_api"),
    ("judge-strategy", "rule"),
    ("dataset-hub", "local"),
    // It is in the environment.
    ("api-key", ""),
];
/// Each of them changes what the runner reads.
const SWITCHES: [&str; 2] = ["--no-timestamp", "--ignore-errors"];

#[derive(Debug)]
pub(crate) struct Arguments {
    /// Name of the model at the server.
    pub(crate) model: String,
    /// Name of the folder of its answers.
    pub(crate) model_id: String,
    pub(crate) api_url: String,
    /// Folder of the questions.
    pub(crate) path: PathBuf,
    pub(crate) subsets: Vec<String>,
    /// Questions of each subset.
    pub(crate) limit: usize,
    /// Requests at a time.
    pub(crate) batch: usize,
    pub(crate) work: PathBuf,
    /// Fields of each request.
    generation: Map<String, Value>,
}

impl Arguments {
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let Some((command, words)) = words.split_first().filter(|(command, _)| *command == "eval") else {
            return Err("argument command: the stand-in has eval alone".to_owned());
        };
        let (switches, options): (Vec<_>, Vec<_>) =
            words.iter().partition(|word| SWITCHES.contains(&word.as_str()));
        if let Some(missing) = SWITCHES.iter().find(|switch| !switches.iter().any(|word| word == *switch)) {
            return Err(format!("the stand-in cannot {command} without {missing}"));
        }
        let unknown = |word: &str| format!("unrecognized arguments: {word}");
        let mut values = BTreeMap::new();
        for word in options {
            let option = word.strip_prefix("--").and_then(|word| word.split_once('='));
            let (name, value) = option.ok_or_else(|| unknown(word))?;
            values.insert(name, value);
        }
        for (name, value) in FIXED {
            let given = values.remove(name);
            if given != Some(value) {
                return Err(format!("argument --{name}: the stand-in has {value:?} alone, not {given:?}"));
            }
        }
        let mut taken = |name: &str| values.remove(name).map(str::to_owned);
        let mut needed = |name: &str| taken(name).ok_or_else(|| format!("argument --{name} is required"));
        let of_dataset = object("dataset-args", &needed("dataset-args")?)?;
        let of_dataset = &of_dataset[DATASET];
        let subsets = of_dataset["subset_list"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let path = of_dataset["local_path"].as_str().ok_or("argument --dataset-args: no local_path")?;
        // Nothing is drawn here, so the seed of the program changes nothing.
        needed("seed")?;
        let generation = object("generation-config", &needed("generation-config")?)?;
        let generation = generation.as_object().cloned().unwrap_or_default();
        let arguments = Self {
            model: needed("model")?,
            model_id: needed("model-id")?,
            api_url: needed("api-url")?,
            path: path.into(),
            subsets: subsets.map(str::to_owned).collect(),
            batch: number("eval-batch-size", &needed("eval-batch-size")?)?,
            work: needed("work-dir")?.into(),
            limit: taken("limit").map_or(Ok(usize::MAX), |limit| number("limit", &limit))?,
            generation,
        };
        match values.keys().next() {
            Some(name) => Err(unknown(name)),
            None => Ok(arguments),
        }
    }

    /// The body of a request.
    pub(crate) fn request(&self, prompt: &str) -> Value {
        let mut body = self.generation.clone();
        body.insert("model".to_owned(), json!(self.model));
        body.insert("messages".to_owned(), json!([{ "role": "user", "content": prompt }]));
        Value::Object(body)
    }
}

fn object(name: &str, text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("argument --{name}: {error}"))?;
    if value.is_object() { Ok(value) } else { Err(format!("argument --{name}: {text} is no object")) }
}

fn number(name: &str, text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("argument --{name}: invalid int value: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the runner gives them.
    fn words() -> Vec<String> {
        [
            "eval",
            "--model=chat",
            "--model-id=model",
            "--api-url=http://chat:8000/v1",
            "--api-key=",
            "--eval-type=openai_api",
            "--datasets=general_mcq",
            r#"--dataset-args={"general_mcq":{"local_path":"/questions","subset_list":["history"]}}"#,
            r#"--generation-config={"temperature":0.0,"seed":42}"#,
            "--eval-batch-size=8",
            "--seed=42",
            "--judge-strategy=rule",
            "--work-dir=/evaluation/work",
            "--no-timestamp",
            "--ignore-errors",
            "--dataset-hub=local",
        ]
        .map(str::to_owned)
        .into()
    }

    #[test]
    fn the_command_line_of_the_runner_is_understood() {
        let arguments = Arguments::parse(&words()).unwrap();
        assert_eq!((arguments.batch, arguments.limit, &*arguments.subsets[0]), (8, usize::MAX, "history"));
        let request = arguments.request("what?");
        assert_eq!((&request["seed"], &request["messages"][0]["content"]), (&json!(42), &json!("what?")));
    }

    #[test]
    fn what_it_cannot_do_is_refused() {
        for (number, changed) in [(6, "--datasets=cmmlu"), (9, "--eval-batch-size=many"), (13, "--debug")] {
            let mut words = words();
            changed.clone_into(&mut words[number]);
            assert!(Arguments::parse(&words).is_err(), "{changed}");
        }
        let more = [words(), vec!["--timeout=3".to_owned()]].concat();
        assert_eq!(Arguments::parse(&more).unwrap_err(), "unrecognized arguments: timeout");
    }
}
