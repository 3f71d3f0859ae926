//! A proxy before the S3 server that breaks the requests a test names.
//!
//! One request per connection, which keeps it small: the server is asked to close.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// What becomes of a request that the rule names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Break {
    /// Status 503.
    Unavailable,
    /// Status 403, as while keys are replaced.
    Forbidden,
    /// Status 404 without a code of S3, as of a proxy that has lost the store.
    NotFound,
    /// No answer, and the connection stays open.
    Hold,
}

/// Ends with the test process.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// How many requests were broken.
    broken: Arc<AtomicUsize>,
    is_mended: Arc<AtomicBool>,
}

/// Of a method, and a path with its query.
type Rule = Arc<dyn Fn(&str, &str) -> bool + Send + Sync>;

impl Proxy {
    pub(crate) fn start(
        server: SocketAddr,
        broken: Break,
        rule: impl Fn(&str, &str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Self { address, broken: Arc::default(), is_mended: Arc::default() };
        let (shared, rule): (_, Rule) = (proxy.clone(), Arc::new(rule));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, rule) = (shared.clone(), Arc::clone(&rule));
                thread::spawn(move || shared.pass(&stream, server, broken, &rule));
            }
        });
        proxy
    }

    pub(crate) fn broken(&self) -> usize {
        self.broken.load(Ordering::SeqCst)
    }

    /// Nothing is broken until `resume`.
    pub(crate) fn mend(&self) {
        self.is_mended.store(true, Ordering::SeqCst);
    }

    pub(crate) fn resume(&self) {
        self.is_mended.store(false, Ordering::SeqCst);
    }

    fn pass(&self, stream: &TcpStream, server: SocketAddr, broken: Break, rule: &Rule) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if !lower.starts_with("connection:") {
                head.push(line);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let mut first = head[0].split(' ');
        let (method, path) = (first.next().unwrap(), first.next().unwrap());
        if !self.is_mended.load(Ordering::SeqCst) && rule(method, path) {
            self.broken.fetch_add(1, Ordering::SeqCst);
            let refuse = |status: &str| {
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                (&*stream).write_all(answer.as_bytes())
            };
            return match broken {
                Break::Unavailable => refuse("503 Slow Down"),
                Break::Forbidden => refuse("403 Forbidden"),
                Break::NotFound => refuse("404 Not Found"),
                // Until the client closes it.
                Break::Hold => reader.read(&mut [0]).map(drop),
            };
        }
        let mut upstream = TcpStream::connect(server)?;
        upstream.write_all(format!("{}connection: close\r\n\r\n", head.concat()).as_bytes())?;
        upstream.write_all(&body)?;
        io::copy(&mut upstream, &mut &*stream)?;
        stream.shutdown(Shutdown::Write)
    }
}
