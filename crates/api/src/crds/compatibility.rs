//! Objects of the last release are still accepted, with the same meaning.
//!
//! `crates/api/released` has `deploy/crds` of the last release. Optional fields may be added and bounds widened; every other
//! visible change is an error.

use std::{collections::BTreeSet, fs, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};

use super::crds;

/// Accepted new rules for released fields: path, beginning of the message, and why no working object is refused.
const NEW_REFUSALS: [(&str, &str, &str); 3] = [
    (
        "AIInference.spec.modelSource",
        "must be s3://bucket, s3://bucket/prefix, pvc://claim",
        "the rule accepts what the released one does, and models of hubs",
    ),
    (
        "AIScaler.spec.targetValue",
        "must be a quantity from 1m (0.001) to 1T",
        "the rule has the bounds of the released whole numbers, and accepts fractions",
    ),
    ("AIScaler.spec.additionalMetrics[].targetValue", "must be a quantity from 1m (0.001) to 1T", "the same"),
];

#[test]
fn objects_of_the_last_release_are_still_accepted() {
    let mut complaints = Vec::new();
    let mut used: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (released, today) in released() {
        complaints.extend(broken(&released, &today).into_iter().filter(|complaint| {
            let allowed = NEW_REFUSALS.iter().find(|(place, message, _)| {
                complaint.starts_with(&format!("{place} has a new rule: {message}"))
            });
            used.extend(allowed.map(|(place, message, _)| (*place, *message)));
            allowed.is_none()
        }));
    }
    assert_eq!(complaints, [""; 0], "a released field must not change: add another one");
    assert_eq!(used.len(), NEW_REFUSALS.len(), "an unused exception: {NEW_REFUSALS:?}");
}

#[test]
fn every_incompatible_change_is_found() {
    type Edit = fn(&mut JSONSchemaProps);
    let breaks: [(Edit, &str); 16] = [
        (|spec| drop(field(spec, "args").items.take()), "spec.args[] is missing"),
        (|spec| drop(spec.properties.as_mut().unwrap().remove("args")), "spec.args is missing"),
        (|spec| field(spec, "replicas").type_ = Some("string".into()), "spec.replicas is of another type"),
        (|spec| field(spec, "replicas").format = None, "spec.replicas is of another type"),
        (|spec| field(spec, "env").x_kubernetes_list_type = None, "spec.env is another kind of list"),
        (
            |spec| field(spec, "env").x_kubernetes_list_map_keys = Some(vec!["value".into()]),
            "spec.env is another kind of list",
        ),
        (|spec| spec.required.as_mut().unwrap().push("args".into()), "spec requires args"),
        (
            |spec| drop(field(spec, "engine").enum_.as_mut().unwrap().remove(0)),
            "spec.engine has lost a value",
        ),
        (
            |spec| field(spec, "image").enum_ = field(spec, "engine").enum_.clone(),
            "spec.image has lost a value",
        ),
        (|spec| field(spec, "modelSource").max_length = Some(1000), "spec.modelSource is narrower"),
        (|spec| field(spec, "args").max_items = Some(63), "spec.args is narrower"),
        (|spec| field(spec, "args").min_items = Some(1), "spec.args is narrower"),
        (|spec| field(spec, "replicas").minimum = Some(1.0), "spec.replicas is narrower"),
        (|spec| field(spec, "image").pattern = Some("^a".into()), "spec.image is narrower"),
        (|spec| field(spec, "replicas").default = None, "spec.replicas has another default"),
        (
            |spec| field(spec, "image").default = field(spec, "rollout").default.clone(),
            "spec.image has another default",
        ),
    ];
    for (edit, complaint) in breaks {
        assert_eq!(errors_of(edit), [format!("AIInference.{complaint}")]);
    }
    let new_rule: Edit = |spec| {
        let mut rules = field(spec, "image").x_kubernetes_validations.clone().unwrap();
        rules[0].rule.push_str(" && true");
        field(spec, "image").x_kubernetes_validations = Some(rules);
    };
    let of_known_field: Edit = |spec| {
        let rule =
            kube::core::Rule::new("self.replicas > 0 || !has(self.image)").field_path(".image").message("no");
        let rules = spec.x_kubernetes_validations.get_or_insert_default();
        rules.push(serde_json::from_value(serde_json::to_value(rule).unwrap()).unwrap());
    };
    assert_eq!(errors_of(of_known_field), ["AIInference.spec has a new rule: no"]);
    let found = errors_of(new_rule);
    assert!(found[0].starts_with("AIInference.spec.image has a new rule: must be an image"), "{found:?}");
}

#[test]
fn additions_and_wider_bounds_are_compatible() {
    type Edit = fn(&mut JSONSchemaProps);
    let harmless: [Edit; 7] = [
        |spec| {
            *field(spec, "replicas") = JSONSchemaProps {
                default: field(spec, "replicas").default.clone(),
                x_kubernetes_int_or_string: Some(true),
                max_length: Some(48),
                ..JSONSchemaProps::default()
            };
        },
        |spec| {
            let rule = kube::core::Rule::new("self.replicas > 0 || !has(self.newest)").field_path(".newest");
            let rules = spec.x_kubernetes_validations.get_or_insert_default();
            rules.push(serde_json::from_value(serde_json::to_value(rule).unwrap()).unwrap());
        },
        |spec| {
            let image = field(spec, "image").clone();
            spec.properties.as_mut().unwrap().insert("another".into(), image);
        },
        |spec| field(spec, "replicas").maximum = Some(2000.0),
        |spec| field(spec, "args").max_items = None,
        |spec| field(spec, "image").x_kubernetes_validations = None,
        |spec| {
            let words = field(spec, "rollout").enum_.clone().unwrap();
            field(spec, "engine").enum_.as_mut().unwrap().extend(words);
        },
    ];
    for edit in harmless {
        assert_eq!(errors_of(edit), [""; 0]);
    }
}

#[test]
fn a_removed_column_name_or_version_is_found() {
    let found = |edit: fn(&mut CustomResourceDefinition)| {
        let released = crds().remove(0);
        let mut today = released.clone();
        edit(&mut today);
        broken(&released, &today)
    };
    let version = |crd: &mut CustomResourceDefinition| crd.spec.versions.remove(0);
    assert_eq!(found(|_| ()), [""; 0]);
    assert_eq!(found(|crd| crd.spec.names.short_names = None), ["AIInference has lost a name"]);
    assert_eq!(found(|crd| crd.spec.names.kind = "Model".into()), ["AIInference has lost a name"]);
    assert_eq!(found(|crd| crd.spec.scope = "Cluster".into()), ["AIInference has another scope"]);
    assert_eq!(
        found(|crd| crd.spec.versions[0].name = "v1".into()),
        ["AIInference is not served as v1alpha1"]
    );
    assert_eq!(found(|crd| crd.spec.versions[0].served = false), ["AIInference is not served as v1alpha1"]);
    assert_eq!(
        found(|crd| crd.spec.versions[0].subresources = None),
        ["AIInference has other sub-resources"]
    );
    assert_eq!(
        found(|crd| {
            let columns = crd.spec.versions[0].additional_printer_columns.as_mut().unwrap();
            columns.swap(0, 1);
        }),
        ["AIInference has lost a column, or shows it elsewhere"]
    );
    // An additional version is compatible.
    let mut today = crds().remove(0);
    let mut next = version(&mut today.clone());
    next.name = "v1".into();
    today.spec.versions.insert(0, next);
    assert_eq!(broken(&crds().remove(0), &today), [""; 0]);
}

/// Each released definition, and today's of the same kind. A kind that no release has may still change.
fn released() -> Vec<(CustomResourceDefinition, CustomResourceDefinition)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("released");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pair = |path: std::path::PathBuf| {
        let released: CustomResourceDefinition =
            serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let today = crds().into_iter().find(|crd| crd.metadata.name == released.metadata.name);
        (released, today.unwrap_or_else(|| panic!("{} was released, and is gone", path.display())))
    };
    files.map(pair).collect()
}

fn errors_of(edit: fn(&mut JSONSchemaProps)) -> Vec<String> {
    let released = crds().remove(0);
    let mut today = released.clone();
    edit(field(schema_of(&mut today.spec.versions[0]), "spec"));
    broken(&released, &today)
}

fn field<'a>(schema: &'a mut JSONSchemaProps, name: &str) -> &'a mut JSONSchemaProps {
    schema.properties.as_mut().unwrap().get_mut(name).unwrap()
}

fn schema_of(version: &mut CustomResourceDefinitionVersion) -> &mut JSONSchemaProps {
    version.schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap()
}

fn broken(released: &CustomResourceDefinition, today: &CustomResourceDefinition) -> Vec<String> {
    let kind = &released.spec.names.kind;
    let mut complaints = Vec::new();
    let mut complain = |holds: bool, complaint: &str| {
        if !holds {
            complaints.push(format!("{kind} {complaint}"));
        }
    };
    let (before, after) = (&released.spec.names, &today.spec.names);
    let keeps = |before: &Option<Vec<String>>, after: &Option<Vec<String>>| {
        before.iter().flatten().all(|name| after.iter().flatten().any(|other| other == name))
    };
    complain(
        released.metadata.name == today.metadata.name
            && (&before.kind, &before.plural, &before.singular)
                == (&after.kind, &after.plural, &after.singular)
            && keeps(&before.short_names, &after.short_names)
            && keeps(&before.categories, &after.categories),
        "has lost a name",
    );
    complain(released.spec.scope == today.spec.scope, "has another scope");
    let mut schemas = Vec::new();
    for before in &released.spec.versions {
        let after = today.spec.versions.iter().find(|version| version.name == before.name && version.served);
        complain(after.is_some(), &format!("is not served as {}", before.name));
        let Some(after) = after else { continue };
        complain(before.subresources == after.subresources, "has other sub-resources");
        complain(keeps_columns(before, after), "has lost a column, or shows it elsewhere");
        let schema = |version: &CustomResourceDefinitionVersion| {
            version.schema.clone().unwrap().open_api_v3_schema.unwrap()
        };
        schemas.push((schema(before), schema(after)));
    }
    for (before, after) in schemas {
        compare(kind.clone(), &before, &after, &mut complaints);
    }
    complaints
}

/// Whether the released columns exist in their order; new ones may be between them.
fn keeps_columns(before: &CustomResourceDefinitionVersion, after: &CustomResourceDefinitionVersion) -> bool {
    let mut after = after.additional_printer_columns.iter().flatten();
    before.additional_printer_columns.iter().flatten().all(|column| {
        after.any(|other| {
            (&other.name, &other.type_, other.priority) == (&column.name, &column.type_, column.priority)
        })
    })
}

fn compare(path: String, before: &JSONSchemaProps, after: &JSONSchemaProps, complaints: &mut Vec<String>) {
    let mut complain = |holds: bool, complaint: &str| {
        if !holds {
            complaints.push(format!("{path} {complaint}"));
        }
    };
    let type_of = |schema: &JSONSchemaProps| {
        (schema.type_.clone(), schema.format.clone(), schema.x_kubernetes_int_or_string)
    };
    // A stored number stays one. Its new rule has to be accepted by name.
    let accepts_strings_too =
        before.type_.as_deref() == Some("integer") && type_of(after) == (None, None, Some(true));
    complain(type_of(before) == type_of(after) || accepts_strings_too, "is of another type");
    complain(
        (&before.x_kubernetes_list_type, &before.x_kubernetes_list_map_keys)
            == (&after.x_kubernetes_list_type, &after.x_kubernetes_list_map_keys),
        "is another kind of list",
    );
    // Only the controller writes the status, and always the whole.
    let may_gain_a_default = before.default.is_none() && path.contains(".status");
    complain(before.default == after.default || may_gain_a_default, "has another default");
    for name in after.required.iter().flatten() {
        let was_required = before.required.iter().flatten().any(|other| other == name);
        complain(was_required, &format!("requires {name}"));
    }
    complain(keeps_values(before, after), "has lost a value");
    // Bounds of strings bound no number.
    let bounded =
        JSONSchemaProps { max_length: after.max_length.filter(|_| !accepts_strings_too), ..after.clone() };
    complain(is_as_wide(before, &bounded), "is narrower");
    for rule in after.x_kubernetes_validations.iter().flatten() {
        let is_known = before.x_kubernetes_validations.iter().flatten().any(|other| other.rule == rule.rule);
        let is_about_new_field = rule.field_path.as_deref().is_some_and(|field| {
            let name = field.trim_start_matches('.');
            let is_new = before.properties.iter().flatten().all(|(known, _)| known != name);
            is_new && rule.rule.contains(&format!("has(self.{name})"))
        });
        let is_known = is_known || is_about_new_field;
        complain(is_known, &format!("has a new rule: {}", rule.message.as_deref().unwrap_or_default()));
    }
    for (name, property) in before.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        match after.properties.iter().flatten().find(|(other, _)| *other == name) {
            Some((_, after)) => compare(path, property, after, complaints),
            None => complaints.push(format!("{path} is missing")),
        }
    }
    let items = |schema: &JSONSchemaProps| match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(items.clone()),
        Some(JSONSchemaPropsOrArray::Schemas(_)) | None => None,
    };
    compare_inner(format!("{path}[]"), items(before), items(after), complaints);
    let values = |schema: &JSONSchemaProps| match &schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(values)) => Some(values.clone()),
        Some(JSONSchemaPropsOrBool::Bool(_)) | None => None,
    };
    compare_inner(format!("{path}.*"), values(before), values(after), complaints);
}

fn compare_inner(
    path: String,
    before: Option<Box<JSONSchemaProps>>,
    after: Option<Box<JSONSchemaProps>>,
    complaints: &mut Vec<String>,
) {
    match (before, after) {
        (Some(before), Some(after)) => compare(path, &before, &after, complaints),
        (Some(_), None) => complaints.push(format!("{path} is missing")),
        (None, _) => {}
    }
}

fn keeps_values(before: &JSONSchemaProps, after: &JSONSchemaProps) -> bool {
    match (&before.enum_, &after.enum_) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(before), Some(after)) => before.iter().all(|word| after.contains(word)),
    }
}

fn is_as_wide(before: &JSONSchemaProps, after: &JSONSchemaProps) -> bool {
    no_lower(before.max_length, after.max_length)
        && no_lower(before.max_items, after.max_items)
        && no_lower(before.max_properties, after.max_properties)
        && no_lower(before.maximum, after.maximum)
        && no_higher(before.min_length, after.min_length)
        && no_higher(before.min_items, after.min_items)
        && no_higher(before.min_properties, after.min_properties)
        && no_higher(before.minimum, after.minimum)
        && (after.pattern.is_none() || after.pattern == before.pattern)
}

/// An upper bound.
fn no_lower<T: PartialOrd>(before: Option<T>, after: Option<T>) -> bool {
    after.is_none_or(|after| before.is_some_and(|before| after >= before))
}

/// A lower bound.
fn no_higher<T: PartialOrd>(before: Option<T>, after: Option<T>) -> bool {
    after.is_none_or(|after| before.is_some_and(|before| after <= before))
}
