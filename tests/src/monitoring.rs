//! What `deploy/monitoring` says, as kustomize builds it: rules, dashboards and which pods are scraped.

use std::{collections::BTreeMap, path::Path, process::Command};

use kube::api::DynamicObject;
use local_cluster::explained;
use serde_json::Value;

use crate::workspace;

pub mod prometheus;

/// The label by which Grafana's sidecar finds dashboards.
pub const DASHBOARD: &str = "grafana_dashboard";

/// The output of kustomize for a folder below `deploy`.
pub fn built(folder: &str) -> Vec<DynamicObject> {
    built_at(&workspace().join("deploy").join(folder))
}

/// The output of kustomize for any folder.
pub fn built_at(folder: &Path) -> Vec<DynamicObject> {
    let kubectl =
        local_cluster::tools::ensure_kubectl(None).unwrap_or_else(|error| panic!("{}", explained(&error)));
    let output = Command::new(kubectl.join("kubectl")).arg("kustomize").arg(folder).output().unwrap();
    assert!(output.status.success(), "{}: {}", folder.display(), String::from_utf8_lossy(&output.stderr));
    local_cluster::api_server::install::parse(&String::from_utf8_lossy(&output.stdout)).unwrap()
}

/// Those of a kind.
pub fn of_kind<'a>(objects: &'a [DynamicObject], kind: &str) -> Vec<&'a DynamicObject> {
    let is_of = |object: &&DynamicObject| object.types.as_ref().is_some_and(|types| types.kind == kind);
    let found: Vec<&DynamicObject> = objects.iter().filter(is_of).collect();
    assert!(!found.is_empty(), "no {kind}");
    found
}

/// The dashboards of a folder, by the names of their files.
pub fn dashboards(folder: &str) -> BTreeMap<String, Value> {
    let objects = built(folder);
    let mut dashboards = BTreeMap::new();
    for object in of_kind(&objects, "ConfigMap") {
        let labels = object.metadata.labels.clone().unwrap_or_default();
        assert_eq!(labels.get(DASHBOARD).map(String::as_str), Some("1"), "{:?}", object.metadata.name);
        for (file, text) in object.data["data"].as_object().unwrap() {
            let dashboard = serde_json::from_str(text.as_str().unwrap()).unwrap();
            dashboards.insert(file.clone(), dashboard);
        }
    }
    dashboards
}

/// A query of a panel, of a variable or of a rule.
#[derive(Clone, Debug)]
pub struct Query {
    /// For messages.
    pub place: String,
    pub promql: String,
}

/// All queries of a dashboard's panels. Variables stand for everything, and intervals are short: the tests scrape once a
/// second.
pub fn queries(dashboard: &Value) -> Vec<Query> {
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let promql = target["expr"].as_str().unwrap().replace("$__rate_interval", "10s");
            let promql = variables(dashboard)
                .fold(promql, |text, variable| text.replace(&format!("${variable}"), ".*"));
            assert!(!promql.contains('$'), "a variable is not defined: {promql}");
            queries.push(Query { place: panel["title"].as_str().unwrap().to_owned(), promql });
        }
    }
    assert!(!queries.is_empty(), "no query");
    queries
}

fn variables(dashboard: &Value) -> impl Iterator<Item = &str> {
    let variables = dashboard["templating"]["list"].as_array().into_iter().flatten();
    variables.filter_map(|variable| variable["name"].as_str()).filter(|name| *name != "datasource")
}

/// The groups of the rules of a folder, in the form of Prometheus's own files.
pub fn rule_groups(folder: &str) -> Value {
    let objects = built(folder);
    let groups = of_kind(&objects, "PrometheusRule")
        .into_iter()
        .flat_map(|rules| rules.data["spec"]["groups"].as_array().cloned().unwrap_or_default());
    serde_json::json!({ "groups": groups.collect::<Vec<_>>() })
}

/// The rules in groups.
pub fn rules(groups: &Value) -> Vec<&Value> {
    let groups = groups["groups"].as_array().into_iter().flatten();
    groups.flat_map(|group| group["rules"].as_array().into_iter().flatten()).collect()
}

/// The names on a page of metrics, without those of the series of histograms and counters.
pub fn families(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

/// Whether a name in a query is a series of this family.
pub fn is_series_of(name: &str, family: &str) -> bool {
    let suffixes = ["", "_total", "_bucket", "_count", "_sum"];
    name.strip_prefix(family).is_some_and(|suffix| suffixes.contains(&suffix))
}

/// The text of a file of the workspace.
pub fn text(path: impl AsRef<Path>) -> String {
    let path = workspace().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
