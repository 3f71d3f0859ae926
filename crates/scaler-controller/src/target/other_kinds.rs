//! Targets of kinds that are not watched, such as a Rollout: their scale is read with the samples, through rights that
//! an administrator adds. It decides nothing about replicas.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::labels;
use jiff::{SignedDuration, Timestamp};
use kube::{api::ApiResource, core::GroupVersionKind};
use runtime::{
    causes::with_causes,
    key::Key,
    write::{
        apply::ApplyError,
        scale::{Scaled, Scales},
    },
};
use tokio::time::timeout;

use super::Reference;

/// What the last reading of a scale has found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ScaleRead {
    Found {
        resource: ApiResource,
        scaled: Scaled,
    },
    /// There is no such scale: why, and the fix.
    Missing(String),
    /// It could not be read.
    Unknown(String),
}

/// Resources of kinds that were looked up, by version and kind.
#[derive(Default)]
pub(crate) struct Resources(Mutex<HashMap<GroupVersionKind, (Timestamp, ApiResource)>>);

/// A definition may be replaced by one with another plural.
const KEPT: SignedDuration = SignedDuration::from_mins(10);
/// Kinds with replicas in one cluster; more than a few are typing errors of users.
const MOST: usize = 64;

impl Resources {
    fn known(&self, kind: &GroupVersionKind, now: Timestamp) -> Option<ApiResource> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, resource) = all.get(kind)?;
        (now.duration_since(*at) < KEPT).then(|| resource.clone())
    }

    pub(crate) fn keep(&self, kind: &GroupVersionKind, resource: &ApiResource, now: Timestamp) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (at, _)| now.duration_since(*at) < KEPT);
        if all.len() < MOST {
            all.insert(kind.clone(), (now, resource.clone()));
        }
    }
}

/// Of the look-up of the kind and the reading together: sources are read afterwards.
const DEADLINE: Duration = Duration::from_secs(4);

/// Reads the scale of an object of any kind.
pub(crate) async fn read(
    scales: &Scales,
    resources: &Resources,
    namespace: &str,
    reference: &Reference,
    now: Timestamp,
) -> ScaleRead {
    timeout(DEADLINE, read_whole(scales, resources, namespace, reference, now)).await.unwrap_or_else(|_| {
        let limit = DEADLINE.as_secs();
        ScaleRead::Unknown(format!("the scale of {reference} was not read within {limit} s"))
    })
}

async fn read_whole(
    scales: &Scales,
    resources: &Resources,
    namespace: &str,
    reference: &Reference,
    now: Timestamp,
) -> ScaleRead {
    let Reference { api_version, kind, name } = reference;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = GroupVersionKind::gvk(group, version, kind);
    let resource = match resources.known(&kind, now) {
        Some(resource) => resource,
        None => match scales.resource(&kind).await {
            Ok(Some(resource)) => {
                resources.keep(&kind, &resource, now);
                resource
            }
            Ok(None) => {
                return ScaleRead::Missing(format!(
                    "the API server serves no kind {} of {api_version}; correct targetRef, or install it",
                    kind.kind
                ));
            }
            Err(error) => {
                let why = with_causes(&error);
                return ScaleRead::Unknown(format!(
                    "kind {} of {api_version} cannot be looked up: {why}",
                    kind.kind
                ));
            }
        },
    };
    match scales.read(&resource, &Key::new(namespace, name)).await {
        Ok(Some(scaled)) => ScaleRead::Found { resource, scaled },
        Ok(None) => ScaleRead::Missing(format!(
            "{reference} does not exist in namespace {namespace}, or {} have no scale subresource; correct targetRef",
            plural_and_group(&resource)
        )),
        Err(error) if is_missing_right(&error) => ScaleRead::Missing(without_right("read", &resource)),
        Err(error) => {
            ScaleRead::Unknown(format!("the scale of {reference} cannot be read: {}", with_causes(&error)))
        }
    }
}

/// Whether the controller itself may not do this.
pub(crate) fn is_missing_right(error: &ApplyError) -> bool {
    match error {
        ApplyError::Call { source, .. } => {
            matches!(&**source, kube::Error::Api(status) if status.code == 403)
        }
        ApplyError::Stale { .. }
        | ApplyError::Leftover { .. }
        | ApplyError::Foreign { .. }
        | ApplyError::Render { .. }
        | ApplyError::Unowned { .. } => false,
    }
}

/// What an administrator has to add.
pub(crate) fn without_right(step: &str, resource: &ApiResource) -> String {
    let ApiResource { group, plural, .. } = resource;
    format!(
        "this controller may not {step} the scale of {}; create a ClusterRole with the label {}: \"true\" that allows \
         get and update of {plural}/scale in apiGroup \"{group}\"",
        plural_and_group(resource),
        labels::AGGREGATE_TO_SCALER
    )
}

fn plural_and_group(ApiResource { group, plural, .. }: &ApiResource) -> String {
    if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") }
}
