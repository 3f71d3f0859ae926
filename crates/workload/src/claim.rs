//! PersistentVolumeClaims: access modes, and why a claim cannot be used. Pure.

use api::reasons;
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{
    Cause,
    metadata::{Instance, narrow},
};

/// The access modes and the phase of a claim.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = PersistentVolumeClaim)]
#[serde(from = "ClaimParts")]
pub struct ClaimView {
    pub metadata: ObjectMeta,
    /// `None` unless a controller of this project has made the claim.
    pub instance: Option<Instance>,
    pub access_modes: Vec<String>,
    pub phase: String,
}

/// Access modes that allow mounts on several nodes at a time.
const SHARED_MODES: [&str; 2] = ["ReadOnlyMany", "ReadWriteMany"];
const LOST: &str = "Lost";

impl ClaimView {
    /// Its name, uid and version, as preconditions of its deletion.
    pub fn identity(&self) -> PersistentVolumeClaim {
        PersistentVolumeClaim { metadata: self.metadata.clone(), ..PersistentVolumeClaim::default() }
    }

    /// Whether pods on several nodes may mount the claim at a time.
    pub fn is_shareable(&self) -> bool {
        self.access_modes.iter().any(|mode| SHARED_MODES.contains(&mode.as_str()))
    }
}

/// Why pods cannot use the claim. A Pending claim is no fault: with `WaitForFirstConsumer` it is bound when the first pod
/// is scheduled. `field`: the field that names the claim.
pub fn fault(
    claim: Option<&ClaimView>,
    (namespace, name): (&str, &str),
    field: &str,
    replicas: i32,
) -> Option<Cause> {
    let cause = |reason, message| Some(Cause { reason, message });
    let Some(claim) = claim else {
        let message =
            format!("PersistentVolumeClaim {namespace}/{name} does not exist; create it, or change {field}");
        return cause(reasons::CLAIM_NOT_FOUND, message);
    };
    if claim.phase == LOST {
        let message = format!(
            "PersistentVolumeClaim {namespace}/{name} has lost its volume; restore the volume, or replace the claim"
        );
        return cause(reasons::CLAIM_NOT_FOUND, message);
    }
    if replicas > 1 && !claim.is_shareable() {
        let (modes, wanted) = (claim.access_modes.join(" and "), SHARED_MODES.join(" or "));
        let message = format!(
            "PersistentVolumeClaim {namespace}/{name} is {modes}; {replicas} replicas need {wanted}: set replicas to 1, or use such a claim"
        );
        return cause(reasons::CLAIM_NOT_SHAREABLE, message);
    }
    None
}

#[derive(Deserialize)]
struct ClaimParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ClaimSpecParts,
    #[serde(default)]
    status: ClaimStatusParts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSpecParts {
    access_modes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimStatusParts {
    phase: String,
}

impl From<ClaimParts> for ClaimView {
    fn from(ClaimParts { metadata, spec, status }: ClaimParts) -> Self {
        let (metadata, instance) = narrow(metadata);
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                ..ObjectMeta::default()
            },
            instance,
            access_modes: spec.access_modes,
            phase: status.phase,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason_of(replicas: i32, claim: Option<&str>) -> Option<(&'static str, String)> {
        let claim = claim.map(|parts| {
            let parts = format!("{{metadata: {{name: models}}, {parts}}}");
            serde_saphyr::from_str::<ClaimView>(&parts).unwrap()
        });
        let cause = fault(claim.as_ref(), ("demo", "models"), "spec.modelSource", replicas);
        cause.map(|Cause { reason, message }| (reason, message))
    }

    const ONE_NODE: Option<&str> = Some("spec: {accessModes: [ReadWriteOnce]}, status: {phase: Bound}");

    #[test]
    fn a_missing_claim_is_named() {
        let (reason, message) = reason_of(1, None).unwrap();
        assert_eq!(reason, reasons::CLAIM_NOT_FOUND);
        assert_eq!(
            message,
            "PersistentVolumeClaim demo/models does not exist; create it, or change spec.modelSource"
        );
    }

    #[test]
    fn a_read_write_once_claim_supports_one_replica() {
        assert_eq!(reason_of(1, ONE_NODE), None);
        let message = "PersistentVolumeClaim demo/models is ReadWriteOnce; 2 replicas need ReadOnlyMany or ReadWriteMany: set \
                       replicas to 1, or use such a claim";
        assert_eq!(reason_of(2, ONE_NODE), Some((reasons::CLAIM_NOT_SHAREABLE, message.to_owned())));
        assert_eq!(reason_of(2, Some("spec: {accessModes: [ReadWriteOnce, ReadOnlyMany]}")), None);
    }

    #[test]
    fn a_pending_claim_is_no_fault() {
        let waiting = Some("spec: {accessModes: [ReadWriteMany]}, status: {phase: Pending}");
        assert_eq!(reason_of(1, waiting), None);
    }

    #[test]
    fn a_claim_that_lost_its_volume_cannot_be_used() {
        let lost = reason_of(1, Some("spec: {accessModes: [ReadWriteMany]}, status: {phase: Lost}"));
        assert_eq!(lost.unwrap().0, reasons::CLAIM_NOT_FOUND);
    }
}
