//! Requests and answers on a connection, and what is broken in them. One request per connection, which keeps it small: the
//! answers ask the client to close.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    thread,
    time::Duration,
};

use crate::{
    Shared,
    api::{self, Answer, Body},
    locked,
    request::{Request, Side},
};

/// What to do to an answer.
#[derive(Clone, Debug)]
pub enum Break {
    Nothing,
    /// Close the connection after so many bytes of the body.
    CutAfter(u64),
    /// Send so many bytes of the body, then nothing, and keep the connection.
    StallAfter(u64),
    /// A pause before every 64 KiB.
    Slow(Duration),
    /// Another byte in this place of the body.
    FlipAt(u64),
    /// The file claims to have so many bytes more.
    ClaimLonger(u64),
    /// The whole file, whatever range was asked for.
    IgnoreRange,
    /// A status, lines of headers, each with its end, and a body.
    Status(u16, String, String),
    /// Close the connection at once.
    Refuse,
}

pub(crate) fn serve(mut client: TcpStream, side: Side, shared: &Shared) -> io::Result<()> {
    let Some(mut request) = read(&mut client, side)? else { return Ok(()) };
    {
        let mut requests = locked(&shared.requests);
        request.number = requests.iter().filter(|known| known.is_file()).count();
        requests.push(request.clone());
        shared.more.notify_all();
    }
    let broken = (locked(&shared.rule))(&request);
    match &broken {
        Break::Refuse => return Ok(()),
        Break::Status(status, headers, body) => {
            let length = body.len();
            return write!(
                client,
                "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
            );
        }
        _ => {}
    }
    let answer = {
        let models = locked(&shared.models);
        match side {
            Side::Hub => api::of_hub(&request, &models, &shared.network.to_string(), *locked(&shared.page)),
            Side::Network => api::of_network(&request, &models),
        }
    };
    send(&mut client, &request, &answer, &broken)?;
    client.shutdown(Shutdown::Both)
}

fn read(client: &mut TcpStream, side: Side) -> io::Result<Option<Request>> {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        let length = client.read(&mut buffer)?;
        if length == 0 {
            return Ok(None);
        }
        head.extend_from_slice(&buffer[..length]);
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&head[..end]).into_owned();
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    let (path, query) = (path.to_owned(), query.to_owned());
    Ok(Some(Request { side, method, path, query, headers, number: 0 }))
}

fn send(client: &mut TcpStream, request: &Request, answer: &Answer, broken: &Break) -> io::Result<()> {
    let Answer { status, headers, body } = answer;
    let mut status = *status;
    let mut lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let claimed = if let Break::ClaimLonger(bytes) = broken { *bytes } else { 0 };
    let (from, length) = match body {
        Body::Text(text) => (0, text.len() as u64),
        Body::File(content) => {
            lines += "accept-ranges: bytes\r\ncontent-type: application/octet-stream\r\n";
            let range = request.from().filter(|_| !matches!(broken, Break::IgnoreRange));
            match range {
                Some((from, to)) if from < content.size => {
                    let end = to.map_or(content.size, |to| content.size.min(to + 1));
                    status = 206;
                    let size = content.size + claimed;
                    lines += &format!("content-range: bytes {from}-{}/{size}\r\n", end - 1);
                    (from, end - from)
                }
                Some(_) => {
                    status = 416;
                    (0, 0)
                }
                None => (0, content.size),
            }
        }
    };
    let announced = if status == 206 { length } else { length + claimed };
    write!(client, "HTTP/1.1 {status} X\r\ncontent-length: {announced}\r\nconnection: close\r\n{lines}\r\n")?;
    if request.method == "HEAD" {
        return Ok(());
    }
    let mut buffer = vec![0; 64 << 10];
    let mut sent = 0;
    while sent < length {
        let allowed = match broken {
            Break::CutAfter(bytes) | Break::StallAfter(bytes) => (*bytes).min(length) - sent,
            _ => length - sent,
        };
        if allowed == 0 {
            if matches!(broken, Break::StallAfter(_)) {
                // Until the client gives up.
                let _ = client.read(&mut [0]);
            }
            return Ok(());
        }
        let count = buffer.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let chunk = &mut buffer[..count];
        match body {
            Body::Text(text) => {
                let begin = usize::try_from(sent).map_err(io::Error::other)?;
                chunk.copy_from_slice(&text.as_bytes()[begin..begin + count]);
            }
            Body::File(content) => content.read(from + sent, chunk)?,
        }
        match broken {
            Break::FlipAt(place) if (sent..sent + count as u64).contains(place) => {
                let place = usize::try_from(*place - sent).map_err(io::Error::other)?;
                chunk[place] ^= 1;
            }
            // The fault itself; nothing waits by it.
            Break::Slow(pause) => thread::sleep(*pause),
            _ => {}
        }
        client.write_all(chunk)?;
        sent += count as u64;
    }
    Ok(())
}
