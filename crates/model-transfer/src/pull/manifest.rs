//! Reads `SHA256SUMS` before the other files, for their expected digests.
//!
//! With a pinned digest the list must exist, match it and name every file.

use directory::space::Size;

use super::{
    fetch::{FETCHES, fetch_bytes},
    object::{Listed, Object},
    transfer::Transfer,
};
use crate::{
    digest::{
        self, Expected,
        sums::{self, SHA256SUMS},
    },
    fault::{Cause, Fault},
    location::Source,
};

/// `pinned`: the expected SHA-256 of the list.
pub(super) async fn expect(
    source: &Source,
    listed: &mut Listed,
    pinned: Option<&str>,
    transfer: &Transfer,
) -> Result<(), Fault> {
    let wrong = |why: String| Fault::new(Cause::Checksum, format!("{SHA256SUMS} of {source} {why}"));
    let Listed { files, sums, is_one_object, .. } = listed;
    let Some(list) = sums else {
        return pinned.map_or(Ok(()), |pinned| {
            Err(wrong(format!(
                "is not there, and the manifest digest sha256:{pinned} requires it: push the model with it, or \
                 remove the manifest digest"
            )))
        });
    };
    if list.size > sums::LONGEST {
        return Err(wrong(format!("is larger than {}", Size(sums::LONGEST))));
    }
    let bytes = read(list, transfer).await?;
    let sums = str::from_utf8(&bytes).ok().map(sums::parse);
    if let Some(Ok(sums)) = &sums
        && sums.contains_key(sums::PUSH_UNDER_WAY)
    {
        let message = format!("a push to {source} is under way or was interrupted: run it again");
        return Err(Fault::new(Cause::Checksum, message));
    }
    let found = digest::of_text(&bytes);
    if let Some(pinned) = pinned.filter(|pinned| **pinned != found) {
        return Err(wrong(format!(
            "has the digest sha256:{found}, and the manifest digest is sha256:{pinned}: the model in the store was \
             changed; restore it, or take the new digest"
        )));
    }
    let sums = sums.ok_or_else(|| wrong("is not UTF-8".to_owned()))?;
    let sums = sums.map_err(|line| wrong(format!("has no digest and path in line {line}")))?;
    if let Some(list) = files.get_mut(SHA256SUMS).filter(|_| !*is_one_object) {
        list.expected = Expected::Sha256(found);
    }
    if pinned.is_some() {
        let unlisted = || files.keys().filter(|path| *path != SHA256SUMS && !sums.contains_key(*path));
        if let Some(first) = unlisted().next() {
            return Err(wrong(format!(
                "does not list {first:?}, one of {} such objects: remove them from the store, or push the model with \
                 them and take the new digest",
                unlisted().count()
            )));
        }
    }
    for (path, digest) in sums {
        match files.get_mut(&path) {
            Some(object) => object.expected = Expected::Sha256(digest),
            None if *is_one_object => {}
            None => {
                let why = format!("lists {path:?}, which is not there: upload it, or correct the list");
                return Err(wrong(why));
            }
        }
    }
    Ok(())
}

async fn read(list: &Object, transfer: &Transfer) -> Result<Vec<u8>, Fault> {
    for _ in 0..FETCHES {
        if let Ok((bytes, _)) = fetch_bytes(transfer, list).await? {
            return Ok(bytes);
        }
    }
    let message = format!(
        "{:?} does not match its checksum, fetched {FETCHES} times: upload it again",
        list.key.as_ref()
    );
    Err(Fault::new(Cause::Checksum, message))
}
