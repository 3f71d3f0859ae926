//! Any bytes in any chunks: no panic, the same entries, and bounded fields.

use std::time::Instant;

use proptest::prelude::*;
use training_log::{Entry, Errors, Parser};

/// Pieces of logs, so that random texts have entries.
const PIECES: [&str; 32] = [
    "{'loss': ",
    "'6.449'",
    "nan",
    "1e-7",
    ", 'learning_rate': ",
    ", 'global_step/max_steps': '3/7'",
    ", 'iteration': \"999999999999/999999999999\"",
    ", 'remaining_time': '1d 2h 3m 4s'",
    ", 'train_speed(iter/s)': 0.1",
    ", 'eval_loss': (1, [2])",
    "'train_runtime': 1",
    "}",
    "{",
    "'",
    "\\",
    "\n",
    "\r",
    "\r\n",
    " ",
    "Train:  78%|███▊  | 21/27 [00:02<00:00, 10.10it/s]",
    "Val: 5%|█| 1/2 [",
    "[INFO:swift] Saving model checkpoint to /x",
    "[INFO:swift] last_model_checkpoint: /y",
    "[rank1]: ",
    "ValueError: x",
    "Exception ignored in: x",
    "torch.OutOfMemoryError",
    " [2026-11-20 20:10:42] iteration   5/ 10 | lm loss: 1 | remaining time: 5s |",
    "E1120 a:1] ",
    "sft.py: error: argument ",
    "No space left on device",
    "é",
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::sample::select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (any::<u8>(), 8_000..20_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

fn check(entry: &Entry<'_>) {
    if let Some(position) = entry.position() {
        assert!(0 <= position.step && position.step <= position.total && position.total < 1_000_000_000_000);
    }
    match entry {
        Entry::Step(step) => {
            for number in
                [&step.loss, &step.learning_rate, &step.epoch, &step.seconds_per_step].into_iter().flatten()
            {
                assert!(!number.is_empty() && number.len() <= 24, "{number}");
            }
        }
        Entry::Saving(text)
        | Entry::LastCheckpoint(text)
        | Entry::Error { line: text, .. }
        | Entry::Text(text) => {
            // A byte that is no UTF-8 becomes a character of three bytes.
            assert!(!text.contains(['\n', '\r']) && text.len() <= 3 * 16 * 1024);
        }
        Entry::Evaluation(_) | Entry::Summary(_) | Entry::Bar(_) => {}
    }
}

/// All of them are read at this time.
fn entries<'a>(chunks: impl Iterator<Item = &'a [u8]>, now: Instant) -> (Vec<String>, Errors) {
    let (mut all, mut errors) = (Vec::new(), Errors::default());
    let mut parser = Parser::default();
    let mut report = |entry: Entry<'_>| {
        check(&entry);
        errors.note(&entry, now);
        all.push(format!("{entry:?}"));
    };
    for chunk in chunks {
        parser.feed(chunk, &mut report);
    }
    parser.finish(&mut report);
    (all, errors)
}

proptest! {
    #[test]
    fn the_chunks_make_no_difference(bytes in bytes(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
        let now = Instant::now();
        let whole = entries(std::iter::once(bytes.as_slice()), now);
        prop_assert_eq!(entries(chunks, now), whole.clone());
        prop_assert_eq!(entries(bytes.chunks(1), now), whole);
    }
}

#[test]
fn the_pieces_make_entries_of_every_kind() {
    let log = "{'loss': nan, 'global_step/max_steps': '3/7'}\r{'eval_loss': 1, 'iteration': '3/7'}\n\
               {'train_runtime': 1, 'iteration': '3/7'}\rTrain:  78%|█| 21/27 [00:02<]\n[INFO:swift] Saving model checkpoint to /x\n\
               [INFO:swift] last_model_checkpoint: /y\nValueError: x\nother\n\n";
    let (all, _) = entries(log.as_bytes().chunks(3), Instant::now());
    let kinds: Vec<&str> = all.iter().map(|entry| entry.split(['(', ' ']).next().unwrap()).collect();
    assert_eq!(kinds, ["Step", "Evaluation", "Summary", "Bar", "Saving", "LastCheckpoint", "Error", "Text"]);
}
