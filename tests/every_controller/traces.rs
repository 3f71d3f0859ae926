//! OTLP traces of reconciles arrive at the endpoint and do not delay reconciles.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use api::controllers::Controller;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::ResourceSpans,
};
use tests::{table::life_of, within};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use crate::{confined, for_every_controller};

/// Less than the exporter's own timeout of 10 s, for which a controller that waits for the receiver would wait. The documented
/// limit of two seconds is for a machine that is not busy.
const STOPS_WITHIN: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_reconcile_is_a_span_with_the_service_and_the_object() {
    for_every_controller(async |tested| {
        let (scene, life) = (confined::scene().await, life_of(tested));
        let (endpoint, mut received) = receiver();
        confined::start_controller(tested, &scene, &["--otlp-endpoint", &endpoint]).await;
        life.begin(&scene, "life").await;
        until_received(&mut received, tested, &format!("{}/life", scene.namespace())).await;
    })
    .await;
}

#[tokio::test]
async fn a_quiet_log_does_not_end_the_traces() {
    for_every_controller(async |tested| {
        let (scene, life) = (confined::scene().await, life_of(tested));
        let (endpoint, mut received) = receiver();
        let args = ["--otlp-endpoint", &endpoint, "--log-level=error"];
        confined::start_controller(tested, &scene, &args).await;
        life.create(&scene, "life").await;
        until_received(&mut received, tested, &format!("{}/life", scene.namespace())).await;
    })
    .await;
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_delays_and_breaks_nothing() {
    for_every_controller(async |tested| {
        let (scene, life) = (confined::scene().await, life_of(tested));
        // Accepts connections without an answer, which is worse than a refusal.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let controller = confined::start_controller(tested, &scene, &["--otlp-endpoint", &endpoint]).await;
        life.begin(&scene, "life").await;
        life.change(&scene, "life", &life.changed).await;
        life.until_done(&scene, "life").await;
        let (connection, _) = silent.accept().expect("a connection of the controller");

        let began = Instant::now();
        scene.stop_component(&controller).await.unwrap();
        let took = began.elapsed();
        drop(connection);
        let status = scene.status().await.unwrap();
        let component = status.components.into_iter().find(|component| component.name == controller).unwrap();
        assert_eq!((component.restarts, component.last_exit.as_deref()), (0, Some("exit status: 0")));
        assert!(took <= STOPS_WITHIN, "{took:?}");
    })
    .await;
}

/// Forwards received spans to the test.
struct Receiver(UnboundedSender<ResourceSpans>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for spans in request.into_inner().resource_spans {
            // The test may have ended.
            let _ = self.0.send(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Serves until the test ends.
fn receiver() -> (String, UnboundedReceiver<ResourceSpans>) {
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let endpoint = format!("http://{}", incoming.local_addr().unwrap());
    let (sender, received) = mpsc::unbounded_channel();
    let service = TraceServiceServer::new(Receiver(sender));
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    (endpoint, received)
}

/// Waits for the span of a reconcile of this object.
async fn until_received(
    received: &mut UnboundedReceiver<ResourceSpans>,
    controller: &Controller,
    object: &str,
) {
    let span = async {
        while let Some(spans) = received.recv().await {
            let resource = spans.resource.unwrap_or_default();
            assert_eq!(text(&resource.attributes, "service.name"), Some(controller.name));
            let spans = spans.scope_spans.iter().flat_map(|scope| &scope.spans);
            for span in spans.filter(|span| span.name == "reconcile") {
                assert!(span.end_time_unix_nano > span.start_time_unix_nano, "{span:?}");
                if text(&span.attributes, "object") == Some(object) {
                    return;
                }
            }
        }
        panic!("the receiver ended");
    };
    tokio::time::timeout(within(), span).await.expect("a span of the reconcile");
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}
