//! What the two models are. Once it is known, it stays: another library, or a later TrainingJob, changes no evaluation that has
//! begun. Pure.

use api::aiinference::evaluation::{Resolved, ResolvedSide};
use workload::{Cause, digest::digest};

use super::{Scene, server::Serving};
use crate::{
    Settings,
    names::{self, Side},
    observe::Observed,
    outputs,
    validate::{Model, ValidEvaluation},
};

/// Both models, each with why it is not known yet.
#[derive(Clone, Debug)]
pub(crate) struct Sides {
    baseline: Result<ResolvedSide, Cause>,
    candidate: Result<ResolvedSide, Cause>,
}

impl Sides {
    pub(crate) fn of(&self, side: Side) -> Result<&ResolvedSide, &Cause> {
        match side {
            Side::Baseline => self.baseline.as_ref(),
            Side::Candidate => self.candidate.as_ref(),
        }
    }
}

/// Bytes of the digest in an identity.
const IDENTITY: usize = 16;

pub(super) fn resolved(valid: &ValidEvaluation, observed: &Observed, settings: &Settings) -> Sides {
    let of = |side: Side| match known(observed, side) {
        Some(known) => Ok(known.clone()),
        None => resolve(valid, observed, settings, side),
    };
    Sides { baseline: of(Side::Baseline), candidate: of(Side::Candidate) }
}

fn known(observed: &Observed, side: Side) -> Option<&ResolvedSide> {
    let resolved = observed.evaluation.status.as_ref()?.resolved.as_ref()?;
    match side {
        Side::Baseline => resolved.baseline.as_ref(),
        Side::Candidate => resolved.candidate.as_ref(),
    }
}

fn resolve(
    valid: &ValidEvaluation,
    observed: &Observed,
    settings: &Settings,
    side: Side,
) -> Result<ResolvedSide, Cause> {
    let temporary = Some(names::server(&valid.name, side));
    match valid.model(side) {
        Model::Served { inference } => {
            Ok(ResolvedSide { inference: Some(inference.clone()), ..ResolvedSide::default() })
        }
        Model::Endpoint { url, model: _ } => {
            Ok(ResolvedSide { url: Some(url.clone()), ..ResolvedSide::default() })
        }
        Model::Source(source) => Ok(ResolvedSide {
            model_source: source.to_string(),
            inference: temporary,
            ..ResolvedSide::default()
        }),
        Model::Output { path } => {
            let library = settings.library.as_ref();
            let written = outputs::model(observed.writers(side), path, side.field(), library)?;
            Ok(ResolvedSide { inference: temporary, ..written })
        }
    }
}

/// For the status: what is known, and the images that were resolved.
pub(super) fn record(scene: &Scene<'_>) -> Resolved {
    let image = |harness| {
        let set = scene.valid.sets.iter().find(|set| set.harness == harness);
        set.map(|set| set.image.clone())
    };
    use api::aiinference::evaluation::Harness;
    Resolved {
        evalscope_image: image(Harness::EvalScope),
        lm_eval_image: image(Harness::LmEval),
        baseline: scene.sides.of(Side::Baseline).ok().cloned(),
        candidate: scene.sides.of(Side::Candidate).ok().cloned(),
    }
}

/// The first server of a side says which files it has loaded.
pub(super) fn note_model(resolved: &mut Resolved, side: Side, server: &Serving) {
    let model = match side {
        Side::Baseline => resolved.baseline.as_mut(),
        Side::Candidate => resolved.candidate.as_mut(),
    };
    let Some(model) = model else { return };
    model.inference_uid = server.uid.clone().or(model.inference_uid.take());
    if model.digest.is_none() {
        model.digest.clone_from(&server.digest);
        model.revision.clone_from(&server.revision);
    }
}

/// What answers, for the runner: files of another model are not used. Of one evaluation it is always the same.
pub(super) fn identity(side: &ResolvedSide) -> String {
    let ResolvedSide {
        model_source,
        adapters,
        training_job: _,
        training_job_uid,
        inference,
        // That of a server that was started again is another one.
        inference_uid: _,
        // A server may report it later than its first run began.
        digest: _,
        revision: _,
        url,
    } = side;
    let parts = [adapters, training_job_uid, inference, url].map(|part| part.as_deref().unwrap_or_default());
    digest(format!("{model_source}\n{}", parts.join("\n")), IDENTITY)
}
