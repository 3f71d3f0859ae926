//! What decisions need of the pod template of a stored Deployment or ReplicaSet.
//!
//! These are its hash, the token that its pods mount, and whether a recorded template is the one it was made from.
//!
//! Each status update of a Deployment or ReplicaSet delivers its template again, unchanged. Parsing it each time was a
//! quarter of the CPU time of a controller, so the results for the last templates are kept, for the process.
//! They depend on nothing but the text.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

use crate::templates::pinned_template::differences;

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
pub(crate) struct RecordedTemplate {
    /// See `token_account`.
    pub(crate) token_account: Option<Box<str>>,
}

/// Label that the Deployment controller adds to the template of each ReplicaSet.
pub(crate) const POD_TEMPLATE_HASH: &str = "pod-template-hash";

impl StoredTemplate {
    pub(crate) fn read(stored: &RawValue) -> Self {
        static RESULTS: Results<StoredTemplate> = Results::new();
        let parse = || {
            let template = parsed(stored.get());
            let token_account = token_account(&template).map(Into::into);
            Self { hash: TemplateHash::of(template), token_account }
        };
        RESULTS.get_or_parse([stored.get(), ""], parse)
    }
}

impl RecordedTemplate {
    /// `None` if the record is of another template. Fields that the API server has added to the stored one do not count.
    pub(crate) fn read(record: &str, stored: &RawValue) -> Option<Self> {
        static RESULTS: Results<Option<RecordedTemplate>> = Results::new();
        let parse = || {
            let recorded: Value = serde_json::from_str(record).ok()?;
            let is_of_template = differences(&parsed(stored.get()), &recorded).is_empty();
            is_of_template.then(|| Self { token_account: token_account(&recorded).map(Into::into) })
        };
        RESULTS.get_or_parse([record, stored.get()], parse)
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
/// they mount none. No controller renders such a template. A user has edited the Deployment and its record.
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

/// The text of a recorded template, once in memory: Kubernetes copies the record of a Deployment to its ReplicaSets.
pub(crate) fn shared(record: &str) -> Arc<str> {
    static TEXTS: Mutex<Option<SharedTexts>> = Mutex::new(None);
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().get(record)
}

/// Texts in use, by digest.
#[derive(Default)]
struct SharedTexts {
    texts: HashMap<[u8; 16], Weak<str>>,
    /// At this length, texts that are not used any more are removed: until then their memory is not free.
    cleaned_at: usize,
}

const FEWEST_TEXTS: usize = 64;

impl SharedTexts {
    fn get(&mut self, text: &str) -> Arc<str> {
        let digest = digest([text]);
        if let Some(known) = self.texts.get(&digest).and_then(Weak::upgrade) {
            return known;
        }
        if self.texts.len() >= self.cleaned_at {
            self.texts.retain(|_, text| text.strong_count() > 0);
            self.cleaned_at = FEWEST_TEXTS.max(self.texts.len() / 4 * 5);
        }
        let text = Arc::<str>::from(text);
        self.texts.insert(digest, Arc::downgrade(&text));
        text
    }
}

/// Results, by digest of the texts that they were read from.
struct Results<T>(Mutex<Option<HashMap<[u8; 16], T>>>);

/// Those of 512 Deployments that change at the same time, with a ReplicaSet each; some 100 KiB.
const MOST_ENTRIES: usize = 1_024;

impl<T: Clone> Results<T> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// No lock is held while a text is parsed.
    fn get_or_parse(&self, texts: [&str; 2], parse: impl FnOnce() -> T) -> T {
        let digest = digest(texts);
        if let Some(known) = self.lock().get_or_insert_default().get(&digest) {
            return known.clone();
        }
        let parsed = parse();
        let mut known = self.lock();
        let known = known.get_or_insert_default();
        if known.len() >= MOST_ENTRIES {
            known.clear();
        }
        known.insert(digest, parsed.clone());
        parsed
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<[u8; 16], T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn equal_records_are_one_text_and_unused_ones_are_removed() {
        let mut texts = SharedTexts::default();
        let (one, other, third) = (texts.get("one"), texts.get("one"), texts.get("another"));
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!((&*one, &*third), ("one", "another"));
        for number in 0..10 * FEWEST_TEXTS {
            texts.get(&number.to_string());
            assert!(texts.texts.len() <= FEWEST_TEXTS);
        }
        assert!(Arc::ptr_eq(&one, &texts.get("one")), "it is still used");
    }

    #[test]
    fn results_are_kept_by_both_texts_and_not_without_a_bound() {
        let known = Results::new();
        assert_eq!(known.get_or_parse(["a", "bc"], || 1), 1);
        assert_eq!(known.get_or_parse(["a", "bc"], || 2), 1, "it was read again");
        assert_eq!(known.get_or_parse(["ab", "c"], || 3), 3);
        for number in 0..3 * MOST_ENTRIES {
            known.get_or_parse([&number.to_string(), ""], || 4);
            assert!(known.lock().iter().all(|known| known.len() <= MOST_ENTRIES));
        }
    }
}
