//! AIDispatcher: validation of every field, and defaults.

use api::aidispatcher::AIDispatcher;
use serde_json::{Value, json};

use crate::table::{attempt, case, check};

fn base() -> Value {
    json!({"role": "coder"})
}

#[tokio::test]
async fn role_model_and_number_of_workers_are_validated() {
    let url = "must be an http:// or https:// URL";
    check::<AIDispatcher>(
        base(),
        vec![
            case("role", "Required value", json!({"role": null}), json!({"role": "planner"})),
            case("role", "Unsupported value", json!({"role": "manager"}), json!({"role": "reviewer"})),
            case(
                "modelRef",
                "may not be more than 256",
                json!({"modelRef": "m".repeat(257)}),
                json!({"modelRef": "m".repeat(256)}),
            ),
            case(
                "modelEndpoint",
                url,
                json!({"modelEndpoint": "llm:8000"}),
                json!({"modelEndpoint": "http://llm:8000/v1"}),
            ),
            case(
                "modelEndpoint",
                "may not be more than 2048",
                json!({"modelEndpoint": format!("http://{}", "h".repeat(2042))}),
                json!({"modelEndpoint": format!("http://{}", "h".repeat(2041))}),
            ),
            case("replicas", "greater than or equal to 1", json!({"replicas": 0}), json!({"replicas": 1})),
            case(
                "replicas",
                "less than or equal to 1000",
                json!({"replicas": 1001}),
                json!({"replicas": 1000}),
            ),
            case(
                "credentials.secretName",
                "Required value",
                json!({"credentials": {}}),
                json!({"credentials": {"secretName": "llm-key"}}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_memory_has_a_collection_and_its_dimension_or_neither() {
    let memory = |memory: Value| json!({"memoryConfig": memory});
    let both = |dim: i64| json!({"memoryConfig": {"collection": "notes", "dim": dim}});
    check::<AIDispatcher>(
        base(),
        vec![
            case(
                "memoryConfig.dim",
                "dim is required with collection",
                memory(json!({"collection": "a"})),
                both(3),
            ),
            case(
                "memoryConfig.collection",
                "collection is required with dim",
                memory(json!({"dim": 3})),
                both(3),
            ),
            case("memoryConfig.dim", "greater than or equal to 1", both(0), both(1)),
            case("memoryConfig.dim", "less than or equal to 65536", both(65537), both(65536)),
            case(
                "memoryConfig.collection",
                "may not be more than 255",
                memory(json!({"collection": "c".repeat(256), "dim": 3})),
                memory(json!({"collection": "c".repeat(255), "dim": 3})),
            ),
            case(
                "memoryConfig.endpoint",
                "must be an http:// or https:// URL",
                memory(json!({"endpoint": "qdrant"})),
                memory(json!({"endpoint": "http://qdrant:6333"})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn autoscaling_stays_within_its_bounds() {
    let autoscaling = |autoscaling: Value| json!({"autoscaling": autoscaling});
    check::<AIDispatcher>(
        base(),
        vec![
            case(
                "autoscaling.minReplicas",
                "must not be above maxReplicas",
                autoscaling(json!({"minReplicas": 5, "maxReplicas": 4})),
                autoscaling(json!({"minReplicas": 4, "maxReplicas": 4})),
            ),
            case(
                "autoscaling.minReplicas",
                "must not be above maxReplicas",
                autoscaling(json!({"minReplicas": 101})),
                autoscaling(json!({"minReplicas": 100})),
            ),
            case(
                "autoscaling.minReplicas",
                "greater than or equal to 1",
                autoscaling(json!({"minReplicas": 0})),
                autoscaling(json!({"minReplicas": 1})),
            ),
            case(
                "autoscaling.maxReplicas",
                "less than or equal to 1000",
                autoscaling(json!({"maxReplicas": 1001})),
                autoscaling(json!({"maxReplicas": 1000})),
            ),
            case(
                "autoscaling.tasksPerWorker",
                "greater than or equal to 1",
                autoscaling(json!({"tasksPerWorker": 0})),
                autoscaling(json!({"tasksPerWorker": 1})),
            ),
            case(
                "autoscaling.tasksPerWorker",
                "less than or equal to 10000",
                autoscaling(json!({"tasksPerWorker": 10001})),
                autoscaling(json!({"tasksPerWorker": 10000})),
            ),
            case(
                "autoscaling.tokensPerMinutePerWorker",
                "greater than or equal to 1",
                autoscaling(json!({"tokensPerMinutePerWorker": 0})),
                autoscaling(json!({"tokensPerMinutePerWorker": 30000})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_checkpoint_has_exactly_one_destination() {
    let checkpoint = |checkpoint: Value| json!({"checkpoint": checkpoint});
    let one = "must have exactly one of claimName and uri";
    check::<AIDispatcher>(
        base(),
        vec![
            case("checkpoint", one, checkpoint(json!({})), checkpoint(json!({"claimName": "state"}))),
            case(
                "checkpoint",
                one,
                checkpoint(json!({"claimName": "state", "uri": "s3://state"})),
                checkpoint(json!({"uri": "s3://state/agents"})),
            ),
            case(
                "checkpoint.uri",
                "must be s3://bucket",
                checkpoint(json!({"uri": "file:///state"})),
                checkpoint(json!({"uri": "s3://state", "endpoint": "http://minio", "secretName": "minio"})),
            ),
            case(
                "checkpoint.endpoint",
                "must not be set without uri",
                checkpoint(json!({"claimName": "state", "endpoint": "http://minio"})),
                checkpoint(json!({"claimName": "state"})),
            ),
            case(
                "checkpoint.region",
                "must be a region",
                checkpoint(json!({"uri": "s3://state", "region": "eu west"})),
                checkpoint(json!({"uri": "s3://state", "region": "eu-west-1"})),
            ),
            case(
                "checkpoint.secretName",
                "must not be set without uri",
                checkpoint(json!({"claimName": "state", "secretName": "minio"})),
                checkpoint(json!({"claimName": "state"})),
            ),
            case(
                "checkpoint.graceSeconds",
                "less than or equal to 3600",
                checkpoint(json!({"claimName": "state", "graceSeconds": 3601})),
                checkpoint(json!({"claimName": "state", "graceSeconds": 3600})),
            ),
            case(
                "checkpoint.graceSeconds",
                "greater than or equal to 0",
                checkpoint(json!({"claimName": "state", "graceSeconds": -1})),
                checkpoint(json!({"claimName": "state", "graceSeconds": 0})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn omitted_fields_get_their_defaults() {
    let scene = tests::api_server().await;
    let change = json!({"autoscaling": {}, "checkpoint": {"claimName": "state"}});
    let stored = attempt::<AIDispatcher>(&scene, &base(), &change).await.unwrap();
    assert_eq!(
        stored.data["spec"],
        json!({
            "role": "coder",
            "replicas": 1,
            "autoscaling": {
                "minReplicas": 1, "maxReplicas": 100, "tasksPerWorker": 5, "rule": "QueueAndBusyWorkers",
                "queue": "PerWorker",
            },
            "checkpoint": {"claimName": "state", "graceSeconds": 60, "whenUnavailable": "Wait"},
            "securityContext": {"ids": "Fixed", "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "paused": false,
        })
    );
}

#[tokio::test]
async fn probes_have_a_path_and_words_of_their_own_lists() {
    let probes = |probes: Value| json!({"probes": probes});
    check::<AIDispatcher>(
        base(),
        vec![
            case(
                "probes",
                "must have readinessPath or livenessPath",
                probes(json!({"port": 8000})),
                probes(json!({"port": 8000, "livenessPath": "/live"})),
            ),
            case(
                "probes.readinessPath",
                "must begin with a slash",
                probes(json!({"readinessPath": "ready"})),
                probes(json!({"readinessPath": "/ready?deep=1"})),
            ),
            case(
                "probes.livenessPath",
                "must begin with a slash",
                probes(json!({"livenessPath": "/a b"})),
                probes(json!({"livenessPath": "/"})),
            ),
            case(
                "probes.port",
                "less than or equal to 65535",
                probes(json!({"readinessPath": "/", "port": 65536})),
                probes(json!({"readinessPath": "/", "port": 65535})),
            ),
            case(
                "autoscaling.queue",
                "Unsupported value",
                json!({"autoscaling": {"queue": "Global"}}),
                json!({"autoscaling": {"queue": "Shared"}}),
            ),
            case(
                "checkpoint.whenUnavailable",
                "Unsupported value",
                json!({"checkpoint": {"claimName": "states", "whenUnavailable": "Ignore"}}),
                json!({"checkpoint": {"claimName": "states", "whenUnavailable": "StartEmpty"}}),
            ),
        ],
    )
    .await;
}
