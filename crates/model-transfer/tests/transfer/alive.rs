//! The liveness probe of an engine, against a server that says what a test wants.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    thread,
};

use crate::program::{Ended, Program};

/// Three requests run, and 70 tokens were generated.
const METRICS: &str =
    "vllm:num_requests_running{engine=\"0\"} 3\nvllm:generation_tokens_total{engine=\"0\"} 70\n";

/// Answers `/health` with this status, and `/metrics` with this text in chunks. Ends with the test process.
fn engine(health: &'static str, metrics: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap_or_default();
            let is_health = request[..read].starts_with(b"GET /health ");
            let (status, body) = if is_health { (health, "") } else { ("200 OK", metrics) };
            let head =
                format!("HTTP/1.1 {status}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n");
            let body =
                if body.is_empty() { String::new() } else { format!("{:x}\r\n{body}\r\n", body.len()) };
            let _ = stream.write_all(format!("{head}{body}0\r\n\r\n").as_bytes());
        }
    });
    address
}

fn alive(engine: SocketAddr, state: &Path) -> Ended {
    Program::new(engine, ["alive", "--path=/health", "--metrics-path=/metrics", "--stall-after-seconds=300"])
        .arg(&format!("--port={}", engine.port()))
        .arg(&format!("--state={}", state.display()))
        .arg("--running=vllm:num_requests_running")
        .arg("--moves=vllm:iteration_tokens_total_count")
        .arg("--moves=vllm:generation_tokens_total")
        .env("http_proxy", "http://127.0.0.1:1")
        .run()
}

#[test]
fn an_engine_that_gives_no_token_is_named_in_the_termination_log() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join(".alive");
    let engine = engine("200 OK", METRICS);
    let first = alive(engine, &state);
    assert_eq!((first.code, first.reported.as_str()), (Some(0), ""), "{first:?}");
    // As if it had been so for five minutes.
    let mut seen: serde_json::Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    let since = &mut seen["engines"]["0"]["since"];
    *since = (since.as_u64().unwrap() - 300).into();
    fs::write(&state, seen.to_string()).unwrap();
    let stalled = alive(engine, &state);
    assert_eq!(stalled.code, Some(1), "{stalled:?}");
    assert!(stalled.reported.starts_with("EngineStalled: requests run (3)"), "{stalled:?}");
    assert!(stalled.output.contains("EngineStalled: "), "the event of the kubelet says it, too: {stalled:?}");
}

#[test]
fn an_engine_that_is_ill_fails_and_one_without_metrics_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join(".alive");
    let ill = alive(engine("503 Service Unavailable", METRICS), &state);
    assert_eq!(ill.code, Some(1));
    assert!(ill.output.contains("/health answers with status 503") && ill.reported.is_empty(), "{ill:?}");
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let absent = alive(unused, &state);
    assert!(absent.code == Some(1) && absent.output.contains("/health does not answer"), "{absent:?}");
    assert_eq!(alive(engine("200 OK", ""), &state).code, Some(0));
    // A folder that cannot be written, and a variable that cannot be read, are no faults of the engine.
    assert_eq!(alive(engine("200 OK", METRICS), Path::new("/nonexistent/.alive")).code, Some(0));
    let odd = Program::new(unused, ["alive"]).env("TRANSFER_TIMEOUT_SECONDS", "1h").run();
    assert_eq!(odd.code, Some(0), "{odd:?}");
}
