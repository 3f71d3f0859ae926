//! What a loader does with a bucket that breaks a promise of S3. The test plays the bucket.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use api::monitor::ExitCode;

/// Accepts every write whatever its condition, and lists nothing. Gives its address, and the requests: method and path.
fn careless_bucket() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&requests);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let seen = Arc::clone(&seen);
            thread::spawn(move || serve(&stream, &seen));
        }
    });
    (address, requests)
}

/// One connection, until the client ends it.
fn serve(mut stream: &TcpStream, seen: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) if first.is_empty() => first = line,
                Ok(_) => {
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                }
            }
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
        let mut words = first.split_whitespace();
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        seen.lock().unwrap().push(format!("{method} {path}"));
        let body = match method {
            "PUT" | "DELETE" => "",
            _ => "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: {length}\r\n\r\n{body}");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The exit code of a loader of states in this bucket, and its termination message.
fn load(address: &str, more: &[&str]) -> (Option<i32>, String) {
    // On another disk than the state, or a restore depended on how full the disk of the machine is.
    let (own, state) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
    let log = own.path().join("log");
    fs::write(&log, "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_monitor"))
        .args([
            "load-memory",
            "--pool=demo/coder",
            "--pod-name=coder-1",
            "--pod-uid=u",
            "--patience-seconds=2",
        ])
        .arg("--checkpoint-uri=s3://states")
        .arg(format!("--state={}", state.path().display()))
        .arg(format!("--folder={}", own.path().display()))
        .arg(format!("--termination-log={}", log.display()))
        .args(more)
        .envs([("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_ENDPOINT_URL", address)])
        .output()
        .unwrap();
    (output.status.code(), fs::read_to_string(&log).unwrap())
}

#[test]
fn a_bucket_that_ignores_conditions_is_refused_before_anything_is_claimed() {
    let (address, requests) = careless_bucket();
    let (code, message) = load(&address, &[]);
    assert_eq!(code, Some(ExitCode::CheckpointsUnreachable.code()));
    assert!(message.contains("does not support conditional writes (If-None-Match)"), "{message}");
    let probe = "PUT /states/demo/coder/clock/u.probe";
    let removal = "DELETE /states/demo/coder/clock/u.probe";
    assert_eq!(*requests.lock().unwrap(), [probe, probe, removal]);
}

#[test]
fn a_secret_without_authorities_is_named_before_a_request_is_sent() {
    let (address, requests) = careless_bucket();
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("ca.crt");
    fs::write(&empty, "no certificate").unwrap();
    for file in [folder.path().join("missing"), empty] {
        let (code, message) = load(&address, &[&format!("--ca-file={}", file.display())]);
        assert_eq!(code, Some(ExitCode::CheckpointsUnreachable.code()), "{message}");
        assert!(message.contains("spec.checkpoint.caSecretName a key ca.crt"), "{message}");
    }
    assert!(requests.lock().unwrap().is_empty());
}
