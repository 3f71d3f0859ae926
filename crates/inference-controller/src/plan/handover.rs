//! The only ready pod stays until another one serves in its place, when its node is about to go: a drain, or a node autoscaler.
//! Pure.
//!
//! A budget holds evictions back meanwhile, for `surgeTimeoutSeconds` at most. Only with `disruption: Surge` and one replica: with
//! more, the budget of the others keeps all but one in place.

use std::{collections::BTreeMap, time::Duration};

use api::{aiinference::Disruption, labels};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use serde::Serialize;
use serde_json::Value;
use workload::{templates::revision::Revision, time::remaining, views::pod::PodView};

use super::defaults::Defaults;
use crate::{observe::Observed, validate::ValidInference};

/// Annotations of a pod to write, with its uid and version.
#[derive(Debug, Serialize)]
pub(crate) struct Mark {
    pub(crate) pod: Box<Pod>,
    /// `None` takes one off.
    pub(crate) annotations: BTreeMap<&'static str, Option<String>>,
}

/// How the only ready pod is kept, and replaced.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// How many pods more than `replicas` are wanted.
    pub(super) surplus: i32,
    /// Whether a budget holds back the eviction of the only pod.
    pub(super) is_guarded: bool,
    /// What is said while the pod is replaced.
    pub(super) message: Option<String>,
    pub(super) marks: Vec<Mark>,
    /// That a node is emptied.
    pub(super) fact: Option<String>,
    pub(super) requeue_after: Option<Duration>,
}

/// The end of a budget where no child is written: of a paused object, an invalid spec, a refused child.
#[derive(Debug, Default)]
pub(super) struct Release {
    pub(super) budget: Option<PodDisruptionBudget>,
    pub(super) fact: Option<String>,
    pub(super) requeue_after: Option<Duration>,
}

/// The ReplicaSet deletes it before all others. No user chooses it.
const GOES_FIRST: i32 = i32::MIN;
/// A pod that is ready for less is perhaps one of a rollout, and needs no write.
const MARKED_AFTER: Duration = Duration::from_secs(30);
const EMPTIED: &str = "a node with its pod is emptied";

pub(super) fn handover(
    valid: &ValidInference,
    revision: &Revision<'_>,
    observed: &Observed,
    defaults: &Defaults,
    now: Timestamp,
) -> Handover {
    let surges = match valid.disruption {
        Disruption::Surge => defaults.watches_nodes && valid.replicas == 1,
        Disruption::Allow => false,
    };
    if valid.pods.paused {
        return Handover { is_guarded: surges, ..Handover::default() };
    }
    // A rollout brings another pod, and takes the old one away. The template of its older pods is not at hand.
    let is_rolling = !revision.is_deployed || observed.others().next().is_some();
    let (leaving, staying): (Vec<&PodView>, Vec<&PodView>) =
        observed.pods().partition(|pod| leaves(pod, observed));
    let marks = |pods: &[&PodView], is_kept: bool| -> Vec<Mark> {
        let marks = pods.iter().filter(|_| !is_rolling).filter_map(|pod| mark(pod, is_kept, None, revision));
        marks.collect()
    };
    if !surges {
        return Handover { marks: marks(&staying, false), ..Handover::default() };
    }
    let Some(first) = leaving.first() else {
        let (is_kept, requeue_after) = is_only(&staying, now);
        return Handover {
            is_guarded: true,
            marks: if requeue_after.is_some() { Vec::new() } else { marks(&staying, is_kept) },
            requeue_after,
            ..Handover::default()
        };
    };
    let wait = time_left(observed, valid.surge_timeout, now);
    let fact = Some(EMPTIED.to_owned());
    let surplus = if is_rolling { 0 } else { i32::try_from(leaving.len()).unwrap_or(1) };
    let (name, node) = (first.name(), first.node.as_deref().unwrap_or_default());
    if staying.iter().any(|pod| pod.is_ready) {
        let is_marked = |pod: &&PodView| pod.deletion_cost == Some(GOES_FIRST);
        let unmarked = leaving.iter().filter(|pod| !is_rolling && !is_marked(pod));
        let marks: Vec<Mark> =
            unmarked.filter_map(|pod| mark(pod, false, Some(GOES_FIRST), revision)).collect();
        return Handover {
            // Until the ReplicaSet knows which pods go.
            surplus: if marks.is_empty() { 0 } else { surplus },
            is_guarded: true,
            message: Some(format!("pod {name} on node {node}, which is to be emptied, is replaced")),
            marks,
            fact,
            requeue_after: None,
        };
    }
    let until = match wait {
        Some(_) => "another pod starts first",
        None => {
            "no other pod became ready within spec.surgeTimeoutSeconds, so evictions are no longer held back"
        }
    };
    Handover {
        // Also while the old pod is not ready: the new one has begun to load.
        surplus,
        is_guarded: wait.is_some(),
        message: Some(format!("pod {name} is on node {node}, which is to be emptied: {until}")),
        marks: if wait.is_none() { marks(&leaving, false) } else { Vec::new() },
        fact,
        requeue_after: wait,
    }
}

/// The budget of a single pod gives way in time also where the plan writes no child. Nothing is started for the pod.
pub(super) fn release(observed: &Observed, now: Timestamp) -> Release {
    let is_single = observed.deployment.as_ref().is_some_and(|deployment| deployment.replicas == 1);
    if !is_single || observed.budget.is_none() || !observed.pods().any(|pod| leaves(pod, observed)) {
        return Release::default();
    }
    let timeout =
        Duration::from_secs(u64::from(observed.inference.spec.surge_timeout_seconds.unsigned_abs()));
    let wait = time_left(observed, timeout, now);
    let budget =
        observed.budget.clone().filter(|budget| wait.is_none() && budget.deletion_timestamp.is_none());
    Release {
        budget: budget.map(|metadata| PodDisruptionBudget { metadata, ..PodDisruptionBudget::default() }),
        fact: Some(EMPTIED.to_owned()),
        requeue_after: wait,
    }
}

/// How long evictions are still held back.
fn time_left(observed: &Observed, timeout: Duration, now: Timestamp) -> Option<Duration> {
    let since = observed.facts.get(EMPTIED).copied().unwrap_or(now);
    remaining(timeout, since, now)
}

fn leaves(pod: &PodView, observed: &Observed) -> bool {
    pod.node.as_ref().is_some_and(|node| observed.leaving_nodes.contains(node))
}

/// Whether these pods are one that has been ready for a while, and when it will have been.
fn is_only(pods: &[&PodView], now: Timestamp) -> (bool, Option<Duration>) {
    match pods {
        [only] if only.is_ready => {
            let wait = only.ready_changed.and_then(|since| remaining(MARKED_AFTER, since, now));
            (wait.is_none(), wait.filter(|_| !(only.keeps_from_karpenter && only.keeps_from_autoscaler)))
        }
        _ => (false, None),
    }
}

/// The annotations that differ from what they should be. Those in the template are the user's, and stay.
fn mark(pod: &PodView, is_kept: bool, cost: Option<i32>, revision: &Revision<'_>) -> Option<Mark> {
    let of_template = &revision.template["metadata"]["annotations"];
    let is_free = |key: &str| of_template.get(key).is_none();
    let [(karpenter, yes), (autoscaler, no)] = labels::STAYS_ON_ITS_NODE;
    let guards = [(karpenter, pod.keeps_from_karpenter, yes), (autoscaler, pod.keeps_from_autoscaler, no)];
    let mut annotations: BTreeMap<&'static str, Option<String>> = guards
        .into_iter()
        .filter(|(key, is_set, _)| *is_set != is_kept && is_free(key))
        .map(|(key, _, value)| (key, is_kept.then(|| value.to_owned())))
        .collect();
    // A cost of the user's template is replaced on a pod that goes, and put back on one that stays after all.
    let is_first = pod.deletion_cost == Some(GOES_FIRST);
    if cost.is_some() || is_first {
        let users = of_template.get(labels::POD_DELETION_COST).and_then(Value::as_str).map(str::to_owned);
        annotations.insert(labels::POD_DELETION_COST, cost.map(|cost| cost.to_string()).or(users));
    }
    (!annotations.is_empty()).then(|| Mark { pod: Box::new(pod.identity()), annotations })
}

#[cfg(test)]
mod tests {
    use api::conditions;
    use serde_json::json;

    use crate::{
        plan::{Plan, children::Child},
        tests::{Scene, at, deployment_of},
    };

    use super::*;

    const HERE: &str = "{name: a, ready: true, node: gpu-0, gpus: 1}";
    const THERE: &str = "{name: b, ready: true, node: gpu-1, gpus: 1}";
    const LOADS: &str = "{name: b, node: gpu-1, gpus: 1}";

    /// One replica on gpu-0, which is cordoned.
    fn drained(pods: &[&str]) -> Scene {
        let mut scene = Scene::ready(1);
        scene.pods(&[HERE]);
        scene.write_status();
        scene.empties("gpu-0");
        scene.pods(pods);
        scene
    }

    fn replicas(plan: &Plan) -> i32 {
        deployment_of(plan).spec.unwrap().replicas.unwrap()
    }

    /// `minAvailable` of the budget; `None`: it is not wanted.
    fn budget(plan: &Plan) -> Option<serde_json::Value> {
        plan.children.iter().find_map(|child| match child {
            Child::PodDisruptionBudget(budget) => Some(json!(budget.spec)["minAvailable"].clone()),
            _ => None,
        })
    }

    fn ready(plan: &Plan) -> String {
        let progressing =
            plan.status.conditions.iter().find(|condition| condition.type_ == conditions::PROGRESSING);
        progressing.unwrap().message.clone()
    }

    #[test]
    fn the_only_pod_has_a_budget_and_no_surplus() {
        let plan = Scene::ready(1).plan();
        assert_eq!((replicas(&plan), budget(&plan)), (1, Some(json!(1))));
    }

    #[test]
    fn a_second_pod_starts_before_the_only_one_leaves_its_node() {
        let plan = drained(&[HERE]).plan();
        assert_eq!((replicas(&plan), budget(&plan)), (2, Some(json!(1))));
        assert!(
            ready(&plan).ends_with("which is to be emptied: another pod starts first"),
            "{}",
            ready(&plan)
        );
        assert!(plan.marks.is_empty());
        let plan = drained(&[HERE, LOADS]).plan();
        assert_eq!(replicas(&plan), 2, "it is not ready yet");
        assert!(plan.marks.is_empty());
    }

    #[test]
    fn the_old_pod_is_marked_and_then_goes() {
        let plan = drained(&[HERE, THERE]).plan();
        assert_eq!(replicas(&plan), 2, "the ReplicaSet could choose the new one");
        let marked: Vec<_> = plan.marks.iter().map(|mark| mark.pod.metadata.name.clone().unwrap()).collect();
        assert_eq!(marked, ["a"]);
        assert_eq!(
            plan.marks[0].annotations,
            [(labels::POD_DELETION_COST, Some(i32::MIN.to_string()))].into()
        );
        let marked = "{name: a, ready: true, node: gpu-0, gpus: 1, cost: '-2147483648'}";
        let plan = drained(&[marked, THERE]).plan();
        assert_eq!((replicas(&plan), plan.marks.len()), (1, 0));
    }

    #[test]
    fn the_budget_gives_way_when_no_other_pod_becomes_ready_in_time() {
        let mut scene = drained(&[HERE, LOADS]);
        let facts = scene.plan().facts.unwrap();
        scene.observe(|observed| observed.facts = facts.into_iter().map(|fact| (fact, at(0))).collect());
        let early = scene.plan_at(299);
        assert_eq!(budget(&early), Some(json!(1)));
        assert_eq!(early.requeue_after, Some(Duration::from_secs(1)));
        let late = scene.plan_at(300);
        assert_eq!((replicas(&late), budget(&late)), (2, None));
        assert!(ready(&late).contains("no longer held back"), "{}", ready(&late));
    }

    #[test]
    fn more_replicas_or_disruption_allow_have_no_handover() {
        type Edit = fn(&mut api::aiinference::AIInferenceSpec);
        let edits: [Edit; 3] = [
            |spec| spec.replicas = 2,
            |spec| spec.disruption = Disruption::Allow,
            |spec| spec.pods.paused = true,
        ];
        for edit in edits {
            let mut scene = drained(&[HERE]);
            scene.edit_spec(edit);
            let valid = crate::validate::validate(&scene.observed().inference).unwrap();
            let (observed, defaults) = (scene.observed(), crate::tests::defaults(&[]));
            let revision = super::super::revision::revision(&valid, &observed, &defaults);
            assert_eq!(handover(&valid, &revision, &observed, &defaults, at(0)).surplus, 0);
        }
    }

    #[test]
    fn the_new_pod_goes_on_loading_when_the_old_one_is_no_longer_ready() {
        let unready = "{name: a, node: gpu-0, gpus: 1}";
        assert_eq!(replicas(&drained(&[unready, LOADS]).plan()), 2);
        let mut scene = drained(&[HERE, THERE]);
        scene.empties("gpu-1");
        assert_eq!(replicas(&scene.plan()), 3, "the second node is emptied, too");
    }

    #[test]
    fn a_rollout_brings_its_own_pod() {
        let mut scene = drained(&[THERE]);
        scene.older_pods(1);
        let plan = scene.plan();
        assert_eq!((replicas(&plan), plan.marks.len()), (1, 0));
    }

    #[test]
    fn what_keeps_a_pod_on_its_node_is_taken_off_when_it_may_go() {
        let kept = "{name: a, ready: true, node: gpu-0, gpus: 1, keeps: true}";
        let off = || -> BTreeMap<&str, Option<String>> {
            labels::STAYS_ON_ITS_NODE.map(|(key, _)| (key, None)).into()
        };
        let mut allowed =
            Scene::new("{modelSource: s3://models/qwen, engine: vllm, gpu: {count: 1}, disruption: Allow}");
        allowed.settle(1);
        allowed.pods(&[kept]);
        assert_eq!(allowed.plan().marks[0].annotations, off());
        let mut several = Scene::ready(2);
        several.pods(&[kept, THERE]);
        assert_eq!(several.plan().marks[0].annotations, off());
        let mut late = drained(&[kept]);
        late.observe(|observed| observed.facts = [(EMPTIED.to_owned(), at(-300))].into());
        assert_eq!(late.plan().marks[0].annotations, off());
        let mut users = Scene::new(
            "{modelSource: s3://models/qwen, engine: vllm, gpu: {count: 1}, disruption: Allow, podAnnotations: \
             {karpenter.sh/do-not-disrupt: 'true', cluster-autoscaler.kubernetes.io/safe-to-evict: 'false'}}",
        );
        users.settle(1);
        users.pods(&[kept]);
        assert!(users.plan().marks.is_empty(), "the user's own stay");
    }

    #[test]
    fn a_pod_that_stays_after_all_gets_its_cost_back() {
        let mut scene = Scene::ready(1);
        scene.pods(&["{name: a, ready: true, node: gpu-0, gpus: 1, keeps: true, cost: '-2147483648'}"]);
        assert_eq!(scene.plan().marks[0].annotations, [(labels::POD_DELETION_COST, None)].into());
    }

    #[test]
    fn the_budget_gives_way_also_while_the_spec_is_invalid_or_paused() {
        for edit in [
            |spec: &mut api::aiinference::AIInferenceSpec| spec.args = vec!["--".to_owned()],
            |spec: &mut api::aiinference::AIInferenceSpec| spec.pods.paused = true,
            |spec: &mut api::aiinference::AIInferenceSpec| {
                spec.pods.volumes =
                    serde_json::from_value(json!([{"name": "model", "mountPath": "/a", "claimName": "c"}]))
                        .unwrap();
            },
        ] {
            let mut scene = drained(&[HERE]);
            scene.edit_spec(edit);
            scene.observe(|observed| {
                observed.budget = Some(Default::default());
                observed.is_newest = true;
                observed.facts.insert(EMPTIED.to_owned(), at(-299));
            });
            let planned = |scene: &Scene| match crate::plan::plan(
                &scene.observed(),
                &crate::tests::defaults(&[]),
                at(0),
            ) {
                runtime::reconcile::Decision::Plan(plan) => plan,
                runtime::reconcile::Decision::Doubt(doubt) => panic!("{doubt:?}"),
            };
            let early = planned(&scene);
            assert!(early.superfluous.is_empty());
            assert_eq!(early.requeue_after, Some(Duration::from_secs(1)));
            assert!(early.facts.unwrap().contains(&EMPTIED.to_owned()));
            scene.observe(|observed| observed.facts = [(EMPTIED.to_owned(), at(-300))].into());
            assert_eq!(planned(&scene).superfluous.len(), 1);
        }
    }

    #[test]
    fn node_autoscalers_leave_the_only_pod_alone_once_it_has_been_ready_for_a_while() {
        let since = format!("conditions: [{{type: Ready, status: 'True', lastTransitionTime: '{}'}}]", at(0));
        let mut scene = Scene::ready(1);
        let ready = format!("{{name: a, node: gpu-0, gpus: 1, {since}}}");
        scene.pods(&[&ready]);
        assert!(scene.plan_at(29).marks.is_empty());
        assert_eq!(scene.plan_at(29).requeue_after, Some(Duration::from_secs(1)));
        let marks = scene.plan_at(30).marks;
        let expected = labels::STAYS_ON_ITS_NODE.map(|(key, value)| (key, Some(value.to_owned())));
        assert_eq!(marks[0].annotations, expected.into());
        scene.pods(&[&format!("{{name: a, node: gpu-0, gpus: 1, keeps: true, {since}}}")]);
        assert!(scene.plan_at(30).marks.is_empty(), "they are set");
    }
}
