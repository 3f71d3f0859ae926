//! Test fixtures: API objects built from the few fields that a test sets.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{
    aidispatcher::{AIDispatcher, AIDispatcherSpec},
    labels,
};
use clap::{CommandFactory as _, Parser as _};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use runtime::reconcile::Decision;
use serde_json::json;
use workload::{
    templates::deployment::{OlderRevision, ReplicaSetView, TemplateRecord},
    views::pod::PodView,
};

use crate::{
    Args, DispatcherArgs, NAME,
    load::WorkerLoad,
    names,
    observe::Observed,
    plan::{Doubt, Plan, plan},
    validate::{defaults::Defaults, validate},
};

/// An AIDispatcher called demo/coder.
pub(crate) fn dispatcher(spec: &str) -> AIDispatcher {
    AIDispatcher {
        metadata: ObjectMeta {
            name: Some("coder".into()),
            namespace: Some("demo".into()),
            uid: Some("uid-of-coder".into()),
            generation: Some(1),
            ..ObjectMeta::default()
        },
        spec: serde_saphyr::from_str(spec).expect("a spec"),
        status: None,
    }
}

/// A pod of demo/coder from its phase, node, conditions and containers.
pub(crate) fn pod(parts: &str) -> PodView {
    let parts: serde_json::Value = serde_saphyr::from_str(parts).expect("parts of a pod");
    let mut conditions = parts["conditions"].as_array().cloned().unwrap_or_default();
    if parts["ready"] == json!(true) {
        conditions.push(json!({"type": "Ready", "status": "True", "lastTransitionTime": at(-60)}));
    }
    let named = |list: &serde_json::Value| list.as_array().cloned().unwrap_or_default();
    let name = parts["name"].as_str().unwrap_or("coder-0");
    let mut annotations = serde_json::Map::new();
    if let Some(cost) = parts["cost"].as_i64() {
        annotations.insert(labels::POD_DELETION_COST.to_owned(), json!(cost.to_string()));
    }
    if parts["kept"] == json!(true) {
        annotations.insert(labels::DO_NOT_DISRUPT.to_owned(), json!("true"));
        annotations.insert(labels::SAFE_TO_EVICT.to_owned(), json!("false"));
    }
    let mut owners = Vec::new();
    if let Some(uid) = parts["replicaSet"].as_str() {
        owners.push(json!(
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": uid, "uid": uid, "controller": true}
        ));
    }
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "namespace": "demo",
            "labels": {
                labels::MANAGED_BY: NAME,
                labels::NAME: names::KIND,
                labels::INSTANCE: "coder",
            },
            "annotations": annotations,
            "ownerReferences": owners,
            "uid": name,
            "creationTimestamp": parts["created"].as_str().map_or_else(|| json!(at(-120)), |created| json!(created)),
            "deletionTimestamp": parts["deleted"],
        },
        "spec": {"nodeName": parts["node"], "containers": []},
        "status": {
            "phase": parts["phase"].as_str().unwrap_or_default(),
            "podIP": parts["ip"],
            "conditions": conditions,
            "initContainerStatuses": named(&parts["init"]),
            "containerStatuses": named(&parts["containers"]),
        },
    }))
    .expect("a pod")
}

fn ready_pods(count: usize) -> Vec<Arc<PodView>> {
    (0..count)
        .map(|index| Arc::new(pod(&format!("{{name: coder-{index}, ready: true, node: a, phase: Running}}"))))
        .collect()
}

/// The time of the tests plus `seconds`.
pub(crate) fn at(seconds: i64) -> Timestamp {
    let noon: Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
    noon + SignedDuration::from_secs(seconds)
}

/// A worker with so many tasks waiting and in hand, read at the time of the tests.
pub(crate) fn load(queued: u64, in_flight: u64) -> WorkerLoad {
    WorkerLoad {
        queued: Some((queued, at(0))),
        in_flight: Some(in_flight),
        has_tasks: Some(queued + in_flight > 0),
        works: Some(in_flight > 0),
        counts_tokens: true,
        ..WorkerLoad::default()
    }
}

/// One AIDispatcher and its observation.
pub(crate) struct Scene {
    observed: Observed,
}

impl Scene {
    /// Only the object, without children.
    pub(crate) fn new(spec: &str) -> Self {
        Self {
            observed: Observed {
                dispatcher: Arc::new(dispatcher(spec)),
                deployment: None,
                deployed: None,
                older: Vec::new(),
                failed: Vec::new(),
                ending: Vec::new(),
                claim: None,
                budget: None,
                services: Vec::new(),
                other_budgets: Vec::new(),
                guards_refused: None,
                loads: BTreeMap::new(),
                tokens: Default::default(),
                token_rate: Default::default(),
                meter: None,
                history: Default::default(),
                is_newest: false,
                first_observed: at(-600),
                unwatched: None,
                facts: BTreeMap::new(),
            },
        }
    }

    /// All workers are ready and of the current revision, idle, and the status is written.
    pub(crate) fn ready(spec: &str, workers: usize) -> Self {
        let mut scene = Self::new(spec);
        scene.settle(workers);
        scene
    }

    /// Applies the plan: the Deployment exists and all its pods are ready and idle.
    pub(crate) fn settle(&mut self, workers: usize) {
        let mut stored = serde_json::to_value(deployment_of(&self.plan())).expect("JSON");
        stored["spec"]["replicas"] = json!(workers);
        self.observed.deployment = Some(serde_json::from_value(stored).expect("a Deployment"));
        self.observed.deployed = Some(ready_pods(workers));
        self.loads((0..workers).map(|_| load(0, 0)).collect());
        self.write_status();
    }

    /// Writes the planned status.
    pub(crate) fn write_status(&mut self) {
        let status = self.plan().status;
        Arc::make_mut(&mut self.observed.dispatcher).status = Some(status);
    }

    pub(crate) fn edit_spec(&mut self, edit: impl FnOnce(&mut AIDispatcherSpec)) {
        let dispatcher = Arc::make_mut(&mut self.observed.dispatcher);
        edit(&mut dispatcher.spec);
        dispatcher.metadata.generation = dispatcher.metadata.generation.map(|generation| generation + 1);
    }

    /// Sets the pods of the current revision.
    pub(crate) fn pods(&mut self, parts: &[&str]) {
        self.observed.deployed = Some(parts.iter().map(|parts| Arc::new(pod(parts))).collect());
    }

    /// The loads of the pods, in their order; those of later ones are not known.
    pub(crate) fn loads(&mut self, loads: Vec<WorkerLoad>) {
        let pods = self.observed.deployed.iter().flatten();
        let loads = loads.into_iter().chain(std::iter::repeat(WorkerLoad::default()));
        self.observed.loads = pods.map(|pod| pod.uid().to_owned()).zip(loads).collect();
    }

    pub(crate) fn observed(&self) -> &Observed {
        &self.observed
    }

    pub(crate) fn observe(&mut self, edit: impl FnOnce(&mut Observed)) {
        edit(&mut self.observed);
    }

    pub(crate) fn plan(&self) -> Plan {
        self.plan_at(at(0))
    }

    pub(crate) fn plan_at(&self, now: Timestamp) -> Plan {
        let defaults = defaults(&[]);
        validate(&self.observed.dispatcher, &defaults).expect("a valid spec");
        self.planned(&defaults, now).expect("no doubt")
    }

    pub(crate) fn planned(&self, defaults: &Defaults, now: Timestamp) -> Result<Plan, Doubt> {
        match plan(&self.observed, defaults, now) {
            Decision::Plan(plan) => Ok(plan),
            Decision::Doubt(doubt) => Err(doubt),
        }
    }

    /// `FactTimes` has noted the facts of this plan at this time.
    pub(crate) fn note(&mut self, plan: &Plan, at: Timestamp) {
        self.observed.facts = plan.settled_facts().into_iter().map(|fact| (fact, at)).collect();
    }
}

pub(crate) const REFUSAL_RETRY: Duration = Duration::from_secs(60);

#[derive(clap::Parser)]
struct DispatcherCli {
    #[command(flatten)]
    dispatcher: DispatcherArgs,
}

/// The defaults of a process with these flags.
pub(crate) fn defaults(flags: &[&str]) -> Defaults {
    // Fixed images, because the default changes with every release.
    let images =
        ["--monitor-image=monitor:1", "--coder-image=agent:1"].into_iter().filter(|_| flags.is_empty());
    let arguments = ["test"].into_iter().chain(images).chain(flags.iter().copied());
    Defaults::new(DispatcherCli::try_parse_from(arguments).expect("flags").dispatcher, REFUSAL_RETRY)
}

/// The Deployment of a plan.
pub(crate) fn deployment_of(plan: &Plan) -> Deployment {
    let found = plan.deployment.as_ref().expect("a Deployment");
    serde_json::from_value(serde_json::to_value(found).expect("JSON")).expect("a Deployment")
}

#[test]
fn the_command_line_is_valid() {
    Args::command().debug_assert();
}

#[test]
fn urls_of_options_are_http_and_carry_no_credentials() {
    let memory = |text: &str| {
        let option = format!("--memory-endpoint={text}");
        DispatcherCli::try_parse_from(["test", &option]).map(|cli| cli.dispatcher.memory_endpoint)
    };
    assert_eq!(memory("http://chroma:8000").unwrap().as_deref(), Some("http://chroma:8000"));
    for refused in ["chroma:8000", "ftp://chroma", "http://user:key@chroma", "http://chroma/?key=x", "chroma"]
    {
        assert!(memory(refused).is_err(), "{refused}");
        let option = format!("--prometheus-url={refused}");
        assert!(DispatcherCli::try_parse_from(["test", &option]).is_err(), "{refused}");
    }
}

#[test]
fn a_deployment_of_a_newer_spec_is_overwritten_only_if_the_object_is_the_newest() {
    let doubt = |generation: &str, is_newest: bool| {
        let mut scene = Scene::ready("{role: coder}", 1);
        scene.observe(|observed| {
            observed.deployment.as_mut().expect("a Deployment").generation = Some(generation.into());
            observed.is_newest = is_newest;
        });
        scene.planned(&defaults(&[]), at(0)).err()
    };
    let doubts = |is_newest: bool| ["0", "1", "2", "?"].map(|generation| doubt(generation, is_newest));
    assert_eq!(doubts(false), [None, None, Some(Doubt::Outdated), None]);
    assert_eq!(doubts(true), [None; 4]);
}

#[test]
fn an_older_template_is_restored_only_if_the_object_is_the_newest() {
    let mut scene = Scene::ready("{role: coder}", 1);
    assert_eq!(scene.planned(&defaults(&[]), at(0)).err(), None);
    scene.observe(|observed| {
        let deployment = observed.deployment.as_mut().expect("a Deployment");
        let record = TemplateRecord {
            resolved: deployment.resolved.clone().expect("a record"),
            template: deployment.pinned_template.replace("{}".into()).expect("a template"),
            token_account: None,
        };
        let revision = ReplicaSetView { rendered: Some(Box::new(record)), ..ReplicaSetView::default() };
        let pods = observed.deployed.take().expect("pods");
        observed.older = vec![OlderRevision { revision: revision.into(), pods }];
    });
    assert_eq!(scene.planned(&defaults(&[]), at(0)).err(), Some(Doubt::Outdated));
    scene.observe(|observed| observed.is_newest = true);
    assert_eq!(scene.planned(&defaults(&[]), at(0)).err(), None);
}
