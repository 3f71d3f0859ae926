//! Which ModelEvaluations a change of another object wakes, and what a spec refers to. Pure.

use api::{
    aiinference::evaluation::{ModelEvaluation, RUNNING_SERVER},
    trainingjob::TrainingJob,
};
use runtime::{controller::Controller, key::Key, watch::relations::Referrers};
use workload::views::pod::{OfInstance, PodView};

use crate::{
    Context,
    names::{self, Side},
    outputs::{keys_of_path, output_key},
};

/// Everything that wakes an evaluation, beside its own changes.
pub(crate) fn declared(
    controller: Controller<ModelEvaluation>,
    ctx: &Context,
) -> Controller<ModelEvaluation> {
    let of_servers = Referrers::of(&ctx.evaluations, server_keys);
    let of_names = Referrers::of(&ctx.evaluations, temporary_keys);
    let of_claims = Referrers::of(&ctx.evaluations, claim_keys);
    let of_outputs = Referrers::of(&ctx.evaluations, path_keys);
    controller
        .owns(&ctx.inferences)
        // Also one of another owner, whose end makes its name free.
        .maps(&ctx.inferences, move |server| of_names.keys(server))
        .owns(&ctx.jobs)
        .maps(&ctx.pods, keys_by_instance)
        .maps(&ctx.running, move |server| of_servers.keys(server))
        .maps(&ctx.claims, move |claim| of_claims.keys(claim))
        .maps(&ctx.training_jobs, move |job: &TrainingJob| {
            output_key(job).map(|key| of_outputs.of_key(&key)).unwrap_or_default()
        })
}

/// The evaluation whose labels a pod has.
pub(crate) fn keys_by_instance(pod: &PodView) -> Vec<Key> {
    let found = pod.belongs_to(names::KIND);
    found.map(|(namespace, name)| Key::new(namespace, name)).into_iter().collect()
}

/// The AIInference that a side names.
pub(crate) fn running_server(evaluation: &ModelEvaluation, side: Side) -> Option<&str> {
    text(evaluation, side).strip_prefix(RUNNING_SERVER)
}

/// The path that a side is.
pub(crate) fn path_of(evaluation: &ModelEvaluation, side: Side) -> Option<&str> {
    Some(text(evaluation, side).trim_end_matches('/')).filter(|text| text.starts_with('/'))
}

/// The claim of the answers, and those of the test sets.
pub(crate) fn claims_of(evaluation: &ModelEvaluation) -> Vec<String> {
    let name = evaluation.metadata.name.as_deref().unwrap_or_default();
    let output = evaluation.spec.output.as_ref().and_then(|output| output.claim_name.clone());
    let sets = evaluation.spec.test_sets.iter().filter_map(|set| set.claim_name.clone());
    [output.unwrap_or_else(|| names::claim(name))].into_iter().chain(sets).collect()
}

fn text(evaluation: &ModelEvaluation, side: Side) -> &str {
    match side {
        Side::Baseline => &evaluation.spec.baseline_model,
        Side::Candidate => &evaluation.spec.candidate_model,
    }
}

/// The AIInferences that it names.
fn server_keys(evaluation: &ModelEvaluation) -> Vec<Key> {
    let names = Side::ALL.into_iter().filter_map(|side| running_server(evaluation, side));
    names.map(|name| Key::new(namespace(evaluation), name)).collect()
}

/// The names of its temporary AIInferences.
fn temporary_keys(evaluation: &ModelEvaluation) -> Vec<Key> {
    let name = evaluation.metadata.name.as_deref().unwrap_or_default();
    let names = Side::ALL.into_iter().map(|side| names::server(name, side));
    names.map(|name| Key::new(namespace(evaluation), &name)).collect()
}

fn claim_keys(evaluation: &ModelEvaluation) -> Vec<Key> {
    claims_of(evaluation).iter().map(|name| Key::new(namespace(evaluation), name)).collect()
}

fn path_keys(evaluation: &ModelEvaluation) -> Vec<Key> {
    let paths = Side::ALL.into_iter().filter_map(|side| path_of(evaluation, side));
    paths.flat_map(|path| keys_of_path(namespace(evaluation), path)).collect()
}

fn namespace(evaluation: &ModelEvaluation) -> &str {
    evaluation.metadata.namespace.as_deref().unwrap_or_default()
}
