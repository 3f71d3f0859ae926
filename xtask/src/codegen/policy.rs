//! The admission policy of each controller, from the table of controllers.
//!
//! `policy.yaml` is the text; only names, kinds and resources are filled in here.

use api::{
    controllers::{CONTROLLERS, Controller},
    labels,
};

/// Below the folder of the controller in `deploy`.
pub(super) const PATH: &str = "policy/policy.yaml";

/// What every controller writes beside its children.
const OF_EVERY_CONTROLLER: [(&str, &[&str]); 3] =
    [("", &["pods"]), ("coordination.k8s.io", &["leases"]), ("events.k8s.io", &["events"])];

/// Below every group and resource: administrators may add resources whose scale a controller writes.
const SCALES: (&str, &[&str]) = ("*", &["*/scale"]);

pub(super) fn policy(controller: &Controller) -> String {
    let kinds: Vec<_> = controller.kinds.iter().map(|kind| kind.resource()).collect();
    let owners: Vec<String> = kinds
        .iter()
        .map(|kind| format!("owner.kind == '{}' && owner.apiVersion == '{}'", kind.kind, kind.api_version))
        .collect();
    let names: Vec<String> = kinds.iter().map(|kind| with_article(&kind.kind)).collect();
    let kept: Vec<String> = controller.kept.iter().map(|resource| format!("'{resource}'")).collect();
    let shared: Vec<String> = controller.shared.iter().map(|resource| format!("'{resource}'")).collect();
    let roots: Vec<String> = kinds.iter().map(|kind| format!("'{}'", kind.plural)).collect();
    let pods: Vec<String> = kinds.iter().map(|kind| format!("'{}'", kind.kind.to_lowercase())).collect();
    let finalizer_words =
        controller.finalizer.map_or("no finalizer".to_owned(), |name| format!("the finalizer {name}"));
    // What any controller makes is limited for all: a role that grants too much is no hole.
    let children = CONTROLLERS.iter().flat_map(|controller| controller.children);
    let scales = (!controller.scales.is_empty()).then_some(&SCALES);
    let of_kinds = kinds.iter().map(|kind| rule(&kind.group, &[&kind.plural]));
    let others = OF_EVERY_CONTROLLER.iter().chain(children).chain(scales);
    let rules: Vec<String> =
        others.map(|(group, resources)| rule(group, resources)).chain(of_kinds).collect();
    let owned = format!("what is controlled by {}", names.join(" or "));
    let written = match (scales, controller.shared) {
        (Some(_), _) => format!("{owned}, and replicas"),
        (None, []) => owned,
        (None, shared) => format!("{owned}, and weights of {}", shared.join(" and ")),
    };
    include_str!("policy.yaml")
        .replace("{name}", controller.name)
        .replace("{roots}", &format!("[{}]", roots.join(", ")))
        .replace("{finalizer}", controller.finalizer.unwrap_or_default())
        .replace("{finalizer_words}", &finalizer_words)
        .replace("{marked}", if controller.marks_pods { "['pods']" } else { "[]" })
        .replace("{marks}", &format!("[{}]", labels::POD_MARKS.map(|mark| format!("'{mark}'")).join(", ")))
        .replace("{pods}", &format!("[{}]", pods.join(", ")))
        .replace("{kept}", &format!("[{}]", kept.join(", ")))
        .replace("{shared}", &format!("[{}]", shared.join(", ")))
        .replace("{owners}", &owners.join(" || "))
        .replace("{kinds}", &names.join(" or "))
        .replace("{track}", labels::TRACK)
        .replace("{written}", &written)
        .replace("{rules}", &rules.join("\n"))
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" };
    format!("{article} {kind}")
}

fn rule(group: &str, resources: &[&str]) -> String {
    format!(
        r#"      - apiGroups: ["{group}"]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE, DELETE]
        resources: [{}]"#,
        resources.iter().map(quoted).collect::<Vec<_>>().join(", ")
    )
}

/// An asterisk begins an alias in YAML.
fn quoted(resource: &&str) -> String {
    if resource.contains('*') { format!("\"{resource}\"") } else { (*resource).to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_of_each_controller_limits_what_it_changes_of_its_own_kinds() {
        for controller in CONTROLLERS {
            let policy = policy(controller);
            for kind in controller.kinds {
                let resource = kind.resource();
                assert!(policy.contains(&rule(&resource.group, &[&resource.plural])), "{}", resource.kind);
                let is_root = format!("request.resource.resource in ['{}']", resource.plural);
                assert!(policy.contains(&is_root), "{is_root}");
            }
            let finalizer = controller.finalizer.unwrap_or_default();
            assert!(policy.contains(&format!("filter(one, one != '{finalizer}')")), "{}", controller.name);
        }
    }
}
