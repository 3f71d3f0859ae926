//! An HTTP proxy that breaks what a test asks it to break, and counts the bytes of objects that it lets through. It stands
//! in the place of the store, or is named as the proxy of the environment.
//!
//! One request per connection, which keeps it small: the answers ask the client to close.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// A request as the rule sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The host of the header, without its port.
    pub(crate) host: String,
    /// `/bucket/key`
    pub(crate) path: String,
    pub(crate) query: String,
    /// How many requests for objects came before this one.
    pub(crate) number: usize,
}

impl Request {
    pub(crate) fn is_object(&self) -> bool {
        self.method == "GET" && self.query.is_empty()
    }

    pub(crate) fn is_list(&self) -> bool {
        self.query.contains("list-type=2")
    }
}

/// What to do to an answer.
#[derive(Clone, Debug)]
pub(crate) enum Break {
    Nothing,
    /// Close the connection after so many bytes of the body.
    CutAfter(u64),
    /// Send so many bytes of the body, then nothing, and keep the connection.
    StallAfter(u64),
    /// A pause before every 64 KiB.
    Slow(Duration),
    /// A pause before every 64 KiB; after so many bytes of the body nothing, and keep the connection.
    SlowThenStall(Duration, u64),
    /// Another byte in this place of the body.
    FlipAt(u64),
    /// So many bytes fewer than asked for, in a well-formed answer.
    Shorten(u64),
    /// The answer claims that the object is longer than it is.
    ClaimLonger,
    Status(u16, &'static str),
    /// With this code of S3.
    Error(u16, &'static str),
    /// One header more.
    Header(&'static str),
    /// Another body, with status 200.
    Answer(String),
    Refuse,
}

/// The time of errors.
pub(crate) const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

type Rule = Box<dyn FnMut(&Request) -> Break + Send>;

#[derive(Default)]
struct Seen {
    requests: Vec<Request>,
    object_bytes: u64,
    objects: usize,
}

#[derive(Default)]
struct Watched {
    seen: Mutex<Seen>,
    more: Condvar,
}

/// Limit for a wait.
pub(crate) const COMES_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    watched: Arc<Watched>,
    rule: Arc<Mutex<Rule>>,
    stopped: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            watched: Arc::default(),
            rule: Arc::new(Mutex::new(Box::new(|_| Break::Nothing))),
            stopped: Arc::default(),
        };
        let (watched, rule, stopped) = (proxy.watched.clone(), proxy.rule.clone(), proxy.stopped.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (watched, rule) = (watched.clone(), rule.clone());
                // Broken connections are intended.
                thread::spawn(move || drop(serve(client, upstream, &watched, &rule)));
            }
        });
        proxy
    }

    pub(crate) fn rule(&self, rule: impl FnMut(&Request) -> Break + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    /// Bytes of objects that the client was sent since the last call.
    pub(crate) fn take_object_bytes(&self) -> u64 {
        std::mem::take(&mut self.watched.seen.lock().unwrap().object_bytes)
    }

    pub(crate) fn object_bytes(&self) -> u64 {
        self.watched.seen.lock().unwrap().object_bytes
    }

    /// Waits until the client was sent so many.
    #[track_caller]
    pub(crate) fn until_object_bytes(&self, wanted: usize) {
        let seen = self.watched.seen.lock().unwrap();
        let few = |seen: &mut Seen| seen.object_bytes < wanted as u64;
        let (seen, waited) = self.watched.more.wait_timeout_while(seen, COMES_WITHIN, few).unwrap();
        assert!(!waited.timed_out(), "only {} of {wanted} bytes went through", seen.object_bytes);
    }

    pub(crate) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.watched.seen.lock().unwrap().requests)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn serve(
    mut client: TcpStream,
    upstream: SocketAddr,
    watched: &Watched,
    rule: &Mutex<Rule>,
) -> std::io::Result<()> {
    let Some((head, beginning)) = read_head(&mut client)? else { return Ok(()) };
    let mut request = parse(&head);
    {
        let mut seen = watched.seen.lock().unwrap();
        request.number = seen.objects;
        seen.objects += usize::from(request.is_object());
        seen.requests.push(request.clone());
    }
    let broken = (rule.lock().unwrap())(&request);
    match &broken {
        Break::Refuse => return Ok(()),
        Break::Status(status, headers) => {
            let body = "<Error><Code></Code><Message>see ";
            return write!(
                client,
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
                body.len()
            );
        }
        Break::Error(status, code) => {
            let body = format!("<Error><Code>{code}</Code></Error>");
            return write!(
                client,
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\ndate: {DATE}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
        Break::Answer(body) => {
            return write!(
                client,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
        _ => {}
    }
    if request.method == "CONNECT" {
        return tunnel(client, upstream);
    }
    let mut server = TcpStream::connect(upstream)?;
    server.write_all(with_close(&of_origin(&head)).as_bytes())?;
    server.write_all(beginning.get_ref())?;
    let rest = header(&head, "content-length").unwrap_or(0) - beginning.get_ref().len() as u64;
    std::io::copy(&mut (&mut client).take(rest), &mut server)?;

    let Some((head, beginning)) = read_head(&mut server)? else { return Ok(()) };
    let mut head = with_close(&head);
    let mut length = header(&head, "content-length").unwrap_or(u64::MAX);
    match broken {
        Break::Shorten(bytes) => {
            head = head
                .replace(&format!("ontent-Length: {length}"), &format!("ontent-Length: {}", length - bytes));
            length -= bytes;
        }
        Break::ClaimLonger => {
            head =
                head.replace(&format!("ontent-Length: {length}"), &format!("ontent-Length: {}", length + 1));
        }
        Break::Header(line) => head = head.replacen("\r\n", &format!("\r\n{line}\r\n"), 1),
        _ => {}
    }
    client.write_all(head.as_bytes())?;
    let counts = request.is_object();
    let mut sent = 0;
    let mut body = beginning.chain(&mut server);
    let mut buffer = vec![0; 64 * 1024];
    while sent < length {
        let allowed = match broken {
            Break::CutAfter(bytes) | Break::StallAfter(bytes) | Break::SlowThenStall(_, bytes) => {
                bytes.min(length) - sent
            }
            _ => length - sent,
        };
        if allowed == 0 {
            if matches!(broken, Break::StallAfter(_) | Break::SlowThenStall(..)) {
                // Until the client gives up.
                let _ = client.read(&mut [0]);
            }
            break;
        }
        let room = buffer.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let read = body.read(&mut buffer[..room])?;
        if read == 0 {
            break;
        }
        let chunk = &mut buffer[..read];
        match broken {
            Break::FlipAt(place) if (sent..sent + read as u64).contains(&place) => {
                chunk[(place - sent) as usize] ^= 1
            }
            // The fault itself; nothing waits by it.
            Break::Slow(pause) | Break::SlowThenStall(pause, _) => thread::sleep(pause),
            _ => {}
        }
        // Counted first: the client may have the bytes, and say so, before the write returns here.
        if counts {
            watched.seen.lock().unwrap().object_bytes += read as u64;
            watched.more.notify_all();
        }
        let written = client.write_all(chunk);
        if counts && written.is_err() {
            let seen = &mut watched.seen.lock().unwrap().object_bytes;
            *seen = seen.saturating_sub(read as u64);
        }
        written?;
        sent += read as u64;
    }
    client.shutdown(Shutdown::Both)
}

/// Bytes both ways, until one side closes.
fn tunnel(mut client: TcpStream, upstream: SocketAddr) -> std::io::Result<()> {
    let server = TcpStream::connect(upstream)?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        drop(std::io::copy(&mut from, &mut to));
        drop(to.shutdown(Shutdown::Both));
    });
    let (mut from, mut to) = (server, client);
    std::io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Both)
}

/// A proxy is asked for `http://host/path`, an origin for `/path`.
fn of_origin(head: &str) -> String {
    let absolute = head.split_once(" http://").and_then(|(method, rest)| {
        let path = rest.find(['/', ' '])?;
        Some(format!("{method} {}", &rest[path..]))
    });
    absolute.unwrap_or_else(|| head.to_owned())
}

/// The head with its empty line, and the bytes of the body that were read with it.
fn read_head(stream: &mut TcpStream) -> std::io::Result<Option<(String, std::io::Cursor<Vec<u8>>)>> {
    let mut read = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(None);
        }
        read.extend_from_slice(&buffer[..length]);
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = read.split_off(end + 4);
            return Ok(Some((String::from_utf8_lossy(&read).into_owned(), std::io::Cursor::new(body))));
        }
    }
}

fn parse(head: &str) -> Request {
    let host = head.lines().filter_map(|line| line.split_once(':'));
    let host = host.filter(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, host)| host.trim());
    let host = host.map(|host| host.split(':').next().unwrap_or(host).to_owned()).next().unwrap_or_default();
    let head = of_origin(head);
    let mut words = head.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Request { method, host, path: path.to_owned(), query: query.to_owned(), number: 0 }
}

fn header(head: &str, name: &str) -> Option<u64> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(found, _)| found.eq_ignore_ascii_case(name))
        .find_map(|(_, value)| value.trim().parse().ok())
}

fn with_close(head: &str) -> String {
    let (first, rest) = head.split_once("\r\n").unwrap_or((head, "\r\n"));
    let kept =
        rest.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:") && !line.is_empty());
    let lines: String = kept.map(|line| format!("{line}\r\n")).collect();
    format!("{first}\r\n{lines}Connection: close\r\n\r\n")
}
