//! Test fixtures: API objects built from the few fields that a test sets.

use std::{sync::Arc, time::Duration};

use api::{
    aiinference::{AIInference, AIInferenceSpec},
    labels,
};
use clap::CommandFactory;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use runtime::reconcile::Decision;
use serde_json::json;
use workload::{
    faults::{
        event::{EventView, SetupFailure},
        pace::Allowance,
        stranded::Nodes,
    },
    products::Products,
    templates::deployment::{OlderRevision, ReplicaSetView, TemplateRecord},
    views::pod::PodView,
};

use crate::{
    Args, InferenceArgs, NAME, names,
    observe::Observed,
    plan::{Doubt, Plan, children::Child, defaults::Defaults, of_valid, plan, traffic::promotion::stable},
};

/// An AIInference called demo/chat.
pub(crate) fn inference(spec: &str) -> AIInference {
    AIInference {
        metadata: ObjectMeta {
            name: Some("chat".into()),
            namespace: Some("demo".into()),
            uid: Some("uid-of-chat".into()),
            generation: Some(1),
            ..ObjectMeta::default()
        },
        spec: serde_saphyr::from_str(spec).expect("a spec"),
        status: None,
    }
}

/// A pod of demo/chat from its phase, node, conditions and containers.
pub(crate) fn pod(parts: &str) -> PodView {
    let parts: serde_json::Value = serde_saphyr::from_str(parts).expect("parts of a pod");
    let mut conditions = parts["conditions"].as_array().cloned().unwrap_or_default();
    if parts["ready"] == json!(true) {
        conditions.push(json!({"type": "Ready", "status": "True"}));
    }
    let named = |list: &serde_json::Value| list.as_array().cloned().unwrap_or_default();
    let mut annotations = serde_json::Map::new();
    if !parts["cost"].is_null() {
        annotations.insert(labels::POD_DELETION_COST.to_owned(), parts["cost"].clone());
    }
    if parts["keeps"] == json!(true) {
        annotations.extend(labels::STAYS_ON_ITS_NODE.map(|(key, value)| (key.to_owned(), json!(value))));
    }
    serde_json::from_value(json!({
        "metadata": {
            "name": parts["name"].as_str().unwrap_or("chat-0"),
            "namespace": "demo",
            "labels": {
                labels::MANAGED_BY: NAME,
                labels::NAME: names::KIND,
                labels::INSTANCE: "chat",
            },
            "uid": parts["name"].as_str().unwrap_or("chat-0"),
            "annotations": annotations,
            "creationTimestamp": parts["created"],
            "ownerReferences": parts["owner"].as_str().map(|name| json!([{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": true,
            }])),
        },
        "spec": {
            "nodeName": parts["node"],
            "schedulingGates": named(&parts["gates"]).iter().map(|gate| json!({"name": gate})).collect::<Vec<_>>(),
            "containers": [{"resources": {"requests": {"nvidia.com/gpu": parts["gpus"].as_i64().unwrap_or(0).to_string()}}}],
        },
        "status": {
            "phase": parts["phase"].as_str().unwrap_or_default(),
            "conditions": conditions,
            "initContainerStatuses": named(&parts["init"]),
            "containerStatuses": named(&parts["containers"]),
        },
    }))
    .expect("a pod")
}

fn ready_pods(count: usize) -> Vec<Arc<PodView>> {
    let ready = Arc::new(pod("{ready: true, node: gpu-0, phase: Running, gpus: 1}"));
    vec![ready; count]
}

/// The time of the tests plus `seconds`.
pub(crate) fn at(seconds: i64) -> Timestamp {
    let noon: Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
    noon + SignedDuration::from_secs(seconds)
}

/// One AIInference and its observation.
pub(crate) struct Scene {
    observed: Observed,
}

impl Scene {
    /// Only the object, without children.
    pub(crate) fn new(spec: &str) -> Self {
        Self {
            observed: Observed {
                inference: Arc::new(inference(spec)),
                deployment: None,
                deployed: None,
                deployed_revision: None,
                older: Vec::new(),
                failed: Vec::new(),
                budget: None,
                headless: None,
                digests: None,
                config_map: None,
                service: None,
                candidate: None,
                route: None,
                grpc_route: None,
                referred: None,
                evaluation: None,
                has_no_evaluations: false,
                has_no_routes: false,
                has_no_grpc_routes: false,
                has_no_pools: false,
                pool: None,
                has_endpoint: None,
                apart: Default::default(),
                looking: Default::default(),
                nodes: Nodes::default(),
                leaving_nodes: Default::default(),
                gpu_faults: Default::default(),
                capacities: None,
                claim: None,
                watch_fails: false,
                unattached: Default::default(),
                crashes: Default::default(),
                unrecorded: Vec::new(),
                facts: Default::default(),
                is_newest: false,
                allowance: None,
            },
        }
    }

    /// All replicas are ready and of the current revision, and the status is written.
    pub(crate) fn ready(replicas: usize) -> Self {
        let mut scene = Self::new(&format!(
            "{{modelSource: s3://models/qwen, engine: vllm, gpu: {{count: 1}}, replicas: {replicas}}}"
        ));
        scene.settle(replicas);
        scene
    }

    /// Applies the plan: the Deployment exists and all its pods are ready.
    pub(crate) fn settle(&mut self, replicas: usize) {
        if self.plan().children.is_empty() {
            // The first plan is an announcement.
            self.write_status();
        }
        let stored = serde_json::to_value(deployment_of(&self.plan())).expect("JSON");
        self.observed.deployment = Some(serde_json::from_value(stored).expect("a Deployment"));
        self.observed.deployed = Some(ready_pods(replicas));
        self.observed.older = Vec::new();
        self.write_status();
    }

    /// Writes the planned status.
    pub(crate) fn write_status(&mut self) {
        let status = self.plan().status;
        Arc::make_mut(&mut self.observed.inference).status = Some(status);
    }

    /// Changes the spec and its generation.
    pub(crate) fn edit_spec(&mut self, edit: impl FnOnce(&mut AIInferenceSpec)) {
        let inference = Arc::make_mut(&mut self.observed.inference);
        let before = inference.spec.clone();
        edit(&mut inference.spec);
        if inference.spec != before {
            inference.metadata.generation = inference.metadata.generation.map(|generation| generation + 1);
        }
    }

    /// Adds `count` ready pods of an older revision.
    pub(crate) fn older_pods(&mut self, count: usize) {
        self.observed.older = vec![OlderRevision { revision: Arc::default(), pods: ready_pods(count) }];
    }

    /// Applies the plan as a new revision without pods; the previous revision keeps its pods and its record.
    pub(crate) fn roll(&mut self) {
        let before = self.observed.deployment.clone().expect("a Deployment");
        let pods = self.observed.deployed.take().expect("a revision");
        self.settle(0);
        let token_account = before.token_account;
        let rendered = before
            .resolved
            .zip(before.pinned_template)
            .map(|(resolved, template)| Box::new(TemplateRecord { resolved, template, token_account }));
        let revision = Arc::new(ReplicaSetView { rendered, ..ReplicaSetView::default() });
        self.observed.older = vec![OlderRevision { revision, pods }];
    }

    /// Sets the pods of the current revision.
    pub(crate) fn pods(&mut self, parts: &[&str]) {
        self.observed.deployed = Some(parts.iter().map(|parts| Arc::new(pod(parts))).collect());
    }

    /// Adds an event about a volume of the first pod of the current revision that cannot be attached.
    pub(crate) fn unattached(&mut self, message: &str) {
        self.volume_failure(message, |pod, event| SetupFailure::of(pod, event, &[], &Default::default()));
    }

    /// The same about a volume that cannot be mounted.
    pub(crate) fn unmounted(&mut self, message: &str) {
        self.volume_failure(message, |pod, event| SetupFailure::of(pod, &[], event, &Default::default()));
    }

    fn volume_failure(
        &mut self,
        message: &str,
        failure: impl Fn(&PodView, &[Arc<EventView>]) -> Option<SetupFailure>,
    ) {
        let pod = &self.observed.deployed.as_ref().expect("a revision")[0];
        let event = json!({"metadata": {"namespace": "demo"}, "involvedObject": {"uid": pod.uid()}, "message": message});
        let event = Arc::new(serde_json::from_value(event).expect("an event"));
        let failure = failure(pod, &[event]);
        self.observed.unattached =
            failure.map(|failure| (pod.uid().to_owned(), failure)).into_iter().collect();
    }

    /// The candidate of the spec exists, with these pods.
    pub(crate) fn candidate(&mut self, parts: &[&str]) {
        let version = crate::versions::candidate(&self.observed.inference).expect("a canary");
        let mut scene = Self::new("{modelSource: s3://m, engine: vllm, gpu: {count: 1}}");
        scene.observed.inference = Arc::new(version);
        self.observed.candidate = Some(Box::new(scene.observed));
        let children = self.plan().candidate;
        let found = children.iter().find_map(|child| match child {
            Child::Deployment(deployment) => Some(serde_json::to_value(deployment).expect("JSON")),
            Child::ConfigMap(_) | Child::Service(_) | Child::PodDisruptionBudget(_) => None,
        });
        let version = self.observed.candidate.as_mut().expect("a candidate");
        version.deployment = found.map(|stored| serde_json::from_value(stored).expect("a Deployment"));
        version.service = Some(ObjectMeta::default());
        version.deployed = Some(parts.iter().map(|parts| Arc::new(pod(parts))).collect());
    }

    /// The node is about to go.
    pub(crate) fn empties(&mut self, node: &str) {
        self.observed.leaving_nodes.insert(node.to_owned());
    }

    pub(crate) fn observed(&self) -> Observed {
        self.observed.clone()
    }

    pub(crate) fn observe(&mut self, edit: impl FnOnce(&mut Observed)) {
        edit(&mut self.observed);
    }

    pub(crate) fn plan(&self) -> Plan {
        self.plan_with(&defaults(&[]), at(0))
    }

    pub(crate) fn plan_at(&self, seconds: i64) -> Plan {
        self.plan_with(&defaults(&[]), at(seconds))
    }

    pub(crate) fn plan_with(&self, defaults: &Defaults, now: Timestamp) -> Plan {
        let valid = stable(&self.observed).expect("a valid spec");
        let valid = defaults.resolved(valid);
        of_valid(&valid, &self.observed, &Allowance::default(), defaults, now)
    }
}

pub(crate) const REFUSAL_RETRY: Duration = Duration::from_secs(60);

/// The defaults of a process with these flags.
pub(crate) fn defaults(flags: &[&str]) -> Defaults {
    Defaults::new(parsed(flags).expect("flags"), true, REFUSAL_RETRY)
}

/// The defaults of a process with this file of GPU products.
pub(crate) fn defaults_with_products(file: &str) -> Defaults {
    let gpu_products = Some(Products::with_file(file).expect("products"));
    Defaults::new(InferenceArgs { gpu_products, ..parsed(&[]).expect("flags") }, true, REFUSAL_RETRY)
}

pub(crate) fn parsed(flags: &[&str]) -> Result<InferenceArgs, clap::Error> {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        inference: InferenceArgs,
    }
    // A fixed image, because the default changes with every release.
    let loader = ["--loader-image=loader:1"].into_iter().filter(|_| flags.is_empty());
    let arguments = ["test"].into_iter().chain(loader).chain(flags.iter().copied());
    Ok(<Cli as clap::Parser>::try_parse_from(arguments)?.inference)
}

#[test]
fn a_file_of_products_that_cannot_be_used_ends_the_process_at_its_start() {
    let complaint = |file: &str| parsed(&[&format!("--gpu-products={file}")]).unwrap_err().to_string();
    let missing = complaint("/nonexistent/products");
    assert!(missing.contains("--gpu-products") && missing.contains("the file cannot be read"), "{missing}");
    let wrong = complaint(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    assert!(wrong.contains("line 1: \"[package]\" has no colon; write for example"), "{wrong}");
}

/// The Deployment among the children of a plan.
pub(crate) fn deployment_of(plan: &Plan) -> Deployment {
    let found = plan.children.iter().find_map(|child| match child {
        Child::Deployment(deployment) => Some(serde_json::to_value(deployment)),
        Child::ConfigMap(_) | Child::Service(_) | Child::PodDisruptionBudget(_) => None,
    });
    serde_json::from_value(found.expect("a Deployment").expect("JSON")).expect("a Deployment")
}

#[test]
fn the_command_line_is_valid() {
    Args::command().debug_assert();
}

#[test]
fn a_deployment_of_a_newer_spec_is_not_overwritten() {
    let doubts = |observed: &Observed| match plan(observed, &defaults(&[]), at(0)) {
        Decision::Doubt(doubt) => Some(doubt),
        Decision::Plan(_) => None,
    };
    let of_generation = |generation: &str| {
        let mut scene = Scene::ready(1);
        scene.observe(|observed| {
            observed.deployment.as_mut().expect("a Deployment").generation = Some(generation.into());
        });
        scene.observed()
    };
    let object = Some(Doubt::Object);
    assert_eq!(["0", "1", "2", "?"].map(|known| doubts(&of_generation(known))), [None, None, object, None]);
    let confirmed = Observed { is_newest: true, ..of_generation("2") };
    assert_eq!(doubts(&confirmed), None, "the annotation was edited by hand");
    assert_eq!(doubts(&Scene::new("{modelSource: s3://m, engine: vllm, gpu: {count: 1}}").observed()), None);
}
