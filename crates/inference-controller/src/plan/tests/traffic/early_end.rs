//! Candidates end early in any order of requests, looks, answers and kills, and no running request is cut.

use std::{collections::BTreeMap, sync::Arc};

use api::aiinference::traffic::Canary;
use proptest::prelude::*;

use super::*;
use crate::{
    looks::{Ask, Look, Requests},
    plan::children::Superfluous,
};

const DRAIN: i64 = 300;
/// A gateway that has accepted a change may send by the rules of before for so long.
const SETTLES: i64 = 25;

/// An engine of the candidate, in a pod of the same number.
#[derive(Clone, Copy, Debug, Default)]
struct Engine {
    pod: u32,
    running: u64,
    ended: u64,
    is_silent: bool,
}

#[derive(Clone, Debug)]
enum Event {
    /// One reconcile that ends after so many writes.
    Reconcile(usize),
    /// The process ends, and with it all that memory holds.
    Kill,
    /// The look that was asked for reads one engine.
    Read(usize),
    /// It reads the others, and ends.
    Answer,
    Pass(i64),
    Accept,
    Request(usize),
    Ends(usize),
    Silent(usize, bool),
    /// An engine begins anew. Its requests were cut by its end, not by the controller.
    Restart(usize),
    /// Another pod is in its place.
    Replace(usize),
    /// The cache does not follow the pods.
    WatchFails(bool),
    Remove,
    Restore,
}

/// The writes of a reconcile: the route, the children and the status.
const ALL: usize = 3;

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Reconcile(ALL)),
        3 => (0..ALL).prop_map(Event::Reconcile),
        1 => Just(Event::Kill),
        3 => (0_usize..2).prop_map(Event::Read),
        5 => Just(Event::Answer),
        6 => (1_i64..12).prop_map(Event::Pass),
        4 => Just(Event::Accept),
        3 => (0_usize..2).prop_map(Event::Request),
        4 => (0_usize..2).prop_map(Event::Ends),
        1 => (0_usize..2, any::<bool>()).prop_map(|(index, is_silent)| Event::Silent(index, is_silent)),
        1 => (0_usize..2).prop_map(Event::Restart),
        1 => (0_usize..2).prop_map(Event::Replace),
        1 => any::<bool>().prop_map(Event::WatchFails),
        2 => Just(Event::Remove),
        1 => Just(Event::Restore),
    ]
}

/// A cluster with a candidate, its engines, and a controller that may be killed between any two of its writes.
struct World {
    scene: Scene,
    canary: Option<Canary>,
    engines: [Engine; 2],
    pods: u32,
    now: i64,
    /// When the gateways had accepted that the candidate gets no requests.
    quiet_since: Option<i64>,
    asked: Option<Ask>,
    read: BTreeMap<String, Option<Engine>>,
    watch_fails: bool,
    /// When the candidate was deleted.
    ended: Option<i64>,
}

impl World {
    fn new() -> Self {
        let mut scene = analysing(READY);
        scene.edit_spec(|spec| spec.canary.as_mut().unwrap().analysis = None);
        scene.write_status();
        let canary = scene.observed().inference.spec.canary.clone();
        let engines = [Engine { pod: 0, ..Engine::default() }, Engine { pod: 1, ..Engine::default() }];
        let (quiet_since, asked, read) = (None, None, BTreeMap::new());
        let mut world = Self {
            scene,
            canary,
            engines,
            pods: 2,
            now: 0,
            quiet_since,
            asked,
            read,
            watch_fails: false,
            ended: None,
        };
        world.pods_are_seen();
        world
    }

    fn name(engine: &Engine) -> String {
        format!("new-{}", engine.pod)
    }

    fn pods_are_seen(&mut self) {
        let pod = |engine: &Engine| {
            let name = Self::name(engine);
            Arc::new(crate::tests::pod(&format!(
                "{{name: {name}, ready: true, node: gpu-1, phase: Running, gpus: 1}}"
            )))
        };
        let (fails, pods) = (self.watch_fails, self.engines.iter().map(pod).collect::<Vec<_>>());
        self.scene.observe(|observed| {
            let version = observed.candidate.as_mut().unwrap();
            version.watch_fails = fails;
            if !fails {
                version.deployed = Some(pods);
            }
        });
    }

    fn may_get_requests(&self) -> bool {
        self.quiet_since.is_none_or(|since| self.now - since < SETTLES)
    }

    fn is_share(&self) -> bool {
        let route = self.scene.observed().route.unwrap();
        route.spec.rules[0].backend_refs.get(1).is_some_and(|backend| backend.weight > 0)
    }

    fn reconcile(&mut self, writes: usize) {
        let plan = self.scene.plan_at(self.now);
        if let Some(ask) = &plan.look {
            self.asked = Some(ask.clone());
            self.scene.observe(|observed| observed.looking.is_asked = true);
        }
        let route = *plan.route.clone().unwrap();
        if writes > 0 && self.scene.observed().route.unwrap().spec != route.spec {
            let mut written = accepted(route);
            // What the gateways have accepted is the generation before.
            written.metadata.generation = Some(2);
            self.scene.observe(|observed| observed.route = Some(written));
            if self.is_share() {
                self.quiet_since = None;
            }
        }
        let is_deleted =
            plan.superfluous_apart.iter().any(|child| matches!(child, Superfluous::Deployment(_)));
        if writes > 1 && is_deleted {
            let is_over = self.quiet_since.is_some_and(|since| self.now - since >= DRAIN);
            let running: u64 = self.engines.iter().map(|engine| engine.running).sum();
            assert!(
                is_over || running == 0,
                "{running} requests are cut after {:?} at {}",
                self.quiet_since,
                self.now
            );
            self.ended = Some(self.now);
        }
        if writes > 2 {
            self.scene.observe(|observed| {
                Arc::make_mut(&mut observed.inference).status = Some(plan.status.clone())
            });
        }
    }

    fn reads(&mut self, index: usize) {
        let engine = self.engines[index];
        if self.asked.is_some() {
            self.read.entry(Self::name(&engine)).or_insert(Some(engine).filter(|engine| !engine.is_silent));
        }
    }

    fn answers(&mut self) {
        (0..self.engines.len()).for_each(|index| self.reads(index));
        let (Some(ask), read) = (self.asked.take(), std::mem::take(&mut self.read)) else { return };
        let mut requests = Some(Requests { pods: Default::default(), running: 0, ended: 0 });
        for pod in &ask.pods {
            let engine = read.get(&pod.uid).copied().flatten();
            requests = requests.zip(engine).map(|(mut requests, engine)| {
                requests.pods.insert(pod.uid.clone());
                requests.running += engine.running;
                requests.ended += engine.ended;
                requests
            });
        }
        let at = at(self.now).as_second();
        let look = Look {
            step_since: ask.step_since,
            at,
            ended: at,
            ready_pods: Default::default(),
            requests,
            metrics: Default::default(),
            tokens: None,
            fault: None,
            of_queries: None,
        };
        self.scene.observe(|observed| {
            observed.looking.is_asked = false;
            observed.looking.looks.push(look);
        });
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Reconcile(writes) => self.reconcile(*writes),
            Event::Kill => {
                (self.asked, self.read) = (None, BTreeMap::new());
                self.scene.observe(|observed| observed.looking = Default::default());
            }
            Event::Read(index) => self.reads(*index),
            Event::Answer => self.answers(),
            Event::Pass(seconds) => self.now += seconds,
            Event::Accept => {
                self.scene.observe(|observed| observed.route = observed.route.take().map(accepted));
                if !self.is_share() {
                    self.quiet_since = self.quiet_since.or(Some(self.now));
                }
            }
            Event::Request(index) => self.engines[*index].running += u64::from(self.may_get_requests()),
            Event::Ends(index) => {
                let engine = &mut self.engines[*index];
                let ends = engine.running.min(1);
                (engine.running, engine.ended) = (engine.running - ends, engine.ended + ends);
            }
            Event::Silent(index, is_silent) => self.engines[*index].is_silent = *is_silent,
            Event::Restart(index) => {
                let Engine { pod, .. } = self.engines[*index];
                self.engines[*index] = Engine { pod, ..Engine::default() };
            }
            Event::Replace(index) => {
                self.engines[*index] = Engine { pod: self.pods, ..Engine::default() };
                self.pods += 1;
                self.pods_are_seen();
            }
            Event::WatchFails(fails) => {
                self.watch_fails = *fails;
                self.pods_are_seen();
            }
            Event::Remove => self.scene.edit_spec(|spec| spec.canary = None),
            Event::Restore => {
                let canary = self.canary.clone();
                self.scene.edit_spec(|spec| spec.canary = canary);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_request_is_cut_by_an_early_end_whenever_the_controller_is_killed(
        events in prop::collection::vec(event(), 1..100),
    ) {
        let mut world = World::new();
        world.happens(&Event::Remove);
        for event in &events {
            if world.ended.is_some() {
                return Ok(());
            }
            world.happens(event);
        }
        // Once nothing fails any more and no request runs, the end is early.
        world.happens(&Event::WatchFails(false));
        world.happens(&Event::Remove);
        for engine in &mut world.engines {
            (engine.is_silent, engine.ended, engine.running) = (false, engine.ended + engine.running, 0);
        }
        let since = world.now;
        for _ in 0..20 {
            if world.ended.is_none() {
                [Event::Reconcile(ALL), Event::Accept, Event::Answer, Event::Pass(3)]
                    .iter()
                    .for_each(|event| world.happens(event));
            }
        }
        prop_assert!(world.ended.is_some(), "no end within a minute after {since}: {:?}", world.scene.observed().looking);
    }
}
