//! The part of a kubelet that serves logs, for all simulated nodes. The API server asks it for `pods/log`; kwok has no logs.
//!
//! ```text
//! kubectl logs ──▶ kube-apiserver ── GET /containerLogs/… (TLS) ──▶ pod-logs ──▶ replay: a line for each moment of a run
//!                        ▲────────────── pods: get, watch ──────────────╯
//! ```
//!
//! A process of its own, under the supervisor. A container named `trainer` has the log of a training, any other one an empty
//! log. The text and the time of each line follow from the pod alone. So this process may be restarted at any time, and a
//! log that is read again has the same lines. While no log is followed it sends no request; connections, memory of each and
//! the time for heads are bounded. It must not change anything in the cluster.

mod ends;
mod go_duration;
mod request;
mod run;
mod stream;
mod swift;
mod timeline;

use std::{
    convert::Infallible, io, net::SocketAddr, path::Path, path::PathBuf, pin::pin, sync::Arc, time::Duration,
};

use bytes::Bytes;
use futures::TryStreamExt as _;
use http::{Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::info;

use crate::{
    ClusterSpec, Error, Folder, Result, api_server::admin_client::admin_client,
    control_plane::credentials::Credentials, machine::ports::listen_beside_reservation,
};
use ends::Ends;
use request::Query;
use run::Refusal;

/// One for each log that is followed, at about 50 KiB. One more waits in the kernel until another one ends.
const CONNECTIONS: usize = 1_024;
/// A handshake is two packets each way, and a head one packet.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// The API server keeps connections for the next request.
const LIFE: Duration = Duration::from_secs(4 * 60 * 60);
const READ_POD_WITHIN: Duration = Duration::from_secs(10);
const HEAD_BYTES: usize = 16 * 1024;
/// Between attempts to accept a connection when the process has no file descriptor left.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What requests share.
struct Logs {
    client: Client,
    ends: Ends,
    /// How long a trainer runs whose pod does not say it.
    training_time: Duration,
}

/// Serves the logs of the cluster whose state folder is given, until the process is ended.
pub async fn serve(folder: PathBuf, address: SocketAddr) -> Result<Infallible> {
    let folder = Folder::at(folder);
    let training_time = ClusterSpec::read(&folder)?.training_time;
    let acceptor = TlsAcceptor::from(Arc::new(tls(&Credentials::of(&folder))?));
    let listener = listen(address).map_err(Error::io("listen on", address.to_string()))?;
    let client = admin_client(&folder).await?;
    let ends = Ends::new(client.clone());
    let logs = Arc::new(Logs { client, ends: ends.clone(), training_time });
    info!(%address, "logs are served");
    tokio::select! {
        never = accept(&listener, &acceptor, &logs) => match never {},
        never = ends.watch() => match never {},
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = listen_beside_reservation(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// HTTP/1.1 alone: a connection is a log.
fn tls(files: &Credentials) -> Result<ServerConfig> {
    let unusable =
        |path: &Path, error: &dyn std::fmt::Display| Error::invalid("use", path.display().to_string(), error);
    let (certificate, key) = (files.server_certificate(), files.server_key());
    let chain = CertificateDer::pem_file_iter(&certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(&certificate, &error))?;
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|error| unusable(&key, &error))?;
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| unusable(&key, &error))
}

async fn accept(listener: &TcpListener, acceptor: &TlsAcceptor, logs: &Arc<Logs>) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await.ok();
        tokio::select! {
            biased;
            // Frees what an ended connection held.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (acceptor, logs) = (acceptor.clone(), Arc::clone(logs));
                    connections.spawn(async move {
                        connection(stream, &acceptor, &logs).await;
                        drop(place);
                    });
                }
                Err(_) => sleep(ACCEPT_AGAIN_AFTER).await,
            },
        }
    }
}

async fn connection(stream: TcpStream, acceptor: &TlsAcceptor, logs: &Arc<Logs>) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await else { return };
    let service = service_fn(|request| {
        let logs = Arc::clone(logs);
        async move { Ok::<_, Infallible>(answer(&logs, &request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_BYTES);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Errors are those of the client.
    let _ = timeout(LIFE, served.as_mut()).await;
}

async fn answer(logs: &Logs, request: &http::Request<Incoming>) -> Response<Body> {
    if request.method() != Method::GET {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed");
    }
    let Some(query) = Query::parse(request.uri()) else {
        return refused(
            StatusCode::NOT_FOUND,
            "simulated nodes serve /containerLogs/NAMESPACE/POD/CONTAINER",
        );
    };
    if query.previous {
        return refused(StatusCode::BAD_REQUEST, "simulated containers keep no log of an earlier run");
    }
    // Before the pod is read, so that no change of it can be missed.
    let changes = query.follow.then(|| logs.ends.follow(&query.namespace, &query.pod));
    let pods: Api<Pod> = Api::namespaced(logs.client.clone(), &query.namespace);
    let pod = match timeout(READ_POD_WITHIN, pods.get_opt(&query.pod)).await {
        Ok(Ok(Some(pod))) => pod,
        Ok(Ok(None)) => {
            let what = format!("pod {}/{} does not exist", query.namespace, query.pod);
            return refused(StatusCode::NOT_FOUND, &what);
        }
        Ok(Err(error)) => return refused(StatusCode::SERVICE_UNAVAILABLE, &crate::explained(&error)),
        Err(_) => return refused(StatusCode::SERVICE_UNAVAILABLE, "the API server did not answer in time"),
    };
    let run = match run::of_container(&pod, &query.container, logs.training_time) {
        Ok(run) => run,
        Err(refusal @ Refusal::NoContainer { .. }) => {
            return refused(StatusCode::NOT_FOUND, &refusal.to_string());
        }
        Err(refusal @ Refusal::NotStarted { .. }) => {
            return refused(StatusCode::BAD_REQUEST, &refusal.to_string());
        }
    };
    let uid = pod.metadata.uid.unwrap_or_default();
    let chunks = stream::chunks(run, uid, query, changes, Timestamp::now());
    let body = StreamBody::new(chunks.map_ok(hyper::body::Frame::data));
    let mut response = Response::new(body.boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
    response
}

fn refused(status: StatusCode, why: &str) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{why}\n"))).boxed_unsync());
    *response.status_mut() = status;
    response
}
