//! A store that fails: transient errors are retried, others are reported.

use std::{
    fs,
    time::{Duration, Instant},
};

use api::loader::ExitCode;

use crate::{
    program::{Ended, Program},
    proxy::Break,
    scene::{MIB, SOURCE, Scene, files, noise},
};

#[test]
fn a_connection_that_is_cut_anywhere_is_taken_up_where_it_was() {
    let scene = Scene::new();
    let content = noise(7, 20 * MIB + 3);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    let mut random = fastrand::Rng::with_seed(42);
    // Two parts: each first answer is cut somewhere, each second one too.
    let mut cuts: Vec<u64> = (0..6).map(|_| random.u64(0..4 * MIB as u64)).collect();
    cuts.extend([0, 1, 65_536]);
    let last = cuts.len();
    scene.proxy.rule(move |request| match cuts.get(request.number) {
        Some(bytes) if request.is_object() => Break::CutAfter(*bytes),
        _ => Break::Nothing,
    });
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
    let lost = scene.proxy.take_object_bytes() - content.len() as u64;
    // What sat in buffers of the system when the connection broke, at most, per cut.
    assert!(lost <= last as u64 * 3 * MIB as u64, "{lost} bytes were fetched twice");
}

#[test]
fn a_slow_store_is_waited_for() {
    let scene = Scene::new();
    let content = noise(8, MIB);
    scene.gateway.put("qwen/model.bin", &content);
    // 16 pauses, together longer than the longest silence that is allowed.
    scene.proxy.rule(|request| {
        if request.is_object() { Break::Slow(Duration::from_millis(200)) } else { Break::Nothing }
    });
    let began = Instant::now();
    scene.pull().run().succeeded();
    assert!(began.elapsed() > Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
    let objects = scene.proxy.take_requests().iter().filter(|request| request.is_object()).count();
    assert_eq!(objects, 1, "bytes that come slowly are no reason to ask anew");
}

#[test]
fn a_store_that_falls_silent_is_asked_anew() {
    let scene = Scene::new();
    let content = noise(9, 3 * MIB);
    scene.gateway.put("qwen/model.bin", &content);
    scene.proxy.rule(|request| match request.number {
        0 if request.is_object() => Break::StallAfter(2 * MIB as u64),
        _ => Break::Nothing,
    });
    let ended = scene.pull().run();
    ended.succeeded();
    assert!(ended.output.contains("no byte within 2 s"), "{}", ended.output);
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
}

#[test]
fn a_listing_that_falls_silent_is_asked_for_anew() {
    let scene = Scene::new();
    scene.gateway.put("qwen/model.bin", b"x");
    let mut lists = 0;
    scene.proxy.rule(move |_| {
        lists += 1;
        if lists == 1 { Break::StallAfter(20) } else { Break::Nothing }
    });
    scene.pull().run().succeeded();
}

/// Where a proxy that repeats the head of a request would put the session token.
const ECHOED: &str = "x-amz-security-token: IQoJb3JpZ2luX2VjEXAMPLE";

/// Fails, and repeats no text of the store, in no line of the log and not for the kubelet.
#[track_caller]
fn repeats_nothing(ended: &Ended) {
    assert_eq!(ended.code, Some(ExitCode::ChecksumMismatch.code()), "{}", ended.output);
    assert!(ended.output.contains("trying again"), "{}", ended.output);
    for text in [&ended.output, &ended.reported] {
        assert!(!text.contains("IQoJ") && !text.contains("EXAMPLE"), "{text}");
        assert!(text.contains("an answer that cannot be parsed"), "{text}");
    }
}

#[test]
fn text_of_a_listing_that_cannot_be_parsed_is_not_repeated() {
    let time = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>";
    for entry in [
        format!("<Key>qwen/a</Key>{time}<Size>{ECHOED}</Size>"),
        format!("<Key>qwen/a</Key><LastModified>{ECHOED}</LastModified><Size>1</Size>"),
        format!("<Key>qwen/a</Key>{time}<Size>1</Size></{ECHOED}>"),
    ] {
        let scene = Scene::new();
        let listing = format!("<ListBucketResult><Contents>{entry}</Contents></ListBucketResult>");
        scene.proxy.rule(move |_| Break::Answer(listing.clone()));
        repeats_nothing(&scene.pull().run());
    }
}

#[test]
fn text_of_an_answer_to_an_upload_is_not_repeated() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.bin"), noise(13, 9 * MIB)).unwrap();
    scene.proxy.rule(|request| {
        let completes = request.method == "POST" && request.query.starts_with("uploadId");
        if completes { Break::Answer(format!("<Result><ETag>1</{ECHOED}></Result>")) } else { Break::Nothing }
    });
    let arguments = ["push", folder.path().to_str().unwrap(), "s3://models/out"];
    repeats_nothing(&Program::new(scene.proxy.address, arguments).run());
}

#[test]
fn bursts_of_errors_are_sat_out() {
    let scene = Scene::new();
    let content = noise(10, MIB);
    scene.gateway.put("qwen/model.bin", &content);
    let mut answers = 0;
    scene.proxy.rule(move |_| {
        answers += 1;
        match answers {
            1 | 4 => Break::Status(500, ""),
            2 | 5 => Break::Status(503, ""),
            6 => Break::Status(429, ""),
            7 => Break::Refuse,
            _ => Break::Nothing,
        }
    });
    let ended = scene.pull().run();
    ended.succeeded();
    assert!(ended.output.contains("trying again"), "{}", ended.output);
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
}

#[test]
fn a_pause_that_the_store_asks_for_is_kept() {
    let scene = Scene::new();
    scene.gateway.put("qwen/model.bin", b"x");
    let mut answers = 0;
    scene.proxy.rule(move |_| {
        answers += 1;
        if answers == 1 { Break::Status(503, "Retry-After: 3\r\n") } else { Break::Nothing }
    });
    let began = Instant::now();
    scene.pull().run().succeeded();
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn a_store_that_does_not_come_back_is_unreachable() {
    let scene = Scene::new();
    scene.gateway.put("qwen/model.bin", b"x");
    for (fault, reason) in [(Break::Status(500, ""), "(500)"), (Break::Refuse, "has not answered")] {
        scene.proxy.rule(move |_| fault.clone());
        let began = Instant::now();
        let ended = scene.pull().env("TRANSFER_PATIENCE_SECONDS", "2").run();
        ended.failed(ExitCode::SourceUnreachable, reason);
        assert!(began.elapsed() >= Duration::from_secs(2), "it was not waited for: {:?}", began.elapsed());
    }
}

#[test]
fn a_store_that_never_answered_is_reported_soon_and_waited_for_afterwards() {
    let scene = Scene::new();
    scene.gateway.put("qwen/model.bin", b"x");
    scene.proxy.rule(|_| Break::Refuse);
    let pull = || {
        let patient = scene.pull().env("TRANSFER_PATIENCE_SECONDS", "60");
        patient.env("TRANSFER_FIRST_ANSWER_SECONDS", "1")
    };
    let began = Instant::now();
    pull().run().failed(ExitCode::SourceUnreachable, "has not answered for 1 s");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());

    let again = pull().start();
    again.until_says("trying again", 1);
    assert!(!again.ends_within(Duration::from_secs(2)), "it was reported already");
    scene.proxy.rule(|_| Break::Nothing);
    again.wait().succeeded();
}

#[test]
fn a_store_that_hangs_from_the_beginning_is_reported_soon() {
    // The system accepts, and then sends nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["pull", SOURCE, folder.path().to_str().unwrap()];
    let began = Instant::now();
    let ended = Program::new(silent.local_addr().unwrap(), arguments)
        .env("TRANSFER_FIRST_ANSWER_SECONDS", "1")
        .env("TRANSFER_STALL_SECONDS", "30")
        .run();
    ended.failed(ExitCode::SourceUnreachable, "has not answered for 1 s (no answer)");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_store_that_has_answered_is_waited_for_the_first_time_too() {
    let scene = Scene::new();
    scene.gateway.put("qwen/model.bin", b"x");
    scene.proxy.rule(|request| if request.is_object() { Break::Refuse } else { Break::Nothing });
    let pull = scene.pull().env("TRANSFER_FIRST_ANSWER_SECONDS", "1").start();
    pull.until_says("trying again", 1);
    assert!(!pull.ends_within(Duration::from_secs(2)), "it had answered");
    scene.proxy.rule(|_| Break::Nothing);
    pull.wait().succeeded();
}

#[test]
fn a_refusal_in_the_middle_is_reported() {
    let scene = Scene::new();
    scene.gateway.put("qwen/a.bin", b"x");
    scene.proxy.rule(|request| if request.is_object() { Break::Status(403, "") } else { Break::Nothing });
    scene.pull().run().failed(ExitCode::SourceUnauthorized, "403");
    assert!(scene.pulled().is_empty());
}

#[test]
fn a_store_that_is_restarted_is_waited_for() {
    let mut scene = Scene::new();
    let content = noise(11, 24 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    scene.proxy.rule(|request| {
        if request.is_object() { Break::Slow(Duration::from_millis(10)) } else { Break::Nothing }
    });
    let pull = scene.pull().start();
    scene.proxy.until_object_bytes(4 * MIB);
    scene.gateway.stop();
    pull.until_says("trying again", 1);
    scene.gateway.run();
    pull.wait().succeeded();
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
}

#[test]
fn a_transfer_that_takes_too_long_ends_and_can_go_on() {
    let scene = Scene::new();
    let content = noise(12, 4 * MIB);
    scene.gateway.put_in_parts("qwen/model.bin", &content);
    scene.proxy.rule(|request| {
        if request.is_object() { Break::Slow(Duration::from_millis(100)) } else { Break::Nothing }
    });
    let ended = scene.pull().env("TRANSFER_TIMEOUT_SECONDS", "3").run();
    ended.failed(ExitCode::SourceUnreachable, "not done after 3 s");
    let before = scene.proxy.take_object_bytes();
    scene.proxy.rule(|_| Break::Nothing);
    scene.pull().run().succeeded();
    let after = scene.proxy.take_object_bytes();
    assert!(after < content.len() as u64 - before / 2, "{before} bytes were there, {after} were fetched");
    assert_eq!(scene.pulled(), files([("model.bin", &content)]));
}
