//! The cost of pairing as many questions as mmlu has.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::scene::{Scene, review};

const QUESTIONS: u64 = 14_000;
/// The released program takes a small part of it.
const LONGEST: Duration = Duration::from_secs(1);
const LARGEST_KIB: i64 = 16 << 10;

#[test]
fn fourteen_thousand_pairs_are_paired_within_a_second_and_sixteen_mebibytes() {
    let scene = Scene::new();
    let answers = |wrong: u64| {
        (0..QUESTIONS).map(move |index| {
            let is_right = index % wrong > 0;
            review(index, &format!("question {index}"), f64::from(u8::from(is_right)))
        })
    };
    for (side, wrong) in [("baseline", 3), ("candidate", 4)] {
        let files = scene.answers(side, answers(wrong));
        let run = scene.run(side).environment("FAKE_HARNESS_FILES", &files);
        assert_eq!(run.end().side().questions, QUESTIONS);
    }
    let began = Instant::now();
    let pairs = scene.pair(&[]).pairs();
    let took = began.elapsed();
    assert_eq!(
        pairs[0].both_right + pairs[0].only_baseline + pairs[0].only_candidate + pairs[0].both_wrong,
        QUESTIONS
    );
    let resident = largest_resident(&scene);
    println!("{QUESTIONS} pairs: {took:?}, {resident} KiB resident");
    assert!(took < LONGEST, "{took:?}");
    assert!(resident < LARGEST_KIB, "{resident} KiB");
}

/// Of the pairing alone, in KiB: the high-water mark that the kernel keeps, read until the process ends.
fn largest_resident(scene: &Scene) -> i64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eval-runner"));
    command.arg("pair").arg("--output-dir").arg(&scene.output).args(["--test-set", "set"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut largest = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        largest = largest.max(kibibytes.unwrap_or(0));
    }
    assert!(largest > 0, "the process ended before it was looked at");
    largest
}
