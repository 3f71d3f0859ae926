//! Keys that would lead out of the folder. A store over a folder cannot hold them: the proxy lists them.

use api::loader::ExitCode;

use crate::{
    proxy::Break,
    scene::{Scene, files},
};

/// A page of a listing, as S3 sends it.
fn listing(keys: &[(&str, usize)]) -> String {
    let entry = |(key, size): &(&str, usize)| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>{size}</Size></Contents>"
        )
    };
    let entries: String = keys.iter().map(entry).collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>")
}

fn scene_with(keys: &[(&str, usize)]) -> Scene {
    let scene = Scene::new();
    let page = listing(keys);
    scene.proxy.rule(move |request| {
        if request.query.ends_with("prefix=qwen%2F") { Break::Answer(page.clone()) } else { Break::Nothing }
    });
    scene
}

#[test]
fn sizes_whose_sum_is_no_number_are_out_of_space() {
    for size in [usize::MAX, usize::MAX / 2 + 1] {
        let scene = scene_with(&[("qwen/a.bin", size), ("qwen/b.bin", size)]);
        scene.pull().run().failed(ExitCode::OutOfSpace, "make its volume larger");
    }
}

#[test]
fn invalid_keys_stop_the_pull_before_anything_is_fetched() {
    let long = format!("qwen/{}", "x".repeat(1019));
    for key in [
        "qwen/../../evil",
        "qwen/..",
        "qwen/a/../../../evil",
        "qwen//etc/evil",
        "qwen/a//b",
        "qwen/./evil",
        "qwen/a&#1;b",
        "qwen/a&#10;b",
        "llama/evil",
        "qwen/../evil/",
        "qwen/a/../../evil/",
        &long,
    ] {
        let scene = scene_with(&[("qwen/config.json", 1), (key, 1)]);
        scene.pull().run().failed(ExitCode::SourceNotFound, "rename");
        let requests = scene.proxy.take_requests();
        assert!(requests.iter().all(|request| request.is_list()), "{key}: {requests:?}");
        assert!(scene.pulled().is_empty(), "{key}");
        let beside = std::fs::read_dir(scene.folder().parent().unwrap()).unwrap().count();
        assert_eq!(beside, 1, "{key}: something is beside the folder");
    }
}

#[test]
fn a_key_of_1024_bytes_is_a_path_like_any_other() {
    let scene = Scene::new();
    let path = [250, 250, 250, 250].map(|length| "x".repeat(length)).join("/");
    let key = format!("qwen/{path}/{}", "y".repeat(1024 - 5 - path.len() - 1));
    assert_eq!(key.len(), 1024);
    scene.gateway.put(&key, b"deep");
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([(&key["qwen/".len()..], b"deep")]));
}

#[test]
fn case_twins_are_two_files() {
    let scene = Scene::new();
    scene.gateway.put("qwen/Model.bin", b"upper");
    scene.gateway.put("qwen/model.bin", b"lower");
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([("Model.bin", b"upper"), ("model.bin", b"lower")]));
}

#[test]
fn objects_that_stand_for_folders_and_files_of_ours_are_left_out() {
    let own = ("qwen/.model-transfer.jsonl", 5);
    let scene = scene_with(&[("qwen/", 0), own, ("qwen/sub/", 0), ("qwen/sub/a", 0)]);
    scene.gateway.put("qwen/sub/a", b"");
    // As the listing has it.
    scene.gateway.changed_at("qwen/sub/a", 1_767_225_600_000);
    scene.pull().run().succeeded();
    assert_eq!(scene.pulled(), files([("sub/a", b"")]));
}

#[test]
fn a_file_where_a_folder_must_be_is_reported() {
    let scene = scene_with(&[("qwen/a", 5), ("qwen/a/b", 5)]);
    scene.pull().run().failed(
        ExitCode::SourceNotFound,
        "\"a\" cannot be a file below the folder (there are objects below it)",
    );
}
