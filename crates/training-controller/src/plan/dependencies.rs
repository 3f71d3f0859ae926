//! What a job waits for: whether the jobs that it depends on have succeeded, and what they left for it. Pure.

use api::{
    launcher::checkpoint_step,
    reasons,
    trainingjob::{Dependency as Record, DependencyResult, Method, Phase, TrainingJob},
};

use crate::{
    objects::training_job::is_uploading,
    observe::{Dependency, Observed},
    relations::wants::{Want, is_default_output},
    swift::{StartModel, trains_adapters},
    validate::{Invalid, ValidJob, validate},
};

/// How the dependencies stand, with the records for the status.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Dependencies {
    /// There are none.
    None,
    Ready(Vec<Record>),
    NotReady {
        records: Vec<Record>,
        reason: &'static str,
        message: String,
    },
    Ambiguous(String),
}

/// Once an attempt has begun, the records stay: what becomes of the other jobs does not matter any more.
pub(super) fn dependencies(observed: &Observed) -> Dependencies {
    let recorded = observed.job.status.as_ref().map_or(&[][..], |status| &status.dependencies);
    if observed.started() > 0 && !recorded.is_empty() {
        return Dependencies::Ready(recorded.to_vec());
    }
    if observed.dependencies.is_empty() {
        return Dependencies::None;
    }
    let mut records = Vec::new();
    let mut obstacle: Option<(&'static str, String)> = None;
    if let [first, rest @ ..] = observed.cycle.as_slice() {
        let way: Vec<&str> = rest.iter().chain([first]).map(String::as_str).collect();
        let message = format!(
            "{first} waits for itself, by way of {}; change what one of them reads, or its dependsOn",
            way.join(" -> ")
        );
        obstacle = Some((reasons::CYCLE, message));
    }
    for dependency in &observed.dependencies {
        let known = recorded.iter().find(|record| is_of(record, &dependency.want));
        match state(dependency, known) {
            State::Done(record) => records.push(record),
            State::Waits(record, message) => {
                records.push(record);
                obstacle.get_or_insert((reasons::WAITING, message));
            }
            State::Failed(record, message) => {
                records.push(record);
                // It matters more than others that are only waited for.
                if obstacle.as_ref().is_none_or(|(reason, _)| *reason == reasons::WAITING) {
                    obstacle = Some((reasons::DEPENDENCY_FAILED, message));
                }
            }
            State::Missing(message) => drop(obstacle.get_or_insert((reasons::DEPENDENCY_NOT_FOUND, message))),
            State::Ambiguous(message) => return Dependencies::Ambiguous(message),
        }
    }
    match obstacle {
        Some((reason, message)) => Dependencies::NotReady { records, reason, message },
        None => Dependencies::Ready(records),
    }
}

enum State {
    Done(Record),
    Waits(Record, String),
    Failed(Record, String),
    Missing(String),
    Ambiguous(String),
}

fn is_of(record: &Record, want: &Want) -> bool {
    match want {
        Want::Job(name) => record.path.is_none() && record.name == *name,
        Want::Path { path, field: _ } => record.path.as_deref() == Some(path),
    }
}

fn state(dependency: &Dependency, known: Option<&Record>) -> State {
    let Dependency { want, candidates } = dependency;
    if let Some(done) = known.filter(|record| record.result.is_some()) {
        return State::Done(done.clone());
    }
    // The one that was chosen before stays the choice.
    let chosen = candidates
        .iter()
        .find(|job| known.is_some_and(|known| job.metadata.uid.as_ref() == Some(&known.uid)));
    let job = match (chosen, candidates.as_slice()) {
        (Some(job), _) | (None, [job]) => job,
        (None, []) => return State::Missing(missing(want)),
        (None, [one, other, ..]) => {
            // Names are unique.
            let Want::Path { field, path } = want else { return State::Missing(missing(want)) };
            return State::Ambiguous(format!(
                "{field}: the outputs of the TrainingJobs {} and {} both contain {path}; delete the one whose result \
                 is not wanted, or create it again with another outputDir",
                name(one),
                name(other)
            ));
        }
    };
    let path = match want {
        Want::Job(_) => None,
        Want::Path { path, field: _ } => Some(path.clone()),
    };
    let record =
        Record { name: name(job), uid: job.metadata.uid.clone().unwrap_or_default(), path, result: None };
    let status = job.status.clone().unwrap_or_default();
    let why = status.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
    if is_uploading(Some(&status)) {
        // The result is in the claim, whatever becomes of its upload.
        return State::Done(Record { result: result(job, record.path.as_deref()), ..record });
    }
    match status.phase {
        Some(Phase::Succeeded) => {
            State::Done(Record { result: result(job, record.path.as_deref()), ..record })
        }
        Some(Phase::Failed) => {
            let message = format!("TrainingJob {} has failed{why}", record.name);
            State::Failed(record, message)
        }
        Some(Phase::Pending | Phase::Running) | None => {
            let phase = status.phase.map_or("new", |phase| match phase {
                Phase::Pending => "pending",
                Phase::Running | Phase::Succeeded | Phase::Failed => "running",
            });
            let message = format!("waits for TrainingJob {}, which is {phase}", record.name);
            State::Waits(record, message)
        }
    }
}

fn missing(want: &Want) -> String {
    match want {
        Want::Job(name) => {
            format!(
                "spec.dependsOn: TrainingJob {name} does not exist; create it, or create this job again without it"
            )
        }
        Want::Path { field, path } if is_default_output(path) => format!(
            "{field}: {path} is in the outputDir of every job that sets none; create the job that is read with an outputDir of \
             its own"
        ),
        Want::Path { field, path } => format!(
            "{field}: no TrainingJob has an outputDir that contains {path}, and no input is mounted there; create that \
             job, or create this one again with an input there{}",
            match *field {
                "spec.model" => " or with modelInImage",
                "spec.adapters" => ", such as the claim that a deleted job has left",
                _ => "",
            }
        ),
    }
}

fn name(job: &TrainingJob) -> String {
    job.metadata.name.clone().unwrap_or_default()
}

/// The claim and the checkpoint of a succeeded job, for a dependent that reads this path.
fn result(job: &TrainingJob, path: Option<&str>) -> Option<DependencyResult> {
    let valid = validate(job).ok()?;
    let status = job.status.as_ref()?;
    let trained = status.checkpoint.as_ref().map_or(valid.output.dir.as_str(), |last| last.path.as_str());
    // A path below outputDir is meant as it is.
    let is_whole =
        path.is_none_or(|path| path.trim_end_matches('/') == valid.output.dir.trim_end_matches('/'));
    let wanted = path.filter(|_| !is_whole).unwrap_or(trained);
    let is_checkpoint = wanted.rsplit('/').next().is_some_and(|last| checkpoint_step(last).is_some());
    let base =
        status.resolved.as_ref().map(|resolved| resolved.model.clone()).filter(|model| !model.is_empty());
    let (model, adapters) = if trains_adapters(valid.method) && (is_whole || is_checkpoint) {
        (base.unwrap_or(valid.model), Some(wanted.to_owned()))
    } else {
        (wanted.to_owned(), None)
    };
    Some(DependencyResult {
        claim_name: valid.output.claim.name().to_owned(),
        mount_path: valid.output.mount_path,
        model,
        adapters,
    })
}

/// The claims to mount, one for each path.
pub(super) fn results(records: &[Record]) -> Vec<DependencyResult> {
    let mut results: Vec<DependencyResult> = Vec::new();
    for record in records.iter().filter(|record| record.path.is_some()) {
        if let Some(result) = &record.result
            && !results.iter().any(|known| known.mount_path == result.mount_path)
        {
            results.push(result.clone());
        }
    }
    results
}

/// The model that this text of the spec means.
pub(super) fn source(text: &str, records: &[Record]) -> StartModel {
    let record = records.iter().find(|record| record.path.as_deref() == Some(text));
    match record.and_then(|record| record.result.as_ref()) {
        Some(result) => StartModel { model: result.model.clone(), adapters: result.adapters.clone() },
        None => StartModel { model: text.to_owned(), adapters: None },
    }
}

/// The model and the adapters that the training starts from.
pub(super) fn start(valid: &ValidJob, records: &[Record]) -> StartModel {
    let model = source(&valid.model, records);
    match &valid.adapters {
        None => model,
        Some(text) => {
            let adapters = source(text, records).adapters.unwrap_or_else(|| text.clone());
            StartModel { adapters: Some(adapters), ..model }
        }
    }
}

/// Why `spec.adapters` is no LoRA adapters for the model.
fn adapters_fit(valid: &ValidJob, records: &[Record]) -> Result<(), Invalid> {
    let Some(text) = &valid.adapters else { return Ok(()) };
    if let Some(of_model) = source(&valid.model, records).adapters {
        return Err(Invalid(format!(
            "spec.adapters: spec.model already is the LoRA adapters {of_model}; create the job again with one of them"
        )));
    }
    let given = source(text, records);
    if given.adapters.is_none() && given.model != *text {
        return Err(Invalid(format!(
            "spec.adapters: the job that writes {text} trains a whole model; create this job again with spec.model {text}"
        )));
    }
    Ok(())
}

/// Results that this job cannot use.
pub(super) fn fit(valid: &ValidJob, records: &[Record]) -> Result<(), Invalid> {
    adapters_fit(valid, records)?;
    let merge = "merge them first (swift export --merge_lora true)";
    if let Some(adapters) = source(&valid.model, records).adapters {
        let method = match valid.method {
            // ms-swift would ignore them without an error.
            Method::Full => Some("full"),
            // It loads them into the value model as well, and fails.
            Method::Ppo => Some("ppo"),
            Method::Lora | Method::Qlora | Method::Dpo => None,
        };
        if let Some(method) = method {
            return Err(Invalid(format!(
                "spec.model: {} is the LoRA adapters {adapters}, with which method {method} cannot start; {merge}",
                valid.model
            )));
        }
    }
    let reward = valid.reward_model.as_ref().and_then(|text| source(text, records).adapters);
    if let Some(adapters) = reward {
        return Err(Invalid(format!(
            "spec.rewardModel is the LoRA adapters {adapters}, and ms-swift needs a whole reward model; {merge}"
        )));
    }
    let own = &valid.output;
    for result in results(records) {
        if result.mount_path == own.mount_path && result.claim_name != own.claim.name() {
            return Err(Invalid(format!(
                "spec.outputDir: {} is where the result of another job is mounted; create the job again with another outputDir",
                own.mount_path
            )));
        }
    }
    Ok(())
}
