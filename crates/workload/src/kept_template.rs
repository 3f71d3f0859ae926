//! The pod template that a spec was first rendered to. It is recorded with the child and kept field for field until the
//! spec changes, whatever a newer release would render: an upgrade of a controller restarts no pod. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

/// Annotations of an object may have 256 KiB together. A template beyond this is not recorded; then what the child has
/// is kept, and only drift of such a template is not repaired.
pub const LONGEST_RECORD: usize = 128 << 10;

/// More would make the message of a condition unreadable.
const DIFFERENCES_SHOWN: usize = 6;

/// The fields in which a kept template differs from what is rendered today; empty if there are none. Values are shown of
/// images alone: an environment may hold secrets.
pub fn differences(kept: &Value, rendered: &Value) -> Vec<String> {
    let mut walk = Walk { found: Vec::new(), has_server_defaults: has_server_defaults(kept) };
    walk.compare("", kept, rendered);
    walk.found
}

/// One line for a condition.
pub fn summary(differences: &[String]) -> String {
    let shown = differences.iter().take(DIFFERENCES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match differences.len().saturating_sub(DIFFERENCES_SHOWN) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}

/// A template that was read back from the API server has fields that were not rendered; those are no difference.
fn has_server_defaults(template: &Value) -> bool {
    template.pointer("/spec/dnsPolicy").is_some()
}

struct Walk {
    found: Vec<String>,
    has_server_defaults: bool,
}

impl Walk {
    fn compare(&mut self, path: &str, kept: &Value, rendered: &Value) {
        match (kept, rendered) {
            (Value::Object(kept), Value::Object(rendered)) => {
                let new = rendered.keys().filter(|name| !kept.contains_key(*name));
                for name in kept.keys().chain(new) {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    match (kept.get(name), rendered.get(name)) {
                        (Some(kept), Some(rendered)) => self.compare(&path, kept, rendered),
                        (Some(_), None) if self.has_server_defaults => {}
                        _ => self.found.push(path),
                    }
                }
            }
            (Value::Array(kept), Value::Array(rendered)) => {
                let (kept, rendered) = match (by_name(kept), by_name(rendered)) {
                    (Some(kept), Some(rendered)) => (kept, rendered),
                    _ => (by_index(kept), by_index(rendered)),
                };
                let new = rendered.keys().filter(|name| !kept.contains_key(*name));
                for name in kept.keys().chain(new) {
                    let path = format!("{path}[{name}]");
                    match (kept.get(name), rendered.get(name)) {
                        (Some(kept), Some(rendered)) => self.compare(&path, kept, rendered),
                        _ => self.found.push(path),
                    }
                }
            }
            (Value::String(kept), Value::String(rendered)) => {
                if kept != rendered && !(is_quantity(path) && quantity::is_same(kept, rendered)) {
                    let is_image = path.ends_with(".image");
                    let change = if is_image { format!(" ({kept} -> {rendered})") } else { String::new() };
                    self.found.push(format!("{path}{change}"));
                }
            }
            (kept, rendered) if kept == rendered => {}
            _ => self.found.push(path.to_owned()),
        }
    }
}

/// The API server writes quantities in a form of its own.
fn is_quantity(path: &str) -> bool {
    path.contains("resources.") || path.ends_with(".sizeLimit")
}

/// `None` unless every item has a name.
fn by_name(items: &[Value]) -> Option<BTreeMap<String, &Value>> {
    items.iter().map(|item| Some((item.get("name")?.as_str()?.to_owned(), item))).collect()
}

fn by_index(items: &[Value]) -> BTreeMap<String, &Value> {
    items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(container: Value) -> Value {
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}})
    }

    #[test]
    fn equal_templates_have_no_differences() {
        let one = template(json!({"name": "engine", "image": "a:1", "args": ["x"]}));
        assert_eq!(differences(&one, &one), [""; 0]);
    }

    #[test]
    fn every_changed_field_is_named_and_only_images_show_their_values() {
        let kept = template(json!({"name": "engine", "image": "a:1", "args": ["x"],
            "env": [{"name": "TOKEN", "value": "secret"}], "stdin": true}));
        let rendered = template(json!({"name": "engine", "image": "a:2", "args": ["x", "y"],
            "env": [{"name": "TOKEN", "value": "other"}, {"name": "NEW", "value": "1"}]}));
        let found = differences(&kept, &rendered);
        assert_eq!(
            found,
            [
                "spec.containers[engine].args[1]",
                "spec.containers[engine].env[TOKEN].value",
                "spec.containers[engine].env[NEW]",
                "spec.containers[engine].image (a:1 -> a:2)",
                "spec.containers[engine].stdin",
            ]
        );
    }

    #[test]
    fn what_the_api_server_adds_is_no_difference() {
        let mut kept = template(json!({"name": "engine", "imagePullPolicy": "IfNotPresent",
            "resources": {"limits": {"memory": "1Gi"}}}));
        kept["spec"]["dnsPolicy"] = json!("ClusterFirst");
        kept["spec"]["volumes"] = json!([{"name": "model", "emptyDir": {"sizeLimit": "16Gi"}}]);
        let mut rendered = template(json!({"name": "engine", "resources": {"limits": {"memory": "1024Mi"}}}));
        rendered["spec"]["volumes"] = json!([{"name": "model", "emptyDir": {"sizeLimit": "16384Mi"}}]);
        assert_eq!(differences(&kept, &rendered), [""; 0]);
    }

    #[test]
    fn a_summary_is_bounded() {
        let many: Vec<String> = (0..9).map(|index| format!("f{index}")).collect();
        assert_eq!(summary(&many[..2]), "f0, f1");
        assert_eq!(summary(&many), "f0, f1, f2, f3, f4, f5, and 3 more");
    }
}
