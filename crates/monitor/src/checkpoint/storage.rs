//! Where checkpoints are: a bucket of an S3-compatible store, or a folder that all workers share. Keys are the same in both.
//!
//! Every request has a deadline, and every answer a limit: of its bytes while it is read, or of its names.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use api::{aiinference::Addressing, monitor::ExitCode};
use bytes::Bytes;
use directory::space::Volume;
use futures::{Stream, StreamExt as _};
use object_storage::{Access, Bucket, Identity, OpenError, hex};
use object_store::{
    Attributes, MultipartUpload as _, ObjectStore as _, ObjectStoreExt as _, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, path::Path as Key,
};
use reqwest::Certificate;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use super::{Place, numbered};
use crate::fault::Fault;
use faults::{changed, is_taken};
pub(crate) use faults::{is_full, of_disk, of_own_folder};
pub(crate) use texts::{Text, of_manifest};
use volume::{create, list_folder, make_parent, open_regular, replace};

mod bucket;
mod faults;
mod texts;
mod volume;

/// Of a request without the bytes of a file, and between two bytes of one.
pub(crate) const REQUEST_WITHIN: Duration = Duration::from_secs(20);
/// The smallest part that S3 accepts; smaller files are sent in one request.
const PART: usize = 5 << 20;
/// Of a listing, which consists of many requests where a folder has many names.
const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// Names in the folder of one worker or of its claims, of which several are listed at once.
const MOST_NAMES: usize = 5_000;
/// Names in a folder of a whole pool.
const MOST_OF_POOL: usize = 20_000;
/// Limit of a name: a uid has 36 bytes. Longer ones were not written by a monitor.
const LONGEST_NAME: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct Storage {
    place: Opened,
    /// One large text is kept in memory at a time.
    large: Arc<Semaphore>,
}

#[derive(Clone, Debug)]
enum Opened {
    Folder(Arc<PathBuf>),
    Bucket(Box<Bucket>, String),
}

/// The folders and files directly below a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    pub(crate) folders: Vec<String>,
    /// With their last change, by the clock of the storage.
    pub(crate) files: Vec<(String, SystemTime)>,
    /// Entries that a monitor has not made: neither files nor folders, and the first one whose name is none.
    pub(crate) odd: Vec<String>,
}

/// A file of the state on the disk of the node, of which some space stays free.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) file: File,
    pub(crate) volume: Arc<Volume>,
}

impl io::Write for Admitted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.volume.admit_small(bytes.len() as u64)?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Listing {
    /// Those of the checkpoints of a worker, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let number = |name: &String| name.parse().ok().filter(|number| numbered(*number) == *name);
        let mut numbers: Vec<u64> = self.folders.iter().filter_map(number).collect();
        // One more must still have a name.
        numbers.retain(|number| *number < LARGEST_NUMBER);
        numbers.sort_unstable();
        numbers
    }
}

/// Of ten digits.
const LARGEST_NUMBER: u64 = 9_999_999_999;

/// Whether a monitor may have made an entry of this name.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_part)
}

fn read_authorities(file: &Path) -> Result<Vec<Certificate>, Fault> {
    object_storage::authorities(file).map_err(|why| {
        let fix = "give the Secret of spec.checkpoint.caSecretName a key ca.crt with certificates in PEM";
        let message = format!("no authority can be read from {} ({why}): {fix}", file.display());
        Fault::new(ExitCode::StoreUnreachable, message)
    })
}

impl Storage {
    /// Sends no request.
    pub(crate) fn open(place: &Place) -> Result<Self, Fault> {
        let place = match place {
            Place::Folder(folder) => Opened::Folder(Arc::new(folder.clone())),
            Place::Bucket { bucket, prefix, keys, authorities } => {
                let access = Access {
                    addressing: Addressing::Auto,
                    stall: REQUEST_WITHIN,
                    authorities: authorities.as_deref().map_or(Ok(Vec::new()), read_authorities)?,
                    headers: http::HeaderMap::new(),
                    keys: keys.clone(),
                };
                let opened = Bucket::open(bucket, access).map_err(|error| match error {
                    OpenError::Usage(why) => Fault::new(ExitCode::Usage, why),
                    OpenError::Credentials(why) => Fault::new(ExitCode::StoreUnauthorized, why),
                })?;
                Opened::Bucket(Box::new(opened), prefix.clone())
            }
        };
        Ok(Self { place, large: Arc::new(Semaphore::new(1)) })
    }

    pub(crate) fn name(&self) -> String {
        match &self.place {
            Opened::Folder(folder) => format!("the volume at {}", folder.display()),
            Opened::Bucket(bucket, _) => bucket.name.clone(),
        }
    }

    /// A few bits of a digest of the keys of a Secret, with which another process can tell whether it has the same ones.
    /// `None`: the storage has no keys, or they change by themselves.
    pub(crate) async fn keys(&self, salt: &str) -> Option<String> {
        let Opened::Bucket(bucket, _) = &self.place else { return None };
        if bucket.identity != Identity::Keys {
            return None;
        }
        let keys = bucket.s3.credentials().get_credential().await.ok()?;
        let mut digest = Sha256::new();
        for part in [salt, &keys.key_id, &keys.secret_key, keys.token.as_deref().unwrap_or_default()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        // An observer learns less from these 32 bits than from a signed request.
        Some(hex(&digest.finalize()[..4]))
    }

    /// What one worker has, or its claims.
    pub(crate) async fn list(&self, key: &str) -> Result<Listing, Fault> {
        self.listing(key, MOST_NAMES).await
    }

    /// What all workers of a pool have.
    pub(crate) async fn list_pool(&self, key: &str) -> Result<Listing, Fault> {
        self.listing(key, MOST_OF_POOL).await
    }

    async fn listing(&self, key: &str, most: usize) -> Result<Listing, Fault> {
        match &self.place {
            Opened::Folder(_) => self.on_folder(key, move |path| list_folder(&path, most)).await,
            Opened::Bucket(bucket, _) => {
                let prefix = format!("{}/", self.key(key)?);
                match timeout(LISTED_WITHIN, bucket::list(bucket, &prefix, most)).await {
                    Err(_) => Err(self.late(LISTED_WITHIN)),
                    Ok(Ok(listing)) => Ok(listing),
                    Ok(Err(bucket::Refused::Request(error))) => Err(self.fault(&error)),
                    Ok(Err(bucket::Refused::Large(what))) => {
                        let message = format!("{} has {what} below {key}: remove old ones", self.name());
                        Err(Fault::new(ExitCode::StoreUnreachable, message).of_entry())
                    }
                }
            }
        }
    }

    /// Whether there is a file with this key.
    pub(crate) async fn has(&self, key: &str) -> Result<bool, Fault> {
        match &self.place {
            Opened::Folder(_) => {
                let found = self.on_folder(key, |path| open_regular(&path).map(|file| file.is_some()));
                found.await
            }
            Opened::Bucket(bucket, _) => {
                let key = self.key(key)?;
                Ok(self.answered(bucket.s3.head(&key)).await?.is_some())
            }
        }
    }

    pub(crate) async fn put(&self, key: &str, text: Vec<u8>) -> Result<(), Fault> {
        match &self.place {
            Opened::Folder(_) => self.on_folder(key, move |path| replace(&path, &text)).await,
            Opened::Bucket(bucket, _) => {
                let key = self.key(key)?;
                self.written(bucket.s3.put(&key, PutPayload::from(text))).await
            }
        }
    }

    /// Whether this call has created it: of several at the same time, one has.
    pub(crate) async fn create(&self, key: &str, text: Vec<u8>) -> Result<bool, Fault> {
        match &self.place {
            Opened::Folder(_) => self.on_folder(key, move |path| create(&path, &text)).await,
            Opened::Bucket(bucket, _) => {
                let key = self.key(key)?;
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                let created =
                    timeout(REQUEST_WITHIN, bucket.s3.put_opts(&key, PutPayload::from(text), options));
                match created.await {
                    Err(_) => Err(self.late(REQUEST_WITHIN)),
                    Ok(Ok(_)) => Ok(true),
                    Ok(Err(error)) if is_taken(&error) => Ok(false),
                    Ok(Err(error)) => Err(self.fault(&error)),
                }
            }
        }
    }

    /// Whether `create` is refused for an object that exists. A store that ignores the condition would let every loader restore
    /// the same state. The object with this key is removed afterwards.
    pub(crate) async fn has_conditional_writes(&self, key: &str) -> Result<bool, Fault> {
        if matches!(self.place, Opened::Folder(_)) {
            return Ok(true);
        }
        // One that an interrupted run has left serves as well.
        self.create(key, Vec::new()).await?;
        let is_ignored = self.create(key, Vec::new()).await?;
        self.delete(key).await?;
        Ok(!is_ignored)
    }

    /// Copies so many bytes of a file; one that is shorter by now is an error.
    pub(crate) async fn put_file(&self, key: &str, mut file: File, size: u64) -> Result<(), Fault> {
        match &self.place {
            Opened::Folder(_) => {
                self.on_folder_for(key, allowed_for(size), move |path| {
                    make_parent(&path)?;
                    let mut copy = File::create(&path)?;
                    let copied = io::copy(&mut file.take(size), &mut copy)?;
                    copy.sync_all()?;
                    if copied == size { Ok(()) } else { Err(changed()) }
                })
                .await
            }
            Opened::Bucket(bucket, _) => {
                let key = self.key(key)?;
                if size <= PART as u64 {
                    let part = self.part(&mut file, size)?;
                    return self.written(bucket.s3.put(&key, PutPayload::from(part))).await;
                }
                let options = PutMultipartOptions { attributes: Attributes::new(), ..Default::default() };
                let begun = self.answered(bucket.s3.put_multipart_opts(&key, options)).await?;
                let mut upload = begun.ok_or_else(|| self.late(REQUEST_WITHIN))?;
                let mut left = size;
                while left > 0 {
                    let part = self.part(&mut file, left)?;
                    left -= part.len() as u64;
                    let sent = self.written(async { upload.put_part(PutPayload::from(part)).await }).await;
                    if let Err(fault) = sent {
                        // What was sent is removed by the rule of the bucket for incomplete uploads, if not by this.
                        let _ = timeout(REQUEST_WITHIN, upload.abort()).await;
                        return Err(fault);
                    }
                }
                self.written(async { upload.complete().await }).await
            }
        }
    }

    /// The next bytes of a file, at most those of a part.
    fn part(&self, file: &mut File, left: u64) -> Result<Bytes, Fault> {
        let wanted = usize::try_from(left).unwrap_or(PART).min(PART);
        let mut part = vec![0; wanted];
        let read = file.read_exact(&mut part);
        read.map_err(|error| {
            Fault::new(ExitCode::StoreUnreachable, format!("a file of the state: {error}"))
        })?;
        Ok(Bytes::from(part))
    }

    /// Copies an object of this size into a file. `false`: there is none, or it has another size.
    pub(crate) async fn get_file(&self, key: &str, mut file: Admitted, size: u64) -> Result<bool, Fault> {
        match &self.place {
            Opened::Folder(_) => {
                let copied = self.on_folder_for(key, allowed_for(size), move |path| match File::open(path) {
                    Ok(saved) => {
                        let mut saved = saved.take(size);
                        match io::copy(&mut saved, &mut file) {
                            // Of the disk of the node: to read takes no space.
                            Err(error) if is_full(error.kind()) => Ok(Err(error)),
                            Err(error) => Err(error),
                            Ok(copied) if copied < size => Ok(Ok(false)),
                            Ok(_) => Ok(Ok(saved.into_inner().read(&mut [0])? == 0)),
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ok(false)),
                    Err(error) => Err(error),
                });
                match copied.await {
                    Ok(copied) => copied.map_err(|error| of_disk(&error)),
                    // A pipe or a folder is in its place, and the volume answers.
                    Err(_) if !self.has(key).await? => Ok(false),
                    Err(fault) => Err(fault),
                }
            }
            Opened::Bucket(bucket, _) => {
                let key = self.key(key)?;
                let Some(found) = self.answered(bucket.s3.get(&key)).await? else { return Ok(false) };
                if found.meta.size != size {
                    return Ok(false);
                }
                let copied = timeout(allowed_for(size), self.copy(found.into_stream(), file, size)).await;
                copied.unwrap_or_else(|_| Err(self.late(REQUEST_WITHIN)))
            }
        }
    }

    /// `false`: there are fewer bytes or more.
    async fn copy(
        &self,
        mut bytes: impl Stream<Item = object_store::Result<Bytes>> + Unpin,
        mut file: Admitted,
        size: u64,
    ) -> Result<bool, Fault> {
        let mut left = size;
        loop {
            match timeout(REQUEST_WITHIN, bytes.next()).await {
                Err(_) => return Err(self.late(REQUEST_WITHIN)),
                Ok(None) => return Ok(left == 0),
                Ok(Some(Err(error))) => return Err(self.fault(&error)),
                Ok(Some(Ok(bytes))) => {
                    let Some(rest) = left.checked_sub(bytes.len() as u64) else { return Ok(false) };
                    left = rest;
                    file.write_all(&bytes).map_err(|error| of_disk(&error))?;
                }
            }
        }
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<(), Fault> {
        match &self.place {
            Opened::Folder(_) => {
                self.on_folder(key, |path| match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    Ok(()) | Err(_) => Ok(()),
                })
                .await
            }
            Opened::Bucket(bucket, _) => {
                let key = self.key(key)?;
                self.answered(bucket.s3.delete(&key)).await.map(|_| ())
            }
        }
    }

    /// Everything below a key.
    pub(crate) async fn delete_all(&self, key: &str) -> Result<(), Fault> {
        match &self.place {
            Opened::Folder(_) => {
                self.on_folder(key, |path| match fs::remove_dir_all(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    Ok(()) | Err(_) => Ok(()),
                })
                .await
            }
            Opened::Bucket(bucket, _) => {
                let prefix = format!("{}/", self.key(key)?);
                let mut token = None;
                for _ in 0..bucket::MOST_PAGES_REMOVED {
                    let page = self.listed(bucket.names_of_all(&prefix, token, bucket::ANY)).await?;
                    for object in page.found.objects {
                        self.answered(bucket.s3.delete(&object.location)).await?;
                    }
                    token = page.next;
                    if token.is_none() {
                        return Ok(());
                    }
                }
                let message = format!("{} has objects without end below {key}: remove them", self.name());
                Err(Fault::new(ExitCode::StoreUnreachable, message).of_entry())
            }
        }
    }

    /// The present time by the clock of the storage, which sets the times of its files. Writes an object `folder/name`
    /// for it and deletes it.
    pub(crate) async fn now(&self, folder: &str, name: &str) -> Result<SystemTime, Fault> {
        let key = format!("{folder}/{name}");
        self.put(&key, Vec::new()).await?;
        let listing = self.list_pool(folder).await?;
        let time = listing.files.into_iter().find(|(found, _)| found == name).map(|(_, time)| time);
        self.delete(&key).await?;
        time.ok_or_else(|| {
            let message = format!("{} does not list what was just written to it", self.name());
            Fault::new(ExitCode::StoreUnreachable, message)
        })
    }

    fn key(&self, key: &str) -> Result<Key, Fault> {
        let prefix = match &self.place {
            Opened::Bucket(_, prefix) if !prefix.is_empty() => format!("{prefix}/"),
            Opened::Bucket(..) | Opened::Folder(_) => String::new(),
        };
        Key::parse(format!("{prefix}{key}"))
            .map_err(|error| Fault::new(ExitCode::Usage, format!("{key:?} is no key: {error}")))
    }

    async fn on_folder<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(PathBuf) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        self.on_folder_for(key, REQUEST_WITHIN, work).await
    }

    /// A network volume may hang. After the time limit the thread is not waited for.
    async fn on_folder_for<T: Send + 'static>(
        &self,
        key: &str,
        within: Duration,
        work: impl FnOnce(PathBuf) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let Opened::Folder(folder) = &self.place else { return Err(self.late(REQUEST_WITHIN)) };
        let path = folder.join(key);
        match timeout(within, spawn_blocking(move || work(path))).await {
            Ok(Ok(Ok(done))) => Ok(done),
            Ok(Ok(Err(error))) => Err(self.of_io(&error)),
            Ok(Err(_)) | Err(_) => Err(self.late(REQUEST_WITHIN)),
        }
    }
}

/// A mebibyte a second is slow for any volume.
fn allowed_for(size: u64) -> Duration {
    REQUEST_WITHIN + Duration::from_secs(size >> 20)
}
