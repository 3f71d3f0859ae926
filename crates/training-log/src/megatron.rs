//! The lines of Megatron-SWIFT 3: ` [2026-11-20 20:10:42] iteration        5/     100 | consumed samples: 40 | lm loss:
//! 1.2E+00 |`.
//!
//! Megatron-SWIFT 4 prints dicts instead.

use crate::{Position, Step, number, remaining::remaining};

pub(crate) fn step(text: &str) -> Option<Step> {
    let text = text.trim_ascii_start().strip_prefix('[')?;
    let (time, text) = text.split_once("] iteration ")?;
    let is_time = time.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b':' | b'.' | b' '));
    let mut fields = text.split('|').map(str::trim_ascii);
    let position = Position::of(fields.next().filter(|_| is_time)?)?;
    let mut step = Step {
        position,
        loss: None,
        gradient_norm: None,
        learning_rate: None,
        epoch: None,
        seconds_per_step: None,
        remaining: None,
    };
    for (name, value) in fields.filter_map(|field| field.split_once(": ")) {
        let value = value.trim_ascii();
        match name {
            "lm loss" | "loss" => step.loss = number::decimal(value),
            "grad norm" => step.gradient_norm = number::decimal(value),
            "learning rate" => step.learning_rate = number::decimal(value),
            "elapsed time per iteration (ms)" => step.seconds_per_step = number::thousandth(value),
            "remaining time" => step.remaining = remaining(value),
            _ => {}
        }
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_of_megatron_is_a_step() {
        let line = " [2026-11-20 20:10:42] iteration        5/     100 | consumed samples:           40 \
                    | elapsed time per iteration (ms): 1234.5 | memory(GiB): 53.84 | elapsed time: 6s \
                    | remaining time: 1m 57s | learning rate: 9.500000E-05 | global batch size:     8 \
                    | lm loss: 1.234500E+00 | loss scale: 1.0 | grad norm: 0.696 \
                    | number of skipped iterations:   0 | number of nan iterations:   0 |";
        let expected = Step {
            position: Position { step: 5, total: 100 },
            loss: Some("1.2345".to_owned()),
            gradient_norm: Some("0.696".to_owned()),
            learning_rate: Some("0.000095".to_owned()),
            epoch: None,
            seconds_per_step: Some("1.2345".to_owned()),
            remaining: Some(Duration::from_secs(117)),
        };
        assert_eq!(step(line), Some(expected));
        for other in [
            "iteration 5/100 | lm loss: 1",
            "[x] iteration 5/100 | lm loss: 1",
            "[2026-11-20] iteration 5/infinity |",
            "[2026-11-20 20:10:42] validation loss at iteration 10 | lm loss value: 1.2E+00 |",
        ] {
            assert_eq!(step(other), None, "{other}");
        }
    }
}
