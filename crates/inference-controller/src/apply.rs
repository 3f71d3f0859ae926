//! Carries a plan out, in a fixed order. Decides nothing.

use std::time::Duration;

use api::aiinference::AIInference;
use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use runtime::{
    apply::{ApplyError, Written},
    controller::ReconcileError,
};

use crate::{
    Context,
    plan::{Child, Deletion, Plan, Refusal},
};

/// How a plan ended.
#[derive(Debug)]
pub(crate) enum Applied {
    All {
        requeue_after: Option<Duration>,
    },
    /// A child was not taken; nothing after it was tried.
    Refused(Refusal),
}

/// A step that did not go through, and may the next time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    ConfigMap(ApplyError),
    #[error(transparent)]
    Deployment(ApplyError),
    #[error(transparent)]
    Service(ApplyError),
    #[error(transparent)]
    PodDisruptionBudget(ApplyError),
    #[error(transparent)]
    Deletion(ApplyError),
    #[error(transparent)]
    Status(ApplyError),
}

/// What the API server answers to an object that it does not take.
const UNPROCESSABLE: u16 = 422;

pub(crate) async fn apply(
    ctx: &Context,
    model: &AIInference,
    plan: Plan,
    now: Timestamp,
) -> Result<Applied, Error> {
    let Plan { children, deletions, status, events, requeue_after } = plan;
    // Children first: if one fails, the status is not written and so never claims what did not happen.
    for child in &children {
        if let Err(error) = apply_child(ctx, child).await {
            return refusal(model, error).map(Applied::Refused);
        }
    }
    for deletion in &deletions {
        let deleted = match deletion {
            Deletion::PodDisruptionBudget(budget) => ctx.writer.delete(&**budget).await,
            Deletion::Pod(pod) => ctx.writer.delete(&**pod).await,
        };
        deleted.map_err(Error::Deletion)?;
    }
    ctx.writer.apply_status(&ctx.models, model, &status).await.map_err(Error::Status)?;
    // Events last: they tell of what the status already says.
    for note in &events {
        ctx.recorder.publish(model, note, now).await;
    }
    Ok(Applied::All { requeue_after })
}

async fn apply_child(ctx: &Context, child: &Child) -> Result<Written, Error> {
    let Context { writer, config_maps, deployments, services, budgets, .. } = ctx;
    match child {
        Child::ConfigMap(child) => writer.apply(config_maps, &**child).await.map_err(Error::ConfigMap),
        Child::Deployment(child) => writer.apply(deployments, &**child).await.map_err(Error::Deployment),
        Child::Service(child) => writer.apply(services, &**child).await.map_err(Error::Service),
        Child::PodDisruptionBudget(child) => {
            writer.apply(budgets, &**child).await.map_err(Error::PodDisruptionBudget)
        }
    }
}

/// What no retry mends is for the user to know; everything else is an error.
fn refusal(model: &AIInference, error: Error) -> Result<Refusal, Error> {
    match error.cause() {
        ApplyError::Foreign { owner, .. } if *owner == predecessor(model) => Ok(Refusal::Leftover),
        foreign @ ApplyError::Foreign { .. } => Ok(Refusal::OwnershipConflict(foreign.to_string())),
        ApplyError::Call { source, .. } => match &**source {
            kube::Error::Api(status) if status.code == UNPROCESSABLE => {
                Ok(Refusal::InvalidSpec(format!("the API server refuses it: {}", status.message)))
            }
            _ => Err(error),
        },
        ApplyError::Render { .. } | ApplyError::Unowned { .. } => Err(error),
    }
}

/// How the owner of a child is called that is not this object but had its name: it can only have been deleted.
fn predecessor(model: &AIInference) -> String {
    format!("{} {}", AIInference::kind(&()), model.name_any())
}

impl Error {
    fn cause(&self) -> &ApplyError {
        match self {
            Self::ConfigMap(cause)
            | Self::Deployment(cause)
            | Self::Service(cause)
            | Self::PodDisruptionBudget(cause)
            | Self::Deletion(cause)
            | Self::Status(cause) => cause,
        }
    }
}

impl ReconcileError for Error {
    fn step(&self) -> &'static str {
        match self {
            Self::ConfigMap(_) => "config_map",
            Self::Deployment(_) => "deployment",
            Self::Service(_) => "service",
            Self::PodDisruptionBudget(_) => "pod_disruption_budget",
            Self::Deletion(_) => "deletion",
            Self::Status(_) => "status",
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        self.cause().retry_after()
    }
}
