//! Compares a pinned pod template with the one that the running release renders. A template is pinned when it is first
//! rendered for a spec, and is applied unchanged until the spec changes: an upgrade of a controller restarts no pod. Pure.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

use serde_json::Value;

/// The annotations of an object are limited to 256 KiB in total. A larger template is not recorded; the child's present
/// template is pinned instead, and manual changes to it are not reverted.
pub(crate) const LONGEST_RECORD: usize = 128 << 10;

/// More would make the message of a condition unreadable.
const DIFFERENCES_SHOWN: usize = 6;

/// Paths of the fields that differ. Values are shown only for images: environment values may be secrets.
pub(crate) fn differences(pinned: &Value, rendered: &Value) -> Vec<String> {
    let mut walk = Walk { found: Vec::new(), has_server_defaults: has_server_defaults(pinned) };
    walk.compare(Path::Root, pinned, rendered);
    walk.found
}

/// One line for a condition's message.
pub fn summary(differences: &[String]) -> String {
    let shown = differences.iter().take(DIFFERENCES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match differences.len().saturating_sub(DIFFERENCES_SHOWN) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}

/// A template read from the API server has defaulted fields that no release renders; they are not differences.
fn has_server_defaults(template: &Value) -> bool {
    template.pointer("/spec/dnsPolicy").is_some()
}

struct Walk {
    found: Vec<String>,
    has_server_defaults: bool,
}

/// Where a value stands. Written out only for one that differs: templates are compared often, and are mostly equal.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    /// An item of a list whose items have names.
    Item(&'a Path<'a>, &'a str),
    /// An item of any other list.
    Position(&'a Path<'a>, usize),
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(of, name) => write!(f, "{of}.{name}"),
            Self::Item(of, name) => write!(f, "{of}[{name}]"),
            Self::Position(of, index) => write!(f, "{of}[{index}]"),
        }
    }
}

impl Walk {
    fn compare(&mut self, path: Path<'_>, pinned: &Value, rendered: &Value) {
        match (pinned, rendered) {
            (Value::Object(pinned), Value::Object(rendered)) => {
                for (name, pinned) in pinned {
                    let path = Path::Field(&path, name);
                    match rendered.get(name) {
                        Some(rendered) => self.compare(path, pinned, rendered),
                        None if self.has_server_defaults => {}
                        None => self.found.push(path.to_string()),
                    }
                }
                let new = rendered.keys().filter(|name| !pinned.contains_key(*name));
                self.found.extend(new.map(|name| Path::Field(&path, name).to_string()));
            }
            (Value::Array(pinned), Value::Array(rendered)) => self.compare_items(path, pinned, rendered),
            (Value::String(pinned), Value::String(rendered)) => {
                if pinned == rendered {
                    return;
                }
                let path = path.to_string();
                if is_quantity(&path) && text::quantity::is_same(pinned, rendered) {
                    return;
                }
                let is_image = path.ends_with(".image");
                let change = if is_image { format!(" ({pinned} -> {rendered})") } else { String::new() };
                self.found.push(format!("{path}{change}"));
            }
            (pinned, rendered) if pinned == rendered => {}
            _ => self.found.push(path.to_string()),
        }
    }

    fn compare_items(&mut self, path: Path<'_>, pinned: &[Value], rendered: &[Value]) {
        let (Some(old), Some(new)) = (by_name(pinned), by_name(rendered)) else {
            for index in 0..pinned.len().max(rendered.len()) {
                let path = Path::Position(&path, index);
                match (pinned.get(index), rendered.get(index)) {
                    (Some(pinned), Some(rendered)) => self.compare(path, pinned, rendered),
                    _ => self.found.push(path.to_string()),
                }
            }
            return;
        };
        for (name, pinned) in &old {
            let path = Path::Item(&path, name);
            match new.get(name) {
                Some(rendered) => self.compare(path, pinned, rendered),
                None => self.found.push(path.to_string()),
            }
        }
        let new = new.keys().filter(|name| !old.contains_key(*name));
        self.found.extend(new.map(|name| Path::Item(&path, name).to_string()));
    }
}

/// The API server normalizes quantities, so they are compared by value.
fn is_quantity(path: &str) -> bool {
    path.contains("resources.") || path.ends_with(".sizeLimit")
}

/// `None` unless every item has a name.
fn by_name(items: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    items.iter().map(|item| Some((item.get("name")?.as_str()?, item))).collect()
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
    fn every_changed_field_is_listed_and_only_images_with_values() {
        let pinned = template(json!({"name": "engine", "image": "a:1", "args": ["x"],
            "env": [{"name": "TOKEN", "value": "secret"}], "stdin": true}));
        let rendered = template(json!({"name": "engine", "image": "a:2", "args": ["x", "y"],
            "env": [{"name": "TOKEN", "value": "other"}, {"name": "NEW", "value": "1"}]}));
        let found = differences(&pinned, &rendered);
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
    fn defaults_of_the_api_server_are_no_differences() {
        let mut pinned = template(json!({"name": "engine", "imagePullPolicy": "IfNotPresent",
            "resources": {"limits": {"memory": "1Gi"}}}));
        pinned["spec"]["dnsPolicy"] = json!("ClusterFirst");
        pinned["spec"]["volumes"] = json!([{"name": "model", "emptyDir": {"sizeLimit": "16Gi"}}]);
        let mut rendered = template(json!({"name": "engine", "resources": {"limits": {"memory": "1024Mi"}}}));
        rendered["spec"]["volumes"] = json!([{"name": "model", "emptyDir": {"sizeLimit": "16384Mi"}}]);
        assert_eq!(differences(&pinned, &rendered), [""; 0]);
    }

    #[test]
    fn a_summary_is_bounded() {
        let many: Vec<String> = (0..9).map(|index| format!("f{index}")).collect();
        assert_eq!(summary(&many[..2]), "f0, f1");
        assert_eq!(summary(&many), "f0, f1, f2, f3, f4, f5, and 3 more");
    }
}
