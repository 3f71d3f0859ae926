//! The Job that uploads the result. Pure.
//!
//! Its pod requests no GPU, but may run where the trainer ran: a volume may be usable on those nodes alone.

use std::collections::BTreeMap;

use api::{loader::ExitCode, pods::Scheduling, trainingjob::Upload};
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
use workload::template::{container_security, literal, mount, non_empty, pod_security, tolerations};

use super::{
    defaults::Defaults,
    metadata::{metadata, pod_labels},
};
use crate::{names, validate::ValidJob};

/// Name of the only container.
pub(super) const UPLOADER: &str = "uploader";
const VOLUME: &str = "output";
/// With pauses of 10 s, 20 s and so on up to six minutes: half an hour. After that another Job follows.
const RETRIES: i32 = 8;
/// Of one try; the next one continues.
const TIMEOUT_SECONDS: i64 = 86_400;
const DEFAULT_REGION: &str = "us-east-1";

pub(super) fn upload_job(valid: &ValidJob, upload: &Upload, folder: &str, defaults: &Defaults) -> Job {
    let secrets = valid.pods.image_pull_secrets.iter();
    let scheduling = valid.pods.scheduling.as_ref();
    // The handler of a runtime class may be on nodes with GPUs only, and the pod needs none.
    let Scheduling {
        node_selector,
        tolerations: _,
        priority_class_name,
        runtime_class_name: _,
        scheduler_name,
    } = scheduling.cloned().unwrap_or_default();
    let annotations = valid.pods.pod_annotations.clone();
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels(valid)),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        }),
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
            tolerations: tolerations(scheduling, valid.accelerators.is_some(), None),
            node_selector: (!node_selector.is_empty()).then_some(node_selector),
            priority_class_name,
            scheduler_name,
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

/// A wrong address or a refused key is not corrected within seconds: they end the Job, and the next Job tries again.
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
