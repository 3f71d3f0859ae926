//! The Job of an attempt: as many pods as nodes, which start and end together. Pure.
//!
//! It is created once, and only its labels are ever put back, so that an upgrade of the controller restarts nothing. The Job itself retries
//! nothing: which attempt comes next, and with which settings, is decided in `retry`.

use api::{
    labels,
    trainingjob::{AvoidedNode, DependencyResult, ResolvedResume},
};
use k8s_openapi::api::batch::v1::{Job, JobSpec};

use super::{
    metadata::{labels_of_attempt, metadata},
    mitigation,
    pod::{Attempt, pod_template},
};
use crate::{
    names,
    plan::defaults::Defaults,
    swift::{self, Run, Sharding, StartModel, Version},
    validate::ValidJob,
};

/// What an attempt runs with, besides the spec.
#[derive(Clone, Debug)]
pub(crate) struct Inputs<'a> {
    pub(crate) model: StartModel,
    pub(crate) reward_model: Option<String>,
    pub(crate) image: &'a str,
    pub(crate) version: Version,
    pub(crate) results: &'a [DependencyResult],
    /// Checkpoints of an earlier job.
    pub(crate) resume_from: Option<&'a ResolvedResume>,
    pub(crate) hub_cache: Option<&'a str>,
    /// Steps to save memory that earlier attempts made necessary.
    pub(crate) mitigations: usize,
    /// Nodes that are not used.
    pub(crate) avoided: &'a [AvoidedNode],
    /// They are used if there is no other.
    pub(crate) are_last_choice: bool,
}

pub(crate) fn attempt_job(valid: &ValidJob, number: i32, inputs: &Inputs<'_>, defaults: &Defaults) -> Job {
    let name = names::attempt(&valid.name, number);
    let settings = mitigation::settings(valid, inputs.mitigations);
    let command = swift::command(&Run {
        version: inputs.version,
        method: valid.method,
        device: valid.device,
        hub: valid.hub,
        gpus: valid.gpus,
        nodes: valid.nodes,
        model: &inputs.model,
        reward_model: inputs.reward_model.as_deref(),
        datasets: &valid.datasets,
        output_dir: &valid.output.dir,
        beta: valid.beta,
        save_steps: valid.save_steps,
        keep_checkpoints: valid.keep_checkpoints,
        batch: settings.batch,
        sharding: settings.sharding.unwrap_or(Sharding::Nothing),
        extra_args: &valid.extra_args,
    });
    let attempt = Attempt {
        number,
        job: &name,
        image: inputs.image,
        command: &command,
        results: inputs.results,
        avoided: inputs.avoided,
        are_last_choice: inputs.are_last_choice,
        resume_from: inputs.resume_from,
        hub_cache: inputs.hub_cache,
    };
    let template = pod_template(valid, &attempt, defaults);
    let mut metadata = metadata(valid, name);
    let labels = metadata.labels.insert(labels_of_attempt(&valid.name, number));
    if let Some(queue) = &valid.queue {
        labels.insert(labels::KUEUE_QUEUE_NAME.to_owned(), queue.name.clone());
        if let Some(class) = &queue.priority_class {
            labels.insert(labels::KUEUE_PRIORITY_CLASS.to_owned(), class.clone());
        }
    }
    Job {
        metadata,
        spec: Some(JobSpec {
            completions: Some(valid.nodes),
            parallelism: Some(valid.nodes),
            completion_mode: Some("Indexed".to_owned()),
            // Any pod that fails ends the attempt, and Kubernetes ends the others.
            backoff_limit: Some(0),
            // No second pod writes into the output while one still runs.
            pod_replacement_policy: Some("Failed".to_owned()),
            // From its first moment on: Kueue alone sets it to false.
            suspend: valid.queue.is_some().then_some(true),
            template,
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}
