//! Carries a plan out, in a fixed order. Decides nothing.

use std::time::Duration;

use api::{
    aiinference::{AIInference, Migration},
    reasons,
};
use jiff::Timestamp;
use runtime::{
    apply::{ApplyError, Written},
    events::{Note, Severity},
    logs::Tail,
    refusal::Refusal,
};
use workload::crashes::Reading;

use crate::{
    Context,
    plan::{Child, Deletion, Plan, record},
};

/// How a plan ended.
#[derive(Debug)]
pub(crate) enum Applied {
    All {
        requeue_after: Option<Duration>,
    },
    /// A child was refused, or a deletion before any pod had left its node; nothing after it was tried.
    Refused(Refusal),
}

pub(crate) async fn apply(
    ctx: &Context,
    model: &AIInference,
    plan: Plan,
    now: Timestamp,
) -> Result<Applied, ApplyError> {
    let Plan { children, deletions, mut status, events, logs, lasting: _, mut requeue_after } = plan;
    let mut notes = Vec::new();
    // Children first: if one fails, the status is not written and so never claims what did not happen.
    for child in &children {
        match apply_child(ctx, child).await {
            Ok(Written::Contested(contest)) => {
                requeue_after = Some(requeue_after.map_or(contest.wait, |planned| planned.min(contest.wait)));
                if contest.is_new {
                    let (severity, reason) = (Severity::Warning, reasons::FIELD_CONFLICT);
                    notes.push(Note { severity, reason, message: contest.message() });
                }
            }
            Ok(Written::Unchanged | Written::Created | Written::Changed) => {}
            Err(error) => return Refusal::of(error).map(Applied::Refused),
        }
    }
    let mut deleted = Deleted::default();
    for deletion in deletions {
        let answer = delete(ctx, &deletion).await;
        if !deleted.note(deletion, answer) {
            break;
        }
    }
    let Deleted { migrations, notes: left, failed } = deleted;
    let failed = match failed {
        Some(error) if migrations.is_empty() => return Refusal::of(error).map(Applied::Refused),
        // Pods have left their nodes: that must be recorded, whatever became of other deletions.
        failed => failed,
    };
    for migration in migrations {
        record(&mut status.migrations, migration);
    }
    ctx.writer.apply_status(&ctx.models, model, &status).await?;
    // Events last: they tell of what the status already says.
    for note in left.iter().chain(&events).chain(&notes) {
        ctx.recorder.publish(model, note, now).await;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    // Logs after everything that must not wait for a node.
    for log in &logs {
        let namespace = model.metadata.namespace.as_deref().unwrap_or_default();
        match &ctx.logs.end_of(namespace, &log.pod, &log.container, log.previous).await {
            Tail::Text(text) => ctx.crashes.note(log, Reading::Text(text)),
            Tail::Unreadable => ctx.crashes.note(log, Reading::Unreadable),
            Tail::Forbidden => ctx.crashes.note(log, Reading::Forbidden),
        }
        requeue_after = Some(Duration::ZERO);
    }
    Ok(Applied::All { requeue_after })
}

/// What was deleted until a deletion failed.
#[derive(Default)]
struct Deleted {
    migrations: Vec<Migration>,
    notes: Vec<Note>,
    failed: Option<ApplyError>,
}

impl Deleted {
    /// Whether the next one may be tried.
    fn note(&mut self, deletion: Deletion, answer: Result<(), ApplyError>) -> bool {
        self.failed = answer.err();
        match deletion {
            Deletion::LostPod { pod: _, migration, note } if self.failed.is_none() => {
                self.migrations.push(*migration);
                self.notes.push(note);
            }
            Deletion::LostPod { .. } | Deletion::PodDisruptionBudget(_) => {}
        }
        self.failed.is_none()
    }
}

async fn delete(ctx: &Context, deletion: &Deletion) -> Result<(), ApplyError> {
    match deletion {
        Deletion::PodDisruptionBudget(budget) => ctx.budgets.delete(budget).await,
        Deletion::LostPod { pod, .. } => ctx.pods.delete(pod).await,
    }
}

async fn apply_child(ctx: &Context, child: &Child) -> Result<Written, ApplyError> {
    match child {
        Child::ConfigMap(child) => ctx.config_maps.apply(child).await,
        Child::Deployment(child) => ctx.deployments.apply_onto(child, child.planned_on.as_deref()).await,
        Child::Service(child) => ctx.services.apply(child).await,
        Child::PodDisruptionBudget(child) => ctx.budgets.apply(child).await,
    }
}

#[cfg(test)]
mod tests {
    use runtime::{apply::Stale, cache::Key};

    use crate::tests::at;

    use super::*;

    fn lost(pod: &str) -> Deletion {
        let time = Some(runtime::conditions::whole_seconds(at(0)));
        let (pod, from_node, reason) = (pod.to_owned(), "gpu-1".to_owned(), reasons::NODE_DELETED.to_owned());
        Deletion::LostPod {
            pod: Box::default(),
            migration: Box::new(Migration { pod, from_node, to_node: None, reason, time }),
            note: Note { severity: Severity::Warning, reason: reasons::NODE_DELETED, message: String::new() },
        }
    }

    #[test]
    fn only_pods_whose_deletion_was_accepted_are_recorded_and_they_are_whatever_fails_after_them() {
        let mut deleted = Deleted::default();
        let (kind, key, why) = ("Pod", Key::new("demo", "b"), Stale::Changed);
        assert!(deleted.note(lost("a"), Ok(())));
        assert!(!deleted.note(lost("b"), Err(ApplyError::Stale { kind, key, why })));
        let pods: Vec<&str> = deleted.migrations.iter().map(|migration| migration.pod.as_str()).collect();
        assert_eq!((pods, deleted.notes.len(), deleted.failed.is_some()), (vec!["a"], 1, true));
    }
}
