//! A real Prometheus server on loopback: it scrapes what a test names, and the test queries it.
//!
//! It needs no cluster and no root, keeps its data in a folder of its own, and ends with the value. Its web pages are not
//! built; its API is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use local_cluster::explained;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{ask_until, within};

/// Each request is about a few series.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
const LONGEST_ANSWER: u64 = 16 << 20;
/// How long the last value of a series stands where its job is no longer scraped. Prometheus's default is 5 minutes; a
/// series that its target no longer serves, and one of a target that is down, end at once.
const LOOKBACK: &str = "--query.lookback-delta=15s";
/// Of the log, for the message of a server that does not start.
const LINES_KEPT: usize = 1000;

/// Targets that Prometheus scrapes once a second.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// The label `job` of their series.
    job: String,
    targets: Vec<String>,
    labels: BTreeMap<String, String>,
    honors_labels: bool,
}

impl Scrape {
    /// `targets`: addresses such as `127.0.0.1:9400`, which serve `/metrics`.
    pub fn new(job: &str, targets: impl IntoIterator<Item = impl ToString>) -> Self {
        let targets = targets.into_iter().map(|target| target.to_string()).collect();
        Self { job: job.to_owned(), targets, labels: BTreeMap::new(), honors_labels: false }
    }

    /// A label of all series of these targets, as relabelling adds `namespace` and `pod` in a cluster. A label of the same
    /// name in the target's page is kept as `exported_NAME`.
    pub fn with_label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Labels of the target's page stay as they are, as those of pods do that the metrics-agent names.
    pub fn honoring_labels(mut self) -> Self {
        self.honors_labels = true;
        self
    }

    fn config(&self) -> Value {
        let Self { job, targets, labels, honors_labels } = self;
        json!({
            "job_name": job,
            "honor_labels": honors_labels,
            "static_configs": [{ "targets": targets, "labels": labels }],
        })
    }
}

/// One series of an answer, with its value at the time of the query.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
    scrapes: Vec<Scrape>,
}

impl Prometheus {
    /// Starts a server, and returns when it answers queries; targets may not have been scraped by then.
    pub async fn start(scrapes: impl IntoIterator<Item = Scrape>) -> Self {
        let scrapes: Vec<Scrape> = scrapes.into_iter().collect();
        let folder = std::env::temp_dir().join(format!("prometheus-{}", crate::fresh_name()));
        fs::create_dir_all(&folder).unwrap();
        write_config(&folder, &scrapes);
        let (process, log) = serve(&folder, ([127, 0, 0, 1], 0).into());
        // In place before the first wait, so that a wait that fails ends the process.
        let mut prometheus = Self { process, address: ([127, 0, 0, 1], 0).into(), folder, scrapes };
        prometheus.until_ready(&log).await;
        prometheus
    }

    /// Ends the server, and starts it again at the same address without anything that it had stored.
    pub async fn loses_its_history(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        fs::remove_dir_all(self.folder.join("data")).unwrap();
        let (process, log) = serve(&self.folder, self.address);
        self.process = process;
        self.until_ready(&log).await;
    }

    async fn until_ready(&mut self, log: &Log) {
        self.address = ask_until("Prometheus listens", within(), async || {
            let lines = log.lock().unwrap_or_else(PoisonError::into_inner);
            lines.iter().find_map(|line| listening(line)).ok_or_else(|| lines.join("\n"))
        })
        .await;
        ask_until("Prometheus is ready", within(), async || self.request("GET", "/-/ready", "").await).await;
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces all targets, and returns when the server scrapes the new ones. The series of a job that is no longer named
    /// end 15 s later.
    pub async fn scrape_instead(&mut self, scrapes: impl IntoIterator<Item = Scrape>) {
        self.scrapes = scrapes.into_iter().collect();
        write_config(&self.folder, &self.scrapes);
        self.request("POST", "/-/reload", "").await.unwrap();
    }

    /// Waits until each target has been scraped with success.
    pub async fn until_scraped(&self) {
        let targets: usize = self.scrapes.iter().map(|scrape| scrape.targets.len()).sum();
        self.until("all targets are scraped", "up == 1", |up| up.len() == targets).await;
    }

    /// The series that a query has now; empty where it has none. Panics with Prometheus's message if it is no valid query.
    pub async fn query(&self, promql: &str) -> Vec<Sample> {
        let form = form_urlencoded::Serializer::new(String::new()).append_pair("query", promql).finish();
        let body =
            self.request("POST", "/api/v1/query", &form).await.unwrap_or_else(|error| panic!("{error}"));
        samples(&body).unwrap_or_else(|| panic!("{promql}: {body}"))
    }

    /// Waits until the series of a query pass, and returns them.
    pub async fn until(
        &self,
        what: &str,
        promql: &str,
        mut holds: impl FnMut(&[Sample]) -> bool,
    ) -> Vec<Sample> {
        ask_until(what, within(), async || {
            let samples = self.query(promql).await;
            if holds(&samples) { Ok(samples) } else { Err(format!("{promql} is {samples:#?}")) }
        })
        .await
    }

    /// The names of the metrics in a query, without those that are matched by an expression. Panics if it is no query.
    pub async fn names(&self, promql: &str) -> BTreeSet<String> {
        let form = form_urlencoded::Serializer::new(String::new()).append_pair("query", promql).finish();
        let body = self
            .request("POST", "/api/v1/parse_query", &form)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let parsed: Value = serde_json::from_str(&body).unwrap();
        let mut names = BTreeSet::new();
        collect_names(&parsed["data"], &mut names);
        names
    }

    /// The body of an answer with status 200, or what came instead. HTTP/1.0, so that bodies are neither chunked nor
    /// compressed.
    async fn request(&self, method: &str, path: &str, form: &str) -> Result<String, String> {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let (address, length) = (self.address, form.len());
            let request = format!(
                "{method} {path} HTTP/1.0\r\nhost: {address}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
                 content-length: {length}\r\n\r\n{form}"
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.take(LONGEST_ANSWER).read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = timeout(ANSWERS_WITHIN, exchange).await.unwrap_or_else(|late| Err(late.into()));
        let answer = answer.map_err(|error| format!("{method} {path}: {error}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let is_ok = head.split_whitespace().nth(1) == Some("200");
        if is_ok { Ok(body.to_owned()) } else { Err(format!("{method} {path}: {answer}")) }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It has nothing to keep.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The first lines that the server has written.
type Log = Arc<Mutex<Vec<String>>>;

/// Starts the program with what is in the folder.
fn serve(folder: &Path, address: SocketAddr) -> (Child, Log) {
    let mut process = Command::new(monitoring_tools().join("prometheus"))
        .args(["--web.enable-lifecycle", "--storage.tsdb.no-lockfile", LOOKBACK])
        .arg(format!("--web.listen-address={address}"))
        .arg(format!("--config.file={}", config(folder).display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = Log::default();
    let (lines, stderr) = (Arc::clone(&log), process.stderr.take().unwrap());
    // Ends with the process. All lines are read, because a full pipe would stop the server.
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() < LINES_KEPT {
                lines.push(line);
            }
        }
    });
    (process, log)
}

/// The folder with `prometheus` and `promtool`; builds them the first time, which takes minutes.
pub fn monitoring_tools() -> PathBuf {
    local_cluster::tools::ensure_monitoring().unwrap_or_else(|error| panic!("{}", explained(&error)))
}

fn config(folder: &Path) -> PathBuf {
    folder.join("prometheus.json")
}

/// JSON is YAML.
fn write_config(folder: &Path, scrapes: &[Scrape]) {
    let scrapes: Vec<Value> = scrapes.iter().map(Scrape::config).collect();
    let text = json!({
        "global": { "scrape_interval": "1s", "scrape_timeout": "1s" },
        "scrape_configs": scrapes,
    });
    fs::write(config(folder), text.to_string()).unwrap();
}

fn collect_names(node: &Value, names: &mut BTreeSet<String>) {
    let is_selector = matches!(node["type"].as_str(), Some("vectorSelector" | "matrixSelector"));
    match node["name"].as_str() {
        Some(name) if is_selector && !name.is_empty() => drop(names.insert(name.to_owned())),
        _ => {}
    }
    match node {
        Value::Object(fields) => fields.values().for_each(|child| collect_names(child, names)),
        Value::Array(children) => children.iter().for_each(|child| collect_names(child, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The address of a line such as `level=INFO msg="Listening on" address=127.0.0.1:9090`.
fn listening(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("msg=\"Listening on\"")?.1.split_once("address=")?;
    address.split_whitespace().next()?.parse().ok()
}

#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Value,
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    /// Seconds, and the number as text: JSON has neither infinity nor NaN.
    value: (f64, String),
}

/// Those of a vector, or the one of a scalar.
fn samples(body: &str) -> Option<Vec<Sample>> {
    let Answer { data: Data { result } } = serde_json::from_str(body).ok()?;
    if let Ok((_, value)) = serde_json::from_value::<(f64, String)>(result.clone()) {
        return Some(vec![Sample { labels: BTreeMap::new(), value: value.parse().ok()? }]);
    }
    let series: Vec<Series> = serde_json::from_value(result).ok()?;
    let sample = |series: Series| Some(Sample { labels: series.metric, value: series.value.1.parse().ok()? });
    series.into_iter().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_the_log() {
        let line = r#"time=2026-01-01T00:00:00.000Z level=INFO source=tls_config.go:346 msg="Listening on" component=web address=127.0.0.1:41234"#;
        assert_eq!(listening(line), Some(([127, 0, 0, 1], 41234).into()));
        assert_eq!(listening(r#"msg="Start listening for connections" address=127.0.0.1:0"#), None);
    }

    #[test]
    fn vectors_and_scalars_are_samples() {
        let vector = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1.5,"+Inf"]}]}}"#;
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        assert_eq!(samples(vector), Some(vec![Sample { labels, value: f64::INFINITY }]));
        let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1.5,"2"]}}"#;
        assert_eq!(samples(scalar), Some(vec![Sample { labels: BTreeMap::new(), value: 2.0 }]));
        assert_eq!(samples(r#"{"status":"error"}"#), None);
    }
}
