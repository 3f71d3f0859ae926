//! What a container wrote before it ended: read once from the API server, bounded in bytes and in time.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::{Client, api::LogParams, core::Request};
use tracing::debug;

use crate::{causes::with_causes, client::LARGEST_LOG, write::apply::is_code};

/// The end of a log: the cause of a crash stands within the last few hundred lines.
const LINES: i64 = 1_000;
/// A node that does not answer must not hold up the object: two logs take 5 s at most.
const DEADLINE: Duration = Duration::from_millis(2_500);

/// What became of the wish to read a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    Text(String),
    /// It is gone, or its node does not answer as it should.
    Unreadable,
    /// This controller has no right to read it.
    Forbidden,
}

/// Reads logs in the name of one controller.
#[derive(Clone)]
pub struct Logs {
    pub(crate) client: Client,
}

impl Logs {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The end of the log of the container's last run, or of the one before if it runs again. Nothing depends on it, so
    /// that it cannot be read is no error.
    pub async fn end_of(&self, namespace: &str, pod: &str, container: &str, previous: bool) -> Tail {
        let params = LogParams {
            container: Some(container.to_owned()),
            previous,
            tail_lines: Some(LINES),
            limit_bytes: i64::try_from(LARGEST_LOG).ok(),
            ..LogParams::default()
        };
        let Ok(mut request) = Request::new(Pod::url_path(&(), Some(namespace))).logs(pod, &params) else {
            return Tail::Unreadable;
        };
        request.extensions_mut().insert("get_log");
        match tokio::time::timeout(DEADLINE, self.client.request_text(request)).await {
            Ok(Ok(log)) => Tail::Text(log),
            Ok(Err(error)) => {
                debug!(pod, container, error = with_causes(&error), "the log cannot be read");
                if is_code(&error, 403) { Tail::Forbidden } else { Tail::Unreadable }
            }
            Err(_) => {
                debug!(pod, container, "the log was not read in time");
                Tail::Unreadable
            }
        }
    }
}
