//! A candidate whose requests are judged.

use super::*;

fn crashed(more: &str) -> String {
    format!(
        "{{name: new, node: gpu-1, gpus: 1, {more}containers: [{{name: engine, restartCount: 1, state: {{running: {{}}}}, \
         lastState: {{terminated: {{exitCode: 137, reason: OOMKilled, startedAt: '{}', finishedAt: '{}'}}}}}}]}}",
        at(-25),
        at(-16)
    )
}

#[test]
fn a_candidate_that_crashes_while_it_has_a_share_is_rolled_back_and_others_faults_are_not_its_own() {
    let plan_of = |pod: &str, edit: fn(&mut crate::observe::Observed)| {
        let mut scene = analysing(pod);
        scene.observe(|observed| {
            observed.looking.pods.insert("new".to_owned(), at(-25).as_second());
            edit(observed);
        });
        let at_once = canary_of(&scene.plan_at(-2)).last_rollback;
        scene.observe(|observed| observed.candidate.as_mut().unwrap().gpu_faults.is_reported = true);
        let waits = scene.plan_at(-2);
        assert_eq!(canary_of(&waits).last_rollback, None, "a fault of the GPU may be reported yet");
        assert!(waits.requeue_after.is_some());
        let later = canary_of(&scene.plan()).last_rollback;
        let reason = |rollback: &Option<api::aiinference::traffic::Rollback>| {
            rollback.as_ref().map(|rollback| rollback.reason.clone())
        };
        assert_eq!(reason(&at_once), reason(&later));
        later
    };
    let rollback = plan_of(&crashed("ready: true, "), |_| {}).unwrap();
    assert_eq!(rollback.reason, "CandidateCrashed");
    let message = "the engine of pod new ended with exit code 137 (OOMKilled) while it had a share";
    assert_eq!(rollback.message, message);
    let never_ready: fn(&mut crate::observe::Observed) = |observed| observed.looking.pods.clear();
    let emptied: fn(&mut crate::observe::Observed) = |observed| {
        observed.candidate.as_mut().unwrap().leaving_nodes.insert("gpu-1".to_owned());
    };
    let observes: fn(&mut crate::observe::Observed) = |observed| {
        let inference = std::sync::Arc::make_mut(&mut observed.inference);
        let analysis = inference.spec.canary.as_mut().unwrap().analysis.as_mut().unwrap();
        analysis.mode = api::aiinference::analysis::AnalysisMode::Observe;
    };
    let doubted: fn(&mut crate::observe::Observed) = |observed| {
        observed.candidate.as_mut().unwrap().gpu_faults.is_doubtful = true;
    };
    for edit in [never_ready, emptied, observes, doubted] {
        assert_eq!(plan_of(&crashed("ready: true, "), edit), None);
    }
    // One that ran when the step began was ready then, also after a restart of the controller.
    let early = |since: i64| {
        let ready =
            format!("conditions: [{{type: Ready, status: 'False', lastTransitionTime: '{}'}}], ", at(since));
        crashed(&ready).replace(&at(-25).to_string(), &at(-300).to_string())
    };
    assert!(plan_of(&early(-16), never_ready).is_some());
    assert_eq!(plan_of(&early(-301), never_ready), None, "it loads since before the step");
    let old = crashed("ready: true, ").replace(&at(-16).to_string(), &at(-181).to_string());
    assert_eq!(plan_of(&old.replace(&at(-25).to_string(), &at(-300).to_string()), |_| {}), None, "long ago");
    // An old end of one pod says nothing of a fresh one of another.
    let mut scene = analysing(&old.replace(&at(-25).to_string(), &at(-300).to_string()));
    let fresh = crashed("ready: true, ").replace("name: new", "name: other");
    scene.candidate(&[&old.replace(&at(-25).to_string(), &at(-300).to_string()), &fresh]);
    scene.observe(|observed| {
        observed.looking.pods.insert("new".to_owned(), at(-300).as_second());
        observed.looking.pods.insert("other".to_owned(), at(-25).as_second());
    });
    let rollback = canary_of(&scene.plan()).last_rollback.unwrap();
    assert!(rollback.message.contains("pod other"), "{}", rollback.message);
    let lost = crashed("ready: true, ").replace("OOMKilled", "Unknown");
    assert_eq!(plan_of(&lost, |_| {}), None, "the node was restarted");
}

/// Bad requests may have been read that wait for the requests of stable.
#[test]
fn nothing_passes_before_all_that_queries_have_read_is_counted() {
    let phase_after = |found, may_pass| {
        let mut scene = analysing(READY);
        passed_once(&mut scene, "[{weightPercent: 10, minSeconds: 5, minRequests: 1}]", found, may_pass);
        canary_of(&scene.plan()).phase
    };
    let counted = crate::looks::Found::Counted { flows: Default::default(), bound: None };
    let analysing = Some(CanaryPhase::Analysing);
    assert_eq!(phase_after(crate::looks::Found::Pooled, false), analysing);
    assert_eq!(phase_after(counted, false), analysing, "an old series could still appear");
    assert_eq!(phase_after(crate::looks::Found::Incomplete, false), analysing);
    assert_eq!(phase_after(counted, true), Some(CanaryPhase::AwaitingApproval));
}

/// A quota may keep the pods of the next step away. Servers scrape less often than the controller asks, so that each second
/// look counts nothing.
#[test]
fn the_candidate_keeps_the_pods_of_the_next_step_while_a_look_has_counted_nothing() {
    let steps = "[{weightPercent: 10, minSeconds: 5, minRequests: 1}, {weightPercent: 50, replicas: 2}]";
    let counted = crate::looks::Found::Counted { flows: Default::default(), bound: None };
    for (found, may_pass) in [(counted, true), (crate::looks::Found::Pooled, false), (counted, false)] {
        let mut scene = analysing(READY);
        passed_once(&mut scene, steps, found, may_pass);
        let plan = scene.plan();
        let candidate = serde_json::to_string(&plan.candidate).unwrap();
        assert!(candidate.contains("\"replicas\":2"), "{found:?} {may_pass} {candidate}");
        assert_eq!((canary_of(&plan).phase, canary_of(&plan).step), (Some(CanaryPhase::Analysing), 1));
    }
}

/// The candidate of these steps has passed with a look of the metric custom, and then there is this one.
fn passed_once(scene: &mut Scene, steps: &str, found: crate::looks::Found, may_pass: bool) {
    scene.edit_spec(|spec| {
        let canary = spec.canary.as_mut().unwrap();
        canary.steps = serde_saphyr::from_str(steps).unwrap();
        let analysis = serde_json::json!({
            "metrics": [{"name": "custom", "limitPercent": "100"}],
            "prometheus": {
                "requestsQuery": "a{service=\"$name\"}", "badRequestsQuery": "b{service=\"$name\"} or vector(0)",
            },
        });
        canary.analysis = Some(serde_json::from_value(analysis).unwrap());
    });
    let analysis = scene.observed().inference.spec.canary.clone().unwrap().analysis.unwrap();
    let hash = crate::looks::hash(&analysis.prometheus.unwrap());
    let counted = |requests| {
        let ended = verdict::interval::Counts::new(requests, 0).unwrap();
        verdict::interval::Flow { arrivals: requests, ended, ..Default::default() }
    };
    let flows = verdict::interval::Tracks { stable: counted(900), candidate: counted(900) };
    let look = |seconds: i64, found: crate::looks::Found, may_pass: bool| crate::looks::Look {
        step_since: at(-30).as_second(),
        at: at(seconds).as_second(),
        ended: at(seconds).as_second(),
        ready_pods: Default::default(),
        requests: None,
        metrics: [(api::aiinference::analysis::MetricName::Custom, found)].into(),
        tokens: None,
        fault: None,
        of_queries: Some(crate::looks::OfQueries { hash, fault: None, may_pass }),
    };
    let all = crate::looks::Found::Counted { flows, bound: None };
    scene.observe(|observed| {
        observed.looking.looks = vec![look(-10, all, true), look(-1, found, may_pass)];
    });
}

#[test]
fn the_queries_of_the_user_are_asked_for_the_services_of_both_versions() {
    let mut scene = analysing(READY);
    assert_eq!(scene.plan().look.unwrap().queries, None);
    scene.edit_spec(|spec| {
        let analysis = serde_json::json!({
            "metrics": [{"name": "custom"}],
            "prometheus": {
                "requestsQuery": "a{service=\"$name\"}", "badRequestsQuery": "b{service=\"$name\"} or vector(0)",
            },
        });
        spec.canary.as_mut().unwrap().analysis = Some(serde_json::from_value(analysis).unwrap());
    });
    let queries = scene.plan().look.unwrap().queries.unwrap();
    let verdict::interval::Tracks { stable, candidate } = queries.services;
    assert_eq!([&*stable, &*candidate], ["chat", "chat-canary"]);
    assert_eq!(queries.prometheus.bad_requests_query, r#"b{service="$name"} or vector(0)"#);
    assert!(!queries.stable_may_be_silent, "it has most of the requests");
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().steps[0].weight_percent = 100);
    let route = scene.plan().route.unwrap();
    scene.observe(|observed| observed.route = Some(accepted(*route)));
    assert!(scene.plan().look.unwrap().queries.unwrap().stable_may_be_silent, "no request leads to it");
}

#[test]
fn the_engines_of_both_versions_are_looked_at_each_interval() {
    let mut scene = analysing(READY);
    assert_eq!(scene.plan().look.map(|look| look.pods.len()), Some(2));
    let look = scene.plan().look.unwrap();
    let pods: Vec<(&str, bool)> = look.pods.iter().map(|pod| (&*pod.name, pod.is_candidate)).collect();
    assert_eq!(pods, [("chat-0", false), ("new", true)]);
    assert_eq!((look.port, look.path, look.step_since), (8_000, "/metrics", at(-30).as_second()));
    scene.observe(|observed| observed.looking.is_asked = true);
    assert_eq!(scene.plan().look, None, "one at a time");
    let seen = crate::looks::Look {
        step_since: at(-30).as_second(),
        at: at(-5).as_second(),
        ended: at(-5).as_second(),
        ready_pods: Default::default(),
        requests: None,
        metrics: Default::default(),
        tokens: None,
        fault: Some("pod new: it did not answer".to_owned()),
        of_queries: None,
    };
    scene.observe(|observed| {
        observed.looking.is_asked = false;
        observed.looking.looks = vec![seen];
    });
    scene.write_status();
    let plan = scene.plan();
    assert_eq!((plan.look, plan.requeue_after), (None, Some(std::time::Duration::from_secs(10))));
    assert!(scene.plan_at(10).look.is_some());
    // The clock of the leader before was ahead.
    scene.observe(|observed| observed.looking.looks[0].at = at(300).as_second());
    assert!(scene.plan_at(10).look.is_some());
    scene.edit_spec(|spec| spec.pods.paused = true);
    assert_eq!(scene.plan_at(10).look, None, "of a paused object nothing is judged");
}

#[test]
fn what_was_found_stays_while_the_object_is_paused() {
    let mut scene = analysing(READY);
    scene.observe(|observed| {
        let looks = (1..=3).map(|number| crate::looks::Look {
            step_since: at(-30).as_second(),
            at: at(-30 + number * 5).as_second(),
            ended: at(-30 + number * 5).as_second(),
            ready_pods: Default::default(),
            requests: None,
            metrics: [(api::aiinference::analysis::MetricName::ErrorRate, crate::looks::Found::Incomplete)]
                .into(),
            tokens: None,
            fault: Some("pod new: it did not answer".to_owned()),
            of_queries: None,
        });
        observed.looking.looks = looks.collect();
    });
    let found = condition(&scene.plan(), "CanaryHealthy");
    assert_eq!((&*found.0, &*found.1), ("False", "MetricsMissing"));
    assert!(found.2.ends_with("all numbers: pod new: it did not answer"), "{}", found.2);
    scene.write_status();
    scene.edit_spec(|spec| spec.pods.paused = true);
    assert_eq!(condition(&scene.plan(), "CanaryHealthy"), found);
}

/// What was judged before the share was 0 must not meet what the engines did meanwhile.
#[test]
fn a_candidate_without_a_share_begins_anew() {
    let mut scene = analysing(READY);
    scene.observe(|observed| observed.looking.looks = vec![looked(-10, (0, 0))]);
    scene.write_status();
    assert!(canary_of(&scene.plan()).analysis.is_some());
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().abort = true);
    assert_eq!(canary_of(&scene.plan()).analysis, None);
}

/// Requests that have ended in both versions, and the bad ones of the candidate.
fn looked(seconds: i64, (ended, bad): (u64, u64)) -> crate::looks::Look {
    use verdict::interval::{Counts, Flow, Tracks};
    let flow =
        |bad| Flow { arrivals: ended, ended: Counts::new(ended, bad).unwrap(), in_flight: 0, restarts: 0 };
    let flows = Tracks { stable: flow(0), candidate: flow(bad) };
    let found = crate::looks::Found::Counted { flows, bound: None };
    crate::looks::Look {
        step_since: at(-30).as_second(),
        at: at(seconds).as_second(),
        ended: at(seconds).as_second(),
        ready_pods: Tracks { stable: 1, candidate: 1 },
        requests: None,
        metrics: [(api::aiinference::analysis::MetricName::ErrorRate, found)].into(),
        tokens: None,
        fault: None,
        of_queries: None,
    }
}

#[test]
fn a_pass_of_before_a_pause_moves_nothing_until_the_engines_are_read_again() {
    let mut scene = analysing(READY);
    scene.edit_spec(|spec| {
        let canary = spec.canary.as_mut().unwrap();
        canary.promotion = api::aiinference::traffic::Promotion::Auto;
        canary.steps[0].min_seconds = 5;
    });
    scene.observe(|observed| {
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        status.canary.as_mut().unwrap().approvals_needed = 2;
        observed.looking.looks = vec![looked(-20, (20_000, 0)), looked(-5, (20_000, 0))];
    });
    let promoted = |plan: &Plan| plan.status.promoted_revision.is_some();
    assert!(promoted(&scene.plan()), "{:?}", canary_of(&scene.plan()));
    let later = scene.plan_at(3_600);
    assert!(!promoted(&later) && later.look.is_some());
    assert_eq!(canary_of(&later).phase, Some(CanaryPhase::Analysing));
}

#[test]
fn an_invalid_candidate_keeps_its_share_and_the_conditions_say_that_nothing_is_judged() {
    let mut scene = analysing(READY);
    scene.write_status();
    scene.edit_spec(|spec| spec.canary.as_mut().unwrap().args = Some(vec!["--".to_owned()]));
    edited(&mut scene);
    let plan = scene.plan();
    let (_, reason, message) = condition(&plan, "CanaryHealthy");
    assert_eq!(reason, "Judging");
    assert!(message.contains("nothing is judged while spec.canary is invalid"), "{message}");
}

/// Its share is 0 at once, and the step has not begun when the crash counts.
#[test]
fn a_crash_of_the_only_pod_counts_in_each_step() {
    let mut scene = analysing(READY);
    scene.edit_spec(|spec| {
        let steps = "[{weightPercent: 10}, {weightPercent: 50}]";
        spec.canary.as_mut().unwrap().steps = serde_saphyr::from_str(steps).unwrap();
    });
    scene.observe(|observed| observed.looking.looks = vec![looked(-20, (10, 0))]);
    scene.write_status();
    scene.observe(|observed| {
        let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
        let canary = status.canary.as_mut().unwrap();
        (canary.step, canary.step_started_at, canary.lost, canary.weight_percent) = (2, None, 1, 0);
        let version = observed.candidate.as_mut().unwrap();
        let ready =
            format!("conditions: [{{type: Ready, status: 'False', lastTransitionTime: '{}'}}], ", at(-16));
        let pod = crashed(&ready).replace(&at(-25).to_string(), &at(-300).to_string());
        version.deployed = Some(vec![std::sync::Arc::new(crate::tests::pod(&pod))]);
        version.gpu_faults.is_reported = true;
    });
    let first = scene.plan_at(-15);
    assert_eq!(canary_of(&first).last_rollback, None);
    assert!(canary_of(&first).analysis.is_some(), "when its share rose is known from the record");
    scene.write_status();
    let rollback = canary_of(&scene.plan()).last_rollback.unwrap();
    assert_eq!(rollback.reason, "CandidateCrashed");
}

/// An engine that fails at its first requests ends before the controller has read that the gateways have its share. All that is
/// known then is that its pod was lost.
#[test]
fn the_third_loss_is_a_crash_where_an_engine_has_ended_and_unready_where_none_has() {
    let rollback = |pod: &str| {
        let mut scene = analysing(READY);
        scene.observe(|observed| {
            let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
            let canary = status.canary.as_mut().unwrap();
            (canary.step, canary.step_started_at, canary.lost, canary.analysis) = (1, None, 2, None);
            (canary.ready_replicas, canary.weight_percent) = (1, 10);
            observed.candidate.as_mut().unwrap().deployed =
                Some(vec![std::sync::Arc::new(crate::tests::pod(pod))]);
        });
        canary_of(&scene.plan()).last_rollback.map(|rollback| (rollback.reason, rollback.message)).unwrap()
    };
    let lost = "the candidate has lost its last ready pod 3 times while it had a share";
    let not_ready = |since: i64| {
        let ready =
            format!("conditions: [{{type: Ready, status: 'False', lastTransitionTime: '{}'}}], ", at(since));
        crashed(&ready)
    };
    let was_ready = not_ready(-16);
    let (reason, message) = rollback(&was_ready);
    assert_eq!(reason, "CandidateCrashed");
    assert_eq!(message, format!("{lost}; the engine of pod new ended with exit code 137 (OOMKilled)"));
    let old = was_ready.replace(&at(-16).to_string(), &at(-200).to_string());
    let never_ready = not_ready(-26);
    for other in [was_ready.replace("OOMKilled", "Unknown"), old, never_ready] {
        assert_eq!(rollback(&other), ("CandidateUnready".to_owned(), lost.to_owned()));
    }
}

/// An older route with the same rules gets all requests, and not every gateway says so.
#[test]
fn a_route_that_brings_no_request_for_minutes_is_named_and_its_gateways_with_their_answers() {
    use api::aiinference::analysis::MetricName;

    use crate::looks::{Found, Look};

    let counted = |requests| {
        let flow = |requests| verdict::interval::Flow {
            arrivals: requests,
            ended: verdict::interval::Counts::new(requests, 0).unwrap(),
            ..Default::default()
        };
        let flows = verdict::interval::Tracks { stable: flow(requests), candidate: flow(0) };
        Found::Counted { flows, bound: None }
    };
    // Of looks each 15 s, in which queries of the user find no request. Those are pooled.
    let message_after = |found: &[Found]| {
        let mut scene = analysing(READY);
        let analysis = serde_json::json!({
            "metrics": [{"name": "errorRate"}, {"name": "custom"}],
            "prometheus": {
                "requestsQuery": "a{service=\"$name\"}", "badRequestsQuery": "b{service=\"$name\"} or vector(0)",
            },
        });
        let analysis: api::aiinference::analysis::Analysis = serde_json::from_value(analysis).unwrap();
        let prometheus = analysis.prometheus.clone().unwrap();
        scene.edit_spec(|spec| spec.canary.as_mut().unwrap().analysis = Some(analysis));
        let since = at(-400);
        let look = |(number, found): (i64, &Found)| Look {
            step_since: since.as_second(),
            at: since.as_second() + 15 * number,
            ended: since.as_second() + 15 * number,
            ready_pods: Default::default(),
            requests: None,
            metrics: [(MetricName::ErrorRate, *found), (MetricName::Custom, Found::Pooled)].into(),
            tokens: None,
            fault: None,
            of_queries: Some(crate::looks::OfQueries {
                hash: crate::looks::hash(&prometheus),
                fault: None,
                may_pass: true,
            }),
        };
        scene.observe(|observed| {
            let status = std::sync::Arc::make_mut(&mut observed.inference).status.as_mut().unwrap();
            status.canary.as_mut().unwrap().step_started_at =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(since));
            observed.looking.looks = (1..).zip(found).map(look).collect();
        });
        let plan = scene.plan();
        let parents = plan.status.route.clone().unwrap().parents;
        assert_eq!(
            serde_json::to_value(parents).unwrap(),
            serde_json::json!([{"name": "public", "namespace": "demo", "accepted": true}])
        );
        condition(&plan, "TrafficReady").2
    };
    let accepted = "accepted by Gateway public";
    assert_eq!(message_after(&[counted(0); 19]), accepted, "not yet");
    let silent = message_after(&[counted(0); 20]);
    let words =
        format!("{accepted}; the engines of both versions have ended no request since {}: ", at(-400));
    assert!(silent.starts_with(&words), "{silent}");
    let with = |found| [vec![counted(0); 22], vec![found]].concat();
    assert_eq!(message_after(&with(counted(1))), accepted, "requests come");
    for found in [Found::Incomplete, Found::BucketMismatch] {
        assert_eq!(message_after(&with(found)), accepted, "some may not have been counted");
    }
}
