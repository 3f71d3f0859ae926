//! `cargo xtask swift-args`: shows the golden command lines of the training-controller to the argument parser of the real
//! ms-swift. It needs the Python environment of `train-demo` (2.4 GB), so it is no part of the tests.
#![expect(clippy::print_stdout, reason = "what this command prints is what it is for")]

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use crate::{python::Environment, steps::workspace, swift_environment};

const CHECK: &str = include_str!("swift_args/check.py");
/// What a test of the training-controller compares with what it computes.
const GOLDEN: &str = "crates/training-controller/src/swift/snapshots/training_controller__swift__tests__the_command_line_of_every_combination.snap";
/// Of the lines for the newest version. The environment has a later release of the same major version.
const VERSION: &str = "swift=4.4";

pub(crate) fn run() -> anyhow::Result<()> {
    let environment = swift_environment::ensure()?;
    let file = workspace().join(GOLDEN);
    let golden = fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let lines = lines_of(&golden)?;
    ensure!(!lines.is_empty(), "{} has no line with {VERSION}", file.display());
    let mut refused = 0;
    for (line, answer) in lines.iter().zip(answers(&environment, &lines)?) {
        if answer != "OK" {
            refused += 1;
            println!("{}: {answer}", line.title);
        }
    }
    let release = swift_environment::release();
    println!("ms-swift {release} accepts {} of {} command lines", lines.len() - refused, lines.len());
    if refused > 0 {
        bail!("ms-swift {release} refuses {refused} command lines");
    }
    Ok(())
}

/// A command line, and the combination that it is for.
#[derive(Debug, PartialEq)]
struct Line {
    title: String,
    question: Value,
}

/// Those of `VERSION`: a title behind a `#`, then variables, `swift` and its arguments, none of which has a space.
fn lines_of(golden: &str) -> anyhow::Result<Vec<Line>> {
    let mut found = Vec::new();
    let mut title = None;
    for text in golden.lines() {
        if let Some(combination) = text.strip_prefix("# ") {
            title = Some(combination).filter(|combination| combination.ends_with(VERSION));
        } else if let Some(combination) = title.take() {
            found.push(line_of(combination, text)?);
        }
    }
    Ok(found)
}

fn line_of(combination: &str, text: &str) -> anyhow::Result<Line> {
    let device = combination.split(' ').nth(1).context("the title of a command line names no device")?;
    let words: Vec<&str> = text.split(' ').collect();
    let variables = words.iter().take_while(|word| **word != "swift").count();
    let pairs = words.iter().take(variables).filter_map(|word| word.split_once('='));
    let environment: serde_json::Map<String, Value> =
        pairs.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let question = json!({
        "arguments": words.get(variables..),
        "environment": environment,
        "device": device.to_lowercase(),
    });
    Ok(Line { title: combination.to_owned(), question })
}

fn answers(environment: &Environment, lines: &[Line]) -> anyhow::Result<Vec<String>> {
    let mut python = Command::new(environment.program("python"))
        .args(["-c", CHECK])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start the check of the command lines")?;
    let questions: String = lines.iter().map(|line| format!("{}\n", line.question)).collect();
    let mut input = python.stdin.take().context("the check has no standard input")?;
    // All answers fit into the pipe: each is one line.
    input.write_all(questions.as_bytes()).context("failed to send the command lines")?;
    drop(input);
    let output = python.wait_with_output().context("failed to read the answers")?;
    ensure!(output.status.success(), "the check of the command lines has failed: {}", output.status);
    let answers: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    ensure!(answers.len() == lines.len(), "{} answers for {} command lines", answers.len(), lines.len());
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_its_variables_and_arguments() {
        let golden = "---\nsource: x\n---\n# Lora Mps gpus=1 nodes=1 swift=3.12\nA=1 swift sft --old 1\n\
                      # Lora Mps gpus=1 nodes=2 swift=4.4\nNNODES=2 USE_HF=1 swift sft --model m\n";
        let question = json!({
            "arguments": ["swift", "sft", "--model", "m"],
            "environment": {"NNODES": "2", "USE_HF": "1"},
            "device": "mps",
        });
        let title = "Lora Mps gpus=1 nodes=2 swift=4.4".to_owned();
        assert_eq!(lines_of(golden).unwrap(), [Line { title, question }]);
    }

    #[test]
    fn the_golden_lines_are_where_they_are_looked_for() {
        let golden = fs::read_to_string(workspace().join(GOLDEN)).unwrap();
        assert_eq!(
            lines_of(&golden).unwrap().len() * 2,
            golden.lines().filter(|line| line.starts_with("# ")).count()
        );
    }
}
