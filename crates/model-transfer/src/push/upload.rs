//! Uploads one file as one object: small ones with one request, large ones in parts, each of which is retried.

use std::{fs::File, future::pending, os::unix::fs::FileExt as _, sync::Arc};

use object_store::{
    Attribute, Attributes, ObjectStore as _, PutMultipartOptions, PutOptions, PutPayload,
    multipart::{MultipartStore as _, PartId},
    path::Path as Key,
};
use tokio::{
    sync::OwnedSemaphorePermit,
    task::{JoinSet, spawn_blocking},
};

use super::{Shared, is_same, join_fault};
use crate::{
    fault::{Cause, Fault},
    store::RequestError,
};

/// Key of the metadata with the SHA-256, which every object of a push has.
pub(super) const DIGEST: &str = "sha256";

/// Limit for the bytes of all parts that are being sent.
pub(super) const BUFFER_MIB: u32 = 24;

const MIB: u64 = 1 << 20;
/// Limit up to which a file is sent with one request; its ETag is then its MD5.
const AT_ONCE: u64 = 8 * MIB;
/// S3 allows 10 000.
const MOST_PARTS: u64 = 9000;

#[derive(Debug)]
pub(super) struct Upload {
    pub(super) key: Key,
    pub(super) file: Arc<File>,
    pub(super) size: u64,
    pub(super) digest: String,
}

pub(super) async fn upload(shared: &Arc<Shared>, upload: &Upload) -> Result<(), Fault> {
    if upload.size <= AT_ONCE { at_once(shared, upload).await } else { in_parts(shared, upload).await }
}

async fn at_once(shared: &Shared, upload: &Upload) -> Result<(), Fault> {
    let Upload { key, file, size, digest } = upload;
    let _room = room(shared, *size).await;
    let payload = read(file, 0, *size, key).await?;
    let send = || async {
        let options = PutOptions { attributes: attributes(digest), ..PutOptions::default() };
        let sent = shared.store.s3.put_opts(key, payload.clone(), options).await;
        sent.map(drop).map_err(|error| RequestError::of(&error))
    };
    shared.store.requests.retried(key.as_ref(), send).await?;
    came(shared, *size);
    Ok(())
}

/// A failed upload is aborted, if the store still answers.
async fn in_parts(shared: &Arc<Shared>, upload: &Upload) -> Result<(), Fault> {
    let Upload { key, digest, .. } = upload;
    let store = &shared.store;
    let begin = || async {
        let options =
            PutMultipartOptions { attributes: attributes(digest), ..PutMultipartOptions::default() };
        store.s3.create_multipart_opts(key, options).await.map_err(|error| RequestError::of(&error))
    };
    let id: Arc<str> = store.requests.retried(key.as_ref(), begin).await?.into();
    let done = async {
        let parts = send_parts(shared, upload, &id).await?;
        complete(shared, upload, &id, parts).await
    };
    let done = done.await;
    if done.is_err() {
        let _ = store.s3.abort_multipart(key, &id.to_string()).await;
    }
    done
}

/// Ends with the first part that fails, and reads no further parts.
async fn send_parts(shared: &Arc<Shared>, upload: &Upload, id: &Arc<str>) -> Result<Vec<PartId>, Fault> {
    let part = part_size(upload.size);
    let mut begins =
        (0..upload.size).step_by(usize::try_from(part).unwrap_or(usize::MAX)).enumerate().peekable();
    let mut under_way = JoinSet::new();
    let mut parts = Vec::new();
    loop {
        let length = begins.peek().map(|(_, from)| part.min(upload.size - from));
        let room = async {
            match length {
                Some(length) => room(shared, length).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(ended) = under_way.join_next() => parts.push(ended.map_err(join_fault)??),
            room = room, if length.is_some() => {
                let Some((number, from)) = begins.next() else { continue };
                let length = length.unwrap_or_default();
                under_way.spawn(send_part(Arc::clone(shared), Part {
                    key: upload.key.clone(),
                    file: Arc::clone(&upload.file),
                    upload: Arc::clone(id),
                    number,
                    from,
                    length,
                    _room: room,
                }));
            }
            else => break,
        }
    }
    parts.sort_by_key(|(number, _)| *number);
    Ok(parts.into_iter().map(|(_, part)| part).collect())
}

/// One part, and room for its bytes.
#[derive(Debug)]
struct Part {
    key: Key,
    file: Arc<File>,
    upload: Arc<str>,
    number: usize,
    from: u64,
    length: u64,
    _room: Option<OwnedSemaphorePermit>,
}

async fn send_part(shared: Arc<Shared>, part: Part) -> Result<(usize, PartId), Fault> {
    let Part { key, file, upload, number, from, length, _room } = part;
    let payload = read(&file, from, length, &key).await?;
    let upload = upload.to_string();
    let send = || async {
        let sent = shared.store.s3.put_part(&key, &upload, number, payload.clone()).await;
        sent.map_err(|error| RequestError::of(&error))
    };
    let sent = shared.store.requests.retried(key.as_ref(), send).await?;
    came(&shared, length);
    Ok((number, sent))
}

/// If the answer was lost, the upload may be complete and no longer exist, so the object itself is checked.
async fn complete(shared: &Shared, upload: &Upload, id: &str, parts: Vec<PartId>) -> Result<(), Fault> {
    let Upload { key, size, digest, .. } = upload;
    let store = &shared.store;
    let finish = || async {
        let Err(error) = store.s3.complete_multipart(key, &id.to_owned(), parts.clone()).await else {
            return Ok(());
        };
        match store.head(key).await {
            Ok(Some(found)) if is_same(&found, *size, digest) => Ok(()),
            _ => Err(RequestError::of(&error)),
        }
    };
    store.requests.retried(key.as_ref(), finish).await
}

fn came(shared: &Shared, bytes: u64) {
    shared.store.requests.progressed();
    shared.progress.moved(bytes);
}

/// Room for bytes in memory, until it is dropped. The semaphore is never closed.
async fn room(shared: &Shared, bytes: u64) -> Option<OwnedSemaphorePermit> {
    let mib = u32::try_from(bytes.div_ceil(MIB)).unwrap_or(u32::MAX).clamp(1, BUFFER_MIB);
    Arc::clone(&shared.buffers).acquire_many_owned(mib).await.ok()
}

async fn read(file: &Arc<File>, from: u64, length: u64, key: &Key) -> Result<PutPayload, Fault> {
    let file = Arc::clone(file);
    let read = spawn_blocking(move || {
        let mut bytes = vec![0; usize::try_from(length).map_err(std::io::Error::other)?];
        file.read_exact_at(&mut bytes, from).map(|()| PutPayload::from(bytes))
    });
    read.await.map_err(join_fault)?.map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Fault::new(
            Cause::Changed,
            format!("{key:?} became shorter while it was uploaded: upload it again"),
        ),
        _ => Fault::io("read", key.as_ref())(error),
    })
}

fn attributes(digest: &str) -> Attributes {
    [(Attribute::Metadata(DIGEST.into()), digest.to_owned())].into_iter().collect()
}

fn part_size(size: u64) -> u64 {
    AT_ONCE.max(size.div_ceil(MOST_PARTS).next_multiple_of(MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_small_until_there_would_be_too_many() {
        assert_eq!(part_size(1), 8 * MIB);
        assert_eq!(part_size(70 << 30), 8 * MIB);
        for size in [71_u64 << 30, 1 << 40, 5 << 40] {
            assert!(size.div_ceil(part_size(size)) <= MOST_PARTS, "{size}");
            assert!(part_size(size) < part_size(2 * size), "no larger than needed");
        }
    }
}
