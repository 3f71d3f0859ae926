//! The queue of each Deployment, and what is said of a run. Pure: all of it follows from the events of a record.
//!
//! The queue is a fluid model, because nothing runs in simulated pods. Requests arrive at the rate of the load and wait
//! until a replica takes them. A Ready replica runs at most [`AT_ONCE`] requests, each for [`REQUEST_SECONDS`], so it
//! serves at most one request per second. With n requests and r Ready replicas, min(n, 5 r) / 5 leave per second. At
//! the target of five requests per replica, replicas are as many as requests arrive per second, and none waits.

use super::record::{Autoscaler, EventKind, Record};

/// Requests that a replica runs at the same time.
pub(crate) const AT_ONCE: f64 = 5.0;
/// How long a request runs.
pub(crate) const REQUEST_SECONDS: f64 = 5.0;
/// The step of the model, and the precision of a record.
const STEPS_PER_SECOND: f64 = 10.0;
/// From so many requests on, requests wait: of a fluid, a part of one always does.
const WAITS: f64 = 1.0;

/// The state of one Deployment at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Moment {
    pub(crate) second: f64,
    /// Waiting and running.
    pub(crate) requests: f64,
    pub(crate) desired: u32,
    pub(crate) ready: u32,
}

impl Moment {
    fn runs(&self) -> f64 {
        self.requests.min(AT_ONCE * f64::from(self.ready))
    }

    fn waits(&self) -> f64 {
        self.requests - self.runs()
    }
}

/// The figures of one autoscaler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    /// Seconds from the beginning of the burst until no request waits any more; `None` if some waited to the end.
    pub(crate) cleared_after: Option<f64>,
    pub(crate) most_requests: f64,
    pub(crate) most_replicas: u32,
    /// From the beginning of the burst on. Replicas that start count: they hold their GPUs.
    pub(crate) replica_minutes: f64,
}

/// Each step of a recording, which begins with a queue at rest.
pub(crate) fn course(record: &Record, of: Autoscaler) -> Vec<Moment> {
    let mut arrive = f64::from(record.requests_per_second);
    let least = record.settings.min_replicas;
    let mut moment =
        Moment { second: record.from, requests: arrive * REQUEST_SECONDS, desired: least, ready: least };
    let mut events = record.events.iter().peekable();
    let mut moments = Vec::new();
    for step in 0..=steps(record.until - record.from) {
        moment.second = rounded(record.from + f64::from(step) / STEPS_PER_SECOND);
        while let Some(event) = events.next_if(|event| event.second <= moment.second) {
            match event.what {
                EventKind::Load { requests_per_second } => arrive = f64::from(requests_per_second),
                EventKind::Desired { of: whose, replicas, .. } if whose == of => moment.desired = replicas,
                EventKind::Ready { of: whose, replicas, .. } if whose == of => moment.ready = replicas,
                EventKind::Desired { .. } | EventKind::Ready { .. } => {}
            }
        }
        moments.push(moment);
        moment.requests += (arrive - moment.runs() / REQUEST_SECONDS) / STEPS_PER_SECOND;
    }
    moments
}

/// The last step of a recording.
pub(crate) fn now(record: &Record, of: Autoscaler) -> Moment {
    let last = course(record, of).pop();
    last.unwrap_or(Moment { second: record.until, requests: 0.0, desired: 0, ready: 0 })
}

/// What the table says of a run.
pub(crate) fn figures(record: &Record, of: Autoscaler) -> Figures {
    let mut course = course(record, of);
    course.retain(|moment| moment.second >= 0.0);
    let waits = |moment: &Moment| moment.waits() >= WAITS;
    let cleared_after = match course.iter().rposition(waits) {
        None => Some(0.0),
        Some(last) => course.get(last + 1).map(|moment| moment.second),
    };
    Figures {
        cleared_after,
        most_requests: course.iter().map(|moment| moment.requests).fold(0.0, f64::max),
        most_replicas: course.iter().map(|moment| moment.desired).max().unwrap_or(0),
        replica_minutes: course.iter().map(|moment| f64::from(moment.desired)).sum::<f64>()
            / STEPS_PER_SECOND
            / 60.0,
    }
}

/// The table: what is counted, and the value of each of [`Autoscaler::BOTH`].
pub(crate) fn table(record: &Record) -> [(&'static str, [String; 2]); 4] {
    let figures = Autoscaler::BOTH.map(|of| figures(record, of));
    let cleared = |figures: Figures| {
        figures.cleared_after.map_or("not within the recording".to_owned(), |second| format!("{second:.1} s"))
    };
    [
        ("no request waits any more after", figures.map(cleared)),
        (
            "largest queue, waiting and running",
            figures.map(|figures| format!("{:.0}", figures.most_requests)),
        ),
        ("most replicas", figures.map(|figures| figures.most_replicas.to_string())),
        (
            "replica-minutes since the burst began",
            figures.map(|figures| format!("{:.1}", figures.replica_minutes)),
        ),
    ]
}

/// To tenths.
pub(crate) fn rounded(second: f64) -> f64 {
    (second * STEPS_PER_SECOND).round() / STEPS_PER_SECOND
}

/// How many steps they are.
fn steps(seconds: f64) -> u32 {
    (seconds * STEPS_PER_SECOND).round().max(0.0) as u32
}

#[cfg(test)]
mod tests {
    use super::{
        super::record::{Event, Settings},
        *,
    };

    const OF: Autoscaler = Autoscaler::AiScaler;

    /// Two requests per second and two replicas, before these events.
    fn record<const N: usize>(events: [(f64, EventKind); N], until: f64) -> Record {
        Record {
            kubernetes: "v1".to_owned(),
            settings: Settings {
                target_value: 5,
                min_replicas: 2,
                max_replicas: 64,
                period_seconds: 15,
                down_window_seconds: 60,
            },
            cold_start_seconds: 30,
            requests_per_second: 2,
            from: -5.0,
            until,
            events: events.into_iter().map(|(second, what)| Event { second, what }).collect(),
        }
    }

    fn load(requests_per_second: u32) -> EventKind {
        EventKind::Load { requests_per_second }
    }

    fn desired(replicas: u32) -> EventKind {
        EventKind::Desired { of: OF, from: 2, replicas }
    }

    fn ready(replicas: u32) -> EventKind {
        EventKind::Ready { of: OF, from: 2, replicas }
    }

    #[test]
    fn as_many_replicas_as_requests_per_second_keep_the_queue_at_its_target() {
        let course = course(&record([], 60.0), OF);
        assert!(course.iter().all(|moment| (moment.requests - 10.0).abs() < 1e-6), "{course:?}");
        assert_eq!((course.len(), course[0].second), (651, -5.0));
    }

    #[test]
    fn a_burst_waits_until_replicas_are_ready_and_desired_replicas_serve_nothing() {
        let record = record([(0.0, load(12)), (1.0, desired(16)), (10.0, ready(16))], 30.0);
        let course = course(&record, OF);
        let requests = |second: f64| {
            course.iter().find(|moment| moment.second == second).map(|moment| moment.requests.round())
        };
        // Ten more per second arrive than leave, then four fewer, until no more than the 80 that run are there.
        assert_eq!([10.0, 15.0].map(requests), [Some(110.0), Some(90.0)]);
        let figures = figures(&record, OF);
        assert_eq!(figures.most_requests.round(), 110.0);
        assert_eq!(figures.cleared_after, Some(17.3));
    }

    #[test]
    fn replicas_cost_from_the_moment_that_they_are_desired() {
        let figures = figures(&record([(30.0, desired(6))], 60.0), OF);
        assert_eq!(figures.most_replicas, 6);
        assert!((figures.replica_minutes - 4.0).abs() < 0.02, "{figures:?}");
    }

    #[test]
    fn what_waits_at_the_end_is_not_cleared() {
        let record = record([(0.0, load(12))], 20.0);
        assert_eq!(figures(&record, OF).cleared_after, None);
    }

    #[test]
    fn the_replicas_of_the_other_serve_nothing() {
        let record = record([(0.0, EventKind::Ready { of: Autoscaler::Hpa, from: 2, replicas: 20 })], 1.0);
        assert_eq!(course(&record, OF).last().map(|moment| moment.ready), Some(2));
    }
}
