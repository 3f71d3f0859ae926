//! The claim of the output. It has no owner, so that nothing is lost when the TrainingJob is deleted. Pure.

use std::collections::BTreeMap;

use api::trainingjob::AccessMode;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};

use super::metadata::metadata_without_owner;
use crate::validate::{Claim, ValidJob};

/// `None`: the user's own is used.
pub(super) fn claim(valid: &ValidJob) -> Option<PersistentVolumeClaim> {
    let Claim::Made { name, size, class, mode } = &valid.output.claim else { return None };
    let mode = match mode {
        AccessMode::ReadWriteOnce => "ReadWriteOnce",
        AccessMode::ReadWriteMany => "ReadWriteMany",
    };
    Some(PersistentVolumeClaim {
        metadata: metadata_without_owner(valid, name.clone()),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![mode.to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size.clone())])),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: class.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    })
}
