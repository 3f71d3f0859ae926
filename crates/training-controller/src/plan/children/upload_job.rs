//! The Jobs that speak to the store of the upload: one tries it before the first attempt, one uploads the result. Pure.
//!
//! Their pods request no GPU, but that of the upload may run where the trainer ran: a volume may be usable on those nodes
//! alone.

use api::{
    aiinference::Addressing,
    loader::{self, ExitCode, PATIENCE, TIMEOUT, options},
    trainingjob::Upload,
};
use k8s_openapi::api::{
    batch::v1::{
        Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
    },
    core::v1::{
        Container, EnvVar, KeyToPath, PodSpec, PodTemplateSpec, SecretVolumeSource, Volume, VolumeMount,
    },
};
use text::quantity::Bytes;
use workload::templates::{
    options::{HelperAmounts, affinity, helper_resources},
    template::{container_security, literal, mount, tolerations},
};

use super::{
    metadata::metadata,
    template::{self, variable_of_secret, volume_of_claim},
};
use crate::{names, objects::pod::UPLOADER, plan::defaults::Defaults, validate::ValidJob};

/// The field that describes the store.
pub(crate) const FIELDS: &str = "spec.output.upload";
const VOLUME: &str = "output";
const AUTHORITY: &str = "store-authority";
const AUTHORITY_PATH: &str = "/store-authority";
/// Key of the certificates in their Secret, and name of the file.
const AUTHORITY_KEY: &str = "ca.crt";
/// With pauses of 10 s, 20 s and so on up to six minutes: half an hour. After that another Job follows.
const RETRIES: i32 = 8;
/// Of one try; the next one continues.
const TIMEOUT_SECONDS: u64 = 86_400;
/// A pod of a check that was evicted is replaced.
const CHECK_RETRIES: i32 = 2;
/// A store that does not answer is named soon; it is tried again.
const CHECK_PATIENCE_SECONDS: u64 = 30;
const CHECK_TIMEOUT_SECONDS: u64 = 120;
/// A check whose pod cannot start gives way to one that may have another image. A node that is bought for it may take a while.
const CHECK_DEADLINE_SECONDS: i64 = 1_800;
const DEFAULT_REGION: &str = "us-east-1";
const AMOUNTS: HelperAmounts =
    HelperAmounts { cpu: ["100m", "2"], memory: [Bytes::mebibytes(128), Bytes::mebibytes(512)] };

/// The Job that uploads this folder.
pub(crate) fn upload_job(valid: &ValidJob, upload: &Upload, folder: &str, defaults: &Defaults) -> Job {
    let arguments = vec!["push".to_owned(), literal(folder), literal(&upload.uri)];
    let times = vec![variable(TIMEOUT.variable, &TIMEOUT_SECONDS.to_string())];
    let mut container = container(valid, upload, arguments, times, defaults);
    let output = VolumeMount { read_only: Some(true), ..mount(VOLUME, &valid.output.mount_path) };
    container.volume_mounts.get_or_insert_default().insert(0, output);
    let mut pod = pod(valid, upload, container);
    let output = volume_of_claim(VOLUME.to_owned(), valid.output.claim.name());
    pod.volumes.get_or_insert_default().insert(0, output);
    // A wrong address or a refused key is not corrected within seconds: they end the Job, and the next Job tries again.
    let permanent = [ExitCode::Usage, ExitCode::SourceUnauthorized, ExitCode::SourceNotFound];
    let spec = JobSpec { backoff_limit: Some(RETRIES), ..spec(valid, pod, &permanent) };
    Job { metadata: metadata(valid, names::upload(&valid.name)), spec: Some(spec), ..Job::default() }
}

/// The Job that writes, reads and deletes a small object, named after the TrainingJob's uid, below the prefix.
pub(crate) fn check_job(valid: &ValidJob, upload: &Upload, defaults: &Defaults) -> Job {
    let arguments =
        vec!["check-store".to_owned(), literal(&upload.uri), format!("--name={}", literal(&valid.owner.uid))];
    let times = vec![
        variable(TIMEOUT.variable, &CHECK_TIMEOUT_SECONDS.to_string()),
        variable(PATIENCE.variable, &CHECK_PATIENCE_SECONDS.to_string()),
    ];
    let pod = pod(valid, upload, container(valid, upload, arguments, times, defaults));
    let spec = JobSpec {
        backoff_limit: Some(CHECK_RETRIES),
        active_deadline_seconds: Some(CHECK_DEADLINE_SECONDS),
        ..spec(valid, pod, &ExitCode::ALL)
    };
    Job { metadata: metadata(valid, names::upload_check(&valid.name)), spec: Some(spec), ..Job::default() }
}

/// These exit codes end the Job at once.
fn spec(valid: &ValidJob, pod: PodSpec, permanent: &[ExitCode]) -> JobSpec {
    let codes = PodFailurePolicyOnExitCodesRequirement {
        container_name: Some(UPLOADER.to_owned()),
        operator: "In".to_owned(),
        values: permanent.iter().map(|code| code.code()).collect(),
    };
    let rule = PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(codes),
        ..PodFailurePolicyRule::default()
    };
    JobSpec {
        pod_failure_policy: Some(PodFailurePolicy { rules: vec![rule] }),
        template: PodTemplateSpec { metadata: Some(template::metadata(valid)), spec: Some(pod) },
        ..JobSpec::default()
    }
}

/// Without a runtime class, whose handler may be on nodes with GPUs only: the pod needs none.
fn pod(valid: &ValidJob, upload: &Upload, container: Container) -> PodSpec {
    let scheduling = valid.pods.scheduling.as_ref();
    PodSpec {
        containers: vec![container],
        volumes: upload.ca_secret_name.as_deref().map(|secret| vec![authority(secret)]),
        affinity: affinity(None, scheduling, None),
        tolerations: tolerations(scheduling, valid.accelerators.is_some(), None),
        runtime_class_name: None,
        ..template::pod(valid)
    }
}

/// A Secret without the key keeps the pod from starting, and an event of the pod says so.
fn authority(secret: &str) -> Volume {
    let key = KeyToPath { key: AUTHORITY_KEY.to_owned(), path: AUTHORITY_KEY.to_owned(), mode: None };
    Volume {
        name: AUTHORITY.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            items: Some(vec![key]),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// The program, with what it needs of the store.
fn container(
    valid: &ValidJob,
    upload: &Upload,
    mut arguments: Vec<String>,
    times: Vec<EnvVar>,
    defaults: &Defaults,
) -> Container {
    let Upload { addressing, ca_secret_name, .. } = upload;
    let option = |name: &str, value: &str| format!("--{name}={value}");
    let addressing = Some(*addressing).filter(|addressing| *addressing != Addressing::Auto);
    arguments.extend(addressing.map(|addressing| option(options::ADDRESSING, addressing.as_option())));
    let file = format!("{AUTHORITY_PATH}/{AUTHORITY_KEY}");
    arguments.extend(ca_secret_name.as_ref().map(|_| option(options::CA_FILE, &file)));
    let authority = VolumeMount { read_only: Some(true), ..mount(AUTHORITY, AUTHORITY_PATH) };
    Container {
        name: UPLOADER.to_owned(),
        image: Some(defaults.transfer_image.clone()),
        args: Some(arguments),
        env: Some(environment(upload, times)),
        resources: Some(helper_resources(valid.pods.helper_resources.as_ref(), &AMOUNTS)),
        volume_mounts: ca_secret_name.as_ref().map(|_| vec![authority]),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    }
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(literal(value)), value_from: None }
}

fn environment(upload: &Upload, times: Vec<EnvVar>) -> Vec<EnvVar> {
    let Upload { uri: _, endpoint, region, secret_name, addressing: _, ca_secret_name: _ } = upload;
    let mut environment = vec![variable("AWS_REGION", region.as_deref().unwrap_or(DEFAULT_REGION))];
    environment.extend(times);
    environment.push(variable(loader::FIELDS, FIELDS));
    environment.extend(endpoint.as_deref().map(|endpoint| variable("AWS_ENDPOINT_URL", endpoint)));
    if let Some(secret) = secret_name {
        let of_secret = |key, optional| variable_of_secret(key, secret, key, optional);
        environment.extend([
            of_secret("AWS_ACCESS_KEY_ID", None),
            of_secret("AWS_SECRET_ACCESS_KEY", None),
            of_secret("AWS_SESSION_TOKEN", Some(true)),
        ]);
    }
    environment
}
