//! What an administrator sets for all AIScalers: periods, the Prometheus server, and which servers users may name.

use std::time::Duration;

use metrics_client::args::AgentsArgs;
use scaling::policy::Extras;

use crate::{
    sources::{
        Fault,
        prometheus::{AllowedUrls, Authorities, Connections, ServerUrl, Tenant},
        promql::Scope,
    },
    validate::Allowed,
};

/// Options of this controller.
#[derive(clap::Args, Clone, Debug)]
pub struct ScalerArgs {
    /// Seconds between two looks at each object; a new sample is looked at when it arrives
    #[arg(long, default_value = "15", value_parser = seconds)]
    pub period: Duration,

    /// Seconds between two readings of the sources of each object; metrics whose arrivals count are read in a third of it
    #[arg(long, default_value = "15", value_parser = seconds)]
    pub sample_period: Duration,

    /// Prometheus-compatible server that is asked where an object names none, such as `http://prometheus.monitoring:9090`
    #[arg(long, env = "PROMETHEUS_URL", value_parser = server)]
    pub prometheus_url: Option<ServerUrl>,

    /// Other servers that objects may name; a path allows what is below it
    #[arg(long, value_delimiter = ',', value_parser = server)]
    pub allowed_prometheus_urls: Vec<ServerUrl>,

    /// Send tokens of Secrets also to servers without TLS, where everyone on the way can read them
    #[arg(long)]
    pub tokens_over_http: bool,

    /// Tenant whose series are read (header X-Scope-OrgID)
    #[arg(long, value_parser = tenant)]
    pub prometheus_tenant: Option<Tenant>,

    /// Let queries read the series of every namespace
    #[arg(long)]
    pub queries_of_all_namespaces: bool,

    /// Use the rules of the HorizontalPodAutoscaler alone, to compare: pods that start are not counted
    #[arg(long)]
    pub hpa_rules_only: bool,

    #[command(flatten)]
    pub agents: AgentsArgs,
}

/// The options, and what is built of them once.
pub(crate) struct Configuration {
    pub(crate) period: Duration,
    pub(crate) sample_period: Duration,
    pub(crate) allowed: Allowed,
    pub(crate) prometheus: Prometheus,
}

pub(crate) struct Prometheus {
    pub(crate) default: Option<ServerUrl>,
    pub(crate) allowed: AllowedUrls,
    pub(crate) tokens_over_http: bool,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) connections: Result<Connections, Fault>,
}

impl Configuration {
    pub(crate) fn new(args: ScalerArgs) -> Self {
        let ScalerArgs {
            period,
            sample_period,
            prometheus_url,
            allowed_prometheus_urls,
            tokens_over_http,
            prometheus_tenant,
            queries_of_all_namespaces,
            hpa_rules_only,
            agents: _,
        } = args;
        let allowed = allowed_prometheus_urls.into_iter().chain(prometheus_url.clone()).collect();
        let connections = Connections::new(&Authorities::System).map_err(|error| Fault::Untrusted {
            server: "any server".to_owned(),
            why: error.to_string(),
            secret: None,
        });
        Self {
            period,
            sample_period,
            allowed: Allowed {
                extras: if hpa_rules_only { Extras::none() } else { Extras::all() },
                scope: if queries_of_all_namespaces { Scope::Everything } else { Scope::Namespace },
            },
            prometheus: Prometheus {
                default: prometheus_url,
                allowed: AllowedUrls::new(allowed),
                tokens_over_http,
                tenant: prometheus_tenant,
                connections,
            },
        }
    }
}

fn server(text: &str) -> Result<ServerUrl, String> {
    ServerUrl::parse(text).map_err(|fault| fault.to_string())
}

fn tenant(text: &str) -> Result<Tenant, String> {
    Tenant::new(text).ok_or_else(|| "must be 1 to 150 printable characters without spaces".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.1..=3600.0).contains(number));
    number
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "must be a number of seconds from 0.1 to 3600".to_owned())
}
