//! `alive`: the liveness probe of an engine. It asks for the health of the engine, and whether an engine with running
//! requests works on them: of the counters that grow with each step, one must have grown.
//!
//! An engine may be healthy and answer nothing, for example when a collective operation of its GPUs hangs. Between two
//! probes, a file keeps what the counters were, and since when. In doubt the engine lives: metrics that cannot be read,
//! and a file that cannot be written, are no stall. `judge` decides, and is pure.

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::loader::STALLED;
use reqwest::{Client, StatusCode};
use serde::{Deserialize, Serialize};
use text::exposition::{Exposition, parse};
use tokio::time::timeout;
use tracing::debug;

use crate::cli::Alive;

/// Together less than the time limit of the probe, 10 s, which does not show a message.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const PAGE_WITHIN: Duration = Duration::from_secs(2);
/// Between two probes, with one that was late. What was seen longer ago is of another run of the engine, or of another
/// clock.
const SEEN_WITHIN: u64 = 60;
/// An engine has some hundred series.
const LARGEST_PAGE: usize = 8 << 20;
/// Engines of one server, which share the requests: vLLM has one for each `dataParallelSize`.
const ENGINE: &str = "engine";

/// What the last probe has seen.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Seen {
    /// Seconds since 1970.
    at: u64,
    engines: BTreeMap<String, Steps>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Steps {
    /// The sum of the counters.
    counted: f64,
    /// Seconds since 1970, since which the sum has not changed and requests have been running.
    since: u64,
}

/// `Err`: why the engine is restarted.
pub(crate) async fn alive(wanted: &Alive, termination_log: &Path) -> Result<String, String> {
    // There is no TLS: the engine is in the same container.
    let client = Client::builder().tls_certs_only([]).no_proxy().timeout(ANSWERED_WITHIN).build();
    let client = client.map_err(|error| format!("no client: {error}"))?;
    healthy(&client, wanted).await?;
    let page = match timeout(PAGE_WITHIN, page(&client, wanted)).await {
        Ok(Ok(page)) => page,
        Ok(Err(error)) => return Ok(format!("healthy; the metrics cannot be read: {error}")),
        Err(_) => return Ok("healthy; the metrics are late".to_owned()),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let metrics =
        parse(&page, |name| name == wanted.running || wanted.moves.iter().any(|move_| move_ == name));
    let (seen, stalled) = judge(&metrics, wanted, &read(&wanted.state), now);
    if let Err(error) = write(&wanted.state, &seen) {
        return Ok(format!("healthy; {} cannot be written: {error}", wanted.state.display()));
    }
    let stalled = stalled.map(|why| format!("{STALLED}{why}"));
    if let Err(error) = say(termination_log, stalled.as_deref()) {
        debug!("failed to write {}: {error}", termination_log.display());
    }
    stalled.map_or_else(|| Ok("healthy".to_owned()), Err)
}

/// Says why the engine is restarted. What was said of an engine that works again is taken back, because it may end for
/// another reason. Words of others stay.
fn say(termination_log: &Path, stalled: Option<&str>) -> io::Result<()> {
    match stalled {
        Some(why) => fs::write(termination_log, why),
        None if fs::read_to_string(termination_log)?.starts_with(STALLED) => fs::write(termination_log, ""),
        None => Ok(()),
    }
}

async fn healthy(client: &Client, wanted: &Alive) -> Result<(), String> {
    let path = &wanted.path;
    match client.get(url(wanted, path)).send().await.map(|answer| answer.status()) {
        Ok(status) if status.is_success() => Ok(()),
        Ok(status) => Err(format!("{path} answers with status {}", status.as_u16())),
        Err(error) if error.is_timeout() => Err(format!("{path} does not answer in time")),
        Err(error) => {
            Err(format!("{path} does not answer: {}", text::cut(text::printable(&error.to_string()), 200)))
        }
    }
}

async fn page(client: &Client, wanted: &Alive) -> Result<String, String> {
    let cause = |error: reqwest::Error| text::cut(text::printable(&error.to_string()), 200);
    let mut answer = client.get(url(wanted, &wanted.metrics_path)).send().await.map_err(cause)?;
    if answer.status() != StatusCode::OK {
        return Err(format!("status {}", answer.status().as_u16()));
    }
    let mut page = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(cause)? {
        if page.len() + chunk.len() > LARGEST_PAGE {
            return Err(format!("more than {LARGEST_PAGE} bytes"));
        }
        page.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// By its name, so that an engine on addresses of either family is found.
fn url(wanted: &Alive, path: &str) -> String {
    format!("http://localhost:{}{path}", wanted.port)
}

/// What is to be kept, and why the engine counts as stalled.
fn judge(metrics: &Exposition<'_>, wanted: &Alive, before: &Seen, now: u64) -> (Seen, Option<String>) {
    let mut engines: BTreeMap<&str, (f64, Option<f64>)> = BTreeMap::new();
    for series in metrics.series.iter().filter(|series| series.value.is_finite()) {
        let (running, counted) = engines.entry(series.label(ENGINE).unwrap_or_default()).or_default();
        if series.name == wanted.running {
            *running += series.value;
        } else {
            *counted = Some(counted.unwrap_or_default() + series.value);
        }
    }
    let (mut seen, mut stalled) = (Seen { at: now, engines: BTreeMap::new() }, None);
    let is_recent = before.at <= now && now - before.at <= SEEN_WITHIN;
    for (engine, (running, counted)) in engines {
        // Without a counter nothing is known, and without requests nothing has to grow.
        let Some(counted) = counted.filter(|_| running > 0.0) else { continue };
        let before = before.engines.get(engine).filter(|_| is_recent);
        let before = before.filter(|before| before.counted == counted && before.since <= now);
        let since = before.map_or(now, |before| before.since);
        if now - since >= wanted.stall_after_seconds {
            stalled.get_or_insert_with(|| {
                format!("requests run ({running}), and there was no token for {} s", now - since)
            });
        }
        seen.engines.insert(engine.to_owned(), Steps { counted, since });
    }
    (seen, stalled)
}

/// What cannot be read was not seen.
fn read(state: &Path) -> Seen {
    fs::read(state).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Under another name first, because a probe may be killed.
fn write(state: &Path, seen: &Seen) -> io::Result<()> {
    let new = state.with_extension("new");
    fs::write(&new, serde_json::to_vec(seen)?)?;
    fs::rename(new, state)
}

#[cfg(test)]
mod tests {
    use std::{ops::RangeInclusive, path::PathBuf};

    use super::*;

    fn wanted() -> Alive {
        Alive {
            port: 8000,
            path: "/health".to_owned(),
            metrics_path: "/metrics".to_owned(),
            running: "vllm:num_requests_running".to_owned(),
            moves: ["vllm:iteration_tokens_total_count", "vllm:generation_tokens_total"]
                .map(str::to_owned)
                .into(),
            stall_after_seconds: 300,
            state: PathBuf::from("/nonexistent/.alive"),
        }
    }

    /// One engine with so many running requests and generated tokens.
    fn page(engine: u32, running: u32, tokens: u32) -> String {
        format!(
            "vllm:num_requests_running{{engine=\"{engine}\",model_name=\"m\"}} {running}\n\
             vllm:generation_tokens_total{{engine=\"{engine}\",model_name=\"m\"}} {tokens}\n"
        )
    }

    fn every_ten_seconds(during: RangeInclusive<u64>, page: &str) -> Vec<(u64, String)> {
        during.step_by(10).map(|now| (now, page.to_owned())).collect()
    }

    /// The verdicts on pages that were read at these seconds.
    fn verdicts(pages: &[(u64, String)]) -> Vec<Option<String>> {
        let mut seen = Seen::default();
        let mut all = Vec::new();
        for (now, page) in pages {
            let (next, stalled) = judge(&parse(page, |_| true), &wanted(), &seen, *now);
            all.push(stalled);
            seen = next;
        }
        all
    }

    fn has_stalled(pages: &[(u64, String)]) -> bool {
        verdicts(pages).iter().any(Option::is_some)
    }

    #[test]
    fn an_engine_with_requests_and_without_a_token_has_stalled() {
        let mut verdicts = verdicts(&every_ten_seconds(1_000..=1_300, &page(0, 3, 70)));
        let why = "requests run (3), and there was no token for 300 s".to_owned();
        assert_eq!(verdicts.pop(), Some(Some(why)));
        assert!(verdicts.iter().all(Option::is_none), "{verdicts:?}");
    }

    #[test]
    fn a_token_an_idle_moment_or_a_restart_begins_the_time_anew() {
        let still = page(0, 3, 70);
        for between in [page(0, 3, 71), page(0, 0, 70), page(0, 3, 0), String::new()] {
            let mut pages = every_ten_seconds(1_000..=1_200, &still);
            pages.push((1_210, between.clone()));
            pages.extend(every_ten_seconds(1_220..=1_510, &still));
            assert!(!has_stalled(&pages), "{between:?}");
        }
        // The engine was restarted and counts the same, or the clock jumped.
        for next in [1_300..=1_590, 9_000..=9_290, 100..=390] {
            let mut pages = every_ten_seconds(1_000..=1_200, &still);
            pages.extend(every_ten_seconds(next.clone(), &still));
            assert!(!has_stalled(&pages), "{next:?}");
        }
    }

    #[test]
    fn one_of_several_engines_that_stalls_is_found() {
        let pages: Vec<(u64, String)> =
            (0..31).map(|n| (1_000 + 10 * n, page(0, 1, 70) + &page(1, 1, n as u32))).collect();
        assert!(has_stalled(&pages));
    }

    #[test]
    fn an_engine_without_these_metrics_never_stalls() {
        let running = "vllm:num_requests_running 3\n".to_owned();
        assert!(!has_stalled(&every_ten_seconds(1_000..=2_000, &running)));
        assert!(!has_stalled(&every_ten_seconds(1_000..=2_000, "x 1\n")));
    }

    #[test]
    fn what_was_said_of_an_engine_that_works_again_is_taken_back() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let said = || fs::read_to_string(log.path()).unwrap();
        say(log.path(), Some("EngineStalled: why")).unwrap();
        assert_eq!(said(), "EngineStalled: why");
        say(log.path(), None).unwrap();
        assert_eq!(said(), "");
        fs::write(log.path(), "of the engine").unwrap();
        say(log.path(), None).unwrap();
        assert_eq!(said(), "of the engine");
    }

    #[test]
    fn a_damaged_file_is_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join(".alive");
        assert_eq!(read(&state), Seen::default());
        fs::write(&state, "{").unwrap();
        assert_eq!(read(&state), Seen::default());
        let seen = Seen { at: 9, engines: [("0".to_owned(), Steps { counted: 7.0, since: 9 })].into() };
        write(&state, &seen).unwrap();
        assert_eq!(read(&state), seen);
    }
}
