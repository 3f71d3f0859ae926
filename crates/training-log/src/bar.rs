//! The progress bars that tqdm draws: `Train:  78%|███▊  | 21/27 [00:02<00:00, 10.10it/s]`.
//!
//! Only the bar of the training has a position. The others are recognized because other text may follow them.

use crate::{Entry, Position};

const TRAINING: &str = "Train:";
/// Of evaluations: transformers and Megatron.
const OTHERS: [&str; 2] = ["Val:", "Evaluate:"];

/// The bar at the beginning of a text, and what follows it.
pub(crate) fn leading(text: &str) -> Option<(Entry<'_>, &str)> {
    let training = text.strip_prefix(TRAINING);
    let bar = training.or_else(|| OTHERS.iter().find_map(|name| text.strip_prefix(name)))?;
    let (percent, bar) = bar.split_once("%|")?;
    let is_percent = percent.trim_ascii_start().bytes().all(|byte| byte.is_ascii_digit());
    let (_, bar) = bar.split_once("| ").filter(|_| is_percent)?;
    let (counts, times) = bar.split_once(" [")?;
    let position = Position::of(counts)?;
    let after = times.split_once(']').map_or("", |(_, after)| after);
    let entry = match training {
        Some(_) => Entry::Bar(position),
        None => Entry::Text(&text[..text.len() - after.len()]),
    };
    Some((entry, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(text: &str) -> Option<i64> {
        leading(text).and_then(|(entry, _)| entry.position()).map(|position| position.step)
    }

    #[test]
    fn the_bar_of_the_training_has_a_position() {
        assert_eq!(step("Train:  78%|███████▊  | 21/27 [00:02<00:00, 10.10it/s]"), Some(21));
        assert_eq!(step("Train:   0%|          | 0/27 [00:00<?, ?it/s]"), Some(0));
        assert_eq!(step("Train: 100%|##########| 27/27 [1:02:03<00:00, 22.1s/it]"), Some(27));
        assert_eq!(step("Train:  78%|███████▊  | 21/27 [00:0"), Some(21), "its end is not needed");
    }

    #[test]
    fn other_bars_and_damaged_ones_have_none() {
        for text in [
            "Val:  17%|█▋        | 2/12 [00:00<00:01,  7.97it/s]",
            "Evaluate:  17%|█▋        | 2/12 [00:00<00:01,  7.97it/s]",
            "Map:  17%|█▋        | 2/12 [00:00<00:01,  7.97it/s]",
            "Train:  78%|███████▊  | 21/2",
            "Train: 21it [00:02, 10.10it/s]",
            "Train:  x%|███████▊  | 21/27 [00:02<00:00, 10.10it/s]",
            "Train:  78%|███████▊  | -1/27 [00:02<00:00, 10.10it/s]",
            "my Train:  78%|███████▊  | 21/27 [00:02<00:00, 10.10it/s]",
        ] {
            assert_eq!(step(text), None, "{text}");
        }
    }

    #[test]
    fn the_text_after_another_bar_is_kept() {
        let (entry, after) = leading("Val: 100%|███| 2/2 [00:00<00:00,  7.97it/s]{'eval_loss': 1}").unwrap();
        assert_eq!(entry, Entry::Text("Val: 100%|███| 2/2 [00:00<00:00,  7.97it/s]"));
        assert_eq!(after, "{'eval_loss': 1}");
    }
}
