//! Fetches files, checks them and moves them to their places: small ones with one request, large ones in parts that are
//! resumed after a kill.
//!
//! Memory is bounded by the number of connections for every model: each holds one small file, or bytes of a large one that
//! wait to be written. Those bytes are bounded for all files together.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinSet},
};
use tracing::warn;

use super::{
    object::Object,
    partial::{NOTE_EVERY, Partial},
    request::{Sink, Stated, fill, head},
    transfer::{CONNECTIONS, Transfer},
    writer::{self, Queue},
};
use crate::{
    digest::{self, Algorithm, Crc64, Expected, Proof},
    fault::{Cause, Fault},
};

/// Concurrent files; a large one can use all connections.
const FILES: usize = 16;
/// Limit up to which a file is kept in memory until it is complete: a kill loses no more of it than of a part.
const SMALL: u64 = NOTE_EVERY;
/// Attempts for a file whose checksum is wrong.
pub(super) const FETCHES: usize = 3;

/// Ends with the first fault. Transfers that are still running are stopped and can be resumed.
pub(super) async fn fetch_all(transfer: &Arc<Transfer>, objects: Vec<Object>) -> Result<(), Fault> {
    let mut files = JoinSet::new();
    for object in objects {
        if files.len() == FILES {
            joined(files.join_next().await)?;
        }
        files.spawn(fetch_file(Arc::clone(transfer), object));
    }
    while !files.is_empty() {
        joined(files.join_next().await)?;
    }
    Ok(())
}

fn joined(ended: Option<Result<Result<(), Fault>, JoinError>>) -> Result<(), Fault> {
    match ended {
        Some(ended) => ended.map_err(join_fault)?,
        None => Ok(()),
    }
}

fn join_fault(error: JoinError) -> Fault {
    Fault::new(Cause::Local, format!("a task ended: {error}"))
}

async fn blocking<T: Send + 'static>(
    transfer: &Transfer,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    transfer.spawn_blocking(work).await.map_err(join_fault)?
}

/// Fetches a file, from its beginning or from its partial file, and moves it to its place.
async fn fetch_file(transfer: Arc<Transfer>, object: Object) -> Result<(), Fault> {
    let object = Arc::new(object);
    for _ in 0..FETCHES {
        if transfer.is_known_corrupt(&object) {
            break;
        }
        let fetched = if object.size <= SMALL {
            fetch_small(&transfer, &object).await?
        } else {
            fetch_large(&transfer, &object).await?
        };
        match fetched {
            Ok(()) => return Ok(()),
            Err(Mismatch) => {
                warn!("{:?} does not match its checksum; fetching it again", object.path);
                transfer.progress.lost(object.size);
            }
        }
    }
    transfer.remember_corrupt(&object);
    let message = format!(
        "{:?} does not match its checksum, fetched {FETCHES} times: upload it again",
        object.key.as_ref()
    );
    Err(Fault::new(Cause::Checksum, message))
}

pub(super) struct Mismatch;

/// How the digest verifies the file, or that it does not match.
fn proof(expected: &Expected, digest: String, stated: &Stated) -> Result<Proof, Mismatch> {
    match expected {
        Expected::Nothing => Ok(Proof::Length),
        Expected::Sha256(expected) if *expected == digest => Ok(Proof::Sha256(digest)),
        Expected::GitBlob(expected) if *expected == digest => Ok(Proof::GitBlob),
        Expected::Md5(expected) if *expected == digest => Ok(Proof::Md5),
        Expected::Crc64(expected) if *expected == digest => Ok(Proof::Crc64),
        Expected::Md5(_) if stated.etag_hides_digest() => Ok(Proof::Length),
        Expected::Sha256(_) | Expected::GitBlob(_) | Expected::Md5(_) | Expected::Crc64(_) => Err(Mismatch),
    }
}

/// A file that is kept in memory until it is complete.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    size: u64,
}

impl Sink for Held {
    fn missing(&self) -> (u64, u64) {
        (self.bytes.len() as u64, self.size)
    }

    async fn take(&mut self, bytes: Bytes) {
        self.bytes.extend_from_slice(&bytes);
    }
}

/// The checked content of an object; only for objects of bounded size.
pub(super) async fn fetch_bytes(
    transfer: &Transfer,
    object: &Object,
) -> Result<Result<(Vec<u8>, Proof), Mismatch>, Fault> {
    let mut held = Held { bytes: Vec::with_capacity(object.size as usize), size: object.size };
    let stated = fill(transfer, object, &mut held).await?;
    let Held { bytes, .. } = held;
    let expected = stated.strongest(&object.expected);
    let digest = Algorithm::of(&expected, object.size).map(|algorithm| algorithm.over(&bytes).finish());
    Ok(proof(&expected, digest.unwrap_or_default(), &stated).map(|proof| (bytes, proof)))
}

async fn fetch_small(transfer: &Transfer, object: &Arc<Object>) -> Result<Result<(), Mismatch>, Fault> {
    let (bytes, proof) = match fetch_bytes(transfer, object).await? {
        Ok(fetched) => fetched,
        Err(mismatch) => return Ok(Err(mismatch)),
    };
    let (folder, object) = (Arc::clone(&transfer.folder), Arc::clone(object));
    // The semaphore is never closed.
    let _turn = transfer.placing.acquire().await;
    blocking(transfer, move || folder.place_bytes(&object, &bytes, proof)).await.map(Ok)
}

async fn fetch_large(transfer: &Arc<Transfer>, object: &Arc<Object>) -> Result<Result<(), Mismatch>, Fault> {
    // The answer to a request for a range does not have the checksum of the whole object.
    let stated = match object.expected {
        Expected::Sha256(_) | Expected::GitBlob(_) => Stated::default(),
        Expected::Md5(_) | Expected::Crc64(_) | Expected::Nothing => head(transfer, object).await,
    };
    let expected = stated.strongest(&object.expected);
    let (folder, wanted) = (Arc::clone(&transfer.folder), Arc::clone(object));
    let opened = move || folder.partial(&wanted).map_err(Fault::io("write", &wanted.path));
    let partial = Arc::new(blocking(transfer, opened).await?);
    transfer.progress.found(partial.bytes_there());

    let (fetched, digest) = fetch_and_digest(transfer, object, &partial, &expected).await?;
    let stated = stated.and(fetched);
    let (folder, object) = (Arc::clone(&transfer.folder), Arc::clone(object));
    match proof(&expected, digest, &stated) {
        Ok(proof) => blocking(transfer, move || folder.place(&object, &partial, proof)).await.map(Ok),
        Err(mismatch) => {
            let discard = move || partial.discard().map_err(Fault::io("discard", partial.place()));
            blocking(transfer, discard).await?;
            Ok(Err(mismatch))
        }
    }
}

/// Fetches and writes all missing bytes, and returns the digest of the whole file; empty if none is expected.
async fn fetch_and_digest(
    transfer: &Arc<Transfer>,
    object: &Arc<Object>,
    partial: &Arc<Partial>,
    expected: &Expected,
) -> Result<(Stated, String), Fault> {
    let unreadable = |error| Fault::io("read", &object.path)(error);
    if let Expected::Crc64(_) = expected {
        let crcs = Arc::<Crcs>::default();
        let stated = fetch_and_write(transfer, object, partial, Some(&crcs)).await?;
        let partial = Arc::clone(partial);
        let digest = transfer.spawn_blocking(move || crcs.of_whole(&partial)).await.map_err(join_fault)?;
        return Ok((stated, digest.map_err(unreadable)?));
    }
    let fetching = fetch_and_write(transfer, object, partial, None);
    let Some(algorithm) = Algorithm::of(expected, object.size) else {
        return Ok((fetching.await?, String::new()));
    };
    // These algorithms need the bytes in order: they follow the bytes that are written.
    let digest = digest::following(Arc::clone(partial.data()), object.size, algorithm, partial.whole());
    let (mut digest, mut fetching) = (pin!(digest), pin!(fetching));
    // The writing thread must have ended before this returns, because the next attempt writes the same file.
    let (stated, digest) = tokio::select! {
        biased;
        stated = &mut fetching => {
            let stated = stated?;
            (stated, digest.await)
        }
        digest = &mut digest => (fetching.await?, digest),
    };
    Ok((stated, digest.map_err(unreadable)?))
}

/// CRCs of the parts that this run has fetched.
#[derive(Debug, Default)]
struct Crcs(Mutex<BTreeMap<usize, Crc64>>);

impl Crcs {
    fn insert(&self, part: usize, crc: Crc64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(part, crc);
    }

    /// Reads the parts that an earlier run has fetched. Blocks.
    fn of_whole(&self, partial: &Partial) -> io::Result<String> {
        let mut fetched = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut whole = Crc64::default();
        for part in 0..partial.parts() {
            let (begin, end) = partial.written(part);
            whole.append(&match fetched.remove(&part) {
                Some(crc) => crc,
                None => Crc64::default().over_file(partial.data(), begin, end)?,
            });
        }
        Ok(whole.finish())
    }
}

/// One part that is being fetched.
#[derive(Debug)]
struct PartOf {
    part: usize,
    from: u64,
    end: u64,
    queue: Queue,
    crc: Option<Crc64>,
}

impl Sink for PartOf {
    fn missing(&self) -> (u64, u64) {
        (self.from, self.end)
    }

    async fn take(&mut self, bytes: Bytes) {
        if let Some(crc) = &mut self.crc {
            // Now, while the bytes are in the processor's cache.
            crc.update(&bytes);
        }
        self.from += bytes.len() as u64;
        self.queue.send(self.part, bytes).await;
    }
}

/// Fetches all incomplete parts, and runs the thread that writes them. Returns when that thread has ended.
async fn fetch_and_write(
    transfer: &Arc<Transfer>,
    object: &Arc<Object>,
    partial: &Arc<Partial>,
    crcs: Option<&Arc<Crcs>>,
) -> Result<Stated, Fault> {
    let (queue, mut thread) = writer::start(transfer, partial);
    let fetched = tokio::select! {
        biased;
        fetched = fetch_parts(transfer, object, partial, crcs, queue) => fetched,
        // The thread ends before the parts are fetched only with an error.
        ended = &mut thread => return Err(writer::fault(ended, partial)),
    };
    match thread.await {
        Ok(Ok(())) => fetched,
        ended => Err(writer::fault(ended, partial)),
    }
}

async fn fetch_parts(
    transfer: &Arc<Transfer>,
    object: &Arc<Object>,
    partial: &Arc<Partial>,
    crcs: Option<&Arc<Crcs>>,
    queue: Queue,
) -> Result<Stated, Fault> {
    let open: VecDeque<usize> = partial.open_parts().into();
    let workers = open.len().min(CONNECTIONS);
    let open = Arc::new(Mutex::new(open));
    let disk = Arc::new(Semaphore::new(1));
    let mut parts = JoinSet::new();
    for _ in 0..workers {
        let (transfer, object, partial) = (Arc::clone(transfer), Arc::clone(object), Arc::clone(partial));
        let (open, disk, queue, crcs) =
            (Arc::clone(&open), Arc::clone(&disk), queue.clone(), crcs.map(Arc::clone));
        parts.spawn(async move {
            let mut stated = Stated::default();
            while let Some(part) = next(&open) {
                let crc = match &crcs {
                    Some(_) => Some(crc_so_far(&transfer, &partial, part).await?),
                    None => None,
                };
                let (from, end) = partial.missing(part);
                let mut filled = PartOf { part, from, end, queue: queue.clone(), crc };
                stated = stated.and(fill(&transfer, &object, &mut filled).await?);
                if let (Some(crcs), Some(crc)) = (&crcs, filled.crc) {
                    crcs.insert(part, crc);
                }
                // Syncs while other parts are fetched, so that little remains to do at the end.
                if workers > 1
                    && transfer.folder.syncs()
                    && let Ok(_turn) = disk.try_acquire()
                {
                    let partial = Arc::clone(&partial);
                    let sync = move || partial.sync().map_err(Fault::io("write", partial.place()));
                    blocking(&transfer, sync).await?;
                }
            }
            Ok::<_, Fault>(stated)
        });
    }
    let mut stated = Stated::default();
    while let Some(ended) = parts.join_next().await {
        stated = stated.and(ended.map_err(join_fault)??);
    }
    // Not before, so that until now only an error could end the thread.
    drop(queue);
    Ok(stated)
}

/// The CRC of the bytes of a part that an earlier run has fetched.
async fn crc_so_far(transfer: &Transfer, partial: &Arc<Partial>, part: usize) -> Result<Crc64, Fault> {
    let (begin, upto) = partial.written(part);
    if begin == upto {
        return Ok(Crc64::default());
    }
    let partial = Arc::clone(partial);
    blocking(transfer, move || {
        Crc64::default().over_file(partial.data(), begin, upto).map_err(Fault::io("read", partial.place()))
    })
    .await
}

fn next(open: &Mutex<VecDeque<usize>>) -> Option<usize> {
    open.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}
