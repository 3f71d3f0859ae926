//! The trainer's image: no program of its own, only links to the folders of this machine that the pod mounts. Every path is
//! the same as on this machine, so Python, its libraries and its packages are found where they were installed.

use std::{fs, io::Write as _, path::Path};

use anyhow::Context as _;
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::EntryType;

use crate::python::Environment;

pub(super) const REFERENCE: &str = "local.test/ms-swift-of-this-machine:1";
/// Where the pod mounts folders of this machine.
pub(super) const USR: &str = "/host/usr";
pub(super) const PYTHON: &str = "/host/python";
pub(super) const FOLDER: &str = "/host/train-demo";

/// Where programs, libraries and the dynamic loader are below `/usr`.
const LINKS: [&str; 3] = ["bin", "lib", "lib64"];

/// Writes the image as a folder in OCI image layout.
pub(super) fn write(environment: &Environment, layout: &Path) -> anyhow::Result<()> {
    let tar = layer(environment)?;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&tar).context("failed to compress a layer")?;
    let compressed = gzip.finish().context("failed to compress a layer")?;
    let path = format!("{}/venv/bin:/usr/bin", environment.folder.display());
    let configuration = serde_json::to_vec(&json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Env": [format!("PATH={path}")], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [digest(&tar)] },
    }))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &configuration),
        "layers": [descriptor("layer.v1.tar+gzip", &compressed)],
    }))?;
    let index = json!({ "schemaVersion": 2, "manifests": [descriptor("manifest.v1+json", &manifest)] });
    let blobs = [&compressed, &configuration, &manifest];
    let blobs = blobs.map(|blob| (format!("blobs/{}", digest(blob).replace(':', "/")), blob.clone()));
    let files = blobs.into_iter().chain([
        ("index.json".to_owned(), serde_json::to_vec(&index)?),
        ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
    ]);
    for (name, bytes) in files {
        let file = layout.join(name);
        let written =
            fs::create_dir_all(file.parent().unwrap_or(layout)).and_then(|()| fs::write(&file, bytes));
        written.with_context(|| format!("failed to write {}", file.display()))?;
    }
    Ok(())
}

fn layer(environment: &Environment) -> anyhow::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut folder = header(EntryType::Directory, 0o1777);
    tar.append_data(&mut folder, "tmp/", [].as_slice()).context("failed to pack tmp")?;
    for (path, target) in links(environment) {
        let mut header = header(EntryType::Symlink, 0o777);
        tar.append_link(&mut header, &path, &target).with_context(|| format!("failed to pack {path}"))?;
    }
    tar.into_inner().context("failed to end a layer")
}

/// Paths of this machine, without the leading slash, and where the pod has them.
fn links(environment: &Environment) -> Vec<(String, String)> {
    let relative = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_owned();
    let mut links = vec![("usr".to_owned(), USR.to_owned())];
    links.extend(LINKS.map(|name| (name.to_owned(), format!("{USR}/{name}"))));
    if !is_below_usr(environment) {
        links.push((relative(&environment.python), PYTHON.to_owned()));
    }
    links.push((relative(&environment.folder), FOLDER.to_owned()));
    links
}

/// Whether Python came with the system.
pub(super) fn is_below_usr(environment: &Environment) -> bool {
    environment.python.starts_with("/usr")
}

/// Of something without content.
fn header(kind: EntryType, mode: u32) -> tar::Header {
    // Of GNU tar, because paths of a home folder may be long.
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    let media_type = format!("application/vnd.oci.image.{kind}");
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(python: &str) -> Environment {
        Environment { python: python.into(), folder: "/root/.cache/demo".into() }
    }

    #[test]
    fn paths_are_those_of_this_machine() {
        let links = links(&environment("/opt/python"));
        for link in [("usr", USR), ("opt/python", PYTHON), ("root/.cache/demo", FOLDER)] {
            assert!(links.contains(&(link.0.to_owned(), link.1.to_owned())), "{links:?}");
        }
    }

    #[test]
    fn a_python_of_the_system_needs_no_link() {
        for python in ["/usr", "/usr/local"] {
            assert!(links(&environment(python)).iter().all(|(_, target)| target != PYTHON));
        }
    }

    #[test]
    fn the_layout_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        write(&environment("/usr"), folder.path()).unwrap();
        let read = |path: &str| -> Value {
            serde_json::from_slice(&fs::read(folder.path().join(path)).unwrap()).unwrap()
        };
        let blob = |descriptor: &Value| {
            format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"))
        };
        let manifest = read(&blob(&read("index.json")["manifests"][0]));
        for part in [&manifest["config"], &manifest["layers"][0]] {
            let bytes = fs::read(folder.path().join(blob(part))).unwrap();
            assert_eq!(Some(bytes.len() as u64), part["size"].as_u64());
        }
    }
}
