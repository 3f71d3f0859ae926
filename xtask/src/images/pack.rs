//! Writes one image: a layer with the program, a configuration and a manifest for each platform, and an index where there
//! are several; as an OCI layout, and as an archive of it.
//!
//! The bytes depend on the arguments alone: names have a fixed order, files have no times and no users of this machine,
//! and the compressor gives the same result on every processor. All files belong to root; the program runs as another
//! user.

use std::{
    collections::BTreeSet,
    env, fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{certificates, glibc::Library, licences::Licences, platform::Platform};
use crate::steps::workspace;

/// What goes into an image.
pub(super) struct Content<'a> {
    /// Name of the program, which is `/<name>` and the entry point.
    pub(super) name: &'a str,
    pub(super) description: &'a str,
    /// Name of the image, `registry/name:tag`.
    pub(super) reference: &'a str,
    /// One for each platform.
    pub(super) binaries: Vec<Binary<'a>>,
    /// Of the authorities that are trusted, for programs that connect to other hosts.
    pub(super) certificates: Option<&'a str>,
    /// Another name under which the program is in PATH. The image then has a folder for temporary files, too, as the images
    /// have that it stands for.
    pub(super) stands_for: Option<&'a str>,
    pub(super) licences: &'a Licences,
    pub(super) origin: &'a Origin,
}

/// A program for one platform, with what it loads when it starts.
pub(super) struct Binary<'a> {
    pub(super) platform: Platform,
    pub(super) program: &'a [u8],
    pub(super) libraries: &'a [Library],
}

impl<'a> Binary<'a> {
    /// A static program.
    #[cfg(test)]
    pub(super) fn alone((platform, program): (Platform, &'a [u8])) -> Self {
        Self { platform, program, libraries: &[] }
    }
}

/// What an image was made from.
pub(super) struct Origin {
    /// RFC 3339.
    created: String,
    /// The commit, marked if files differ from it; none outside of a repository.
    revision: Option<String>,
}

/// Marks a revision whose files are not those of the commit.
const DIRTY: &str = "-dirty";

/// The result of writing an image.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) digest: String,
    pub(super) archive_bytes: u64,
}

/// A number, because `runAsNonRoot` cannot look up names.
const USER: &str = "65532:65532";
const PASSWD: &str = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";

/// A folder of the PATH that container runtimes set.
const PATH_FOLDER: &str = "usr/local/bin/";

const SOURCE: &str = "https://github.com/ai-controllers/ai-controllers";
const LICENCE: &str = "Apache-2.0";

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIGURATION: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

impl Origin {
    /// `SOURCE_DATE_EPOCH` takes precedence over the time of the commit, as in other build tools.
    pub(super) fn of_this_commit() -> anyhow::Result<Self> {
        let revision = git(&["rev-parse", "HEAD"]).map(|commit| {
            let is_clean = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
            if is_clean { commit } else { format!("{commit}{DIRTY}") }
        });
        let epoch = env::var("SOURCE_DATE_EPOCH").ok();
        let seconds = epoch.or_else(|| git(&["log", "-1", "--format=%ct"])).unwrap_or_else(|| "0".to_owned());
        let seconds: i64 = seconds.parse().with_context(|| {
            format!("SOURCE_DATE_EPOCH must be a number of seconds since 1970, and is {seconds:?}")
        })?;
        let created = jiff::Timestamp::from_second(seconds).context("SOURCE_DATE_EPOCH is out of range")?;
        Ok(Self { created: created.to_string(), revision })
    }

    #[cfg(test)]
    pub(super) fn made_from(revision: Option<&str>) -> Self {
        Self { created: String::new(), revision: revision.map(str::to_owned) }
    }

    /// Whether an image says which sources it was made from.
    pub(super) fn is_a_commit(&self) -> bool {
        self.revision.as_ref().is_some_and(|revision| !revision.ends_with(DIRTY))
    }
}

/// Replaces an older layout and archive.
pub(super) fn write(content: &Content<'_>, layout: &Path, archive: &Path) -> anyhow::Result<Written> {
    let image = image(content)?;
    ensure!(
        !layout.exists() || layout.join("oci-layout").is_file(),
        "{} is there and is no image: move it away, or choose another folder",
        layout.display()
    );
    // An interrupted write must not leave half an image, which would be taken for a folder with other content.
    let begun = layout.with_extension("new");
    if begun.exists() {
        fs::remove_dir_all(&begun).with_context(|| format!("failed to remove {}", begun.display()))?;
    }
    let mut tar = tar::Builder::new(Vec::new());
    folder_entry(&mut tar, "blobs/")?;
    folder_entry(&mut tar, "blobs/sha256/")?;
    for File { path, bytes } in &image.files {
        let target = begun.join(path);
        let folder = target.parent().unwrap_or(&begun);
        fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        fs::write(&target, bytes).with_context(|| format!("failed to write {}", target.display()))?;
        file_entry(&mut tar, path, 0o644, bytes)?;
    }
    if layout.exists() {
        fs::remove_dir_all(layout).with_context(|| format!("failed to remove {}", layout.display()))?;
    }
    fs::rename(&begun, layout).with_context(|| format!("failed to write {}", layout.display()))?;
    let bytes = tar.into_inner().context("failed to end the archive")?;
    fs::write(archive, &bytes).with_context(|| format!("failed to write {}", archive.display()))?;
    Ok(Written { digest: image.digest, archive_bytes: bytes.len() as u64 })
}

/// An image as files of a layout, in the order of an archive.
struct Image {
    digest: String,
    files: Vec<File>,
}

struct File {
    path: String,
    bytes: Vec<u8>,
}

/// Content that is addressed by its digest.
struct Blob {
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    fn of(bytes: Vec<u8>) -> Self {
        Self { digest: digest(&bytes), bytes }
    }

    fn json(value: &Value) -> anyhow::Result<Self> {
        Ok(Self::of(serde_json::to_vec(value).context("failed to write JSON")?))
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": self.digest, "size": self.bytes.len() })
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }

    fn file(self) -> File {
        File { path: self.path(), bytes: self.bytes }
    }
}

fn image(content: &Content<'_>) -> anyhow::Result<Image> {
    let annotations = annotations(content);
    let mut parts = Vec::new();
    for binary in &content.binaries {
        parts.push(part(content, binary, &annotations)?);
    }
    let manifests: Vec<Value> = parts.iter().map(Part::descriptor).collect();
    // One platform needs no index: older clients get a plain image.
    let (mut named, index) = match manifests.as_slice() {
        [manifest] => (manifest.clone(), None),
        several => {
            let index = Blob::json(&json!({
                "schemaVersion": 2,
                "mediaType": INDEX,
                "manifests": several,
                "annotations": annotations,
            }))?;
            (index.descriptor(INDEX), Some(index))
        }
    };
    let (_, tag) = content.reference.rsplit_once(':').context("a reference without a tag")?;
    // containerd reads the first, others the second.
    named["annotations"] = json!({
        "io.containerd.image.name": content.reference,
        "org.opencontainers.image.ref.name": tag,
    });
    let digest = named["digest"].as_str().unwrap_or_default().to_owned();
    let layout = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [named] });
    // For Docker before 25, which knows neither layouts nor platforms.
    let first = parts.first().context("an image without a program")?;
    let docker = json!([{
        "Config": first.configuration.path(),
        "RepoTags": [content.reference],
        "Layers": [first.layer.path()],
    }]);
    let blobs = parts.into_iter().flat_map(|part| [part.configuration, part.layer, part.manifest]);
    let mut files: Vec<File> = blobs.chain(index).map(Blob::file).collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    for (path, value) in [
        ("index.json", &layout),
        ("manifest.json", &docker),
        ("oci-layout", &json!({ "imageLayoutVersion": "1.0.0" })),
    ] {
        let bytes = serde_json::to_vec(value).context("failed to write JSON")?;
        files.push(File { path: path.to_owned(), bytes });
    }
    Ok(Image { digest, files })
}

/// An image for one platform.
struct Part {
    platform: Platform,
    configuration: Blob,
    layer: Blob,
    manifest: Blob,
}

impl Part {
    fn descriptor(&self) -> Value {
        let mut descriptor = self.manifest.descriptor(MANIFEST);
        descriptor["platform"] = json!({ "architecture": self.platform.architecture(), "os": "linux" });
        descriptor
    }
}

fn part(content: &Content<'_>, binary: &Binary<'_>, annotations: &Value) -> anyhow::Result<Part> {
    let platform = binary.platform;
    let tar = layer(content, binary)?;
    let uncompressed = digest(&tar);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&tar).context("failed to compress the layer")?;
    let layer = Blob::of(gzip.finish().context("failed to compress the layer")?);
    let configuration = Blob::json(&json!({
        "architecture": platform.architecture(),
        "os": "linux",
        "created": content.origin.created,
        "config": {
            "User": USER,
            "Entrypoint": [format!("/{}", content.name)],
            "WorkingDir": "/",
            "Labels": annotations,
        },
        "rootfs": { "type": "layers", "diff_ids": [uncompressed] },
        "history": [{ "created": content.origin.created, "created_by": "cargo xtask images" }],
    }))?;
    let manifest = Blob::json(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": configuration.descriptor(CONFIGURATION),
        "layers": [layer.descriptor(LAYER)],
        "annotations": annotations,
    }))?;
    Ok(Part { platform, configuration, layer, manifest })
}

fn annotations(content: &Content<'_>) -> Value {
    let Origin { created, revision } = content.origin;
    let mut annotations = json!({
        "org.opencontainers.image.title": content.name,
        "org.opencontainers.image.description": content.description,
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.source": SOURCE,
        "org.opencontainers.image.licenses": LICENCE,
        "org.opencontainers.image.created": created,
    });
    if let Some(revision) = revision {
        annotations["org.opencontainers.image.revision"] = json!(revision);
    }
    annotations
}

/// The one layer: the program, its libraries, the few files that programs look for, and licences.
fn layer(content: &Content<'_>, binary: &Binary<'_>) -> anyhow::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    folder_entry(&mut tar, "etc/")?;
    file_entry(&mut tar, "etc/group", 0o644, GROUP.as_bytes())?;
    file_entry(&mut tar, "etc/passwd", 0o644, PASSWD.as_bytes())?;
    if let Some(certificates) = content.certificates {
        folder_entry(&mut tar, "etc/ssl/")?;
        folder_entry(&mut tar, "etc/ssl/certs/")?;
        file_entry(&mut tar, certificates::PATH, 0o644, certificates.as_bytes())?;
    }
    let licences = content.licences.iter().map(|(path, text)| (format!("licenses/{path}"), 0o644, text));
    // The dynamic loader is a program.
    let libraries = binary.libraries.iter().map(|library| (library.path.clone(), 0o755, &library.bytes));
    let mut folders = BTreeSet::new();
    for (path, mode, bytes) in licences.chain(libraries) {
        for (end, _) in path.match_indices('/') {
            if folders.insert(path[..=end].to_owned()) {
                folder_entry(&mut tar, &path[..=end])?;
            }
        }
        file_entry(&mut tar, &path, mode, bytes)?;
    }
    file_entry(&mut tar, content.name, 0o755, binary.program)?;
    if let Some(command) = content.stands_for {
        entry(&mut tar, "tmp/", tar::EntryType::Directory, 0o1777, &[])?;
        for (end, _) in PATH_FOLDER.match_indices('/') {
            folder_entry(&mut tar, &PATH_FOLDER[..=end])?;
        }
        link_entry(&mut tar, &format!("{PATH_FOLDER}{command}"), &format!("/{}", content.name))?;
    }
    tar.into_inner().context("failed to end the layer")
}

fn folder_entry(tar: &mut tar::Builder<Vec<u8>>, path: &str) -> anyhow::Result<()> {
    entry(tar, path, tar::EntryType::Directory, 0o755, &[])
}

fn file_entry(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, bytes: &[u8]) -> anyhow::Result<()> {
    entry(tar, path, tar::EntryType::Regular, mode, bytes)
}

/// Owned by root, with the time 0.
fn entry(
    tar: &mut tar::Builder<Vec<u8>>,
    path: &str,
    kind: tar::EntryType,
    mode: u32,
    bytes: &[u8],
) -> anyhow::Result<()> {
    let mut header = header(kind, mode);
    header.set_size(bytes.len() as u64);
    tar.append_data(&mut header, path, bytes).with_context(|| format!("failed to pack {path}"))
}

fn link_entry(tar: &mut tar::Builder<Vec<u8>>, path: &str, target: &str) -> anyhow::Result<()> {
    let mut header = header(tar::EntryType::Symlink, 0o777);
    header.set_size(0);
    tar.append_link(&mut header, path, target).with_context(|| format!("failed to pack {path}"))
}

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Output of git; none outside of a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.current_dir(workspace()).args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests;
