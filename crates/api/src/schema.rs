//! Schemas that cannot be derived: quantities, bounded maps, conditions. The meaning of a field is in its doc comment.

use kube::core::{Rule, validate};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

pub(crate) mod rules;

/// Longest quantity that anybody needs to write; `quantity()` in CEL is priced by it.
const MAX_QUANTITY: u32 = 48;

/// A quantity, written as a string (`50Gi`, `"0.5"`) or as a whole number (`4`): the API server accepts no fraction without
/// quotes here.
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": MAX_QUANTITY,
        "x-kubernetes-validations": [Rule::new(
            "isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('0')) >= 0",
        )
        .message("must be a quantity that is not negative, such as 50Gi")],
    })
}

/// A quantity above zero.
pub(crate) fn positive_quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": MAX_QUANTITY,
        "x-kubernetes-validations": [Rule::new(
            "isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('0')) > 0",
        )
        .message("must be a quantity above zero, such as 50Gi")],
    })
}

/// A target of a metric, in thousandths and up: HPA computes in the same unit. Whole numbers need no quotes.
pub(crate) fn target_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": MAX_QUANTITY,
        "x-kubernetes-validations": [Rule::new(
            "isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1m')) >= 0 \
             && quantity(string(self)).compareTo(quantity('1T')) <= 0",
        )
        .message("must be a quantity from 1m (0.001) to 1T, such as 5 or 800m")],
    })
}

/// Quantities by resource name.
pub(crate) fn resource_list(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": quantity(generator),
    })
}

/// A node selector. A schema cannot limit the keys of a map; an invalid key matches no node.
pub(crate) fn node_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    })
}

/// Labels that users add to pods; keys that the controller sets are refused.
pub(crate) fn pod_labels(_: &mut SchemaGenerator) -> Schema {
    let mut schema = json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    });
    refuse_keys(
        &mut schema,
        "!('app' in self) && self.all(k, !k.startsWith('ai.infra.example.com/') && \
         !(k in ['app.kubernetes.io/name', 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by']))",
        "must not set app, app.kubernetes.io/name, app.kubernetes.io/instance, app.kubernetes.io/managed-by \
         or a key below ai.infra.example.com/: the controller sets them",
    );
    schema
}

/// Annotations that users add to pods; keys that the controller sets are refused, and the older form of a profile that Pod
/// Security refuses.
pub(crate) fn pod_annotations(_: &mut SchemaGenerator) -> Schema {
    let mut schema = json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 16384 },
    });
    refuse_keys(
        &mut schema,
        "self.all(k, !k.startsWith('ai.infra.example.com/'))",
        "must not set a key below ai.infra.example.com/: the controller sets them",
    );
    refuse_keys(
        &mut schema,
        "self.all(k, !(k.startsWith('container.apparmor.security.beta.kubernetes.io/') && self[k] == 'unconfined'))",
        "must not set an AppArmor profile unconfined: pods meet the Pod Security Standard restricted",
    );
    schema
}

/// Conditions as `metav1.Condition`, a map list by type, without enums: an older API server must not refuse the status of a
/// newer controller.
///
/// Only the writer's bounds, no enum: an older API server must not refuse the status of a newer controller.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "type": "string", "maxLength": 316, "description": "Type of the condition, in CamelCase." },
                "status": { "type": "string", "maxLength": 32, "description": "True, False or Unknown." },
                "reason": { "type": "string", "maxLength": 1024, "description": "Reason of the last transition, one CamelCase word for scripts." },
                "message": { "type": "string", "maxLength": 32768, "description": "Details for people, with the object and the fix." },
                "lastTransitionTime": { "type": "string", "format": "date-time", "description": "When status last changed." },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0, "description": "Generation of the spec that the condition refers to." },
            },
        },
    })
}

/// Deserializes an enum of a status; an unknown value becomes `None`, because another release may have written it.
///
/// Statuses are rewritten by the controller anyway, and one unknown word must not make an object undecodable.
pub(crate) fn known<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let written = Option::<String>::deserialize(deserializer)?;
    Ok(written.and_then(|word| serde_json::from_value(serde_json::Value::String(word)).ok()))
}

fn refuse_keys(schema: &mut Schema, rule: &str, message: &str) {
    // Strings only; serialization cannot fail.
    let _ = validate(schema, Rule::new(rule).message(message));
}

/// Makes every property that is not in `mutable` immutable, including its presence. Errors name the property.
pub(crate) fn immutable_except(schema: &mut Schema, mutable: &[&str]) {
    let fields: Vec<String> = schema
        .get("properties")
        .and_then(|properties| properties.as_object())
        .map(|properties| {
            properties.keys().filter(|field| !mutable.contains(&field.as_str())).cloned().collect()
        })
        .unwrap_or_default();
    for f in fields {
        describe_as_immutable(schema, &f);
        let rule = Rule::new(format!(
            "has(self.{f}) == has(oldSelf.{f}) && (!has(self.{f}) || self.{f} == oldSelf.{f})"
        ))
        .message("must not be changed after creation")
        .field_path(format!(".{f}"));
        let _ = validate(schema, rule);
    }
}

/// Fields that kinds have in common are described for those whose pods are restarted.
fn describe_as_immutable(schema: &mut Schema, field: &str) {
    let properties = schema.get_mut("properties").and_then(|properties| properties.get_mut(field));
    if let Some(serde_json::Value::String(text)) = properties.and_then(|field| field.get_mut("description")) {
        // Where the comment in the code has them, descriptions still have the ends of lines here.
        for sentence in
            ["Changing it restarts pods.", "Changing it restarts\npods.", "Changing it\nrestarts pods."]
        {
            *text = text.replace(sentence, "Cannot be changed.");
        }
    }
}
