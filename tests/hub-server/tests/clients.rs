//! The hubs' own clients, `huggingface_hub` and `modelscope` from PyPI, download from the stand-in what it holds: so the
//! stand-in agrees with them, and the loader with both.
//!
//! Not part of the default tests, because it needs Python packages. `cargo xtask hub-clients` installs and runs them.

#![cfg(test)]

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use hub_server::{Access, Content, HubServer, Model, Side, commit_of};

const ID: &str = "qwen/Qwen-7B-Chat";
const TOKEN: &str = "hf_theSecretOfTheUser";

/// Prints the folder. `HF_HUB_DISABLE_XET` as for hubs that do not know that protocol, as mirrors.
const HUGGING_FACE: &str = "
import os, sys
from huggingface_hub import snapshot_download, HfApi
_, endpoint, folder, revision, token = sys.argv
api = HfApi(endpoint=endpoint, token=token or False)
print(api.model_info('qwen/Qwen-7B-Chat', revision=revision).sha)
snapshot_download('qwen/Qwen-7B-Chat', revision=revision, endpoint=endpoint, token=token or False, local_dir=folder)
";

const MODEL_SCOPE: &str = "
import os, sys
from modelscope.hub.snapshot_download import snapshot_download
_, endpoint, folder, revision, token = sys.argv
snapshot_download('qwen/Qwen-7B-Chat', revision=revision, local_dir=folder, token=token or None)
";

struct Ended {
    succeeded: bool,
    output: String,
}

fn run(script: &str, server: &HubServer, folder: &Path, revision: &str, token: &str) -> Ended {
    let python =
        std::env::var("HUB_CLIENTS_PYTHON").expect("HUB_CLIENTS_PYTHON names a python with the packages");
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command
        .arg("-c")
        .arg(script)
        .arg(server.endpoint())
        .arg(folder)
        .args([revision, token])
        .env_clear()
        .envs([
            ("HOME", home.path().to_str().unwrap()),
            ("PATH", "/usr/bin:/bin"),
            ("HF_ENDPOINT", &server.endpoint()),
            ("HF_HUB_DISABLE_XET", "1"),
            ("HF_HUB_DISABLE_TELEMETRY", "1"),
            ("MODELSCOPE_DOMAIN", server.endpoint().trim_start_matches("http://")),
            ("MODELSCOPE_ENDPOINT", &server.endpoint()),
            ("MODELSCOPE_URL_SCHEME", "http://"),
        ]);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Ended { succeeded: output.status.success(), output: String::from_utf8_lossy(&said).into_owned() }
}

fn downloaded(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            // Caches of the clients.
            if name.starts_with('.') {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else {
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

fn weights() -> Vec<u8> {
    (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn model() -> Model {
    let old = Model::new(ID, [("config.json".to_owned(), Content::small(b"old"))]).with_tag("v1");
    old.with_commit([
        ("config.json".to_owned(), Content::small(b"{\"a\": 1}")),
        ("sub/a b.txt".to_owned(), Content::small(b"odd")),
        ("model.safetensors".to_owned(), Content::large(&weights())),
    ])
}

fn expected() -> BTreeMap<String, Vec<u8>> {
    [
        ("config.json".to_owned(), b"{\"a\": 1}".to_vec()),
        ("sub/a b.txt".to_owned(), b"odd".to_vec()),
        ("model.safetensors".to_owned(), weights()),
    ]
    .into()
}

#[test]
#[ignore = "needs huggingface_hub and modelscope from PyPI: run cargo xtask hub-clients"]
fn the_clients_of_the_hubs_download_what_the_stand_in_has() {
    for (script, branch) in [(HUGGING_FACE, "main"), (MODEL_SCOPE, "master")] {
        let server = HubServer::start().unwrap();
        server.put(model());
        // More pages than one.
        server.entries_per_page(2);
        let folder = tempfile::tempdir().unwrap();
        let ended = run(script, &server, folder.path(), branch, "");
        assert!(ended.succeeded, "{}", ended.output);
        assert_eq!(downloaded(folder.path()), expected(), "{}", ended.output);
        if branch == "main" {
            assert!(ended.output.contains(&commit_of(ID, 1)), "{}", ended.output);
        }
        let requests = server.take_requests();
        assert!(requests.iter().any(|request| request.side == Side::Network), "{requests:?}");

        let folder = tempfile::tempdir().unwrap();
        let ended = run(script, &server, folder.path(), "v1", "");
        assert!(ended.succeeded, "{}", ended.output);
        assert_eq!(downloaded(folder.path()), [("config.json".to_owned(), b"old".to_vec())].into());
    }
}

#[test]
#[ignore = "needs huggingface_hub and modelscope from PyPI: run cargo xtask hub-clients"]
fn the_clients_of_the_hubs_understand_who_may_read() {
    for (script, branch) in [(HUGGING_FACE, "main"), (MODEL_SCOPE, "master")] {
        for access in [Access::Gated(TOKEN.to_owned()), Access::Private(TOKEN.to_owned())] {
            let server = HubServer::start().unwrap();
            server.put(model().with_access(access.clone()));
            let folder = tempfile::tempdir().unwrap();
            let ended = run(script, &server, folder.path(), branch, "");
            assert!(!ended.succeeded, "{access:?}: {}", ended.output);
            if branch == "main" {
                let error = match access {
                    Access::Gated(_) => "GatedRepoError",
                    Access::Private(_) | Access::Public => "RepositoryNotFoundError",
                };
                assert!(ended.output.contains(error), "{access:?}: {}", ended.output);
            }
            server.take_requests();
            let ended = run(script, &server, folder.path(), branch, TOKEN);
            assert!(ended.succeeded, "{access:?}: {}", ended.output);
            assert_eq!(downloaded(folder.path()), expected());
            let to_network = |request: &&hub_server::Request| request.side == Side::Network;
            for request in server.take_requests().iter().filter(to_network) {
                assert_eq!(request.token(), None, "as the loader: {:?}", request.headers);
            }
        }
    }
}
