//! The admission policy of each controller, from the table of controllers.
//!
//! `policy.yaml` is the text; only names, kinds and resources are filled in here.

use api::controllers::Controller;

/// Below the folder of the controller in `deploy`.
pub(super) const PATH: &str = "policy/policy.yaml";

/// What every controller writes beside its children.
const OF_EVERY_CONTROLLER: [(&str, &[&str]); 3] =
    [("", &["pods"]), ("coordination.k8s.io", &["leases"]), ("events.k8s.io", &["events"])];

pub(super) fn policy(controller: &Controller) -> String {
    let kinds: Vec<_> = controller.kinds.iter().map(|kind| kind.resource()).collect();
    let owners: Vec<String> = kinds
        .iter()
        .map(|kind| {
            format!("owner.kind == '{}' && owner.apiVersion.startsWith('{}/')", kind.kind, kind.group)
        })
        .collect();
    let names: Vec<String> = kinds.iter().map(|kind| format!("an {}", kind.kind)).collect();
    let rules: Vec<String> = OF_EVERY_CONTROLLER
        .iter()
        .chain(controller.children)
        .map(|(group, resources)| rule(group, resources))
        .collect();
    include_str!("policy.yaml")
        .replace("{name}", controller.name)
        .replace("{owners}", &owners.join(" || "))
        .replace("{kinds}", &names.join(" or "))
        .replace("{rules}", &rules.join("\n"))
}

fn rule(group: &str, resources: &[&str]) -> String {
    format!(
        r#"      - apiGroups: ["{group}"]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE, DELETE]
        resources: [{}]"#,
        resources.join(", ")
    )
}
