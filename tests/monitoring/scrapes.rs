//! The PodMonitors select what is deployed: a wrong label or port would scrape nothing, without an error.

use tests::{
    ask_until,
    monitoring::{built, of_kind, text},
    within,
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
