//! Requirements of every generated definition.

use std::{collections::BTreeSet, fs, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use super::{crds, manifests};
use crate::aiinference::endpoint::PASSED_THROUGH;

/// The limit on annotations, in which client-side apply stores a copy of the object.
const MAX_ANNOTATION_BYTES: usize = 262_144;

#[test]
fn the_committed_files_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for manifest in manifests().unwrap() {
        let committed = fs::read_to_string(folder.join(&manifest.file_name)).unwrap_or_default();
        assert!(committed == manifest.text, "{} is stale: run `cargo xtask codegen`", manifest.file_name);
    }
}

#[test]
fn a_manifest_deserializes_to_its_definition() {
    for (manifest, crd) in manifests().unwrap().iter().zip(crds()) {
        let read: CustomResourceDefinition = serde_saphyr::from_str(&manifest.text).unwrap();
        assert_eq!(read, crd, "{}", manifest.file_name);
    }
}

#[test]
fn every_definition_is_small_enough_for_client_side_apply() {
    for crd in crds() {
        let bytes = serde_json::to_string(&crd).unwrap().len();
        assert!(bytes < MAX_ANNOTATION_BYTES, "{:?} has {bytes} bytes", crd.metadata.name);
    }
}

#[test]
fn no_field_is_nullable() {
    let takes_null = |_: &str, schema: &JSONSchemaProps| {
        let in_enum = schema.enum_.iter().flatten().any(|word| word.0.is_null());
        (schema.nullable.is_some() || in_enum).then(|| "takes null".to_owned())
    };
    assert_eq!(complaints(takes_null), [""; 0]);
}

/// The API server adds a default to every object that it answers. An older endpoint-controller leaves objects with a field that
/// it does not know as they are, so a new default would stop it for all of them.
#[test]
fn no_later_field_of_an_endpoint_has_a_default() {
    let crds = crds();
    let endpoint = crds.iter().find(|crd| crd.spec.names.kind == "InferenceEndpoint").unwrap();
    let schema = endpoint.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
    let spec = &schema.properties.as_ref().unwrap()["spec"];
    let fields = spec.properties.iter().flatten();
    let with_default: Vec<&str> =
        fields.filter(|(_, field)| field.default.is_some()).map(|(name, _)| name.as_str()).collect();
    assert_eq!(with_default, ["engine", "replicas"], "those of the first release");
}

#[test]
fn every_format_is_known_to_the_api_server() {
    let known = ["int32", "int64", "double", "date-time"];
    let unknown =
        |_: &str, schema: &JSONSchemaProps| schema.format.clone().filter(|f| !known.contains(&f.as_str()));
    assert_eq!(complaints(unknown), [""; 0]);
}

#[test]
fn every_string_list_map_and_integer_of_a_spec_is_bounded() {
    let unbounded = |path: &str, schema: &JSONSchemaProps| {
        // The controller truncates its status; numbers of a status need only a lower bound.
        let of_spec = path.contains(".spec");
        let bounded = match schema.type_.as_deref() {
            Some("string") => {
                schema.max_length.is_some() || schema.enum_.is_some() || schema.format.is_some()
            }
            Some("array") => schema.max_items.is_some(),
            Some("object") => schema.additional_properties.is_none() || schema.max_properties.is_some(),
            Some("integer" | "number") => !of_spec || (schema.minimum.is_some() && schema.maximum.is_some()),
            Some("boolean") => true,
            Some(_) => false,
            None => schema.x_kubernetes_int_or_string == Some(true) && schema.max_length.is_some(),
        };
        (!bounded).then(|| "unbounded".to_owned())
    };
    assert_eq!(complaints(unbounded), [""; 0]);
}

#[test]
fn no_field_preserves_unknown_fields() {
    let open = |_: &str, schema: &JSONSchemaProps| {
        schema.x_kubernetes_preserve_unknown_fields.map(|_| "open".to_owned())
    };
    assert_eq!(complaints(open), [""; 0]);
}

#[test]
fn every_field_is_described() {
    for crd in crds() {
        let kind = crd.spec.names.kind.clone();
        for (path, schema) in schemas(&crd) {
            for (field, property) in schema.properties.iter().flatten() {
                let described = property.description.as_deref().is_some_and(|text| text.ends_with('.'));
                let given = path.is_empty() && ["spec", "status"].contains(&field.as_str());
                assert!(described || given, "{kind}{path}.{field} has no description that is a sentence");
            }
        }
    }
}

#[test]
fn every_description_documents_whether_a_change_restarts_pods() {
    for crd in crds().iter().filter(|crd| {
        ["AIInference", "AIDispatcher", "InferenceEndpoint"].contains(&crd.spec.names.kind.as_str())
    }) {
        let schemas = schemas(crd);
        let (_, spec) = schemas.iter().find(|(path, _)| path == ".spec").unwrap();
        for (field, property) in spec.properties.iter().flatten() {
            let text = property.description.as_deref().unwrap_or_default().to_lowercase();
            let endings = ["restarts pods.", "restarts nothing.", "restarts no pod that stays."];
            assert!(endings.iter().any(|end| text.ends_with(end)), "{}.{field}: {text}", crd.spec.names.kind);
        }
    }
}

/// The API server says so too; the descriptions of fields that kinds have in common are changed for these.
#[test]
fn every_description_of_a_kind_that_ends_documents_whether_it_can_be_changed() {
    let crds = crds();
    for kind in ["TrainingJob", "ModelEvaluation"] {
        let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
        let schemas = schemas(crd);
        let (_, spec) = schemas.iter().find(|(path, _)| path == ".spec").unwrap();
        for (field, property) in spec.properties.iter().flatten() {
            let text = property.description.as_deref().unwrap_or_default().to_lowercase();
            let says = |words: &str| text.contains(words);
            let is_mutable = says("can be changed") || says("changing it restarts nothing");
            assert!(text.ends_with("cannot be changed.") != is_mutable, "{kind}.{field}: {text}");
        }
    }
}

#[test]
fn a_status_has_no_enums() {
    let closed = |path: &str, schema: &JSONSchemaProps| {
        (path.contains(".status") && schema.enum_.is_some()).then(|| "closed".to_owned())
    };
    assert_eq!(complaints(closed), [""; 0]);
}

#[test]
fn every_kind_is_in_the_category_ai_and_has_its_short_name() {
    let names: Vec<_> = crds()
        .into_iter()
        .map(|crd| {
            assert_eq!(crd.spec.names.categories, Some(vec!["ai".to_owned()]));
            (crd.spec.names.plural, crd.spec.names.short_names.unwrap_or_default().join(","))
        })
        .collect();
    let expected = [
        ("aiinferences", "aii"),
        ("aiscalers", "ais"),
        ("trainingjobs", "tj"),
        ("aidispatchers", "ad"),
        ("inferenceendpoints", "ie"),
        ("modelevaluations", "me"),
    ];
    assert_eq!(names, expected.map(|(plural, short)| (plural.to_owned(), short.to_owned())));
}

/// What the endpoint-controller copies must mean the same in both kinds.
#[test]
fn a_field_that_an_endpoint_passes_through_has_the_schema_of_the_aiinference() {
    let crds = crds();
    let spec = |kind: &str| {
        let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
        let schemas = schemas(crd);
        schemas.into_iter().find(|(path, _)| path == ".spec").unwrap().1.properties.clone().unwrap()
    };
    // The text of a field may name its own kind; that of a part of it may not.
    let without_text =
        |schema: &JSONSchemaProps| JSONSchemaProps { description: None, default: None, ..schema.clone() };
    let (endpoint, inference) = (spec("InferenceEndpoint"), spec("AIInference"));
    let shared: BTreeSet<&str> =
        endpoint.keys().filter(|field| inference.contains_key(*field)).map(String::as_str).collect();
    let mut passed = BTreeSet::from(PASSED_THROUGH);
    // Set by an autoscaler, too.
    passed.insert("replicas");
    assert_eq!(shared, passed, "a field of both kinds is passed through");
    for field in PASSED_THROUGH {
        assert_eq!(without_text(&endpoint[field]), without_text(&inference[field]), "{field}");
    }
}

#[test]
fn the_metric_of_an_endpoint_has_the_schema_of_the_aiscaler() {
    let crds = crds();
    let fields = |kind: &str, path: &str| {
        let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
        let schemas = schemas(crd);
        schemas.into_iter().find(|(found, _)| found == path).unwrap().1.properties.clone().unwrap()
    };
    let endpoint = fields("InferenceEndpoint", ".spec.autoscaling");
    let scaler = fields("AIScaler", ".spec");
    let without_text = |schema: &JSONSchemaProps| JSONSchemaProps { description: None, ..schema.clone() };
    for field in ["metricType", "targetValue", "source", "behavior", "fallback"] {
        assert_eq!(without_text(&endpoint[field]), without_text(&scaler[field]), "{field}");
    }
}

/// Paths of all schemas for which `complaint` returns a text.
fn complaints(complaint: impl Fn(&str, &JSONSchemaProps) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for crd in crds() {
        for (path, schema) in schemas(&crd) {
            if let Some(complaint) = complaint(&path, schema) {
                complaints.push(format!("{}{path}: {complaint}", crd.spec.names.kind));
            }
        }
    }
    complaints
}

/// Every schema of a definition with its path, such as `.spec.env[].name`.
fn schemas(crd: &CustomResourceDefinition) -> Vec<(String, &JSONSchemaProps)> {
    let version = crd.spec.versions.first().unwrap();
    let root = version.schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
    let mut found = Vec::new();
    collect(String::new(), root, &mut found);
    found
}

fn collect<'a>(path: String, schema: &'a JSONSchemaProps, found: &mut Vec<(String, &'a JSONSchemaProps)>) {
    for (field, property) in schema.properties.iter().flatten() {
        collect(format!("{path}.{field}"), property, found);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        collect(format!("{path}[]"), items, found);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        collect(format!("{path}.*"), values, found);
    }
    found.push((path, schema));
}
