//! Bytes from the store into partial files: ranges in parallel, each taken up where it broke, and a check at the end.
//!
//! Memory is bounded by the number of connections, whatever the model: each holds one chunk, which it writes at once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use futures::StreamExt as _;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore as _};
use tokio::{
    sync::Semaphore,
    task::{JoinSet, spawn_blocking},
};
use tracing::warn;

use super::{Corrupt, Object, folder::Folder, is_known_corrupt, partial::Partial, remember_corrupt};
use crate::{
    digest::{self, Algorithm, Expected, Proof},
    fault::{Cause, Fault},
    progress::Progress,
    store::{EtagIsNoDigest, Store, Trouble},
};

/// Requests at once: enough for small files over a distance, and little enough to hold what they bring.
pub(super) const CONNECTIONS: usize = 16;
/// Files at once; a large one alone keeps all connections busy.
const FILES: usize = 16;
/// What a kill may lose of a connection's bytes.
const NOTE_EVERY: u64 = 1 << 20;
/// How often a file whose checksum is wrong is fetched in all.
const FETCHES: usize = 3;

/// What all requests of a pull share.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) store: Store,
    pub(super) folder: Arc<Folder>,
    pub(super) progress: Progress,
    pub(super) connections: Semaphore,
    pub(super) corrupt: Corrupt,
}

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
        if is_known_corrupt(&transfer.corrupt, &object) {
            break;
        }
        let (folder, wanted) = (Arc::clone(&transfer.folder), Arc::clone(&object));
        let partial =
            blocking(move || folder.partial(&wanted).map_err(Fault::io("write", &wanted.path))).await?;
        let partial = Arc::new(partial);
        transfer.progress.found(partial.bytes_there());
        match download(&transfer, &object, &partial).await? {
            Ok(proof) => {
                let folder = Arc::clone(&transfer.folder);
                return blocking(move || folder.place(&object, &partial, proof)).await;
            }
            Err(Mismatch) => {
                warn!("{:?} does not match its checksum; fetching it again", object.path);
                transfer.progress.lost(object.size);
                blocking(move || partial.discard().map_err(Fault::io("discard", partial.stem()))).await?;
            }
        }
    }
    remember_corrupt(&transfer.corrupt, &object);
    let message = format!(
        "{:?} does not match its checksum, fetched {FETCHES} times: upload it again",
        object.key.as_ref()
    );
    Err(Fault::new(Cause::Checksum, message))
}

struct Mismatch;

/// Fetches what is missing, and computes the checksum behind it.
async fn download(
    transfer: &Arc<Transfer>,
    object: &Arc<Object>,
    partial: &Arc<Partial>,
) -> Result<Result<Proof, Mismatch>, Fault> {
    let algorithm = match &object.expected {
        Expected::Sha256(_) => Some(Algorithm::sha256()),
        Expected::Md5(_) => Some(Algorithm::md5()),
        Expected::Nothing => None,
    };
    let digest = async {
        let Some(algorithm) = algorithm else { return Ok(String::new()) };
        let digest =
            digest::following(Arc::clone(partial.data()), object.size, algorithm, partial.whole()).await;
        digest.map_err(Fault::io("read", &object.path))
    };
    let (digest, answers) = tokio::try_join!(digest, fetch_parts(transfer, object, partial))?;
    Ok(match &object.expected {
        Expected::Nothing => Ok(Proof::Length),
        Expected::Sha256(expected) if *expected == digest => Ok(Proof::Sha256(digest)),
        Expected::Md5(expected) if *expected == digest => Ok(Proof::Md5),
        Expected::Md5(_) if answers == EtagIs::NoDigest => Ok(Proof::Length),
        Expected::Sha256(_) | Expected::Md5(_) => Err(Mismatch),
    })
}

/// What the answers for a file said of its ETag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EtagIs {
    PerhapsDigest,
    NoDigest,
}

impl EtagIs {
    fn of(answer: &GetResult) -> Self {
        if answer.extensions.get::<EtagIsNoDigest>().is_some() { Self::NoDigest } else { Self::PerhapsDigest }
    }

    fn or(self, other: Self) -> Self {
        if self == Self::NoDigest { self } else { other }
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
                etag = etag.or(fetch_part(&transfer, &object, &partial, part).await?);
                // The disk works while the others fetch: little is left to wait for at the end.
                if workers > 1
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

/// One part, with as many requests as it takes.
async fn fetch_part(
    transfer: &Transfer,
    object: &Object,
    partial: &Arc<Partial>,
    part: usize,
) -> Result<EtagIs, Fault> {
    let mut attempts = transfer.store.attempts();
    loop {
        let (began, _) = partial.missing(part);
        match request(transfer, object, partial, part).await {
            Ok(etag) => return Ok(etag),
            Err(Ended::Here(fault)) => return Err(fault),
            Err(Ended::Store(trouble)) => {
                if partial.missing(part).0 > began {
                    attempts.progressed();
                }
                attempts.failed(trouble, object.key.as_ref()).await?;
            }
        }
    }
}

/// Why a request ended before its part was complete.
enum Ended {
    Store(Trouble),
    Here(Fault),
}

impl From<object_store::Error> for Ended {
    fn from(error: object_store::Error) -> Self {
        Self::Store(Trouble::of(&error))
    }
}

/// Asks for what is missing of a part, and writes what comes.
async fn request(
    transfer: &Transfer,
    object: &Object,
    partial: &Arc<Partial>,
    part: usize,
) -> Result<EtagIs, Ended> {
    let Transfer { store, progress, connections, .. } = transfer;
    // Never closed.
    let _connection = connections.acquire().await;
    let (from, to) = partial.missing(part);
    let is_whole = from == 0 && to == object.size;
    let options = GetOptions {
        // Some stores answer a range of everything with everything.
        range: (!is_whole).then_some(GetRange::Bounded(from..to)),
        if_match: object.etag.clone(),
        ..GetOptions::default()
    };
    let answer = store.s3.get_opts(&object.key, options).await?;
    is_of(object, &answer).map_err(Ended::Store)?;
    let etag = EtagIs::of(&answer);

    let mut stream = answer.into_stream();
    let mut left = to - from;
    let mut unnoted = 0;
    let here = || Fault::io("write", partial.stem());
    let ended = loop {
        if left == 0 {
            break Ok(etag);
        }
        let chunk = match stream.next().await {
            Some(Ok(chunk)) if chunk.len() as u64 <= left => chunk,
            Some(Ok(_)) => break Err(Trouble::Garbled("more bytes than asked for".to_owned())),
            Some(Err(error)) => break Err(Trouble::of(&error)),
            None if left < to - from => break Err(Trouble::Passing("the answer ended early".to_owned())),
            None => break Err(Trouble::Garbled("an answer without bytes".to_owned())),
        };
        let length = chunk.len() as u64;
        // Here and not on another thread: while it is in the processor's cache, it takes microseconds. A disk that
        // cannot keep up is what the connections must wait for anyway; signals have a thread of their own.
        partial.write(part, &chunk).map_err(here()).map_err(Ended::Here)?;
        store.progressed();
        progress.moved(length);
        left -= length;
        unnoted += length;
        if unnoted >= NOTE_EVERY {
            partial.note(part).map_err(here()).map_err(Ended::Here)?;
            unnoted = 0;
        }
    };
    partial.note(part).map_err(here()).map_err(Ended::Here)?;
    ended.map_err(Ended::Store)
}

/// Whether the answer is about the object that was listed.
fn is_of(object: &Object, answer: &GetResult) -> Result<(), Trouble> {
    let unquoted = |etag: &Option<String>| etag.as_deref().map(|etag| etag.trim_matches('"').to_owned());
    if object.etag.is_some() && unquoted(&answer.meta.e_tag) != unquoted(&object.etag) {
        return Err(Trouble::Changed);
    }
    if answer.meta.size != object.size {
        let (listed, told) = (object.size, answer.meta.size);
        return Err(Trouble::Garbled(format!("listed with {listed} bytes, answered with {told}")));
    }
    Ok(())
}
