//! How much memory the scrapes that rates need may take: all together, and those of one namespace, so that the objects of
//! one tenant leave room for those of the others. It counts bytes, and knows no scrape.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Of all objects.
#[derive(Clone, Debug)]
pub struct Kept {
    limits: Limits,
    used: Arc<Mutex<Used>>,
}

/// Bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub all: usize,
    pub of_one_namespace: usize,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    namespaces: HashMap<Arc<str>, usize>,
}

/// That of one namespace.
#[derive(Clone, Debug)]
pub struct Share {
    kept: Kept,
    namespace: Arc<str>,
}

/// Bytes that count until this is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    share: Share,
    bytes: usize,
}

impl Kept {
    pub fn new(limits: Limits) -> Self {
        Self { limits, used: Arc::default() }
    }

    pub fn share(&self, namespace: &str) -> Share {
        Share { kept: self.clone(), namespace: namespace.into() }
    }

    /// What is reserved now.
    pub fn bytes(&self) -> usize {
        self.used().all
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Without a limit, for one that is alone.
    pub(super) fn alone() -> Self {
        Kept::new(Limits { all: usize::MAX, of_one_namespace: usize::MAX }).share("")
    }

    /// Of a namespace.
    pub(super) fn limit(&self) -> usize {
        self.kept.limits.of_one_namespace
    }

    /// `None`: there is no room for so many bytes.
    pub(super) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        let limits = self.kept.limits;
        let mut used = self.kept.used();
        let own = used.namespaces.get(&self.namespace).copied().unwrap_or(0);
        let (all, own) = (used.all.checked_add(bytes)?, own.checked_add(bytes)?);
        if all > limits.all || own > limits.of_one_namespace {
            return None;
        }
        used.all = all;
        used.namespaces.insert(Arc::clone(&self.namespace), own);
        drop(used);
        Some(Reserved { share: self.clone(), bytes })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Self { share, bytes } = self;
        let mut used = share.kept.used();
        used.all = used.all.saturating_sub(*bytes);
        if let Some(own) = used.namespaces.get_mut(&share.namespace) {
            *own = own.saturating_sub(*bytes);
            if *own == 0 {
                used.namespaces.remove(&share.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_has_its_share_gets_no_more_and_others_do() {
        let kept = Kept::new(Limits { all: 100, of_one_namespace: 60 });
        let (one, other) = (kept.share("one"), kept.share("other"));
        let first = one.reserve(60);
        assert!(first.is_some() && one.reserve(1).is_none());
        let second = other.reserve(40);
        assert!(second.is_some() && other.reserve(1).is_none(), "all together");
        drop(first);
        assert!(other.reserve(20).is_some());
        drop(second);
        assert_eq!(kept.bytes(), 0);
        assert!(kept.used().namespaces.is_empty(), "nothing is kept of a namespace at rest");
    }
}
