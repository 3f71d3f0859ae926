//! Whether the claim with the model will do. Pure.
//!
//! A claim that waits for its first consumer will be bound when the first pod is placed: nothing is wrong with it.

use api::reasons;

use super::faults::{About, Fault};
use crate::{
    observe::Observed,
    validate::{Source, ValidInference},
};

/// Of one node at a time; the modes of many are the two that the message names.
const SHAREABLE: [&str; 2] = ["ReadOnlyMany", "ReadWriteMany"];
const LOST: &str = "Lost";

pub(super) fn claim_fault(valid: &ValidInference, observed: &Observed) -> Option<Fault> {
    let claim = match &valid.source {
        Source::Claim { claim, path: _ } => claim,
        Source::Store { .. } => return None,
    };
    let fault = |reason, message| Some(Fault { about: About::ModelLoaded, reason, message });
    let Some(seen) = &observed.claim else {
        let message = format!(
            "there is no PersistentVolumeClaim \"{claim}\" in namespace {}; create it, or change spec.modelSource",
            valid.namespace
        );
        return fault(reasons::CLAIM_NOT_FOUND, message);
    };
    if seen.phase == LOST {
        let message = format!("claim {claim} has lost its volume; restore the volume, or replace the claim");
        return fault(reasons::CLAIM_NOT_FOUND, message);
    }
    let is_shareable = seen.access_modes.iter().any(|mode| SHAREABLE.contains(&mode.as_str()));
    if valid.replicas > 1 && !is_shareable {
        let modes = seen.access_modes.join(" and ");
        let message =
            format!("claim {claim} is {modes}; {} replicas need {}", valid.replicas, SHAREABLE.join(" or "));
        return fault(reasons::CLAIM_NOT_SHAREABLE, message);
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::{observe::ClaimView, tests::Scene, validate::validate};

    use super::*;

    fn fault(replicas: i32, claim: Option<&str>) -> Option<(&'static str, String)> {
        let mut scene = Scene::new("{modelSource: pvc://models/qwen, engine: vllm, gpu: {count: 1}}");
        scene.edit_spec(|spec| spec.replicas = replicas);
        scene.observe(|observed| {
            observed.claim = claim.map(|parts| {
                let parts = format!("{{metadata: {{name: models}}, {parts}}}");
                serde_saphyr::from_str::<ClaimView>(&parts).unwrap().into()
            });
        });
        let observed = scene.observed();
        let fault = claim_fault(&validate(&observed.model).unwrap(), &observed);
        fault.map(|Fault { about: _, reason, message }| (reason, message))
    }

    const ONE_NODE: Option<&str> = Some("spec: {accessModes: [ReadWriteOnce]}, status: {phase: Bound}");

    #[test]
    fn a_claim_that_is_not_there_is_named() {
        let (reason, message) = fault(1, None).unwrap();
        assert_eq!(reason, reasons::CLAIM_NOT_FOUND);
        assert!(
            message.starts_with("there is no PersistentVolumeClaim \"models\" in namespace demo"),
            "{message}"
        );
    }

    #[test]
    fn a_claim_of_one_node_serves_one_replica() {
        assert_eq!(fault(1, ONE_NODE), None);
        let message = "claim models is ReadWriteOnce; 2 replicas need ReadOnlyMany or ReadWriteMany";
        assert_eq!(fault(2, ONE_NODE), Some((reasons::CLAIM_NOT_SHAREABLE, message.to_owned())));
        assert_eq!(fault(2, Some("spec: {accessModes: [ReadWriteOnce, ReadOnlyMany]}")), None);
    }

    #[test]
    fn a_claim_that_waits_for_its_first_consumer_is_no_fault() {
        assert_eq!(fault(1, Some("spec: {accessModes: [ReadWriteMany]}, status: {phase: Pending}")), None);
    }

    #[test]
    fn a_claim_that_lost_its_volume_is_told() {
        let lost = fault(1, Some("spec: {accessModes: [ReadWriteMany]}, status: {phase: Lost}"));
        assert_eq!(lost.unwrap().0, reasons::CLAIM_NOT_FOUND);
    }
}
