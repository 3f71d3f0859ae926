//! How many bodies are read at once.
//!
//! There is a limit for all pods together, because each body takes memory. There is one for the pods of a namespace, because
//! pods that withhold their bodies must not keep those of other namespaces waiting.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Permits for bodies. None is ever closed.
#[derive(Debug)]
pub struct Bodies {
    at_once: Semaphore,
    of_one_namespace: usize,
    /// Of the namespaces whose bodies are read or wait.
    namespaces: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// Held while a body is read.
#[derive(Debug)]
pub struct Permit<'b> {
    _of_all: Option<SemaphorePermit<'b>>,
    _of_namespace: Option<OwnedSemaphorePermit>,
    /// The last field: it looks for what the others have let go.
    _share: Share<'b>,
}

/// Keeps the semaphore of a namespace while anything of it is read or waits.
#[derive(Debug)]
struct Share<'b> {
    bodies: &'b Bodies,
    namespace: String,
    semaphore: Option<Arc<Semaphore>>,
}

impl Bodies {
    pub fn new(at_once: usize, of_one_namespace: usize) -> Self {
        Self { at_once: Semaphore::new(at_once), of_one_namespace, namespaces: Mutex::default() }
    }

    /// How many more could be read now.
    pub fn available(&self) -> usize {
        self.at_once.available_permits()
    }

    /// Waits for its turn.
    pub async fn permit(&self, namespace: &str) -> Permit<'_> {
        let share = self.share(namespace);
        let own = share.semaphore.clone();
        let of_namespace = match own {
            Some(own) => own.acquire_owned().await.ok(),
            None => None,
        };
        let of_all = self.at_once.acquire().await.ok();
        Permit { _of_all: of_all, _of_namespace: of_namespace, _share: share }
    }

    fn share(&self, namespace: &str) -> Share<'_> {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Semaphore::new(self.of_one_namespace));
        let semaphore = Arc::clone(namespaces.entry(namespace.to_owned()).or_insert_with(new));
        Share { bodies: self, namespace: namespace.to_owned(), semaphore: Some(semaphore) }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut namespaces = self.bodies.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.semaphore.take());
        if namespaces.get(&self.namespace).is_some_and(|left| Arc::strong_count(left) == 1) {
            namespaces.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_namespace_that_has_its_share_waits_and_others_do_not() {
        let bodies = Bodies::new(3, 2);
        let now = |namespace| bodies.permit(namespace).now_or_never();
        let (first, second) = (now("a"), now("a"));
        assert!(first.is_some() && second.is_some() && now("a").is_none());
        let other = now("b");
        assert!(other.is_some() && now("c").is_none(), "of all together there are three");
        drop(first);
        assert!(now("a").is_some());
        drop((second, other));
        assert_eq!(bodies.available(), 3);
        assert!(bodies.namespaces.lock().unwrap().is_empty(), "nothing is kept of a namespace at rest");
    }

    #[test]
    fn one_that_waits_no_longer_is_forgotten() {
        let bodies = Bodies::new(3, 1);
        let held = bodies.permit("a").now_or_never();
        let mut waits = Box::pin(bodies.permit("a"));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(held);
        drop(waits);
        assert!(bodies.namespaces.lock().unwrap().is_empty());
        assert_eq!(bodies.available(), 3);
    }
}
