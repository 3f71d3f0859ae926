//! What a pod says of the run of one of its containers: when it began and ended, and what its log has. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, Pod};

use super::go_duration;
use crate::simulation::{SETTING_ANNOTATION, TRAINER, TRAINING_STEPS};

/// The run whose log is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) started: Timestamp,
    pub(super) end: Option<End>,
    /// `None`: it prints nothing.
    pub(super) training: Option<Training>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) at: Timestamp,
    pub(super) exit_code: i32,
    /// What the trainer printed last, by the termination message.
    pub(super) error: Option<String>,
}

/// What a trainer prints.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Training {
    pub(super) form: Form,
    /// Over which its steps are spread evenly.
    pub(super) length: Duration,
    pub(super) steps: u32,
    pub(super) logged_every: u32,
    pub(super) saved_every: u32,
    pub(super) output: String,
    /// The arguments of `swift`.
    pub(super) command: Vec<String>,
}

/// Which metrics a logged step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Sft,
    Dpo,
}

/// Why there is no log.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("pod {pod} has no container {container}")]
    NoContainer { pod: String, container: String },
    #[error("container \"{container}\" in pod \"{pod}\" is waiting to start: {reason}")]
    NotStarted { pod: String, container: String, reason: String },
}

/// More would only cost time: a log is read from its first line.
const MOST_STEPS: u32 = 1_000_000;
/// ms-swift's defaults, for trainers that are started without these arguments.
const LOGGED_EVERY: u32 = 5;
const SAVED_EVERY: u32 = 500;

pub(super) fn of_container(pod: &Pod, container: &str, training_time: Duration) -> Result<Run, Refusal> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let main = spec.into_iter().flat_map(|spec| &spec.containers).find(|known| known.name == container);
    let others = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
    if main.is_none() && !others.into_iter().any(|known| known.name == container) {
        return Err(Refusal::NoContainer { pod: name, container: container.to_owned() });
    }
    let status = pod.status.as_ref();
    let statuses = status.into_iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    let state =
        statuses.into_iter().find(|known| known.name == container).and_then(|known| known.state.clone());
    let state = state.unwrap_or_default();
    let ended = state.terminated.as_ref();
    let started = state.running.and_then(|running| running.started_at);
    let started = started.or_else(|| ended.and_then(|ended| ended.started_at.clone()));
    let Some(started) = started else {
        let reason = state.waiting.and_then(|waiting| waiting.reason);
        let reason = reason.unwrap_or_else(|| "ContainerCreating".to_owned());
        return Err(Refusal::NotStarted { pod: name, container: container.to_owned(), reason });
    };
    let training = main.filter(|main| main.name == TRAINER).map(|main| training(pod, main, training_time));
    Ok(Run { started: started.0, end: ended.map(|ended| end(ended, started.0)), training })
}

/// How the run ended, if it is still that of the same pod.
pub(super) fn end_of(pod: &Pod, uid: &str, container: &str) -> Option<End> {
    if pod.metadata.uid.as_deref() != Some(uid) {
        return None;
    }
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let state = statuses.iter().find(|known| known.name == container)?.state.as_ref()?;
    let ended = state.terminated.as_ref()?;
    Some(end(ended, ended.started_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)))
}

fn end(ended: &ContainerStateTerminated, started: Timestamp) -> End {
    let message: Option<serde_json::Value> =
        ended.message.as_ref().and_then(|message| serde_json::from_str(message).ok());
    let error = message.as_ref().and_then(|message| message["error"].as_str()).map(str::to_owned);
    let at = ended.finished_at.as_ref().map_or(started, |time| time.0);
    End { at, exit_code: ended.exit_code, error }
}

fn training(pod: &Pod, trainer: &Container, training_time: Duration) -> Training {
    let arguments = trainer.args.clone().unwrap_or_default();
    let of_swift = arguments.iter().position(|argument| argument == "--").map_or(0, |at| at + 1);
    let command: Vec<String> = arguments.get(of_swift..).unwrap_or_default().to_vec();
    // Of an argument that is given twice the last one counts.
    let flag = |name: &str| {
        let at = command.iter().rposition(|argument| argument == name)?;
        command.get(at + 1)
    };
    let number = |name: &str| flag(name).and_then(|value| value.parse().ok()).filter(|value| *value > 0);
    let setting = |name: &str| setting(pod, name);
    let steps = setting("steps").and_then(|steps| steps.parse().ok()).unwrap_or(TRAINING_STEPS);
    Training {
        form: if flag("--rlhf_type").is_some() { Form::Dpo } else { Form::Sft },
        length: setting("run-time").and_then(|time| go_duration::parse(&time)).unwrap_or(training_time),
        steps: steps.clamp(1, MOST_STEPS),
        logged_every: number("--logging_steps").unwrap_or(LOGGED_EVERY),
        saved_every: number("--save_steps").unwrap_or(SAVED_EVERY),
        output: flag("--output_dir").cloned().unwrap_or_else(|| "output".to_owned()),
        command,
    }
}

/// As the stages read it: an annotation of the pod, else a variable of the container named `engine`, else of the first one.
fn setting(pod: &Pod, name: &str) -> Option<String> {
    let annotations = pod.metadata.annotations.as_ref();
    if let Some(value) = annotations.and_then(|all| all.get(&format!("{SETTING_ANNOTATION}{name}"))) {
        return Some(value.clone());
    }
    let containers = &pod.spec.as_ref()?.containers;
    let engine = containers.iter().find(|known| known.name == "engine").or(containers.first())?;
    let variable = format!("SIM_{}", name.replace('-', "_").to_uppercase());
    engine.env.iter().flatten().find(|known| known.name == variable)?.value.clone()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(state: Value) -> Pod {
        let args =
            ["run", "--output-dir=/out", "--", "swift", "rlhf", "--rlhf_type", "dpo", "--logging_steps", "5"];
        let args: Vec<&str> =
            args.into_iter().chain(["--logging_steps", "2", "--output_dir", "/out"]).collect();
        let env = json!([{"name": "SIM_RUN_TIME", "value": "30s"}, {"name": "SIM_STEPS", "value": "7"}]);
        let trainer = json!({"name": "trainer", "args": args, "env": env});
        serde_json::from_value(json!({
            "metadata": {"name": "qwen-1-0", "uid": "u", "annotations": {"sim.ai.infra.example.com/steps": "10"}},
            "spec": {"containers": [trainer, {"name": "sidecar"}]},
            "status": {"containerStatuses": [
                {"name": "trainer", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn a_trainer_is_described_by_its_settings_and_arguments() {
        let running = pod(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
        let run = of_container(&running, TRAINER, Duration::from_secs(1)).unwrap();
        let training = run.training.unwrap();
        assert_eq!((training.form, training.length), (Form::Dpo, Duration::from_secs(30)));
        assert_eq!((training.steps, training.logged_every, training.saved_every), (10, 2, 500));
        assert_eq!(training.output, "/out");
        assert_eq!(run.end, None);
    }

    #[test]
    fn the_end_has_the_error_of_the_termination_message() {
        let terminated = json!({"exitCode": 1, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:05Z",
            "message": r#"{"exitCode":1,"error":"ValueError: no"}"#});
        let failed = pod(json!({"terminated": terminated}));
        let end = End {
            at: "2026-01-01T00:00:05Z".parse().unwrap(),
            exit_code: 1,
            error: Some("ValueError: no".to_owned()),
        };
        assert_eq!(end_of(&failed, "u", TRAINER), Some(end.clone()));
        assert_eq!(end_of(&failed, "another", TRAINER), None);
        assert_eq!(of_container(&failed, TRAINER, Duration::ZERO).unwrap().end, Some(end));
    }

    #[test]
    fn a_container_that_has_not_started_is_refused_with_its_reason() {
        let waiting = pod(json!({"waiting": {"reason": "ImagePullBackOff"}}));
        let refusal = of_container(&waiting, TRAINER, Duration::ZERO).unwrap_err();
        assert!(refusal.to_string().ends_with("is waiting to start: ImagePullBackOff"), "{refusal}");
        let unknown = of_container(&waiting, "other", Duration::ZERO).unwrap_err();
        assert_eq!(unknown.to_string(), "pod qwen-1-0 has no container other");
    }
}
