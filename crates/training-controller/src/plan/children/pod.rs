//! The pod template of an attempt: an init container that installs the launcher, and the trainer under it.
//!
//! It passes Pod Security `restricted`, unless the user requests root. Equal specs give equal bytes.

use std::collections::BTreeMap;

use api::{
    labels,
    launcher::{self, hub_folders, options, variables},
    pods::{EnvVar as Variable, Resources},
    trainingjob::{AvoidedNode, DependencyResult, Device, Input, ResolvedResume},
};
use k8s_openapi::{
    api::core::v1::{
        Affinity, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, NodeSelectorRequirement,
        NodeSelectorTerm, ObjectFieldSelector, PodSpec, PodTemplateSpec, PreferredSchedulingTerm,
        ResourceRequirements, Volume, VolumeMount,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use text::quantity::Bytes;
use workload::templates::{
    self,
    options::{HelperAmounts, Siblings, env_from, helper_resources, topology_spread, user_volumes},
    template::{container_security, env_var, literal, mount, tolerations, variable_of_secret},
};

use super::{
    metadata::selector,
    template::{self, volume_of_claim},
};
use crate::{
    names,
    objects::pod::TRAINER,
    plan::defaults::Defaults,
    swift::{Command, STOP_FILE, TUNING_VARIABLES},
    validate::{Invalid, SOURCE_PATH, ValidJob},
};

/// Name of the init container.
pub(crate) const INSTALLER: &str = "launcher-installer";
const INSTALLER_AMOUNTS: HelperAmounts =
    HelperAmounts { cpu: ["10m", "1"], memory: [Bytes::mebibytes(16), Bytes::mebibytes(64)] };

const PROGRAM_VOLUME: &str = "launcher";
const PROGRAM_PATH: &str = "/opt/training-launcher";
const HOME_VOLUME: &str = "home";
const HOME: &str = "/home/trainer";
/// Data loaders pass batches, and NCCL messages, through shared memory. Containers have 64 MiB of it by default.
const SHARED_MEMORY_VOLUME: &str = "shared-memory";
const SHARED_MEMORY: &str = "/dev/shm";
const OUTPUT_VOLUME: &str = "output";
const INPUT_PREFIX: &str = "input-";
/// The index of a pod of an Indexed Job.
const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
/// Of a rule that the scheduler prefers to keep.
const HIGHEST_WEIGHT: i32 = 100;
/// The key of `spec.tokenSecret`.
const TOKEN_KEY: &str = "token";

/// What one attempt runs.
#[derive(Clone, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) number: i32,
    pub(crate) job: &'a str,
    pub(crate) image: &'a str,
    pub(crate) command: &'a Command,
    /// Outputs of other jobs that are read.
    pub(crate) results: &'a [DependencyResult],
    /// Nodes that are not used.
    pub(crate) avoided: &'a [AvoidedNode],
    /// They are used if there is no other.
    pub(crate) are_last_choice: bool,
    /// Checkpoints of an earlier job.
    pub(crate) resume_from: Option<&'a ResolvedResume>,
    /// Where what is loaded from hubs is kept.
    pub(crate) hub_cache: Option<&'a str>,
}

pub(crate) fn pod_template(valid: &ValidJob, attempt: &Attempt<'_>, defaults: &Defaults) -> PodTemplateSpec {
    let scheduling = valid.pods.scheduling.as_ref();
    // Without a watch of nodes the controller ends no attempts, and Kubernetes' eviction after five minutes must apply.
    let lost_node_seconds = defaults.watches_nodes.then_some(lost_node_seconds(valid));
    let (volumes, mounts) = volumes(valid, attempt);
    PodTemplateSpec {
        metadata: Some(undisrupted(template::metadata(valid))),
        spec: Some(PodSpec {
            init_containers: Some(vec![installer(valid, &defaults.launcher_image)]),
            containers: vec![trainer(valid, attempt, mounts)],
            volumes: Some(volumes),
            affinity: affinity(valid, attempt.avoided, attempt.are_last_choice),
            tolerations: tolerations(scheduling, valid.accelerators.is_some(), lost_node_seconds),
            topology_spread_constraints: topology_spread(scheduling, &siblings(valid)),
            subdomain: (valid.nodes > 1).then(|| names::service(&valid.name)),
            termination_grace_period_seconds: Some(i64::try_from(valid.grace.as_secs()).unwrap_or(i64::MAX)),
            ..template::pod(valid)
        }),
    }
}

/// No node autoscaler moves a trainer for its own sake, unless the user's annotations say otherwise.
fn undisrupted(mut metadata: ObjectMeta) -> ObjectMeta {
    let annotations = metadata.annotations.get_or_insert_default();
    for (key, value) in labels::STAYS_ON_ITS_NODE {
        annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    metadata
}

/// Nodes with the product, and without the avoided ones. Terms are alternatives, so each one has all rules. Nodes are avoided by
/// their names: the label kubernetes.io/hostname may differ from the name.
fn affinity(valid: &ValidJob, avoided: &[AvoidedNode], are_last_choice: bool) -> Option<Affinity> {
    let mut affinity = templates::options::affinity(
        valid.accelerators.as_ref(),
        valid.pods.scheduling.as_ref(),
        Some(&siblings(valid)),
    );
    if avoided.is_empty() {
        return affinity;
    }
    let other_than = |node: &AvoidedNode| NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        // The API server accepts one value in each rule about a field.
        values: Some(vec![node.node.clone()]),
    };
    let rules: Vec<NodeSelectorRequirement> = avoided.iter().map(other_than).collect();
    let nodes = affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    if are_last_choice {
        let preference = NodeSelectorTerm { match_fields: Some(rules), ..NodeSelectorTerm::default() };
        nodes
            .preferred_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(PreferredSchedulingTerm { weight: HIGHEST_WEIGHT, preference });
        return affinity;
    }
    let selector = nodes.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if selector.node_selector_terms.is_empty() {
        selector.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut selector.node_selector_terms {
        term.match_fields = Some(rules.clone());
    }
    affinity
}

/// The pods of one attempt.
fn siblings(valid: &ValidJob) -> Siblings<'static> {
    Siblings { selector: selector(&valid.name), revision_label: labels::JOB_NAME }
}

/// Longer than `nodeFailureSeconds`, so that the controller acts first; Kubernetes' own eviction is the fallback.
fn lost_node_seconds(valid: &ValidJob) -> i64 {
    i64::try_from(valid.node_failure.as_secs()).unwrap_or(i64::MAX).saturating_add(300)
}

fn installer(valid: &ValidJob, image: &str) -> Container {
    Container {
        name: INSTALLER.to_owned(),
        image: Some(image.to_owned()),
        args: Some(vec!["install".to_owned(), PROGRAM_PATH.to_owned()]),
        resources: Some(helper_resources(valid.pods.helper_resources.as_ref(), &INSTALLER_AMOUNTS)),
        volume_mounts: Some(vec![mount(PROGRAM_VOLUME, PROGRAM_PATH)]),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    }
}

fn trainer(valid: &ValidJob, attempt: &Attempt<'_>, mounts: Vec<VolumeMount>) -> Container {
    Container {
        name: TRAINER.to_owned(),
        image: Some(attempt.image.to_owned()),
        command: Some(vec![format!("{PROGRAM_PATH}/{}", launcher::PROGRAM)]),
        args: Some(arguments(valid, attempt)),
        env_from: env_from(&valid.pods),
        env: Some(environment(valid, attempt)),
        resources: Some(resources(valid)),
        volume_mounts: Some(mounts),
        // Trainers write into folders of their image.
        security_context: Some(container_security(None)),
        ..Container::default()
    }
}

fn arguments(valid: &ValidJob, attempt: &Attempt<'_>) -> Vec<String> {
    let Command { arguments, fresh_arguments, environment: _, stops_by_file, resumes } = attempt.command;
    let option = |name: &str, value: &str| format!("--{name}={}", literal(value));
    let mut words = vec![
        "run".to_owned(),
        option(options::OUTPUT_DIR, &valid.output.dir),
        option(options::ATTEMPT, &attempt.number.to_string()),
        option(options::JOB_UID, &valid.owner.uid),
        option(options::NODES, &valid.nodes.to_string()),
        option(options::GRACE_SECONDS, &valid.grace.as_secs().to_string()),
    ];
    words.extend((!resumes).then(|| format!("--{}", options::NEVER_RESUME)));
    if let Some(ResolvedResume { path, .. }) = attempt.resume_from {
        let folder = path.as_ref().map_or(SOURCE_PATH.to_owned(), |path| format!("{SOURCE_PATH}/{path}"));
        words.push(option(options::RESUME_FROM, &folder));
    }
    words.extend(attempt.hub_cache.map(|folder| option(options::HUB_CACHE, folder)));
    words.extend(stops_by_file.then(|| option(options::STOP_FILE, STOP_FILE)));
    words.extend(fresh_arguments.iter().map(|argument| option(options::FRESH_ARG, argument)));
    words.push("--".to_owned());
    words.extend(arguments.iter().map(|argument| literal(argument)));
    words
}

/// Defaults, then the user's variables, which take precedence, then what the controller alone sets.
fn environment(valid: &ValidJob, attempt: &Attempt<'_>) -> Vec<EnvVar> {
    let value = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(literal(value)),
        value_from: None,
    };
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
    };
    let variables = attempt.command.environment.iter().map(|(name, text)| value(name, text));
    let (tuning, mut own): (Vec<EnvVar>, Vec<EnvVar>) =
        variables.partition(|variable| TUNING_VARIABLES.contains(&variable.name.as_str()));
    let defaults = [value("HOME", HOME), value("USER", TRAINER), token(&valid.token_secret)];
    own.push(field(variables::POD_UID, "metadata.uid"));
    if valid.nodes > 1 {
        own.push(field("NODE_RANK", INDEX));
        let master = format!("{}.{}", names::host(attempt.job, 0), names::service(&valid.name));
        own.push(value("MASTER_ADDR", &master));
    }
    let is_own = |name: &str| own.iter().any(|variable| variable.name == name);
    let users: Vec<&Variable> = valid.env.iter().filter(|variable| !is_own(&variable.name)).collect();
    let is_free = |default: &EnvVar| users.iter().all(|variable| variable.name != default.name);
    let caches = attempt.hub_cache.map(hub_caches).into_iter().flatten();
    let caches = caches.map(|(name, folder)| value(name, &folder));
    let kept: Vec<EnvVar> = defaults.into_iter().chain(caches).chain(tuning).filter(is_free).collect();
    kept.into_iter().chain(users.iter().map(|variable| env_var(variable))).chain(own).collect()
}

/// Models and data are kept; tokens, and parts of files that are kept as a whole, are not.
fn hub_caches(folder: &str) -> [(&'static str, String); 4] {
    [
        ("HF_HOME", format!("{folder}/{}", hub_folders::HUGGING_FACE)),
        ("HF_TOKEN_PATH", format!("{HOME}/.cache/huggingface/token")),
        ("HF_XET_CACHE", format!("{HOME}/.cache/huggingface/xet")),
        ("MODELSCOPE_CACHE", format!("{folder}/{}", hub_folders::MODELSCOPE)),
    ]
}

/// Hugging Face's own variable, by reference alone. A job of public models needs no Secret.
fn token(secret: &str) -> EnvVar {
    variable_of_secret("HF_TOKEN", secret, TOKEN_KEY, Some(true))
}

fn resources(valid: &ValidJob) -> ResourceRequirements {
    let Resources { requests, mut limits } = valid.resources.clone();
    if let Some(accelerators) = &valid.accelerators {
        limits.insert(accelerators.resource.clone(), Quantity(accelerators.count.to_string()));
    }
    let amounts = |amounts: BTreeMap<String, Quantity>| (!amounts.is_empty()).then_some(amounts);
    ResourceRequirements {
        requests: amounts(requests.into_iter().collect()),
        limits: amounts(limits.into_iter().collect()),
        ..ResourceRequirements::default()
    }
}

fn volumes(valid: &ValidJob, attempt: &Attempt<'_>) -> (Vec<Volume>, Vec<VolumeMount>) {
    let (mut volumes, mut mounts) = own_volumes(valid);
    let of_inputs = valid.inputs.iter().map(|Input { claim_name, sub_path, mount_path }| {
        (claim_name.as_str(), sub_path.clone(), mount_path.as_str())
    });
    let results = attempt.results.iter();
    let of_results = results.map(|result| (result.claim_name.as_str(), None, result.mount_path.as_str()));
    let of_source = attempt.resume_from.map(|source| (source.claim_name.as_str(), None, SOURCE_PATH));
    for (claim_name, sub_path, mount_path) in of_inputs.chain(of_results).chain(of_source) {
        if mounts.iter().any(|known| known.mount_path == mount_path) {
            // The claim of the output, or a result that two fields name.
            continue;
        }
        // A volume for each claim: Kubernetes mounts it at several paths.
        let known = volumes.iter().find(|volume| {
            volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim_name)
        });
        let name =
            known.map_or_else(|| format!("{INPUT_PREFIX}{}", volumes.len()), |volume| volume.name.clone());
        if known.is_none() {
            volumes.push(volume_of_claim(name.clone(), claim_name));
        }
        mounts.push(VolumeMount { read_only: Some(true), sub_path, ..mount(&name, mount_path) });
    }
    let (user_volumes, user_mounts) = user_volumes(&valid.pods);
    volumes.extend(user_volumes);
    mounts.extend(user_mounts);
    (volumes, mounts)
}

/// Those of every trainer.
fn own_volumes(valid: &ValidJob) -> (Vec<Volume>, Vec<VolumeMount>) {
    let empty = |name: &str, source: EmptyDirVolumeSource| Volume {
        name: name.to_owned(),
        empty_dir: Some(source),
        ..Volume::default()
    };
    let in_memory =
        EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: shared_memory(valid) };
    let volumes = vec![
        empty(PROGRAM_VOLUME, EmptyDirVolumeSource::default()),
        empty(HOME_VOLUME, EmptyDirVolumeSource::default()),
        empty(SHARED_MEMORY_VOLUME, in_memory),
        volume_of_claim(OUTPUT_VOLUME.to_owned(), valid.output.claim.name()),
    ];
    let mounts = vec![
        VolumeMount { read_only: Some(true), ..mount(PROGRAM_VOLUME, PROGRAM_PATH) },
        mount(HOME_VOLUME, HOME),
        mount(SHARED_MEMORY_VOLUME, SHARED_MEMORY),
        mount(OUTPUT_VOLUME, &valid.output.mount_path),
    ];
    (volumes, mounts)
}

/// Half of the memory limit: what is written there counts as memory, and the trainer needs the rest. Without a limit there is
/// none here.
fn shared_memory(valid: &ValidJob) -> Option<Quantity> {
    let half = || {
        let limit = Bytes::parse(&valid.resources.limits.get("memory")?.0)?;
        Some(limit.half().quantity())
    };
    valid.pods.shared_memory.clone().or_else(half)
}

/// Refuses volumes of the user that cannot be mounted beside the controller's own. `results`: what the attempts read of other
/// jobs, as far as it is known.
pub(crate) fn has_room_for_volumes(
    valid: ValidJob,
    results: &[DependencyResult],
) -> Result<ValidJob, Invalid> {
    let (volumes, mut mounts) = own_volumes(&valid);
    let inputs = valid.inputs.iter().map(|input| input.mount_path.as_str());
    let read = inputs.chain(results.iter().map(|result| result.mount_path.as_str())).chain([SOURCE_PATH]);
    mounts.extend(read.map(|path| VolumeMount { read_only: Some(true), ..mount(INPUT_PREFIX, path) }));
    let names = valid.pods.volumes.iter().map(|volume| &volume.name);
    if let Some(name) = names.into_iter().find(|name| name.starts_with(INPUT_PREFIX)) {
        return Err(Invalid(format!(
            "spec.volumes: {name:?} begins like a volume of the controller, {INPUT_PREFIX}; rename it"
        )));
    }
    match templates::options::volume_conflict(&valid.pods, &volumes, &mounts) {
        Some(conflict) => Err(Invalid(conflict)),
        None => Ok(valid),
    }
}

/// Whether no Linux node has such a device, so that the trainer uses the CPU.
pub(crate) fn runs_on_cpu_instead(device: Device) -> bool {
    match device {
        Device::Mps => true,
        Device::Nvidia | Device::Ascend | Device::Cpu => false,
    }
}
