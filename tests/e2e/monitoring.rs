//! The dashboard and the alerts about controllers ask for what real controllers serve.

use std::collections::{BTreeMap, BTreeSet};

use api::controllers::CONTROLLERS;
use serde_json::json;
use tests::{
    ask_until, inference,
    monitoring::{
        dashboards, families, is_series_of,
        prometheus::{Prometheus, Scrape},
        queries, rule_groups, rules, text,
    },
    scaler, simulated, within,
};

/// Counters that have no series before the first failure.
const FAILURES: [&str; 3] =
    ["controller_runtime_reconcile_errors", "watch_failures", "watch_undecodable_objects"];

/// Here no agent is read. `tests/node/agents.rs` has agents, and reads the first one.
const OF_AGENTS: [&str; 2] = ["metrics_sources", "trainingjob_gpu_utilization_ratio"];

/// Pods of workers serve them, which no simulated one does; `crates/monitor` tests its page.
const OF_MONITORS: [&str; 2] = ["agent_queue_depth", "agent_checkpoint_failing"];

fn is_absent_here(names: &BTreeSet<String>) -> bool {
    let mut absent = FAILURES.iter().chain(&OF_AGENTS).chain(&OF_MONITORS);
    absent.any(|family| names.iter().any(|name| is_series_of(name, family)))
}

fn is_documented(family: &str, reference: &str) -> bool {
    family.starts_with("cache_objects_") || reference.contains(&format!("| `{family}` |"))
}

#[tokio::test]
async fn what_the_dashboard_and_the_alerts_about_controllers_name_is_served_by_real_ones() {
    let scene = simulated().await;
    inference::create(&scene, "chat", json!({})).await;
    inference::until_ready(&scene, "chat").await;
    scene.apply(&scaler::deployment("workers", 1).to_string()).await.unwrap();
    scaler::create(&scene, "workers", scaler::spec("workers", "vector(15)"), json!({})).await;
    scaler::until_replicas(&scene, "workers", 3).await;
    let components = scene.cluster().status().await.unwrap().components;
    let mut addresses = BTreeMap::new();
    for component in components {
        if let Some(address) = component.admin_address {
            addresses.insert(component.name, address);
        }
    }
    assert_eq!(addresses.len(), CONTROLLERS.len(), "{addresses:?}");
    let scrapes =
        addresses.iter().map(|(name, address)| Scrape::new(name, [address]).with_label("pod", name));
    let prometheus = Prometheus::start(scrapes).await;
    prometheus.until_scraped().await;

    let mut names = BTreeSet::new();
    for query in dashboards("monitoring/controllers").values().flat_map(queries) {
        let named = prometheus.names(&query.promql).await;
        if !is_absent_here(&named) {
            prometheus.until(&query.place, &query.promql, |samples| !samples.is_empty()).await;
        }
        names.extend(named);
    }
    for controller in CONTROLLERS.iter().map(|controller| controller.name).chain(["controllers"]) {
        let groups = rule_groups(&format!("monitoring/{controller}"));
        for rule in rules(&groups) {
            names.extend(prometheus.names(rule["expr"].as_str().unwrap()).await);
        }
    }
    assert!(names.remove("up"), "{names:?}");
    let declared = text("crates/runtime/src/metrics.rs");
    for family in FAILURES {
        assert!(declared.contains(&format!("\"{family}\"")), "{family} is not declared");
    }
    for (family, file) in
        OF_AGENTS.iter().zip(["metrics-client/src/metrics.rs", "training-controller/src/agents.rs"])
    {
        assert!(
            text(format!("crates/{file}")).contains(&format!("\"{family}\"")),
            "{family} is not declared"
        );
    }
    for (family, file) in OF_MONITORS.iter().zip(["api/src/monitor.rs", "monitor/src/pages.rs"]) {
        assert!(
            text(format!("crates/{file}")).contains(&format!("\"{family}\"")),
            "{family} is not declared"
        );
    }
    let reference = text("docs/reference/metrics.md");
    ask_until("the metrics on the pages of the leaders", within(), async || {
        let mut pages = String::new();
        for name in addresses.keys() {
            pages += &scene.cluster().metrics(name).await.unwrap();
        }
        let undocumented: Vec<&str> =
            families(&pages).into_iter().filter(|family| !is_documented(family, &reference)).collect();
        assert_eq!(undocumented, [""; 0], "not in docs/reference/metrics.md");
        let elsewhere = FAILURES.into_iter().chain(OF_AGENTS).chain(OF_MONITORS);
        let served: Vec<&str> = families(&pages).into_iter().chain(elsewhere).collect();
        let missing: Vec<&String> =
            names.iter().filter(|name| !served.iter().any(|family| is_series_of(name, family))).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are not in\n{pages}")) }
    })
    .await;
}
