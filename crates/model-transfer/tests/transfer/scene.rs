//! A server, a proxy before it, and a folder to pull into.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{gateway::Gateway, program::Program, proxy::Proxy};

pub(crate) const SOURCE: &str = "s3://models/qwen";
pub(crate) const MIB: usize = 1 << 20;

pub(crate) struct Scene {
    pub(crate) gateway: Gateway,
    pub(crate) proxy: Proxy,
    root: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::before(Gateway::start())
    }

    pub(crate) fn before(gateway: Gateway) -> Self {
        let proxy = Proxy::start(gateway.address);
        Self { gateway, proxy, root: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn folder(&self) -> std::path::PathBuf {
        self.root.path().join("models")
    }

    pub(crate) fn pull(&self) -> Program {
        self.pull_from(SOURCE)
    }

    pub(crate) fn pull_from(&self, source: &str) -> Program {
        Program::new(self.proxy.address, ["pull", source, self.folder().to_str().unwrap()])
    }

    /// Every file of the folder except those of the program, by path below it.
    pub(crate) fn pulled(&self) -> BTreeMap<String, Vec<u8>> {
        pulled(&self.folder())
    }
}

/// Every file of a folder except those of the program, by path below it.
pub(crate) fn pulled(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    collect(folder, folder, &mut files);
    files.retain(|path, _| !path.starts_with(".model-transfer"));
    files
}

fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read(path).unwrap());
        }
    }
}

/// Bytes without a pattern, the same each time.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

/// The contents that were put, by path below the prefix.
pub(crate) fn files<const N: usize>(files: [(&str, &[u8]); N]) -> BTreeMap<String, Vec<u8>> {
    files.into_iter().map(|(path, content)| (path.to_owned(), content.to_vec())).collect()
}

/// Waits by polling for events in the store, which cannot be watched.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        sleep(Duration::from_millis(5));
    }
}
