//! Ends pods of Jobs as a kubelet would after a training that has succeeded: the lean stages of simulated nodes start pods
//! and end none. Each pod costs one write, in both arms.

use std::{collections::HashSet, convert::Infallible, pin::pin, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream::FuturesUnordered};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::sleep};

use crate::plane::NAMESPACE;

/// Ends pods until it is dropped.
pub(super) struct PodEnds(JoinHandle<anyhow::Error>);

/// The label that Kubernetes gives to pods of Jobs.
const OF_JOBS: &str = "batch.kubernetes.io/job-name";

impl PodEnds {
    /// Each pod that comes from now on ends so long after it was seen to run.
    pub(super) async fn played(client: &Client, run_time: Duration) -> anyhow::Result<Self> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let of_jobs = ListParams::default().labels(OF_JOBS).limit(1);
        let list = pods.list(&of_jobs).await.context("failed to list pods")?;
        let version = list.metadata.resource_version.unwrap_or_default();
        Ok(Self(tokio::spawn(async move {
            let Err(error) = play(&pods, version, run_time).await;
            error
        })))
    }

    /// The result of a wait, or why no further pod would end.
    pub(super) async fn unless_they_fail<T>(
        &mut self,
        wait: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            done = wait => done,
            failure = &mut self.0 => {
                let failure = failure.unwrap_or_else(|panic| anyhow!(panic));
                Err(failure.context("pods are not ended any more"))
            }
        }
    }
}

impl Drop for PodEnds {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn play(pods: &Api<Pod>, mut version: String, run_time: Duration) -> anyhow::Result<Infallible> {
    let params = WatchParams::default().labels(OF_JOBS);
    let mut begun = HashSet::new();
    // As many as pods run at the same time, which the GPUs of the nodes bound.
    let mut running = FuturesUnordered::new();
    loop {
        let mut events = pin!(pods.watch(&params, &version).await.context("failed to watch pods")?);
        loop {
            let event = tokio::select! {
                event = events.try_next() => event.context("failed to read the watch of pods")?,
                Some(ended) = running.next() => { ended?; continue }
            };
            match event {
                Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                    version = pod.metadata.resource_version.clone().unwrap_or_default();
                    if runs(&pod) && begun.insert(pod.metadata.uid.clone()) {
                        running.push(end(pods, pod, run_time));
                    }
                }
                Some(WatchEvent::Deleted(pod)) => {
                    version = pod.metadata.resource_version.unwrap_or_default();
                }
                Some(WatchEvent::Bookmark(bookmark)) => version = bookmark.metadata.resource_version,
                Some(WatchEvent::Error(status)) => bail!("{} {}", status.code, status.message),
                // The server closes watches from time to time.
                None => break,
            }
        }
    }
}

fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

async fn end(pods: &Api<Pod>, pod: Pod, run_time: Duration) -> anyhow::Result<()> {
    sleep(run_time).await;
    let name = pod.metadata.name.clone().unwrap_or_default();
    let status = json!({"status": succeeded(&pod, Timestamp::now())?});
    match pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(status)).await {
        // The Job controller deletes a second pod of an index, which it makes if its cache is late.
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        ended => {
            ended.with_context(|| format!("failed to end pod {NAMESPACE}/{name}"))?;
        }
    }
    Ok(())
}

/// What changes in the status of a pod whose containers exit with 0.
fn succeeded(pod: &Pod, now: Timestamp) -> anyhow::Result<Value> {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut containers = Vec::new();
    for status in statuses {
        let mut container = serde_json::to_value(status)?;
        let started = container["state"]["running"]["startedAt"].clone();
        container["ready"] = json!(false);
        container["started"] = json!(false);
        container["state"] = json!({"terminated": {
            "exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": now,
        }});
        containers.push(container);
    }
    let condition = |type_: &str| json!({"type": type_, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now});
    Ok(json!({
        "phase": "Succeeded",
        "conditions": [condition("Ready"), condition("ContainersReady")],
        "containerStatuses": containers,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_ends_with_exit_code_0_of_each_container() {
        let pod: Pod = serde_json::from_value(json!({"status": {
            "phase": "Running",
            "containerStatuses": [{
                "name": "trainer", "image": "swift", "imageID": "", "restartCount": 0, "ready": true, "started": true,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }],
        }}))
        .unwrap();
        assert!(runs(&pod));
        let status = succeeded(&pod, "2026-01-01T00:00:05.7Z".parse().unwrap()).unwrap();
        assert_eq!(status["phase"], "Succeeded");
        let [trainer] = status["containerStatuses"].as_array().unwrap().as_slice() else {
            panic!("{status}")
        };
        let expected = json!({
            "exitCode": 0, "reason": "Completed",
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:05Z",
        });
        assert_eq!(
            (&trainer["name"], &trainer["state"]),
            (&json!("trainer"), &json!({"terminated": expected}))
        );
    }
}
