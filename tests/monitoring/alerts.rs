//! Each alert fires when it should and rests when it should, by `promtool test rules`, and says what to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use api::controllers::CONTROLLERS;
use serde_json::Value;
use tests::monitoring::{prometheus::monitoring_tools, rule_groups, rules, text};

/// Folders of `deploy/monitoring`, each with a file of tests beside this one.
const FOLDERS: [&str; 8] = [
    "controllers",
    "dispatcher-controller",
    "inference-controller",
    "metrics-agent",
    "endpoint-controller",
    "evaluation-controller",
    "scaler-controller",
    "training-controller",
];

const RUNBOOKS: &str = "docs/runbooks.md";

fn groups(folder: &str) -> Value {
    rule_groups(&format!("monitoring/{folder}"))
}

fn alerts(groups: &Value) -> Vec<&str> {
    rules(groups).into_iter().map(|rule| rule["alert"].as_str().expect("an alert")).collect()
}

#[track_caller]
fn promtool(folder: &Path, args: &[&str]) {
    let output =
        Command::new(monitoring_tools().join("promtool")).args(args).current_dir(folder).output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "promtool {args:?}: {}", said.concat());
}

#[test]
fn all_rules_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.json"), rule_groups("monitoring").to_string()).unwrap();
    promtool(folder.path(), &["check", "rules", "--lint=all", "--lint-fatal", "rules.json"]);
}

#[test]
fn each_alert_fires_and_rests_as_its_tests_say() {
    for name in FOLDERS {
        let folder = tempfile::tempdir().unwrap();
        let mut groups = groups(name);
        // Their texts would have to stand in each test once more; `check` parses the templates.
        for group in groups["groups"].as_array_mut().unwrap() {
            for rule in group["rules"].as_array_mut().unwrap() {
                rule.as_object_mut().unwrap().remove("annotations");
            }
        }
        fs::write(folder.path().join("rules.json"), groups.to_string()).unwrap();
        fs::write(folder.path().join("tests.yaml"), text(test_file(name))).unwrap();
        promtool(folder.path(), &["test", "rules", "tests.yaml"]);
    }
}

fn test_file(folder: &str) -> String {
    format!("tests/monitoring/rules/{folder}.yaml")
}

#[test]
fn each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let mut names = BTreeSet::new();
    for name in FOLDERS {
        let tests: Value = serde_saphyr::from_str(&text(test_file(name))).unwrap();
        let mut seen: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
        for test in tests["tests"].as_array().unwrap() {
            for expected in test["alert_rule_test"].as_array().unwrap() {
                let fires = !expected["exp_alerts"].as_array().unwrap().is_empty();
                seen.entry(expected["alertname"].as_str().unwrap()).or_default().insert(fires);
            }
        }
        let groups = groups(name);
        for alert in alerts(&groups) {
            assert_eq!(seen.get(alert), Some(&BTreeSet::from([false, true])), "{alert}");
            assert!(names.insert(alert.to_owned()), "{alert} is there twice");
        }
    }
    let all = rule_groups("monitoring");
    assert_eq!(names, alerts(&all).into_iter().map(str::to_owned).collect(), "a folder has no tests");
}

#[test]
fn each_alert_has_a_severity_a_text_and_a_runbook_and_each_runbook_an_alert() {
    let groups = rule_groups("monitoring");
    let runbooks = text(RUNBOOKS);
    let headings: BTreeSet<&str> = runbooks.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for rule in rules(&groups) {
        let alert = rule["alert"].as_str().unwrap();
        let severity = rule["labels"]["severity"].as_str();
        assert!(matches!(severity, Some("info" | "warning" | "critical")), "{alert}: {severity:?}");
        for annotation in ["summary", "description"] {
            let words = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(words.ends_with('.'), "{alert}: {annotation} {words:?}");
        }
        let runbook = format!("{RUNBOOKS}#{}", alert.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"], runbook.as_str(), "{alert}");
    }
    assert_eq!(headings, alerts(&groups).into_iter().collect());
}

/// `kubectl logs` of a Deployment or a DaemonSet reads one of its pods: that of another node, or a replica that stands by.
#[test]
fn the_commands_of_runbooks_read_the_logs_of_every_pod() {
    let commands = text(RUNBOOKS);
    let mut commands =
        commands.lines().filter(|line| line.starts_with("$ kubectl") && line.contains(" logs "));
    assert!(commands.clone().count() > 10);
    assert_eq!(commands.find(|line| line.contains("daemonset/") || line.contains("deployment/")), None);
}

/// The dispatcher-controller reads monitors of workers, and two controllers read nothing: none of them has metrics agents.
#[test]
fn the_alerts_about_every_controller_name_each_of_them() {
    for rule in rules(&groups("controllers")) {
        let is_about_agents = rule["alert"] == "ControllerLacksAgents";
        let names = CONTROLLERS.iter().map(|controller| controller.name);
        let without_agents = ["dispatcher-controller", "endpoint-controller", "evaluation-controller"];
        let names = names.filter(|name| !is_about_agents || !without_agents.contains(name));
        let matcher = format!("{{job=~\"{}\"", names.collect::<Vec<_>>().join("|"));
        let expr = rule["expr"].as_str().unwrap();
        assert!(expr.contains(&matcher), "{} has no {matcher}}}", rule["alert"]);
    }
}

#[test]
fn the_alert_about_xids_and_the_agent_agree_which_are_fatal() {
    let source = text("crates/metrics-agent/src/device/nvml/events.rs");
    let (_, harmless) = source.split_once("const HARMLESS_XIDS: [u64; 8] = [").unwrap();
    let list = harmless.split_once(']').unwrap().0;
    assert!(text(RUNBOOKS).contains(&format!("({list})")), "the runbook lists others than {list}");
    let harmless = list.replace(", ", " != ");
    let groups = groups("metrics-agent");
    let alert = rules(&groups).into_iter().find(|rule| rule["alert"] == "GPUFatalXID").unwrap();
    let expected = format!("> 0 != {harmless}");
    assert!(
        alert["expr"].as_str().unwrap().ends_with(&expected),
        "{} does not end with {expected}",
        alert["expr"]
    );
}
