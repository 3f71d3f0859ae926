//! The monitor against stores that do it harm: lengths that are lies, pages and bodies without end, texts that stand for many
//! values, slow answers. It ends in time, names the fault, and keeps its memory.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use api::monitor::ExitCode;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::{
    checkpoints::until,
    counting::LABELS,
    process::{Monitor, peak_kibibytes},
    worker::{Says, Worker},
};

/// Of its own, beside the pages of its file. The sidecar may have 64 MiB, and the loader 128 MiB.
const MOST_KIBIBYTES: u64 = 24 << 10;
/// Several times the limits of the requests that a scene has.
const ENDS_WITHIN: Duration = Duration::from_secs(180);

/// A request: method, path without the bucket, and query.
struct Request {
    method: String,
    key: String,
    query: String,
}

impl Request {
    fn parameter(&self, name: &str) -> Option<String> {
        let found = self.query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        found.map(decoded)
    }

    fn is_listing(&self) -> bool {
        self.query.contains("list-type=2")
    }
}

/// The text of a part of an address.
fn decoded(part: &str) -> String {
    let mut pieces = part.split('%');
    let mut text = pieces.next().unwrap().as_bytes().to_vec();
    for piece in pieces {
        text.push(u8::from_str_radix(&piece[..2], 16).unwrap());
        text.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(text).unwrap()
}

/// Answers a request in its own way. `false`: as a store does.
type Malice = Arc<dyn Fn(&Request, &TcpStream) -> bool + Send + Sync>;

/// An S3 in memory, on loopback. Ends with the test process.
struct Store {
    address: String,
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl Store {
    fn start(malice: impl Fn(&Request, &TcpStream) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let objects = Arc::<Mutex<BTreeMap<String, Vec<u8>>>>::default();
        let (shared, malice): (_, Malice) = (Arc::clone(&objects), Arc::new(malice));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, malice) = (Arc::clone(&shared), Arc::clone(&malice));
                // A client that has enough closes the connection.
                thread::spawn(move || serve(&stream, &shared, &malice));
            }
        });
        Self { address, objects }
    }

    fn put(&self, key: &str, text: &[u8]) {
        self.put_at(&format!("demo/coder/{key}"), text);
    }

    fn put_at(&self, key: &str, text: &[u8]) {
        self.objects.lock().unwrap().insert(key.to_owned(), text.to_owned());
    }
}

/// One connection, until either side ends it.
fn serve(stream: &TcpStream, objects: &Mutex<BTreeMap<String, Vec<u8>>>, malice: &Malice) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            head.push(lower);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let mut words = head[0].split(' ');
        let (method, target) = (words.next()?.to_ascii_uppercase(), words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let key = decoded(path.trim_start_matches("/states").trim_start_matches('/'));
        let request = Request { method, key, query: query.replace("%2f", "%2F") };
        if malice(&request, stream) {
            return None;
        }
        let is_conditional = head.iter().any(|line| line.starts_with("if-none-match:"));
        let mut objects = objects.lock().unwrap();
        let known = objects.get(&request.key).cloned();
        match &*request.method {
            "PUT" if is_conditional && known.is_some() => answer(stream, "412 X", b"", 0)?,
            "PUT" => {
                objects.insert(request.key.clone(), body);
                answer(stream, "200 OK", b"", 0)?;
            }
            "DELETE" => {
                objects.remove(&request.key);
                answer(stream, "204 X", b"", 0)?;
            }
            _ if request.is_listing() => {
                let page = page(&objects, &request);
                answer(stream, "200 OK", page.as_bytes(), page.len())?;
            }
            method => match known {
                None => answer(stream, "404 X", b"", 0)?,
                Some(text) if method == "HEAD" => answer(stream, "200 OK", b"", text.len())?,
                Some(text) => answer(stream, "200 OK", &text, text.len())?,
            },
        }
    }
}

/// `length`: as the head says.
fn answer(stream: &TcpStream, status: &str, body: &[u8], length: usize) -> Option<()> {
    answer_with(stream, status, "", body, length)
}

/// The last answer of a connection. The header keeps the client from sending another request on it.
fn last_answer(stream: &TcpStream, body: &[u8], length: usize) -> Option<()> {
    answer_with(stream, "200 OK", "connection: close\r\n", body, length)
}

fn answer_with(mut stream: &TcpStream, status: &str, more: &str, body: &[u8], length: usize) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\netag: \"e\"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
         content-length: {length}\r\n{more}\r\n"
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok()
}

fn page(objects: &BTreeMap<String, Vec<u8>>, request: &Request) -> String {
    let prefix = request.parameter("prefix").unwrap_or_default();
    let token = request.parameter("continuation-token").unwrap_or_default();
    let most: usize = request.parameter("max-keys").map_or(1000, |most| most.parse().unwrap());
    let mut entries = BTreeMap::new();
    for key in objects.keys().filter(|key| key.starts_with(&prefix)) {
        let below = &key[prefix.len()..];
        match below.split_once('/').filter(|_| request.query.contains("delimiter=")) {
            Some((folder, _)) => entries.insert(format!("{prefix}{folder}/"), true),
            None => entries.insert(key.clone(), false),
        };
    }
    let mut text = "<ListBucketResult>".to_owned();
    let mut left = entries.into_iter().filter(|(key, _)| *key > token).peekable();
    for (key, is_folder) in left.by_ref().take(most) {
        text += &entry(&key, is_folder);
        if text.matches("<Key>").count() + text.matches("<Prefix>").count() == most {
            write!(text, "<NextContinuationToken>{key}</NextContinuationToken>").unwrap();
        }
    }
    if left.peek().is_none() {
        let (before, _) = text.split_once("<NextContinuationToken>").unwrap_or((&text, ""));
        text = before.to_owned();
    }
    text + "</ListBucketResult>"
}

/// As a store writes it whose XML comes from Go.
fn entry(key: &str, is_folder: bool) -> String {
    let key = key.replace('\'', "&#39;").replace('"', "&#34;");
    match is_folder {
        true => format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"),
        false => format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>0</Size></Contents>"
        ),
    }
}

/// The volumes of a pod, and the storage of its pool.
struct Pod {
    own: TempDir,
    state: TempDir,
    uri: &'static str,
}

/// How a loader has ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    message: String,
    log: String,
}

impl Pod {
    fn new() -> Self {
        Self::of("s3://states")
    }

    fn of(uri: &'static str) -> Self {
        // On another disk than the state, or a restore depended on how full the disk of the machine is.
        let own = tempfile::tempdir_in("/dev/shm").unwrap();
        Self { own, state: tempfile::tempdir().unwrap(), uri }
    }

    fn args(&self) -> [String; 3] {
        [format!("--checkpoint-uri={}", self.uri), "--checkpoint-seconds=1".to_owned(), self.state_arg()]
    }

    fn state_arg(&self) -> String {
        format!("--state={}", self.state.path().display())
    }

    /// Until it ends. Its memory and its time are bounded.
    fn load(&self, store: &Store) -> Ended {
        let file = |name: &str| self.own.path().join(name);
        fs::write(file("message"), "").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_monitor"));
        command
            .args(["load-memory", "--pool=demo/coder", "--pod-name=coder-1", "--pod-uid=own"])
            .arg("--patience-seconds=2")
            .args(self.args())
            .arg(format!("--folder={}", self.own.path().display()))
            .arg(format!("--termination-log={}", file("message").display()))
            .envs(env(store));
        ended(&mut command, &file("message"), &file("log"))
    }

    fn run(&self, store: &Store, worker: &Worker) -> Monitor {
        Monitor::start_with(self.own.path(), worker.port, "own", &self.args(), &env(store))
    }
}

fn env(store: &Store) -> Vec<(&'static str, String)> {
    [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_ENDPOINT_URL", &store.address)]
        .map(|(name, value)| (name, value.to_owned()))
        .into()
}

fn ended(command: &mut Command, message: &std::path::Path, log: &std::path::Path) -> Ended {
    let began = Instant::now();
    let mut child = command.stderr(Stdio::from(fs::File::create(log).unwrap())).spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        // The peak of a process can be read for as long as it runs.
        peak = peak.max(peak_kibibytes(child.id()));
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > ENDS_WITHIN => {
                child.kill().unwrap();
                panic!("it does not end; its log:\n{}", fs::read_to_string(log).unwrap());
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = |path: &std::path::Path| fs::read_to_string(path).unwrap();
    let ended = Ended { code: status.code(), message: text(message), log: text(log) };
    println!("ended after {:?} with {peak} KiB", began.elapsed());
    assert!((1_000..MOST_KIBIBYTES).contains(&peak), "{peak} KiB: {ended:?}");
    ended
}

/// Workers that have ended, each with a checkpoint of this manifest.
fn with_manifests(store: &Store, manifest: &str) {
    for number in 0..9 {
        store.put(&format!("workers/w-{number}/0000000000/manifest.json"), manifest.as_bytes());
    }
}

/// As large as a manifest may be, and of as many files as fit.
fn of_many_files() -> String {
    let file = r#"{"path":"","size":0,"sha256":""}"#;
    let files = vec![file; (4 << 20) / (file.len() + 1) - 100];
    format!(r#"{{"final":true,"files":[{}]}}"#, files.join(","))
}

/// As large as a manifest may be, with one text that is unescaped in memory.
fn of_one_text() -> String {
    let path = r"\n".repeat((2 << 20) - 100);
    format!(r#"{{"final":true,"files":[{{"path":"{path}","size":0,"sha256":""}}]}}"#)
}

/// As large as a manifest may be, with arrays in arrays where none is expected.
fn of_nested_arrays() -> String {
    format!(r#"{{"final":true,"files":[],"more":{}"#, "[".repeat((4 << 20) - 100))
}

#[test]
fn a_loader_reads_large_manifests_one_after_the_other_and_restores_none() {
    beside_each_other(
        [of_many_files(), of_one_text(), of_nested_arrays(), "x".repeat(16 << 20)],
        |manifest| {
            let store = Store::start(|_, _| false);
            with_manifests(&store, &manifest);
            let pod = Pod::new();
            let ended = pod.load(&store);
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(ended.log.contains("the state is damaged"), "{}", ended.log);
            assert_eq!(fs::read_dir(pod.state.path()).unwrap().count(), 0);
        },
    );
}

/// Each scene mostly waits until the loader tries again.
fn beside_each_other<T: Send>(scenes: impl IntoIterator<Item = T>, play: impl Fn(T) + Copy + Send) {
    thread::scope(|scope| {
        for scene in scenes {
            scope.spawn(move || play(scene));
        }
    });
}

#[test]
fn a_sidecar_that_looks_for_states_reads_large_manifests_one_after_the_other() {
    for manifest in [of_one_text(), of_nested_arrays()] {
        reads_one_after_the_other(&manifest);
    }
}

fn reads_one_after_the_other(manifest: &str) {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let store = Store::start(move |request, _| {
        counted.fetch_add(usize::from(request.key.ends_with("manifest.json")), Ordering::SeqCst);
        false
    });
    with_manifests(&store, manifest);
    let (pod, worker) = (Pod::new(), Worker::start(Says::default()));
    let monitor = pod.run(&store, &worker);
    until("several surveys", || read.load(Ordering::SeqCst) > 18);
    let peak = peak_kibibytes(monitor.id());
    println!("{peak} KiB");
    assert!((1_000..MOST_KIBIBYTES).contains(&peak), "{peak} KiB");
}

#[test]
fn a_length_that_is_a_lie_is_not_believed() {
    // The head promises a terabyte, or ten bytes, and bytes come without end. Of both headers that of chunks counts.
    beside_each_other([(1 << 40, false), (10, false), (10, true)], |(length, is_chunked)| {
        let store = Store::start(move |request, mut stream| {
            let is_text = request.method == "GET" && !request.is_listing();
            if is_text {
                let (more, begin) = if is_chunked {
                    ("transfer-encoding: chunked\r\nconnection: close\r\n", &b"10000\r\n"[..])
                } else {
                    ("connection: close\r\n", &b""[..])
                };
                let end = if is_chunked { &b"\r\n"[..] } else { &b""[..] };
                let _ = answer_with(stream, "200 OK", more, b"", length);
                let part = [begin, &[b' '; 64 << 10], end].concat();
                while stream.write_all(&part).is_ok() {}
            }
            is_text
        });
        with_manifests(&store, "{}");
        store.put("workers/w-1/heartbeat", b"{}");
        store.put("claims/w-1/0000000000", b"{}");
        let ended = Pod::new().load(&store);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    });
}

#[test]
fn pages_without_end_are_named() {
    let page = AtomicUsize::new(0);
    let store = Store::start(move |request, stream| {
        let is_of_workers = request.is_listing() && request.query.contains("workers");
        if is_of_workers {
            let number = page.fetch_add(1, Ordering::SeqCst);
            let names = (0..100).map(|name| entry(&format!("demo/coder/workers/w-{number}-{name}/"), true));
            let next = format!("<NextContinuationToken>{number}</NextContinuationToken>");
            let text = format!("<ListBucketResult>{next}{}</ListBucketResult>", names.collect::<String>());
            let _ = last_answer(stream, text.as_bytes(), text.len());
        }
        is_of_workers
    });
    let ended = Pod::new().load(&store);
    assert_eq!(ended.code, Some(ExitCode::CheckpointsUnreachable.code()), "{ended:?}");
    assert!(ended.message.contains("has more than 20000 names below demo/coder/workers"), "{ended:?}");
}

#[test]
fn a_page_without_end_is_named() {
    let store = Store::start(move |request, mut stream| {
        let is_of_workers = request.is_listing() && request.query.contains("workers");
        if is_of_workers {
            let _ = last_answer(stream, b"<ListBucketResult>", 1 << 40);
            // A tag with an attribute is not known before it is parsed.
            let names = entry("demo/coder/workers/w/", true).replace("<Prefix>", "<Prefix a=\"b\">");
            let names = names.replace("<CommonPrefixes>", "<CommonPrefixes a=\"b\">").repeat(1_000);
            while stream.write_all(names.as_bytes()).is_ok() {}
        }
        is_of_workers
    });
    let ended = Pod::new().load(&store);
    assert_eq!(ended.code, Some(ExitCode::CheckpointsUnreachable.code()), "{ended:?}");
    assert!(ended.message.contains("a page of the listing is larger than 512 KiB"), "{ended:?}");
}

#[test]
fn an_answer_that_comes_byte_by_byte_is_not_waited_for() {
    let store = Store::start(|request, mut stream| {
        let is_heartbeat = request.method == "GET" && request.key.ends_with("heartbeat");
        if is_heartbeat {
            let _ = last_answer(stream, b"", 1_000);
            while stream.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_secs(1));
            }
        }
        is_heartbeat
    });
    store.put("workers/w-1/heartbeat", b"{}");
    let ended = Pod::new().load(&store);
    assert_eq!(ended.code, Some(ExitCode::CheckpointsUnreachable.code()), "{ended:?}");
    assert!(ended.message.contains("did not answer within 20 s"), "{ended:?}");
}

#[test]
fn a_sidecar_says_that_its_own_folder_has_no_end() {
    let store = Store::start(|request, stream| {
        let is_own = request.is_listing() && request.query.contains("workers%2Fown");
        if is_own {
            let names = (0..100).map(|name| entry(&format!("demo/coder/workers/own/{name:010}/"), true));
            let next = "<NextContinuationToken>next</NextContinuationToken>";
            let text = format!("<ListBucketResult>{next}{}</ListBucketResult>", names.collect::<String>());
            let _ = last_answer(stream, text.as_bytes(), text.len());
        }
        is_own
    });
    let (pod, worker) = (Pod::new(), Worker::start(Says::default()));
    fs::write(pod.state.path().join("state"), "one").unwrap();
    let monitor = pod.run(&store, &worker);
    monitor.until(&format!("agent_checkpoint_failing{LABELS} 1"));
    let peak = peak_kibibytes(monitor.id());
    println!("{peak} KiB");
    assert!((1_000..MOST_KIBIBYTES).contains(&peak), "{peak} KiB");
}

/// As a user makes one by hand. The state of the other worker is restored.
#[test]
fn an_object_with_an_empty_name_is_named_once_and_hides_no_state() {
    let store = Store::start(|_, _| false);
    store.put("workers//x", b"");
    store.put("workers/w-1/0000000000/manifest.json", br#"{"final":true,"files":[]}"#);
    let ended = Pod::new().load(&store);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.log.contains("restored a state"), "{}", ended.log);
    assert_eq!(ended.log.matches("is not of a worker: remove it").count(), 1, "{}", ended.log);
}

/// Stores that are written in Go escape these characters by their numbers.
#[test]
fn a_prefix_with_quotes_hides_no_state() {
    let store = Store::start(|_, _| false);
    let manifest = br#"{"final":true,"files":[]}"#;
    store.put_at(r#"it's"mine"/demo/coder/workers/w-1/0000000000/manifest.json"#, manifest);
    let ended = Pod::of(r#"s3://states/it's"mine""#).load(&store);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.log.contains("restored a state"), "{}", ended.log);
    assert!(!ended.log.contains("remove it"), "{}", ended.log);
}

/// As from a proxy for a moment: a page of its own, a text without its end, a byte that differs.
#[test]
fn one_wrong_answer_costs_no_checkpoint() {
    let of = |text: &str| {
        let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        format!(r#"{{"final":true,"files":[{{"path":"state","size":3,"sha256":"{digest}"}}]}}"#)
    };
    let manifest = of("new");
    let cut = &manifest[..manifest.len() - 1];
    // The survey reads the manifest before.
    for (name, at, wrong) in [
        ("manifest.json", 1, "<html>"),
        ("manifest.json", 1, cut),
        ("manifest.json", 1, &manifest.replace("state", "State").replace("sha256\":\"", "sha256\":\"0")),
        ("0", 0, "<html>"),
        ("0", 0, "ne"),
        ("0", 0, "nex"),
    ] {
        let (read, wrong_text) = (AtomicUsize::new(0), wrong.to_owned());
        let key = format!("demo/coder/workers/w-1/0000000001/{name}");
        let store = Store::start(move |request, stream| {
            let is_it = request.method == "GET" && request.key == key;
            let is_wrong = is_it && read.fetch_add(1, Ordering::SeqCst) == at;
            if is_wrong {
                let _ = last_answer(stream, wrong_text.as_bytes(), wrong_text.len());
            }
            is_wrong
        });
        for (number, text) in [(0, "old"), (1, "new")] {
            store.put(&format!("workers/w-1/000000000{number}/0"), text.as_bytes());
            store.put(&format!("workers/w-1/000000000{number}/manifest.json"), of(text).as_bytes());
        }
        let pod = Pod::new();
        let ended = pod.load(&store);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let state = fs::read_to_string(pod.state.path().join("state"));
        assert_eq!(state.ok().as_deref(), Some("new"), "{name}: {wrong}");
    }
}

/// Numbers take twice the bytes of the shortest text of them.
#[test]
fn a_vector_store_whose_answers_stand_for_many_values_costs_little_memory() {
    for (open, value, close) in [
        (r#"{"result":{"points":[{"id":1,"payload":null,"vector":["#, "0,", "0]}]}}"),
        (r#"{"result":{"points":[{"id":1,"vector":[0.5],"payload":{"a":["#, "[],", "[]]}}]}}"),
        (r#"{"result":{"points":["#, r#"{"id":1},"#, r#"{"id":1}]}}"#),
        (r#"{"result":{"points":[],"next_page_offset":["#, "0,", "0]}}"),
        (r#"{"result":{"points":[{"id":1,"vector":[0.5],"payload":{"text":""#, r"\n", r#""}}]}}"#),
        (r#"{"result":{"points":[{"id":1,"vector":[0.5],"payload":{"a":"#, "[", r#"}}]}}"#),
    ] {
        let most = ((4 << 20) - open.len() - close.len()) / value.len();
        let page = format!("{open}{}{close}", value.repeat(most));
        let store = Store::start(move |request, stream| {
            let text = match &*request.key {
                "" => r#"{"title": "qdrant", "version": "1"}"#,
                "collections/memory" => r#"{"result":{"config":{"params":{"vectors":{"size":2}}}}}"#,
                "collections/memory/points/scroll" => &page,
                _ => "{}",
            };
            let _ = last_answer(stream, text.as_bytes(), text.len());
            true
        });
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("message"), "").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_monitor"));
        command
            .args(["load-memory", "--patience-seconds=2", "--collection=memory", "--dim=2"])
            .arg(format!("--endpoint={}", store.address))
            .arg(format!("--memory-folder={}", folder.path().display()))
            .arg(format!("--termination-log={}", file("message").display()));
        let ended = ended(&mut command, &file("message"), &file("log"));
        assert_ne!(ended.code, Some(0), "{open}");
        assert!(!ended.message.is_empty());
    }
}
