//! The revision of the current spec. `workload::templates::revision` decides which recorded template is used. Pure.

use api::labels;
use jiff::Timestamp;
use serde_json::{Value, json};
use workload::templates::revision::{DesiredTemplate, Revision};

use super::{pod::pod_template, readiness::is_ready};
use crate::{
    load::WorkerLoad,
    names::WORKER,
    observe::Observed,
    validate::{ValidDispatcher, defaults::Defaults},
};

/// Keys in the record.
const IMAGE: &str = "image";
/// The workers are the agent that ships, because nothing named another image.
const AGENT: &str = "agent";

pub(super) fn revision<'a>(
    valid: &ValidDispatcher,
    observed: &'a Observed,
    defaults: &Defaults,
) -> Revision<'a> {
    // Plain fields and string keys; serialization cannot fail.
    let rendered = serde_json::to_value(pod_template(valid, defaults)).unwrap_or_default();
    let agent = valid.is_agent.then_some((AGENT, json!(true)));
    let of_release = [(IMAGE, json!(valid.image)), ("monitorImage", json!(defaults.monitor_image))];
    let of_release =
        of_release.into_iter().chain(agent).map(|(name, value)| (name.to_owned(), value)).collect();
    let pods = observed.deployed.as_deref().unwrap_or_default();
    let deployed = (observed.deployment.as_ref(), pods);
    workload::templates::revision::revision(
        desired(valid, observed),
        rendered,
        of_release,
        deployed,
        &observed.older,
    )
}

/// `status.resolved`.
pub(super) fn resolved(
    revision: &Revision<'_>,
    observed: &Observed,
    now: Timestamp,
) -> api::aidispatcher::Resolved {
    let image = image_of(&revision.template);
    let Seen { reported, ready } = seen(revision, observed);
    let ready = ready || revision.pods.iter().any(|pod| is_ready(pod, now));
    let mut loads = revision.pods.iter().filter_map(|pod| observed.load_of(pod));
    api::aidispatcher::Resolved {
        image: image.unwrap_or(revision.default(IMAGE)).to_owned(),
        template: Some(revision.digest()),
        reported: reported || ready || loads.any(WorkerLoad::is_reported),
        ready,
    }
}

/// What the status has of the past of a revision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// A worker has reported a load.
    pub(super) reported: bool,
    /// A worker has been ready.
    pub(super) ready: bool,
}

pub(super) fn seen(revision: &Revision<'_>, observed: &Observed) -> Seen {
    let resolved = observed.dispatcher.status.as_ref().and_then(|status| status.resolved.as_ref());
    let resolved = resolved.filter(|resolved| resolved.reported || resolved.ready);
    let is_same = |resolved: &&api::aidispatcher::Resolved| resolved.template == Some(revision.digest());
    resolved.filter(is_same).map_or(Seen { reported: false, ready: false }, |resolved| Seen {
        reported: resolved.reported,
        ready: resolved.ready,
    })
}

/// The image of the workers, if the plan would replace them by the agent that ships. They are another program, whose states the
/// agent cannot read. This happens when `spec.image` is removed, or the option of the role.
pub(super) fn replaced_by_agent(valid: &ValidDispatcher, observed: &Observed) -> Option<String> {
    let deployment = observed.deployment.as_ref().filter(|_| valid.is_agent)?;
    if deployment.recorded(AGENT) == Some(json!(true)) || has_pods(valid, observed) {
        return None;
    }
    let template: Value = serde_json::from_str(deployment.pinned_template.as_deref()?).ok()?;
    let image = image_of(&template).unwrap_or("another image");
    // A spec may name the agent itself.
    (repository(image) != repository(&valid.image)).then(|| image.to_owned())
}

/// An image without its tag and digest.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(repository, _)| repository)
}

/// See `DesiredTemplate::has_pods`.
fn has_pods(valid: &ValidDispatcher, observed: &Observed) -> bool {
    desired(valid, observed).has_pods(observed.deployment.as_ref(), &observed.older)
}

/// The image of the worker in a pod template.
fn image_of(template: &Value) -> Option<&str> {
    let mut containers = template.pointer("/spec/containers")?.as_array()?.iter();
    containers.find(|container| container["name"] == WORKER)?["image"].as_str()
}

/// `defaults`, and those of the deployed template that this process has no longer, if that is the template of this spec.
/// `None`: it is not.
pub(super) fn or_pinned_defaults(
    spec_hash: &str,
    observed: &Observed,
    defaults: &Defaults,
) -> Option<Defaults> {
    let meta = &observed.dispatcher.metadata;
    let desired = DesiredTemplate {
        spec_hash,
        generation: meta.generation.unwrap_or_default().to_string(),
        refresh: meta.annotations.as_ref().and_then(|known| known.get(labels::REFRESH)).map(String::as_str),
        reported: None,
    };
    let deployment = observed.deployment.as_ref()?;
    let template =
        deployment.pinned_template.as_deref().filter(|_| desired.has_pods(Some(deployment), &[]))?;
    Some(defaults.or_pinned(&serde_json::from_str(template).ok()?))
}

/// Whether the Deployment was rendered for a newer spec than the one that is observed.
pub(super) fn is_behind(observed: &Observed) -> bool {
    let rendered =
        observed.deployment.as_ref().and_then(|deployment| deployment.generation.as_deref()?.parse().ok());
    rendered > observed.dispatcher.metadata.generation
}

/// See `DesiredTemplate::restores_older`.
pub(super) fn restores_older(valid: &ValidDispatcher, observed: &Observed) -> bool {
    desired(valid, observed).restores_older(observed.deployment.as_ref(), &observed.older)
}

fn desired<'a>(valid: &'a ValidDispatcher, observed: &'a Observed) -> DesiredTemplate<'a> {
    let status = observed.dispatcher.status.as_ref();
    let status = status.filter(|status| status.observed_generation == valid.generation);
    let resolved = status.and_then(|status| status.resolved.as_ref());
    DesiredTemplate {
        spec_hash: &valid.spec_hash,
        generation: valid.generation.to_string(),
        refresh: valid.refresh.as_deref(),
        reported: resolved.and_then(|resolved| resolved.template.as_deref()),
    }
}
