//! The Job of a run, and that of the comparison. Pure and deterministic.
//!
//! A Job repeats its pod where another try may end otherwise. Its pod passes Pod Security `restricted`, unless the user
//! requests root, and has no token of the Kubernetes API.

use api::{
    aiinference::evaluation::{Order, Requests},
    labels,
    launcher::evaluator::{API_KEY, CHAT, COMPLETIONS, ExitCode, PROGRAM, commands, options},
    loader,
    trainingjob::Upload,
};
use k8s_openapi::{
    api::{
        batch::v1::{
            Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
            PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
        },
        core::v1::{
            Affinity, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource,
            PersistentVolumeClaimVolumeSource, PodAffinity, PodAffinityTerm, PodSpec, PodTemplateSpec,
            ResourceRequirements, SecretKeySelector, Volume, VolumeMount, WeightedPodAffinityTerm,
        },
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
};
use text::quantity::Bytes;
use workload::{
    templates::{
        options::{
            HelperAmounts, affinity, env_from, helper_resources, pod, user_volumes,
            volume_conflict as conflict,
        },
        template::{container_security, env_var, literal, mount, tolerations},
    },
    uploads::{self, Uploader},
};

use super::{
    Scene, claim,
    metadata::{labels_of, metadata},
    server::{self, Serving},
    sides,
    work::{Asked, Work},
};
use crate::{
    Settings, names,
    validate::{Model, Questions, ValidEvaluation, ValidSet},
};

/// The field that describes the store of the answers.
pub(super) const FIELDS: &str = "spec.output";
/// Name of the main container of every pod but that of the upload.
pub(super) const RUNNER: &str = "runner";
/// Name of the init container that brings the runner.
pub(super) const INSTALLER: &str = "runner-installer";
const HELPER_AMOUNTS: HelperAmounts =
    HelperAmounts { cpu: ["10m", "1"], memory: [Bytes::mebibytes(16), Bytes::mebibytes(128)] };

const PROGRAM_VOLUME: &str = "runner";
const PROGRAM_PATH: &str = "/opt/eval-runner";
const OUTPUT_VOLUME: &str = "output";
const OUTPUT_PATH: &str = "/evaluation";
const QUESTIONS_VOLUME: &str = "questions";
const QUESTIONS_PATH: &str = "/questions";
/// Caches of the harness.
const HOME_VOLUME: &str = "home";
const HOME: &str = "/tmp";
const SHARED_MEMORY_VOLUME: &str = "shared-memory";
const SHARED_MEMORY: &str = "/dev/shm";

/// Which Job a pod is of.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Each node is a topology of its own.
const HOSTNAME: &str = "kubernetes.io/hostname";
const HIGHEST_WEIGHT: i32 = 100;

/// Questions of the null control.
const CONTROL_QUESTIONS: &str = "200";
/// A killed harness loses one run, whose answers are asked again.
const GRACE_SECONDS: i64 = 30;
/// With pauses of 10, 20 and 40 seconds. Evicted pods do not count, and lengthen the pause to ten minutes at most.
pub(super) const RETRIES: i32 = 3;
/// The key of `spec.apiKeySecretName`.
const TOKEN_KEY: &str = "token";

/// The Job that asks one model the questions of one test set.
pub(super) fn asking(scene: &Scene<'_>, work: Work, server: &Serving) -> Job {
    let valid = scene.valid;
    let mut container = Container { name: RUNNER.to_owned(), ..Container::default() };
    let (mut volumes, mut mounts) = volumes(valid);
    if let Work::Ask { asked, set } = work
        && let Some(set) = valid.sets.get(set)
    {
        let (more, mounted) = questions(set);
        volumes.extend(more);
        mounts.extend(mounted);
        container.image = Some(set.image.clone());
        container.args = Some(arguments(scene, asked, set, server));
        container.env = Some(environment(valid, asked));
    }
    container.command = Some(vec![format!("{PROGRAM_PATH}/{PROGRAM}")]);
    container.env_from = env_from(&valid.evaluation.spec.pods);
    container.resources = Some(resources(valid));
    container.volume_mounts = Some(mounts);
    // Harnesses write into folders of their image.
    container.security_context = Some(container_security(None));
    let pod = PodSpec {
        init_containers: Some(vec![installer(valid, &scene.settings.runner_image)]),
        containers: vec![container],
        volumes: Some(volumes),
        ..common(valid)
    };
    let pod = match valid.evaluation.spec.order {
        Order::Parallel if claim::ties_to_a_node(valid, scene.observed) => beside_the_other(pod, valid),
        Order::Parallel | Order::Sequential => pod,
    };
    let mut job = job(valid, scene.job_name(work), pod);
    let mark = work.side().and_then(|side| server::mark(scene, side));
    job.metadata.annotations = mark.map(|mark| [(labels::ASKED_SERVER.to_owned(), mark)].into());
    job
}

/// The Job that pairs the answers. It needs the runner alone.
pub(super) fn pairing(scene: &Scene<'_>) -> Job {
    let valid = scene.valid;
    let spec = &valid.evaluation.spec;
    let mut words = vec![commands::PAIR.to_owned(), option(options::OUTPUT_DIR, &folder(valid))];
    words.extend(valid.sets.iter().map(|set| option(options::TEST_SET, &set.file)));
    let control = valid.sets.first().filter(|_| spec.null_control);
    words.extend(control.map(|set| option(options::CONTROL, &set.file)));
    words.push(option(options::SEED, &spec.seed.to_string()));
    words.push(option(options::CONFIDENCE, &spec.confidence));
    let container = Container {
        name: RUNNER.to_owned(),
        image: Some(scene.settings.runner_image.clone()),
        args: Some(words),
        resources: Some(helper_resources(spec.pods.helper_resources.as_ref(), &HELPER_AMOUNTS)),
        volume_mounts: Some(vec![mount(OUTPUT_VOLUME, OUTPUT_PATH)]),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    };
    let pod = PodSpec {
        containers: vec![container],
        volumes: Some(vec![volume_of_claim(OUTPUT_VOLUME, &claim::name(valid))]),
        ..common(valid)
    };
    job(valid, scene.job_name(Work::Pair), pod)
}

/// The Job that writes, reads and deletes an object below the folder to which this evaluation is uploaded.
pub(super) fn checking(valid: &ValidEvaluation, upload: &Upload, settings: &Settings) -> Job {
    let container = uploader(valid, settings).checks(upload, &valid.owner.uid);
    let volumes = uploads::authority(upload).map(|volume| vec![volume]);
    let pod = PodSpec { containers: vec![container], volumes, ..common(valid) };
    let Job { metadata, spec, status } = job(valid, names::store_check(&valid.name), pod);
    let spec = spec.map(|spec| JobSpec {
        backoff_limit: Some(uploads::CHECK_RETRIES),
        active_deadline_seconds: Some(uploads::CHECK_DEADLINE_SECONDS),
        pod_failure_policy: Some(uploads::ends_at(&loader::ExitCode::ALL)),
        ..spec
    });
    Job { metadata, spec, status }
}

/// The Job that uploads the folder of this evaluation.
pub(super) fn uploading(valid: &ValidEvaluation, upload: &Upload, settings: &Settings) -> Job {
    let mut container = uploader(valid, settings).pushes(upload, &folder(valid));
    let output = VolumeMount { read_only: Some(true), ..mount(OUTPUT_VOLUME, OUTPUT_PATH) };
    container.volume_mounts.get_or_insert_default().insert(0, output);
    let output = volume_of_claim(OUTPUT_VOLUME, &claim::name(valid));
    let volumes = [output].into_iter().chain(uploads::authority(upload));
    let pod = PodSpec { containers: vec![container], volumes: Some(volumes.collect()), ..common(valid) };
    let Job { metadata, spec, status } = job(valid, names::upload(&valid.name), pod);
    let spec = spec.map(|spec| JobSpec {
        backoff_limit: Some(uploads::RETRIES),
        pod_failure_policy: Some(uploads::ends_at(&uploads::PERMANENT)),
        ..spec
    });
    Job { metadata, spec, status }
}

fn uploader<'a>(valid: &ValidEvaluation, settings: &'a Settings) -> Uploader<'a> {
    let users = valid.evaluation.spec.pods.helper_resources.as_ref();
    let resources = helper_resources(users, &uploads::AMOUNTS);
    Uploader { image: &settings.transfer_image, fields: FIELDS, resources }
}

/// On the node of the other pod of this evaluation, if there is room. Not required: a pod on a lost node would keep all others
/// from every other node.
fn beside_the_other(pod: PodSpec, valid: &ValidEvaluation) -> PodSpec {
    // That of the check has no volume.
    let is_no_check = LabelSelectorRequirement {
        key: JOB_NAME.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![names::store_check(&valid.name)]),
    };
    let term = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some(labels_of(&valid.name)),
            match_expressions: Some(vec![is_no_check]),
        }),
        topology_key: HOSTNAME.to_owned(),
        ..PodAffinityTerm::default()
    };
    let beside = WeightedPodAffinityTerm { weight: HIGHEST_WEIGHT, pod_affinity_term: term };
    let beside = PodAffinity {
        preferred_during_scheduling_ignored_during_execution: Some(vec![beside]),
        ..PodAffinity::default()
    };
    let affinity = Affinity { pod_affinity: Some(beside), ..pod.affinity.unwrap_or_default() };
    PodSpec { affinity: Some(affinity), ..pod }
}

fn job(valid: &ValidEvaluation, name: String, pod: PodSpec) -> Job {
    let options = &valid.evaluation.spec.pods;
    let mut labels = options.pod_labels.clone();
    labels.extend(labels_of(&valid.name));
    labels.insert(labels::APP.to_owned(), valid.name.clone());
    let mut annotations = options.pod_annotations.clone();
    for (key, value) in labels::STAYS_ON_ITS_NODE {
        annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    let template =
        ObjectMeta { labels: Some(labels), annotations: Some(annotations), ..ObjectMeta::default() };
    Job {
        metadata: metadata(valid, name),
        spec: Some(JobSpec {
            backoff_limit: Some(RETRIES),
            pod_failure_policy: Some(PodFailurePolicy { rules: rules() }),
            template: PodTemplateSpec { metadata: Some(template), spec: Some(pod) },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

/// An evicted pod is replaced and not counted. A failure that no repetition can end is the last one.
fn rules() -> Vec<PodFailurePolicyRule> {
    let codes = |action: &str, codes: Vec<i32>| PodFailurePolicyRule {
        action: action.to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(RUNNER.to_owned()),
            operator: "In".to_owned(),
            values: codes,
        }),
        ..PodFailurePolicyRule::default()
    };
    let evicted = PodFailurePolicyOnPodConditionsPattern {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
    };
    let permanent = ExitCode::ALL.into_iter().filter(|code| !code.may_be_repeated());
    vec![
        PodFailurePolicyRule {
            action: "Ignore".to_owned(),
            on_pod_conditions: Some(vec![evicted]),
            ..PodFailurePolicyRule::default()
        },
        codes("Ignore", vec![ExitCode::Stopped.code()]),
        codes("FailJob", permanent.map(ExitCode::code).collect()),
    ]
}

/// Without containers.
fn common(valid: &ValidEvaluation) -> PodSpec {
    let options = &valid.evaluation.spec.pods;
    let scheduling = options.scheduling.as_ref();
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        affinity: affinity(None, scheduling, None),
        // A cluster may have nodes with GPUs alone.
        tolerations: tolerations(scheduling, true, None),
        ..pod(options)
    }
}

fn installer(valid: &ValidEvaluation, image: &str) -> Container {
    let users = valid.evaluation.spec.pods.helper_resources.as_ref();
    Container {
        name: INSTALLER.to_owned(),
        image: Some(image.to_owned()),
        args: Some(vec![commands::INSTALL.to_owned(), PROGRAM_PATH.to_owned()]),
        resources: Some(helper_resources(users, &HELPER_AMOUNTS)),
        volume_mounts: Some(vec![mount(PROGRAM_VOLUME, PROGRAM_PATH)]),
        security_context: Some(container_security(Some(true))),
        ..Container::default()
    }
}

/// Of this evaluation alone, also in a claim of the user.
fn folder(valid: &ValidEvaluation) -> String {
    format!("{OUTPUT_PATH}/{}", valid.owner.uid)
}

fn option(name: &str, value: &str) -> String {
    format!("--{name}={}", literal(value))
}

fn arguments(scene: &Scene<'_>, asked: Asked, set: &ValidSet, server: &Serving) -> Vec<String> {
    let valid = scene.valid;
    let spec = &valid.evaluation.spec;
    let flag = |name: &str| format!("--{name}");
    let identity = scene.sides.of(asked.side()).map(sides::identity).unwrap_or_default();
    let requests = match spec.requests {
        Requests::Chat => CHAT,
        Requests::Completions => COMPLETIONS,
    };
    let mut words = vec![
        commands::RUN.to_owned(),
        option(options::OUTPUT_DIR, &folder(valid)),
        option(options::SIDE, asked.as_str()),
        option(options::TEST_SET, &set.file),
        option(options::IDENTITY, &identity),
        option(options::HARNESS, set.harness.as_str()),
        option(options::DATASET, &set.dataset),
        option(options::URL, &server.url),
        option(options::SEED, &spec.seed.to_string()),
        option(options::TEMPERATURE, &spec.temperature),
        option(options::CONCURRENCY, &spec.concurrency.to_string()),
        option(options::ENDPOINT, requests),
        option(options::GRACE_SECONDS, &GRACE_SECONDS.to_string()),
    ];
    words.extend(server.model.iter().map(|model| option(options::MODEL, model)));
    words.extend(spec.max_tokens.map(|tokens| option(options::MAX_TOKENS, &tokens.to_string())));
    words.extend(set.subsets.iter().map(|subset| option(options::SUBSET, subset)));
    words.extend(set.limit.map(|limit| option(options::LIMIT, &limit.to_string())));
    words.extend(set.metric.iter().map(|metric| option(options::METRIC, metric)));
    match &set.questions {
        Questions::Image(folder) => words.push(option(options::DATASET_PATH, folder)),
        Questions::Claim { .. } => words.push(option(options::DATASET_PATH, QUESTIONS_PATH)),
        Questions::Online => words.push(flag(options::ALLOW_ONLINE)),
    }
    words.extend(spec.allow_code_execution.then(|| flag(options::ALLOW_CODE_EXECUTION)));
    words.extend((asked == Asked::Control).then(|| option(options::AT_MOST, CONTROL_QUESTIONS)));
    words
}

/// The home folder, the user's variables, and what the controller alone sets.
fn environment(valid: &ValidEvaluation, asked: Asked) -> Vec<EnvVar> {
    let spec = &valid.evaluation.spec;
    let home = EnvVar { name: "HOME".to_owned(), value: Some(HOME.to_owned()), value_from: None };
    // The key of one server is not sent to another one.
    let is_endpoint = matches!(valid.model(asked.side()), Model::Endpoint { .. });
    let secret = spec.api_key_secret_name.as_ref().filter(|_| is_endpoint);
    let key = secret.map(|secret| EnvVar {
        name: API_KEY.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.clone(),
                key: TOKEN_KEY.to_owned(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    });
    let users = spec.env.iter().filter(|variable| variable.name != API_KEY || key.is_none());
    let is_own_home = spec.env.iter().any(|variable| variable.name == "HOME");
    let home = Some(home).filter(|_| !is_own_home);
    home.into_iter().chain(users.map(env_var)).chain(key.clone()).collect()
}

fn resources(valid: &ValidEvaluation) -> ResourceRequirements {
    let given = valid.evaluation.spec.resources.clone().unwrap_or_default();
    ResourceRequirements {
        requests: Some(given.requests).filter(|amounts| !amounts.is_empty()),
        limits: Some(given.limits).filter(|amounts| !amounts.is_empty()),
        ..ResourceRequirements::default()
    }
}

/// Which volume of the user meets one of the pod's own.
pub(crate) fn volume_conflict(valid: &ValidEvaluation) -> Option<String> {
    let (mut volumes, mut mounts) = own_volumes(valid);
    volumes.push(Volume { name: QUESTIONS_VOLUME.to_owned(), ..Volume::default() });
    mounts.push(VolumeMount { read_only: Some(true), ..mount(QUESTIONS_VOLUME, QUESTIONS_PATH) });
    conflict(&valid.evaluation.spec.pods, &volumes, &mounts)
}

fn volumes(valid: &ValidEvaluation) -> (Vec<Volume>, Vec<VolumeMount>) {
    let (mut volumes, mut mounts) = own_volumes(valid);
    let (of_user, mounts_of_user) = user_volumes(&valid.evaluation.spec.pods);
    volumes.extend(of_user);
    mounts.extend(mounts_of_user);
    (volumes, mounts)
}

fn own_volumes(valid: &ValidEvaluation) -> (Vec<Volume>, Vec<VolumeMount>) {
    let options = &valid.evaluation.spec.pods;
    let empty = |name: &str, source: EmptyDirVolumeSource| Volume {
        name: name.to_owned(),
        empty_dir: Some(source),
        ..Volume::default()
    };
    let mut volumes = vec![
        empty(PROGRAM_VOLUME, EmptyDirVolumeSource::default()),
        empty(HOME_VOLUME, EmptyDirVolumeSource::default()),
        volume_of_claim(OUTPUT_VOLUME, &claim::name(valid)),
    ];
    let mut mounts = vec![
        VolumeMount { read_only: Some(true), ..mount(PROGRAM_VOLUME, PROGRAM_PATH) },
        mount(HOME_VOLUME, HOME),
        mount(OUTPUT_VOLUME, OUTPUT_PATH),
    ];
    if let Some(size) = &options.shared_memory {
        let source =
            EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: Some(size.clone()) };
        volumes.push(empty(SHARED_MEMORY_VOLUME, source));
        mounts.push(mount(SHARED_MEMORY_VOLUME, SHARED_MEMORY));
    }
    (volumes, mounts)
}

/// The files of a test set, if they are in a claim.
fn questions(set: &ValidSet) -> (Option<Volume>, Option<VolumeMount>) {
    let Questions::Claim { claim, path } = &set.questions else { return (None, None) };
    let mounted = VolumeMount {
        read_only: Some(true),
        sub_path: path.clone(),
        ..mount(QUESTIONS_VOLUME, QUESTIONS_PATH)
    };
    (Some(volume_of_claim(QUESTIONS_VOLUME, claim)), Some(mounted))
}

fn volume_of_claim(name: &str, claim: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            ..PersistentVolumeClaimVolumeSource::default()
        }),
        ..Volume::default()
    }
}
