//! What holds for all counts and scores.

#![cfg(test)]

use comparison::{
    Budget, Confidence, Counts, Evidence, Rules, Verdict,
    bootstrap::{Pair, compared},
    compare,
};
use proptest::prelude::*;

fn rules(hundredths: u32, thousandths: u32) -> Rules {
    Rules {
        budget: Budget::parse(&format!("{}.{:02}", hundredths / 100, hundredths % 100)).unwrap(),
        confidence: Confidence::parse(&format!("0.{thousandths}")).unwrap(),
        minimum: None,
    }
}

fn number(text: &str) -> f64 {
    text.parse().unwrap()
}

prop_compose! {
    fn any_counts()(both_right in 0..5_000_u64, only_baseline in 0..2_000_u64, only_candidate in 0..2_000_u64,
        both_wrong in 0..5_000_u64) -> Counts {
        Counts { both_right, only_baseline, only_candidate, both_wrong }
    }
}

prop_compose! {
    fn any_rules()(budget in 1..=10_000_u32, confidence in 900..=990_u32) -> Rules {
        rules(budget, confidence)
    }
}

/// Candidates from good to bad.
fn order(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Passed => 0,
        Verdict::Inconclusive => 1,
        Verdict::Regressed => 2,
    }
}

proptest! {
    #[test]
    fn the_interval_contains_the_difference(counts in any_counts(), rules in any_rules()) {
        let shown = compare(&Evidence::Binary(counts), &rules).shown;
        let [low, difference, high] = [&shown.low, &shown.difference, &shown.high].map(|text| number(text));
        prop_assert!(low <= difference && difference <= high, "{shown:?}");
        prop_assert!((-100.0..=100.0).contains(&low) && (-100.0..=100.0).contains(&high), "{shown:?}");
        prop_assert!((0.0..=1.0).contains(&number(&shown.p_value)), "{shown:?}");
    }

    #[test]
    fn exchanged_models_exchange_the_ends_of_the_interval(counts in any_counts(), rules in any_rules()) {
        let turned = Counts {
            only_baseline: counts.only_candidate,
            only_candidate: counts.only_baseline,
            ..counts
        };
        let [one, other] = [counts, turned].map(|counts| compare(&Evidence::Binary(counts), &rules).shown);
        prop_assert!((number(&one.low) + number(&other.high)).abs() < 0.011, "{one:?} {other:?}");
        prop_assert!((number(&one.difference) + number(&other.difference)).abs() < 0.011);
        prop_assert_eq!(one.baseline, other.candidate);
    }

    #[test]
    fn a_lost_question_never_improves_the_verdict(counts in any_counts(), rules in any_rules()) {
        prop_assume!(counts.both_right > 0);
        let worse = Counts {
            both_right: counts.both_right - 1,
            only_baseline: counts.only_baseline + 1,
            ..counts
        };
        let [before, after] = [counts, worse].map(|counts| compare(&Evidence::Binary(counts), &rules));
        prop_assert!(order(before.verdict) <= order(after.verdict), "{before:?} {after:?}");
        prop_assert!(number(&after.shown.low) <= number(&before.shown.low) + 0.01);
    }

    #[test]
    fn a_larger_budget_never_refuses_what_a_smaller_one_passed(
        counts in any_counts(), small in 1..=9_999_u32, confidence in 900..=990_u32
    ) {
        let verdict = |budget| compare(&Evidence::Binary(counts), &rules(budget, confidence)).verdict;
        prop_assert!(order(verdict(small)) >= order(verdict(small + 1)));
    }

    #[test]
    fn a_passed_candidate_is_within_the_budget_and_a_regressed_one_is_not(
        counts in any_counts(), rules in any_rules()
    ) {
        let comparison = compare(&Evidence::Binary(counts), &rules);
        let budget = number(&rules.budget.shown());
        match comparison.verdict {
            Verdict::Passed => prop_assert!(number(&comparison.shown.low) >= -budget - 0.01),
            Verdict::Regressed => prop_assert!(number(&comparison.shown.difference) <= -budget + 0.01),
            Verdict::Inconclusive => {}
        }
        prop_assert!(comparison.needed.is_none_or(|needed| needed > comparison.n));
    }
}

prop_compose! {
    fn any_pair()(group in 0..60_u64, baseline in 0..=1_000_000_i64, candidate in 0..=1_000_000_i64) -> Pair {
        Pair { group, baseline, candidate }
    }
}

proptest! {
    // Each case is twenty thousand draws.
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn the_order_of_the_answers_does_not_count(pairs in prop::collection::vec(any_pair(), 1..40)) {
        let mut turned: Vec<Pair> = pairs.iter().rev().copied().collect();
        let mut pairs = pairs;
        let one = compared(&mut pairs, 42, Confidence::DEFAULT);
        let other = compared(&mut turned, 42, Confidence::DEFAULT);
        prop_assert_eq!(one, other);
        prop_assert!(one.low <= one.difference && one.difference <= one.high, "{:?}", one);
        prop_assert!(one.candidate_low <= one.candidate);
    }
}

/// So many questions, of which each fourth loses so many millionths.
fn lost(questions: u64, loss: i64) -> Vec<Pair> {
    let pair = |group| {
        let baseline = 300_000 + (group as i64 * 7_919 % 400_000);
        Pair { group, baseline, candidate: if group % 4 == 0 { baseline - loss } else { baseline } }
    };
    (0..questions).map(pair).collect()
}

#[test]
fn a_bootstrap_has_the_known_mean_and_a_chance() {
    let mut pairs = lost(200, 40_000);
    let graded = compared(&mut pairs, 42, Confidence::DEFAULT);
    assert_eq!((graded.n, graded.groups, graded.difference.to_string().as_str()), (200, 200, "-0.010000"));
    assert_eq!(graded.p_value.to_string(), "0.000100", "no draw of ten thousand is as low");
    // The bootstrap gives 0.04 · √(¼ · ¾ / 200) · 1.645 = 0.0020. The least width is 0.44 · z² / (200 + z²) = 0.0059.
    assert_eq!(graded.low.to_string(), "-0.015870", "{graded:?}");
    let other = compared(&mut pairs, 43, Confidence::DEFAULT);
    assert_eq!(other.difference, graded.difference);
}

#[test]
fn few_or_equal_scores_show_nothing() {
    for questions in [1, 2, 3] {
        let pairs: Vec<Pair> =
            (0..questions).map(|group| Pair { group, baseline: 900_000, candidate: 100_000 }).collect();
        let graded = compared(&mut pairs.clone(), 42, Confidence::DEFAULT);
        let verdict = compare(&Evidence::Graded(graded), &rules(100, 950)).verdict;
        assert_eq!(verdict, Verdict::Inconclusive, "{questions}: {graded:?}");
    }
    let mut equal: Vec<Pair> =
        (0..20).map(|group| Pair { group, baseline: 500_000, candidate: 500_000 }).collect();
    let graded = compared(&mut equal, 42, Confidence::DEFAULT);
    assert_eq!(compare(&Evidence::Graded(graded), &rules(100, 950)).verdict, Verdict::Inconclusive);
    let none = compared(&mut [], 42, Confidence::DEFAULT);
    assert_eq!(compare(&Evidence::Graded(none), &rules(10_000, 950)).verdict, Verdict::Inconclusive);
}

#[test]
fn repeated_answers_to_a_question_do_not_narrow_the_interval() {
    let of = |repeats: u64| {
        let once = lost(100, 200_000).into_iter();
        let mut pairs: Vec<Pair> = once.flat_map(|pair| (0..repeats).map(move |_| pair)).collect();
        compared(&mut pairs, 42, Confidence::DEFAULT)
    };
    let (once, often) = (of(1), of(5));
    assert_eq!((once.low, once.high, often.n, often.groups), (often.low, often.high, 500, 100));
}

#[test]
fn scores_beyond_any_scale_do_not_overflow() {
    let mut pairs: Vec<Pair> =
        (0..50).map(|group| Pair { group, baseline: i64::MAX, candidate: i64::MIN }).collect();
    let graded = compared(&mut pairs, 42, Confidence::DEFAULT);
    assert_eq!(graded.difference.to_string(), "-2000.000000");
}
