//! Gives the sessions of a worker that ends to its siblings, so that they go on there at once. What no sibling takes stays
//! in STATE_DIR, and goes on where that state is restored.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    log::Log,
    session::Name,
    siblings::{Declined, Sibling, Siblings, offered},
    worker::Worker,
};

/// Sessions that are sent at the same time.
const AT_ONCE: usize = 8;
/// A session has at most a few mebibytes, and siblings are in the same cluster.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// Siblings that a session is offered to.
const MOST_OFFERS: usize = 3;
/// Between two looks for sessions whose tasks are done.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Gives away sessions without tasks, until this time. It never ends: the caller drops it once no task is left.
pub(crate) async fn hand_over_idle(worker: &Worker, siblings: &Siblings, log: &Log, until: Instant) {
    loop {
        hand_over(worker, siblings, log, true, until).await;
        sleep(AGAIN_AFTER).await;
    }
}

/// Gives away all sessions, until this time. The worker does nothing else any more.
pub(crate) async fn hand_over_all(worker: &Worker, siblings: &Siblings, log: &Log, until: Instant) {
    // A sibling may have been slow, or have begun to end meanwhile. Without one, the state is restored elsewhere.
    while hand_over(worker, siblings, log, false, until).await > 0 && Instant::now() + AGAIN_AFTER < until {
        sleep(AGAIN_AFTER).await;
    }
}

/// How many sessions are left that a sibling may take.
async fn hand_over(worker: &Worker, siblings: &Siblings, log: &Log, are_idle: bool, until: Instant) -> usize {
    let sessions = worker.sessions(are_idle).await;
    if siblings.are_none() || sessions.is_empty() {
        return 0;
    }
    let (held, mut given) = (sessions.len(), 0);
    let offers = Offers { worker, siblings, failed: Mutex::default(), last: Mutex::default() };
    let mut has_siblings = true;
    let work = async {
        let ready = siblings.ready().await;
        has_siblings = !ready.is_empty();
        let given_each = stream::iter(sessions).map(|session| offers.give(&ready, session));
        let mut given_each = given_each.buffer_unordered(AT_ONCE);
        while let Some(is_given) = given_each.next().await {
            given += usize::from(is_given);
        }
    };
    let _ = timeout_at(until, work).await;
    let last = offers.last.into_inner().unwrap_or_else(PoisonError::into_inner);
    let attributes = json!({"given": given, "kept": held - given, "error": last});
    match given == held {
        true => log.info("sessions handed over", &attributes),
        // It is said once at the end.
        false if are_idle && given == 0 => {}
        false => log.warn("not all sessions were handed over", &attributes),
    }
    if has_siblings { held - given } else { 0 }
}

struct Offers<'a> {
    worker: &'a Worker,
    siblings: &'a Siblings,
    /// A sibling that has not answered once is not asked again.
    failed: Mutex<BTreeSet<SocketAddr>>,
    last: Mutex<Option<String>>,
}

impl Offers<'_> {
    /// Whether a sibling has the session.
    async fn give(&self, ready: &[Sibling], session: Name) -> bool {
        for &Sibling { address, .. } in offered(&session, ready).into_iter().take(MOST_OFFERS) {
            let has_failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            if has_failed().contains(&address) {
                continue;
            }
            let Some(copy) = self.worker.copy(&session).await else { return false };
            match self.siblings.give(address, &session, copy, TAKEN_WITHIN).await {
                Ok(()) => {
                    self.worker.given(&session).await;
                    return true;
                }
                Err(Declined { why, is_certain }) => {
                    *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                    if !is_certain {
                        // The sibling may have taken the session. It is offered to no other sibling.
                        has_failed().insert(address);
                        return false;
                    }
                }
            }
        }
        false
    }
}
