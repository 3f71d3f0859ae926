//! Whether an object already has everything that an apply would set.
//!
//! Pure. It may say "no" too often, which costs one request; it must not say "yes" when a field that we set differs.

use serde_json::{Map, Value};

/// True if every field of the object `desired` stands in the object `seen` with the same meaning; what `seen` has besides
/// does not count.
pub(crate) fn covers(seen: &Value, desired: &Value) -> bool {
    let (Some(seen), Some(desired)) = (seen.as_object(), desired.as_object()) else { return false };
    // What kind it is, we asked for; the items of a list do not say it again.
    let mut fields = desired.iter().filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind"));
    fields.all(|(name, wanted)| covers_field(seen, name, wanted, false))
}

fn covered(seen: &Value, desired: &Value, quantities: bool) -> bool {
    match (seen, desired) {
        (Value::Object(seen), Value::Object(desired)) => covers_object(seen, desired, quantities),
        (Value::Array(seen), Value::Array(desired)) => covers_array(seen, desired, quantities),
        // The server rewrites quantities: 1024Mi comes back as 1Gi.
        (Value::String(seen), Value::String(desired)) if quantities => {
            seen == desired || text::quantity::is_same(seen, desired)
        }
        (seen, desired) => seen == desired,
    }
}

fn covers_object(seen: &Map<String, Value>, desired: &Map<String, Value>, quantities: bool) -> bool {
    desired.iter().all(|(name, wanted)| covers_field(seen, name, wanted, quantities))
}

fn covers_field(seen: &Map<String, Value>, name: &str, wanted: &Value, quantities: bool) -> bool {
    match seen.get(name) {
        Some(value) => covered(value, wanted, quantities || holds_quantities(name)),
        None => wanted.is_null(),
    }
}

fn holds_quantities(field: &str) -> bool {
    matches!(field, "limits" | "requests" | "sizeLimit" | "averageValue")
}

/// Lists whose items have names are merged by name, so other managers may add items; any other list is applied whole.
fn covers_array(seen: &[Value], desired: &[Value], quantities: bool) -> bool {
    let Some(key) = merge_key(desired) else {
        return seen.len() == desired.len()
            && seen.iter().zip(desired).all(|(seen, desired)| covered(seen, desired, quantities));
    };
    desired.iter().all(|wanted| {
        let same = seen.iter().find(|item| item.get(key) == wanted.get(key));
        same.is_some_and(|item| covered(item, wanted, quantities))
    })
}

fn merge_key(items: &[Value]) -> Option<&'static str> {
    let has_all = |key: &&str| !items.is_empty() && items.iter().all(|item| item.get(*key).is_some());
    ["uid", "name", "mountPath"].into_iter().find(has_all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_other_peoples_fields_are_left_alone() {
        let desired =
            json!({"spec": {"replicas": 2, "template": {"containers": [{"name": "engine", "image": "a"}]}}});
        let seen = json!({
            "metadata": {"labels": {"theirs": "x"}},
            "spec": {"replicas": 2, "progressDeadlineSeconds": 600, "template": {"containers": [
                {"name": "injected", "image": "mesh"},
                {"name": "engine", "image": "a", "imagePullPolicy": "IfNotPresent"}]}},
        });
        assert!(covers(&seen, &desired));
    }

    #[test]
    fn a_field_of_ours_that_was_changed_or_dropped_is_noticed() {
        let desired = json!({"a": {"b": 1}, "args": ["x", "y"], "env": [{"name": "A", "value": "1"}]});
        for seen in [
            json!({"a": {"b": 2}, "args": ["x", "y"], "env": [{"name": "A", "value": "1"}]}),
            json!({"a": {}, "args": ["x", "y"], "env": [{"name": "A", "value": "1"}]}),
            json!({"a": {"b": 1}, "args": ["x", "y", "z"], "env": [{"name": "A", "value": "1"}]}),
            json!({"a": {"b": 1}, "args": ["y", "x"], "env": [{"name": "A", "value": "1"}]}),
            json!({"a": {"b": 1}, "args": ["x", "y"], "env": [{"name": "A", "value": "2"}]}),
            json!({"a": {"b": 1}, "args": ["x", "y"], "env": []}),
        ] {
            assert!(!covers(&seen, &desired), "{seen}");
        }
    }

    #[test]
    fn quantities_compare_by_value_and_other_strings_by_letter() {
        let limits = |text: &str| json!({"limits": {"memory": text}});
        assert!(covers(&limits("1Gi"), &limits("1024Mi")));
        assert!(covers(&limits("500m"), &limits("0.5")));
        assert!(covers(&limits("2"), &limits("2000m")));
        assert!(!covers(&limits("1G"), &limits("1Gi")));
        assert!(!covers(&json!({"value": "1Gi"}), &json!({"value": "1024Mi"})));
    }
}
