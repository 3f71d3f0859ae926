//! The controller against a scripted API server and a server of metrics: what it reads, sends and keeps.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::aiscaler::AIScaler;
use clap::Parser as _;
use fake_api::{Answer, ScriptedApi, Verb};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Config, api::ApiResource};
use prometheus_api::{
    args::PrometheusArgs,
    url::{AllowedUrls, ServerUrl},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use runtime::{
    client::{Deadlines, WriteGuard, build},
    clock::Clock,
    key::Key,
    metrics::Metrics,
    polling::Polled,
    read::secrets::Secrets,
    watch::{Scope, Timings, Watches, cache::Cache},
    write::{apply::Writer, events::Recorder, scale::Scales},
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
};
use scaling::reading::{Milli, Reading};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    Args, Context, NAME, collect, reconcile, targets_of_hpas, targets_of_scaled_objects, targets_of_scalers,
};
use crate::{
    collect::agents::Agents,
    configuration::{Configuration, ScalerArgs},
    observe::{Target, observe},
    sources::{answer::Answer as Sampled, pods::Bodies},
    target::contender::{HpaView, ScaledObjectView},
    target::other_kinds::Resources,
    target::pod::PodView,
    target::selector::PodsByLabel,
    target::{Reference, Scalable},
};

mod agents;
mod others;
mod writes;

/// A server of metrics that answers 12 to requests with this token, and that a query of `broken` cannot be evaluated.
struct Prometheus {
    address: SocketAddr,
    token: Arc<Mutex<String>>,
    /// Without it, it speaks no TLS.
    tls: Arc<Mutex<Option<TlsAcceptor>>>,
    requests: Arc<Mutex<usize>>,
    task: JoinHandle<()>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Prometheus {
    async fn start(token: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (token, requests) = (Arc::new(Mutex::new(token.to_owned())), Arc::new(Mutex::new(0)));
        let (wanted, count) = (Arc::clone(&token), Arc::clone(&requests));
        let tls = Arc::<Mutex<Option<TlsAcceptor>>>::default();
        let acceptor = Arc::clone(&tls);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.lock().unwrap().clone();
                let mut stream: Box<dyn Stream> = match acceptor {
                    None => Box::new(stream),
                    Some(acceptor) => match acceptor.accept(stream).await {
                        Ok(stream) => Box::new(stream),
                        // The client does not trust it.
                        Err(_) => continue,
                    },
                };
                let mut read = Vec::new();
                while !String::from_utf8_lossy(&read).contains("timeout=") {
                    let mut bytes = [0; 4_096];
                    let length = stream.read(&mut bytes).await.unwrap();
                    read.extend_from_slice(&bytes[..length]);
                }
                *count.lock().unwrap() += 1;
                let authorization = format!("authorization: Bearer {}\r\n", wanted.lock().unwrap());
                let is_allowed = String::from_utf8_lossy(&read).contains(&authorization);
                let is_broken = String::from_utf8_lossy(&read).contains("broken");
                let value = json!([Timestamp::now().as_second(), "12"]);
                let body = json!({"status": "success", "data": {"resultType": "scalar", "result": value}});
                let error = json!({"status": "error", "errorType": "execution", "error": "too many samples"});
                let (status, body) = match (is_allowed, is_broken) {
                    (true, false) => ("200 OK", body.to_string()),
                    (true, true) => ("422 Unprocessable Entity", error.to_string()),
                    (false, _) => ("401 Unauthorized", body.to_string()),
                };
                let head =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", body.len());
                stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        Self { address, token, tls, requests, task }
    }

    /// From now on with a certificate of this authority.
    fn speak_tls(&self, authority: &Authority) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, authority).unwrap().der().clone();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key);
        *self.tls.lock().unwrap() = Some(TlsAcceptor::from(Arc::new(config.unwrap())));
    }

    fn requests(&self) -> usize {
        *self.requests.lock().unwrap()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A controller whose caches the test fills.
fn context(api: &ScriptedApi, allowed: &[SocketAddr]) -> Context {
    let metrics = Arc::new(Metrics::new(NAME));
    let config = Config::new(format!("http://{}", api.address()).parse().unwrap());
    let client =
        build(&config, Deadlines::default(), WriteGuard::Always, Arc::clone(&metrics), Clock::default())
            .unwrap();
    let (scalers, pods) = (Cache::<AIScaler>::default(), Cache::<PodView>::default());
    let (hpas, scaled_objects) = (Cache::<HpaView>::default(), Cache::<ScaledObjectView>::default());
    let url = |address: &SocketAddr| ServerUrl::parse(&format!("http://{address}")).unwrap();
    Context {
        deployments: Cache::default(),
        stateful_sets: Cache::default(),
        inferences: Cache::default(),
        dispatchers: Cache::default(),
        pods_by_label: PodsByLabel::of(&pods),
        pods,
        scaler_targets: targets_of_scalers(&scalers),
        hpa_targets: targets_of_hpas(&hpas),
        scaled_object_targets: targets_of_scaled_objects(&scaled_objects),
        hpas,
        scaled_objects,
        validities: crate::validate::validities::Validities::default(),
        samples: Default::default(),
        rates: Default::default(),
        arrivals: Default::default(),
        bodies: Bodies::new(collect::BODIES_AT_ONCE, collect::BODIES_OF_ONE_NAMESPACE),
        resources: Resources::default(),
        agents: Agents::of(None, None, String::new()),
        counts: Default::default(),
        configuration: {
            let scaler = Args::parse_from([NAME]).scaler;
            let allowed_prometheus_urls = allowed.iter().map(url).collect();
            let prometheus = PrometheusArgs { allowed_prometheus_urls, ..scaler.prometheus };
            Configuration::new(ScalerArgs { prometheus, ..scaler }, Secrets::new(client.clone()))
        },
        clock: Clock::default(),
        writer: Writer::new(client.clone(), NAME, "test/applied", &scalers),
        scales: Scales::new(client.clone(), NAME),
        recorder: Recorder::new(client, NAME, "test".into(), metrics),
        scalers,
    }
}

thread_local! {
    /// One start for a whole test: on a busy machine, two calls of `later` would otherwise be further apart than they say.
    static BEGAN: Timestamp = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
}

/// The start of the test, in whole seconds: a server stamps its answers with its own clock.
fn now() -> Timestamp {
    BEGAN.with(|began| *began)
}

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() + seconds).unwrap()
}

fn stored_scaler(api: &ScriptedApi, ctx: &Context, spec: Value) -> Arc<AIScaler> {
    let mut all = json!({"metricType": "queue_depth", "targetValue": 5, "maxReplicas": 10});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({"name": "chat", "namespace": "demo", "generation": 1});
    let kind = json!({"apiVersion": "ai.infra.example.com/v1", "kind": "AIScaler", "metadata": metadata, "spec": all});
    let scaler: AIScaler = serde_json::from_value(api.put_json("aiscalers", kind)).unwrap();
    ctx.scalers.upsert(scaler.clone());
    Arc::new(scaler)
}

fn query(server: SocketAddr) -> Value {
    json!({"url": format!("http://{server}"), "query": "sum(a)", "secretName": "prom"})
}

fn of_deployment(prometheus: Value) -> Value {
    json!({"deploymentName": "chat", "source": {"prometheus": prometheus}})
}

fn secret(api: &ScriptedApi, namespace: &str, key: &str, base64: &str) {
    let metadata = json!({"name": "prom", "namespace": namespace});
    api.put_json("secrets", json!({"metadata": metadata, "data": {key: base64}}));
}

/// `s3cret` and `rotated`.
const OLD: &str = "czNjcmV0";
const NEW: &str = "cm90YXRlZA==";

fn sampled(ctx: &Context, scaler: &AIScaler) -> Sampled {
    ctx.samples.of(scaler.metadata.uid.as_deref().unwrap()).answers.remove(0)
}

fn is_twelve(ctx: &Context, scaler: &AIScaler) -> bool {
    matches!(sampled(ctx, scaler).reading, Reading::Total { value, .. } if value == Milli::units(12))
}

#[tokio::test]
async fn a_token_is_got_by_its_name_kept_for_a_minute_and_shown_nowhere() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = stored_scaler(&api, &ctx, of_deployment(query(server.address)));
    secret(&api, "demo", "token", OLD);
    for (seconds, reads) in [(0, 1), (30, 1), (50, 1), (60, 2)] {
        collect::read(&ctx, &scaler, later(seconds)).await;
        assert!(is_twelve(&ctx, &scaler), "{:?}", sampled(&ctx, &scaler));
        assert_eq!(api.verbs(), vec!["Get secrets"; reads], "after {seconds} s");
    }
    let shown = format!(
        "{:?} {:?}",
        ctx.samples,
        ctx.configuration.prometheus.credentials.token(&Key::new("demo", "prom"), now()).await
    );
    assert!(!shown.contains("s3cret") && !shown.contains(OLD), "{shown}");
}

#[tokio::test]
async fn a_token_that_was_rotated_is_read_and_used_within_the_same_poll() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = stored_scaler(&api, &ctx, of_deployment(query(server.address)));
    secret(&api, "demo", "token", OLD);
    collect::read(&ctx, &scaler, now()).await;
    *server.token.lock().unwrap() = "rotated".into();
    // The server knows the new token before the Secret does: nothing is asked twice.
    collect::read(&ctx, &scaler, later(1)).await;
    let message = sampled(&ctx, &scaler).message;
    assert!(
        message.ends_with("refused access with 401: correct the key token of Secret demo/prom"),
        "{message}"
    );
    assert_eq!((server.requests(), api.verbs().len()), (2, 2));
    secret(&api, "demo", "token", NEW);
    collect::read(&ctx, &scaler, later(2)).await;
    assert!(is_twelve(&ctx, &scaler));
    assert_eq!((server.requests(), api.verbs().len()), (4, 3));
}

#[tokio::test]
async fn a_value_is_not_stale_while_the_clock_of_the_api_server_is_wrong() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = stored_scaler(&api, &ctx, of_deployment(query(server.address)));
    secret(&api, "demo", "token", OLD);
    // As the controller counts, whose clock follows that of the API server.
    collect::read(&ctx, &scaler, later(8 * 86_400)).await;
    assert!(is_twelve(&ctx, &scaler), "{:?}", sampled(&ctx, &scaler));
}

#[tokio::test]
async fn what_was_scraped_for_a_metric_that_is_no_longer_asked_is_dropped() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    let of_pods = json!({"pods": {"port": 8_000, "metric": "waiting"}});
    let more = json!([{"metricType": "custom", "targetValue": 50, "source": {"pods": {"port": 8_000, "metric": "busy"}}}]);
    let of_two = json!({"deploymentName": "chat", "source": of_pods, "additionalMetrics": more});
    let of_one = json!({"deploymentName": "chat", "source": of_pods});
    let of_server = of_deployment(json!({"query": "sum(a)"}));
    let invalid = of_deployment(json!({"query": "sum("}));
    let kept = async |spec: &Value| {
        // One object, whose spec is edited.
        let mut scaler = AIScaler::clone(&stored_scaler(&api, &ctx, spec.clone()));
        ctx.scalers.remove(&scaler.metadata);
        scaler.metadata.uid = Some("one".into());
        ctx.scalers.upsert(scaler.clone());
        collect::read(&ctx, &Arc::new(scaler), now()).await;
        ctx.rates.len()
    };
    for (spec, known) in [(&of_two, 2), (&of_one, 1), (&of_server, 0), (&of_two, 2), (&invalid, 0)] {
        assert_eq!(kept(spec).await, known, "{spec}");
    }
}

#[tokio::test]
async fn a_secret_that_is_not_there_is_named_with_its_key_and_nothing_is_asked() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = stored_scaler(&api, &ctx, of_deployment(query(server.address)));
    let read = async || {
        collect::read(&ctx, &scaler, now()).await;
        sampled(&ctx, &scaler).message
    };
    // One of the same name in another namespace is another's.
    secret(&api, "other", "token", OLD);
    assert_eq!(
        read().await,
        "Secret demo/prom does not exist: create it with the key token, or correct its name in prometheus"
    );
    secret(&api, "demo", "tokens", OLD);
    assert_eq!(read().await, "Secret demo/prom has no key token: add it");
    api.next(
        Verb::Get.of("secrets"),
        [Answer::status(403, "Forbidden", "no"), Answer::status(500, "", "broken")],
    );
    assert_eq!(
        read().await,
        "this controller may not read Secret demo/prom: create a Role and a RoleBinding in that namespace that let it get \
         this Secret"
    );
    assert!(read().await.starts_with("Secret demo/prom cannot be read: "));
    secret(&api, "demo", "token", "YSBi");
    assert!(read().await.starts_with("the key token of Secret demo/prom is not a token"));
    assert_eq!(server.requests(), 0);
}

#[tokio::test]
async fn the_secret_of_a_server_that_is_not_allowed_is_not_read() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[]);
    let scaler = stored_scaler(&api, &ctx, of_deployment(query(server.address)));
    secret(&api, "demo", "token", OLD);
    collect::read(&ctx, &scaler, now()).await;
    assert!(sampled(&ctx, &scaler).message.contains("--allowed-prometheus-urls"));
    assert_eq!((server.requests(), api.verbs().len()), (0, 0));
}

#[tokio::test]
async fn a_token_is_not_sent_in_clear() {
    let api = ScriptedApi::start().await;
    // Of a network that does not exist.
    let server = "192.0.2.1:9090".parse().unwrap();
    let mut ctx = context(&api, &[server]);
    let scaler = stored_scaler(&api, &ctx, of_deployment(query(server)));
    collect::read(&ctx, &scaler, now()).await;
    assert_eq!(
        sampled(&ctx, &scaler).message,
        "http://192.0.2.1:9090 is not https, so a token would be sent in clear: use https, or start the controller with \
         --tokens-over-http"
    );
    assert_eq!(api.verbs(), [""; 0], "the Secret is not read");
    ctx.configuration.prometheus.tokens_over_http = true;
    collect::read(&ctx, &scaler, now()).await;
    assert_eq!(api.verbs(), ["Get secrets"]);
}

#[tokio::test]
async fn connections_of_a_secret_are_made_anew_only_when_it_changes() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["a".into()]).unwrap().self_signed(&key).unwrap();
    let put = || {
        let metadata = json!({"name": "ca", "namespace": "demo"});
        let data = k8s_openapi::ByteString(certificate.pem().into_bytes());
        api.put_json("secrets", json!({"metadata": metadata, "data": {"ca.crt": data}}));
    };
    put();
    let secret = Key::new("demo", "ca");
    let version = async |seconds| {
        ctx.configuration.prometheus.credentials.connections(&secret, later(seconds)).await.unwrap().version
    };
    let first = version(0).await;
    assert_eq!(version(100).await, first, "read again, and not changed");
    put();
    assert_eq!(version(101).await, first, "kept for a minute");
    ctx.configuration.prometheus.credentials.refused(None, Some(&secret));
    assert_ne!(version(102).await, first, "no server has a certificate of the old ones");
    assert_eq!(api.verbs(), ["Get secrets"; 3]);
    let fault = ctx.configuration.prometheus.credentials.token(&secret, now()).await.unwrap_err();
    assert_eq!(fault.to_string(), "Secret demo/ca has no key token: add it");
}

#[tokio::test]
async fn answers_that_arrive_after_the_object_was_deleted_are_not_kept() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    let kept = |ctx: &Context| [ctx.samples.len(), ctx.rates.len(), ctx.agents.len()];
    let of_pods = json!({"pods": {"port": 8_000, "metric": "waiting"}});
    let more = json!([{"metricType": "gpu_util", "targetValue": 50}]);
    let spec = json!({"deploymentName": "chat", "source": of_pods, "additionalMetrics": more});
    let scaler = stored_scaler(&api, &ctx, spec.clone());
    let all = async |scaler: &Arc<AIScaler>| {
        collect::read(&ctx, scaler, now()).await;
        collect::read_agents(&ctx, scaler, now()).await;
        let _ = reconcile(&ctx, Arc::clone(scaler), now()).await;
    };
    all(&scaler).await;
    assert_eq!(kept(&ctx), [1, 1, 1]);
    ctx.scalers.remove(&scaler.metadata);
    all(&scaler).await;
    assert_eq!(kept(&ctx), [0, 0, 0], "it was deleted");
    let mut another = (*scaler).clone();
    another.metadata.uid = Some("another".into());
    ctx.scalers.upsert(another);
    all(&scaler).await;
    assert_eq!(kept(&ctx), [0, 0, 1], "there is another of its name, whose nodes go on being followed");
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test]
async fn authorities_that_were_replaced_are_read_and_used_within_the_same_poll() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let url = format!("https://{}", server.address);
    let mut ctx = context(&api, &[]);
    ctx.configuration.prometheus.allowed = AllowedUrls::new(vec![ServerUrl::parse(&url).unwrap()]);
    let source = json!({"url": url, "query": "sum(a)", "secretName": "prom", "caSecretName": "ca"});
    let scaler = stored_scaler(&api, &ctx, of_deployment(source));
    secret(&api, "demo", "token", OLD);
    let put = |authority: &Authority| {
        let pem = k8s_openapi::ByteString(authority.pem().as_bytes().to_vec());
        let metadata = json!({"name": "ca", "namespace": "demo"});
        api.put_json("secrets", json!({"metadata": metadata, "data": {"ca.crt": pem}}));
    };
    let (old, new) = (authority(), authority());
    server.speak_tls(&old);
    put(&old);
    collect::read(&ctx, &scaler, now()).await;
    assert!(is_twelve(&ctx, &scaler), "{:?}", sampled(&ctx, &scaler));
    server.speak_tls(&new);
    collect::read(&ctx, &scaler, later(1)).await;
    let message = sampled(&ctx, &scaler).message;
    assert!(message.ends_with("correct the key ca.crt of Secret demo/ca"), "{message}");
    put(&old);
    collect::read(&ctx, &scaler, later(2)).await;
    server.speak_tls(&old);
    collect::read(&ctx, &scaler, later(3)).await;
    assert!(is_twelve(&ctx, &scaler));
    // Both at once, within the minute for which the old ones are kept.
    server.speak_tls(&new);
    put(&new);
    collect::read(&ctx, &scaler, later(4)).await;
    assert!(is_twelve(&ctx, &scaler), "{:?}", sampled(&ctx, &scaler));
    assert_eq!(server.requests(), 3, "no token went to a server that was not trusted");
}

fn rollouts() -> ApiResource {
    ApiResource {
        group: "argoproj.io".into(),
        version: "v1alpha1".into(),
        api_version: "argoproj.io/v1alpha1".into(),
        kind: "Rollout".into(),
        plural: "rollouts".into(),
    }
}

fn of_rollout() -> Value {
    json!({"targetRef": {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "chat"}})
}

fn put_rollout(api: &ScriptedApi, ctx: &Context, replicas: i32) {
    ctx.resources.keep(
        &kube::core::GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Rollout"),
        &rollouts(),
        now(),
    );
    let metadata = json!({"name": "chat", "namespace": "demo"});
    let status = json!({"replicas": replicas, "selector": "app=chat,tier in (a)"});
    api.put_json("rollouts", json!({"metadata": metadata, "spec": {"replicas": replicas}, "status": status}));
}

fn condition(api: &ScriptedApi, type_: &str) -> (String, String) {
    let scaler: AIScaler = serde_json::from_value(api.stored("aiscalers", "chat").unwrap()).unwrap();
    let conditions = scaler.status.unwrap().conditions;
    let found = conditions.iter().find(|known| known.type_ == type_).unwrap();
    (found.reason.clone(), found.message.clone())
}

/// The object as the cache has it after the last write of its status.
fn current(ctx: &Context) -> Arc<AIScaler> {
    ctx.scalers.get(&Key::new("demo", "chat")).unwrap()
}

#[tokio::test]
async fn a_target_of_another_kind_is_scaled_through_its_scale_with_the_pods_of_its_selector() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    put_rollout(&api, &ctx, 2);
    secret(&api, "demo", "token", OLD);
    let mut spec = of_rollout();
    spec["source"] = json!({"prometheus": query(server.address)});
    let scaler = stored_scaler(&api, &ctx, spec);
    for (name, tier) in [("p1", "a"), ("p2", "a"), ("p3", "b")] {
        let labels = json!({"app": "chat", "tier": tier});
        let ready =
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let pod = json!({
            "metadata": {"name": name, "namespace": "demo", "uid": name, "resourceVersion": "1", "labels": labels,
                         "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n"}, "status": {"phase": "Running", "conditions": ready},
        });
        ctx.pods.upsert(serde_json::from_value(pod).unwrap());
    }
    assert!(matches!(observe(&ctx, &scaler, now()).target, Target::Unread));
    reconcile(&ctx, Arc::clone(&scaler), now()).await.unwrap();
    assert_eq!(condition(&api, "Reconciling").0, "Waiting", "nothing is wrong");
    let scaler = current(&ctx);
    collect::read(&ctx, &scaler, now()).await;
    let Target::Found(found) = observe(&ctx, &scaler, now()).target else { panic!("it was read") };
    assert_eq!(found.pods.unwrap().len(), 2);
    reconcile(&ctx, Arc::clone(&scaler), now()).await.unwrap();
    assert_eq!(api.stored("rollouts", "chat").unwrap()["spec"]["replicas"], 3);
    // Before the next reading, what was written is known.
    let Target::Found(found) = observe(&ctx, &scaler, now()).target else { panic!("it was written") };
    assert_eq!(found.scaled.replicas, 3);
}

#[tokio::test]
async fn without_the_right_to_a_kind_the_condition_names_the_label_that_gives_it() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    put_rollout(&api, &ctx, 2);
    let scaler = stored_scaler(&api, &ctx, of_rollout());
    let forbidden =
        "rollouts.argoproj.io \"chat\" is forbidden: User \"system:serviceaccount:a:b\" cannot get";
    api.always(Verb::Get.of("rollouts"), Answer::status(403, "Forbidden", forbidden));
    collect::read(&ctx, &scaler, now()).await;
    reconcile(&ctx, scaler, now()).await.unwrap();
    let (reason, message) = condition(&api, "AbleToScale");
    assert_eq!(reason, "FailedGetScale");
    assert_eq!(
        message,
        "this controller may not read the scale of rollouts.argoproj.io; create a ClusterRole with the label \
         ai.infra.example.com/aggregate-to-scaler: \"true\" that allows get and update of rollouts/scale in apiGroup \
         \"argoproj.io\""
    );
}

#[tokio::test]
async fn a_target_of_another_kind_that_has_changed_waits_for_the_next_reading() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    put_rollout(&api, &ctx, 1);
    secret(&api, "demo", "token", OLD);
    let mut spec = of_rollout();
    spec["source"] = json!({"prometheus": query(server.address)});
    let scaler = stored_scaler(&api, &ctx, spec);
    collect::read(&ctx, &scaler, now()).await;
    put_rollout(&api, &ctx, 1);
    reconcile(&ctx, Arc::clone(&scaler), now()).await.expect("a conflict is no failure");
    assert_eq!(api.stored("rollouts", "chat").unwrap()["spec"]["replicas"], 1);
    for seconds in [1, 3, 10] {
        reconcile(&ctx, Arc::clone(&scaler), later(seconds)).await.unwrap();
    }
    assert_eq!(api.calls(Verb::Update.of("rollouts")).len(), 1, "nothing newer is known");
    collect::read(&ctx, &scaler, now()).await;
    reconcile(&ctx, scaler, now()).await.unwrap();
    assert_eq!(api.stored("rollouts", "chat").unwrap()["spec"]["replicas"], 3);
}

fn put_deployment(api: &ScriptedApi, ctx: &Context, replicas: i32, more: Value) {
    let mut metadata = json!({"name": "chat", "namespace": "demo", "uid": "d"});
    metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "chat"}}});
    let stored = api.put_json(
        "deployments",
        json!({"metadata": metadata, "spec": spec, "status": {"replicas": replicas}}),
    );
    ctx.deployments.upsert(serde_json::from_value::<Scalable<Deployment>>(stored).unwrap());
}

#[tokio::test]
async fn an_older_aiscaler_that_is_refused_takes_the_target_from_nobody() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    put_deployment(&api, &ctx, 2, json!({}));
    let mut scaler = AIScaler::clone(&stored_scaler(&api, &ctx, json!({"deploymentName": "chat"})));
    scaler.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    let scaler = Arc::new(scaler);
    let contended = |version: i64, spec: Value| {
        let mut older = AIScaler::clone(&scaler);
        older.metadata.generation = Some(version);
        older.metadata.name = Some("older".to_owned());
        older.metadata.uid = Some("older".to_owned());
        older.metadata.creation_timestamp = None;
        older.metadata.resource_version = Some(version.to_string());
        let Value::Object(changes) = spec else { panic!("an object") };
        let mut changed = serde_json::to_value(&older.spec).unwrap();
        changed.as_object_mut().unwrap().extend(changes);
        older.spec = serde_json::from_value(changed).unwrap();
        ctx.scalers.upsert(older);
        observe(&ctx, &scaler, now()).contender.is_some()
    };
    assert!(contended(200, json!({})));
    assert!(!contended(201, json!({"behavior": {"scaleDown": {"tolerance": "a"}}})));
}

#[tokio::test]
async fn a_name_typed_wrong_and_an_owner_and_an_hpa_of_keda_are_observed() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    let scaler = stored_scaler(&api, &ctx, json!({"deploymentName": "chta"}));
    let Target::Missing(why) = observe(&ctx, &scaler, now()).target else { panic!("there is none") };
    assert_eq!(why, "Deployment chta does not exist in namespace demo; create it or correct the name");

    let owner = json!([{"apiVersion": "ai.infra.example.com/v1alpha1", "kind": "AIInference", "name": "llm",
                        "uid": "i", "controller": true}]);
    put_deployment(&api, &ctx, 2, json!({"ownerReferences": owner}));
    let inference = json!({"metadata": {"name": "llm", "namespace": "demo", "uid": "i", "resourceVersion": "5"},
                           "spec": {"replicas": 2}, "status": {"replicas": 2, "selector": "app=chat"}});
    ctx.inferences.upsert(serde_json::from_value(inference).unwrap());
    let hpa = json!({
        "metadata": {"name": "keda-hpa-so", "namespace": "demo", "uid": "h", "resourceVersion": "6",
                     "labels": {"scaledobject.keda.sh/name": "so"}},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}},
    });
    ctx.hpas.upsert(serde_json::from_value(hpa).unwrap());
    let scaler = stored_scaler(&api, &ctx, json!({"deploymentName": "chat"}));
    let seen = observe(&ctx, &scaler, now());
    let Target::Found(found) = seen.target else { panic!("{:?}", seen.target) };
    assert_eq!(found.reference.to_string(), "AIInference llm", "what owns the Deployment is scaled");
    let message = seen.contender.expect("of the Deployment below").message(&found.reference);
    assert!(
        message.starts_with("ScaledObject so, for which KEDA made HorizontalPodAutoscaler keda-hpa-so,"),
        "{message}"
    );
}

/// With what is finished.
fn counted(server: SocketAddr, completions: &str) -> Value {
    let mut source = query(server);
    source["completionsQuery"] = json!(completions);
    source
}

#[tokio::test]
async fn a_server_that_knows_what_is_finished_says_what_arrives() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    secret(&api, "demo", "token", OLD);
    put_deployment(&api, &ctx, 2, json!({}));
    for (name, ready, deleted) in
        [("p1", "True", false), ("p2", "True", false), ("p3", "True", true), ("p4", "False", false)]
    {
        let conditions =
            json!([{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let mut metadata = json!({"name": name, "namespace": "demo", "uid": name, "resourceVersion": "1",
                                  "labels": {"app": "chat"}, "creationTimestamp": "2026-01-01T00:00:00Z",
                                  "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-5d4f",
                                                       "uid": "r", "controller": true}]});
        if deleted {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let status = json!({"phase": "Running", "conditions": conditions});
        let pod = json!({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status});
        ctx.pods.upsert(serde_json::from_value(pod).unwrap());
    }
    let mut spec = of_deployment(counted(server.address, "sum(rate(b[1m]))"));
    let other = json!({"prometheus": query(server.address)});
    spec["additionalMetrics"] = json!([{"metricType": "custom", "targetValue": 50, "source": other}]);
    let scaler = stored_scaler(&api, &ctx, spec);
    let answers = || ctx.samples.of(scaler.metadata.uid.as_deref().unwrap()).answers;
    collect::read(&ctx, &scaler, now()).await;
    let known: Vec<bool> = answers().iter().map(|answer| !answer.is_pending()).collect();
    assert_eq!(
        (known, server.requests()),
        (vec![false, true], 1),
        "a queue that is followed is read by itself"
    );
    for seconds in (0..=90).step_by(5) {
        assert_eq!(collect::read_arrivals(&ctx, &scaler, later(seconds)).await, Polled::Changed);
    }
    assert_eq!(server.requests(), 1 + 2 * 19, "two queries for each look");
    let flow = answers()[0].flow.unwrap();
    assert_eq!(
        [flow.rate, flow.waiting],
        [Milli::units(12), Milli::units(2)],
        "five for each of two that serve"
    );
    // An edit that this reading does not know yet.
    let mut newer = AIScaler::clone(&scaler);
    let source = newer.spec.source.as_mut().and_then(|source| source.prometheus.as_mut()).unwrap();
    source.query = "sum(c)".to_owned();
    newer.metadata.resource_version = Some("999".into());
    ctx.scalers.upsert(newer.clone());
    let newer = Arc::new(newer);
    let before = answers();
    collect::read_arrivals(&ctx, &scaler, later(95)).await;
    assert_eq!(before, answers(), "an answer to the old question");
    collect::read_arrivals(&ctx, &newer, later(100)).await;
    assert_eq!(sampled(&ctx, &newer).flow, None, "another queue begins anew");
    assert_eq!(ctx.arrivals.len(), 1);
    ctx.scalers.remove(&newer.metadata);
    collect::read_arrivals(&ctx, &newer, later(105)).await;
    assert_eq!(ctx.arrivals.len(), 0);
}

#[tokio::test]
async fn a_query_of_what_is_finished_that_fails_leaves_the_queue() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    secret(&api, "demo", "token", OLD);
    put_deployment(&api, &ctx, 2, json!({}));
    let scaler = stored_scaler(&api, &ctx, of_deployment(counted(server.address, "sum(broken)")));
    for seconds in (0..=90).step_by(5) {
        collect::read_arrivals(&ctx, &scaler, later(seconds)).await;
    }
    assert!(is_twelve(&ctx, &scaler), "{:?}", sampled(&ctx, &scaler));
    let Sampled { message, flow, .. } = sampled(&ctx, &scaler);
    assert!(message.starts_with("completionsQuery: ") && message.contains("too many samples"), "{message}");
    assert!(message.ends_with(", so replicas follow the queue alone"), "{message}");
    assert_eq!((flow, ctx.arrivals.len()), (None, 0));
}

#[tokio::test]
async fn a_queue_waits_for_the_scale_of_a_target_that_is_not_watched() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    secret(&api, "demo", "token", OLD);
    put_rollout(&api, &ctx, 2);
    let mut spec = of_rollout();
    spec["source"] = json!({"prometheus": counted(server.address, "sum(rate(b[1m]))")});
    let scaler = stored_scaler(&api, &ctx, spec);
    assert_eq!(collect::read_arrivals(&ctx, &scaler, now()).await, Polled::Unchanged);
    assert_eq!(server.requests(), 0, "without its selector the target seems to have no pods");
    collect::read(&ctx, &scaler, now()).await;
    assert_eq!(collect::read_arrivals(&ctx, &scaler, now()).await, Polled::Changed);
    assert_eq!(server.requests(), 2);
}
