use api::aiinference::traffic::{Canary, CanaryPhase};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{plan::traffic::routes::Routes, tests::at};

/// A cluster with a controller that may end between any two of its writes.
#[derive(Clone, Debug)]
struct World {
    canary: Option<Canary>,
    /// Hash of the candidate's version in the spec, and of stable's.
    content: u8,
    stable: u8,
    status: Option<CanaryStatus>,
    promoted: Option<String>,
    gateway: bool,
    is_unfit: bool,
    route: Route,
    /// The GRPCRoute beside it.
    grpc: Option<Route>,
    /// The version and number of the candidate's pods.
    pods: Option<(String, i32)>,
    ready: i32,
    is_rolling: bool,
    finding: Finding,
    /// Pods are about to come up.
    is_sound: bool,
    stable_is_complete: bool,
    stable_serves: bool,
    now: i64,
    /// When requests ended, by what the gateways accepted.
    quiet_since: Option<i64>,
    has_served: bool,
}

const DRAIN: i64 = 60;
/// The writes of a reconcile: both routes, the pods and the status.
const ALL: usize = 4;

fn canary(parts: &serde_json::Value) -> Canary {
    let mut spec = json!({"image": "new/engine:2"});
    spec.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn steps() -> Canary {
    canary(&json!({"steps": [
        {"weightPercent": 10, "minSeconds": 60},
        {"weightPercent": 50, "minSeconds": 60, "replicas": 2, "approval": true},
        {"weightPercent": 100, "minSeconds": 60, "replicas": 3},
    ]}))
}

impl World {
    fn new(canary: Canary) -> Self {
        Self {
            canary: Some(canary),
            content: 2,
            stable: 1,
            status: None,
            promoted: None,
            gateway: true,
            is_unfit: false,
            route: Route { is_accepted: true, ..Route::default() },
            grpc: None,
            pods: None,
            ready: 0,
            is_rolling: false,
            finding: Finding::NotAsked,
            is_sound: true,
            stable_is_complete: true,
            stable_serves: true,
            now: 0,
            quiet_since: Some(0),
            has_served: false,
        }
    }

    /// To an HTTPRoute that names both Services from the beginning.
    fn refers(&mut self, is_foreign: bool) {
        self.route.is_foreign = is_foreign;
        self.route.share = self.stored(self.route.share);
    }

    fn revision(&self) -> String {
        if self.canary.is_some() { format!("v{}", self.content) } else { String::new() }
    }

    fn seen(&self) -> Seen {
        let is_present = self.pods.as_ref().is_some_and(|(version, _)| *version == self.revision());
        let promoted = self.promoted.clone().filter(|_| self.canary.is_some());
        Seen {
            revision: self.revision(),
            stable: promoted.unwrap_or_else(|| format!("v{}", self.stable)),
            is_stopped: false,
            stable_has_endpoint: self.stable_serves,
            finding: self.finding.clone(),
            stable_is_complete: self.stable_is_complete,
            candidate: Pods {
                exists: self.pods.is_some(),
                all: self.pods.as_ref().map_or(0, |(_, count)| *count),
                staying: self.pods.as_ref().map_or(0, |(_, count)| *count),
                ready: if is_present { self.ready } else { 0 },
                has_endpoint: self.ready > 0,
                is_rolling: self.is_rolling,
            },
            route: self.gateway.then(|| self.routes().as_one()),
            drain: Duration::from_secs(DRAIN.unsigned_abs()),
        }
    }

    fn routes(&self) -> Routes {
        let share = Share { is_known: self.route.share.is_known && !self.is_unfit, ..self.route.share };
        Routes { http: Route { share, ..self.route }, grpc: self.grpc }
    }

    /// As if they were one: what the candidate gets by any of them.
    fn shared(&self) -> Share {
        self.route.share.or(self.grpc.map(|route| route.share).unwrap_or_default())
    }

    /// Whether the gateways have accepted the last write of each.
    fn is_accepted(&self) -> bool {
        self.route.is_accepted && self.grpc.is_none_or(|route| route.is_accepted)
    }

    fn next(&self) -> Next {
        next(self.status.as_ref(), self.promoted.as_deref(), self.canary.as_ref(), &self.seen(), at(self.now))
    }

    /// One reconcile that ends after so many writes.
    fn reconcile(&mut self, writes: usize) -> Next {
        let next = self.next();
        let seen = self.clone();
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
            self.write_pods(next.pods);
        }
        if writes > 3 {
            self.status = next.status.clone();
            self.promoted = next.promoted.clone();
        }
        next
    }

    fn note_requests(&mut self, share: Share) {
        self.has_served |= share.has_requests();
        if share.has_requests() {
            self.quiet_since = None;
        }
    }

    /// What becomes of a route that is told this. Of a user's, only the weights are written.
    fn stored(&self, share: Share) -> Share {
        match self.route.is_foreign {
            true => Share { matches: false, mirrors: false, is_known: true, ..share },
            false => share,
        }
    }

    /// Of one route, on what was seen of both.
    fn check_share(&self, before: Share, share: Share) {
        assert!(share.weight == 0 || share.is_known, "a weight without the reference: {self:?}");
        let gets_more = share.exceeds(before);
        assert!(!share.mirrors || share.is_known, "copies without the reference: {self:?}");
        if gets_more {
            assert!(self.ready > 0, "I1: requests for a candidate without endpoint: {share:?} {self:?}");
            assert!(self.is_accepted(), "I3: a rise before the last rules were accepted: {share:?} {self:?}");
            assert!(before.is_known, "I2: a weight before the gateways knew the Service: {share:?} {self:?}");
            let version = self.pods.as_ref().map(|(version, _)| version);
            assert_eq!(version, Some(&self.revision()), "requests for another version: {self:?}");
        }
        if share.weight > before.weight {
            let steps: Vec<i32> =
                self.canary.iter().flat_map(|canary| &canary.steps).map(|s| s.weight_percent).collect();
            let reached = self.status.as_ref().map_or(0, |status| status.step);
            let allowed = usize::try_from(reached).unwrap().min(steps.len().saturating_sub(1));
            assert!(
                steps.is_empty() || share.weight <= steps[allowed],
                "I5: more than one step at once: {share:?} {self:?}"
            );
        }
        if before.is_known && !share.is_known {
            assert!(self.is_quiet(), "I2: the reference goes before requests have ended: {self:?}");
        }
    }

    /// No request of the candidate runs any more.
    fn is_quiet(&self) -> bool {
        !self.has_served || self.quiet_since.is_some_and(|since| self.now - since >= DRAIN)
    }

    fn write_pods(&mut self, wanted: Wanted) {
        let revision = self.revision();
        match (wanted, &self.pods) {
            (Wanted::Kept, _) | (Wanted::Deleted, None) => {}
            (Wanted::Replicas(replicas), Some((version, count))) if *version == revision => {
                let share = self.shared();
                let may_come = self.gateway && !share.has_requests() && share.is_known && !self.is_accepted();
                assert!(
                    replicas >= *count || !may_come,
                    "I4: fewer pods before the gateways send no more requests: {self:?}"
                );
                assert!(replicas >= *count || replicas > 0 || self.is_quiet(), "I4: scaled to 0: {self:?}");
                self.ready = self.ready.min(replicas);
                self.pods = Some((revision, replicas));
            }
            (Wanted::Replicas(replicas), None) => self.pods = Some((revision, replicas)),
            (Wanted::Replicas(replicas), Some(_)) => {
                assert!(self.is_quiet(), "I4: another version while requests run: {self:?}");
                self.pods = Some((revision, replicas));
                self.ready = 0;
                self.has_served = false;
            }
            (Wanted::Deleted, Some(_)) => {
                assert!(self.is_quiet(), "I4: deleted while requests run: {self:?}");
                assert!(
                    !self.gateway || !self.shared().is_known || self.route.is_foreign,
                    "I2: the route names a deleted Service: {self:?}"
                );
                self.pods = None;
                self.ready = 0;
                self.has_served = false;
            }
        }
    }

    fn accept(&mut self) {
        self.accept_one(true);
        self.accept_one(false);
    }

    /// The gateways accept what one of the routes says.
    fn accept_one(&mut self, is_http: bool) {
        match &mut self.grpc {
            Some(route) if !is_http => route.is_accepted = true,
            Some(_) | None => self.route.is_accepted |= is_http,
        }
        if !self.is_accepted() {
            return;
        }
        if !self.shared().has_requests() && self.quiet_since.is_none() {
            self.quiet_since = Some(self.now);
        }
    }

    fn come_up(&mut self) {
        if self.is_sound {
            self.ready = self.pods.as_ref().map_or(0, |(_, count)| *count);
        }
    }

    /// Everything works, for so many rounds of a time.
    fn go_on(&mut self, rounds: usize, seconds: i64) {
        for _ in 0..rounds {
            self.reconcile(ALL);
            self.accept();
            self.come_up();
            self.now += seconds;
        }
    }

    fn phase(&self) -> Option<CanaryPhase> {
        self.status.as_ref().and_then(|status| status.phase)
    }
}

#[test]
fn a_candidate_gets_its_steps_one_after_the_other_and_then_stable_has_its_version() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
    world.go_on(10, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 10));
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.go_on(4, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 50));
    assert_eq!(world.pods, Some(("v2".to_owned(), 2)));
    world.go_on(20, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 100));
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.stable_is_complete = false;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Promoting), 100));
    assert_eq!(world.promoted.as_deref(), Some("v2"));
    world.stable_is_complete = true;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Promoted), 0));
    assert!(world.pods.is_some(), "its requests end first");
    world.go_on(10, 10);
    assert_eq!((world.pods.clone(), world.route.share), (None, Share::default()));
    let route = world.route;
    world.canary = None;
    world.stable = 2;
    world.go_on(2, 10);
    assert_eq!((world.status.clone(), world.promoted.clone(), world.route), (None, None, route), "folded");
}

#[test]
fn a_candidate_that_loses_its_last_pod_gets_no_requests_and_the_third_time_none_any_more() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    for lost in 1..=3 {
        world.ready = 0;
        world.is_sound = false;
        world.reconcile(ALL);
        assert_eq!((world.route.share.weight, world.status.as_ref().unwrap().lost), (0, lost));
        world.is_sound = true;
        world.go_on(3, 10);
        assert_eq!(world.route.share.weight, if lost < 3 { 10 } else { 0 });
    }
    world.go_on(10, 10);
    assert_eq!(
        (world.phase(), world.pods.clone()),
        (Some(CanaryPhase::RolledBack), Some(("v2".to_owned(), 0)))
    );
    let rollback = world.status.as_ref().unwrap().last_rollback.clone().unwrap();
    assert_eq!((&*rollback.revision, &*rollback.reason), ("v2", "CandidateUnready"));
    world.content = 3;
    world.go_on(6, 10);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 10),
        "another version"
    );
}

/// The rule of its route does not fit for a while, so its weight cannot be taken back.
#[test]
fn a_loss_counts_once_however_long_its_weight_stays() {
    let mut world = World::new(steps());
    world.refers(true);
    world.go_on(5, 10);
    assert_eq!(world.route.share.weight, 10);
    (world.is_unfit, world.is_sound, world.ready) = (true, false, 0);
    for _ in 0..4 {
        world.reconcile(4);
        assert_eq!((world.route.share.weight, world.status.as_ref().unwrap().lost), (10, 1));
    }
    world.is_sound = true;
    world.go_on(2, 10);
    world.ready = 0;
    world.reconcile(4);
    assert_eq!(world.status.as_ref().unwrap().lost, 2, "the next one");
}

#[test]
fn no_step_begins_while_it_is_unknown_whose_fault_a_failure_is() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    let since = |world: &World| world.status.as_ref().unwrap().step_started_at.clone();
    let began = since(&world);
    world.finding = Finding::Suspected;
    world.go_on(10, 10);
    assert_eq!(
        (since(&world), world.route.share.weight),
        (began, 10),
        "it goes on, and not to the next step"
    );
    world.ready = 0;
    world.go_on(5, 1);
    assert_eq!((since(&world), world.route.share.weight), (None, 10), "it is back, and does not begin");
    world.finding = Finding::Passes;
    world.go_on(1, 1);
    assert!(since(&world).is_some());
}

#[test]
fn an_abort_takes_all_requests_at_once_and_keeps_the_pods() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    world.canary.as_mut().unwrap().abort = true;
    world.reconcile(ALL);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Aborted), 0));
    world.go_on(20, 60);
    assert_eq!(world.pods, Some(("v2".to_owned(), 1)));
    world.canary = None;
    world.go_on(20, 60);
    assert_eq!((world.pods.clone(), world.status.clone()), (None, None));
}

#[test]
fn an_abort_while_stable_gets_the_version_takes_it_back() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.go_on(14, 10);
    world.stable_is_complete = false;
    world.go_on(20, 10);
    assert_eq!((world.phase(), world.promoted.as_deref()), (Some(CanaryPhase::Promoting), Some("v2")));
    world.canary.as_mut().unwrap().abort = true;
    world.reconcile(ALL);
    assert_eq!(
        (world.phase(), world.promoted.clone(), world.route.share.weight),
        (Some(CanaryPhase::Aborted), None, 0)
    );
    assert_eq!(world.pods, Some(("v2".to_owned(), 3)), "its pods stay");
}

/// Promoting, with all requests at the candidate: stable's only pod is replaced.
fn promoting_without_stable() -> World {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.go_on(14, 10);
    (world.stable_is_complete, world.stable_serves) = (false, false);
    world.go_on(20, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Promoting), 100));
    world
}

#[test]
fn a_candidate_keeps_its_requests_while_no_pod_of_stable_can_answer_them() {
    let edits: [fn(&mut World); 2] = [|world| world.canary = None, |world| world.content = 9];
    for edit in edits {
        let mut world = promoting_without_stable();
        edit(&mut world);
        world.go_on(5, 10);
        assert_eq!(world.route.share.weight, 100);
        world.stable_serves = true;
        world.go_on(1, 10);
        assert_eq!(world.route.share.weight, 0);
    }
}

#[test]
fn a_candidate_that_is_ready_again_gets_its_share_of_a_promotion_back() {
    let mut world = promoting_without_stable();
    world.ready = 0;
    world.reconcile(ALL);
    assert_eq!(world.route.share.weight, 0);
    world.go_on(3, 10);
    assert_eq!(world.route.share.weight, 100);
}

#[test]
fn fewer_steps_make_no_approval_of_a_step_one_of_the_promotion() {
    for shorter in
        [json!({"weightPercent": 10}), json!({}), json!({"steps": [{"weightPercent": 10, "minSeconds": 60}]})]
    {
        let mut world = World::new(steps());
        world.canary.as_mut().unwrap().approved_steps = 2;
        world.go_on(5, 10);
        world.canary = Some(Canary { approved_steps: 2, ..canary(&shorter) });
        world.go_on(30, 61);
        assert_eq!(world.promoted, None, "{shorter}");
        world.canary.as_mut().unwrap().approved_steps = 3;
        world.go_on(30, 61);
        assert_eq!(world.phase(), Some(CanaryPhase::Promoted), "{shorter}");
    }
}

#[test]
fn approvals_of_the_version_before_approve_nothing() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.go_on(60, 61);
    assert_eq!(world.phase(), Some(CanaryPhase::Promoted), "approved when it was created");
    world.content = 3;
    world.go_on(30, 61);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 10));
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.go_on(30, 61);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 100));
}

#[test]
fn without_a_gateway_a_candidate_is_dark_and_ends_with_the_field() {
    let mut world = World::new(canary(&json!({})));
    world.gateway = false;
    world.go_on(3, 10);
    assert_eq!(world.phase(), Some(CanaryPhase::Dark));
    world.canary = None;
    world.go_on(2, 10);
    assert_eq!((world.pods.clone(), world.status.clone()), (None, None));
}

#[test]
fn a_fixed_share_stays_until_it_is_changed_or_approved() {
    let mut world =
        World::new(canary(&json!({"weightPercent": 30, "match": [{"header": "x-beta", "value": "1"}]})));
    world.go_on(5, 10);
    let share = Share { weight: 30, matches: true, is_known: true, ..Share::default() };
    assert_eq!((world.phase(), world.route.share), (Some(CanaryPhase::Analysing), share));
    world.go_on(50, 600);
    assert_eq!((world.phase(), world.route.share), (Some(CanaryPhase::Analysing), share));
    world.canary.as_mut().unwrap().weight_percent = 0;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Dark), 0));
    world.canary.as_mut().unwrap().approved_steps = 1;
    world.go_on(30, 10);
    assert_eq!((world.phase(), world.pods.clone()), (Some(CanaryPhase::Promoted), None));
}

/// Its pods may be ready before the first status is written. It has had no requests that have to end.
#[test]
fn a_candidate_that_is_as_new_as_its_object_does_not_begin_with_a_drain() {
    let mut world = World::new(steps());
    for _ in 0..5 {
        world.reconcile(3);
        world.accept();
        world.come_up();
    }
    assert!(!world.route.share.is_known, "no status knows of it");
    world.go_on(3, 1);
    assert_eq!(world.phase(), Some(CanaryPhase::Analysing));
}

#[test]
fn copies_begin_when_the_gateway_knows_the_candidate_and_end_before_its_pods() {
    let mut world = World::new(canary(&json!({"mirror": true})));
    world.go_on(6, 10);
    let mirrored = Share { mirrors: true, is_known: true, ..Share::default() };
    assert_eq!((world.phase(), world.route.share), (Some(CanaryPhase::Dark), mirrored));
    world.stable_serves = false;
    world.canary.as_mut().unwrap().abort = true;
    world.go_on(2, 10);
    assert_eq!(world.route.share, mirrored.without_requests(), "nobody waits for its answers");
    assert_eq!(world.phase(), Some(CanaryPhase::Aborted));
}

/// The annotation `refresh` replaces its pods, one by one or all at once.
#[test]
fn pods_that_are_replaced_are_not_lost_and_the_step_begins_again() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    let began = world.status.as_ref().unwrap().step_started_at.clone();
    for _ in 0..4 {
        (world.is_rolling, world.is_sound, world.ready) = (true, false, 0);
        world.go_on(2, 1);
        assert_eq!((world.route.share.weight, world.status.as_ref().unwrap().lost), (0, 0));
        world.is_sound = true;
        world.go_on(3, 1);
        assert_eq!(
            world.status.as_ref().unwrap().step_started_at,
            None,
            "it is compared only when all have been"
        );
        world.is_rolling = false;
        world.go_on(3, 1);
    }
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
    assert!(world.status.as_ref().unwrap().step_started_at > began);
}

fn open(then: OnInconclusive) -> Finding {
    let timeout = Duration::from_secs(600);
    Finding::Open { is_over: false, timeout, then, message: "few requests".to_owned() }
}

fn over(then: OnInconclusive) -> Finding {
    let timeout = Duration::from_secs(600);
    Finding::Open { is_over: true, timeout, then, message: "few requests".to_owned() }
}

#[test]
fn a_candidate_that_fails_loses_its_requests_and_then_its_pods() {
    let mut world = World::new(steps());
    world.finding = open(OnInconclusive::Hold);
    world.go_on(5, 10);
    world.finding = Finding::Fails { reason: reasons::ANALYSIS_FAILED, message: "20 % fail".to_owned() };
    world.reconcile(ALL);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::RollingBack), 0));
    // Its step is over, so nothing is judged any more.
    world.finding = Finding::NotAsked;
    world.go_on(20, 10);
    assert_eq!(world.phase(), Some(CanaryPhase::RolledBack));
    let rollback = world.status.as_ref().unwrap().last_rollback.clone().unwrap();
    assert_eq!((&*rollback.reason, &*rollback.message), ("AnalysisFailed", "20 % fail"));
    assert_eq!(world.pods.as_ref().unwrap().1, 0);
}

#[test]
fn no_step_and_no_promotion_goes_on_without_a_verdict() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 4;
    world.finding = open(OnInconclusive::Hold);
    world.go_on(30, 10);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 10),
        "approval is no verdict"
    );
    world.finding = over(OnInconclusive::Hold);
    world.go_on(2, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Held), 10));
    world.finding = Finding::Passes;
    world.go_on(2, 1);
    world.finding = open(OnInconclusive::Hold);
    world.go_on(30, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 50));
    world.finding = Finding::Passes;
    world.go_on(60, 61);
    assert_eq!(world.phase(), Some(CanaryPhase::Promoted));
}

#[test]
fn a_step_without_a_verdict_ends_as_the_user_says() {
    for (then, phase) in [
        (OnInconclusive::Rollback, CanaryPhase::RolledBack),
        (OnInconclusive::Promote, CanaryPhase::AwaitingApproval),
    ] {
        let mut world = World::new(steps());
        world.finding = open(then);
        world.go_on(30, 10);
        assert_eq!(world.phase(), Some(CanaryPhase::Analysing));
        world.finding = over(then);
        world.go_on(60, 10);
        assert_eq!(world.phase(), Some(phase), "{then:?}");
    }
}

/// An approval may take hours.
#[test]
fn a_step_that_has_passed_waits_for_its_approval_whatever_is_found_meanwhile() {
    let mut world = World::new(steps());
    world.finding = Finding::Passes;
    world.go_on(20, 10);
    assert_eq!(world.phase(), Some(CanaryPhase::AwaitingApproval));
    for finding in [open(OnInconclusive::Hold), over(OnInconclusive::Hold), over(OnInconclusive::Rollback)] {
        world.finding = finding;
        world.go_on(3, 600);
        assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::AwaitingApproval), 10));
    }
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.finding = open(OnInconclusive::Hold);
    world.go_on(3, 10);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 10),
        "it has to pass still"
    );
    world.finding = Finding::Passes;
    world.go_on(5, 10);
    assert_eq!(world.route.share.weight, 50);
}

#[test]
fn a_canary_that_is_set_again_while_its_requests_end_begins_with_the_first_step() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.go_on(20, 10);
    assert!(world.route.share.weight >= 50);
    let canary = world.canary.take();
    world.go_on(3, 1);
    assert_eq!(world.route.share.weight, 0);
    world.canary = canary;
    world.go_on(3, 1);
    assert_eq!(world.route.share.weight, 10);
}

/// Full GPUs may keep the pods of the next step waiting for hours.
#[test]
fn the_step_goes_on_and_is_judged_until_the_pods_of_the_next_one_are_ready() {
    let mut world = World::new(steps());
    world.canary.as_mut().unwrap().approved_steps = 2;
    world.finding = Finding::Passes;
    world.go_on(5, 10);
    world.is_sound = false;
    world.go_on(30, 10);
    let status = world.status.clone().unwrap();
    assert_eq!((status.step, world.route.share.weight, world.pods.as_ref().unwrap().1), (1, 10, 2));
    assert!(status.step_started_at.is_some());
    world.finding = open(OnInconclusive::Hold);
    world.go_on(3, 10);
    assert_eq!(world.pods.as_ref().unwrap().1, 2, "no pod that loads is taken away again");
    world.finding = Finding::Passes;
    world.is_sound = true;
    world.go_on(5, 10);
    assert_eq!((world.status.as_ref().unwrap().step, world.route.share.weight), (2, 50));
}

/// A fixed share is judged for as long as it lasts, and ends by a fail alone.
#[test]
fn a_fixed_share_with_an_analysis_is_promoted_only_with_a_pass() {
    let mut world = World::new(canary(&json!({"weightPercent": 30})));
    world.finding = over(OnInconclusive::Rollback);
    world.go_on(100, 60);
    assert_eq!(
        (world.phase(), world.route.share.weight),
        (Some(CanaryPhase::Analysing), 30),
        "its promotion is not approved"
    );
    world.canary.as_mut().unwrap().approved_steps = 1;
    world.finding = Finding::Passes;
    world.go_on(30, 10);
    assert_eq!(world.phase(), Some(CanaryPhase::Promoted));
}

#[test]
fn another_stable_version_begins_with_the_first_step_again() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    world.stable = 9;
    world.stable_is_complete = false;
    world.go_on(3, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Starting), 0));
    world.stable_is_complete = true;
    world.go_on(4, 10);
    assert_eq!((world.phase(), world.route.share.weight), (Some(CanaryPhase::Analysing), 10));
}

/// A restored backup has the object without its status.
#[test]
fn a_lost_status_begins_with_no_requests() {
    let mut world = World::new(steps());
    world.go_on(5, 10);
    world.status = None;
    world.reconcile(ALL);
    assert_eq!(world.route.share.weight, 0);
}

#[derive(Clone, Debug)]
enum Event {
    Reconcile(usize),
    Accept,
    AcceptOne(bool),
    /// The kind GRPCRoute is installed, or removed with its objects.
    Grpc(bool),
    ComeUp,
    LosePods,
    Roll(bool),
    Find(u8),
    Pass(i64),
    Approve(i32),
    Abort(bool),
    Edit,
    EditStable,
    StableComplete(bool),
    Remove,
    Restore,
    Gateway(bool),
    LoseStatus,
    EditRoute(i32),
    /// The owner of a route edits its rule so that the weights cannot be written, and back.
    Unfit(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0_usize..=ALL).prop_map(Event::Reconcile),
        12 => Just(Event::Reconcile(ALL)),
        10 => Just(Event::Accept),
        6 => any::<bool>().prop_map(Event::AcceptOne),
        1 => any::<bool>().prop_map(Event::Grpc),
        8 => Just(Event::ComeUp),
        2 => Just(Event::LosePods),
        1 => any::<bool>().prop_map(Event::Roll),
        3 => (0_u8..9).prop_map(Event::Find),
        6 => (1_i64..100).prop_map(Event::Pass),
        2 => (0_i32..5).prop_map(Event::Approve),
        1 => any::<bool>().prop_map(Event::Abort),
        1 => Just(Event::Edit),
        1 => Just(Event::EditStable),
        3 => any::<bool>().prop_map(Event::StableComplete),
        1 => Just(Event::Remove),
        2 => Just(Event::Restore),
        1 => any::<bool>().prop_map(Event::Gateway),
        1 => Just(Event::LoseStatus),
        1 => (0_i32..=100).prop_map(Event::EditRoute),
        2 => any::<bool>().prop_map(Event::Unfit),
    ]
}

impl World {
    fn happens(&mut self, event: &Event) {
        match event {
            Event::Reconcile(writes) => drop(self.reconcile(*writes)),
            Event::Accept => self.accept(),
            Event::AcceptOne(is_http) => self.accept_one(*is_http),
            Event::Grpc(_) if self.route.is_foreign => {}
            Event::Grpc(true) => self.grpc = self.grpc.or(Some(Route::default())),
            Event::Grpc(false) => self.grpc = None,
            Event::ComeUp => self.come_up(),
            Event::Roll(rolls) => self.is_rolling = *rolls,
            Event::Find(found) => {
                self.finding = match found {
                    0 => Finding::NotAsked,
                    1 => open(OnInconclusive::Hold),
                    2 => open(OnInconclusive::Rollback),
                    3 => over(OnInconclusive::Promote),
                    5 => over(OnInconclusive::Hold),
                    6 => over(OnInconclusive::Rollback),
                    4 => Finding::Fails { reason: reasons::ANALYSIS_FAILED, message: String::new() },
                    7 => Finding::Suspected,
                    _ => Finding::Passes,
                }
            }
            Event::LosePods => self.ready = 0,
            Event::Pass(seconds) => self.now += seconds,
            Event::Approve(steps) => {
                if let Some(canary) = &mut self.canary {
                    canary.approved_steps = *steps;
                }
            }
            Event::Abort(abort) => {
                if let Some(canary) = &mut self.canary {
                    canary.abort = *abort;
                }
            }
            Event::Edit => self.content = self.content % 100 + 2,
            Event::EditStable => self.stable = self.stable.wrapping_add(101),
            Event::StableComplete(complete) => self.stable_is_complete = *complete,
            Event::Remove => self.canary = None,
            Event::Restore => self.canary = Some(steps()),
            // The API server refuses to remove a reference under a share.
            Event::Gateway(_) if self.route.is_foreign => {}
            Event::Gateway(gateway) => {
                // Without the field, the HTTPRoute is deleted, and requests stop.
                if self.gateway && !gateway {
                    self.route = Route::default();
                    self.grpc = self.grpc.map(|_| Route::default());
                    self.quiet_since = self.quiet_since.or(Some(self.now));
                }
                self.gateway = *gateway;
            }
            Event::LoseStatus => {
                // A backup is not restored beside a canary that serves.
                if !self.has_served {
                    self.status = None;
                    self.promoted = None;
                }
            }
            Event::Unfit(is_unfit) => self.is_unfit = *is_unfit && self.route.is_foreign,
            Event::EditRoute(weight) => {
                // A manual edit may break the rules; the writes that follow must not. Requests that it sends to pods that are
                // about to go are not counted.
                let is_served = self
                    .status
                    .as_ref()
                    .is_some_and(|status| status.served && status.draining_since.is_none());
                if self.route.share.is_known && self.gateway && is_served {
                    self.route = Route {
                        share: Share { weight: *weight, ..self.route.share },
                        is_accepted: false,
                        ..self.route
                    };
                    self.has_served |= *weight > 0;
                    self.quiet_since = if self.route.share.has_requests() { None } else { self.quiet_since };
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// The invariants I1 to I5 are checked in each write.
    #[test]
    fn no_order_of_faults_edits_and_restarts_breaks_a_promise(
        events in prop::collection::vec(event(), 1..120),
        (is_foreign, has_grpc) in (any::<bool>(), any::<bool>()),
    ) {
        let mut world = World::new(steps());
        world.refers(is_foreign);
        world.happens(&Event::Grpc(has_grpc));
        for event in &events {
            world.happens(event);
        }
    }

    /// Whatever has happened: once everything works, the canary comes to an end, and nothing is written at rest.
    #[test]
    fn after_all_faults_the_canary_ends_and_rests(
        events in prop::collection::vec(event(), 1..60),
        (is_foreign, has_grpc) in (any::<bool>(), any::<bool>()),
    ) {
        let mut world = World::new(steps());
        world.refers(is_foreign);
        world.happens(&Event::Grpc(has_grpc));
        for event in &events {
            world.happens(event);
        }
        (world.is_sound, world.is_rolling, world.is_unfit) = (true, false, false);
        world.gateway = true;
        world.finding = Finding::Passes;
        world.stable_is_complete = true;
        if let Some(canary) = &mut world.canary {
            canary.approved_steps = 4;
        }
        // Approvals of a version before count when they are given again.
        for approved in [4, 0, 4] {
            world.go_on(30, 61);
            if let Some(canary) = &mut world.canary {
                canary.approved_steps = approved;
            }
        }
        world.go_on(60, 61);
        let rests = match world.phase() {
            None => world.canary.is_none() && world.pods.is_none(),
            Some(CanaryPhase::Promoted) => {
                world.pods.is_none() && world.shared() == world.stored(Share::default())
            }
            Some(CanaryPhase::RolledBack) => world.pods.as_ref().is_some_and(|(_, count)| *count == 0),
            Some(CanaryPhase::Aborted) => world.shared().weight == 0,
            Some(_) => false,
        };
        prop_assert!(rests, "{world:?}");
        let before = world.clone();
        world.go_on(1, 61);
        prop_assert_eq!((&world.status, &world.pods), (&before.status, &before.pods));
        prop_assert_eq!((world.route, world.grpc), (before.route, before.grpc));
        if let Some(grpc) = world.grpc {
            prop_assert_eq!(world.route.share, grpc.share);
        }
    }
}
