//! A Gateway of the Gateway API before a cluster: Contour, and the Envoy that it drives. They are components of the cluster.
//!
//! They are in the network of the real nodes, and Envoy reaches the pods there. Without real nodes Contour runs on this
//! machine, and Envoy does not: no simulated pod answers, and its address may be that of a host in the machine's network.
//! This file makes no route.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use crate::{
    Cluster, Error, HUB_ADDRESS, Result, Service,
    api_server::{install, watch::wait_until},
    machine::ports::free_port,
    tools::GatewayTools,
};

/// The kind HTTPRoute as the Gateway API has it in its standard channel.
pub const HTTP_ROUTES: &str = include_str!("../gateway-api/httproutes.yaml");
/// GRPCRoute, of the same channel.
pub const GRPC_ROUTES: &str = include_str!("../gateway-api/grpcroutes.yaml");
/// InferencePool of the Gateway API Inference Extension, which Contour does not know.
pub const INFERENCE_POOLS: &str = include_str!("../gateway-api/inferencepools.yaml");
/// The other kinds of the standard channel that Contour reads, and its own ones.
const OTHER_KINDS: [&str; 4] = [
    include_str!("../gateway-api/gatewayclasses.yaml"),
    include_str!("../gateway-api/gateways.yaml"),
    include_str!("../gateway-api/referencegrants.yaml"),
    include_str!("../gateway-api/contour.yaml"),
];
/// Kinds that Contour would wait for, and that are not installed.
const DISABLED: [&str; 4] = ["tlsroutes", "tcproutes", "backendtlspolicies", "extensionservices"];

/// Name of the Gateway.
pub const GATEWAY: &str = "public";
/// The components.
pub const CONTOUR: &str = "contour";
pub const ENVOY: &str = "envoy";

/// Of the listener.
const LISTENER_PORT: u16 = 80;
/// Contour adds so many to it, for a port that needs no rights.
const HTTP_PORT: u16 = LISTENER_PORT + 8_000;
/// A busy machine starts Envoy within seconds.
const PROGRAMMED_WITHIN: Duration = Duration::from_secs(120);
const BOOTSTRAPPED_WITHIN: Duration = Duration::from_secs(30);

/// From which namespaces the listener allows routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutesFrom {
    /// That of the Gateway.
    Same,
    All,
}

/// Where Contour and Envoy listen, but for requests.
#[derive(Debug, Clone, Copy)]
struct Ports {
    /// Where Envoy asks Contour.
    xds: u16,
    /// Where both say how they are.
    health: u16,
    debug: u16,
    stats: u16,
    admin: u16,
}

impl Ports {
    /// Each network of real nodes is new and empty.
    const IN_HUB: Self = Self { xds: 9_400, health: 9_401, debug: 9_402, stats: 9_403, admin: 9_404 };

    /// Ports that were free a moment ago.
    fn on_this_machine() -> Result<Self> {
        Ok(Self {
            xds: free_port()?,
            health: free_port()?,
            debug: free_port()?,
            stats: free_port()?,
            admin: free_port()?,
        })
    }
}

impl Cluster {
    /// Installs the Gateway API, creates the Gateway `public` in a namespace, and returns when it is programmed. A cluster can
    /// have one. Returns where Envoy takes requests, in the network of the real nodes. Without real nodes there is no Envoy,
    /// and routes are only accepted.
    pub async fn start_gateway(
        &self,
        tools: &GatewayTools,
        namespace: &str,
        routes: RoutesFrom,
    ) -> Result<Option<SocketAddr>> {
        let ports = match &self.spec().real {
            Some(_) => Ports::IN_HUB,
            None => Ports::on_this_machine()?,
        };
        let client = self.client().await?;
        install_kinds(&client).await?;
        for object in objects(namespace, routes) {
            // JSON is YAML.
            install::apply(&client, namespace, &object.to_string()).await?;
        }
        let folder = self.folder().gateway();
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let settings = folder.join("contour.yaml");
        let text = json!({
            "gateway": { "gatewayRef": { "name": GATEWAY, "namespace": namespace } },
            "network": { "admin-port": ports.admin },
        });
        fs::write(&settings, text.to_string()).map_err(Error::io("write", &settings))?;
        let args = contour_args(&self.folder().kubeconfig(), &settings, ports);
        self.start_program(CONTOUR, &tools.contour, args).await?;
        let has_envoy = self.spec().real.is_some();
        if has_envoy {
            let bootstrap = bootstrap(tools, &folder, ports).await?;
            let args = ["-c", &bootstrap, "--service-cluster", "gateway", "--service-node", "gateway-0"]
                .into_iter()
                .chain(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]);
            self.start_program(ENVOY, &tools.envoy, args.map(str::to_owned).collect()).await?;
        }
        until_programmed(client, namespace).await?;
        Ok(has_envoy.then(|| SocketAddr::from((HUB_ADDRESS, HTTP_PORT))))
    }

    async fn start_program(&self, name: &str, program: &Path, args: Vec<String>) -> Result<()> {
        let service = Service { name: name.to_owned(), program: program.to_owned(), args, env: [].into() };
        self.start_service(service).await
    }
}

async fn install_kinds(client: &Client) -> Result<()> {
    let mut kinds = Vec::new();
    for kind in [HTTP_ROUTES, GRPC_ROUTES].into_iter().chain(OTHER_KINDS) {
        kinds.extend(install::parse(kind)?);
    }
    install::definitions(client, &kinds).await
}

fn objects(namespace: &str, routes: RoutesFrom) -> [Value; 3] {
    let version = "gateway.networking.k8s.io/v1";
    let from = match routes {
        RoutesFrom::Same => "Same",
        RoutesFrom::All => "All",
    };
    let listener = json!({
        "name": "http",
        "protocol": "HTTP",
        "port": LISTENER_PORT,
        "allowedRoutes": { "namespaces": { "from": from } },
    });
    [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
        json!({
            "apiVersion": version,
            "kind": "GatewayClass",
            "metadata": { "name": CONTOUR },
            "spec": { "controllerName": "projectcontour.io/gateway-controller" },
        }),
        json!({
            "apiVersion": version,
            "kind": "Gateway",
            "metadata": { "name": GATEWAY, "namespace": namespace },
            "spec": { "gatewayClassName": CONTOUR, "listeners": [listener] },
        }),
    ]
}

fn contour_args(kubeconfig: &Path, settings: &Path, ports: Ports) -> Vec<String> {
    let mut args = vec![
        "serve".to_owned(),
        "--insecure".to_owned(),
        "--disable-leader-election".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--config-path={}", settings.display()),
        "--xds-address=127.0.0.1".to_owned(),
        format!("--xds-port={}", ports.xds),
        format!("--envoy-service-http-address={HUB_ADDRESS}"),
        "--http-address=127.0.0.1".to_owned(),
        format!("--http-port={}", ports.health),
        "--health-address=127.0.0.1".to_owned(),
        format!("--health-port={}", ports.health),
        "--debug-http-address=127.0.0.1".to_owned(),
        format!("--debug-http-port={}", ports.debug),
        "--stats-address=127.0.0.1".to_owned(),
        format!("--stats-port={}", ports.stats),
    ];
    args.extend(DISABLED.map(|feature| format!("--disable-feature={feature}")));
    args
}

/// Writes what Envoy starts with, and returns the path.
async fn bootstrap(tools: &GatewayTools, folder: &Path, ports: Ports) -> Result<String> {
    let path = folder.join("envoy.json");
    let mut contour = Command::new(&tools.contour);
    contour
        .arg("bootstrap")
        .arg(&path)
        .args(["--xds-address", "127.0.0.1", "--xds-port", &ports.xds.to_string()])
        .arg("--admin-address")
        .arg(folder.join("admin.sock"))
        .arg("--resources-dir")
        .arg(folder.join("resources"))
        .kill_on_drop(true);
    let late = |_| Error::TimedOut {
        what: "the bootstrap of Envoy".to_owned(),
        after: BOOTSTRAPPED_WITHIN,
        logs: folder.to_owned(),
    };
    let made = timeout(BOOTSTRAPPED_WITHIN, contour.output()).await.map_err(late)?;
    let made = made.map_err(Error::io("start", &tools.contour))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(Error::invalid("make the bootstrap of", ENVOY, said));
    }
    Ok(path.display().to_string())
}

async fn until_programmed(client: Client, namespace: &str) -> Result<()> {
    let kind = ApiResource {
        group: "gateway.networking.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "gateway.networking.k8s.io/v1".to_owned(),
        kind: "Gateway".to_owned(),
        plural: "gateways".to_owned(),
    };
    let gateways: Api<DynamicObject> = Api::namespaced_with(client, namespace, &kind);
    let is_programmed = |gateway: Option<&DynamicObject>| {
        let conditions = gateway.and_then(|gateway| gateway.data["status"]["conditions"].as_array());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|known| known["type"] == "Programmed" && known["status"] == "True")
    };
    wait_until(&gateways, GATEWAY, PROGRAMMED_WITHIN, is_programmed).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contour runs on this machine where there are no real nodes.
    #[test]
    fn what_contour_opens_is_on_loopback() {
        let args = contour_args("/k".as_ref(), "/c".as_ref(), Ports::IN_HUB);
        for kind in ["xds", "http", "health", "debug-http", "stats"] {
            let flag = format!("--{kind}-address=127.0.0.1");
            assert!(args.contains(&flag), "{flag}");
        }
    }
}
