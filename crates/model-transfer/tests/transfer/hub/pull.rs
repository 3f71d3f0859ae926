//! What a pull of a hub copies.

use hub_server::{Content, Model, Side, commit_of};

use super::{HF, Hub, ID, MS, large, small};
use crate::scene::{MIB, files, noise};

#[test]
fn a_model_is_pulled_by_its_name_from_both_hubs() {
    let weights = noise(1, 40 * MIB + 5);
    for source in [HF, MS] {
        let config = [small("config.json", b"{}"), small("sub/a b?c%d#ä.txt", b"odd"), small("empty", b"")];
        let hub = Hub::with(Model::new(ID, config.into_iter().chain([large("model.safetensors", &weights)])));
        let loaded = hub.pull(source).run().loaded();
        assert_eq!((loaded.files, loaded.bytes), (4, weights.len() as u64 + 5));
        assert_eq!(loaded.commit, commit_of(ID, 0), "{source}");
        assert_eq!(
            hub.pulled(),
            files([
                ("config.json", b"{}"),
                ("sub/a b?c%d#ä.txt", b"odd"),
                ("empty", b""),
                ("model.safetensors", &weights)
            ])
        );
        let parts = hub.server.take_requests();
        let parts = parts.iter().filter(|request| request.side == Side::Network && request.is_file());
        assert_eq!(parts.count(), 3, "{source}: three ranges of at most 16 MiB");
    }
}

#[test]
fn a_branch_a_tag_and_a_commit_are_revisions() {
    let model = Model::new(ID, [small("config.json", b"old")]).with_tag("v1");
    let hub = Hub::with(model.with_commit([small("config.json", b"new")]));
    let old = commit_of(ID, 0);
    for (revision, content) in [("main", "new"), ("v1", "old"), (&*old, "old")] {
        let loaded = hub.pull(&format!("{HF}@{revision}")).run().loaded();
        assert_eq!(loaded.commit, commit_of(ID, usize::from(content == "new")), "{revision}");
        assert_eq!(hub.pulled(), files([("config.json", content.as_bytes())]), "{revision}");
    }
}

#[test]
fn a_list_of_many_pages_is_read_whole() {
    let many: Vec<(String, Content)> = (0..25).map(|file| small(&format!("{file:02}"), b"x")).collect();
    let hub = Hub::with(Model::new(ID, many));
    hub.server.entries_per_page(10);
    assert_eq!(hub.pull(HF).run().loaded().files, 25);
    assert_eq!(hub.server.take_requests().iter().filter(|request| request.is_list()).count(), 3);
}

#[test]
fn one_format_is_copied_unless_others_are_named() {
    let all = [
        "config.json",
        "model.safetensors",
        "original/params.json",
        "pytorch_model.bin",
        "consolidated.00.pth",
    ];
    let hub = Hub::with(Model::new(ID, all.map(|path| small(path, path.as_bytes()))));
    let paths = || hub.pulled().into_keys().collect::<Vec<_>>();
    hub.pull(HF).run().succeeded();
    assert_eq!(paths(), ["config.json", "model.safetensors"]);
    hub.pull(HF).arg("--include=*.bin").arg("--include=*.json").arg("--exclude=original/").run().succeeded();
    assert_eq!(paths(), ["config.json", "pytorch_model.bin"], "and what is no longer wanted is removed");
    let ended = hub.pull(HF).arg("--include=*.gguf").run();
    ended.failed(
        api::loader::ExitCode::SourceNotFound,
        "5 files, and none is wanted: correct spec.modelLoader.include",
    );
}

#[test]
fn a_file_that_is_in_place_is_not_fetched_again() {
    let weights = noise(2, 3 * MIB);
    let hub = Hub::with(Model::new(ID, [large("model.safetensors", &weights), small("config.json", b"1")]));
    hub.pull(HF).run().succeeded();
    hub.server.take_requests();
    let model = Model::new(ID, [large("model.safetensors", &weights)]);
    hub.server.put(model.with_commit([large("model.safetensors", &weights), small("config.json", b"2")]));
    hub.pull(HF).run().succeeded();
    let fetched: Vec<String> = hub
        .server
        .take_requests()
        .into_iter()
        .filter(|request| request.is_file())
        .map(|request| request.path)
        .collect();
    assert_eq!(fetched, [format!("/{ID}/resolve/{}/config.json", commit_of(ID, 1))]);
    assert_eq!(hub.pulled()["config.json"], b"2");
}
