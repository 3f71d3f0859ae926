//! Objects for the tests of this crate.

use api::trainingjob::TrainingJob;
use jiff::Timestamp;

/// A TrainingJob as the API server has it, with this spec in YAML.
pub(crate) fn job(name: &str, spec: &str) -> TrainingJob {
    let text = format!(
        "{{apiVersion: aistudio.modelscope.cn/v1alpha1, kind: TrainingJob, metadata: {{name: {name}, namespace: demo, \
         uid: uid-of-{name}, generation: 1, resourceVersion: '1', creationTimestamp: '{}'}}, spec: {spec}}}",
        at(0)
    );
    serde_saphyr::from_str(&text).unwrap()
}

/// A moment, in seconds after the start of the story.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}
