//! Conditions and reasons, from the constants of `crates/api` and their comments.

use std::fmt::Write as _;

use anyhow::Context as _;

use super::cell;
use crate::sources::Sources;

const CONDITIONS: &str = "crates/api/src/conditions.rs";
const REASONS: &str = "crates/api/src/reasons.rs";

pub(super) fn page() -> anyhow::Result<String> {
    let mut page = "# Conditions and reasons\n\nThe page of a kind says what to do about each of them: \
                    [AIInference](../aiinference.md), [TrainingJob](../trainingjob.md), \
                    [AIDispatcher](../aidispatcher.md), [AIScaler](../aiscaler.md), \
                    [InferenceEndpoint](../inferenceendpoint.md), \
                    [ModelEvaluation](../modelevaluation.md). Scripts and alerts may rely on these names.\n"
        .to_owned();
    for (heading, path) in [("Conditions", CONDITIONS), ("Reasons", REASONS)] {
        writeln!(page, "\n## {heading}\n\n| name | meaning |\n|---|---|")?;
        let mut constants = constants(path)?;
        constants.sort();
        for (name, meaning) in constants {
            writeln!(page, "| `{name}` | {} |", cell(&meaning))?;
        }
    }
    Ok(page)
}

/// Values of all conditions and reasons by the names of their constants.
#[cfg(test)]
pub(crate) fn by_constant() -> anyhow::Result<std::collections::BTreeMap<String, String>> {
    let mut found = std::collections::BTreeMap::new();
    for path in [CONDITIONS, REASONS] {
        for item in Sources::read()?.file(path)?.items {
            if let syn::Item::Const(item) = item
                && let Some(value) = text_of(&item.expr)
            {
                found.insert(item.ident.to_string(), value);
            }
        }
    }
    Ok(found)
}

/// Values and comments of the constants of a file.
fn constants(path: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for item in Sources::read()?.file(path)?.items {
        let syn::Item::Const(item) = item else { continue };
        let name = text_of(&item.expr).with_context(|| format!("{} of {path} is no text", item.ident))?;
        let meaning = comment(&item.attrs);
        anyhow::ensure!(!meaning.is_empty(), "{} of {path} has no comment", item.ident);
        found.push((name, meaning));
    }
    Ok(found)
}

/// The text of a literal.
pub(super) fn text_of(expression: &syn::Expr) -> Option<String> {
    match expression {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

fn comment(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let lines = lines.filter_map(|attribute| text_of(&attribute.meta.require_name_value().ok()?.value));
    lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n")
}
