//! What a container wrote before it ended: read once from the API server, bounded in bytes and in time.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::{Client, api::LogParams, core::Request};
use tracing::debug;

use crate::causes::with_causes;

/// The end of a log: the cause of a crash stands within the last few hundred lines.
const LINES: i64 = 1_000;
const BYTES: i64 = 256 << 10;
/// A node that does not answer must not hold up the object.
const DEADLINE: Duration = Duration::from_secs(3);

/// Reads logs in the name of one controller.
#[derive(Clone)]
pub struct Logs {
    client: Client,
}

impl Logs {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// The end of the log of the container's last run, or of the one before if it runs again. `None` if it cannot be read:
    /// it may be gone, and nothing depends on it.
    pub async fn end_of(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        previous: bool,
    ) -> Option<String> {
        let params = LogParams {
            container: Some(container.to_owned()),
            previous,
            tail_lines: Some(LINES),
            limit_bytes: Some(BYTES),
            ..LogParams::default()
        };
        let mut request = Request::new(Pod::url_path(&(), Some(namespace))).logs(pod, &params).ok()?;
        request.extensions_mut().insert("get_log");
        match tokio::time::timeout(DEADLINE, self.client.request_text(request)).await {
            Ok(Ok(log)) => Some(log),
            Ok(Err(error)) => {
                debug!(pod, container, error = with_causes(&error), "the log cannot be read");
                None
            }
            Err(_) => {
                debug!(pod, container, "the log was not read in time");
                None
            }
        }
    }
}
