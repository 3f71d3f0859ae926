//! What decisions need of the pod template of a stored Deployment or ReplicaSet: its hash, the token that its pods mount,
//! and whether a recorded template is the one it was made from.
//!
//! Each status update of a Deployment or ReplicaSet delivers its template again, unchanged. Parsing it each time was a
//! quarter of the CPU time of a controller, so the results for the last templates are kept, for the process. They depend on nothing but the text.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

use crate::pinned_template::differences;

/// Identifies a pod template by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateHash([u8; 16]);

/// What is read of a stored template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredTemplate {
    pub(crate) hash: TemplateHash,
    /// See `token_account`.
    pub(crate) token_account: Option<Box<str>>,
}

/// A recorded template that belongs to a stored one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recorded {
    /// See `token_account`.
    pub(crate) token_account: Option<Box<str>>,
}

/// Label that the Deployment controller adds to the template of each ReplicaSet.
pub(crate) const POD_TEMPLATE_HASH: &str = "pod-template-hash";

impl StoredTemplate {
    pub(crate) fn read(stored: &RawValue) -> Self {
        thread_local!(static KNOWN: RefCell<Known<StoredTemplate>> = RefCell::default());
        let parse = || {
            let template = parsed(stored.get());
            let token_account = token_account(&template).map(Into::into);
            Self { hash: TemplateHash::of(template), token_account }
        };
        KNOWN.with_borrow_mut(|known| known.get_or([stored.get(), ""], parse))
    }
}

impl Recorded {
    /// `None` if the record is of another template. Fields that the API server has added to the stored one do not count.
    pub(crate) fn read(record: &str, stored: &RawValue) -> Option<Self> {
        thread_local!(static KNOWN: RefCell<Known<Option<Recorded>>> = RefCell::default());
        let parse = || {
            let recorded: Value = serde_json::from_str(record).ok()?;
            let is_of_template = differences(&parsed(stored.get()), &recorded).is_empty();
            is_of_template.then(|| Self { token_account: token_account(&recorded).map(Into::into) })
        };
        KNOWN.with_borrow_mut(|known| known.get_or([record, stored.get()], parse))
    }
}

impl TemplateHash {
    /// Hashes the template without the label that exists only in ReplicaSets.
    fn of(mut template: Value) -> Self {
        if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
            labels.remove(POD_TEMPLATE_HASH);
        }
        // `Value` sorts object fields by name, so equal templates give equal text.
        Self(digest([&template.to_string()]))
    }
}

/// The account whose token of the Kubernetes API pods of this template mount; empty for the account `default`. `None` if
/// they mount none. Releases before 0.2.0 rendered such templates for every spec with an account.
pub(crate) fn token_account(template: &Value) -> Option<&str> {
    let pod = &template["spec"];
    (pod["automountServiceAccountToken"] == true)
        .then(|| pod["serviceAccountName"].as_str().unwrap_or_default())
}

/// A raw value has been checked. What still fails has no fields, and no API server writes it: too many levels, or half of a
/// surrogate pair.
fn parsed(raw: &str) -> Value {
    serde_json::from_str(raw).unwrap_or_default()
}

/// The copy of a recorded template that others have already: Kubernetes copies the record of a Deployment to its ReplicaSets.
pub(crate) fn shared(record: &str) -> Arc<str> {
    static KNOWN: Mutex<Option<HashMap<[u8; 16], Weak<str>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let digest = digest([record]);
    if let Some(there) = known.get(&digest).and_then(Weak::upgrade) {
        return there;
    }
    let record = Arc::<str>::from(record);
    if known.len() >= MOST_SHARED {
        known.retain(|_, one| one.strong_count() > 0);
    }
    if known.len() < MOST_SHARED {
        known.insert(digest, Arc::downgrade(&record));
    }
    record
}

/// With more records than these, some have two copies.
const MOST_SHARED: usize = 16_384;

/// Results by digest of the texts that they were read from. One for each thread, so that no lock is held while a template
/// is parsed.
struct Known<T>(HashMap<[u8; 16], T>);

/// Those of 512 Deployments that change at the same time, with a ReplicaSet each; some 100 KiB.
const MOST_KNOWN: usize = 1_024;

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> Known<T> {
    fn get_or(&mut self, texts: [&str; 2], parse: impl FnOnce() -> T) -> T {
        if self.0.len() >= MOST_KNOWN {
            self.0.clear();
        }
        self.0.entry(digest(texts)).or_insert_with(parse).clone()
    }
}

/// Of texts of these lengths in this order.
fn digest<const N: usize>(texts: [&str; N]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update(text.len().to_le_bytes());
        hasher.update(text);
    }
    let mut first = [0; 16];
    first.copy_from_slice(&hasher.finalize()[..16]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_records_are_one_text_in_memory() {
        let (one, other, third) = (shared("one"), shared("one"), shared("another"));
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!((&*one, &*third), ("one", "another"));
        drop((one, other));
        assert_eq!(&*shared("one"), "one", "after the last of them has gone");
    }

    #[test]
    fn results_are_kept_by_both_texts_and_not_without_a_bound() {
        let mut known = Known::default();
        assert_eq!(known.get_or(["a", "bc"], || 1), 1);
        assert_eq!(known.get_or(["a", "bc"], || 2), 1, "it was read again");
        assert_eq!(known.get_or(["ab", "c"], || 3), 3);
        for number in 0..3 * MOST_KNOWN {
            known.get_or([&number.to_string(), ""], || 4);
            assert!(known.0.len() <= MOST_KNOWN);
        }
    }
}
