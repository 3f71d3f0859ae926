//! The user's arguments: refuses flags of the controller, in every spelling that ms-swift accepts, and reads those that the
//! controller changes when memory runs out. Pure.
//!
//! The API server refuses the documented spellings. Python's argparse also accepts abbreviations, and ms-swift dashes for
//! underscores.

use api::trainingjob::OWNED_FLAGS;

use super::Invalid;
use crate::swift::{ACCUMULATION, BATCH_SIZE, DEEPSPEED, LOGGED_EVERY, LOGGING_STEPS};

/// Flags whose value is a token: ms-swift prints its command line.
const TOKENS: [&str; 1] = ["--hub_token"];

/// What the arguments say of the memory that a run needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) batch_size: Option<i32>,
    pub(super) accumulation: Option<i32>,
    pub(super) has_deepspeed: bool,
}

pub(super) fn none_is_owned(arguments: &[String]) -> Result<(), Invalid> {
    for argument in arguments {
        // ms-swift would treat all later arguments as positional, also the controller's flags.
        if argument == "--" {
            return Err(Invalid(
                "spec.extraArgs must not contain \"--\", because the flags of the controller follow; remove it"
                    .to_owned(),
            ));
        }
        if let Some(flag) = TOKENS.iter().find(|flag| sets(argument, flag)) {
            return Err(Invalid(format!(
                "spec.extraArgs: {flag} must not be set, because arguments are logged; use tokenSecret or env"
            )));
        }
        if let Some(owned) = OWNED_FLAGS.iter().find(|owned| sets(argument, owned)) {
            let field = match *owned {
                "--resume_from_checkpoint" => " and use spec.resumeFrom",
                "--adapters" => " and use spec.adapters",
                _ => "",
            };
            return Err(Invalid(format!(
                "spec.extraArgs: {argument:?} sets {owned}, which only the controller may set; remove it{field}"
            )));
        }
    }
    Ok(())
}

/// Of a flag that is given twice the last one counts.
pub(super) fn settings(arguments: &[String]) -> Result<Settings, Invalid> {
    let mut settings = Settings::default();
    for (name, value) in values(arguments) {
        match name.as_str() {
            BATCH_SIZE => settings.batch_size = Some(positive(&name, value)?),
            ACCUMULATION => settings.accumulation = Some(positive(&name, value)?),
            DEEPSPEED => settings.has_deepspeed = true,
            _ => {}
        }
    }
    Ok(settings)
}

/// Steps between two lines of the log; `None`: it is not written by steps. A fraction is one of all steps.
pub(crate) fn logging_steps(arguments: &[String], total_steps: i64) -> Option<f64> {
    let mut every = LOGGED_EVERY;
    for (name, value) in values(arguments) {
        match (name.as_str(), value) {
            ("--logging_strategy", Some(strategy)) if strategy != "steps" => return None,
            (LOGGING_STEPS, Some(value)) => every = value.parse().unwrap_or(every),
            _ => {}
        }
    }
    Some(if every < 1.0 { (every * total_steps as f64).max(1.0) } else { every })
}

/// Each flag, as ms-swift reads it, and what follows it.
fn values(arguments: &[String]) -> impl Iterator<Item = (String, Option<&str>)> {
    arguments.iter().enumerate().map(|(at, argument)| {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument.as_str(), arguments.get(at + 1).map(String::as_str)),
        };
        (name.replace('-', "_").replacen("__", "--", 1), value)
    })
}

fn positive(flag: &str, value: Option<&str>) -> Result<i32, Invalid> {
    let parsed = value.and_then(|value| value.parse().ok()).filter(|count: &i32| *count > 0);
    parsed.ok_or_else(|| {
        Invalid(format!("spec.extraArgs: {flag} needs a number above 0, not {:?}", value.unwrap_or_default()))
    })
}

/// Whether argparse would parse this argument as the flag: also by an unambiguous prefix.
fn sets(argument: &str, flag: &str) -> bool {
    let given = argument.split('=').next().unwrap_or_default();
    let Some(given) = given.strip_prefix("--").filter(|given| !given.is_empty()) else { return false };
    flag.trim_start_matches('-').starts_with(&given.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(argument: &str) -> Option<String> {
        none_is_owned(&[argument.to_owned()]).err().map(|invalid| invalid.0)
    }

    #[test]
    fn every_spelling_of_an_owned_flag_is_refused_by_its_name() {
        for flag in OWNED_FLAGS {
            for argument in [flag.to_string(), format!("{flag}=1"), flag.replace('_', "-")] {
                assert!(
                    refusal(&argument).is_some_and(|text| text.contains("only the controller")),
                    "{argument}"
                );
            }
        }
        for argument in ["--output-d", "--resume-from=x", "--quant_bit=8", "--"] {
            assert!(refusal(argument).is_some(), "{argument}");
        }
        assert!(
            refusal("--hub-tok=abc").is_some_and(|text| !text.contains("abc")),
            "a token is not repeated"
        );
    }

    #[test]
    fn other_flags_are_accepted() {
        for argument in ["--max_length", "2048", "--model_type", "-5", "--system=--model", "a --model b"] {
            assert_eq!(refusal(argument), None, "{argument}");
        }
    }

    #[test]
    fn the_distance_of_the_lines_of_a_log_is_known() {
        let of = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            logging_steps(&arguments, 400)
        };
        assert_eq!(of(&[]), Some(5.0));
        assert_eq!(of(&["--logging_steps", "100"]), Some(100.0));
        assert_eq!(of(&["--logging-steps=0.1", "--logging_strategy", "steps"]), Some(40.0));
        assert_eq!(of(&["--logging_strategy", "epoch"]), None);
    }

    #[test]
    fn the_last_setting_counts() {
        let of = |arguments: &[&str]| {
            settings(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
        };
        let read = of(&[
            "--per_device_train_batch_size",
            "8",
            "--per-device-train-batch-size=4",
            "--gradient_accumulation_steps=2",
        ]);
        let expected = Settings { batch_size: Some(4), accumulation: Some(2), has_deepspeed: false };
        assert_eq!(read, Ok(expected));
        assert!(of(&["--deepspeed", "zero3"]).unwrap().has_deepspeed);
        for wrong in [&["--per_device_train_batch_size"][..], &["--gradient_accumulation_steps", "0"]] {
            assert!(of(wrong).unwrap_err().0.contains("needs a number above 0"), "{wrong:?}");
        }
    }
}
