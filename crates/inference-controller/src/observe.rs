//! What the caches know of one AIInference: everything that a plan needs, already classified. Sends nothing.

use std::sync::Arc;

use api::aiinference::AIInference;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use runtime::cache::{Cache, Key};

use crate::{Context, names};

mod capacity;
mod claims;
mod nodes;
mod projections;

pub(crate) use capacity::Room;
pub(crate) use claims::{ClaimView, Readers};
pub(crate) use nodes::{Loss, Losses, Lost, NodeView, Nodes, is_known_label, keys_on_lost};
use projections::ForInstance;
pub(crate) use projections::{
    Container, ContainerState, DeploymentView, PodView, ReplicaSetView, Terminated, UNFINISHED, count_ours,
};

/// One AIInference and its children as the caches have them.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) model: Arc<AIInference>,
    pub(crate) deployment: Option<DeploymentView>,
    /// Pods of the revision that the Deployment asks for; `None` while there is no such revision.
    pub(crate) current: Option<Vec<Arc<PodView>>>,
    /// All its other pods.
    pub(crate) others: Vec<Arc<PodView>>,
    /// Of its PodDisruptionBudget.
    pub(crate) budget: Option<ObjectMeta>,
    pub(crate) nodes: Nodes,
    /// Where GPUs of its kind are; `None` unless a pod finds no node.
    pub(crate) rooms: Option<Vec<Room>>,
    /// The claim with its model.
    pub(crate) claim: Option<Arc<ClaimView>>,
}

pub(crate) fn observe(ctx: &Context, model: Arc<AIInference>, now: Timestamp) -> Observed {
    let uid = model.metadata.uid.clone().unwrap_or_default();
    let name = model.metadata.name.clone().unwrap_or_default();
    let deployment =
        own(&ctx.deployments, &uid, &names::deployment(&name)).map(|kept| DeploymentView::clone(&kept));
    let (mut current, mut others) = (None, Vec::new());
    if let Some(deployment) = &deployment {
        // Revisions are told apart by their templates, as the Deployment's own controller does it. Counts in the status
        // of the Deployment are late, and after a change they speak of the revision before.
        let wanted = deployment.template.filter(|_| deployment.metadata.deletion_timestamp.is_none());
        let revisions = ctx.replica_sets.owned_by(deployment.metadata.uid.as_deref().unwrap_or_default());
        for revision in revisions {
            let pods = ctx.pods.owned_by(revision.metadata.uid.as_deref().unwrap_or_default());
            let pods = pods.into_iter().filter(|pod| !pod.is_over());
            // Two of the same template would be a fault of Kubernetes; the first is as good as the other.
            if current.is_none() && wanted.is_some() && revision.template == wanted {
                current = Some(pods.collect());
            } else {
                others.extend(pods);
            }
        }
    }
    let budget =
        own(&ctx.budgets, &uid, &names::pod_disruption_budget(&name)).map(|kept| kept.meta().clone());
    let pods = current.iter().flatten().chain(&others).map(AsRef::as_ref);
    let (mut nodes, mut rooms) = (Nodes::default(), None);
    if let Some(known) = &ctx.nodes {
        nodes = nodes::nodes(known, &ctx.losses, pods, now);
        let finds_no_node = |pod: &Arc<PodView>| pod.scheduled.as_ref().is_some_and(|c| c.status == "False");
        // To count is to look at every pod of the cluster, and mostly nobody wants to know.
        if current.iter().flatten().any(finds_no_node) {
            rooms = Some(capacity::capacity(known, &ctx.pods, &model.spec.gpu.resource_name));
        }
    }
    let claim = claims::claim_key(&model).and_then(|key| ctx.claims.get(&key));
    Observed { model, deployment, current, others, budget, nodes, rooms, claim }
}

/// An object whose labels say which AIInference it is for.
pub(crate) fn keys_by_instance<V: ForInstance>(object: &V) -> Vec<Key> {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    object.instance().map(|name| Key::new(namespace, name)).into_iter().collect()
}

fn own<V: Resource>(children: &Cache<V>, uid: &str, name: &str) -> Option<Arc<V>> {
    children.owned_by(uid).into_iter().find(|child| child.meta().name.as_deref() == Some(name))
}
