//! What a run writes, and what it starts the harness with.

use std::{fs, process::Command};

use api::launcher::evaluator::ExitCode;

use crate::scene::{KEY, Scene, review, reviews};

#[test]
fn recorded_answers_of_evalscope_become_a_side() {
    let scene = Scene::new();
    let side = scene.run("baseline").end().side();
    assert_eq!((side.questions, side.failed, side.unparsed, side.subsets), (20, 0, 0, 2));
    assert_eq!((side.right, side.mean.as_str(), side.metric.as_str()), (Some(14), "0.700000", "acc"));
    assert_eq!((side.harness.as_str(), side.harness_version.as_str()), ("evalscope", "1.10.0"));
    assert_eq!((side.sha256.len(), side.reused), (64, false));
}

#[test]
fn recorded_answers_of_lm_eval_become_a_side() {
    let scene = Scene::new();
    let side = scene.lm_eval("baseline").end().side();
    assert_eq!((side.questions, side.right, side.subsets), (12, Some(7), 1));
    assert_eq!((side.metric.as_str(), side.harness_version.as_str()), ("exact_match,letter", "0.4.12"));
}

#[test]
fn a_side_that_is_complete_is_not_asked_again() {
    let mut scene = Scene::new();
    let first = scene.run("baseline").end().side();
    scene.server.stop();
    let again = scene.run("baseline");
    let side = again.end().side();
    assert!(side.reused && again.record().is_none());
    assert_eq!((side.sha256, side.right), (first.sha256, first.right));
}

#[test]
fn another_model_another_setting_or_a_broken_file_is_asked_again() {
    let scene = Scene::new();
    scene.run("baseline").end().side();
    for (name, value) in [("identity", "sha256:other"), ("seed", "7"), ("limit", "3"), ("temperature", "0.5")]
    {
        let run = scene.run("baseline").option(name, value);
        assert!(!run.end().side().reused && run.record().is_some(), "{name}");
    }
    let side = scene.run("baseline").end().side();
    let scores = fs::read(scene.scores("baseline")).unwrap();
    fs::write(scene.scores("baseline"), &scores[..scores.len() - 1]).unwrap();
    let repeated = scene.run("baseline").end().side();
    assert!(!repeated.reused);
    assert_eq!(repeated.sha256, side.sha256, "the same answers are the same file");
}

#[test]
fn answers_that_a_killed_run_left_are_not_used() {
    let scene = Scene::new();
    let left = scene.output.join("work/baseline/set/reviews/model");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("general_mcq_left.jsonl"), format!("{}\n", review(99, "left", 1.0))).unwrap();
    assert_eq!(scene.run("baseline").end().side().questions, 20);
    assert!(!left.exists());
}

#[test]
fn the_harness_gets_the_key_by_its_environment_alone() {
    let scene = Scene::new();
    for (run, words) in [
        (scene.run("baseline"), "--model=m\n--model-id=model\n"),
        (scene.lm_eval("candidate"), "model=m,num_concurrent=8"),
    ] {
        let run = run.environment("FAKE_HARNESS_STDERR", &format!("a library prints {KEY}"));
        let ended = run.end();
        assert!(ended.stderr.contains("a library prints (redacted)"), "{}", ended.stderr);
        let record = run.record().unwrap();
        let (arguments, environment) = record.split_once("\nkey=").unwrap();
        assert!(arguments.contains(words) && !arguments.contains(KEY), "{arguments}");
        assert_eq!(environment, format!("{KEY}\nown=\noffline=1"));
    }
    assert!(
        scene.server.last_request().contains(&format!("Bearer {KEY}")),
        "{}",
        scene.server.last_request()
    );
}

#[test]
fn settings_are_passed_to_the_harness() {
    let scene = Scene::new();
    let options =
        [("limit", "5"), ("max-tokens", "64"), ("temperature", "0.7"), ("concurrency", "3"), ("seed", "9")];
    let with_options =
        |run| options.iter().fold(run, |run: crate::scene::Run, (name, value)| run.option(name, value));
    let run = with_options(scene.run("baseline"));
    run.end().side();
    let record = run.record().unwrap();
    for words in [
        "--limit=5\n",
        r#"--generation-config={"max_tokens":64,"seed":9,"temperature":0.7}"#,
        "--eval-batch-size=3\n",
        r#""subset_list":["history","physics"]"#,
        "--dataset-hub=local\n",
        "--api-key=\n",
    ] {
        assert!(format!("{record}\n").contains(words), "{words}: {record}");
    }
    let run = with_options(scene.lm_eval("candidate")).option("endpoint", "completions");
    run.end().side();
    let record = run.record().unwrap();
    for words in
        ["--model=local-completions\n", "/v1/completions,model=m", "max_gen_toks=64", "--tasks=capitals\n"]
    {
        assert!(record.contains(words), "{words}: {record}");
    }
    assert!(!record.contains("--apply_chat_template"));
}

#[test]
fn the_control_asks_a_part_of_each_subset() {
    let scene = Scene::new();
    let control = || scene.run("control").option("at-most", "200");
    control().end().failed(ExitCode::OutputUnreadable, "set.scores is missing");
    scene.run("baseline").end().side();
    let run = control();
    run.end().side();
    assert!(
        run.record().unwrap().contains("--limit=100\n") || run.record().unwrap().ends_with("--limit=100")
    );
    let few = scene.run("control").option("at-most", "1").option("test-set", "set");
    few.end().side();
    assert!(few.record().unwrap().contains("--limit=1\n"), "one of each subset at least");
}

#[test]
fn a_failed_request_counts_as_wrong() {
    let scene = Scene::new();
    let files = scene.answers("answers", reviews(0..995, |_| true));
    let log = "general_mcq: 1000 samples to evaluate (1 subset)\n".to_owned()
        + &"ERROR: Processing item in subset='history' failed: Error code: 500\n".repeat(5);
    let run = scene.run("baseline").environment("FAKE_HARNESS_FILES", &files);
    let side = run.environment("FAKE_HARNESS_STDERR", &log).end().side();
    assert_eq!(
        (side.questions, side.failed, side.right, side.mean.as_str()),
        (1_000, 5, Some(995), "0.995000")
    );
}

/// An answer in which the harness found no choice counts as wrong.
#[test]
fn some_answers_that_could_not_be_read_are_counted() {
    let scene = Scene::new();
    let answers = reviews(0..30, |number| number >= 12).map(|mut review| {
        if review["index"].as_u64() < Some(7) {
            review["sample_score"]["score"]["extracted_prediction"] = "".into();
        }
        review
    });
    let files = scene.answers("answers", answers);
    let side = scene.run("baseline").environment("FAKE_HARNESS_FILES", &files).end().side();
    assert_eq!((side.questions, side.unparsed, side.right), (30, 7, Some(18)));
    assert!(scene.run("baseline").end().side().unparsed == 7, "also from the file of scores");
}

#[test]
fn scores_between_have_no_right_answers() {
    let scene = Scene::new();
    let files = scene
        .answers("answers", [0.25, 0.5].into_iter().zip(0..).map(|(score, index)| review(index, "q", score)));
    let side = scene.run("baseline").environment("FAKE_HARNESS_FILES", &files).end().side();
    assert_eq!((side.right, side.mean.as_str()), (None, "0.375000"));
}

#[test]
fn the_program_is_copied_for_the_container_of_the_harness() {
    let folder = tempfile::tempdir().unwrap();
    let runner = env!("CARGO_BIN_EXE_eval-runner");
    assert!(Command::new(runner).arg("install").arg(folder.path()).status().unwrap().success());
    let copy = folder.path().join("eval-runner");
    assert!(fs::read(&copy).unwrap() == fs::read(runner).unwrap());
    assert!(Command::new(copy).arg("--version").output().unwrap().status.success());
    let failed = Command::new(runner).args(["install", "/no/such/folder"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(ExitCode::Usage.code()));
}
