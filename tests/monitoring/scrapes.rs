//! The PodMonitors select what is deployed: a wrong label or port would scrape nothing, without an error.

use tests::monitoring::{built, of_kind};

#[test]
fn each_pod_monitor_selects_the_pods_and_the_port_of_its_program() {
    let monitoring = built("monitoring");
    for monitor in of_kind(&monitoring, "PodMonitor") {
        let name = monitor.metadata.name.as_deref().unwrap();
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
