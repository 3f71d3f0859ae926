//! The status of a ModelEvaluation. Fractions are decimal strings.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{pods::store::Artifact, schema};

/// Observed state. A new object has the default until the controller has processed it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ModelEvaluationStatus {
    /// Pending: a model does not exist yet, or the evaluation is suspended. Preparing: a server starts. Running: questions are
    /// asked. Comparing: the answers are paired. Succeeded: there is a verdict, also Regressed. Failed: there is none; reason and message say why.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "schema::known")]
    #[schemars(with = "String", length(max = 64))]
    pub phase: Option<Phase>,

    /// Passed: the candidate is not worse than the budget allows. Regressed: it is. Inconclusive: the questions are too few to
    /// tell; results has the number that is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub verdict: Option<String>,

    /// Difference between candidate and baseline in percentage points with its interval, of the worst test set, such as
    /// `-0.35 [-0.84, +0.14]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub difference: Option<String>,

    /// One sentence on each test set, such as `cmmlu -0.35 [-0.84, +0.14], budget 1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub summary: Option<String>,

    /// Names of the test sets, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub test_sets: Option<String>,

    /// Reason of the condition that explains the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,

    /// Message of the condition that explains the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub message: Option<String>,

    /// When the first server or run was created, after the last suspend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the evaluation succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,

    /// What the names of the spec mean. It stays once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,

    /// Finished runs: one model on one test set. They are not repeated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub runs: Vec<Run>,

    /// Counts and verdict of each test set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub results: Vec<TestSetResult>,

    /// The baseline against itself. Absent without spec.nullControl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub null_control: Option<NullControl>,

    /// Uploaded files, at most 64: the manifest, then the largest files. Absent without output.uri, and before the upload has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub artifacts: Vec<Artifact>,

    /// Digest of the fields of the store that has taken a small object before the verdict. Absent without output.uri, and until
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub checked_store: Option<String>,

    /// Generation of the spec that this status refers to. 0 until the controller has processed the object.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,

    /// Accepted, ServersReady, Evaluated, Compared, Complete and Failed; Uploaded with output.uri;
    /// Reconciling and Stalled only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Summary of the conditions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Preparing,
    Running,
    Comparing,
    Succeeded,
    Failed,
}

/// What the names of a spec mean.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// Image with EvalScope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub evalscope_image: Option<String>,

    /// Image with lm-eval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub lm_eval_image: Option<String>,

    /// The baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<ResolvedSide>,

    /// The candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<ResolvedSide>,
}

/// One of the two models.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedSide {
    /// Location of the weights, as in modelSource of an AIInference. Empty for an endpoint.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub model_source: String,

    /// LoRA adapters on that model: a folder of a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub adapters: Option<String>,

    /// TrainingJob that has written the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub training_job: Option<String>,

    /// uid of that TrainingJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub training_job_uid: Option<String>,

    /// AIInference that serves the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub inference: Option<String>,

    /// uid of that AIInference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub inference_uid: Option<String>,

    /// Digest of the files of the model, as the AIInference has reported it when the first run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub digest: Option<String>,

    /// Revision of a model of a hub, as the AIInference has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub revision: Option<String>,

    /// URL of the OpenAI API, without its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub url: Option<String>,
}

/// A finished run.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// baseline, control (the baseline once more) or candidate.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub side: String,

    /// Name of the test set.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub test_set: String,

    /// Number of questions.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub questions: i64,

    /// Requests without an answer. They count as wrong.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub failed: i64,

    /// Answers in which the harness found no choice. Many of them on one side are most often a wrong chat template.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub unparsed: i64,

    /// Whether the number of questions could not be checked: neither the harness nor the files of the test set say how many there
    /// are. Then answers may be missing.
    #[serde(default)]
    pub unchecked: bool,

    /// Metric of the harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub metric: Option<String>,

    /// Harness and its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub harness: Option<String>,

    /// When the run was seen to have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
}

/// Counts and verdict of a test set.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TestSetResult {
    /// Name of the test set.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub test_set: String,

    /// Questions that both models were asked.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub n: i64,

    /// Metric of the harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub metric: Option<String>,

    /// Questions that both answered right. Absent, as the next two are, if answers are not only right or wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub both_right: Option<i64>,

    /// Questions that only the baseline answered right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub only_baseline: Option<i64>,

    /// Questions that only the candidate answered right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub only_candidate: Option<i64>,

    /// Right answers of the baseline in percent.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub baseline: String,

    /// Right answers of the candidate in percent.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub candidate: String,

    /// Candidate minus baseline in percentage points.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub difference: String,

    /// Lower end of the interval of the difference, in percentage points.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub low: String,

    /// Upper end of the interval of the difference, in percentage points.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub high: String,

    /// Probability of a loss as large as this one if both models were equally good (McNemar, exact, one-sided).
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub p_value: String,

    /// Loss that is still acceptable, in percentage points.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub budget: String,

    /// Questions that a verdict other than Inconclusive would probably need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub needed: Option<i64>,

    /// Passed, Regressed or Inconclusive.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub verdict: String,

    /// Whether the score of the candidate may be below the minimum of the set.
    #[serde(default)]
    pub below_minimum: bool,
}

/// The baseline against itself.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NullControl {
    /// Questions that were asked twice.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub n: i64,

    /// Questions of which only one of the two answers was right. Absent if answers are not only right or wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub flips: Option<i64>,

    /// Whether the second time was so much worse or better that no verdict can rest on such answers.
    #[serde(default)]
    pub unstable: bool,
}
