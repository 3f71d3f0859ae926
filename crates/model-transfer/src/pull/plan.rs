//! Decides which files to fetch, to keep and to remove. Pure.

use std::collections::BTreeMap;

use super::{folder::Placed, object::Object};
use crate::digest::{Expected, Proof};

#[derive(Debug)]
pub(super) struct Plan {
    /// Files in place, of this version, and checked against the present checksum.
    pub(super) kept: Vec<Object>,
    /// The largest first, because they take longest.
    pub(super) fetch: Vec<Object>,
    /// Files that an earlier run placed and that are no longer part of the model.
    pub(super) stale: Vec<String>,
}

/// `sizes`: those of the recorded files that exist. `boot`: the present boot of the machine.
pub(super) fn plan(
    objects: BTreeMap<String, Object>,
    record: &BTreeMap<String, Placed>,
    sizes: &BTreeMap<String, u64>,
    boot: &str,
) -> Plan {
    let is_folder = |path: &str| path.ends_with('/');
    let stale =
        record.keys().filter(|path| !objects.contains_key(*path) && !is_folder(path)).cloned().collect();
    let (kept, mut fetch): (Vec<Object>, Vec<Object>) = objects.into_values().partition(|object| {
        record.get(&object.path).is_some_and(|placed| {
            sizes.get(&object.path) == Some(&object.size) && is_same(object, placed, boot)
        })
    });
    fetch.sort_by_key(|object| std::cmp::Reverse(object.size));
    Plan { kept, fetch, stale }
}

fn is_same(object: &Object, placed: &Placed, boot: &str) -> bool {
    // A file that was not synced may be lost after a crash of the machine.
    let survived = placed.boot.as_deref().is_none_or(|held| held == boot);

    let checked = match &object.expected {
        Expected::Sha256(digest) => placed.proof == Proof::Sha256(digest.clone()),
        // Its version is the name of the content.
        Expected::GitBlob(_) | Expected::Md5(_) | Expected::Crc64(_) | Expected::Nothing => true,
    };
    survived && placed.version == object.version && placed.size == object.size && checked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str, size: u64, version: &str) -> (String, Object) {
        let object = Object {
            key: path.into(),
            path: path.to_owned(),
            size,
            etag: None,
            changed: 0,
            version: version.to_owned(),
            expected: Expected::Nothing,
        };
        (path.to_owned(), object)
    }

    fn placed(path: &str, size: u64, version: &str) -> (String, Placed) {
        let placed = Placed {
            path: path.to_owned(),
            size,
            version: version.to_owned(),
            proof: Proof::Length,
            boot: None,
        };
        (path.to_owned(), placed)
    }

    fn held_by_boot(path: &str, boot: &str) -> (String, Placed) {
        let (path, placed) = placed(path, 5, "v1");
        (path, Placed { boot: Some(boot.to_owned()), ..placed })
    }

    fn paths(objects: &[Object]) -> Vec<&str> {
        objects.iter().map(|object| object.path.as_str()).collect()
    }

    #[test]
    fn what_is_in_place_and_of_this_version_stays() {
        let plan = plan(
            [
                object("same", 5, "v1"),
                object("changed", 5, "v2"),
                object("new", 5, "v1"),
                object("gone", 5, "v1"),
                object("cut", 5, "v1"),
                object("held", 5, "v1"),
                object("lost", 5, "v1"),
            ]
            .into(),
            &[
                placed("same", 5, "v1"),
                placed("changed", 5, "v1"),
                placed("gone", 5, "v1"),
                placed("cut", 5, "v1"),
                held_by_boot("held", "this boot"),
                held_by_boot("lost", "the boot before"),
            ]
            .into(),
            &[("same", 5), ("changed", 5), ("cut", 4), ("held", 5), ("lost", 5)]
                .map(|(path, size)| (path.to_owned(), size))
                .into(),
            "this boot",
        );
        assert_eq!(paths(&plan.kept), ["held", "same"]);
        assert_eq!(paths(&plan.fetch), ["changed", "cut", "gone", "lost", "new"]);
    }

    #[test]
    fn what_left_the_model_is_stale_and_what_others_placed_is_not() {
        let plan = plan(
            [object("a", 1, "v1")].into(),
            &[placed("a", 1, "v1"), placed("old", 1, "v1"), placed("folder/", 0, "v1")].into(),
            &[("a".to_owned(), 1), ("old".to_owned(), 1)].into(),
            "boot",
        );
        assert_eq!(plan.stale, ["old"]);
    }

    #[test]
    fn a_new_checksum_asks_for_the_file_again_unless_it_was_checked_by_it() {
        let (digest, size) = ("ab".repeat(32), 1);
        let (path, mut listed) = object("a", size, "v1");
        listed.expected = Expected::Sha256(digest.clone());
        let objects = BTreeMap::from([(path.clone(), listed)]);
        let sizes = BTreeMap::from([(path, size)]);
        let mut record = BTreeMap::from([placed("a", size, "v1")]);
        assert_eq!(plan(objects.clone(), &record, &sizes, "boot").kept.len(), 0);
        record.values_mut().for_each(|placed| placed.proof = Proof::Sha256(digest.clone()));
        assert_eq!(plan(objects, &record, &sizes, "boot").kept.len(), 1);
    }

    #[test]
    fn the_largest_file_goes_first() {
        let plan = plan(
            [object("a", 1, "v"), object("b", 3, "v"), object("c", 2, "v")].into(),
            &BTreeMap::new(),
            &BTreeMap::new(),
            "boot",
        );
        assert_eq!(paths(&plan.fetch), ["b", "c", "a"]);
    }
}
