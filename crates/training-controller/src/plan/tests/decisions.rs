//! What the API server is asked before anything is written, and what comes before everything else.

use std::sync::Arc;

use api::{labels, reasons};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::{
    reconcile::{Confirmation, Decision},
    write::refusal::Refusal,
};
use serde_json::json;
use workload::{own_account::OwnAccount, views::node::LossKind};

use super::{
    GANG, LORA, World, because,
    retention::{claim, deleted},
    running,
};
use crate::{
    NAME,
    observe::{Doubt, Observed},
    own_account,
    plan::{Plan, Retirement, plan, refused},
    tests::{at, defaults, training_args},
};

const DELETE: &str = "{model: m, dataset: d, method: lora, output: {retention: Delete}}";

impl World {
    fn decides(&self) -> Decision<Plan, Doubt> {
        let observed = Observed { claims: self.claims.clone(), ..self.observed.clone() };
        plan(&observed, &OwnAccount::default(), &defaults(), at(self.seconds))
    }

    fn decided(&self) -> Plan {
        match self.decides() {
            Decision::Plan(plan) => plan,
            other @ Decision::Doubt(_) => panic!("{other:?}"),
        }
    }

    fn doubts(&self) -> Option<Doubt> {
        match self.decides() {
            Decision::Doubt(doubt) => Some(doubt),
            Decision::Plan(_) => None,
        }
    }

    /// The API server has nothing newer.
    fn confirms(&mut self, doubt: Doubt) {
        assert_eq!(self.doubts(), Some(doubt));
        assert_eq!(self.observed.answered(doubt, true), Confirmation::Confirmed);
    }

    /// The claim that the controller has made for it is seen.
    fn with_its_claim(mut self) -> Self {
        self.observed.made_claim = Some(Arc::new(claim(NAME)));
        self
    }

    fn retirement(&self) -> Retirement {
        match self.decided() {
            Plan::Retire(retirement) => *retirement,
            other @ (Plan::Run(_) | Plan::SetFinalizer { .. }) => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_attempt_that_is_not_seen_is_no_deleted_one_before_the_api_server_says_so() {
    let mut world = World::training(LORA);
    assert_eq!(world.doubts(), None);
    world.observed.attempts.clear();
    world.observed.pods.clear();
    world.confirms(Doubt::MissingAttempt(1));
    assert_eq!(world.doubts(), None);
}

#[test]
fn an_attempt_that_is_over_is_judged_by_the_newest_pods() {
    let mut world = World::training(LORA);
    world.observed.pods.clear();
    world.job_fails();
    world.confirms(Doubt::UnseenPods);
    assert_eq!(world.doubts(), None, "its end is written first");
}

#[test]
fn an_attempt_follows_another_one_when_the_api_server_knows_no_pod_that_runs() {
    let mut world = World::training(LORA);
    let fails = because("UserError");
    world.fails(1, &fails);
    world.passes(0);
    world.seconds += 10;
    world.confirms(Doubt::RunningPods);
    let Plan::Run(run) = world.decided() else { panic!("a run") };
    assert_eq!(run.children.len(), 2, "the claim and the next attempt");
    assert_eq!(World::new(LORA).doubts(), None, "nothing runs before the first attempt");
}

/// A watch that fails shows a pod as it was before.
#[test]
fn an_attempt_that_could_not_start_is_given_up_when_the_api_server_has_no_newer_pods() {
    let mut world = World::new(GANG);
    world.settles();
    world.pod(0, &running());
    world.pod(1, &json!({"phase": "Pending", "node": null}));
    world.settles();
    world.seconds += 600;
    let stays = world.observed.clone();
    world.confirms(Doubt::UnseenPods);
    let Plan::Run(run) = world.decided() else { panic!("a run") };
    assert_eq!(run.status.ended_attempts, 1, "its end is written first");

    world.observed = stays.clone();
    assert_eq!(world.observed.answered(Doubt::UnseenPods, false), Confirmation::TooOld);
    world.observed = stays;
    world.job().spec.pods.paused = true;
    assert_eq!(world.doubts(), None, "nothing is given up");
}

#[test]
fn the_finalizer_comes_before_everything_else() {
    let mut world = World::new(DELETE);
    assert!(matches!(world.decided(), Plan::SetFinalizer { .. }));
    world.job().metadata.finalizers = Some(vec![labels::OUTPUT_FINALIZER.to_owned()]);
    let Plan::Run(run) = world.decided() else { panic!("a run") };
    assert_eq!(run.children.len(), 2);
    assert!(matches!(World::new(LORA).decided(), Plan::Run(_)), "its claim is kept");
}

#[test]
fn a_finalizer_that_the_cluster_denies_is_reported() {
    let denied = || Refusal::Denied("no finalizers here".into());
    let mut world = World::new(DELETE);
    let plan = refused(&denied(), world.decided(), &world.observed, &defaults(), at(0));
    let Plan::Run(run) = plan else { panic!("{plan:?}") };
    assert!(run.children.is_empty() && run.deletions.is_empty());
    assert_eq!(run.status.reason.as_deref(), Some(reasons::DENIED));
    assert!(run.events.iter().any(|note| note.message.contains("no finalizers here")), "{:?}", run.events);
    world.job().status = Some(run.status.clone());
    let again = refused(&denied(), world.decided(), &world.observed, &defaults(), at(60));
    let Plan::Run(again) = again else { panic!("{again:?}") };
    assert_eq!((again.status, again.events.len()), (run.status, 0), "it is reported once");

    world.job().metadata.deletion_timestamp = Some(Time(at(0)));
    world.confirms(Doubt::MissingClaim);
    let plan = refused(&denied(), world.decided(), &world.observed, &defaults(), at(0));
    let Plan::Retire(waits) = plan else { panic!("{plan:?}") };
    assert!(!waits.releases && waits.requeue_after.is_some());
    let message = waits.status.unwrap().message.unwrap();
    assert_eq!(message, "the job is being deleted, and waits: no finalizers here");
}

#[test]
fn the_claim_of_a_deleted_job_is_missed_only_if_the_api_server_has_none() {
    let mut world = World::new(DELETE);
    world.job().metadata.deletion_timestamp = Some(Time(at(0)));
    world.confirms(Doubt::MissingClaim);
    assert!(world.retirement().releases);
}

#[test]
fn an_output_is_saved_or_deleted_when_the_api_server_knows_no_pod_that_runs() {
    let mut saved = deleted("Snapshot").with_its_claim();
    saved.confirms(Doubt::RunningPods);
    assert!(saved.retirement().snapshot.is_some());
    let mut lost = deleted("Delete").with_its_claim();
    lost.confirms(Doubt::RunningPods);
    assert!(lost.retirement().claim.is_some());
    assert_eq!(deleted("Retain").with_its_claim().doubts(), None, "nothing becomes of it");
    let mut waits = deleted("Snapshot").with_its_claim();
    waits.observed.dependents = 1;
    assert_eq!(waits.doubts(), None, "its time is not there");
}

/// After a change of the leader neither its Job nor its pods are seen.
#[test]
fn an_attempt_that_is_not_seen_may_write_into_the_output_of_a_deleted_job() {
    let spec = "{model: m, dataset: d, method: lora, output: {retention: Snapshot}}";
    let mut world = World::training(spec).with_its_claim();
    world.job().metadata.deletion_timestamp = Some(Time(at(0)));
    assert_eq!(world.doubts(), None, "it is seen");
    world.observed.attempts.clear();
    world.observed.pods.clear();
    world.confirms(Doubt::MissingAttempt(1));
    world.confirms(Doubt::RunningPods);
    assert!(world.retirement().snapshot.is_some());
}

#[test]
fn a_deletion_waits_for_what_is_not_seen_by_a_plan_whose_time_is_limited() {
    for doubt in [Doubt::MissingAttempt(1), Doubt::RunningPods] {
        let mut world = deleted("Snapshot").with_its_claim();
        assert_eq!(world.observed.answered(doubt, false), Confirmation::Confirmed);
        let waits = world.retirement();
        assert!(waits.snapshot.is_none() && !waits.releases && !waits.facts.is_empty());
        let mut runs = World::training(LORA);
        assert_eq!(runs.observed.answered(doubt, false), Confirmation::TooOld);
    }
    let mut world = World::new(DELETE);
    world.job().metadata.deletion_timestamp = Some(Time(at(0)));
    assert_eq!(world.observed.answered(Doubt::MissingClaim, false), Confirmation::TooOld);
}

#[test]
fn a_snapshot_that_the_cluster_cannot_make_lets_the_job_go() {
    let mut world = deleted("Snapshot").with_its_claim();
    world.confirms(Doubt::RunningPods);
    assert!(world.retirement().snapshot.is_some_and(|snapshot| snapshot.status.is_none()));
    let refusal = Refusal::Invalid("the namespace is being deleted".into());
    let plan = refused(&refusal, world.decided(), &world.observed, &defaults(), at(0));
    let Plan::Retire(retirement) = plan else { panic!("{plan:?}") };
    let Retirement { releases, snapshot, claim, event, .. } = *retirement;
    assert!(releases && snapshot.is_none() && claim.is_none());
    assert!(event.unwrap().message.contains("because the namespace is being deleted"));
}

#[test]
fn a_plan_has_the_deletions_of_pods_on_lost_nodes() {
    let mut world = World::training(GANG);
    world.loses("node-1", LossKind::Deleted);
    Arc::make_mut(&mut world.observed.pods[1]).metadata.deletion_timestamp = Some(Time(at(0)));
    world.seconds += 600;
    // The end of the attempt is written.
    let ends = world.plan();
    world.apply(ends);
    insta::assert_yaml_snapshot!(world.decided());
}

/// Its pods would get the rights of the controller.
#[test]
fn no_trainer_uses_the_service_account_of_the_controller() {
    let world =
        World::new("{model: qwen/Qwen-7B, dataset: a/b, method: lora, serviceAccountName: controller}");
    let reason = |namespace: &str| {
        let namespace = format!("--own-namespace={namespace}");
        let own = own_account(&training_args(&["--own-service-account=controller", &namespace]));
        let Decision::Plan(Plan::Run(run)) = plan(&world.observed, &own, &defaults(), at(0)) else {
            panic!("no run is planned");
        };
        run.status.reason.clone().unwrap()
    };
    assert_eq!(reason("demo"), reasons::INVALID_SPEC);
    assert_ne!(reason("ai-system"), reasons::INVALID_SPEC);
}
