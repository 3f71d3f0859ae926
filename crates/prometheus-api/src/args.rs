//! What an administrator allows, and how a question is asked within it.

use engine_metrics::foreign;
use jiff::Timestamp;
use runtime::{key::Key, read::secrets::Secrets};

use crate::{
    Counters, Fault, Sample,
    answer::Moment,
    client::{self, Answered, Connections, Limits, Server, Tenant},
    credentials::{Credentials, Made},
    promql::{Query, Scope},
    secret::{Authorities, Token},
    url::{AllowedUrls, ServerUrl},
};

const LIMITS: Limits = Limits::NORMAL;

/// Options of a controller that asks servers.
#[derive(clap::Args, Clone, Debug)]
pub struct PrometheusArgs {
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
}

/// The options, and what is built of them once.
pub struct Prometheus {
    pub default: Option<ServerUrl>,
    pub allowed: AllowedUrls,
    pub tokens_over_http: bool,
    pub tenant: Option<Tenant>,
    /// Which series queries may read.
    pub scope: Scope,
    pub credentials: Credentials,
    connections: Result<Connections, Fault>,
    user_agent: &'static str,
}

/// The server that an object names, and the Secrets for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source<'a> {
    /// That of the object.
    pub namespace: &'a str,
    /// `None`: the configured server.
    pub url: Option<&'a str>,
    pub secret: Option<&'a str>,
    pub ca_secret: Option<&'a str>,
}

impl Prometheus {
    /// `user_agent`: the name and the version of the controller.
    pub fn new(args: PrometheusArgs, secrets: Secrets, user_agent: &'static str) -> Self {
        let PrometheusArgs {
            prometheus_url,
            allowed_prometheus_urls,
            tokens_over_http,
            prometheus_tenant,
            queries_of_all_namespaces,
        } = args;
        let allowed = allowed_prometheus_urls.into_iter().chain(prometheus_url.clone()).collect();
        let connections = Connections::new(&Authorities::System).map_err(|error| Fault::Untrusted {
            server: "any server".to_owned(),
            why: foreign(&error.to_string()),
            secret: None,
        });
        Self {
            default: prometheus_url,
            allowed: AllowedUrls::new(allowed),
            tokens_over_http,
            tenant: prometheus_tenant,
            scope: if queries_of_all_namespaces { Scope::Everything } else { Scope::Namespace },
            credentials: Credentials::new(secrets),
            connections,
            user_agent,
        }
    }

    /// The one number that the query has now.
    pub async fn number(&self, source: Source<'_>, query: &Query, asked: Moment) -> Result<Sample, Fault> {
        self.ask(source, query, None, asked.now).await?.number(LIMITS, asked)
    }

    /// The series that the query has, or had at this time in Unix seconds.
    pub async fn counters(
        &self,
        source: Source<'_>,
        query: &Query,
        at: Option<i64>,
        asked: Moment,
    ) -> Result<Counters, Fault> {
        let answered = self.ask(source, query, at, asked.now).await.map_err(Fault::of_counters)?;
        answered.counters(LIMITS, Some(asked).filter(|_| at.is_none()))
    }

    /// Asks once, and once more if the server refuses what Secrets gave, and these have changed since they were read.
    async fn ask(
        &self,
        source: Source<'_>,
        query: &Query,
        at: Option<i64>,
        now: Timestamp,
    ) -> Result<Answered, Fault> {
        let url = match (source.url, &self.default) {
            (Some(url), _) => self.allowed.permit(url)?,
            (None, Some(url)) => url.clone(),
            (None, None) => return Err(Fault::NoServer),
        };
        if source.secret.is_some() && !url.is_confidential() && !self.tokens_over_http {
            return Err(Fault::TokenOverHttp { url: url.to_string() });
        }
        // Only after the server was found to be allowed, and only of this namespace.
        let secret = |name: Option<&str>| name.map(|name| Key::new(source.namespace, name));
        let (token, authorities) = (secret(source.secret), secret(source.ca_secret));
        let first = self.rights(token.as_ref(), authorities.as_ref(), now).await?;
        let (connections, server) = self.with_rights(&url, &first)?;
        let asked = client::ask(connections, &server, query, at, LIMITS).await;
        match &asked {
            Err(Fault::Unauthorized { .. }) => self.credentials.refused(token.as_ref(), None),
            Err(Fault::Untrusted { .. }) => self.credentials.refused(None, authorities.as_ref()),
            Ok(_) | Err(_) => return asked,
        }
        let second = self.rights(token.as_ref(), authorities.as_ref(), now).await?;
        if second.versions() == first.versions() {
            return asked;
        }
        let (connections, server) = self.with_rights(&url, &second)?;
        client::ask(connections, &server, query, at, LIMITS).await
    }

    async fn rights(
        &self,
        token: Option<&Key>,
        authorities: Option<&Key>,
        now: Timestamp,
    ) -> Result<Rights, Fault> {
        Ok(Rights {
            token: match token {
                Some(secret) => Some(self.credentials.token(secret, now).await?),
                None => None,
            },
            connections: match authorities {
                Some(secret) => Some(self.credentials.connections(secret, now).await?),
                None => None,
            },
        })
    }

    fn with_rights<'a>(
        &'a self,
        url: &ServerUrl,
        rights: &'a Rights,
    ) -> Result<(&'a Connections, Server), Fault> {
        let server = Server {
            url: url.clone(),
            token: rights.token.as_ref().map(|made| made.value.clone()),
            tenant: self.tenant.clone(),
            user_agent: self.user_agent,
        };
        let connections = match &rights.connections {
            Some(made) => &made.value,
            None => self.connections.as_ref().map_err(Fault::clone)?,
        };
        Ok((connections, server))
    }
}

/// What the Secrets of a source gave.
struct Rights {
    token: Option<Made<Token>>,
    connections: Option<Made<Connections>>,
}

impl Rights {
    fn versions(&self) -> [Option<&str>; 2] {
        let Self { token, connections } = self;
        [
            token.as_ref().map(|made| made.version.as_str()),
            connections.as_ref().map(|made| made.version.as_str()),
        ]
    }
}

fn server(text: &str) -> Result<ServerUrl, String> {
    ServerUrl::parse(text).map_err(|fault| fault.to_string())
}

fn tenant(text: &str) -> Result<Tenant, String> {
    Tenant::new(text).ok_or_else(|| "must be 1 to 150 printable characters without spaces".to_owned())
}
