//! The claims that a job mounts, and who else writes into them or uploads from them, from the caches.

use std::{collections::BTreeMap, sync::Arc};

use api::trainingjob::TrainingJob;
use runtime::{
    key::Key,
    watch::{cache::Cache, relations::Referrers},
};
use workload::{
    faults::container::start_fault,
    uploads::UPLOADER,
    views::{
        claim::ClaimView,
        pod::{Container, PodView},
    },
};

use crate::{
    Context, names,
    objects::pod::{has_stopped, job_of},
    relations::wants::claim_key,
};

/// The claims that a job mounts, by name; `None`: there is no such claim.
pub(crate) type Claims = BTreeMap<String, Option<Arc<ClaimView>>>;

/// The jobs whose output is in a claim. Of one that is gone, the claim has the name.
pub(super) fn writers(ctx: &Context, namespace: &str, claim: &str) -> Vec<Key> {
    let known = ctx.outputs.of_key(&claim_key(namespace, claim));
    let gone = ctx.claims.get(&Key::new(namespace, claim)).and_then(|claim| {
        let name = claim.instance.as_ref()?.of_kind(names::KIND)?.to_owned();
        Some(Key::new(namespace, &name))
    });
    known.into_iter().chain(gone).collect()
}

/// A training that has succeeded is uploaded while the jobs that read it start.
pub(super) fn uploaders(ctx: &Context, job: &TrainingJob, claims: &Claims) -> BTreeMap<String, String> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let own = Key::of(job);
    let uploader = |name: &String| {
        let writers = writers(ctx, namespace, name).into_iter().filter(|key| *key != own);
        writers.into_iter().find_map(|key| uploader(&ctx.pods, &ctx.pods_of, &key))
    };
    let of_one_node = claims.iter().filter(|(_, claim)| {
        let claim = claim.as_ref();
        claim.is_some_and(|claim| !claim.is_writable_by_many())
    });
    of_one_node.filter_map(|(name, _)| Some((name.clone(), uploader(name)?))).collect()
}

/// The pod that uploads the result of this job: the volume is on its node. One that cannot start, or whose uploader has ended
/// beside a container that was injected, may stay so for long.
pub(super) fn uploader(pods: &Cache<PodView>, pods_of: &Referrers, job: &Key) -> Option<String> {
    let upload = names::upload(&job.name);
    let holds = |pod: &Arc<PodView>| {
        let uploads = |one: &Container| one.state.terminated.is_none() && start_fault(pod, one).is_none();
        pod.node.is_some()
            && !has_stopped(pod)
            && job_of(pod).is_some_and(|name| name == upload)
            && pod.container(UPLOADER).is_none_or(uploads)
    };
    let mut pods = pods_of.of_key(job).into_iter().filter_map(|key| pods.get(&key));
    pods.find(holds).map(|pod| pod.name().to_owned())
}
