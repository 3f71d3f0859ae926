//! A bucket of a real S3 server, and what a test does to it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use object_store::{
    ObjectStoreExt as _, PutPayload, WriteMultipart,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path as Key,
};
use s3_server::{Keys, Server};
use tempfile::TempDir;

pub(crate) const BUCKET: &str = "models";
pub(crate) const ACCESS_KEY: &str = "AKIATESTACCESSKEY";
pub(crate) const SECRET_KEY: &str = "test-secret-key-that-must-not-be-printed";

pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    folder: TempDir,
    server: Server,
}

impl Gateway {
    pub(crate) fn start() -> Self {
        Self::start_with(Vec::new())
    }

    /// With the bucket in the host, below this domain.
    pub(crate) fn start_virtual(domain: &str) -> Self {
        Self::start_with(vec!["--virtual-domain".to_owned(), domain.to_owned()])
    }

    /// Over TLS, for this name, with a certificate that nothing trusts: `cert.pem` in this folder.
    pub(crate) fn start_signed(folder: &Path, name: &str) -> Self {
        let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        fs::write(&certificate, cert.pem()).unwrap();
        fs::write(&key, signing_key.serialize_pem()).unwrap();
        Self::start_tls(&certificate, &key)
    }

    /// Over TLS, with this certificate and key.
    fn start_tls(certificate: &Path, key: &Path) -> Self {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        Self::start_with(vec!["--cert".to_owned(), path(certificate), "--key".to_owned(), path(key)])
    }

    fn start_with(options: Vec<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let server = Server::start(folder.path(), Keys::new(ACCESS_KEY, SECRET_KEY), options).unwrap();
        Self { address: server.address(), folder, server }
    }

    /// On the address that it had before.
    pub(crate) fn run(&mut self) {
        self.server.run().unwrap();
    }

    pub(crate) fn stop(&mut self) {
        self.server.stop();
    }

    /// Where an object's bytes are.
    pub(crate) fn file(&self, key: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(key)
    }

    /// Gives an object another time of its last change, in milliseconds since 1970.
    pub(crate) fn changed_at(&self, key: &str, milliseconds: u64) {
        let file = fs::File::options().append(true).open(self.file(key)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_millis(milliseconds)).unwrap();
    }

    /// In one part: its ETag is its MD5.
    pub(crate) fn put(&self, key: &str, content: &[u8]) {
        let content = PutPayload::from(content.to_vec());
        block_on(async { self.client().put(&Key::parse(key).unwrap(), content).await }).unwrap();
    }

    /// In parts of 5 MiB: its ETag is no digest of its bytes. The server keeps a CRC-64/NVME of the whole.
    pub(crate) fn put_in_parts(&self, key: &str, content: &[u8]) {
        use object_store::ObjectStore as _;
        block_on(async {
            let upload = self
                .client()
                .put_multipart_opts(&Key::parse(key).unwrap(), Default::default())
                .await
                .unwrap();
            let mut upload = WriteMultipart::new(upload);
            upload.write(content);
            upload.finish().await.unwrap();
        });
    }

    /// An object that stands for an empty folder.
    pub(crate) fn put_folder(&self, key: &str) {
        let key = Key::parse(key).unwrap().join("");
        block_on(async { self.client().put(&key, PutPayload::new()).await }).unwrap();
    }

    /// What a client sees, `None` if it is not there.
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        block_on(async {
            let answer = self.client().get(&Key::parse(key).unwrap()).await.ok()?;
            Some(answer.bytes().await.unwrap().to_vec())
        })
    }

    fn client(&self) -> AmazonS3 {
        let _ = rustls::crypto::ring::default_provider().install_default();
        AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", self.address))
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_access_key_id(ACCESS_KEY)
            .with_secret_access_key(SECRET_KEY)
            .build()
            .unwrap()
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}
