//! Behaves like the command line of EvalScope 1.10.0 for questions of one's own with choices (`general_mcq`). In the test image
//! it is `evalscope`.
//!
//! It asks a real server each question by HTTP, judges the answers, and writes the files and the log lines that the runner of an
//! evaluation reads. It must never be kinder than the real program: flags that it does not know are refused, and a request
//! that fails leaves a line in the log and no answer. Unlike the real program it tries no request again.
//!
//! - `arguments.rs`: the command line.
//! - `questions.rs`: the files of questions, the prompt, and the letter in an answer.
//! - `server.rs`: one request.
//! - `reviews.rs`: a line for each answer.

#![forbid(unsafe_code)]

mod arguments;
mod questions;
mod reviews;
mod server;

use std::{
    env, fs,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use arguments::Arguments;
use questions::Question;
use server::Server;

const VERSION: &str = "evalscope 1.10.0";
/// What Python's argparse ends with.
const USAGE: u8 = 2;

#[expect(clippy::print_stdout, reason = "the version is the result of the command")]
fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if let ["--version" | "--help"] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        println!("{VERSION}");
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(&words) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("evalscope: error: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let key = env::var("EVALSCOPE_API_KEY").unwrap_or_default();
    match evaluate(&arguments, &key) {
        Ok(()) => ExitCode::SUCCESS,
        // As the last line of a Python program.
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn evaluate(arguments: &Arguments, key: &str) -> Result<(), String> {
    let server = Server::new(&arguments.api_url, key)?;
    let sets = arguments
        .subsets
        .iter()
        .map(|subset| Ok((subset.as_str(), questions::of_subset(arguments, subset)?)))
        .collect::<Result<Vec<_>, String>>()?;
    let all: usize = sets.iter().map(|(_, questions)| questions.len()).sum();
    eprintln!("INFO: {}: {all} samples to evaluate ({} subsets)", arguments::DATASET, sets.len());
    let folder = arguments.work.join("reviews").join(&arguments.model_id);
    fs::create_dir_all(&folder).map_err(|error| format!("OSError: {}: {error}", folder.display()))?;
    for (subset, questions) in &sets {
        let lines = asked(arguments, &server, subset, questions);
        let path = folder.join(format!("{}_{subset}.jsonl", arguments::DATASET));
        fs::write(&path, lines).map_err(|error| format!("OSError: {}: {error}", path.display()))?;
    }
    Ok(())
}

/// A line for each answer, in the order in which they came.
fn asked(arguments: &Arguments, server: &Server, subset: &str, questions: &[Question]) -> String {
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(String::new()));
    let work = || {
        while let Some(question) = questions.get(next.fetch_add(1, Ordering::Relaxed)) {
            match server.answer(&arguments.request(&question.prompt())) {
                Ok(answer) => {
                    let line = reviews::line(question, &answer);
                    lines.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
                }
                Err(error) => eprintln!("ERROR: Processing item in subset='{subset}' failed: {error}"),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..arguments.batch {
            scope.spawn(work);
        }
    });
    lines.into_inner().unwrap_or_else(PoisonError::into_inner)
}
