//! The golden command lines, in one snapshot: a line per combination.

use api::trainingjob::OWNED_FLAGS;

use super::*;

const VERSIONS: [&str; 2] = ["3.12", "4.4"];
const DEVICES: [Device; 4] = [Device::Nvidia, Device::Ascend, Device::Mps, Device::Cpu];

fn hub(model: &str) -> StartModel {
    StartModel { model: model.to_owned(), adapters: None }
}

fn command_of(method: Method, device: Device, gpus: i32, nodes: i32, version: &str) -> Command {
    let model = hub("qwen/Qwen-7B");
    command(&Run {
        version: Version::parse(version).unwrap(),
        method,
        device,
        hub: Hub::Modelscope,
        gpus,
        nodes,
        model: &model,
        reward_model: (method == Method::Ppo).then_some("qwen/Qwen-7B-RM"),
        datasets: &["my_alpaca_zh".to_owned(), "other#500".to_owned()],
        output_dir: "/output",
        beta: (method == Method::Dpo).then_some(0.1),
        save_steps: 100,
        keep_checkpoints: 2,
        batch: Batch::of(gpus, nodes),
        sharding: Sharding::of(method, device, gpus, nodes),
        extra_args: &[],
    })
}

/// What the API server and `validate` accept.
fn is_accepted(method: Method, device: Device, gpus: i32, nodes: i32) -> bool {
    !(method == Method::Qlora && matches!(device, Device::Ascend | Device::Mps))
        && !(device == Device::Mps && (gpus > 1 || nodes > 1))
}

#[test]
fn the_command_line_of_every_combination() {
    let mut lines = Vec::new();
    for method in Method::ALL {
        for device in DEVICES {
            for gpus in [1, 4] {
                for nodes in [1, 2] {
                    for version in VERSIONS {
                        if !is_accepted(method, device, gpus, nodes) {
                            continue;
                        }
                        let Command { arguments, fresh_arguments, environment, stops_by_file, resumes } =
                            command_of(method, device, gpus, nodes, version);
                        assert_eq!(resumes, method != Method::Ppo);
                        assert_eq!((fresh_arguments.len(), stops_by_file), (0, version == "4.4" && resumes));
                        let environment: Vec<String> =
                            environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
                        lines.push(format!(
                            "# {method:?} {device:?} gpus={gpus} nodes={nodes} swift={version}\n{} {}",
                            environment.join(" "),
                            arguments.join(" ")
                        ));
                    }
                }
            }
        }
    }
    assert_eq!(lines.len(), 2 * (5 * 4 * 2 * 2 - 2 * 4 - 4 * 3));
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn the_version_that_is_assumed_has_golden_command_lines() {
    assert!(VERSIONS.contains(&version::NEWEST.to_string().as_str()));
}

/// What follows the user's arguments would replace the same flag in them without a word.
#[test]
fn each_flag_after_the_users_arguments_is_refused_in_them_or_has_their_value() {
    const OF_USERS: [&str; 3] = [BATCH_SIZE, ACCUMULATION, DEEPSPEED];
    let marker = "--of-the-user".to_owned();
    let model = StartModel { model: "m".into(), adapters: Some("/in/checkpoint-27".into()) };
    let mut count = 0;
    for method in Method::ALL {
        for device in DEVICES {
            for version in VERSIONS {
                let command = command(&Run {
                    version: Version::parse(version).unwrap(),
                    method,
                    device,
                    hub: Hub::Modelscope,
                    gpus: 2,
                    nodes: 2,
                    model: &model,
                    reward_model: (method == Method::Ppo).then_some("rm"),
                    datasets: &["d".to_owned()],
                    output_dir: "/output",
                    beta: None,
                    save_steps: 10,
                    keep_checkpoints: 1,
                    batch: Batch { size: 2, accumulation: 4 },
                    sharding: Sharding::Zero2,
                    extra_args: std::slice::from_ref(&marker),
                });
                let users = command.arguments.iter().position(|argument| *argument == marker).unwrap();
                let after = command.arguments[users + 1..].iter().chain(&command.fresh_arguments);
                for flag in after.filter(|argument| argument.starts_with("--")) {
                    let flag = flag.as_str();
                    assert_ne!(OF_USERS.contains(&flag), OWNED_FLAGS.contains(&flag), "{flag}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn dpo_on_adapters_keeps_its_reference_and_drops_the_start_when_it_resumes() {
    let model = StartModel { model: "qwen/Qwen-1.8B".into(), adapters: Some("/in/checkpoint-27".into()) };
    let command = command(&Run {
        version: Version::parse("4.4").unwrap(),
        method: Method::Dpo,
        device: Device::Nvidia,
        hub: Hub::Huggingface,
        gpus: 2,
        nodes: 1,
        model: &model,
        reward_model: None,
        datasets: &["d".to_owned()],
        output_dir: "/output",
        beta: None,
        save_steps: 10,
        keep_checkpoints: 1,
        batch: Batch { size: 2, accumulation: 4 },
        sharding: Sharding::Zero2,
        extra_args: &["--max_length".to_owned(), "512; rm -rf /".to_owned()],
    });
    assert_eq!(command.fresh_arguments, ["--adapters", "/in/checkpoint-27"]);
    let at = |flag: &str| command.arguments.iter().position(|argument| argument == flag);
    let value = |flag: &str| at(flag).map(|at| command.arguments[at + 1].as_str());
    assert_eq!(value("--ref_adapters"), Some("/in/checkpoint-27"));
    assert_eq!(value("--use_hf"), Some("true"));
    assert_eq!(at("--beta"), None);
    assert!(command.arguments.contains(&"512; rm -rf /".to_owned()), "one argument, whatever it contains");
    let last = |flag: &str| command.arguments.iter().rposition(|argument| argument == flag).unwrap();
    assert!(last("--output_dir") > last("--max_length"), "the controller's own flags come last");
}

#[test]
fn memory_is_saved_step_by_step_where_the_device_can() {
    let all = |method, device, gpus| {
        let mut steps = vec![Sharding::Nothing];
        while let Some(next) = steps.last().and_then(|last| last.next(method, device, gpus, 1)) {
            steps.push(next);
        }
        steps.len() - 1
    };
    assert_eq!([all(Method::Lora, Device::Nvidia, 2), all(Method::Full, Device::Ascend, 8)], [2, 2]);
    assert_eq!([all(Method::Qlora, Device::Nvidia, 2), all(Method::Lora, Device::Cpu, 2)], [1, 0]);
    assert_eq!(all(Method::Full, Device::Nvidia, 1), 0, "one GPU has nothing to share");
}

#[test]
fn versions_that_cannot_run_a_method_are_known() {
    let old = |version: &str, method, has_adapters| {
        unsupported(Version::parse(version).unwrap(), method, has_adapters).is_some()
    };
    assert!(old("3.0", Method::Ppo, false) && !old("3.1", Method::Ppo, false));
    assert!(
        old("3.7", Method::Dpo, true) && !old("3.7", Method::Dpo, false) && !old("3.8", Method::Dpo, true)
    );
    assert!(old("2.6", Method::Lora, false));
    let why = |version: &str, method, has_adapters| {
        unsupported(Version::parse(version).unwrap(), method, has_adapters).unwrap()
    };
    assert_eq!(
        why("3.0", Method::Ppo, false),
        "ms-swift 3.0 has no method ppo; use an image with 3.1 or later"
    );
    assert_eq!(
        why("3.7", Method::Dpo, true),
        "ms-swift 3.7 cannot start dpo from LoRA adapters; use an image with 3.8 or later"
    );
}
