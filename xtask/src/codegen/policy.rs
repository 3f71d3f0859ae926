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
    // What any controller makes is limited for all: a role that grants too much is no hole.
    let children = CONTROLLERS.iter().flat_map(|controller| controller.children);
    let scales = (!controller.scales.is_empty()).then_some(&SCALES);
    let rules: Vec<String> = OF_EVERY_CONTROLLER
        .iter()
        .chain(children)
        .chain(scales)
        .map(|(group, resources)| rule(group, resources))
        .collect();
    let owned = format!("what is controlled by {}", names.join(" or "));
    let written = if scales.is_some() { format!("{owned}, and replicas") } else { owned };
    include_str!("policy.yaml")
        .replace("{name}", controller.name)
        .replace("{kept}", &format!("[{}]", kept.join(", ")))
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
