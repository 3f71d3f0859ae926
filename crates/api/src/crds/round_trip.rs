//! The Rust types and the published schema are equivalent: objects of the schema survive deserialization and serialization.
//!
//! The objects are generated from the schema, so new fields are covered without a new test.

use std::{fs, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use proptest::{prelude::*, test_runner::TestRunner};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::{
    aidispatcher::AIDispatcher,
    aiinference::{AIInference, endpoint::InferenceEndpoint, evaluation::ModelEvaluation},
    aiscaler::AIScaler,
    crds::crds,
    trainingjob::TrainingJob,
};

#[test]
fn any_aiinference_survives_a_round_trip() {
    survives_a_round_trip::<AIInference>("AIInference");
}

#[test]
fn any_trainingjob_survives_a_round_trip() {
    survives_a_round_trip::<TrainingJob>("TrainingJob");
}

#[test]
fn any_aidispatcher_survives_a_round_trip() {
    survives_a_round_trip::<AIDispatcher>("AIDispatcher");
}

#[test]
fn any_aiscaler_survives_a_round_trip() {
    survives_a_round_trip::<AIScaler>("AIScaler");
}

#[test]
fn any_inferenceendpoint_survives_a_round_trip() {
    survives_a_round_trip::<InferenceEndpoint>("InferenceEndpoint");
}

#[test]
fn any_modelevaluation_survives_a_round_trip() {
    survives_a_round_trip::<ModelEvaluation>("ModelEvaluation");
}

#[test]
fn the_types_and_the_api_server_have_the_same_defaults() {
    let gpu = json!({"count": 1});
    has_equal_defaults::<AIInference>(
        "AIInference",
        json!({"modelSource": "s3://models", "engine": "vllm", "gpu": gpu, "modelStore": {}, "modelVolume": {},
               "modelLoader": {"resources": {}}}),
    );
    has_equal_defaults::<TrainingJob>(
        "TrainingJob",
        json!({"model": "a/b", "dataset": "c", "method": "lora", "output": {}}),
    );
    has_equal_defaults::<AIDispatcher>(
        "AIDispatcher",
        json!({"role": "coder", "autoscaling": {}, "checkpoint": {"claimName": "state"}}),
    );
    has_equal_defaults::<AIScaler>(
        "AIScaler",
        json!({"deploymentName": "web", "metricType": "latency", "targetValue": "200", "maxReplicas": 3,
               "behavior": {"scaleUp": {}}}),
    );
    has_equal_defaults::<InferenceEndpoint>(
        "InferenceEndpoint",
        json!({"model": "a/b", "accelerator": "h100", "modelStore": {}, "modelVolume": {},
               "autoscaling": {"minReplicas": 1, "maxReplicas": 2, "metricType": "latency", "targetValue": "200",
                               "behavior": {"scaleUp": {}}}}),
    );
    has_equal_defaults::<ModelEvaluation>(
        "ModelEvaluation",
        json!({"baselineModel": "a/b", "candidateModel": "a/c", "testSets": [{"name": "cmmlu"}],
               "server": {"modelStore": {}, "modelVolume": {}}, "output": {}}),
    );
}

#[test]
fn a_new_object_has_the_default_status_of_its_kind() {
    let gpu = json!({"count": 1});
    has_a_default_status::<AIInference>(
        "AIInference",
        json!({"modelSource": "s3://models", "engine": "vllm", "gpu": gpu}),
        json!({"phase": "Pending"}),
    );
    has_a_default_status::<TrainingJob>(
        "TrainingJob",
        json!({"model": "a/b", "dataset": "c", "method": "lora"}),
        json!({"phase": "Pending"}),
    );
    has_a_default_status::<AIDispatcher>(
        "AIDispatcher",
        json!({"role": "coder"}),
        json!({"currentPhase": "Initializing"}),
    );
    has_a_default_status::<AIScaler>(
        "AIScaler",
        json!({"deploymentName": "web", "metricType": "latency", "targetValue": 200, "maxReplicas": 3}),
        json!({}),
    );
    has_a_default_status::<InferenceEndpoint>(
        "InferenceEndpoint",
        json!({"model": "a/b", "accelerator": "h100"}),
        json!({"phase": "Pending"}),
    );
    has_a_default_status::<ModelEvaluation>(
        "ModelEvaluation",
        json!({"baselineModel": "a/b", "candidateModel": "a/c", "testSet": "cmmlu"}),
        json!({"phase": "Pending"}),
    );
}

#[test]
fn an_unknown_phase_does_not_make_an_object_undecodable() {
    let object = object(
        "AIInference",
        json!({"modelSource": "s3://models", "engine": "vllm", "gpu": {"count": 1}}),
        Some(json!({"phase": "Canarying", "readyReplicas": 2})),
    );
    let inference: AIInference = serde_json::from_value(object).unwrap();
    let status = inference.status.unwrap();
    assert_eq!((status.phase, status.ready_replicas), (None, 2));
}

#[test]
fn a_quantity_may_be_written_as_a_number() {
    let spec = json!({"modelSource": "s3://models", "engine": "triton", "gpu": {"count": 0},
                      "resources": {"requests": {"cpu": 4}}});
    let inference: AIInference = serde_json::from_value(object("AIInference", spec, None)).unwrap();
    assert_eq!(inference.spec.resources.unwrap().requests["cpu"].0, "4");
}

#[test]
fn every_fixture_reads_as_its_kind_unless_its_comment_says_otherwise() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let mut read = 0;
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| path.is_file()) {
        let text = fs::read_to_string(path).unwrap();
        for document in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            let outcome = match document["kind"].as_str().unwrap() {
                "AIInference" => serde_json::from_value::<AIInference>(document).map(|_| ()),
                "TrainingJob" => serde_json::from_value::<TrainingJob>(document).map(|_| ()),
                "AIDispatcher" => serde_json::from_value::<AIDispatcher>(document).map(|_| ()),
                "AIScaler" => serde_json::from_value::<AIScaler>(document).map(|_| ()),
                "InferenceEndpoint" => serde_json::from_value::<InferenceEndpoint>(document).map(|_| ()),
                "ModelEvaluation" => serde_json::from_value::<ModelEvaluation>(document).map(|_| ()),
                later => {
                    assert!(text.starts_with("# Later"), "{later} is not a kind of this project");
                    continue;
                }
            };
            assert_eq!(outcome.is_err(), text.contains("must refuse"), "{outcome:?} for\n{text}");
            read += 1;
        }
    }
    assert!(read >= 9, "only {read} documents were found");
}

fn survives_a_round_trip<K: DeserializeOwned + Serialize>(kind: &str) {
    let root = schema(kind);
    let empty = object(kind, Value::Null, None);
    let part = |field: &str| root.properties.as_ref().unwrap()[field].clone();
    let objects = (valid(&part("spec")), proptest::option::of(valid(&part("status"))))
        .prop_map(move |(spec, status)| filled(empty.clone(), spec, status));
    // Few cases are enough, because each sets half of all fields. Failures print the whole object, so no seeds are stored.
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    let checked = TestRunner::new(config).run(&objects, |written| {
        let read: K = serde_json::from_value(written.clone())
            .map_err(|error| TestCaseError::fail(format!("{error} in {written}")))?;
        let again = serde_json::to_value(&read).map_err(|error| TestCaseError::fail(error.to_string()))?;
        // A type may omit a default, which the API server sets again.
        prop_assert_eq!(defaulted(&root, again), defaulted(&root, written));
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
}

fn has_equal_defaults<K: DeserializeOwned + Serialize>(kind: &str, spec: Value) {
    let written = object(kind, spec, None);
    let stored = defaulted(&schema(kind), written.clone());
    let again = |object: Value| serde_json::to_value(serde_json::from_value::<K>(object).unwrap()).unwrap();
    // The types may omit a default, but must have the same default as the API server.
    assert_eq!(again(written.clone())["spec"], again(stored.clone())["spec"]);
    assert_eq!(defaulted(&schema(kind), again(written)), stored);
}

/// `first`: the expected default status without generation 0 and zeros.
fn has_a_default_status<K: DeserializeOwned + Serialize>(kind: &str, spec: Value, first: Value) {
    let stored = defaulted(&schema(kind), object(kind, spec, None));
    let status = stored["status"].as_object().unwrap();
    assert_eq!(status["observedGeneration"], 0, "{kind}");
    for (field, value) in status.iter().filter(|(_, value)| value.is_string()) {
        assert_eq!(first.get(field), Some(value), "{kind}: {field}");
    }
    for field in first.as_object().unwrap().keys() {
        assert!(status.contains_key(field), "{kind}: {field} in {stored}");
    }
    // A phase that the types do not have would be omitted here.
    let again = serde_json::to_value(serde_json::from_value::<K>(stored.clone()).unwrap()).unwrap();
    assert_eq!(again["status"], stored["status"], "{kind}");
}

fn object(kind: &str, spec: Value, status: Option<Value>) -> Value {
    let crd = crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let api_version = format!("{}/{}", crd.spec.group, crd.spec.versions[0].name);
    let head = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "generated"}});
    filled(head, spec, status)
}

fn filled(mut object: Value, spec: Value, status: Option<Value>) -> Value {
    object["spec"] = spec;
    if let Some(status) = status {
        object["status"] = status;
    }
    object
}

fn schema(kind: &str) -> JSONSchemaProps {
    let crd = crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap()
}

/// Sets defaults as the API server does.
fn defaulted(schema: &JSONSchemaProps, mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, property) in schema.properties.iter().flatten() {
                if let (false, Some(default)) = (fields.contains_key(name), &property.default) {
                    fields.insert(name.clone(), default.0.clone());
                }
                if let Some(field) = fields.get_mut(name) {
                    *field = defaulted(property, field.take());
                }
            }
        }
        Value::Array(items) => {
            if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
                items.iter_mut().for_each(|item| *item = defaulted(schema, item.take()));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

/// Values that the structural schema allows, without empty lists and maps, which the types serialize as absent. CEL rules
/// are ignored: objects that a newer server would refuse must survive, too.
fn valid(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    if schema.x_kubernetes_int_or_string == Some(true) {
        return "[1-9][0-9]{0,3}(m|k|Mi|Gi)?".prop_map(Value::String).boxed();
    }
    if let Some(words) = &schema.enum_ {
        let words: Vec<Value> = words.iter().map(|word| word.0.clone()).collect();
        return proptest::sample::select(words).boxed();
    }
    match schema.type_.as_deref() {
        Some("boolean") => any::<bool>().prop_map(Value::Bool).boxed(),
        Some("integer") => {
            let floor = schema.minimum.unwrap_or(f64::from(i32::MIN)) as i64;
            let ceiling = schema.maximum.unwrap_or(f64::from(i32::MAX)) as i64;
            (floor..=ceiling).prop_map(Value::from).boxed()
        }
        Some("number") => (0..=1000_u16).prop_map(|hundredths| json!(f64::from(hundredths) / 100.0)).boxed(),
        Some("string") if schema.format.as_deref() == Some("date-time") => (0..4_102_444_800_i64)
            .prop_map(|seconds| json!(jiff::Timestamp::from_second(seconds).unwrap().to_string()))
            .boxed(),
        Some("string") => {
            let shortest = schema.min_length.unwrap_or(0);
            let longest = schema.max_length.map_or(shortest + 8, |longest| longest.min(shortest + 8));
            proptest::string::string_regex(&format!("[ -~ä…]{{{shortest},{longest}}}"))
                .unwrap()
                .prop_map(Value::String)
                .boxed()
        }
        Some("array") => {
            let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items else { panic!("{schema:?}") };
            proptest::collection::vec(valid(items), 1..4).prop_map(Value::Array).boxed()
        }
        Some("object") => valid_object(schema),
        _ => panic!("no value can be generated for {schema:?}"),
    }
}

fn valid_object(schema: &JSONSchemaProps) -> BoxedStrategy<Value> {
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        let entries = proptest::collection::btree_map("[a-z]{1,8}", valid(values), 1..4);
        return entries.prop_map(|entries| Value::Object(entries.into_iter().collect())).boxed();
    }
    let required = schema.required.clone().unwrap_or_default();
    let fields: Vec<BoxedStrategy<Option<(String, Value)>>> = schema
        .properties
        .iter()
        .flatten()
        .map(|(name, property)| {
            let field = (Just(name.clone()), known_value(name, schema).unwrap_or_else(|| valid(property)));
            if required.contains(name) {
                field.prop_map(Some).boxed()
            } else {
                proptest::option::of(field).boxed()
            }
        })
        .collect();
    fields.prop_map(|fields| Value::Object(fields.into_iter().flatten().collect::<Map<_, _>>())).boxed()
}

/// Values of status fields that are enums in the types but, on purpose, not in the schema.
fn known_value(field: &str, parent: &JSONSchemaProps) -> Option<BoxedStrategy<Value>> {
    let of_canary = parent.properties.iter().flatten().any(|(name, _)| name == "stableRevision");
    match field {
        "phase" if of_canary => Some(Just(json!("Analysing")).boxed()),
        "phase" | "currentPhase" => Some(proptest::sample::select(vec![json!("Failed")]).boxed()),
        "state" => {
            let words = ["Idle", "Working", "Saturated"].map(Value::from);
            Some(proptest::sample::select(words.to_vec()).boxed())
        }
        _ => None,
    }
}
