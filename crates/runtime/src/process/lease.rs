//! Leader election by a Lease, with client-go's rules.
//!
//! The clock of another replica does not count: how long a holder has been silent is measured from when this process saw its
//! record change. Every write carries the resourceVersion it was decided on. A leader that cannot renew in time, or
//! sees another holder, has lost at once, and its process must exit. This is not a fence: a write that is already on
//! its way may land, which is why every write carries a uid.

use std::{pin::pin, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{causes::with_causes, client::LeaderGuard, watch::cache::Cache};

#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// A holder silent for so long is replaced.
    pub duration: Duration,
    /// A leader that has not renewed for so long gives up.
    pub renew_deadline: Duration,
    /// Between two tries.
    pub retry: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "lease timings make no sense: duration {duration:?} must be above renew deadline {deadline:?}, which must be above 1.2 × retry period {retry:?}"
)]
pub struct BadTimings {
    duration: Duration,
    deadline: Duration,
    retry: Duration,
}

impl Timings {
    /// The order that client-go demands; otherwise two replicas may lead at once.
    pub fn check(self) -> Result<Self, BadTimings> {
        let Self { duration, renew_deadline, retry } = self;
        if duration > renew_deadline && renew_deadline > retry.mul_f64(1.2) {
            Ok(self)
        } else {
            Err(BadTimings { duration, deadline: renew_deadline, retry })
        }
    }

    /// For one renewal: a call that is never answered leaves time for another before the deadline.
    fn renewal_limit(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// How a leader came to lead no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    #[error("another replica holds it")]
    Taken,
    #[error("it could not be renewed in time")]
    Late,
}

/// A standby can wait for the Lease to run out; an exit cannot wait for an API server that does not answer.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);

/// One replica's part in an election.
pub struct Elector {
    leases: Api<Lease>,
    name: String,
    identity: String,
    timings: Timings,
    guard: LeaderGuard,
    observed: Observed,
    /// When the last write that made or kept us the holder was sent.
    renewed: Option<Instant>,
}

/// What we last saw of the record, and when by our own clock. A Lease that is deleted is remembered: its holder may
/// still lead, and will write it again.
#[derive(Clone, Debug, Default)]
struct Observed {
    record: Option<Record>,
    at: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    holder: String,
    renewed: Option<MicroTime>,
    /// The holder's own promise, unless it is nonsense.
    promised: Option<Duration>,
}

/// How one try to renew went.
enum Renewal {
    Written,
    /// Another client has written the object; this replica still holds it, and has not renewed it.
    Collided,
    Taken,
}

/// What to do about a Lease as just read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Create,
    /// This replica holds it, or it is free, or its holder has been silent for too long.
    Write,
    WaitUntil(Instant),
}

impl Elector {
    /// `client` must not be guarded by the lease itself.
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: String,
        timings: Timings,
        guard: LeaderGuard,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity,
            timings,
            guard,
            observed: Observed::default(),
            renewed: None,
        }
    }

    /// Waits until this replica leads, or until `stop`. `seen` is a watch on the one Lease that only wakes us up: every
    /// decision is taken on a fresh read.
    ///
    /// A try that is under way at the stop may be the one that wins, so its answer is waited for. Call `release` in any
    /// case: an answer that did not come in time may have been a yes.
    pub async fn lead(&mut self, seen: &Cache<Lease>, stop: &CancellationToken) -> bool {
        let changed = Arc::new(Notify::new());
        seen.subscribe({
            let changed = Arc::clone(&changed);
            move |_| changed.notify_one()
        });
        while !stop.is_cancelled() {
            let tried = {
                let mut tried = pin!(tokio::time::timeout(self.timings.renew_deadline, self.try_lead()));
                tokio::select! {
                    tried = tried.as_mut() => tried,
                    () = stop.cancelled() => {
                        tokio::time::timeout(RELEASE_WITHIN, tried).await.unwrap_or_else(Err)
                    }
                }
            };
            let wait = match tried {
                Ok(Ok(None)) => {
                    info!(lease = self.name, identity = self.identity, "leading");
                    return true;
                }
                Ok(Ok(Some(until))) => until.saturating_duration_since(Instant::now()),
                Ok(Err(error)) => {
                    warn!(
                        lease = self.name,
                        error = with_causes(&error),
                        "failed to get the lease; trying again"
                    );
                    self.timings.retry
                }
                Err(_) => self.timings.retry,
            };
            // Not longer than a retry, as the watch that wakes us may be blind. With a jitter, so that
            // standbys do not collide again and again.
            let wait = wait.max(Duration::from_millis(1)).min(self.timings.retry);
            let wait = wait + self.timings.retry.mul_f64(0.05 * fastrand::f64());
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = changed.notified() => {}
                () = stop.cancelled() => {}
            }
        }
        false
    }

    /// Renews, and returns only when the lease is lost: from then on nothing may be written. Cancel-safe.
    pub async fn hold(&mut self) -> Loss {
        let mut pause = self.timings.retry;
        loop {
            let deadline = *self.renewed.get_or_insert_with(Instant::now) + self.timings.renew_deadline;
            tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
            pause = self.timings.retry;
            let sent = Instant::now();
            let limit = deadline.min(sent + self.timings.renewal_limit());
            match tokio::time::timeout_at(limit, self.renew(sent)).await {
                Ok(Ok(Renewal::Written)) => {}
                Ok(Ok(Renewal::Collided)) => {
                    warn!(lease = self.name, "the lease was touched; renewing it again");
                }
                Ok(Ok(Renewal::Taken)) => return self.lost(Loss::Taken),
                Ok(Err(error)) => {
                    warn!(
                        lease = self.name,
                        error = with_causes(&error),
                        "failed to renew the lease; trying again"
                    );
                }
                Err(_) if limit < deadline => {
                    // The connection ends with the call, so the next try has another one.
                    warn!(lease = self.name, "a renewal was not answered; trying again");
                    pause = Duration::ZERO;
                }
                Err(_) => return self.lost(Loss::Late),
            }
        }
    }

    /// Gives the Lease away, so that a standby need not wait for it to run out. Call when nothing writes any more.
    pub async fn release(&mut self) {
        self.guard.stop_leading();
        match tokio::time::timeout(RELEASE_WITHIN, self.free()).await {
            Ok(Ok(())) => info!(lease = self.name, "released"),
            Ok(Err(error)) => {
                warn!(lease = self.name, error = with_causes(&error), "failed to release the lease")
            }
            Err(_) => warn!(lease = self.name, "failed to release the lease in time"),
        }
    }

    async fn free(&self) -> Result<(), kube::Error> {
        loop {
            let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
            if holder(&lease) != Some(&self.identity) {
                return Ok(());
            }
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            match self.leases.replace(&self.name, &PostParams::default(), &lease).await {
                // A last renewal of this replica has arrived in between.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                freed => return freed.map(drop),
            }
        }
    }

    fn lost(&self, loss: Loss) -> Loss {
        self.guard.stop_leading();
        warn!(lease = self.name, why = %loss, "lost the lease");
        loss
    }

    /// `None`: this replica leads now. Otherwise when to look again.
    async fn try_lead(&mut self) -> Result<Option<Instant>, kube::Error> {
        let lease = self.leases.get_opt(&self.name).await?;
        let now = Instant::now();
        self.observed.note(lease.as_ref(), now);
        let written = match decide(lease.as_ref(), &self.observed, &self.identity, self.timings.duration, now)
        {
            Decision::WaitUntil(at) => return Ok(Some(at)),
            Decision::Create => self.leases.create(&PostParams::default(), &self.wanted(None)).await,
            Decision::Write => {
                self.leases.replace(&self.name, &PostParams::default(), &self.wanted(lease.as_ref())).await
            }
        };
        match written {
            Ok(written) => {
                self.observed.note(Some(&written), now);
                self.leads_since(now);
                Ok(None)
            }
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Some(now + self.timings.retry)),
            Err(error) => Err(error),
        }
    }

    async fn renew(&mut self, sent: Instant) -> Result<Renewal, kube::Error> {
        let lease = self.leases.get_opt(&self.name).await?;
        if let Some(lease) = &lease
            && holder(lease) != Some(&self.identity)
        {
            return Ok(Renewal::Taken);
        }
        let wanted = self.wanted(lease.as_ref());
        let written = match &lease {
            Some(_) => self.leases.replace(&self.name, &PostParams::default(), &wanted).await,
            // It was deleted while this replica led: take it again, unless another replica already has.
            None => self.leases.create(&PostParams::default(), &wanted).await,
        };
        match written {
            Ok(_) => {
                self.leads_since(sent);
                debug!(lease = self.name, "renewed");
                Ok(Renewal::Written)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let now_held = self.leases.get_opt(&self.name).await?;
                let is_held = now_held.as_ref().and_then(holder) == Some(&*self.identity);
                Ok(if is_held { Renewal::Collided } else { Renewal::Taken })
            }
            Err(error) => Err(error),
        }
    }

    /// Every deadline counts from when the write was sent, not from when it was answered.
    fn leads_since(&mut self, sent: Instant) {
        self.renewed = Some(sent);
        self.guard.lead_until(sent + self.timings.renew_deadline);
    }

    /// The record that makes us the holder, based on the one just read.
    fn wanted(&self, current: Option<&Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let before = current.and_then(|lease| lease.spec.as_ref());
        let kept = before.filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity));
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: current.and_then(|lease| lease.metadata.namespace.clone()),
                resource_version: current.and_then(|lease| lease.metadata.resource_version.clone()),
                uid: current.and_then(|lease| lease.metadata.uid.clone()),
                labels: current.and_then(|lease| lease.metadata.labels.clone()),
                annotations: current.and_then(|lease| lease.metadata.annotations.clone()),
                owner_references: current.and_then(|lease| lease.metadata.owner_references.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(whole_seconds(self.timings.duration)),
                acquire_time: kept.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(if before.is_some() && kept.is_none() {
                    transitions.saturating_add(1)
                } else {
                    transitions
                }),
                ..LeaseSpec::default()
            }),
        }
    }
}

impl Observed {
    /// A record that differs from the last one restarts the clock of its holder.
    fn note(&mut self, lease: Option<&Lease>, now: Instant) {
        let Some(lease) = lease else { return };
        let spec = lease.spec.as_ref();
        let seconds =
            spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        let record = Some(Record {
            holder: holder(lease).unwrap_or_default().to_owned(),
            renewed: spec.and_then(|spec| spec.renew_time.clone()),
            promised: seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs),
        });
        if self.record != record || self.at.is_none() {
            *self = Self { record, at: Some(now) };
        }
    }
}

/// The API counts whole seconds. Rounded up: others must not come before our own deadline.
fn whole_seconds(duration: Duration) -> i32 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|identity| !identity.is_empty())
}

/// Pure: what a candidate does about the Lease it has just read and noted.
fn decide(
    lease: Option<&Lease>,
    observed: &Observed,
    me: &str,
    own_duration: Duration,
    now: Instant,
) -> Decision {
    let take = if lease.is_some() { Decision::Write } else { Decision::Create };
    match &observed.record {
        None => take,
        Some(record) if record.holder.is_empty() || record.holder == me => take,
        Some(record) => {
            let duration = record.promised.unwrap_or(own_duration);
            let runs_out = observed.at.unwrap_or(now) + duration;
            if runs_out <= now { take } else { Decision::WaitUntil(runs_out) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Duration = Duration::from_secs(15);

    fn lease(holder: &str, renewed: i64, seconds: Option<i32>) -> Lease {
        Lease {
            metadata: ObjectMeta::default(),
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.into()),
                renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
                lease_duration_seconds: seconds,
                ..LeaseSpec::default()
            }),
        }
    }

    fn seen(lease: &Lease, at: Instant) -> Observed {
        let mut observed = Observed::default();
        observed.note(Some(lease), at);
        observed
    }

    #[tokio::test(start_paused = true)]
    async fn a_free_missing_or_own_lease_is_taken_at_once() {
        let now = Instant::now();
        assert_eq!(decide(None, &Observed::default(), "me", OWN, now), Decision::Create);
        for holder in ["", "me"] {
            let lease = lease(holder, 0, Some(15));
            assert_eq!(
                decide(Some(&lease), &seen(&lease, now), "me", OWN, now),
                Decision::Write,
                "{holder:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_holder_has_its_full_time_from_when_we_saw_it_whatever_its_clock_says() {
        let now = Instant::now();
        // Its own clock is in 1970: by that clock it ran out long ago.
        let theirs = lease("other", 0, Some(15));
        let observed = seen(&theirs, now);
        assert_eq!(decide(Some(&theirs), &observed, "me", OWN, now), Decision::WaitUntil(now + OWN));
        assert_eq!(decide(Some(&theirs), &observed, "me", OWN, now + OWN), Decision::Write);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_lease_is_still_its_last_holders_until_its_time_is_over() {
        let now = Instant::now();
        let mut observed = seen(&lease("other", 0, Some(15)), now);
        observed.note(None, now);
        assert_eq!(decide(None, &observed, "me", OWN, now), Decision::WaitUntil(now + OWN));
        assert_eq!(decide(None, &observed, "me", OWN, now + OWN), Decision::Create);
        let released = seen(&lease("", 0, Some(1)), now);
        assert_eq!(decide(None, &released, "me", OWN, now), Decision::Create);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_restarts_the_clock_and_a_second_look_does_not() {
        let start = Instant::now();
        let mut observed = seen(&lease("other", 1, Some(15)), start);
        observed.note(Some(&lease("other", 1, Some(15))), start + Duration::from_secs(9));
        assert_eq!(observed.at, Some(start));
        observed.note(Some(&lease("other", 2, Some(15))), start + Duration::from_secs(10));
        assert_eq!(observed.at, Some(start + Duration::from_secs(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_nonsense_duration_is_replaced_by_ours() {
        let now = Instant::now();
        for seconds in [None, Some(0), Some(-5)] {
            let theirs = lease("other", 0, seconds);
            let decision = decide(Some(&theirs), &seen(&theirs, now), "me", OWN, now);
            assert_eq!(decision, Decision::WaitUntil(now + OWN), "{seconds:?}");
        }
    }

    #[test]
    fn timings_out_of_order_are_refused() {
        let timings = |duration, renew_deadline, retry| Timings {
            duration: Duration::from_secs(duration),
            renew_deadline: Duration::from_secs(renew_deadline),
            retry: Duration::from_secs(retry),
        };
        assert!(timings(15, 10, 2).check().is_ok());
        assert!(timings(10, 10, 2).check().is_err());
        assert!(timings(15, 2, 2).check().is_err());
    }
}
