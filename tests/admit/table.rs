//! Tables of validation cases: a refused object, a part of the message, and a similar object that is accepted.
//!
//! Objects are created as a dry run, which validates but does not store them.

use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};
use tests::Scene;

/// One rule of one field. The two specs are merged into the base spec; null removes a field.
pub(crate) struct Case {
    field: &'static str,
    message: &'static str,
    refused: Value,
    accepted: Value,
}

/// `field`: the path below spec in the message; empty for spec itself. `message`: a part of the message that identifies the
/// rule.
pub(crate) fn case(field: &'static str, message: &'static str, refused: Value, accepted: Value) -> Case {
    Case { field, message, refused, accepted }
}

/// Checks every row and reports all failing rows.
pub(crate) async fn check<K: Resource<DynamicType = ()>>(base: Value, cases: Vec<Case>) {
    let scene = tests::api_server().await;
    let mut wrong = Vec::new();
    for Case { field, message, refused, accepted } in cases {
        match attempt::<K>(&scene, &base, &refused).await {
            Ok(_) => wrong.push(format!("{field}: {refused} was accepted")),
            Err(error) => {
                let path = if field.is_empty() { "spec: ".to_owned() } else { format!("spec.{field}: ") };
                if !error.contains(&path) || !error.contains(message) {
                    wrong.push(format!(
                        "{field}: {refused} should have the error `{path}` and `{message}`, not: {error}"
                    ));
                }
            }
        }
        if let Err(error) = attempt::<K>(&scene, &base, &accepted).await {
            wrong.push(format!("{field}: {accepted} was refused: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{} rows fail:\n{}", wrong.len(), wrong.join("\n"));
}

/// Creates the base object with a change, as a dry run, and returns the object that the server would store.
pub(crate) async fn attempt<K: Resource<DynamicType = ()>>(
    scene: &Scene<'_>,
    base: &Value,
    change: &Value,
) -> Result<DynamicObject, String> {
    let mut spec = base.clone();
    merge(&mut spec, change);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    api::<K>(scene.client(), scene.namespace())
        .create(&dry_run, &object::<K>("made-up", spec))
        .await
        .map_err(message)
}

/// The message of the API server's error.
pub(crate) fn message(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        broken => panic!("the request did not get an answer: {broken}"),
    }
}

/// Creates an object without a dry run.
pub(crate) async fn create<K: Resource<DynamicType = ()>>(scene: &Scene<'_>, name: &str, spec: Value) {
    let created = api::<K>(scene.client(), scene.namespace())
        .create(&PostParams::default(), &object::<K>(name, spec))
        .await;
    if let Err(error) = created {
        panic!("{} {name} was refused: {error}", K::kind(&()));
    }
}

/// Objects of a kind as untyped JSON.
pub(crate) fn api<K: Resource<DynamicType = ()>>(client: Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<K>(&()))
}

fn object<K: Resource<DynamicType = ()>>(name: &str, spec: Value) -> DynamicObject {
    DynamicObject::new(name, &ApiResource::erase::<K>(&())).data(json!({"spec": spec}))
}

/// A merge patch, RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (field, change) in changes {
                if change.is_null() {
                    fields.remove(field);
                } else {
                    merge(fields.entry(field.clone()).or_insert(Value::Null), change);
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}
