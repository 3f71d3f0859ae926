//! AIInference: validation of every field, and defaults.

mod evaluations;
mod route_refs;
mod traffic;

use api::aiinference::{AIInference, Engine};
use serde_json::{Value, json};

use crate::table::{attempt, case, check};

fn base() -> Value {
    json!({"modelSource": "s3://models/qwen", "engine": "vllm", "gpu": {"count": 1}})
}

#[tokio::test]
async fn the_source_of_the_model_is_a_bucket_or_a_claim() {
    let source = |source: &str| json!({"modelSource": source});
    let scheme = "must be s3://bucket";
    let segments = "must not contain an empty or '.' segment";
    let characters = "must not contain '..', whitespace or control characters";
    check::<AIInference>(
        base(),
        vec![
            case("modelSource", "Required value", json!({"modelSource": null}), source("s3://models")),
            case("modelSource", scheme, source("gs://models"), source("s3://models/a/b")),
            case("modelSource", scheme, source("s3://"), source("s3://m")),
            case("modelSource", scheme, source("s3:///prefix"), source("s3://models/prefix/")),
            case("modelSource", scheme, source("pvc://"), source("pvc://claim")),
            case("modelSource", scheme, source("pvc://Claim/path"), source("pvc://claim/Path")),
            case("modelSource", scheme, source("models/qwen"), source("pvc://my-claim.v2/qwen")),
            case("modelSource", characters, source("s3://models/my model"), source("s3://models/my-model")),
            case("modelSource", characters, source("s3://models/a\tb"), source("s3://models/a_b")),
            case("modelSource", characters, source("s3://models/a\u{2028}b"), source("s3://models/ä")),
            case("modelSource", characters, source("pvc://claim/../other"), source("pvc://claim/./other.d")),
            case("modelSource", characters, source("s3://models/a\u{7}"), source("s3://models/a7")),
            case("modelSource", segments, source("s3://models//q"), source("pvc://models//q")),
            case("modelSource", segments, source("s3://models/./q"), source("s3://models/.q")),
            case("modelSource", segments, source("s3://models/q/."), source("s3://models/q/")),
            case(
                "modelSource",
                "may not be more than 1024",
                source(&format!("s3://m/{}", "x".repeat(1018))),
                source(&format!("s3://m/{}", "x".repeat(1017))),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_api_server_accepts_the_sources_that_the_parser_accepts() {
    let scene = tests::api_server().await;
    for (text, spelling) in api::aiinference::source::EXAMPLES {
        let answer = attempt::<AIInference>(&scene, &base(), &json!({"modelSource": text})).await;
        assert_eq!(answer.is_ok(), spelling.is_some(), "{text:?}: {:?}", answer.err());
    }
}

#[tokio::test]
async fn engine_and_gpus_are_validated() {
    let gpu = |gpu: Value| json!({"gpu": gpu});
    let product = |label: &str| json!({"gpu": {"productLabel": label}});
    let long_key = format!("{}/{}", "d".repeat(253), "n".repeat(63));
    let syntax = "must be a GPU product such as A100";
    check::<AIInference>(
        base(),
        vec![
            case("engine", "Required value", json!({"engine": null}), json!({"engine": "tgi"})),
            case("engine", "Unsupported value", json!({"engine": "sglang"}), json!({"engine": "triton"})),
            case("gpu", "Required value", json!({"gpu": null}), gpu(json!({"count": 16}))),
            case("gpu.count", "Required value", gpu(json!({"count": null})), gpu(json!({"count": 2}))),
            case(
                "gpu.count",
                "less than or equal to 16",
                gpu(json!({"count": 17})),
                gpu(json!({"count": 16})),
            ),
            case(
                "gpu.count",
                "greater than or equal to 0",
                gpu(json!({"count": -1})),
                json!({"engine": "triton", "gpu": {"count": 0}}),
            ),
            case("gpu.productLabel", syntax, product("A 100"), product("A100")),
            case("gpu.productLabel", syntax, product("=A100"), product("gpu=A100")),
            case("gpu.productLabel", syntax, product("a=b=c"), product("nvidia.com/gpu.product=A100")),
            case("gpu.productLabel", syntax, product("-A100"), product("NVIDIA-A100-SXM4-80GB")),
            case("gpu.productLabel", syntax, product(&"x".repeat(64)), product(&"x".repeat(63))),
            case(
                "gpu.productLabel",
                "may not be more than 381",
                product(&format!("{long_key}={}", "v".repeat(64))),
                product(&format!("{long_key}={}", "v".repeat(63))),
            ),
            case(
                "gpu.productLabels",
                "must not be set together with productLabel",
                gpu(json!({"productLabel": "A100", "productLabels": ["H100"]})),
                gpu(json!({"productLabels": ["A100", "gpu.example/model=H100"]})),
            ),
            case(
                "gpu.productLabels",
                "must be GPU products",
                gpu(json!({"productLabels": ["A100", "H 100"]})),
                gpu(json!({"productLabels": ["A100"]})),
            ),
            case(
                "gpu.productLabels",
                "at most 8 items",
                gpu(json!({"productLabels": vec!["A100"; 9]})),
                gpu(json!({"productLabels": vec!["A100"; 8]})),
            ),
            case(
                "gpu.productLabel",
                "must not be set when count is 0",
                json!({"engine": "triton", "gpu": {"count": 0, "productLabel": "A100"}}),
                json!({"engine": "triton", "gpu": {"count": 1, "productLabel": "A100"}}),
            ),
            case(
                "gpu.productLabels",
                "must not be set when count is 0",
                json!({"engine": "triton", "gpu": {"count": 0, "productLabels": ["A100"]}}),
                json!({"engine": "triton", "gpu": {"count": 0}}),
            ),
            case(
                "image",
                "image is required when gpu.count is 0",
                gpu(json!({"count": 0})),
                json!({"gpu": {"count": 0}, "image": "vllm/vllm-openai-cpu:v1"}),
            ),
            case(
                "image",
                "image is required when gpu.count is 0",
                json!({"engine": "tgi", "gpu": {"count": 0}}),
                json!({"engine": "triton", "gpu": {"count": 0}}),
            ),
            case(
                "gpu.resourceName",
                "must be the name of an extended resource",
                gpu(json!({"resourceName": "cpu"})),
                gpu(json!({"resourceName": "nvidia.com/mig-1g.10gb"})),
            ),
            case(
                "resources",
                "must not name gpu.resourceName",
                json!({"resources": {"limits": {"nvidia.com/gpu": 1}}}),
                json!({"resources": {"limits": {"memory": "16Gi"}}}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn numbers_stay_within_their_bounds() {
    check::<AIInference>(
        base(),
        vec![
            case(
                "replicas",
                "less than or equal to 1000",
                json!({"replicas": 1001}),
                json!({"replicas": 1000}),
            ),
            case("replicas", "greater than or equal to 0", json!({"replicas": -1}), json!({"replicas": 0})),
            case("replicas", "must be of type integer", json!({"replicas": "2"}), json!({"replicas": 2})),
            case(
                "warmupTimeoutSeconds",
                "greater than or equal to 10",
                json!({"warmupTimeoutSeconds": 9}),
                json!({"warmupTimeoutSeconds": 10}),
            ),
            case(
                "warmupTimeoutSeconds",
                "less than or equal to 86400",
                json!({"warmupTimeoutSeconds": 86401}),
                json!({"warmupTimeoutSeconds": 86400}),
            ),
            case(
                "surgeTimeoutSeconds",
                "greater than or equal to 30",
                json!({"surgeTimeoutSeconds": 29}),
                json!({"surgeTimeoutSeconds": 30}),
            ),
            case(
                "surgeTimeoutSeconds",
                "less than or equal to 86400",
                json!({"surgeTimeoutSeconds": 86401}),
                json!({"surgeTimeoutSeconds": 86400}),
            ),
            case(
                "nodeFailureSeconds",
                "less than or equal to 3600",
                json!({"nodeFailureSeconds": 3601}),
                json!({"nodeFailureSeconds": 3600}),
            ),
            case(
                "nodeFailureSeconds",
                "greater than or equal to 0",
                json!({"nodeFailureSeconds": -1}),
                json!({"nodeFailureSeconds": 0}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn flags_that_the_controller_sets_are_refused_in_both_spellings_of_a_value() {
    let mut cases = Vec::new();
    for engine in Engine::ALL {
        let args = |args: &[&str]| json!({"engine": engine.as_str(), "args": args});
        let neighbour = args(&["--seed", "1", "--models", "--porter=2", "-px"]);
        for flag in engine.owned_flags() {
            for refused in [args(&["--seed=1", flag, "8000"]), args(&[&format!("{flag}=8000")])] {
                cases.push(case(
                    "args",
                    "must not set a flag that the controller sets",
                    refused,
                    neighbour.clone(),
                ));
            }
        }
    }
    let of = |engine: &str, flag: &str| json!({"engine": engine, "args": [flag]});
    let message = "must not set a flag that the controller sets";
    // `_` and `-` are equivalent; a flag of one engine is accepted for another.
    cases.push(case("args", message, of("vllm", "--served_model_name=x"), of("vllm", "--max_model_len=1")));
    cases.push(case("args", message, of("tgi", "--model-id=x"), of("vllm", "--model-id=x")));
    cases.push(case("args", message, of("triton", "--http-port=1"), of("tgi", "--http-port=1")));
    check::<AIInference>(base(), cases).await;
}

#[tokio::test]
async fn overrides_of_the_engine_profile_are_validated() {
    let env = |env: Value| json!({"env": env});
    let reference = json!({"name": "secret", "key": "token"});
    check::<AIInference>(
        base(),
        vec![
            case("image", "must be an image reference", json!({"image": "a b"}), json!({"image": "a/b:c"})),
            case("image", "may not be more than 512", json!({"image": "i".repeat(513)}), json!({"image": "i".repeat(512)})),
            case("args", "at most 64 items", json!({"args": vec!["-v"; 65]}), json!({"args": vec!["-v"; 64]})),
            case(
                "args[0]",
                "may not be more than 1024",
                json!({"args": ["x".repeat(1025)]}),
                json!({"args": ["x".repeat(1024)]}),
            ),
            case(
                "servedModelName",
                "must consist of letters, digits",
                json!({"servedModelName": "--port"}),
                json!({"servedModelName": "Qwen/Qwen-7B-Chat"}),
            ),
            case(
                "env[1]",
                "Duplicate value",
                env(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])),
                env(json!([{"name": "A", "value": "1"}, {"name": "B", "value": "1"}])),
            ),
            case(
                "env[0].name",
                "must be the name of a variable",
                env(json!([{"name": "1A"}])),
                env(json!([{"name": "A1"}])),
            ),
            case(
                "env[0].valueFrom",
                "must not be set together with value",
                env(json!([{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": reference}}])),
                env(json!([{"name": "A", "valueFrom": {"secretKeyRef": reference}}])),
            ),
            case(
                "env[0].valueFrom",
                "exactly one of secretKeyRef and configMapKeyRef",
                env(json!([{"name": "A", "valueFrom": {"secretKeyRef": reference, "configMapKeyRef": reference}}])),
                env(json!([{"name": "A", "valueFrom": {"configMapKeyRef": reference}}])),
            ),
            case(
                "env[0].valueFrom",
                "exactly one of secretKeyRef and configMapKeyRef",
                env(json!([{"name": "A", "valueFrom": {}}])),
                env(json!([{"name": "A", "value": ""}])),
            ),
            case("rollout", "Unsupported value", json!({"rollout": "Recreate"}), json!({"rollout": "Replace"})),
        ],
    )
    .await;
}

#[tokio::test]
async fn store_and_volume_of_the_model_are_validated() {
    let store = |store: Value| json!({"modelStore": store});
    let volume = |volume: Value| json!({"modelVolume": volume});
    let url = "must be an http:// or https:// URL";
    let digest = |digest: String| json!({"modelStore": {"manifestDigest": digest}});
    let sha256 = |digit: &str, count: usize| format!("sha256:{}", digit.repeat(count));
    let digest_form = "must be sha256: and 64 hexadecimal digits in lower case";
    check::<AIInference>(
        base(),
        vec![
            case(
                "modelStore.endpoint",
                url,
                store(json!({"endpoint": "minio:9000"})),
                store(json!({"endpoint": "http://minio:9000"})),
            ),
            case(
                "modelStore.endpoint",
                url,
                store(json!({"endpoint": "https://user:secret@minio"})),
                store(json!({"endpoint": "https://minio.example/base"})),
            ),
            case(
                "modelStore.secretName",
                "must be the name of an object",
                store(json!({"secretName": "My Secret"})),
                store(json!({"secretName": "my-secret"})),
            ),
            case(
                "modelStore.timeoutSeconds",
                "greater than or equal to 60",
                store(json!({"timeoutSeconds": 59})),
                store(json!({"timeoutSeconds": 60})),
            ),
            case(
                "modelStore.timeoutSeconds",
                "less than or equal to 86400",
                store(json!({"timeoutSeconds": 86401})),
                store(json!({"timeoutSeconds": 86400})),
            ),
            case(
                "modelStore.addressing",
                "Unsupported value",
                store(json!({"addressing": "path"})),
                store(json!({"addressing": "VirtualHosted"})),
            ),
            case(
                "modelStore.caSecretName",
                "must be the name of an object",
                store(json!({"caSecretName": "Store_CA"})),
                store(json!({"caSecretName": "store-ca"})),
            ),
            case("modelStore.manifestDigest", digest_form, digest("a".repeat(64)), digest(sha256("a", 64))),
            case("modelStore.manifestDigest", digest_form, digest(sha256("a", 63)), digest(sha256("0", 64))),
            case("modelStore.manifestDigest", digest_form, digest(sha256("A", 64)), digest(sha256("f", 64))),
            case("modelStore.manifestDigest", digest_form, digest(sha256("g", 64)), digest(sha256("9", 64))),
            case(
                "modelStore.manifestDigest",
                "may not be more than 71",
                digest(sha256("a", 65)),
                digest(sha256("a", 64)),
            ),
            case(
                "modelVolume.medium",
                "Unsupported value",
                volume(json!({"medium": "Tape"})),
                volume(json!({"medium": "Disk"})),
            ),
            case(
                "modelVolume.size",
                "size is required with medium Memory",
                volume(json!({"medium": "Memory"})),
                volume(json!({"medium": "Memory", "size": "20Gi"})),
            ),
            case(
                "modelVolume.size",
                "size is required with medium Memory and with medium Volume",
                volume(json!({"medium": "Volume"})),
                volume(json!({"medium": "Volume", "size": "20Gi", "storageClassName": "fast"})),
            ),
            case(
                "modelVolume.size",
                "must be a quantity",
                volume(json!({"size": "20 GB"})),
                volume(json!({"size": "20G"})),
            ),
            case(
                "modelVolume.size",
                "must be a quantity",
                volume(json!({"size": 0})),
                volume(json!({"size": 1000})),
            ),
            case(
                "modelVolume.storageClassName",
                "must not be set unless medium is Volume",
                volume(json!({"storageClassName": "fast"})),
                volume(json!({"medium": "Volume", "size": "1Gi", "storageClassName": "fast"})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn settings_of_the_loader_are_validated() {
    let env = |env: Value| json!({"modelLoader": {"env": env}});
    let resources = |resources: Value| json!({"modelLoader": {"resources": resources}});
    let no_gpu = "must not name gpu.resourceName: the loader needs no GPU";
    check::<AIInference>(
        base(),
        vec![
            case(
                "modelLoader.env[1]",
                "Duplicate value",
                env(json!([{"name": "HTTPS_PROXY", "value": "a"}, {"name": "HTTPS_PROXY", "value": "b"}])),
                env(json!([{"name": "HTTPS_PROXY", "value": "a"}, {"name": "NO_PROXY", "value": "b"}])),
            ),
            case(
                "modelLoader.env[0].name",
                "must be the name of a variable",
                env(json!([{"name": "NO PROXY"}])),
                env(json!([{"name": "NO_PROXY"}])),
            ),
            case(
                "modelLoader.env",
                "at most 64 items",
                env((0..65).map(|n| json!({"name": format!("A{n}")})).collect()),
                env((0..64).map(|n| json!({"name": format!("A{n}")})).collect()),
            ),
            case(
                "modelLoader.resources.limits[memory]",
                "must be a quantity",
                resources(json!({"limits": {"memory": "much"}})),
                resources(json!({"limits": {"memory": "1Gi"}})),
            ),
            case(
                "modelLoader.resources",
                no_gpu,
                resources(json!({"limits": {"nvidia.com/gpu": 1}})),
                resources(json!({"limits": {"cpu": 1}})),
            ),
            case(
                "modelLoader.resources",
                no_gpu,
                resources(json!({"requests": {"nvidia.com/gpu": 1}})),
                resources(json!({"requests": {"cpu": 1}})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_start_and_the_end_of_the_engine_are_validated() {
    let version = |version: &str| json!({"engineVersion": version});
    let shared = |engine: &str, gpus: i32, parallelism: Value| json!({"engine": engine, "gpu": {"count": gpus}, "parallelism": parallelism});
    let product = "tensor times pipeline times data must be gpu.count";
    check::<AIInference>(
        base(),
        vec![
            case(
                "command",
                "at most 16 items",
                json!({"command": vec!["a"; 17]}),
                json!({"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}),
            ),
            case("engineVersion", "must be a version", version("latest"), version("v0.17.1")),
            case("engineVersion", "must be a version", version("0"), version("0.17")),
            case(
                "drainSeconds",
                "less than or equal to 7200",
                json!({"drainSeconds": 7201}),
                json!({"drainSeconds": 7200}),
            ),
            case(
                "drainSeconds",
                "greater than or equal to 0",
                json!({"drainSeconds": -1}),
                json!({"drainSeconds": 0}),
            ),
            case(
                "disruption",
                "Unsupported value",
                json!({"disruption": "Never"}),
                json!({"disruption": "Allow"}),
            ),
            case(
                "parallelism",
                product,
                shared("vllm", 6, json!({"tensor": 4})),
                shared("vllm", 6, json!({"tensor": 2, "pipeline": 3})),
            ),
            case(
                "parallelism",
                product,
                shared("vllm", 6, json!({"data": 4})),
                shared("vllm", 8, json!({"data": 4})),
            ),
            case(
                "parallelism",
                "must not set pipeline or data with engine tgi",
                shared("tgi", 2, json!({"pipeline": 2})),
                shared("tgi", 2, json!({"tensor": 2})),
            ),
            case(
                "parallelism",
                "must not be set with engine triton",
                shared("triton", 2, json!({"tensor": 2})),
                shared("vllm", 2, json!({"tensor": 2})),
            ),
            case(
                "parallelism",
                "must not be set when gpu.count is 0",
                json!({"image": "a:1", "gpu": {"count": 0}, "parallelism": {"tensor": 1}}),
                shared("vllm", 1, json!({"tensor": 1})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn omitted_fields_get_their_defaults() {
    let scene = tests::api_server().await;
    let stored =
        attempt::<AIInference>(&scene, &base(), &json!({"modelStore": {}, "modelVolume": {}})).await.unwrap();
    assert_eq!(
        stored.data["spec"],
        json!({
            "modelSource": "s3://models/qwen",
            "engine": "vllm",
            "gpu": {"count": 1, "resourceName": "nvidia.com/gpu"},
            "replicas": 1,
            "listen": "IPv4",
            "warmupTimeoutSeconds": 300,
            "modelStore": {"timeoutSeconds": 3600, "addressing": "Auto"},
            "modelVolume": {"medium": "Disk"},
            "rollout": "Auto",
            "surgeTimeoutSeconds": 300,
            "nodeFailureSeconds": 30,
            "disruption": "Surge",
            "securityContext": {"ids": "Fixed", "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "paused": false,
        })
    );
}
