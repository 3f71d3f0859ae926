//! The claim of the answers: what is made, and whether the claims of the spec can be used. Pure.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    aiinference::evaluation::{ModelEvaluation, Order},
    reasons,
};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use runtime::watch::cache::{controller_of, is_of_kind};
use workload::{
    Cause,
    views::claim::{self, ClaimView, Mounts},
};

use super::metadata::metadata;
use crate::{
    names,
    observe::Observed,
    validate::{Questions, ValidEvaluation},
};

/// Answers of ten thousand questions take a few megabytes.
const SIZE: &str = "1Gi";
/// The access mode with which a second pod does not start.
const ONE_POD: &str = "ReadWriteOncePod";
/// A claim of one node is enough: of two pods on two nodes, one waits for the end of the other.
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
    output
        .and_then(|name| of(name, "spec.output.claimName"))
        .or(of_sets)
        .or_else(|| of_one_pod(valid, observed))
        .or_else(|| foreign(valid, observed))
}

/// Two runs at a time mount the same claims.
fn of_one_pod(valid: &ValidEvaluation, observed: &Observed) -> Option<Cause> {
    if valid.evaluation.spec.order == Order::Sequential {
        return None;
    }
    let is_of_one = |claim: &&ClaimView| claim.access_modes.iter().all(|mode| mode == ONE_POD);
    let found = observed.claims.values().flatten().map(AsRef::as_ref);
    let claim = found.filter(|claim| !claim.access_modes.is_empty()).find(is_of_one)?;
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let message = format!(
        "PersistentVolumeClaim {}/{name} is {ONE_POD}, and two runs at a time mount it; create the evaluation again with \
         spec.order Sequential, or with another claim",
        valid.namespace
    );
    Some(Cause { reason: reasons::CLAIM_NOT_SHAREABLE, message })
}

/// Whether runs that go on side by side need the same node: a volume of theirs is mounted on one node at a time. A pod on another
/// node waits for the end of the other run.
pub(super) fn ties_to_a_node(valid: &ValidEvaluation, observed: &Observed) -> bool {
    let output = name(valid);
    let is_free = |(name, claim): (&String, &Option<Arc<ClaimView>>)| match claim {
        Some(claim) if *name == output => claim.is_writable_by_many(),
        Some(claim) => claim.is_shareable(),
        // The claim of the answers that is about to be created.
        None => false,
    };
    !observed.claims.iter().all(is_free)
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
        return Some(Cause { reason: reasons::WAITING, message });
    }
    let message = format!(
        "PersistentVolumeClaim {}/{name} exists and does not belong to this evaluation; to use it, create the evaluation with \
         spec.output.claimName, or delete the claim",
        valid.namespace
    );
    Some(Cause { reason: reasons::OWNERSHIP_CONFLICT, message })
}
