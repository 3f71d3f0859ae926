//! Pairing two sides.

use std::fs;

use api::launcher::evaluator::{ExitCode, Pair};
use serde_json::Value;

use crate::scene::{Ended, Scene, review, reviews};

fn asked(scene: &Scene, side: &'static str, answers: impl Iterator<Item = Value>) {
    asked_of(scene, side, answers, "");
}

/// With a log of the harness.
fn asked_of(scene: &Scene, side: &'static str, answers: impl Iterator<Item = Value>, log: &str) {
    let files = scene.answers(side, answers);
    let run = scene.run(side).environment("FAKE_HARNESS_FILES", &files);
    run.environment("FAKE_HARNESS_STDERR", log).end().side();
}

#[track_caller]
fn counts(ended: Ended) -> [u64; 4] {
    let [Pair { both_right, only_baseline, only_candidate, both_wrong, graded: None }] = ended.pairs()[..]
    else {
        panic!("counts of one test set");
    };
    [both_right, only_baseline, only_candidate, both_wrong]
}

#[test]
fn recorded_answers_are_paired_as_counted_by_hand() {
    let scene = Scene::new();
    for side in ["baseline", "candidate"] {
        scene.run(side).end().side();
    }
    assert_eq!(counts(scene.pair(&[])), [7, 7, 5, 1]);
    let scene = Scene::new();
    for side in ["baseline", "candidate"] {
        scene.lm_eval(side).end().side();
    }
    assert_eq!(counts(scene.pair(&[])), [2, 5, 2, 3]);
}

#[test]
fn the_order_of_the_lines_does_not_count() {
    let scene = Scene::new();
    let of_baseline = || reviews(0..500, |number| number % 3 > 0);
    asked(&scene, "baseline", of_baseline());
    asked(&scene, "candidate", reviews(0..500, |number| number % 5 > 0));
    let first = counts(scene.pair(&[]));
    // Of the numbers below 500, 167 are multiples of 3, 100 of 5, and 34 of both.
    assert_eq!(first, [267, 66, 133, 34]);
    let turned: Vec<Value> = of_baseline().collect();
    let run = scene.run("baseline").option("identity", "turned");
    let files = scene.answers("turned", turned.into_iter().rev());
    assert!(!run.environment("FAKE_HARNESS_FILES", &files).end().side().reused);
    assert_eq!(counts(scene.pair(&[])), first);
}

#[test]
fn sides_with_other_questions_are_not_paired() {
    let scene = Scene::new();
    asked(&scene, "baseline", reviews(0..1_000, |_| true));
    let verdict = |answers: Box<dyn Iterator<Item = Value>>| {
        let files = scene.answers("candidate", answers);
        let run = scene
            .run("candidate")
            .option("identity", &fs::read_dir(scene.path("")).unwrap().count().to_string());
        run.environment("FAKE_HARNESS_FILES", &files).end().side();
        scene.pair(&[])
    };
    // A harness that has lost half of the lines, and says nothing of it.
    let half = verdict(Box::new(reviews(0..500, |_| true)));
    half.failed(ExitCode::PairingFailed, "500 of 1000 questions have an answer on one side only");
    let others = verdict(Box::new(reviews(0..1_000, |_| true).map(|mut review| {
        review["messages"][0]["content"] = format!("other {}", review["index"]).into();
        review
    })));
    others.failed(ExitCode::PairingFailed, "2000 of 2000");
    let few = verdict(Box::new(reviews(0..995, |_| true)));
    assert_eq!(counts(few), [995, 0, 0, 0], "an unpaired question is left out");
    let more = verdict(Box::new(reviews(0..994, |_| true)));
    more.failed(ExitCode::PairingFailed, "6 of 1000");
}

#[test]
fn questions_whose_request_failed_are_wrong_on_their_side() {
    let scene = Scene::new();
    let log = |failed: usize| {
        "general_mcq: 1000 samples to evaluate (1 subset)\n".to_owned()
            + &"ERROR: Processing item in subset='history' failed: x\n".repeat(failed)
    };
    // Questions 0 to 5 failed at the baseline, 4 to 9 at the candidate: two of them at both.
    asked_of(&scene, "baseline", reviews(6..1_000, |_| true), &log(6));
    asked_of(&scene, "candidate", reviews((0..4).chain(10..1_000), |_| true), &log(6));
    assert_eq!(counts(scene.pair(&[])), [990, 4, 4, 2]);
}

#[test]
fn equal_texts_are_distinguished_by_their_number() {
    let scene = Scene::new();
    let answers =
        |scores: [f64; 3]| scores.into_iter().zip(0..).map(|(score, index)| review(index, "same", score));
    asked(&scene, "baseline", answers([1.0, 0.0, 1.0]));
    asked(&scene, "candidate", answers([1.0, 1.0, 0.0]));
    assert_eq!(counts(scene.pair(&[])), [1, 1, 1, 0]);
}

#[test]
fn graded_scores_and_repeated_questions_are_compared_by_a_bootstrap() {
    let scene = Scene::new();
    asked(&scene, "baseline", (0..60).map(|index| review(index, &format!("q {index}"), 0.5)));
    asked(&scene, "candidate", (0..60).map(|index| review(index, &format!("q {index}"), 0.25)));
    let [pair] = &scene.pair(&[]).pairs()[..] else { panic!("one test set") };
    let graded = pair.graded.as_ref().unwrap();
    assert_eq!((graded.n, graded.groups, graded.difference.as_str()), (60, 60, "-0.250000"));
    assert_eq!((graded.baseline.as_str(), graded.p_value.as_str()), ("0.500000", "0.000100"));
    let scene = Scene::new();
    let repeated = |index: u64| {
        let mut review =
            review(index, &format!("q {}", index / 3), f64::from(u8::from(index.is_multiple_of(2))));
        review["sample_score"]["group_id"] = (index / 3).into();
        review
    };
    for side in ["baseline", "candidate"] {
        asked(&scene, side, (0..60).map(repeated));
    }
    let [pair] = &scene.pair(&[]).pairs()[..] else { panic!("one test set") };
    let graded = pair.graded.as_ref().unwrap();
    assert_eq!((graded.n, graded.groups, graded.difference.as_str()), (60, 20, "0.000000"));
}

#[test]
fn the_control_is_paired_with_its_part_of_the_baseline() {
    let scene = Scene::new();
    asked(&scene, "baseline", reviews(0..1_000, |number| number % 2 == 0));
    asked(&scene, "candidate", reviews(0..1_000, |number| number % 2 == 0));
    asked(&scene, "control", reviews(0..200, |number| number % 2 == 0 || number < 6));
    let ended = scene.pair(&["--control", "set"]);
    let control = ended.message.control.clone().unwrap();
    assert_eq!((control.both_right, control.only_candidate, control.both_wrong), (100, 3, 97));
    assert_eq!(counts(ended), [500, 0, 0, 500]);
}

#[test]
fn sides_of_other_settings_or_versions_are_not_paired() {
    let scene = Scene::new();
    scene.run("baseline").end().side();
    scene.run("candidate").option("seed", "7").end().side();
    scene.pair(&[]).failed(ExitCode::PairingFailed, "different settings");
}

#[test]
fn a_side_that_is_missing_or_broken_is_named() {
    let scene = Scene::new();
    scene.run("baseline").end().side();
    scene.pair(&[]).failed(ExitCode::OutputUnreadable, "candidate/set.scores is missing");
    scene.run("candidate").end().side();
    let path = scene.scores("candidate");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    scene.pair(&[]).failed(ExitCode::OutputUnreadable, "candidate/set.scores is broken (its checksum)");
}

#[test]
fn results_of_several_test_sets_have_their_order() {
    let scene = Scene::new();
    for side in ["baseline", "candidate"] {
        scene.run(side).end().side();
        scene.lm_eval(side).option("test-set", "other").end().side();
    }
    let pairs = scene.pair(&["--test-set", "other"]).pairs();
    assert_eq!([pairs[0].both_right, pairs[1].both_right], [7, 2]);
}

/// Otherwise a server that fails would gain by it.
#[test]
fn a_failed_request_is_no_better_than_the_worst_answer() {
    let scene = Scene::new();
    let announced = "general_mcq: 100 samples to evaluate (1 subset)\n";
    let log = announced.to_owned() + "ERROR: Processing item in subset='history' failed: x\n";
    let answers = |range: std::ops::Range<u64>| {
        range.map(|index| review(index, &format!("q {index}"), if index == 50 { -4.0 } else { -1.0 }))
    };
    asked_of(&scene, "baseline", answers(0..100), announced);
    asked_of(&scene, "candidate", answers(0..99), &log);
    let [pair] = &scene.pair(&[]).pairs()[..] else { panic!("one test set") };
    let graded = pair.graded.as_ref().unwrap();
    assert_eq!((graded.baseline.as_str(), graded.candidate.as_str()), ("-1.030000", "-1.060000"));
}
