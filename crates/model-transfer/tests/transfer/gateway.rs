//! An S3 server over a folder, on a free port. It ends with its value.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, UNIX_EPOCH},
};

use object_store::{
    ObjectStoreExt as _, PutPayload, WriteMultipart,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path as Key,
};
use tempfile::TempDir;

use crate::scene::until;

pub(crate) const BUCKET: &str = "models";
pub(crate) const ACCESS_KEY: &str = "AKIATESTACCESSKEY";
pub(crate) const SECRET_KEY: &str = "test-secret-key-that-must-not-be-printed";

/// Ports that are tried: another program may take one between the choice and the start of the server, which ends then.
const TRIES: usize = 5;

pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    folder: TempDir,
    process: Option<Child>,
    /// Options beyond the address.
    options: Vec<String>,
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
        let mut gateway = Self { address: free_address(), folder, process: None, options };
        for _ in 0..TRIES {
            if gateway.listens() {
                return gateway;
            }
            gateway.address = free_address();
        }
        panic!("versitygw ends on each of {TRIES} ports");
    }

    /// On the address that it had before.
    pub(crate) fn run(&mut self) {
        assert!(self.listens(), "versitygw ends on {}", self.address);
    }

    /// Starts the server, and returns whether it listens; it has ended if not.
    fn listens(&mut self) -> bool {
        let program = services().join("versitygw");
        let mut process = Command::new(program)
            .args(["--port", &self.address.to_string()])
            .args(&self.options)
            .arg("posix")
            .arg(self.folder.path())
            .env("ROOT_ACCESS_KEY", ACCESS_KEY)
            .env("ROOT_SECRET_KEY", SECRET_KEY)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut has_ended = false;
        until("versitygw listens or ends", || {
            has_ended = process.try_wait().unwrap().is_some();
            has_ended || has_listener(process.id(), self.address.port())
        });
        self.process = (!has_ended).then_some(process);
        !has_ended
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
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

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
    }
}

fn services() -> &'static Path {
    static SERVICES: OnceLock<PathBuf> = OnceLock::new();
    SERVICES.get_or_init(|| local_cluster::tools::ensure_services().unwrap_or_else(|error| panic!("{error}")))
}

/// Whether this process listens on the port. A connection would not show it: the server of another test may have the port.
fn has_listener(pid: u32, port: u16) -> bool {
    /// In the column of states.
    const LISTENS: &str = "0A";
    let port = format!(":{port:04X}");
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let listeners: Vec<String> = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns[1].ends_with(&port) && columns[3] == LISTENS)
        .map(|columns| format!("socket:[{}]", columns[9]))
        .collect();
    // The process may have ended meanwhile.
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut opened = files.filter_map(|file| fs::read_link(file.path()).ok());
    opened.any(|file| listeners.iter().any(|listener| file.as_os_str() == listener.as_str()))
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}
