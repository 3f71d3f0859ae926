//! Reads whether a Service has a ready endpoint, at the moment when requests are about to be sent there. Nothing is watched
//! or kept here.

use std::time::Duration;

use k8s_openapi::{List, api::discovery::v1::EndpointSlice};
use kube::{Client, Resource, api::ListParams, core::Request};

use tracing::warn;

use crate::{causes::with_causes, key::Key};

/// Reads EndpointSlices in the name of one controller.
#[derive(Clone)]
pub struct Endpoints {
    client: Client,
}

/// The label of a slice that names its Service.
const SERVICE: &str = "kubernetes.io/service-name";
const DEADLINE: Duration = Duration::from_secs(3);
/// A slice has up to 100 endpoints; one that is ready is enough.
const MOST_SLICES: u32 = 20;

impl Endpoints {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Whether the Service is known to have a ready endpoint. Why that is not known is logged.
    pub async fn has_ready(&self, service: &Key) -> bool {
        let ready = self.ready(service).await;
        ready.unwrap_or_else(|why| {
            warn!(%service, why, "the endpoints cannot be read");
            false
        })
    }

    async fn ready(&self, service: &Key) -> Result<bool, String> {
        let params = ListParams::default().labels(&format!("{SERVICE}={}", service.name)).limit(MOST_SLICES);
        let path = EndpointSlice::url_path(&(), Some(&service.namespace));
        let mut request = Request::new(path).list(&params).map_err(|error| error.to_string())?;
        request.extensions_mut().insert("list");
        let answer =
            tokio::time::timeout(DEADLINE, self.client.request::<List<EndpointSlice>>(request)).await;
        let slices = answer
            .map_err(|_| format!("no answer within {} s", DEADLINE.as_secs()))?
            .map_err(|error| with_causes(&error))?;
        // An absent `ready` counts as true.
        let is_ready = |slice: &EndpointSlice| {
            let mut conditions = slice.endpoints.iter().map(|endpoint| endpoint.conditions.as_ref());
            conditions.any(|known| known.and_then(|known| known.ready).unwrap_or(true))
        };
        Ok(slices.items.iter().any(is_ready))
    }
}
