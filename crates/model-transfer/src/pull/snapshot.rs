//! The files of a model on a hub, as a pull fetches them.

use std::collections::BTreeMap;

use api::labels;
use object_store::path::Path as Key;
use tracing::info;

use super::object::{Listed, Object};
use crate::{
    cli::Pull,
    digest::Expected,
    fault::{Cause, Fault},
    hub::{File, Hub, Snapshot},
    selection,
    store::keys::{self, Tree},
};

/// The wanted files of the commit that other pods have loaded, or of the one that the source stands for now.
pub(super) async fn listed(wanted: &Pull, hub: &Hub) -> Result<Listed, Fault> {
    let Pull { source, include, exclude, siblings, .. } = wanted;
    let pinned = siblings.commit();
    let Snapshot { commit, files } = hub.snapshot(pinned).await.map_err(|fault| match pinned {
        Some(commit) if fault.cause == Cause::NotFound => gone(&source.to_string(), commit, &fault),
        Some(_) | None => fault,
    })?;
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let is_wanted = selection::wanted(&paths, include, exclude);
    let all = files.len();
    let files: Vec<File> =
        files.into_iter().zip(is_wanted).filter_map(|(file, is_wanted)| is_wanted.then_some(file)).collect();
    if files.is_empty() {
        let message = format!(
            "{source} has {all} files, and none is wanted: correct spec.modelLoader.include and exclude, or the source"
        );
        return Err(Fault::new(Cause::NotFound, message));
    }
    let at = commit.as_deref().map_or(String::new(), |commit| format!(" at commit {commit}"));
    info!("{source}{at}: {} of {all} files are wanted", files.len());
    let invalid = |invalid: keys::InvalidKey| Fault::new(Cause::NotFound, format!("{source}: {invalid}"));
    let mut objects = Vec::new();
    for file in files {
        if keys::relative_path(&file.path, "").map_err(invalid)?.is_some() {
            objects.push((file.path.clone(), object(file)));
        }
    }
    let Tree { files, folders: _, case_twins } =
        keys::tree(objects, Vec::new(), |object: &Object| object.size).map_err(invalid)?;
    let commit = commit.unwrap_or_default();
    // The hub has the digests of all files: a list of them in the model adds nothing, and may be old.
    Ok(Listed { files, empty_folders: BTreeMap::new(), case_twins, sums: None, is_one_object: false, commit })
}

fn gone(source: &str, commit: &str, fault: &Fault) -> Fault {
    let message = format!(
        "{source}: pods of this revision have loaded commit {commit}, which the hub does not give any more ({}); load the \
         present one into all pods with a new value of the annotation {}",
        fault.message(),
        labels::REFRESH
    );
    Fault::new(Cause::OtherModel, message)
}

/// Its version is its content.
fn object(file: File) -> Object {
    let File { path, size, expected } = file;
    let version = match &expected {
        Expected::Sha256(digest) | Expected::GitBlob(digest) => digest.clone(),
        Expected::Md5(_) | Expected::Crc64(_) | Expected::Nothing => String::new(),
    };
    let etag = Some(version.clone());
    Object { key: Key::from(path.as_str()), path, size, etag, changed: 0, version, expected }
}
