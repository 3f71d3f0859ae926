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

/// What a progress bar shows of its position, in whatever units: the text before its times. Bars of downloads and of the
/// preparation of data have other names than that of the training, and some have no total. A bar that is drawn again without
/// progress shows the same.
pub fn shown_progress(text: &str) -> Option<&str> {
    let (shown, times) = text.rsplit_once(" [")?;
    let (minutes, rest) = times.split_once(':')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = rest.rsplit_once([',', '<'])?.0;
    let seconds = seconds.split([',', '<', ':']).next()?;
    (is_number(minutes) && is_number(seconds) && shown.bytes().any(|byte| byte.is_ascii_digit()))
        .then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_downloads_and_of_data_show_their_progress() {
        for (text, shown) in [
            (
                "model-00001-of-00004.safetensors:  12%|█▏   | 598M/4.98G [00:05<00:37, 117MB/s]",
                "model-00001-of-00004.safetensors:  12%|█▏   | 598M/4.98G",
            ),
            ("Map:  17%|█▋        | 2/12 [1:00:00<00:01,  7.97 examples/s]", "Map:  17%|█▋        | 2/12"),
            ("Map:   0%|          | 0/12 [00:00<?, ? examples/s]", "Map:   0%|          | 0/12"),
            (
                "Generating train split: 1200 examples [00:03, 400.0 examples/s]",
                "Generating train split: 1200 examples",
            ),
        ] {
            assert_eq!(shown_progress(text), Some(shown), "{text}");
        }
        for text in
            ["[rank0]: waiting [for peers]", "a [1, 2]", "NCCL INFO 12:33 [0] nranks 2", "loss 3 [x:1, y]"]
        {
            assert_eq!(shown_progress(text), None, "{text}");
        }
    }

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
