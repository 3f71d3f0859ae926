//! The null downloader of `cargo xtask bench transfer`: the ranged GETs of a pull, by the same client and as many at
//! once, with bodies that are counted and thrown away. What it takes is what the store, the line and
//! this client take. Of a hub it writes the bytes to a file and compares nothing. With `hash` it also computes the SHA-256 of
//! each range. That is the work of a checked file, on all processors and while the bytes are in their cache.
#![expect(clippy::print_stdout, reason = "the count is what the bench reads")]

use std::{error::Error, fs::File, ops::Range, os::unix::fs::FileExt as _, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore as _,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path,
};
use sha2::{Digest as _, Sha256};

/// As in a pull.
const CONNECTIONS: usize = 16;
const PART: u64 = 16 << 20;

type Failed = Box<dyn Error + Send + Sync>;

/// `discard BUCKET PREFIX`, with the environment of a pull; or `discard URL BYTES FILE [hash]`.
#[tokio::main]
async fn main() -> Result<(), Failed> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut arguments = std::env::args().skip(1);
    let (Some(bucket), Some(prefix)) = (arguments.next(), arguments.next()) else {
        return Err("usage: discard BUCKET PREFIX, or discard URL BYTES FILE [hash]".into());
    };
    if let Some(file) = arguments.next() {
        let hashes = arguments.next().is_some_and(|word| word == "hash");
        println!("{}", written(&bucket, prefix.parse()?, Arc::new(File::create(file)?), hashes).await?);
        return Ok(());
    }
    let client = ClientOptions::new().with_allow_http(true).with_http1_only().with_timeout_disabled();
    let s3 = AmazonS3Builder::from_env().with_bucket_name(bucket).with_client_options(client).build()?;
    let s3 = Arc::new(s3);
    let listed: Vec<ObjectMeta> = s3.list(Some(&Path::parse(&prefix)?)).try_collect().await?;
    let requests: Vec<(Path, Option<Range<u64>>)> = listed.into_iter().flat_map(requests).collect();
    let bytes: u64 = stream::iter(requests)
        .map(|(key, range)| tokio::spawn(discarded(Arc::clone(&s3), key, range)))
        .buffer_unordered(CONNECTIONS)
        .map(|bytes| bytes?)
        .try_fold(0, |sum, bytes| async move { Ok::<_, Failed>(sum + bytes) })
        .await?;
    println!("{bytes}");
    Ok(())
}

/// The ranges of one address, each at its place of the file. Redirects are followed for each.
async fn written(address: &str, size: u64, file: Arc<File>, hashes: bool) -> Result<u64, Failed> {
    let client = reqwest::Client::builder().http1_only().build()?;
    let ranges = (0..size).step_by(PART as usize).map(|from| from..(from + PART).min(size));
    let fetched = ranges.map(|range| {
        let request = client.get(address).header("range", format!("bytes={}-{}", range.start, range.end - 1));
        let file = Arc::clone(&file);
        tokio::spawn(async move {
            let mut body = request.send().await?.error_for_status()?;
            let mut at = range.start;
            let mut hash = Sha256::new();
            while let Some(chunk) = body.chunk().await? {
                if hashes {
                    hash.update(&chunk);
                }
                file.write_all_at(&chunk, at)?;
                at += chunk.len() as u64;
            }
            std::hint::black_box(hash.finalize());
            Ok::<_, Failed>(at - range.start)
        })
    });
    let fetched = stream::iter(fetched).buffer_unordered(CONNECTIONS).map(|bytes| bytes?);
    fetched.try_fold(0, |sum, bytes| async move { Ok::<_, Failed>(sum + bytes) }).await
}

fn requests(object: ObjectMeta) -> Vec<(Path, Option<Range<u64>>)> {
    if object.size <= PART {
        return vec![(object.location, None)];
    }
    let begins = (0..object.size).step_by(PART as usize);
    begins.map(|from| (object.location.clone(), Some(from..(from + PART).min(object.size)))).collect()
}

async fn discarded(s3: Arc<AmazonS3>, key: Path, range: Option<Range<u64>>) -> Result<u64, Failed> {
    let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
    let mut body = s3.get_opts(&key, options).await?.into_stream();
    let mut bytes = 0;
    while let Some(chunk) = body.try_next().await? {
        bytes += chunk.len() as u64;
    }
    Ok(bytes)
}
