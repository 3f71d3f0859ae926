use api::aiinference::{Addressing, MAX_NODE_FAILURE_SECONDS};
use serde_json::{Value, json};
use workload::products::NodeLabel;

use crate::tests::inference;

use super::*;

fn refusal(spec: &str) -> String {
    validate(&inference(spec)).unwrap_err().0
}

fn valid(spec: &str) -> ValidInference {
    validate(&inference(spec)).unwrap()
}

const MINIMAL: &str = "{modelSource: s3://models/qwen, engine: vllm, gpu: {count: 1}}";

#[test]
fn a_minimal_spec_gets_every_default() {
    let valid = valid(MINIMAL);
    assert_eq!(valid.served_model_name, "chat");
    assert_eq!(valid.replicas, 1);
    assert_eq!(valid.warmup_timeout_seconds, 300);
    assert_eq!(
        valid.source,
        Source::Copied {
            uri: "s3://models/qwen".into(),
            file: None,
            origin: Origin::Store(Store {
                endpoint: None,
                region: "us-east-1".into(),
                secret: None,
                timeout_seconds: 3600,
                addressing: Addressing::Auto,
                ca_secret: None,
                manifest_digest: None,
            }),
            volume: Volume::Disk { limit: None },
        }
    );
}

#[test]
fn a_claim_has_a_name_and_an_optional_path() {
    let source =
        |text: &str| valid(&format!("{{modelSource: '{text}', engine: triton, gpu: {{count: 0}}}}")).source;
    let claim = |path: Option<&str>| Source::Claim { claim: "models".into(), path: path.map(str::to_owned) };
    assert_eq!(source("pvc://models"), claim(None));
    assert_eq!(source("pvc://models/"), claim(None));
    assert_eq!(source("pvc://models/a//b/./c/"), claim(Some("a/b/c")));
}

#[test]
fn an_invalid_source_is_refused_with_the_valid_forms() {
    for text in [
        "http://host/x",
        "s3://",
        "pvc:///x",
        "models",
        "pvc://a/../b",
        "s3://a b",
        "s3://m//q",
        "s3://m/./q",
    ] {
        let message = refusal(&format!("{{modelSource: '{text}', engine: triton, gpu: {{count: 0}}}}"));
        assert!(message.contains("s3://bucket/prefix, pvc://claim/path, hf://owner/name"), "{message}");
    }
}

#[test]
fn a_bare_product_is_a_value_of_the_nvidia_label() {
    let products = |gpu: &str| {
        valid(&format!("{{modelSource: s3://m, engine: vllm, gpu: {{count: 1, {gpu}}}}}"))
            .gpus
            .unwrap()
            .products
            .into_iter()
            .map(|NodeLabel { key, values, .. }| format!("{key} in {}", values.join(",")))
            .collect::<Vec<_>>()
    };
    assert_eq!(products("productLabel: A100"), ["nvidia.com/gpu.product in A100"]);
    assert_eq!(products("productLabel: example.com/card=x1"), ["example.com/card in x1"]);
    assert_eq!(
        products("productLabels: [A100, example.com/card=x1, H100]"),
        ["nvidia.com/gpu.product in A100,H100", "example.com/card in x1"]
    );
}

#[test]
fn engines_other_than_triton_need_an_image_for_the_cpu() {
    assert!(
        refusal("{modelSource: s3://m, engine: vllm, gpu: {count: 0}}").contains("spec.image is required")
    );
    assert_eq!(valid("{modelSource: s3://m, engine: vllm, gpu: {count: 0}, image: my/vllm:cpu}").gpus, None);
    assert_eq!(valid("{modelSource: s3://m, engine: triton, gpu: {count: 0}}").gpus, None);
}

#[test]
fn memory_and_ephemeral_volumes_need_a_size() {
    for medium in ["Memory", "Volume"] {
        let message = refusal(&format!(
            "{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, modelVolume: {{medium: {medium}}}}}"
        ));
        assert_eq!(message, format!("spec.modelVolume.size is required with medium {medium}"));
    }
}

/// Hashes that the first release recorded.
#[test]
fn the_hash_of_a_spec_equals_that_of_earlier_releases() {
    for (spec, recorded) in [
        (MINIMAL, "2aa2ebf88887ba06"),
        (
            "{modelSource: s3://m, engine: vllm, gpu: {count: 1}, modelStore: {secretName: s3}}",
            "a59fd550252b7641",
        ),
    ] {
        assert_eq!(valid(spec).spec_hash, recorded, "{spec}");
    }
}

#[test]
fn the_calendar_of_a_vendor_is_no_version_of_an_engine() {
    let with = |version: &str| {
        format!("{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, engineVersion: '{version}'}}")
    };
    assert_eq!(valid(&with("v0.10.2")).engine_version, Some((0, 10)));
    assert!(refusal(&with("25.09")).starts_with("spec.engineVersion \"25.09\" is not a version"));
}

#[test]
fn the_gpus_of_a_pod_are_shared_out_completely() {
    let with = |count: i32, more: &str| {
        format!("{{modelSource: s3://m, engine: vllm, gpu: {{count: {count}}}, parallelism: {more}}}")
    };
    let of = |count, more: &str| {
        let Parallelism { tensor, pipeline, data } = valid(&with(count, more)).parallelism;
        (tensor, pipeline, data)
    };
    assert_eq!(of(6, "{tensor: 2, pipeline: 3}"), (2, 3, 1));
    assert_eq!(of(8, "{data: 4}"), (2, 1, 4));
    assert_eq!(valid(MINIMAL).parallelism, Parallelism { tensor: 1, pipeline: 1, data: 1 });
    for (count, more) in [(6, "{tensor: 4}"), (4, "{pipeline: 3}"), (2, "{data: 4}"), (1, "{data: 0}")] {
        let refused = refusal(&with(count, more));
        assert!(refused.starts_with("spec.parallelism: tensor times pipeline times data"), "{refused}");
    }
}

#[test]
fn a_digest_of_the_model_is_refused_where_nothing_would_check_it() {
    let digest = format!("modelStore: {{manifestDigest: 'sha256:{}'}}", "0".repeat(64));
    let with =
        |source: &str| format!("{{modelSource: '{source}', engine: vllm, gpu: {{count: 1}}, {digest}}}");
    let refused = refusal(&with("pvc://models"));
    assert!(refused.starts_with("spec.modelStore.manifestDigest needs an s3:// source"), "{refused}");
    let refused = refusal(&with("hf://a/b"));
    assert!(refused.contains("needs an s3:// source") && refused.contains("owner/name@commit"), "{refused}");
    valid(&with("s3://models"));
}

#[test]
fn an_address_has_no_virtual_hosts() {
    let at = |endpoint: &str, addressing: &str| {
        format!(
            "{{modelSource: s3://m, engine: vllm, gpu: {{count: 1}}, modelStore: {{endpoint: '{endpoint}', \
             addressing: {addressing}}}}}"
        )
    };
    for endpoint in ["http://10.0.0.1:9000", "http://[::1]:9000/base", "https://10.0.0.1/base"] {
        let refused = refusal(&at(endpoint, "VirtualHosted"));
        assert!(refused.contains(endpoint) && refused.ends_with("use Path"), "{refused}");
        valid(&at(endpoint, "Path"));
        valid(&at(endpoint, "Auto"));
    }
    valid(&at("https://oss-cn-hangzhou.aliyuncs.com", "VirtualHosted"));
}

/// The description of each field documents whether a change restarts pods.
#[test]
fn the_hash_changes_with_exactly_the_fields_that_are_documented_to_restart_pods() {
    let plain = json!({"modelSource": "s3://m", "engine": "vllm", "gpu": {"count": 1}});
    let hash = |spec: &Value| valid(&spec.to_string()).spec_hash;
    let changed = |field: &str| match field {
        "modelSource" => json!("s3://other"),
        "engine" => json!("tgi"),
        "gpu" => json!({"count": 2}),
        "replicas" => json!(7),
        "warmupTimeoutSeconds" => json!(301),
        "image" => json!("a/b:c"),
        "command" => json!(["vllm", "serve"]),
        "engineVersion" => json!("0.17.1"),
        "parallelism" => json!({"pipeline": 1, "data": 1}),
        "drainSeconds" => json!(600),
        "stallSeconds" => json!(600),
        "listen" => json!("Dual"),
        "helperResources" => json!({"limits": {"cpu": "1"}}),
        "volumes" => json!([{"name": "a", "mountPath": "/a", "claimName": "c"}]),
        "envFrom" => json!([{"secretName": "a"}]),
        "sharedMemory" => json!("8Gi"),
        "args" => json!(["--x"]),
        "env" => json!([{"name": "A", "value": "b"}]),
        "resources" => json!({"limits": {"cpu": "1"}}),
        "servedModelName" => json!("other"),
        "modelStore" => json!({"region": "eu-west-1"}),
        "modelLoader" => json!({}),
        "modelVolume" => json!({"size": "1Gi"}),
        "service" => json!({"headless": true}),
        "gateway" => json!({
            "name": "public", "hostnames": ["chat.example.com"], "grpc": {"hostnames": ["grpc.example.com"]},
            "inferencePool": {"endpointPicker": {"name": "picker", "port": 9002}},
        }),
        "routeRef" => json!({"name": "web"}),
        "canary" => json!({"image": "other/engine:1"}),
        "rollout" => json!("Replace"),
        "disruption" => json!("Allow"),
        "surgeTimeoutSeconds" => json!(30),
        "nodeFailureSeconds" => json!(5),
        "securityContext" => json!({"runAsUser": 2000}),
        "scheduling" => json!({"schedulerName": "other"}),
        "imagePullSecrets" => json!([{"name": "pull"}]),
        "serviceAccountName" => json!("other"),
        "podLabels" | "podAnnotations" => json!({"a": "b"}),
        "paused" => json!(true),
        unknown => panic!("give spec.{unknown} another value here"),
    };
    let crd = api::crds::crds().into_iter().find(|crd| crd.spec.names.kind == "AIInference").unwrap();
    let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
    let fields = schema.properties.unwrap()["spec"].properties.clone().unwrap();
    assert!(fields.len() > 20, "{}", fields.len());
    for (field, property) in fields {
        let mut spec = plain.clone();
        spec[&field] = changed(&field);
        let restarts = property.description.unwrap().to_lowercase().ends_with("restarts pods.");
        assert_eq!(hash(&spec) != hash(&plain), restarts, "{field}");
    }
}

#[test]
fn a_node_loss_is_kept_longer_than_the_maximum_of_node_failure_seconds() {
    let longest = Duration::from_secs(MAX_NODE_FAILURE_SECONDS.unsigned_abs().into());
    assert!(workload::views::node::FORGOTTEN_AFTER > longest);
}
