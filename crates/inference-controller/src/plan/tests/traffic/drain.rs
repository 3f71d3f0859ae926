//! The end of a candidate whose requests are looked at.

use super::*;
use crate::looks::{Look, Requests};

/// Its share was taken away, and the gateways have accepted that; requests may run since then.
fn draining() -> Scene {
    let mut scene = analysing(READY);
    scene.edit_spec(|spec| spec.canary = None);
    let route = scene.plan().route.unwrap();
    scene.observe(|observed| observed.route = Some(accepted(*route)));
    scene.write_status();
    scene
}

/// After so many seconds of the drain: requests that run in the candidate's engines, and those that have ended.
fn looked(seconds: i64, requests: Option<(u64, u64)>) -> Look {
    let pods = ["new".to_owned()].into();
    Look {
        step_since: at(0).as_second(),
        at: at(seconds).as_second(),
        ended: at(seconds).as_second(),
        ready_pods: Default::default(),
        requests: requests.map(|(running, ended)| Requests { pods, running, ended }),
        metrics: Default::default(),
        tokens: None,
        fault: None,
        of_queries: None,
    }
}

fn with_looks(scene: &mut Scene, looks: &[(i64, Option<(u64, u64)>)]) {
    let looks = looks.iter().map(|(seconds, requests)| looked(*seconds, *requests)).collect::<Vec<_>>();
    scene.observe(|observed| observed.looking.looks = looks.clone());
}

/// The route forgets the candidate, and its children go.
fn ends(scene: &Scene, seconds: i64) -> bool {
    let route = scene.plan_at(seconds).route.unwrap();
    route.spec.rules[0].backend_refs.len() == 1
}

#[test]
fn the_engines_of_a_candidate_that_ends_are_looked_at_once_the_gateways_have_settled() {
    let mut scene = draining();
    let plan = scene.plan_at(1);
    assert_eq!((plan.look, plan.requeue_after), (None, Some(std::time::Duration::from_secs(24))));
    let ask = scene.plan_at(25).look.unwrap();
    let pods: Vec<(&str, bool)> = ask.pods.iter().map(|pod| (&*pod.name, pod.is_candidate)).collect();
    assert_eq!((pods, ask.step_since, ask.metrics.len()), (vec![("new", true)], at(0).as_second(), 0));
    with_looks(&mut scene, &[(26, Some((3, 9)))]);
    assert_eq!(scene.plan_at(27).requeue_after, Some(std::time::Duration::from_secs(4)));
    assert!(scene.plan_at(31).look.is_some());
    scene.observe(|observed| observed.looking.is_asked = true);
    assert_eq!(scene.plan_at(31).look, None, "one at a time");
    let progressing = condition(&scene.plan_at(27), "CanaryProgressing");
    let until = at(300);
    assert_eq!(
        progressing.2,
        format!("requests of the candidate end; 3 still run; requests may run until {until}")
    );
    scene.observe(|observed| observed.looking.is_asked = false);
    assert!(scene.plan_at(40).look.is_some() && scene.plan_at(301).look.is_none(), "not after its time");
}

#[test]
fn a_candidate_without_requests_in_two_looks_gives_its_gpus_back_before_the_time_is_over() {
    let mut scene = draining();
    let none = Some((0, 9));
    for (looks, is_over) in [
        (&[][..], false),
        (&[(26, none)], false),
        (&[(26, Some((1, 9))), (31, none)], false),
        (&[(26, none), (31, None)], false),
        // A short one came and ended between the two.
        (&[(26, none), (31, Some((0, 10)))], false),
        (&[(25, none), (30, none)], false),
        (&[(26, none), (31, none)], true),
        (&[(26, Some((2, 7))), (31, none), (36, none)], true),
    ] {
        with_looks(&mut scene, looks);
        assert_eq!(ends(&scene, 37), is_over, "{looks:?}");
    }
    // What is known of the pods may be out of date, or is not known of all of them.
    scene.observe(|observed| observed.candidate.as_mut().unwrap().watch_fails = true);
    assert!(!ends(&scene, 37));
    scene.observe(|observed| observed.candidate.as_mut().unwrap().watch_fails = false);
    scene.observe(|observed| {
        for look in &mut observed.looking.looks {
            look.requests.as_mut().unwrap().pods = ["another".to_owned()].into();
        }
    });
    assert!(!ends(&scene, 37));
    // Those of another drain, or of a step, say nothing.
    with_looks(&mut scene, &[(26, none), (31, none)]);
    scene.observe(|observed| observed.looking.looks.iter_mut().for_each(|look| look.step_since -= 60));
    assert!(!ends(&scene, 37));
    // Engines that do not answer have the whole time.
    assert!(!ends(&scene, 299) && ends(&scene, 301));
}

/// Its gauge leaves out the requests that are executed.
#[test]
fn an_engine_that_does_not_count_what_it_executes_is_not_looked_at() {
    let mut scene = draining();
    scene.edit_spec(|spec| spec.engine = api::aiinference::Engine::Triton);
    assert_eq!(scene.plan_at(60).look, None);
}

/// Its Service was deleted by hand.
#[test]
fn requests_end_also_where_the_gateways_do_not_find_the_candidate() {
    let mut scene = draining();
    scene.observe(|observed| {
        let route = observed.route.as_mut().unwrap();
        let said = &mut route.status.parents[0].conditions;
        said.iter_mut().filter(|known| known.type_ == "ResolvedRefs").for_each(|known| {
            (known.status, known.reason) = ("False".to_owned(), "BackendNotFound".to_owned());
        });
    });
    let plan = scene.plan_at(301);
    assert_eq!(condition(&plan, "TrafficReady").1, "BackendNotResolved");
    assert!(!ends(&scene, 299) && ends(&scene, 301));
}

/// Its deletion may be refused, or wait for a finalizer.
#[test]
fn requests_end_only_when_a_route_that_is_not_wanted_is_gone() {
    let mut scene = analysing(READY);
    scene.edit_spec(|spec| (spec.canary, spec.gateway) = (None, None));
    let plan = scene.plan();
    assert!(!plan.superfluous_apart.is_empty() && canary_of(&plan).draining_since.is_none());
    let message = condition(&plan, "CanaryProgressing").2;
    assert!(message.starts_with("the route has to be deleted first"), "{message}");
    scene.write_status();
    scene.observe(|observed| observed.route = None);
    let plan = scene.plan();
    assert!(plan.superfluous.is_empty() && canary_of(&plan).draining_since.is_some());
}

/// Its Gateway was removed for good.
#[test]
fn a_stopped_object_says_how_long_its_candidate_waits_for_gateways_that_do_not_answer() {
    let mut scene = analysing(READY);
    let route = scene.plan().route.unwrap();
    scene.edit_spec(|spec| spec.replicas = 0);
    edited(&mut scene);
    let stopped = scene.plan();
    assert_eq!(stopped.route.as_ref().unwrap().spec.rules[0].backend_refs[1].weight, 0);
    // Its status is that of the rules before.
    scene.observe(|observed| {
        observed.route = Some(accepted(*route));
        let stored = observed.route.as_mut().unwrap();
        stored.spec = stopped.route.clone().unwrap().spec;
        stored.metadata.generation = Some(2);
    });
    scene.write_status();
    let facts = scene.plan().facts.unwrap();
    scene.observe(|observed| observed.facts = facts.iter().map(|fact| (fact.clone(), at(0))).collect());
    let plan = scene.plan_at(1);
    let (status, reason, message) = condition(&plan, "CanaryProgressing");
    assert_eq!((&*status, &*reason), ("True", "Starting"));
    assert_eq!(
        message,
        "all gateways have to accept that the candidate gets no requests; see TrafficReady; the object is stopped, so the \
         pods of the candidate end after 300 s in any case"
    );
    assert_eq!(plan.requeue_after, Some(std::time::Duration::from_secs(299)));
    let stops = |plan: &Plan| serde_json::to_string(&plan.candidate).unwrap().contains("\"replicas\":0");
    assert!(!stops(&scene.plan_at(299)) && stops(&scene.plan_at(300)));

    scene.edit_spec(|spec| spec.canary = None);
    let plan = scene.plan_at(299);
    let (_, reason, message) = condition(&plan, "CanaryProgressing");
    assert!(reason == "RollingBack" && message.ends_with("end after 300 s in any case"), "{message}");
    assert!(plan.superfluous_apart.is_empty());
    let gone = serde_json::to_string(&scene.plan_at(300).superfluous_apart).unwrap();
    assert!(gone.contains("Deployment"), "{gone}");
}

/// Of an object that is paused, too: its owner gives a route of his own any weight.
#[test]
fn the_end_of_requests_is_counted_anew_when_they_come_back_during_a_pause() {
    let mut scene = draining();
    assert!(canary_of(&scene.plan()).draining_since.is_some());
    scene.observe(|observed| {
        observed.route.as_mut().unwrap().spec.rules[0].backend_refs[1].weight = 50;
    });
    scene.edit_spec(|spec| spec.pods.paused = true);
    assert!(canary_of(&scene.plan()).draining_since.is_none());
}
