//! Models of hubs, from `tests/hub-server`.

mod access;
mod faults;
mod pinned;
mod pull;

use std::{collections::BTreeMap, path::PathBuf};

use hub_server::{Content, HubServer, Model};
use tempfile::TempDir;

use crate::{program::Program, scene};

const ID: &str = "qwen/Qwen-7B-Chat";
const HF: &str = "hf://qwen/Qwen-7B-Chat";
const MS: &str = "ms://qwen/Qwen-7B-Chat";
const TOKEN: &str = "hf_theSecretOfTheUser";

/// A hub with a model, and a folder to pull into.
struct Hub {
    server: HubServer,
    root: TempDir,
}

impl Hub {
    fn with(model: Model) -> Self {
        let server = HubServer::start().unwrap();
        server.put(model);
        Self { server, root: tempfile::tempdir().unwrap() }
    }

    fn folder(&self) -> PathBuf {
        self.root.path().join("models")
    }

    fn pull(&self, source: &str) -> Program {
        // No store is asked.
        let nowhere = ([127, 0, 0, 1], 1).into();
        let program = Program::new(nowhere, ["pull", source, self.folder().to_str().unwrap()]);
        program.env("TRANSFER_HUB_ENDPOINT", &self.server.endpoint())
    }

    fn pulled(&self) -> BTreeMap<String, Vec<u8>> {
        scene::pulled(&self.folder())
    }
}

fn small(path: &str, bytes: &[u8]) -> (String, Content) {
    (path.to_owned(), Content::small(bytes))
}

fn large(path: &str, bytes: &[u8]) -> (String, Content) {
    (path.to_owned(), Content::large(bytes))
}
