use std::sync::Arc;

use workload::faults::gpu::NodeCapacity;

use crate::{
    plan::revision::revision,
    tests::{Scene, at, defaults},
    validate::validate,
};

use super::*;

const SHORT: &str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.";

/// A rollout: a ready old pod on gpu-0 with one GPU, and a new pod that has been unschedulable for `for_seconds`.
fn stuck(rollout: &str, for_seconds: i64, message: &str) -> Scene {
    let mut scene = Scene::ready(1);
    scene.edit_spec(|spec| {
        spec.rollout = serde_json::from_value(rollout.into()).unwrap();
        spec.gpu.product_label = Some("A100".into());
    });
    scene.settle(0);
    scene.older_pods(1);
    let message = message.replace('\'', "''");
    scene.pods(&[&format!(
        "{{phase: Pending, conditions: [{{type: PodScheduled, status: 'False', reason: Unschedulable, \
         message: '{message}', lastTransitionTime: '{}'}}]}}",
        at(-9_000)
    )]);
    scene.observe(|observed| {
        observed.capacities = Some(vec![capacity("A100", 0)]);
        observed.facts = [("chat-0".to_owned(), at(-for_seconds))].into();
    });
    scene
}

fn capacity(product: &str, free: i64) -> NodeCapacity {
    let node = format!("{{metadata: {{name: gpu-0, labels: {{nvidia.com/gpu.product: {product}}}}}}}");
    NodeCapacity { node: Arc::new(serde_saphyr::from_str(&node).unwrap()), allocatable: 8, free }
}

fn decided(scene: &Scene) -> Order {
    let observed = scene.observed();
    let valid = validate(&observed.inference).unwrap();
    rollout(&valid, &revision(&valid, &observed, &defaults(&[])), &observed, at(0))
}

fn strategy_of(scene: &Scene) -> Strategy {
    decided(scene).strategy
}

#[test]
fn auto_surges_until_gpus_have_been_short_for_the_surge_timeout() {
    let waits = |seconds| Order {
        strategy: Strategy::Surge,
        requeue_after: Some(Duration::from_secs(seconds)),
        warning: None,
        shortages: vec!["chat-0".into()],
        why_kept: None,
    };
    assert_eq!(decided(&stuck("Auto", 0, SHORT)), waits(300));
    assert_eq!(decided(&stuck("Auto", 299, SHORT)), waits(1));
    assert_eq!(strategy_of(&stuck("Auto", 300, SHORT)), Strategy::Replace);
}

#[test]
fn auto_deletes_no_ready_pod_for_a_product_that_no_node_has() {
    let mut scene =
        stuck("Auto", 9_000, "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.");
    scene.observe(|observed| observed.capacities = Some(vec![capacity("H100", 8)]));
    let (shortages, why_kept) = (Vec::new(), None);
    let surges = Order { strategy: Strategy::Surge, requeue_after: None, warning: None, shortages, why_kept };
    assert_eq!(decided(&scene), surges);
}

#[test]
fn auto_deletes_no_ready_pod_whose_gpus_would_not_be_enough() {
    let mut scene = stuck("Auto", 9_000, SHORT);
    scene.edit_spec(|spec| spec.gpu.count = 2);
    scene.settle(0);
    scene.older_pods(1);
    scene.pods(&["{conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, message: Insufficient nvidia.com/gpu}]}"]);
    assert_eq!(strategy_of(&scene), Strategy::Surge);
}

#[test]
fn auto_deletes_no_ready_pod_for_anything_but_gpus() {
    for message in [
        "0/1 nodes are available: 1 Insufficient cpu.",
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu.",
        "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.",
        "waiting for ephemeral volume controller to create the persistentvolumeclaim",
        "",
    ] {
        assert_eq!(strategy_of(&stuck("Auto", 9_000, message)), Strategy::Surge, "{message}");
    }
    let mut uncounted = stuck("Auto", 9_000, SHORT);
    uncounted.observe(|observed| observed.capacities = None);
    assert_eq!(strategy_of(&uncounted), Strategy::Surge, "without a watch of nodes nothing is counted");
}

#[test]
fn auto_keeps_replacing_until_the_rollout_ends() {
    let replaces = |scene: &mut Scene| {
        scene.observe(|observed| observed.deployment.as_mut().unwrap().replaces = true);
    };
    let mut scene = stuck("Auto", 1, SHORT);
    replaces(&mut scene);
    assert_eq!(strategy_of(&scene), Strategy::Replace);
    scene.observe(|observed| observed.capacities = Some(vec![capacity("H100", 0)]));
    assert_eq!(
        strategy_of(&scene),
        Strategy::Surge,
        "no further pod is deleted once no node has the product"
    );
    let mut done = Scene::ready(1);
    replaces(&mut done);
    assert_eq!(strategy_of(&done), Strategy::Surge);
}

#[test]
fn auto_deletes_no_pod_first_while_the_new_one_may_run_unseen() {
    let stale = |rollout: &str| {
        let mut scene = stuck(rollout, 300, SHORT);
        scene.observe(|observed| observed.watch_fails = true);
        scene
    };
    let order = decided(&stale("Auto"));
    assert_eq!((order.strategy, order.requeue_after), (Strategy::Surge, Some(WATCHED_AGAIN_WITHIN)));
    assert_eq!(order.shortages, ["chat-0"], "its time goes on");
    assert_eq!(strategy_of(&stale("Replace")), Strategy::Replace, "the user's own order");
    let mut begun = stale("Auto");
    begun.observe(|observed| observed.deployment.as_mut().unwrap().replaces = true);
    assert_eq!(strategy_of(&begun), Strategy::Replace, "it does not alternate");
}

/// The queue may be held, or of another flavor, or give the place to another workload.
#[test]
fn auto_deletes_no_ready_pod_for_one_that_kueue_holds_back_and_says_why() {
    let mut scene = stuck("Auto", 9_000, SHORT);
    scene.pods(&[
        "{gates: [kueue.x-k8s.io/admission], gpus: 1, conditions: [{type: PodScheduled, status: 'False', reason: SchedulingGated}]}",
    ]);
    let order = decided(&scene);
    assert_eq!((order.strategy, order.shortages.len()), (Strategy::Surge, 0));
    assert!(order.why_kept.unwrap().contains("rollout Replace deletes one"));
    let conditions = scene.plan().status.conditions;
    let scheduled = conditions.iter().find(|known| known.type_ == "Scheduled").unwrap();
    assert!(
        scheduled.message.contains("kubectl get workloads; no older pod is deleted for it"),
        "{}",
        scheduled.message
    );
}

fn quota(scene: &mut Scene, message: &str, for_seconds: i64) {
    let failure = format!(
        "{{type: ReplicaFailure, status: 'True', message: '{message}', lastTransitionTime: '{}'}}",
        at(-9_000)
    );
    scene.pods(&[]);
    scene.observe(|observed| {
        observed.deployment.as_mut().unwrap().creation_failure =
            Some(serde_saphyr::from_str(&failure).unwrap());
        observed.facts = [(QUOTA.to_owned(), at(-for_seconds))].into();
    });
}

#[test]
fn a_quota_that_old_pods_use_up_counts_as_a_shortage() {
    let refused = |gpus: i64, more: &str| {
        format!(
            "pods \"chat-1\" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu={gpus}{more}, \
             used: requests.nvidia.com/gpu=1{more}, limited: requests.nvidia.com/gpu=1{more}"
        )
    };
    let mut scene = stuck("Auto", 0, SHORT);
    quota(&mut scene, &refused(1, ""), 300);
    assert_eq!(strategy_of(&scene), Strategy::Replace);
    quota(&mut scene, &refused(1, ""), 299);
    assert_eq!(strategy_of(&scene), Strategy::Surge);
    quota(&mut scene, &refused(1, ",pods=1"), 300);
    assert_eq!(strategy_of(&scene), Strategy::Replace);
    quota(&mut scene, &refused(2, ""), 300);
    assert_eq!(strategy_of(&scene), Strategy::Surge, "it would not fit even in the place of the old pod");
    quota(&mut scene, &refused(1, ",requests.cpu=1"), 300);
    assert_eq!(strategy_of(&scene), Strategy::Surge, "the CPU of an old pod is not known");
    scene.observe(|observed| {
        observed.older[0].pods.push(Arc::new(crate::tests::pod("{name: idle, gpus: 0}")))
    });
    quota(&mut scene, &refused(1, ""), 300);
    assert_eq!(strategy_of(&scene), Strategy::Surge, "the ReplicaSet may delete the pod without GPUs");
    quota(&mut scene, "admission webhook denied the request", 9_000);
    assert_eq!(strategy_of(&scene), Strategy::Surge);
}

/// A rollout with a claim of this access mode. The old pod, chat-0, is on gpu-0. The new pod waits on `node`, and an event
/// about its volume has this message.
fn waits_for_volume(mode: &str, node: &str, message: Option<&str>) -> Scene {
    let mut scene = Scene::new("{modelSource: pvc://models, engine: vllm, gpu: {count: 1}, replicas: 1}");
    scene.settle(1);
    scene.edit_spec(|spec| spec.args = vec!["--x".into()]);
    scene.roll();
    let claim =
        format!("{{metadata: {{name: models}}, spec: {{accessModes: [{mode}]}}, status: {{phase: Bound}}}}");
    scene.pods(&[&format!(
        "{{name: new, node: {node}, containers: [{{name: engine, state: {{waiting: {{reason: ImagePullBackOff}}}}}}], \
         conditions: [{{type: PodScheduled, status: 'True', lastTransitionTime: '{}'}}]}}",
        at(-300)
    )]);
    scene.observe(|observed| {
        observed.claim = Some(Arc::new(serde_saphyr::from_str(&claim).unwrap()));
        observed.facts = [("new".to_owned(), at(-300))].into();
    });
    if let Some(message) = message {
        scene.unattached(message);
    }
    scene
}

const IN_USE: &str = "Multi-Attach error for volume \"pvc-1\" Volume is already used by pod(s) chat-0";

#[test]
fn a_read_write_once_claim_counts_as_a_shortage_while_the_new_pod_waits_on_another_node() {
    let decided = |mode: &str, node: &str, message| strategy_of(&waits_for_volume(mode, node, message));
    assert_eq!(decided("ReadWriteOnce", "gpu-1", Some(IN_USE)), Strategy::Replace);
    assert_eq!(decided("ReadWriteOnce", "gpu-1", None), Strategy::Surge, "it waits for its image");
    assert_eq!(
        decided("ReadWriteOnce", "gpu-0", Some(IN_USE)),
        Strategy::Surge,
        "the volume is attached there"
    );
    assert_eq!(decided("ReadWriteMany", "gpu-1", Some(IN_USE)), Strategy::Surge);
}

#[test]
fn no_old_pod_is_deleted_for_a_volume_in_use_by_others_or_another_attach_error() {
    let decided = |message| strategy_of(&waits_for_volume("ReadWriteOnce", "gpu-1", Some(message)));
    let foreign = "Multi-Attach error for volume \"pvc-1\" Volume is already used by pod(s) chat-0, notebook";
    assert_eq!(decided(foreign), Strategy::Surge);
    let limit = "AttachVolume.Attach failed for volume \"pvc-1\": node has reached its limit of volumes";
    assert_eq!(decided(limit), Strategy::Surge);

    let beside = |old: &str| {
        let mut scene = waits_for_volume("ReadWriteOnce", "gpu-1", Some(IN_USE));
        scene.observe(|observed| observed.older[0].pods.push(Arc::new(crate::tests::pod(old))));
        strategy_of(&scene)
    };
    assert_eq!(beside("{name: chat-1, node: gpu-2}"), Strategy::Replace);
    assert_eq!(
        beside("{name: chat-1, node: gpu-1}"),
        Strategy::Surge,
        "it uses the volume on the node of the new pod"
    );
    assert_eq!(beside("{name: chat-1}"), Strategy::Surge, "it does not use the volume yet");
    let mut scene = waits_for_volume("ReadWriteOnce", "gpu-1", Some(IN_USE));
    scene.observe(|observed| {
        let pods = observed.older[0].pods.clone();
        observed.older.push(OlderRevision { revision: Arc::default(), pods });
    });
    assert_eq!(strategy_of(&scene), Strategy::Surge, "one revision had another source");
}

#[test]
fn a_volume_failure_is_recorded_for_the_next_plan() {
    let scene = waits_for_volume("ReadWriteOnce", "gpu-1", Some(IN_USE));
    let fact = format!("volume of pod new: {IN_USE}");
    let announced = scene.plan();
    assert!(announced.children.is_empty() && announced.facts.unwrap() == ["new", &*fact]);
    let mut surges = scene;
    surges.edit_spec(|spec| spec.rollout = Rollout::Surge);
    assert_eq!(surges.plan().facts.unwrap(), [fact]);
}

#[test]
fn a_read_write_once_pod_claim_counts_as_a_shortage_while_an_old_pod_uses_it() {
    let scene = |source: &str, message: &str| {
        let mut scene = Scene::new("{modelSource: pvc://models, engine: vllm, gpu: {count: 1}, replicas: 1}");
        scene.settle(1);
        scene.edit_spec(|spec| {
            spec.model_source = source.into();
            spec.args = vec!["--x".into()];
        });
        scene.roll();
        scene.pods(&[&format!(
            "{{name: new, conditions: [{{type: PodScheduled, status: 'False', message: '{message}'}}]}}"
        )]);
        let claim = "{metadata: {name: any}, spec: {accessModes: [ReadWriteOncePod]}}";
        scene.observe(|observed| {
            observed.claim = Some(Arc::new(serde_saphyr::from_str(claim).unwrap()));
            observed.facts = [("new".to_owned(), at(-300))].into();
        });
        scene
    };
    let decided = |source: &str, message: &str| strategy_of(&scene(source, message));
    let used = "0/2 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and \
                ReadWriteOncePod access mode, 1 node(s) had untolerated taint {a: b}.";
    assert_eq!(decided("pvc://models", used), Strategy::Replace);
    assert_eq!(decided("pvc://others", used), Strategy::Surge, "no old pod uses that claim");
    let more = format!("{used} 1 Insufficient cpu.");
    assert_eq!(decided("pvc://models", &more), Strategy::Surge, "something else is short, too");
    assert_eq!(decided("pvc://models", "0/1 nodes are available"), Strategy::Surge);
    let mut foreign = scene("pvc://models", used);
    foreign.observe(|observed| observed.older[0].pods = vec![Arc::new(crate::tests::pod("{gpus: 1}"))]);
    assert_eq!(strategy_of(&foreign), Strategy::Surge, "the old pod waits for the claim, too");
}

#[test]
fn the_time_counts_from_the_first_shortage_of_gpus() {
    let mut scene = stuck("Auto", 0, "0/1 nodes are available: 1 Insufficient cpu.");
    assert_eq!(decided(&scene).shortages, [""; 0]);
    scene = stuck("Auto", 0, SHORT);
    scene.observe(|observed| observed.facts.clear());
    assert_eq!(scene.plan().facts.unwrap(), ["chat-0"], "the shortage is recorded");
    assert_eq!(decided(&scene).requeue_after, Some(Duration::from_secs(300)));
    scene.observe(|observed| observed.facts = [("another pod".to_owned(), at(-900))].into());
    assert_eq!(strategy_of(&scene), Strategy::Surge);
    let announced = stuck("Auto", 300, SHORT).plan();
    assert!(
        announced.children.is_empty() && announced.facts.unwrap() == ["chat-0"],
        "the announcement changes nothing"
    );
}

#[test]
fn the_message_names_why_no_old_pod_is_deleted() {
    let message = |scene: &Scene| {
        let conditions = scene.plan().status.conditions;
        conditions.iter().find(|c| c.type_ == api::conditions::SCHEDULED).unwrap().message.clone()
    };
    let two = "0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu.";
    let because = "; no older pod is deleted for it, because other resources are short, too";
    assert_eq!(
        message(&stuck("Auto", 9_000, two)),
        format!("needs 1 nvidia.com/gpu on A100; free: 0{because}")
    );
    let mut small = stuck("Auto", 9_000, SHORT);
    small.observe(|observed| observed.older[0].pods = vec![Arc::new(crate::tests::pod("{node: gpu-9}"))]);
    assert!(message(&small).ends_with("because the GPUs of one of them would not be enough"));
    for plain in [stuck("Auto", 0, SHORT), stuck("Surge", 9_000, two)] {
        assert_eq!(message(&plain), "needs 1 nvidia.com/gpu on A100; free: 0");
    }
}

#[test]
fn no_old_pod_is_deleted_if_the_replica_set_may_choose_one_that_does_not_help() {
    let mut scene = stuck("Auto", 9_000, SHORT);
    scene.observe(|observed| {
        let elsewhere = crate::tests::pod("{name: elsewhere, ready: true, node: gpu-9, gpus: 1}");
        observed.older[0].pods.push(Arc::new(elsewhere));
    });
    assert_eq!(strategy_of(&scene), Strategy::Surge, "the ReplicaSet chooses the pod");
}

#[test]
fn no_ready_pod_is_deleted_while_enough_gpus_are_free() {
    let mut scene = stuck("Auto", 9_000, SHORT);
    scene.observe(|observed| observed.capacities = Some(vec![capacity("A100", 1)]));
    assert_eq!(strategy_of(&scene), Strategy::Surge);
}

#[test]
fn the_longest_shortage_decides() {
    let mut scene = stuck("Auto", 300, SHORT);
    scene.observe(|observed| {
        let mut second = PodView::clone(&observed.deployed.as_ref().unwrap()[0]);
        second.metadata.uid = Some("second".into());
        observed.deployed.as_mut().unwrap().push(Arc::new(second));
    });
    assert_eq!(strategy_of(&scene), Strategy::Replace);
}

#[test]
fn a_quota_error_of_the_previous_revision_is_no_shortage_of_this_one() {
    let mut scene = stuck("Auto", 0, SHORT);
    let message = "exceeded quota: a, requested: pods=1, used: pods=1, limited: pods=1";
    quota(&mut scene, message, 9_000);
    assert_eq!(strategy_of(&scene), Strategy::Replace);
    scene.edit_spec(|spec| spec.args = vec!["--x".into()]);
    assert_eq!(strategy_of(&scene), Strategy::Surge);
}

#[test]
fn replace_is_used_if_the_fit_is_unknown() {
    let mut scene = stuck("Replace", 0, SHORT);
    scene.edit_spec(|spec| {
        spec.pods.scheduling =
            Some(serde_saphyr::from_str("{nodeSelector: {kubernetes.io/arch: amd64}}").unwrap());
    });
    assert_eq!(strategy_of(&scene), Strategy::Replace);
}

#[test]
fn auto_announces_that_no_pod_will_be_ready() {
    assert!(decided(&stuck("Auto", 300, SHORT)).warning.is_some());
    assert_eq!(decided(&stuck("Auto", 299, SHORT)).warning, None);
}

#[test]
fn surge_and_replace_do_not_wait() {
    assert_eq!(strategy_of(&stuck("Surge", 9_000, SHORT)), Strategy::Surge);
    assert_eq!(strategy_of(&stuck("Replace", 0, SHORT)), Strategy::Replace);
}

#[test]
fn replace_deletes_no_ready_pod_for_a_revision_that_cannot_run() {
    let mut scene = stuck("Replace", 0, SHORT);
    scene.observe(|observed| observed.capacities = Some(vec![capacity("H100", 8)]));
    assert_eq!(strategy_of(&scene), Strategy::Surge);
    let mut scene = Scene::ready(1);
    scene.edit_spec(|spec| {
        spec.rollout = Rollout::Replace;
        spec.model_source = "pvc://missing".into();
    });
    assert_eq!(strategy_of(&scene), Strategy::Surge);
}

#[test]
fn no_pod_is_deleted_for_a_shortage_of_nodes_that_the_pinned_pods_do_not_select() {
    let mut scene = stuck("Auto", 9_000, SHORT);
    assert_eq!(strategy_of(&scene), Strategy::Replace);
    // An earlier release has rendered the pods of this revision with other labels.
    scene.observe(|observed| {
        let deployment = observed.deployment.as_mut().unwrap();
        let pinned = deployment.pinned_template.as_ref().unwrap();
        assert!(pinned.contains("\"A100\""), "{pinned}");
        deployment.pinned_template = Some(pinned.replace("\"A100\"", "\"A100\",\"A100-80GB\"").into());
    });
    let order = decided(&scene);
    assert_eq!((order.strategy, order.shortages, order.why_kept), (Strategy::Surge, vec![], None));
}

#[test]
fn replace_announces_that_no_pod_will_be_ready() {
    let mut scene = Scene::ready(1);
    scene.edit_spec(|spec| {
        spec.rollout = Rollout::Replace;
        spec.args = vec!["--x".into()];
    });
    let warning = decided(&scene).warning.unwrap();
    assert!(warning.contains("pod chat-0, the only ready one, is deleted"), "{warning}");
    let mut two = Scene::ready(2);
    two.edit_spec(|spec| {
        spec.rollout = Rollout::Replace;
        spec.args = vec!["--x".into()];
    });
    assert_eq!(decided(&two).warning, None);
}
