//! What a job reads of others, and which others need what it leaves, from the caches.

use std::{collections::BTreeSet, sync::Arc};

use api::trainingjob::TrainingJob;
use runtime::{
    key::Key,
    watch::{cache::Cache, relations::Referrers},
};

use crate::{
    Context,
    objects::training_job::{has_ended, is_being_deleted, needs_finalizer},
    relations::wants::{self, Want, keys_of_dependency, keys_of_path, wants},
};

/// Something that the job waits for, and the jobs that could provide it.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    pub(crate) want: Want,
    /// Several have the same outputDir: the choice would be arbitrary.
    pub(crate) candidates: Vec<Arc<TrainingJob>>,
}

/// A circle of more jobs is found by none of them in time; each still waits for another.
const LONGEST_CYCLE: usize = 1_000;

/// Of a job that has not ended.
pub(super) fn dependencies(ctx: &Context, job: &TrainingJob) -> Vec<Dependency> {
    if has_ended(job) { Vec::new() } else { dependencies_of(ctx, job) }
}

fn dependencies_of(ctx: &Context, job: &TrainingJob) -> Vec<Dependency> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let found = |keys: Vec<Key>| -> Vec<Arc<TrainingJob>> {
        keys.iter().filter_map(|key| ctx.training_jobs.get(key)).collect()
    };
    let candidates = |want: &Want| match want {
        Want::Job(name) => found(vec![Key::new(namespace, name)]),
        Want::Path { path, field: _ } => {
            let mut longest = keys_of_path(namespace, path).into_iter();
            longest
                .find_map(|key| Some(ctx.outputs.of_key(&key)).filter(|jobs| !jobs.is_empty()))
                .map_or_else(Vec::new, found)
        }
    };
    wants(job).into_iter().map(|want| Dependency { candidates: candidates(&want), want }).collect()
}

/// Names of jobs that wait for each other, beginning with this one.
pub(super) fn cycle(ctx: &Context, job: &Arc<TrainingJob>) -> Vec<String> {
    shortest_cycle(job, |job| {
        let candidates = dependencies_of(ctx, job).into_iter().flat_map(|dependency| dependency.candidates);
        let source = wants::resume_key(job).and_then(|key| ctx.training_jobs.get(&key));
        candidates.chain(source).collect()
    })
}

/// The shortest way from a job back to itself over jobs that have not ended.
fn shortest_cycle(
    job: &Arc<TrainingJob>,
    next: impl Fn(&TrainingJob) -> Vec<Arc<TrainingJob>>,
) -> Vec<String> {
    let name = |job: &TrainingJob| job.metadata.name.clone().unwrap_or_default();
    let mut ways = vec![(Arc::clone(job), vec![name(job)])];
    let mut seen = BTreeSet::from([Key::of(&**job)]);
    let mut at = 0;
    while let Some((from, way)) = ways.get(at).cloned() {
        at += 1;
        if has_ended(&from) || seen.len() > LONGEST_CYCLE {
            continue;
        }
        for to in next(&from) {
            if Key::of(&*to) == Key::of(&**job) {
                return way;
            }
            if seen.insert(Key::of(&*to)) {
                let way = way.iter().cloned().chain([name(&to)]).collect();
                ways.push((to, way));
            }
        }
    }
    Vec::new()
}

pub(super) fn dependents(jobs: &Cache<TrainingJob>, dependents: &Referrers, job: &TrainingJob) -> usize {
    // What has been trained is read before it is uploaded, and while its job is being deleted.
    if !has_ended(job) && !is_being_deleted(job) {
        return 0;
    }
    let own = Key::of(job);
    let keys: BTreeSet<Key> = keys_of_dependency(job)
        .iter()
        .flat_map(|key| dependents.of_key(key))
        .filter(|key| *key != own)
        .collect();
    keys.iter().filter(|key| jobs.get(key).is_some_and(|other| needs(&other, job))).count()
}

/// Whether a job that has not ended does not have the result of `job` yet, or reads it in a claim that is deleted with
/// `job`. A claim that is kept does not need its job.
pub(super) fn needs(dependent: &TrainingJob, job: &TrainingJob) -> bool {
    if has_ended(dependent) || needs_checkpoints(dependent, job) {
        return !has_ended(dependent);
    }
    if !wants(dependent).iter().any(|want| wants::may_be_of(want, job)) {
        return false;
    }
    let recorded = dependent.status.iter().flat_map(|status| &status.dependencies);
    let mut results =
        recorded.filter(|record| record.result.is_some() && Some(&record.uid) == job.metadata.uid.as_ref());
    let is_satisfied = if needs_finalizer(job) {
        let mut results = results.peekable();
        // One that is only in dependsOn gives nothing to read.
        results.peek().is_some() && results.all(|record| record.path.is_none())
    } else {
        results.next().is_some()
    };
    !has_ended(dependent) && !is_satisfied
}

/// Whether a job that goes on from the checkpoints of `job` has not found them yet or, if they are deleted with `job`, has
/// none of its own. One that names the claim needs no more than that it stays.
fn needs_checkpoints(dependent: &TrainingJob, job: &TrainingJob) -> bool {
    let is_source = wants::resume_key(dependent).is_some_and(|key| keys_of_dependency(job).contains(&key));
    let status = dependent.status.as_ref();
    let names_claim = dependent.spec.resume_from.as_ref().is_some_and(|source| source.claim_name.is_some());
    let is_found = status
        .and_then(|status| status.resume_from.as_ref())
        .is_some_and(|source| source.uid == job.metadata.uid);
    let has_own = status.is_some_and(|status| status.checkpoint.is_some());
    is_source && !((names_claim || is_found) && (has_own || !needs_finalizer(job)))
}
