//! The arm without a controller: TrainingJobs are created as in the other arm, and the children of each are written as fast as
//! the API server takes them. No controller watches the TrainingJobs, and no status and no event is written but those of
//! Kubernetes.
//!
//! The copies are owned by the TrainingJob of the warm-up, so the garbage collector has the same to do.

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::time::{Instant, timeout};

use super::{
    CONNECTIONS,
    controller_arm::create,
    jobs::{Burst, SeenJobs, Setting, WARM_UP, names, patience},
    plane::Trained,
};
use crate::plane::{
    Programs,
    children::{NullWriter, OWNER_NAME},
    settle,
};

/// What the null writer did.
pub(super) struct Nulled {
    pub(super) burst: Burst,
    /// Of each job.
    pub(super) children: usize,
}

pub(super) async fn run(programs: &Programs, setting: &Setting, how: NullWriter) -> anyhow::Result<Nulled> {
    let Trained { plane, children, mut ends } = Trained::start(programs, "null", setting).await?;
    plane.stop_controller().await?;
    let mut seen = SeenJobs::from_now_on(&plane.client).await?;
    let processes = plane.processes().await?;
    let training_jobs = plane.api();
    let names = names(setting.count);
    // As in the other arm, creates do not wait for the children of the ones before.
    let written = futures::stream::iter(&names)
        .map(|name| {
            let training_jobs = &training_jobs;
            async move { create(training_jobs, name, setting).await.map(|()| name) }
        })
        .buffer_unordered(CONNECTIONS)
        .map_ok(|name| {
            let (client, children) = (&plane.client, &children);
            async move { children.create(client, &[(WARM_UP, name), (OWNER_NAME, WARM_UP)], how).await }
        })
        .try_buffer_unordered(CONNECTIONS)
        .try_collect::<()>();
    let burst = async {
        timeout(patience(setting), written).await.context("the creates took too long")??;
        seen.until_complete(setting).await
    };
    let before = processes.read()?;
    let began = Instant::now();
    ends.unless_they_fail(burst).await?;
    let ended = processes.read()?;
    settle().await;
    let (created_seconds, completed_seconds) = seen.seconds_since(began)?;
    let used = processes.read()?.since(&before);
    let burst = Burst { created_seconds, completed_seconds, busy: ended.since(&before), used };
    let children = children.kinds();
    plane.cluster.stop().await?;
    Ok(Nulled { burst, children })
}
