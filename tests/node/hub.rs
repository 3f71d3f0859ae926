//! A hub of models in the network of the nodes.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU16, Ordering},
};

use local_cluster::{HUB_ADDRESS, Service, explained, sibling_binary};
use serde_json::{Value, json};
use tests::Scene;

use crate::store::{Model, on_real_nodes, with};

/// The hub of a test, reachable from real nodes. It ends with the cluster.
pub(crate) struct Hub<'a> {
    scene: &'a Scene<'a>,
    name: String,
    port: u16,
    folder: PathBuf,
}

impl<'a> Hub<'a> {
    /// Without models.
    pub(crate) fn prepared(scene: &'a Scene<'a>) -> Self {
        // Each has two: of its APIs, and of its large files.
        static NEXT_PORT: AtomicU16 = AtomicU16::new(9500);
        let name = format!("hub-{}", scene.namespace());
        let folder = scene.folder().root().join(&name);
        fs::create_dir_all(&folder).expect("a folder for models");
        Self { scene, port: NEXT_PORT.fetch_add(2, Ordering::Relaxed), folder, name }
    }

    /// The commit of this number, from 0 on. A hub reads its models when it starts.
    pub(crate) fn put(&self, id: &str, number: usize, model: &Model) {
        model.write_to(&self.folder.join(id).join(number.to_string()));
    }

    /// Without this token, the hub answers as if the model did not exist.
    pub(crate) fn make_private(&self, id: &str, token: &str) {
        fs::write(self.folder.join(id).join("token"), token).expect("a file for the token");
    }

    pub(crate) async fn start(&self) {
        let program = sibling_binary("hub-server").unwrap_or_else(|error| panic!("{}", explained(&error)));
        let at = |port: u16| format!("{HUB_ADDRESS}:{port}");
        let service = Service {
            name: self.name.clone(),
            program,
            args: [
                format!("--listen={}", at(self.port)),
                format!("--network={}", at(self.port + 1)),
                format!("--models={}", self.folder.display()),
            ]
            .into(),
            env: [].into(),
        };
        self.scene.start_service(service).await.expect("the hub starts");
    }

    pub(crate) async fn start_again(&self) {
        self.scene.restart_component(&self.name).await.expect("the hub starts again");
    }

    /// A spec on a real node with this model of Hugging Face.
    pub(crate) fn spec(&self, source: &str) -> Value {
        let endpoint = format!("http://{HUB_ADDRESS}:{}", self.port);
        with(on_real_nodes(source), json!({ "modelStore": { "endpoint": endpoint } }))
    }
}
