//! One life under one fault: a namespace, a proxy and a process of its own.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use k8s_openapi::api::{authentication::v1::TokenRequest, coordination::v1::Lease, core::v1::ServiceAccount};
use kube::{
    Client, Config,
    api::{DeleteParams, DynamicObject, PostParams},
    config::{AuthInfo, Kubeconfig},
};
use local_cluster::{Cluster, api_server::install, explained};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::{
    mode::Fault,
    proxy::{Counts, Proxy, Sent},
    world::{ANY, Pods, World, difference, has_children_of_before, look},
};
use crate::{
    Scene,
    gateway::{Gateway, order},
    lives::{Life, Step},
};

const NAME: &str = "life";
/// The Lease does not expire on a loaded machine; after a kill the sweep deletes it.
const ARGS: [&str; 5] = [
    "--lease-duration=120",
    "--lease-renew-deadline=90",
    "--lease-retry-period=5",
    "--refusal-retry-period=2",
    "--admin-address=127.0.0.1:0",
];
/// After so long without a request, and without an event of a watch, the controller has nothing more to do.
const IDLE_AFTER: Duration = Duration::from_millis(700);
/// Nothing may be written for so long after the last event of a watch: longer than a controller may put off a change that
/// can wait (`EventDelays::detail` of `runtime`, two seconds).
const QUIET: Duration = Duration::from_millis(2_500);
/// How long a step may take until the controller is at rest. It covers the longest back-off of a watch. One minute was too
/// short with the sweeps of four controllers at once on two cores.
const SETTLES_WITHIN: Duration = Duration::from_secs(180);
/// So many steps follow the one with the fault, and then the object is deleted: what a controller does next follows from
/// what is in the API, and that has been compared.
const STEPS_AFTER: usize = 1;
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// How often what cannot be watched is looked at.
const POLL: Duration = Duration::from_millis(50);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(400);
const LINES_SHOWN: usize = 30;
/// So many more writes than an undisturbed life may one with a fault have: those that fail, and those of a restart.
const MORE_WRITES: usize = 6;
/// So many times as many statuses may it have. On a slow machine a controller sees, and reports, more states on the way:
/// 24 lives on two busy cores had one and a half times as many as two lives alone.
const TIMES_THE_STATUSES: usize = 2;

/// So many more pods may be made after a pod template was edited by hand. Kubernetes begins to replace the two pods at once, and
/// how far it gets before the controller takes the edit back depends on the machine: both are made, and made again.
pub(super) const MORE_PODS_OF_AN_EDIT: usize = 4;

/// What an undisturbed life is like.
#[derive(Clone, Debug, Default)]
pub(super) struct Reference {
    /// At the end of each step: what there is, and how many pods were made.
    pub(super) steps: Vec<(World, usize)>,
    /// With `ANY` as the namespace.
    pub(super) collections: BTreeSet<String>,
    /// How many writes it has.
    pub(super) writes: usize,
    pub(super) counts: Counts,
}

/// How a life went.
#[derive(Debug)]
pub(super) struct Lived {
    pub(super) sent: Sent,
    pub(super) steps: Vec<(World, usize)>,
}

/// What every life of a sweep has.
pub(super) struct Setup<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) life: &'a Life,
    pub(super) program: PathBuf,
    /// Its `launch` makes the system end a controller together with this process, even after SIGKILL.
    pub(super) launcher: PathBuf,
    /// What the overlay for one namespace makes, without the Deployment.
    pub(super) rights: Vec<DynamicObject>,
    pub(super) pods: Pods,
}

/// A namespace in which one life follows the other.
pub(super) struct Slot<'a> {
    scene: Scene<'a>,
    /// With the rights of the controller.
    upstream: Client,
    folder: PathBuf,
    /// Answers for as long as there are lives in this namespace.
    gateway: Option<Gateway>,
}

impl<'a> Slot<'a> {
    pub(super) async fn new(setup: &Setup<'a>) -> Result<Self, String> {
        let scene = Scene::new(setup.cluster).await;
        let account = setup.life.controller;
        let mut manifest = String::new();
        for object in &setup.rights {
            let mut object = serde_json::to_value(object).map_err(|error| error.to_string())?;
            object["metadata"]["namespace"] = json!(scene.namespace());
            for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
                subject["namespace"] = json!(scene.namespace());
            }
            manifest.push_str(&format!("---\n{object}\n"));
        }
        scene.apply(&manifest).await.map_err(|error| explained(&error))?;
        let accounts = scene.api::<ServiceAccount>();
        let issued = accounts
            .create_token_request(account, &PostParams::default(), &TokenRequest::default())
            .await
            .map_err(|error| error.to_string())?;
        let token = issued.status.map(|status| status.token).unwrap_or_default();
        let folder = setup.cluster.folder().root().join("sweep").join(scene.namespace());
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let upstream = client_with(setup.cluster, &token).await?;
        let gateway = if setup.life.needs_gateway { Some(Gateway::start(&scene).await) } else { None };
        Ok(Self { scene, upstream, folder, gateway })
    }
}

/// A client that has this token instead of the rights of an administrator.
async fn client_with(cluster: &Cluster, token: &str) -> Result<Client, String> {
    let kubeconfig =
        Kubeconfig::read_from(cluster.folder().kubeconfig()).map_err(|error| error.to_string())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .map_err(|error| error.to_string())?;
    config.default_retry = false;
    config.auth_info =
        serde_json::from_value::<AuthInfo>(json!({ "token": token })).map_err(|error| error.to_string())?;
    Client::try_from(config).map_err(|error| error.to_string())
}

/// Plays a life without a fault, and returns what it was like.
pub(super) async fn play_undisturbed(setup: &Setup<'_>, slot: &Slot<'_>) -> Result<Lived, String> {
    play(setup, slot, None, None).await
}

/// Plays a life with a fault, and compares it with an undisturbed one.
pub(super) async fn play_with(
    setup: &Setup<'_>,
    slot: &Slot<'_>,
    fault: Fault,
    reference: &Reference,
) -> Result<Lived, String> {
    play(setup, slot, Some(fault), Some(reference)).await
}

async fn play(
    setup: &Setup<'_>,
    slot: &Slot<'_>,
    fault: Option<Fault>,
    reference: Option<&Reference>,
) -> Result<Lived, String> {
    let proxy = Proxy::start(slot.upstream.clone(), &setup.life.kind.resource().plural, fault)
        .await
        .map_err(|error| error.to_string())?;
    let run = Run {
        setup,
        slot,
        proxy,
        fault,
        reference,
        process: Mutex::default(),
        restarts: AtomicBool::default(),
    };
    let lived = AssertUnwindSafe(run.live()).catch_unwind().await;
    let lived = lived.unwrap_or_else(|panic| Err(panic_message(&*panic)));
    let result = lived.map_err(|problem| run.explained(&problem));
    let ended = run.kill().await;
    let lived = result?;
    ended.map(|()| lived)
}

struct Run<'r, 'a> {
    setup: &'r Setup<'a>,
    slot: &'r Slot<'a>,
    proxy: Proxy,
    fault: Option<Fault>,
    reference: Option<&'r Reference>,
    /// `None` between a kill and the next start.
    process: Mutex<Option<Child>>,
    /// From a kill until the next process has listed everything.
    restarts: AtomicBool,
}

impl Run<'_, '_> {
    async fn live(&self) -> Result<Lived, String> {
        let before = self.setup.pods.made(self.slot.scene.namespace())?;
        fs::write(self.log(), "").map_err(|error| error.to_string())?;
        self.start().await?;
        let lists = self.until_listed().await?;
        let again = async {
            self.proxy.kill_due().await;
            self.restarts.store(true, Ordering::SeqCst);
            match self.restart(lists).await {
                Ok(()) => {
                    self.restarts.store(false, Ordering::SeqCst);
                    std::future::pending().await
                }
                Err(error) => error,
            }
        };
        tokio::select! {
            lived = self.play_steps(before) => lived,
            error = again => Err(error),
        }
    }

    async fn play_steps(&self, pods_before: usize) -> Result<Lived, String> {
        let mut steps = Vec::new();
        // In which step the fault was, and after which one the pods are those of the undisturbed life.
        let (mut hit, mut pods_as_after) = (None, 0);
        let all = self.setup.life.steps();
        for (index, step) in all.iter().copied().enumerate() {
            if step == Step::Deleted {
                // It makes no pods.
            } else if hit.is_some_and(|hit| index > hit + STEPS_AFTER) {
                continue;
            } else {
                pods_as_after = index;
            }
            let in_step = |problem: String| format!("step {step:?}: {problem}");
            if self.fault.is_some_and(|fault| fault.mode == super::Mode::StaleLists) {
                self.proxy.record_lists().await.map_err(in_step)?;
            }
            self.setup.life.take(step, &self.slot.scene, NAME).await;
            self.proxy.touch();
            let world = self.until_settled(index, step).await.map_err(in_step)?;
            self.check_pace().map_err(in_step)?;
            self.check_routes().map_err(in_step)?;
            let made = self.setup.pods.made(self.slot.scene.namespace())? - pods_before;
            let has_edited_pods =
                self.setup.life.edits_pods() && all[..=pods_as_after].contains(&Step::Edited);
            let more = if has_edited_pods { MORE_PODS_OF_AN_EDIT } else { 0 };
            if let Some(reference) = self.reference
                && made > reference.steps[pods_as_after].1 + more
            {
                let undisturbed = reference.steps[pods_as_after].1;
                return Err(in_step(format!("{made} pods were made, and {undisturbed} without the fault")));
            }
            if hit.is_none() && self.fault.is_some_and(|fault| fault.write <= self.proxy.writes()) {
                hit = Some(index);
            }
            steps.push((world, made));
        }
        Ok(Lived { sent: self.proxy.sent(), steps })
    }

    /// Fails if there are far more writes than without the fault, or one of them comes too soon.
    fn check_pace(&self) -> Result<(), String> {
        let sent = self.proxy.sent();
        if let Some(fault) = self.fault
            && fault.mode == super::Mode::Throttled
            && let Some(problem) = sent.too_soon(fault.write)
        {
            return Err(problem);
        }
        match self.reference {
            Some(reference) => too_many(sent.counts(), reference.counts).map_or(Ok(()), Err),
            None => Ok(()),
        }
    }

    /// Fails if the routes of this life, and of those before it, did not follow each other as they must.
    fn check_routes(&self) -> Result<(), String> {
        let gateway = self.slot.gateway.as_ref();
        gateway.and_then(|gateway| order::problem(&gateway.versions())).map_or(Ok(()), Err)
    }

    /// Returns what there is when the step is done and the controller is at rest.
    async fn until_settled(&self, index: usize, step: Step) -> Result<World, String> {
        let deadline = Instant::now() + SETTLES_WITHIN;
        let mut last = None;
        loop {
            let idle_for = if self.reference.is_some() { IDLE_AFTER } else { QUIET };
            self.until_idle(idle_for, deadline).await?;
            let written = self.proxy.writes();
            // Before the look at it all, which may come too early.
            let done = self.reference.is_some() || self.is_done(step).await?;
            let world = self.look().await?;
            if self.proxy.idle() < idle_for || self.proxy.writes() != written {
                // What was looked at first may have changed since.
                continue;
            }
            let problem = match self.reference {
                Some(reference) => difference(&reference.steps[index].0, &world),
                None if !done => "it is not done".to_owned(),
                // The garbage collector may pause for a minute, and the controller waits for it.
                None if has_children_of_before(&world, &self.setup.life.kind.resource().kind, NAME) => {
                    "children of the object before are still there".to_owned()
                }
                // The garbage collector deletes the children after the object is gone.
                None if step == Step::Deleted => difference(&World::new(), &world),
                None => {
                    last.map_or("it was looked at only once".to_owned(), |last| difference(&last, &world))
                }
            };
            if problem.is_empty() {
                // Before the fault there is nothing to check.
                if self.fault.is_some_and(|fault| fault.write <= written) {
                    self.until_quiet(written).await?;
                    let differs = difference(&world, &self.look().await?);
                    if !differs.is_empty() {
                        return Err(format!("a late write changed:\n{differs}"));
                    }
                }
                self.still_runs()?;
                return Ok(world);
            }
            if Instant::now() > deadline {
                return Err(format!("it does not become as without the fault:\n{problem}"));
            }
            last = Some(world);
            sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    /// Waits until nothing has happened for long enough; fails if anything is written after these writes.
    ///
    /// An Event follows the status that it reports and is not compared, so on a busy machine it may be created after the look
    /// at the rest. A status that was refused, and says nothing new, may be written again as late. Both are allowed if
    /// nothing is written in another quiet time after them.
    async fn until_quiet(&self, written: usize) -> Result<(), String> {
        let late = self.late_writes(written).await?;
        if late.is_empty() {
            return Ok(());
        }
        let of_object = format!("/{}/{NAME}/status", self.setup.life.kind.resource().plural);
        let may_be_late = |call: &String| {
            call.starts_with("POST ") && call.ends_with("/events")
                || call.starts_with("PATCH ") && call.ends_with(&of_object)
        };
        if !late.iter().all(may_be_late) {
            return Err(format!("at rest it wrote {late:?}"));
        }
        self.proxy.touch();
        let again = self.late_writes(written + late.len()).await?;
        if again.is_empty() { Ok(()) } else { Err(format!("at rest it wrote {late:?}, and then {again:?}")) }
    }

    /// What is written after these writes, until nothing has happened for long enough.
    async fn late_writes(&self, written: usize) -> Result<Vec<String>, String> {
        self.until_idle(QUIET, Instant::now() + SETTLES_WITHIN).await?;
        Ok(self.proxy.sent().writes.into_iter().skip(written).map(|write| write.call).collect())
    }

    async fn is_done(&self, step: Step) -> Result<bool, String> {
        let objects = self.setup.life.objects(&self.slot.scene);
        let object = objects.get_opt(NAME).await.map_err(|error| error.to_string())?;
        Ok(match (step, object) {
            (Step::Deleted, object) => object.is_none(),
            (step, object) => object.is_some_and(|object| self.setup.life.is_over(step, &object)),
        })
    }

    async fn until_idle(&self, idle_for: Duration, deadline: Instant) -> Result<(), String> {
        while self.proxy.idle() < idle_for || self.restarts.load(Ordering::SeqCst) {
            if Instant::now() > deadline {
                let writes: Vec<String> =
                    self.proxy.sent().writes.into_iter().map(|write| write.call).collect();
                return Err(format!("it does not come to rest; it wrote {writes:#?}"));
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    async fn look(&self) -> Result<World, String> {
        let namespace = self.slot.scene.namespace();
        let mut collections: BTreeSet<String> =
            self.reference.map(|all| all.collections.clone()).unwrap_or_default();
        collections.extend(any(self.proxy.sent().collections, namespace));
        let life = self.setup.life;
        look(&self.slot.scene, &collections, &life.kind.resource().plural, life.measured, &self.setup.pods)
            .await
    }

    async fn start(&self) -> Result<(), String> {
        self.proxy.begin_process();
        let kubeconfig = self.slot.folder.join("kubeconfig");
        fs::write(&kubeconfig, kubeconfig_of(&self.proxy)).map_err(|error| error.to_string())?;
        let namespace = self.slot.scene.namespace();
        let log = File::options().append(true).open(self.log()).map_err(|error| error.to_string())?;
        let also = log.try_clone().map_err(|error| error.to_string())?;
        let child = Command::new(&self.setup.launcher)
            .arg("launch")
            .arg(format!("--parent={}", std::process::id()))
            .arg("--")
            .arg(&self.setup.program)
            .args(ARGS)
            .args((self.setup.life.args)())
            .arg(format!("--namespace={namespace}"))
            .arg(format!("--lease-namespace={namespace}"))
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(also)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{}: {error}", self.setup.launcher.display()))?;
        *self.process() = Some(child);
        Ok(())
    }

    /// Waits until the first process has sent all its lists; returns how many different ones these are.
    async fn until_listed(&self) -> Result<usize, String> {
        let listed = async {
            while self.proxy.listed() == 0 || self.proxy.idle() < IDLE_AFTER / 2 {
                self.still_runs()?;
                sleep(POLL).await;
            }
            Ok(self.proxy.listed())
        };
        timeout(STARTS_WITHIN, listed).await.unwrap_or_else(|_| Err("it lists nothing".to_owned()))
    }

    /// Kills the process, and starts another one, which has to ask for so many lists.
    async fn restart(&self, lists: usize) -> Result<(), String> {
        self.kill().await?;
        self.start().await?;
        let listed = async {
            while self.proxy.listed() < lists {
                self.still_runs()?;
                sleep(POLL).await;
            }
            Ok(())
        };
        timeout(STARTS_WITHIN, listed).await.unwrap_or_else(|_| Err("it does not list everything".to_owned()))
    }

    /// Deletes the Lease too: the next process need not wait for the end of that of a process which is known to be gone.
    async fn kill(&self) -> Result<(), String> {
        let process = self.process().take();
        if let Some(mut process) = process {
            process.kill().await.map_err(|error| error.to_string())?;
        }
        let leases = self.slot.scene.api::<Lease>();
        match leases.delete(self.setup.life.controller, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop).map_err(|error| error.to_string()),
        }
    }

    fn still_runs(&self) -> Result<(), String> {
        match self.process().as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => Err(format!("the process ended by itself: {status}")),
            Some(Ok(None) | Err(_)) | None => Ok(()),
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> PathBuf {
        self.slot.folder.join("controller.log")
    }

    /// The problem with what is needed to understand it.
    fn explained(&self, problem: &str) -> String {
        let writes = self.proxy.sent().writes;
        let numbered: String = writes
            .iter()
            .enumerate()
            .map(|(index, write)| format!("  {}: {}\n", index + 1, write.call))
            .collect();
        format!("{problem}\nits writes:\n{numbered}the end of its log:\n{}", tail(&self.log()))
    }
}

/// Says so if these are far more writes than those of a whole life without the fault.
fn too_many(sent: Counts, undisturbed: Counts) -> Option<String> {
    let statuses = TIMES_THE_STATUSES * undisturbed.statuses + MORE_WRITES;
    let others = undisturbed.others + MORE_WRITES;
    let compared = |what, sent, undisturbed| {
        Some(format!("{sent} {what}, and {undisturbed} in a whole life without the fault"))
    };
    if sent.others > others {
        compared("other writes than statuses", sent.others, undisturbed.others)
    } else if sent.statuses > statuses {
        compared("statuses", sent.statuses, undisturbed.statuses)
    } else {
        None
    }
}

/// With `ANY` as the namespace.
pub(super) fn any(
    collections: impl IntoIterator<Item = String>,
    namespace: &str,
) -> impl Iterator<Item = String> {
    let own = format!("/namespaces/{namespace}/");
    collections.into_iter().map(move |path| path.replace(&own, &format!("/namespaces/{ANY}/")))
}

impl Slot<'_> {
    pub(super) fn namespace(&self) -> &str {
        self.scene.namespace()
    }
}

/// The proxy has the rights, so its client needs none.
fn kubeconfig_of(proxy: &Proxy) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "sweep",
        "contexts": [{"name": "sweep", "context": {"cluster": "sweep", "user": "sweep"}}],
        "clusters": [{"name": "sweep", "cluster": {"server": format!("http://{}", proxy.address)}}],
        "users": [{"name": "sweep", "user": {}}],
    })
    .to_string()
}

/// What the overlay for one namespace gives a controller, without the Deployment of it.
pub(super) fn rights(kubectl: &Path, overlay: &Path) -> Result<Vec<DynamicObject>, String> {
    let output = std::process::Command::new(kubectl).arg("kustomize").arg(overlay).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let mut objects =
        install::parse(&String::from_utf8_lossy(&output.stdout)).map_err(|error| explained(&error))?;
    let needed = ["ServiceAccount", "Role", "RoleBinding"];
    objects.retain(|object| object.types.as_ref().is_some_and(|types| needed.contains(&&*types.kind)));
    Ok(objects)
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_writes_is_told_from_states_on_the_way() {
        let undisturbed = Counts { statuses: 18, others: 12 };
        let sent = |statuses, others| too_many(Counts { statuses, others }, undisturbed);
        // A life of an AIScaler on a loaded machine.
        assert_eq!(sent(25, 12), None);
        let storm = sent(18, 12 + 12).unwrap_or_default();
        assert!(storm.contains("24 other writes"), "{storm}");
        let storm = sent(60, 12).unwrap_or_default();
        assert!(storm.contains("60 statuses"), "{storm}");
    }
}
