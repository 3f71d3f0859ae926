//! Requests of the past as a Prometheus-compatible server remembers them: how many came per second.
//!
//! A server does not know single requests. They are made from the rate of each step, by chance, as requests of many users come.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use reqwest::Url;
use serde::Deserialize;
use tokio::time::timeout;

use crate::{arrivals::Request, random::Random};

/// What is asked, and of whom.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Past {
    /// Prometheus-compatible server to read past arrivals from, instead of a file
    #[arg(long, value_name = "URL", requires = "query")]
    pub(crate) prometheus: Option<Url>,
    /// PromQL query of the requests per second, with one series, such as `sum(rate(vllm:request_success_total[1m]))`
    #[arg(long, value_name = "PROMQL")]
    query: Option<String>,
    /// How much of the past, such as 6h or 7d
    #[arg(long, default_value = "1d", value_parser = since)]
    since: Duration,
    /// Mean seconds that a replica works on a request
    #[arg(long, default_value_t = 5.0, value_parser = crate::seconds)]
    request_seconds: f64,
    /// File with the bearer token of the server
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Another seed makes other requests of the same rates
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// Of a server that answers slowly because it reads a week.
const DEADLINE: Duration = Duration::from_secs(60);
/// Prometheus refuses to answer with more than 11 000.
const MOST_STEPS: u64 = 10_000;
/// Shorter than between two scrapes says nothing.
const SHORTEST_STEP: u64 = 15;
/// 10 000 numbers are far below it.
const LARGEST_ANSWER: u64 = 8 << 20;
/// As of files.
const MOST_REQUESTS: usize = 5_000_000;
const MONTH: Duration = Duration::from_hours(31 * 24);

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    values: Vec<(f64, String)>,
}

/// Requests per second, from this second on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    at: f64,
    rate: f64,
}

impl Past {
    pub(crate) fn read(&self, server: &Url) -> anyhow::Result<Vec<Request>> {
        // An error would mean that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let step = (self.since.as_secs() / MOST_STEPS).max(SHORTEST_STEP);
        let text = tokio
            .block_on(async { timeout(DEADLINE, self.ask(server, step)).await })
            .map_err(|_| anyhow::anyhow!("{server} did not answer within {} s", DEADLINE.as_secs()))??;
        requests(&steps(&text)?, step as f64, self.request_seconds, self.seed)
    }

    async fn ask(&self, server: &Url, step: u64) -> anyhow::Result<String> {
        let now = Timestamp::now();
        let since = now.saturating_sub(SignedDuration::try_from(self.since)?)?;
        let mut url = server.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow::anyhow!("{server} is no http or https URL"))?
            .pop_if_empty()
            .extend(["api", "v1", "query_range"]);
        url.query_pairs_mut()
            .append_pair("query", self.query.as_deref().unwrap_or_default())
            .append_pair("start", &since.as_second().to_string())
            .append_pair("end", &now.as_second().to_string())
            .append_pair("step", &step.to_string());
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
        let mut request = client.get(url);
        if let Some(file) = &self.token_file {
            let token = std::fs::read_to_string(file)
                .with_context(|| format!("failed to read {}", file.display()))?;
            request = request.bearer_auth(token.trim());
        }
        let mut answer = request.send().await.with_context(|| format!("failed to ask {server}"))?;
        let mut text = Vec::new();
        while let Some(chunk) =
            answer.chunk().await.with_context(|| format!("failed to read from {server}"))?
        {
            text.extend_from_slice(&chunk);
            ensure!(
                text.len() as u64 <= LARGEST_ANSWER,
                "{server} answers with more than {LARGEST_ANSWER} bytes"
            );
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        // Its reason is in the text, if it is JSON.
        if !answer.status().is_success() && !text.trim_start().starts_with('{') {
            bail!("{server} answered with {}: check --prometheus and --token-file", answer.status());
        }
        Ok(text)
    }
}

fn steps(text: &str) -> anyhow::Result<Vec<Step>> {
    let answer: Answer =
        serde_json::from_str(text).context("the answer is not that of a Prometheus-compatible server")?;
    if let Some(error) = answer.error {
        bail!("the server refuses the query: {error}");
    }
    let mut series = answer.data.map(|data| data.result).unwrap_or_default().into_iter();
    let first = series.next().context("the query has no series in this time: check --query and --since")?;
    let others = series.count();
    ensure!(others == 0, "the query has {} series: write sum(...)", others + 1);
    let step = |(at, rate): (f64, String)| {
        let rate = rate.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0)?;
        Some(Step { at, rate })
    };
    // A step without a number, as of a division by zero, has no requests.
    Ok(first.values.into_iter().filter_map(step).collect())
}

fn requests(steps: &[Step], step: f64, seconds: f64, seed: u64) -> anyhow::Result<Vec<Request>> {
    let mut random = Random::of(seed);
    let mut requests = Vec::new();
    for Step { at: begin, rate } in steps.iter().filter(|step| step.rate > 0.0) {
        let mut at = begin + random.exponential(1.0 / rate);
        while at < begin + step {
            ensure!(requests.len() < MOST_REQUESTS, "more than {MOST_REQUESTS} requests: shorten --since");
            requests.push(Request { at, takes: random.time_of_request(seconds) });
            at += random.exponential(1.0 / rate);
        }
    }
    let Some(first) = requests.first().map(|first| first.at) else { bail!("the rate is 0 all the time") };
    requests.iter_mut().for_each(|request| request.at -= first);
    Ok(requests)
}

/// `90m`, `6h` or `7d`.
fn since(text: &str) -> Result<Duration, String> {
    let unit = |unit: char| match unit {
        'm' => Some(60),
        'h' => Some(3_600),
        'd' => Some(86_400),
        _ => None,
    };
    let last = text.chars().next_back().and_then(|last| Some((unit(last)?, last)));
    let seconds =
        last.and_then(|(seconds, last)| text.strip_suffix(last)?.parse::<u64>().ok()?.checked_mul(seconds));
    let since = seconds.map(Duration::from_secs).filter(|since| !since.is_zero() && *since <= MONTH);
    since.ok_or_else(|| format!("{text:?} is no time of up to 31 days: write 90m, 6h or 7d"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    const ANSWER: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1000,"2"],[1015,"NaN"],[1030,"4"]]}]}}"#;

    #[test]
    fn requests_have_the_rates_of_the_steps_and_equal_seeds_give_equal_ones() {
        let steps = steps(ANSWER).unwrap();
        assert_eq!(steps, [Step { at: 1_000.0, rate: 2.0 }, Step { at: 1_030.0, rate: 4.0 }]);
        let long: Vec<Step> = (0..400).map(|index| Step { at: f64::from(index) * 15.0, rate: 2.0 }).collect();
        let made = requests(&long, 15.0, 5.0, 7).unwrap();
        assert!((11_500..12_500).contains(&made.len()), "{}", made.len());
        assert_eq!(made[0].at, 0.0);
        assert!(made.is_sorted_by_key(|request| request.at));
        assert_eq!(made, requests(&long, 15.0, 5.0, 7).unwrap());
        assert_ne!(made, requests(&long, 15.0, 5.0, 8).unwrap());
        let gap = requests(&steps, 15.0, 5.0, 7).unwrap();
        assert!(gap.iter().all(|request| !(15.5..29.0).contains(&request.at)), "{gap:?}");
    }

    #[test]
    fn an_answer_that_is_of_no_use_says_what_to_correct() {
        for (answer, words) in [
            ("<html>", "not that of a Prometheus-compatible server"),
            (r#"{"status":"error","error":"parse error"}"#, "refuses the query: parse error"),
            (r#"{"status":"success","data":{"result":[]}}"#, "check --query and --since"),
            (
                r#"{"status":"success","data":{"result":[{"values":[]},{"values":[]}]}}"#,
                "2 series: write sum(...)",
            ),
        ] {
            let error = format!("{:#}", steps(answer).unwrap_err());
            assert!(error.contains(words), "{answer}: {error}");
        }
        let idle = requests(&[Step { at: 0.0, rate: 0.0 }], 15.0, 5.0, 7).unwrap_err();
        assert!(idle.to_string().contains("0 all the time"));
    }

    #[test]
    fn a_time_has_a_unit() {
        assert_eq!(since("90m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(since("7d"), Ok(Duration::from_secs(604_800)));
        for text in ["", "7", "d", "0h", "32d", "1w", "-1h", "1.5h"] {
            assert!(since(text).unwrap_err().contains("7d"), "{text}");
        }
    }

    #[test]
    fn a_server_is_asked_for_the_time_that_is_wanted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/prefix/", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = vec![0; 4_096];
            let length = stream.read(&mut read).unwrap();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{ANSWER}", ANSWER.len());
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&read[..length]).into_owned()
        });
        let crate::Cli { past, .. } = crate::Cli::parse_from([
            "replay",
            "--scaler",
            "a.yaml",
            "--prometheus",
            &url,
            "--query",
            "sum(a)",
            "--since",
            "7d",
        ]);
        let requests = past.read(past.prometheus.as_ref().unwrap()).unwrap();
        assert!(!requests.is_empty());
        let asked = served.join().unwrap();
        assert!(asked.starts_with("GET /prefix/api/v1/query_range?query=sum%28a%29&start="), "{asked}");
        assert!(asked.contains("&step=60 "), "10 000 steps at most: {asked}");
    }
}
