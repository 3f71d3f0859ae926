//! Whether the watches of a process work, as `/readyz` reports it. Each kind has a health of its own.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// What `/readyz` asks.
#[derive(Clone)]
pub struct WatchesHealth {
    kinds: Vec<(&'static str, Arc<Health>)>,
}

impl WatchesHealth {
    pub(crate) fn new(kinds: Vec<(&'static str, Arc<Health>)>) -> Self {
        Self { kinds }
    }

    /// One line per kind that is not healthy; empty if all are. `grace`: how long a watch may fail before it counts.
    pub fn complaints(&self, grace: Duration) -> Vec<String> {
        let now = Instant::now();
        self.kinds
            .iter()
            .filter_map(|(kind, health)| health.complaint(now, grace).map(|why| format!("{kind}: {why}")))
            .collect()
    }
}

/// Of one kind.
#[derive(Default)]
pub(crate) struct Health(Mutex<Signs>);

#[derive(Default)]
struct Signs {
    synced: bool,
    /// The kind is not served, or may not be listed, and the process does without.
    absent: bool,
    failing_since: Option<(Instant, String)>,
}

impl Health {
    /// Only a watch that is open, or that delivers, is a sign of life: a LIST that works says nothing about it.
    /// True if the watch was failing until now.
    pub(crate) fn alive(&self) -> bool {
        self.lock().failing_since.take().is_some()
    }

    pub(crate) fn synced(&self) {
        self.lock().synced = true;
    }

    /// Whether the process does without the kind now.
    pub(crate) fn is_absent(&self) -> bool {
        self.lock().absent
    }

    pub(crate) fn absent(&self, absent: bool) {
        self.lock().absent = absent;
    }

    pub(crate) fn failed(&self, why: &str) {
        let mut signs = self.lock();
        let since = signs.failing_since.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        signs.failing_since = Some((since, why.to_owned()));
    }

    /// Since when the watch has been failing; `None` while it works.
    pub(crate) fn failing_since(&self) -> Option<Instant> {
        self.lock().failing_since.as_ref().map(|(since, _)| *since)
    }

    fn complaint(&self, now: Instant, grace: Duration) -> Option<String> {
        let signs = self.lock();
        match &signs.failing_since {
            Some((since, why)) if !signs.synced || now - *since > grace => {
                Some(format!("failing for {} s: {why}", (now - *since).as_secs()))
            }
            Some(_) => None,
            None if signs.synced => None,
            None => Some("not listed yet".to_owned()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Signs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_forgives_a_short_failure_but_not_before_the_first_list() {
        let health = Health::default();
        let grace = Duration::from_secs(30);
        assert!(health.complaint(Instant::now(), grace).is_some(), "nothing listed yet");
        health.failed("403");
        assert!(health.complaint(Instant::now(), grace).is_some_and(|why| why.contains("403")));
        health.synced();
        assert!(health.complaint(Instant::now(), grace).is_none());
        assert!(health.complaint(Instant::now() + Duration::from_secs(31), grace).is_some());
        health.alive();
        assert!(health.complaint(Instant::now() + Duration::from_secs(31), grace).is_none());
    }
}
