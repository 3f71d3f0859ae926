//! Tables of refusals: what is refused, what the message says, and the nearest object that is accepted.
//!
//! Objects are created as a dry run, which goes through the same validation and leaves nothing behind.

use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};
use tests::Scene;

/// One rule of one field. The two specs are merged into the table's base; null takes a field away.
pub(crate) struct Case {
    field: &'static str,
    says: &'static str,
    refused: Value,
    accepted: Value,
}

/// `field` is a path below spec, as the message names it, and empty for spec itself; `says` is a part of the message that
/// only this rule has.
pub(crate) fn case(field: &'static str, says: &'static str, refused: Value, accepted: Value) -> Case {
    Case { field, says, refused, accepted }
}

/// Checks every row and reports all rows that do not hold.
pub(crate) async fn check<K: Resource<DynamicType = ()>>(base: Value, cases: Vec<Case>) {
    let scene = tests::api_server().await;
    let mut wrong = Vec::new();
    for Case { field, says, refused, accepted } in cases {
        match attempt::<K>(&scene, &base, &refused).await {
            Ok(_) => wrong.push(format!("{field}: {refused} was accepted")),
            Err(message) => {
                let path = if field.is_empty() { "spec: ".to_owned() } else { format!("spec.{field}: ") };
                if !message.contains(&path) || !message.contains(says) {
                    wrong
                        .push(format!("{field}: {refused} should say `{path}` and `{says}`, not: {message}"));
                }
            }
        }
        if let Err(message) = attempt::<K>(&scene, &base, &accepted).await {
            wrong.push(format!("{field}: {accepted} was refused: {message}"));
        }
    }
    assert!(wrong.is_empty(), "{} of the rows do not hold:\n{}", wrong.len(), wrong.join("\n"));
}

/// Creates an object of the base with a change, as a dry run, and returns it as the server would store it.
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

/// What a user reads when the server refuses.
pub(crate) fn message(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        broken => panic!("the request did not get an answer: {broken}"),
    }
}

/// Creates an object for good.
pub(crate) async fn create<K: Resource<DynamicType = ()>>(scene: &Scene<'_>, name: &str, spec: Value) {
    let created = api::<K>(scene.client(), scene.namespace())
        .create(&PostParams::default(), &object::<K>(name, spec))
        .await;
    if let Err(error) = created {
        panic!("{} {name} was refused: {error}", K::kind(&()));
    }
}

/// Objects of a kind as the server sends them, whatever our types make of them.
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
