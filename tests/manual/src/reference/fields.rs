//! Every field of every kind, as `kubectl explain` shows it.

use std::fmt::Write as _;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use super::cell;

pub(super) fn page() -> anyhow::Result<String> {
    let mut page =
        "# Fields\n\nThe same texts are in `kubectl explain`, as in `kubectl explain aii.spec.gpu`.\n\n\
                    A field may be absent, unless the column of defaults says `required`.\n\
                    `[]` is an item of a list, and `.*` a value of a map.\n"
            .to_owned();
    for crd in api::crds::crds() {
        let spec = &crd.spec;
        let version = spec.versions.first().context("a definition without a version")?;
        let short = spec.names.short_names.iter().flatten().map(|name| format!("`{name}`"));
        writeln!(
            page,
            "\n## {}\n\n`apiVersion: {}/{}`, short name {}\n",
            spec.names.kind,
            spec.group,
            version.name,
            short.collect::<Vec<_>>().join(", ")
        )?;
        page.push_str("| field | type | default | meaning |\n|---|---|---|---|\n");
        let root = schema(&crd).context("a definition without a schema")?;
        let required = root.required.as_deref().unwrap_or_default();
        for part in ["spec", "status"] {
            let found = root.properties.as_ref().and_then(|properties| properties.get(part));
            walk(&mut page, part, found.with_context(|| format!("no {part}"))?, required)?;
        }
    }
    Ok(page)
}

pub(crate) fn schema(crd: &CustomResourceDefinition) -> Option<&JSONSchemaProps> {
    crd.spec.versions.first()?.schema.as_ref()?.open_api_v3_schema.as_ref()
}

/// Fields, items of a list and values of a map, with what their path adds to that of their parent.
pub(crate) fn children(schema: &JSONSchemaProps) -> Vec<(String, &JSONSchemaProps)> {
    let fields = schema.properties.iter().flatten().map(|(name, child)| (format!(".{name}"), child));
    let items = match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(("[]".to_owned(), &**items)),
        Some(JSONSchemaPropsOrArray::Schemas(_)) | None => None,
    };
    let values = match &schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(values)) => Some((".*".to_owned(), &**values)),
        Some(JSONSchemaPropsOrBool::Bool(_)) | None => None,
    };
    fields.chain(items).chain(values).collect()
}

fn walk(page: &mut String, path: &str, schema: &JSONSchemaProps, required: &[String]) -> anyhow::Result<()> {
    let name = path.rsplit('.').next().unwrap_or(path);
    let default = match &schema.default {
        // The default of a status is there for kstatus, which treats an object without a status as complete.
        Some(default) if path != "status" => format!("`{}`", default.0),
        _ if required.iter().any(|one| one == name) => "required".to_owned(),
        _ => String::new(),
    };
    // An item of a list of texts has no description: that of the list says what it is.
    if let Some(meaning) = &schema.description {
        writeln!(page, "| `{path}` | {} | {} | {} |", cell(&kind(schema)), cell(&default), cell(meaning))?;
    }
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, child) in children(schema) {
        walk(page, &format!("{path}{name}"), child, required)?;
    }
    Ok(())
}

/// The type, with its values, its range and its largest number of items.
fn kind(schema: &JSONSchemaProps) -> String {
    let mut kind = schema.type_.clone().unwrap_or_else(|| "any".to_owned());
    if schema.x_kubernetes_int_or_string == Some(true) {
        kind = "integer or string".to_owned();
    }
    if let Some(values) = &schema.enum_ {
        let values: Vec<String> =
            values.iter().map(|value| format!("`{}`", value.0.to_string().trim_matches('"'))).collect();
        return values.join(", ");
    }
    let bound = |number: f64| number.to_string();
    match (schema.minimum, schema.maximum) {
        (Some(least), Some(most)) => kind = format!("{kind}, {} to {}", bound(least), bound(most)),
        (Some(least), None) => kind = format!("{kind}, at least {}", bound(least)),
        (None, Some(most)) => kind = format!("{kind}, at most {}", bound(most)),
        (None, None) => {}
    }
    if let Some(most) = schema.max_items {
        kind = format!("{kind}, at most {most}");
    }
    kind
}
