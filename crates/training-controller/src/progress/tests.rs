//! What is read of a log: the forms of ms-swift, in any pieces, again after a restart, and not at all.

use std::{convert::Infallible, fs, path::Path};

use http::{Response, StatusCode};
use kube::{Client, client::Body};
use tokio::{task::JoinHandle, time::Instant};

use super::*;
use crate::tests::{at, job};

fn received(seconds: i64) -> Received {
    Received { at: at(seconds), instant: Instant::now() }
}

/// A log of `crates/training-log`.
fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../training-log/tests/fixtures");
    fs::read(folder.join(format!("{name}.log"))).unwrap()
}

/// Bytes of a line that was begun at this second, read at the same second.
fn bytes(reader: &mut Reader, text: impl Into<Vec<u8>>, seconds: i64) -> News {
    let text: Vec<u8> = text.into();
    reader.take(Piece::Bytes { at: at(seconds), bytes: text.into() }, received(seconds))
}

/// The state after a whole log, in pieces of this size.
fn read_in(name: &str, size: usize) -> LogState {
    read_below("/output", name, size)
}

/// As `read_in`; the checkpoints are in this folder.
fn read_below(output_dir: &str, name: &str, size: usize) -> LogState {
    let target = Target { output_dir: output_dir.to_owned(), ..target(1) };
    let mut reader = Reader::new(&TrainingJobStatus::default(), &target);
    for piece in fixture(name).chunks(size) {
        bytes(&mut reader, piece, 0);
    }
    reader.publish()
}

/// Step, total, percent, loss and remaining time.
fn shown(state: &LogState) -> (i64, i64, i32, String, String) {
    let report = state.report.clone().unwrap();
    (
        report.step,
        report.total_steps,
        report.percent,
        report.loss.unwrap_or_default(),
        report.eta.unwrap_or_default(),
    )
}

/// The log of this attempt.
fn target(attempt: i32) -> Target {
    let (pod, pod_uid) = ("p".to_owned(), "1".to_owned());
    Target { pod, pod_uid, container: "trainer", attempt, output_dir: "/output".to_owned() }
}

fn attempt(number: i32, status: &TrainingJobStatus) -> Reader {
    Reader::new(status, &target(number))
}

/// Of the first attempt.
fn reader() -> Reader {
    attempt(1, &TrainingJobStatus::default())
}

fn step(number: i64) -> String {
    format!("{{'loss': '0.5', 'global_step/max_steps': '{number}/100'}}\n")
}

/// What a controller writes of this state.
fn written(state: &LogState) -> TrainingJobStatus {
    TrainingJobStatus {
        progress: state.report.clone(),
        loss_curve: state.curve.clone(),
        checkpoint: state.checkpoint.clone(),
        ..TrainingJobStatus::default()
    }
}

#[test]
fn every_form_of_log_gives_its_last_step_loss_and_remaining_time_in_any_pieces() {
    for (name, expected) in [
        ("sft_lora.tf5.stdout", (26, 27, 96, "6.438", "1s")),
        ("sft_lora.disable_tqdm.stdout", (3, 3, 100, "6.49165678", "0s")),
        ("sft_lora.tf5.merged-stdout-stderr", (27, 27, 100, "6.438", "1s")),
        ("dpo_lora.tf5.stdout", (14, 14, 100, "0.4969", "0s")),
        ("ppo_lora.tf5.stdout", (1, 27, 3, "-0.004613", "41s")),
        ("graceful_stop_exit0.torchrun2.merged", (6, 3_200, 0, "6.484", "13m")),
        ("oom_injected.torchrun2.merged", (2, 8, 25, "6.51", "1s")),
    ] {
        for size in [1, 7, 64, 4_096, usize::MAX] {
            let (step, total, percent, loss, eta) = shown(&read_in(name, size));
            assert_eq!((step, total, percent, &*loss, &*eta), expected, "{name} in pieces of {size}");
        }
    }
}

#[test]
fn a_download_is_a_sign_of_life_as_long_as_it_advances() {
    let mut reader = reader();
    bytes(&mut reader, "[INFO:swift] starts\n", 0);
    let bar =
        |megabytes: i64| format!("model.safetensors:  1%|#  | {megabytes}M/99G [00:05<00:37, 117MB/s]\r");
    bytes(&mut reader, bar(1), 10);
    assert_eq!(reader.state.last_sign, Some(at(10)));
    bytes(&mut reader, bar(2), 20);
    bytes(&mut reader, format!("{}{}a line without progress\n", bar(1), bar(2)), 30);
    assert_eq!(reader.state.last_sign, Some(at(20)), "what is drawn again is no progress");
    for megabytes in 3..10_000 {
        bytes(&mut reader, bar(megabytes), 40);
    }
    assert!(reader.bars.len() <= 256 && reader.state.last_sign == Some(at(40)));
    assert!(!reader.publish().has_stepped);
    bytes(&mut reader, step(1), 50);
    bytes(&mut reader, bar(77_777), 60);
    assert_eq!(reader.state.last_sign, Some(at(50)), "after the first step only steps count");
}

#[test]
fn the_curve_has_every_logged_step() {
    let state = read_in("dpo_lora.tf5.stdout", 100);
    let points: Vec<(i64, &str)> =
        state.curve.iter().map(|point| (point.step, point.loss.as_str())).collect();
    let expected = [
        (1, "0.6931"),
        (2, "0.6892"),
        (4, "0.6832"),
        (6, "0.6759"),
        (8, "0.67"),
        (10, "0.666"),
        (12, "0.663"),
        (14, "0.4969"),
    ];
    assert_eq!(points, expected);
}

#[test]
fn the_checkpoint_is_the_one_that_the_trainer_saves() {
    for (folder, name, step) in [
        ("/data/run/H", "graceful_stop_exit0.torchrun2.merged", 6),
        ("/data/run/out_lora", "sft_lora.tf5.merged-stdout-stderr", 27),
    ] {
        let saved = read_below(folder, name, 50).checkpoint.unwrap();
        assert_eq!((saved.path, saved.step), (format!("{folder}/checkpoint-{step}"), step));
        assert_eq!(read_in(name, 50).checkpoint, None, "outputDir is another one");
    }
}

/// How ms-swift names a checkpoint that it begins to write, and the last one at its end.
const NAMES: [&str; 2] = ["Saving model checkpoint to", "last_model_checkpoint:"];

#[test]
fn text_of_the_users_data_names_no_checkpoint() {
    for folder in [
        "/output/final",
        "checkpoint-7",
        "evil/checkpoint-7",
        "/evil/checkpoint-7",
        "/output/../evil/checkpoint-7",
        "/output//checkpoint-7",
        "/output/x/checkpoint-7",
        "/outputcheckpoint-7",
        "/output/checkpoint-+7",
        "/output/checkpoint-007",
        "/output/checkpoint--7",
        "/output/checkpoint-7/",
        "/output/checkpoint-7 /output/checkpoint-7",
        "/output/checkpoint-21",
        "/output/checkpoint-101",
        "/output/checkpoint-9223372036854775807",
    ] {
        for name in NAMES {
            let mut reader = reader();
            bytes(&mut reader, step(10), 0);
            bytes(&mut reader, format!("[INFO:swift] {name} {folder}\n"), 0);
            bytes(&mut reader, step(20), 0);
            assert_eq!(reader.publish().checkpoint, None, "{name} {folder}");
        }
    }
}

#[test]
fn text_of_the_users_data_does_not_hide_a_checkpoint() {
    let mut reader = reader();
    bytes(&mut reader, step(40), 0);
    for folder in ["/output/checkpoint-40", "/evil/checkpoint-41", "/output/checkpoint-999999999"] {
        bytes(&mut reader, format!("[INFO:swift] {} {folder}\n", NAMES[0]), 0);
    }
    bytes(&mut reader, step(41), 0);
    assert_eq!(reader.publish().checkpoint.unwrap().path, "/output/checkpoint-40");
}

#[test]
fn the_last_checkpoint_is_reported_once_the_log_names_its_step() {
    let mut reader = reader();
    bytes(&mut reader, step(95), 0);
    bytes(&mut reader, format!("[INFO:swift] {} /output/checkpoint-100\n", NAMES[1]), 0);
    assert_eq!(reader.publish().checkpoint, None);
    bytes(&mut reader, "{'train_runtime': 7.5, 'global_step/max_steps': '100/100'}\n", 0);
    assert_eq!(reader.publish().checkpoint.unwrap().step, 100);
}

#[test]
fn steps_of_an_earlier_attempt_complete_no_checkpoint() {
    let mut before = reader();
    bytes(&mut before, step(80), 0);
    let status = written(&before.publish());
    let last = format!("[INFO:swift] {} /output/checkpoint-70\n", NAMES[1]);
    for (number, expected) in [(1, Some(70)), (2, None)] {
        let mut reader = attempt(number, &status);
        bytes(&mut reader, last.clone(), 1);
        assert_eq!(reader.publish().checkpoint.map(|saved| saved.step), expected, "attempt {number}");
    }
}

#[test]
fn the_same_bytes_again_change_nothing() {
    for name in ["sft_lora.tf5.stdout", "sft_lora.tf5.merged-stdout-stderr", "dpo_lora.tf5.stdout"] {
        let mut reader = reader();
        bytes(&mut reader, fixture(name), 0);
        let once = reader.publish();
        bytes(&mut reader, fixture(name), 0);
        let twice = reader.publish();
        assert_eq!(
            (&twice.report, &twice.curve, &twice.checkpoint),
            (&once.report, &once.curve, &once.checkpoint),
            "{name}"
        );
    }
}

#[test]
fn a_new_process_reads_on_from_the_line_of_the_status() {
    let mut first = reader();
    for number in 1..=10 {
        bytes(&mut first, step(number), number);
    }
    let status = written(&first.publish());
    let mut second = attempt(1, &status);
    assert_eq!(second.since(), Some(at(10)));
    assert_eq!(second.state.report, status.progress, "before it has read anything");
    for number in 10..=12 {
        bytes(&mut second, step(number), number);
    }
    let state = second.publish();
    let steps: Vec<i64> = state.curve.iter().map(|point| point.step).collect();
    assert_eq!((shown(&state).0, steps), (12, (1..=12).collect()));
}

#[test]
fn an_attempt_that_has_never_begun_is_read_from_its_beginning() {
    assert_eq!(reader().since(), None);
}

#[test]
fn a_run_that_starts_again_shows_its_own_step() {
    let mut before = reader();
    bytes(&mut before, step(80), 0);
    let mut after = attempt(1, &written(&before.publish()));
    bytes(&mut after, step(60), 9);
    assert_eq!(shown(&after.publish()).0, 60);
}

#[test]
fn the_first_step_of_an_attempt_is_urgent_and_later_ones_are_not() {
    let mut reader = reader();
    assert_eq!(bytes(&mut reader, "loading the model\n", 0), News::Nothing);
    assert_eq!(bytes(&mut reader, step(1), 1), News::Urgent);
    assert!(reader.is_dirty && reader.publish().has_stepped);
    assert_eq!(bytes(&mut reader, step(2), 2), News::Nothing);
    assert!(reader.is_dirty, "it is published later");
}

#[test]
fn after_a_restart_an_attempt_that_has_stepped_still_has() {
    let mut before = reader();
    bytes(&mut before, step(80), 0);
    let status = written(&before.publish());
    assert!(attempt(1, &status).publish().has_stepped);
    assert!(!attempt(2, &status).publish().has_stepped, "the next attempt has not");
}

#[test]
fn a_run_that_draws_only_bars_steps_and_a_resumed_one_from_where_it_begins() {
    let bar = |step: i64| format!("Train:  10%|█| {step}/100 [00:02<00:00, 10.10it/s]\r");
    let mut before = reader();
    bytes(&mut before, step(80), 0);
    let mut resumed = attempt(2, &written(&before.publish()));
    assert_eq!(bytes(&mut resumed, bar(60), 5), News::Nothing);
    assert!(!resumed.state.has_stepped, "it is drawn before a step is made");
    assert_eq!(bytes(&mut resumed, bar(61), 9), News::Urgent);
    let state = resumed.publish();
    assert_eq!((state.has_stepped, state.last_sign), (true, Some(at(9))));
    let report = state.report.unwrap();
    assert_eq!((report.step, report.attempt), (61, 2));
}

#[test]
fn text_alone_is_no_news() {
    let mut reader = reader();
    bytes(&mut reader, "one\n", 0);
    reader.publish();
    bytes(&mut reader, "two\n".repeat(1_000), 1);
    assert!(!reader.is_dirty);
}

#[test]
fn signs_of_life_are_steps_checkpoints_and_bars_that_advance() {
    let bar = |step: i64| format!("Train:  10%|█| {step}/27 [00:02<00:00, 10.10it/s]\r");
    let mut reader = reader();
    let mut sign = |text: String, seconds| {
        bytes(&mut reader, text, seconds);
        reader.state.last_sign
    };
    assert_eq!(sign("loading\n".into(), 1), Some(at(1)), "the log was opened");
    assert_eq!(sign("still loading\n".into(), 2), Some(at(1)));
    assert_eq!(sign(step(1), 3), Some(at(3)));
    assert_eq!(sign(bar(1), 4), Some(at(3)), "it is drawn again");
    assert_eq!(sign(bar(2), 5), Some(at(5)));
    assert_eq!(sign("[INFO:swift] Saving model checkpoint to /output/checkpoint-2\n".into(), 6), Some(at(6)));
    assert_eq!(sign("WARNING: nothing\n".into(), 7), Some(at(6)));
}

#[test]
fn a_silent_log_is_readable_and_no_sign_of_life() {
    let mut reader = reader();
    bytes(&mut reader, step(1), 0);
    reader.publish();
    assert_eq!(reader.take(Piece::Silent, received(60)), News::Nothing);
    assert_eq!(
        (&reader.state.access, reader.state.last_sign, reader.is_dirty),
        (&Access::Readable, Some(at(0)), false)
    );
}

#[test]
fn the_end_of_a_log_is_urgent_once() {
    let mut reader = reader();
    bytes(&mut reader, step(1), 0);
    reader.publish();
    assert_eq!(reader.take(Piece::Closed, received(1)), News::Urgent);
    assert!(reader.is_dirty && reader.publish().is_complete);
    reader.take(Piece::Closed, received(2));
    assert!(!reader.is_dirty, "the stream is opened again and again while the container has ended");
    bytes(&mut reader, step(2), 3);
    assert!(!reader.publish().is_complete, "the connection had only broken");
}

#[test]
fn a_log_that_cannot_be_read_is_told_once_whatever_its_words_are() {
    let mut reader = reader();
    reader.take(Piece::Unreadable("no route to 10.0.0.1".into()), received(0));
    assert!(reader.is_dirty);
    assert_eq!(reader.publish().access, Access::Unreadable("no route to 10.0.0.1".into()));
    reader.take(Piece::Unreadable("no route to 10.0.0.2".into()), received(1));
    assert!(!reader.is_dirty);
    bytes(&mut reader, "text\n", 2);
    assert!(reader.is_dirty);
    assert_eq!(reader.publish().access, Access::Readable);
}

#[test]
fn what_is_kept_of_a_refusal_is_bounded() {
    let mut reader = reader();
    reader.take(Piece::Unreadable("é".repeat(1 << 20)), received(0));
    let Access::Unreadable(why) = reader.publish().access else { panic!() };
    assert!(why.capacity() <= LONGEST_REFUSAL, "{} bytes", why.capacity());
}

#[test]
fn silence_counts_from_when_the_log_can_be_read_again() {
    for refusal in [Piece::Unreadable("no route to host".into()), Piece::Forbidden] {
        let mut reader = reader();
        bytes(&mut reader, step(1), 0);
        reader.take(refusal, received(10));
        reader.take(Piece::Closed, received(1_000));
        assert_ne!(reader.state.access, Access::Readable, "a stream without a byte");
        bytes(&mut reader, "text\n", 2_000);
        assert_eq!((&reader.state.access, reader.state.last_sign), (&Access::Readable, Some(at(2_000))));
        bytes(&mut reader, "text\n", 3_000);
        reader.take(Piece::Closed, received(3_001));
        bytes(&mut reader, "text\n", 4_000);
        assert_eq!(reader.state.last_sign, Some(at(2_000)), "it was readable all the time");
    }
}

#[test]
fn a_right_that_is_missing_is_no_sign_of_life() {
    let mut reader = reader();
    reader.take(Piece::Forbidden, received(0));
    let state = reader.publish();
    assert_eq!((state.access, state.last_sign, state.has_stepped), (Access::Forbidden, None, false));
}

#[test]
fn the_last_lines_are_kept_for_a_failure() {
    let mut reader = reader();
    assert_eq!(reader.publish().tail(), None);
    for number in 0..20 {
        bytes(&mut reader, format!("line {number}\n\n"), 0);
    }
    bytes(&mut reader, step(1), 0);
    bytes(&mut reader, format!("ValueError: {}\n", "é".repeat(1_000)), 0);
    let tail = reader.publish().tail().unwrap();
    let lines: Vec<&str> = tail.lines().collect();
    assert_eq!((lines.len(), lines[0]), (LAST_LINES, "line 13"));
    assert!(lines.iter().all(|line| line.len() <= LONGEST_LINE), "{tail}");
    let held: usize = reader.state.last_lines.iter().map(String::capacity).sum();
    assert!(held <= LAST_LINES * LONGEST_LINE, "{held} bytes");
}

#[test]
fn a_thousand_lines_a_second_are_one_report() {
    let mut reader = reader();
    let urgent =
        (1..=1_000).filter(|number| bytes(&mut reader, step(number % 100), 0) == News::Urgent).count();
    assert_eq!(urgent, 1);
}

#[test]
fn a_log_without_a_line_feed_takes_a_bounded_memory_and_is_read_on() {
    let mut reader = reader();
    for _ in 0..1_000 {
        bytes(&mut reader, vec![b'x'; 10_000], 0);
    }
    bytes(&mut reader, format!("\n{}", step(7)), 1);
    let state = reader.publish();
    assert_eq!(shown(&state).0, 7);
    assert!(state.tail().unwrap_or_default().len() < 20_000);
}

#[test]
fn remaining_times_have_two_units_at_most() {
    for (seconds, text) in [
        (0, "0s"),
        (45, "45s"),
        (60, "1m"),
        (754, "12m"),
        (5_520, "1h32m"),
        (7_200, "2h"),
        (93_600, "1d2h"),
        (86_400 * 30, "30d"),
    ] {
        assert_eq!(eta(Duration::from_secs(seconds)), text);
    }
}

#[test]
fn a_log_is_followed_once_and_forgotten_with_its_pod() {
    let progress = Progress::default();
    let target = |uid: &str| Target { pod_uid: uid.into(), ..target(1) };
    let key = Key::new("demo", "qwen");
    progress.follow(&key, "u", &target("1"), &TrainingJobStatus::default());
    progress.follow(&key, "u", &target("1"), &TrainingJobStatus::default());
    assert_eq!((progress.not_started().len(), progress.not_started().len()), (1, 0));
    progress.follow(&key, "u", &target("2"), &TrainingJobStatus::default());
    assert_eq!(progress.not_started().len(), 1, "a new pod has a log of its own");
    assert!(progress.of("u", at(0)).is_some());
    progress.forget("u");
    assert!(progress.of("u", at(0)).is_none());
}

#[test]
fn a_long_log_that_is_read_again_keeps_its_curve() {
    let log: String = (1..=1_000).map(|number| step(number).replace("/100'", "/1000'")).collect();
    let mut reader = reader();
    bytes(&mut reader, log.clone(), 0);
    let once = reader.publish();
    bytes(&mut reader, log, 0);
    assert_eq!(reader.publish().curve, once.curve);
}

#[test]
fn a_new_process_never_shows_an_earlier_step_of_the_second_that_it_reads_again() {
    let mut first = reader();
    for number in 1..=3 {
        bytes(&mut first, step(number), 10);
    }
    let mut second = attempt(1, &written(&first.publish()));
    bytes(&mut second, step(1), 10);
    assert_eq!(shown(&second.publish()).0, 3);
    bytes(&mut second, step(2), 11);
    assert_eq!(shown(&second.publish()).0, 2, "a line of a later second is no old one");
}

#[test]
fn the_log_of_a_new_attempt_is_read_from_its_first_line_whatever_the_clock_of_its_node_says() {
    let mut first = reader();
    bytes(&mut first, step(50), 1_000);
    let mut second = attempt(2, &written(&first.publish()));
    assert_eq!(second.since(), None);
    bytes(&mut second, step(41), 100);
    let report = second.publish().report.unwrap();
    assert_eq!((report.step, report.attempt), (41, 2));
}

#[test]
fn a_checkpoint_is_told_only_when_it_is_written() {
    let mut reader = reader();
    bytes(&mut reader, step(40), 8);
    bytes(&mut reader, "[INFO:swift] Saving model checkpoint to /output/checkpoint-40\n", 9);
    bytes(&mut reader, step(40), 9);
    assert_eq!(reader.publish().checkpoint, None);
    bytes(&mut reader, step(41), 12);
    let saved = reader.publish().checkpoint.unwrap();
    assert_eq!((saved.step, saved.time), (40, Some(Time(at(9)))));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_makes_no_silence() {
    let progress = Progress::default();
    progress.follow(&Key::new("demo", "qwen"), "uid", &target(1), &TrainingJobStatus::default());
    let mut reader = reader();
    bytes(&mut reader, step(1), 100);
    *progress.lock()["uid"].state.lock().unwrap() = reader.publish();
    tokio::time::advance(Duration::from_secs(5)).await;
    for now in [105, 5_000, -5_000] {
        assert_eq!(progress.of("uid", at(now)).unwrap().last_sign, Some(at(now - 5)));
    }
}

#[test]
fn a_log_is_forgotten_with_its_trainingjob_and_not_with_a_namesake() {
    let spec = "{model: m, dataset: d, method: lora}";
    let of_uid = |uid: &str, version: &str| {
        let mut job = job("qwen", spec);
        job.metadata.uid = Some(uid.to_owned());
        job.metadata.resource_version = Some(version.to_owned());
        job
    };
    let (progress, jobs) = (Progress::default(), Cache::default());
    progress.forget_removed(&jobs);
    let follow = |uid: &str| {
        progress.follow(&Key::new("demo", "qwen"), uid, &target(1), &TrainingJobStatus::default())
    };
    let is_followed = |uid: &str| progress.of(uid, at(0)).is_some();
    jobs.upsert(of_uid("first", "1"));
    follow("first");
    let stop = progress.lock()["first"].stop.clone();
    jobs.upsert(of_uid("first", "2"));
    assert!(is_followed("first"));
    jobs.upsert(of_uid("second", "3"));
    follow("second");
    assert!(!is_followed("first") && is_followed("second"));
    assert!(stop.is_cancelled(), "its task ends");
    jobs.remove(&of_uid("second", "4").metadata);
    assert!(!is_followed("second"));
    follow("third");
    jobs.upsert(of_uid("third", "5"));
    jobs.replace(Vec::new(), "6");
    assert!(!is_followed("third"), "it vanished behind a re-list");
}

/// The logs of an API server with these answers; it gives the last one again and again.
fn logs(answers: Vec<(StatusCode, String)>) -> Logs {
    let left = Mutex::new(answers);
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let mut left = left.lock().unwrap();
        let (status, text) = if left.len() > 1 { left.remove(0) } else { left[0].clone() };
        let mut answer = Response::new(Body::from(text.into_bytes()));
        *answer.status_mut() = status;
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    Logs::new(Client::new(service, "demo"))
}

fn read_of(answers: Vec<(StatusCode, String)>, wake: fn()) -> (Arc<Mutex<LogState>>, JoinHandle<()>) {
    let stream = logs(answers).follow("demo", "p", "trainer", None, SILENCE);
    let state = Arc::new(Mutex::new(LogState::default()));
    let reading = tokio::spawn(read(stream, reader(), Arc::clone(&state), wake));
    (state, reading)
}

/// An answer with steps up to this one.
fn steps(last: i64) -> (StatusCode, String) {
    let lines = (1..=last).map(|number| format!("{} {}", at(number), step(number)));
    (StatusCode::OK, lines.collect())
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_not_found_for_a_while_is_read_on() {
    let missing = || (StatusCode::NOT_FOUND, r#"{"message": "pods \"p\" not found"}"#.to_owned());
    let (found, _reading) = read_of(vec![steps(3), missing(), missing(), steps(7)], || {});
    let (lost, _reading) = read_of(vec![steps(3), missing()], || {});
    sleep(Duration::from_secs(300)).await;
    let (found, lost) = (found.lock().unwrap(), lost.lock().unwrap());
    assert_eq!((shown(&found).0, &found.access), (7, &Access::Readable));
    assert_eq!(shown(&lost).0, 3);
    let Access::Unreadable(why) = &lost.access else { panic!("{:?}", lost.access) };
    assert!(why.contains("404") && why.contains("not found"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn access_is_unknown_once_a_log_is_not_read_any_more() {
    let (stopped, reading) = read_of(vec![steps(3)], || {});
    sleep(Duration::from_secs(60)).await;
    assert_eq!(stopped.lock().unwrap().access, Access::Readable);
    reading.abort();
    assert!(reading.await.is_err());
    let (panicked, reading) = read_of(vec![steps(3)], || panic!("on purpose"));
    assert!(reading.await.is_err());
    for state in [stopped, panicked] {
        let state = state.lock().unwrap();
        assert_eq!((state.has_stepped, &state.access), (true, &Access::Unknown));
    }
}

#[test]
fn a_checkpoint_of_this_attempt_takes_the_place_of_a_later_one_that_an_earlier_attempt_has_claimed() {
    let saves =
        |number: i64| format!("[INFO:swift] Saving model checkpoint to /output/checkpoint-{number}\n");
    let claimed = Checkpoint { path: "/output/checkpoint-99".to_owned(), step: 99, time: None };
    let before = TrainingJobStatus { checkpoint: Some(claimed), ..TrainingJobStatus::default() };
    let mut reader = attempt(2, &before);
    assert!(!reader.publish().has_saved, "nothing was read yet");
    bytes(&mut reader, format!("{}{}", saves(5), step(6)), 1);
    let state = reader.publish();
    assert_eq!((state.checkpoint.as_ref().map(|saved| saved.step), state.has_saved), (Some(5), true));
    // A process that reads the log again may read an earlier checkpoint of the attempt last.
    let mut reader = attempt(2, &written(&state));
    bytes(&mut reader, format!("{}{}", saves(10), step(11)), 2);
    assert!(!reader.publish().has_saved);
}

#[test]
fn losses_that_are_no_numbers_are_counted_in_a_row() {
    let mut reader = reader();
    for number in 1..=3 {
        let line = format!("{{'loss': nan, 'grad_norm': nan, 'global_step/max_steps': '{number}/100'}}\n");
        // Two ranks of a node may log the same step.
        bytes(&mut reader, format!("{line}{line}"), 1);
    }
    assert_eq!(reader.publish().losses.row(false).steps, 3);
    bytes(&mut reader, step(4), 2);
    assert_eq!(reader.publish().losses.row(false).steps, 0);
}
