//! A server for probes and Prometheus. It is bounded, because its clients may be slow or hostile: the number of
//! connections, the time for the head of a request and the life of a connection. So probes are answered whatever other
//! clients do.

use std::{collections::VecDeque, fmt, pin::pin, time::Duration};

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet, yield_now},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// A probe is one packet and a head is sent at once; 10 s are enough for a slow network.
/// Two scrapers and the kubelet need three connections.
pub const LIMITS: Limits = Limits {
    connections: 64,
    when_full: WhenFull::CloseOldest,
    head: Duration::from_secs(10),
    life: Duration::from_secs(60),
    last_answer: Duration::from_secs(10),
    at_stop: Duration::from_secs(10),
};

/// Larger heads are answered 431. hyper needs at least 8 KiB.
const HEAD_BYTES: usize = 16 * 1024;

/// Between attempts to accept a connection when the process has no file descriptor left.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What clients may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
    /// What happens to one more.
    pub when_full: WhenFull,
    /// From the start of a connection, or from the last answer on it, to the end of the next head.
    pub head: Duration,
    /// After it a connection gets no further request.
    pub life: Duration,
    /// For the answer that is under way when the life of its connection ends.
    pub last_answer: Duration,
    /// For the answer that is under way when the server stops.
    pub at_stop: Duration,
}

/// What a connection more than there may be does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It closes the oldest: probes are short, so a client that holds connections loses its own.
    CloseOldest,
    /// It waits: an answer may take long, and must not be cut.
    Wait,
}

/// Serves until `stop`.
pub async fn serve(limits: Limits, listener: TcpListener, router: Router, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let is_full = connections.len() >= limits.connections;
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // Frees what an ended connection held.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if !is_full || limits.when_full == WhenFull::CloseOldest => {
                let Ok((stream, _)) = accepted else {
                    sleep(ACCEPT_AGAIN_AFTER).await;
                    continue;
                };
                oldest_first.retain(|connection| !connection.is_finished());
                if oldest_first.len() >= limits.connections
                    && let Some(oldest) = oldest_first.pop_front()
                {
                    oldest.abort();
                }
                oldest_first.push_back(connections.spawn(connection(limits, stream, router.clone(), stop.clone())));
                // The new connection is polled before the next is accepted, so a request that has arrived with it is
                // answered even if many others wait.
                yield_now().await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(limits: Limits, stream: TcpStream, router: Router, stop: CancellationToken) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD_BYTES);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    // Errors are those of clients: a head that is late, wrong or cut off.
    tokio::select! {
        _ = served.as_mut() => return,
        () = stop.cancelled() => {}
        () = sleep(limits.life) => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                _ = served.as_mut() => return,
                () = stop.cancelled() => {}
                () = sleep(limits.last_answer) => return,
            }
        }
    }
    served.as_mut().graceful_shutdown();
    let _ = timeout(limits.at_stop, served).await;
}

/// The answer to a scrape.
pub fn metrics_page(page: Result<String, fmt::Error>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match page {
        Ok(page) => ([(header::CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Each limit is too long for the test but the one that it is about.
    const NONE: Limits = Limits {
        connections: 64,
        when_full: WhenFull::CloseOldest,
        head: FOREVER,
        life: FOREVER,
        last_answer: FOREVER,
        at_stop: FOREVER,
    };
    const FOREVER: Duration = Duration::from_secs(3_600);
    const SHORT: Duration = Duration::from_millis(50);
    const DEADLINE: Duration = Duration::from_secs(20);

    /// Answers `/small` at once, and `/large` with more than the buffers of a connection take.
    async fn start(limits: Limits) -> (SocketAddr, CancellationToken) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let router = Router::new()
            .route("/small", get(|| async { "ok\n" }))
            .route("/large", get(|| async { vec![b'x'; 64 * 1024 * 1024] }));
        tokio::spawn(serve(limits, listener, router, stop.clone()));
        (address, stop)
    }

    async fn client(address: SocketAddr) -> TcpStream {
        TcpStream::connect(address).await.unwrap()
    }

    /// Asks on a connection that is kept, and reads the answer.
    async fn ask(connection: &mut TcpStream) {
        connection.write_all(b"GET /small HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            assert!(connection.read_buf(&mut answer).await.unwrap() > 0, "closed before the answer");
        }
    }

    /// Reads until the server closes the connection.
    async fn until_closed(connection: &mut TcpStream) -> usize {
        let mut read = Vec::new();
        // A reset is an end, too.
        let _ = timeout(DEADLINE, connection.read_to_end(&mut read)).await.expect("the server closes it");
        read.len()
    }

    #[tokio::test]
    async fn a_client_that_does_not_finish_the_head_of_its_request_is_closed() {
        let (address, _stop) = start(Limits { head: SHORT, ..NONE }).await;
        for begun in ["", "GET /small HTTP/1.1\r\nhost: te"] {
            let mut slow = client(address).await;
            slow.write_all(begun.as_bytes()).await.unwrap();
            assert_eq!(until_closed(&mut slow).await, 0, "{begun:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_kept_without_requests_is_closed() {
        let (address, _stop) = start(Limits { head: SHORT, ..NONE }).await;
        let mut kept = client(address).await;
        ask(&mut kept).await;
        until_closed(&mut kept).await;
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_its_answer_is_closed() {
        let (address, _stop) = start(Limits { life: SHORT, last_answer: SHORT, ..NONE }).await;
        let mut slow = client(address).await;
        slow.write_all(b"GET /large HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        // Writing fails once the server has closed; reading would help it to finish.
        let closed = async {
            while slow.write_all(b"x").await.is_ok() {
                sleep(SHORT).await
            }
        };
        timeout(DEADLINE, closed).await.expect("the server closes it");
        assert!(until_closed(&mut slow).await < 64 * 1024 * 1024);
    }

    #[tokio::test]
    async fn one_connection_too_many_closes_the_oldest_and_is_answered() {
        let (address, _stop) = start(Limits { connections: 2, ..NONE }).await;
        let mut oldest = client(address).await;
        ask(&mut oldest).await;
        let mut second = client(address).await;
        ask(&mut second).await;
        let mut probe = client(address).await;
        ask(&mut probe).await;
        until_closed(&mut oldest).await;
        ask(&mut second).await;
        drop(second);
        ask(&mut probe).await;
    }

    #[tokio::test]
    async fn one_connection_too_many_waits_where_no_answer_may_be_cut() {
        let (address, _stop) = start(Limits { connections: 1, when_full: WhenFull::Wait, ..NONE }).await;
        let mut first = client(address).await;
        ask(&mut first).await;
        let mut second = client(address).await;
        let asked = tokio::spawn(async move { ask(&mut second).await });
        ask(&mut first).await;
        assert!(!asked.is_finished());
        drop(first);
        timeout(DEADLINE, asked).await.expect("it is answered").unwrap();
    }

    #[tokio::test]
    async fn an_answer_under_way_outlives_its_connection_but_not_the_server() {
        let (address, stop) = start(Limits { life: SHORT, at_stop: SHORT, ..NONE }).await;
        let mut slow = client(address).await;
        slow.write_all(b"GET /large HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        let mut read = vec![0; 1 << 20];
        slow.read_exact(&mut read).await.unwrap();
        sleep(4 * SHORT).await;
        slow.read_exact(&mut vec![0; 32 << 20]).await.expect("the answer goes on");
        stop.cancel();
        sleep(4 * SHORT).await;
        assert!(until_closed(&mut slow).await < 31 << 20);
    }

    #[tokio::test]
    async fn a_request_that_waits_before_a_flood_of_connections_is_answered() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        // All are there before the server runs, which shares the one thread of this test.
        let mut probe = std::net::TcpStream::connect(address).unwrap();
        std::io::Write::write_all(&mut probe, b"GET /small HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
        let flood: Vec<_> = (0..8).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let router = Router::new().route("/small", get(|| async { "ok\n" }));
        let limits = Limits { connections: 2, ..NONE };
        tokio::spawn(serve(limits, listener, router, CancellationToken::new()));
        probe.set_nonblocking(true).unwrap();
        let mut probe = TcpStream::from_std(probe).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            assert!(probe.read_buf(&mut answer).await.unwrap() > 0, "closed before the answer");
        }
        drop(flood);
    }

    #[tokio::test]
    async fn a_connection_that_is_kept_does_not_hold_up_the_end() {
        let (address, stop) = start(NONE).await;
        let mut kept = client(address).await;
        ask(&mut kept).await;
        stop.cancel();
        until_closed(&mut kept).await;
    }
}
