//! The Job that uploads the result, when the GPUs of the training have been given back. Pure.
//!
//! It is retried alone: the training is never repeated for it. What is uploaded already is not sent again.

use std::{collections::BTreeMap, time::Duration};

use api::{
    conditions,
    loader::{ExitCode, Uploaded},
    reasons,
    trainingjob::{Artifact, Upload},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::{
            Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
        },
        core::v1::{
            Container, EnvVar, EnvVarSource, LocalObjectReference, PersistentVolumeClaimVolumeSource,
            PodSpec, PodTemplateSpec, ResourceRequirements, SecretKeySelector, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use runtime::conditions::Verdict;
use workload::{
    container::quote,
    pod::PodView,
    template::{container_security, literal, mount, non_empty, pod_security},
    time::remaining,
};

use super::{
    defaults::Defaults,
    metadata::{metadata, pod_labels},
    stage::PODS_ARE_SEEN_WITHIN,
};
use crate::{job_view::JobView, names, validate::ValidJob};

/// Name of the only container.
const UPLOADER: &str = "uploader";
const VOLUME: &str = "output";
/// With pauses of 10 s, 20 s and so on up to six minutes: half an hour.
const RETRIES: i32 = 8;
/// Of one try; the next one continues.
const TIMEOUT_SECONDS: i64 = 86_400;
const DEFAULT_REGION: &str = "us-east-1";
/// Artifacts in the status.
const MOST_ARTIFACTS: usize = 64;

/// How the upload stands.
#[derive(Debug)]
pub(super) enum State {
    /// The Job has to be created.
    Missing,
    Running(Verdict),
    /// It has ended, and what it reports has not been seen yet.
    Unread(Verdict, Duration),
    Done(Verdict, Vec<Artifact>),
    Failed(Verdict),
}

pub(super) fn state(upload: &Upload, job: Option<&JobView>, pods: &[&PodView], now: Timestamp) -> State {
    let Some(job) = job else { return State::Missing };
    if let Some(completed) = job.completed {
        let report = pods.iter().find_map(|pod| report(pod));
        if report.is_none()
            && let Some(wait) = remaining(PODS_ARE_SEEN_WITHIN, completed, now)
        {
            return State::Unread(beginning(upload), wait);
        }
        let message = match &report {
            Some(Uploaded { count, bytes, .. }) => format!("{count} files, {bytes} bytes, to {}", upload.uri),
            None => format!(
                "to {}; SHA256SUMS there names the files (the pod was deleted before its report was read)",
                upload.uri
            ),
        };
        let report = report.unwrap_or_default();
        let verdict =
            Verdict { type_: conditions::UPLOADED, holds: true, reason: reasons::UPLOADED, message };
        return State::Done(verdict, artifacts(upload, &report));
    }
    let ends = pods.iter().filter_map(|pod| pod.container(UPLOADER)?.state.terminated.as_ref());
    let last = ends.filter(|ended| ended.exit_code != 0).max_by_key(|ended| ended.finished_at);
    let because = last.map(|ended| format!(": {}", quote(&ended.message))).unwrap_or_default();
    if job.failed.is_some() {
        let message = format!(
            "the result was not uploaded to {}{because}; it stays in the claim: mend the cause and create the job anew, or \
             copy it by hand",
            upload.uri
        );
        return State::Failed(uploading(reasons::UPLOAD_FAILED, message));
    }
    let message = format!("to {}{because}", upload.uri);
    State::Running(uploading(reasons::UPLOADING, message))
}

fn uploading(reason: &'static str, message: String) -> Verdict {
    Verdict { type_: conditions::UPLOADED, holds: false, reason, message }
}

/// The first verdict, when the training has just succeeded.
pub(super) fn beginning(upload: &Upload) -> Verdict {
    uploading(reasons::UPLOADING, format!("to {}", upload.uri))
}

fn report(pod: &PodView) -> Option<Uploaded> {
    let ended = pod.container(UPLOADER)?.state.terminated.as_ref().filter(|ended| ended.exit_code == 0)?;
    serde_json::from_str(&ended.message).ok()
}

/// The manifest, which was written last, then the largest files.
fn artifacts(upload: &Upload, report: &Uploaded) -> Vec<Artifact> {
    let uri = |path: &str| format!("{}/{path}", upload.uri.trim_end_matches('/'));
    let manifest = (!report.manifest_digest.is_empty()).then(|| Artifact {
        uri: uri("SHA256SUMS"),
        bytes: 0,
        sha256: report.manifest_digest.clone(),
    });
    let files = report.files.iter().map(|file| Artifact {
        uri: uri(&file.path),
        bytes: i64::try_from(file.bytes).unwrap_or(i64::MAX),
        sha256: file.sha256.clone(),
    });
    manifest.into_iter().chain(files).take(MOST_ARTIFACTS).collect()
}

pub(super) fn upload_job(valid: &ValidJob, upload: &Upload, folder: &str, defaults: &Defaults) -> Job {
    let secrets = valid.pods.image_pull_secrets.iter();
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(pod_labels(valid)), ..ObjectMeta::default() }),
        spec: Some(PodSpec {
            containers: vec![uploader(valid, upload, folder, defaults)],
            volumes: Some(vec![Volume {
                name: VOLUME.to_owned(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: valid.output.claim.name().to_owned(),
                    ..PersistentVolumeClaimVolumeSource::default()
                }),
                ..Volume::default()
            }]),
            restart_policy: Some("Never".to_owned()),
            image_pull_secrets: non_empty(
                secrets.map(|secret| LocalObjectReference { name: secret.name.clone() }).collect(),
            ),
            service_account_name: valid.pods.service_account_name.clone(),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(pod_security(&valid.pods.security_context)),
            ..PodSpec::default()
        }),
    };
    Job {
        metadata: metadata(valid, names::upload(&valid.name)),
        spec: Some(JobSpec {
            backoff_limit: Some(RETRIES),
            pod_failure_policy: Some(PodFailurePolicy { rules: vec![permanent_faults()] }),
            template,
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

/// A wrong address or a refused key stays wrong.
fn permanent_faults() -> PodFailurePolicyRule {
    let codes = [ExitCode::Usage, ExitCode::SourceUnauthorized, ExitCode::SourceNotFound];
    PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(UPLOADER.to_owned()),
            operator: "In".to_owned(),
            values: codes.map(ExitCode::code).to_vec(),
        }),
        ..PodFailurePolicyRule::default()
    }
}

fn uploader(valid: &ValidJob, upload: &Upload, folder: &str, defaults: &Defaults) -> Container {
    let amounts = |cpu: &str, memory: &str| -> BTreeMap<String, Quantity> {
        [("cpu", cpu), ("memory", memory)]
            .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
            .into()
    };
    Container {
        name: UPLOADER.to_owned(),
        image: Some(defaults.transfer_image.clone()),
        args: Some(vec!["push".to_owned(), literal(folder), literal(&upload.uri)]),
        env: Some(environment(upload)),
        resources: Some(ResourceRequirements {
            requests: Some(amounts("100m", "128Mi")),
            limits: Some(BTreeMap::from([("memory".to_owned(), Quantity("512Mi".to_owned()))])),
            ..ResourceRequirements::default()
        }),
        volume_mounts: Some(vec![VolumeMount {
            read_only: Some(true),
            ..mount(VOLUME, &valid.output.mount_path)
        }]),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    }
}

fn environment(upload: &Upload) -> Vec<EnvVar> {
    let Upload { uri: _, endpoint, region, secret_name } = upload;
    let value = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(literal(value)),
        value_from: None,
    };
    let of_secret = |secret: &str, key: &str, optional: Option<bool>| EnvVar {
        name: key.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.to_owned(),
                key: key.to_owned(),
                optional,
            }),
            ..EnvVarSource::default()
        }),
    };
    let mut environment = vec![
        value("AWS_REGION", region.as_deref().unwrap_or(DEFAULT_REGION)),
        value(api::loader::TIMEOUT.variable, &TIMEOUT_SECONDS.to_string()),
    ];
    environment.extend(endpoint.as_deref().map(|endpoint| value("AWS_ENDPOINT_URL", endpoint)));
    if let Some(secret) = secret_name {
        environment.extend([
            of_secret(secret, "AWS_ACCESS_KEY_ID", None),
            of_secret(secret, "AWS_SECRET_ACCESS_KEY", None),
            of_secret(secret, "AWS_SESSION_TOKEN", Some(true)),
        ]);
    }
    environment
}
