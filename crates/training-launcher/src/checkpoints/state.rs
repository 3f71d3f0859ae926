//! Reads `trainer_state.json` of transformers, as a stream: its history grows with the training. Pure but for that
//! file.

use std::{
    collections::BTreeMap,
    fs::{File, Metadata},
    io::{self, BufReader, Read},
    path::Path,
};

use serde::Deserialize;
use serde_json::Value;

pub(super) const FILE: &str = "trainer_state.json";

/// What a checkpoint says of its training.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    pub(crate) global_step: i64,
    #[serde(default)]
    pub(crate) max_steps: i64,
    /// By class: an object, or an array of objects. Each callback chooses its own fields.
    #[serde(default)]
    stateful_callbacks: BTreeMap<String, Value>,
}

impl State {
    pub(crate) fn is_last_step(&self) -> bool {
        self.max_steps > 0 && self.global_step >= self.max_steps
    }

    /// Whether the trainer had decided to end when it wrote the checkpoint. transformers' `EarlyStoppingCallback`
    /// decides after an evaluation, which precedes the checkpoint. ms-swift's callbacks `early_stop` and
    /// `graceful_exit` decide after the checkpoint, and leave nothing here.
    pub(crate) fn has_decided_to_end(&self) -> bool {
        let one_or_many = |value: &'_ Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        self.stateful_callbacks.values().flat_map(one_or_many).any(|callback| {
            let is_stopped = callback["args"]["should_training_stop"].as_bool() == Some(true);
            let patience = callback["args"]["early_stopping_patience"].as_i64();
            let counter = callback["attributes"]["early_stopping_patience_counter"].as_i64();
            is_stopped || counter.zip(patience).is_some_and(|(counter, patience)| counter >= patience)
        })
    }
}

/// `None` if there is no such file, or one that is not complete.
pub(super) fn read(path: &Path) -> io::Result<Option<(State, Metadata)>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    let state = parse(BufReader::new(file))?;
    Ok(state.map(|state| (state, metadata)))
}

fn parse(text: impl Read) -> io::Result<Option<State>> {
    let text = WithoutNan { inner: text, is_string: false, is_escaped: false, is_nan: false };
    match serde_json::from_reader(BufReader::new(text)) {
        Ok(state) => Ok(Some(state)),
        Err(error) if error.is_io() => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// JSON as Python writes it, with `NaN` and `Infinity` replaced by zeros and blanks: a loss may be NaN.
struct WithoutNan<R> {
    inner: R,
    is_string: bool,
    is_escaped: bool,
    is_nan: bool,
}

impl<R: Read> Read for WithoutNan<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        for byte in &mut buffer[..count] {
            self.replace(byte);
        }
        Ok(count)
    }
}

impl<R> WithoutNan<R> {
    fn replace(&mut self, byte: &mut u8) {
        if self.is_escaped {
            self.is_escaped = false;
        } else if self.is_string {
            self.is_escaped = *byte == b'\\';
            self.is_string = *byte != b'"';
        } else if self.is_nan && byte.is_ascii_alphabetic() {
            *byte = b' ';
        } else {
            self.is_string = *byte == b'"';
            // No word of JSON begins with a capital.
            self.is_nan = matches!(*byte, b'N' | b'I');
            if self.is_nan {
                *byte = b'0';
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<State> {
        parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_history_with_nan_is_read() {
        let text = r#"{"best_metric": -Infinity, "global_step": 5, "log_history": [{"loss": NaN, "x": Infinity,
            "name": "NaN \" N"}, null, true, false], "max_steps": 27}"#;
        let state = parsed(text).unwrap();
        assert_eq!((state.global_step, state.max_steps, state.is_last_step()), (5, 27, false));
        assert_eq!(parsed(&text[..text.len() - 1]), None, "the end is missing");
        assert_eq!(parsed("{}"), None);
    }

    #[test]
    fn a_name_in_the_history_stays_as_it_is() {
        let mut text = String::new();
        let inner = r#"{"N": "I \\", "y": NaN}"#.as_bytes();
        WithoutNan { inner, is_string: false, is_escaped: false, is_nan: false }
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, r#"{"N": "I \\", "y": 0  }"#);
    }

    #[test]
    fn the_decision_of_early_stopping_is_found_in_an_object_and_in_an_array() {
        let with = |callbacks: &str| {
            let text = format!(r#"{{"global_step": 5, "max_steps": 27, "stateful_callbacks": {callbacks}}}"#);
            parsed(&text).unwrap().has_decided_to_end()
        };
        let control = |stop| {
            format!(
                r#"{{"TrainerControl": {{"args": {{"should_training_stop": {stop}}}, "attributes": {{}}}}}}"#
            )
        };
        assert!(with(&control(true)));
        assert!(!with(&control(false)));
        let early = |counter| {
            format!(
                r#"{{"EarlyStoppingCallback": [{{"args": {{"early_stopping_patience": 3}},
                    "attributes": {{"early_stopping_patience_counter": {counter}}}}}]}}"#
            )
        };
        assert!(with(&early(3)));
        assert!(!with(&early(2)));
        assert!(!with(r#"{"Other": [1, "x"], "More": null}"#));
    }
}
