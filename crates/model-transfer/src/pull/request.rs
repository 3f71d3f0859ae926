//! One run of bytes of one object: asked for, taken up where it broke, and checked to be of the object that was listed.

use std::io;

use futures::StreamExt as _;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore as _};

use super::{object::Object, transfer::Transfer};
use crate::{
    digest::Expected,
    fault::Fault,
    store::{EtagIsNoDigest, Trouble},
};

/// What a kill may lose of a connection's bytes.
pub(super) const NOTE_EVERY: u64 = 1 << 20;

/// Seconds of an answer without `Last-Modified`, as object_store fills them in.
const NO_TIME: i64 = 0;

/// Where the bytes go.
pub(super) trait Sink {
    /// What is missing of the object: from, to.
    fn missing(&self) -> (u64, u64);
    /// Adds bytes, never more than are missing. A kill loses them until they are noted.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Keeps what came for the next run.
    fn note(&mut self) -> io::Result<()>;
}

/// What the answers for a file said of its ETag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EtagIs {
    PerhapsDigest,
    NoDigest,
}

impl EtagIs {
    fn of(answer: &GetResult) -> Self {
        if answer.extensions.get::<EtagIsNoDigest>().is_some() { Self::NoDigest } else { Self::PerhapsDigest }
    }

    pub(super) fn or(self, other: Self) -> Self {
        if self == Self::NoDigest { self } else { other }
    }
}

/// All that is missing, with as many requests as it takes.
pub(super) async fn fill(
    transfer: &Transfer,
    object: &Object,
    sink: &mut (impl Sink + Send),
) -> Result<EtagIs, Fault> {
    let mut attempts = transfer.store.attempts();
    loop {
        let (began, _) = sink.missing();
        match request(transfer, object, sink).await {
            Ok(etag) => return Ok(etag),
            Err(Ended::Here(fault)) => return Err(fault),
            Err(Ended::Store(trouble)) => {
                if sink.missing().0 > began {
                    attempts.progressed();
                }
                attempts.failed(trouble, object.key.as_ref()).await?;
            }
        }
    }
}

/// Why a request ended before its run was complete.
enum Ended {
    Store(Trouble),
    Here(Fault),
}

impl From<object_store::Error> for Ended {
    fn from(error: object_store::Error) -> Self {
        Self::Store(Trouble::of(&error))
    }
}

/// Asks for what is missing, and writes what comes.
async fn request(
    transfer: &Transfer,
    object: &Object,
    sink: &mut (impl Sink + Send),
) -> Result<EtagIs, Ended> {
    let Transfer { store, progress, connections, .. } = transfer;
    // Never closed.
    let _connection = connections.acquire().await;
    let (from, to) = sink.missing();
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
    let here = |error| Ended::Here(Fault::io("write", &object.path)(error));
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
        sink.write(&chunk).map_err(here)?;
        store.progressed();
        progress.moved(length);
        left -= length;
        unnoted += length;
        if unnoted >= NOTE_EVERY {
            sink.note().map_err(here)?;
            unnoted = 0;
        }
    };
    sink.note().map_err(here)?;
    ended.map_err(Ended::Store)
}

/// Whether the answer is about the object that was listed.
fn is_of(object: &Object, answer: &GetResult) -> Result<(), Trouble> {
    let unquoted = |etag: &Option<String>| etag.as_deref().map(|etag| etag.trim_matches('"').to_owned());
    if object.etag.is_some() && unquoted(&answer.meta.e_tag) != unquoted(&object.etag) {
        return Err(Trouble::Changed);
    }
    if object.etag.is_none() {
        is_of_time(object, answer)?;
    }
    if answer.meta.size != object.size {
        let (listed, told) = (object.size, answer.meta.size);
        return Err(Trouble::Garbled(format!("listed with {listed} bytes, answered with {told}")));
    }
    Ok(())
}

/// Of stores that give no ETag: whether the answer is of the version that was listed, by the time of its last change.
fn is_of_time(object: &Object, answer: &GetResult) -> Result<(), Trouble> {
    let changed = answer.meta.last_modified.timestamp();
    if changed == NO_TIME {
        // The digest of the whole file tells versions apart as well.
        return if matches!(object.expected, Expected::Sha256(_)) {
            Ok(())
        } else {
            Err(Trouble::Garbled("an answer with neither ETag nor Last-Modified".to_owned()))
        };
    }
    // An answer has whole seconds and a listing fractions of them: one of the two may be rounded.
    if changed.abs_diff(object.changed) <= 1 { Ok(()) } else { Err(Trouble::Changed) }
}
