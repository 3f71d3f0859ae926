//! The InferencePools of `gateway.inferencePool`, one for each version. Pure.
//!
//! They name the user's endpoint picker and have none of its settings. The HTTPRoute leads to them only once they exist
//! as children of this object, and to the Services until then.

use api::aiinference::traffic::InferencePoolGateway;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    super::metadata::{metadata_of, selector},
    route::{Answer, Backends, refusal},
    state::Share,
};
use crate::{
    engine::HTTP_PORT,
    names::{self, Track},
    objects::gateway_api::inference_pool::{self, InferencePool, Picker, PoolSpec, Port, Selector},
    observe::{Observed, pool_of},
    validate::owner,
};

/// What the spec asks for, where the cluster serves the kind.
fn wanted(observed: &Observed) -> Option<&InferencePoolGateway> {
    pool_of(&observed.inference).filter(|_| !observed.has_no_pools)
}

/// The pool of one version.
pub(super) fn pool(observed: &Observed, track: Track) -> Option<InferencePool> {
    let wanted = wanted(observed)?;
    let picker = match (track, &wanted.candidate_endpoint_picker) {
        (Track::Canary, Some(picker)) => picker,
        (Track::Canary | Track::Stable, _) => &wanted.endpoint_picker,
    };
    let inference = &observed.inference;
    let (namespace, name) = (inference.metadata.namespace.as_deref()?, inference.metadata.name.as_deref()?);
    let metadata = metadata_of(namespace, name, owner(inference).ok()?, names::pool(name, track));
    let spec = PoolSpec {
        selector: Selector { match_labels: selector(name, track) },
        target_ports: vec![Port { number: HTTP_PORT }],
        endpoint_picker_ref: Picker {
            group: String::new(),
            kind: "Service".to_owned(),
            name: picker.name.clone(),
            port: Port { number: picker.port },
            failure_mode: "FailClose".to_owned(),
        },
    };
    Some(InferencePool { metadata, spec, ..InferencePool::default() })
}

fn of_candidate(observed: &Observed) -> Option<&InferencePool> {
    observed.candidate.as_ref()?.pool.as_ref()
}

/// Whether the stored route has a backend of this kind and name.
fn is_named(observed: &Observed, kind: &str, name: Option<&str>) -> bool {
    let rules = observed.route.iter().flat_map(|route| &route.spec.rules);
    let mut refs = rules.flat_map(|rule| &rule.backend_refs);
    refs.any(|backend| backend.kind == kind && name.is_none_or(|name| backend.name == name))
}

/// Whether the candidate has what the route may name, or is named as a Service already.
pub(super) fn has_candidate(observed: &Observed) -> bool {
    let name = observed.inference.metadata.name.as_deref().unwrap_or_default();
    let service = names::service(name, Track::Canary);
    wanted(observed).is_none()
        || of_candidate(observed).is_some()
        || is_named(observed, "Service", Some(&service))
}

/// What the HTTPRoute leads to. One rule does not mix both kinds. The kind stays while the candidate has a share, because each
/// reference begins with a weight of 0. `stored`, `planned`: what the candidate has and gets.
pub(super) fn backends(observed: &Observed, stored: Share, planned: Share) -> Backends {
    let exist = observed.pool.is_some() && (!planned.is_known || of_candidate(observed).is_some());
    let has_pools = is_named(observed, inference_pool::KIND, None);
    let stays = observed.route.is_some() && (stored.has_requests() || planned.has_requests());
    match wanted(observed) {
        // With the kind, its objects are gone.
        _ if observed.has_no_pools => Backends::Services,
        _ if stays && has_pools => Backends::Pools,
        _ if stays => Backends::Services,
        Some(_) if exist => Backends::Pools,
        Some(_) | None => Backends::Services,
    }
}

/// What a gateway has against one of them, such as a picker that does not exist. A pool without an answer is in use as well:
/// the answer for the route says whether it is found.
pub(super) fn refused(observed: &Observed) -> Option<Answer> {
    wanted(observed)?;
    let pools = [observed.pool.as_ref(), of_candidate(observed)].into_iter().flatten();
    let name = |pool: &InferencePool| pool.metadata.name.clone().unwrap_or_default();
    pools.filter_map(|pool| refusal(&name(pool), pool.metadata.generation, &pool.status)).next()
}

/// Those that are not wanted any more, once all gateways have accepted a route without them.
pub(super) fn superfluous(observed: &Observed, is_answered: bool) -> Vec<InferencePool> {
    let is_free = observed.route.is_none() || is_answered && !is_named(observed, inference_pool::KIND, None);
    if pool_of(&observed.inference).is_some() || !is_free {
        return Vec::new();
    }
    [observed.pool.as_ref(), of_candidate(observed)].into_iter().flatten().filter_map(identity).collect()
}

/// For its deletion.
pub(super) fn identity(pool: &InferencePool) -> Option<InferencePool> {
    let metadata: &ObjectMeta = &pool.metadata;
    let is_left = metadata.deletion_timestamp.is_none();
    is_left.then(|| InferencePool { metadata: metadata.clone(), ..InferencePool::default() })
}
