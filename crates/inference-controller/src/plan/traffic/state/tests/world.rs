//! A cluster in which a canary runs, and the invariants that each write keeps.

use super::*;

/// A cluster with a controller that may end between any two of its writes.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) canary: Option<Canary>,
    /// Hash of the candidate's version in the spec, and of stable's.
    pub(super) content: u8,
    pub(super) stable: u8,
    pub(super) status: Option<CanaryStatus>,
    pub(super) promoted: Option<String>,
    pub(super) gateway: bool,
    /// The routes are not wanted any more, and not deleted yet.
    pub(super) is_left: bool,
    pub(super) is_stopped: bool,
    pub(super) is_unfit: bool,
    pub(super) route: Route,
    /// The GRPCRoute beside it.
    pub(super) grpc: Option<Route>,
    /// The version and number of the candidate's pods.
    pub(super) pods: Option<(String, i32)>,
    pub(super) ready: i32,
    /// Pods on nodes that are emptied.
    pub(super) leaving: i32,
    pub(super) is_rolling: bool,
    pub(super) finding: Finding,
    pub(super) gate: Gate,
    pub(super) rules_refused: Option<String>,
    pub(super) is_contested: bool,
    /// Its pods have tried for too long, if they are not ready.
    pub(super) is_overdue: bool,
    /// Pods are about to come up.
    pub(super) is_sound: bool,
    pub(super) stable_is_complete: bool,
    pub(super) stable_serves: bool,
    pub(super) now: i64,
    /// When requests ended, by what the gateways accepted.
    pub(super) quiet_since: Option<i64>,
    pub(super) has_served: bool,
    /// Its engines say that no request runs.
    pub(super) is_drained: bool,
    /// They have said so since the last request could come. It stays true when they are not read any more.
    pub(super) has_drained: bool,
    /// Since when the stopped object has waited for its gateways. A restart forgets it.
    pub(super) waits_since: Option<i64>,
    /// Since when the controller has seen that the object is stopped.
    pub(super) stopped_since: Option<i64>,
}

pub(super) const DRAIN: i64 = 60;
/// The writes of a reconcile: both routes, the pods and the status.
pub(super) const ALL: usize = 4;

pub(super) fn canary(parts: &serde_json::Value) -> Canary {
    let mut spec = json!({"image": "new/engine:2"});
    spec.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

pub(super) fn steps() -> Canary {
    canary(&json!({"steps": [
        {"weightPercent": 10, "minSeconds": 60},
        {"weightPercent": 50, "minSeconds": 60, "replicas": 2, "approval": true},
        {"weightPercent": 100, "minSeconds": 60, "replicas": 3},
    ]}))
}

impl World {
    pub(super) fn new(canary: Canary) -> Self {
        Self {
            canary: Some(canary),
            content: 2,
            stable: 1,
            status: None,
            promoted: None,
            gateway: true,
            is_left: false,
            is_stopped: false,
            is_unfit: false,
            route: Route { is_accepted: true, ..Route::default() },
            grpc: None,
            pods: None,
            ready: 0,
            leaving: 0,
            is_rolling: false,
            finding: Finding::NotAsked,
            gate: Gate::Open,
            rules_refused: None,
            is_contested: false,
            is_overdue: false,
            is_sound: true,
            stable_is_complete: true,
            stable_serves: true,
            now: 0,
            quiet_since: Some(0),
            has_served: false,
            is_drained: false,
            has_drained: false,
            waits_since: None,
            stopped_since: None,
        }
    }

    /// To an HTTPRoute that names both Services from the beginning.
    pub(super) fn refers(&mut self, is_foreign: bool) {
        self.route.is_foreign = is_foreign;
        self.route.share = self.stored(self.route.share);
    }

    pub(super) fn revision(&self) -> String {
        if self.canary.is_some() { format!("v{}", self.content) } else { String::new() }
    }

    pub(super) fn seen(&self) -> Seen {
        let is_present = self.pods.as_ref().is_some_and(|(version, _)| *version == self.revision());
        let promoted = self.promoted.clone().filter(|_| self.canary.is_some());
        let all = self.pods.as_ref().map_or(0, |(_, count)| *count);
        let seen = Seen {
            revision: self.revision(),
            stable: promoted.unwrap_or_else(|| format!("v{}", self.stable)),
            is_stopped: self.is_stopped,
            stable_has_endpoint: self.stable_serves && !self.is_stopped,
            finding: self.finding.clone(),
            latest_failure: None,
            gate: self.gate,
            rules_refused: self.rules_refused.clone(),
            is_contested: self.is_contested,
            is_overdue: None,
            stable_is_complete: self.stable_is_complete && !self.is_stopped,
            candidate: Pods {
                exists: self.pods.is_some(),
                all,
                staying: if self.is_rolling { 0 } else { (all - self.leaving).max(0) },
                ready: if is_present { self.ready } else { 0 },
                has_endpoint: self.ready > 0,
                is_rolling: self.is_rolling,
            },
            route: self.seen_route(),
            drain: Duration::from_secs(DRAIN.unsigned_abs()),
            is_drained: self.is_drained,
            is_given_up: false,
        };
        let before = self.status.as_ref().filter(|before| before.revision == seen.revision);
        let waits = |(before, canary)| self.is_overdue && waits_for_pods(before, canary, &seen);
        let is_overdue = before.zip(self.canary.as_ref()).is_some_and(waits);
        let is_overdue = is_overdue.then(|| "no GPU is free".to_owned());
        Seen { is_given_up: seen.waits_for_gateways() && self.has_waited(), is_overdue, ..seen }
    }

    fn has_waited(&self) -> bool {
        self.waits_since.is_some_and(|since| self.now - since >= DRAIN)
    }

    /// The pods of a stopped object go also without an answer of a gateway. Without the code's own rule for it, which has to
    /// allow less than this.
    fn may_be_given_up(&self) -> bool {
        self.is_stopped && self.stopped_since.is_some_and(|since| self.now - since >= DRAIN)
    }

    fn seen_route(&self) -> Option<Route> {
        let route = self.routes().as_one();
        match (self.gateway, self.is_left) {
            (true, _) => Some(route),
            (false, true) => Some(Route { is_accepted: false, ..route }),
            (false, false) => None,
        }
    }

    pub(super) fn routes(&self) -> Routes {
        let Route { is_accepted, is_unresolved, is_foreign, share } = self.route;
        let is_accepted = is_accepted && (is_foreign || !is_unresolved || !share.has_requests());
        let share = Share { is_known: share.is_known && !self.is_unfit, ..share };
        Routes { http: Route { share, is_accepted, ..self.route }, grpc: self.grpc }
    }

    /// Without the field, the routes are deleted, and then no requests come.
    pub(super) fn routes_are_gone(&mut self) {
        if !self.is_left {
            return;
        }
        self.route = Route::default();
        self.grpc = self.grpc.map(|_| Route::default());
        self.quiet_since = self.quiet_since.or(Some(self.now));
        self.is_left = false;
    }

    /// As if they were one: what the candidate gets by any of them.
    pub(super) fn shared(&self) -> Share {
        self.route.share.or(self.grpc.map(|route| route.share).unwrap_or_default())
    }

    /// Whether the gateways have accepted the last write of each.
    pub(super) fn is_accepted(&self) -> bool {
        self.route.is_accepted && self.grpc.is_none_or(|route| route.is_accepted)
    }

    pub(super) fn next(&self) -> Next {
        next(self.status.as_ref(), self.promoted.as_deref(), self.canary.as_ref(), &self.seen(), at(self.now))
    }

    /// One reconcile that ends after so many writes.
    pub(super) fn reconcile(&mut self, writes: usize) -> Next {
        let next = self.next();
        self.stopped_since = self.stopped_since.or(Some(self.now)).filter(|_| self.is_stopped);
        let seen = self.clone();
        let waits = self.seen().waits_for_gateways();
        self.waits_since = self.waits_since.or(Some(self.now)).filter(|_| waits);
        let shares = self.routes().shares(next.share);
        let stored = self.stored(shares.http);
        if writes > 0 && self.gateway && stored != self.route.share && !self.is_unfit {
            seen.check_share(seen.route.share, stored);
            self.route = Route { share: stored, is_accepted: false, ..self.route };
            self.note_requests(stored);
        }
        if let Some(route) = self.grpc
            && writes > 1
            && self.gateway
            && shares.grpc != route.share
        {
            seen.check_share(route.share, shares.grpc);
            self.grpc = Some(Route { share: shares.grpc, is_accepted: false, ..route });
            self.note_requests(shares.grpc);
        }
        if writes > 2 {
            self.write_pods(next.pods, seen.may_be_given_up());
        }
        if writes > 3 {
            self.status = next.status.clone();
            self.promoted = next.promoted.clone();
        }
        next
    }

    pub(super) fn note_requests(&mut self, share: Share) {
        self.has_served |= share.has_requests();
        if share.has_requests() {
            (self.quiet_since, self.is_drained, self.has_drained) = (None, false, false);
        }
    }

    /// Whether requests run in the candidate. Before the gateways send no more, some always do.
    pub(super) fn engines_say(&mut self, is_drained: bool) {
        self.is_drained = is_drained && self.quiet_since.is_some();
        self.has_drained |= self.is_drained;
    }

    /// The share that a route has after this write. In a route of a user, only the weights are written.
    pub(super) fn stored(&self, share: Share) -> Share {
        match self.route.is_foreign {
            true => Share { matches: false, mirrors: false, is_known: true, ..share },
            false => share,
        }
    }

    /// Of one route, on what was seen of both.
    pub(super) fn check_share(&self, before: Share, share: Share) {
        assert!(share.weight == 0 || share.is_known, "a weight without the reference: {self:?}");
        let gets_more = share.exceeds(before);
        assert!(!share.mirrors || share.is_known, "copies without the reference: {self:?}");
        if gets_more {
            assert!(self.ready > 0, "I1: requests for a candidate without endpoint: {share:?} {self:?}");
            assert!(self.is_accepted(), "I3: a rise before the last rules were accepted: {share:?} {self:?}");
            assert!(!self.route.is_unresolved, "I3: a rise while a Service is not found: {share:?} {self:?}");
            let is_promoted = self.promoted.as_ref() == Some(&self.revision());
            // One of two routes may follow the other.
            assert!(
                self.gate == Gate::Open || is_promoted || !share.exceeds(self.shared()),
                "more requests before the evaluation has passed: {share:?} {self:?}"
            );
            assert!(before.is_known, "I2: a weight before the gateways knew the Service: {share:?} {self:?}");
            let version = self.pods.as_ref().map(|(version, _)| version);
            assert_eq!(version, Some(&self.revision()), "requests for another version: {self:?}");
        }
        if share.weight > before.weight {
            let steps: Vec<i32> =
                self.canary.iter().flat_map(|canary| &canary.steps).map(|s| s.weight_percent).collect();
            let reached = self.status.as_ref().map_or(0, |status| status.step);
            let allowed = usize::try_from(reached).unwrap().min(steps.len().saturating_sub(1));
            // After the promotion no step counts any more.
            let follows = self.promoted.as_ref() == Some(&self.revision()) && !share.exceeds(self.shared());
            assert!(
                steps.is_empty() || share.weight <= steps[allowed] || follows,
                "I5: more than one step at once: {share:?} {self:?}"
            );
        }
        if before.is_known && !share.is_known {
            let has_ended = self.is_quiet() || self.may_be_given_up();
            assert!(has_ended, "I2: the reference goes before requests have ended: {self:?}");
        }
    }

    /// No request of the candidate runs any more.
    pub(super) fn is_quiet(&self) -> bool {
        !self.has_served
            || self.quiet_since.is_some_and(|since| self.has_drained || self.now - since >= DRAIN)
    }

    /// `may_give_up`: when that was decided.
    pub(super) fn write_pods(&mut self, wanted: Wanted, may_give_up: bool) {
        let revision = self.revision();
        match (wanted, &self.pods) {
            (Wanted::Kept, _) | (Wanted::Deleted, None) => {}
            (Wanted::Replicas(replicas), Some((version, count))) if *version == revision => {
                let share = self.shared();
                let may_come = self.has_served
                    && (self.gateway || self.is_left)
                    && !share.has_requests()
                    && share.is_known
                    && !self.is_accepted()
                    && self.quiet_since.is_none()
                    && !may_give_up;
                assert!(
                    replicas >= *count || !may_come,
                    "I4: fewer pods before the gateways send no more requests: {self:?}"
                );
                // Steps that were removed say no number any more.
                let has_step = self.canary.as_ref().is_some_and(|canary| !canary.steps.is_empty());
                assert!(
                    replicas >= *count || has_step || share.weight == 0 || may_give_up,
                    "I4: fewer pods that have a share: {self:?}"
                );
                // A user who stops stable waits for no request.
                let is_stop = self.is_stopped && replicas == 0;
                assert!(
                    replicas >= *count || replicas > 0 || is_stop || self.is_quiet(),
                    "I4: scaled to 0: {self:?}"
                );
                self.ready = self.ready.min(replicas);
                self.pods = Some((revision, replicas));
            }
            (Wanted::Replicas(replicas), None) => {
                let step = self.status.as_ref().map_or(0, |status| status.step);
                let is_promoted = self.promoted.as_ref() == Some(&revision);
                assert!(
                    self.gate != Gate::Closed || step > 0 || is_promoted || replicas == 0,
                    "pods before the evaluation has passed: {self:?}"
                );
                self.pods = Some((revision, replicas));
            }
            (Wanted::Replicas(replicas), Some(_)) => {
                let has_ended = self.is_quiet() || may_give_up && replicas == 0;
                assert!(has_ended, "I4: another version while requests run: {self:?}");
                self.pods = Some((revision, replicas));
                self.ready = 0;
                self.has_served = false;
            }
            (Wanted::Deleted, Some(_)) => {
                assert!(self.is_quiet() || may_give_up, "I4: deleted while requests run: {self:?}");
                assert!(
                    !self.gateway || !self.shared().is_known || self.route.is_foreign || may_give_up,
                    "I2: the route names a deleted Service: {self:?}"
                );
                self.pods = None;
                self.ready = 0;
                self.has_served = false;
            }
        }
    }

    pub(super) fn accept(&mut self) {
        self.accept_one(true);
        self.accept_one(false);
    }

    /// The gateways accept what one of the routes says.
    pub(super) fn accept_one(&mut self, is_http: bool) {
        if self.is_left {
            return;
        }
        match &mut self.grpc {
            Some(route) if !is_http => route.is_accepted = true,
            Some(_) | None => self.route.is_accepted |= is_http,
        }
        self.note_quiet();
    }

    /// The GRPCRoute is gone, and with it its requests.
    pub(super) fn lose_grpc(&mut self) {
        self.grpc = None;
        if !self.is_left {
            self.note_quiet();
        }
    }

    fn note_quiet(&mut self) {
        if self.is_accepted() && !self.shared().has_requests() && self.quiet_since.is_none() {
            self.quiet_since = Some(self.now);
        }
    }

    pub(super) fn come_up(&mut self) {
        if self.is_sound {
            self.ready = self.pods.as_ref().map_or(0, |(_, count)| *count);
        }
    }

    /// Everything works, for so many rounds of a time.
    pub(super) fn go_on(&mut self, rounds: usize, seconds: i64) {
        for _ in 0..rounds {
            self.reconcile(ALL);
            self.accept();
            self.come_up();
            self.now += seconds;
        }
    }

    /// Its last step has passed and is approved, and stable does not have its version yet.
    pub(super) fn promotes(&mut self) {
        if let Some(canary) = &mut self.canary {
            canary.approved_steps = 4;
        }
        while self.phase() != Some(CanaryPhase::Promoting) {
            self.stable_is_complete = self.promoted.is_none();
            self.go_on(1, 61);
        }
        self.stable_is_complete = false;
    }

    pub(super) fn phase(&self) -> Option<CanaryPhase> {
        self.status.as_ref().and_then(|status| status.phase)
    }
}
