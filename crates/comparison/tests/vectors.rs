//! Known results, and the borders of the counts.

#![cfg(test)]

use comparison::{
    Budget, Comparison, Confidence, Counts, Evidence, Graded, Millionths, Minimum, Rules, Verdict, compare,
    conclude, is_unstable,
};

fn counts(n: u64, only_baseline: u64, only_candidate: u64) -> Counts {
    let others = n - only_baseline - only_candidate;
    Counts { both_right: others - others / 3, only_baseline, only_candidate, both_wrong: others / 3 }
}

fn rules(budget: &str) -> Rules {
    Rules { budget: Budget::parse(budget).unwrap(), confidence: Confidence::DEFAULT, minimum: None }
}

fn compared(n: u64, only_baseline: u64, only_candidate: u64, budget: &str) -> Comparison {
    compare(&Evidence::Binary(counts(n, only_baseline, only_candidate)), &rules(budget))
}

/// Computed with another program, from the formulas of Tango and McNemar. The difference is the negative loss.
#[test]
fn intervals_and_chances_are_those_of_the_reference() {
    let known = [
        ((1_000, 60, 45), ("-1.50", "-3.21", "0.19"), "0.0858"),
        ((2_000, 100, 70), ("-1.50", "-2.59", "-0.43"), "0.0129"),
        ((1_346, 70, 60), ("-0.74", "-2.15", "0.66"), "0.2150"),
        ((11_500, 640, 520), ("-1.04", "-1.53", "-0.56"), "0.0002"),
        ((300, 9, 3), ("-2.00", "-4.22", "-0.11"), "0.0730"),
        ((100, 2, 0), ("-2.00", "-5.86", "0.69"), "0.2500"),
    ];
    for ((n, b, c), (difference, low, high), p_value) in known {
        let shown = compared(n, b, c, "1.0").shown;
        let found = (shown.difference.as_str(), shown.low.as_str(), shown.high.as_str());
        assert_eq!((found, shown.p_value.as_str()), ((difference, low, high), p_value), "{n} {b} {c}");
    }
}

#[test]
fn equal_answers_leave_the_difference_open_that_their_number_leaves() {
    let shown = compared(200, 0, 0, "1.0").shown;
    assert_eq!(
        (shown.low.as_str(), shown.high.as_str(), shown.p_value.as_str()),
        ("-1.33", "1.33", "1.0000")
    );
    let of = |n| compared(n, 0, 0, "1.0");
    assert_eq!((of(267).verdict, of(267).needed), (Verdict::Inconclusive, Some(268)));
    assert_eq!((of(268).verdict, of(268).needed), (Verdict::Passed, None));
}

/// The table of how many questions a comparison needs. The reference computes it with the variance of the
/// alternative, which is smaller by the square of the budget: at most 2 % fewer questions.
#[test]
fn as_many_questions_are_needed_as_the_table_says() {
    let table = [
        ("1.0", [3_090, 6_181, 12_364]),
        ("2.0", [771, 1_544, 3_090]),
        ("3.0", [342, 685, 1_372]),
        ("5.0", [122, 246, 493]),
    ];
    for (budget, expected) in table {
        for (percent, expected) in [5_u64, 10, 20].into_iter().zip(expected) {
            // Few enough questions to be inconclusive, of this discordance.
            let needed = compared(100, u64::div_ceil(percent, 2), percent / 2, budget).needed.unwrap();
            assert!(needed >= expected, "{budget} {percent}: {needed}");
            assert!(needed as f64 <= expected as f64 * 1.02, "{budget} {percent}: {needed}");
        }
    }
}

#[test]
fn a_comparison_has_three_verdicts() {
    assert_eq!(compared(11_582, 600, 600, "1.0").verdict, Verdict::Passed);
    assert_eq!(compared(11_582, 800, 500, "1.0").verdict, Verdict::Regressed);
    assert_eq!(
        compared(11_582, 620, 520, "1.0").verdict,
        Verdict::Inconclusive,
        "worse, by about the budget"
    );
    let worse_within_budget = compared(11_582, 640, 520, "2.0");
    assert_eq!(worse_within_budget.verdict, Verdict::Passed, "{worse_within_budget:?}");
    // Thirty questions show nothing, so they do not pass.
    assert_eq!(compared(30, 2, 1, "1.0").verdict, Verdict::Inconclusive);
}

#[test]
fn borders_are_neither_refused_nor_decided() {
    let none = compared(0, 0, 0, "1.0");
    assert_eq!((none.verdict, none.n), (Verdict::Inconclusive, 0));
    assert_eq!((none.shown.low.as_str(), none.shown.high.as_str()), ("-100.00", "100.00"));
    for (b, c) in [(0, 0), (1, 0), (0, 1)] {
        assert_eq!(compared(1, b, c, "1.0").verdict, Verdict::Inconclusive, "{b} {c}");
    }
    let all_lost = compared(100, 100, 0, "1.0");
    assert_eq!(all_lost.verdict, Verdict::Regressed);
    assert_eq!((all_lost.shown.difference.as_str(), all_lost.shown.low.as_str()), ("-100.00", "-100.00"));
    let all_won = compared(100, 0, 100, "1.0");
    assert_eq!((all_won.verdict, all_won.shown.high.as_str()), (Verdict::Passed, "100.00"));
    assert_eq!(compared(5, 0, 0, "100").verdict, Verdict::Passed, "a budget of everything");
    let largest = u64::MAX / 4;
    let huge =
        Counts { both_right: largest, only_baseline: largest, only_candidate: largest, both_wrong: largest };
    assert_ne!(huge.n(), 0);
}

#[test]
fn a_candidate_that_may_be_below_the_minimum_does_not_pass() {
    let counts = Counts { both_right: 7_000, only_baseline: 100, only_candidate: 100, both_wrong: 2_800 };
    let of = |minimum| {
        let minimum = Some(Minimum::parse(minimum).unwrap());
        compare(&Evidence::Binary(counts), &Rules { minimum, ..rules("1.0") })
    };
    assert_eq!((of("70.00").verdict, of("70.00").is_below_minimum), (Verdict::Passed, false));
    assert_eq!((of("70.50").verdict, of("70.50").is_below_minimum), (Verdict::Inconclusive, true));
    assert_eq!(of("70.50").shown.candidate, "71.00");
}

#[test]
fn a_set_regresses_after_the_correction_for_the_number_of_sets() {
    let budget = rules("1.0");
    // p is 0.04: enough for one set, and not for two.
    let doubtful = (Evidence::Binary(counts(1_000, 60, 42)), budget);
    let good = (Evidence::Binary(counts(11_000, 500, 500)), budget);
    let clear = (Evidence::Binary(counts(1_000, 100, 20)), budget);
    let verdict = |sets: &[(Evidence, Rules)]| conclude(sets, false).verdict;
    assert_eq!(verdict(&[doubtful]), Verdict::Regressed);
    assert_eq!(verdict(&[doubtful, good]), Verdict::Inconclusive);
    assert_eq!(verdict(&[good, clear]), Verdict::Regressed);
    // The clear one leaves all of alpha to the doubtful one.
    let both = conclude(&[doubtful, clear], false);
    assert_eq!([both.sets[0].verdict, both.sets[1].verdict], [Verdict::Regressed; 2]);
    assert_eq!(verdict(&[good, good]), Verdict::Passed);
    assert_eq!(verdict(&[]), Verdict::Inconclusive);
}

#[test]
fn an_unstable_measurement_decides_nothing() {
    let sets = [(Evidence::Binary(counts(11_000, 500, 500)), rules("1.0")); 2];
    let concluded = conclude(&sets, true);
    assert_eq!(concluded.verdict, Verdict::Inconclusive);
    assert!(concluded.sets.iter().all(|set| set.verdict == Verdict::Inconclusive));
    let control = |b, c| is_unstable(&Evidence::Binary(counts(200, b, c)), Confidence::DEFAULT);
    // Many answers change, in both directions.
    assert!(!control(20, 20) && !control(6, 3) && !control(0, 0));
    assert!(control(9, 1) && control(1, 9));
}

#[test]
fn graded_scores_are_judged_by_their_interval() {
    let number = |text| Millionths::parse(text).unwrap();
    let graded = |difference, low, high, p_value| {
        Evidence::Graded(Graded {
            n: 300,
            groups: 300,
            baseline: number("0.41"),
            candidate: number("0.40"),
            difference: number(difference),
            low: number(low),
            high: number(high),
            candidate_low: number("0.39"),
            p_value: number(p_value),
        })
    };
    let verdict = |evidence| compare(&evidence, &rules("1.0")).verdict;
    assert_eq!(verdict(graded("-0.002", "-0.0099", "0.006", "0.3")), Verdict::Passed);
    assert_eq!(verdict(graded("-0.03", "-0.04", "-0.02", "0.0001")), Verdict::Regressed);
    assert_eq!(verdict(graded("-0.03", "-0.07", "0.01", "0.11")), Verdict::Inconclusive);
    let open = compare(&graded("-0.002", "-0.022", "0.018", "0.4"), &rules("1.0"));
    assert_eq!((open.shown.difference.as_str(), open.shown.low.as_str()), ("-0.20", "-2.20"));
    assert!(open.needed.unwrap() > 1_000 && open.needed.unwrap() < 4_000, "{open:?}");
    let minimum = Some(Minimum::parse("39.5").unwrap());
    let below = compare(&graded("-0.002", "-0.0099", "0.006", "0.3"), &Rules { minimum, ..rules("1.0") });
    assert!(below.is_below_minimum && below.verdict == Verdict::Inconclusive);
}
