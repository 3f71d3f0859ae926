//! How simulated pods behave: the stages that kwok plays, put together from the YAML, jq and template files of `simulation`.
//! The simulated nodes and the logs of their pods are in `simulation` too.
//!
//! The crate's README.md lists the settings that choose a pod's fate.

use crate::{ClusterSpec, Detail};

pub mod nodes;
pub mod pod_logs;

/// Before the name of a setting, in an annotation of a pod.
pub(crate) const SETTING_ANNOTATION: &str = "sim.ai.infra.example.com/";
/// The container that trains.
pub(crate) const TRAINER: &str = "trainer";
/// How many steps a trainer makes whose pod does not say it.
pub(crate) const TRAINING_STEPS: u32 = 60;

/// The stages. `@jq` stands for the functions, `@fate` for the head of each template, `@port` for the port of each kubelet.
/// In functions and templates, `@time` stands for the time of a training and `@steps` for its steps.
const STAGES: &str = include_str!("simulation/stages.yaml");
/// What the conditions of the stages are made of.
const FUNCTIONS: &str = include_str!("simulation/functions.jq");
/// What the templates of the stages are made of.
const FATE: &str = include_str!("simulation/fate.tpl");

/// Stages that cost as little as possible: a pod that has a node is ready one write later.
const LEAN_STAGES: &str = include_str!("simulation/lean-stages.yaml");

/// kwok's configuration file.
pub(crate) fn stages(spec: &ClusterSpec, node_port: u16) -> String {
    let stages = match spec.detail {
        Detail::Full => scripted_stages(),
        Detail::Lean => LEAN_STAGES.to_owned(),
    };
    stages
        .replace("@port", &node_port.to_string())
        .replace("@time", &format!("{}ms", spec.training_time.as_millis()))
        .replace("@steps", &TRAINING_STEPS.to_string())
}

fn scripted_stages() -> String {
    STAGES.replace("@jq", &one_line(FUNCTIONS, "#")).replace("@fate", &one_line(FATE, "{{/*"))
}

/// The text without its comments, as it can stand inside a line of YAML.
fn one_line(text: &str, comment: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(comment));
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled_and_the_result_is_yaml() {
        for detail in [Detail::Full, Detail::Lean] {
            let spec = ClusterSpec::api_only("dev", "tools").with_detail(detail);
            let stages = stages(&spec, 10_250);
            assert!(!stages.contains('@'));
            let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&stages).unwrap();
            assert!(documents.iter().all(|stage| stage["kind"] == "Stage"));
        }
    }
}
