//! Which specs are valid, and what their defaults are.

use api::labels;

use super::*;
use crate::tests::job;

/// A lora job with more fields.
fn spec(more: &str) -> String {
    format!("{{model: qwen/Qwen-7B, dataset: a/b, method: lora{more}}}")
}

fn valid(more: &str) -> ValidJob {
    validate(&job("qwen", &spec(more))).unwrap()
}

fn refusal(more: &str) -> String {
    validate(&job("qwen", &spec(more))).unwrap_err().to_string()
}

#[test]
fn a_spec_of_three_fields_is_valid() {
    let job = valid("");
    assert_eq!(
        (job.gpus, job.nodes, job.retry_limit, job.save_steps, job.keep_checkpoints),
        (1, 1, 3, 100, 2)
    );
    assert_eq!((job.no_progress.as_secs(), job.node_failure.as_secs()), (1_800, 30));
    assert_eq!((job.output.dir.as_str(), job.output.mount_path.as_str()), ("/output", "/output"));
    assert_eq!(
        (job.token_secret.as_str(), job.active_deadline, job.queue),
        ("huggingface-secret", None, None)
    );
    assert_eq!(job.batch, Batch { size: 1, accumulation: 16 });
    assert_eq!(job.sharding, Some(Sharding::Nothing));
}

#[test]
fn an_object_without_a_uid_is_refused() {
    let mut job = job("qwen", &spec(""));
    job.metadata.uid = None;
    assert_eq!(validate(&job).unwrap_err().to_string(), "the object has no name or no uid");
}

#[test]
fn each_refusal_names_the_field_and_what_to_change() {
    for (more, words) in [
        (", extraArgs: ['--output_dir=/x']", "spec.extraArgs: \"--output_dir=/x\" sets --output_dir"),
        (", extraArgs: [--hub-token, hf_x]", "spec.extraArgs: --hub_token must not be set"),
        (", extraArgs: [--]", "spec.extraArgs must not contain \"--\""),
        (", extraArgs: ['--gradient_accumulation_steps=x']", "needs a number above 0"),
        (", device: mps, nodes: 2", "spec.nodes must be 1 with device mps"),
        (", env: [{name: NODE_RANK, value: '1'}]", "spec.env: NODE_RANK is set by the controller"),
        (", env: [{name: RAY_SWIFT_ARGS, value: '1'}]", "spec.env: RAY_SWIFT_ARGS"),
        (", outputDir: /a, output: {mountPath: /b}", "spec.outputDir: /a must equal output.mountPath (/b)"),
        (", outputDir: /bc, output: {mountPath: /b}", "spec.outputDir: /bc must equal"),
        (", output: {claimName: mine, retention: Delete}", "spec.output.retention must be Retain"),
        (", nodes: 2, output: {accessMode: ReadWriteOnce}", "must be ReadWriteMany with 2 nodes"),
        (", inputs: [{claimName: a, mountPath: /output}]", "spec.inputs: /output is mounted twice"),
        (
            ", inputs: [{claimName: a, mountPath: /d}, {claimName: b, mountPath: /d}]",
            "spec.inputs: /d is mounted twice",
        ),
        (", swiftVersion: latest", "spec.swiftVersion: \"latest\" is no version such as v4.1"),
    ] {
        assert!(refusal(more).contains(words), "{more}: {}", refusal(more));
    }
}

#[test]
fn no_refusal_repeats_a_token() {
    for more in [", extraArgs: ['--hub_token=hf_secret']", ", env: [{name: MASTER_ADDR, value: hf_secret}]"] {
        assert!(!refusal(more).contains("hf_secret"), "{more}");
    }
}

#[test]
fn the_datasets_are_separated_by_commas() {
    let job = job("qwen", "{model: m, dataset: 'a/b , /data/c.jsonl#5,d', method: lora}");
    assert_eq!(validate(&job).unwrap().datasets, ["a/b", "/data/c.jsonl#5", "d"]);
}

#[test]
fn the_accelerators_are_those_of_the_device() {
    let resource = |more: &str| valid(more).accelerators.map(|gpus| (gpus.resource, gpus.count));
    assert_eq!(resource(", gpus: 4"), Some(("nvidia.com/gpu".to_owned(), 4)));
    assert_eq!(resource(", gpus: 8, device: ascend"), Some(("huawei.com/Ascend910".to_owned(), 8)));
    assert_eq!(resource(", device: cpu"), None);
    assert_eq!(resource(", device: mps"), None);
    let own = ", device: ascend, acceleratorResource: huawei.com/Ascend910B3";
    assert_eq!(resource(own), Some(("huawei.com/Ascend910B3".to_owned(), 1)));
}

#[test]
fn a_product_is_a_value_of_nvidias_label_or_a_label_of_its_own() {
    let product = |label: &str| {
        let gpus = valid(&format!(", gpuProductLabel: {label}")).accelerators.unwrap();
        (gpus.products[0].key.clone(), gpus.products[0].values.clone())
    };
    assert_eq!(product("A100"), (labels::NVIDIA_GPU_PRODUCT.to_owned(), vec!["A100".to_owned()]));
    assert_eq!(product("zone.example/gpu=H100"), ("zone.example/gpu".to_owned(), vec!["H100".to_owned()]));
}

#[test]
fn a_gang_gets_a_claim_that_all_nodes_can_write() {
    let mode = |more: &str| match valid(more).output.claim {
        Claim::Made { mode, .. } => mode,
        Claim::Existing(name) => panic!("{name}"),
    };
    assert_eq!((mode(""), mode(", nodes: 2")), (AccessMode::ReadWriteOnce, AccessMode::ReadWriteMany));
    assert_eq!(mode(", output: {accessMode: ReadWriteMany}"), AccessMode::ReadWriteMany);
}

#[test]
fn the_output_may_lie_below_the_mount_of_the_users_own_claim() {
    let output = valid(", outputDir: /shared/runs/1, output: {claimName: mine, mountPath: /shared}").output;
    assert_eq!((output.claim, output.mount_path.as_str()), (Claim::Existing("mine".to_owned()), "/shared"));
}

#[test]
fn the_samples_of_a_step_are_the_same_on_any_number_of_gpus() {
    let accumulation = |more: &str| valid(more).batch.accumulation;
    assert_eq!(
        [accumulation(""), accumulation(", gpus: 4"), accumulation(", gpus: 4, nodes: 2")],
        [16, 4, 2]
    );
    assert_eq!(accumulation(", gpus: 16, nodes: 64"), 1);
}

#[test]
fn the_users_own_batch_and_deepspeed_are_kept() {
    let args = ", gpus: 2, extraArgs: [--per_device_train_batch_size, '4', --deepspeed, zero3]";
    let job = valid(args);
    assert_eq!((job.batch, job.sharding), (Batch { size: 4, accumulation: 8 }, None));
}

#[test]
fn the_priority_in_a_queue_is_that_of_the_objects_label() {
    let mut job = job("qwen", &spec(", queueName: team"));
    assert_eq!(validate(&job).unwrap().queue.unwrap().priority_class, None);
    job.metadata.labels = Some([(labels::KUEUE_PRIORITY_CLASS.to_owned(), "high".to_owned())].into());
    let queue = validate(&job).unwrap().queue.unwrap();
    assert_eq!((queue.name.as_str(), queue.priority_class.as_deref()), ("team", Some("high")));
}

#[test]
fn a_path_is_below_itself_and_its_folders_alone() {
    for (path, folder, expected) in [
        ("/a", "/a", true),
        ("/a/b", "/a", true),
        ("/a/b", "/a/", true),
        ("/ab", "/a", false),
        ("/a", "/a/b", false),
        ("/a", "/", true),
    ] {
        assert_eq!(is_below(path, folder), expected, "{path} below {folder}");
    }
}
