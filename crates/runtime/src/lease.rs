//! Leader election by a Lease, with client-go's rules.
//!
//! The other side's clock is never believed: how long a holder has been silent is measured from when *we* saw its
//! record change. Every write carries the resourceVersion it was decided on. A leader that cannot renew in time, or
//! sees another holder, has lost at once, and its process must exit. This is not a fence: a write that is already on
//! its way may land, which is why every write of ours carries a uid.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::Notify, time::Instant};
use tracing::{debug, info, warn};

use crate::{cache::Cache, client::LeaderGuard};

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
}

/// One replica's part in an election.
pub struct Elector {
    leases: Api<Lease>,
    name: String,
    identity: String,
    timings: Timings,
    guard: LeaderGuard,
    observed: Observed,
}

/// What we last saw of the record, and when by our own clock.
#[derive(Clone, Debug, Default)]
struct Observed {
    record: Option<(String, Option<MicroTime>)>,
    at: Option<Instant>,
}

/// What to do about a Lease as just read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Create,
    /// It is ours, free, or its holder has been silent for too long.
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
        }
    }

    /// Waits until this replica leads. `seen` is a watch on the one Lease that only wakes us up: every decision is
    /// taken on a fresh read. Cancel-safe.
    pub async fn lead(&mut self, seen: &Cache<Lease>) {
        let changed = Arc::new(Notify::new());
        seen.subscribe({
            let changed = Arc::clone(&changed);
            move |_| changed.notify_one()
        });
        loop {
            let wait = match tokio::time::timeout(self.timings.renew_deadline, self.try_lead()).await {
                Ok(Ok(None)) => {
                    info!(lease = self.name, identity = self.identity, "leading");
                    return;
                }
                Ok(Ok(Some(until))) => until.saturating_duration_since(Instant::now()),
                Ok(Err(error)) => {
                    warn!(lease = self.name, %error, "failed to get the lease; trying again");
                    self.timings.retry
                }
                Err(_) => self.timings.retry,
            };
            // A little apart from each other, so that standbys do not collide for ever.
            let wait = wait.max(Duration::from_millis(1)).min(self.timings.duration);
            let wait = wait + self.timings.retry.mul_f64(0.05 * fastrand::f64());
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = changed.notified() => {}
            }
        }
    }

    /// Renews, and returns only when the lease is lost: from then on nothing may be written. Cancel-safe.
    pub async fn hold(&mut self) {
        let mut renewed = Instant::now();
        loop {
            let next = (Instant::now() + self.timings.retry).min(renewed + self.timings.renew_deadline);
            tokio::time::sleep_until(next).await;
            let sent = Instant::now();
            let left = (renewed + self.timings.renew_deadline).saturating_duration_since(sent);
            match tokio::time::timeout(left, self.renew(sent)).await {
                Ok(Ok(true)) => renewed = sent,
                Ok(Ok(false)) => return self.lost("another replica holds the lease"),
                Ok(Err(error)) => {
                    warn!(lease = self.name, %error, "failed to renew the lease; trying again");
                    if renewed.elapsed() >= self.timings.renew_deadline {
                        return self.lost("it could not be renewed in time");
                    }
                }
                Err(_) => return self.lost("it could not be renewed in time"),
            }
        }
    }

    /// Gives the Lease away, so that a standby need not wait for it to run out. Call when nothing writes any more.
    pub async fn release(&mut self) {
        self.guard.stop_leading();
        let freed = async {
            let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
            if holder(&lease) != Some(&self.identity) {
                return Ok(());
            }
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            self.leases.replace(&self.name, &PostParams::default(), &lease).await.map(drop)
        };
        match freed.await {
            Ok(()) => info!(lease = self.name, "released"),
            Err::<(), kube::Error>(error) => warn!(lease = self.name, %error, "failed to release the lease"),
        }
    }

    fn lost(&self, why: &str) {
        self.guard.stop_leading();
        warn!(lease = self.name, why, "lost the lease");
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
                self.guard.lead_until(now + self.timings.renew_deadline);
                Ok(None)
            }
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Some(now + self.timings.retry)),
            Err(error) => Err(error),
        }
    }

    /// False if somebody else holds it. The deadline counts from when the renewal was sent.
    async fn renew(&mut self, sent: Instant) -> Result<bool, kube::Error> {
        let lease = self.leases.get_opt(&self.name).await?;
        if let Some(lease) = &lease
            && holder(lease) != Some(&self.identity)
        {
            return Ok(false);
        }
        let wanted = self.wanted(lease.as_ref());
        let written = match &lease {
            Some(_) => self.leases.replace(&self.name, &PostParams::default(), &wanted).await,
            // Somebody deleted it while we led: take it again, unless another replica already has.
            None => self.leases.create(&PostParams::default(), &wanted).await,
        };
        match written {
            Ok(_) => {
                self.guard.lead_until(sent + self.timings.renew_deadline);
                debug!(lease = self.name, "renewed");
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let now_held = self.leases.get_opt(&self.name).await?;
                let ours = now_held.as_ref().and_then(holder) == Some(&*self.identity);
                // Still ours: somebody touched the object; the next round renews it.
                Ok(ours)
            }
            Err(error) => Err(error),
        }
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
                // The API counts whole seconds; shorter ones are for tests and only live in our own clock.
                lease_duration_seconds: Some(
                    i32::try_from(self.timings.duration.as_secs().max(1)).unwrap_or(i32::MAX),
                ),
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
        let record = lease.map(|lease| {
            let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            (holder(lease).unwrap_or_default().to_owned(), renewed)
        });
        if self.record != record || self.at.is_none() {
            *self = Self { record, at: Some(now) };
        }
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|identity| !identity.is_empty())
}

/// Pure: what a candidate does about the Lease it has just read.
fn decide(
    lease: Option<&Lease>,
    observed: &Observed,
    me: &str,
    own_duration: Duration,
    now: Instant,
) -> Decision {
    let Some(lease) = lease else { return Decision::Create };
    match holder(lease) {
        None => Decision::Write,
        Some(identity) if identity == me => Decision::Write,
        Some(_) => {
            // The holder's own promise counts; a nonsense one is replaced by ours.
            let promised = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
            let promised =
                promised.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
            let duration = promised.map_or(own_duration, Duration::from_secs);
            let runs_out = observed.at.unwrap_or(now) + duration;
            if runs_out <= now { Decision::Write } else { Decision::WaitUntil(runs_out) }
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
