//! Loading from simulated vector stores: a Chroma and a Qdrant with the answers of the real ones. Also a collection
//! with a misspelled name, and a store that does not answer.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use api::monitor::ExitCode;
use serde_json::{Value, json};

use crate::process::peak_kibibytes;

const RECORDS: usize = 600;

/// Answers a path and a body with a status and a body.
type Answer = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;
/// Of Qdrant; without it, the store answers nothing but its name.
const KEY_HEADER: &str = "api-key: s3cr3t";

/// Ends with the test process.
struct Store {
    endpoint: String,
    requests: Arc<AtomicUsize>,
}

fn start(answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Store {
    start_with(false, answer)
}

fn start_with(
    wants_key: bool,
    answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> Store {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let (counted, answer): (_, Arc<Answer>) = (Arc::clone(&requests), Arc::new(answer));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (counted, answer) = (Arc::clone(&counted), Arc::clone(&answer));
            thread::spawn(move || serve(&stream, wants_key, &counted, &*answer));
        }
    });
    Store { endpoint, requests }
}

/// One connection, until the client ends it.
fn serve(mut stream: &TcpStream, wants_key: bool, counted: &AtomicUsize, answer: &Answer) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => head.push(line),
            }
        }
        let length = head.iter().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
        });
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).unwrap();
        let path = head[0].split_whitespace().nth(1).unwrap();
        counted.fetch_add(1, Ordering::Relaxed);
        let has_key = head.iter().any(|line| line.trim_end().eq_ignore_ascii_case(KEY_HEADER));
        let (status, body) = if wants_key && !has_key && path != "/" {
            (403, Value::Null)
        } else {
            answer(path, &serde_json::from_slice(&body).unwrap_or_default())
        };
        let body = body.to_string();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
        if stream.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

fn record(number: usize) -> (String, Value) {
    (format!("id-{number}"), json!([number as f32 / 4.0, 0.5]))
}

fn chroma(path: &str, body: &Value) -> (u16, Value) {
    let collections = "/api/v2/tenants/default_tenant/databases/default_database/collections";
    if path == "/api/v2/heartbeat" {
        return (200, json!({"nanosecond heartbeat": 1}));
    }
    match path.strip_prefix(collections) {
        Some("/memory") => (200, json!({"id": "u-1", "name": "memory", "dimension": 2})),
        Some("/u-1/get") => {
            let number = |key: &str| usize::try_from(body[key].as_u64().unwrap()).unwrap();
            let range = number("offset")..RECORDS.min(number("offset") + number("limit"));
            let (ids, embeddings): (Vec<String>, Vec<Value>) = range.map(record).unzip();
            let documents = vec!["text"; ids.len()];
            let metadatas = vec![Value::Null; ids.len()];
            (
                200,
                json!({"ids": ids, "embeddings": embeddings, "documents": documents, "metadatas": metadatas}),
            )
        }
        _ => (404, json!({"error": "NotFoundError"})),
    }
}

fn qdrant(path: &str, body: &Value) -> (u16, Value) {
    match path {
        "/" => (200, json!({"title": "qdrant - vector search engine", "version": "1.15.0"})),
        "/collections/memory" => {
            (200, json!({"result": {"config": {"params": {"vectors": {"size": 2, "distance": "Dot"}}}}}))
        }
        "/collections/memory/points/scroll" => {
            let from = usize::try_from(body["offset"].as_u64().unwrap_or(0)).unwrap();
            let to = RECORDS.min(from + usize::try_from(body["limit"].as_u64().unwrap()).unwrap());
            let point =
                |number: usize| json!({"id": number, "payload": {"text": "t"}, "vector": record(number).1});
            let points: Vec<Value> = (from..to).map(point).collect();
            let next = if to < RECORDS { json!(to) } else { Value::Null };
            (200, json!({"result": {"points": points, "next_page_offset": next}}))
        }
        _ => (404, json!({"status": {"error": "Not found"}})),
    }
}

fn load(folder: &Path, endpoint: &str, more: &[&str]) -> Output {
    load_collection(folder, endpoint, ("memory", 2), more)
}

fn load_collection(folder: &Path, endpoint: &str, collection: (&str, u32), more: &[&str]) -> Output {
    loader(folder, endpoint, collection, more).output().unwrap()
}

fn loader(folder: &Path, endpoint: &str, (name, dim): (&str, u32), more: &[&str]) -> Command {
    fs::write(folder.join("termination-log"), "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_monitor"));
    command
        .args(["load-memory", "--patience-seconds=2"])
        .args([format!("--collection={name}"), format!("--dim={dim}")])
        .args([format!("--endpoint={endpoint}"), format!("--memory-folder={}", folder.display())])
        .arg(format!("--termination-log={}", folder.join("termination-log").display()))
        .args(more);
    command
}

/// The exit code, and the termination message.
fn failed(folder: &Path, output: &Output) -> (Option<i32>, String) {
    (output.status.code(), fs::read_to_string(folder.join("termination-log")).unwrap())
}

fn ids(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("memory.jsonl")).unwrap();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    text.lines().map(id).collect()
}

#[test]
fn a_collection_of_chroma_is_loaded_page_after_page() {
    let (store, place) = (start(chroma), tempfile::tempdir().unwrap());
    let output = load(place.path(), &store.endpoint, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(ids(place.path()), (0..RECORDS).map(|number| record(number).0).collect::<Vec<_>>());
    let description: Value =
        serde_json::from_slice(&fs::read(place.path().join("memory.json")).unwrap()).unwrap();
    assert_eq!(description, json!({"collection": "memory", "dim": 2, "count": RECORDS}));
    // Heartbeat, collection, three pages.
    let before = store.requests.load(Ordering::Relaxed);
    assert_eq!(before, 5);
    assert!(load(place.path(), &store.endpoint, &[]).status.success());
    assert_eq!(store.requests.load(Ordering::Relaxed), before, "what is there is not loaded again");
}

#[test]
fn a_collection_of_qdrant_is_loaded() {
    let (store, place) = (start(qdrant), tempfile::tempdir().unwrap());
    let output = load(place.path(), &store.endpoint, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(ids(place.path()).len(), RECORDS);
}

/// It refuses the question for Chroma as well.
#[test]
fn a_qdrant_with_a_key_is_found_and_loaded() {
    let (store, place) = (start_with(true, qdrant), tempfile::tempdir().unwrap());
    let output = load(place.path(), &store.endpoint, &["--key=s3cr3t"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(ids(place.path()).len(), RECORDS);
}

#[test]
fn a_collection_or_a_dimension_that_is_typed_wrong_is_named_at_once() {
    for store in [start(chroma), start(qdrant)] {
        let place = tempfile::tempdir().unwrap();
        let output = load_collection(place.path(), &store.endpoint, ("memry", 2), &[]);
        let (code, message) = failed(place.path(), &output);
        assert_eq!(code, Some(ExitCode::CollectionNotFound.code()));
        assert!(message.contains("\"memry\"") && message.contains("memoryConfig.collection"), "{message}");
        let output = load_collection(place.path(), &store.endpoint, ("memory", 1536), &[]);
        let (code, message) = failed(place.path(), &output);
        assert_eq!(code, Some(ExitCode::DimMismatch.code()));
        assert!(message.contains("have 2 dimensions, and memoryConfig.dim is 1536"), "{message}");
    }
}

type Answers = fn(&str, &Value) -> (u16, Value);

#[test]
fn a_store_that_goes_in_the_middle_is_gone_on_with() {
    let stores: [(Answers, &str); 2] = [(chroma, "/get"), (qdrant, "/scroll")];
    for (answers, page) in stores {
        let pages = AtomicUsize::new(0);
        let goes = move |path: &str, body: &Value| {
            if path.ends_with(page) && pages.fetch_add(1, Ordering::Relaxed) > 0 {
                return (503, Value::Null);
            }
            answers(path, body)
        };
        let (store, place) = (start(goes), tempfile::tempdir().unwrap());
        let output = load(place.path(), &store.endpoint, &[]);
        let (code, message) = failed(place.path(), &output);
        assert_eq!(code, Some(ExitCode::StoreUnreachable.code()));
        assert!(message.contains("answered with status 503"), "{message}");
        assert!(!place.path().join("memory.json").exists());
        let offset = Arc::new(AtomicUsize::new(usize::MAX));
        let first = Arc::clone(&offset);
        let back = start(move |path: &str, body: &Value| {
            if path.ends_with(page) {
                let from = body["offset"].as_u64().unwrap_or(0);
                first.fetch_min(usize::try_from(from).unwrap(), Ordering::Relaxed);
            }
            answers(path, body)
        });
        assert!(load(place.path(), &back.endpoint, &[]).status.success());
        assert_eq!(offset.load(Ordering::Relaxed), 256, "the first page is not loaded again");
        assert_eq!(ids(place.path()).len(), RECORDS);
    }
}

#[test]
fn a_key_that_is_refused_is_named_and_appears_nowhere() {
    let (store, place) = (start(|_: &str, _: &Value| (401, Value::Null)), tempfile::tempdir().unwrap());
    let output = load(place.path(), &store.endpoint, &["--key=s3cr3t"]);
    let (code, message) = failed(place.path(), &output);
    assert_eq!(code, Some(ExitCode::StoreUnauthorized.code()));
    assert!(message.contains("memoryConfig.secretName"), "{message}");
    assert!(!(message + &String::from_utf8_lossy(&output.stderr)).contains("s3cr3t"));
}

#[test]
fn where_no_store_answers_it_is_waited_for_and_then_said() {
    let place = tempfile::tempdir().unwrap();
    let output = load(place.path(), "http://127.0.0.1:1", &[]);
    let (code, message) = failed(place.path(), &output);
    assert_eq!(code, Some(ExitCode::StoreUnreachable.code()));
    assert!(message.contains("cannot be connected to"), "{message}");
}

/// The answers of a Qdrant as its REST API of v1.15 documents them, with all their fields.
fn qdrant_as_documented(path: &str, body: &Value) -> (u16, Value) {
    let json = |text: &str| serde_json::from_str(text).unwrap();
    match path {
        "/" => (200, json(include_str!("answers/qdrant-1.15/root.json"))),
        "/collections/memory" => (200, json(include_str!("answers/qdrant-1.15/collection.json"))),
        "/collections/memory/points/scroll" if body["offset"].is_null() => {
            assert_eq!((&body["with_payload"], &body["with_vector"]), (&json!(true), &json!(true)));
            (200, json(include_str!("answers/qdrant-1.15/scroll-first.json")))
        }
        "/collections/memory/points/scroll" => {
            assert_eq!(body["offset"], "c1d2e3f4-1111-4222-8333-444455556666");
            (200, json(include_str!("answers/qdrant-1.15/scroll-last.json")))
        }
        _ => (404, json(include_str!("answers/qdrant-1.15/collection-not-found.json"))),
    }
}

#[test]
fn the_documented_answers_of_qdrant_are_loaded() {
    let (store, place) = (start(qdrant_as_documented), tempfile::tempdir().unwrap());
    let output = load_collection(place.path(), &store.endpoint, ("memory", 4), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(place.path().join("memory.jsonl")).unwrap();
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let documents: Vec<&Value> = records.iter().map(|record| &record["document"]).collect();
    let texts =
        [json!("The dispatcher scales by its queue."), json!("A state is restored once."), Value::Null];
    assert_eq!(documents, texts.iter().collect::<Vec<_>>());
    assert_eq!(records[0]["embedding"], json!([0.5, 0.5, 0.5, -0.5]));
    assert_eq!(records[0]["metadata"]["chunk"], 7);

    let place = tempfile::tempdir().unwrap();
    let output = load_collection(place.path(), &store.endpoint, ("memry", 4), &[]);
    assert_eq!(output.status.code(), Some(ExitCode::CollectionNotFound.code()));
    let output = load_collection(place.path(), &store.endpoint, ("memory", 1536), &[]);
    assert_eq!(output.status.code(), Some(ExitCode::DimMismatch.code()));
}

#[test]
fn pages_that_do_not_end_are_a_fault() {
    let point = || json!({"id": 1, "payload": null, "vector": [0.5, 0.5]});
    let endless = |points: Vec<Value>| {
        start(move |path: &str, body: &Value| match path {
            "/collections/memory/points/scroll" => {
                (200, json!({"result": {"points": points, "next_page_offset": 7}}))
            }
            _ => qdrant(path, body),
        })
    };
    for store in [endless(Vec::new()), endless(vec![point()])] {
        let place = tempfile::tempdir().unwrap();
        let (code, message) = failed(place.path(), &load(place.path(), &store.endpoint, &[]));
        assert_eq!(code, Some(ExitCode::StoreUnreachable.code()));
        assert!(message.contains("its pages do not end"), "{message}");
    }
}

#[test]
fn a_collection_without_end_does_not_fill_the_volume() {
    let page = AtomicUsize::new(0);
    let endless = start(move |path: &str, body: &Value| match path {
        "/collections/memory/points/scroll" => {
            let next = page.fetch_add(1, Ordering::Relaxed);
            let points =
                vec![json!({"id": next, "payload": {"text": "t".repeat(1_000)}, "vector": [0.5, 0.5]}); 50];
            (200, json!({"result": {"points": points, "next_page_offset": next}}))
        }
        _ => qdrant(path, body),
    });
    let place = tempfile::tempdir().unwrap();
    let output = load(place.path(), &endless.endpoint, &["--memory-bytes=1000000"]);
    let (code, message) = failed(place.path(), &output);
    assert_eq!(code, Some(ExitCode::OutOfSpace.code()));
    assert!(message.contains("have more than 1000000 bytes: choose a smaller collection"), "{message}");
    assert!(fs::metadata(place.path().join("memory.jsonl")).unwrap().len() < 1_200_000);
}

#[test]
fn a_collection_of_any_size_takes_little_memory() {
    const LOADED: usize = 100_000_000;
    let page = AtomicUsize::new(0);
    let text = "t".repeat(8_000);
    let endless = start(move |path: &str, body: &Value| match path {
        "/collections/memory/points/scroll" => {
            let next = page.fetch_add(1, Ordering::Relaxed);
            let points = vec![json!({"id": next, "payload": {"text": text}, "vector": [0.5, 0.5]}); 50];
            (200, json!({"result": {"points": points, "next_page_offset": next}}))
        }
        _ => qdrant(path, body),
    });
    let place = tempfile::tempdir().unwrap();
    let limit = format!("--memory-bytes={LOADED}");
    let mut command = loader(place.path(), &endless.endpoint, ("memory", 2), &[&limit]);
    let mut loader = command.stderr(Stdio::null()).spawn().unwrap();
    let mut peak = 0;
    while loader.try_wait().unwrap().is_none() {
        // The peak of a process can be read for as long as it runs.
        peak = peak.max(peak_kibibytes(loader.id()));
        thread::sleep(Duration::from_millis(10));
    }
    let loaded = fs::metadata(place.path().join("memory.jsonl")).unwrap().len();
    println!("{} MB were loaded with {peak} KiB", loaded / 1_000_000);
    assert!(loaded >= LOADED as u64 && (1_000..24 << 10).contains(&peak), "{loaded} bytes with {peak} KiB");
}

#[test]
fn a_page_that_is_too_large_is_asked_for_again_with_fewer_records() {
    let limits = Arc::new(AtomicUsize::new(usize::MAX));
    let least = Arc::clone(&limits);
    let large = start(move |path: &str, body: &Value| {
        let (status, mut answer) = chroma(path, body);
        if let Some(documents) = answer["documents"].as_array_mut() {
            // 64 of them are more than the 4 MiB of an answer.
            documents.iter_mut().for_each(|document| *document = json!("x".repeat(80_000)));
            least.fetch_min(usize::try_from(body["limit"].as_u64().unwrap()).unwrap(), Ordering::Relaxed);
        }
        (status, answer)
    });
    let place = tempfile::tempdir().unwrap();
    let output = load(place.path(), &large.endpoint, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(ids(place.path()), (0..RECORDS).map(|number| record(number).0).collect::<Vec<_>>());
    assert_eq!(limits.load(Ordering::Relaxed), 32);
}

#[test]
fn a_store_that_requires_a_key_says_where_it_belongs() {
    let (store, place) = (start_with(true, qdrant), tempfile::tempdir().unwrap());
    let (code, message) = failed(place.path(), &load(place.path(), &store.endpoint, &[]));
    assert_eq!(code, Some(ExitCode::StoreUnauthorized.code()));
    let why = "requires a key; set memoryConfig.secretName to a Secret with the key api-key";
    assert!(message.contains(why), "{message}");
}
