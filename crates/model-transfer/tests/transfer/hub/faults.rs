//! A hub that redirects, throttles, cuts and lies.

use std::time::{Duration, Instant};

use api::loader::ExitCode;
use hub_server::{Break, Model, Side};
use rustix::process::Signal;

use super::{HF, Hub, ID, MS, large, small};
use crate::scene::{MIB, files, noise};

fn hub(bytes: usize) -> (Hub, Vec<u8>) {
    let weights = noise(4, bytes);
    (Hub::with(Model::new(ID, [small("config.json", b"{}"), large("model.safetensors", &weights)])), weights)
}

#[test]
fn the_pause_of_a_throttle_is_kept_by_all_requests() {
    for source in [HF, MS] {
        let (hub, weights) = hub(20 * MIB);
        let mut throttled = 0;
        hub.server.rule(move |request| {
            throttled += usize::from(request.is_file());
            match throttled {
                1 if request.is_file() => Break::Status(429, "retry-after: 3\r\n".to_owned(), String::new()),
                _ => Break::Nothing,
            }
        });
        let began = Instant::now();
        hub.pull(source).run().succeeded();
        assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
        assert_eq!(hub.pulled(), files([("config.json", b"{}"), ("model.safetensors", &weights)]));
    }
}

#[test]
fn a_throttle_of_the_list_is_waited_for() {
    let (hub, _) = hub(1);
    let mut lists = 0;
    hub.server.rule(move |request| {
        lists += usize::from(request.path.starts_with("/api/"));
        match lists {
            1 | 3 => Break::Status(429, "retry-after: 1\r\n".to_owned(), String::new()),
            _ => Break::Nothing,
        }
    });
    hub.pull(HF).run().succeeded();
}

#[test]
fn connections_that_are_cut_are_taken_up_where_they_were() {
    let (hub, weights) = hub(40 * MIB + 3);
    hub.server.rule(|request| match request.side {
        Side::Network if request.number < 9 => Break::CutAfter(2 * MIB as u64 + 7),
        Side::Network | Side::Hub => Break::Nothing,
    });
    hub.pull(HF).run().succeeded();
    assert_eq!(hub.pulled()["model.safetensors"], weights);
    let begins: Vec<String> = hub
        .server
        .take_requests()
        .iter()
        .filter_map(|request| {
            Some(request.header("range")?.strip_prefix("bytes=")?.split_once('-')?.0.to_owned())
        })
        .collect();
    assert!(begins.iter().any(|begin| begin.parse::<usize>().unwrap() % (16 * MIB) != 0), "{begins:?}");
}

#[test]
fn a_pull_that_is_killed_is_resumed() {
    let (hub, weights) = hub(48 * MIB);
    hub.server.rule(|request| match request.side {
        Side::Network => Break::Slow(Duration::from_millis(20)),
        Side::Hub => Break::Nothing,
    });
    let killed = hub.pull(HF).start();
    hub.server.until_requests(3, |request| request.side == Side::Network);
    killed.until_says("\"copied_bytes\"", 1);
    // Some of each part has arrived, and is noted.
    assert!(!killed.ends_within(Duration::from_secs(2)));
    killed.send(Signal::KILL);
    drop(killed);
    hub.server.rule(|_| Break::Nothing);
    hub.server.take_requests();
    let ended = hub.pull(HF).run();
    ended.succeeded();
    assert_eq!(hub.pulled()["model.safetensors"], weights);
    let from: Vec<usize> = hub
        .server
        .take_requests()
        .iter()
        .filter(|request| request.side == Side::Network)
        .filter_map(|request| {
            request.header("range")?.strip_prefix("bytes=")?.split_once('-')?.0.parse().ok()
        })
        .collect();
    assert!(from.len() == 3 && from.iter().all(|from| from % (16 * MIB) >= MIB), "{from:?}");
}

#[test]
fn a_silent_network_is_asked_anew() {
    let (hub, weights) = hub(3 * MIB);
    let mut asked = 0;
    hub.server.rule(move |request| {
        asked += usize::from(request.side == Side::Network);
        if request.side == Side::Network && asked == 1 {
            Break::StallAfter(MIB as u64)
        } else {
            Break::Nothing
        }
    });
    hub.pull(HF).run().succeeded();
    assert_eq!(hub.pulled()["model.safetensors"], weights);
}

#[test]
fn wrong_bytes_are_found_in_large_and_in_small_files() {
    for (source, large) in [(HF, true), (HF, false), (MS, true), (MS, false)] {
        let (hub, weights) = hub(17 * MIB);
        let is_it = move |request: &hub_server::Request| {
            request.is_file()
                && (request.side == Side::Network) == large
                && !format!("{}{}", request.path, request.query).contains("safetensors")
        };
        let mut lies = 0;
        hub.server.rule(move |request| {
            lies += usize::from(is_it(request));
            if is_it(request) && lies == 1 { Break::FlipAt(1) } else { Break::Nothing }
        });
        let ended = hub.pull(source).run();
        ended.succeeded();
        assert!(ended.output.contains("does not match its checksum; fetching it again"), "{}", ended.output);
        assert_eq!(hub.pulled(), files([("config.json", b"{}"), ("model.safetensors", &weights)]));

        let other = self::hub(17 * MIB).0;
        other.server.rule(move |request| if is_it(request) { Break::FlipAt(1) } else { Break::Nothing });
        let ended = other.pull(source).run();
        ended.failed(ExitCode::ChecksumMismatch, "does not match its checksum, fetched 3 times");
        let name = if large { "model.safetensors" } else { "config.json" };
        assert!(!other.pulled().contains_key(name), "what is wrong is never in place");
    }
}

#[test]
fn a_file_of_another_size_than_listed_is_refused() {
    let (hub, _) = hub(17 * MIB);
    hub.server.rule(|request| match request.side {
        Side::Network => Break::ClaimLonger(5),
        Side::Hub => Break::Nothing,
    });
    hub.pull(HF)
        .run()
        .failed(ExitCode::ChecksumMismatch, "listed with 17825792 bytes, answered with 17825797");
    let (other, _) = self::hub(17 * MIB);
    other.server.rule(|request| match request.side {
        Side::Network => Break::IgnoreRange,
        Side::Hub => Break::Nothing,
    });
    other.pull(HF).run().failed(ExitCode::ChecksumMismatch, "the whole file in place of a range");
}

#[test]
fn a_list_that_lies_writes_nothing_outside_of_the_folder() {
    for path in ["../outside", "/etc/passwd", "a//b", ".."] {
        let (hub, _) = hub(1);
        let list = format!(r#"[{{"type":"file","oid":"{}","size":1,"path":"{path}"}}]"#, "0".repeat(40));
        hub.server.rule(move |request| match request.is_list() {
            true => Break::Status(200, String::new(), list.clone()),
            false => Break::Nothing,
        });
        hub.pull(HF).run().failed(ExitCode::SourceNotFound, "cannot be a file below the folder");
    }
}

#[test]
fn text_of_a_hub_is_not_repeated() {
    for source in [HF, MS] {
        let (hub, _) = hub(1);
        hub.server
            .rule(|_| Break::Status(200, String::new(), r#"{"sha": authorization: hf_echoed"#.to_owned()));
        let ended = hub.pull(source).run();
        ended.failed(ExitCode::ChecksumMismatch, "an answer that cannot be parsed");
        assert!(!ended.output.contains("hf_echoed"), "{}", ended.output);
    }
}

#[test]
fn the_redirect_of_a_file_is_remembered() {
    let (hub, weights) = hub(64 * MIB);
    hub.server.rule(|request| match request.side {
        Side::Network => Break::CutAfter(5 * MIB as u64),
        Side::Hub => Break::Nothing,
    });
    hub.pull(HF).run().succeeded();
    assert_eq!(hub.pulled()["model.safetensors"], weights);
    let requests = hub.server.take_requests();
    let (resolves, ranges) = (
        requests.iter().filter(|request| request.path.contains("/resolve/")).count(),
        requests.iter().filter(|request| request.side == Side::Network).count(),
    );
    assert!(
        ranges >= 12 && resolves <= 5,
        "{ranges} ranges, {resolves}: config.json, and at most one for each part"
    );
}

#[test]
fn a_redirect_whose_signature_has_expired_is_asked_for_anew() {
    let (hub, weights) = hub(40 * MIB);
    let (mut asked, mut expired) = (0, false);
    hub.server.rule(move |request| {
        let is_network = request.side == Side::Network;
        asked += usize::from(is_network);
        if asked == 4 && is_network {
            expired = true;
        } else if !is_network {
            // It gives a new one.
            expired = false;
        }
        match request.side {
            Side::Network if expired => Break::Status(403, String::new(), String::new()),
            Side::Network if asked < 4 => Break::CutAfter(MIB as u64),
            Side::Network | Side::Hub => Break::Nothing,
        }
    });
    hub.pull(HF).run().succeeded();
    assert_eq!(hub.pulled()["model.safetensors"], weights);
}

#[test]
fn a_hub_in_trouble_is_waited_for() {
    let (hub, weights) = hub(MIB + 1);
    let mut answers = 0;
    hub.server.rule(move |_| {
        answers += 1;
        match answers {
            1 | 4 => Break::Status(502, String::new(), "<html>".to_owned()),
            2 | 6 => Break::Refuse,
            _ => Break::Nothing,
        }
    });
    hub.pull(HF).run().succeeded();
    assert_eq!(hub.pulled()["model.safetensors"], weights);
}
