//! A cluster with one evaluation, and what each write must keep.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

use api::aiinference::evaluation::{ModelEvaluationSpec, ModelEvaluationStatus};
use workload::views::claim::ClaimView;

use super::*;

/// More than the writes of any reconcile.
pub(super) const ALL: usize = usize::MAX;
const QUESTIONS: u32 = 14_000;
const UPLOAD: &str = "ab-answers";
const CHECK: &str = "ab-answers-check";

pub(super) struct World {
    evaluation: ModelEvaluation,
    pub(super) now: i64,
    servers: BTreeMap<&'static str, Temporary>,
    jobs: BTreeMap<String, Runner>,
    has_claim: bool,
    /// Runs whose files of scores are on the volume.
    stored: BTreeSet<String>,
    /// How often the questions of a run were asked, at least some of them.
    pub(super) asked: BTreeMap<String, u32>,
    /// How often a run has lost its answers.
    pub(super) lost: BTreeMap<String, u32>,
    pub(super) most_servers: usize,
    /// Jobs of the upload, and those that have failed or were deleted by hand.
    pub(super) uploads: u32,
    pub(super) lost_uploads: u32,
    /// Sides whose children are refused, whose servers must not be deleted, and whose Jobs get no pod.
    pub(super) refused: BTreeSet<Side>,
    pub(super) kept: BTreeSet<Side>,
    pub(super) without_pods: BTreeSet<Side>,
    pub(super) refuses_check: bool,
    /// When the last plan is made again, though nothing happens.
    due: Option<i64>,
    /// Since when the server of a side is ready and no run goes on.
    idle: BTreeMap<Side, i64>,
    /// As the controller has them in memory.
    facts: BTreeMap<String, Timestamp>,
}

#[derive(Clone, Copy, Default, PartialEq)]
struct Temporary {
    is_ready: bool,
    is_being_deleted: bool,
}

#[derive(Default)]
struct Runner {
    created: i64,
    has_no_pod: bool,
    answers: u32,
    has_ended: bool,
    has_failed: bool,
    has_lost_its_pod: bool,
}

enum Write {
    Delete(Deletion),
    Create(Child),
    Status(Box<ModelEvaluationStatus>),
}

impl World {
    pub(super) fn new(fields: &Value) -> Self {
        Self {
            evaluation: evaluation(fields),
            now: 0,
            servers: BTreeMap::new(),
            jobs: BTreeMap::new(),
            has_claim: false,
            stored: BTreeSet::new(),
            asked: BTreeMap::new(),
            lost: BTreeMap::new(),
            most_servers: 0,
            uploads: 0,
            lost_uploads: 0,
            refused: BTreeSet::new(),
            kept: BTreeSet::new(),
            without_pods: BTreeSet::new(),
            refuses_check: false,
            due: None,
            idle: BTreeMap::new(),
            facts: BTreeMap::new(),
        }
    }

    pub(super) fn status(&self) -> ModelEvaluationStatus {
        self.evaluation.status.clone().unwrap_or_default()
    }

    pub(super) fn edit(&mut self, change: impl Fn(&mut ModelEvaluationSpec)) {
        change(&mut self.evaluation.spec);
    }

    pub(super) fn serves(&mut self, side: Side, is_ready: bool) {
        self.servers.entry(side.as_str()).and_modify(|server| server.is_ready = is_ready);
    }

    pub(super) fn gone(&mut self) {
        self.servers.retain(|_, server| !server.is_being_deleted);
    }

    pub(super) fn fail_upload(&mut self) {
        if let Some(job) = self.jobs.get_mut(CHECK).filter(|job| !job.has_ended) {
            (job.has_ended, job.has_failed) = (true, true);
        }
        if let Some(job) = self.jobs.get_mut(UPLOAD).filter(|job| !job.has_ended) {
            (job.has_ended, job.has_failed) = (true, true);
            self.lost_uploads += 1;
        }
    }

    pub(super) fn delete_upload(&mut self) {
        if self.jobs.remove(UPLOAD).is_some() {
            self.lost_uploads += 1;
        }
    }

    pub(super) fn lose_pods(&mut self) {
        for job in self.jobs.values_mut().filter(|job| job.has_ended) {
            job.has_lost_its_pod = true;
        }
    }

    /// The running run of a side, if its server answers.
    fn runs_of(&self, side: Side) -> Option<String> {
        let is_of = |name: &&String| side_of(name) == Some(side);
        self.jobs.iter().filter(|(_, job)| !job.has_ended).map(|(name, _)| name).find(is_of).cloned()
    }

    pub(super) fn evict(&mut self, side: Side) {
        if let Some(name) = self.runs_of(side).filter(|name| !self.jobs[name].has_no_pod) {
            self.loses_answers(&name);
            let (created, has_no_pod) = (self.jobs[&name].created, self.without_pods.contains(&side));
            self.jobs.insert(name, Runner { created, has_no_pod, ..Runner::default() });
        }
    }

    /// The Jobs of a side get their pods, or those that follow get none.
    pub(super) fn gets_pods(&mut self, side: Side, gets: bool) {
        if !gets {
            self.without_pods.insert(side);
            return;
        }
        self.without_pods.remove(&side);
        for (_, job) in self.jobs.iter_mut().filter(|(name, _)| side_of(name) == Some(side)) {
            job.has_no_pod = false;
        }
    }

    fn works(&self, side: Side) -> bool {
        let server = self.servers.get(side.as_str()).copied().unwrap_or_default();
        let mut jobs = self.jobs.iter().filter(|(name, _)| side_of(name) == Some(side));
        server.is_ready && jobs.any(|(_, job)| !job.has_ended && !job.has_no_pod)
    }

    /// Every change wakes the controller, also its own.
    pub(super) fn wakes(&mut self) {
        const MOST: usize = 20;
        let reconciles = (0..MOST).take_while(|_| self.reconcile(ALL)).count();
        assert!(reconciles < MOST, "it writes without end");
        self.is_not_held_in_vain();
    }

    /// Nothing happens, and the controller is woken only when it wanted to be.
    pub(super) fn pass(&mut self, seconds: i64) {
        let end = self.now + seconds;
        while let Some(due) = self.due.filter(|due| *due <= end) {
            self.now = due;
            self.wakes();
            assert_ne!(self.due, Some(self.now), "it wakes itself without end");
        }
        self.now = end;
        self.is_not_held_in_vain();
    }

    /// The times begin again: a user has changed something.
    pub(super) fn changes(&mut self) {
        self.idle.clear();
    }

    /// A run that begins may have the room for which the other one waits, so the time of the other one counts from here.
    pub(super) fn run_may_begin(&mut self, side: Side) {
        let becomes_ready = self.servers.get(side.as_str()).is_some_and(|server| !server.is_ready);
        if becomes_ready && !self.refused.contains(&side) {
            self.idle.retain(|known, _| *known == side);
        }
    }

    fn is_not_held_in_vain(&mut self) {
        let goes_on = Side::ALL.into_iter().any(|side| self.works(side));
        let most = settings().server_fault + settings().refusal_retry;
        for side in Side::ALL {
            let server =
                self.servers.get(side.as_str()).filter(|server| server.is_ready && !server.is_being_deleted);
            if goes_on || server.is_none() || !self.needs(side) || self.kept.contains(&side) {
                self.idle.remove(&side);
                continue;
            }
            let held = self.now - *self.idle.entry(side).or_insert(self.now);
            assert!(held <= most.as_secs() as i64, "the server of {side:?} is held for {held} s");
        }
    }

    pub(super) fn delete_job(&mut self, side: Side) {
        if let Some(name) = self.runs_of(side) {
            self.loses_answers(&name);
            self.jobs.remove(&name);
        }
    }

    fn loses_answers(&mut self, name: &str) {
        if self.jobs.get(name).is_some_and(|job| job.answers > 0 && !job.has_ended) {
            *self.lost.entry(name.to_owned()).or_default() += 1;
        }
    }

    pub(super) fn answer(&mut self, count: u32) {
        let (servers, asked, stored) = (&self.servers, &mut self.asked, &mut self.stored);
        for (name, job) in self.jobs.iter_mut().filter(|(_, job)| !job.has_ended) {
            if job.has_no_pod {
                continue;
            }
            if name == CHECK {
                job.has_ended = true;
                continue;
            }
            let Some(side) = side_of(name) else {
                assert_eq!(stored.len(), 5, "all answers are there before they are paired");
                job.has_ended = true;
                continue;
            };
            // The runner finds the file of scores of an earlier pod.
            if stored.contains(name) {
                job.has_ended = true;
                continue;
            }
            if !servers.get(side.as_str()).is_some_and(|server| server.is_ready) {
                continue;
            }
            if job.answers == 0 {
                *asked.entry(name.clone()).or_default() += 1;
            }
            job.answers += count;
            if job.answers >= QUESTIONS {
                job.has_ended = true;
                stored.insert(name.clone());
            }
        }
    }

    fn observed(&self) -> Observed {
        let mut seen = observed(self.evaluation.clone());
        seen.facts = self.facts.clone();
        let sighting = |side: Side| {
            let Some(known) = self.servers.get(side.as_str()) else { return Sighting::Absent };
            let said = if known.is_ready { ready() } else { condition("Ready", "False", "Loading") };
            let mut view = server(&format!("ab-{}", side.as_str()), &said);
            view.metadata.deletion_timestamp = known
                .is_being_deleted
                .then(|| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(self.now)));
            Sighting::Own(Box::new(view))
        };
        (seen.baseline, seen.candidate) = (sighting(Side::Baseline), sighting(Side::Candidate));
        for (name, job) in &self.jobs {
            let message = message_of(name);
            let end = if job.has_failed { (12, "no route") } else { (0, message.as_str()) };
            add_job(&mut seen, name, job.has_ended.then_some(end));
            if name == UPLOAD || name == CHECK {
                let mut pod = (*seen.pods.pop().unwrap()).clone();
                pod.containers[0].name = "uploader".to_owned();
                seen.pods.push(Arc::new(pod));
            }
            if job.has_lost_its_pod || job.has_no_pod {
                seen.pods.pop();
            }
            let store = upload::destination(&self.evaluation).filter(|_| name == UPLOAD || name == CHECK);
            let view = Arc::make_mut(seen.jobs.get_mut(name).unwrap());
            view.asked_server = store.map(|store| upload::mark(&store));
            view.metadata.creation_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(job.created)));
        }
        let owner = json!({"name": "ab-evaluation", "ownerReferences": [{"apiVersion": "aistudio.modelscope.cn/v1alpha1",
            "kind": "ModelEvaluation", "name": "ab", "uid": "e", "controller": true}]});
        let claim = ClaimView { metadata: serde_json::from_value(owner).unwrap(), ..ClaimView::default() };
        seen.claims.insert("ab-evaluation".to_owned(), self.has_claim.then(|| Arc::new(claim)));
        seen
    }

    fn plan(&self) -> Plan {
        plan(&self.observed(), &settings(), at(self.now))
    }

    /// As `apply` does it, up to so many writes. Whether anything has changed.
    pub(super) fn reconcile(&mut self, writes: usize) -> bool {
        let mut left = writes;
        let plan = self.plan();
        assert!(!plan.is_expired);
        let now = at(self.now);
        let since = |fact: &String| (fact.clone(), self.facts.get(fact).copied().unwrap_or(now));
        self.facts = plan.facts.iter().map(since).collect();
        let (mut changed, mut is_refused, mut stopped) = (false, false, Vec::new());
        for deletion in &plan.deletions {
            if self.must_not_delete(deletion) {
                is_refused = true;
            } else if left > 0 {
                left -= 1;
                changed |= self.write(Write::Delete(deletion.clone()));
            }
        }
        for child in &plan.children {
            if !child.is_tried_after(&stopped) {
                continue;
            }
            if self.must_not_create(child) {
                is_refused = true;
                stopped.push(child.side());
            } else if left > 0 {
                left -= 1;
                changed |= self.write(Write::Create(child.clone()));
            }
        }
        let mut denied = "denied: quota".to_owned();
        if plan.check.is_some() && self.refuses_check {
            if !is_refused {
                denied = format!("denied: Job demo/{CHECK}: quota");
            }
            is_refused = true;
        } else if let Some(check) = plan.check.as_ref().filter(|_| left > 0) {
            left -= 1;
            changed |= self.write(Write::Create(Child::Job(None, check.clone())));
        }
        let denied = Refusal::Denied(denied);
        let plan = match is_refused {
            true => refused::refused(&denied, &plan, &self.observed(), &settings(), now),
            false => plan,
        };
        self.due = plan.requeue_after.map(|after| self.now + after.as_secs() as i64);
        if left > 0 {
            changed |= self.write(Write::Status(Box::new(plan.status)));
        } else {
            // The process has ended before.
            self.facts.clear();
        }
        changed
    }

    fn must_not_delete(&self, deletion: &Deletion) -> bool {
        let Deletion::Server(server) = deletion else { return false };
        self.kept.contains(&side_of_server(server.metadata.name.as_deref().unwrap()))
    }

    fn must_not_create(&self, child: &Child) -> bool {
        let is_refused = child.side().is_some_and(|side| self.refused.contains(&side));
        is_refused && !child.is_there(&self.observed())
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let plan = self.plan();
        plan.children.is_empty()
            && plan.check.is_none()
            && plan.deletions.is_empty()
            && Some(&plan.status) == self.evaluation.status.as_ref()
            && self.servers.is_empty()
            && self.jobs.values().all(|job| job.has_ended)
            && !self.jobs.get(UPLOAD).is_some_and(|job| job.has_failed)
    }

    /// Whether it changes anything.
    fn write(&mut self, write: Write) -> bool {
        let before = (self.status(), self.jobs.len(), self.has_claim, self.servers.clone());
        self.writes(write);
        before != (self.status(), self.jobs.len(), self.has_claim, self.servers.clone())
    }

    fn writes(&mut self, write: Write) {
        match write {
            Write::Status(status) => {
                let before = self.status().runs;
                assert!(
                    before.iter().all(|run| status.runs.contains(run)),
                    "a finished run stays in the status"
                );
                if status.phase == Some(Phase::Failed) && self.status().phase != Some(Phase::Failed) {
                    let goes_on = Side::ALL.into_iter().any(|side| self.works(side));
                    assert!(!goes_on, "a run that goes on is ended: {:?}", status.message);
                }
                self.is_clear_to_kstatus(&status);
                self.evaluation.status = Some(*status);
            }
            Write::Create(Child::Claim(_)) => self.has_claim = true,
            Write::Create(Child::Server(_, server)) => {
                let side = side_of_server(server.metadata.name.as_deref().unwrap());
                assert!(self.has_claim && self.needs(side), "a server without a run that needs it");
                self.servers.entry(side.as_str()).or_default();
                self.most_servers = self.most_servers.max(self.servers.len());
                let spec = serde_json::to_value(&self.evaluation.spec).unwrap();
                let most = if spec["order"] == "Parallel" { 2 } else { 1 };
                assert!(self.servers.len() <= most, "{most} servers at a time");
            }
            Write::Create(Child::Job(_, job)) => {
                let name = job.metadata.name.clone().unwrap();
                if let Some(side) = side_of(&name) {
                    assert!(!self.is_known(&name), "{name} has ended, and is asked again");
                    let server = self.servers.get(side.as_str()).copied().unwrap_or_default();
                    assert!(server.is_ready && !server.is_being_deleted, "{name} has no server");
                    let is_control = name.contains("control");
                    assert!(
                        !is_control || self.stored.contains("ab-baseline-0"),
                        "the control comes after its baseline"
                    );
                }
                let has_no_pod = side_of(&name).is_some_and(|side| self.without_pods.contains(&side));
                let created = self.now;
                if name == UPLOAD && !self.jobs.contains_key(UPLOAD) {
                    assert_eq!(self.status().phase, Some(Phase::Succeeded), "the verdict is in the status");
                    let holds = |(side, server): (&&str, &Temporary)| {
                        !server.is_being_deleted && !self.kept.iter().any(|kept| kept.as_str() == *side)
                    };
                    assert!(!self.servers.iter().any(holds), "no GPU is held for it");
                    self.uploads += 1;
                }
                self.jobs.entry(name).or_insert(Runner { created, has_no_pod, ..Runner::default() });
            }
            Write::Delete(Deletion::Server(server)) => {
                let side = side_of_server(server.metadata.name.as_deref().unwrap());
                assert!(!self.needs(side) || self.is_interrupted(), "a server that is needed");
                self.servers.entry(side.as_str()).and_modify(|server| server.is_being_deleted = true);
            }
            Write::Delete(Deletion::Job(job)) => {
                let name = job.metadata.name.clone().unwrap();
                let has_ended = self.jobs.get(&name).is_some_and(|job| job.has_ended);
                let is_interrupted = self.is_interrupted() && name != UPLOAD;
                assert!(has_ended || is_interrupted || self.is_known(&name), "{name} still runs");
                self.loses_answers(&name);
                self.jobs.remove(&name);
            }
        }
    }

    /// kstatus takes what is neither `Reconciling` nor `Stalled` for complete.
    fn is_clear_to_kstatus(&self, status: &ModelEvaluationStatus) {
        let is_true = |type_: &str| {
            status.conditions.iter().any(|known| known.type_ == type_ && known.status == "True")
        };
        let (reconciles, is_stalled) = (is_true(conditions::RECONCILING), is_true(conditions::STALLED));
        let is_clear = match status.phase {
            Some(Phase::Failed) => is_stalled && !reconciles,
            Some(Phase::Succeeded) => is_true(conditions::COMPLETE) && !reconciles,
            Some(Phase::Pending | Phase::Preparing | Phase::Running | Phase::Comparing) | None => {
                let is_said = reconciles || is_stalled || self.evaluation.spec.suspend;
                is_said && !(reconciles && is_stalled)
            }
        };
        assert!(is_clear, "{status:?}");
    }

    fn is_interrupted(&self) -> bool {
        let has_ended = matches!(self.status().phase, Some(Phase::Succeeded | Phase::Failed));
        self.evaluation.spec.suspend || has_ended
    }

    /// Whether the status has the run of this Job.
    fn is_known(&self, job: &str) -> bool {
        let runs = self.status().runs;
        let set = |run: &api::aiinference::evaluation::Run| u8::from(run.test_set == "two");
        runs.iter().any(|run| format!("ab-{}-{}", run.side, set(run)) == job)
    }

    fn needs(&self, side: Side) -> bool {
        let jobs = ["ab-baseline-0", "ab-baseline-1", "ab-control-0", "ab-candidate-0", "ab-candidate-1"];
        jobs.into_iter().any(|job| side_of(job) == Some(side) && !self.is_known(job))
    }
}

fn side_of_server(name: &str) -> Side {
    if name == "ab-baseline" { Side::Baseline } else { Side::Candidate }
}

/// `None`: the comparison, the upload, or its check.
fn side_of(job: &str) -> Option<Side> {
    match job {
        "ab-pair" | UPLOAD | CHECK => None,
        "ab-candidate-0" | "ab-candidate-1" => Some(Side::Candidate),
        _ => Some(Side::Baseline),
    }
}

fn message_of(job: &str) -> String {
    if job == UPLOAD || job == CHECK {
        return r#"{"bytes":30,"count":2}"#.to_owned();
    }
    if side_of(job).is_some() {
        return ASKED.replace("1000", "14000");
    }
    PAIRS.clone()
}

static PAIRS: LazyLock<String> = LazyLock::new(|| {
    // Of each model, other questions are wrong: every fifth, and every fourth or fifth.
    let pair = |baseline: fn(u32) -> bool, candidate: fn(u32) -> bool, questions: u32| {
        let count = |wanted: (bool, bool)| {
            (0..questions).filter(|question| (baseline(*question), candidate(*question)) == wanted).count()
        };
        json!({"bothRight": count((true, true)), "onlyBaseline": count((true, false)),
               "onlyCandidate": count((false, true)), "bothWrong": count((false, false))})
    };
    let right = |question: u32| !question.is_multiple_of(5);
    let other = |question: u32| !question.is_multiple_of(4);
    json!({"pairs": [pair(right, right, QUESTIONS), pair(right, other, QUESTIONS)], "control": pair(right, right, 200)})
        .to_string()
});
