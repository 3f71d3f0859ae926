//! A real Gateway before the pods of real nodes: Contour, and the Envoy that it drives. They run beside the cluster, in the
//! network of its nodes, and end with it.

use std::fs;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use local_cluster::{HUB_ADDRESS, Service, explained};
use serde_json::{Value, json};

use crate::{Scene, ask_until, scaler::install_kind, within};

const KINDS: [&str; 3] = [
    include_str!("../../fixtures/gateway-api/gatewayclasses.yaml"),
    include_str!("../../fixtures/gateway-api/gateways.yaml"),
    include_str!("../../fixtures/gateway-api/referencegrants.yaml"),
];
const KINDS_OF_CONTOUR: &str = include_str!("../../fixtures/gateway-api/contour.yaml");
/// Contour serves port 80 of a Gateway on a port that needs no rights.
const PORT: u16 = 8080;
/// Where Envoy asks Contour, and where both say how they are.
const XDS_PORT: u16 = 9400;
const HEALTH_PORT: u16 = 9401;
const DEBUG_PORT: u16 = 9402;
pub const GATEWAY: &str = "public";

/// One per cluster: Contour serves one Gateway, that of this scene.
pub struct Contour;

impl Contour {
    /// Returns when the Gateway is programmed.
    pub async fn start(scene: &Scene<'_>) -> Self {
        let tools =
            local_cluster::tools::ensure_gateway().unwrap_or_else(|error| panic!("{}", explained(&error)));
        install(scene).await;
        create_gateway(scene).await;
        let folder = scene.folder().root().join("contour");
        fs::create_dir_all(&folder).expect("a folder for Contour");
        let settings = folder.join("contour.yaml");
        let reference =
            json!({ "gateway": { "gatewayRef": { "name": GATEWAY, "namespace": scene.namespace() } } });
        fs::write(&settings, reference.to_string()).expect("settings of Contour");
        let disabled = ["tlsroutes", "grpcroutes", "tcproutes", "backendtlspolicies", "extensionservices"];
        let mut args: Vec<String> = [
            "serve",
            "--kubeconfig",
            &scene.folder().kubeconfig().display().to_string(),
            "-c",
            &settings.display().to_string(),
            "--insecure",
            "--xds-address=127.0.0.1",
            &format!("--xds-port={XDS_PORT}"),
            &format!("--envoy-service-http-address={HUB_ADDRESS}"),
            &format!("--http-address={HUB_ADDRESS}"),
            &format!("--http-port={HEALTH_PORT}"),
            &format!("--health-address={HUB_ADDRESS}"),
            &format!("--health-port={HEALTH_PORT}"),
            &format!("--debug-http-port={DEBUG_PORT}"),
            "--disable-leader-election",
        ]
        .map(str::to_owned)
        .into();
        args.extend(disabled.map(|feature| format!("--disable-feature={feature}")));
        let service =
            Service { name: "contour".to_owned(), program: tools.contour.clone(), args, env: [].into() };
        scene.start_service(service).await.expect("Contour starts");
        let bootstrap = folder.join("envoy.json");
        let made = std::process::Command::new(&tools.contour)
            .arg("bootstrap")
            .arg(&bootstrap)
            .args(["--admin-address", &folder.join("admin.sock").display().to_string()])
            .args(["--xds-address", "127.0.0.1", "--xds-port", &XDS_PORT.to_string()])
            .args(["--resources-dir", &folder.join("resources").display().to_string()])
            .output()
            .expect("contour runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let bootstrap = bootstrap.display().to_string();
        let args = ["-c", &bootstrap, "--service-cluster", "gateway", "--service-node", "gateway-0"]
            .into_iter()
            .chain(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]);
        let args = args.map(str::to_owned).collect();
        let service =
            Service { name: "envoy".to_owned(), program: tools.envoy.clone(), args, env: [].into() };
        scene.start_service(service).await.expect("Envoy starts");
        until_programmed(scene).await;
        Self
    }

    /// What clients call, for a host name of a route.
    pub fn url(&self) -> String {
        format!("http://{HUB_ADDRESS}:{PORT}")
    }
}

async fn install(scene: &Scene<'_>) {
    super::install(scene).await;
    for kind in KINDS {
        let crd: Value = serde_saphyr::from_str(kind).expect("a CRD");
        install_kind(scene, &crd).await;
    }
    scene.apply(KINDS_OF_CONTOUR).await.expect("the kinds of Contour");
    let crds = scene.cluster_api::<CustomResourceDefinition>();
    let served = |crd: &CustomResourceDefinition| {
        let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|known| known.type_ == "Established" && known.status == "True")
    };
    crate::wait_for(&crds, "httpproxies.projectcontour.io", "served", within(), served).await;
}

async fn create_gateway(scene: &Scene<'_>) {
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": { "name": "contour" },
        "spec": { "controllerName": "projectcontour.io/gateway-controller" },
    });
    let listener = json!({
        "name": "http",
        "protocol": "HTTP",
        "port": 80,
        "allowedRoutes": { "namespaces": { "from": "Same" } },
    });
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": GATEWAY },
        "spec": { "gatewayClassName": "contour", "listeners": [listener] },
    });
    for object in [class, gateway] {
        scene.apply(&object.to_string()).await.expect("it is accepted");
    }
}

async fn until_programmed(scene: &Scene<'_>) {
    let kind = ApiResource {
        group: "gateway.networking.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "gateway.networking.k8s.io/v1".to_owned(),
        kind: "Gateway".to_owned(),
        plural: "gateways".to_owned(),
    };
    let gateways: kube::Api<DynamicObject> =
        kube::Api::namespaced_with(scene.client(), scene.namespace(), &kind);
    ask_until("the Gateway is programmed", within(), async || {
        let gateway = gateways.get(GATEWAY).await.map_err(|error| error.to_string())?;
        let mut conditions = gateway.data["status"]["conditions"].as_array().into_iter().flatten();
        let is_programmed =
            conditions.any(|known| known["type"] == "Programmed" && known["status"] == "True");
        is_programmed.then_some(()).ok_or_else(|| gateway.data["status"].to_string())
    })
    .await;
}
