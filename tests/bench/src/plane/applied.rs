//! What one field manager has set of an object, taken back out of it: the inverse of a server-side apply or a creation. Pure.

use serde_json::{Map, Value};

/// The fields of the object that this manager has applied or created it with, without those that others have added. A
/// creation also has the defaults.
pub(super) fn applied_by(object: &Value, manager: &str) -> Option<Value> {
    let entries = object["metadata"]["managedFields"].as_array()?;
    let entry = entries.iter().find(|entry| entry["manager"] == manager && entry["subresource"].is_null())?;
    Some(kept(object, entry["fieldsV1"].as_object()?))
}

/// The parts of a value that a set of `fieldsV1` names: `f:` a field, `k:` an item by its keys, `v:` an item by its
/// value. An empty set stands for the whole value.
fn kept(value: &Value, fields: &Map<String, Value>) -> Value {
    let below = |key: &str| fields.get(key).and_then(Value::as_object);
    match value {
        _ if fields.is_empty() => value.clone(),
        Value::Object(object) => object
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), kept(value, below(&format!("f:{name}"))?))))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items
            .iter()
            .filter_map(|item| fields.iter().find_map(|(key, set)| kept_item(item, key, set)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn kept_item(item: &Value, key: &str, set: &Value) -> Option<Value> {
    if let Some(keys) = key.strip_prefix("k:") {
        let keys: Map<String, Value> = serde_json::from_str(keys).ok()?;
        let is_meant = keys.iter().all(|(name, value)| item[name] == *value);
        return is_meant.then(|| kept(item, set.as_object().unwrap_or(&Map::new())));
    }
    let wanted: Value = serde_json::from_str(key.strip_prefix("v:")?).ok()?;
    (wanted == *item).then(|| item.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_the_manager_has_set_is_left() {
        let object = json!({
            "metadata": {"name": "chat", "labels": {"ours": "1", "theirs": "2"}, "managedFields": [
                {"manager": "other", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:theirs": {}}}}},
                {"manager": "us", "operation": "Apply", "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:ours": {}}, "f:finalizers": {"v:\"ours\"": {}}},
                    "f:spec": {"f:args": {}, "f:ports": {"k:{\"port\":80}": {".": {}, "f:port": {}}}},
                }},
            ], "finalizers": ["ours", "theirs"]},
            "spec": {
                "args": ["--a", "--b"],
                "ports": [{"port": 80, "nodePort": 30001}, {"port": 81}],
                "clusterIP": "10.0.0.1",
            },
        });
        let mut created = object.clone();
        created["metadata"]["managedFields"][1]["operation"] = json!("Update");
        let ours = applied_by(&object, "us").unwrap();
        assert_eq!(applied_by(&created, "us").as_ref(), Some(&ours));
        let expected = json!({
            "metadata": {"labels": {"ours": "1"}, "finalizers": ["ours"]},
            "spec": {"args": ["--a", "--b"], "ports": [{"port": 80}]},
        });
        assert_eq!(ours, expected);
    }

    #[test]
    fn of_a_manager_that_has_applied_nothing_there_is_nothing() {
        assert_eq!(applied_by(&json!({"metadata": {"managedFields": []}}), "us"), None);
    }
}
