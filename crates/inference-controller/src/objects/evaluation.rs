//! ModelEvaluations, as far as a canary asks for one.

use api::aiinference::{
    AIInference,
    evaluation::{ModelEvaluation, ResolvedSide},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use runtime::key::Key;
use serde::Deserialize;

/// The phase with a verdict, and the one without.
pub(crate) const SUCCEEDED: &str = "Succeeded";
pub(crate) const FAILED: &str = "Failed";
/// The verdict that lets a candidate have requests.
pub(crate) const PASSED: &str = "Passed";

/// Only what is read here: other changes of a status start no reconcile, and fields of another release do not matter.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = ModelEvaluation)]
#[serde(from = "Parts")]
pub(crate) struct EvaluationView {
    pub(crate) metadata: ObjectMeta,
    pub(crate) phase: String,
    pub(crate) verdict: Option<String>,
    /// In percentage points, with its interval.
    pub(crate) difference: Option<String>,
    /// Of an evaluation that has failed.
    pub(crate) message: Option<String>,
    /// The model that was evaluated.
    pub(crate) candidate: Option<ResolvedSide>,
}

#[derive(Deserialize)]
struct Parts {
    metadata: ObjectMeta,
    #[serde(default)]
    status: StatusParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusParts {
    phase: String,
    verdict: Option<String>,
    difference: Option<String>,
    message: Option<String>,
    resolved: Option<ResolvedParts>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResolvedParts {
    candidate: Option<ResolvedSide>,
}

impl From<Parts> for EvaluationView {
    fn from(Parts { metadata, status }: Parts) -> Self {
        let ObjectMeta { name, namespace, uid, resource_version, deletion_timestamp, .. } = metadata;
        let metadata = ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            deletion_timestamp,
            ..ObjectMeta::default()
        };
        let StatusParts { phase, verdict, difference, message, resolved } = status;
        let message = message.filter(|_| phase == FAILED);
        let candidate = resolved.and_then(|resolved| resolved.candidate);
        Self { metadata, phase, verdict, difference, message, candidate }
    }
}

/// The evaluation that an AIInference asks for.
pub(crate) fn evaluation_key(inference: &AIInference) -> Option<Key> {
    let name = inference.spec.canary.as_ref()?.evaluation_name.as_deref()?;
    Some(Key::new(inference.metadata.namespace.as_deref()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_has_what_the_gate_reads_and_survives_fields_of_another_release() {
        let text = "{metadata: {name: nightly, namespace: demo, uid: u, labels: {a: b}}, spec: {order: Sideways}, status: \
                    {phase: Succeeded, verdict: Passed, message: long, resolved: {candidate: {modelSource: 's3://m', digest: \
                    'sha256:1', later: true}}, runs: {of: another release}}}";
        let view: EvaluationView = serde_saphyr::from_str(text).unwrap();
        assert_eq!((view.verdict.as_deref(), view.message.as_deref()), (Some(PASSED), None));
        assert_eq!(view.candidate.unwrap().digest.as_deref(), Some("sha256:1"));
        assert_eq!(view.metadata.labels, None);
        let unknown = text.replace("Succeeded", "Resting");
        assert_eq!(serde_saphyr::from_str::<EvaluationView>(&unknown).unwrap().phase, "Resting");
    }
}
