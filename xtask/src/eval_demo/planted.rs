//! Which model answers which question right. Pure, and known before anything runs.

use comparison::{Counts, Verdict};

/// Of the test set.
pub(super) const QUESTIONS: usize = 300;
/// The null control asks the baseline the first ones again, as many as in a real evaluation.
pub(super) const ASKED_AGAIN: usize = 200;
/// Questions that the baseline answers otherwise when it is asked again, as real models do: two are right only then.
const CHANGED: [usize; 5] = [2, 7, 31, 91, 152];

/// Of the baseline, and of its null control.
pub(super) const CONTROL: Counts =
    Counts { both_right: 136, only_baseline: 3, only_candidate: 2, both_wrong: 59 };
const AS_GOOD: Counts = Counts { both_right: 195, only_baseline: 16, only_candidate: 14, both_wrong: 75 };
const WORSE: Counts = Counts { both_right: 168, only_baseline: 43, only_candidate: 11, both_wrong: 78 };

/// What follows from the counts with a budget. The same counts pass with a large budget only.
pub(super) const VERDICTS: [(Model, &str, Verdict); 3] = [
    (Model::AsGood, "5.0", Verdict::Passed),
    (Model::AsGood, "1.0", Verdict::Inconclusive),
    (Model::Worse, "5.0", Verdict::Regressed),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Model {
    /// The baseline.
    Base,
    AsGood,
    Worse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Right,
    Wrong,
    /// It counts as wrong.
    Unreadable,
}

/// What one model answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) questions: u64,
    pub(super) right: u64,
    pub(super) unreadable: u64,
}

impl Model {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::AsGood => "as-good",
            Self::Worse => "worse",
        }
    }

    /// Beside the baseline.
    pub(super) fn counts(self) -> Counts {
        match self {
            Self::Base => CONTROL,
            Self::AsGood => AS_GOOD,
            Self::Worse => WORSE,
        }
    }

    /// `asked`: how often the model was asked the question before.
    pub(super) fn answer(self, question: usize, asked: u32) -> Answer {
        let rank = rank(question);
        let (of_base, unreadable) = (baseline_right(), QUESTIONS - UNREADABLE);
        let is_right = match self {
            Self::Base => (rank < of_base) != (asked > 0 && CHANGED.contains(&question)),
            Self::AsGood | Self::Worse => {
                let counts = self.counts();
                let only_candidate = of_base..of_base + number(counts.only_candidate);
                rank < number(counts.both_right) || only_candidate.contains(&rank)
            }
        };
        match is_right {
            true => Answer::Right,
            false if rank >= unreadable => Answer::Unreadable,
            false => Answer::Wrong,
        }
    }

    /// All answers to the first questions.
    pub(super) fn side(self, questions: usize, asked: u32) -> Side {
        let number =
            |wanted| (0..questions).filter(|question| self.answer(*question, asked) == wanted).count() as u64;
        Side {
            questions: questions as u64,
            right: number(Answer::Right),
            unreadable: number(Answer::Unreadable),
        }
    }
}

/// The last questions by rank, which no model answers right.
const UNREADABLE: usize = 10;

fn baseline_right() -> usize {
    number(AS_GOOD.both_right + AS_GOOD.only_baseline)
}

/// Mixes the questions: each has another rank. The factor has no divisor in common with their number.
fn rank(question: usize) -> usize {
    question * 119 % QUESTIONS
}

/// A count is at most [`QUESTIONS`].
fn number(count: u64) -> usize {
    usize::try_from(count).unwrap_or(QUESTIONS)
}

#[cfg(test)]
mod tests {
    use comparison::{Budget, Confidence, Evidence, Rules, conclude, is_unstable};

    use super::*;

    fn counts(questions: usize, one: impl Fn(usize) -> Answer, other: impl Fn(usize) -> Answer) -> Counts {
        let mut counts = Counts::default();
        for question in 0..questions {
            let pair = [one(question), other(question)].map(|answer| answer == Answer::Right);
            *match pair {
                [true, true] => &mut counts.both_right,
                [true, false] => &mut counts.only_baseline,
                [false, true] => &mut counts.only_candidate,
                [false, false] => &mut counts.both_wrong,
            } += 1;
        }
        counts
    }

    #[test]
    fn the_answers_have_the_counts_that_are_promised() {
        let base = |question| Model::Base.answer(question, 0);
        for model in [Model::AsGood, Model::Worse] {
            assert_eq!(model.counts().n(), QUESTIONS as u64);
            assert_eq!(counts(QUESTIONS, base, |question| model.answer(question, 0)), model.counts());
        }
        assert_eq!(counts(ASKED_AGAIN, base, |question| Model::Base.answer(question, 1)), CONTROL);
    }

    #[test]
    fn each_side_has_answers_that_cannot_be_read() {
        for model in [Model::Base, Model::AsGood, Model::Worse] {
            let Side { questions, right, unreadable } = model.side(QUESTIONS, 0);
            assert_eq!((questions, unreadable), (300, 10), "{model:?}");
            assert!((150..250).contains(&right), "{model:?}");
        }
        assert_eq!(Model::Base.side(ASKED_AGAIN, 1), Side { questions: 200, right: 138, unreadable: 8 });
    }

    #[test]
    fn the_counts_lead_to_the_verdicts() {
        assert!(!is_unstable(&Evidence::Binary(CONTROL), Confidence::DEFAULT));
        for (model, budget, verdict) in VERDICTS {
            let budget = Budget::parse(budget).unwrap();
            let rules = Rules { budget, confidence: Confidence::DEFAULT, minimum: None };
            let concluded = conclude(&[(Evidence::Binary(model.counts()), rules)], false);
            assert_eq!(concluded.verdict, verdict, "{model:?} {budget:?}");
        }
    }
}
