//! What `proto` holds besides the .proto files: Rust code, and the descriptors that the reflection service serves.
//!
//! protox compiles the files, so protoc is not needed. Nothing is written here.

use std::fs;

use anyhow::Context as _;
use prost::Message as _;

use crate::steps::workspace;

/// A file below `proto` and its content.
pub(super) struct Generated {
    pub(super) path: &'static str,
    pub(super) bytes: Vec<u8>,
}

/// The contract of this project, whose descriptors are published.
const CONTRACT: &str = "metrics/v1/metrics.proto";
/// The kubelet's.
const KUBELET: &str = "podresources/v1/api.proto";

pub(super) fn generated() -> anyhow::Result<Vec<Generated>> {
    let folder = workspace().join("proto");
    let compile =
        |file: &str| protox::compile([file], [&folder]).with_context(|| format!("failed to compile {file}"));
    let contract = compile(CONTRACT)?;
    let published = Generated { path: "src/generated/metrics.v1.binpb", bytes: contract.encode_to_vec() };
    // The generator writes into a folder, which is read back.
    let out = tempfile::tempdir().context("failed to create a folder")?;
    let mut all = vec![published];
    for (set, written, path) in [
        (contract, "metrics.v1.rs", "src/generated/metrics.v1.rs"),
        (compile(KUBELET)?, "v1.rs", "src/generated/podresources.v1.rs"),
    ] {
        tonic_prost_build::configure()
            .out_dir(out.path())
            .compile_fds(set)
            .with_context(|| format!("failed to generate {path}"))?;
        let bytes =
            fs::read(out.path().join(written)).with_context(|| format!("failed to read {written}"))?;
        all.push(Generated { path, bytes });
    }
    Ok(all)
}
