//! What one lane does next: it waits for its run, or creates the run and what that needs. Pure.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use workload::{Cause, time::remaining};

use super::{
    Child, Scene, claim,
    conditions::{self, Outlook},
    job,
    obstacle::{self, Obstacle, Start},
    progress::{self, State},
    server::{self, Readiness, Serving},
    work::Work,
};
use crate::names::Side;

/// The part of a plan that is about one lane, or about the comparison.
pub(super) struct Step {
    pub(super) outlook: Outlook,
    /// Without the claim of the answers, which is that of all lanes.
    pub(super) children: Vec<Child>,
    pub(super) needs_claim: bool,
    /// A Job to delete, which is created again.
    pub(super) repeated: Option<Job>,
    /// The side whose temporary server is not needed for now.
    pub(super) given_back: Option<Side>,
    pub(super) wait: Option<Duration>,
    /// Whether the clock of `activeDeadlineSeconds` runs.
    pub(super) is_started: bool,
    /// The server that is asked, whose model the status has.
    pub(super) serving: Option<(Side, Serving)>,
    /// Whether the API server refuses what it needs.
    pub(super) is_refused: bool,
}

/// An error ends the evaluation.
pub(super) fn of(scene: &Scene<'_>, state: &State) -> Result<Step, Cause> {
    match state {
        State::Failed(cause) => Err(cause.clone()),
        // There is no comparison before the end of all lanes.
        State::Compared(_) => Ok(only(Outlook::Comparing)),
        State::Failing { work, cause, wait } => {
            let outlook = Outlook::Held { work: *work, cause: cause.clone() };
            Ok(Step { wait: Some(*wait), is_started: true, ..only(outlook) })
        }
        State::Awaited { work, wait } => {
            let step = under_way(scene, *work)?;
            Ok(Step { wait: step.wait.into_iter().chain([*wait]).min(), ..step })
        }
        State::Repeated { work, job } => {
            Ok(Step { repeated: Some(job.identity()), ..under_way(scene, *work)? })
        }
        State::Active(work) => under_way(scene, *work),
        State::Next(work) => next(scene, *work),
    }
}

/// Nothing is created, and nothing has been.
fn only(outlook: Outlook) -> Step {
    Step {
        outlook,
        children: Vec::new(),
        needs_claim: false,
        repeated: None,
        given_back: None,
        wait: None,
        is_started: false,
        serving: None,
        is_refused: false,
    }
}

/// A Job of this work exists.
fn under_way(scene: &Scene<'_>, work: Work) -> Result<Step, Cause> {
    let Start { obstacle, wait } = obstacle::start(scene, work);
    let held = work.side().filter(|side| scene.observed.server(*side).own().is_some());
    let left = obstacle.as_ref().zip(held).and_then(|(obstacle, side)| {
        let Obstacle { cause, since, may_pass_within } = obstacle;
        // What a user has to mend does not wait for the other run.
        let since = match conditions::needs_a_user(cause.reason) {
            true => *since,
            false => obstacle::counts_from(scene, side, *since)?,
        };
        let most = scene.settings.server_fault.max(*may_pass_within);
        Some(remaining(most, since, scene.now))
    });
    if let (Some(None), Some(Obstacle { cause, .. })) = (left, &obstacle) {
        return Err(cause.clone());
    }
    let outlook = match (obstacle, work) {
        (Some(Obstacle { cause, .. }), _) => Outlook::Held { work, cause },
        (None, Work::Ask { .. }) => Outlook::Running(work),
        (None, Work::Pair) => Outlook::Comparing,
    };
    let children = work.side().and_then(|side| server(scene, side)).into_iter().collect();
    let serving = work.side().and_then(|side| unnoted(scene, side));
    let wait = left.flatten().into_iter().chain(wait).min();
    Ok(Step { children, wait, is_started: true, serving, ..only(outlook) })
}

/// The server of a run that began before its model was in the status: the controller had ended in between, or the server
/// reported its files later.
fn unnoted(scene: &Scene<'_>, side: Side) -> Option<(Side, Serving)> {
    let is_noted = scene.sides.of(side).is_ok_and(|resolved| resolved.digest.is_some());
    match server::readiness(scene, side) {
        Readiness::Ready(serving) if !is_noted => Some((side, serving)),
        Readiness::Ready(_) | Readiness::Waits { .. } | Readiness::Unavailable(_) | Readiness::Failed(_) => {
            None
        }
    }
}

/// The temporary server, as it should be. One that was deleted by hand is created again.
fn server(scene: &Scene<'_>, side: Side) -> Option<Child> {
    let rendered = server::wanted(scene, side).ok().flatten();
    rendered.map(|rendered| Child::Server(side, Box::new(rendered)))
}

/// The Job of this work has to be created, after what it needs.
fn next(scene: &Scene<'_>, work: Work) -> Result<Step, Cause> {
    // Neither side begins before both models are there.
    let unknown = Side::ALL.into_iter().find_map(|side| scene.sides.of(side).err().cloned());
    if let Some(cause) = unknown {
        return Ok(only(Outlook::Waiting(cause)));
    }
    if let Some(cause) = claim::fault(scene.valid, scene.observed) {
        // No GPUs are held until a user has mended it. The server is created again then.
        let given_back = work.side().filter(|_| conditions::needs_a_user(cause.reason));
        return Ok(Step { given_back, ..only(Outlook::Waiting(cause)) });
    }
    if let Some((cause, wait)) = progress::earlier_runner(scene, work) {
        return Ok(Step { wait: Some(wait), ..only(Outlook::Waiting(cause)) });
    }
    let begun = |outlook| Step { needs_claim: true, is_started: true, ..only(outlook) };
    let Some(side) = work.side() else {
        let job = Child::Job(None, Box::new(job::pairing(scene)));
        return Ok(Step { children: vec![job], ..begun(Outlook::Comparing) });
    };
    match server::readiness(scene, side) {
        Readiness::Ready(serving) => {
            if let Some(cause) = changed(scene, side, &serving) {
                return Err(cause);
            }
            if let Some(cause) = obstacle::is_not_created(scene, side, work) {
                return Err(cause);
            }
            let job = Child::Job(Some(side), Box::new(job::asking(scene, work, &serving)));
            let children = server(scene, side).into_iter().chain([job]).collect();
            Ok(Step { children, serving: Some((side, serving)), ..begun(Outlook::Running(work)) })
        }
        Readiness::Waits { cause, wait } => {
            let children = server(scene, side).into_iter().collect();
            Ok(Step { children, wait, ..begun(Outlook::Preparing(cause)) })
        }
        Readiness::Unavailable(cause) => Ok(only(Outlook::Waiting(cause))),
        Readiness::Failed(cause) => Err(cause),
    }
}

/// Why the answers of this server would be those of another model.
fn changed(scene: &Scene<'_>, side: Side, server: &Serving) -> Option<Cause> {
    let known = scene.sides.of(side).ok()?.digest.as_ref()?;
    let found = server.digest.as_ref()?;
    (known != found).then(|| Cause {
        reason: api::reasons::MODEL_CHANGED,
        message: format!(
            "{} serves {found}, and the first runs were answered by {known}; create the evaluation again, and do not \
             change a model while it is evaluated",
            server.name
        ),
    })
}
