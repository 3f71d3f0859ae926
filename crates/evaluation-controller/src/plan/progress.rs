//! Which runs have ended, and how. Pure.
//!
//! A run that the status has is done, whatever became of its Job. Of the others the newest word is the termination message of a
//! pod of its Job.

use std::{sync::Arc, time::Duration};

use api::{
    aiinference::evaluation::Run,
    launcher::evaluator::{ExitCode, Message},
    reasons,
};
use jiff::Timestamp;
use runtime::write::conditions::whole_seconds;
use workload::{
    Cause,
    faults::{
        container::{quote, start_fault},
        unplaced::unplaced,
    },
    time::remaining,
    views::pod::{PodView, Terminated},
};

use super::{
    Scene,
    job::{INSTALLER, RUNNER},
    server,
    work::{self, Work},
};
use crate::objects::job_view::{End, JobView};

/// The runs that have ended, in order, and what is with the first that has not.
pub(super) struct Progress {
    pub(super) runs: Vec<Run>,
    pub(super) state: State,
}

pub(super) enum State {
    /// Nothing exists of it.
    Next(Work),
    /// Its Job has not ended.
    Active(Work),
    /// Its Job has ended, and the pod that says how is not seen yet.
    Awaited {
        work: Work,
        wait: Duration,
    },
    /// Its Job has ended, and no pod says how. The runner finds its result on the volume.
    Repeated {
        work: Work,
        job: Arc<JobView>,
    },
    Compared(Box<Message>),
    Failed(Cause),
}

/// A watch brings the pods of a Job that has ended within this time.
const PODS_ARE_SEEN_WITHIN: Duration = Duration::from_secs(30);

pub(super) fn progress(scene: &Scene<'_>) -> Progress {
    let mut runs = scene.observed.status_runs().to_vec();
    for work in work::all(scene.valid) {
        if is_known(scene, &runs, work) {
            continue;
        }
        match end(scene, work) {
            Outcome::Done(message) => match work {
                Work::Ask { .. } => runs.push(run(scene, work, &message)),
                Work::Pair => return Progress { runs, state: State::Compared(message) },
            },
            Outcome::Open(state) => return Progress { runs, state },
        }
    }
    // The comparison is the last work, and never a run.
    Progress { runs, state: State::Active(Work::Pair) }
}

/// Whether these are the runs of it.
pub(super) fn is_known(scene: &Scene<'_>, runs: &[Run], work: Work) -> bool {
    let Work::Ask { asked, set } = work else { return false };
    let Some(set) = scene.valid.sets.get(set) else { return false };
    runs.iter().any(|run| run.side == asked.as_str() && run.test_set == set.name)
}

enum Outcome {
    Done(Box<Message>),
    Open(State),
}

fn end(scene: &Scene<'_>, work: Work) -> Outcome {
    let Some(job) = scene.observed.jobs.get(&scene.job_name(work)) else {
        return Outcome::Open(State::Next(work));
    };
    let pods = scene.observed.pods_of(job);
    let ends = pods.iter().filter_map(|pod| pod.container(RUNNER)?.state.terminated.as_ref());
    let report = ends.clone().find(|ended| ended.exit_code == 0);
    // The Job of a pod with an injected container that runs on does not complete.
    if let Some(message) = report.and_then(message).filter(|message| is_of(work, message)) {
        return match changed(scene, work, job) {
            Some(cause) => Outcome::Open(State::Failed(cause)),
            None => Outcome::Done(Box::new(message)),
        };
    }
    let Some(end) = job.end.as_ref().filter(|_| !job.is_being_deleted()) else {
        return Outcome::Open(match lost(&pods, scene.now).filter(|_| !job.is_being_deleted()) {
            Some(None) => State::Repeated { work, job: Arc::clone(job) },
            Some(Some(wait)) => State::Awaited { work, wait },
            None => State::Active(work),
        });
    };
    if end.is_complete {
        let wait = remaining(PODS_ARE_SEEN_WITHIN, end.since, scene.now);
        return Outcome::Open(match (report, wait) {
            // Another run would say the same.
            (Some(report), _) => State::Failed(unreadable(scene, work, report)),
            (None, Some(wait)) => State::Awaited { work, wait },
            (None, None) => State::Repeated { work, job: Arc::clone(job) },
        });
    }
    let last = ends.filter(|ended| ended.exit_code != 0).max_by_key(|ended| ended.finished_at);
    match (last, remaining(PODS_ARE_SEEN_WITHIN, end.since, scene.now)) {
        (None, Some(wait)) => Outcome::Open(State::Awaited { work, wait }),
        (last, _) => Outcome::Open(State::Failed(failure(scene, work, job, end, last))),
    }
}

/// A pod that was deleted ends within this time after its grace period, unless its node is lost.
const ENDS_WITHIN: Duration = Duration::from_secs(300);

/// A pod of a Job that was deleted, whose runner may still write into the folder of this evaluation. Not one of a node that is
/// lost. A pod that is not being deleted may be that of a Job without its labels, which is there.
pub(super) fn earlier_runner(scene: &Scene<'_>) -> Option<Cause> {
    let is_of_a_job = |pod: &PodView| scene.observed.jobs.values().any(|job| job.has_pod(pod));
    let may_write = |pod: &&PodView| {
        let deleted = pod.metadata.deletion_timestamp.as_ref();
        let ends = deleted.is_some_and(|at| remaining(ENDS_WITHIN, at.0, scene.now).is_some());
        ends && !has_ended(pod) && !is_of_a_job(pod)
    };
    let pod = scene.observed.pods.iter().map(AsRef::as_ref).find(may_write)?;
    let message = format!("pod {} of an earlier run ends", pod.name());
    Some(Cause { reason: reasons::WAITING, message })
}

fn has_ended(pod: &PodView) -> bool {
    ["Failed", "Succeeded"].contains(&pod.phase.as_str())
        || pod.container(RUNNER).is_some_and(|runner| runner.state.terminated.is_some())
}

/// Whether no kubelet ends the only pods of a Job, which makes no other pod before they have ended. `Some(None)`: for so long
/// that another Job has to.
fn lost(pods: &[&PodView], now: Timestamp) -> Option<Option<Duration>> {
    let since = pods.iter().map(|pod| {
        let deleted = pod.metadata.deletion_timestamp.as_ref().filter(|_| !has_ended(pod))?;
        Some(deleted.0)
    });
    let since: Option<Vec<Timestamp>> = since.collect();
    let newest = since?.into_iter().max()?;
    Some(remaining(ENDS_WITHIN, newest, now))
}

fn message(ended: &Terminated) -> Option<Message> {
    serde_json::from_str(&ended.message).ok()
}

/// Whether the message is that of a run, or of a comparison.
fn is_of(work: Work, message: &Message) -> bool {
    match work {
        Work::Ask { .. } => message.side.is_some(),
        Work::Pair => !message.pairs.is_empty(),
    }
}

fn unreadable(scene: &Scene<'_>, work: Work, report: &Terminated) -> Cause {
    let (what, begin) = (named(scene, work), quote(&report.message));
    let message = format!(
        "{what}: the termination message of the runner cannot be read: {begin:?}; the containers of a pod share 12 KiB, so \
         leave out containers that are injected, or use fewer test sets"
    );
    Cause { reason: reasons::OUTPUT_UNREADABLE, message }
}

/// Why the answers of a run may be those of two models.
fn changed(scene: &Scene<'_>, work: Work, job: &JobView) -> Option<Cause> {
    let side = work.side()?;
    let asked = job.server.as_deref()?;
    let now = server::mark(scene, side)?;
    // A server may report its files only after its first run has begun.
    let differs = asked
        .split('/')
        .zip(now.split('/'))
        .any(|(one, other)| !one.is_empty() && !other.is_empty() && one != other);
    differs.then(|| Cause {
        reason: reasons::MODEL_CHANGED,
        message: format!(
            "{}: the server has changed during the run; create the evaluation again, and do not change a model while it is \
             evaluated",
            named(scene, work)
        ),
    })
}

fn run(scene: &Scene<'_>, work: Work, message: &Message) -> Run {
    let Work::Ask { asked, set } = work else { return Run::default() };
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let report = message.side.clone().unwrap_or_default();
    Run {
        side: asked.as_str().to_owned(),
        test_set: scene.valid.sets.get(set).map(|set| set.name.clone()).unwrap_or_default(),
        questions: count(report.questions),
        failed: count(report.failed),
        unparsed: count(report.unparsed),
        metric: Some(quote(&report.metric)).filter(|metric| !metric.is_empty()),
        harness: Some(quote(format!("{} {}", report.harness, report.harness_version).trim()))
            .filter(|harness| !harness.is_empty()),
        completion_time: Some(whole_seconds(scene.now)),
    }
}

/// Why a Job has failed, with the words of the runner.
fn failure(scene: &Scene<'_>, work: Work, job: &JobView, end: &End, last: Option<&Terminated>) -> Cause {
    let what = named(scene, work);
    let Some(last) = last else {
        let message = format!("{what}: Job {} has failed: {}", job.name(), quote(&end.message));
        return Cause { reason: reasons::HARNESS_FAILED, message };
    };
    let words = message(last).and_then(|message| message.error).map(|error| quote(&error));
    let words = words.filter(|words| !words.is_empty()).unwrap_or_else(|| {
        let text = quote(&last.message);
        format!("exit code {} {} {text}", last.exit_code, last.reason).trim_end().to_owned()
    });
    let (reason, fix) = match ExitCode::from_code(last.exit_code) {
        Some(code) => (reason(code), ""),
        None if last.reason == "OOMKilled" => {
            (reasons::OUT_OF_MEMORY, "; create the evaluation again with more memory (spec.resources.limits)")
        }
        None => (reasons::HARNESS_FAILED, ""),
    };
    Cause { reason, message: format!("{what}: {words}{fix}") }
}

fn reason(code: ExitCode) -> &'static str {
    match code {
        ExitCode::DatasetNotFound => reasons::DATASET_NOT_FOUND,
        ExitCode::DatasetOnlineForbidden => reasons::DATASET_ONLINE_FORBIDDEN,
        ExitCode::CodeExecutionForbidden => reasons::CODE_EXECUTION_FORBIDDEN,
        ExitCode::ServerFailed => reasons::SERVER_FAILED,
        ExitCode::HarnessNotFound => reasons::HARNESS_NOT_FOUND,
        ExitCode::OutputUnreadable => reasons::OUTPUT_UNREADABLE,
        ExitCode::TooManyErrors => reasons::TOO_MANY_ERRORS,
        ExitCode::PairingFailed => reasons::PAIRING_FAILED,
        ExitCode::OutOfSpace => reasons::OUT_OF_SPACE,
        ExitCode::VolumeUnusable => reasons::VOLUME_UNUSABLE,
        // A stopped run is repeated, and a wrong command line is a fault of this controller.
        ExitCode::Stopped | ExitCode::HarnessFailed | ExitCode::Usage => reasons::HARNESS_FAILED,
    }
}

/// For messages.
pub(super) fn named(scene: &Scene<'_>, work: Work) -> String {
    match work {
        Work::Ask { asked, set } => {
            let set = scene.valid.sets.get(set).map_or("", |set| set.name.as_str());
            format!("{} on {set}", asked.as_str())
        }
        Work::Pair => "comparison".to_owned(),
    }
}

/// Why the pods of a Job do not start, and since when at least.
pub(super) struct Obstacle {
    pub(super) cause: Cause,
    pub(super) since: Timestamp,
}

/// The Job controller makes a pod within this time.
const HAS_A_POD_WITHIN: Duration = Duration::from_secs(30);

pub(super) fn obstacle(scene: &Scene<'_>, work: Work) -> Option<Obstacle> {
    let job = scene.observed.jobs.get(&scene.job_name(work)).filter(|job| !job.is_being_deleted())?;
    let pods = scene.observed.pods_of(job);
    let since = job.metadata.creation_timestamp.as_ref().map_or(scene.now, |time| time.0);
    if pods.is_empty() && job.end.is_none() && remaining(HAS_A_POD_WITHIN, since, scene.now).is_none() {
        let message = format!(
            "Job {name} has no pod: a quota, a LimitRange, an admission policy or a queue may hold it back; see kubectl \
             describe job {name}",
            name = job.name()
        );
        return Some(Obstacle { cause: Cause { reason: reasons::WAITING, message }, since });
    }
    let mut waiting = pods.into_iter().filter(|pod| !pod.is_over());
    waiting.find_map(|pod| {
        let cause = unscheduled(scene, pod).or_else(|| unstarted(pod))?;
        Some(Obstacle { cause, since: pod.created().unwrap_or(since) })
    })
}

fn unscheduled(scene: &Scene<'_>, pod: &PodView) -> Option<Cause> {
    let Cause { reason, message } = unplaced(None, pod, None, scene.now).cause?;
    Some(Cause { reason, message: format!("pod {} has no node: {message}", pod.name()) })
}

fn unstarted(pod: &PodView) -> Option<Cause> {
    let init = pod.init_container(INSTALLER);
    init.into_iter().chain(pod.container(RUNNER)).find_map(|container| start_fault(pod, container))
}
