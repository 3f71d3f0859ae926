//! The claim of the answers: what is made, and whether the claims of the spec can be used. Pure.

use std::collections::BTreeMap;

use api::aiinference::evaluation::ModelEvaluation;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use runtime::watch::cache::{controller_of, is_of_kind};
use workload::{
    Cause,
    views::claim::{self, Mounts},
};

use super::metadata::metadata;
use crate::{
    names,
    observe::Observed,
    validate::{Questions, ValidEvaluation},
};

/// Answers of ten thousand questions take a few megabytes.
const SIZE: &str = "1Gi";
/// One pod at a time mounts a claim.
const ONE: Mounts = Mounts { count: 1, field: "pod" };

/// `None`: the user's own is used.
pub(super) fn claim(valid: &ValidEvaluation) -> Option<PersistentVolumeClaim> {
    let output = valid.evaluation.spec.output.clone().unwrap_or_default();
    if output.claim_name.is_some() {
        return None;
    }
    let size = output.size.unwrap_or_else(|| Quantity(SIZE.to_owned()));
    Some(PersistentVolumeClaim {
        metadata: metadata(valid, names::claim(&valid.name)),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size)])),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: output.storage_class_name,
            ..PersistentVolumeClaimSpec::default()
        }),
        ..PersistentVolumeClaim::default()
    })
}

/// The name of the claim that is used.
pub(super) fn name(valid: &ValidEvaluation) -> String {
    let output = valid.evaluation.spec.output.as_ref();
    output.and_then(|output| output.claim_name.clone()).unwrap_or_else(|| names::claim(&valid.name))
}

pub(super) fn is_missing(valid: &ValidEvaluation, observed: &Observed) -> bool {
    observed.claims.get(&name(valid)).is_none_or(Option::is_none)
}

/// Why a claim of the spec cannot be used. One that is made and not there yet is no fault.
pub(super) fn fault(valid: &ValidEvaluation, observed: &Observed) -> Option<Cause> {
    let of = |name: &str, field: &str| {
        let known = observed.claims.get(name).and_then(Option::as_deref);
        claim::fault(known, (&valid.namespace, name), field, ONE)
    };
    let output = valid.evaluation.spec.output.as_ref().and_then(|output| output.claim_name.as_deref());
    let of_sets = valid.sets.iter().enumerate().find_map(|(index, set)| match &set.questions {
        Questions::Claim { claim, .. } => of(claim, &format!("spec.testSets[{index}].claimName")),
        Questions::Image(_) | Questions::Online => None,
    });
    output.and_then(|name| of(name, "spec.output.claimName")).or(of_sets).or_else(|| foreign(valid, observed))
}

/// A claim of the name that is to be made, of another owner: its data is not ours.
fn foreign(valid: &ValidEvaluation, observed: &Observed) -> Option<Cause> {
    if valid.evaluation.spec.output.as_ref().is_some_and(|output| output.claim_name.is_some()) {
        return None;
    }
    let name = name(valid);
    let claim = observed.claims.get(&name)?.as_deref()?;
    let owner = controller_of(claim);
    if owner.is_some_and(|owner| owner.uid == valid.owner.uid) {
        return None;
    }
    if owner.is_some_and(|owner| is_of_kind::<ModelEvaluation>(owner) && owner.name == valid.name) {
        // The garbage collector deletes it, and its end starts the next reconcile.
        let message = format!("waits until PersistentVolumeClaim {name} of a deleted evaluation has gone");
        return Some(Cause { reason: api::reasons::WAITING, message });
    }
    let message = format!(
        "PersistentVolumeClaim {}/{name} exists and does not belong to this evaluation; to use it, create the evaluation with \
         spec.output.claimName, or delete the claim",
        valid.namespace
    );
    Some(Cause { reason: api::reasons::OWNERSHIP_CONFLICT, message })
}
