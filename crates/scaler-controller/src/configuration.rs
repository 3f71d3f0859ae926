//! What an administrator sets for all AIScalers: periods, the Prometheus server, and which servers users may name.

use std::time::Duration;

use metrics_client::args::AgentsArgs;
use prometheus_api::args::{Prometheus, PrometheusArgs};
use runtime::read::secrets::Secrets;
use scaling::policy::Extras;

use crate::{sources::USER_AGENT, validate::Allowed};

/// Options of this controller.
#[derive(clap::Args, Clone, Debug)]
pub struct ScalerArgs {
    /// Seconds between two looks at each object; a new sample is looked at when it arrives
    #[arg(long, default_value = "15", value_parser = seconds)]
    pub period: Duration,

    /// Seconds between two readings of the sources of each object; metrics whose arrivals count are read in a third of it
    #[arg(long, default_value = "15", value_parser = seconds)]
    pub sample_period: Duration,

    #[command(flatten)]
    pub prometheus: PrometheusArgs,

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

impl Configuration {
    pub(crate) fn new(args: ScalerArgs, secrets: Secrets) -> Self {
        let ScalerArgs { period, sample_period, prometheus, hpa_rules_only, agents: _ } = args;
        let prometheus = Prometheus::new(prometheus, secrets, USER_AGENT);
        let extras = if hpa_rules_only { Extras::none() } else { Extras::all() };
        let allowed = Allowed { extras, scope: prometheus.scope };
        Self { period, sample_period, allowed, prometheus }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.1..=3600.0).contains(number));
    number
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "must be a number of seconds from 0.1 to 3600".to_owned())
}
