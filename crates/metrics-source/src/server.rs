//! The gRPC server: connections, plain or with mTLS, and the services on them.
//!
//! A client that is slow, hostile or gone costs a bounded amount: connections, handshakes, streams and keep-alive have
//! limits. What the services do is in `stream`.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, stream};
use proto::metrics::v1::{FILE_DESCRIPTOR_SET, metrics_server::MetricsServer};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{JoinSet, yield_now},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::{Server, server::Connected};

use crate::{
    places::{Place, Places},
    stream::{Hub, Service},
};

/// More than all controllers of a cluster need. One more waits in the kernel; without certificates it gets the place of
/// another one.
const CONNECTIONS: usize = 128;
/// A handshake is two packets each way.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Between attempts to accept a connection when the process has no file descriptor left.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A subscriber whose node is gone is noticed after both.
const PING_AFTER: Duration = Duration::from_secs(20);
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// Of one connection. A subscriber needs one; health checks and reflection a few.
const STREAMS: u32 = 16;
/// Bytes of the head of a request. Subscribers of this project send far fewer.
const HEAD_BYTES: u32 = 16 * 1024;
/// Of what clients send: one small request each.
const RECEIVE_WINDOW: u32 = 64 * 1024;

/// Whether connections of clients are encrypted.
pub enum Security {
    Plain,
    /// With the newest configuration.
    Mutual(watch::Receiver<Arc<ServerConfig>>),
}

/// Serves until `stop`, and then until the streams have ended.
pub async fn serve(
    listener: TcpListener,
    security: Security,
    hub: Hub,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (health_reporter, health) = tonic_health::server::health_reporter();
    health_reporter.set_serving::<MetricsServer<Service>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let service = match &security {
        Security::Plain => Service::for_anyone(hub, stop.clone()),
        Security::Mutual(_) => Service::for_known(hub, stop.clone()),
    };
    let metrics = MetricsServer::new(service);
    let (sender, receiver) = mpsc::channel(1);
    let accepting = accept(listener, security, sender, stop.clone());
    let serving = Server::builder()
        .http2_keepalive_interval(Some(PING_AFTER))
        .http2_keepalive_timeout(Some(PONG_WITHIN))
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEAD_BYTES)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .add_service(health)
        .add_service(reflection.build_v1()?)
        .add_service(metrics)
        .serve_with_incoming_shutdown(incoming(receiver), stop.cancelled_owned());
    let (served, ()) = tokio::join!(serving, accepting);
    Ok(served?)
}

fn incoming(receiver: mpsc::Receiver<Connection>) -> impl Stream<Item = Result<Connection, io::Error>> {
    stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|next| (Ok(next), receiver)) })
}

async fn accept(
    listener: TcpListener,
    security: Security,
    sender: mpsc::Sender<Connection>,
    stop: CancellationToken,
) {
    let (waited_for, places) = (Arc::new(Semaphore::new(CONNECTIONS)), Places::new(CONNECTIONS));
    let mut handshakes = JoinSet::new();
    let next = async || {
        let place = match &security {
            Security::Plain => None,
            Security::Mutual(_) => Some(Arc::clone(&waited_for).acquire_owned().await.ok()?),
        };
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let place = place.map_or_else(
                        || Taken::Evictable(places.take(Some(address.ip().to_canonical()))),
                        Taken::Kept,
                    );
                    return Some((stream, place));
                }
                Err(_) => sleep(ACCEPT_AGAIN_AFTER).await,
            }
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // Frees what an ended handshake held.
            Some(_) = handshakes.join_next() => continue,
            accepted = next() => accepted,
        };
        let Some((stream, place)) = accepted else { break };
        // Snapshots are small and wanted at once.
        let _ = stream.set_nodelay(true);
        let acceptor = match &security {
            Security::Plain => None,
            Security::Mutual(configs) => Some(TlsAcceptor::from(Arc::clone(&configs.borrow()))),
        };
        let sender = sender.clone();
        handshakes.spawn(async move {
            let transport = match acceptor {
                None => Transport::Plain(stream),
                Some(acceptor) => match timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => Transport::Mutual(Box::new(stream)),
                    // The handshake failed or timed out; both are errors of the client.
                    Ok(Err(_)) | Err(_) => return,
                },
            };
            let lost = match &place {
                Taken::Kept(_) => None,
                Taken::Evictable(place) => Some(Box::pin(place.lost.clone().cancelled_owned())),
            };
            let _ = sender.send(Connection { transport, lost, _place: place }).await;
        });
        // Connections are served, and those that have lost their place are closed, before the next is accepted.
        yield_now().await;
    }
    handshakes.shutdown().await;
}

/// A connection that may be used.
struct Connection {
    transport: Transport,
    lost: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    _place: Taken,
}

/// Free again when it is dropped.
enum Taken {
    Kept(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
    Evictable(Place),
}

enum Transport {
    Plain(TcpStream),
    Mutual(Box<TlsStream<TcpStream>>),
}

impl Connected for Connection {
    type ConnectInfo = tonic::transport::server::TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        match &self.transport {
            Transport::Plain(stream) => stream.connect_info(),
            Transport::Mutual(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        // Each connection is read from all the time, so that this wakes it.
        if connection.lost.as_mut().is_some_and(|lost| lost.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match &mut connection.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Mutual(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Mutual(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Mutual(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Mutual(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use daemon::listener::listen;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn idle_connections_without_a_certificate_keep_no_other_one_out() {
        let listener = listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, Security::Plain, Hub::default(), stop.clone()));
        // Served as soon as the server sends its settings.
        let connect = async || {
            let mut connection = TcpStream::connect(address).await.unwrap();
            assert!(connection.read(&mut [0; 9]).await.unwrap() > 0);
            connection
        };
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            idle.push(connect().await);
        }
        connect().await;
        // The oldest is closed, after what was sent to it.
        let mut rest = Vec::new();
        let _ = idle[0].read_to_end(&mut rest).await;
        stop.cancel();
        drop(idle);
        serving.await.unwrap().unwrap();
    }
}
