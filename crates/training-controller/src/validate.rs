//! Converts a spec into validated types, with defaults. Pure.
//!
//! An `Invalid` spec becomes a condition and is not retried. The API server refuses most invalid specs; this module checks
//! what CEL rules cannot express, and objects that are older than the rules.

use std::time::Duration;

use api::{
    labels,
    launcher::{hub_folders::BELOW_MOUNT, variables},
    pods::{EnvVar, PodOptions, Resources},
    trainingjob::{
        AccessMode, DEFAULT_OUTPUT_SIZE, Device, Hub, HubCache, Input, Method, OnNonFiniteLoss, Output,
        ResumeFrom, Retention, TrainingJob, TrainingJobSpec, Upload,
    },
};
use k8s_openapi::{
    apimachinery::pkg::api::resource::Quantity, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::Resource;
use workload::faults::{gpu::Gpus, stranded::Terms};

use crate::{
    names,
    objects::training_job,
    relations::wants::{self, is_below},
    swift::{Batch, Sharding, Version},
};

pub(crate) mod flags;

/// A valid spec.
#[derive(Clone, Debug)]
pub(crate) struct ValidJob {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) owner: OwnerReference,
    pub(crate) model: String,
    pub(crate) datasets: Vec<String>,
    pub(crate) reward_model: Option<String>,
    /// LoRA adapters to start from.
    pub(crate) adapters: Option<String>,
    pub(crate) resume_from: Option<ResumeFrom>,
    pub(crate) method: Method,
    pub(crate) device: Device,
    pub(crate) hub: Hub,
    pub(crate) beta: Option<f64>,
    /// Accelerators of each node, also where they are no resource of Kubernetes.
    pub(crate) gpus: i32,
    pub(crate) nodes: i32,
    /// What each pod requests; `None` for devices that no device plugin counts.
    pub(crate) accelerators: Option<Gpus>,
    pub(crate) image: Option<String>,
    /// `None`: by the image.
    pub(crate) version: Option<Version>,
    pub(crate) output: ValidOutput,
    pub(crate) inputs: Vec<Input>,
    pub(crate) extra_args: Vec<String>,
    /// Before any mitigation.
    pub(crate) batch: Batch,
    /// Before any mitigation; `None`: `extraArgs` configure DeepSpeed.
    pub(crate) sharding: Option<Sharding>,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) resources: Resources,
    pub(crate) save_steps: i32,
    pub(crate) keep_checkpoints: i32,
    pub(crate) retry_limit: i32,
    pub(crate) active_deadline: Option<Duration>,
    pub(crate) suspend: bool,
    pub(crate) queue: Option<Queue>,
    pub(crate) no_progress: Duration,
    pub(crate) on_non_finite_loss: OnNonFiniteLoss,
    pub(crate) node_failure: Duration,
    pub(crate) first_step: Duration,
    /// Grace period of the pods.
    pub(crate) grace: Duration,
    pub(crate) token_secret: String,
    pub(crate) pods: PodOptions,
    /// Why no further attempt may begin, though one has: a later release accepts less.
    pub(crate) refused: Option<Invalid>,
}

impl ValidJob {
    /// How pods on lost nodes are given up; `container`: the one that decides.
    pub(crate) fn terms(&self, container: &'static str) -> Terms {
        Terms { timeout: self.node_failure, is_paused: self.pods.paused, container }
    }
}

/// Where checkpoints go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ValidOutput {
    pub(crate) dir: String,
    pub(crate) mount_path: String,
    pub(crate) claim: Claim,
    pub(crate) retention: Retention,
    pub(crate) snapshot_class: Option<String>,
    pub(crate) upload: Option<Upload>,
    /// Whether what is loaded from hubs is kept.
    pub(crate) cache: HubCache,
}

impl ValidOutput {
    /// A claim may be that of several jobs, each of which deletes what it has loaded.
    pub(crate) fn hub_cache(&self, job: &str) -> Option<String> {
        match self.cache {
            HubCache::Keep => Some(format!("{}/{BELOW_MOUNT}/{job}", self.mount_path)),
            HubCache::None => None,
        }
    }
}

/// The claim of the output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Claim {
    /// The user's.
    Existing(String),
    /// Made for the job, unless an earlier job of its name has left it.
    Made { name: String, size: Quantity, class: Option<String>, mode: AccessMode },
}

/// Kueue's queue, and the priority in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) name: String,
    pub(crate) priority_class: Option<String>,
}

impl Claim {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Existing(name) | Self::Made { name, .. } => name,
        }
    }
}

/// Why a spec is invalid, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(crate) String);

pub(crate) fn validate(job: &TrainingJob) -> Result<ValidJob, Invalid> {
    let spec = &job.spec;
    let meta = job.meta();
    let owner = job
        .controller_owner_ref(&())
        .ok_or_else(|| Invalid("the object has no name or no uid".to_owned()))?;
    if spec.device == Device::Mps && spec.nodes > 1 {
        return Err(Invalid(
            "spec.nodes must be 1 with device mps: ms-swift cannot distribute a training over Metal devices"
                .to_owned(),
        ));
    }
    let settings = arguments(job);
    let has_begun = training_job::has_begun(job);
    let (settings, refused) = match settings {
        Ok(settings) => (settings, None),
        // What runs is still accounted for.
        Err(invalid) if has_begun => (flags::Settings::default(), Some(invalid)),
        Err(invalid) => return Err(invalid),
    };
    let output = output(spec, &owner.name)?;
    paths_differ(&output, &spec.inputs)?;
    source_has_its_path(spec, &output)?;
    let default = Batch::of(spec.gpus, spec.nodes);
    let sharding = Sharding::of(spec.method, spec.device, spec.gpus, spec.nodes);
    Ok(ValidJob {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: owner.name.clone(),
        owner,
        model: spec.model.clone(),
        datasets: spec.dataset.split(',').map(|dataset| dataset.trim().to_owned()).collect(),
        reward_model: spec.reward_model.clone(),
        adapters: spec.adapters.clone(),
        resume_from: spec.resume_from.clone(),
        method: spec.method,
        device: spec.device,
        hub: spec.hub,
        beta: spec.beta,
        gpus: spec.gpus,
        nodes: spec.nodes,
        accelerators: accelerators(spec),
        image: spec.image.clone(),
        version: version(spec)?,
        output,
        inputs: spec.inputs.clone(),
        extra_args: spec.extra_args.clone(),
        batch: Batch {
            size: settings.batch_size.unwrap_or(default.size),
            accumulation: settings.accumulation.unwrap_or(default.accumulation),
        },
        sharding: (!settings.has_deepspeed).then_some(sharding),
        env: spec.env.clone(),
        resources: spec.resources.clone().unwrap_or_default(),
        save_steps: spec.save_steps,
        keep_checkpoints: spec.keep_checkpoints,
        retry_limit: spec.retry_limit,
        active_deadline: spec
            .active_deadline_seconds
            .map(|seconds| Duration::from_secs(seconds.unsigned_abs())),
        suspend: spec.suspend,
        queue: spec.queue_name.clone().map(|name| Queue { name, priority_class: priority_class(job) }),
        no_progress: seconds(spec.no_progress_seconds),
        on_non_finite_loss: spec.on_non_finite_loss,
        node_failure: seconds(spec.node_failure_seconds),
        first_step: seconds(spec.first_step_seconds),
        grace: seconds(spec.grace_seconds),
        token_secret: spec.token_secret.clone(),
        pods: spec.pods.clone(),
        refused,
    })
}

/// What a pod is given, of which a later release may accept less.
fn arguments(job: &TrainingJob) -> Result<flags::Settings, Invalid> {
    let spec = &job.spec;
    wants::check(job).map_err(Invalid)?;
    flags::none_is_owned(&spec.extra_args)?;
    environment_is_free(&spec.env)?;
    flags::settings(&spec.extra_args)
}

/// Variables that the controller sets, or by which ms-swift would replace its arguments or stop to log.
pub(crate) const OWNED_VARIABLES: [&str; 9] = [
    "NPROC_PER_NODE",
    "NNODES",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    variables::RANK,
    variables::POD_UID,
    "RAY_SWIFT_ARGS",
    "PAI_TRAINING_JOB_ID",
];

fn environment_is_free(env: &[EnvVar]) -> Result<(), Invalid> {
    match env.iter().find(|variable| OWNED_VARIABLES.contains(&variable.name.as_str())) {
        Some(owned) => Err(Invalid(format!(
            "spec.env: {} is set by the controller, or changes the command line of ms-swift; remove it",
            owned.name
        ))),
        None => Ok(()),
    }
}

fn seconds(count: i32) -> Duration {
    Duration::from_secs(u64::from(count.unsigned_abs()))
}

fn priority_class(job: &TrainingJob) -> Option<String> {
    job.metadata.labels.as_ref()?.get(labels::KUEUE_PRIORITY_CLASS).cloned()
}

fn version(spec: &TrainingJobSpec) -> Result<Option<Version>, Invalid> {
    let Some(text) = &spec.swift_version else { return Ok(None) };
    let parsed = Version::parse(text)
        .ok_or_else(|| Invalid(format!("spec.swiftVersion: {text:?} is no version such as v4.1")))?;
    Ok(Some(parsed))
}

/// The extended resource of a device plugin, by device.
fn accelerators(spec: &TrainingJobSpec) -> Option<Gpus> {
    let default = match spec.device {
        Device::Nvidia => Some("nvidia.com/gpu"),
        Device::Ascend => Some("huawei.com/Ascend910"),
        // No kubelet runs where Metal devices are.
        Device::Mps | Device::Cpu => None,
    };
    let resource = spec.accelerator_resource.as_deref().or(default)?;
    Some(Gpus::new(spec.gpus, resource, spec.gpu_product_label.as_deref()))
}

fn output(spec: &TrainingJobSpec, name: &str) -> Result<ValidOutput, Invalid> {
    let Output {
        claim_name,
        size,
        storage_class_name,
        access_mode,
        mount_path,
        retention,
        snapshot_class_name,
        upload,
        cache,
    } = spec.output.clone().unwrap_or_default();
    let mount_path = mount_path.unwrap_or_else(|| spec.output_dir.clone());
    if !is_below(&spec.output_dir, &mount_path) {
        return Err(Invalid(format!(
            "spec.outputDir: {} must equal output.mountPath ({mount_path}) or lie below it",
            spec.output_dir
        )));
    }
    let claim = match claim_name {
        Some(name) if retention != Retention::Retain => {
            return Err(Invalid(format!(
                "spec.output.retention must be Retain with claimName: the claim {name} is not the job's own"
            )));
        }
        Some(name) => Claim::Existing(name),
        None => Claim::Made {
            name: names::claim(name),
            size: size.unwrap_or_else(|| Quantity(DEFAULT_OUTPUT_SIZE.to_owned())),
            class: storage_class_name,
            mode: access_mode.unwrap_or(if spec.nodes > 1 {
                AccessMode::ReadWriteMany
            } else {
                AccessMode::ReadWriteOnce
            }),
        },
    };
    if let Claim::Made { mode: AccessMode::ReadWriteOnce, .. } = claim
        && spec.nodes > 1
    {
        return Err(Invalid(format!(
            "spec.output.accessMode must be ReadWriteMany with {} nodes: all pods write their checkpoints there",
            spec.nodes
        )));
    }
    Ok(ValidOutput {
        dir: spec.output_dir.clone(),
        mount_path,
        claim,
        retention,
        snapshot_class: snapshot_class_name,
        upload,
        cache,
    })
}

/// Kubernetes refuses two mounts at one path.
fn paths_differ(output: &ValidOutput, inputs: &[Input]) -> Result<(), Invalid> {
    let mut seen = vec![output.mount_path.as_str()];
    for Input { mount_path, .. } in inputs {
        if seen.contains(&mount_path.as_str()) {
            return Err(Invalid(format!(
                "spec.inputs: {mount_path} is mounted twice; give each input, and the output, a path of its own"
            )));
        }
        seen.push(mount_path);
    }
    Ok(())
}

/// Where the pods of a job mount the claim of `spec.resumeFrom`.
pub(crate) const SOURCE_PATH: &str = "/opt/resume-from";

/// The claim of `spec.resumeFrom` has a fixed path.
fn source_has_its_path(spec: &TrainingJobSpec, output: &ValidOutput) -> Result<(), Invalid> {
    let mut others = spec.inputs.iter().map(|input| &input.mount_path).chain([&output.mount_path]);
    match others.find(|path| is_below(path, SOURCE_PATH)).filter(|_| spec.resume_from.is_some()) {
        Some(path) => Err(Invalid(format!(
            "spec.resumeFrom: its claim is mounted at {SOURCE_PATH}; mount what is at {path} elsewhere"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
