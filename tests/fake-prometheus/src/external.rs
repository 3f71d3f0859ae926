//! The same series as the API external.metrics.k8s.io, for HorizontalPodAutoscalers.
//!
//! Kubernetes reaches it through an APIService whose Service is a name for this machine ([`manifest`]).

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{Answer, Known, locked};

const GROUP: &str = "external.metrics.k8s.io";
const VERSION: &str = "v1beta1";

/// What makes Kubernetes ask the server at this address.
pub(crate) fn manifest(address: SocketAddr) -> String {
    let name = format!("{VERSION}.{GROUP}");
    let port = address.port();
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "external-metrics", "namespace": "kube-system"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    });
    let api = json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": name},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": true,
            "service": {"name": "external-metrics", "namespace": "kube-system", "port": port},
        },
    });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "external-metrics"},
        "rules": [{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["get", "list"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "external-metrics"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "external-metrics"},
        "subjects": [{
            "kind": "ServiceAccount",
            "name": "horizontal-pod-autoscaler",
            "namespace": "kube-system",
        }],
    });
    [service, api, role, binding].map(|object| format!("---\n{object}\n")).concat()
}

pub(crate) async fn listen() -> anyhow::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("failed to listen on loopback")
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: TcpListener, known: Arc<Mutex<Known>>) -> anyhow::Result<()> {
    let tls = TlsAcceptor::from(Arc::new(certificate()?));
    let api = Router::new()
        .route(&format!("/apis/{GROUP}/{VERSION}"), get(|| async { Json(resources()) }))
        .route(&format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{{metric}}"), get(metric))
        .with_state(known);
    loop {
        let (connection, _) = listener.accept().await.context("failed to accept a connection")?;
        let (tls, api) = (tls.clone(), api.clone());
        tokio::spawn(async move {
            let Ok(connection) = tls.accept(connection).await else { return };
            let service = TowerToHyperService::new(api);
            // A client that has enough ends its connection.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
        });
    }
}

fn certificate() -> anyhow::Result<ServerConfig> {
    let key = KeyPair::generate().context("failed to make a key")?;
    let params =
        CertificateParams::new(vec!["localhost".to_owned()]).context("failed to name a certificate")?;
    let certificate = params.self_signed(&key).context("failed to sign a certificate")?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("failed to choose versions of TLS")?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .context("failed to use the certificate")
}

fn resources() -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [{
            "name": "*",
            "singularName": "",
            "namespaced": true,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }],
    })
}

async fn metric(
    State(known): State<Arc<Mutex<Known>>>,
    Path((_, metric)): Path<(String, String)>,
) -> Response {
    let answer = locked(&known).answer(&metric);
    match answer {
        Answer::Value(value) => {
            let item = json!({
                "metricName": metric,
                "metricLabels": {},
                "timestamp": Timestamp::now().to_string(),
                // Quantities have at most three digits after the point.
                "value": format!("{}m", (value * 1e3).round()),
            });
            list(&json!([item]))
        }
        Answer::Empty => list(&json!([])),
        Answer::Status(status) => {
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR).into_response()
        }
        Answer::Silence => std::future::pending().await,
    }
}

fn list(items: &Value) -> Response {
    let api_version = format!("{GROUP}/{VERSION}");
    Json(json!({
        "kind": "ExternalMetricValueList",
        "apiVersion": api_version,
        "metadata": {},
        "items": items,
    }))
    .into_response()
}
