//! Downloads one range of one object: resumes after a broken connection and checks that every response is of the listed
//! version.

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::GetResult;

use super::{object::Object, transfer::Transfer};
use crate::{
    digest::Expected,
    fault::Fault,
    store::{EtagIsNoDigest, RequestError},
};

/// The time that object_store sets for an answer without `Last-Modified`.
const NO_TIME: i64 = 0;

/// The destination of the bytes.
pub(super) trait Sink {
    /// The missing range of the object: from, to.
    fn missing(&self) -> (u64, u64);
    /// Accepts bytes, at most the missing ones. Waits if they arrive faster than they can be written.
    fn take(&mut self, bytes: Bytes) -> impl Future<Output = ()> + Send;
}

/// Checksum information in the answers for an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stated {
    etag_is_no_digest: bool,
    checksum: Option<Expected>,
}

impl Stated {
    pub(super) fn of(answer: &GetResult) -> Self {
        Self {
            etag_is_no_digest: answer.extensions.get::<EtagIsNoDigest>().is_some(),
            checksum: answer.extensions.get::<Expected>().cloned(),
        }
    }

    /// Combines it with that of another answer.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            etag_is_no_digest: self.etag_is_no_digest || other.etag_is_no_digest,
            checksum: self.checksum.or(other.checksum),
        }
    }

    pub(super) fn etag_hides_digest(&self) -> bool {
        self.etag_is_no_digest
    }

    /// The strongest checksum of the listing (or of the model's list of checksums) and of the answers.
    pub(super) fn strongest(&self, listed: &Expected) -> Expected {
        match (listed, &self.checksum) {
            (Expected::Sha256(_) | Expected::GitBlob(_), _) => listed.clone(),
            (_, Some(sha256 @ Expected::Sha256(_))) => sha256.clone(),
            (Expected::Md5(_), _) if !self.etag_is_no_digest => listed.clone(),
            (Expected::Md5(_) | Expected::Crc64(_) | Expected::Nothing, checksum) => {
                checksum.clone().unwrap_or(Expected::Nothing)
            }
        }
    }
}

/// Fetches all missing bytes, with repeated requests if necessary.
pub(super) async fn fill(
    transfer: &Transfer,
    object: &Object,
    sink: &mut (impl Sink + Send),
) -> Result<Stated, Fault> {
    let mut attempts = transfer.origin.requests().attempts();
    let mut stated = Stated::default();
    loop {
        let (began, _) = sink.missing();
        match request(transfer, object, sink, &mut stated).await {
            Ok(()) => return Ok(stated),
            Err(error) => {
                if sink.missing().0 > began {
                    attempts.progressed();
                }
                attempts.failed(error, object.key.as_ref()).await?;
            }
        }
    }
}

/// The metadata of an object, empty where the store does not give it: the request for the bytes decides about the transfer,
/// and some gateways accept no other.
pub(super) async fn head(transfer: &Transfer, object: &Object) -> Stated {
    let answer = transfer.origin.optional_head(&object.key).await;
    answer
        .filter(|answer| is_of(object, answer).is_ok())
        .map_or_else(Stated::default, |answer| Stated::of(&answer))
}

/// Requests the missing range, and passes its bytes to the sink.
async fn request(
    transfer: &Transfer,
    object: &Object,
    sink: &mut (impl Sink + Send),
    stated: &mut Stated,
) -> Result<(), RequestError> {
    let Transfer { origin, progress, connections, .. } = transfer;
    // The semaphore is never closed.
    let _connection = connections.acquire().await;
    let (from, to) = sink.missing();
    // Some stores answer a range that is the whole object with status 200.
    let is_whole = from == 0 && to == object.size;
    let answer = origin.get(object, (!is_whole).then_some(from..to)).await?;
    is_of(object, &answer)?;
    *stated = std::mem::take(stated).and(Stated::of(&answer));

    let mut stream = answer.into_stream();
    let mut left = to - from;
    while left > 0 {
        let chunk = match stream.next().await {
            Some(Ok(chunk)) if chunk.len() as u64 <= left => chunk,
            Some(Ok(_)) => return Err(RequestError::MalformedAnswer("more bytes than asked for".to_owned())),
            Some(Err(error)) => return Err(RequestError::of(&error)),
            None if left < to - from => {
                return Err(RequestError::Transient("the answer ended early".to_owned()));
            }
            None => return Err(RequestError::MalformedAnswer("an answer without bytes".to_owned())),
        };
        let length = chunk.len() as u64;
        sink.take(chunk).await;
        origin.requests().progressed();
        progress.moved(length);
        left -= length;
    }
    Ok(())
}

/// Whether the answer is about the object that was listed.
fn is_of(object: &Object, answer: &GetResult) -> Result<(), RequestError> {
    let unquoted = |etag: &Option<String>| etag.as_deref().map(|etag| etag.trim_matches('"').to_owned());
    if object.etag.is_some() && unquoted(&answer.meta.e_tag) != unquoted(&object.etag) {
        return Err(RequestError::Changed);
    }
    if object.etag.is_none() {
        is_of_time(object, answer)?;
    }
    if answer.meta.size != object.size {
        let (listed, answered) = (object.size, answer.meta.size);
        return Err(RequestError::MalformedAnswer(format!(
            "listed with {listed} bytes, answered with {answered}"
        )));
    }
    Ok(())
}

/// Compares the time of the last change with the listing, for stores that give no ETag.
fn is_of_time(object: &Object, answer: &GetResult) -> Result<(), RequestError> {
    let changed = answer.meta.last_modified.timestamp();
    if changed == NO_TIME {
        // The digest of the whole file distinguishes versions as well.
        return if matches!(object.expected, Expected::Sha256(_)) {
            Ok(())
        } else {
            Err(RequestError::MalformedAnswer("an answer with neither ETag nor Last-Modified".to_owned()))
        };
    }
    // An answer has whole seconds, and a listing may have fractions, which the store may have rounded.
    if changed.abs_diff(object.changed) <= 1 { Ok(()) } else { Err(RequestError::Changed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_checksum_decides_and_a_list_of_checksums_precedes_all() {
        let [listed, other, md5, crc] = [
            Expected::Sha256("1".to_owned()),
            Expected::Sha256("2".to_owned()),
            Expected::Md5("3".to_owned()),
            Expected::Crc64("4".to_owned()),
        ];
        let stated =
            |checksum: Option<&Expected>| Stated { etag_is_no_digest: false, checksum: checksum.cloned() };
        assert_eq!(stated(Some(&other)).strongest(&listed), listed);
        assert_eq!(stated(Some(&other)).strongest(&md5), other);
        assert_eq!(stated(Some(&crc)).strongest(&md5), md5);
        assert_eq!(stated(Some(&crc)).strongest(&Expected::Nothing), crc);
        assert_eq!(stated(None).strongest(&Expected::Nothing), Expected::Nothing);
        let encrypted = Stated { etag_is_no_digest: true, checksum: Some(crc.clone()) };
        assert_eq!(encrypted.strongest(&md5), crc);
        let alone = Stated { etag_is_no_digest: true, checksum: None };
        assert_eq!(alone.strongest(&md5), Expected::Nothing);
        assert_eq!(alone.and(stated(Some(&crc))).strongest(&md5), crc, "what one answer says, all say");
    }
}
