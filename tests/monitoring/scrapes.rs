//! The PodMonitors select what is deployed: a wrong label or port would scrape nothing, without an error.

use std::fs;

use serde_json::Value;
use tests::{
    ask_until,
    monitoring::{built, of_kind, text},
    within, workspace,
};

use crate::agent::agent;

/// Labels of the agent are believed, so that it must serve nothing of others.
#[tokio::test]
async fn of_an_agent_its_own_metrics_are_kept_and_no_others() {
    let monitoring = built("monitoring");
    let monitors = of_kind(&monitoring, "PodMonitor");
    let monitor =
        monitors.iter().find(|monitor| monitor.metadata.name.as_deref() == Some("metrics-agent")).unwrap();
    let endpoint = &monitor.data["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["honorLabels"], true);
    let [rule] = endpoint["metricRelabelings"].as_array().unwrap().as_slice() else { panic!("one rule") };
    assert_eq!((rule["action"].as_str(), rule["sourceLabels"][0].as_str()), (Some("keep"), Some("__name__")));
    let prefixes = rule["regex"].as_str().unwrap().strip_prefix('(').unwrap().strip_suffix(").*").unwrap();
    let is_kept = |name: &str| prefixes.split('|').any(|prefix| name.starts_with(prefix));
    let agent = agent();
    let names = ask_until("metrics of the devices", within(), async || {
        let page = agent.page().await;
        let body = page.split_once("\r\n\r\n").unwrap().1;
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        let names: Vec<String> =
            lines.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect();
        // Before the first reading there are only metrics of the agent itself.
        if names.len() > 20 { Ok(names) } else { Err(page) }
    })
    .await;
    for name in names {
        assert!(is_kept(&name), "{name} is not scraped");
    }
    for foreign in ["vllm:num_requests_running", "up", "kube_pod_info", "controller_runtime_reconcile_total"]
    {
        assert!(!is_kept(foreign), "{foreign}");
    }
}

/// Pods of several namespaces are of users, who can serve anything with the labels that are selected.
#[test]
fn what_pods_of_users_serve_is_bounded() {
    let mut bounded = Vec::new();
    for monitor in monitors() {
        let (name, spec) = (&monitor["metadata"]["name"], &monitor["spec"]);
        let selected = &spec["namespaceSelector"];
        let namespaces = selected["matchNames"].as_array().map_or(0, Vec::len);
        if selected["any"] != true && namespaces <= 1 {
            continue;
        }
        for limit in ["sampleLimit", "labelLimit", "labelNameLengthLimit", "labelValueLengthLimit"] {
            assert!(spec[limit].as_u64().is_some_and(|limit| limit > 0), "{name}: {limit}");
        }
        assert!(spec["bodySizeLimit"].is_string(), "{name}: bodySizeLimit");
        let endpoints = [&spec["podMetricsEndpoints"], &spec["endpoints"]];
        for endpoint in endpoints.into_iter().filter_map(Value::as_array).flatten() {
            assert_eq!(endpoint["followRedirects"], false, "{name}: {endpoint}");
            assert_ne!(endpoint["honorLabels"], true, "{name}: {endpoint}");
        }
        bounded.push(name.to_string());
    }
    assert!(!bounded.is_empty(), "have the monitors moved?");
}

/// Every PodMonitor and ServiceMonitor below `deploy`.
fn monitors() -> Vec<Value> {
    let mut folders = vec![workspace().join("deploy")];
    let mut monitors = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            // A document of another kind may have a form of its own.
            let text = fs::read_to_string(&path).unwrap();
            let documents = text.split("\n---\n").filter(|document| document.contains("Monitor\n"));
            let documents = documents.map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
            let is_monitor = |document: &Value| {
                ["PodMonitor", "ServiceMonitor"].map(Value::from).contains(&document["kind"])
            };
            monitors.extend(documents.filter(is_monitor));
        }
    }
    monitors
}

/// The PodMonitor of pods that no manifest has: the dispatcher-controller makes them.
const OF_WORKERS: &str = "agents";

#[test]
fn the_pod_monitor_of_workers_selects_what_the_controller_renders() {
    let monitoring = built("monitoring");
    let monitors = of_kind(&monitoring, "PodMonitor");
    let found = monitors.into_iter().find(|monitor| monitor.metadata.name.as_deref() == Some(OF_WORKERS));
    let spec = &found.expect("a PodMonitor").data["spec"];
    let rendered = text(
        "crates/dispatcher-controller/src/plan/snapshots/dispatcher_controller__plan__tests__the_first_plan.snap",
    );
    let (_, template) = rendered.split_once("    template:\n").expect("a template");
    for (label, value) in spec["selector"]["matchLabels"].as_object().unwrap() {
        let line = format!("          {label}: {}\n", value.as_str().unwrap());
        assert!(template.contains(&line), "{line}");
    }
    let port = spec["podMetricsEndpoints"][0]["port"].as_str().unwrap();
    assert!(template.contains(&format!("name: {port}\n")), "{port}");
}

#[test]
fn each_pod_monitor_selects_the_pods_and_the_port_of_its_program() {
    let monitoring = built("monitoring");
    for monitor in of_kind(&monitoring, "PodMonitor") {
        let name = monitor.metadata.name.as_deref().unwrap();
        if name == OF_WORKERS {
            continue;
        }
        let base = built(&format!("{name}/base"));
        let kind = if name == "metrics-agent" { "DaemonSet" } else { "Deployment" };
        let [program] = of_kind(&base, kind)[..] else { panic!("one {kind} of {name}") };
        let spec = &monitor.data["spec"];
        let [namespace] = spec["namespaceSelector"]["matchNames"].as_array().unwrap().as_slice() else {
            panic!("one namespace")
        };
        assert_eq!(namespace.as_str(), program.metadata.namespace.as_deref());
        let template = &program.data["spec"]["template"];
        let labels = template["metadata"]["labels"].as_object().unwrap();
        for (label, value) in spec["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(labels.get(label), Some(value), "{name}");
        }
        assert_eq!(labels[spec["jobLabel"].as_str().unwrap()], name, "the label `job` of the alerts");
        let ports = template["spec"]["containers"][0]["ports"].as_array().unwrap();
        for endpoint in spec["podMetricsEndpoints"].as_array().unwrap() {
            assert!(ports.iter().any(|port| port["name"] == endpoint["port"]), "{name}: {endpoint}");
        }
    }
}
