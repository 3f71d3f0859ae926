//! Converts keys of a store to relative paths, and refuses keys that are not valid paths. Pure. Links are handled by
//! `tree` and `directory`.
//!
//! An invalid key stops the transfer, because a model that lacks a file cannot be used.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::Bound,
};

/// Prefix of the program's own names in the folder. A copy of the folder that another program uploaded has them too; they
/// are left out.
pub(crate) const OWN_NAMES: &str = ".model-transfer.";

/// What nearly every file system allows for one name.
const LONGEST_NAME: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("object {key:?} cannot be a file below the folder ({why}): rename it")]
pub(crate) struct InvalidKey {
    key: String,
    why: &'static str,
}

/// The path below the folder, or `None` for keys that are not files of the model: the folder itself and the program's own
/// files.
pub(crate) fn relative_path<'k>(key: &'k str, prefix: &str) -> Result<Option<&'k str>, InvalidKey> {
    let invalid = |why| InvalidKey { key: key.to_owned(), why };
    let below = match prefix {
        "" => Some(key),
        prefix if key == prefix => None,
        prefix => {
            let below = key.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
            Some(below.ok_or_else(|| invalid("it is not below the prefix"))?)
        }
    };
    let Some(path) = below.filter(|path| !path.is_empty()) else { return Ok(None) };
    for name in path.split('/') {
        let wrong = match name {
            "" => Some("it has an empty segment"),
            "." | ".." => Some("it has a relative segment"),
            name if name.len() > LONGEST_NAME => Some("a segment is longer than 255 bytes"),
            name if name.chars().any(char::is_control) => Some("it has a control character"),
            _ => None,
        };
        if let Some(why) = wrong {
            return Err(invalid(why));
        }
    }
    Ok((!path.starts_with(OWN_NAMES)).then_some(path))
}

/// Paths that can be in one folder together, by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree<T> {
    pub(crate) files: BTreeMap<String, T>,
    /// Folders without a file below them.
    pub(crate) folders: BTreeMap<String, T>,
    /// Two paths that differ only in case, which are one file on some volumes.
    pub(crate) case_twins: Option<(String, String)>,
}

/// Empty objects without objects below them: each is an empty file, or stands for an empty folder.
pub(crate) fn may_be_folders<T>(files: &[(String, T)], size: impl Fn(&T) -> u64) -> BTreeSet<String> {
    let paths: BTreeSet<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let mut unclear = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (path, file) in files {
        if !seen.insert(path) {
            // A file and a folder of one name, which `tree` refuses.
            unclear.remove(path);
        } else if size(file) == 0 && !has_below(&paths, path) {
            unclear.insert(path.clone());
        }
    }
    unclear
}

/// Whether one of the paths is below a folder of this name. The folders above all paths are not collected: a path of `n`
/// bytes can have `n / 2` of them.
fn has_below(paths: &BTreeSet<&str>, folder: &str) -> bool {
    let below = format!("{folder}/");
    let mut following = paths.range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded));
    following.next().is_some_and(|path| path.starts_with(&below))
}

/// Fails if two objects have one path, or if a path is both a file and a folder. `folders`: objects that stand for folders.
///
/// An empty object in the place of a folder stands for that folder, as consoles make them: it is left out.
pub(crate) fn tree<T>(
    files: Vec<(String, T)>,
    folders: Vec<(String, T)>,
    size: impl Fn(&T) -> u64,
) -> Result<Tree<T>, InvalidKey> {
    let paths: BTreeSet<&str> = files.iter().chain(&folders).map(|(path, _)| path.as_str()).collect();
    let are_above = |objects: &[(String, T)]| -> Vec<bool> {
        objects.iter().map(|(path, _)| has_below(&paths, path)).collect()
    };
    let (files_above, folders_above) = (are_above(&files), are_above(&folders));
    drop(paths);
    let mut tree = BTreeMap::new();
    let mut folded = BTreeSet::new();
    let mut case_twins = None;
    for ((path, file), is_above) in files.into_iter().zip(files_above) {
        if is_above {
            if size(&file) == 0 {
                continue;
            }
            return Err(InvalidKey { key: path, why: "there are objects below it" });
        }
        let lower = path.to_lowercase();
        if case_twins.is_none() && folded.contains(&lower) {
            let twin = tree.keys().find(|other: &&String| other.to_lowercase() == lower);
            case_twins = twin.map(|twin| (twin.clone(), path.clone()));
        }
        folded.insert(lower);
        match tree.entry(path) {
            Entry::Vacant(place) => drop(place.insert(file)),
            Entry::Occupied(same) => {
                let key = same.key().clone();
                return Err(InvalidKey { key, why: "there are two of this name" });
            }
        }
    }
    let mut empty = BTreeMap::new();
    for ((path, folder), is_above) in folders.into_iter().zip(folders_above) {
        if is_above {
            continue;
        }
        if tree.contains_key(&path) {
            return Err(InvalidKey { key: path, why: "there is a file of this name" });
        }
        empty.insert(path, folder);
    }
    Ok(Tree { files: tree, folders: empty, case_twins })
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::{ProptestConfig, any, proptest};

    use super::*;

    #[test]
    fn keys_below_the_prefix_become_paths() {
        for (key, prefix, path) in [
            ("config.json", "", Some("config.json")),
            ("qwen/config.json", "qwen", Some("config.json")),
            ("qwen/a/b c/ü.bin", "qwen", Some("a/b c/ü.bin")),
            ("qwen/...", "qwen", Some("...")),
            ("qwen/a\\..\\b", "qwen", Some("a\\..\\b")),
            ("qwen", "qwen", None),
            ("qwen/", "qwen", None),
            ("qwen/.model-transfer.jsonl", "qwen", None),
            ("qwen/.model-transfer.partial/x.data", "qwen", None),
            ("qwen/sub/.model-transfer.jsonl", "qwen", Some("sub/.model-transfer.jsonl")),
        ] {
            assert_eq!(relative_path(key, prefix), Ok(path), "{key}");
        }
    }

    #[test]
    fn invalid_keys_are_refused() {
        let long = "x".repeat(256);
        for key in [
            "qwen/../config.json",
            "qwen/..",
            "qwen/a/../../b",
            "qwen/./a",
            "qwen//etc/passwd",
            "qwen/a//b",
            "qwen/a/",
            "qwen/a\0b",
            "qwen/a\nb",
            "qwen/\u{7f}",
            "qwen/\u{85}",
            "qwen2/config.json",
            "/etc/passwd",
            &format!("qwen/{long}"),
        ] {
            assert!(relative_path(key, "qwen").is_err(), "{key:?}");
        }
        for key in ["/etc/passwd", "../a", "a/../../b", "//a"] {
            assert!(relative_path(key, "").is_err(), "{key:?}");
        }
    }

    #[test]
    fn a_key_of_1024_bytes_is_no_reason_to_fail() {
        let key = ["x".repeat(255), "y".repeat(255), "z".repeat(255), "w".repeat(256 - 1)].join("/");
        assert_eq!(key.len(), 1023);
        assert_eq!(relative_path(&key, ""), Ok(Some(key.as_str())));
    }

    #[test]
    fn files_and_folders_of_one_name_are_refused_unless_they_stand_for_the_folder() {
        let tree_of = |files: &[(&str, u64)]| {
            let files = files.iter().map(|(path, size)| ((*path).to_owned(), *size)).collect();
            tree(files, Vec::new(), |size| *size)
        };
        assert!(tree_of(&[("a", 1), ("a/b", 1)]).is_err());
        assert!(tree_of(&[("a/b", 1), ("a", 1), ("c", 1)]).is_err());
        assert!(tree_of(&[("a", 1), ("a", 1)]).is_err());
        let marked = tree_of(&[("a", 0), ("a/b", 0), ("a/b/c", 1)]).unwrap();
        assert_eq!(marked.files.into_keys().collect::<Vec<_>>(), ["a/b/c"]);
    }

    fn sized(files: &[(&str, u64)]) -> Vec<(String, u64)> {
        files.iter().map(|(path, size)| ((*path).to_owned(), *size)).collect()
    }

    #[test]
    fn an_empty_object_without_objects_below_it_may_be_a_folder() {
        let listed = sized(&[("a", 0), ("a/b", 0), ("c", 1), ("d", 0), ("twice", 0), ("twice", 0)]);
        let unclear: Vec<String> = may_be_folders(&listed, |size| *size).into_iter().collect();
        assert_eq!(unclear, ["a/b", "d"]);
    }

    #[test]
    fn a_folder_is_kept_if_nothing_is_below_it_and_refused_if_a_file_has_its_name() {
        let tree_of = |files: &[(&str, u64)], folders: &[&str]| {
            let folders: Vec<(&str, u64)> = folders.iter().map(|path| (*path, 0)).collect();
            tree(sized(files), sized(&folders), |size| *size)
        };
        let tree = tree_of(&[("a", 0), ("b/c", 1)], &["a/1", "b", "d/e", "d"]).unwrap();
        assert_eq!(tree.files.into_keys().collect::<Vec<_>>(), ["b/c"]);
        assert_eq!(tree.folders.into_keys().collect::<Vec<_>>(), ["a/1", "d/e"]);
        assert!(tree_of(&[("a", 1)], &["a"]).is_err());
        assert!(tree_of(&[("a", 1)], &["a/1"]).is_err());
    }

    #[test]
    fn case_twins_are_seen() {
        let files = |paths: [&str; 2]| paths.map(|path| (path.to_owned(), 1)).to_vec();
        let twins = tree(files(["A/Model.bin", "a/model.bin"]), Vec::new(), |size| *size).unwrap().case_twins;
        assert_eq!(twins, Some(("A/Model.bin".to_owned(), "a/model.bin".to_owned())));
        assert_eq!(tree(files(["a", "b"]), Vec::new(), |size| *size).unwrap().case_twins, None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever the key, the path has plain names only, and joining it to a folder stays below that folder.
        #[test]
        fn no_key_leaves_the_folder(key in "([a.~/\\\\\\x00-\\x1f]|\\.\\.|//|qwen/){0,12}", junk in any::<String>()) {
            for key in [key.clone(), junk.clone(), format!("qwen/{key}"), format!("qwen/{junk}")] {
                for prefix in ["", "qwen"] {
                    if let Ok(Some(path)) = relative_path(&key, prefix) {
                        let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
                        assert!(plain && !path.is_empty() && !path.contains('\0'), "{key:?} became {path:?}");
                        assert!(Path::new("/models").join(path).starts_with("/models"));
                    }
                }
            }
        }
    }
}
