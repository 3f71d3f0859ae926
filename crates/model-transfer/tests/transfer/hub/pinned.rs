//! Pods of one revision load one commit.

use api::loader::{ExitCode, Loaded};
use hub_server::{Model, commit_of};

use super::{HF, Hub, ID, MS, small};
use crate::scene::files;

fn model() -> Model {
    Model::new(ID, [small("config.json", b"first")])
}

fn moved() -> Model {
    model().with_commit([small("config.json", b"second")])
}

#[test]
fn a_pod_loads_the_commit_of_its_siblings_though_the_branch_has_moved() {
    for source in [HF, MS] {
        let hub = Hub::with(model());
        let first = hub.pull(source).run().loaded();
        hub.server.put(moved());
        let lines =
            [Loaded::line("7f9c", &first.digest), Loaded::commit_line("7f9c", &first.commit)].concat();
        let pull = |revision: &str| {
            let pull = hub.pull(source).env("TRANSFER_MODEL_DIGESTS", &lines);
            pull.env("TRANSFER_REVISION", revision).run().loaded()
        };
        assert_eq!(pull("7f9c"), first, "{source}");
        assert_eq!(hub.pulled(), files([("config.json", b"first")]));
        assert_eq!(
            pull("5d4").commit,
            commit_of(ID, 1),
            "a new revision, as after a refresh, takes the present commit"
        );
        assert_eq!(hub.pulled(), files([("config.json", b"second")]));
    }
}

#[test]
fn a_commit_that_is_gone_is_a_changed_model() {
    for source in [HF, MS] {
        let hub = Hub::with(model());
        let first = hub.pull(source).run().loaded();
        hub.server.put(moved().with_newest_only());
        let lines = Loaded::commit_line("7f9c", &first.commit);
        let ended =
            hub.pull(source).env("TRANSFER_MODEL_DIGESTS", &lines).env("TRANSFER_REVISION", "7f9c").run();
        ended.failed(ExitCode::ModelChanged, &format!("have loaded commit {}", first.commit));
        assert!(ended.reported.contains("ai.infra.example.com/refresh"), "{}", ended.reported);
    }
}

#[test]
fn the_commit_is_asked_for_once_in_a_run() {
    let hub = Hub::with(model());
    hub.pull(HF).run().succeeded();
    let requests = hub.server.take_requests();
    let revisions = requests.iter().filter(|request| request.path.contains("/revision/")).count();
    let others = requests.iter().filter(|request| !request.path.contains("/revision/"));
    assert_eq!(revisions, 1);
    assert!(others.into_iter().all(|request| request.path.contains(&commit_of(ID, 0))));
}

#[test]
fn a_model_that_the_siblings_have_not_is_refused() {
    let hub = Hub::with(model());
    let lines = Loaded::line("7f9c", &format!("sha256:{}", "0".repeat(64)));
    let ended = hub.pull(HF).env("TRANSFER_MODEL_DIGESTS", &lines).env("TRANSFER_REVISION", "7f9c").run();
    ended.failed(ExitCode::ModelChanged, "was changed");
}
