//! Why an attempt failed: from exit codes, conditions of pods, the launcher's message and the log to one reason of a closed
//! list, and what can be done about it. Pure.
//!
//! An exit code of 1 is a full GPU, a wrong flag or a lost peer alike, so the code alone decides only where it is unambiguous. The
//! exit code comes first: `OOMKilled` may stand beside a 0.

use api::{
    launcher::{ExitCode, Message},
    reasons,
    trainingjob::Checkpoint,
};
use jiff::Timestamp;
use text::{cut, printable, redacted};
use training_log::Cause;
use workload::views::pod::{PodView, Terminated};

use crate::{objects::pod::TRAINER, progress::LogState};

/// Why an attempt ended without a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) reason: &'static str,
    pub(crate) class: Class,
    /// What happened, in one sentence, with what can be done.
    pub(crate) message: String,
    pub(crate) pod: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) tail: Option<String>,
    /// The newest complete checkpoint, if the launcher has reported it.
    pub(crate) checkpoint: Option<Checkpoint>,
}

/// The closed list of reasons, for metrics.
pub(crate) fn failure_reasons() -> impl Iterator<Item = &'static str> {
    let others = [
        reasons::PREEMPTED,
        reasons::NODE_LOST,
        reasons::NO_PROGRESS,
        reasons::DEADLINE_EXCEEDED,
        reasons::UNSCHEDULABLE,
        reasons::STARTING,
        reasons::IMAGE_PULL_FAILED,
        reasons::SECRET_NOT_FOUND,
        reasons::CONFIG_MAP_NOT_FOUND,
        reasons::CRASH_LOOP,
        reasons::VOLUME_NOT_ATTACHED,
        reasons::SANDBOX_FAILED,
        reasons::POD_REFUSED,
        reasons::STOPPED_EARLY,
        reasons::LOSS_NOT_FINITE,
        reasons::CANNOT_RESUME,
        reasons::OUTPUT_NOT_EMPTY,
        reasons::OUTPUT_UNUSABLE,
    ];
    Cause::ALL.into_iter().map(Cause::reason).chain(others)
}

/// What can be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It is not the job's fault: it goes on at once, without a limit but that of attempts that make no progress.
    Interruption,
    /// The launcher got SIGTERM although its pod was not deleted: from a node that shuts down, or from the trainer itself. As
    /// an interruption, but always after a pause.
    Stop,
    /// It did not come to train: a place, an image, a Secret, the hub or room on the volume was missing. It is tried again
    /// without GPUs in between, however often.
    CannotStart,
    /// A volume was full after a step of the attempt. The next attempt starts when the claim is larger, or after an hour,
    /// because files may have been deleted.
    OutOfSpace,
    /// The memory of the GPUs is too small for the settings.
    OutOfGpuMemory,
    /// It may pass by itself.
    Transient,
    /// It would be the same again.
    Permanent,
}

/// Longest part of a log in the status, in bytes.
const LONGEST_TAIL: usize = 1_024;
/// Longest line of a log in a message, in bytes.
const LONGEST_LINE: usize = 400;
/// `subprocess.run` of a child that SIGKILL ended, through `sys.exit`: −9 in one byte.
const CHILD_KILLED: i32 = 247;
const SIGKILL: i32 = 9;
/// What torchrun reports of a rank that SIGKILL ended. It ends others so after a failure, which has a cause of its own then.
const TORCHRUN_KILLED: &str = "Signal 9 (SIGKILL) received by PID";
/// Exit codes above this one are those of signals.
const SIGNALLED: i32 = 128;
/// Exit code of a container that SIGKILL ended.
const KILLED: i32 = SIGNALLED + SIGKILL;
/// Of a command line that Python's argparse refuses.
const BAD_ARGUMENT: i32 = 2;
/// Reason of a pod that its kubelet has ended for want of a resource.
const EVICTED: &str = "Evicted";
/// Reasons of containers whose end no kubelet has seen: their node was restarted.
const UNSEEN_ENDS: [&str; 2] = ["ContainerStatusUnknown", "Unknown"];
/// Reasons of containers that their runtime could not start, for example because a driver does not answer.
const START_ERRORS: [&str; 2] = ["StartError", "ContainerCannotRun"];
/// Reasons of pods that their kubelet has ended, and not refused: a shutdown of the node, or a pod of higher priority.
const ENDED_BY_KUBELET: [&str; 6] =
    ["NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeLost", "DeadlineExceeded"];

/// What the job had reached when an attempt failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct History {
    /// The number of the attempt.
    pub(crate) attempt: i32,
    /// Whether a step or a checkpoint of any attempt is known.
    pub(crate) has_trained: bool,
    /// Whether a step of this attempt is known.
    pub(crate) has_stepped: bool,
}

impl Failure {
    /// What the hub had once, or a later attempt lacks, comes back: it ends no job that has trained. Before that, a name or a
    /// token that is wrong ends the job at once, so that its user is not left waiting. What ends an attempt that has trained
    /// is no fault of its start: the next one would train as far, on all GPUs.
    pub(crate) fn after(mut self, history: History) -> Self {
        let comes_back = match self.reason {
            reasons::SOURCE_UNREACHABLE | reasons::OUTPUT_UNUSABLE if history.has_stepped => {
                self.class = Class::Transient;
                return self;
            }
            reasons::OUT_OF_SPACE if history.has_stepped && self.class == Class::CannotStart => {
                self.class = Class::OutOfSpace;
                return self;
            }
            reasons::SOURCE_UNAUTHORIZED => history.has_trained || history.attempt > 1,
            reasons::SOURCE_NOT_FOUND => history.has_trained,
            _ => return self,
        };
        if comes_back {
            self.class = Class::CannotStart;
        } else {
            self.message.push_str(match self.reason {
                reasons::SOURCE_NOT_FOUND => "; create the job again with another model, dataset or hub",
                _ => "; then create the job again",
            });
        }
        self
    }

    /// One that no pod shows.
    pub(crate) fn of_attempt(reason: &'static str, class: Class, message: String) -> Self {
        Self { reason, class, message, pod: None, node: None, exit_code: None, tail: None, checkpoint: None }
    }
}

/// The failure of the attempt whose pods are these: that of the first pod that failed by itself. `None`: none has failed.
pub(crate) fn of_pods<'a>(
    pods: impl Iterator<Item = &'a PodView>,
    log: Option<&LogState>,
) -> Option<Failure> {
    let failed = pods.filter(|pod| has_failed(pod));
    // What follows from the end of another pod explains nothing.
    let first = failed.min_by_key(|pod| (is_consequence(pod), ended_at(pod), pod.name().to_owned()))?;
    Some(of_pod(first, log))
}

/// A pod whose trainer has ended with 0 has not failed. A sidecar that fails, or a kubelet that was restarted, may still end
/// the pod as Failed.
pub(crate) fn has_failed(pod: &PodView) -> bool {
    trainer(pod).map_or(pod.phase == "Failed", |ended| ended.exit_code != 0)
}

/// Whether the launcher has proven the result: it ended with 0, and its message names the complete checkpoint.
pub(crate) fn has_proven_result(pod: &PodView) -> bool {
    trainer(pod).is_some_and(|ended| ended.exit_code == 0)
        && message_of(pod).is_some_and(|message| message.checkpoint.is_some())
}

/// Whether a kubelet has refused the pod, or could not start its trainer.
pub(crate) fn was_refused(pod: &PodView) -> bool {
    match trainer(pod) {
        Some(ended) => START_ERRORS.contains(&&*ended.reason),
        None => {
            let reason = pod.reason.as_str();
            let is_other = reason.is_empty() || reason == EVICTED || ENDED_BY_KUBELET.contains(&reason);
            pod.phase == "Failed" && !is_other && pod.disrupted.is_none()
        }
    }
}

fn trainer(pod: &PodView) -> Option<&Terminated> {
    pod.container(TRAINER)?.state.terminated.as_ref()
}

fn ended_at(pod: &PodView) -> Option<Timestamp> {
    trainer(pod).and_then(|ended| ended.finished_at)
}

/// The message of the launcher, if it wrote one.
pub(crate) fn message_of(pod: &PodView) -> Option<Message> {
    serde_json::from_str(&trainer(pod)?.message).ok()
}

fn is_consequence(pod: &PodView) -> bool {
    let code = trainer(pod).map(|ended| ended.exit_code);
    let cause = message_of(pod).and_then(|message| message.cause);
    let was_stopped = code.and_then(ExitCode::from_code) == Some(ExitCode::Stopped);
    pod.disrupted.is_none() && (was_stopped || cause.as_deref() == Some(reasons::PEER_LOST))
}

fn of_pod(pod: &PodView, log: Option<&LogState>) -> Failure {
    let ended = trainer(pod);
    let message = message_of(pod).unwrap_or_default();
    let (reason, class, what) = classify(pod, ended, &message);
    let node = pod.node.as_deref().map(|node| format!(" on node {node}")).unwrap_or_default();
    let line = message.error.as_deref().map(|line| format!(": {}", quoted(line))).unwrap_or_default();
    let tail = message.tail.clone().or_else(|| log.and_then(LogState::tail));
    let checkpoint = message.checkpoint.as_ref().map(|saved| Checkpoint {
        path: saved.path.clone(),
        step: saved.step,
        time: None,
    });
    Failure {
        reason,
        class,
        message: format!("pod {}{node} {what}{line}", pod.name()),
        pod: Some(pod.name().to_owned()),
        node: pod.node.clone(),
        exit_code: message.exit_code.or(ended.map(|ended| ended.exit_code)),
        tail: tail.map(|tail| tail_of(&tail)),
        checkpoint,
    }
}

fn quoted(line: &str) -> String {
    cut(redacted(&printable(line)), LONGEST_LINE)
}

/// The end of a log, line by line, without secrets.
fn tail_of(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| redacted(&printable(line))).collect();
    let text = lines.join("\n");
    let from = text.len().saturating_sub(LONGEST_TAIL);
    text.get(text.ceil_char_boundary(from)..).unwrap_or_default().to_owned()
}

/// Reason, class, and what happened.
fn classify(pod: &PodView, ended: Option<&Terminated>, message: &Message) -> (&'static str, Class, String) {
    use Class::{CannotStart, Interruption, OutOfGpuMemory, Permanent, Transient};
    if let Some(evicted) = evicted(pod) {
        return evicted;
    }
    if was_refused(pod) && pod.metadata.deletion_timestamp.is_none() {
        return refused(pod, ended);
    }
    if pod.disrupted.is_some() || (ended.is_none() && !pod.reason.is_empty()) {
        return (reasons::PREEMPTED, Interruption, format!("was interrupted{}", words_of(pod)));
    }
    if pod.metadata.deletion_timestamp.is_some() && ended.is_none_or(|ended| ended.exit_code > SIGNALLED) {
        return (reasons::PREEMPTED, Interruption, "was deleted".to_owned());
    }
    let Some(ended) = ended else {
        let init = pod.init_containers.iter().find_map(|one| one.state.terminated.as_ref());
        let text = init.map(|init| format!(" ({})", quoted(&init.message))).unwrap_or_default();
        return (reasons::CRASH_LOOP, CannotStart, format!("failed before its trainer started{text}"));
    };
    let code = ended.exit_code;
    if let Some(known) = ExitCode::from_code(code) {
        let (reason, class, what) = of_launcher(known);
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        return (reason, if class == Class::Stop && is_deleted { Interruption } else { class }, what);
    }
    if UNSEEN_ENDS.contains(&ended.reason.as_str()) {
        return (reasons::NODE_LOST, Interruption, "ended with a restart of its node".to_owned());
    }
    let is_of_torchrun = |line: &str| line.contains(TORCHRUN_KILLED);
    let killed_child = message.signal == Some(SIGKILL)
        || message.exit_code == Some(CHILD_KILLED)
        || message.error.as_deref().is_some_and(is_of_torchrun);
    if ended.reason == "OOMKilled" || code == CHILD_KILLED || (killed_child && message.cause.is_none()) {
        return (
            reasons::HOST_OUT_OF_MEMORY,
            Transient,
            "was killed because the memory of its node or its limit was exhausted; create the job again with more \
             resources.limits.memory, or with a lower dataloader_num_workers in extraArgs"
                .to_owned(),
        );
    }
    match message.cause.as_deref().and_then(Cause::from_reason) {
        Some(Cause::CudaOutOfMemory) => {
            (reasons::CUDA_OUT_OF_MEMORY, OutOfGpuMemory, "ran out of GPU memory".to_owned())
        }
        Some(Cause::HostOutOfMemory) => {
            let what = "ran out of memory; create the job again with more resources.limits.memory".to_owned();
            (reasons::HOST_OUT_OF_MEMORY, Transient, what)
        }
        Some(Cause::OutOfSpace) => {
            let what = "found a disk full: enlarge the claim of the output if the file is in outputDir, and otherwise give its \
                        node or its folder more space";
            (reasons::OUT_OF_SPACE, CannotStart, what.to_owned())
        }
        Some(Cause::SourceNotFound) => {
            let what = "found no such model or dataset on the hub";
            (reasons::SOURCE_NOT_FOUND, Permanent, what.to_owned())
        }
        Some(Cause::SourceUnauthorized) => {
            let what = "has no access to the model or the dataset; put a token with access into key `token` of the Secret in \
                        tokenSecret (Hugging Face), or into the Secret of MODELSCOPE_API_TOKEN in env (ModelScope)";
            (reasons::SOURCE_UNAUTHORIZED, Permanent, what.to_owned())
        }
        Some(Cause::SourceUnreachable) => {
            (reasons::SOURCE_UNREACHABLE, CannotStart, "could not reach the hub".to_owned())
        }
        Some(Cause::PeerLost) => {
            (reasons::PEER_LOST, Transient, "lost the connection to another rank".to_owned())
        }
        Some(Cause::InvalidArguments) => invalid_arguments(),
        Some(Cause::UserError) | None if code == BAD_ARGUMENT => invalid_arguments(),
        Some(Cause::UserError) | None => {
            let killed = code == KILLED;
            let how = if killed { "was killed".to_owned() } else { format!("ended with exit code {code}") };
            (reasons::USER_ERROR, Transient, how)
        }
    }
}

/// A kubelet has ended the pod, because it or its node used too much. It would be the same again, on all GPUs.
fn evicted(pod: &PodView) -> Option<(&'static str, Class, String)> {
    let text = pod.message.to_lowercase();
    let is_short_of = |resource: &str| pod.reason == EVICTED && text.contains(resource);
    let words = words_of(pod);
    if is_short_of("storage") || is_short_of("disk") || is_short_of("emptydir") || is_short_of("inodes") {
        let what = format!(
            "was evicted for the disk of its node{words}; create the job again with ephemeral-storage in resources, or with \
             output.cache Keep, which loads models and data into the claim of the output"
        );
        return Some((reasons::OUT_OF_SPACE, Class::Transient, what));
    }
    let what = format!(
        "was evicted for the memory of its node{words}; create the job again with resources.limits.memory"
    );
    is_short_of("memory").then_some((reasons::HOST_OUT_OF_MEMORY, Class::Transient, what))
}

/// The trainer has not run.
fn refused(pod: &PodView, ended: Option<&Terminated>) -> (&'static str, Class, String) {
    match ended {
        None => {
            let what = format!("was refused by its kubelet: {}{}", pod.reason, words_of(pod));
            (reasons::POD_REFUSED, Class::CannotStart, what)
        }
        Some(ended) => {
            let what = format!("could not be started by its node: {}", quoted(&ended.message));
            (reasons::POD_REFUSED, Class::CannotStart, what)
        }
    }
}

/// What the kubelet or the scheduler says of the end of a pod.
fn words_of(pod: &PodView) -> String {
    let why = if pod.message.is_empty() { &pod.reason } else { &pod.message };
    if why.is_empty() { String::new() } else { format!(" ({})", quoted(why)) }
}

fn invalid_arguments() -> (&'static str, Class, String) {
    let what = "does not know an argument; create the job again with other extraArgs, or with the image's version as swiftVersion";
    (reasons::INVALID_ARGUMENTS, Class::Permanent, what.to_owned())
}

fn of_launcher(code: ExitCode) -> (&'static str, Class, String) {
    let (reason, class, what) = match code {
        ExitCode::Stopped => (reasons::PREEMPTED, Class::Stop, "was stopped before the last step"),
        ExitCode::Superseded => {
            (reasons::NODE_LOST, Class::Stop, "was replaced by a later pod and has stopped itself")
        }
        ExitCode::OutputNotEmpty => (
            reasons::OUTPUT_NOT_EMPTY,
            Class::Permanent,
            "found checkpoints of another job in outputDir, perhaps of an earlier one of this name; create the job \
             again under another name, and with spec.resumeFrom to go on from them, or, in a claim that it has not made, with \
             another outputDir",
        ),
        ExitCode::CannotResume => {
            (reasons::CANNOT_RESUME, Class::Permanent, "cannot go on from the source in spec.resumeFrom")
        }
        ExitCode::Incomplete => (
            reasons::STOPPED_EARLY,
            Class::Transient,
            "ended without an error before the last step, or without a complete checkpoint",
        ),
        ExitCode::OutOfSpace => (
            reasons::OUT_OF_SPACE,
            Class::CannotStart,
            "found the volume of the output full; enlarge its claim",
        ),
        ExitCode::OutputUnusable => (
            reasons::OUTPUT_UNUSABLE,
            Class::CannotStart,
            "cannot use the volume of the output, or that of spec.resumeFrom",
        ),
        ExitCode::Usage => {
            (reasons::USER_ERROR, Class::Transient, "has a launcher that refuses its arguments")
        }
        ExitCode::TrainerNotFound => (
            reasons::INVALID_ARGUMENTS,
            Class::Permanent,
            "has no program `swift`; create the job again with an image that has ms-swift in its PATH",
        ),
    };
    (reason, class, what.to_owned())
}
