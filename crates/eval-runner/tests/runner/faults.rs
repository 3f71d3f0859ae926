//! What makes no result. After each of these failures there is no file of scores.

use std::{fs, os::unix::fs::PermissionsExt as _};

use api::launcher::evaluator::ExitCode;

use crate::{
    scene::{Ended, Run, Scene, review, reviews},
    server::Server,
};

/// The error of a run, which has left no scores.
#[track_caller]
fn failed(scene: &Scene, run: &Run, code: ExitCode, words: &str) -> Ended {
    let ended = run.end();
    assert!(!scene.scores("baseline").exists());
    assert_eq!(ended.code, code.code(), "{} {}", ended.text, ended.stderr);
    assert_eq!(ended.message.reason.as_deref(), Some(code.as_reason()));
    assert!(ended.message.error.as_ref().unwrap().contains(words), "{}", ended.text);
    ended
}

fn with_answers(scene: &Scene, answers: impl Iterator<Item = serde_json::Value>) -> Run {
    let files = scene.answers("answers", answers);
    scene.run("baseline").environment("FAKE_HARNESS_FILES", &files)
}

#[test]
fn half_of_the_answers_are_no_side_although_the_harness_exits_with_0() {
    let scene = Scene::new();
    let announced = "general_mcq: 40 samples to evaluate (2 subsets)";
    let run = scene.run("baseline").environment("FAKE_HARNESS_STDERR", announced);
    let ended = failed(&scene, &run, ExitCode::HarnessFailed, "its files have 20 of 40 answers");
    assert!(ended.message.tail.unwrap().contains(announced));
}

#[test]
fn many_failed_requests_are_no_side() {
    let scene = Scene::new();
    let log = "general_mcq: 1000 samples to evaluate (1 subset)\n".to_owned()
        + &"ERROR: Processing item in subset='history' failed: Error code: 500\n".repeat(11);
    let run = with_answers(&scene, reviews(0..989, |_| true)).environment("FAKE_HARNESS_STDERR", &log);
    let words = "11 of 1000 requests of baseline have failed: Error code: 500";
    failed(&scene, &run, ExitCode::TooManyErrors, words);
}

#[test]
fn a_harness_that_exits_with_0_after_all_questions_failed_says_why() {
    let scene = Scene::new();
    fs::create_dir(scene.path("none")).unwrap();
    let run = |cause: &str| {
        let failed = "ERROR: Processing item in subset='default' failed: 1 validation error\n".repeat(2);
        let log = format!("general_qa: 2 samples to evaluate (1 subset)\n{cause}\n{failed}");
        let run =
            scene.run("baseline").environment("FAKE_HARNESS_FILES", scene.path("none").to_str().unwrap());
        run.environment("FAKE_HARNESS_STDERR", &log)
    };
    let words = "all 2 questions of baseline have failed: 1 validation error";
    failed(&scene, &run(""), ExitCode::TooManyErrors, words);
    let lacks = run("  Resource 'punkt_tab' not found.");
    failed(&scene, &lacks, ExitCode::HarnessNotFound, "no punkt_tab of nltk");
}

#[test]
fn a_harness_that_fails_is_named_with_the_end_of_its_log() {
    let scene = Scene::new();
    let run = scene.run("baseline").environment("FAKE_HARNESS_EXIT", "3");
    let run = run.environment("FAKE_HARNESS_STDERR", "Traceback\n  File x\nKeyError: 'question'");
    let ended = failed(&scene, &run, ExitCode::HarnessFailed, "exit code 3: KeyError: 'question'");
    assert!(ended.message.tail.unwrap().contains("Traceback"));
}

#[test]
fn the_log_of_a_harness_says_why_it_failed() {
    let known = [
        ("OSError: [Errno 28] No space left on device", ExitCode::OutOfSpace),
        (
            "FileNotFoundError: No dataset file found for subset=\"x\", split=\"val\" in \"/q\".",
            ExitCode::DatasetNotFound,
        ),
        ("ValueError: Benchmark 'nosuch' not found. Did you mean: 'tvbench'?", ExitCode::DatasetNotFound),
        (
            "ConnectionError: Couldn't reach 'evalscope/cmmlu' on the Hub (OfflineModeIsEnabled)",
            ExitCode::DatasetOnlineForbidden,
        ),
        (
            "ValueError: Attempted to run task: x which is marked as unsafe. Set confirm_run_unsafe_code=True to run this task.",
            ExitCode::CodeExecutionForbidden,
        ),
        (
            "AssertionError: Tokenizer is required for loglikelihood tasks to compute context lengths.",
            ExitCode::TestSetUnsupported,
        ),
        (
            "NotImplementedError: Loglikelihood is not supported for chat completions. Consider using the completions API instead.",
            ExitCode::TestSetUnsupported,
        ),
    ];
    for (line, code) in known {
        let scene = Scene::new();
        let run = scene.run("baseline").environment("FAKE_HARNESS_EXIT", "1");
        failed(&scene, &run.environment("FAKE_HARNESS_STDERR", line), code, "general_mcq: ");
    }
}

#[test]
fn a_program_that_is_not_in_the_image_is_named() {
    let scene = Scene::new();
    let mut run = scene.run("baseline");
    run.program = vec!["/no/such/evalscope".to_owned()];
    failed(&scene, &run, ExitCode::HarnessNotFound, "cannot start /no/such/evalscope");
}

#[test]
fn a_server_that_never_answers_is_not_asked() {
    let mut scene = Scene::new();
    scene.server.stop();
    let run = scene.run("baseline");
    failed(&scene, &run, ExitCode::ServerFailed, "gave no list of models within 100 s");
    assert!(run.record().is_none());
    scene.server = Server::new("503 Service Unavailable", &[]);
    failed(&scene, &scene.run("baseline"), ExitCode::ServerFailed, "status 503");
}

#[test]
fn a_server_of_another_model_is_not_asked() {
    let mut scene = Scene::new();
    let run = scene.run("baseline").option("model", "other");
    failed(&scene, &run, ExitCode::ServerFailed, "does not serve the model \"other\"; it serves: m");
    scene.server = Server::new("200 OK", &["a", "b"]);
    failed(&scene, &scene.run("baseline"), ExitCode::ServerFailed, "name one of: a, b");
    scene.server = Server::new("401 Unauthorized", &[]);
    failed(&scene, &scene.run("baseline"), ExitCode::ServerFailed, "refuses the API key");
}

#[test]
fn a_server_that_dies_in_the_middle_ends_the_harness() {
    let mut scene = Scene::new();
    let run = scene.run("baseline").environment("FAKE_HARNESS_MS", "60000");
    let running = run.environment("FAKE_HARNESS_STDERR", "asking").start();
    running.until("asking");
    scene.server.stop();
    running.end().failed(ExitCode::ServerFailed, "does not answer any more");
    assert!(!scene.scores("baseline").exists());
}

#[test]
fn a_harness_that_fails_because_its_server_has_gone_is_not_to_blame() {
    let mut scene = Scene::new();
    let half = "general_mcq: 40 samples to evaluate (2 subsets)\nasking";
    let none =
        "general_mcq: 1 samples to evaluate (1 subset)\nProcessing item in subset='x' failed: x\nasking";
    for (exit, log) in [("1", "APIConnectionError"), ("0", half), ("0", none)] {
        scene.server = Server::new("200 OK", &["m"]);
        let run = scene
            .run("baseline")
            .environment("FAKE_HARNESS_MS", "700")
            .environment("FAKE_HARNESS_EXIT", exit);
        let run = run.environment("FAKE_HARNESS_STDERR", log).option("server-seconds", "6000");
        let running = run.start();
        running.until(log.lines().last().unwrap());
        scene.server.stop();
        running.end().failed(ExitCode::ServerFailed, "does not answer any more");
        assert!(!scene.scores("baseline").exists());
    }
}

#[test]
fn a_side_of_which_no_answer_can_be_read_is_no_side() {
    let scene = Scene::new();
    let unparsed = reviews(0..30, |_| false).map(|mut review| {
        review["sample_score"]["score"]["extracted_prediction"] = "".into();
        review
    });
    let run = with_answers(&scene, unparsed);
    failed(&scene, &run, ExitCode::OutputUnreadable, "could read none of the 30 answers");
}

#[test]
fn a_file_that_is_cut_or_strange_is_no_side() {
    let scene = Scene::new();
    let run = with_answers(&scene, reviews(0..30, |_| true));
    let file = scene.path("answers/reviews/model/general_mcq_history.jsonl");
    let whole = fs::read(&file).unwrap();
    for (bytes, words) in [
        (&whole[..whole.len() - 1], "line 30 is cut"),
        (&whole[..whole.len() - 40], "line 30 is cut"),
        (&[&whole[..whole.len() - 40], b"\n"].concat(), "line 30: "),
        (b"{}\n", "line 1: missing field"),
        (b"", "wrote no answer"),
    ] {
        fs::write(&file, bytes).unwrap();
        failed(&scene, &run, ExitCode::OutputUnreadable, words);
    }
    for (score, words) in
        [("NaN", "line 1: expected"), ("1e999", "line 1: number out of range"), ("5000", "is not from")]
    {
        fs::write(&file, String::from_utf8_lossy(&whole).replace("\"acc\":1.0", &format!("\"acc\":{score}")))
            .unwrap();
        failed(&scene, &run, ExitCode::OutputUnreadable, words);
    }
    fs::write(&file, &whole).unwrap();
    let run = run.option("metric", "f1");
    failed(&scene, &run, ExitCode::OutputUnreadable, "it has no score \"f1\", it has: acc");
}

#[test]
fn a_question_with_two_answers_is_no_side() {
    let scene = Scene::new();
    let run = with_answers(&scene, reviews(0..30, |_| true).chain([review(3, "question 3", 0.0)]));
    failed(&scene, &run, ExitCode::OutputUnreadable, "question 3 has two answers");
    // The same text twice in the test set is no fault.
    let run = with_answers(&scene, reviews(0..30, |_| true).chain([review(30, "question 3", 0.0)]));
    assert_eq!(run.end().side().questions, 31);
}

#[test]
fn questions_that_are_not_there_or_not_allowed_start_nothing() {
    let scene = Scene::new();
    let starts = |run: Run, code, words| {
        failed(&scene, &run, code, words);
        assert!(run.record().is_none());
    };
    let run = || scene.run("baseline");
    starts(run().option("dataset-path", "/no/such"), ExitCode::DatasetNotFound, "/no/such");
    starts(run().without("dataset-path"), ExitCode::DatasetOnlineForbidden, "allowOnline");
    starts(run().option("dataset", "humaneval"), ExitCode::CodeExecutionForbidden, "allowCodeExecution");
    let tasks = run().option("harness", "lm-eval").option("dataset", "capitals");
    starts(tasks, ExitCode::CodeExecutionForbidden, "allowCodeExecution");
    let online = run().without("dataset-path").flag("allow-online");
    online.end().side();
    let record = online.record().unwrap();
    assert!(record.ends_with("offline=") && !record.contains("--dataset-hub"), "{record}");
}

/// The controller refuses it before it starts a server, but not where an earlier one has begun.
#[test]
fn text_completions_of_evalscope_are_not_supported() {
    let scene = Scene::new();
    let run = scene.run("baseline").option("endpoint", "completions");
    failed(&scene, &run, ExitCode::TestSetUnsupported, "use harness lm-eval");
}

#[test]
fn a_wrong_command_line_is_a_fault_of_the_controller() {
    let scene = Scene::new();
    for (name, value) in [("url", "localhost:8000"), ("url", "ftp://x/v1")] {
        failed(&scene, &scene.run("baseline").option(name, value), ExitCode::Usage, "");
    }
    // The parser itself reports to the place of a pod.
    let running = scene.run("baseline").option("temperature", "3").start();
    let code = { running }.child.wait().unwrap().code();
    assert_eq!(code, Some(ExitCode::Usage.code()));
}

#[test]
fn a_volume_that_cannot_be_written_is_named() {
    let scene = Scene::new();
    // Root may write everywhere but into a file.
    fs::write(scene.output.join("baseline"), "").unwrap();
    let error = scene.run("baseline").end();
    assert_eq!(error.code, ExitCode::VolumeUnusable.code(), "{}", error.text);
    fs::remove_file(scene.output.join("baseline")).unwrap();
    fs::set_permissions(&scene.output, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The same half is missing on both sides, so pairing does not notice it.
#[test]
fn a_harness_that_says_no_number_is_held_to_the_lines_of_the_files() {
    let scene = Scene::new();
    let files = scene.answers("answers", reviews(0..500, |_| true));
    let run = || scene.run("baseline").option("subset", "history").environment("FAKE_HARNESS_FILES", &files);
    let first = run();
    let questions = scene.path("questions").join("history_val.jsonl");
    fs::write(&questions, "{}\n".repeat(1_000)).unwrap();
    first.end().failed(ExitCode::HarnessFailed, "its files have 500 of 1000 answers of baseline");
    let limited = run();
    fs::write(&questions, "{}\n".repeat(1_000)).unwrap();
    let side = limited.option("limit", "500").end().side();
    assert_eq!((side.questions, side.unchecked), (500, false));
    let other_form = run();
    fs::remove_file(&questions).unwrap();
    fs::write(questions.with_extension("csv"), "question,A\n").unwrap();
    let side = other_form.end().side();
    assert_eq!((side.questions, side.unchecked), (500, true), "the status says that it was not checked");
}
