//! The jobs that are measured: their names, their specs, and what the meter's own watches have seen of them.

use std::{fmt::Debug, time::Duration};

use anyhow::Context as _;
use api::trainingjob::{Phase, TrainingJob};
use k8s_openapi::{NamespaceResourceScope, api::batch::v1::Job};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    machine::Used,
    plane::{self, NAMESPACE, sightings::Sightings},
};

/// Where the results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Claims {
    /// Each job has a claim of its own, which the controller makes; its volume is there and has to be bound
    Own,
    /// All jobs use one claim, which is bound already: the only child is a Job
    Shared,
}

/// What is measured.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    pub(super) count: u32,
    pub(super) claims: Claims,
    /// Of each pod.
    pub(super) run_time: Duration,
    /// Of its log in a second; `None`: those of the simulation.
    pub(super) lines: Option<u32>,
    /// How long the controller is observed at rest.
    pub(super) rest: Duration,
}

/// What a burst took.
pub(super) struct Burst {
    /// From the first create until the last Job was seen.
    pub(super) created_seconds: f64,
    /// From the first create until the last Job was seen to be Complete.
    pub(super) completed_seconds: f64,
    /// Until the last job had ended.
    pub(super) busy: Used,
    /// Until what follows the last end had ended as well.
    pub(super) used: Used,
}

/// The claim of all jobs that have none of their own.
pub(super) const SHARED_CLAIM: &str = "results";
/// The job whose children are copied, and the owner of the copies.
pub(super) const WARM_UP: &str = "train-00000";

/// All are of one length.
pub(super) fn names(count: u32) -> Vec<String> {
    plane::names("train", 0, count)
}

/// The name of the claim that the controller makes for a job.
pub(super) fn claim_of(job: &str) -> String {
    format!("{job}-output")
}

/// A LoRA fine-tuning on one GPU.
pub(super) fn training_job(name: &str, setting: &Setting) -> anyhow::Result<TrainingJob> {
    let output = match setting.claims {
        Claims::Own => json!({}),
        Claims::Shared => json!({"claimName": SHARED_CLAIM, "mountPath": "/output"}),
    };
    let mut job = json!({
        "apiVersion": "aistudio.modelscope.cn/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": "qwen/Qwen-7B",
            "dataset": "AI-ModelScope/alpaca-gpt4-data-zh",
            "method": "lora",
            "outputDir": format!("/output/{name}"),
            "output": output,
        },
    });
    if let Some(lines) = setting.lines {
        let steps = f64::from(lines) * setting.run_time.as_secs_f64();
        job["spec"]["extraArgs"] = json!(["--logging_steps", "1"]);
        job["spec"]["env"] = json!([{"name": "SIM_STEPS", "value": format!("{:.0}", steps.max(1.0))}]);
    }
    serde_json::from_value(job).with_context(|| format!("failed to write TrainingJob {NAMESPACE}/{name}"))
}

/// With the time that pods run.
pub(super) fn patience(setting: &Setting) -> Duration {
    plane::patience(setting.count) + setting.run_time
}

/// Which Jobs have been created and which are Complete; the same watches are open in both arms.
pub(super) struct SeenJobs {
    created: Sightings,
    complete: Sightings,
}

impl SeenJobs {
    pub(super) async fn from_now_on(client: &Client) -> anyhow::Result<Self> {
        Ok(Self {
            created: sightings("created", client, |_: &Job| true).await?,
            complete: sightings("Complete", client, is_complete).await?,
        })
    }

    pub(super) async fn until_complete(&mut self, setting: &Setting) -> anyhow::Result<()> {
        self.complete.until(setting.count as usize, patience(setting)).await
    }

    /// Seconds until the last Job was seen, and until it was seen to be Complete.
    pub(super) fn seconds_since(&self, began: Instant) -> anyhow::Result<(f64, f64)> {
        Ok((seconds_until(&self.created, began)?, seconds_until(&self.complete, began)?))
    }
}

/// Of the objects that are measured, by their name.
pub(super) async fn sightings<K>(
    what: &'static str,
    client: &Client,
    claim: impl Fn(&K) -> bool + Send + 'static,
) -> anyhow::Result<Sightings>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let objects: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    Sightings::of(what, objects, "", move |object: &K| {
        let name = object.meta().name.clone()?;
        (!name.starts_with(WARM_UP) && claim(object)).then_some(name)
    })
    .await
}

pub(super) fn seconds_until(seen: &Sightings, began: Instant) -> anyhow::Result<f64> {
    let last = seen.last().context("nothing was seen")?;
    Ok((last - began).as_secs_f64())
}

pub(super) fn has_succeeded(job: &TrainingJob) -> bool {
    job.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Succeeded))
}

fn is_complete(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Complete" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_length_so_that_copies_differ_in_nothing_else() {
        let names = names(1000);
        assert_eq!((names.len(), &*names[0]), (1000, "train-00001"));
        assert!(names.iter().all(|name| name.len() == WARM_UP.len() && name != WARM_UP));
    }

    #[test]
    fn jobs_of_a_shared_claim_write_into_folders_of_their_own() {
        let setting = Setting {
            count: 2,
            claims: Claims::Shared,
            run_time: Duration::from_secs(60),
            lines: Some(1_000),
            rest: Duration::ZERO,
        };
        let jobs = ["one", "two"].map(|name| training_job(name, &setting).unwrap());
        assert_eq!(jobs[0].spec.env[0].value.as_deref(), Some("60000"));
        let claims = jobs.each_ref().map(|job| job.spec.output.clone().unwrap().claim_name.unwrap());
        assert_eq!(claims[0], claims[1]);
        assert_ne!(jobs[0].spec.output_dir, jobs[1].spec.output_dir);
    }
}
