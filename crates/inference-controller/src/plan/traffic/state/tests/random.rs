//! Faults, edits and restarts in any order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Reconcile(usize),
    Accept,
    AcceptOne(bool),
    /// The kind GRPCRoute is installed, or removed with its objects.
    Grpc(bool),
    ComeUp,
    LosePods,
    /// Nodes with so many pods are emptied.
    Empty(i32),
    Roll(bool),
    Find(u8),
    /// The evaluation passes, fails, or another one is named.
    Evaluate(u8),
    Pass(i64),
    Approve(i32),
    Abort(bool),
    Edit,
    EditStable,
    RemoveSteps,
    StableComplete(bool),
    Remove,
    Restore,
    Gateway(bool),
    /// The routes that are not wanted any more are deleted.
    RoutesGone,
    /// The gateways do not find the candidate's Service.
    Unresolved(bool),
    /// Stable has no replicas.
    Stop(bool),
    LoseStatus,
    EditRoute(i32),
    /// The owner of a route edits its rule so that the weights cannot be written, and back.
    Unfit(bool),
    /// The engines say whether no request runs.
    Drained(bool),
    /// Another manager keeps changing a route, and stops.
    Contest(bool),
    /// A gateway refuses the present rules.
    Refuse(bool),
    /// The pods have tried to become ready for too long.
    Overdue(bool),
    /// Memory is lost.
    Restart,
}

/// A gateway may refuse its rules.
fn pinned() -> Canary {
    Canary { pin: Pin::Cookie, ..steps() }
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
        2 => (0_i32..4).prop_map(Event::Empty),
        1 => any::<bool>().prop_map(Event::Roll),
        3 => (0_u8..10).prop_map(Event::Find),
        2 => (0_u8..5).prop_map(Event::Evaluate),
        6 => (1_i64..100).prop_map(Event::Pass),
        2 => (0_i32..5).prop_map(Event::Approve),
        1 => any::<bool>().prop_map(Event::Abort),
        1 => Just(Event::Edit),
        1 => Just(Event::EditStable),
        1 => Just(Event::RemoveSteps),
        3 => any::<bool>().prop_map(Event::StableComplete),
        1 => Just(Event::Remove),
        2 => Just(Event::Restore),
        1 => any::<bool>().prop_map(Event::Gateway),
        2 => Just(Event::RoutesGone),
        2 => any::<bool>().prop_map(Event::Unresolved),
        2 => prop_oneof![1 => Just(true), 2 => Just(false)].prop_map(Event::Stop),
        1 => Just(Event::LoseStatus),
        1 => (0_i32..=100).prop_map(Event::EditRoute),
        2 => any::<bool>().prop_map(Event::Unfit),
        3 => any::<bool>().prop_map(Event::Drained),
        1 => any::<bool>().prop_map(Event::Contest),
        1 => any::<bool>().prop_map(Event::Refuse),
        1 => any::<bool>().prop_map(Event::Overdue),
        1 => Just(Event::Restart),
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
            Event::Grpc(false) => self.lose_grpc(),
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
                    8 => Finding::PassesSoon,
                    _ => Finding::Passes,
                }
            }
            Event::Evaluate(found) => {
                self.gate = match found {
                    0 => Gate::Closed,
                    1 => Gate::PodsOnly,
                    2 => Gate::Contradicted,
                    _ => Gate::Open,
                }
            }
            Event::LosePods => self.ready = 0,
            Event::Empty(pods) => self.leaving = *pods,
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
            Event::RemoveSteps => {
                if let Some(canary) = &mut self.canary {
                    canary.steps.clear();
                }
            }
            Event::StableComplete(complete) => self.stable_is_complete = *complete,
            Event::Remove => self.canary = None,
            Event::Restore => self.canary = Some(pinned()),
            // The API server refuses to remove a reference under a share.
            Event::Gateway(_) if self.route.is_foreign => {}
            Event::Gateway(gateway) => {
                self.is_left |= self.gateway && !gateway;
                if *gateway {
                    self.routes_are_gone();
                }
                self.gateway = *gateway;
            }
            Event::RoutesGone => self.routes_are_gone(),
            Event::Unresolved(is_unresolved) => self.route.is_unresolved = *is_unresolved,
            Event::Stop(is_stopped) => self.is_stopped = *is_stopped,
            Event::LoseStatus => {
                // A backup is not restored beside a canary that serves.
                if !self.has_served {
                    self.status = None;
                    self.promoted = None;
                }
            }
            Event::Drained(is_drained) => self.engines_say(*is_drained),
            Event::Contest(is_contested) => self.is_contested = *is_contested,
            Event::Refuse(refuses) => self.rules_refused = refuses.then(|| "no such filter".to_owned()),
            Event::Overdue(is_overdue) => self.is_overdue = *is_overdue,
            Event::Restart => (self.is_drained, self.waits_since) = (false, None),
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
                    self.note_requests(self.route.share);
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
        (is_foreign, has_grpc, is_promoted) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let mut world = World::new(pinned());
        world.refers(is_foreign);
        world.happens(&Event::Grpc(has_grpc));
        if is_promoted {
            world.promotes();
        }
        for event in &events {
            world.happens(event);
        }
    }

    /// Its gateways answer nothing, and its routes may refuse each write.
    #[test]
    fn a_stopped_object_has_no_pods_once_requests_have_had_their_time(
        events in prop::collection::vec(event(), 1..60),
        (is_foreign, has_grpc, writes) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let mut world = World::new(pinned());
        world.refers(is_foreign);
        world.happens(&Event::Grpc(has_grpc));
        for event in &events {
            world.happens(event);
        }
        (world.is_stopped, world.is_unfit) = (true, is_foreign && !writes);
        if let Some(canary) = &mut world.canary {
            canary.abort = false;
        }
        world.reconcile(ALL);
        for _ in 0..5 {
            world.now += DRAIN;
            world.reconcile(ALL);
        }
        let left = world.pods.as_ref().map_or(0, |(_, count)| *count);
        prop_assert_eq!(left, 0, "{:?}", world);
        let before = world.clone();
        world.now += DRAIN;
        world.reconcile(ALL);
        prop_assert_eq!((&world.status, &world.pods), (&before.status, &before.pods));
    }

    /// Whatever has happened: once everything works, the canary comes to an end, and nothing is written at rest.
    #[test]
    fn after_all_faults_the_canary_ends_and_rests(
        events in prop::collection::vec(event(), 1..60),
        (is_foreign, has_grpc, passes) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let mut world = World::new(pinned());
        world.refers(is_foreign);
        world.happens(&Event::Grpc(has_grpc));
        for event in &events {
            world.happens(event);
        }
        (world.is_sound, world.is_rolling, world.is_unfit, world.is_stopped) = (true, false, false, false);
        world.routes_are_gone();
        (world.gateway, world.route.is_unresolved) = (true, false);
        world.finding = Finding::Passes;
        (world.is_contested, world.is_overdue, world.rules_refused) = (false, false, None);
        world.gate = if passes { Gate::Open } else { Gate::Closed };
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
            Some(CanaryPhase::AwaitingEvaluation) if passes => false,
            Some(CanaryPhase::AwaitingEvaluation) => {
                let step = world.status.as_ref().map_or(0, |status| status.step);
                step > 0 || world.pods.is_none()
            }
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
