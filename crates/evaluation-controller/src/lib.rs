//! Controller of ModelEvaluation: asks two models the same questions, and says whether the candidate is worse.
//!
//! ```text
//!  ModelEvaluation ────┐                                       ┌─▶ claim, AIInference of one model, Job of one run
//!  AIInferences, Jobs ─┼▶ observe ─▶ validate → plan ─▶ apply ─┼─▶ deletions of servers that are not needed
//!  TrainingJobs, pods ─┘   caches      pure     pure     I/O   └─▶ status, events
//! ```
//!
//! A run is one Job: one model, one test set. `crates/eval-runner` is the first process of its pod, and reports counts in its
//! termination message. `crates/comparison` makes a verdict of the counts.
//!
//! **Invariant:** no temporary server exists without a run that needs it, and with `order: Sequential` at most one at a time. A
//! finished run is in the status before its server is deleted, and is not repeated. Jobs are created once, so an upgrade restarts no run. There is
//! no verdict without the pairs of all test sets. An upload of answers begins after the verdict, and changes none.
//!
//! Files, beside those of every controller (`reconcile.rs`, `observe.rs`, `validate.rs`, `plan.rs`, `apply.rs`,
//! `metrics.rs`):
//!
//! - `relations.rs`: which evaluations a change of another object wakes.
//! - `names.rs`: names of children.
//! - `outputs.rs`: what TrainingJobs write, and how it is served.
//! - `inference.rs`: view of AIInferences.
//! - `validate/library.rs`: where models without a scheme are.
//!
//! Files of `plan`:
//!
//! - `work.rs`: the runs and their order, in lanes that go on side by side.
//! - `sides.rs`: what the two models are.
//! - `progress.rs`: which runs have ended, and how.
//! - `obstacle.rs`: why the pods of a run do not start.
//! - `step.rs`: what one lane does next.
//! - `refused.rs`: what follows if the API server refuses something.
//! - `server.rs`: the temporary AIInference.
//! - `job.rs`, `claim.rs`: the other children. `metadata.rs`: that of all.
//! - `verdict.rs`: from counts to a verdict.
//! - `upload.rs`: the store of the answers, which is tried before the verdict, and the upload after it; `upload/attempt.rs`:
//!   how a Job of either stands.
//! - `conditions.rs`, `status.rs`, `status/events.rs`: what a user reads.

#![forbid(unsafe_code)]

use std::{sync::Arc, time::Duration};

use api::{
    aiinference::{AIInference, evaluation::ModelEvaluation},
    controllers::{EVAL_RUNNER, MODEL_TRANSFER},
    labels,
    trainingjob::TrainingJob,
};
use clap::Parser;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod},
};
use runtime::{
    process::{Identity, Process, Started, args::RuntimeArgs},
    reconcile::reconcile,
    watch::{cache::Cache, cached_child::CachedChild, relations::Referrers},
    write::{apply::Writer, children::Children, events::Recorder},
};
use workload::{
    faults::facts::FactTimes,
    own_account::OwnAccount,
    templates::rendered::Rendered,
    views::{claim::ClaimView, job::JobView, pod::PodView},
};

use crate::{inference::InferenceView, validate::Library};

mod apply;
mod inference;
mod metrics;
mod names;
mod observe;
mod outputs;
mod plan;
mod reconcile;
mod relations;
#[cfg(test)]
mod tests;
mod validate;

/// Field manager, name of the Lease and value of the label `app.kubernetes.io/managed-by`.
pub const NAME: &str = "evaluation-controller";

pub const IDENTITY: Identity =
    Identity { name: NAME, version: env!("CARGO_PKG_VERSION"), hash_annotation: labels::APPLIED };

/// The command line.
#[derive(Parser, Debug)]
#[command(name = NAME, version, about)]
pub struct Args {
    #[command(flatten)]
    pub runtime: RuntimeArgs,
    #[command(flatten)]
    pub evaluation: EvaluationArgs,
}

/// Images, and what users may ask for.
#[derive(clap::Args, Clone, Debug)]
pub struct EvaluationArgs {
    /// Image of the runner, which starts the harness and pairs the answers
    #[arg(long, default_value_t = EVAL_RUNNER.image(env!("CARGO_PKG_VERSION")))]
    pub runner_image: String,

    /// Image that uploads the answers
    #[arg(long, default_value_t = MODEL_TRANSFER.image(env!("CARGO_PKG_VERSION")))]
    pub transfer_image: String,

    /// Image with EvalScope, for evaluations without spec.image [default: none]
    #[arg(long, env = "EVALSCOPE_IMAGE")]
    pub evalscope_image: Option<String>,

    /// Image with lm-eval, for evaluations without spec.image [default: none]
    #[arg(long, env = "LM_EVAL_IMAGE")]
    pub lm_eval_image: Option<String>,

    /// Library of models, in place of ModelScope for a model without a scheme: s3://bucket/prefix/{id} or pvc://claim/{id}
    #[arg(long, env = "MODEL_LIBRARY", value_parser = Library::parse, value_name = "SOURCE")]
    pub model_library: Option<Library>,

    /// URLs of OpenAI APIs that a model may be (endpoint:URL), with everything below them, separated by commas [default: none]
    #[arg(long, env = "ALLOWED_ENDPOINTS", value_delimiter = ',', value_name = "URL")]
    pub allowed_endpoints: Vec<String>,

    /// Whether evaluations may load test sets from hubs, if they ask for it (spec.allowOnline)
    #[arg(long, env = "ALLOW_ONLINE")]
    pub allow_online: bool,

    /// Whether evaluations may run programs that a model has written, if they ask for it (spec.allowCodeExecution)
    #[arg(long, env = "ALLOW_CODE_EXECUTION")]
    pub allow_code_execution: bool,

    /// Seconds for which a temporary server may be stalled, or a run may not start, for example without its image. Then the
    /// evaluation fails, and its GPUs are given back. A run whose pod has ended has at least 660 seconds for the next
    /// one, and at least 1800 seconds for each image that is pulled
    #[arg(long, default_value_t = 600)]
    pub server_fault_seconds: u64,

    /// Service account of this process; runs must not use it [default: no account is refused]
    #[arg(long, env = "POD_SERVICE_ACCOUNT")]
    pub own_service_account: Option<String>,

    /// Namespace of the service account of this process
    #[arg(long, env = "POD_NAMESPACE")]
    pub own_namespace: Option<String>,
}

/// Shared by all reconciles.
pub(crate) struct Context {
    pub(crate) evaluations: Cache<ModelEvaluation>,
    /// Temporary servers. Of AIInferences of others it has the metadata alone.
    pub(crate) inferences: Children<CachedChild<InferenceView, ModelEvaluation>, Rendered<AIInference>>,
    /// AIInferences of every owner: an evaluation may name one that runs.
    pub(crate) running: Cache<InferenceView>,
    pub(crate) jobs: Children<JobView, Job>,
    pub(crate) claims: Children<ClaimView, PersistentVolumeClaim>,
    /// Pods of evaluations, also those that have ended.
    pub(crate) pods: Children<PodView, Pod>,
    /// By the key of an evaluation, the pods with its labels.
    pub(crate) pods_of: Referrers,
    pub(crate) training_jobs: Cache<TrainingJob>,
    /// By namespace and path, the TrainingJobs with this outputDir.
    pub(crate) outputs: Referrers,
    pub(crate) fact_times: FactTimes,
    pub(crate) writer: Writer,
    pub(crate) recorder: Recorder,
    pub(crate) settings: Settings,
}

/// What the command line says.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) runner_image: String,
    pub(crate) transfer_image: String,
    pub(crate) evalscope_image: Option<String>,
    pub(crate) lm_eval_image: Option<String>,
    pub(crate) library: Option<Library>,
    pub(crate) allowed_endpoints: Vec<String>,
    pub(crate) allow_online: bool,
    pub(crate) allow_code_execution: bool,
    pub(crate) server_fault: Duration,
    pub(crate) own_account: OwnAccount,
    pub(crate) refusal_retry: Duration,
}

/// Declares the watches and starts the controller.
pub fn start(process: &mut Process, args: EvaluationArgs) -> Started {
    let ctx = Arc::new(context(process, args));
    metrics::export(process, &ctx.evaluations);
    let controller = relations::declared(process.controller(&ctx.evaluations), &ctx);
    process.control(controller, move |evaluation, now| {
        let ctx = Arc::clone(&ctx);
        async move { reconcile(&*ctx, evaluation, now).await }
    })
}

fn context(process: &mut Process, args: EvaluationArgs) -> Context {
    let managed = format!("{}={NAME},{}={}", labels::MANAGED_BY, labels::NAME, names::KIND);
    let evaluations: Cache<ModelEvaluation> = process.watch("ModelEvaluation");
    let writer = process.writer(&evaluations);
    let pods: Children<PodView, Pod> = writer.of(process.watch_labelled("Pod", &managed));
    let training_jobs = process.watch_if_served("TrainingJob");
    Context {
        inferences: writer.of(process.watch_if_served("AIInference")),
        running: process.watch_if_served("AIInferenceRunning"),
        jobs: writer.of(process.watch_labelled("Job", &managed)),
        claims: writer.of(process.watch("PersistentVolumeClaim")),
        pods_of: Referrers::of(&pods, relations::keys_by_instance),
        pods,
        outputs: Referrers::of(&training_jobs, outputs::output_key),
        training_jobs,
        evaluations,
        fact_times: FactTimes::default(),
        writer,
        recorder: process.recorder(),
        settings: Settings::new(args, process.refusal_retry_period()),
    }
}

impl Settings {
    fn new(args: EvaluationArgs, refusal_retry: Duration) -> Self {
        let EvaluationArgs {
            runner_image,
            transfer_image,
            evalscope_image,
            lm_eval_image,
            model_library,
            allowed_endpoints,
            allow_online,
            allow_code_execution,
            server_fault_seconds,
            own_service_account,
            own_namespace,
        } = args;
        Self {
            runner_image,
            transfer_image,
            // A variable that is set and empty names no image.
            evalscope_image: evalscope_image.filter(|image| !image.is_empty()),
            lm_eval_image: lm_eval_image.filter(|image| !image.is_empty()),
            library: model_library,
            allowed_endpoints: allowed_endpoints.into_iter().filter(|url| !url.is_empty()).collect(),
            allow_online,
            allow_code_execution,
            server_fault: Duration::from_secs(server_fault_seconds),
            own_account: OwnAccount::new(own_namespace, own_service_account),
            refusal_retry,
        }
    }
}
