//! The scripted life of an object of each controller: created, scaled, changed, edited by hand, deleted, and created
//! again under the same name. What every controller must do is tested while it serves such a life.
//!
//! A life is data, a row of `table` for each controller. What only one controller needs is in the file of its kind.

use api::controllers::Kind;
use futures::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{Scene, wait_for, wait_until_gone, within};

/// The script of one controller.
pub struct Life {
    /// Name of the controller.
    pub controller: &'static str,
    /// The kind of the object: the first one of the controller.
    pub kind: Kind,
    /// Controllers whose samples those of this one refer to.
    pub samples_of: &'static [&'static str],
    /// Of the controller's process in tests.
    pub args: fn() -> Vec<String>,
    /// What has to be there before an object of this name, and stays when the object is deleted.
    pub given: fn(&str) -> Vec<Value>,
    /// What the controller makes for the object of this name, and what stays when the object is deleted.
    pub leaves: fn(&str) -> Vec<Value>,
    /// Of the object of this name when it is created.
    pub spec: fn(&str) -> Value,
    /// What a user changes of the spec, in this order.
    pub scaled: Value,
    pub changed: Value,
    /// What the sweep changes further, in this order, each after the controller is at rest.
    pub further: Vec<Further>,
    /// Whether its routes need answers of a gateway.
    pub needs_gateway: bool,
    /// What is edited by hand, an edit that the controller takes back: a child with pods, or a target.
    pub edited: Edited,
    /// `None`: the controller makes no Deployments.
    pub children: Option<Children>,
    /// Fields of the status that differ from life to life: what was measured, and when.
    pub measured: &'static [&'static str],
    /// Lines of the metrics that the leader alone has once one object is done.
    pub counted: &'static [&'static str],
    /// Rights that a controller of one namespace does without: group, resource, verb.
    pub beyond_a_namespace: &'static [(&'static str, &'static str, &'static str)],
    /// Makes the controller send every kind of request that it ever sends.
    pub use_every_right: Action,
    /// Creates an object in each state that lasts, beside those that are done, and waits until each has its state.
    pub settle: Action,
}

/// A change of the spec, and the status of the object at rest after it.
pub struct Further {
    pub spec: Value,
    /// Of the status. A controller may rest on the way, too, such as while requests end.
    pub is_over: fn(&Value) -> bool,
}

/// A step of the life that the sweep plays (`crate::sweep`): what a user or the cluster does once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Created,
    Scaled,
    /// A rollout.
    Changed,
    /// A pod is deleted, as when its node is lost.
    PodLost,
    /// By hand, and without an effect on pods if a child has none.
    Edited,
    ScaledBack,
    /// One of `Life::further`.
    Further(usize),
    /// Under the same name, before the children of the first object are gone.
    Recreated,
    Deleted,
}

/// A part of a script that only one controller needs.
pub type Action = for<'a> fn(&'a Scene<'a>) -> LocalBoxFuture<'a, ()>;

/// What the controller makes of every object; pods belong to that which is edited by hand.
pub struct Children {
    /// A child that has no pods: an edit of it starts none. `None`: every child has pods.
    pub podless: Option<Edited>,
    /// A change with which no new pod finds a node, and the change that takes it back.
    pub mistake: (Value, Value),
}

/// An object that the controller writes, for every object of its kind.
pub struct Edited {
    pub resource: ApiResource,
    /// Follows the name of the object.
    pub suffix: &'static str,
    /// Of a field in its spec that the controller sets.
    pub edit: Value,
}

impl Further {
    /// After this change, the controller rests when the object is done.
    pub fn once_done(spec: Value) -> Self {
        Self { spec, is_over: |_| true }
    }
}

impl Life {
    /// What the sweep plays, in this order.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let of_all =
            [Step::Created, Step::Scaled, Step::Changed, Step::PodLost, Step::Edited, Step::ScaledBack];
        let further = (0..self.further.len()).map(Step::Further);
        of_all.into_iter().chain(further).chain([Step::Recreated, Step::Deleted]).collect()
    }

    pub fn objects(&self, scene: &Scene<'_>) -> Api<DynamicObject> {
        Api::namespaced_with(scene.client(), scene.namespace(), &self.kind.resource())
    }

    /// Whether the object has come to what this step leads to.
    pub(crate) fn is_over(&self, step: Step, object: &DynamicObject) -> bool {
        let is_over = match step {
            Step::Further(number) => (self.further[number].is_over)(&object.data["status"]),
            Step::Created
            | Step::Scaled
            | Step::Changed
            | Step::PodLost
            | Step::Edited
            | Step::ScaledBack
            | Step::Recreated
            | Step::Deleted => true,
        };
        is_over && self.kind.is_done(object)
    }

    /// Whether the edit by hand of [`Step::Edited`] changes pods.
    pub(crate) fn edits_pods(&self) -> bool {
        self.children.as_ref().is_some_and(|children| children.podless.is_none())
    }

    /// From the first creation until the second object of this name is done.
    pub async fn play(&self, scene: &Scene<'_>, name: &str) {
        self.begin(scene, name).await;
        for change in [&self.scaled, &self.changed] {
            self.change(scene, name, change).await;
            self.until_done(scene, name).await;
        }
        self.edit(scene, name).await;
        self.until_done(scene, name).await;
        self.delete(scene, name).await;
        self.begin(scene, name).await;
    }

    /// Does what this step is, and does not wait for what the controller does about it.
    pub async fn take(&self, step: Step, scene: &Scene<'_>, name: &str) {
        match step {
            Step::Created => drop(self.create(scene, name).await),
            Step::Scaled => self.change(scene, name, &self.scaled).await,
            Step::Changed => self.change(scene, name, &self.changed).await,
            Step::PodLost => lose_pod(scene).await,
            Step::Edited => {
                let podless = self.children.as_ref().and_then(|children| children.podless.as_ref());
                drop(podless.unwrap_or(&self.edited).edit(scene, name).await);
            }
            Step::ScaledBack => self.change(scene, name, &self.scaled_back(name)).await,
            Step::Further(number) => self.change(scene, name, &self.further[number].spec).await,
            Step::Recreated => {
                self.delete(scene, name).await;
                self.create(scene, name).await;
            }
            Step::Deleted => {
                self.delete(scene, name).await;
                for given in (self.given)(name).into_iter().chain((self.leaves)(name)) {
                    scene.kubectl_with_input(&["delete", "--wait=false", "--filename=-"], &given.to_string());
                }
            }
        }
    }

    /// The change that takes `scaled` back.
    fn scaled_back(&self, name: &str) -> Value {
        let (spec, fields) = ((self.spec)(name), self.scaled.as_object());
        let fields = fields.into_iter().flat_map(|fields| fields.keys());
        fields.map(|field| (field.clone(), spec[field.as_str()].clone())).collect()
    }

    /// Returns the object as the API server answers it.
    pub async fn create(&self, scene: &Scene<'_>, name: &str) -> DynamicObject {
        for given in (self.given)(name) {
            scene.apply(&given.to_string()).await.expect("it is accepted");
        }
        let ApiResource { api_version, kind, .. } = self.kind.resource();
        let object = json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": name},
            "spec": (self.spec)(name),
        });
        let mut created = scene.apply(&object.to_string()).await.expect("it is accepted");
        created.pop().expect("one object")
    }

    /// Creates the object and waits until it is done.
    pub async fn begin(&self, scene: &Scene<'_>, name: &str) -> DynamicObject {
        self.create(scene, name).await;
        self.until_done(scene, name).await
    }

    pub async fn change(&self, scene: &Scene<'_>, name: &str, spec: &Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.objects(scene).patch(name, &PatchParams::default(), &patch).await.expect("it is accepted");
    }

    /// Waits until the object is as its newest spec wants it.
    pub async fn until_done(&self, scene: &Scene<'_>, name: &str) -> DynamicObject {
        wait_for(&self.objects(scene), name, self.kind.done, within(), |object| self.kind.is_done(object))
            .await
    }

    /// Edits by hand, and waits until the controller has taken the edit back.
    pub async fn edit(&self, scene: &Scene<'_>, name: &str) {
        let before = self.edited.edit(scene, name).await;
        let name = format!("{name}{}", self.edited.suffix);
        wait_for(&self.edited.api(scene), &name, "as before the edit", within(), |object: &DynamicObject| {
            object.data["spec"] == before.data["spec"]
        })
        .await;
    }

    /// Returns when the name is free.
    pub async fn delete(&self, scene: &Scene<'_>, name: &str) {
        let objects = self.objects(scene);
        objects.delete(name, &DeleteParams::default()).await.expect("it can be deleted");
        wait_until_gone(&objects, name, within()).await;
    }
}

impl Edited {
    pub fn api(&self, scene: &Scene<'_>) -> Api<DynamicObject> {
        Api::namespaced_with(scene.client(), scene.namespace(), &self.resource)
    }

    /// Edits what belongs to this object, and returns it as it was before.
    async fn edit(&self, scene: &Scene<'_>, object: &str) -> DynamicObject {
        let (objects, name) = (self.api(scene), format!("{object}{}", self.suffix));
        let before = objects.get(&name).await.expect("what is edited");
        let patch = Patch::Merge(json!({"spec": self.edit}));
        let edited = objects.patch(&name, &PatchParams::default(), &patch).await.expect("it is accepted");
        assert_ne!(edited.data["spec"], before.data["spec"], "the edit changes nothing");
        before
    }
}

/// Deletes the first pod of the namespace.
async fn lose_pod(scene: &Scene<'_>) {
    let pods = scene.api::<Pod>();
    let all = pods.list(&ListParams::default()).await.expect("the pods");
    let mut names: Vec<String> = all
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter_map(|pod| pod.metadata.name)
        .collect();
    names.sort();
    let Some(first) = names.first() else { return };
    pods.delete(first, &DeleteParams::default()).await.expect("it can be deleted");
}
