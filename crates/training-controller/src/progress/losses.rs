//! How many logged steps in a row had a loss that trains nothing. Pure.
//!
//! transformers logs a mean without the values that are no numbers, so a run whose every loss is NaN logs 0. A loss of 0 with
//! a gradient trains, and DPO and PPO reach 0 by themselves.

use training_log::Step;

/// Rows of such steps that reach to the last logged one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    not_finite: Row,
    not_finite_or_zero: Row,
    /// Each rank may log the same step.
    last: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) steps: u32,
    /// Its first step.
    pub(crate) since: i64,
    /// Whether a sound loss was logged since the reading began.
    pub(crate) has_sound: bool,
}

enum Kind {
    Sound,
    /// 0, and no gradient that would change anything.
    Zero,
    NotFinite,
}

impl Losses {
    pub(crate) fn note(&mut self, step: &Step) {
        let at = step.position.step;
        let Some(kind) = kind(step).filter(|_| self.last.is_none_or(|last| at > last)) else { return };
        self.last = Some(at);
        let (not_finite, zero) = match kind {
            Kind::Sound => (false, false),
            Kind::Zero => (false, true),
            Kind::NotFinite => (true, true),
        };
        self.not_finite.note(not_finite, at);
        self.not_finite_or_zero.note(zero, at);
    }

    /// `with_zeros`: whether a loss of 0 without a gradient counts.
    pub(crate) fn row(&self, with_zeros: bool) -> Row {
        if with_zeros { self.not_finite_or_zero } else { self.not_finite }
    }
}

impl Row {
    fn note(&mut self, belongs: bool, at: i64) {
        if !belongs {
            *self = Self { has_sound: true, ..Self::default() };
            return;
        }
        if self.steps == 0 {
            self.since = at;
        }
        self.steps = self.steps.saturating_add(1);
    }
}

/// `None`: the line has no loss.
fn kind(step: &Step) -> Option<Kind> {
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<f64>().ok());
    let (loss, gradient) = (number(&step.loss)?, number(&step.gradient_norm));
    Some(match gradient {
        _ if !loss.is_finite() => Kind::NotFinite,
        _ if loss != 0.0 => Kind::Sound,
        Some(norm) if !norm.is_finite() => Kind::NotFinite,
        Some(norm) if norm != 0.0 => Kind::Sound,
        Some(_) | None => Kind::Zero,
    })
}

#[cfg(test)]
mod tests {
    use training_log::Position;

    use super::*;

    fn losses(lines: &[(i64, &str, Option<&str>)]) -> Losses {
        let mut losses = Losses::default();
        for (step, loss, gradient) in lines {
            losses.note(&Step {
                position: Position { step: *step, total: 100 },
                loss: Some((*loss).to_owned()),
                gradient_norm: gradient.map(str::to_owned),
                learning_rate: None,
                epoch: None,
                seconds_per_step: None,
                remaining: None,
            });
        }
        losses
    }

    /// Steps in a row, without and with zeros.
    fn counts(lines: &[(i64, &str, Option<&str>)]) -> (u32, u32) {
        let losses = losses(lines);
        (losses.row(false).steps, losses.row(true).steps)
    }

    #[test]
    fn what_is_no_number_counts_for_every_method() {
        assert_eq!(counts(&[(1, "NaN", None), (2, "Inf", Some("1.0")), (3, "-Inf", None)]), (3, 3));
        assert_eq!(counts(&[(1, "0.0", Some("NaN"))]), (1, 1), "transformers leaves NaN out of the mean");
    }

    #[test]
    fn a_zero_counts_apart_and_only_without_a_gradient() {
        assert_eq!(counts(&[(1, "0.0", None), (2, "0", Some("0.0"))]), (0, 2));
        assert_eq!(counts(&[(1, "0.0", Some("0.3")), (2, "1e-8", None), (3, "6.5", Some("NaN"))]), (0, 0));
    }

    #[test]
    fn a_sound_loss_ends_a_row_and_a_step_counts_once() {
        let mixed =
            [(1, "NaN", None), (2, "0.5", None), (3, "NaN", None), (3, "NaN", None), (4, "NaN", None)];
        let row = losses(&mixed).row(true);
        assert_eq!(row, Row { steps: 2, since: 3, has_sound: true });
        assert!(!losses(&[(1, "NaN", None)]).row(true).has_sound);
    }
}
