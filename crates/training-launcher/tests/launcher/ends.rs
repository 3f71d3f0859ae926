//! How a run ends that was not asked to: what is a success, which exit code is passed on, and what the message says.

use std::{fs, process::Command};

use api::launcher::{Checkpoint, ExitCode};
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{Scene, until};

#[test]
fn a_training_that_reaches_its_last_step_succeeds() {
    let scene = Scene::new();
    let ended = scene.launch(1).run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let checkpoint = Checkpoint { path: scene.checkpoint(10).to_str().unwrap().to_owned(), step: 10 };
    assert_eq!(ended.resumed(), None);
    let message = ended.message;
    assert_eq!((message.exit_code, message.step, message.total_steps), (Some(0), Some(10), Some(10)));
    assert_eq!((message.checkpoint, message.stopped_early), (Some(checkpoint), false));
    assert_eq!((message.cause, message.error), (None, None));
    assert!(message.tail.unwrap().contains("End time of running main"));
    assert_eq!(scene.marker().unwrap()["phase"], "ended");
}

#[test]
fn exit_code_zero_before_the_last_step_is_no_success() {
    let scene = Scene::new();
    let ended = scene.launch(1).faults("exit0@7").run();
    assert_eq!(ended.code, ExitCode::Incomplete.code(), "{}", ended.stderr);
    let error = ended.message.error.unwrap();
    assert!(error.contains("at step 6 of 10") && error.contains("before the last step"), "{error}");
    assert_eq!(ended.message.checkpoint.unwrap().step, 5);
}

#[test]
fn the_last_step_without_a_complete_checkpoint_is_no_success() {
    let scene = Scene::new();
    // Ended by the trainer itself, in the middle of the last checkpoint.
    let script = format!(
        "{} \"$@\"; rm {}/trainer_state.json",
        scene.launch(1).trainer[0],
        scene.checkpoint(10).display()
    );
    let mut launch = scene.launch(1).environment("PATH", "/usr/bin:/bin");
    let rest = launch.trainer.split_off(1);
    launch.trainer = ["/bin/sh", "-c", &script, "sh"].map(str::to_owned).into_iter().chain(rest).collect();
    let ended = launch.run();
    assert_eq!(ended.code, ExitCode::Incomplete.code(), "{}", ended.stderr);
    assert_eq!(ended.message.checkpoint.unwrap().step, 5);
}

#[test]
fn a_checkpoint_of_an_earlier_attempt_proves_nothing() {
    let scene = Scene::new();
    let only_model = || scene.launch(1).trainer_argument("--save_only_model=true");
    assert_eq!(only_model().run().code, 0);
    // Not to be resumed, so the next attempt begins anew, and ends early beside the old last checkpoint.
    let again = only_model().option("attempt", "2").faults("exit0@3").run();
    assert_eq!(again.code, ExitCode::Incomplete.code(), "{}", again.stderr);
    assert_eq!(again.resumed(), None);
}

#[test]
fn an_early_stop_of_the_trainer_itself_is_a_success() {
    for fault in ["early-stop@6", "early-stopping@6"] {
        let scene = Scene::new();
        let ended = scene.launch(1).faults(fault).run();
        assert_eq!(ended.code, 0, "{fault}: {}", ended.stderr);
        assert!(ended.message.stopped_early, "{fault}");
        assert_eq!(ended.message.checkpoint.unwrap().step, 6);
    }
}

#[test]
fn ppo_succeeds_by_the_last_step_of_its_log() {
    let scene = Scene::new();
    let launch = scene.launch(1).trainer_argument("--rlhf_type=ppo");
    assert_eq!(launch.run().code, 0);
}

#[test]
fn an_accelerator_without_memory_is_the_cause_with_one_process_and_with_several() {
    for processes in ["", "2"] {
        let scene = Scene::new();
        let mut launch = scene.launch(1).faults("oom@3");
        if !processes.is_empty() {
            launch = launch.environment("NPROC_PER_NODE", processes);
        }
        let ended = launch.run();
        assert_eq!((ended.code, ended.message.exit_code), (1, Some(1)));
        assert_eq!(ended.message.cause.as_deref(), Some("CudaOutOfMemory"), "{:?}", ended.message);
        let error = ended.message.error.unwrap();
        assert!(error.contains("CUDA out of memory. Tried to allocate 19.14 GiB."), "{error}");
        assert_eq!(scene.marker().unwrap()["phase"], "ended");
    }
}

#[test]
fn exit_codes_of_the_trainer_are_passed_on_but_for_those_of_the_launcher() {
    for (fault, code) in
        [("exit@2=3", 3), ("host-oom@2", 247), ("exit@2=80", 1), ("exit@2=87", 1), ("exit@2=89", 89)]
    {
        let ended = Scene::new().launch(1).faults(fault).run();
        assert_eq!(ended.code, code, "{fault}");
    }
}

#[test]
fn a_trainer_that_a_signal_ends_has_the_code_of_a_shell_and_leaves_no_orphan() {
    let scene = Scene::new();
    let running = scene.launch(1).long().start();
    running.until_step(1);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.launcher.id())).unwrap();
    let swift = children.trim().parse().unwrap();
    until("swift and its trainer run", || running.alive().len() == 2);
    kill_process(Pid::from_raw(swift).unwrap(), Signal::KILL).unwrap();
    let ended = running.end();
    assert_eq!((ended.code, ended.message.signal, ended.message.exit_code), (137, Some(9), None));
}

#[test]
fn a_rank_that_is_killed_fails_the_run() {
    let scene = Scene::new();
    let ended = scene.launch(1).environment("NPROC_PER_NODE", "2").faults("kill-rank@3=1").run();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("exitcode  : -9"), "{}", ended.stderr);
}

#[test]
fn arguments_that_the_trainer_refuses_are_named() {
    let scene = Scene::new();
    let ended = scene.launch(1).trainer_argument("--train_type=lora").run();
    assert_eq!(ended.code, 1);
    let error = ended.message.error.unwrap();
    assert!(error.contains("remaining_argv: ['--train_type', 'lora']"), "{error}");
    assert_eq!(scene.launch(2).trainer_argument("--learning_rate=x").run().code, 2);
}

#[test]
fn a_full_volume_is_the_cause_and_the_last_complete_checkpoint_stays() {
    let scene = Scene::new();
    let ended = scene.launch(1).faults("disk-full@10=4194304").run();
    assert_eq!((ended.code, ended.message.cause.as_deref()), (1, Some("OutOfSpace")), "{:?}", ended.message);
    assert_eq!(ended.message.checkpoint.unwrap().step, 5);
}

/// Set for the test that is run once more.
const IN_NAMESPACE: &str = "TRAINING_LAUNCHER_TEST_IN_NAMESPACE";

/// Runs a test of this file once more in a mount namespace of its own, unless this machine allows none.
fn in_namespace(test: &str, body: fn()) {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return body();
    }
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount"]);
        unshare
    };
    let allows = unshare().arg("true").status().is_ok_and(|status| status.success());
    assert!(
        allows,
        "this test needs `unshare --user`: allow user namespaces (kernel.unprivileged_userns_clone), or run it as root"
    );
    let mut inner = unshare();
    inner
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("ends::{test}")])
        .env(IN_NAMESPACE, "1");
    let inner = inner.output().unwrap();
    let [said, complained] = [&inner.stdout, &inner.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(inner.status.success() && said.contains("1 passed"), "{said}{complained}");
}

fn mount_small(scene: &Scene) {
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &scene.output, "tmpfs", flags, Some(c"size=256k")).unwrap();
}

#[test]
fn a_volume_that_is_really_full_is_named_and_half_written_checkpoints_are_removed_from_it() {
    in_namespace(
        "a_volume_that_is_really_full_is_named_and_half_written_checkpoints_are_removed_from_it",
        || {
            let scene = Scene::new();
            mount_small(&scene);
            let ended = scene.launch(1).faults("disk-full@10").run();
            assert_eq!(
                (ended.code, ended.message.cause.as_deref()),
                (1, Some("OutOfSpace")),
                "{:?}",
                ended.message
            );
            assert_eq!(scene.marker().unwrap()["phase"], "ended", "also on a full volume");
            let again = scene.launch(2).run();
            assert_eq!(again.code, 0, "{}", again.stderr);

            let other = Scene::new();
            mount_small(&other);
            let full = fs::write(other.output.join("other"), vec![0; 1 << 20]);
            full.unwrap_err();
            let ended = other.launch(1).run();
            assert_eq!(ended.code, ExitCode::OutOfSpace.code(), "{}", ended.stderr);
            assert!(ended.message.error.unwrap().contains("enlarge it"));
        },
    );
}

#[test]
fn an_unfinished_last_line_is_part_of_the_message() {
    let ended = Scene::new().launch(1).faults("no-newline@2").run();
    assert!(ended.message.error.unwrap().contains("an unfinished line"));
    assert!(ended.stderr.contains("ValueError: an unfinished line"));
}

#[test]
fn secrets_are_not_in_the_message_and_the_log_is_unchanged() {
    let ended = Scene::new().launch(1).environment("HF_TOKEN", "correcthorse").faults("secret@2").run();
    assert_eq!(ended.code, 1);
    let error = ended.message.error.clone().unwrap();
    assert!(error.contains("the hub refuses (redacted)"), "{error}");
    let message = serde_json::to_string(&ended.message).unwrap();
    assert!(!message.contains("correcthorse"), "{message}");
    assert!(ended.stderr.contains("the hub refuses correcthorse"));
}

#[test]
fn a_trainer_that_cannot_be_started_has_a_code_of_its_own() {
    let scene = Scene::new();
    let mut launch = scene.launch(1);
    launch.trainer[0] = "no-such-swift".to_owned();
    let ended = launch.run();
    assert_eq!(ended.code, ExitCode::TrainerNotFound.code());
    let error = ended.message.error.unwrap();
    assert!(error.contains("cannot start no-such-swift") && error.contains("PATH"), "{error}");
    assert_eq!(scene.marker().unwrap()["phase"], "ended");
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let scene = Scene::new();
    let file = scene.output.join("file");
    fs::write(&file, "").unwrap();
    let ended = scene.launch(1).option("output-dir", file.to_str().unwrap()).run();
    assert_eq!(ended.code, ExitCode::OutputUnusable.code());
    let error = ended.message.error.unwrap();
    assert!(error.contains(file.to_str().unwrap()) && error.contains("check the claim"), "{error}");
}

#[test]
fn a_wrong_command_line_and_a_wrong_environment_are_faults_of_the_controller() {
    let scene = Scene::new();
    let of = |name: &str, value: &str| scene.launch(1).environment(name, value).run();
    let ended = of("POD_UID", "");
    assert_eq!(ended.code, ExitCode::Usage.code());
    assert!(ended.message.error.unwrap().contains("POD_UID"));
    assert_eq!(of("JOB_COMPLETION_INDEX", "1").code, ExitCode::Usage.code());
    assert_eq!(scene.launch(1).option("attempt", "0").run().code, ExitCode::Usage.code());
}
