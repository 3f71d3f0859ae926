//! From which checkpoint an attempt resumes, and what it removes.

use std::{fs, os::unix::fs::symlink};

use api::launcher::ExitCode;

use crate::scene::{Scene, copy_folder, started};

#[test]
fn the_next_attempt_resumes_from_the_newest_complete_checkpoint() {
    let scene = Scene::new();
    scene.interrupted();
    let launch = scene.launch(2);
    let ended = launch.run();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let checkpoint = scene.checkpoint(5).to_str().unwrap().to_owned();
    let arguments = &started(&launch)[0].0;
    assert_eq!(arguments[arguments.len() - 2..], ["--resume_from_checkpoint".to_owned(), checkpoint.clone()]);
    assert_eq!(ended.resumed(), Some(checkpoint.as_str()));
    assert!(String::from_utf8(ended.stdout).unwrap().contains("'global_step/max_steps': '6/10'"));
}

#[test]
fn a_trainer_that_cannot_resume_starts_anew_and_old_checkpoints_prove_nothing() {
    let scene = Scene::new();
    scene.interrupted();
    let anew = |attempt| {
        let mut launch = scene.launch(attempt);
        launch.flags = vec!["--never-resume"];
        launch
    };
    let second = anew(2).faults("exit@3");
    let ended = second.run();
    assert_eq!((ended.code, ended.resumed()), (1, None));
    assert!(!started(&second)[0].0.contains(&"--resume_from_checkpoint".to_owned()));
    assert!(scene.checkpoint(5).exists(), "what an earlier attempt has left is not deleted");
    let third = anew(3).run();
    assert_eq!((third.code, third.message.checkpoint.unwrap().step), (0, 10));
}

#[test]
fn arguments_for_a_fresh_run_are_added_only_without_a_checkpoint() {
    let scene = Scene::new();
    let fresh = |attempt| {
        let mut launch = scene.launch(attempt);
        launch.fresh_args = vec!["--adapters", "; rm -rf \"$HOME\""];
        launch
    };
    let first = fresh(1).faults("exit@7");
    assert_eq!(first.run().code, 1);
    let arguments = &started(&first)[0].0;
    assert_eq!(arguments[arguments.len() - 2..], ["--adapters", "; rm -rf \"$HOME\""]);
    let second = fresh(2);
    assert_eq!(second.run().code, 0);
    assert!(!started(&second)[0].0.contains(&"--adapters".to_owned()));
}

#[test]
fn a_half_written_checkpoint_is_skipped_and_removed() {
    let scene = Scene::new();
    let first = scene.launch(1).trainer_argument("--save_steps=3").faults("half@6").run();
    assert_eq!(first.code, 247);
    assert_eq!(scene.checkpoints(), ["checkpoint-3", "checkpoint-6"]);
    let second = scene.launch(2).faults("exit@5");
    let ended = second.run();
    assert_eq!(ended.resumed(), scene.checkpoint(3).to_str(), "{}", ended.stderr);
    assert!(!scene.checkpoint(6).exists());
    assert!(ended.stderr.contains("removing the half-written checkpoint"), "{}", ended.stderr);
}

#[test]
fn a_checkpoint_that_a_crash_has_truncated_is_skipped() {
    for file in ["adapter_model.safetensors", "optimizer.pt", "rng_state.pth", "training_args.bin"] {
        let scene = Scene::new();
        scene.interrupted();
        copy_folder(&scene.checkpoint(5), &scene.checkpoint(8));
        let state = scene.checkpoint(8).join("trainer_state.json");
        fs::write(
            &state,
            fs::read_to_string(&state).unwrap().replace("\"global_step\": 5", "\"global_step\": 8"),
        )
        .unwrap();
        let path = scene.checkpoint(8).join(file);
        let content = fs::read(&path).unwrap();
        fs::write(&path, &content[..content.len() - 1]).unwrap();
        let ended = scene.launch(2).run();
        assert_eq!(ended.resumed(), scene.checkpoint(5).to_str(), "{file}: {}", ended.stderr);
        assert_eq!(ended.code, 0, "{file}");
    }
}

#[test]
fn only_half_written_checkpoints_that_are_newer_are_removed() {
    let scene = Scene::new();
    scene.interrupted();
    let elsewhere = scene.output.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("kept"), "").unwrap();
    for folder in ["checkpoint-2", "checkpoint-8", "checkpoint-best", "runs"] {
        fs::create_dir(scene.output.join(folder)).unwrap();
    }
    symlink(&elsewhere, scene.checkpoint(9)).unwrap();
    symlink(&elsewhere, scene.checkpoint(8).join("link")).unwrap();
    assert_eq!(scene.launch(2).faults("exit@7").run().code, 1);
    assert!(!scene.checkpoint(8).exists());
    assert!(elsewhere.join("kept").exists());
    for kept in ["checkpoint-2", "checkpoint-best", "runs", "checkpoint-9"] {
        assert!(scene.output.join(kept).symlink_metadata().is_ok(), "{kept}");
    }
}

#[test]
fn a_checkpoint_without_optimizer_is_not_resumed_from() {
    let scene = Scene::new();
    scene.interrupted();
    fs::remove_file(scene.checkpoint(5).join("optimizer.pt")).unwrap();
    let ended = scene.launch(2).run();
    assert_eq!((ended.code, ended.resumed()), (0, None));
}

#[test]
fn checkpoints_of_another_job_are_neither_used_nor_touched() {
    for is_half_written in [false, true] {
        let scene = Scene::new();
        scene.interrupted();
        if is_half_written {
            fs::remove_file(scene.checkpoint(5).join("trainer_state.json")).unwrap();
        }
        let launch = scene.launch(1).option("job-uid", "other");
        let ended = launch.run();
        assert_eq!(ended.code, ExitCode::OutputNotEmpty.code(), "{}", ended.stderr);
        assert!(ended.message.error.unwrap().contains("checkpoint-5"));
        assert!(started(&launch).is_empty());
        assert_eq!(scene.checkpoints(), ["checkpoint-5"]);
        assert_eq!(scene.marker().unwrap()["job"], "job");
    }
}

#[test]
fn checkpoints_without_a_marker_are_those_of_another_job() {
    let scene = Scene::new();
    scene.interrupted();
    fs::remove_file(scene.marker_path()).unwrap();
    assert_eq!(scene.launch(2).run().code, ExitCode::OutputNotEmpty.code());
}

#[test]
fn an_output_of_a_job_that_has_ended_without_checkpoints_is_taken_over() {
    let scene = Scene::new();
    scene.write_marker("other", 3, "pod", "ended");
    assert_eq!(scene.launch(1).run().code, 0);
    assert_eq!(scene.marker().unwrap()["job"], "job");
}

#[test]
fn a_marker_that_cannot_be_parsed_is_not_replaced() {
    let scene = Scene::new();
    fs::write(scene.marker_path(), "{").unwrap();
    let ended = scene.launch(1).run();
    assert_eq!(ended.code, ExitCode::OutputNotEmpty.code());
    assert!(ended.message.error.unwrap().contains("delete it"));
    assert_eq!(fs::read_to_string(scene.marker_path()).unwrap(), "{");
}
