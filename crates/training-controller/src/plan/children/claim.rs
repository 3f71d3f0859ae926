//! The claim of the output: what is made, and whether one that is there can be used. It has no owner, so that nothing is lost
//! when the TrainingJob is deleted. Pure.

use std::collections::BTreeMap;

use api::{
    reasons,
    trainingjob::{AccessMode, TrainingJob, TrainingJobStatus},
};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use text::quantity::Bytes;
use workload::{
    Cause,
    views::claim::{ClaimView, deletion},
};

use super::metadata::metadata_of_kept;
use crate::{
    names,
    objects::training_job::has_begun,
    observe::Observed,
    validate::{Claim, ValidJob},
};

/// `None`: the user's own is used.
pub(crate) fn claim(valid: &ValidJob) -> Option<PersistentVolumeClaim> {
    let Claim::Made { name, size, class, mode } = &valid.output.claim else { return None };
    Some(PersistentVolumeClaim {
        metadata: metadata_of_kept(name.clone(), &valid.namespace, &valid.name, &valid.owner.uid),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![text(*mode).to_owned()]),
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

fn text(mode: AccessMode) -> &'static str {
    match mode {
        AccessMode::ReadWriteOnce => "ReadWriteOnce",
        AccessMode::ReadWriteMany => "ReadWriteMany",
    }
}

/// Whether the claim was made for a TrainingJob of this name: for this one, or for an earlier one.
pub(crate) fn is_of_name(claim: &ClaimView, name: &str) -> bool {
    claim.instance.as_ref().and_then(|instance| instance.of_kind(names::KIND)) == Some(name)
}

/// Whether a claim is to be made and is not there.
pub(crate) fn is_missing(valid: &ValidJob, observed: &Observed) -> bool {
    match &valid.output.claim {
        Claim::Existing(_) => false,
        Claim::Made { name, .. } => observed.claims.get(name).is_none_or(Option::is_none),
    }
}

/// Why the claim that is to be made cannot be the one of its name that is there.
pub(crate) fn conflict(valid: &ValidJob, claim: &ClaimView, job: &TrainingJob) -> Option<Cause> {
    let Claim::Made { name, size, class, mode } = &valid.output.claim else { return None };
    let named = format!("PersistentVolumeClaim {}/{name}", valid.namespace);
    // What an attempt has written is there, and the next one needs it.
    if !is_of_name(claim, &valid.name) && !has_begun(job) {
        let message = format!(
            "{named} exists and was not made for a TrainingJob of this name; to use it, create the TrainingJob with \
             spec.output.claimName {name}; else delete the claim, or give the TrainingJob another name"
        );
        return Some(Cause { reason: reasons::OWNERSHIP_CONFLICT, message });
    }
    if let Some(deleted) = deletion(claim) {
        let message = format!(
            "{deleted}; the next attempt starts with a new claim when this one is gone: end the pods that still mount it"
        );
        return Some(Cause { reason: reasons::UNSCHEDULABLE, message });
    }
    if claim.is_bound() {
        return None;
    }
    let differs = [
        difference("storage class", claim.storage_class.as_deref(), class.as_deref(), |is, wanted| {
            is == wanted
        }),
        difference("size", amount(claim.size.as_ref()), amount(Some(size)), text::quantity::is_same),
        difference(
            "access mode",
            claim.access_modes.first().map(String::as_str),
            Some(text(*mode)),
            |_, wanted| claim.access_modes.iter().any(|mode| mode == wanted),
        ),
    ];
    let differs: Vec<String> = differs.into_iter().flatten().collect();
    (!differs.is_empty()).then(|| Cause {
        reason: reasons::CLAIM_DIFFERS,
        message: format!(
            "{named} of an earlier TrainingJob of this name has no volume yet, and {}; delete the claim if its data is not \
             needed: it is made anew",
            differs.join(", and ")
        ),
    })
}

/// `None`: the two are the same, or the spec leaves it to the cluster.
fn difference(
    what: &str,
    is: Option<&str>,
    wanted: Option<&str>,
    is_same: impl Fn(&str, &str) -> bool,
) -> Option<String> {
    let wanted = wanted?;
    let is_other = is.is_none_or(|is| !is_same(is, wanted));
    is_other.then(|| format!("its {what} is {}, where the spec has {wanted}", is.unwrap_or("not set")))
}

fn amount(size: Option<&Quantity>) -> Option<&str> {
    size.map(|size| size.0.as_str())
}

/// That the output has less space than the spec asks for, because the claim of an earlier job is used as it is.
pub(crate) fn shortage(valid: &ValidJob, observed: &Observed) -> Option<String> {
    let Claim::Made { name, size, .. } = &valid.output.claim else { return None };
    let claim = observed.claims.get(name)?.as_ref().filter(|claim| claim.is_bound())?;
    let has = amount(claim.size.as_ref())?;
    text::quantity::is_less(has, &size.0).then(|| {
        format!(
            "PersistentVolumeClaim {}/{name} is used as an earlier TrainingJob of this name has left it: it has {has}, where \
             the spec has {}; raise its request if that is too little",
            valid.namespace, size.0
        )
    })
}

/// Whether the claim of the output asks for more than when its volume was full.
pub(crate) fn has_grown(valid: &ValidJob, observed: &Observed, status: &TrainingJobStatus) -> bool {
    let was = status.failure.as_ref().and_then(|failure| Bytes::parse(failure.output_size.as_ref()?));
    let is = output_size(valid, observed).and_then(|size| Bytes::parse(&size));
    was.zip(is).is_some_and(|(was, is)| is > was)
}

/// What the claim of the output asks for.
pub(crate) fn output_size(valid: &ValidJob, observed: &Observed) -> Option<String> {
    let claim = observed.claims.get(valid.output.claim.name())?.as_ref()?;
    claim.size.as_ref().map(|size| size.0.clone())
}
