//! Pods that were deleted because their nodes or GPUs are lost, until the status of their owner records them.
//!
//! A status write can fail with a conflict, and a pod does not show why it was deleted. So each deletion is kept in memory
//! and added to every planned status until the stored status has it. A restart of the process between the deletion and the
//! status write loses the record; the event of the deletion remains.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;

/// A pod that was deleted because its node or its GPU is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodMigration {
    pub pod: String,
    pub node: String,
    pub reason: &'static str,
    /// What the reason does not say, such as the error of a GPU.
    pub message: Option<String>,
    pub time: Timestamp,
}

/// By uid of the owner of the pods, oldest first.
#[derive(Debug, Default)]
pub struct Migrations(Mutex<HashMap<String, Vec<PodMigration>>>);

/// Maximum number of entries of one object, as in its status. The newest are kept.
pub const MOST_OF_ONE: usize = 10;
/// Maximum number of objects. Beyond it all entries are dropped.
const MOST: usize = 10_000;

impl Migrations {
    pub fn note(&self, uid: &str, migration: PodMigration) {
        let mut by_uid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if by_uid.len() >= MOST && !by_uid.contains_key(uid) {
            by_uid.clear();
        }
        let of_one = by_uid.entry(uid.to_owned()).or_default();
        of_one.push(migration);
        let surplus = of_one.len().saturating_sub(MOST_OF_ONE);
        of_one.drain(..surplus);
    }

    /// Entries that are not recorded yet. Recorded ones are removed.
    pub fn unrecorded(&self, uid: &str, is_recorded: impl Fn(&PodMigration) -> bool) -> Vec<PodMigration> {
        let mut by_uid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut of_one) = by_uid.remove(uid) else { return Vec::new() };
        of_one.retain(|migration| !is_recorded(migration));
        if !of_one.is_empty() {
            by_uid.insert(uid.to_owned(), of_one.clone());
        }
        of_one
    }
}

#[cfg(test)]
mod tests {
    use api::reasons;

    use super::*;

    fn migration(pod: &str) -> PodMigration {
        let time = Timestamp::from_second(1_767_268_800).unwrap();
        let (pod, node) = (pod.to_owned(), "gpu-1".to_owned());
        PodMigration { pod, node, reason: reasons::NODE_DELETED, message: None, time }
    }

    fn pods(migrations: &[PodMigration]) -> Vec<&str> {
        migrations.iter().map(|migration| migration.pod.as_str()).collect()
    }

    #[test]
    fn a_migration_is_kept_until_the_status_records_it() {
        let migrations = Migrations::default();
        migrations.note("chat", migration("a"));
        migrations.note("chat", migration("b"));
        assert_eq!(migrations.unrecorded("another", |_| false), []);
        // The status write met a conflict.
        assert_eq!(pods(&migrations.unrecorded("chat", |_| false)), ["a", "b"]);
        assert_eq!(pods(&migrations.unrecorded("chat", |known| known.pod == "a")), ["b"]);
        assert_eq!(migrations.unrecorded("chat", |_| true), []);
        assert_eq!(
            migrations.unrecorded("chat", |_| false),
            [],
            "a recorded migration is not returned again"
        );
        assert!(migrations.0.lock().unwrap().is_empty());
    }

    #[test]
    fn migrations_are_bounded() {
        let migrations = Migrations::default();
        for pod in 0..MOST_OF_ONE + 2 {
            migrations.note("chat", migration(&pod.to_string()));
        }
        let newest = migrations.unrecorded("chat", |_| false);
        assert_eq!((newest.len(), newest[0].pod.as_str()), (MOST_OF_ONE, "2"));
        for uid in 0..MOST {
            migrations.note(&uid.to_string(), migration("a"));
        }
        assert_eq!(migrations.0.lock().unwrap().len(), 1);
    }
}
