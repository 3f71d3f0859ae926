//! Plans for the number of workers, by their load.

use std::sync::Arc;

use ::scaling::flow::{PodCounts, PodMeter};

use super::*;

#[test]
fn idle_workers_go_first() {
    let mut scene = Scene::ready("{role: coder, replicas: 4}", 4);
    scene.loads(vec![load(0, 1), load(0, 0), load(2, 0)]);
    scene.edit_spec(|spec| spec.replicas = 2);
    let marking = scene.plan();
    let costs: Vec<(String, i32)> =
        marking.marks.iter().map(|mark| (mark.pod.metadata.name.clone().unwrap(), mark.cost)).collect();
    assert_eq!(
        costs,
        [("coder-0".to_owned(), 1_000), ("coder-2".to_owned(), 1_000), ("coder-3".to_owned(), 100)]
    );
    assert_eq!((replicas(&marking), marking.status.desired_replicas), (4, 2));

    let node = "ready: true, node: a, phase: Running";
    scene.pods(&[
        &format!("{{name: coder-0, cost: 1000, {node}}}"),
        &format!("{{name: coder-1, {node}}}"),
        &format!("{{name: coder-2, cost: 1000, {node}}}"),
        &format!("{{name: coder-3, cost: 100, {node}}}"),
    ]);
    let marked = scene.plan();
    assert!(marked.marks.is_empty());
    assert_eq!(replicas(&marked), 4, "the ReplicaSet controller may not have seen them yet");
    scene.note(&marked, at(-1));
    assert_eq!(replicas(&scene.plan()), 2);
}

#[test]
fn a_load_that_changes_all_the_time_holds_a_smaller_number_back_for_a_while_only() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.loads(vec![load(0, 1), load(0, 0)]);
    scene.edit_spec(|spec| spec.replicas = 1);
    let marking = scene.plan();
    assert_eq!((marking.marks.len(), replicas(&marking)), (1, 2));
    scene.note(&marking, at(-6));
    let overdue = scene.plan();
    assert_eq!((overdue.marks.len(), replicas(&overdue)), (1, 1), "the newest costs come before the number");
}

/// A busy pod `coder-0` whose node does not report, and two idle ones that are ready.
fn with_a_lost_kubelet(pod: &str) -> Scene {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    let ready = "ready: true, node: b, phase: Running";
    scene.pods(&[
        &format!("{{name: coder-0, {pod}}}"),
        &format!("{{name: coder-1, {ready}}}"),
        &format!("{{name: coder-2, {ready}}}"),
    ]);
    scene.loads(vec![load(0, 1), load(0, 0), load(0, 0)]);
    scene.edit_spec(|spec| spec.replicas = 2);
    scene
}

fn unready(seconds: i64) -> String {
    format!(
        "node: a, phase: Running, conditions: [{{type: Ready, status: 'False', lastTransitionTime: '{}'}}], \
         containers: [{{name: worker, ready: true, started: true, state: {{running: {{startedAt: '{}'}}}}}}]",
        at(-seconds),
        at(-seconds - 60),
    )
}

#[test]
fn a_worker_that_is_not_ready_and_has_tasks_holds_a_smaller_number_back_until_they_end() {
    let mut scene = with_a_lost_kubelet(&unready(5));
    for seconds in [0, 116, 3_000] {
        let plan = scene.plan_at(at(seconds));
        assert_eq!((replicas(&plan), plan.marks.len()), (3, 0), "after {seconds} s");
        let message = &condition(&plan, conditions::PROGRESSING).unwrap().message;
        assert!(message.contains("pod coder-0 is not ready and has tasks"), "{message}");
        // The time of tasks is not a part of the time that one is waited for whose tasks are not known.
        assert!(!plan.facts.iter().any(|fact| fact.contains("held back")), "{:?}", plan.facts);
    }
    let hangs = scene.plan_at(at(3_700));
    assert_eq!(hangs.marks.len(), 1, "a task that takes longer may hang");
    scene.loads(vec![load(0, 0); 3]);
    assert_eq!(replicas(&scene.plan()), 2);
}

/// One that works too hard to answer its monitor, or misses one reading.
#[test]
fn a_worker_whose_tasks_were_known_a_while_ago_holds_a_smaller_number_back() {
    let mut scene = with_a_lost_kubelet(&unready(5));
    let silent =
        |read: i64| crate::load::WorkerLoad { last_tasks: Some((1, at(read))), ..Default::default() };
    scene.loads(vec![silent(-2), load(0, 0), load(0, 0)]);
    let plan = scene.plan_at(at(600));
    assert_eq!((replicas(&plan), plan.marks.len()), (3, 0));
    scene.loads(vec![silent(-3_600), load(0, 0), load(0, 0)]);
    assert_eq!(scene.plan_at(at(600)).marks.len(), 1);
}

#[test]
fn a_worker_that_is_not_ready_and_may_be_busy_holds_a_smaller_number_back_for_a_while_only() {
    let mut scene = with_a_lost_kubelet(&unready(5));
    scene.loads(vec![Default::default(), load(0, 0), load(0, 0)]);
    let waiting = scene.plan();
    assert_eq!((replicas(&waiting), waiting.marks.len()), (3, 0));
    assert!(waiting.facts_if_settled.is_empty(), "it does not become overdue");
    let message = &condition(&waiting, conditions::PROGRESSING).unwrap().message;
    assert!(message.starts_with("3 workers exist, 2 wanted; pod coder-0 is not ready"), "{message}");
    assert!(waiting.requeue_after <= Some(std::time::Duration::from_secs(115)));
    // It is deleted by the tolerations of its pod by then, or is not waited for any more.
    assert_eq!(scene.plan_at(at(116)).marks.len(), 1);
    // Fewer than one idle worker would be left: the number is about the busy one.
    scene.edit_spec(|spec| spec.replicas = 1);
    assert_eq!(replicas(&scene.plan()), 3);
    scene.loads(vec![load(0, 1); 3]);
    assert_eq!(replicas(&scene.plan()), 1);
}

/// Each time that its node comes back and goes again, the pod has just become not ready.
#[test]
fn a_node_that_flaps_holds_a_smaller_number_back_for_a_while_only() {
    let mut scene = with_a_lost_kubelet(&unready(5));
    scene.loads(vec![Default::default(), load(0, 0), load(0, 0)]);
    let held = |scene: &mut Scene, facts: &[String], seconds: i64| {
        scene.observe(|observed| {
            observed.facts = facts.iter().map(|fact| (fact.clone(), at(-seconds))).collect();
        });
        let plan = scene.plan();
        let message = &condition(&plan, conditions::PROGRESSING).unwrap().message;
        message.contains("pod coder-0 is not ready")
    };
    let waiting = scene.plan();
    assert!(held(&mut scene, &waiting.facts, 359));
    assert!(!held(&mut scene, &waiting.facts, 360));
    // While it is ready for a moment, the number is held back for its costs.
    scene.pods(&[
        "{name: coder-0, ready: true, node: a, phase: Running}",
        "{name: coder-1, ready: true, node: b, phase: Running}",
        "{name: coder-2, ready: true, node: b, phase: Running}",
    ]);
    let ready = scene.plan();
    let held_back = |fact: &&String| fact.contains("held back");
    assert_eq!(waiting.facts.iter().filter(held_back).count(), 1);
    assert_eq!(waiting.facts.iter().find(held_back), ready.facts.iter().find(held_back));
}

#[test]
fn a_pod_that_cannot_start_holds_no_smaller_number_back() {
    let since = format!("lastTransitionTime: '{}'", at(-5));
    let conditions = format!("conditions: [{{type: Ready, status: 'False', {since}}}]");
    let crashing = "name: worker, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}, lastState: \
                    {terminated: {exitCode: 1}}";
    let never = format!("name: worker, state: {{running: {{startedAt: '{}'}}}}", at(-4));
    for pod in [
        format!("phase: Pending, {conditions}"),
        format!("node: a, phase: Running, {conditions}, containers: [{{{crashing}}}]"),
        format!("node: a, phase: Running, {conditions}, containers: [{{{never}}}]"),
    ] {
        let mut scene = with_a_lost_kubelet(&pod);
        scene.loads(vec![Default::default(), load(0, 0), load(0, 0)]);
        assert_eq!(scene.plan().marks.len(), 1, "it is only marked: {pod}");
    }
}

#[test]
fn a_pool_that_was_scaled_to_zero_by_hand_comes_back() {
    let mut scene = Scene::ready("{role: coder, autoscaling: {minReplicas: 2, maxReplicas: 10}}", 0);
    assert_eq!(scene.observed().deployment.as_ref().unwrap().replicas, 0);
    let plan = scene.plan();
    assert_eq!((replicas(&plan), plan.status.desired_replicas), (2, 2));
    assert_ne!(reason(&plan, conditions::SCALING_ACTIVE), reasons::SCALING_DISABLED);
    scene.settle(2);
    assert_eq!(replicas(&scene.plan()), 2);
}

#[test]
fn a_change_that_was_not_written_is_not_reported() {
    let mut scene = Scene::ready(SCALED, 1);
    scene.write_status();
    let before = scene.observed().dispatcher.status.clone().unwrap();
    scene.loads(vec![load(14, 1)]);
    let plan = scene.plan();
    let written = plan.if_changed();
    assert!(written.past.is_some() && written.status.last_scale_time.is_some());
    assert_eq!(
        written.changes.iter().map(|note| note.reason).collect::<Vec<_>>(),
        [reasons::SUCCESSFUL_RESCALE]
    );
    let unwritten = plan.if_unchanged();
    assert!(unwritten.changes.is_empty() && unwritten.past.is_none());
    assert_eq!(unwritten.status.last_scale_time, None);
    assert_eq!(unwritten.status.scaling_history, before.scaling_history);
    // What was only looked at is remembered whether something else was written or not.
    scene.loads(vec![load(0, 1)]);
    assert!(scene.plan().if_unchanged().past.is_some());
}

#[test]
fn tokens_per_minute_are_a_second_limit() {
    let spec = "{role: coder, autoscaling: {maxReplicas: 50, tokensPerMinutePerWorker: 60}}";
    let mut scene = Scene::ready(spec, 2);
    scene.loads(vec![load(0, 1), load(0, 1)]);
    scene.observe(|observed| observed.token_rate.per_minute = Some(600));
    // A first addition may be limited by the default rates.
    let plan = scene.plan();
    assert_eq!(plan.status.desired_replicas, replicas(&plan));
    assert!(plan.rescale.unwrap().event.message.contains("tokens per minute"));
    assert_eq!(replicas(&scene.plan()), 6, "at most four more within 15 s");
    let mut scene = Scene::ready(spec, 6);
    scene.loads(vec![load(0, 1); 6]);
    scene.observe(|observed| observed.token_rate.per_minute = Some(600));
    assert_eq!(replicas(&scene.plan()), 10, "600 / 60");
}

#[test]
fn tokens_per_minute_that_change_without_another_load_are_observed_again() {
    let falling = TokenRate { per_minute: Some(600), changes_in: Some(Duration::from_secs(10)) };
    for is_paused in [false, true] {
        let mut scene = Scene::ready("{role: coder}", 1);
        scene.edit_spec(|spec| spec.pods.paused = is_paused);
        scene.write_status();
        scene.observe(|observed| observed.token_rate = falling);
        let plan = scene.plan();
        assert!(plan.requeue_after.is_some_and(|wait| wait <= Duration::from_secs(10)), "{plan:?}");
    }
    assert_eq!(Scene::ready("{role: coder}", 1).plan().requeue_after, None);
}

#[test]
fn while_tokens_are_not_known_workers_are_only_added() {
    let spec = "{role: coder, autoscaling: {tokensPerMinutePerWorker: 60, behavior: {scaleDown: \
                {stabilizationWindowSeconds: 0}}}}";
    let mut scene = Scene::ready(spec, 4);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 4, "the queue alone asks for one");
    let message = &condition(&plan, conditions::SCALING_ACTIVE).unwrap().message;
    let why = "no worker is removed, because tokens per minute are not known: workers must serve agent_tokens_total \
               (autoscaling.tokensPerMinutePerWorker)";
    assert_eq!(message, why);
    scene.loads(vec![load(14, 1); 4]);
    assert_eq!(replicas(&scene.plan()), 8);
    scene.loads(vec![load(0, 0); 4]);
    scene.observe(|observed| observed.token_rate.per_minute = Some(0));
    assert_eq!(scene.plan().status.desired_replicas, 1);
}

#[test]
fn a_pool_that_is_busy_for_an_hour_keeps_its_number() {
    let mut scene = Scene::ready(SCALED, 4);
    for minute in 0..60 {
        let now = at(minute * 60);
        let busy = crate::load::WorkerLoad { queued: Some((0, now)), ..load(0, 1) };
        scene.loads(vec![busy; 4]);
        let plan = scene.plan_at(now);
        assert_eq!((replicas(&plan), plan.rescale.is_none()), (4, true), "{minute}");
        let past = plan.past.unwrap();
        scene.observe(|observed| observed.history = past);
    }
}

#[test]
fn more_workers_than_wanted_are_said_as_such() {
    let mut scene = Scene::ready("{role: coder, replicas: 4}", 4);
    scene.loads(vec![load(0, 1), load(0, 0), load(0, 0), load(0, 0)]);
    scene.edit_spec(|spec| spec.replicas = 2);
    let plan = scene.plan();
    let message = |type_: &str| condition(&plan, type_).unwrap().message.clone();
    assert_eq!(
        message(conditions::PROGRESSING),
        "4 workers exist, 2 wanted; busy ones get a higher deletion cost before any is removed"
    );
    assert_eq!(message(conditions::READY), "4 workers ready, 2 wanted");
    let plan = Scene::ready("{role: coder}", 1).plan();
    let message = &condition(&plan, conditions::PROGRESSING).unwrap().message;
    assert_eq!(message, "1 worker ready, with the current revision");
}

#[test]
fn a_worker_whose_stream_is_cut_may_be_busy_whatever_prometheus_had_of_it() {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    let known = |streamed| crate::load::WorkerLoad { has_tasks: streamed, ..load(0, 0) };
    scene.loads(vec![known(Some(false)), known(None), known(Some(true))]);
    scene.edit_spec(|spec| spec.replicas = 1);
    let costs: Vec<i32> = scene.plan().marks.iter().map(|mark| mark.cost).collect();
    assert_eq!(costs, [100, 1_000]);
}

/// On an overloaded machine the controller may lose the streams of all monitors at once.
#[test]
fn workers_that_were_busy_when_all_streams_were_cut_go_last() {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    let silent = |tasks| crate::load::WorkerLoad { last_tasks: Some((tasks, at(-4))), ..Default::default() };
    scene.loads(vec![silent(1), silent(0)]);
    scene.edit_spec(|spec| spec.replicas = 1);
    let costs = |scene: &Scene| -> Vec<i32> { scene.plan().marks.iter().map(|mark| mark.cost).collect() };
    assert_eq!(costs(&scene), [500, 100, 100]);
    // A controller that has just begun has no readings, but the mark that an earlier one has written.
    let node = "ready: true, node: a, phase: Running";
    scene.pods(&[
        &format!("{{name: coder-0, cost: 1000, {node}}}"),
        &format!("{{name: coder-1, cost: 500, {node}}}"),
        &format!("{{name: coder-2, cost: 100, {node}}}"),
    ]);
    scene.loads(Vec::new());
    assert_eq!(costs(&scene), [500]);
    // What was read counts more than a mark.
    scene.loads(vec![silent(0), silent(0), silent(1)]);
    assert_eq!(costs(&scene), [100, 100, 500]);
}

#[test]
fn a_worker_that_is_idle_by_its_stream_is_idle_whatever_prometheus_had_of_it() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    let ended = crate::load::WorkerLoad { has_tasks: Some(false), ..load(0, 1) };
    scene.loads(vec![load(0, 1), ended]);
    scene.edit_spec(|spec| spec.replicas = 1);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 2, "the number waits for the deletion costs");
    assert_eq!(plan.marks.iter().map(|mark| mark.cost).collect::<Vec<_>>(), [1_000]);
}

#[test]
fn workers_that_are_all_alike_need_no_marks() {
    for alike in [Some(load(0, 0)), Some(load(0, 3)), None] {
        let mut scene = Scene::ready("{role: coder, replicas: 4}", 4);
        scene.loads(vec![alike.clone().unwrap_or_default(); 4]);
        scene.edit_spec(|spec| spec.replicas = 2);
        let plan = scene.plan();
        assert_eq!((plan.marks.len(), replicas(&plan)), (0, 2), "{alike:?}");
    }
}

#[test]
fn a_process_that_has_just_begun_waits_for_the_first_loads() {
    let mut scene = Scene::ready(SCALED, 3);
    scene.loads(vec![load(0, 1); 3]);
    scene.write_status();
    let before = scene.observed().dispatcher.status.clone().unwrap();
    scene.loads(Vec::new());
    scene.observe(|observed| observed.first_observed = at(-5));
    let waiting = scene.plan();
    assert_eq!((replicas(&waiting), waiting.past.is_none()), (3, true));
    assert_eq!(waiting.status.conditions, before.conditions);
    assert_eq!(waiting.requeue_after, Some(std::time::Duration::from_secs(10)));
    scene.observe(|observed| observed.first_observed = at(-20));
    assert_eq!(reason(&scene.plan(), conditions::SCALING_ACTIVE), reasons::METRIC_MISSING);
}

const SCALED: &str = "{role: coder, autoscaling: {minReplicas: 1, maxReplicas: 10}}";

#[test]
fn the_number_follows_the_queue() {
    let mut scene = Scene::ready(SCALED, 1);
    assert_eq!(replicas(&scene.plan()), 1);
    scene.loads(vec![load(14, 1)]);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 4, "ceil(14 / 5) + 1 busy");
    assert_eq!(reason(&plan, conditions::SCALING_ACTIVE), reasons::VALID_METRIC_FOUND);
    let rescaled = plan.rescale.unwrap().event;
    assert_eq!(rescaled.reason, reasons::SUCCESSFUL_RESCALE);
    let message = "the number of workers changes from 1 to 4: queued tasks; busy workers: 1";
    assert_eq!(rescaled.message, message);
    assert_eq!(plan.past.unwrap().scale_events.len(), 1);
    assert!(plan.status.last_scale_time.is_some());
}

#[test]
fn without_load_the_number_stays_and_the_condition_says_why() {
    let mut scene = Scene::ready(SCALED, 3);
    let silent = crate::load::WorkerLoad {
        fault: Some("port 9100 refused the connection".to_owned()),
        ..Default::default()
    };
    scene.loads(vec![silent; 3]);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 3);
    let active = condition(&plan, conditions::SCALING_ACTIVE).unwrap();
    assert_eq!((&*active.status, &*active.reason), ("False", reasons::METRIC_MISSING));
    assert!(
        active.message.contains("port 9100") && active.message.contains("2 others"),
        "{}",
        active.message
    );
    assert_eq!(reason(&plan, conditions::READY), reasons::READY, "the pool works");
}

#[test]
fn a_silent_worker_counts_as_busy_where_workers_are_removed() {
    let silent = crate::load::WorkerLoad {
        fault: Some("port 9100 refused the connection".to_owned()),
        ..Default::default()
    };
    let at_once = "{role: coder, autoscaling: {minReplicas: 1, maxReplicas: 10, behavior: {scaleDown: \
                   {stabilizationWindowSeconds: 0}}}}";
    for (queued, last, wanted) in [(14, silent.clone(), 5), (0, silent, 3), (0, load(0, 0), 2)] {
        let mut scene = Scene::ready(at_once, 4);
        let is_silent = last.fault.is_some();
        scene.loads(vec![load(queued, 1), load(0, 1), load(0, 0), last]);
        let plan = scene.plan();
        assert_eq!(plan.status.desired_replicas, wanted, "{queued} are queued");
        let active = condition(&plan, conditions::SCALING_ACTIVE).unwrap();
        assert_eq!((&*active.status, &*active.reason), ("True", reasons::VALID_METRIC_FOUND));
        assert_eq!(active.message.contains("not known count as busy"), is_silent, "{}", active.message);
        assert_eq!(active.message.contains("port 9100"), is_silent, "{}", active.message);
    }
}

#[test]
fn a_silent_worker_does_not_count_where_only_queues_do() {
    let mut scene = Scene::ready("{role: coder, autoscaling: {rule: QueueOnly, maxReplicas: 10}}", 4);
    scene.loads(vec![load(7, 1), load(0, 1), load(0, 0), crate::load::WorkerLoad::default()]);
    let plan = scene.plan();
    assert_eq!(plan.status.desired_replicas, 2);
    let active = condition(&plan, conditions::SCALING_ACTIVE).unwrap();
    assert_eq!((&*active.status, &*active.reason), ("True", reasons::VALID_METRIC_FOUND));
    assert!(
        active.message.starts_with("the number of workers follows the queues that are known; "),
        "{}",
        active.message
    );
}

#[test]
fn queues_that_were_read_too_long_ago_change_nothing() {
    let mut scene = Scene::ready(SCALED, 2);
    let old = |queued| crate::load::WorkerLoad { queued: Some((queued, at(-60))), ..load(queued, 1) };
    scene.loads(vec![old(40), old(0)]);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 2);
    assert_eq!(reason(&plan, conditions::SCALING_ACTIVE), reasons::METRIC_STALE);
}

#[test]
fn a_deployment_that_was_deleted_comes_back_with_its_number() {
    let mut scene = Scene::ready(SCALED, 1);
    scene.loads(vec![load(14, 1)]);
    scene.write_status();
    scene.observe(|observed| (observed.deployment, observed.deployed) = (None, None));
    assert_eq!(replicas(&scene.plan()), 4);
}

#[test]
fn a_pool_that_is_paused_is_left_alone() {
    let mut scene = Scene::ready(SCALED, 1);
    scene.loads(vec![load(14, 1)]);
    scene.edit_spec(|spec| spec.pods.paused = true);
    let plan = scene.plan();
    assert!(plan.deployment.is_none() && plan.marks.is_empty());
    assert_eq!(reason(&plan, conditions::READY), reasons::PAUSED);
    assert_eq!(reason(&plan, conditions::SCALING_ACTIVE), reasons::PAUSED);
    assert!(plan.past.unwrap().scale_events.is_empty());
}

#[test]
fn a_process_that_has_just_begun_shrinks_no_pool_before_it_knows_the_loads() {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    scene.edit_spec(|spec| spec.replicas = 1);
    scene.loads(Vec::new());
    scene.observe(|observed| observed.first_observed = at(-1));
    let plan = scene.plan();
    assert_eq!((replicas(&plan), plan.marks.len()), (3, 0), "another process may have marked them");
    assert!(plan.requeue_after.is_some());
    scene.loads(vec![load(0, 0), load(0, 1), load(0, 0)]);
    assert_eq!(scene.plan().marks.len(), 1);
    // They never become known.
    scene.loads(Vec::new());
    scene.observe(|observed| observed.first_observed = at(-15));
    assert_eq!(replicas(&scene.plan()), 1);
}

#[test]
fn while_a_pool_is_paused_its_workers_do_not_become_overdue() {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    scene.edit_spec(|spec| {
        spec.replicas = 1;
        spec.pods.paused = true;
    });
    scene.loads(vec![load(0, 0), load(0, 1), load(0, 0)]);
    assert_eq!(scene.plan().facts, ["busy coder-1"]);
}

#[test]
fn a_pool_that_has_its_new_number_causes_no_event_of_its_own() {
    let worker = |index: usize| format!("{{name: coder-{index}, ready: true, node: a, phase: Running}}");
    let workers: Vec<String> = (0..3).map(worker).collect();
    let workers: Vec<&str> = workers.iter().map(String::as_str).collect();
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.edit_spec(|spec| spec.replicas = 3);
    scene.write_status();
    let plan = scene.plan();
    assert_eq!((reason(&plan, conditions::READY), plan.events.len()), (reasons::SCALING, 0));
    scene.pods(&workers);
    let plan = scene.plan();
    assert_eq!((reason(&plan, conditions::READY), plan.events.len()), (reasons::READY, 0));
    let mut first = Scene::new("{role: coder, replicas: 3}");
    first.settle(0);
    first.write_status();
    first.pods(&workers);
    assert_eq!(first.plan().events.len(), 1, "it is ready for the first time");
}

#[test]
fn a_shared_queue_counts_once() {
    let spec = "{role: coder, autoscaling: {queue: Shared, maxReplicas: 50, tasksPerWorker: 5}}";
    let mut scene = Scene::ready(spec, 2);
    scene.loads(vec![load(20, 1), load(20, 0)]);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 5, "ceil(20 / 5) + 1 busy");
    // The queue is the status's, too, once measured values are written.
    scene.note(&plan, at(-20));
    assert_eq!(scene.plan().status.queue_depth, Some(20));
    let mut scene = Scene::ready("{role: coder, autoscaling: {maxReplicas: 50, tasksPerWorker: 5}}", 2);
    scene.loads(vec![load(20, 0), load(20, 0)]);
    assert_eq!(scene.plan().status.desired_replicas, 6, "as many as may be added at once, of 8");
}

#[test]
fn of_a_shared_queue_the_largest_depth_that_is_not_old_counts() {
    let spec = "{role: coder, autoscaling: {queue: Shared, maxReplicas: 50, behavior: {scaleDown: \
                {stabilizationWindowSeconds: 0}}}}";
    let mut scene = Scene::ready(spec, 3);
    let old = crate::load::WorkerLoad { queued: Some((40, at(-60))), ..load(40, 0) };
    scene.loads(vec![old, load(9, 0), load(14, 0)]);
    assert_eq!(replicas(&scene.plan()), 3, "ceil(14 / 5)");
}

#[test]
fn tasks_of_a_shared_queue_make_no_worker_busy() {
    let spec = "{role: coder, replicas: 1, autoscaling: {queue: Shared, minReplicas: 1, maxReplicas: 1}}";
    let mut scene = Scene::ready(spec, 2);
    scene.loads(vec![load(20, 0), load(20, 1)]);
    let costs: Vec<i32> = scene.plan().marks.iter().map(|mark| mark.cost).collect();
    assert_eq!(costs, [1_000], "the other one has no task");
}

#[test]
fn while_a_watch_fails_no_worker_is_removed() {
    let mut scene = Scene::ready(SCALED, 4);
    scene.observe(|observed| observed.history = Default::default());
    scene.loads(vec![load(0, 0); 4]);
    let at_once = "{role: coder, autoscaling: {minReplicas: 1, maxReplicas: 10, behavior: {scaleDown: \
                   {stabilizationWindowSeconds: 0}}}}";
    scene.edit_spec(|spec| spec.autoscaling = crate::tests::dispatcher(at_once).spec.autoscaling);
    assert_eq!(scene.plan().status.desired_replicas, 1, "no worker has a task");
    scene.observe(|observed| observed.unwatched = Some("pods"));
    let plan = scene.plan();
    assert_eq!((replicas(&plan), plan.status.desired_replicas, plan.marks.len()), (4, 4, 0));
    let active = condition(&plan, conditions::SCALING_ACTIVE).unwrap();
    assert_eq!((&*active.status, &*active.reason), ("False", reasons::PODS_UNKNOWN));
    assert!(active.message.contains("the watch of pods fails"), "{}", active.message);
    assert!(plan.requeue_after.is_some() && plan.past.is_none());
    let mut fixed = Scene::ready("{role: coder, replicas: 3}", 3);
    fixed.observe(|observed| observed.unwatched = Some("pods"));
    fixed.edit_spec(|spec| spec.replicas = 1);
    assert_eq!(replicas(&fixed.plan()), 3);
    fixed.edit_spec(|spec| spec.replicas = 5);
    assert_eq!(replicas(&fixed.plan()), 5, "a user has asked for more");
}

/// The annotations that a plan writes, by pod.
/// Name of the pod, cost, and annotations beside the cost.
type Mark = (String, i32, Vec<(&'static str, Option<String>)>);

fn marks(plan: &Plan) -> Vec<Mark> {
    let marks = plan.marks.iter().map(|mark| {
        let guards = mark.guards.clone().into_iter().collect();
        (mark.pod.metadata.name.clone().unwrap(), mark.cost, guards)
    });
    marks.collect()
}

const KEPT: [(&str, Option<&str>); 2] =
    [(api::labels::SAFE_TO_EVICT, Some("false")), (api::labels::DO_NOT_DISRUPT, Some("true"))];

fn kept() -> Vec<(&'static str, Option<String>)> {
    KEPT.map(|(key, value)| (key, value.map(str::to_owned))).into()
}

#[test]
fn node_autoscalers_leave_a_worker_alone_that_has_been_busy_for_a_while() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.loads(vec![load(0, 1), load(0, 0)]);
    let plan = scene.plan();
    assert!(marks(&plan).is_empty(), "short tasks cause no writes");
    assert!(plan.requeue_after <= Some(Duration::from_secs(10)));
    scene.note(&plan, at(-10));
    let plan = scene.plan();
    assert_eq!(marks(&plan), [("coder-0".to_owned(), 1_000, kept())]);
    scene.note(&plan, at(-10));
    assert!(marks(&scene.plan()).is_empty(), "a refused write is tried once in a minute");
    assert_eq!(marks(&scene.plan_at(at(60))).len(), 1);
}

#[test]
fn the_marks_of_an_idle_worker_are_taken_off() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    let node = "ready: true, node: a, phase: Running";
    let busy = format!("{{name: coder-0, cost: 1000, kept: true, {node}}}");
    // A user has annotated it by hand.
    let theirs = format!("{{name: coder-1, kept: true, {node}}}");
    scene.pods(&[&busy, &theirs]);
    scene.loads(vec![load(0, 1), load(0, 0)]);
    assert!(marks(&scene.plan()).is_empty());
    scene.loads(vec![load(0, 0), load(0, 0)]);
    let plan = scene.plan();
    assert!(marks(&plan).is_empty(), "the next task may come at once");
    scene.note(&plan, at(-60));
    let off: Vec<_> = kept().into_iter().map(|(key, _)| (key, None)).collect();
    assert_eq!(marks(&scene.plan()), [("coder-0".to_owned(), 0, off)]);
    scene.loads(vec![Default::default(), load(0, 0)]);
    assert!(marks(&scene.plan()).is_empty(), "it may be busy");
}

#[test]
fn annotations_of_the_user_for_node_autoscalers_stay() {
    let spec = "{role: coder, podAnnotations: {karpenter.sh/do-not-disrupt: 'false'}}";
    let mut scene = Scene::ready(spec, 1);
    scene.loads(vec![load(0, 1)]);
    let plan = scene.plan();
    scene.note(&plan, at(-10));
    assert_eq!(marks(&scene.plan()), [("coder-0".to_owned(), 1_000, kept()[..1].to_vec())]);
}

#[test]
fn a_worker_that_has_only_its_cost_is_kept_from_node_autoscalers_too() {
    let mut scene = Scene::ready("{role: coder}", 1);
    scene.pods(&["{name: coder-0, ready: true, node: a, phase: Running, cost: 1000}"]);
    scene.loads(vec![load(0, 1)]);
    let plan = scene.plan();
    scene.note(&plan, at(-10));
    assert_eq!(marks(&scene.plan()), [("coder-0".to_owned(), 1_000, kept())]);
}

#[test]
fn a_worker_that_reports_its_queue_alone_is_unmarked_after_ten_minutes_without_tasks() {
    let mut scene = Scene::ready("{role: coder}", 1);
    scene.pods(&["{name: coder-0, ready: true, node: a, phase: Running, cost: 1000, kept: true}"]);
    let quiet = crate::load::WorkerLoad {
        queued: Some((0, at(0))),
        is_quiet: true,
        ..crate::load::WorkerLoad::default()
    };
    scene.loads(vec![quiet.clone()]);
    let plan = scene.plan();
    assert!(marks(&plan).is_empty() && plan.requeue_after <= Some(Duration::from_secs(600)));
    scene.note(&plan, at(-599));
    assert!(marks(&scene.plan()).is_empty(), "it may work on a task");
    scene.note(&plan, at(-600));
    let off: Vec<_> = kept().into_iter().map(|(key, _)| (key, None)).collect();
    assert_eq!(marks(&scene.plan()), [("coder-0".to_owned(), 0, off)]);
    scene.loads(vec![crate::load::WorkerLoad { is_quiet: false, ..quiet }]);
    assert!(marks(&scene.plan()).is_empty(), "its stream is cut");
}

#[test]
fn annotations_that_were_refused_do_not_take_the_cost_with_them() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    scene.loads(vec![load(0, 1), load(0, 0)]);
    let plan = scene.plan();
    scene.note(&plan, at(-10));
    scene.observe(|observed| observed.guards_refused = Some(at(-3_599)));
    assert_eq!(marks(&scene.plan()), [("coder-0".to_owned(), 1_000, Vec::new())]);
    scene.observe(|observed| observed.guards_refused = Some(at(-3_600)));
    assert_eq!(marks(&scene.plan()), [("coder-0".to_owned(), 1_000, kept())]);
}

#[test]
fn marks_and_budget_follow_the_workers_of_a_pool_that_is_paused_invalid_or_refused() {
    let mut scene = Scene::ready("{role: coder, replicas: 3}", 3);
    let ready = "ready: true, node: a, phase: Running";
    let unready =
        format!("conditions: [{{type: Ready, status: 'False', lastTransitionTime: '{}'}}]", at(-300));
    scene.pods(&[
        &format!("{{name: coder-0, cost: 1000, kept: true, {ready}}}"),
        &format!("{{name: coder-1, {ready}}}"),
        &format!("{{name: coder-2, node: a, phase: Running, {unready}}}"),
    ]);
    scene.loads(vec![load(0, 0), load(0, 0)]);
    let off: Vec<_> = kept().into_iter().map(|(key, _)| (key, None)).collect();
    let unmarked = [("coder-0".to_owned(), 0, off)];
    let unavailable = |plan: &Plan| {
        let budget = plan.budget.as_ref().expect("a budget");
        serde_json::to_value(budget.spec.as_ref().unwrap().max_unavailable.clone()).unwrap()
    };
    let invalid = |scene: &Scene| {
        crate::plan::rejected(&Invalid("spec.env: remove it".to_owned()), scene.observed(), at(0))
    };
    let plan = invalid(&scene);
    scene.note(&plan, at(-60));
    let plan = invalid(&scene);
    assert!(plan.deployment.is_none());
    assert_eq!((marks(&plan), unavailable(&plan)), (unmarked.to_vec(), 2.into()));

    let refusal = runtime::write::refusal::Refusal::Denied("no".to_owned());
    let plan = crate::plan::refused(&refusal, scene.plan(), scene.observed(), &defaults(&[]), at(0));
    assert_eq!((plan.deployment.is_none(), unavailable(&plan)), (true, 2.into()));

    scene.edit_spec(|spec| spec.pods.paused = true);
    let plan = scene.plan();
    assert!(plan.deployment.is_none());
    assert_eq!((marks(&plan), unavailable(&plan)), (unmarked.to_vec(), 2.into()));
    scene.observe(|observed| (observed.deployment, observed.deployed) = (None, None));
    assert!(scene.plan().budget.is_none() && invalid(&scene).budget.is_none(), "there is nothing to guard");
}

#[test]
fn the_marks_of_a_pool_whose_smaller_number_is_refused_are_taken_off() {
    let mut scene = Scene::ready("{role: coder, replicas: 2}", 2);
    let marked = |name: &str| {
        format!("{{name: {name}, cost: 1000, kept: true, ready: true, node: a, phase: Running}}")
    };
    scene.pods(&[&marked("coder-0"), &marked("coder-1")]);
    scene.edit_spec(|spec| spec.replicas = 1);
    scene.loads(vec![load(0, 0); 2]);
    let plan = scene.plan();
    assert_eq!(replicas(&plan), 1, "they are all alike");
    scene.note(&plan, at(-60));
    assert_eq!(marks(&scene.plan()).len(), 2);
}

/// Two workers that have begun and ended two tasks a second for two minutes, each of one second, and now so many a second
/// arrive for 20 s.
fn with_arrivals(scene: &mut Scene, more: u32) {
    let mut meter = PodMeter::default();
    let uids: Vec<String> = scene.observed().pods().map(|pod| pod.uid().to_owned()).collect();
    let ready = uids.iter().map(String::as_str).collect();
    for step in 0..=28_u32 {
        let burst = f64::from(step.saturating_sub(24)) * 5.0 * f64::from(more) / 2.0;
        let counts: Vec<PodCounts> = uids
            .iter()
            .map(|uid| PodCounts {
                uid: uid.clone(),
                finished: f64::from(step) * 5.0,
                waiting: burst,
                running: 1.0,
                tokens: 0.0,
            })
            .collect();
        meter.observe(&counts, &ready, at(i64::from(step) * 5 - 140));
    }
    scene.observe(|observed| observed.meter = Some(Arc::new(meter)));
}

#[test]
fn workers_that_count_ended_tasks_are_scaled_by_what_arrives() {
    let mut scene = Scene::ready("{role: coder, autoscaling: {maxReplicas: 50}}", 2);
    scene.loads(vec![load(5, 1), load(5, 1)]);
    let by_queue = scene.plan();
    let message = |plan: &Plan| condition(plan, "ScalingActive").unwrap().message.clone();
    assert_eq!(message(&by_queue), "the number of workers follows the queue");
    assert_eq!(by_queue.status.desired_replicas, 4, "ten wait, five of them for each");
    with_arrivals(&mut scene, 4);
    let by_arrivals = scene.plan();
    assert_eq!(message(&by_arrivals), "the number of workers follows what arrives");
    assert!(by_arrivals.status.desired_replicas > 4, "six a second arrive: {:?}", by_arrivals.status);
    let event = &by_arrivals.rescale.as_ref().unwrap().event.message;
    assert!(event.contains("tasks/s arrive and take") && event.contains("busy workers: 2"), "{event}");
    with_arrivals(&mut scene, 0);
    assert_eq!(scene.plan().status.desired_replicas, 2);
}
