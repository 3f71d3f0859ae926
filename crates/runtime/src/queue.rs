//! The keyed work queue: which object is reconciled next, and when a failed one is tried again.
//!
//! Deduplicated, one run per key at a time, changes before resyncs, per-key exponential back-off that child events
//! neither bypass nor inflate and that a spec change may jump. Events of children that come close together share one
//! run: each is delayed at most, none is dropped. It knows keys and times, no objects; it makes no decision about an
//! object and starts no task. `queue/state.rs` decides which key is due.

mod state;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use self::state::State;
use crate::key::Key;

/// Why a key is queued; a later reason is the stronger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The initial list, a requeue or a retry: nothing has changed.
    Resync,
    /// A change that may wait for those that follow it: it runs within `EventDelays::detail`.
    Detail,
    /// A child changed, or something of the object itself that is not its spec. It runs at once, unless the last run
    /// ended less than `EventDelays::gap` ago.
    Event,
    /// The spec changed, the object is being deleted, or it is gone.
    Spec,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    After(Duration),
    /// Soon once more, and on any event at once: what it was decided on has changed. Not a failure.
    Again,
    /// `retry_after`: the API server's `Retry-After`; the next try comes no sooner.
    Failed {
        retry_after: Option<Duration>,
    },
}

/// How long changes wait, so that those that come together share one run. A spec change never waits.
#[derive(Clone, Copy, Debug)]
pub struct EventDelays {
    /// Between the end of a run and the next one for an event.
    pub gap: Duration,
    /// The longest wait of a detail.
    pub detail: Duration,
}

impl Default for EventDelays {
    fn default() -> Self {
        Self { gap: Duration::from_millis(100), detail: Duration::from_secs(2) }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
    /// Each wait is drawn from [wait, wait × (1 + jitter)], so that a thousand failed objects do not retry as one.
    pub jitter: f64,
    /// How often a spec change may jump the back-off of one key.
    pub jump_gap: Duration,
    /// The longest wait of a key that is to run again without having failed.
    pub longest_again: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(5),
            longest: Duration::from_secs(60),
            jitter: 0.1,
            jump_gap: Duration::from_secs(1),
            longest_again: Duration::from_secs(1),
        }
    }
}

/// See the file's head. Shared by reference between the caches' subscribers and the workers.
#[derive(Debug)]
pub struct Queue {
    backoff: Backoff,
    delays: EventDelays,
    state: Mutex<State>,
    wake: Notify,
}

/// Figures for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Ready to run now.
    pub waiting: usize,
    /// Being run.
    pub running: usize,
    /// In back-off after a failure.
    pub failing: usize,
}

/// Waits for the timer at this time. If its wait is cancelled, another one that waits takes over.
struct TimerWaiter<'a> {
    queue: &'a Queue,
    at: Instant,
    is_finished: bool,
}

impl TimerWaiter<'_> {
    /// Its wait is over. False if another one waits for an earlier timer.
    fn finish(mut self, state: &mut State) -> bool {
        self.is_finished = true;
        let keeps = state.waited_until == Some(self.at);
        if keeps {
            state.waited_until = None;
        }
        keeps
    }
}

impl Drop for TimerWaiter<'_> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let mut state = self.queue.lock();
        // If not, another one waits for an earlier timer.
        if state.waited_until == Some(self.at) {
            state.waited_until = None;
            drop(state);
            self.queue.wake.notify_one();
        }
    }
}

impl Queue {
    pub fn new(backoff: Backoff, delays: EventDelays) -> Self {
        Self { backoff, delays, state: Mutex::default(), wake: Notify::new() }
    }

    /// Something happened to this key.
    pub fn add(&self, key: &Key, reason: Reason) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.add(key, reason, Instant::now(), &self.backoff, &self.delays);
        drop(state);
        self.wake.notify_one();
    }

    /// The next key to run; `None` once the queue is closed. Each key taken must be given back with `done`.
    pub async fn take(&self) -> Option<Key> {
        let mut timer_waiter: Option<TimerWaiter<'_>> = None;
        loop {
            // Before the look at the state, so that an `add` in between is not missed.
            let woken = self.wake.notified();
            {
                let mut state = self.lock();
                let was_timer_waiter =
                    timer_waiter.take().is_some_and(|timer_waiter| timer_waiter.finish(&mut state));
                if state.closed {
                    self.wake.notify_waiters();
                    self.wake.notify_one();
                    return None;
                }
                let now = Instant::now();
                state.forget_ended(now, &self.delays);
                state.fire_timers(now);
                if let Some(key) = state.pick() {
                    // Another one takes the next key, or waits for the next timer.
                    if was_timer_waiter || state.lanes.iter().any(|lane| !lane.is_empty()) {
                        self.wake.notify_one();
                    }
                    return Some(key);
                }
                timer_waiter = self.timer_waiter(&mut state);
            }
            match &timer_waiter {
                Some(TimerWaiter { at, .. }) => {
                    tokio::select! {
                        () = woken => {}
                        () = tokio::time::sleep_until(*at) => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    /// One of those that wait for a key waits for the next timer as well: a timer must not wake them all.
    fn timer_waiter(&self, state: &mut State) -> Option<TimerWaiter<'_>> {
        let timer = state.timers.keys().next().map(|(at, _)| *at);
        // What the gap keeps is removed also if nothing else happens.
        let forgotten = state.ended.back().map(|(ended, _)| *ended + self.delays.gap);
        let at = timer.into_iter().chain(forgotten).min()?;
        if state.waited_until.is_some_and(|kept| kept <= at) {
            return None;
        }
        state.waited_until = Some(at);
        Some(TimerWaiter { queue: self, at, is_finished: false })
    }

    pub fn done(&self, key: &Key, outcome: Outcome) {
        let mut state = self.lock();
        state.done(key, outcome, Instant::now(), &self.backoff, &self.delays);
        drop(state);
        self.wake.notify_one();
    }

    /// No key is given out any more; what runs may end.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    pub fn depth(&self) -> Depth {
        self.lock().depth()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets objects be reconciled for a reason outside of the API. Wakes that come close together share one run, and none
/// bypasses the back-off of an object, as with events of children.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Queue>);

impl Waker {
    pub(crate) fn of(queue: &Arc<Queue>) -> Self {
        Self(Arc::clone(queue))
    }

    pub fn wake(&self, key: &Key) {
        self.0.add(key, Reason::Event);
    }
}

#[cfg(test)]
mod tests;
