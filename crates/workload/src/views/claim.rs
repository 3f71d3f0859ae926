//! PersistentVolumeClaims: access modes, and why a claim cannot be used. Pure.

use std::collections::BTreeMap;

use api::{labels, reasons};
use k8s_openapi::{
    api::core::v1::PersistentVolumeClaim,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::Resource;
use serde::Deserialize;

use crate::{
    Cause,
    views::metadata::{Instance, narrow},
};

/// What a claim asks for, its phase, and for whom it was made.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = PersistentVolumeClaim)]
#[serde(from = "ClaimParts")]
pub struct ClaimView {
    pub metadata: ObjectMeta,
    /// `None` unless a controller of this project has made the claim.
    pub instance: Option<Instance>,
    /// Uid of the object that it was made for (`labels::MADE_FOR`).
    pub made_for: Option<String>,
    pub access_modes: Vec<String>,
    pub storage_class: Option<String>,
    /// The requested size.
    pub size: Option<Quantity>,
    pub phase: String,
}

/// The pods that mount a claim at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Mounts {
    pub count: i32,
    /// The field of the spec that is their number.
    pub field: &'static str,
}

/// Access modes that allow mounts on several nodes at a time.
const SHARED_MODES: [&str; 2] = ["ReadOnlyMany", "ReadWriteMany"];
/// The access mode that allows several pods to write.
const WRITTEN_MODE: &str = "ReadWriteMany";
const BOUND: &str = "Bound";
const LOST: &str = "Lost";
/// A longer annotation is no uid.
const LONGEST_UID: usize = 128;

impl ClaimView {
    /// Its name, uid and version, as preconditions of its deletion.
    pub fn identity(&self) -> PersistentVolumeClaim {
        let ObjectMeta { name, namespace, uid, resource_version, .. } = self.metadata.clone();
        PersistentVolumeClaim {
            metadata: ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() },
            ..PersistentVolumeClaim::default()
        }
    }

    /// Whether it has a volume.
    pub fn is_bound(&self) -> bool {
        self.phase == BOUND
    }

    /// Whether pods on several nodes may mount the claim at a time.
    pub fn is_shareable(&self) -> bool {
        self.access_modes.iter().any(|mode| SHARED_MODES.contains(&mode.as_str()))
    }

    /// Whether pods on several nodes may write to the claim at a time.
    pub fn is_writable_by_many(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == WRITTEN_MODE)
    }
}

/// Why pods cannot use a claim that they read. A Pending claim is no fault: with `WaitForFirstConsumer` it is bound when the
/// first pod is scheduled. `field`: the field that names the claim.
pub fn fault(claim: Option<&ClaimView>, named: (&str, &str), field: &str, mounts: Mounts) -> Option<Cause> {
    let claim = match usable(claim, named, field) {
        Ok(claim) => claim,
        Err(cause) => return Some(cause),
    };
    let (Mounts { count, field }, (namespace, name)) = (mounts, named);
    (count > 1 && !claim.is_shareable()).then(|| {
        let (modes, wanted) = (claim.access_modes.join(" and "), SHARED_MODES.join(" or "));
        let message = format!(
            "PersistentVolumeClaim {namespace}/{name} is {modes}; {count} {field} need {wanted}: set {field} to 1, or use such a claim"
        );
        Cause { reason: reasons::CLAIM_NOT_SHAREABLE, message }
    })
}

/// As `fault`, of a claim that all its pods write to.
pub fn fault_of_writers(
    claim: Option<&ClaimView>,
    named: (&str, &str),
    field: &str,
    mounts: Mounts,
) -> Option<Cause> {
    let claim = match usable(claim, named, field) {
        Ok(claim) => claim,
        Err(cause) => return Some(cause),
    };
    let (Mounts { count, field }, (namespace, name)) = (mounts, named);
    (count > 1 && !claim.is_writable_by_many()).then(|| {
        let modes = claim.access_modes.join(" and ");
        let message = format!(
            "PersistentVolumeClaim {namespace}/{name} is {modes}, and {count} pods mount it, which needs {WRITTEN_MODE}: set \
             spec.{field} to 1, or use such a claim"
        );
        Cause { reason: reasons::CLAIM_NOT_SHAREABLE, message }
    })
}

/// The claim, unless no pod can use it.
fn usable<'c>(
    claim: Option<&'c ClaimView>,
    (namespace, name): (&str, &str),
    field: &str,
) -> Result<&'c ClaimView, Cause> {
    let not_found = |message| Cause { reason: reasons::CLAIM_NOT_FOUND, message };
    let Some(claim) = claim else {
        let message =
            format!("PersistentVolumeClaim {namespace}/{name} does not exist; create it, or change {field}");
        return Err(not_found(message));
    };
    if claim.phase == LOST {
        let message = format!(
            "PersistentVolumeClaim {namespace}/{name} has lost its volume; restore the volume, or replace the claim"
        );
        return Err(not_found(message));
    }
    Ok(claim)
}

/// That the claim is being deleted, for a message; `None`: it is not. Pods that mount it go on, and no new pod is scheduled
/// with it.
pub fn deletion(claim: &ClaimView) -> Option<String> {
    let deleted = claim.metadata.deletion_timestamp.as_ref()?.0;
    let [namespace, name] =
        [&claim.metadata.namespace, &claim.metadata.name].map(|text| text.as_deref().unwrap_or_default());
    let held = match claim.metadata.finalizers.as_deref().unwrap_or_default() {
        [] => String::new(),
        finalizers => format!(", held back by its finalizers ({})", finalizers.join(", ")),
    };
    Some(format!("PersistentVolumeClaim {namespace}/{name} is being deleted since {deleted}{held}"))
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
    storage_class_name: Option<String>,
    resources: ResourcesParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResourcesParts {
    requests: BTreeMap<String, Quantity>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimStatusParts {
    phase: String,
}

impl From<ClaimParts> for ClaimView {
    fn from(ClaimParts { metadata, mut spec, status }: ClaimParts) -> Self {
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(labels::MADE_FOR));
        let made_for = annotation.filter(|uid| uid.len() <= LONGEST_UID).cloned();
        let (metadata, instance) = narrow(metadata);
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                owner_references: metadata.owner_references,
                deletion_timestamp: metadata.deletion_timestamp,
                finalizers: metadata.finalizers,
                ..ObjectMeta::default()
            },
            instance,
            made_for,
            access_modes: spec.access_modes,
            storage_class: spec.storage_class_name,
            size: spec.resources.requests.remove("storage"),
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
        let mounts = Mounts { count: replicas, field: "replicas" };
        let cause = fault(claim.as_ref(), ("demo", "models"), "spec.modelSource", mounts);
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

    #[test]
    fn the_remedy_names_the_field_of_the_caller() {
        let claim: ClaimView =
            serde_saphyr::from_str("{metadata: {name: a}, spec: {accessModes: [ReadWriteOnce]}}").unwrap();
        let mounts = Mounts { count: 2, field: "nodes" };
        let message = fault(Some(&claim), ("demo", "a"), "spec.inputs", mounts).unwrap().message;
        assert!(message.contains("2 nodes need") && message.contains("set nodes to 1"), "{message}");
    }

    #[test]
    fn pods_that_write_need_a_claim_that_many_may_write_to() {
        let fault_with = |count: i32, modes: &str| {
            let text = format!("{{metadata: {{name: states}}, spec: {{accessModes: [{modes}]}}}}");
            let claim: ClaimView = serde_saphyr::from_str(&text).unwrap();
            let mounts = Mounts { count, field: "autoscaling.maxReplicas" };
            let field = "spec.checkpoint.claimName";
            fault_of_writers(Some(&claim), ("demo", "states"), field, mounts).map(|cause| cause.message)
        };
        let message = "PersistentVolumeClaim demo/states is ReadWriteOnce, and 3 pods mount it, which needs ReadWriteMany: set \
                       spec.autoscaling.maxReplicas to 1, or use such a claim";
        assert_eq!(fault_with(3, "ReadWriteOnce").as_deref(), Some(message));
        assert!(fault_with(3, "ReadOnlyMany").is_some() && fault_with(2, "ReadWriteOncePod").is_some());
        assert_eq!((fault_with(1, "ReadWriteOncePod"), fault_with(3, "ReadWriteMany")), (None, None));
        let mounts = Mounts { count: 1, field: "replicas" };
        let missing = fault_of_writers(None, ("demo", "states"), "spec.checkpoint.claimName", mounts);
        assert_eq!(missing.map(|cause| cause.reason), Some(reasons::CLAIM_NOT_FOUND));
    }

    #[test]
    fn what_a_claim_asks_for_and_whose_it_is_are_kept() {
        let text = "
metadata:
  {name: qwen-output, namespace: demo, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [kubernetes.io/pvc-protection],
   annotations: {ai.infra.example.com/made-for: u, other: x}}
spec: {storageClassName: fast, resources: {requests: {storage: 50Gi}}}
";
        let claim: ClaimView = serde_saphyr::from_str(text).unwrap();
        assert_eq!((claim.made_for.as_deref(), claim.storage_class.as_deref()), (Some("u"), Some("fast")));
        assert_eq!(claim.size.as_ref().map(|size| size.0.as_str()), Some("50Gi"));
        assert_eq!(
            deletion(&claim).as_deref(),
            Some(
                "PersistentVolumeClaim demo/qwen-output is being deleted since 2026-01-01T00:00:00Z, held back by its \
                 finalizers (kubernetes.io/pvc-protection)"
            )
        );
        assert!(
            claim.metadata.annotations.is_none() && claim.identity().metadata.deletion_timestamp.is_none()
        );
        let other: ClaimView = serde_saphyr::from_str("{metadata: {name: a}}").unwrap();
        assert_eq!((deletion(&other), other.made_for), (None, None));
    }
}
