//! Compares scores that are not only right or wrong, such as ROUGE or the mark of a judge.
//!
//! The interval is the percentile bootstrap of B. Efron and R. Tibshirani, "An introduction to the bootstrap" (1993),
//! over questions: all answers to a question are drawn together. The p-value is that of R. Fisher's randomization of
//! signs, "The design of experiments" (1935): equal models could have exchanged their answers to each question. The
//! same seed gives the same result on every machine, and the order of the answers does not count.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore as _, SeedableRng as _},
};

use crate::{
    graded::{Graded, Millionths},
    rules::Confidence,
};

/// The scores of both sides for one answer, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Answers with the same number are to one question.
    pub group: u64,
    pub baseline: i64,
    pub candidate: i64,
}

/// Ten thousand draws put 500 below a bound of 95 %. The bound then varies by a twentieth of a standard deviation.
const DRAWS: usize = 10_000;

/// Sorts the pairs. Time grows with their number: 14 000 take less than a second. Scores are from −1e9 to 1e9
/// millionths; others count as the nearest of them, so that sums cannot overflow.
pub fn compared(pairs: &mut [Pair], seed: u64, confidence: Confidence) -> Graded {
    pairs.sort_unstable_by_key(|pair| (pair.group, pair.baseline, pair.candidate));
    let questions: Vec<Question> =
        pairs.chunk_by(|one, other| one.group == other.group).map(Question::of).collect();
    if questions.is_empty() {
        return Graded { p_value: Millionths::rounded(1.0), ..Graded::default() };
    }
    let whole = Draw::of(questions.iter());
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draws: Vec<Draw> = (0..DRAWS).map(|_| resampled(&questions, &mut random)).collect();
    let alpha = confidence.alpha();
    let candidate_low = percentile(&mut draws, Draw::candidate, alpha);
    let least = least_width(pairs, questions.len(), confidence);
    let difference = whole.difference();
    let low = percentile(&mut draws, Draw::difference, alpha).min(difference - least);
    let high = percentile(&mut draws, Draw::difference, 1.0 - alpha).max(difference + least);
    Graded {
        n: pairs.len() as u64,
        groups: questions.len() as u64,
        baseline: Millionths::rounded(whole.candidate() - difference),
        candidate: Millionths::rounded(whole.candidate()),
        difference: Millionths::rounded(difference),
        low: Millionths::rounded(low),
        high: Millionths::rounded(high),
        candidate_low: Millionths::rounded(candidate_low.min(whole.candidate() - least)),
        p_value: Millionths::rounded(chance_of_such_a_loss(&questions, &mut random)),
    }
}

const LARGEST: i64 = 1_000_000_000;

/// All answers to a question.
#[derive(Clone, Copy, Debug)]
struct Question {
    /// Candidate minus baseline.
    difference: i64,
    candidate: i64,
    answers: i64,
}

impl Question {
    fn of(pairs: &[Pair]) -> Self {
        let bounded = |score: i64| score.clamp(-LARGEST, LARGEST);
        let candidate = pairs.iter().map(|pair| bounded(pair.candidate)).sum();
        let baseline: i64 = pairs.iter().map(|pair| bounded(pair.baseline)).sum();
        Self { difference: candidate - baseline, candidate, answers: pairs.len() as i64 }
    }
}

/// Sums over drawn questions; there is at least one.
#[derive(Clone, Copy, Debug, Default)]
struct Draw {
    difference: i64,
    candidate: i64,
    answers: i64,
}

impl Draw {
    fn of<'q>(questions: impl Iterator<Item = &'q Question>) -> Self {
        questions.fold(Self::default(), |sum, question| Self {
            difference: sum.difference + question.difference,
            candidate: sum.candidate + question.candidate,
            answers: sum.answers + question.answers,
        })
    }

    fn difference(&self) -> f64 {
        self.difference as f64 / self.answers as f64 / 1e6
    }

    fn candidate(&self) -> f64 {
        self.candidate as f64 / self.answers as f64 / 1e6
    }
}

/// As many questions as there are, each drawn from all of them.
fn resampled(questions: &[Question], random: &mut ChaCha8Rng) -> Draw {
    let count = questions.len() as u64;
    Draw::of((0..count).map(|_| {
        // The upper half of the product is even enough: its bias is below the count over 2³².
        let at = (u64::from(random.next_u32()) * count) >> 32;
        &questions[at as usize]
    }))
}

fn percentile(draws: &mut [Draw], mean: impl Fn(&Draw) -> f64, share: f64) -> f64 {
    let at = ((draws.len() as f64 * share).round() as usize).min(draws.len() - 1);
    mean(draws.select_nth_unstable_by(at, |one, other| mean(one).total_cmp(&mean(other))).1)
}

/// The least distance of a bound from what was measured. Questions that change nothing say little about the next one:
/// after `n` equal answers the score interval of right and wrong ends at z² / (n + z²). The same share of the range
/// of the scores holds here, and of a whole unit if all scores are equal.
fn least_width(pairs: &[Pair], groups: usize, confidence: Confidence) -> f64 {
    let scores = || pairs.iter().flat_map(|pair| [pair.baseline, pair.candidate]);
    let range = scores().max().unwrap_or(0).saturating_sub(scores().min().unwrap_or(0));
    let range = if range == 0 { 1.0 } else { range as f64 / 1e6 };
    let z2 = confidence.z() * confidence.z();
    range * z2 / (groups as f64 + z2)
}

/// How often the sum of the differences is as low as the measured one, if each has a random sign. The measured signs
/// are one of the draws.
fn chance_of_such_a_loss(questions: &[Question], random: &mut ChaCha8Rng) -> f64 {
    let changed: Vec<i64> =
        questions.iter().map(|question| question.difference).filter(|difference| *difference != 0).collect();
    let measured: i64 = changed.iter().sum();
    let as_low = (0..DRAWS).filter(|_| {
        let sum: i64 = changed.chunks(64).map(|chunk| with_random_signs(chunk, random.next_u64())).sum();
        sum <= measured
    });
    (as_low.count() + 1) as f64 / (DRAWS + 1) as f64
}

fn with_random_signs(differences: &[i64], bits: u64) -> i64 {
    let signed =
        |(at, difference): (usize, &i64)| if bits >> at & 1 == 0 { *difference } else { -difference };
    differences.iter().enumerate().map(signed).sum()
}
