//! The begin of an attempt, or why it may not begin yet.

use std::time::Duration;

use api::{
    reasons,
    trainingjob::{Resolved, TrainingJobStatus},
};
use runtime::write::conditions::whole_seconds;

use super::{
    Child, Deletion, Run, Scene,
    attempt::{
        avoid,
        stage::{Attempt, Stage},
    },
    children::{
        attempt_job::{self, Inputs},
        claim, service,
    },
    dependencies::{self, Dependencies},
    noted, resume,
    status::{self, conditions},
};
use crate::{
    swift::{self, StartModel, Version},
    validate::Invalid,
};

/// Ended attempts whose Jobs stay, because their pods have the logs.
const KEPT_JOBS: i32 = 5;
/// Time between two looks at claims that keep an attempt from starting.
const CLAIM_RETRY: Duration = Duration::from_secs(10);

impl Scene<'_> {
    pub(super) fn due(&self, number: i32) -> Run {
        let stage = Stage::Due { attempt: number };
        let records = match &self.dependencies {
            Dependencies::None => Vec::new(),
            Dependencies::Ready(records) => records.clone(),
            Dependencies::NotReady { reason, message, records } if *reason == reasons::DEPENDENCY_FAILED => {
                let mut written = status::base(self.observed);
                written.dependencies = records.clone();
                written.completion_time = Some(whole_seconds(self.now));
                let why = (reasons::DEPENDENCY_FAILED, message.clone());
                let assessment = conditions::of_failure(self.valid, self.observed, &self.dependencies, why);
                return noted(self.observed, written, assessment, self.now);
            }
            // The pods of another job wake up no reconcile of this one.
            Dependencies::NotReady { .. } if self.valid.resume_from.is_some() => {
                return Run { requeue_after: Some(CLAIM_RETRY), ..self.waiting(&stage) };
            }
            Dependencies::NotReady { .. } | Dependencies::Ambiguous(_) => return self.waiting(&stage),
        };
        let fit = dependencies::fit(self.valid, &records);
        let source = match fit.and_then(|()| resume::source(self.valid, self.observed)) {
            Ok(source) => source,
            Err(invalid) => {
                let assessment = conditions::of_invalid(&invalid, self.observed);
                return noted(self.observed, status::base(self.observed), assessment, self.now);
            }
        };
        let mut written = status::base(self.observed);
        let has_records = written.dependencies == records && written.resume_from == source;
        written.dependencies = records.clone();
        written.resume_from = source;
        if !has_records {
            // Before the attempt: from now on the other jobs may be deleted.
            let obstacle = conditions::obstacle(self.valid, self.observed);
            let assessment =
                conditions::of_waiting(self.valid, self.observed, &self.dependencies, &stage, obstacle);
            let plan = noted(self.observed, written, assessment, self.now);
            return Run { requeue_after: Some(Duration::ZERO), ..plan };
        }
        if conditions::obstacle(self.valid, self.observed).is_some() {
            return Run { requeue_after: Some(CLAIM_RETRY), ..self.waiting(&stage) };
        }
        match self.unchecked_upload(number, &written) {
            Some(upload) => self.checking(upload, written),
            None => self.begin(number, written),
        }
    }

    fn begin(&self, number: i32, written: TrainingJobStatus) -> Run {
        if let Some(invalid) = &self.valid.refused {
            let assessment = conditions::of_invalid(invalid, self.observed);
            return noted(self.observed, written, assessment, self.now);
        }
        let resolved = self.resolved(&written);
        let version = self.version(&resolved);
        if let Some(why) = swift::unsupported(version, self.valid.method, resolved.adapters.is_some()) {
            let invalid = Invalid(format!("spec.method: {why}"));
            let assessment = conditions::of_invalid(&invalid, self.observed);
            return noted(self.observed, written, assessment, self.now);
        }
        let records = &written.dependencies;
        let results = dependencies::results(records);
        let reward_model = self.valid.reward_model.as_ref();
        let avoided = avoid::avoided(&written, self.now);
        let inputs = Inputs {
            model: dependencies::start(self.valid, records),
            reward_model: reward_model.map(|text| dependencies::source(text, records).model),
            image: &resolved.image,
            version,
            results: &results,
            resume_from: resume::mounted(self.observed),
            hub_cache: resolved.hub_cache.as_deref(),
            mitigations: written.mitigations.len(),
            avoided: &avoided,
            are_last_choice: avoid::are_last_choice(&written),
        };
        let job = attempt_job::attempt_job(self.valid, number, &inputs, self.defaults);
        let written = status::begun(written, number, resolved);
        let written = TrainingJobStatus { avoided_nodes: avoided, ..written };
        let attempt = Attempt { number, job: None, pods: Vec::new(), is_ending: false, requeue_after: None };
        let assessment =
            conditions::of_active(self.valid, self.observed, &self.dependencies, &attempt, self.now);
        let mut plan = noted(self.observed, written, assessment, self.now);
        let claim = claim::claim(self.valid).map(|claim| Child::Claim(Box::new(claim)));
        let service = service::service(self.valid).map(|service| Child::Service(Box::new(service)));
        plan.children.extend(claim.into_iter().chain(service).chain([Child::Job(Box::new(job))]));
        plan.deletions = self.old_jobs(number);
        plan
    }

    /// Jobs of attempts that ended long ago, with their pods. Interruptions are not counted, so there may be any number.
    fn old_jobs(&self, next: i32) -> Vec<Deletion> {
        let is_old = |number: i32| number < next.saturating_sub(KEPT_JOBS);
        let old = self.observed.attempts.iter().filter(|(number, _)| is_old(**number));
        let old = old.filter(|(_, job)| job.is_finished() && !job.is_being_deleted());
        old.map(|(_, job)| Deletion::job(job)).collect()
    }

    /// An upgrade of the controller changes neither the image nor the flags of a job that has begun.
    pub(super) fn resolved(&self, written: &TrainingJobStatus) -> Resolved {
        if let Some(resolved) = written.resolved.as_ref().filter(|resolved| !resolved.image.is_empty()) {
            return resolved.clone();
        }
        let default = || self.defaults.trainer_image(self.valid.device).to_owned();
        let image = self.valid.image.clone().unwrap_or_else(default);
        let version = self.valid.version.unwrap_or_else(|| Version::of_image(&image));
        let StartModel { model, adapters } = dependencies::start(self.valid, &written.dependencies);
        let hub_cache = self.valid.output.hub_cache(&self.valid.name);
        Resolved { image, swift_version: version.to_string(), model, adapters, hub_cache }
    }

    fn version(&self, resolved: &Resolved) -> Version {
        let known = Version::parse(&resolved.swift_version).or(self.valid.version);
        known.unwrap_or_else(|| Version::of_image(&resolved.image))
    }
}
