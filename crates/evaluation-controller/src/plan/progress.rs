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
use runtime::{watch::cache::controller_of, write::conditions::whole_seconds};
use workload::{
    Cause,
    faults::container::quote,
    time::remaining,
    views::{
        job::{Failed, JobView},
        pod::{PodView, Terminated},
    },
};

use super::{
    Scene,
    job::{RETRIES, RUNNER},
    server,
    work::{self, Work},
};
use crate::observe::Observed;

/// The runs that have ended, and what is with those that have not.
pub(super) struct Progress {
    pub(super) runs: Vec<Run>,
    /// Of each lane with open runs, that of the first one. After all lanes, that of the comparison.
    pub(super) states: Vec<State>,
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
    /// Its Job has failed by a fault that may pass, and is made again after a while.
    Failing {
        work: Work,
        cause: Cause,
        wait: Duration,
    },
    /// Its Job has ended, and no pod says how, or it may end otherwise now. The runner finds results on the volume.
    Repeated {
        work: Work,
        job: Arc<JobView>,
    },
    Compared(Box<Message>),
    Failed(Cause),
}

/// A watch that fails is tried again within this time.
pub(super) const WATCHED_AGAIN_WITHIN: Duration = Duration::from_secs(30);

/// A watch brings the pods of a Job that has ended within this time. One whose connection is dead notices that after 65 s, and is
/// opened again.
const PODS_ARE_SEEN_WITHIN: Duration = Duration::from_secs(90);

/// Containers that were injected into a pod end within this time after its main container, if they end by themselves.
pub(super) const OTHERS_END_WITHIN: Duration = Duration::from_secs(60);

/// The comparison has failed by a fault of a node or of the volume, and is made again after this time. Its Job has tried
/// several times before.
const PAIRED_AGAIN_AFTER: Duration = Duration::from_secs(300);

pub(super) fn progress(scene: &Scene<'_>) -> Progress {
    let mut runs = scene.observed.status_runs().to_vec();
    let lanes = work::lanes(scene.valid);
    let mut states: Vec<State> = lanes.iter().filter_map(|lane| open(scene, lane, &mut runs)).collect();
    if states.is_empty() {
        states.push(match end(scene, Work::Pair) {
            Outcome::Done(message) => State::Compared(message),
            Outcome::Open(state) => state,
        });
    }
    Progress { runs, states }
}

/// What is with the first run of a lane that has not ended. Adds those that have.
fn open(scene: &Scene<'_>, lane: &[Work], runs: &mut Vec<Run>) -> Option<State> {
    for &work in lane.iter() {
        if is_known(scene, runs, work) {
            continue;
        }
        match end(scene, work) {
            Outcome::Done(message) => runs.push(run(scene, work, &message)),
            Outcome::Open(state) => return Some(state),
        }
    }
    None
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
    let ended = Some(job).filter(|job| !job.is_being_deleted());
    if let Some(completed) = ended.and_then(|job| job.completed) {
        return Outcome::Open(
            match (pods_are_awaited(scene.observed, report, completed, scene.now), report) {
                (Some(wait), _) => State::Awaited { work, wait },
                // Another run would say the same.
                (None, Some(report)) => State::Failed(unreadable(scene, work, report)),
                (None, None) => State::Repeated { work, job: Arc::clone(job) },
            },
        );
    }
    let Some(failed) = ended.and_then(|job| job.failed.as_ref()) else {
        return Outcome::Open(unfinished(scene, work, job, &pods));
    };
    let last = ends.filter(|ended| ended.exit_code != 0).max_by_key(|ended| ended.finished_at);
    Outcome::Open(match pods_are_awaited(scene.observed, last, failed.since, scene.now) {
        Some(wait) => State::Awaited { work, wait },
        None => after_failure(scene, work, job, failed, last),
    })
}

/// How long to wait for the pods of a Job that has ended at this time. `seen`: how one of them has ended, which may not be the
/// last one while the watch of pods fails.
pub(super) fn pods_are_awaited(
    observed: &Observed,
    seen: Option<&Terminated>,
    ended: Timestamp,
    now: Timestamp,
) -> Option<Duration> {
    match (observed.pods_are_stale, seen) {
        (true, _) => Some(WATCHED_AGAIN_WITHIN),
        (false, None) => remaining(PODS_ARE_SEEN_WITHIN, ended, now),
        (false, Some(_)) => None,
    }
}

/// The Job has neither completed nor failed.
fn unfinished(scene: &Scene<'_>, work: Work, job: &Arc<JobView>, pods: &[&PodView]) -> State {
    if job.is_being_deleted() || scene.observed.pods_are_stale {
        return State::Active(work);
    }
    if let Some((since, last)) = ended_beside_others(pods, RUNNER) {
        return match remaining(OTHERS_END_WITHIN, since, scene.now) {
            Some(wait) => State::Awaited { work, wait },
            // Another run would say the same.
            None if last.exit_code == 0 => State::Failed(unreadable(scene, work, last)),
            None => after_failure(scene, work, job, &unseen_failure(since), Some(last)),
        };
    }
    match lost(pods, scene.now) {
        Some(None) => State::Repeated { work, job: Arc::clone(job) },
        Some(Some(wait)) => State::Awaited { work, wait },
        None => State::Active(work),
    }
}

/// `last`: the end of the last runner, if its pod is still there.
fn after_failure(
    scene: &Scene<'_>,
    work: Work,
    job: &Arc<JobView>,
    failed: &Failed,
    last: Option<&Terminated>,
) -> State {
    let repeated = || State::Repeated { work, job: Arc::clone(job) };
    let cause = failure(scene, work, job, failed, last);
    match work {
        // The answers of hours are there, and a comparison holds no GPU.
        Work::Pair if may_pass(last) => match remaining(PAIRED_AGAIN_AFTER, failed.since, scene.now) {
            Some(wait) => State::Failing { work, cause, wait },
            None => repeated(),
        },
        Work::Ask { .. } if job.failed.is_none() && is_tried_again(scene, job, last) => repeated(),
        Work::Ask { .. } | Work::Pair => State::Failed(cause),
    }
}

/// Whether a Job that does not see the failure of its pod is made again: as often as it would have made another pod.
fn is_tried_again(scene: &Scene<'_>, job: &JobView, last: Option<&Terminated>) -> bool {
    let code = last.and_then(|last| ExitCode::from_code(last.exit_code));
    let (this, of_name) = (failed_try(job), format!("{FAILED_TRY}{} ", job.name()));
    let before = scene.observed.facts.keys().filter(|fact| fact.starts_with(&of_name) && **fact != this);
    code.is_none_or(ExitCode::may_be_repeated)
        && i32::try_from(before.count()).is_ok_and(|count| count < RETRIES)
}

/// The Jobs whose runner has failed and that do not see it. Those that were deleted for it count too: the next Job has their
/// name. Not those of the comparison, which is repeated without limit.
pub(super) fn failed_tries(observed: &Observed) -> Vec<String> {
    let comparison = Work::Pair.job_name(observed.evaluation.metadata.name.as_deref().unwrap_or_default());
    let before = observed.facts.keys().filter(|fact| fact.starts_with(FAILED_TRY)).cloned();
    let fails = |job: &&Arc<JobView>| {
        let ended = ended_beside_others(&observed.pods_of(job), RUNNER);
        job.is_active() && job.name() != comparison && ended.is_some_and(|(_, last)| last.exit_code != 0)
    };
    let now = observed.jobs.values().filter(fails).map(|job| failed_try(job));
    before.chain(now).collect()
}

/// Before the name of a Job and its uid.
const FAILED_TRY: &str = "failed beside another container: Job ";

fn failed_try(job: &JobView) -> String {
    format!("{FAILED_TRY}{} ({})", job.name(), job.metadata.uid.as_deref().unwrap_or_default())
}

/// The end of a main container whose pod runs on, because a container that was injected does. The Job does not see such an end.
pub(super) fn ended_beside_others<'p>(
    pods: &[&'p PodView],
    main: &str,
) -> Option<(Timestamp, &'p Terminated)> {
    let running = pods.iter().filter(|pod| !pod.is_over());
    let ends = running.filter_map(|pod| {
        let ended = pod.container(main)?.state.terminated.as_ref()?;
        // A kubelet that was restarted may not know the time.
        Some((ended.finished_at.or(pod.created())?, ended))
    });
    ends.max_by_key(|(since, _)| *since)
}

/// A failure that the Job does not see.
pub(super) fn unseen_failure(since: Timestamp) -> Failed {
    Failed { since, reason: String::new(), message: String::new() }
}

/// Whether a node or a volume may be the cause of a failed Job. `None`: no pod of it has started, or it is gone.
fn may_pass(last: Option<&Terminated>) -> bool {
    /// By SIGKILL and SIGTERM, which also the end of a node sends.
    const KILLED: [i32; 2] = [137, 143];
    last.is_none_or(|last| match ExitCode::from_code(last.exit_code) {
        Some(code) => code.may_be_repeated(),
        None => KILLED.contains(&last.exit_code) && last.reason != "OOMKilled",
    })
}

/// A pod that was deleted ends within this time after its grace period, unless its node is lost.
const ENDS_WITHIN: Duration = Duration::from_secs(300);

/// A pod of an earlier Job of this work, whose runner may still write the same files, and until when. Not one of a node that is
/// lost. A pod that is not being deleted may be that of a Job without its labels, which is there.
pub(super) fn earlier_runner(scene: &Scene<'_>, work: Work) -> Option<(Cause, Duration)> {
    let name = scene.job_name(work);
    let ends_within = |pod: &PodView| {
        let deleted = pod.metadata.deletion_timestamp.as_ref()?;
        let is_of_work = controller_of(pod).is_some_and(|owner| owner.name == name);
        let wait = remaining(ENDS_WITHIN, deleted.0, scene.now)?;
        let message = format!("pod {} of an earlier run ends", pod.name());
        let writes = pod.container(RUNNER).is_none_or(|runner| runner.state.terminated.is_none());
        (is_of_work && writes && !has_ended(pod))
            .then_some((Cause { reason: reasons::WAITING, message }, wait))
    };
    scene.observed.pods.iter().filter_map(|pod| ends_within(pod)).max_by_key(|(_, wait)| *wait)
}

/// Whether no container of it runs. A container that was injected runs on after the main one.
pub(super) fn has_ended(pod: &PodView) -> bool {
    ["Failed", "Succeeded"].contains(&pod.phase.as_str())
}

/// Whether no kubelet ends the last pods of a Job, which makes no other pod before they have ended. `Some(None)`: for so long
/// that another Job has to. Pods of earlier tries stay until the Job is deleted.
pub(super) fn lost(pods: &[&PodView], now: Timestamp) -> Option<Option<Duration>> {
    let open = pods.iter().filter(|pod| !has_ended(pod));
    let since = open.map(|pod| Some(pod.metadata.deletion_timestamp.as_ref()?.0));
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
    let asked = job.asked_server.as_deref()?;
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
        unchecked: report.unchecked,
        metric: Some(quote(&report.metric)).filter(|metric| !metric.is_empty()),
        harness: Some(quote(format!("{} {}", report.harness, report.harness_version).trim()))
            .filter(|harness| !harness.is_empty()),
        completion_time: Some(whole_seconds(scene.now)),
    }
}

/// Why a Job has failed, with the words of the runner.
fn failure(
    scene: &Scene<'_>,
    work: Work,
    job: &JobView,
    failed: &Failed,
    last: Option<&Terminated>,
) -> Cause {
    let what = named(scene, work);
    let Some(last) = last else {
        let message = format!("{what}: Job {} has failed: {}", job.name(), quote(&failed.message));
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
        ExitCode::TestSetUnsupported => reasons::TEST_SET_UNSUPPORTED,
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
