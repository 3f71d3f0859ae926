//! Why the pods of a run do not start, and from when on that counts. Pure.

use std::{sync::Arc, time::Duration};

use api::reasons;
use jiff::Timestamp;
use workload::{
    Cause, Finding,
    faults::{
        container::{fault_of_added, last_end, quote, start_fault},
        unplaced::unplaced,
    },
    time::remaining,
    uploads::UPLOADER,
    views::{
        job::JobView,
        pod::{Container, PodView},
    },
};

use super::{
    Child, Scene, claim,
    job::{INSTALLER, RUNNER},
    progress::{self, WATCHED_AGAIN_WITHIN},
    server::{self, Readiness},
    work::{self, Work},
};
use crate::{
    names::Side,
    observe::{NOT_PAUSED, Observed},
};

/// Whether the pods of a Job start.
#[derive(Default)]
pub(super) struct Start {
    pub(super) obstacle: Option<Obstacle>,
    /// When there may be an obstacle, though no object changes.
    pub(super) wait: Option<Duration>,
}

/// Why they do not start, and since when at least.
pub(super) struct Obstacle {
    pub(super) cause: Cause,
    pub(super) since: Timestamp,
    /// It may pass by itself for so long, so nothing is given up before.
    pub(super) may_pass_within: Duration,
}

/// The Job controller makes the first pod within this time.
const HAS_A_POD_WITHIN: Duration = Duration::from_secs(30);

/// The Job controller waits for up to ten minutes before the next pod, the longer the more pods have failed or were evicted.
const HAS_THE_NEXT_POD_WITHIN: Duration = Duration::from_secs(660);

/// Most of these pauses are over by then. What else may be the cause is said, so that its user has time to mend it.
const NEXT_POD_IS_MISSED_AFTER: Duration = Duration::from_secs(120);

/// A kubelet has the volumes and the network of a pod within this time. Most images are there by then, too.
const IS_SET_UP_WITHIN: Duration = Duration::from_secs(120);

/// Of each image until the kubelet says that the runner has started. A kubelet gives no reason while it pulls, and
/// before 1.36 it says nothing of a pod whose first image it pulls. It pulls one image after the other.
const IS_PULLED_WITHIN: Duration = Duration::from_secs(1_800);

/// What a webhook adds, such as the rules of a mesh, is done within this time, and a sidecar has started.
const INIT_IS_DONE_WITHIN: Duration = Duration::from_secs(120);

pub(super) fn start(scene: &Scene<'_>, work: Work) -> Start {
    let Scene { observed, now, .. } = *scene;
    let job = observed.jobs.get(&scene.job_name(work)).filter(|job| job.is_active());
    let Start { obstacle, wait } = job.map_or_else(Start::default, |job| of_job(observed, job, now));
    // Words stay as they are said: only what counts begins anew after a pause.
    let counted =
        |found: Obstacle| Obstacle { since: found.since.max(observed.unpaused_since(now)), ..found };
    let obstacle = obstacle.map(counted);
    // The other run counts its time from then on.
    let holds_from = obstacle.as_ref().and_then(|found| remaining(found.may_pass_within, found.since, now));
    Start { obstacle, wait: wait.into_iter().chain(holds_from).min() }
}

/// Of a Job that is active.
pub(super) fn of_job(observed: &Observed, job: &JobView, now: Timestamp) -> Start {
    let Start { obstacle, wait } = as_seen(observed, job, now);
    if !observed.pods_are_stale {
        return Start { obstacle, wait };
    }
    // It may be over, so its time does not count.
    let obstacle = obstacle.map(|obstacle| Obstacle { since: now, ..obstacle });
    Start { obstacle, wait: wait.into_iter().chain([WATCHED_AGAIN_WITHIN]).min() }
}

fn as_seen(observed: &Observed, job: &JobView, now: Timestamp) -> Start {
    let pods = observed.pods_of(job);
    if let Some(pod) = pods.iter().find(|pod| !pod.is_over()) {
        let (Finding { cause, requeue_after: wait }, since) = unstarted(observed, pod, now);
        let may_pass_within = match may_be_pulling(pod) {
            true => IS_PULLED_WITHIN.saturating_mul(images_awaited(pod)),
            false => Duration::ZERO,
        };
        let obstacle = cause.map(|cause| Obstacle { cause, since, may_pass_within });
        return Start { obstacle, wait };
    }
    match is_without(&pods) {
        true => without_a_pod(observed, job, &pods, now),
        // A pod is about to end, or its node is lost.
        false => Start::default(),
    }
}

/// The cause, if it has been true for so long, else when to look again.
fn after(time: Duration, since: Timestamp, now: Timestamp, cause: impl FnOnce() -> Cause) -> Finding {
    match remaining(time, since, now) {
        Some(wait) => Finding { cause: None, requeue_after: Some(wait) },
        None => Finding { cause: Some(cause()), requeue_after: None },
    }
}

fn without_a_pod(observed: &Observed, job: &JobView, pods: &[&PodView], now: Timestamp) -> Start {
    let created = job.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let since = observed.facts.get(&has_no_pod(job)).copied().unwrap_or(now).max(created);
    let is_first = pods.is_empty() && remaining(HAS_A_POD_WITHIN, created, since).is_some();
    // A suspended Job is not in back-off, so it is named at once.
    let ((said_after, from), may_pass_within) = match is_first || job.is_suspended {
        true => ((HAS_A_POD_WITHIN, created), Duration::ZERO),
        false => ((NEXT_POD_IS_MISSED_AFTER, since), HAS_THE_NEXT_POD_WITHIN),
    };
    let cause = |is_first| Cause { reason: reasons::WAITING, message: no_pod(job, pods, is_first) };
    // A restart of this process, which begins the times anew, takes back no words.
    let known = [true, false].map(cause).into_iter().find(|cause| is_said(observed, cause));
    let said_after = if known.is_some() { Duration::ZERO } else { said_after };
    let cause = known.unwrap_or_else(|| cause(is_first));
    let Finding { cause, requeue_after: wait } = after(said_after, from, now, || cause);
    Start { obstacle: cause.map(|cause| Obstacle { cause, since, may_pass_within }), wait }
}

/// Why a Job has no pod that runs. `is_first`: it has had none.
fn no_pod(job: &JobView, pods: &[&PodView], is_first: bool) -> String {
    let name = job.name();
    match (job.is_suspended, job.suspended_message.as_str()) {
        (true, "") => {
            format!("Job {name} is suspended: a queue has to admit it; see kubectl describe job {name}")
        }
        (true, words) => format!("Job {name} is suspended: {}", quote(words)),
        (false, _) => {
            let why = match last_pod(pods) {
                Some((pod, how)) => format!(
                    "has had no other pod since {pod} ended ({how}): Kubernetes may pause for ten minutes, or a quota, a \
                     LimitRange or an admission policy holds it back"
                ),
                None if is_first => {
                    "has no pod: a quota, a LimitRange or an admission policy may hold it back".to_owned()
                }
                // A drain and a preemption leave none.
                None => "has no pod now: Kubernetes may pause for ten minutes, or a quota, a LimitRange or an admission policy \
                         holds it back"
                    .to_owned(),
            };
            format!("Job {name} {why}; see kubectl describe job {name}")
        }
    }
}

/// The last pod that has ended, and how.
fn last_pod<'p>(pods: &[&'p PodView]) -> Option<(&'p str, String)> {
    let end = |pod: &'p PodView| main(pod).find_map(|one| one.state.terminated.as_ref());
    // A Job has one pod at a time, and an evicted pod has no time of its end.
    let last = pods.iter().max_by_key(|pod| pod.created())?;
    let how = match end(last) {
        Some(end) => format!("exit code {} {}", end.exit_code, quote(&end.reason)).trim_end().to_owned(),
        // An eviction leaves no other word.
        None if last.reason.is_empty() => last.phase.clone(),
        None => quote(&last.reason),
    };
    Some((last.name(), how))
}

/// Whether a condition of the status says this.
fn is_said(observed: &Observed, cause: &Cause) -> bool {
    let mut known = observed.evaluation.status.iter().flat_map(|status| &status.conditions);
    known.any(|known| known.message.contains(&cause.message))
}

/// What is true now and whose times decide something: that a Job has no pod, and that a container does not start. The times of
/// Job and pod would end a run of hours whose pod was evicted just now, or whose image was not there once, after a long pull.
pub(super) fn facts(observed: &Observed) -> Vec<String> {
    // The times begin anew after a pause.
    if observed.evaluation.spec.pods.paused {
        return Vec::new();
    }
    let active = observed.jobs.values().filter(|job| job.is_active() && !observed.pods_are_stale);
    let of_job = |job: &Arc<JobView>| {
        let pods = observed.pods_of(job);
        let pod = pods.iter().find(|pod| !pod.is_over());
        pod.and_then(|pod| unstarted_fact(pod)).or_else(|| is_without(&pods).then(|| has_no_pod(job)))
    };
    active.filter_map(of_job).collect()
}

/// Whether all pods of a Job have ended.
fn is_without(pods: &[&PodView]) -> bool {
    pods.iter().all(|pod| progress::has_ended(pod))
}

fn has_no_pod(job: &JobView) -> String {
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    format!("Job {} ({uid}) has no pod", job.name())
}

fn unstarted_fact(pod: &PodView) -> Option<String> {
    match hindrance(pod) {
        Some(_) => Some(does_not_start(pod)),
        None => awaits_its_runner(pod).then(|| runner_is_awaited(pod)),
    }
}

/// A kubelet reports after each init container, so the time begins anew with each.
fn runner_is_awaited(pod: &PodView) -> String {
    let has_begun = |one: &&Container| {
        one.state.running.is_some() || one.state.terminated.is_some() || one.restart_count > 0
    };
    let begun = pod.init_containers.iter().chain(&pod.containers).filter(has_begun).count();
    format!("pod {} ({}) awaits its runner after {begun} containers", pod.name(), pod.uid())
}

/// Whatever the reason: a kubelet tries again and alternates between reasons, and each of them would begin the time anew.
fn does_not_start(pod: &PodView) -> String {
    format!("pod {} ({}) does not start", pod.name(), pod.uid())
}

/// Why, and since when.
fn unstarted(observed: &Observed, pod: &PodView, now: Timestamp) -> (Finding, Timestamp) {
    let created = pod.created().unwrap_or(now);
    if pod.node.is_none() {
        let Finding { cause, requeue_after } = unplaced(None, pod, None, now);
        let named = |Cause { reason, message }: Cause| Cause {
            reason,
            message: format!("pod {} has no node: {message}", pod.name()),
        };
        return (Finding { cause: cause.map(named), requeue_after }, created);
    }
    if has_main_started(pod) {
        return (Finding::default(), created);
    }
    if let Some((cause, said_after)) = hindrance(pod) {
        let since = observed.facts.get(&does_not_start(pod)).copied().unwrap_or(now).max(created);
        // A restart of this process, which begins the times anew, takes back no words.
        let said_after = if is_said(observed, &cause) { Duration::ZERO } else { said_after };
        return (after(said_after, since, now, || cause), since);
    }
    if let Some((init, since)) = running_init(pod) {
        let found = after(INIT_IS_DONE_WITHIN, since, now, || {
            let name = pod.name();
            let message = format!(
                "init container {init} of pod {name} has run since {since}, and the next containers wait for its end; see \
                 kubectl logs {name} -c {init}"
            );
            Cause { reason: reasons::WAITING, message }
        });
        return (found, since);
    }
    if awaits_its_runner(pod) {
        let since = observed.facts.get(&runner_is_awaited(pod)).copied().unwrap_or(now).max(created);
        let name = pod.name();
        let message = format!(
            "container {RUNNER} of pod {name} is not known to have started: its image, or that of another container, \
             may still be pulled; see kubectl describe pod {name}"
        );
        let cause = Cause { reason: reasons::WAITING, message };
        // A restart of this process, which begins the times anew, takes back no words.
        let said_after = if is_said(observed, &cause) { Duration::ZERO } else { IS_SET_UP_WITHIN };
        return (after(said_after, since, now, || cause), since);
    }
    if pod.has_started_containers() {
        return (Finding::default(), created);
    }
    let placed = pod.placed().unwrap_or(created);
    let found = after(IS_SET_UP_WITHIN, placed, now, || {
        let (name, node) = (pod.name(), pod.node.as_deref().unwrap_or_default());
        let message = format!(
            "pod {name} is on node {node}, and none of its containers has started: a volume may be attached to another \
             node, the network may not be set up, or, before Kubernetes 1.36, its first image may still be pulled; see \
             kubectl describe pod {name}"
        );
        Cause { reason: reasons::WAITING, message }
    });
    (found, placed)
}

/// Whether a pod that is on a node waits for an image, for all that is known.
fn may_be_pulling(pod: &PodView) -> bool {
    pod.node.is_some() && !has_main_started(pod) && hindrance(pod).is_none() && running_init(pod).is_none()
}

/// How many images may be pulled before the kubelet reports again. It starts one init container at a time. After the
/// last one it starts all other containers, and reports none of them before. So the runner may work meanwhile.
fn images_awaited(pod: &PodView) -> u32 {
    let passed = passed_sidecars(pod).count();
    let has_succeeded = |one: &Container| one.state.terminated.as_ref().is_some_and(|end| end.exit_code == 0);
    let plain = pod.init_containers.iter().filter(|one| !one.is_sidecar);
    let mut sidecars = pod.init_containers.iter().filter(|one| one.is_sidecar).skip(passed);
    match plain.into_iter().all(has_succeeded) && sidecars.all(|one| one.started == Some(true)) {
        true => u32::try_from(pod.containers.len()).unwrap_or(u32::MAX).max(1),
        false => 1,
    }
}

/// Whether the volumes of a run are set up, and its runner has not started. An upload holds no GPU, so it waits without
/// end.
fn awaits_its_runner(pod: &PodView) -> bool {
    pod.container(RUNNER).is_some() && pod.has_started_containers() && may_be_pulling(pod)
}

/// What keeps the main container of a pod from its start, though no object has its time, and after what time that is said.
fn hindrance(pod: &PodView) -> Option<(Cause, Duration)> {
    if pod.node.is_none() || has_main_started(pod) {
        return None;
    }
    let sidecar = || Some((unstarted_sidecar(pod)?, INIT_IS_DONE_WITHIN));
    cannot_start(pod).map(|cause| (cause, Duration::ZERO)).or_else(sidecar)
}

/// Why the kubelet of a pod cannot start a container that the main one needs, or the main one.
fn cannot_start(pod: &PodView) -> Option<Cause> {
    let own = pod.init_container(INSTALLER).into_iter().chain(main(pod));
    let fault = own.filter_map(|container| start_fault(pod, container)).next();
    let harmless: Vec<&str> =
        [INSTALLER, RUNNER, UPLOADER].into_iter().chain(passed_sidecars(pod).map(|one| &*one.name)).collect();
    fault.or_else(|| fault_of_added(pod, &harmless))
}

/// Sidecars for which nothing waits any more: a plain init container after them has begun.
fn passed_sidecars(pod: &PodView) -> impl Iterator<Item = &Container> {
    let has_begun = |one: &Container| {
        let has_succeeded = one.state.terminated.as_ref().is_some_and(|end| end.exit_code == 0);
        !one.is_sidecar && (one.state.running.is_some() || has_succeeded)
    };
    let passed = pod.init_containers.iter().rposition(has_begun).unwrap_or_default();
    pod.init_containers.iter().take(passed).filter(|one| one.is_sidecar)
}

fn has_main_started(pod: &PodView) -> bool {
    main(pod).any(|one| one.state.running.is_some() || one.state.terminated.is_some())
}

fn main(pod: &PodView) -> impl Iterator<Item = &Container> {
    [RUNNER, UPLOADER].into_iter().filter_map(|name| pod.container(name))
}

/// A sidecar for whose start the next containers wait. Each restart has another time, so its own does not count.
fn unstarted_sidecar(pod: &PodView) -> Option<Cause> {
    let has_run = |one: &Container| one.state.running.is_some() || last_end(one).is_some();
    let passed = passed_sidecars(pod).count();
    let mut sidecars = pod.init_containers.iter().filter(|init| init.is_sidecar).skip(passed);
    let Container { name: sidecar, .. } =
        sidecars.find(|sidecar| sidecar.started != Some(true) && has_run(sidecar))?;
    let name = pod.name();
    let message = format!(
        "sidecar {sidecar} of pod {name} has not started, and the next containers wait for its start: correct it or its \
         startupProbe; see kubectl logs {name} -c {sidecar}"
    );
    Some(Cause { reason: reasons::WAITING, message })
}

/// The init container for whose end the others wait, and its start.
fn running_init(pod: &PodView) -> Option<(&str, Timestamp)> {
    let mut plain = pod.init_containers.iter().filter(|init| !init.is_sidecar);
    plain.find_map(|init| Some((init.name.as_str(), init.state.running.as_ref()?.started_at?)))
}

/// From when on it counts that a run of this side waits since `since`. `None`: a run of the other side goes on, and may have
/// the room, such as a quota or the node of a volume.
pub(super) fn counts_from(scene: &Scene<'_>, side: Side, since: Timestamp) -> Option<Timestamp> {
    let mut from = since;
    for work in next_runs_beside(scene, side) {
        from = from.max(stands_since(scene, side.other(), work)?);
    }
    let ended = scene.observed.status_runs().iter().filter_map(|run| run.completion_time.as_ref());
    ended.map(|time| time.0).chain([from]).max()
}

/// The next run of each lane.
fn next_runs(scene: &Scene<'_>) -> Vec<Work> {
    let known = scene.observed.status_runs();
    let next = |lane: &Vec<Work>| lane.iter().copied().find(|work| !progress::is_known(scene, known, *work));
    work::lanes(scene.valid).iter().filter_map(next).collect()
}

/// The next run of the other side, if the sides go on side by side.
fn next_runs_beside(scene: &Scene<'_>, side: Side) -> Vec<Work> {
    match work::lanes(scene.valid).len() {
        0 | 1 => Vec::new(),
        _ => next_runs(scene).into_iter().filter(|work| work.side() != Some(side)).collect(),
    }
}

/// Since when the next run of this side has had no Job at work. `None`: it has one, or there is no such run.
pub(super) fn has_no_job_since(scene: &Scene<'_>, side: Side) -> Option<Timestamp> {
    let work = next_runs(scene).into_iter().find(|work| work.side() == Some(side))?;
    (!is_active(scene, work)).then(|| lacks_its_job_since(scene, work))
}

fn lacks_its_job_since(scene: &Scene<'_>, work: Work) -> Timestamp {
    scene.observed.facts.get(&has_no_job(scene, work)).copied().unwrap_or(scene.now)
}

/// Since when the next run of this side does not go on. `None`: it runs, may go on by itself, or its Job is about to be
/// created.
fn stands_since(scene: &Scene<'_>, side: Side, work: Work) -> Option<Timestamp> {
    if is_active(scene, work) {
        let Obstacle { cause: _, since, may_pass_within } = start(scene, work).obstacle?;
        return remaining(may_pass_within, since, scene.now).is_none().then_some(since);
    }
    let is_refused = scene.refused.is_some_and(|refused| refused.stops(side))
        || claim::fault(scene.valid, scene.observed).is_some();
    match server::readiness(scene, side) {
        Readiness::Ready(_) if !is_refused => created_since(scene, work),
        // It may have had the room until then.
        Readiness::Ready(_) | Readiness::Waits { .. } | Readiness::Unavailable(_) | Readiness::Failed(_) => {
            Some(lacks_its_job_since(scene, work))
        }
    }
}

/// Of an evaluation that is not paused: that, and which of the next runs have no Job at work. Whatever is refused: a
/// plan and the one after its refusal have the same times. Which Jobs are created is noted unless something is refused.
pub(super) fn facts_of_runs(scene: &Scene<'_>, children: &[Child]) -> Vec<String> {
    let without = next_runs(scene).into_iter().filter(|work| !is_active(scene, *work));
    let without = without.map(|work| has_no_job(scene, work));
    // An API server that answers nothing begins the time anew.
    let are_tried = may_create(scene);
    let created = children.iter().filter(|_| are_tried).filter_map(Child::run).map(is_created);
    [NOT_PAUSED.to_owned()].into_iter().chain(without).chain(created).collect()
}

fn has_no_job(scene: &Scene<'_>, work: Work) -> String {
    format!("Job {} is not at work", scene.job_name(work))
}

fn is_created(job: &str) -> String {
    format!("Job {job} is created")
}

/// Since when each plan has created the Job of a run, which is not there.
fn created_since(scene: &Scene<'_>, work: Work) -> Option<Timestamp> {
    scene.observed.facts.get(&is_created(&scene.job_name(work))).copied()
}

/// Why a run is given up whose temporary server holds GPUs, though no Job of it is there. The API server has failed at
/// its creation for as long as that may take. No plan follows such a failure. A refusal has its own time.
pub(super) fn is_not_created(scene: &Scene<'_>, side: Side, work: Work) -> Option<Cause> {
    scene.observed.server(side).own().filter(|_| may_create(scene))?;
    let tried = created_since(scene, work)?;
    let counted = counts_from(scene, side, tried)?;
    if remaining(scene.settings.server_fault, counted, scene.now).is_some() {
        return None;
    }
    let message = format!(
        "Job {} could not be created since {tried}: the API server fails, for example because a webhook does not \
         answer, or the controller lacks a right; the log of the controller has the answer",
        scene.job_name(work)
    );
    Some(Cause { reason: reasons::WAITING, message })
}

/// Nothing but the API server keeps a Job from being created.
fn may_create(scene: &Scene<'_>) -> bool {
    let Observed { pods_are_stale, creates_nothing, .. } = scene.observed;
    scene.refused.is_none() && !pods_are_stale && !creates_nothing
}

fn is_active(scene: &Scene<'_>, work: Work) -> bool {
    scene.observed.jobs.get(&scene.job_name(work)).is_some_and(|job| job.is_active())
}
