//! The clock of `activeDeadlineSeconds`. Pure.

use std::time::Duration;

use api::{conditions, trainingjob::TrainingJobStatus};
use jiff::Timestamp;
use workload::time::remaining;

use crate::{objects::training_job::condition, validate::ValidJob};

/// How long the job may still take; `None`: without a limit, or its time does not count now.
pub(crate) fn deadline(
    valid: &ValidJob,
    status: Option<&TrainingJobStatus>,
    now: Timestamp,
) -> Option<Duration> {
    let since = active_since(status?)?;
    let left = valid.active_deadline?.saturating_sub(active_before(status?));
    Some(remaining(left, since, now).unwrap_or_default())
}

/// Since when `activeDeadlineSeconds` counts; `None`: it does not count now. A job that was never suspended since it started
/// has its start alone, as releases before this field have left all jobs.
pub(crate) fn active_since(status: &TrainingJobStatus) -> Option<Timestamp> {
    let is_suspended = condition(Some(status), conditions::SUSPENDED).is_some_and(|one| one.status == "True");
    match (&status.active_since, status.active_seconds) {
        (Some(since), _) => Some(since.0),
        (None, None) if !is_suspended => status.start_time.as_ref().map(|start| start.0),
        (None, _) => None,
    }
}

/// The time that had counted before.
pub(crate) fn active_before(status: &TrainingJobStatus) -> Duration {
    Duration::from_secs(status.active_seconds.unwrap_or_default().unsigned_abs())
}
