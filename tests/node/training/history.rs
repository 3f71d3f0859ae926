//! What the stand-in for ms-swift has written into the claim of the output: each start, each step, and the checkpoints.

use std::{fs, path::PathBuf};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tests::{Scene, ask_until, wait_for, within};

use crate::store::settings;

const STEPS: &str = "steps";
const STARTS: &str = "starts";

/// The folder of a job's claim, on this machine.
pub(super) struct History {
    folder: PathBuf,
}

/// The start of one rank.
#[derive(Debug, Deserialize)]
pub(super) struct Start {
    pub(super) arguments: Vec<String>,
    pub(super) rank: u32,
    host: String,
    /// In seconds.
    pub(super) at: f64,
}

/// A step that one rank has done.
#[derive(Debug, Deserialize)]
pub(super) struct Step {
    pub(super) step: i64,
    pub(super) rank: u32,
    host: String,
    /// In seconds.
    pub(super) at: f64,
}

/// The environment with which the stand-in writes a history. Faults happen in the first attempt alone.
pub(super) fn environment(faults: &str) -> Value {
    settings([
        ("FAKE_SWIFT_ARGUMENTS", &format!("/output/{STARTS}")),
        ("FAKE_SWIFT_STEPS", &format!("/output/{STEPS}")),
        ("FAKE_SWIFT_RENDEZVOUS", "/output/.rendezvous"),
        ("FAKE_SWIFT_FAULTS", faults),
        ("FAKE_SWIFT_FAULTS_ONCE", "/output"),
    ])
}

impl History {
    /// Waits for the volume of the job's claim.
    pub(super) async fn of(scene: &Scene<'_>, job: &str) -> Self {
        let volume = |claim: &PersistentVolumeClaim| claim.spec.as_ref()?.volume_name.clone();
        let (claims, name) = (scene.api::<PersistentVolumeClaim>(), format!("{job}-output"));
        let claim = wait_for(&claims, &name, "bound", within(), |claim: &PersistentVolumeClaim| {
            volume(claim).is_some()
        })
        .await;
        Self { folder: scene.folder().root().join("volumes").join(volume(&claim).unwrap_or_default()) }
    }

    /// A file or folder of the claim.
    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.folder.join(below)
    }

    /// Waits until rank 0 has done this step in an attempt.
    pub(super) async fn until_step(&self, attempt: i32, step: i64) {
        ask_until(&format!("step {step} of attempt {attempt}"), within(), async || {
            let last = self.last_step(attempt, 0);
            last.filter(|last| *last >= step).map(drop).ok_or_else(|| format!("step {last:?}"))
        })
        .await;
    }

    pub(super) fn last_step(&self, attempt: i32, rank: u32) -> Option<i64> {
        self.steps_of(attempt, rank).last().map(|step| step.step)
    }

    pub(super) fn first_step(&self, attempt: i32, rank: u32) -> Option<i64> {
        self.steps_of(attempt, rank).first().map(|step| step.step)
    }

    /// In the order in which they were done.
    pub(super) fn steps_of(&self, attempt: i32, rank: u32) -> Vec<Step> {
        let steps = self.lines(STEPS).into_iter();
        steps.filter(|step: &Step| step.attempt() == attempt && step.rank == rank).collect()
    }

    /// The ranks of an attempt.
    pub(super) fn starts_of(&self, attempt: i32) -> Vec<Start> {
        let mut starts: Vec<Start> =
            self.lines(STARTS).into_iter().filter(|start: &Start| start.attempt() == attempt).collect();
        starts.sort_by_key(|start| start.rank);
        starts
    }

    /// The step that a checkpoint's state names; `None`: there is no complete one.
    pub(super) fn checkpoint(&self, step: i64) -> Option<i64> {
        let state =
            fs::read_to_string(self.folder.join(format!("checkpoint-{step}/trainer_state.json"))).ok()?;
        // Python writes NaN, which is no JSON.
        let state: Value = serde_json::from_str(&state.replace("NaN", "null")).ok()?;
        state["global_step"].as_i64()
    }

    fn lines<T: DeserializeOwned>(&self, file: &str) -> Vec<T> {
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        // The last line may be incomplete.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl Start {
    fn attempt(&self) -> i32 {
        attempt_of(&self.host)
    }

    /// The value of a flag. The last one counts.
    pub(super) fn value(&self, flag: &str) -> Option<&str> {
        let at = self.arguments.iter().rposition(|argument| argument == flag)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// The checkpoint from which it resumes.
    pub(super) fn resumed(&self) -> Option<&str> {
        self.value("--resume_from_checkpoint")
    }
}

impl Step {
    fn attempt(&self) -> i32 {
        attempt_of(&self.host)
    }
}

/// Host names are `<job>-<attempt>-<rank>`.
fn attempt_of(host: &str) -> i32 {
    host.rsplit('-').nth(1).and_then(|attempt| attempt.parse().ok()).unwrap_or_default()
}
