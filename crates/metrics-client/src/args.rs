//! The options of a controller that subscribes to the metrics agents of nodes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    discovery::{SERVICE_LABEL, SliceView, endpoints},
    endpoint::{Endpoint, Origin},
    limits::Limits,
    snapshot::Metric,
    sources::{Settings, Sources, Timings},
    tls::Files,
};

pub use crate::tls::Security;

/// The port of the agents' Service.
const PORT: &str = "grpc";

/// Flags; a controller flattens them beside its own.
#[derive(clap::Args, Clone, Debug)]
pub struct AgentsArgs {
    /// Namespace of the metrics agents
    #[arg(long, default_value = "ai-metrics", value_name = "NAMESPACE")]
    pub metrics_agents_namespace: String,

    /// Headless Service of the metrics agents, whose EndpointSlices name them
    #[arg(long, default_value = "metrics-agent", value_name = "SERVICE")]
    pub metrics_agents_service: String,

    /// Metrics agents outside of the cluster: host:port, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = address, value_name = "ADDRESSES")]
    pub metrics_agents: Vec<Arc<str>>,

    /// Authorities of the metrics agents, PEM; loaded again when it changes. Without it, or
    /// --metrics-agents-plaintext, none is read
    #[arg(
        long,
        env = "METRICS_AGENTS_CA",
        requires_all = ["metrics_agents_cert", "metrics_agents_key"],
        value_name = "FILE"
    )]
    pub metrics_agents_ca: Option<PathBuf>,

    /// Certificate chain that the metrics agents are shown, PEM
    #[arg(long, env = "METRICS_AGENTS_CERT", requires = "metrics_agents_ca", value_name = "FILE")]
    pub metrics_agents_cert: Option<PathBuf>,

    /// Its private key, PEM
    #[arg(long, env = "METRICS_AGENTS_KEY", requires = "metrics_agents_ca", value_name = "FILE")]
    pub metrics_agents_key: Option<PathBuf>,

    /// Name in the certificates of the metrics agents; default: SERVICE.NAMESPACE.svc
    #[arg(long, requires = "metrics_agents_ca", value_name = "NAME")]
    pub metrics_agents_server_name: Option<String>,

    /// Connects to the metrics agents without TLS: the identity of an agent is not checked
    #[arg(long, env = "METRICS_AGENTS_PLAINTEXT", conflicts_with = "metrics_agents_ca")]
    pub metrics_agents_plaintext: bool,
}

impl AgentsArgs {
    /// `None`: no agent is read.
    pub fn security(&self) -> Option<Security> {
        if self.metrics_agents_plaintext {
            return Some(Security::Plain);
        }
        let (ca, certificate, key) = (
            self.metrics_agents_ca.clone()?,
            self.metrics_agents_cert.clone()?,
            self.metrics_agents_key.clone()?,
        );
        let default = || format!("{}.{}.svc", self.metrics_agents_service, self.metrics_agents_namespace);
        let server_name = self.metrics_agents_server_name.clone().unwrap_or_else(default);
        Some(Security::Mutual(Files { ca, certificate, key, server_name }))
    }

    /// What is subscribed to by these options; nothing is connected to before [`Sources::run`]. `None`: no agent is read.
    pub fn sources(
        &self,
        subscriber: &'static str,
        min_interval: Duration,
        metrics: &'static [Metric],
    ) -> Option<Sources> {
        let security = self.security()?;
        let timings = Timings::default();
        let sources = Sources::new(Settings {
            subscriber,
            min_interval,
            metrics,
            security,
            timings,
            limits: Limits::default(),
        });
        sources.set(self.stated());
        Some(sources)
    }

    /// Selects the EndpointSlices of the agents in their namespace.
    pub fn selector(&self) -> String {
        format!("{SERVICE_LABEL}={}", self.metrics_agents_service)
    }

    /// What the sources become when these are all EndpointSlices of the agents.
    pub fn follow(&self, sources: &Sources) -> impl Fn(&[Arc<SliceView>]) + Send + Sync + 'static {
        let (sources, stated) = (sources.clone(), self.stated());
        move |slices| {
            let found = endpoints(slices.iter().map(AsRef::as_ref), PORT);
            sources.set(found.into_iter().chain(stated.iter().cloned()));
        }
    }

    /// Those that are named by address.
    fn stated(&self) -> Vec<Endpoint> {
        let endpoint = |address: &Arc<str>| Endpoint { origin: Origin::Stated, address: Arc::clone(address) };
        self.metrics_agents.iter().map(endpoint).collect()
    }
}

fn address(text: &str) -> Result<Arc<str>, String> {
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("{text:?} is not host:port"))?;
    let is_host = !host.is_empty()
        && (host.starts_with('[') && host.ends_with(']') || !host.contains(['[', ']', ':', '/', '@']))
        && host.chars().all(|letter| letter.is_ascii_graphic());
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_host && is_port { Ok(text.into()) } else { Err(format!("{text:?} is not host:port")) }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        agents: AgentsArgs,
    }

    fn parse(args: &[&str]) -> Result<AgentsArgs, clap::Error> {
        Cli::try_parse_from([&["test"], args].concat()).map(|cli| cli.agents)
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn plain_text_has_to_be_asked_for() {
        assert_eq!(parse(&[]).unwrap().security(), None);
        assert_eq!(parse(&["--metrics-agents-plaintext"]).unwrap().security(), Some(Security::Plain));
        let files = ["--metrics-agents-ca=a", "--metrics-agents-cert=c", "--metrics-agents-key=k"]
            .map(ToOwned::to_owned);
        let files = files.each_ref().map(String::as_str);
        let Some(Security::Mutual(mutual)) = parse(&files).unwrap().security() else { panic!("no files") };
        assert_eq!(mutual.server_name, "metrics-agent.ai-metrics.svc");
        assert!(parse(&files[..2]).is_err() && parse(&files[1..]).is_err());
        assert!(parse(&[&files[..], &["--metrics-agents-plaintext"]].concat()).is_err());
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let agents = parse(&["--metrics-agents=10.0.0.7:9401,[fd00::7]:9401,gpu-1.example:1"]).unwrap();
        assert_eq!(agents.stated().len(), 3);
        for wrong in ["gpu-1", "gpu-1:0", "gpu-1:x", ":1", "fd00::7:9401", "http://a:1", "a/b:1", "a@b:1"] {
            assert!(parse(&[&format!("--metrics-agents={wrong}")]).is_err(), "{wrong}");
        }
    }
}
