//! What a run takes from elsewhere: the checkpoints of an earlier job, and what was loaded from a hub before.

use std::fs;

use api::launcher::ExitCode;
use rustix::process::Signal;

use crate::scene::{Launch, Scene, started};

/// A job that goes on from what the other one has left. It has a claim of its own.
fn next(scene: &Scene, first: &Scene, attempt: u32) -> Launch {
    let launch = scene.launch(attempt).option("job-uid", "next");
    launch.option("resume-from", first.output.to_str().unwrap())
}

#[test]
fn a_successor_goes_on_after_the_last_checkpoint_of_a_failed_job_and_leaves_it_as_it_is() {
    let (first, scene) = (Scene::new(), Scene::new());
    first.interrupted();
    let before = fs::read_to_string(first.marker_path()).unwrap();
    let launch = next(&scene, &first, 1).faults("exit@6");
    let ended = launch.run();
    let source = first.checkpoint(5).to_str().unwrap().to_owned();
    assert_eq!((ended.code, ended.resumed()), (1, Some(source.as_str())), "{}", ended.stderr);
    assert!(scene.checkpoints().is_empty());
    let ended = next(&scene, &first, 2).run();
    assert_eq!((ended.code, ended.resumed()), (0, Some(source.as_str())), "it has none of its own yet");
    assert!(String::from_utf8(ended.stdout).unwrap().contains("'global_step/max_steps': '6/10'"));
    assert_eq!(scene.checkpoints(), ["checkpoint-10"]);
    assert_eq!(
        (first.checkpoints(), fs::read_to_string(first.marker_path()).unwrap()),
        (vec!["checkpoint-5".to_owned()], before)
    );
}

#[test]
fn later_attempts_go_on_from_their_own_checkpoint() {
    let (first, scene) = (Scene::new(), Scene::new());
    first.interrupted();
    let ended = next(&scene, &first, 1).trainer_argument("--save_steps=2").faults("exit@7").run();
    assert_eq!((ended.code, scene.checkpoints()), (1, vec!["checkpoint-6".to_owned()]));
    fs::remove_dir_all(&first.output).unwrap();
    let ended = next(&scene, &first, 2).run();
    assert_eq!((ended.code, ended.resumed()), (0, scene.checkpoint(6).to_str()), "{}", ended.stderr);
}

#[test]
fn one_checkpoint_may_be_named_and_a_half_written_one_is_left_alone() {
    let (first, scene) = (Scene::new(), Scene::new());
    first.interrupted();
    fs::create_dir(first.checkpoint(9)).unwrap();
    let named = next(&scene, &first, 1).option("resume-from", first.checkpoint(5).to_str().unwrap());
    assert_eq!(named.run().resumed(), first.checkpoint(5).to_str());
    assert!(first.checkpoint(9).exists());
    let other = Scene::new();
    let half = next(&other, &first, 1).option("resume-from", first.checkpoint(9).to_str().unwrap());
    assert_eq!(half.run().code, ExitCode::CannotResume.code());
}

#[test]
fn what_cannot_be_gone_on_from_is_refused_with_the_difference_and_no_trainer_starts() {
    let first = Scene::new();
    first.interrupted();
    let refusal = |change: &dyn Fn(Launch) -> Launch| {
        let scene = Scene::new();
        let launch = change(next(&scene, &first, 1));
        let ended = launch.run();
        assert_eq!(ended.code, ExitCode::CannotResume.code(), "{}", ended.stderr);
        assert!(started(&launch).is_empty());
        // The folder is free for another job.
        assert_eq!(scene.marker().unwrap()["phase"], "ended");
        ended.message.error.unwrap()
    };
    let model = refusal(&|launch| launch.trainer_argument("--model=other"));
    assert!(model.contains("its model is m, and that of this job other"), "{model}");
    let data = refusal(&|launch| launch.trainer_argument("--dataset=e"));
    assert!(data.contains("its dataset is d, and that of this job e"), "{data}");
    let sharded = refusal(&|launch| launch.trainer_argument("--deepspeed=zero2"));
    assert!(sharded.contains("no state of DeepSpeed"), "{sharded}");
    fs::remove_file(first.checkpoint(5).join("optimizer.pt")).unwrap();
    let incomplete = refusal(&|launch| launch);
    assert!(incomplete.contains("lack the state of the optimizer"), "{incomplete}");
    fs::remove_dir_all(first.checkpoint(5)).unwrap();
    assert!(refusal(&|launch| launch).contains("there is no folder checkpoint-<step>"));
    fs::remove_dir_all(&first.output).unwrap();
    assert!(refusal(&|launch| launch).contains("cannot be read"));
}

#[test]
fn a_source_that_has_done_all_steps_leaves_nothing_to_train() {
    let (first, scene) = (Scene::new(), Scene::new());
    assert_eq!(first.launch(1).run().code, 0);
    let ended = next(&scene, &first, 1).run();
    assert_eq!(ended.code, ExitCode::CannotResume.code(), "{}", ended.stderr);
    assert!(ended.message.error.unwrap().contains("no step is left"));
    let other = Scene::new();
    let more = next(&other, &first, 1).trainer_argument("--max_steps=15");
    assert_eq!(more.run().code, 0);
}

/// The first attempt loads its model into the claim, and fails after a checkpoint. Then the hub is away.
fn without_a_hub(scene: &Scene, is_hugging_face: bool, has_cache: bool) -> Launch {
    let away = scene.output.join("away");
    let attempt = |number| {
        let cache = scene.output.join(".cache/hub/qwen");
        let mut launch = scene.launch(number);
        let data = scene.output.join("data.jsonl");
        fs::write(&data, "").unwrap();
        for argument in [
            "--model",
            "owner/Model-1.5",
            "--dataset",
            data.to_str().unwrap(),
            "--use_hf",
            if is_hugging_face { "true" } else { "false" },
        ] {
            launch = launch.trainer_argument(argument);
        }
        let home = scene.output.join(format!("home-{number}"));
        launch = launch.environment("FAKE_SWIFT_HUB_AWAY", away.to_str().unwrap());
        launch = launch.environment("HOME", home.to_str().unwrap());
        if has_cache {
            launch = launch.environment("HF_HOME", cache.join("huggingface").to_str().unwrap());
            launch = launch.environment("MODELSCOPE_CACHE", cache.join("modelscope").to_str().unwrap());
            launch = launch.option("hub-cache", cache.to_str().unwrap());
        }
        launch
    };
    let first = attempt(1).faults("exit@7").run();
    assert_eq!((first.code, scene.checkpoints()), (1, vec!["checkpoint-5".to_owned()]), "{}", first.stderr);
    fs::write(&away, "").unwrap();
    attempt(2)
}

#[test]
fn a_training_goes_on_without_a_hub_and_what_was_loaded_is_deleted_after_success() {
    for is_hugging_face in [true, false] {
        let scene = Scene::new();
        let second = without_a_hub(&scene, is_hugging_face, true);
        assert!(scene.output.join(".cache/hub/qwen").exists(), "a failure keeps it");
        let ended = second.run();
        assert_eq!(ended.code, 0, "{is_hugging_face}: {}", ended.stderr);
        assert!(!scene.output.join(".cache").exists());
        assert_eq!(scene.checkpoints(), ["checkpoint-5", "checkpoint-10"]);
        // The path in the cache leads nowhere any more.
        let arguments = fs::read_to_string(scene.checkpoint(10).join("args.json")).unwrap();
        assert!(arguments.contains(r#""model":"owner/Model-1.5""#), "{arguments}");
    }
}

#[test]
fn a_cache_stays_if_the_path_of_the_model_cannot_be_replaced() {
    let scene = Scene::new();
    let second = without_a_hub(&scene, false, true);
    let running = second.start();
    running.until_noted("resuming from");
    // A folder where the launcher would write.
    fs::create_dir_all(scene.checkpoint(10).join(".args.json.new")).unwrap();
    let ended = running.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("was not deleted: failed to write the id"), "{}", ended.stderr);
    assert!(scene.output.join(".cache/hub/qwen").exists());
}

#[test]
fn without_a_cache_the_next_attempt_needs_the_hub() {
    let scene = Scene::new();
    let ended = without_a_hub(&scene, true, false).run();
    assert_eq!(ended.message.cause.as_deref(), Some(api::reasons::SOURCE_UNREACHABLE), "{}", ended.stderr);
}

#[test]
fn a_run_that_is_stopped_keeps_what_was_loaded() {
    let scene = Scene::new();
    let cache = scene.output.join(".cache/hub/qwen");
    fs::create_dir_all(&cache).unwrap();
    let running = scene.launch(1).option("hub-cache", cache.to_str().unwrap()).long().start();
    running.until_step(2);
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, ExitCode::Stopped.code());
    assert!(cache.exists());
}
