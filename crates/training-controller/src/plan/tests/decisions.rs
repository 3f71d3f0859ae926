//! What the API server is asked before anything is written, and what comes before everything else.

use std::sync::Arc;

use api::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runtime::{reconcile::Decision, refusal::Refusal};
use workload::node::LossKind;

use super::{GANG, LORA, World, because};
use crate::{
    observe::{Doubt, Observed},
    plan::{Plan, Retirement, plan, refused},
    tests::{at, defaults},
    validate::OwnAccount,
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
            other @ (Decision::Doubt(_) | Decision::Later(_)) => panic!("{other:?}"),
        }
    }

    fn doubts(&self) -> Option<Doubt> {
        match self.decides() {
            Decision::Doubt(doubt) => Some(doubt),
            Decision::Plan(_) => None,
            Decision::Later(wait) => panic!("{wait:?}"),
        }
    }

    /// The API server has nothing newer.
    fn confirms(&mut self, doubt: Doubt) {
        assert_eq!(self.doubts(), Some(doubt));
        self.observed.confirmed.insert(doubt);
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
fn the_claim_of_a_deleted_job_is_missed_only_if_the_api_server_has_none() {
    let mut world = World::new(DELETE);
    world.job().metadata.deletion_timestamp = Some(Time(at(0)));
    world.confirms(Doubt::MissingClaim);
    let Plan::Retire(retirement) = world.decided() else { panic!("a retirement") };
    assert!(retirement.releases);
}

#[test]
fn a_snapshot_that_the_cluster_cannot_make_lets_the_job_go() {
    let mut world = World::new(DELETE);
    world.job().metadata.deletion_timestamp = Some(Time(at(0)));
    world.observed.confirmed.insert(Doubt::MissingClaim);
    let refusal = Refusal::Denied("the namespace is being deleted".into());
    let plan = refused(&refusal, world.decided(), &world.observed, &defaults(), at(0));
    let Plan::Retire(retirement) = plan else { panic!("{plan:?}") };
    let Retirement { releases, claim, event, .. } = *retirement;
    assert!(releases && claim.is_none());
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
