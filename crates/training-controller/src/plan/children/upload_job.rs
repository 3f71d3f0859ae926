//! The Jobs that speak to the store of the upload: one tries it before the first attempt, one uploads the result. Pure.
//!
//! Their pods request no GPU, but that of the upload may run where the trainer ran: a volume may be usable on those nodes
//! alone.

use api::{loader::ExitCode, trainingjob::Upload};
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{Container, PodSpec, PodTemplateSpec, VolumeMount},
};
use workload::{
    templates::{
        options::{affinity, helper_resources},
        template::{mount, tolerations},
    },
    uploads::{
        AMOUNTS, CHECK_DEADLINE_SECONDS, CHECK_RETRIES, PERMANENT, RETRIES, Uploader, authority, ends_at,
    },
};

use super::{
    metadata::metadata,
    template::{self, volume_of_claim},
};
use crate::{names, plan::defaults::Defaults, validate::ValidJob};

/// The field that describes the store.
pub(crate) const FIELDS: &str = "spec.output.upload";
const VOLUME: &str = "output";

/// The Job that uploads this folder.
pub(crate) fn upload_job(valid: &ValidJob, upload: &Upload, folder: &str, defaults: &Defaults) -> Job {
    let mut container = uploader(valid, defaults).pushes(upload, folder);
    let output = VolumeMount { read_only: Some(true), ..mount(VOLUME, &valid.output.mount_path) };
    container.volume_mounts.get_or_insert_default().insert(0, output);
    let mut pod = pod(valid, upload, container);
    let output = volume_of_claim(VOLUME.to_owned(), valid.output.claim.name());
    pod.volumes.get_or_insert_default().insert(0, output);
    let spec = JobSpec { backoff_limit: Some(RETRIES), ..spec(valid, pod, &PERMANENT) };
    Job { metadata: metadata(valid, names::upload(&valid.name)), spec: Some(spec), ..Job::default() }
}

/// The Job that writes, reads and deletes a small object, named after the TrainingJob's uid, below the prefix.
pub(crate) fn check_job(valid: &ValidJob, upload: &Upload, defaults: &Defaults) -> Job {
    let container = uploader(valid, defaults).checks(upload, &valid.owner.uid);
    let pod = pod(valid, upload, container);
    let spec = JobSpec {
        backoff_limit: Some(CHECK_RETRIES),
        active_deadline_seconds: Some(CHECK_DEADLINE_SECONDS),
        ..spec(valid, pod, &ExitCode::ALL)
    };
    Job { metadata: metadata(valid, names::upload_check(&valid.name)), spec: Some(spec), ..Job::default() }
}

/// The permanent exit codes end the Job at once.
fn spec(valid: &ValidJob, pod: PodSpec, permanent: &[ExitCode]) -> JobSpec {
    JobSpec {
        pod_failure_policy: Some(ends_at(permanent)),
        template: PodTemplateSpec { metadata: Some(template::metadata(valid)), spec: Some(pod) },
        ..JobSpec::default()
    }
}

/// Without a runtime class, whose handler may be on nodes with GPUs only: the pod needs none.
fn pod(valid: &ValidJob, upload: &Upload, container: Container) -> PodSpec {
    let scheduling = valid.pods.scheduling.as_ref();
    PodSpec {
        containers: vec![container],
        volumes: authority(upload).map(|volume| vec![volume]),
        affinity: affinity(None, scheduling, None),
        tolerations: tolerations(scheduling, valid.accelerators.is_some(), None),
        runtime_class_name: None,
        ..template::pod(valid)
    }
}

/// The program, with its resources.
fn uploader<'a>(valid: &ValidJob, defaults: &'a Defaults) -> Uploader<'a> {
    let resources = helper_resources(valid.pods.helper_resources.as_ref(), &AMOUNTS);
    Uploader { image: &defaults.transfer_image, fields: FIELDS, resources }
}
