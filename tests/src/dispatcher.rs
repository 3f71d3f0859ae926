//! AIDispatcher in tests: create, change, wait; workers on simulated nodes whose monitors a test answers for; and the script
//! for the tests of every controller.

use api::{
    aidispatcher::{AIDispatcher, Phase},
    conditions,
    controllers::CONTROLLERS,
    labels,
};
pub use fake_monitors::Load;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api,
    api::{ApiResource, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    Scene,
    lives::{Children, Edited, Life},
    wait_for, wait_until_gone, within,
};

pub const CONTROLLER: &str = "dispatcher-controller";

/// A spec with one coder, merged with `changes`.
pub fn spec(changes: Value) -> Value {
    // GPU nodes keep other pods away.
    let mut spec = json!({
        "role": "coder",
        "image": "agent:1",
        "scheduling": {"tolerations": [{"operator": "Exists"}]},
    });
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    spec
}

pub async fn create(scene: &Scene<'_>, name: &str, changes: Value) -> AIDispatcher {
    let object = serde_json::from_value(json!({
        "apiVersion": "southwest.ai/v1alpha1",
        "kind": "AIDispatcher",
        "metadata": {"name": name, "namespace": scene.namespace()},
        "spec": spec(changes),
    }))
    .expect("an AIDispatcher");
    scene.api().create(&PostParams::default(), &object).await.expect("it is accepted")
}

pub async fn change(scene: &Scene<'_>, name: &str, spec: Value) -> AIDispatcher {
    let patch = Patch::Merge(json!({"spec": spec}));
    scene.api().patch(name, &PatchParams::default(), &patch).await.expect("the change is accepted")
}

/// Waits until all workers of the current spec are ready.
pub async fn until_ready(scene: &Scene<'_>, name: &str) -> AIDispatcher {
    until(scene, name, "ready", is_ready).await
}

pub async fn until(
    scene: &Scene<'_>,
    name: &str,
    what: &str,
    holds: impl FnMut(&AIDispatcher) -> bool,
) -> AIDispatcher {
    wait_for(&scene.api::<AIDispatcher>(), name, what, within(), holds).await
}

/// Waits until the condition has this reason.
pub async fn until_reason(scene: &Scene<'_>, name: &str, type_: &str, reason: &str) -> AIDispatcher {
    let what = format!("{type_} because of {reason}");
    until(scene, name, &what, |dispatcher| {
        is_observed(dispatcher) && condition(dispatcher, type_).is_some_and(|known| known.reason == reason)
    })
    .await
}

pub fn is_ready(dispatcher: &AIDispatcher) -> bool {
    is_observed(dispatcher)
        && condition(dispatcher, conditions::READY).is_some_and(|ready| ready.status == "True")
        && condition(dispatcher, conditions::PROGRESSING).is_some_and(|known| known.reason == "Complete")
        && dispatcher.status.as_ref().is_some_and(|status| status.current_phase != Some(Phase::Failed))
}

/// Whether the status is of the current generation.
pub fn is_observed(dispatcher: &AIDispatcher) -> bool {
    let observed = dispatcher.status.as_ref().map(|status| status.observed_generation);
    observed.is_some() && observed == dispatcher.metadata.generation
}

pub fn condition<'a>(dispatcher: &'a AIDispatcher, type_: &str) -> Option<&'a Condition> {
    dispatcher.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
}

/// The label selector of the workers of a pool.
pub fn selector(name: &str) -> String {
    format!("{}=aidispatcher,{}={name}", labels::NAME, labels::INSTANCE)
}

/// The workers of a pool that do not end, in the order of their names.
pub async fn workers(scene: &Scene<'_>, name: &str) -> Vec<Pod> {
    let pods: Api<Pod> = scene.api();
    let mut pods = pods.list(&ListParams::default().labels(&selector(name))).await.expect("the pods").items;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    pods.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    pods
}

pub async fn deployment(scene: &Scene<'_>, name: &str) -> Deployment {
    scene.api::<Deployment>().get(&format!("{name}-workers")).await.expect("a Deployment")
}

/// Waits until so many workers have run for as long as `minReadySeconds`. Before, their Deployment may count them as
/// unhealthy and remove them first.
pub async fn until_proven(scene: &Scene<'_>, name: &str, count: i32) {
    let deployments = scene.api::<Deployment>();
    wait_for(&deployments, &format!("{name}-workers"), "proven workers", within(), |found: &Deployment| {
        found.status.as_ref().is_some_and(|status| status.available_replicas == Some(count))
    })
    .await;
}

/// The monitors of the workers of a scene. Every worker says what was last set of it, or of all.
pub struct Monitors {
    monitors: fake_monitors::Monitors,
    namespace: String,
}

impl Monitors {
    pub fn of(scene: &Scene<'_>) -> Self {
        Self { monitors: fake_monitors::Monitors::of(scene.api()), namespace: scene.namespace().to_owned() }
    }

    /// Of workers of which nothing is set alone, now and later.
    pub fn all(&self, load: Load) {
        self.monitors.all(load);
    }

    pub fn one(&self, pod: &str, load: Load) {
        self.monitors.one(&(self.namespace.clone(), pod.to_owned()), load);
    }

    /// The monitor of a worker without state finds so many saved states that no worker has claimed.
    pub fn finds_states(&self, pod: &str, states: u64) {
        self.monitors.finds_states(&(self.namespace.clone(), pod.to_owned()), states);
    }
}

/// The script for a pool of one worker.
pub(crate) fn life() -> Life {
    Life {
        controller: CONTROLLER,
        kind: CONTROLLERS.iter().find(|known| known.name == CONTROLLER).expect("a controller").kinds[0],
        samples_of: &[],
        args: Vec::new,
        given: |_| Vec::new(),
        leaves: |_| Vec::new(),
        spec: |_| spec(json!({})),
        scaled: json!({"replicas": 2}),
        changed: json!({"image": "agent:2"}),
        edited: Edited {
            resource: ApiResource::erase::<Deployment>(&()),
            suffix: "-workers",
            edit: json!({"template": {"spec": {"terminationGracePeriodSeconds": 700}}}),
        },
        children: Some(Children {
            podless: None,
            mistake: (
                json!({"scheduling": {"nodeSelector": {"disk": "typo"}}}),
                json!({"scheduling": {"nodeSelector": null}}),
            ),
        }),
        further: Vec::new(),
        needs_gateway: false,
        measured: &["tokens", "tokensPerMinute"],
        counted: &["aidispatcher_phase{phase=\"ready\"} 1"],
        beyond_a_namespace: &[],
        use_every_right: |scene| Box::pin(use_every_right(scene)),
        settle: |scene| Box::pin(settle(scene)),
    }
}

/// Lets a busy worker be marked before there are fewer, and one without state give way; and deletes the Deployment, for the read of the owner before it is
/// created again.
async fn use_every_right(scene: &Scene<'_>) {
    let monitors = Monitors::of(scene);
    create(scene, "marked", json!({"replicas": 3})).await;
    until_ready(scene, "marked").await;
    let busy = workers(scene, "marked").await[0].metadata.name.clone().expect("a name");
    monitors.one(&busy, Load { queued: 0, in_flight: 1, tokens: 0 });
    until(scene, "marked", "one busy worker", |dispatcher| {
        dispatcher.status.as_ref().is_some_and(|status| status.active_workers == 1)
    })
    .await;
    change(scene, "marked", json!({"replicas": 1})).await;
    until(scene, "marked", "one worker", |dispatcher| {
        is_ready(dispatcher) && dispatcher.status.as_ref().is_some_and(|status| status.replicas == 1)
    })
    .await;
    create(scene, "saved", json!({"checkpoint": {"uri": "s3://states"}})).await;
    until_ready(scene, "saved").await;
    let without_state = workers(scene, "saved").await[0].metadata.name.clone().expect("a name");
    monitors.finds_states(&without_state, 1);
    wait_until_gone(&scene.api::<Pod>(), &without_state, within()).await;
    scene.kubectl(&["delete", "deployment", "marked-workers", "--wait=false"]);
    wait_for(&scene.api::<Deployment>(), "marked-workers", "there again", within(), |found: &Deployment| {
        found.metadata.deletion_timestamp.is_none()
    })
    .await;
    // A child whose name is taken is read.
    scene.kubectl(&["create", "deployment", "taken-workers", "--image=image", "--replicas=0"]);
    create(scene, "taken", json!({})).await;
    until_reason(scene, "taken", conditions::READY, "OwnershipConflict").await;
    let foreign = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget-workers", "namespace": scene.namespace()}, "spec": {"maxUnavailable": 1}});
    scene.apply(&foreign.to_string()).await.expect("a budget");
    create(scene, "budget", json!({})).await;
    until_reason(scene, "budget", conditions::DISRUPTION_BUDGET_OMITTED, "OwnershipConflict").await;
    use_services(scene).await;
}

/// Gives a pool Services and takes them away, beside a Service of another owner.
async fn use_services(scene: &Scene<'_>) {
    let foreign = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "served", "namespace": scene.namespace()}, "spec": {"ports": [{"port": 80}]}});
    scene.apply(&foreign.to_string()).await.expect("a Service");
    create(scene, "served", json!({"service": {}})).await;
    until_reason(scene, "served", conditions::SERVICE_OMITTED, "OwnershipConflict").await;
    let services = scene.api::<Service>();
    wait_for(&services, "served-workers", "the Service is there", within(), |_| true).await;
    change(scene, "served", json!({"service": null})).await;
    wait_until_gone(&services, "served-workers", within()).await;
}

/// Creates an AIDispatcher in each stable state.
async fn settle(scene: &Scene<'_>) {
    create(scene, "scaled", json!({"autoscaling": {"maxReplicas": 3}})).await;
    until_ready(scene, "scaled").await;
    create(scene, "paused", json!({"paused": true})).await;
    until_reason(scene, "paused", conditions::READY, "Paused").await;
    create(scene, "invalid", json!({"env": [{"name": "AGENT_ROLE", "value": "x"}]})).await;
    until_reason(scene, "invalid", conditions::READY, "InvalidSpec").await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::monitor::variables::{AGENT_METRICS_PORT, POD_NAME, POD_NAMESPACE, POD_UID, RESERVED};

    use crate::monitoring::text;

    /// The names of variables in the lines of a document that begin so.
    fn documented(path: &str, begin: &str) -> BTreeSet<String> {
        let text = text(path);
        let rows = text.lines().filter(|line| line.starts_with(begin));
        let is_of_a_name = |character: char| character.is_ascii_uppercase() || character == '_';
        let words = rows.flat_map(|row| row.split(|character| !is_of_a_name(character)));
        words.filter(|word| word.contains('_')).map(str::to_owned).collect()
    }

    #[test]
    fn every_variable_of_a_worker_is_in_both_documents_for_authors_of_agents() {
        let of_monitors = [POD_NAME, POD_NAMESPACE, POD_UID];
        let of_workers = RESERVED.into_iter().filter(|name| !of_monitors.contains(name));
        let wanted: BTreeSet<String> = of_workers.chain([AGENT_METRICS_PORT]).map(str::to_owned).collect();
        for (path, begin) in
            [("docs/agents-contract.md", "| environment |"), ("crates/monitor/README.md", "| `")]
        {
            let documented = documented(path, begin);
            let missing: Vec<&String> = wanted.difference(&documented).collect();
            assert!(missing.is_empty(), "{path} lacks {missing:?}");
        }
    }
}
