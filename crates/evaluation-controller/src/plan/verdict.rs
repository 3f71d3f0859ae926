//! From the counts of the runner to a verdict, as the status has it. Pure.

use api::{
    aiinference::evaluation::{NullControl, Run, TestSetResult},
    launcher::evaluator::{Graded as Reported, Message, Pair},
    reasons,
};
use comparison::{
    Comparison, Conclusion, Counts, Evidence, Graded, Millionths, Rules, conclude, is_unstable,
};
use workload::Cause;

use super::work::Asked;
use crate::validate::{ValidEvaluation, ValidSet};

/// What the status says at the end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Concluded {
    pub(super) verdict: &'static str,
    /// The reason of the verdict, which is the verdict unless the measurement is unstable.
    pub(super) reason: &'static str,
    pub(super) difference: String,
    pub(super) summary: String,
    pub(super) results: Vec<TestSetResult>,
    pub(super) null_control: Option<NullControl>,
}

/// There is no verdict without the pairs of all test sets.
pub(super) fn concluded(
    valid: &ValidEvaluation,
    runs: &[Run],
    message: &Message,
) -> Result<Concluded, Cause> {
    let unreadable = |why: String| Cause {
        reason: reasons::OUTPUT_UNREADABLE,
        message: format!("comparison: {why}; create the evaluation again"),
    };
    if message.pairs.len() != valid.sets.len() {
        let (found, sets) = (message.pairs.len(), valid.sets.len());
        return Err(unreadable(format!("the runner reports {found} of {sets} test sets")));
    }
    let pairs: Result<Vec<Evidence>, Cause> =
        message.pairs.iter().map(|pair| evidence(pair).map_err(unreadable)).collect();
    let pairs = pairs?;
    let control = message.control.as_ref().map(|pair| evidence(pair).map_err(unreadable)).transpose()?;
    if control.is_none() && valid.evaluation.spec.null_control {
        return Err(unreadable("the runner reports no null control".to_owned()));
    }
    let unstable = control.as_ref().is_some_and(|control| is_unstable(control, valid.confidence));
    let judged: Vec<(Evidence, Rules)> =
        pairs.iter().zip(&valid.sets).map(|(pair, set)| (*pair, set.rules)).collect();
    let Conclusion { verdict, sets } = conclude(&judged, unstable);
    let results: Vec<TestSetResult> = (valid.sets.iter().zip(&pairs).zip(&sets))
        .map(|((set, pair), compared)| result(set, pair, compared, runs))
        .collect();
    let null_control = control.as_ref().map(|control| null_control(control, unstable));
    Ok(Concluded {
        verdict: verdict.as_str(),
        reason: if unstable { reasons::UNSTABLE_MEASUREMENT } else { reason(verdict) },
        difference: worst(&sets).map(interval).unwrap_or_default(),
        summary: summary(&results, null_control.as_ref(), unstable) + &unchecked(valid, runs),
        results,
        null_control,
    })
}

fn evidence(pair: &Pair) -> Result<Evidence, String> {
    let Pair { both_right, only_baseline, only_candidate, both_wrong, graded } = pair;
    let counts = Counts {
        both_right: *both_right,
        only_baseline: *only_baseline,
        only_candidate: *only_candidate,
        both_wrong: *both_wrong,
    };
    graded.as_ref().map_or(Ok(Evidence::Binary(counts)), |graded| Ok(Evidence::Graded(parsed(graded)?)))
}

fn parsed(graded: &Reported) -> Result<Graded, String> {
    let Reported { n, groups, baseline, candidate, difference, low, high, candidate_low, p_value } = graded;
    let number = |text: &str| Millionths::parse(text).map_err(|error| error.to_string());
    Ok(Graded {
        n: *n,
        groups: *groups,
        baseline: number(baseline)?,
        candidate: number(candidate)?,
        difference: number(difference)?,
        low: number(low)?,
        high: number(high)?,
        candidate_low: number(candidate_low)?,
        p_value: number(p_value)?,
    })
}

fn reason(verdict: comparison::Verdict) -> &'static str {
    match verdict {
        comparison::Verdict::Passed => reasons::PASSED,
        comparison::Verdict::Regressed => reasons::REGRESSED,
        comparison::Verdict::Inconclusive => reasons::INCONCLUSIVE,
    }
}

fn result(set: &ValidSet, evidence: &Evidence, compared: &Comparison, runs: &[Run]) -> TestSetResult {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let counts = match evidence {
        Evidence::Binary(counts) => Some(*counts),
        Evidence::Graded(_) => None,
    };
    let run = runs.iter().find(|run| run.side == Asked::Candidate.as_str() && run.test_set == set.name);
    let shown = compared.shown.clone();
    TestSetResult {
        test_set: set.name.clone(),
        n: count(compared.n),
        metric: run.and_then(|run| run.metric.clone()),
        both_right: counts.map(|counts| count(counts.both_right)),
        only_baseline: counts.map(|counts| count(counts.only_baseline)),
        only_candidate: counts.map(|counts| count(counts.only_candidate)),
        baseline: shown.baseline,
        candidate: shown.candidate,
        difference: shown.difference,
        low: shown.low,
        high: shown.high,
        p_value: shown.p_value,
        budget: set.rules.budget.shown(),
        needed: compared.needed.map(count),
        verdict: compared.verdict.as_str().to_owned(),
        below_minimum: compared.is_below_minimum,
    }
}

fn null_control(control: &Evidence, unstable: bool) -> NullControl {
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    match control {
        Evidence::Binary(counts) => {
            NullControl { n: count(counts.n()), flips: Some(count(counts.flips())), unstable }
        }
        // Scores between have no flips.
        Evidence::Graded(graded) => NullControl { n: count(graded.n), flips: None, unstable },
    }
}

/// A set that regressed, else one that is inconclusive, else one that passed; of several, that with the largest loss.
fn worst(sets: &[Comparison]) -> Option<&Comparison> {
    let order = |set: &&Comparison| {
        let hundredths: i64 = set.shown.difference.replace('.', "").parse().unwrap_or_default();
        let verdict = match set.verdict {
            comparison::Verdict::Regressed => 0,
            comparison::Verdict::Inconclusive => 1,
            comparison::Verdict::Passed => 2,
        };
        (verdict, hundredths)
    };
    sets.iter().min_by_key(order)
}

fn interval(set: &Comparison) -> String {
    let shown = &set.shown;
    format!("{} [{}, {}]", signed(&shown.difference), signed(&shown.low), signed(&shown.high))
}

/// A gain has a plus before it, so that it is not read as a score.
fn signed(text: &str) -> String {
    let is_zero = !text.chars().any(|char| char.is_ascii_digit() && char != '0');
    if text.starts_with('-') || is_zero { text.to_owned() } else { format!("+{text}") }
}

fn summary(results: &[TestSetResult], control: Option<&NullControl>, unstable: bool) -> String {
    let of_set = |result: &TestSetResult| {
        let [difference, low, high] =
            [&result.difference, &result.low, &result.high].map(|text| signed(text));
        let needed = result.needed.map(|needed| format!(", {needed} questions needed")).unwrap_or_default();
        let minimum = if result.below_minimum { ", below its minimum" } else { "" };
        let (set, n, budget) = (&result.test_set, result.n, &result.budget);
        format!("{set} {difference} [{low}, {high}], budget {budget}, {n} questions{needed}{minimum}")
    };
    let sets: Vec<String> = results.iter().map(of_set).collect();
    let noise = control.and_then(|control| {
        let flips = control.flips?;
        Some(format!("; noise: {flips} of {} answers change on a rerun", control.n))
    });
    let unstable = if unstable { "; the baseline differs from itself" } else { "" };
    format!("{}{}{unstable}", sets.join("; "), noise.unwrap_or_default())
}

/// A harness that does not say how many questions it asks may have lost the same ones of both models.
fn unchecked(valid: &ValidEvaluation, runs: &[Run]) -> String {
    let is_unchecked = |set: &&ValidSet| runs.iter().any(|run| run.unchecked && run.test_set == set.name);
    let names: Vec<&str> = valid.sets.iter().filter(is_unchecked).map(|set| set.name.as_str()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; the number of questions of {} could not be checked", names.join(", ")),
    }
}
