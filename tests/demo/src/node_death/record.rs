//! What a demo observed, as a file and as lines of text. It does not depend on how it was observed.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// One run: its settings, and its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    /// Version of Kubernetes.
    pub(crate) kubernetes: String,
    /// The node that dies.
    pub(crate) node: String,
    /// Of the AIInference.
    pub(crate) node_failure_seconds: i32,
    /// How long pods tolerate an unreachable node by default.
    pub(crate) toleration_seconds: u64,
    /// In the order in which they were observed.
    pub(crate) events: Vec<Event>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Seconds since the node died.
    pub(crate) second: f64,
    #[serde(flatten)]
    pub(crate) what: EventKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum EventKind {
    NodeDies,
    NodeNotReady {
        reason: String,
    },
    PodUnready {
        workload: Workload,
        pod: String,
    },
    PodDeleted {
        workload: Workload,
        pod: String,
    },
    PodScheduled {
        workload: Workload,
        pod: String,
        node: String,
    },
    /// The model is loaded, and the engine runs.
    PodStarted {
        workload: Workload,
        pod: String,
    },
    PodReady {
        workload: Workload,
        pod: String,
    },
    /// Of the AIInference.
    NotReady {
        reason: String,
        message: String,
    },
    Ready,
}

/// What owns a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Workload {
    Inference,
    /// A Deployment of pods of the same shape, without a controller of this project.
    Deployment,
}

impl Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inference => "AIInference",
            Self::Deployment => "Deployment",
        })
    }
}

/// A line of the timeline. It names the node that dies, which the event does not.
pub(crate) fn line(event: &Event, dies: &str) -> String {
    let Event { second, what } = event;
    format!("{second:7.1} s  {}", description(what, dies))
}

fn description(what: &EventKind, dies: &str) -> String {
    match what {
        EventKind::NodeDies => format!("node {dies} fails: no heartbeats, and its pods stop"),
        EventKind::NodeNotReady { reason } => format!("node {dies} is not Ready ({reason})"),
        EventKind::PodUnready { workload, pod } => {
            format!("{workload}: pod {pod} on {dies} is not Ready and gets no requests")
        }
        EventKind::PodDeleted { workload, pod } => format!("{workload}: pod {pod} on {dies} is deleted"),
        EventKind::PodScheduled { workload, pod, node } => {
            format!("{workload}: pod {pod} is scheduled on {node} and loads the model")
        }
        EventKind::PodStarted { workload, pod } => {
            format!("{workload}: pod {pod} has its model and warms up")
        }
        EventKind::PodReady { workload, pod } => format!("{workload}: pod {pod} is Ready"),
        EventKind::NotReady { reason, message } => {
            format!("AIInference: Ready is False ({reason}): {message}")
        }
        EventKind::Ready => "AIInference: Ready is True".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_second_and_names_what_it_is_about() {
        let scheduled = EventKind::PodScheduled {
            workload: Workload::Inference,
            pod: "chat-b".to_owned(),
            node: "gpu-1".to_owned(),
        };
        let lines =
            [Event { second: 0.0, what: EventKind::NodeDies }, Event { second: 71.26, what: scheduled }]
                .map(|event| line(&event, "gpu-0"));
        assert_eq!(
            lines,
            [
                "    0.0 s  node gpu-0 fails: no heartbeats, and its pods stop",
                "   71.3 s  AIInference: pod chat-b is scheduled on gpu-1 and loads the model",
            ]
        );
    }
}
