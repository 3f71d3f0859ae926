//! The command line. Every option is also a variable, and the controller sets the variables.

use std::{
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    time::Duration,
};

use clap::{Parser, value_parser};

use crate::{model::Key, siblings::Peer};

/// A worker of an AIDispatcher: tasks over HTTP, sessions in files, a model behind an OpenAI API
#[derive(Debug, Parser)]
#[command(name = "agent", version)]
pub(crate) struct Arguments {
    /// Role: its prompt is used
    #[arg(long, env = "AGENT_ROLE", default_value = "assistant")]
    pub(crate) role: String,

    /// Model that is called [default: each task fails]
    #[arg(long, env = "MODEL_REF", value_parser = word)]
    model: Option<Given<String>>,

    /// URL of the OpenAI API of the model, mostly with /v1 at the end [default: each task fails]
    #[arg(long, env = "MODEL_ENDPOINT", value_parser = word)]
    model_endpoint: Option<Given<String>>,

    /// Key for the model [default: none is sent]
    #[arg(long, env = "MODEL_API_KEY", hide_env_values = true, value_parser = key)]
    model_api_key: Option<Given<Key>>,

    /// Model for vectors of texts [default: the model that is called]
    #[arg(long, env = "AGENT_EMBEDDING_MODEL", value_parser = word)]
    embedding_model: Option<Given<String>>,

    /// Folder with memory.jsonl [default: no memory]
    #[arg(long, env = "MEMORY_DIR")]
    pub(crate) memory_dir: Option<PathBuf>,

    /// Bytes of the memory that are kept; further records are left out
    #[arg(long, env = "AGENT_MEMORY_BYTES", default_value_t = 64 << 20)]
    pub(crate) memory_bytes: usize,

    /// Folder for sessions
    #[arg(long, env = "STATE_DIR", default_value = "state")]
    pub(crate) state_dir: PathBuf,

    /// Folder with prompts, ROLE.txt for a role [default: the built-in prompts]
    #[arg(long, env = "AGENT_PROMPTS_DIR")]
    pub(crate) prompts_dir: Option<PathBuf>,

    /// File for the log [default: stderr]
    #[arg(long, env = "AGENT_LOG_FILE")]
    pub(crate) log_file: Option<PathBuf>,

    /// Address for both ports
    #[arg(long, env = "AGENT_ADDRESS", default_value_t = IpAddr::from(Ipv6Addr::UNSPECIFIED))]
    pub(crate) address: IpAddr,

    /// Port for tasks
    #[arg(long, env = "AGENT_PORT", default_value_t = 8080)]
    pub(crate) port: u16,

    /// Port of /metrics
    #[arg(long, env = "AGENT_METRICS_PORT", default_value_t = 9100)]
    pub(crate) metrics_port: u16,

    /// Siblings: host:port of the headless Service, or several with commas [default: none]
    #[arg(long, env = "AGENT_PEERS", value_parser = peers)]
    peers: Option<Peers>,

    /// Own address, so that the worker does not ask itself
    #[arg(long, env = "POD_IP", value_parser = address)]
    pod_ip: Option<Given<IpAddr>>,

    /// Seconds that a session waits for a worker that does not answer and may hold it
    #[arg(long, env = "AGENT_RESTORE_SECONDS", default_value_t = 20, value_parser = value_parser!(u64).range(0..=600))]
    restore_seconds: u64,

    /// Seconds after SIGTERM for tasks, which are saved as unfinished then, and for handing sessions over
    #[arg(long, env = "AGENT_GRACE_SECONDS", default_value_t = 25, value_parser = value_parser!(u64).range(0..=86_400))]
    grace_seconds: u64,

    /// Estimated tokens of a prompt with its history; older messages become a summary
    #[arg(long, env = "AGENT_CONTEXT_TOKENS", default_value_t = 8_000, value_parser = value_parser!(u32).range(200..=100_000))]
    context_tokens: u32,

    /// Seconds for one task, from when it is worked on
    #[arg(long, env = "AGENT_TASK_SECONDS", default_value_t = 600, value_parser = value_parser!(u64).range(1..=86_400))]
    task_seconds: u64,

    /// Tasks that are worked on at once
    #[arg(long, env = "AGENT_CONCURRENCY", default_value_t = 4, value_parser = value_parser!(u16).range(1..=256))]
    concurrency: u16,

    /// Tasks that wait; more are refused
    #[arg(long, env = "AGENT_QUEUE", default_value_t = 256, value_parser = value_parser!(u16).range(1..=10_000))]
    queue: u16,
}

impl Arguments {
    pub(crate) fn model(&self) -> Option<&str> {
        self.model.as_ref()?.0.as_deref()
    }

    pub(crate) fn model_endpoint(&self) -> Option<&str> {
        self.model_endpoint.as_ref()?.0.as_deref()
    }

    pub(crate) fn model_api_key(&self) -> Option<Key> {
        self.model_api_key.as_ref()?.0.clone()
    }

    pub(crate) fn embedding_model(&self) -> Option<&str> {
        self.embedding_model.as_ref()?.0.as_deref()
    }

    pub(crate) fn peers(&self) -> Vec<Peer> {
        self.peers.clone().map_or_else(Vec::new, |Peers(peers)| peers)
    }

    pub(crate) fn pod_ip(&self) -> Option<IpAddr> {
        self.pod_ip.as_ref()?.0
    }

    pub(crate) fn restore_within(&self) -> Duration {
        Duration::from_secs(self.restore_seconds)
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_seconds)
    }

    pub(crate) fn context_tokens(&self) -> usize {
        self.context_tokens as usize
    }

    pub(crate) fn task_within(&self) -> Duration {
        Duration::from_secs(self.task_seconds)
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.concurrency.into()
    }

    pub(crate) fn queue(&self) -> usize {
        self.queue.into()
    }
}

/// A variable that is set. An empty one is as none.
#[derive(Clone, Debug)]
struct Given<T>(Option<T>);

#[derive(Clone, Debug)]
struct Peers(Vec<Peer>);

fn peers(text: &str) -> Result<Peers, String> {
    let named = text.split(',').map(str::trim).filter(|peer| !peer.is_empty());
    named.map(Peer::parse).collect::<Result<Vec<Peer>, String>>().map(Peers)
}

fn given<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Given<T>, String> {
    let text = text.trim();
    if text.is_empty() { Ok(Given(None)) } else { parse(text).map(|value| Given(Some(value))) }
}

fn word(text: &str) -> Result<Given<String>, String> {
    given(text, |word| Ok(word.to_owned()))
}

fn key(text: &str) -> Result<Given<Key>, String> {
    given(text, |key| Ok(Key::new(key)))
}

fn address(text: &str) -> Result<Given<IpAddr>, String> {
    given(text, |address| address.parse().map_err(|_| format!("{address:?} is not an address")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Arguments {
        Arguments::try_parse_from([&["agent"], arguments].concat()).unwrap()
    }

    #[test]
    fn an_empty_value_is_as_none() {
        let arguments =
            parsed(&["--model=", "--model-endpoint= ", "--model-api-key=", "--peers=", "--pod-ip="]);
        assert_eq!((arguments.model(), arguments.model_endpoint()), (None, None));
        assert!(arguments.model_api_key().is_none() && arguments.peers().is_empty());
        assert_eq!(arguments.pod_ip(), None);
    }

    #[test]
    fn siblings_are_a_service_or_a_list() {
        assert_eq!(parsed(&["--peers=pool-workers.demo.svc:8080"]).peers().len(), 1);
        assert_eq!(parsed(&["--peers=127.0.0.1:1, 127.0.0.2:2"]).peers().len(), 2);
        assert!(Arguments::try_parse_from(["agent", "--peers=nowhere"]).is_err());
    }

    #[test]
    fn the_key_is_not_shown() {
        let arguments = parsed(&["--model-api-key=very-private"]);
        assert!(!format!("{arguments:?}").contains("very-private"));
    }
}
