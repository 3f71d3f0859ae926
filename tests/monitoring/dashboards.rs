//! The dashboard of GPUs shows what a real metrics-agent serves, and the alerts about GPUs ask for what it serves; the
//! dashboard of agents shows what monitors serve. That of controllers needs a cluster: `tests/e2e/monitoring.rs`.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
};

use api::monitor::metrics;
use serde_json::Value;
use tests::{
    agent::Agent,
    ask_until,
    monitoring::{
        Query, dashboards, families, is_series_of,
        prometheus::{Prometheus, Scrape},
        queries, rule_groups, rules, text,
    },
    within,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::agent::agent;

/// As the PodMonitor has it.
fn scrape(agent: &Agent) -> Scrape {
    Scrape::new("metrics-agent", [&agent.admin]).with_label("node", "node-1").honoring_labels()
}

/// Metrics of a fault that a recorded machine does not have. Each is on the page, without a series.
const FAULTS: [&str; 2] = ["metrics_agent_fault", "metrics_agent_device_fault"];

#[tokio::test]
async fn every_query_of_the_dashboard_of_gpus_returns_data() {
    let agent = agent();
    let prometheus = Prometheus::start([scrape(&agent)]).await;
    let dashboards = dashboards("monitoring/metrics-agent");
    for Query { place, promql } in dashboards.values().flat_map(queries) {
        let names = prometheus.names(&promql).await;
        if names.iter().all(|name| FAULTS.contains(&name.as_str())) && !promql.ends_with("or vector(0)") {
            continue;
        }
        prometheus.until(&place, &promql, |samples| !samples.is_empty()).await;
    }
    let held = r#"gpu_utilization_ratio{namespace="team", pod="chat-0", container="engine", UUID="GPU-0"}"#;
    assert_eq!(prometheus.query(held).await.len(), 1, "the labels of the pod that holds the GPU");
    let free = r#"count(gpu_utilization_ratio{UUID="GPU-1", pod=""})"#;
    assert_eq!(prometheus.query(free).await.len(), 1, "no pod holds it, and the agent's own is not named");
}

#[tokio::test]
async fn every_metric_that_the_dashboard_and_the_alerts_name_is_on_the_page_of_a_real_agent() {
    let agent = agent();
    let prometheus = Prometheus::start([scrape(&agent)]).await;
    let groups = rule_groups("monitoring/metrics-agent");
    let of_rules = rules(&groups).into_iter().map(|rule| rule["expr"].as_str().unwrap().to_owned());
    let dashboards = dashboards("monitoring/metrics-agent");
    let of_panels = dashboards.values().flat_map(queries).map(|query| query.promql);
    let mut names = BTreeSet::new();
    for promql in of_rules.chain(of_panels) {
        names.extend(prometheus.names(&promql).await);
    }
    assert!(names.remove("up"), "{names:?}");
    // The first snapshot may not be there yet.
    ask_until("the metrics on the page", within(), async || {
        let page = agent.page().await;
        let missing: Vec<&String> = names
            .iter()
            .filter(|name| !families(&page).iter().any(|family| is_series_of(name, family)))
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are not in\n{page}")) }
    })
    .await;
}

/// The page of a monitor, as `crates/monitor` tests it.
fn page_of_a_monitor() -> String {
    let labels = r#"{namespace="team",pool="coders",role="coder",worker="coders-workers-1"}"#;
    [metrics::QUEUE_DEPTH, metrics::TASKS_IN_FLIGHT, metrics::TOKENS, CHECKPOINT_FAILING]
        .map(|name| {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            format!("# TYPE {name} {kind}\n{name}{labels} 1\n")
        })
        .concat()
}

const CHECKPOINT_FAILING: &str = "agent_checkpoint_failing";

#[tokio::test]
async fn every_query_of_the_dashboard_of_agents_returns_data() {
    let declared = text("crates/monitor/src/pages.rs");
    assert!(declared.contains(&format!("\"{CHECKPOINT_FAILING}\"")), "it is not declared");
    let page = serve(page_of_a_monitor()).await;
    // As the PodMonitor has it.
    let scrape = Scrape::new("aidispatcher", [page]).with_label("namespace", "team");
    let prometheus = Prometheus::start([scrape]).await;
    for Query { place, promql } in dashboards("monitoring/dispatcher-controller").values().flat_map(queries) {
        prometheus.until(&place, &promql, |samples| !samples.is_empty()).await;
    }
    let loads = loads_of("team", "coders");
    prometheus.until("the query of the controller", &loads, |samples| samples.len() == 2).await;
}

/// The query of the dispatcher-controller for the loads of a pool (`--prometheus-url`).
fn loads_of(namespace: &str, pool: &str) -> String {
    let [queued, in_flight] = [metrics::QUEUE_DEPTH, metrics::TASKS_IN_FLIGHT];
    format!("{{__name__=~\"{queued}|{in_flight}\",namespace=\"{namespace}\",pool=\"{pool}\"}}")
}

#[test]
fn the_query_of_the_dispatcher_controller_is_the_one_that_is_tried() {
    // A test of the controller compares its query with this text.
    let tested = text("crates/dispatcher-controller/src/prometheus.rs");
    let wanted = loads_of("demo", "coder");
    assert!(tested.contains(&wanted), "{wanted}");
}

/// Answers every request with this page, until the test ends.
async fn serve(page: String) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\nconnection: close\r\n";
    let answer = format!("{head}content-length: {}\r\n\r\n{page}", page.len());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // The request is in one packet, and what it asks for does not matter.
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

#[test]
fn panels_ask_the_data_source_of_the_variable_and_do_not_overlap() {
    for (file, dashboard) in dashboards("monitoring") {
        let mut ids = BTreeSet::new();
        let mut cells = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{file}: {title}");
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(x + w <= 24, "{file}: {title} is wider than the page");
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(cells.insert(cell), "{file}: {title} covers another panel");
            }
            if panel["type"] == "row" {
                continue;
            }
            let sources = panel["targets"].as_array().unwrap().iter().chain([panel]);
            for source in sources.map(|asked| &asked["datasource"]["uid"]) {
                assert_eq!(source, &Value::from("${datasource}"), "{file}: {title}");
            }
        }
    }
}
