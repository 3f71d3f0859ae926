//! `push`: everything in a folder, below a prefix.
//!
//! ```text
//! walk ─▶ digest ─▶ is it there already? ─▶ upload, large files in parts ─▶ SHA256SUMS, last
//! ```
//!
//! Whoever finds `SHA256SUMS` finds everything that it lists. Nothing is deleted in the store. An upload that is
//! repeated sends only what is missing: each object carries its SHA-256 as metadata.

mod upload;
mod walk;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use object_store::{Attribute, GetResult, ObjectStore as _, PutPayload, path::Path as Key};
use tokio::{
    sync::Semaphore,
    task::{JoinSet, spawn_blocking},
    time::Instant,
};
use tracing::info;

use crate::{
    cli::Options,
    digest::Algorithm,
    fault::{Cause, Fault},
    keys,
    location::Location,
    progress::{Progress, clock},
    space::Size,
    store::{Store, Trouble},
    sums::{self, SHA256SUMS, Sums},
};
use upload::{BUFFER_MIB, Upload};
use walk::LocalFile;

/// Files at once: some are read while others are sent.
const FILES: usize = 4;

/// What all uploads of a push share.
#[derive(Debug)]
struct Shared {
    store: Store,
    progress: Progress,
    /// In MiB; parts wait for room, so that memory does not grow with files.
    buffers: Arc<Semaphore>,
    /// Size of what is there, by path below the prefix.
    there: BTreeMap<String, u64>,
    sums_there: Sums,
}

pub(crate) async fn push(folder: &Path, destination: &Location, options: &Options) -> Result<String, Fault> {
    let began = Instant::now();
    let root = folder.to_owned();
    let files = spawn_blocking(move || walk::files(&root)).await.map_err(died)??;
    if files.is_empty() {
        return Err(Fault::new(Cause::Usage, format!("{} has no file to upload", folder.display())));
    }
    let store = Store::open(destination, options, http::HeaderMap::new())?;
    let there = listed(destination, &store).await?;
    let shared = Arc::new(Shared {
        sums_there: sums_there(destination, &store, &there).await?,
        store,
        progress: Progress::new(options.progress()),
        buffers: Arc::new(Semaphore::new(BUFFER_MIB as usize)),
        there,
    });
    let bytes = files.iter().map(|file| file.size).sum();
    info!("{}: files: {}, {}", folder.display(), files.len(), Size(bytes));
    shared.progress.begin(bytes);
    let (sums, uploaded) = shared.progress.shown("pushed", push_all(&shared, destination, files)).await?;
    write_sums(&shared, destination, sums).await?;
    let (sent, seconds) = (Size(shared.progress.bytes_moved()), began.elapsed().as_secs());
    Ok(format!("{destination} is complete: files sent: {uploaded}, {sent} in {}", clock(seconds)))
}

fn died(error: tokio::task::JoinError) -> Fault {
    Fault::new(Cause::Local, format!("a task of ours died: {error}"))
}

async fn listed(destination: &Location, store: &Store) -> Result<BTreeMap<String, u64>, Fault> {
    let listed = store.list(&destination.prefix).await?;
    let below = |meta: object_store::ObjectMeta| {
        // What cannot be a file here is none of ours.
        let path = keys::relative_path(meta.location.as_ref(), &destination.prefix).ok()??;
        Some((path.to_owned(), meta.size))
    };
    Ok(listed.into_iter().filter_map(below).collect())
}

/// The digests of an earlier push. A list that nobody can read is replaced like one that is not there.
async fn sums_there(
    destination: &Location,
    store: &Store,
    there: &BTreeMap<String, u64>,
) -> Result<Sums, Fault> {
    if there.get(SHA256SUMS).is_none_or(|size| *size > sums::LONGEST) {
        return Ok(Sums::new());
    }
    let key = key(destination, SHA256SUMS)?;
    let text = store
        .retried(SHA256SUMS, || async {
            let answer = store.s3.get_opts(&key, object_store::GetOptions::default()).await;
            let bytes = answer.map_err(|error| Trouble::of(&error))?.bytes().await;
            bytes.map_err(|error| Trouble::of(&error))
        })
        .await?;
    Ok(sums::parse(&String::from_utf8_lossy(&text)).unwrap_or_default())
}

/// The digests of all files, and how many were sent.
async fn push_all(
    shared: &Arc<Shared>,
    destination: &Location,
    files: Vec<LocalFile>,
) -> Result<(Sums, usize), Fault> {
    let mut sums = Sums::new();
    let mut uploaded = 0;
    let mut under_way = JoinSet::new();
    let mut files = files.into_iter();
    loop {
        while under_way.len() < FILES
            && let Some(file) = files.next()
        {
            let key = key(destination, &file.path)?;
            under_way.spawn(push_file(Arc::clone(shared), key, file));
        }
        let Some(ended) = under_way.join_next().await else { return Ok((sums, uploaded)) };
        let (path, digest, sent) = ended.map_err(died)??;
        sums.insert(path, digest);
        uploaded += usize::from(sent);
    }
}

async fn push_file(shared: Arc<Shared>, key: Key, file: LocalFile) -> Result<(String, String, bool), Fault> {
    let opened = Arc::new(file.open()?);
    let (reading, size) = (Arc::clone(&opened), file.size);
    let digest =
        spawn_blocking(move || Algorithm::sha256().over_file(&reading, 0, size)).await.map_err(died)?;
    let digest = digest.map_err(Fault::io("read", &file.place))?.finish();
    let is_there = match presence(&file, &digest, &shared.there, &shared.sums_there) {
        Presence::There => true,
        Presence::Absent => false,
        Presence::Unknown => {
            shared.store.head(&key).await?.is_some_and(|found| is_same(&found, size, &digest))
        }
    };
    if is_there {
        shared.progress.found(file.size);
    } else {
        upload::upload(&shared, &Upload { key, file: opened, size, digest: digest.clone() }).await?;
        file.is_unchanged()?;
    }
    Ok((file.path, digest, !is_there))
}

#[derive(Debug, PartialEq, Eq)]
enum Presence {
    There,
    Absent,
    /// Of this size, and nobody said which bytes.
    Unknown,
}

fn presence(file: &LocalFile, digest: &str, there: &BTreeMap<String, u64>, sums: &Sums) -> Presence {
    match (there.get(&file.path), sums.get(&file.path)) {
        (Some(size), Some(known)) if *size == file.size && known == digest => Presence::There,
        (Some(size), None) if *size == file.size => Presence::Unknown,
        _ => Presence::Absent,
    }
}

/// Whether an object is what we would upload, by the metadata that we upload with.
fn is_same(found: &GetResult, size: u64, digest: &str) -> bool {
    let told = found.attributes.get(&Attribute::Metadata(upload::DIGEST.into()));
    found.meta.size == size && told.is_some_and(|told| told.as_ref() == digest)
}

/// Files of an earlier push that are still there keep their lines.
async fn write_sums(shared: &Shared, destination: &Location, sums: Sums) -> Result<(), Fault> {
    let kept = shared.sums_there.iter().filter(|(path, _)| shared.there.contains_key(*path));
    let mut all: Sums = kept.map(|(path, digest)| (path.clone(), digest.clone())).collect();
    all.extend(sums);
    if all == shared.sums_there {
        return Ok(());
    }
    let (text, key) = (PutPayload::from(sums::text(&all)), key(destination, SHA256SUMS)?);
    let write = || async {
        let written = shared.store.s3.put_opts(&key, text.clone(), object_store::PutOptions::default()).await;
        written.map(drop).map_err(|error| Trouble::of(&error))
    };
    shared.store.retried(SHA256SUMS, write).await
}

fn key(destination: &Location, path: &str) -> Result<Key, Fault> {
    /// Of S3.
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
    fn a_file_is_there_if_size_and_digest_say_so() {
        let file = LocalFile::for_test("a", 5);
        let there = |size| BTreeMap::from([("a".to_owned(), size)]);
        let sums = |digest: &str| Sums::from([("a".to_owned(), digest.to_owned())]);
        assert_eq!(presence(&file, "d1", &there(5), &sums("d1")), Presence::There);
        assert_eq!(presence(&file, "d1", &there(5), &sums("d2")), Presence::Absent);
        assert_eq!(presence(&file, "d1", &there(6), &sums("d1")), Presence::Absent);
        assert_eq!(presence(&file, "d1", &there(5), &Sums::new()), Presence::Unknown);
        assert_eq!(presence(&file, "d1", &BTreeMap::new(), &sums("d1")), Presence::Absent);
    }

    #[test]
    fn a_key_that_is_too_long_for_s3_is_refused() {
        let destination: Location = "s3://models/out".parse().unwrap();
        assert!(key(&destination, &"x/".repeat(510)[..1020]).is_ok());
        let fault = key(&destination, &"x/".repeat(511)[..1021]).unwrap_err();
        assert_eq!(fault.cause, Cause::Usage);
    }
}
