//! What a controller has made for one object, read back as it was written, and made again for others by a writer without
//! logic.

use anyhow::{Context as _, bail};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::plane::applied::applied_by;

/// How the null writer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NullWriter {
    Post,
    Apply,
}

/// Stands for the name of the owner in templates, which need not be that of the object.
pub(crate) const OWNER_NAME: &str = "OWNER-NAME";

/// What the children of one object look like, in the order in which the controller makes them.
pub(crate) struct Children {
    namespace: &'static str,
    templates: Vec<(ApiResource, String)>,
}

impl Children {
    pub(crate) fn kinds(&self) -> usize {
        self.templates.len()
    }

    /// Makes them for another object, one after the other, as the controller does. `replaced`: texts of the templates, and
    /// what stands in their place.
    pub(crate) async fn create(
        &self,
        client: &Client,
        replaced: &[(&str, &str)],
        how: NullWriter,
    ) -> anyhow::Result<()> {
        for (kind, template) in &self.templates {
            let child = replaced.iter().fold(template.clone(), |child, (old, new)| child.replace(old, new));
            let child: DynamicObject = serde_json::from_str(&child)?;
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), self.namespace, kind);
            let name = child.metadata.name.clone().unwrap_or_default();
            let created = match how {
                NullWriter::Post => api.create(&PostParams::default(), &child).await,
                NullWriter::Apply => {
                    api.patch(&name, &PatchParams::apply("null-writer"), &Patch::Apply(&child)).await
                }
            };
            created.with_context(|| format!("failed to create {} {}/{name}", kind.kind, self.namespace))?;
        }
        Ok(())
    }
}

/// Those that the controller has applied for the object of this name, one of each kind.
pub(crate) async fn children_of(
    client: &Client,
    namespace: &'static str,
    name: &str,
    controller: &str,
    kinds: &[ApiResource],
) -> anyhow::Result<Children> {
    let mut templates = Vec::new();
    for kind in kinds {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, kind);
        let found = api.list(&ListParams::default()).await;
        let found = found.with_context(|| format!("failed to list {}", kind.plural))?.items;
        // Those that hold results have no labels by which a tool could prune them.
        let of_object = |child: &&DynamicObject| {
            child.metadata.name.as_deref().is_some_and(|child| child.starts_with(name))
        };
        let mut applied = Vec::new();
        for child in found.iter().filter(of_object) {
            applied.extend(template(&serde_json::to_value(child)?, kind, controller));
        }
        let [template] = applied.as_slice() else {
            bail!(
                "{controller} has made {} objects of kind {} for {name}, not one",
                applied.len(),
                kind.kind
            );
        };
        templates.push((kind.clone(), template.clone()));
    }
    Ok(Children { namespace, templates })
}

/// The child as it was applied; `None`: the controller has not applied it.
fn template(child: &Value, kind: &ApiResource, controller: &str) -> Option<String> {
    let mut applied = applied_by(child, controller)?;
    applied["apiVersion"] = json!(kind.api_version);
    applied["kind"] = json!(kind.kind);
    applied["metadata"]["name"] = child["metadata"]["name"].clone();
    let owners = applied.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut);
    for owner in owners.into_iter().flatten() {
        owner["name"] = json!(OWNER_NAME);
    }
    Some(applied.to_string())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;

    use super::*;

    #[test]
    fn a_template_is_a_whole_object_that_has_only_what_was_applied() {
        let child = json!({
            "metadata": {"name": "chat", "uid": "1", "managedFields": [
                {"manager": "us", "operation": "Apply", "fieldsV1": {"f:spec": {"f:type": {}}}},
            ]},
            "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1"},
        });
        let kind = ApiResource::erase::<Service>(&());
        let template: Value = serde_json::from_str(&template(&child, &kind, "us").unwrap()).unwrap();
        let expected = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "chat"},
            "spec": {"type": "ClusterIP"},
        });
        assert_eq!(template, expected);
    }

    #[test]
    fn a_child_of_others_gives_no_template() {
        let child = json!({"metadata": {"name": "chat", "managedFields": []}});
        assert_eq!(template(&child, &ApiResource::erase::<Service>(&()), "us"), None);
    }
}
