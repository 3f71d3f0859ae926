//! The list of what an image contains, as CycloneDX: one component for each crate that the program is linked from.

use serde_json::{Value, json};

use super::licences::Graph;

/// The version of CycloneDX whose fields are used; later versions read it, too.
const SPECIFICATION: &str = "1.5";

/// Depends on the sources alone: no time and no random number, so that it is the same wherever it is written.
pub(super) fn sbom(graph: &Graph, program: &str, digest: &str) -> anyhow::Result<Value> {
    let components: Vec<Value> = graph
        .contained(program)?
        .into_iter()
        .map(|package| {
            let mut component = json!({
                "type": "library",
                "name": package.name,
                "version": package.version,
                "purl": format!("pkg:cargo/{}@{}", package.name, package.version),
            });
            if let Some(license) = &package.license {
                // Older crates separate choices by a slash.
                component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
            }
            component
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "name": program,
                "version": env!("CARGO_PKG_VERSION"),
                "purl": format!("pkg:oci/{program}@{}", digest.replace(':', "%3A")),
            },
        },
        "components": components,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_is_named_with_its_version_and_its_licence() {
        let graph = Graph::of_target("x86_64-unknown-linux-musl").unwrap();
        let sbom = sbom(&graph, "model-transfer", "sha256:00").unwrap();
        let components = sbom["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|one| one["name"] == name);
        let tokio = named("tokio").unwrap();
        assert!(tokio["purl"].as_str().unwrap().starts_with("pkg:cargo/tokio@1."), "{tokio}");
        assert_eq!(tokio["licenses"][0]["expression"], "MIT");
        assert!(named("tempfile").is_none() && named("model-transfer").is_none());
    }
}
