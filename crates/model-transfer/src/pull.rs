//! `pull`: everything below a prefix, into a folder.
//!
//! ```text
//! list ─▶ keys become paths ─▶ what is in place stays ─▶ does the rest fit? ─▶ ranges in parallel ─▶ check ─▶ rename
//! ```
//!
//! A file is in its place only when it is whole and checked. The listing decides what the model is: an object that
//! changes on the way starts the attempt anew.

mod fetch;
mod folder;
mod object;
mod partial;
mod plan;
mod request;
mod transfer;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use object_store::{ObjectMeta, path::Path as Key};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::{
    check,
    cli::{Options, Pull},
    digest::Expected,
    fault::{Cause, Fault},
    keys::{self, Tree},
    location::Location,
    progress::{Progress, clock},
    retry::Patience,
    space::{self, Size},
    store::Store,
    sums::{self, SHA256SUMS},
};
use folder::Folder;
use object::Object;
use plan::{Plan, plan};
use transfer::Transfer;

/// As long as a look at a folder that was just written may take.
const CHECK_WITHIN: Duration = Duration::from_secs(60);

pub(crate) async fn pull(wanted: &Pull, options: &Options) -> Result<String, Fault> {
    let began = Instant::now();
    let Pull { source, folder: root, no_sync, engine, size_limit: _, first_answer_seconds, install: _ } =
        wanted;
    let folder = Arc::new(Folder::open(root, !no_sync)?);
    let (store, progress) = (Store::open(source, options)?, Progress::new(options.progress()));
    let transfer = Arc::new(Transfer::new(store, Arc::clone(&folder), progress));
    let reported = folder.told();
    // A store that does not answer is reported soon, and waited for by the runs that follow.
    let silence = (reported != Some(Cause::Unreachable.exit_code()))
        .then(|| Duration::from_secs(*first_answer_seconds).min(options.patience()));
    let mut patience = Patience::new(options.patience(), reported);
    let report = loop {
        let attempted = tokio::select! {
            biased;
            attempted = attempt(wanted, &transfer) => attempted,
            silent = transfer.store.silence(silence) => Err(silent),
        };
        let fault = match attempted {
            Ok(report) => break report,
            Err(fault) => fault,
        };
        let Some(step) = patience.after(fault.cause) else {
            folder.tell(fault.cause);
            return Err(fault);
        };
        warn!("{fault}; looking again in {:.0} s", step.as_secs_f64());
        sleep(step).await;
    };
    if let Some(engine) = engine {
        check::check(root, root, *engine, CHECK_WITHIN).await?;
    }
    let fetched = Size(transfer.progress.bytes_moved());
    Ok(format!("{source} is in place: {report}; fetched {fetched} in {}", clock(began.elapsed().as_secs())))
}

/// One pass, from the listing to a folder that equals it. Says what is there and how it was checked.
async fn attempt(wanted: &Pull, transfer: &Arc<Transfer>) -> Result<String, Fault> {
    let Transfer { store, folder, progress, .. } = transfer.as_ref();
    let Pull { source, engine, size_limit, .. } = wanted;
    let mut objects = listed(source, store).await?;
    if let Some(engine) = engine {
        check::check_paths(*engine, &source.to_string(), objects.files.keys().map(String::as_str))?;
    }
    if let Some(limit) = size_limit {
        let sizes = objects.files.values().map(|object| object.size);
        space::keep_limit(&source.to_string(), sizes, *limit)?;
    }
    if let Some((one, other)) = &objects.case_twins
        && !folder.tells_case_apart()?
    {
        let message = format!(
            "the volume takes {one:?} and {other:?} for one name: rename an object, or use another volume"
        );
        return Err(Fault::new(Cause::NotFound, message));
    }
    expect_sums(source, &mut objects.files, transfer).await?;

    let record = folder.record();
    let Plan { kept, fetch, stale } = plan(objects.files, &record, &folder.sizes(&record), folder.boot());
    let bytes = |objects: &[Object]| objects.iter().map(|object| object.size).sum::<u64>();
    info!(
        "{source}: files: {}, {}; {} to fetch",
        kept.len() + fetch.len(),
        Size(bytes(&kept) + bytes(&fetch)),
        Size(bytes(&fetch))
    );
    folder.drop_partials_but(&fetch)?;
    let needed: Vec<(u64, u64)> = fetch.iter().map(|object| (object.size, folder.held_by(object))).collect();
    let room = space::room(folder.root()).map_err(Fault::io("ask for the free space of", folder.root()))?;
    space::check(&needed, room, folder.root())?;

    progress.begin(bytes(&kept) + bytes(&fetch));
    progress.found(bytes(&kept));
    progress.shown("pulled", fetch::fetch_all(transfer, fetch)).await?;
    folder.finish(&stale)
}

/// The objects below the source, or the one object that it names; never none.
async fn listed(source: &Location, store: &Store) -> Result<Tree<Object>, Fault> {
    let hostile = |hostile: keys::Hostile| Fault::new(Cause::NotFound, format!("{source}: {hostile}"));
    let mut files = Vec::new();
    for meta in store.list(&source.prefix).await? {
        if let Some(path) = keys::relative_path(meta.location.as_ref(), &source.prefix).map_err(hostile)? {
            files.push((path.to_owned(), object(path.to_owned(), meta.clone())));
        }
    }
    if files.is_empty() && !source.prefix.is_empty() {
        let key = Key::parse(&source.prefix).map_err(|error| Fault::new(Cause::Usage, error.to_string()))?;
        let name = key.filename().unwrap_or_default().to_owned();
        keys::relative_path(&name, "").map_err(hostile)?;
        // Only a folder's own mark has no bytes.
        let found = store.head(&key).await?.filter(|found| found.meta.size > 0);
        files.extend(found.map(|found| (name.clone(), object(name, found.meta))));
    }
    if files.is_empty() {
        let message =
            format!("{source} has no object: upload the model, or correct the bucket or the prefix");
        return Err(Fault::new(Cause::NotFound, message));
    }
    keys::tree(files, |object| object.size).map_err(hostile)
}

fn object(path: String, meta: ObjectMeta) -> Object {
    let ObjectMeta { location: key, size, e_tag, last_modified, version: _ } = meta;
    let etag = e_tag.filter(|etag| !etag.trim_matches('"').is_empty());
    let version = etag.clone().unwrap_or_else(|| format!("changed {}", last_modified.to_rfc3339()));
    let (expected, changed) = (Expected::of_etag(etag.as_deref()), last_modified.timestamp());
    Object { key, path, size, expected, etag, changed, version }
}

/// Brings `SHA256SUMS`, where the model has one, before everything else: from then on it says what to expect.
async fn expect_sums(
    source: &Location,
    objects: &mut BTreeMap<String, Object>,
    transfer: &Arc<Transfer>,
) -> Result<(), Fault> {
    let Some(listed) = objects.get(SHA256SUMS) else { return Ok(()) };
    let wrong = |why: String| Fault::new(Cause::Checksum, format!("{SHA256SUMS} of {source} {why}"));
    if listed.size > sums::LONGEST {
        return Err(wrong(format!("is larger than {}", Size(sums::LONGEST))));
    }
    let folder = &transfer.folder;
    let record = folder.record();
    let alone = BTreeMap::from([(listed.path.clone(), listed.clone())]);
    let Plan { fetch, .. } = plan(alone, &record, &folder.sizes(&record), folder.boot());
    fetch::fetch_all(transfer, fetch).await?;

    let path = folder.root().join(SHA256SUMS);
    let text = tokio::fs::read_to_string(&path).await.map_err(Fault::io("read", &path))?;
    let sums = sums::parse(&text).map_err(|line| wrong(format!("has no digest and path in line {line}")))?;
    for (path, digest) in sums {
        let Some(object) = objects.get_mut(&path) else {
            return Err(wrong(format!("lists {path:?}, which is not there: upload it, or correct the list")));
        };
        object.expected = Expected::Sha256(digest);
    }
    Ok(())
}
