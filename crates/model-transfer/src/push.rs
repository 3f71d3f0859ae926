//! `push`: uploads everything in a folder below a prefix.
//!
//! ```text
//! walk ─▶ digest ─▶ does the store have it? ─▶ upload, large files in parts ─▶ SHA256SUMS, last
//! ```
//!
//! `SHA256SUMS` never lists an object with the digest of other bytes. Before the first object is sent, the lines of this
//! push's files are removed. They are written again when all files are there. In between the list has a line that makes
//! every pull fail, because the prefix may hold files of two models. Nothing is deleted in the store. An upload that is
//! repeated sends only what is missing: each object has its SHA-256 as metadata, which `push` requests first.

pub(crate) mod check_store;
mod upload;
mod walk;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use api::loader::{Uploaded, UploadedFile};
use directory::space::Size;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::{Attribute, GetResult, ObjectStore as _, PutOptions, PutPayload, path::Path as Key};
use tokio::{
    sync::{OnceCell, Semaphore},
    task::{JoinSet, spawn_blocking},
    time::Instant,
};
use tracing::info;

use crate::{
    cli::Options,
    digest::{
        self, Algorithm,
        sums::{self, SHA256SUMS, Sums},
    },
    fault::{Cause, Fault, write_termination_log},
    location::Location,
    progress::{Progress, clock},
    space,
    store::{RequestError, Store, keys, markers},
};
use upload::{BUFFER_MIB, Upload};
use walk::{Found, LocalFile};

/// Concurrent files: some are read while others are sent.
const FILES: usize = 4;
/// Concurrent requests for metadata.
const QUESTIONS: usize = 16;

/// `SHA256SUMS` in the store; empty if there is none.
#[derive(Debug, Default)]
struct List {
    sums: Sums,
    manifest: Manifest,
}

/// SHA-256 and size of a list, as its text is in the store.
#[derive(Clone, Debug, Default)]
struct Manifest {
    digest: String,
    bytes: u64,
}

impl Manifest {
    fn of(text: &[u8]) -> Self {
        Self { digest: digest::of_text(text), bytes: text.len() as u64 }
    }
}

/// State that all uploads of a push share.
#[derive(Debug)]
struct Shared {
    store: Store,
    progress: Progress,
    /// Room in MiB; parts wait for it, so that memory does not grow with the files.
    buffers: Arc<Semaphore>,
    /// Sizes of the objects in the store, by path below the prefix.
    there: BTreeMap<String, u64>,
    /// The list of an earlier push.
    list_there: List,
    /// Lines of files that are not part of this push.
    sums_of_others: Sums,
    /// Set once the list in the store has no line of a file of this push, and the line of a push that is under way.
    list_is_reduced: OnceCell<()>,
    destination: Location,
}

pub(crate) async fn push(folder: &Path, destination: &Location, options: &Options) -> Result<String, Fault> {
    let began = Instant::now();
    let root = folder.to_owned();
    let Found { files, empty_folders } =
        spawn_blocking(move || walk::walk(&root)).await.map_err(join_fault)??;
    if files.is_empty() {
        return Err(Fault::new(Cause::Usage, format!("{} has no file to upload", folder.display())));
    }
    let store = Store::open(destination, options, http::HeaderMap::new())?;
    let there = listed(destination, &store).await?;
    let list_there = list_there(destination, &store, &there).await?;
    let own = files.iter().map(|file| file.path.as_str()).collect();
    let shared = Arc::new(Shared {
        sums_of_others: sums_of_others(destination, &store, &there, &list_there.sums, &own).await?,
        list_there,
        store,
        progress: Progress::new(options.progress()),
        buffers: Arc::new(Semaphore::new(BUFFER_MIB as usize)),
        there,
        list_is_reduced: OnceCell::new(),
        destination: destination.clone(),
    });
    let bytes = space::total(files.iter().map(|file| file.size));
    let sizes: BTreeMap<String, u64> = files.iter().map(|file| (file.path.clone(), file.size)).collect();
    info!("{}: files: {}, {}", folder.display(), files.len(), Size(bytes));
    shared.progress.begin(bytes);
    let (sums, uploaded) = shared.progress.shown("pushed", push_all(&shared, files)).await?;
    for folder in empty_folders {
        push_folder(&shared, &folder).await?;
    }
    let manifest = finish_sums(&shared, sums.clone()).await?;
    report(&options.termination_log, uploaded_files(&sums, &sizes), bytes, &manifest);
    let Manifest { digest, bytes: _ } = manifest;
    let (sent, seconds) = (Size(shared.progress.bytes_moved()), began.elapsed().as_secs());
    Ok(format!(
        "{destination} is complete: files sent: {uploaded}, {sent} in {}; manifest digest: sha256:{digest}",
        clock(seconds)
    ))
}

fn uploaded_files(sums: &Sums, sizes: &BTreeMap<String, u64>) -> Vec<UploadedFile> {
    let file = |(path, sha256): (&String, &String)| UploadedFile {
        path: path.clone(),
        bytes: sizes.get(path).copied().unwrap_or_default(),
        sha256: sha256.clone(),
    };
    sums.iter().map(file).collect()
}

fn report(termination_log: &Path, files: Vec<UploadedFile>, bytes: u64, manifest: &Manifest) {
    let uploaded = Uploaded {
        bytes,
        count: files.len(),
        manifest_digest: manifest.digest.clone(),
        manifest_bytes: manifest.bytes,
        files,
    };
    write_termination_log(termination_log, &uploaded.message());
}

fn join_fault(error: tokio::task::JoinError) -> Fault {
    Fault::new(Cause::Local, format!("a task ended: {error}"))
}

async fn listed(destination: &Location, store: &Store) -> Result<BTreeMap<String, u64>, Fault> {
    let listed = store.list(&destination.prefix).await?;
    let below = |meta: object_store::ObjectMeta| {
        // No file of a push has a key that is not a valid path.
        let path = keys::relative_path(meta.location.as_ref(), &destination.prefix).ok()??;
        Some((path.to_owned(), meta.size))
    };
    Ok(listed.into_iter().filter_map(below).collect())
}

/// The list of an earlier push. An invalid list counts as empty and is replaced.
async fn list_there(
    destination: &Location,
    store: &Store,
    there: &BTreeMap<String, u64>,
) -> Result<List, Fault> {
    if there.get(SHA256SUMS).is_none_or(|size| *size > sums::LONGEST) {
        return Ok(List::default());
    }
    let key = key(destination, SHA256SUMS)?;
    let text = store
        .requests
        .retried(SHA256SUMS, || async {
            let answer = store.s3.get_opts(&key, object_store::GetOptions::default()).await;
            text_of(answer.map_err(|error| RequestError::of(&error))?).await
        })
        .await?;
    let sums = sums::parse(&String::from_utf8_lossy(&text)).unwrap_or_default();
    Ok(List { sums, manifest: Manifest::of(&text) })
}

/// The content of the list, whose length the listing may have stated wrongly.
async fn text_of(answer: GetResult) -> Result<Vec<u8>, RequestError> {
    let mut text = Vec::new();
    let mut chunks = answer.into_stream();
    while let Some(chunk) = chunks.next().await {
        text.extend_from_slice(&chunk.map_err(|error| RequestError::of(&error))?);
        if text.len() as u64 > sums::LONGEST {
            let why = format!("{SHA256SUMS} is larger than {}", Size(sums::LONGEST));
            return Err(RequestError::MalformedAnswer(why));
        }
    }
    Ok(text)
}

/// The lines to keep: those of objects that are there and not part of this push. The metadata of an object takes
/// precedence over its line in the list, which is used where the store does not permit the request for the metadata.
async fn sums_of_others(
    destination: &Location,
    store: &Store,
    there: &BTreeMap<String, u64>,
    sums_there: &Sums,
    own: &BTreeSet<&str>,
) -> Result<Sums, Fault> {
    let others = there.keys().filter(|path| !own.contains(path.as_str()) && *path != SHA256SUMS);
    let asked = others.map(|path| async move {
        let found = store.permitted_head(&key(destination, path)?).await?;
        let digest = found.as_ref().and_then(stated_digest).or_else(|| sums_there.get(path).cloned());
        Ok::<_, Fault>(digest.map(|digest| (path.clone(), digest)))
    });
    let lines = stream::iter(asked).buffer_unordered(QUESTIONS);
    lines.try_filter_map(async |line| Ok(line)).try_collect().await
}

/// Uploads all files. Returns their digests, and how many were sent.
async fn push_all(shared: &Arc<Shared>, files: Vec<LocalFile>) -> Result<(Sums, usize), Fault> {
    let mut sums = Sums::new();
    let mut uploaded = 0;
    let mut under_way = JoinSet::new();
    let mut files = files.into_iter();
    loop {
        while under_way.len() < FILES
            && let Some(file) = files.next()
        {
            let key = key(&shared.destination, &file.path)?;
            under_way.spawn(push_file(Arc::clone(shared), key, file));
        }
        let Some(ended) = under_way.join_next().await else { return Ok((sums, uploaded)) };
        let (path, digest, sent) = ended.map_err(join_fault)??;
        sums.insert(path, digest);
        uploaded += usize::from(sent);
    }
}

async fn push_file(shared: Arc<Shared>, key: Key, file: LocalFile) -> Result<(String, String, bool), Fault> {
    let opened = Arc::new(file.open()?);
    let (reading, size) = (Arc::clone(&opened), file.size);
    let digest =
        spawn_blocking(move || Algorithm::sha256().over_file(&reading, 0, size)).await.map_err(join_fault)?;
    let digest = digest.map_err(Fault::io("read", file.shown()))?.finish();
    // The list of an earlier push is not sufficient: another program may have written the object since.
    let is_there = shared.there.get(&file.path) == Some(&size)
        && shared.store.head(&key).await?.is_some_and(|found| is_same(&found, size, &digest));
    if is_there {
        shared.progress.found(file.size);
    } else {
        shared.list_is_reduced.get_or_try_init(|| reduce_sums(&shared)).await?;
        upload::upload(&shared, &Upload { key, file: opened, size, digest: digest.clone() }).await?;
        file.is_unchanged()?;
    }
    Ok((file.path, digest, !is_there))
}

/// Whether an object equals the file, by its size and by the metadata that `push` writes.
fn is_same(found: &GetResult, size: u64, digest: &str) -> bool {
    found.meta.size == size && stated_digest(found).is_some_and(|stated| stated == digest)
}

fn stated_digest(found: &GetResult) -> Option<String> {
    let stated = found.attributes.get(&Attribute::Metadata(upload::DIGEST.into()))?;
    digest::is_hex(stated, 64).then(|| stated.to_ascii_lowercase())
}

/// Uploads an object that stands for an empty folder, unless the store has one.
async fn push_folder(shared: &Shared, path: &str) -> Result<(), Fault> {
    let below = format!("{path}/");
    if shared.there.keys().any(|other| other.starts_with(&below)) {
        return Ok(());
    }
    let folder = key(&shared.destination, path)?;
    if shared.there.contains_key(path) && markers::is_marker(&shared.store, &folder).await? {
        return Ok(());
    }
    put(shared, &markers::marker(&folder), PutPayload::new()).await
}

/// Removes the lines of this push's files from the list, and adds the line that makes a pull fail.
async fn reduce_sums(shared: &Shared) -> Result<(), Fault> {
    let reduced = sums::under_way(&shared.sums_of_others);
    if reduced == shared.list_there.sums {
        return Ok(());
    }
    write_sums(shared, &reduced).await
}

/// Writes the complete list, unless the store has it.
async fn finish_sums(shared: &Shared, sums: Sums) -> Result<Manifest, Fault> {
    let mut all = shared.sums_of_others.clone();
    all.extend(sums);
    if all == shared.list_there.sums && !shared.list_is_reduced.initialized() {
        return Ok(shared.list_there.manifest.clone());
    }
    write_sums(shared, &all).await?;
    Ok(Manifest::of(sums::text(&all).as_bytes()))
}

async fn write_sums(shared: &Shared, sums: &Sums) -> Result<(), Fault> {
    put(shared, &key(&shared.destination, SHA256SUMS)?, PutPayload::from(sums::text(sums))).await
}

async fn put(shared: &Shared, key: &Key, payload: PutPayload) -> Result<(), Fault> {
    let write = || async {
        let written = shared.store.s3.put_opts(key, payload.clone(), PutOptions::default()).await;
        written.map(drop).map_err(|error| RequestError::of(&error))
    };
    shared.store.requests.retried(key.as_ref(), write).await
}

/// Of an object below the destination.
pub(crate) fn key(destination: &Location, path: &str) -> Result<Key, Fault> {
    /// The limit of S3.
    const LONGEST_KEY: usize = 1024;
    let key = match destination.prefix.as_str() {
        "" => path.to_owned(),
        prefix => format!("{prefix}/{path}"),
    };
    if key.len() > LONGEST_KEY {
        let message = format!("{path:?} makes a key of more than {LONGEST_KEY} bytes: shorten it");
        return Err(Fault::new(Cause::Usage, message));
    }
    Key::parse(&key).map_err(|error| Fault::new(Cause::Usage, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_too_long_for_s3_is_refused() {
        let destination: Location = "s3://models/out".parse().unwrap();
        assert!(key(&destination, &"x/".repeat(510)[..1020]).is_ok());
        let fault = key(&destination, &"x/".repeat(511)[..1021]).unwrap_err();
        assert_eq!(fault.cause, Cause::Usage);
    }
}
