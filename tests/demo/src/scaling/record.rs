//! What the demo of scaling observed, as a file and as lines of text. It does not depend on how it was observed.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// One run: its settings, and its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    /// Version of Kubernetes.
    pub(crate) kubernetes: String,
    /// Of both autoscalers.
    pub(crate) settings: Settings,
    /// How long a new pod takes to become Ready.
    pub(crate) cold_start_seconds: u32,
    /// Requests that arrive before the burst.
    pub(crate) requests_per_second: u32,
    /// When the recording began: seconds since the burst began, negative. Both have their minimum Ready.
    pub(crate) from: f64,
    /// When it ended, in tenths of a second as all times.
    pub(crate) until: f64,
    /// In the order in which they were observed.
    pub(crate) events: Vec<Event>,
}

/// What both autoscalers are set to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Requests per replica, waiting and running.
    pub(crate) target_value: u32,
    pub(crate) min_replicas: u32,
    pub(crate) max_replicas: u32,
    /// How often each of them decides.
    pub(crate) period_seconds: u32,
    pub(crate) down_window_seconds: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Seconds since the burst began.
    pub(crate) second: f64,
    #[serde(flatten)]
    pub(crate) what: EventKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum EventKind {
    /// From now on so many requests arrive, for each of the two.
    Load { requests_per_second: u32 },
    /// The autoscaler set the replicas of its Deployment.
    Desired { of: Autoscaler, from: u32, replicas: u32 },
    /// So many pods of its Deployment are Ready.
    Ready { of: Autoscaler, from: u32, replicas: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Autoscaler {
    Hpa,
    AiScaler,
}

impl Autoscaler {
    pub(crate) const BOTH: [Self; 2] = [Self::Hpa, Self::AiScaler];

    /// Of its objects and of its series.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hpa => "hpa",
            Self::AiScaler => "aiscaler",
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Hpa => "HorizontalPodAutoscaler",
            Self::AiScaler => "AIScaler",
        }
    }
}

impl Display for Autoscaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hpa => "HPA",
            Self::AiScaler => "AIScaler",
        })
    }
}

/// A line of the timeline, if the event has one. `requests`: the queue of its Deployment at its time.
pub(crate) fn line(event: &Event, requests: f64) -> Option<String> {
    let Event { second, what } = event;
    let text = match *what {
        EventKind::Load { requests_per_second } => {
            format!("{requests_per_second} requests per second arrive")
        }
        EventKind::Desired { of, from, replicas } => {
            format!("{of}: {from} → {replicas} replicas; {requests:.0} requests wait and run")
        }
        EventKind::Ready { of, from, replicas } if replicas > from => {
            format!("{of}: {replicas} replicas are Ready")
        }
        // Deleted pods.
        EventKind::Ready { .. } => return None,
    };
    Some(format!("{second:7.1} s  {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_second_and_deleted_pods_have_none() {
        let of = Autoscaler::AiScaler;
        let events = [
            EventKind::Load { requests_per_second: 12 },
            EventKind::Desired { of, from: 2, replicas: 6 },
            EventKind::Ready { of, from: 2, replicas: 6 },
            EventKind::Ready { of, from: 6, replicas: 2 },
        ];
        let lines = events.map(|what| line(&Event { second: 8.2, what }, 91.4));
        assert_eq!(
            lines.each_ref().map(Option::as_deref),
            [
                Some("    8.2 s  12 requests per second arrive"),
                Some("    8.2 s  AIScaler: 2 → 6 replicas; 91 requests wait and run"),
                Some("    8.2 s  AIScaler: 6 replicas are Ready"),
                None,
            ]
        );
    }
}
