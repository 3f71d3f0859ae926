//! Uploads of results by `model-transfer push`: the container, and what its pods say. Pure.
//!
//! Controllers own the Job, its name, and when another one follows.

use api::{
    loader::{self, ExitCode, PATIENCE, TIMEOUT, Uploaded, options},
    pods::store::{Addressing, Artifact, Upload},
};
use k8s_openapi::api::{
    batch::v1::{PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule},
    core::v1::{Container, EnvVar, KeyToPath, ResourceRequirements, SecretVolumeSource, Volume, VolumeMount},
};
use text::quantity::Bytes;

use crate::{
    faults::container::quote,
    templates::{
        options::HelperAmounts,
        template::{container_security, literal, mount, variable_of_secret},
    },
    views::pod::{PodView, Terminated},
};

/// Name of the only container of a pod that speaks to the store.
pub const UPLOADER: &str = "uploader";
/// Tries of a Job, with pauses of 10 s, 20 s and so on up to six minutes: half an hour.
pub const RETRIES: i32 = 8;
/// Of the container, unless a user sets others.
pub const AMOUNTS: HelperAmounts =
    HelperAmounts { cpu: ["100m", "2"], memory: [Bytes::mebibytes(128), Bytes::mebibytes(512)] };
/// A pod of a check that was evicted is replaced.
pub const CHECK_RETRIES: i32 = 2;
/// A check whose pod cannot start gives way to one that may have another image. A node that is bought for it may take a while.
pub const CHECK_DEADLINE_SECONDS: i64 = 1_800;
/// A wrong address or a refused key is not corrected within seconds: they end the Job, and the next Job tries again.
pub const PERMANENT: [ExitCode; 3] =
    [ExitCode::Usage, ExitCode::SourceUnauthorized, ExitCode::SourceNotFound];

/// Artifacts in a status.
const MOST_ARTIFACTS: usize = 64;
/// Of one try; the next one continues.
const TIMEOUT_SECONDS: u64 = 86_400;
/// A store that does not answer is named soon; it is tried again.
const CHECK_PATIENCE_SECONDS: u64 = 30;
const CHECK_TIMEOUT_SECONDS: u64 = 120;
const AUTHORITY: &str = "store-authority";
const AUTHORITY_PATH: &str = "/store-authority";
/// Key of the certificates in their Secret, and name of the file.
const AUTHORITY_KEY: &str = "ca.crt";
const DEFAULT_REGION: &str = "us-east-1";

/// What a controller adds to the store of its user.
pub struct Uploader<'a> {
    pub image: &'a str,
    /// The field that describes the store; messages of the program name it.
    pub fields: &'a str,
    pub resources: ResourceRequirements,
}

impl Uploader<'_> {
    /// The container that uploads this folder. The caller mounts it.
    pub fn pushes(self, upload: &Upload, folder: &str) -> Container {
        let arguments = vec!["push".to_owned(), literal(folder), literal(&upload.uri)];
        self.runs(upload, arguments, vec![variable(TIMEOUT.variable, &TIMEOUT_SECONDS.to_string())])
    }

    /// The container that writes, reads and deletes a small object of this name below the prefix.
    pub fn checks(self, upload: &Upload, name: &str) -> Container {
        let arguments =
            vec!["check-store".to_owned(), literal(&upload.uri), format!("--name={}", literal(name))];
        let times = vec![
            variable(TIMEOUT.variable, &CHECK_TIMEOUT_SECONDS.to_string()),
            variable(PATIENCE.variable, &CHECK_PATIENCE_SECONDS.to_string()),
        ];
        self.runs(upload, arguments, times)
    }

    /// The container of a command. `times`: variables with its limits.
    fn runs(self, upload: &Upload, mut arguments: Vec<String>, times: Vec<EnvVar>) -> Container {
        let Upload { addressing, ca_secret_name, .. } = upload;
        let option = |name: &str, value: &str| format!("--{name}={value}");
        let addressing = Some(*addressing).filter(|addressing| *addressing != Addressing::Auto);
        arguments.extend(addressing.map(|addressing| option(options::ADDRESSING, addressing.as_option())));
        let file = format!("{AUTHORITY_PATH}/{AUTHORITY_KEY}");
        arguments.extend(ca_secret_name.as_ref().map(|_| option(options::CA_FILE, &file)));
        let authority = VolumeMount { read_only: Some(true), ..mount(AUTHORITY, AUTHORITY_PATH) };
        Container {
            name: UPLOADER.to_owned(),
            image: Some(self.image.to_owned()),
            args: Some(arguments),
            env: Some(environment(upload, self.fields, times)),
            resources: Some(self.resources),
            volume_mounts: ca_secret_name.as_ref().map(|_| vec![authority]),
            security_context: Some(container_security(Some(true))),
            ..Container::default()
        }
    }
}

/// The volume of the certificates, if the store has a private authority. A Secret without the key keeps the pod from starting,
/// and an event of the pod says so.
pub fn authority(upload: &Upload) -> Option<Volume> {
    let key = KeyToPath { key: AUTHORITY_KEY.to_owned(), path: AUTHORITY_KEY.to_owned(), mode: None };
    Some(Volume {
        name: AUTHORITY.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(upload.ca_secret_name.clone()?),
            items: Some(vec![key]),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    })
}

/// These exit codes end the Job at once.
pub fn ends_at(permanent: &[ExitCode]) -> PodFailurePolicy {
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
    PodFailurePolicy { rules: vec![rule] }
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(literal(value)), value_from: None }
}

fn environment(upload: &Upload, fields: &str, times: Vec<EnvVar>) -> Vec<EnvVar> {
    let Upload { uri: _, endpoint, region, secret_name, addressing: _, ca_secret_name: _ } = upload;
    let mut environment = vec![variable("AWS_REGION", region.as_deref().unwrap_or(DEFAULT_REGION))];
    environment.extend(times);
    environment.push(variable(loader::FIELDS, fields));
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

/// Whether an uploader has done its work. The Job completes soon, unless a container that was injected into its pod runs on.
pub fn has_succeeded(pods: &[&PodView]) -> bool {
    let code = |pod: &&PodView| Some(pod.container(UPLOADER)?.state.terminated.as_ref()?.exit_code);
    pods.iter().any(|pod| code(pod) == Some(0))
}

/// The end of the last pod that has failed.
pub fn last_failure<'p>(pods: &[&'p PodView]) -> Option<&'p Terminated> {
    let ends = pods.iter().filter_map(|pod| pod.container(UPLOADER)?.state.terminated.as_ref());
    ends.filter(|ended| ended.exit_code != 0).max_by_key(|ended| ended.finished_at)
}

/// The uploader's own words, which name the cause; one that was killed leaves none.
pub fn end(ended: &Terminated) -> String {
    match quote(&ended.message) {
        words if words.is_empty() => {
            format!("exit code {} {}", ended.exit_code, ended.reason).trim_end().to_owned()
        }
        words => words,
    }
}

/// What has to be changed after this end, and where. `account`: the service account of the pod, if it is set.
pub fn fix(
    upload: &Upload,
    ended: &Terminated,
    namespace: &str,
    account: Option<&str>,
    fields: &str,
) -> Option<String> {
    let store = upload.endpoint.as_deref().unwrap_or("AWS S3");
    match ExitCode::from_code(ended.exit_code)? {
        ExitCode::SourceUnauthorized => Some(match (&upload.secret_name, account) {
            (Some(secret), _) => {
                format!(
                    "put keys that may write there into Secret {namespace}/{secret} ({fields}.secretName)"
                )
            }
            (None, account) => {
                format!("let service account {namespace}/{} write there", account.unwrap_or("default"))
            }
        }),
        ExitCode::SourceNotFound => {
            let bucket = upload.uri.trim_start_matches("s3://").split('/').next().unwrap_or_default();
            Some(format!("create bucket {bucket} of {fields}.uri at {store}"))
        }
        ExitCode::SourceUnreachable => {
            Some(format!("let pods of namespace {namespace} reach {store} ({fields}.endpoint)"))
        }
        ExitCode::Usage | ExitCode::ChecksumMismatch | ExitCode::OutOfSpace | ExitCode::ModelChanged => None,
    }
}

/// What a pod has reported of its upload.
pub fn report(pod: &PodView) -> Option<Uploaded> {
    let ended = pod.container(UPLOADER)?.state.terminated.as_ref().filter(|ended| ended.exit_code == 0)?;
    serde_json::from_str(&ended.message).ok()
}

/// What a user reads of an upload that has ended well.
pub fn summary(upload: &Upload, report: Option<&Uploaded>) -> String {
    match report {
        Some(Uploaded { count, bytes, .. }) => format!("{count} files, {bytes} bytes, to {}", upload.uri),
        None => format!(
            "to {}; SHA256SUMS there names the files (the pod was deleted before its report was read)",
            upload.uri
        ),
    }
}

/// The manifest, which was written last, then the largest files.
pub fn artifacts(upload: &Upload, report: &Uploaded) -> Vec<Artifact> {
    let artifact = |path: &str, bytes: u64, sha256: &str| Artifact {
        uri: format!("{}/{path}", upload.uri.trim_end_matches('/')),
        bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        sha256: sha256.to_owned(),
    };
    let manifest = (!report.manifest_digest.is_empty())
        .then(|| artifact("SHA256SUMS", report.manifest_bytes, &report.manifest_digest));
    let files = report.files.iter().map(|file| artifact(&file.path, file.bytes, &file.sha256));
    manifest.into_iter().chain(files).take(MOST_ARTIFACTS).collect()
}
