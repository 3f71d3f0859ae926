//! How much memory the scrapes that rates need may take: all together, and those of one namespace, so that the objects of
//! one tenant leave room for those of the others. It counts bytes, and knows no scrape.
//!
//! A namespace gets more only while it has less than is free. So one namespace takes half of all at most, two take a third
//! each, and there is always room for another one.

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

/// The limit that leaves no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// That of one namespace.
    Namespace { limit: usize },
    /// That of all together: what is free is for other namespaces.
    All { limit: usize },
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

    pub(super) fn reserve(&self, bytes: usize) -> Result<Reserved, Full> {
        let Limits { all, of_one_namespace } = self.kept.limits;
        let mut used = self.kept.used();
        let own = used.namespaces.get(&self.namespace).copied().unwrap_or(0).saturating_add(bytes);
        if own > of_one_namespace {
            return Err(Full::Namespace { limit: of_one_namespace });
        }
        if own > all.saturating_sub(used.all) {
            return Err(Full::All { limit: all });
        }
        used.all = used.all.saturating_add(bytes);
        used.namespaces.insert(Arc::clone(&self.namespace), own);
        drop(used);
        Ok(Reserved { share: self.clone(), bytes })
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
        let kept = Kept::new(Limits { all: 100, of_one_namespace: 30 });
        let (one, other) = (kept.share("one"), kept.share("other"));
        let first = one.reserve(30);
        assert_eq!(one.reserve(1).map(|_| ()), Err(Full::Namespace { limit: 30 }));
        let second = other.reserve(30);
        assert!(first.is_ok() && second.is_ok());
        drop(first);
        assert!(one.reserve(20).is_ok());
        drop(second);
        assert_eq!(kept.bytes(), 0);
        assert!(kept.used().namespaces.is_empty(), "nothing is kept of a namespace at rest");
    }

    #[test]
    fn however_many_namespaces_take_what_they_can_there_is_room_for_another_one() {
        let kept = Kept::new(Limits { all: 1_000, of_one_namespace: 300 });
        let mut reserved = Vec::new();
        for number in 0..6 {
            let share = kept.share(&number.to_string());
            let full = loop {
                match share.reserve(1) {
                    Ok(more) => reserved.push(more),
                    Err(full) => break full,
                }
            };
            let is_first = number < 2;
            assert_eq!(full == Full::Namespace { limit: 300 }, is_first, "{number}: {full:?}");
            assert_eq!(full == Full::All { limit: 1_000 }, !is_first, "{number}: {full:?}");
        }
        assert!(kept.bytes() < 1_000, "{}", kept.bytes());
        assert!(kept.share("another").reserve(10).is_ok());
    }
}
