//! A controller that ends between any two of its writes, over 14 000 questions, and faults in any order.

use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

use super::*;

mod world;

use world::{ALL, World};

#[derive(Clone, Debug)]
enum Event {
    /// A reconcile that ends after so many writes.
    Reconcile(usize),
    ServerIsReady(Side),
    ServerIsNotReady(Side),
    /// Every runner gets so many answers.
    Answer(u32),
    /// The pod of a run is evicted. Its Job makes another one.
    Evict(Side),
    /// A Job that has ended loses its pod.
    LosePods,
    /// The Job of a run is deleted by hand.
    DeleteJob(Side),
    /// The upload fails, or its Job is deleted by hand.
    FailUpload,
    DeleteUpload,
    /// What is being deleted has gone.
    Gone,
    Suspend(bool),
    Pause(bool),
    Pass(i64),
    /// The API server refuses the children of a side, or the deletion of its server, or the pods of its Jobs.
    Refuse(Side, bool),
    RefuseDeletion(Side, bool),
    NoPod(Side, bool),
    /// The API server refuses the Job that tries the store.
    RefuseCheck(bool),
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Baseline), Just(Side::Candidate)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0_usize..=4).prop_map(Event::Reconcile),
        12 => Just(Event::Reconcile(ALL)),
        8 => side().prop_map(Event::ServerIsReady),
        1 => side().prop_map(Event::ServerIsNotReady),
        10 => (1_u32..20_000).prop_map(Event::Answer),
        2 => side().prop_map(Event::Evict),
        2 => Just(Event::LosePods),
        1 => side().prop_map(Event::DeleteJob),
        2 => Just(Event::FailUpload),
        1 => Just(Event::DeleteUpload),
        6 => Just(Event::Gone),
        1 => any::<bool>().prop_map(Event::Suspend),
        1 => any::<bool>().prop_map(Event::Pause),
        4 => (1_i64..100).prop_map(Event::Pass),
    ]
}

fn refusal() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => side().prop_map(Event::ServerIsReady),
        8 => (1_u32..20_000).prop_map(Event::Answer),
        1 => side().prop_map(Event::Evict),
        6 => Just(Event::Gone),
        1 => any::<bool>().prop_map(Event::Suspend),
        8 => (1_i64..900).prop_map(Event::Pass),
        3 => (side(), any::<bool>()).prop_map(|(side, refuses)| Event::Refuse(side, refuses)),
        2 => (side(), any::<bool>()).prop_map(|(side, refuses)| Event::RefuseDeletion(side, refuses)),
        2 => (side(), any::<bool>()).prop_map(|(side, refuses)| Event::NoPod(side, refuses)),
        2 => any::<bool>().prop_map(Event::RefuseCheck),
    ]
}

impl World {
    fn happens(&mut self, event: &Event) {
        match event {
            Event::Reconcile(writes) => {
                self.reconcile(*writes);
            }
            Event::ServerIsReady(side) => self.serves(*side, true),
            Event::ServerIsNotReady(side) => self.serves(*side, false),
            Event::Answer(count) => self.answer(*count),
            Event::Evict(side) => self.evict(*side),
            Event::LosePods => self.lose_pods(),
            Event::DeleteJob(side) => self.delete_job(*side),
            Event::FailUpload => self.fail_upload(),
            Event::DeleteUpload => self.delete_upload(),
            Event::Gone => self.gone(),
            Event::Suspend(suspend) => self.edit(|spec| spec.suspend = *suspend),
            Event::Pause(paused) => self.edit(|spec| spec.pods.paused = *paused),
            Event::Pass(seconds) => self.now += seconds,
            Event::Refuse(side, true) => _ = self.refused.insert(*side),
            Event::Refuse(side, false) => _ = self.refused.remove(side),
            Event::RefuseDeletion(side, true) => _ = self.kept.insert(*side),
            Event::RefuseDeletion(side, false) => _ = self.kept.remove(side),
            Event::NoPod(side, refuses) => self.gets_pods(*side, !refuses),
            Event::RefuseCheck(refuses) => self.refuses_check = *refuses,
        }
    }

    /// The controller runs, and is woken by what happens and at the times that it wants.
    fn happens_watched(&mut self, event: &Event) {
        if let Event::Pass(seconds) = event {
            return self.pass(*seconds);
        }
        if let Event::ServerIsReady(side) = event {
            self.run_may_begin(*side);
        }
        self.happens(event);
        if matches!(event, Event::Refuse(..) | Event::RefuseDeletion(..) | Event::NoPod(..)) {
            self.changes();
        }
        self.wakes();
    }

    /// Everything works from now on.
    fn recovers(&mut self) {
        self.edit(|spec| (spec.suspend, spec.pods.paused) = (false, false));
        for _ in 0..60 {
            if self.is_at_rest() && self.status().phase == Some(Phase::Succeeded) {
                break;
            }
            self.gone();
            Side::ALL.into_iter().for_each(|side| self.serves(side, true));
            self.answer(14_000);
            self.now += 31;
            self.reconcile(ALL);
        }
    }
}

fn world(order: &str) -> World {
    let output = json!({"uri": "s3://evaluations"});
    World::new(&json!({"order": order, "testSets": [{"name": "one"}, {"name": "two"}], "output": output}))
}

#[test]
fn an_undisturbed_evaluation_asks_each_run_once() {
    for order in ["Sequential", "Parallel"] {
        let mut world = world(order);
        world.recovers();
        assert_eq!(world.status().verdict.as_deref(), Some("Regressed"), "{:?}", world.status());
        assert_eq!(world.asked.len(), 5);
        assert!(world.asked.values().all(|count| *count == 1), "{:?}", world.asked);
        assert_eq!(world.uploads, 1);
        assert_eq!(world.most_servers, if order == "Parallel" { 2 } else { 1 });
    }
}

/// The invariants of each write are checked in the world.
#[test]
fn whatever_happens_the_verdict_is_the_same_and_no_finished_run_is_asked_again() {
    let mut undisturbed = world("Sequential");
    undisturbed.recovers();
    let wanted = undisturbed.status();
    let order = prop_oneof![Just("Sequential"), Just("Parallel")];
    let config = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
    let checked = TestRunner::new(config).run(&(order, vec(event(), 1..60)), |(order, events)| {
        let mut world = world(order);
        for event in &events {
            world.happens(event);
        }
        world.recovers();
        let ended = world.status();
        prop_assert_eq!(ended.phase, Some(Phase::Succeeded), "{:?}", ended.message);
        prop_assert_eq!((&ended.verdict, &ended.results), (&wanted.verdict, &wanted.results));
        prop_assert_eq!(&ended.summary, &wanted.summary);
        let uploaded = ended.conditions.iter().find(|known| known.type_ == conditions::UPLOADED);
        prop_assert_eq!(uploaded.map(|known| known.status.as_str()), Some("True"));
        prop_assert!(world.uploads <= 1 + world.lost_uploads, "{} uploads", world.uploads);
        for (run, count) in &world.asked {
            let lost = world.lost.get(run).copied().unwrap_or_default();
            prop_assert!(*count <= 1 + lost, "{} was asked {} times, and lost {} times", run, count, lost);
        }
        prop_assert!(world.is_at_rest(), "nothing is written or held at the end");
        Ok(())
    });
    assert!(checked.is_ok(), "{}", checked.unwrap_err());
}

/// The world checks that no run that goes on is ended, and how long a server is held in vain.
#[test]
fn refusals_and_missing_pods_end_only_what_holds_gpus_in_vain() {
    let order = prop_oneof![Just("Sequential"), Just("Parallel")];
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    let checked = TestRunner::new(config).run(&(order, vec(refusal(), 1..60)), |(order, events)| {
        let mut world = world(order);
        world.wakes();
        for event in &events {
            world.happens_watched(event);
        }
        for side in Side::ALL {
            world.happens(&Event::Refuse(side, false));
            world.happens(&Event::RefuseDeletion(side, false));
            world.happens(&Event::NoPod(side, false));
        }
        world.happens(&Event::RefuseCheck(false));
        world.recovers();
        prop_assert!(
            matches!(world.status().phase, Some(Phase::Succeeded | Phase::Failed)),
            "{:?}",
            world.status()
        );
        world.gone();
        world.reconcile(ALL);
        world.gone();
        prop_assert!(world.is_at_rest(), "nothing is written or held at the end");
        Ok(())
    });
    assert!(checked.is_ok(), "{}", checked.unwrap_err());
}
