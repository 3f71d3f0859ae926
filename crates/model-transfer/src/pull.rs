//! `pull`: copies everything below a prefix, or a model of a hub, into a folder.
//!
//! ```text
//! lock ─▶ list ─▶ keys become paths ─▶ as the other pods have it? ─▶ what is in place stays ─▶ does the rest fit?
//! ─▶ ranges in parallel ─▶ check ─▶ rename
//! ```
//!
//! A file is in its place only when it is complete and checked. The listing determines the model: an object that changes
//! during the copy starts the attempt again.

mod fetch;
mod folder;
mod lock;
mod manifest;
mod object;
mod origin;
mod partial;
mod plan;
mod request;
mod snapshot;
mod transfer;
mod writer;

use std::{collections::BTreeMap, iter, sync::Arc, time::Duration};

use api::loader::Loaded;
use directory::space::{Size, Volume};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue};
use object_store::{ObjectMeta, path::Path as Key};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::{
    check::{
        self,
        contents::{self, Contents},
    },
    cli::{Options, Pull},
    digest::{Expected, sums::SHA256SUMS},
    fault::{Cause, Fault, write_termination_log},
    location::Location,
    progress::{Progress, clock},
    space,
    store::{
        Store,
        keys::{self, Tree},
        markers,
        retry::Patience,
    },
};
use folder::Folder;
use object::{Listed, Object};
use origin::Origin;
use plan::{Plan, plan};
use transfer::{CONNECTIONS, Transfer};

/// Limit for the check of a folder that was just written.
const CHECK_WITHIN: Duration = Duration::from_secs(60);

pub(crate) async fn pull(wanted: &Pull, options: &Options) -> Result<String, Fault> {
    let began = Instant::now();
    let Pull {
        source,
        folder: root,
        no_sync,
        engine,
        size_limit: _,
        manifest_digest: _,
        hub_endpoint: _,
        include: _,
        exclude: _,
        first_answer_seconds,
        install: _,
        siblings: _,
    } = wanted;
    let origin = Origin::open(wanted, options)?;
    Folder::create(root)?;
    let lock = lock::lock(root, options.wait_for_others()).await?;
    let volume = Volume::of(root, &options.termination_log, space::MORE_SPACE);
    let volume = volume.map_err(Fault::io("ask for the free space of", root))?;
    let folder = Arc::new(Folder::open(root, volume, !no_sync, lock)?);
    let progress = Progress::new(options.progress());
    let transfer = Arc::new(Transfer::new(origin, Arc::clone(&folder), progress));
    let reported = folder.last_fault();
    // A store that does not answer is reported soon, and waited for by the runs that follow.
    let silence = (reported != Some(Cause::Unreachable.exit_code()))
        .then(|| Duration::from_secs(*first_answer_seconds).min(options.patience()));
    let mut patience = Patience::new(options.patience(), reported);
    let (report, loaded) = loop {
        let attempted = tokio::select! {
            biased;
            attempted = attempt(wanted, &transfer) => attempted,
            silent = transfer.origin.silence(silence) => Err(silent),
        };
        let fault = match attempted {
            Ok(done) => break done,
            Err(fault) => fault,
        };
        let Some(step) = patience.after(fault.cause) else {
            folder.note_fault(fault.cause);
            return Err(fault);
        };
        warn!("{fault}; looking again in {:.0} s", step.as_secs_f64());
        sleep(step).await;
        transfer.threads_ended().await;
    };
    if let Some(engine) = engine {
        let file = source.gguf_file().filter(|_| *engine == check::Engine::Vllm);
        let model = file.map_or_else(|| root.clone(), |name| root.join(name));
        check::check(&model, root, *engine, CHECK_WITHIN).await?;
    }
    write_termination_log(&options.termination_log, &loaded.message());
    let fetched = Size(transfer.progress.bytes_moved());
    Ok(format!("{source} is in place: {report}; fetched {fetched} in {}", clock(began.elapsed().as_secs())))
}

/// The header that requests stored checksums. It is sent with each request, because object_store signs only such headers.
fn checksums_wanted() -> HeaderMap {
    let header = (HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));
    [header].into_iter().collect()
}

/// One attempt, from the listing to a folder that equals it. Returns how the files were checked, and what they are.
async fn attempt(wanted: &Pull, transfer: &Arc<Transfer>) -> Result<(String, Loaded), Fault> {
    let Transfer { origin, folder, progress, .. } = transfer.as_ref();
    let Pull { source, engine, size_limit, manifest_digest, siblings, .. } = wanted;
    let mut listed = match origin {
        Origin::Store(store, location) => listed(location, store).await?,
        Origin::Hub(hub) => snapshot::listed(wanted, hub).await?,
    };
    if let Some(engine) = engine {
        let folders: Vec<String> = listed.empty_folders.keys().map(|path| format!("{path}/")).collect();
        let paths = listed.files.keys().chain(&folders).map(String::as_str);
        check::check_paths(*engine, &source.to_string(), paths, listed.is_one_object)?;
        if *engine == check::Engine::Vllm && source.gguf_file().is_some() && !listed.is_one_object {
            let message =
                format!("{source} is a folder, and its name ends like that of a file: rename the folder");
            return Err(Fault::new(Cause::NotFound, message));
        }
    }
    if let Some(limit) = size_limit {
        let sizes = listed.files.values().map(|object| object.size);
        space::keep_limit(&source.to_string(), sizes, *limit)?;
    }
    if let Some((one, other)) = &listed.case_twins
        && !folder.distinguishes_case()?
    {
        let message = format!(
            "the volume treats {one:?} and {other:?} as one name: rename an object, or use another volume"
        );
        return Err(Fault::new(Cause::NotFound, message));
    }
    manifest::expect(source, &mut listed, manifest_digest.as_deref(), transfer).await?;
    let loaded = loaded(&listed, *engine);
    contents::keep(siblings.digest(), &source.to_string(), &loaded)?;

    let Listed { files, empty_folders, .. } = listed;
    let record = folder.record();
    let Plan { kept, fetch, stale } = plan(files, &record, &folder.sizes(&record), folder.boot());
    let bytes = |objects: &[Object]| space::total(objects.iter().map(|object| object.size));
    let all = bytes(&kept).saturating_add(bytes(&fetch));
    info!("{source}: files: {}, {}; {} to fetch", kept.len() + fetch.len(), Size(all), Size(bytes(&fetch)));
    folder.drop_partials_but(&fetch)?;
    let needed: Vec<(u64, u64)> = fetch.iter().map(|object| (object.size, folder.held_by(object))).collect();
    let room = folder.volume().room().map_err(Fault::io("ask for the free space of", folder.root()))?;
    space::check(&needed, room, folder.root())?;

    progress.begin(all);
    progress.found(bytes(&kept));
    progress.shown("pulled", fetch::fetch_all(transfer, fetch)).await?;
    Ok((folder.finish(&stale, &empty_folders)?, loaded))
}

/// What the engine will load. A file that SHA256SUMS lists is known by its digest: uploaded again unchanged, it is the same.
fn loaded(listed: &Listed, engine: Option<check::Engine>) -> Loaded {
    let mut contents = Contents::default();
    let counts = |object: &&Object| listed.is_one_object || check::is_loaded(engine, &object.path);
    for object in listed.files.values().filter(counts) {
        let identity = match &object.expected {
            Expected::Sha256(digest) | Expected::GitBlob(digest) => digest,
            Expected::Md5(_) | Expected::Crc64(_) | Expected::Nothing => &object.version,
        };
        contents.add(&object.path, object.size, identity);
    }
    Loaded { commit: listed.commit.clone(), ..contents.loaded() }
}

/// The objects below the source, or the one object that it names. Fails if there is none.
async fn listed(source: &Location, store: &Store) -> Result<Listed, Fault> {
    let invalid = |invalid: keys::InvalidKey| Fault::new(Cause::NotFound, format!("{source}: {invalid}"));
    let mut files = Vec::new();
    for meta in store.list(&source.prefix).await? {
        if let Some(path) = keys::relative_path(meta.location.as_ref(), &source.prefix).map_err(invalid)? {
            files.push((path.to_owned(), object(path.to_owned(), meta.clone())));
        }
    }
    let folders = take_folders(store, &mut files).await?;
    if files.is_empty() {
        return one_object(source, store).await;
    }
    let Tree { files, folders, case_twins } =
        keys::tree(files, folders, |object| object.size).map_err(invalid)?;
    let empty_folders = folders.into_iter().map(|(path, object)| (path, object.version)).collect();
    let sums = files.get(SHA256SUMS).cloned();
    Ok(Listed { files, empty_folders, case_twins, sums, is_one_object: false, commit: String::new() })
}

/// Removes and returns the objects that stand for empty folders. The listing shows them like empty files, so there is a
/// request for each.
async fn take_folders(
    store: &Store,
    files: &mut Vec<(String, Object)>,
) -> Result<Vec<(String, Object)>, Fault> {
    let unclear = keys::may_be_folders(files, |object| object.size);
    let asked = files.iter().filter(|(path, _)| unclear.contains(path)).map(|(path, object)| async {
        Ok::<_, Fault>((path.clone(), markers::is_marker(store, &object.key).await?))
    });
    let answers: BTreeMap<String, bool> =
        stream::iter(asked).buffer_unordered(CONNECTIONS).try_collect().await?;
    Ok(files.extract_if(.., |(path, _)| answers.get(path) == Some(&true)).collect())
}

async fn one_object(source: &Location, store: &Store) -> Result<Listed, Fault> {
    let none = || {
        let message =
            format!("{source} has no object: upload the model, or correct the bucket or the prefix");
        Fault::new(Cause::NotFound, message)
    };
    if source.prefix.is_empty() {
        return Err(none());
    }
    let key = Key::parse(&source.prefix).map_err(|error| Fault::new(Cause::Usage, error.to_string()))?;
    let name = key.filename().unwrap_or_default().to_owned();
    keys::relative_path(&name, "")
        .map_err(|invalid| Fault::new(Cause::NotFound, format!("{source}: {invalid}")))?;
    // An empty object of this name stands for a folder.
    let found = store.head(&key).await?.filter(|found| found.meta.size > 0).ok_or_else(none)?;
    let list = key.parent().unwrap_or_default().join(SHA256SUMS);
    let sums = match store.head(&list).await {
        Ok(found) => found.map(|found| object(SHA256SUMS.to_owned(), found.meta)),
        // The credentials may permit only this object.
        Err(fault) if fault.cause == Cause::Unauthorized => None,
        Err(fault) => return Err(fault),
    };
    let files = iter::once((name.clone(), object(name, found.meta))).collect();
    Ok(Listed {
        files,
        empty_folders: BTreeMap::new(),
        case_twins: None,
        sums,
        is_one_object: true,
        commit: String::new(),
    })
}

fn object(path: String, meta: ObjectMeta) -> Object {
    let ObjectMeta { location: key, size, e_tag, last_modified, version: _ } = meta;
    let etag = e_tag.filter(|etag| !etag.trim_matches('"').is_empty());
    let version = etag.clone().unwrap_or_else(|| format!("changed {}", last_modified.to_rfc3339()));
    let (expected, changed) = (Expected::of_etag(etag.as_deref()), last_modified.timestamp());
    Object { key, path, size, expected, etag, changed, version }
}
