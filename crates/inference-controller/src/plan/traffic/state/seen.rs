//! What a decision about the canary is made of, and what it is.

use std::time::Duration;

use api::aiinference::{analysis::OnInconclusive, traffic::CanaryStatus};

/// What is seen of both versions and of the route.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Hash of the candidate's version.
    pub(crate) revision: String,
    /// Hash of the version that stable should have.
    pub(crate) stable: String,
    /// Stable has no replicas.
    pub(crate) is_stopped: bool,
    /// Stable has a ready pod.
    pub(crate) stable_has_endpoint: bool,
    /// All replicas of stable are ready and have that version.
    pub(crate) stable_is_complete: bool,
    pub(crate) candidate: Pods,
    pub(crate) gate: Gate,
    /// What a gateway has against the present rules, if they have some of `canary.pin`, `canary.match` or `canary.mirror`.
    pub(crate) rules_refused: Option<String>,
    /// Another manager keeps changing the routes.
    pub(crate) is_contested: bool,
    /// Why its pods have not become ready for so long that they do not try any more.
    pub(crate) is_overdue: Option<String>,
    pub(crate) finding: Finding,
    /// The latest end of a candidate's engine with an error.
    pub(crate) latest_failure: Option<String>,
    /// `None` without `spec.gateway` and `spec.routeRef`.
    pub(crate) route: Option<Route>,
    /// How long requests of the candidate may still run after it has got the last.
    pub(crate) drain: Duration,
    /// No request runs in the candidate's engines since it gets none.
    pub(crate) is_drained: bool,
    /// It has `waits_for_gateways` for as long as `drain`.
    pub(crate) is_given_up: bool,
}

impl Seen {
    /// The object is stopped, and not all gateways have accepted that the candidate gets no requests.
    pub(crate) fn waits_for_gateways(&self) -> bool {
        let is_open = |route: Route| route.share.has_requests() || !route.is_accepted;
        self.is_stopped && self.candidate.exists && self.route.is_some_and(is_open)
    }
}

/// Whether `canary.evaluationName` lets the candidate have requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Gate {
    /// None is asked for, or it has passed for the model that the candidate has loaded.
    #[default]
    Open,
    /// It has passed. Pods may start without requests, because only ready pods say which files they have loaded.
    PodsOnly,
    /// It has passed, and ready pods have loaded other files than before.
    Contradicted,
    /// It has not passed.
    Closed,
}

/// What is known against the candidate, in the step that the status is in.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Finding {
    /// There is no analysis, or it decides nothing.
    #[default]
    NotAsked,
    /// Nothing yet. `is_over`: for so long that something else has to follow.
    Open {
        is_over: bool,
        timeout: Duration,
        then: OnInconclusive,
        message: String,
    },
    Passes,
    /// It passes as soon as what was read is counted: after minutes at most. Until then, nothing of it is taken back.
    PassesSoon,
    /// An engine has failed. Whether its GPU is the cause will be known soon.
    Suspected,
    Fails {
        reason: &'static str,
        message: String,
    },
}

/// The pods of the candidate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pods {
    /// Whether it has children.
    pub(crate) exists: bool,
    pub(crate) all: i32,
    /// Those that are neither on nodes that are emptied, nor replaced.
    pub(crate) staying: i32,
    /// Ready, of its present version.
    pub(crate) ready: i32,
    /// Whether its Service has a ready endpoint.
    pub(crate) has_endpoint: bool,
    /// The annotation `refresh` replaces its pods.
    pub(crate) is_rolling: bool,
}

/// The rules of the route as they are stored; of several, `Routes::as_one`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Route {
    pub(crate) share: Share,
    /// All gateways have accepted these rules.
    pub(crate) is_accepted: bool,
    /// A gateway does not find one of the Services. At rest that is the candidate's, of a route that its user has written.
    pub(crate) is_unresolved: bool,
    /// It is that of `spec.routeRef`, whose owner decides which Services it names.
    pub(crate) is_foreign: bool,
}

/// What the candidate gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Share {
    /// Percent of the requests.
    pub(crate) weight: i32,
    /// Requests with the headers of `canary.match`.
    pub(crate) matches: bool,
    /// Copies of all requests. The gateway drops the answers.
    pub(crate) mirrors: bool,
    /// The route knows its Service. A weight of 0 makes gateways get ready for it.
    pub(crate) is_known: bool,
}

impl Share {
    pub(in crate::plan) fn has_requests(self) -> bool {
        self.answers() || self.mirrors
    }

    /// Callers wait for its answers.
    pub(super) fn answers(self) -> bool {
        self.weight > 0 || self.matches
    }

    pub(in crate::plan) fn without_requests(self) -> Self {
        Self { weight: 0, matches: false, mirrors: false, ..self }
    }

    /// Whether it has more than that one.
    pub(in crate::plan) fn exceeds(self, before: Self) -> bool {
        self.weight > before.weight || self.matches && !before.matches || self.mirrors && !before.mirrors
    }

    /// What any of the two gives.
    pub(in crate::plan) fn or(self, other: Self) -> Self {
        Self {
            weight: self.weight.max(other.weight),
            matches: self.matches || other.matches,
            mirrors: self.mirrors || other.mirrors,
            is_known: self.is_known || other.is_known,
        }
    }

    /// What both have.
    pub(in crate::plan) fn at_most(self, other: Self) -> Self {
        let weight = self.weight.min(other.weight);
        let (matches, mirrors) = (self.matches && other.matches, self.mirrors && other.mirrors);
        Self { weight, matches, mirrors, ..self }
    }
}

/// What becomes of the children of the candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// They are applied, with so many pods.
    Replicas(i32),
    /// They stay as they are.
    Kept,
    Deleted,
}

#[derive(Clone, Debug)]
pub(crate) struct Next {
    pub(crate) status: Option<CanaryStatus>,
    pub(crate) promoted: Option<String>,
    pub(crate) share: Share,
    pub(crate) pods: Wanted,
    /// When time alone changes the decision.
    pub(crate) wait: Option<Duration>,
}
