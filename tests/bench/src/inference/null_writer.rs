//! The arm without a controller: AIInferences are created and watched as in the other arm, and the children of each are
//! written as fast as the API server takes them. No controller watches the AIInferences, and no status and no event is written.

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use tokio::time::Instant;

use super::{
    CONNECTIONS,
    controller_arm::{Seen, create},
    plane::{names, start},
};
use crate::plane::{Burst, Programs, children::NullWriter, patience, settle, sightings::Sightings};

/// What the null writer did.
pub(super) struct Nulled {
    pub(super) burst: Burst,
    /// Of each object.
    pub(super) children: usize,
}

pub(super) async fn run(programs: &Programs, count: u32, how: NullWriter) -> anyhow::Result<Nulled> {
    let (plane, first) = start(programs, "null", count).await?;
    plane.stop_controller().await?;
    let mut available = Sightings::of("available", plane.api(), "", |deployment: &Deployment| {
        is_available(deployment).then(|| deployment.metadata.name.clone()).flatten()
    })
    .await?;
    let _seen = Seen::from_now_on(&plane).await?;
    let (inferences, processes) = (plane.api(), plane.processes().await?);
    let before = processes.read()?;
    let began = Instant::now();
    // As in the other arm, creates do not wait for the children of the ones before.
    let written = futures::stream::iter(names(0, count))
        .map(|name| create(&inferences, name))
        .buffer_unordered(CONNECTIONS)
        .map_ok(|created| {
            let (first, client) = (&first, &plane.client);
            async move { first.copy_to(client, &created.inference, how).await }
        })
        .try_buffer_unordered(CONNECTIONS)
        .try_collect::<()>();
    tokio::time::timeout(patience(count), written).await??;
    available.until(count as usize, patience(count)).await?;
    let took = began.elapsed();
    settle().await;
    let burst = Burst { seconds: took.as_secs_f64(), used: processes.read()?.since(&before) };
    let children = first.children.kinds();
    plane.cluster.stop().await?;
    Ok(Nulled { burst, children })
}

fn is_available(deployment: &Deployment) -> bool {
    let conditions = deployment.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Available" && condition.status == "True")
}
