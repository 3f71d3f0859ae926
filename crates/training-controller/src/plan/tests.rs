//! Stories of a TrainingJob: what is planned happens, time passes, and the status says how it went.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use api::{
    labels,
    launcher::Message,
    trainingjob::{Checkpoint, LossPoint, Phase, Progress, TrainingJob, TrainingJobStatus},
};
use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::Time};
use runtime::write::events::Note;
use serde_json::{Value, json};
use workload::{
    faults::stranded::Nodes,
    views::{
        job::{Failed, JobView},
        node::{LossKind, NodeLoss},
        pod::PodView,
    },
};

use super::{Child, Deletion, Run, run, stage};
use crate::{
    NAME,
    agents::Utilization,
    names,
    objects::pod::{has_stopped, job_of},
    observe::{Claims, Dependency, Observed},
    progress::{Access, LogState},
    relations::wants::{Want, keys_of_path, output_key, wants},
    tests::{at, defaults, job},
    validate::validate,
};

mod attempts;
mod budgets;
mod claims;
mod decisions;
mod dependencies;
mod ends;
mod failures;
mod gangs;
mod loss;
mod notes;
mod rendering;
mod resume;
mod retention;
mod starts;
mod uploads;

/// A lora job on one GPU.
const LORA: &str = "{model: qwen/Qwen-7B, dataset: a/b, method: lora}";
/// The same on two nodes.
const GANG: &str = "{model: qwen/Qwen-7B, dataset: a/b, method: lora, nodes: 2}";

/// One TrainingJob, demo/qwen, and what its controller observes.
struct World {
    observed: Observed,
    claims: Claims,
    /// Other TrainingJobs of the namespace.
    others: Vec<Arc<TrainingJob>>,
    /// Jobs as they were created, in this order.
    created: Vec<Job>,
    /// Names of the objects that were deleted.
    deleted: Vec<String>,
    /// By the uid of a pod, the grace period that its kubelet keeps: the first one.
    graces: BTreeMap<String, i64>,
    events: Vec<Note>,
    seconds: i64,
    requeue_after: Option<Duration>,
    is_expired: bool,
    /// Writes until the process ends and another one takes over.
    writes_left: Option<usize>,
    /// The uid of the pod whose log is followed.
    followed: Option<String>,
}

impl World {
    fn new(spec: &str) -> Self {
        Self::named("qwen", spec)
    }

    fn named(name: &str, spec: &str) -> Self {
        Self {
            observed: observed(job(name, spec)),
            claims: Claims::new(),
            others: Vec::new(),
            created: Vec::new(),
            deleted: Vec::new(),
            graces: BTreeMap::new(),
            events: Vec::new(),
            seconds: 0,
            requeue_after: None,
            is_expired: false,
            writes_left: None,
            followed: None,
        }
    }

    /// Its first attempt trains.
    fn training(spec: &str) -> Self {
        let mut world = Self::new(spec);
        world.settles();
        world.store_takes_objects();
        world.starts();
        world
    }

    /// The check of the upload's store succeeds, if there is one.
    fn store_takes_objects(&mut self) {
        let now = at(self.seconds);
        if let Some(check) = &mut self.observed.upload_check {
            Arc::make_mut(check).completed = Some(now);
            self.settles();
        }
    }

    fn plan(&self) -> Run {
        let valid = defaults().resolved(validate(&self.observed.job).unwrap());
        let observed = Observed { claims: self.claims.clone(), ..self.observed.clone() };
        let (defaults, now) = (defaults(), at(self.seconds));
        let stage = stage::stage(&valid, &observed, &defaults.timings, now);
        run(&valid, &observed, stage, &defaults, now)
    }

    /// Plans and applies until nothing is left to do: another look would write nothing and note nothing.
    fn settles(&mut self) {
        for _ in 0..12 {
            self.depend();
            let plan = self.plan();
            let (events, writes) = (self.events.len(), self.created.len() + self.deleted.len());
            let before = self.observed.job.status.clone();
            self.apply(plan);
            let is_same = before == self.observed.job.status
                && writes == self.created.len() + self.deleted.len()
                && self.requeue_after != Some(Duration::ZERO);
            if self.is_expired || is_same {
                assert_eq!(events, self.events.len(), "no note at rest: {:?}", self.events);
                return;
            }
        }
        panic!("no rest: {:?}", self.status());
    }

    /// The trainer of this rank has ended well, and its Job has not completed.
    fn rank_ends(&mut self, rank: usize) {
        let mut status = ended(0, "Completed", &message_at(Some(100)), self.seconds);
        status["phase"] = "Succeeded".into();
        self.pod(rank, &status);
        self.settles();
    }

    /// In the order of `apply`.
    fn apply(&mut self, plan: Run) {
        let Run { children, deletions, status, events, follow, facts, is_expired, requeue_after } = plan;
        self.observed.facts.retain(|fact, _| facts.contains(fact));
        for fact in facts {
            self.observed.facts.entry(fact).or_insert(at(self.seconds));
        }
        self.requeue_after = Some(Duration::ZERO);
        for child in children {
            if !self.writes() {
                return;
            }
            self.create(child);
        }
        for deletion in deletions {
            if !self.writes() {
                return;
            }
            self.delete(&deletion);
        }
        if is_expired {
            self.is_expired = true;
            return;
        }
        if self.observed.job.status.as_ref() != Some(&status) && !self.writes() {
            return;
        }
        // As the API server stores it.
        let stored = serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap();
        self.job().status = Some(stored);
        self.events.extend(events);
        match follow {
            Some(target)
                if self.observed.log.is_none() || self.followed.as_ref() != Some(&target.pod_uid) =>
            {
                self.followed = Some(target.pod_uid);
                self.observed.log = Some(LogState::default());
            }
            Some(_) => {}
            None => self.observed.log = None,
        }
        self.requeue_after = requeue_after;
    }

    /// Whether the process is still there to write. Its successor knows what the API server has, and nothing else.
    fn writes(&mut self) -> bool {
        match &mut self.writes_left {
            Some(0) => {
                self.writes_left = None;
                self.observed.facts.clear();
                self.observed.log = None;
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }

    fn create(&mut self, child: Child) {
        match child {
            Child::Job(job) => {
                let mut view: JobView = serde_json::from_value(serde_json::to_value(&job).unwrap()).unwrap();
                view.metadata.uid = Some(format!("uid-of-{}-at-{}", view.name(), self.seconds));
                view.metadata.creation_timestamp = Some(Time(at(self.seconds)));
                match names::attempt_of(view.name(), self.observed.job.metadata.name.as_deref().unwrap()) {
                    Some(number) => {
                        let before = self.observed.attempts.insert(number, Arc::new(view));
                        assert!(before.is_none(), "attempt {number} is there");
                    }
                    None if view.name() == "qwen-upload-check" => {
                        self.observed.upload_check = Some(Arc::new(view));
                    }
                    None => self.observed.upload = Some(Arc::new(view)),
                }
                self.created.push(*job);
            }
            Child::Claim(claim) => {
                let name = claim.metadata.name.clone().unwrap();
                let view = serde_json::from_value(serde_json::to_value(claim).unwrap()).unwrap();
                self.claims.entry(name).or_default().get_or_insert(Arc::new(view));
            }
            Child::Service(_) => {}
        }
    }

    /// The garbage collector deletes the pods of a Job: those that run stay until they have ended.
    fn delete(&mut self, deletion: &Deletion) {
        match deletion {
            Deletion::Job(job) => {
                let name = job.metadata.name.clone().unwrap();
                self.observed.attempts.retain(|_, known| known.name() != name);
                for known in [&mut self.observed.upload, &mut self.observed.upload_check] {
                    *known = known.take().filter(|known| known.name() != name);
                }
                self.observed.pods.retain(|pod| job_of(pod) != Some(&name) || !has_stopped(pod));
                self.terminate(&name);
                self.deleted.push(name);
            }
            Deletion::Pod { pod, grace } => {
                let name = pod.metadata.name.clone().unwrap();
                if grace.is_zero() {
                    self.observed.pods.retain(|known| known.name() != name);
                    self.deleted.push(name);
                } else {
                    self.ends_within(grace.as_secs(), |pod| pod.name() == name);
                }
            }
        }
    }

    fn terminate(&mut self, job: &str) {
        let grace = self.observed.job.spec.grace_seconds.unsigned_abs().into();
        self.ends_within(grace, |pod| job_of(pod) == Some(job));
    }

    fn ends_within(&mut self, seconds: u64, which: impl Fn(&PodView) -> bool) {
        let now = at(self.seconds);
        for pod in self.observed.pods.iter_mut().filter(|pod| which(pod)) {
            let wanted = i64::try_from(seconds).unwrap();
            self.graces.entry(pod.uid().to_owned()).or_insert(wanted);
            let metadata = &mut Arc::make_mut(pod).metadata;
            metadata.deletion_timestamp = Some(Time(now));
            let grace = metadata.deletion_grace_period_seconds.get_or_insert(wanted);
            *grace = wanted.min(*grace);
        }
    }

    /// As `observe` finds them in its indexes. Those that have succeeded have left their claims.
    fn depend(&mut self) {
        for other in &self.others {
            let has_succeeded =
                other.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Succeeded));
            let name = names::claim(other.metadata.name.as_deref().unwrap());
            if has_succeeded {
                let spec = json!({"accessModes": ["ReadWriteMany"]});
                let claim = json!({"metadata": {"name": name, "namespace": "demo"}, "spec": spec});
                let claim = || Some(Arc::new(serde_json::from_value(claim).unwrap()));
                self.claims.entry(name).or_insert_with(claim);
            }
        }
        let own = Arc::clone(&self.observed.job);
        let all: Vec<&Arc<TrainingJob>> = self.others.iter().chain([&own]).collect();
        let candidates = |want: &Want| -> Vec<Arc<TrainingJob>> {
            let those = |is: &dyn Fn(&TrainingJob) -> bool| {
                all.iter().filter(|other| is(other)).map(|other| Arc::clone(other)).collect::<Vec<_>>()
            };
            match want {
                Want::Job(name) => those(&|other| other.metadata.name.as_ref() == Some(name)),
                Want::Path { path, field: _ } => keys_of_path("demo", path)
                    .into_iter()
                    .map(|key| those(&|other| output_key(other).as_ref() == Some(&key)))
                    .find(|found| !found.is_empty())
                    .unwrap_or_default(),
            }
        };
        self.observed.dependencies = match self.phase() {
            Phase::Succeeded | Phase::Failed => Vec::new(),
            Phase::Pending | Phase::Running => wants(&own)
                .into_iter()
                .map(|want| Dependency { candidates: candidates(&want), want })
                .collect(),
        };
    }

    fn job(&mut self) -> &mut TrainingJob {
        Arc::make_mut(&mut self.observed.job)
    }

    /// Another value of a field that may be changed.
    fn edits(&mut self, edit: impl FnOnce(&mut TrainingJob)) {
        edit(self.job());
        let generation = &mut self.job().metadata.generation;
        *generation = generation.map(|known| known + 1);
        self.settles();
    }

    fn passes(&mut self, seconds: i64) {
        self.seconds += seconds;
        self.settles();
    }

    /// Time passes until the controller looks by itself.
    fn wakes(&mut self) -> i64 {
        let wait = self.requeue_after.expect("a time to look again");
        let seconds = i64::try_from(wait.as_secs()).unwrap();
        self.passes(seconds);
        seconds
    }

    /// The number of the last attempt that was created.
    fn attempt(&self) -> i32 {
        self.created
            .last()
            .map_or(0, |job| job.metadata.labels.as_ref().unwrap()[labels::ATTEMPT].parse().unwrap())
    }

    fn view(&mut self) -> &mut JobView {
        let number = self.attempt();
        Arc::make_mut(self.observed.attempts.get_mut(&number).expect("the Job of the attempt"))
    }

    /// The pod of this rank of the current attempt has this status, and a node.
    fn pod(&mut self, rank: usize, status: &Value) -> &mut PodView {
        let name = self.observed.job.metadata.name.clone().unwrap();
        let job = names::attempt(&name, self.attempt());
        let uid = self.observed.attempts.get(&self.attempt()).and_then(|job| job.metadata.uid.clone());
        let pod = pod(&job, &uid.unwrap_or_default(), rank, status);
        let before = self
            .observed
            .pods
            .iter()
            .find(|known| known.name() == pod.name())
            .map(|pod| pod.metadata.clone());
        let now = Some(Time(at(self.seconds)));
        let (created, deleted) =
            before.map_or((now, None), |before| (before.creation_timestamp, before.deletion_timestamp));
        self.observed.pods.retain(|known| known.name() != pod.name());
        self.observed.pods.push(Arc::new(pod));
        let last = Arc::make_mut(self.observed.pods.last_mut().unwrap());
        last.metadata.creation_timestamp = created;
        last.metadata.deletion_timestamp = deleted;
        last
    }

    fn nodes(&self) -> usize {
        usize::try_from(self.observed.job.spec.nodes).unwrap()
    }

    /// All trainers run.
    fn starts(&mut self) {
        for rank in 0..self.nodes() {
            self.pod(rank, &running());
        }
        self.settles();
    }

    /// The trainer of this rank has ended with a failure, and nothing else was seen of it yet.
    fn trainer_fails(&mut self, rank: usize, code: i32, message: &Message) {
        let status = ended(code, "Error", message, self.seconds);
        self.pod(rank, &status);
        self.settles();
    }

    /// The Job of the attempt has failed. Kubernetes ends its other pods.
    fn job_fails(&mut self) {
        let since = at(self.seconds);
        self.view().failed =
            Some(Failed { since, reason: "BackoffLimitExceeded".into(), message: "Job has failed".into() });
        self.settles();
    }

    /// A pod has failed, then its Job, and no pod runs any more.
    fn fails(&mut self, code: i32, message: &Message) {
        let others: Vec<usize> = (1..self.nodes()).collect();
        let status = ended(code, "Error", message, self.seconds);
        self.pod(0, &status);
        for rank in others {
            let status = ended(80, "Error", &Message::default(), self.seconds);
            self.pod(rank, &status);
        }
        self.job_fails();
    }

    /// The scheduler takes the node away, and the launcher has saved a checkpoint of this step.
    fn is_preempted(&mut self, step: Option<i64>) {
        let mut message = message_at(step);
        if let Some(saved) = &mut message.checkpoint {
            saved.path = format!("{}/checkpoint-{}", self.observed.job.spec.output_dir, saved.step);
        }
        let mut status = ended(80, "Error", &message, self.seconds);
        status["conditions"] = json!([disruption()]);
        self.pod(0, &status);
        self.job_fails();
    }

    /// All trainers have ended well.
    fn succeeds(&mut self, message: &Message) {
        for rank in 0..self.nodes() {
            let mut status = ended(0, "Completed", message, self.seconds);
            status["phase"] = "Succeeded".into();
            self.pod(rank, &status);
        }
        let now = at(self.seconds);
        self.view().completed = Some(now);
        if let Some(log) = &mut self.observed.log {
            log.is_complete = true;
        }
        self.settles();
    }

    /// The Job has completed, and the watch of pods is late.
    fn succeeds_unseen(&mut self) {
        let now = at(self.seconds);
        self.view().completed = Some(now);
        self.settles();
    }

    /// All pods are gone.
    fn pods_go(&mut self) {
        self.observed.pods.clear();
        self.settles();
    }

    /// The log says so.
    fn log(&mut self) -> &mut LogState {
        let now = at(self.seconds);
        let log = self.observed.log.as_mut().expect("a log is followed");
        log.access = Access::Readable;
        log.last_sign = Some(now);
        log
    }

    fn steps(&mut self, step: i64, total: i64) {
        let percent = i32::try_from(step * 100 / total).unwrap();
        let report =
            Progress { step, total_steps: total, percent, loss: Some("0.5".into()), ..Progress::default() };
        let log = self.log();
        log.has_stepped = true;
        log.report = Some(report);
        log.curve = vec![LossPoint { step, loss: "0.5".into() }];
        self.settles();
    }

    fn saves(&mut self, step: i64) {
        let path = format!("/output/checkpoint-{step}");
        let time = Some(Time(at(self.seconds)));
        self.log().checkpoint = Some(Checkpoint { path, step, time });
        self.settles();
    }

    /// This node of four is lost.
    fn loses(&mut self, node: &str, kind: LossKind) {
        let since = at(self.seconds);
        let lost = NodeLoss { kind, since, reported: since };
        self.observed.nodes =
            Nodes { lost: [(node.to_owned(), lost)].into(), down: 1, all: 4, is_stale: false };
        self.settles();
    }

    fn status(&self) -> &TrainingJobStatus {
        self.observed.job.status.as_ref().expect("a status")
    }

    fn phase(&self) -> Phase {
        self.observed.job.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending)
    }

    /// Phase and reason.
    fn outcome(&self) -> (Phase, &str) {
        (self.phase(), self.status().reason.as_deref().unwrap_or_default())
    }

    /// Status and reason of a condition.
    fn condition(&self, type_: &str) -> (&str, &str) {
        let found = self.status().conditions.iter().find(|known| known.type_ == type_);
        found.map_or(("absent", ""), |known| (&known.status, &known.reason))
    }

    fn message(&self) -> &str {
        self.status().message.as_deref().unwrap_or_default()
    }

    /// Failures by reason.
    fn failures(&self) -> Vec<(&str, i32)> {
        self.status().failures.iter().map(|known| (known.reason.as_str(), known.count)).collect()
    }

    /// Names of the Jobs that were created.
    fn jobs(&self) -> Vec<&str> {
        self.created.iter().map(|job| job.metadata.name.as_deref().unwrap()).collect()
    }

    /// Reasons of the events, in their order.
    fn notes(&self) -> Vec<&str> {
        self.events.iter().map(|note| note.reason).collect()
    }
}

/// A TrainingJob without children.
pub(super) fn observed(job: TrainingJob) -> Observed {
    Observed {
        job: Arc::new(job),
        attempts: BTreeMap::new(),
        upload: None,
        upload_check: None,
        pods: Vec::new(),
        claims: Claims::new(),
        dependencies: Vec::new(),
        resume: None,
        uploaders: BTreeMap::new(),
        cycle: Vec::new(),
        dependents: 0,
        nodes: Nodes::default(),
        capacities: None,
        unattached: BTreeMap::new(),
        refused_pods: None,
        gpus: Utilization::NotWatched,
        gpu_faults: BTreeMap::new(),
        log: None,
        facts: BTreeMap::new(),
        made_claim: None,
        snapshot: None,
        confirmed: BTreeSet::new(),
        has_unseen: false,
    }
}

/// A pod of the Job with this status. It runs on the node of its rank, unless the status has a null `node`.
fn pod(job: &str, job_uid: &str, rank: usize, status: &Value) -> PodView {
    // As Kubernetes makes names: at most 58 characters of its own, and a random suffix.
    let mut name = format!("{job}-{rank}-");
    let suffix = if name.len() > 58 { format!("abcd{rank}") } else { "abcde".to_owned() };
    name.truncate(58);
    name.push_str(&suffix);
    let owner =
        json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job_uid, "controller": true});
    let labels = json!({
        labels::MANAGED_BY: NAME, labels::NAME: names::KIND, labels::INSTANCE: "qwen",
        labels::JOB_COMPLETION_INDEX: rank.to_string(),
    });
    let node = if status.get("node").is_some() { Value::Null } else { format!("node-{rank}").into() };
    let pod = json!({
        "metadata": {
            "name": name, "namespace": "demo", "uid": format!("uid-of-{name}"), "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": node},
        "status": status,
    });
    serde_json::from_value(pod).unwrap()
}

/// The status of a pod whose trainer runs.
fn running() -> Value {
    json!({
        "phase": "Running",
        "containerStatuses": [{"name": "trainer", "ready": true, "state": {"running": {}}}],
    })
}

/// The status of a pod whose trainer has failed.
fn ended(code: i32, reason: &str, message: &Message, seconds: i64) -> Value {
    let text = serde_json::to_string(message).unwrap();
    let end = json!({"exitCode": code, "reason": reason, "message": text, "finishedAt": at(seconds)});
    json!({"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": end}}]})
}

/// The condition of a pod that the scheduler, an eviction or a shutdown ends.
fn disruption() -> Value {
    let (reason, since): (&str, Timestamp) = ("PreemptionByScheduler", at(0));
    json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": since})
}

/// The launcher's message of a run that left a checkpoint of this step.
fn message_at(step: Option<i64>) -> Message {
    let checkpoint =
        step.map(|step| api::launcher::Checkpoint { path: format!("/output/checkpoint-{step}"), step });
    Message { step, checkpoint, ..Message::default() }
}

/// The launcher's message of a run that failed for this reason.
fn because(cause: &str) -> Message {
    Message { exit_code: Some(1), cause: Some(cause.to_owned()), ..Message::default() }
}

/// The arguments of a Job's trainer.
fn arguments(job: &Job) -> Vec<String> {
    job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].args.clone().unwrap()
}

/// The value of a flag that counts: the last one.
fn flag(job: &Job, name: &str) -> Option<String> {
    let arguments = arguments(job);
    let at = arguments.iter().rposition(|argument| argument == name)?;
    arguments.get(at + 1).cloned()
}
