//! The API server accepts every manifest that a manual shows.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tests::{api_server, gateway, workspace};

/// Blocks of YAML that are whole manifests: an info string with more than the language says that a block is none.
const WHOLE: &str = "```yaml";

/// Manifests with the place of each.
fn manifests(page: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(page).unwrap();
    let mut found = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (line, number) in text.lines().zip(1..) {
        match &mut block {
            Some((begin, _)) if line == "```" => {
                let place = format!("{}:{begin}", page.display());
                found.extend(block.take().map(|(_, manifest)| (place, manifest)));
            }
            Some((_, manifest)) => {
                manifest.push_str(line);
                manifest.push('\n');
            }
            None if line == WHOLE => block = Some((number, String::new())),
            None => {}
        }
    }
    assert!(block.is_none(), "a block of {} does not end", page.display());
    found
}

/// The pages of `docs` and the README files of the repository's first levels.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in [".", "docs", "docs/design", "deploy/*", "crates/*"] {
        let (folder, is_parent) = folder.strip_suffix("/*").map_or((folder, false), |folder| (folder, true));
        for entry in fs::read_dir(workspace().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let page = if is_parent { path.join("README.md") } else { path };
            if page.extension().is_some_and(|extension| extension == "md") && page.exists() {
                pages.push(page);
            }
        }
    }
    pages
}

#[tokio::test]
async fn every_manifest_of_the_manuals_is_accepted_without_a_warning() {
    let scene = api_server().await;
    let manifests: Vec<(String, String)> = pages().iter().flat_map(|page| manifests(page)).collect();
    assert!(manifests.len() > 20, "only {} manifests", manifests.len());
    gateway::install(&scene).await;
    // Some manifests name it.
    let team = "{apiVersion: v1, kind: Namespace, metadata: {name: team}}";
    assert!(scene.kubectl_with_input(&["apply", "--filename=-"], team).status.success());
    let args = ["apply", "--server-side", "--dry-run=server", "--filename=-"];
    let mut refused = Vec::new();
    for (place, manifest) in &manifests {
        let namespace =
            if manifest.contains("namespace: team") { "--namespace=team" } else { "--namespace=default" };
        let output = scene.kubectl_with_input(&[&args[..], &[namespace]].concat(), manifest);
        let complaint = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || complaint.contains("Warning") {
            refused.push(format!("{place}: {complaint}"));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
