//! TrainingJob: validation of every field, mutable fields, and defaults.

use api::trainingjob::{OWNED_FLAGS, TrainingJob};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::table::{api, attempt, case, check, create, message};

fn base() -> Value {
    json!({"model": "qwen/Qwen-7B", "dataset": "my_alpaca_zh", "method": "lora"})
}

#[tokio::test]
async fn model_and_data_are_hub_ids_or_paths() {
    let model = |model: &str| json!({"model": model});
    let dataset = |dataset: &str| json!({"dataset": dataset});
    let reference = "must be a hub id such as qwen/Qwen-7B or an absolute path";
    let list = "must be hub ids or paths separated by commas";
    check::<TrainingJob>(
        base(),
        vec![
            case("model", "Required value", json!({"model": null}), model("/mnt/storage/checkpoints/qwen")),
            case("model", reference, model(""), model("q")),
            case("model", reference, model("--output_dir"), model("output_dir")),
            case("model", reference, model("my model"), model("my-model")),
            case("model", reference, model("/mnt/../etc"), model("/mnt/etc")),
            case("model", "may not be more than 512", model(&"m".repeat(513)), model(&"m".repeat(512))),
            case("dataset", "Required value", json!({"dataset": null}), dataset("a/b#500,/mnt/data.jsonl")),
            case("dataset", list, dataset(""), dataset("a")),
            case("dataset", list, dataset("a,,b"), dataset("a, b")),
            case("dataset", list, dataset("a,--hub_token"), dataset("a,hub-token")),
            case(
                "dataset",
                "may not be more than 2048",
                dataset(&"d".repeat(2049)),
                dataset(&"d".repeat(2048)),
            ),
            case("method", "Required value", json!({"method": null}), json!({"method": "full"})),
            case("method", "Unsupported value", json!({"method": "grpo"}), json!({"method": "qlora"})),
        ],
    )
    .await;
}

#[tokio::test]
async fn method_device_and_size_are_compatible() {
    let job = |method: &str, device: &str| json!({"method": method, "device": device});
    let quantised = "must not be ascend or mps with method qlora";
    check::<TrainingJob>(
        base(),
        vec![
            case("gpus", "must be of type integer", json!({"gpus": "abc"}), json!({"gpus": 2})),
            case("gpus", "greater than or equal to 1", json!({"gpus": 0}), json!({"gpus": 1})),
            case("gpus", "less than or equal to 16", json!({"gpus": 17}), json!({"gpus": 16})),
            case("nodes", "greater than or equal to 1", json!({"nodes": 0}), json!({"nodes": 1})),
            case("nodes", "less than or equal to 64", json!({"nodes": 65}), json!({"nodes": 64})),
            case(
                "beta",
                "must not be set unless method is dpo",
                json!({"beta": 0.1}),
                json!({"method": "dpo", "beta": 0.1}),
            ),
            case(
                "beta",
                "less than or equal to 10",
                json!({"method": "dpo", "beta": 10.1}),
                json!({"method": "dpo", "beta": 10}),
            ),
            case(
                "beta",
                "greater than or equal to 0",
                json!({"method": "dpo", "beta": -0.1}),
                json!({"method": "dpo", "beta": 0}),
            ),
            case(
                "rewardModel",
                "rewardModel is required with method ppo",
                json!({"method": "ppo"}),
                json!({"method": "ppo", "rewardModel": "qwen/reward"}),
            ),
            case(
                "rewardModel",
                "must not be set unless method is ppo",
                json!({"method": "dpo", "rewardModel": "qwen/reward"}),
                json!({"method": "dpo"}),
            ),
            case("device", "Unsupported value", job("lora", "tpu"), job("lora", "cpu")),
            case("device", quantised, job("qlora", "ascend"), job("lora", "ascend")),
            case("device", quantised, job("qlora", "mps"), job("qlora", "nvidia")),
            case(
                "gpus",
                "must be 1 with device mps",
                json!({"device": "mps", "gpus": 2}),
                json!({"device": "mps", "gpus": 1}),
            ),
            case(
                "gpuProductLabel",
                "must be a GPU product",
                json!({"gpuProductLabel": "A 100"}),
                json!({"gpuProductLabel": "nvidia.com/gpu.product=A100"}),
            ),
            case(
                "acceleratorResource",
                "must be the name of an extended resource",
                json!({"acceleratorResource": "npu"}),
                json!({"acceleratorResource": "huawei.com/Ascend910"}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_output_path_is_validated() {
    let dir = |dir: &str| json!({"outputDir": dir});
    let output = |output: Value| json!({"output": output});
    let path = "must be an absolute path such as /output";
    check::<TrainingJob>(
        base(),
        vec![
            case("outputDir", path, dir("/"), dir("/o")),
            case("outputDir", path, dir("output"), dir("/output")),
            case("outputDir", path, dir("/mnt/../etc"), dir("/mnt/etc")),
            case("outputDir", path, dir("/mnt:rw"), dir("/mnt-rw")),
            case("outputDir", path, dir("/output/"), dir("/output/a")),
            case("outputDir", path, dir("/output//a"), dir("/output/.a")),
            case("outputDir", path, dir("/output/./a"), dir("/output/a.b")),
            case("outputDir", path, dir("/my output"), dir("/my-output")),
            case("outputDir", path, dir("/etc"), dir("/etcetera")),
            case("outputDir", path, dir("/usr/local/output"), dir("/mnt/usr")),
            case("outputDir", path, dir("/proc/1"), dir("/processes")),
            case("outputDir", path, dir("/dev/shm"), dir("/devices")),
            case("outputDir", path, dir("/var/lib"), dir("/workspace/var")),
            case(
                "outputDir",
                "may not be more than 512",
                dir(&format!("/{}", "o".repeat(512))),
                dir(&format!("/{}", "o".repeat(511))),
            ),
            case(
                "outputDir",
                "must equal output.mountPath or lie below it",
                json!({"outputDir": "/database/a", "output": {"mountPath": "/data"}}),
                json!({"outputDir": "/data/base/a", "output": {"mountPath": "/data"}}),
            ),
            case(
                "output.mountPath",
                path,
                json!({"outputDir": "/etc/a", "output": {"mountPath": "/etc"}}),
                json!({"outputDir": "/data", "output": {"mountPath": "/data"}}),
            ),
            case(
                "output.size",
                "must not be set together with claimName",
                output(json!({"claimName": "c", "size": "1Gi"})),
                output(json!({"size": "1Gi"})),
            ),
            case(
                "output.size",
                "must be a quantity",
                output(json!({"size": "big"})),
                output(json!({"size": 1000000})),
            ),
            case(
                "output.storageClassName",
                "must not be set together with claimName",
                output(json!({"claimName": "c", "storageClassName": "fast"})),
                output(json!({"storageClassName": "fast"})),
            ),
            case(
                "output.accessMode",
                "must not be set together with claimName",
                output(json!({"claimName": "c", "accessMode": "ReadWriteMany"})),
                output(json!({"accessMode": "ReadWriteMany"})),
            ),
            case(
                "output.accessMode",
                "Unsupported value",
                output(json!({"accessMode": "ReadOnlyMany"})),
                output(json!({"accessMode": "ReadWriteOnce"})),
            ),
            case(
                "output.retention",
                "must be Retain with claimName",
                output(json!({"claimName": "c", "retention": "Delete"})),
                output(json!({"claimName": "c", "retention": "Retain"})),
            ),
            case(
                "output.retention",
                "must be Retain with claimName",
                output(json!({"claimName": "c", "retention": "Snapshot"})),
                output(json!({"retention": "Snapshot", "snapshotClassName": "nightly"})),
            ),
            case(
                "output.snapshotClassName",
                "must not be set unless retention is Snapshot",
                output(json!({"snapshotClassName": "nightly"})),
                output(json!({"retention": "Delete"})),
            ),
            case(
                "output.upload.uri",
                "must be s3://bucket",
                output(json!({"upload": {"uri": "https://bucket/a"}})),
                output(json!({"upload": {"uri": "s3://bucket/a", "endpoint": "http://minio:9000"}})),
            ),
            case(
                "output.upload.endpoint",
                "must be an http:// or https:// URL",
                output(json!({"upload": {"uri": "s3://bucket", "endpoint": "minio"}})),
                output(json!({"upload": {"uri": "s3://bucket"}})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn inputs_and_dependencies_are_validated() {
    let input = |sub_path: &str, mount_path: &str| json!({"inputs": [{"claimName": "data", "subPath": sub_path, "mountPath": mount_path}]});
    let inputs = |count: usize| {
        let inputs: Vec<_> =
            (0..count).map(|i| json!({"claimName": "data", "mountPath": format!("/in/{i}")})).collect();
        json!({"inputs": inputs})
    };
    let names = |count: usize| {
        let names: Vec<_> = (0..count).map(|i| format!("job-{i}")).collect();
        json!({"dependsOn": names})
    };
    check::<TrainingJob>(
        base(),
        vec![
            case("inputs", "at most 16 items", inputs(17), inputs(16)),
            case("inputs[0].mountPath", "must be an absolute path", input("a", "/etc"), input("a", "/mnt")),
            case("inputs[0].subPath", "must be a relative path", input("../a", "/in"), input("a/b", "/in")),
            case("inputs[0].subPath", "must be a relative path", input("/a", "/in"), input("a", "/in")),
            case(
                "inputs[1]",
                "Duplicate value",
                json!({"inputs": [{"claimName": "a", "mountPath": "/in"}, {"claimName": "b", "mountPath": "/in"}]}),
                json!({"inputs": [{"claimName": "a", "mountPath": "/in"}, {"claimName": "a", "mountPath": "/on"}]}),
            ),
            case(
                "inputs",
                "must not be mounted where the output is",
                input("a", "/output"),
                json!({"outputDir": "/result", "inputs": [{"claimName": "a", "mountPath": "/output"}]}),
            ),
            case("dependsOn", "at most 16 items", names(17), names(16)),
            case("dependsOn[1]", "Duplicate value", json!({"dependsOn": ["a", "a"]}), json!({"dependsOn": ["a", "b"]})),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_source_of_a_training_is_validated() {
    let from = |source: Value| json!({"resumeFrom": source});
    let path = |path: &str| json!({"resumeFrom": {"claimName": "old", "path": path}});
    let adapters = |path: &str| json!({"adapters": path});
    let with = |mut spec: Value, method: &str| {
        spec["method"] = method.into();
        spec
    };
    let ppo = |mut spec: Value| {
        spec["rewardModel"] = "qwen/reward".into();
        with(spec, "ppo")
    };
    let job = || from(json!({"job": "first"}));
    check::<TrainingJob>(
        base(),
        vec![
            case("resumeFrom", "exactly one of job and claimName", from(json!({})), job()),
            case(
                "resumeFrom",
                "exactly one of job and claimName",
                from(json!({"job": "first", "claimName": "old"})),
                from(json!({"claimName": "old"})),
            ),
            case(
                "resumeFrom.path",
                "must not be set without claimName",
                from(json!({"job": "first", "path": "run-1"})),
                path("run-1/checkpoint-500"),
            ),
            case("resumeFrom.path", "must be a relative path", path("/run-1"), path("run-1")),
            case("resumeFrom.path", "must be a relative path", path("../run-1"), path("run.1")),
            case("resumeFrom.job", "must be the name of an object", from(json!({"job": "First"})), job()),
            case("resumeFrom", "must not be set with method ppo", ppo(job()), with(job(), "dpo")),
            case(
                "adapters",
                "must be an absolute path",
                adapters("owner/adapters"),
                adapters("/in/adapters"),
            ),
            case("adapters", "must be an absolute path", adapters("/in/../x"), adapters("/in/x")),
            case(
                "adapters",
                "must not be set with method full or ppo",
                with(adapters("/in"), "full"),
                with(adapters("/in"), "dpo"),
            ),
            case(
                "onNonFiniteLoss",
                "Unsupported value",
                json!({"onNonFiniteLoss": "Stop"}),
                json!({"onNonFiniteLoss": "Fail"}),
            ),
            case(
                "output.cache",
                "Unsupported value",
                json!({"output": {"cache": "Discard"}}),
                json!({"output": {"cache": "None"}}),
            ),
            case(
                "extraArgs",
                "use spec.resumeFrom",
                json!({"extraArgs": ["--resume_from_checkpoint=x"]}),
                job(),
            ),
            case(
                "extraArgs",
                "--adapters spec.adapters",
                json!({"extraArgs": ["--adapters", "x"]}),
                adapters("/in"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn flags_that_the_controller_sets_and_tokens_are_refused() {
    let args = |args: &[&str]| json!({"extraArgs": args});
    let neighbour = args(&["--max_new_tokens", "512", "--model_kwargs={}", "--learning_rate", "1e-5"]);
    let mut cases = Vec::new();
    for flag in OWNED_FLAGS {
        for refused in [args(&[flag, "x"]), args(&[&format!("{flag}=x")]), args(&[&flag.replace('_', "-")])] {
            cases.push(case(
                "extraArgs",
                "must not set a flag that the controller sets",
                refused,
                neighbour.clone(),
            ));
        }
    }
    for flag in ["--hub_token", "--hub-token=x", "--token", "--swanlab_token"] {
        cases.push(case("extraArgs", "must not contain a token", args(&[flag]), neighbour.clone()));
    }
    let many = |count: usize| json!({"extraArgs": vec!["--a"; count]});
    cases.push(case("extraArgs", "at most 128 items", many(129), many(128)));
    cases.push(case(
        "extraArgs[0]",
        "may not be more than 1024",
        args(&[&"x".repeat(1025)]),
        args(&[&"x".repeat(1024)]),
    ));
    check::<TrainingJob>(base(), cases).await;
}

#[tokio::test]
async fn other_numbers_and_names_stay_within_their_bounds() {
    let version = |version: Value| json!({"swiftVersion": version});
    let ttl = |seconds: i64| json!({"ttlSecondsAfterFinished": seconds});
    let no_progress = |seconds: i64| json!({"noProgressSeconds": seconds});
    check::<TrainingJob>(
        base(),
        vec![
            case("swiftVersion", "should match", version("4".into()), version("v4.1".into())),
            case("swiftVersion", "should match", version("v4.1.0".into()), version("4.1".into())),
            // `v` is needed because YAML parses 4.10 as the number 4.1.
            case("swiftVersion", "must be of type string", version(json!(4.1)), version("v4.10".into())),
            case("hub", "Unsupported value", json!({"hub": "github"}), json!({"hub": "huggingface"})),
            case("saveSteps", "greater than or equal to 1", json!({"saveSteps": 0}), json!({"saveSteps": 1})),
            case(
                "keepCheckpoints",
                "greater than or equal to 1",
                json!({"keepCheckpoints": 0}),
                json!({"keepCheckpoints": 1}),
            ),
            case(
                "retryLimit",
                "less than or equal to 20",
                json!({"retryLimit": 21}),
                json!({"retryLimit": 20}),
            ),
            case(
                "retryLimit",
                "greater than or equal to 0",
                json!({"retryLimit": -1}),
                json!({"retryLimit": 0}),
            ),
            case(
                "activeDeadlineSeconds",
                "greater than or equal to 1",
                json!({"activeDeadlineSeconds": 0}),
                json!({"activeDeadlineSeconds": 1}),
            ),
            case("ttlSecondsAfterFinished", "greater than or equal to -1", ttl(-2), ttl(-1)),
            case(
                "ttlSecondsAfterFinished",
                "less than or equal to 31536000",
                ttl(31_536_001),
                ttl(31_536_000),
            ),
            case("noProgressSeconds", "greater than or equal to 60", no_progress(59), no_progress(60)),
            case(
                "noProgressSeconds",
                "less than or equal to 86400",
                no_progress(86_401),
                no_progress(86_400),
            ),
            case(
                "nodeFailureSeconds",
                "less than or equal to 3600",
                json!({"nodeFailureSeconds": 3601}),
                json!({"nodeFailureSeconds": 3600}),
            ),
            case(
                "firstStepSeconds",
                "greater than or equal to 60",
                json!({"firstStepSeconds": 59}),
                json!({"firstStepSeconds": 60}),
            ),
            case(
                "firstStepSeconds",
                "less than or equal to 86400",
                json!({"firstStepSeconds": 86_401}),
                json!({"firstStepSeconds": 86_400}),
            ),
            case(
                "graceSeconds",
                "greater than or equal to 30",
                json!({"graceSeconds": 29}),
                json!({"graceSeconds": 30}),
            ),
            case(
                "graceSeconds",
                "less than or equal to 7200",
                json!({"graceSeconds": 7201}),
                json!({"graceSeconds": 7200}),
            ),
            case(
                "queueName",
                "must be the name of an object",
                json!({"queueName": "GPU"}),
                json!({"queueName": "gpu"}),
            ),
            case(
                "tokenSecret",
                "must be the name of an object",
                json!({"tokenSecret": ""}),
                json!({"tokenSecret": "t"}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn after_creation_only_mutable_fields_may_change() {
    let scene = tests::api_server().await;
    let mut spec = base();
    spec["image"] = "trainer:1".into();
    spec["dependsOn"] = json!(["other"]);
    create::<TrainingJob>(&scene, "job", spec).await;
    let jobs = api::<TrainingJob>(scene.client(), scene.namespace());
    let change = async |spec: Value| {
        jobs.patch("job", &PatchParams::default(), &Patch::Merge(json!({"spec": spec})))
            .await
            .map_err(message)
    };

    for (field, spec) in [
        // Changed, added and removed; required, defaulted and optional; a string, a number, a list, an object.
        ("model", json!({"model": "qwen/Qwen-14B"})),
        ("method", json!({"method": "full"})),
        ("gpus", json!({"gpus": 2})),
        ("gpus", json!({"gpus": 4, "nodes": 2})),
        ("outputDir", json!({"outputDir": "/elsewhere"})),
        ("image", json!({"image": "trainer:2"})),
        ("image", json!({"image": null})),
        ("swiftVersion", json!({"swiftVersion": "v4.1"})),
        ("extraArgs", json!({"extraArgs": ["--seed=1"]})),
        ("dependsOn", json!({"dependsOn": null})),
        ("dependsOn", json!({"dependsOn": ["other", "third"]})),
        ("output", json!({"output": {"size": "1Gi"}})),
        ("scheduling", json!({"scheduling": {"priorityClassName": "high"}})),
        ("securityContext", json!({"securityContext": {"runAsUser": 0}})),
        ("podLabels", json!({"podLabels": {"team": "a"}})),
        ("queueName", json!({"queueName": "gpu"})),
        ("tokenSecret", json!({"tokenSecret": "other"})),
        ("graceSeconds", json!({"graceSeconds": 600})),
        ("resumeFrom", json!({"resumeFrom": {"job": "other"}})),
        ("adapters", json!({"adapters": "/in/adapters"})),
        ("onNonFiniteLoss", json!({"onNonFiniteLoss": "Fail"})),
    ] {
        let refused = change(spec.clone()).await.expect_err(&format!("{spec} was accepted"));
        assert!(
            refused.contains(&format!("spec.{field}: "))
                && refused.contains("must not be changed after creation"),
            "{spec}: {refused}"
        );
    }
    for spec in [
        json!({"suspend": true}),
        json!({"paused": true}),
        json!({"ttlSecondsAfterFinished": -1}),
        json!({"retryLimit": 5}),
        json!({"activeDeadlineSeconds": 3600}),
        json!({"activeDeadlineSeconds": null}),
        json!({"nodeFailureSeconds": 600}),
        json!({"firstStepSeconds": 7200}),
        // Restores the spec.
        json!({"image": "trainer:1", "gpus": 1}),
    ] {
        change(spec).await.unwrap();
    }
}

#[tokio::test]
async fn after_the_end_only_the_ttl_may_change() {
    let scene = tests::api_server().await;
    for phase in ["Succeeded", "Failed"] {
        let name = phase.to_lowercase();
        create::<TrainingJob>(&scene, &name, base()).await;
        let jobs = api::<TrainingJob>(scene.client(), scene.namespace());
        let status = json!({"status": {"phase": phase}});
        jobs.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        let change = async |spec: Value| {
            let patch = Patch::Merge(json!({"spec": spec}));
            jobs.patch(&name, &PatchParams::default(), &patch).await.map_err(message)
        };

        for spec in [
            json!({"suspend": true}),
            json!({"paused": true}),
            json!({"retryLimit": 5}),
            json!({"activeDeadlineSeconds": 3600}),
            json!({"nodeFailureSeconds": 600}),
            json!({"firstStepSeconds": 7200}),
        ] {
            let refused = change(spec.clone()).await.expect_err(&format!("{spec} was accepted"));
            assert!(
                refused.contains("only ttlSecondsAfterFinished can still be changed"),
                "{spec}: {refused}"
            );
        }
        change(json!({"ttlSecondsAfterFinished": 60})).await.unwrap();
    }
}

#[tokio::test]
async fn omitted_fields_get_their_defaults() {
    let scene = tests::api_server().await;
    let stored = attempt::<TrainingJob>(&scene, &base(), &json!({"output": {}})).await.unwrap();
    assert_eq!(
        stored.data["spec"],
        json!({
            "model": "qwen/Qwen-7B",
            "modelInImage": false,
            "dataset": "my_alpaca_zh",
            "method": "lora",
            "gpus": 1,
            "outputDir": "/output",
            "device": "nvidia",
            "nodes": 1,
            "hub": "modelscope",
            "saveSteps": 100,
            "keepCheckpoints": 2,
            "output": {"cache": "Keep", "retention": "Retain"},
            "retryLimit": 3,
            "ttlSecondsAfterFinished": 604_800,
            "suspend": false,
            "noProgressSeconds": 1800,
            "onNonFiniteLoss": "Report",
            "nodeFailureSeconds": 30,
            "firstStepSeconds": 3600,
            "graceSeconds": 300,
            "tokenSecret": "huggingface-secret",
            "securityContext": {"ids": "Fixed", "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "paused": false,
        })
    );
}
