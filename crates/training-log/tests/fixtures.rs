//! Real output of ms-swift 4.6.0 with transformers 5 on a CPU: every entry of every log is in the table next to it. Only the
//! out-of-memory errors are not real: a plugin raised them.
//!
//! The tables have been compared with the dicts in the logs as Python reads them.

use std::{fs, path::Path, time::Instant};

use training_log::{Cause, Entry, Errors, Parser, Position};

const LOGS: [&str; 9] = [
    "dpo_lora.tf5.stdout",
    "graceful_stop_exit0.torchrun2.merged",
    "oom_injected.single.merged",
    "oom_injected.torchrun2.merged",
    "ppo_lora.tf5.stdout",
    "rank_sigkill.torchrun2.merged",
    "sft_lora.disable_tqdm.stdout",
    "sft_lora.tf5.merged-stdout-stderr",
    "sft_lora.tf5.stdout",
];
/// A log without steps.
const SIGTERM: &str = "sigterm_dataloader_killed.torchrun2.merged";

fn file(name: &str, ending: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.{ending}"));
    fs::read_to_string(path).unwrap_or_default()
}

fn each(log: &str, report: &mut dyn FnMut(Entry<'_>)) {
    let mut parser = Parser::default();
    parser.feed(log.as_bytes(), report);
    parser.finish(report);
}

/// One line per entry that is no text.
fn shown(entry: &Entry<'_>) -> Option<String> {
    let at = |position: &Position| format!("{}/{}", position.step, position.total);
    let number = |number: &Option<String>| number.clone().unwrap_or_else(|| "-".to_owned());
    Some(match entry {
        Entry::Step(step) => format!(
            "step {} loss {} rate {} epoch {} seconds {} remaining {}",
            at(&step.position),
            number(&step.loss),
            number(&step.learning_rate),
            number(&step.epoch),
            number(&step.seconds_per_step),
            step.remaining.map_or_else(|| "-".to_owned(), |remaining| remaining.as_secs().to_string()),
        ),
        Entry::Evaluation(position) => format!("evaluation {}", at(position)),
        Entry::Summary(position) => format!("summary {}", at(position)),
        Entry::Bar(position) => format!("bar {}", at(position)),
        Entry::Saving(folder) => format!("saving {folder}"),
        Entry::LastCheckpoint(folder) => format!("last checkpoint {folder}"),
        Entry::Error { cause, line } => {
            format!("error {} {line}", cause.map_or("-", Cause::reason))
        }
        Entry::Text(_) => return None,
    })
}

#[test]
fn every_entry_of_every_log_is_as_in_its_table() {
    for name in LOGS.into_iter().chain([SIGTERM]) {
        let mut table = String::new();
        each(&file(name, "log"), &mut |entry| {
            table.extend(shown(&entry).map(|line| line + "\n"));
        });
        assert_eq!(table, file(name, "entries"), "{name}");
    }
}

#[test]
fn every_dict_in_the_logs_is_an_entry() {
    for name in LOGS {
        let log = file(name, "log");
        let mut entries = 0;
        each(&log, &mut |entry| {
            entries +=
                usize::from(matches!(entry, Entry::Step(_) | Entry::Evaluation(_) | Entry::Summary(_)));
        });
        assert_eq!(entries, log.matches("'global_step/max_steps'").count(), "{name}");
        assert!(entries > 0, "{name}");
    }
}

#[test]
fn the_cause_of_a_run_is_the_line_that_explains_its_end() {
    let memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.14 GiB. GPU 6 has a total capacity of \
                  79.33 GiB of which 8.35 GiB is free.";
    let of_rank = format!("[rank0]: {memory}");
    for (name, cause, line) in [
        ("oom_injected.single.merged", Some(Cause::CudaOutOfMemory), Some(memory)),
        ("oom_injected.torchrun2.merged", Some(Cause::CudaOutOfMemory), Some(of_rank.as_str())),
        ("rank_sigkill.torchrun2.merged", None, Some("traceback : Signal 9 (SIGKILL) received by PID 17463")),
        (
            SIGTERM,
            None,
            Some(
                "torch.distributed.elastic.multiprocessing.api.SignalException: Process 26739 got signal: 15",
            ),
        ),
        ("graceful_stop_exit0.torchrun2.merged", None, None),
        ("sft_lora.tf5.merged-stdout-stderr", None, None),
    ] {
        let (mut errors, now) = (Errors::default(), Instant::now());
        each(&file(name, "log"), &mut |entry| errors.note(&entry, now));
        assert_eq!((errors.cause(now), errors.line(now)), (cause, line), "{name}");
    }
}

#[test]
fn steps_evaluations_and_checkpoints_are_signs_of_life() {
    let mut signs = Vec::new();
    each(&file("sft_lora.tf5.merged-stdout-stderr", "log"), &mut |entry| {
        if entry.is_sign_of_life() {
            signs.extend(shown(&entry).and_then(|line| line.split(' ').next().map(str::to_owned)));
        }
    });
    assert_eq!(signs, ["step", "step", "step", "evaluation", "saving"]);
}
