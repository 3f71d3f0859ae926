//! Logs (JSON or text, to standard error) and, when an endpoint is given, traces by OTLP.
//!
//! Traces are sent in the background and never delay the controller; without a receiver they are dropped.

use std::time::Duration;

use daemon::args::LogFormat;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::{error, level_filters::LevelFilter, warn};
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{causes::with_causes, process::args::RuntimeArgs};

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error(
        "--log-level {text:?} is no filter; write a level such as info, or directives such as info,runtime=debug"
    )]
    Filter {
        text: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("failed to set up traces to {endpoint}")]
    Traces {
        endpoint: String,
        #[source]
        source: opentelemetry_otlp::ExporterBuildError,
    },
    #[error("a log subscriber is already installed")]
    Installed(#[from] tracing_subscriber::util::TryInitError),
}

/// Part of the two seconds that a process has for its end; a receiver that is there needs milliseconds.
const LAST_TRACES_WITHIN: Duration = Duration::from_millis(500);

/// Sends what is left of the traces when it is dropped.
#[derive(Default)]
pub struct Telemetry(Option<SdkTracerProvider>);

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = self.0.take()
            && let Err(error) = provider.shutdown_with_timeout(LAST_TRACES_WITHIN)
        {
            warn!(error = with_causes(&error), "failed to send the last traces");
        }
    }
}

/// Call once, inside the async runtime.
pub fn install(service: &'static str, args: &RuntimeArgs) -> Result<Telemetry, TelemetryError> {
    let filter = filter(&args.log_level)?;
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let logs = match args.log_format {
        LogFormat::Json => {
            logs.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
        }
        LogFormat::Text => logs.boxed(),
    };
    let provider = args.otlp_endpoint.as_deref().map(|endpoint| traces(service, endpoint)).transpose()?;
    // Filters of their own: fewer log lines must not end the traces, and more must not fill them.
    let traces = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer().with_tracer(provider.tracer(service)).with_filter(LevelFilter::INFO)
    });
    tracing_subscriber::registry().with(traces).with(logs.with_filter(filter)).try_init()?;
    log_panics();
    Ok(Telemetry(provider))
}

/// Levels by module are all that is promised; the filter that also knows spans and fields brings a regex engine.
fn filter(text: &str) -> Result<Targets, TelemetryError> {
    text.parse().map_err(|source| TelemetryError::Filter { text: text.to_owned(), source })
}

fn traces(service: &'static str, endpoint: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|source| TelemetryError::Traces { endpoint: endpoint.to_owned(), source })?;
    let resource = Resource::builder().with_service_name(service).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// A panic is a line of the log like any other error, with the place where it happened.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("panic without a message");
        error!(place, message, "panic");
    }));
}
