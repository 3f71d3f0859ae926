//! Test models in an S3 store, and what an engine has read of them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU16, Ordering},
};

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use local_cluster::{HUB_ADDRESS, Service};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tests::{ENGINE_IMAGE, ENGINE_VERSION, PRODUCT, Scene, inference};

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const BUCKET: &str = "models";
const ACCESS_KEY: &str = "AKIATESTACCESSKEY";
const SECRET_KEY: &str = "test-secret-key-that-must-not-be-logged";
/// Name of the Secret with both keys.
pub(crate) const SECRET: &str = "store";

/// The S3 server of a test, reachable from real nodes. It ends with the cluster.
pub(crate) struct Store<'a> {
    scene: &'a Scene<'a>,
    name: String,
    port: u16,
    /// Its folders are buckets, their files objects.
    folder: PathBuf,
}

impl<'a> Store<'a> {
    /// With an empty bucket and a Secret for it.
    pub(crate) async fn start(scene: &'a Scene<'a>) -> Self {
        let store = Self::prepared(scene).await;
        let program = local_cluster::tools::ensure_services().expect("the S3 server is built");
        let service = Service {
            name: store.name.clone(),
            program: program.join("versitygw"),
            args: [
                "--port",
                &format!("{HUB_ADDRESS}:{}", store.port),
                "posix",
                &store.folder.display().to_string(),
            ]
            .map(str::to_owned)
            .into(),
            env: [("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        };
        scene.start_service(service).await.expect("the S3 server starts");
        store
    }

    async fn prepared(scene: &'a Scene<'a>) -> Self {
        static NEXT_PORT: AtomicU16 = AtomicU16::new(9100);
        let name = format!("store-{}", scene.namespace());
        let folder = scene.folder().root().join(&name);
        let store = Self { scene, port: NEXT_PORT.fetch_add(1, Ordering::Relaxed), folder, name };
        store.make_bucket(BUCKET);
        store.give_credentials(SECRET_KEY).await;
        store
    }

    pub(crate) async fn stop(&self) {
        self.scene.stop_component(&self.name).await.expect("the S3 server stops");
    }

    pub(crate) async fn start_again(&self) {
        self.scene.start_component(&self.name).await.expect("the S3 server starts");
    }

    pub(crate) fn make_bucket(&self, name: &str) {
        fs::create_dir_all(self.folder.join(name)).expect("a folder for a bucket");
    }

    /// Renames a bucket with its objects.
    pub(crate) fn rename_bucket(&self, from: &str, to: &str) {
        fs::rename(self.folder.join(from), self.folder.join(to)).expect("a bucket");
    }

    /// Replaces the key in the Secret.
    pub(crate) async fn give_credentials(&self, secret_key: &str) {
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": SECRET },
            "stringData": { "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": secret_key },
        });
        self.scene.apply(&secret.to_string()).await.expect("a Secret");
    }

    pub(crate) async fn give_right_credentials(&self) {
        self.give_credentials(SECRET_KEY).await;
    }

    /// Writes an object atomically.
    pub(crate) fn put(&self, path: &str, content: &[u8]) {
        self.put_by(path, |new| fs::write(new, content));
    }

    /// Writes zeros as a sparse file.
    pub(crate) fn put_zeros(&self, path: &str, size: usize) {
        self.put_by(path, |new| fs::File::create(new)?.set_len(size as u64));
    }

    fn put_by(&self, path: &str, write: impl FnOnce(&Path) -> std::io::Result<()>) {
        // Outside the server's folder.
        let (place, new) = (self.folder.join(BUCKET).join(path), self.folder.with_extension("new"));
        fs::create_dir_all(place.parent().expect("a bucket")).expect("a folder for an object");
        write(&new).and_then(|()| fs::rename(&new, &place)).expect("an object");
    }

    pub(crate) fn put_model(&self, prefix: &str, model: &Model) {
        for (path, content) in &model.0 {
            self.put(&format!("{prefix}/{path}"), content);
        }
    }

    /// The destination of an upload below this prefix.
    pub(crate) fn upload(&self, prefix: &str) -> Value {
        let (uri, endpoint) = (format!("s3://{BUCKET}/{prefix}"), self.endpoint());
        json!({ "uri": uri, "endpoint": endpoint, "secretName": SECRET })
    }

    /// The storage of checkpoints below this prefix.
    pub(crate) fn checkpoint(&self, prefix: &str) -> Value {
        let mut checkpoint = self.upload(prefix);
        checkpoint["graceSeconds"] = json!(20);
        checkpoint
    }

    /// The content of an object.
    pub(crate) fn object(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(self.folder.join(BUCKET).join(path)).ok()
    }

    fn endpoint(&self) -> String {
        format!("http://{HUB_ADDRESS}:{}", self.port)
    }

    /// A spec on a real node with everything below this prefix as its model.
    pub(crate) fn spec(&self, prefix: &str) -> Value {
        with(
            on_real_nodes(&format!("s3://{BUCKET}/{prefix}")),
            json!({ "modelStore": { "endpoint": self.endpoint(), "secretName": SECRET } }),
        )
    }
}

/// A spec with one GPU of a real node.
pub(crate) fn on_real_nodes(source: &str) -> Value {
    json!({
        "modelSource": source,
        "image": ENGINE_IMAGE,
        "engineVersion": ENGINE_VERSION,
        "gpu": { "productLabel": PRODUCT, "count": 1 },
    })
}

pub(crate) fn with(mut spec: Value, changes: Value) -> Value {
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    spec
}

/// Settings of the test engine, as environment variables.
pub(crate) fn settings<const N: usize>(settings: [(&str, &str); N]) -> Value {
    let env: Vec<Value> =
        settings.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    json!({ "env": env })
}

/// Files by path.
pub(crate) struct Model(BTreeMap<String, Vec<u8>>);

impl Model {
    /// These files alone.
    pub(crate) fn of<const N: usize>(files: [(&str, Vec<u8>); N]) -> Self {
        Self(files.into_iter().map(|(path, content)| (path.to_owned(), content)).collect())
    }

    /// With SHA256SUMS.
    pub(crate) fn new<const N: usize>(files: [(&str, Vec<u8>); N]) -> Self {
        let Self(mut files) = Self::of(files);
        let sums: String =
            files.iter().map(|(path, content)| format!("{}  {path}\n", sha256(content))).collect();
        files.insert("SHA256SUMS".to_owned(), sums.into_bytes());
        Self(files)
    }

    /// A model that is copied quickly.
    pub(crate) fn small() -> Self {
        Self::new([("config.json", b"{}".into()), ("weights/model.bin", noise(1, MIB))])
    }

    pub(crate) fn file(&self, path: &str) -> &[u8] {
        &self.0[path]
    }

    pub(crate) fn write_to(&self, folder: &Path) {
        for (path, content) in &self.0 {
            let place = folder.join(path);
            fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
            fs::write(place, content).expect("a file");
        }
    }

    /// The digest of each file.
    pub(crate) fn digests(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(path, content)| (path.clone(), sha256(content))).collect()
    }
}

/// Pseudorandom bytes, reproducible by seed.
pub(crate) fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed;
    let block: Vec<u8> = (0..MIB / 8).flat_map(|_| splitmix(&mut state).to_le_bytes()).collect();
    let mut noise = Vec::with_capacity(size + MIB);
    while noise.len() < size {
        let begin = noise.len();
        noise.extend_from_slice(&block);
        noise[begin..begin + 8].copy_from_slice(&splitmix(&mut state).to_le_bytes());
    }
    noise.truncate(size);
    noise
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

pub(crate) fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The engine's report about its model.
#[derive(Debug, PartialEq)]
pub(crate) struct Read {
    /// The digest of each file, without the loader's own record.
    pub(crate) digests: BTreeMap<String, String>,
    pub(crate) writable: bool,
}

pub(crate) fn read_by(scene: &Scene<'_>, pod: &Pod) -> Read {
    let report: Value = serde_json::from_str(&asked(scene, pod, "model")).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let files = report["files"].as_array().expect("files").iter();
    let digests = files.map(|file| (text(&file["path"]), text(&file["sha256"])));
    Read {
        digests: digests.filter(|(path, _)| !path.starts_with(".model-transfer.")).collect(),
        writable: report["writable"].as_bool().expect("whether it can be written"),
    }
}

/// The response of an engine to a GET of `path`.
pub(crate) fn asked(scene: &Scene<'_>, pod: &Pod, path: &str) -> String {
    let name = pod.metadata.name.as_deref().expect("a name");
    let place = format!("/api/v1/namespaces/{}/pods/{name}:8000/proxy/{path}", scene.namespace());
    scene.kubectl(&["get", "--raw", &place])
}

/// The pods of an AIInference, by name.
pub(crate) async fn pods_of(scene: &Scene<'_>, inference: &str) -> Vec<Pod> {
    let labels = ListParams::default().labels(&inference::pods_of(inference));
    let mut pods = scene.api::<Pod>().list(&labels).await.expect("a list of pods").items;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    pods.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    pods
}

/// The one pod of an AIInference.
pub(crate) async fn pod_of(scene: &Scene<'_>, inference: &str) -> Pod {
    let mut pods = pods_of(scene, inference).await;
    assert_eq!(pods.len(), 1, "{pods:#?}");
    pods.remove(0)
}
