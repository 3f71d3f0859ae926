//! Reads the caches and sends nothing: the children of an evaluation, the servers and the jobs that it names, and the claims.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{
    aiinference::evaluation::{ModelEvaluation, Run},
    trainingjob::TrainingJob,
};
use jiff::Timestamp;
use runtime::{
    key::Key,
    watch::cache::{controller_of, is_of_kind},
};
use workload::views::{claim::ClaimView, job::JobView, pod::PodView};

use crate::{
    Context,
    inference::InferenceView,
    names::{self, Side},
    outputs,
    relations::{claims_of, path_of, running_server},
};

/// The fact that an evaluation is not paused.
pub(crate) const NOT_PAUSED: &str = "is not paused";

/// What is known of one evaluation.
#[derive(Clone)]
pub(crate) struct Observed {
    pub(crate) evaluation: Arc<ModelEvaluation>,
    /// The temporary servers.
    pub(crate) baseline: Sighting,
    pub(crate) candidate: Sighting,
    /// The servers that the spec names.
    pub(crate) running_baseline: Option<Arc<InferenceView>>,
    pub(crate) running_candidate: Option<Arc<InferenceView>>,
    /// The TrainingJobs that could write the path of a side.
    pub(crate) baseline_writers: Vec<Arc<TrainingJob>>,
    pub(crate) candidate_writers: Vec<Arc<TrainingJob>>,
    /// Its Jobs by their names.
    pub(crate) jobs: BTreeMap<String, Arc<JobView>>,
    pub(crate) pods: Vec<Arc<PodView>>,
    /// The watch of pods has failed for a while, so they may be otherwise now.
    pub(crate) pods_are_stale: bool,
    /// The watch of ModelEvaluations has failed for a while, and until it is back nothing is created.
    pub(crate) creates_nothing: bool,
    /// The claims of the spec and its own, by their names; `None`: there is none.
    pub(crate) claims: BTreeMap<String, Option<Arc<ClaimView>>>,
    /// Whether the cluster has the kind AIInference.
    pub(crate) serves_inferences: bool,
    /// Since when facts have been true, from memory.
    pub(crate) facts: BTreeMap<String, Timestamp>,
}

/// The object that has the name of a temporary server.
#[derive(Clone, Debug)]
pub(crate) enum Sighting {
    /// There is none, or one of a deleted evaluation of this name, which the garbage collector deletes.
    Absent,
    Own(Box<InferenceView>),
    Foreign {
        /// Kind and name of its owner, or words for an object without one.
        owner: String,
    },
}

impl Sighting {
    pub(crate) fn own(&self) -> Option<&InferenceView> {
        match self {
            Self::Own(view) => Some(view),
            Self::Absent | Self::Foreign { .. } => None,
        }
    }
}

impl Observed {
    pub(crate) fn server(&self, side: Side) -> &Sighting {
        match side {
            Side::Baseline => &self.baseline,
            Side::Candidate => &self.candidate,
        }
    }

    pub(crate) fn running(&self, side: Side) -> Option<&InferenceView> {
        match side {
            Side::Baseline => self.running_baseline.as_deref(),
            Side::Candidate => self.running_candidate.as_deref(),
        }
    }

    pub(crate) fn writers(&self, side: Side) -> &[Arc<TrainingJob>] {
        match side {
            Side::Baseline => &self.baseline_writers,
            Side::Candidate => &self.candidate_writers,
        }
    }

    /// The runs that the status has.
    pub(crate) fn status_runs(&self) -> &[Run] {
        self.evaluation.status.as_ref().map_or(&[][..], |status| &status.runs)
    }

    /// While an evaluation is paused, its user mends something. So no time of an object counts from before the end of a
    /// pause. After a restart of this process, which may have missed a pause, these times begin anew as well.
    pub(crate) fn unpaused_since(&self, now: Timestamp) -> Timestamp {
        let known = self.facts.get(NOT_PAUSED).filter(|_| !self.evaluation.spec.pods.paused);
        known.copied().unwrap_or(now)
    }

    /// Pods of this very Job.
    pub(crate) fn pods_of(&self, job: &JobView) -> Vec<&PodView> {
        self.pods.iter().map(AsRef::as_ref).filter(|pod| job.has_pod(pod)).collect()
    }
}

pub(crate) fn observe(ctx: &Context, evaluation: Arc<ModelEvaluation>, _: Timestamp) -> Observed {
    let key = Key::of(&*evaluation);
    let uid = evaluation.metadata.uid.clone().unwrap_or_default();
    let named = |side: Side| {
        running_server(&evaluation, side).and_then(|name| ctx.running.get(&Key::new(&key.namespace, name)))
    };
    let writers = |side: Side| match path_of(&evaluation, side) {
        Some(path) => outputs::writers(&ctx.training_jobs, &ctx.outputs, &key.namespace, path),
        None => Vec::new(),
    };
    let jobs = ctx.jobs.owned_by::<ModelEvaluation>(&key.namespace, &uid);
    let pods = ctx.pods_of.of_key(&key);
    let claims = claims_of(&evaluation).into_iter().map(|name| {
        let claim = ctx.claims.get(&Key::new(&key.namespace, &name));
        (name, claim)
    });
    Observed {
        baseline: sighting(ctx, &key, &uid, Side::Baseline),
        candidate: sighting(ctx, &key, &uid, Side::Candidate),
        running_baseline: named(Side::Baseline),
        running_candidate: named(Side::Candidate),
        baseline_writers: writers(Side::Baseline),
        candidate_writers: writers(Side::Candidate),
        jobs: jobs.into_iter().map(|job| (job.name().to_owned(), job)).collect(),
        pods: pods.iter().filter_map(|key| ctx.pods.get(key)).collect(),
        pods_are_stale: are_stale(ctx.pods.watch_fails_for()),
        creates_nothing: are_stale(ctx.evaluations.watch_fails_for()),
        claims: claims.collect(),
        serves_inferences: !ctx.inferences.is_absent(),
        facts: ctx.fact_times.of(&uid),
        evaluation,
    }
}

/// Most watches that break are open again within this time, and each break would begin the times of all facts anew.
const WATCH_MAY_FAIL_FOR: Duration = Duration::from_secs(10);

fn are_stale(watch_fails_for: Option<Duration>) -> bool {
    watch_fails_for.is_some_and(|time| time > WATCH_MAY_FAIL_FOR)
}

fn sighting(ctx: &Context, key: &Key, uid: &str, side: Side) -> Sighting {
    let name = names::server(&key.name, side);
    let Some(server) = ctx.inferences.get(&Key::new(&key.namespace, &name)) else { return Sighting::Absent };
    match controller_of(&*server) {
        Some(owner) if owner.uid == uid => Sighting::Own(Box::new((**server).clone())),
        Some(owner) if is_of_kind::<ModelEvaluation>(owner) && *owner.name == *key.name => Sighting::Absent,
        Some(owner) => Sighting::Foreign { owner: format!("{} {}", owner.kind, owner.name) },
        None => Sighting::Foreign { owner: "no other object".to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_breaks_for_a_moment_makes_no_pods_stale() {
        let after = |seconds| are_stale(Some(Duration::from_secs(seconds)));
        assert_eq!([are_stale(None), after(0), after(10), after(11)], [false, false, false, true]);
    }
}
