//! Rights of users with the roles view, edit and admin on the kinds of this project.
//!
//! The project's roles are aggregated into those roles by the control plane, which the test includes.

use std::collections::{BTreeMap, BTreeSet};

use api::{controllers::CONTROLLERS, crds::crds};
use tests::{Scene, ask_until, simulated, within, workspace};

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];
const CHANGE: [&str; 2] = ["update", "patch"];

/// Verbs by resource, with group and subresource.
type Rights = BTreeMap<String, BTreeSet<String>>;

#[tokio::test]
async fn a_viewer_only_reads() {
    may("view", |resource, subresources| {
        [(resource.to_owned(), verbs(&[&READ]))]
            .into_iter()
            .chain(
                subresources.iter().map(|subresource| (format!("{resource}/{subresource}"), verbs(&[&READ]))),
            )
            .collect()
    })
    .await;
}

#[tokio::test]
async fn an_editor_writes_and_scales_but_leaves_the_status_to_the_controller() {
    may("edit", |resource, subresources| {
        let of = |subresource: &str| match subresource {
            "scale" => verbs(&[&READ, &CHANGE]),
            _ => verbs(&[&READ]),
        };
        [(resource.to_owned(), verbs(&[&READ, &WRITE]))]
            .into_iter()
            .chain(
                subresources.iter().map(|subresource| (format!("{resource}/{subresource}"), of(subresource))),
            )
            .collect()
    })
    .await;
}

#[tokio::test]
async fn an_administrator_may_also_write_the_status() {
    may("admin", |resource, subresources| {
        [(resource.to_owned(), verbs(&[&READ, &WRITE]))]
            .into_iter()
            .chain(
                subresources
                    .iter()
                    .map(|subresource| (format!("{resource}/{subresource}"), verbs(&[&READ, &CHANGE]))),
            )
            .collect()
    })
    .await;
}

#[tokio::test]
async fn a_user_without_a_role_may_do_nothing() {
    let scene = simulated().await;
    for crd in crds() {
        let resource = format!("{}.{}", crd.spec.names.plural, crd.spec.group);
        let output = scene.kubectl_with_input(&["auth", "can-i", "get", &resource, "--as=stranger"], "");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "no", "{resource}");
    }
}

/// Checks that the role gives exactly these rights on the project's kinds; `expected` returns them for a resource and its
/// subresources.
async fn may(role: &str, expected: impl Fn(&str, &[&str]) -> Vec<(String, BTreeSet<String>)>) {
    let scene = simulated().await;
    let expected: Rights = crds()
        .iter()
        .flat_map(|crd| {
            let has_scale = crd.spec.versions[0].subresources.as_ref().is_some_and(|all| all.scale.is_some());
            let subresources: &[&str] = if has_scale { &["status", "scale"] } else { &["status"] };
            expected(&format!("{}.{}", crd.spec.names.plural, crd.spec.group), subresources)
        })
        .collect();
    let deploy = workspace().join("deploy");
    for controller in CONTROLLERS {
        let file = deploy.join(controller.name).join("base/user-roles.yaml");
        scene.kubectl(&["apply", "--server-side", "-f", &file.display().to_string()]);
    }
    scene.kubectl(&[
        "create",
        "rolebinding",
        role,
        &format!("--clusterrole={role}"),
        &format!("--user=a-{role}"),
    ]);
    ask_until(&format!("the rights of {role}"), within(), async || {
        let found = rights(&scene, &format!("a-{role}"));
        if found == expected { Ok(()) } else { Err(format!("{found:#?} instead of {expected:#?}")) }
    })
    .await;
}

/// The rights on the project's API groups, from `kubectl auth can-i --list`.
fn rights(scene: &Scene<'_>, user: &str) -> Rights {
    let groups: BTreeSet<String> = crds().into_iter().map(|crd| crd.spec.group).collect();
    let listed = scene.kubectl(&["auth", "can-i", "--list", "--no-headers", &format!("--as={user}")]);
    let mut rights = Rights::new();
    for line in listed.lines() {
        let Some(resource) = line.split_whitespace().next() else { continue };
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        if !groups.iter().any(|group| resource.ends_with(&format!(".{group}"))) {
            continue;
        }
        let verbs = line.rsplit_once('[').map_or("", |(_, verbs)| verbs.trim_end().trim_end_matches(']'));
        let name =
            if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        rights.entry(name).or_default().extend(verbs.split_whitespace().map(str::to_owned));
    }
    rights
}

fn verbs(lists: &[&[&str]]) -> BTreeSet<String> {
    lists.iter().flat_map(|verbs| verbs.iter().map(|verb| (*verb).to_owned())).collect()
}
