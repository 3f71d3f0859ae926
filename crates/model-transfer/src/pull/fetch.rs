//! Files from the store into their places: small ones in one piece, large ones in parts that a kill does not undo, and a
//! check at the end.
//!
//! Memory is bounded by the number of connections, whatever the model: each holds one small file, or one chunk of a
//! large one, which it writes at once.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    sync::Semaphore,
    task::{JoinSet, spawn_blocking},
};
use tracing::warn;

use super::{
    object::Object,
    partial::Partial,
    request::{EtagIs, NOTE_EVERY, Sink, fill},
    transfer::{CONNECTIONS, Transfer},
};
use crate::{
    digest::{self, Algorithm, Expected, Proof},
    fault::{Cause, Fault},
};

/// Files at once; a large one alone keeps all connections busy.
const FILES: usize = 16;
/// Up to here a file is held until it is whole: a kill loses no more of it than of a part.
const SMALL: u64 = NOTE_EVERY;
/// How often a file whose checksum is wrong is fetched in all.
const FETCHES: usize = 3;

/// Ends with the first fault; what is under way then stops, and stays resumable.
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

fn joined(ended: Option<Result<Result<(), Fault>, tokio::task::JoinError>>) -> Result<(), Fault> {
    match ended {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => Err(Fault::new(Cause::Local, format!("a task of ours died: {error}"))),
        None => Ok(()),
    }
}

/// Runs file work where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let died = |error| Fault::new(Cause::Local, format!("a thread of ours died: {error}"));
    spawn_blocking(work).await.map_err(died)?
}

/// From nothing, or from what is there, to a file in its place.
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

struct Mismatch;

/// What the digest proves, or that it proves the file wrong.
fn proof(expected: &Expected, digest: String, etag: EtagIs) -> Result<Proof, Mismatch> {
    match expected {
        Expected::Nothing => Ok(Proof::Length),
        Expected::Sha256(expected) if *expected == digest => Ok(Proof::Sha256(digest)),
        Expected::Md5(expected) if *expected == digest => Ok(Proof::Md5),
        Expected::Md5(_) if etag == EtagIs::NoDigest => Ok(Proof::Length),
        Expected::Sha256(_) | Expected::Md5(_) => Err(Mismatch),
    }
}

/// Held until it is whole.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    size: u64,
}

impl Sink for Held {
    fn missing(&self) -> (u64, u64) {
        (self.bytes.len() as u64, self.size)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn note(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn fetch_small(transfer: &Transfer, object: &Arc<Object>) -> Result<Result<(), Mismatch>, Fault> {
    let mut held = Held { bytes: Vec::with_capacity(object.size as usize), size: object.size };
    let etag = fill(transfer, object, &mut held).await?;
    let Held { bytes, .. } = held;
    let digest = Algorithm::of(&object.expected).map(|algorithm| algorithm.over(&bytes).finish());
    let proof = match proof(&object.expected, digest.unwrap_or_default(), etag) {
        Ok(proof) => proof,
        Err(mismatch) => return Ok(Err(mismatch)),
    };
    let (folder, object) = (Arc::clone(&transfer.folder), Arc::clone(object));
    if folder.syncs() {
        blocking(move || folder.place_bytes(&object, &bytes, proof)).await?;
    } else {
        // As short as writing a chunk.
        folder.place_bytes(&object, &bytes, proof)?;
    }
    Ok(Ok(()))
}

async fn fetch_large(transfer: &Arc<Transfer>, object: &Arc<Object>) -> Result<Result<(), Mismatch>, Fault> {
    let (folder, wanted) = (Arc::clone(&transfer.folder), Arc::clone(object));
    let partial = blocking(move || folder.partial(&wanted).map_err(Fault::io("write", &wanted.path))).await?;
    let partial = Arc::new(partial);
    transfer.progress.found(partial.bytes_there());
    // The checksum is computed behind the bytes that arrive.
    let digest = async {
        let Some(algorithm) = Algorithm::of(&object.expected) else { return Ok(String::new()) };
        let digest =
            digest::following(Arc::clone(partial.data()), object.size, algorithm, partial.whole()).await;
        digest.map_err(Fault::io("read", &object.path))
    };
    let (digest, etag) = tokio::try_join!(digest, fetch_parts(transfer, object, &partial))?;
    let (folder, object) = (Arc::clone(&transfer.folder), Arc::clone(object));
    match proof(&object.expected, digest, etag) {
        Ok(proof) => blocking(move || folder.place(&object, &partial, proof)).await.map(Ok),
        Err(mismatch) => {
            blocking(move || partial.discard().map_err(Fault::io("discard", partial.stem()))).await?;
            Ok(Err(mismatch))
        }
    }
}

/// One part, to be filled.
#[derive(Debug)]
struct PartOf<'p> {
    partial: &'p Partial,
    part: usize,
}

impl Sink for PartOf<'_> {
    fn missing(&self) -> (u64, u64) {
        self.partial.missing(self.part)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.partial.write(self.part, bytes)
    }

    fn note(&mut self) -> io::Result<()> {
        self.partial.note(self.part)
    }
}

async fn fetch_parts(
    transfer: &Arc<Transfer>,
    object: &Arc<Object>,
    partial: &Arc<Partial>,
) -> Result<EtagIs, Fault> {
    let open: VecDeque<usize> = partial.open_parts().into();
    let workers = open.len().min(CONNECTIONS);
    let open = Arc::new(Mutex::new(open));
    let disk = Arc::new(Semaphore::new(1));
    let mut parts = JoinSet::new();
    for _ in 0..workers {
        let (transfer, object, partial) = (Arc::clone(transfer), Arc::clone(object), Arc::clone(partial));
        let (open, disk) = (Arc::clone(&open), Arc::clone(&disk));
        parts.spawn(async move {
            let mut etag = EtagIs::PerhapsDigest;
            while let Some(part) = next(&open) {
                etag = etag.or(fill(&transfer, &object, &mut PartOf { partial: &partial, part }).await?);
                // The disk works while the others fetch: little is left to wait for at the end.
                if workers > 1
                    && transfer.folder.syncs()
                    && let Ok(_turn) = disk.try_acquire()
                {
                    let partial = Arc::clone(&partial);
                    blocking(move || partial.data().sync_data().map_err(Fault::io("write", partial.stem())))
                        .await?;
                }
            }
            Ok(etag)
        });
    }
    let mut etag = EtagIs::PerhapsDigest;
    while let Some(ended) = parts.join_next().await {
        let died = |error| Fault::new(Cause::Local, format!("a task of ours died: {error}"));
        etag = etag.or(ended.map_err(died)??);
    }
    Ok(etag)
}

fn next(open: &Mutex<VecDeque<usize>>) -> Option<usize> {
    open.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}
