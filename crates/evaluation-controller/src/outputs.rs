//! What TrainingJobs write, and how it is served. Pure but for the index of outputs.
//!
//! A path equal to, or below, the outputDir that a TrainingJob sets explicitly is a part of its result. The longest outputDir
//! decides; if two jobs have the same, none is chosen.

use std::sync::Arc;

use api::{
    aiinference::{
        evaluation::ResolvedSide,
        source::{Hub, ModelSource},
    },
    conditions,
    launcher::checkpoint_step,
    reasons,
    trainingjob::{self, DEFAULT_OUTPUT_DIR, Method, Phase, TrainingJob},
};
use runtime::{
    key::Key,
    watch::{cache::Cache, relations::Referrers},
};
use workload::{Cause, name};

use crate::validate::{Library, source};

/// More levels has no outputDir.
const DEEPEST: usize = 32;

/// The key of a job in the index of outputs; `None` for the default folder, which all jobs have that set none.
pub(crate) fn output_key(job: &TrainingJob) -> Option<Key> {
    let dir = job.spec.output_dir.trim_end_matches('/');
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    (dir != DEFAULT_OUTPUT_DIR).then(|| Key::new(namespace, dir))
}

/// The keys under which an output would have to be indexed to contain the path, from the longest on.
pub(crate) fn keys_of_path(namespace: &str, path: &str) -> Vec<Key> {
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    let prefixes = ends.filter_map(|end| path.get(..end)).filter(|prefix| !prefix.is_empty());
    let mut keys: Vec<Key> = prefixes.take(DEEPEST).map(|prefix| Key::new(namespace, prefix)).collect();
    keys.reverse();
    keys
}

/// The jobs that could write this path. Several: the choice would be arbitrary.
pub(crate) fn writers(
    jobs: &Cache<TrainingJob>,
    outputs: &Referrers,
    namespace: &str,
    path: &str,
) -> Vec<Arc<TrainingJob>> {
    let mut longest = keys_of_path(namespace, path).into_iter();
    let found = longest.find_map(|key| Some(outputs.of_key(&key)).filter(|jobs| !jobs.is_empty()));
    found.unwrap_or_default().iter().filter_map(|key| jobs.get(key)).collect()
}

/// The model at this path, or why there is none yet. `field`: the field of the spec that has the path.
pub(crate) fn model(
    writers: &[Arc<TrainingJob>],
    path: &str,
    field: &str,
    library: Option<&Library>,
) -> Result<ResolvedSide, Cause> {
    let job = match writers {
        [job] => job,
        [] => {
            let message = format!(
                "{field}: no TrainingJob has an outputDir that contains {path}; create that job, or write the model as \
                 pvc://claim/path"
            );
            return Err(Cause { reason: reasons::DEPENDENCY_NOT_FOUND, message });
        }
        [one, other, ..] => {
            let message = format!(
                "{field}: the outputs of the TrainingJobs {} and {} both contain {path}; write the model as pvc://claim/path, or \
                 delete the job that is not meant",
                name(one),
                name(other)
            );
            return Err(Cause { reason: reasons::AMBIGUOUS_DEPENDENCY, message });
        }
    };
    let status = job.status.as_ref();
    // The result is in the claim, whatever becomes of its upload.
    let is_uploading = status
        .is_some_and(|status| status.conditions.iter().any(|known| known.type_ == conditions::UPLOADED));
    match status.and_then(|status| status.phase) {
        Some(Phase::Succeeded) => result(job, path, field, library),
        _ if is_uploading => result(job, path, field, library),
        Some(Phase::Failed) => {
            let why = status.and_then(|status| status.message.as_deref()).unwrap_or_default();
            let message = format!("TrainingJob {} has failed: {why}", name(job));
            Err(Cause { reason: reasons::DEPENDENCY_FAILED, message })
        }
        phase @ (Some(Phase::Pending | Phase::Running) | None) => {
            let phase = if phase == Some(Phase::Running) { "running" } else { "pending" };
            let message = format!("waits for TrainingJob {}, which is {phase}", name(job));
            Err(Cause { reason: reasons::WAITING, message })
        }
    }
}

/// What a succeeded job has left at this path.
fn result(
    job: &TrainingJob,
    path: &str,
    field: &str,
    library: Option<&Library>,
) -> Result<ResolvedSide, Cause> {
    let dir = job.spec.output_dir.trim_end_matches('/');
    let checkpoint = job.status.as_ref().and_then(|status| status.checkpoint.as_ref());
    // A path below outputDir is meant as it is.
    let is_whole = path == dir;
    let wanted = checkpoint.map_or(dir, |last| last.path.as_str());
    let wanted = if is_whole { wanted } else { path };
    let output = job.spec.output.clone().unwrap_or_default();
    let mount = output.mount_path.as_deref().unwrap_or(dir);
    let claim = output.claim_name.unwrap_or_else(|| name::with_suffix(&name(job), "-output"));
    let unsupported =
        |why: String| Cause { reason: reasons::UNSUPPORTED_ARTIFACT, message: format!("{field}: {why}") };
    let of_claim = |claim: &str, mount: &str, path: &str| -> Result<ModelSource, Cause> {
        let below = path.strip_prefix(mount.trim_end_matches('/')).unwrap_or_default();
        let text = format!("pvc://{claim}/{}", below.trim_start_matches('/'));
        text.parse().map_err(|error: api::aiinference::source::InvalidSource| unsupported(error.to_string()))
    };
    let written = of_claim(&claim, mount, wanted)?;
    let of_job = ResolvedSide {
        training_job: Some(name(job)),
        training_job_uid: job.metadata.uid.clone(),
        ..ResolvedSide::default()
    };
    let is_checkpoint = wanted.rsplit('/').next().is_some_and(|last| checkpoint_step(last).is_some());
    if !(trains_adapters(job.spec.method) && (is_whole || is_checkpoint)) {
        return Ok(ResolvedSide { model_source: written.to_string(), ..of_job });
    }
    let resolved = job.status.as_ref().and_then(|status| status.resolved.as_ref());
    let base = resolved.map(|resolved| resolved.model.as_str()).filter(|model| !model.is_empty());
    let base = base.unwrap_or(&job.spec.model);
    let base = if base.starts_with('/') {
        let mounts = mounts(job);
        let mounted = mounts.iter().find(|(_, mount)| is_below(base, mount));
        let Some((claim, mount)) = mounted else {
            return Err(unsupported(format!(
                "TrainingJob {} has trained LoRA adapters on {base}, which is in its image; merge them (swift export \
                 --merge_lora true) and write the merged model as pvc://claim/path",
                name(job)
            )));
        };
        of_claim(claim, mount, base)?
    } else {
        let text = match job.spec.hub {
            trainingjob::Hub::Modelscope => base.to_owned(),
            trainingjob::Hub::Huggingface => format!("{}{base}", Hub::HuggingFace.scheme()),
        };
        source(&text, library).map_err(|error| unsupported(error.to_string()))?
    };
    Ok(ResolvedSide { model_source: base.to_string(), adapters: Some(written.to_string()), ..of_job })
}

/// Claims that a job has mounted, each with where.
fn mounts(job: &TrainingJob) -> Vec<(String, String)> {
    let inputs = job.spec.inputs.iter().map(|input| {
        let below = input.sub_path.as_deref().map(|path| format!("/{path}")).unwrap_or_default();
        (format!("{}{below}", input.claim_name), input.mount_path.clone())
    });
    let dependencies = job.status.iter().flat_map(|status| &status.dependencies);
    let results = dependencies.filter_map(|dependency| dependency.result.as_ref());
    inputs.chain(results.map(|result| (result.claim_name.clone(), result.mount_path.clone()))).collect()
}

fn trains_adapters(method: Method) -> bool {
    match method {
        Method::Lora | Method::Qlora | Method::Dpo | Method::Ppo => true,
        Method::Full => false,
    }
}

/// Whether an absolute path equals the folder or lies below it.
fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn name(job: &TrainingJob) -> String {
    job.metadata.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: &Value, status: &Value) -> Arc<TrainingJob> {
        let mut whole = json!({"model": "qwen/Qwen-7B", "dataset": "d", "method": "qlora", "outputDir": "/checkpoints/v2"});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let job = json!({
            "apiVersion": "aistudio.modelscope.cn/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "qlora", "namespace": "demo", "uid": "t"}, "spec": whole, "status": status,
        });
        Arc::new(serde_json::from_value(job).unwrap())
    }

    fn succeeded() -> Value {
        json!({"phase": "Succeeded", "checkpoint": {"path": "/checkpoints/v2/checkpoint-40", "step": 40}})
    }

    fn of(spec: &Value, path: &str) -> Result<(String, Option<String>), &'static str> {
        let found = model(&[job(spec, &succeeded())], path, "spec.candidateModel", None);
        found.map(|side| (side.model_source, side.adapters)).map_err(|cause| cause.reason)
    }

    #[test]
    fn adapters_are_served_on_the_base_of_their_training() {
        let adapters = |source: &str, folder: &str| Ok((source.to_owned(), Some(folder.to_owned())));
        let own = "pvc://qlora-output/checkpoint-40";
        assert_eq!(of(&json!({}), "/checkpoints/v2"), adapters("ms://qwen/Qwen-7B", own));
        assert_eq!(of(&json!({"hub": "huggingface"}), "/checkpoints/v2"), adapters("hf://qwen/Qwen-7B", own));
        let input = json!({"model": "/models/base", "inputs": [{"claimName": "m", "subPath": "x", "mountPath": "/models"}]});
        assert_eq!(of(&input, "/checkpoints/v2"), adapters("pvc://m/x/base", own));
        let in_image = json!({"model": "/models/base", "modelInImage": true});
        assert_eq!(of(&in_image, "/checkpoints/v2"), Err(reasons::UNSUPPORTED_ARTIFACT));
    }

    #[test]
    fn a_whole_model_and_a_folder_below_are_served_from_the_claim() {
        let whole = |folder: &str| Ok((folder.to_owned(), None));
        assert_eq!(
            of(&json!({"method": "full"}), "/checkpoints/v2"),
            whole("pvc://qlora-output/checkpoint-40")
        );
        assert_eq!(of(&json!({}), "/checkpoints/v2/merged"), whole("pvc://qlora-output/merged"));
        let output = json!({"method": "full", "output": {"claimName": "all", "mountPath": "/checkpoints"}});
        assert_eq!(of(&output, "/checkpoints/v2"), whole("pvc://all/v2/checkpoint-40"));
    }

    #[test]
    fn a_job_that_has_not_succeeded_is_awaited_or_named() {
        let why = |writers: &[Arc<TrainingJob>]| {
            model(writers, "/checkpoints/v2", "spec.candidateModel", None).unwrap_err()
        };
        let of_phase = |phase: &str| job(&json!({}), &json!({"phase": phase, "message": "no GPU"}));
        assert_eq!(why(&[of_phase("Running")]).message, "waits for TrainingJob qlora, which is running");
        assert_eq!(why(&[of_phase("Failed")]).reason, reasons::DEPENDENCY_FAILED);
        assert_eq!(why(&[]).reason, reasons::DEPENDENCY_NOT_FOUND);
        assert_eq!(why(&[of_phase("Running"), of_phase("Running")]).reason, reasons::AMBIGUOUS_DEPENDENCY);
    }

    #[test]
    fn the_longest_output_decides_and_the_default_folder_is_no_key() {
        let names: Vec<String> =
            keys_of_path("demo", "/a/b").iter().map(|key| key.name.to_string()).collect();
        assert_eq!(names, ["/a/b", "/a"]);
        assert_eq!(output_key(&job(&json!({"outputDir": "/output"}), &json!({}))), None);
    }
}
