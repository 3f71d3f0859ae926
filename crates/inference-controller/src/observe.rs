//! What the caches know of one AIInference: everything that a plan needs, already classified. Sends nothing.

use std::sync::Arc;

use api::{aiinference::AIInference, labels};
use k8s_openapi::api::{apps::v1::Deployment, policy::v1::PodDisruptionBudget};
use kube::Resource;
use runtime::cache::{Cache, Key};

use crate::{Context, names};

mod projections;

pub(crate) use projections::{Container, ContainerState, PodView, ReplicaSetView, Terminated};

/// One AIInference and its children as the caches have them.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) model: Arc<AIInference>,
    pub(crate) deployment: Option<Arc<Deployment>>,
    /// The revision that the Deployment works towards; `None` until its controller has seen it as it is now.
    pub(crate) revision: Option<Revision>,
    pub(crate) budget: Option<Arc<PodDisruptionBudget>>,
}

/// One revision of the Deployment.
#[derive(Clone, Debug)]
pub(crate) struct Revision {
    pub(crate) ready_replicas: i32,
    /// Those that are neither over nor going.
    pub(crate) pods: Vec<Arc<PodView>>,
}

/// The annotation by which the Deployment's controller tells revisions apart.
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";

pub(crate) fn observe(ctx: &Context, model: Arc<AIInference>) -> Observed {
    let uid = model.metadata.uid.clone().unwrap_or_default();
    let name = model.metadata.name.clone().unwrap_or_default();
    let deployment = own(&ctx.deployments, &uid, &names::deployment(&name));
    let revision = deployment
        .as_deref()
        .filter(|deployment| is_settled(deployment))
        .and_then(|deployment| revision(&ctx.replica_sets, &ctx.pods, deployment));
    let budget = own(&ctx.budgets, &uid, &names::pod_disruption_budget(&name));
    Observed { model, deployment, revision, budget }
}

/// An object whose labels say which AIInference it is for.
pub(crate) fn keys_by_instance<K: Resource>(object: &K) -> Vec<Key> {
    let meta = object.meta();
    let instance = meta.labels.as_ref().and_then(|labels| labels.get(labels::INSTANCE));
    instance.map(|name| Key::new(meta.namespace.as_deref().unwrap_or_default(), name)).into_iter().collect()
}

fn own<K: Resource>(children: &Cache<K>, uid: &str, name: &str) -> Option<Arc<K>> {
    children.owned_by(uid).into_iter().find(|child| child.meta().name.as_deref() == Some(name))
}

/// A status of an older generation counts the pods of an older revision.
fn is_settled(deployment: &Deployment) -> bool {
    let observed = deployment.status.as_ref().and_then(|status| status.observed_generation);
    observed.is_some()
        && observed == deployment.metadata.generation
        && deployment.metadata.deletion_timestamp.is_none()
}

fn revision(
    replica_sets: &Cache<ReplicaSetView>,
    pods: &Cache<PodView>,
    deployment: &Deployment,
) -> Option<Revision> {
    let wanted = deployment.metadata.annotations.as_ref()?.get(REVISION)?;
    let current = replica_sets
        .owned_by(deployment.metadata.uid.as_deref()?)
        .into_iter()
        .find(|replica_set| replica_set.revision.as_ref() == Some(wanted))?;
    let pods = pods.owned_by(current.metadata.uid.as_deref()?);
    Some(Revision {
        ready_replicas: current.ready_replicas,
        pods: pods.into_iter().filter(|pod| !pod.is_over()).collect(),
    })
}
