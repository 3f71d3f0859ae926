//! What the log of the harness says: how many questions it asks, how many requests have failed, and its last lines.

use std::collections::VecDeque;

use api::launcher::evaluator::ExitCode;

const TAIL_LINES: usize = 40;
const LONGEST_LINE: usize = 400;

#[derive(Debug, Default)]
pub(crate) struct Log {
    tail: VecDeque<String>,
    /// Questions that EvalScope has announced.
    announced: Option<u64>,
    /// Questions without an answer, as EvalScope has logged them.
    failed: u64,
    /// Why the last of them has none.
    failure: Option<String>,
    lacks_nltk_data: bool,
}

/// EvalScope logs it once for each benchmark: `cmmlu: 6700 samples to evaluate (67 subsets, …)`.
const ANNOUNCES: &str = " samples to evaluate (";
/// EvalScope logs it once for each question without an answer, after its retries.
const FAILS: &str = "Processing item in subset=";

/// Of nltk, whose data EvalScope needs for ROUGE and BLEU, and would download.
const LACKS: &str = "Resource 'punkt_tab' not found";

/// What a line of an error means.
const CAUSES: [(&str, ExitCode); 11] = [
    ("No space left on device", ExitCode::OutOfSpace),
    ("Disk quota exceeded", ExitCode::OutOfSpace),
    ("OfflineModeIsEnabled", ExitCode::DatasetOnlineForbidden),
    ("No dataset file found for subset", ExitCode::DatasetNotFound),
    ("Dataset path does not exist", ExitCode::DatasetNotFound),
    ("ValueError: Benchmark '", ExitCode::DatasetNotFound),
    ("ValueError: Tasks not found:", ExitCode::DatasetNotFound),
    ("FileNotFoundError:", ExitCode::DatasetNotFound),
    ("which is marked as unsafe. Set confirm_run_unsafe_code=True", ExitCode::CodeExecutionForbidden),
    // lm-eval 0.4.12 without a tokenizer, and with chat completions.
    ("AssertionError: Tokenizer is required for loglikelihood tasks", ExitCode::TestSetUnsupported),
    (
        "NotImplementedError: Loglikelihood is not supported for chat completions",
        ExitCode::TestSetUnsupported,
    ),
];

impl Log {
    /// One line, without its end.
    pub(crate) fn read(&mut self, line: &str) {
        let line = text::printable(line);
        let line = line.trim_end();
        if line.is_empty() || is_progress(line) {
            return;
        }
        if let Some(number) = announced(line) {
            // A run asks one benchmark; the same line twice is no more questions.
            self.announced = self.announced.max(Some(number));
        }
        if let Some((_, failure)) = line.split_once(FAILS).and_then(|(_, rest)| rest.split_once("failed: ")) {
            self.failed += 1;
            self.failure = Some(text::beginning(failure, LONGEST_LINE));
        }
        self.lacks_nltk_data |= line.contains(LACKS);
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(text::beginning(line, LONGEST_LINE));
    }

    pub(crate) fn announced(&self) -> Option<u64> {
        self.announced
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    pub(crate) fn failure(&self) -> &str {
        self.failure.as_deref().unwrap_or("see the log of the harness")
    }

    pub(crate) fn lacks_nltk_data(&self) -> bool {
        self.lacks_nltk_data
    }

    pub(crate) fn tail(&self) -> Option<String> {
        let lines: Vec<&str> = self.tail.iter().map(String::as_str).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Why the harness failed, with the line that says so; the last line has the most to say.
    pub(crate) fn cause(&self) -> Option<(ExitCode, &str)> {
        let of_line =
            |line: &'_ String| CAUSES.iter().find(|(words, _)| line.contains(words)).map(|(_, code)| *code);
        self.tail.iter().rev().find_map(|line| Some((of_line(line)?, line.as_str())))
    }

    /// The last line that is not a part of a stack.
    pub(crate) fn last(&self) -> Option<&str> {
        self.tail.iter().rev().find(|line| !line.starts_with(' ')).map(String::as_str)
    }
}

/// A progress bar, of which a log has thousands: `100%|████| 1/1 [00:03<00:00,  3.88s/it]`.
fn is_progress(line: &str) -> bool {
    line.contains("%|") && line.ends_with(']')
}

fn announced(line: &str) -> Option<u64> {
    let (before, _) = line.split_once(ANNOUNCES)?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As EvalScope 1.10.0 writes them.
    #[test]
    fn the_log_says_how_many_questions_there_are_and_how_many_failed() {
        let mut log = Log::default();
        log.read("  2026-11-29 22:52:03 - \u{1b}[32mINFO\u{1b}[0m: general_mcq: 20 samples to evaluate (2 subsets)");
        log.read(
            "\u{1b}[31mERROR\u{1b}[0m: Processing item in subset='physics' failed: Error code: 500 - boom",
        );
        log.read("general_mcq: 5 samples to evaluate (1 subset, --limit=5 per subset). Remove `--limit` …");
        assert_eq!((log.announced(), log.failed(), log.failure()), (Some(20), 1, "Error code: 500 - boom"));
        log.read("Evaluating[general_mcq]:   0%|          | 0/300 [00:13<?, ?it/s]\u{1b}[A");
        assert!(log.cause().is_none() && log.last().unwrap().contains("--limit=5"));
        log.read("ConnectionError: Couldn't reach 'evalscope/cmmlu' on the Hub (OfflineModeIsEnabled)");
        assert_eq!(log.cause().unwrap().0, ExitCode::DatasetOnlineForbidden);
        log.read("ValueError: Tasks not found: nosuch");
        assert_eq!(
            (log.cause().unwrap().0, log.last()),
            (ExitCode::DatasetNotFound, Some("ValueError: Tasks not found: nosuch"))
        );
    }

    #[test]
    fn the_tail_is_bounded_and_clean() {
        let mut log = Log::default();
        for number in 0..1_000 {
            log.read(&format!("\u{1b}[31m{number} {}", "é".repeat(9_999)));
        }
        let tail = log.tail().unwrap();
        assert!(tail.len() <= TAIL_LINES * (LONGEST_LINE + 1) && !tail.contains('\u{1b}'), "{}", tail.len());
        assert!(log.last().unwrap().starts_with("999 "));
    }
}
