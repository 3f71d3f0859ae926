//! The keyed work queue: which object is reconciled next, and when a failed one is tried again.
//!
//! Deduplicated, one run per key at a time, changes before resyncs, per-key exponential back-off that child events
//! neither bypass nor inflate and that a spec change may jump. Events of children that come close together share one
//! run: each is delayed at most, none is dropped. It knows keys and times, no objects; it makes no decision about an
//! object and starts no task.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    backoff::{doubled, spread},
    key::Key,
};

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

/// A server that asks for a longer pause than this is asked again before.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);
/// One in this many picks is taken from the resync lane although changes wait, so that a storm of changes does not starve it.
const RESYNC_SHARE: u32 = 17;

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

#[derive(Debug, Default)]
struct State {
    /// Changes, then resyncs.
    lanes: [VecDeque<Key>; 2],
    keys: HashMap<Key, Entry>,
    timers: BTreeMap<(Instant, u64), Key>,
    /// Runs that ended less than the gap ago, the oldest first.
    ended: VecDeque<(Instant, Key)>,
    /// Until when a `TimerWaiter` waits.
    waited_until: Option<Instant>,
    serial: u64,
    picks: u32,
    closed: bool,
}

/// Only keys with something to remember have one: quiet keys keep no memory.
#[derive(Debug, Default)]
struct Entry {
    queued: Option<Reason>,
    running: Option<Running>,
    failures: u32,
    /// How often in a row it was to run again without having failed.
    again: u32,
    timer: Option<(Instant, u64)>,
    last_jump: Option<Instant>,
    /// The timer is that of a jump which the gap has put off.
    jump_is_due: bool,
    /// What the timer stands for besides a resync.
    due: Option<Reason>,
    /// The end of the last run, for as long as the gap after it.
    ended: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    /// The strongest reason that came while it ran.
    again: Option<Reason>,
    /// A run that jumped the back-off does not count as one more failure.
    jumped: bool,
}

impl Entry {
    /// Until when a change waits; `None`: it runs now.
    fn not_before(&self, reason: Reason, now: Instant, delays: &EventDelays) -> Option<Instant> {
        match reason {
            Reason::Resync | Reason::Spec => None,
            Reason::Detail => Some(now + delays.detail),
            Reason::Event => self.ended.map(|ended| ended + delays.gap).filter(|end| *end > now),
        }
    }

    fn is_backing_off(&self) -> bool {
        self.failures > 0 && self.timer.is_some()
    }

    fn is_quiet(&self) -> bool {
        let Self { queued, running, failures, again, timer, last_jump: _, jump_is_due: _, due: _, ended } =
            self;
        queued.is_none()
            && running.is_none()
            && *failures == 0
            && *again == 0
            && timer.is_none()
            && ended.is_none()
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
        let state = self.lock();
        Depth {
            waiting: state.lanes.iter().map(VecDeque::len).sum(),
            running: state.keys.values().filter(|entry| entry.running.is_some()).count(),
            failing: state.keys.values().filter(|entry| entry.failures > 0).count(),
        }
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

impl State {
    fn add(&mut self, key: &Key, reason: Reason, now: Instant, backoff: &Backoff, delays: &EventDelays) {
        self.forget_ended(now, delays);
        let entry = self.keys.entry(key.clone()).or_default();
        if let Some(running) = &mut entry.running {
            running.again = running.again.max(Some(reason));
            return;
        }
        if entry.is_backing_off() {
            match reason {
                // The timer covers it.
                Reason::Resync | Reason::Detail | Reason::Event => return,
                Reason::Spec => return self.jump(key, now, backoff),
            }
        }
        match entry.queued {
            Some(_) if reason <= Reason::Detail => return,
            // A run that lacked the newest state waits for nothing else.
            None if entry.again == 0 => {
                if let Some(at) = entry.not_before(reason, now, delays) {
                    return self.run_at(key, at, reason);
                }
            }
            Some(_) | None => {}
        }
        self.run_now(key, reason);
    }

    /// The run that comes now decides anew when to come again.
    fn run_now(&mut self, key: &Key, reason: Reason) {
        if let Some(timer) = self.keys.get_mut(key).and_then(|entry| entry.timer.take()) {
            self.timers.remove(&timer);
        }
        self.enqueue(key, reason);
    }

    /// A changed spec runs now although the key is in back-off, but not more often than the gap allows.
    fn jump(&mut self, key: &Key, now: Instant, backoff: &Backoff) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        let allowed = entry.last_jump.map_or(now, |last| last + backoff.jump_gap);
        if allowed <= now {
            entry.last_jump = Some(now);
            self.enqueue(key, Reason::Spec);
        } else if entry.timer.is_none_or(|(at, _)| allowed < at) {
            self.set_timer(key, allowed);
            if let Some(entry) = self.keys.get_mut(key) {
                entry.jump_is_due = true;
            }
        }
    }

    fn enqueue(&mut self, key: &Key, reason: Reason) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        let lane = usize::from(reason == Reason::Resync);
        match entry.queued {
            None => self.lanes[lane].push_back(key.clone()),
            // A change overtakes the resync that waits; its old place is skipped when it comes up.
            Some(Reason::Resync) if lane == 0 => self.lanes[0].push_back(key.clone()),
            Some(_) => {}
        }
        entry.queued = entry.queued.max(Some(reason));
    }

    /// The timer that is set already stays, if it comes first.
    fn run_at(&mut self, key: &Key, at: Instant, reason: Reason) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        let due = entry.due.max(Some(reason));
        if entry.timer.is_none_or(|(set, _)| at < set) {
            self.set_timer(key, at);
        }
        if let Some(entry) = self.keys.get_mut(key) {
            entry.due = due;
        }
    }

    /// Entries that are kept for the gap alone are removed once it is over.
    fn forget_ended(&mut self, now: Instant, delays: &EventDelays) {
        while let Some((at, key)) = self.ended.pop_front_if(|(at, _)| *at + delays.gap <= now) {
            let Some(entry) = self.keys.get_mut(&key) else { continue };
            entry.ended = entry.ended.filter(|ended| *ended != at);
            if entry.is_quiet() {
                self.keys.remove(&key);
            }
        }
    }

    fn set_timer(&mut self, key: &Key, at: Instant) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        if let Some(old) = entry.timer.take() {
            self.timers.remove(&old);
        }
        self.serial += 1;
        entry.jump_is_due = false;
        entry.due = None;
        entry.timer = Some((at, self.serial));
        self.timers.insert((at, self.serial), key.clone());
    }

    fn fire_timers(&mut self, now: Instant) {
        while let Some(first) = self.timers.first_entry() {
            if first.key().0 > now {
                return;
            }
            let key = first.remove();
            let Some(entry) = self.keys.get_mut(&key) else { continue };
            entry.timer = None;
            let due = entry.due.take().unwrap_or(Reason::Resync);
            let reason = if entry.jump_is_due { Reason::Spec } else { due };
            match &mut entry.running {
                // It jumped its back-off and still runs when the wait is over.
                Some(running) => running.again = running.again.max(Some(reason)),
                None => self.enqueue(&key, reason),
            }
        }
    }

    fn pick(&mut self) -> Option<Key> {
        loop {
            self.picks = self.picks.wrapping_add(1);
            let low_first = self.picks.is_multiple_of(RESYNC_SHARE);
            let [high, low] = &mut self.lanes;
            let (first, second) = if low_first { (low, high) } else { (high, low) };
            let key = first.pop_front().or_else(|| second.pop_front())?;
            let Some(entry) = self.keys.get_mut(&key) else { continue };
            // Left behind in the slow lane by a change that has overtaken it, and run since.
            if entry.queued.take().is_none() {
                continue;
            }
            let jumped = entry.is_backing_off() || std::mem::take(&mut entry.jump_is_due);
            entry.running = Some(Running { again: None, jumped });
            return Some(key);
        }
    }

    fn done(&mut self, key: &Key, outcome: Outcome, now: Instant, backoff: &Backoff, delays: &EventDelays) {
        self.forget_ended(now, delays);
        let Some(entry) = self.keys.get_mut(key) else { return };
        let Some(Running { again, jumped }) = entry.running.take() else { return };
        match outcome {
            Outcome::Done | Outcome::After(_) => {
                entry.failures = 0;
                entry.again = 0;
                entry.last_jump = None;
                entry.jump_is_due = false;
                entry.due = None;
                entry.ended = Some(now);
                let again = again.map(|reason| (reason, entry.not_before(reason, now, delays)));
                if let Some(timer) = entry.timer.take() {
                    self.timers.remove(&timer);
                }
                self.ended.push_back((now, key.clone()));
                if let Outcome::After(wait) = outcome {
                    self.set_timer(key, now + wait);
                }
                match again {
                    Some((reason, Some(at))) => self.run_at(key, at, reason),
                    Some((reason, None)) => self.run_now(key, reason),
                    None => {}
                }
            }
            Outcome::Again => {
                // The first time at once: mostly the state that it lacked is known by now.
                let wait = match entry.again {
                    0 => Duration::ZERO,
                    times => wait_after(times, backoff).min(backoff.longest_again),
                };
                entry.failures = 0;
                entry.again = entry.again.saturating_add(1);
                match again {
                    Some(reason) => self.enqueue(key, reason),
                    None => self.set_timer(key, now + wait),
                }
            }
            Outcome::Failed { retry_after } => {
                let retry_after = retry_after.map(|wait| wait.min(LONGEST_RETRY_AFTER));
                if !jumped {
                    entry.failures = entry.failures.saturating_add(1);
                }
                let wait = wait_after(entry.failures, backoff).max(retry_after.unwrap_or_default());
                let at =
                    entry.timer.map_or(now + wait, |(at, _)| at.max(now + retry_after.unwrap_or_default()));
                self.set_timer(key, at);
                if again == Some(Reason::Spec) {
                    self.jump(key, now, backoff);
                }
            }
        }
        if self.keys.get(key).is_some_and(Entry::is_quiet) {
            self.keys.remove(key);
        }
    }
}

fn wait_after(failures: u32, backoff: &Backoff) -> Duration {
    spread(doubled(backoff.first, backoff.longest, failures), backoff.jitter)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("demo", name)
    }

    fn queue() -> Queue {
        Queue::new(Backoff { jitter: 0.0, ..Backoff::default() }, EventDelays::default())
    }

    async fn taken_within(queue: &Queue, wait: Duration) -> Option<Key> {
        tokio::time::timeout(wait, queue.take()).await.ok().flatten()
    }

    const SOON: Duration = Duration::from_millis(1);
    /// A timer counts whole milliseconds, and fires in the one after.
    const GAP: Duration = Duration::from_millis(101);

    #[tokio::test(start_paused = true)]
    async fn a_key_added_many_times_runs_once() {
        let queue = queue();
        for _ in 0..5 {
            queue.add(&key("a"), Reason::Event);
        }
        assert_eq!(taken_within(&queue, SOON).await, Some(key("a")));
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(taken_within(&queue, SOON).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_a_run_runs_again_and_never_in_parallel() {
        let queue = queue();
        queue.add(&key("a"), Reason::Event);
        assert!(taken_within(&queue, SOON).await.is_some());
        queue.add(&key("a"), Reason::Event);
        assert_eq!(taken_within(&queue, SOON).await, None, "still running");
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(taken_within(&queue, GAP).await, Some(key("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn ten_events_within_the_gap_start_two_runs_and_the_second_comes_after_the_last_of_them() {
        let queue = queue();
        let start = Instant::now();
        let mut runs = Vec::new();
        for _ in 0..10 {
            queue.add(&key("a"), Reason::Event);
            if let Some(taken) = taken_within(&queue, SOON).await {
                runs.push(start.elapsed());
                queue.done(&taken, Outcome::Done);
            }
            tokio::time::sleep(Duration::from_millis(8)).await;
        }
        assert_eq!(runs.len(), 1, "{runs:?}");
        assert_eq!(taken_within(&queue, GAP).await, Some(key("a")));
        assert!(start.elapsed() >= EventDelays::default().gap, "{:?}", start.elapsed());
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(taken_within(&queue, Duration::from_secs(60)).await, None);
        queue.lock().forget_ended(Instant::now(), &EventDelays::default());
        assert!(queue.lock().keys.is_empty() && queue.lock().ended.is_empty(), "quiet keys keep no memory");
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_never_stop_are_seen_once_per_gap() {
        let queue = queue();
        let (start, mut runs) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(10) {
            queue.add(&key("a"), Reason::Event);
            if let Some(taken) = taken_within(&queue, Duration::from_millis(10)).await {
                runs += 1;
                queue.done(&taken, Outcome::Done);
            }
        }
        assert!((80..=101).contains(&runs), "{runs} runs in 100 gaps");
    }

    #[tokio::test(start_paused = true)]
    async fn a_spec_change_waits_for_no_gap_and_takes_the_events_that_wait_with_it() {
        let queue = queue();
        queue.add(&key("a"), Reason::Spec);
        queue.take().await.unwrap();
        queue.add(&key("a"), Reason::Event);
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(taken_within(&queue, SOON).await, None);
        queue.add(&key("a"), Reason::Spec);
        assert_eq!(taken_within(&queue, SOON).await, Some(key("a")));
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(taken_within(&queue, Duration::from_secs(60)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_detail_is_seen_in_time_and_together_with_what_follows_it() {
        let queue = queue();
        let start = Instant::now();
        let late = EventDelays::default().detail + Duration::from_millis(1);
        for _ in 0..5 {
            queue.add(&key("a"), Reason::Detail);
            assert_eq!(taken_within(&queue, SOON).await, None);
        }
        assert_eq!(taken_within(&queue, late).await, Some(key("a")));
        assert!(start.elapsed() >= EventDelays::default().detail, "{:?}", start.elapsed());
        queue.add(&key("a"), Reason::Detail);
        queue.done(&key("a"), Outcome::After(Duration::from_secs(600)));
        assert_eq!(taken_within(&queue, late).await, Some(key("a")), "one that comes during a run, too");
        queue.done(&key("a"), Outcome::After(Duration::from_secs(1)));
        queue.add(&key("a"), Reason::Detail);
        assert_eq!(
            taken_within(&queue, Duration::from_millis(1_001)).await,
            Some(key("a")),
            "no later than planned"
        );
        queue.done(&key("a"), Outcome::Done);
        tokio::time::sleep(GAP).await;
        queue.add(&key("a"), Reason::Detail);
        queue.add(&key("a"), Reason::Event);
        assert_eq!(taken_within(&queue, SOON).await, Some(key("a")), "an event takes it with it");
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(taken_within(&queue, Duration::from_secs(60)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_overtake_resyncs_but_do_not_starve_them() {
        let queue = queue();
        queue.add(&key("resync"), Reason::Resync);
        for number in 0..40 {
            queue.add(&key(&format!("change-{number:02}")), Reason::Event);
        }
        let mut place = None;
        for pick in 1..=41 {
            let taken = taken_within(&queue, SOON).await.unwrap();
            if taken == key("resync") {
                place = Some(pick);
            }
            queue.done(&taken, Outcome::Done);
        }
        assert_eq!(place, Some(17));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_resync_that_becomes_a_change_runs_once() {
        let queue = queue();
        queue.add(&key("a"), Reason::Resync);
        queue.add(&key("a"), Reason::Spec);
        assert_eq!(taken_within(&queue, SOON).await, Some(key("a")));
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(taken_within(&queue, GAP).await, None);
        queue.lock().forget_ended(Instant::now(), &EventDelays::default());
        assert!(queue.lock().keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn events_neither_bypass_nor_inflate_the_backoff() {
        let queue = queue();
        let start = Instant::now();
        let mut runs = Vec::new();
        queue.add(&key("a"), Reason::Event);
        // An event every 200 ms for 20 s beside a key that always fails.
        let mut next_event = start + Duration::from_millis(200);
        while start.elapsed() < Duration::from_secs(20) {
            let until_event = next_event.saturating_duration_since(Instant::now());
            if let Some(taken) = taken_within(&queue, until_event).await {
                runs.push(start.elapsed());
                queue.done(&taken, Outcome::Failed { retry_after: None });
            } else {
                queue.add(&key("a"), Reason::Event);
                next_event += Duration::from_millis(200);
            }
        }
        // 0, then 5, 10, 20 … ms after each other: 12 doublings of 5 ms fit into 20 s, whatever the events.
        assert_eq!(runs.len(), 12, "{runs:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_spec_change_jumps_the_backoff_once_a_second_and_its_failure_does_not_count() {
        let queue = queue();
        queue.add(&key("a"), Reason::Event);
        for _ in 0..14 {
            let taken = queue.take().await.unwrap();
            queue.done(&taken, Outcome::Failed { retry_after: None });
        }
        let failures = queue.lock().keys[&key("a")].failures;
        queue.add(&key("a"), Reason::Spec);
        assert_eq!(taken_within(&queue, SOON).await, Some(key("a")), "the first jump is at once");
        queue.done(&key("a"), Outcome::Failed { retry_after: None });
        assert_eq!(queue.lock().keys[&key("a")].failures, failures);
        queue.add(&key("a"), Reason::Spec);
        assert_eq!(taken_within(&queue, SOON).await, None, "the second one waits for the gap");
        assert_eq!(taken_within(&queue, Duration::from_secs(1)).await, Some(key("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_after_is_a_floor() {
        let queue = queue();
        queue.add(&key("a"), Reason::Event);
        queue.take().await.unwrap();
        queue.done(&key("a"), Outcome::Failed { retry_after: Some(Duration::from_secs(7)) });
        assert_eq!(taken_within(&queue, Duration::from_millis(6_990)).await, None);
        assert_eq!(taken_within(&queue, Duration::from_millis(20)).await, Some(key("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_after_of_a_day_is_not_believed() {
        let queue = queue();
        queue.add(&key("a"), Reason::Event);
        queue.take().await.unwrap();
        queue.done(&key("a"), Outcome::Failed { retry_after: Some(Duration::from_secs(86_400)) });
        assert_eq!(taken_within(&queue, LONGEST_RETRY_AFTER).await, Some(key("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_that_the_gap_has_put_off_does_not_count_as_a_failure_either() {
        let queue = queue();
        queue.add(&key("a"), Reason::Event);
        for _ in 0..14 {
            let taken = queue.take().await.unwrap();
            queue.done(&taken, Outcome::Failed { retry_after: None });
        }
        let failures = queue.lock().keys[&key("a")].failures;
        for _ in 0..2 {
            queue.add(&key("a"), Reason::Spec);
            assert_eq!(taken_within(&queue, Duration::from_secs(1)).await, Some(key("a")));
            queue.done(&key("a"), Outcome::Failed { retry_after: None });
        }
        assert_eq!(queue.lock().keys[&key("a")].failures, failures);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_to_run_again_runs_at_once_then_ever_more_rarely_and_on_each_event() {
        let queue = queue();
        let mut waits = Vec::new();
        queue.add(&key("a"), Reason::Event);
        for _ in 0..12 {
            let before = Instant::now();
            let taken = queue.take().await.unwrap();
            waits.push(before.elapsed().as_millis());
            queue.done(&taken, Outcome::Again);
        }
        // A timer counts whole milliseconds, and fires in the one after.
        assert!(waits[1] <= 1 && waits.is_sorted() && *waits.last().unwrap() <= 1_001, "{waits:?}");
        queue.add(&key("a"), Reason::Event);
        assert_eq!(taken_within(&queue, SOON).await, Some(key("a")), "it has not failed");
        queue.done(&key("a"), Outcome::Done);
        queue.lock().forget_ended(Instant::now() + GAP, &EventDelays::default());
        assert!(queue.lock().keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_requeue_comes_at_its_time_and_a_change_replaces_it() {
        let queue = queue();
        queue.add(&key("a"), Reason::Event);
        queue.take().await.unwrap();
        queue.done(&key("a"), Outcome::After(Duration::from_secs(30)));
        queue.add(&key("a"), Reason::Event);
        assert!(taken_within(&queue, GAP).await.is_some());
        queue.done(&key("a"), Outcome::Done);
        assert_eq!(taken_within(&queue, Duration::from_secs(60)).await, None, "the old timer is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_fires_although_the_one_that_waited_for_it_has_left() {
        let queue = Arc::new(queue());
        let wait_for_one = || {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.take().await })
        };
        queue.add(&key("a"), Reason::Detail);
        let (first, second) = (wait_for_one(), wait_for_one());
        tokio::time::sleep(SOON).await;
        first.abort();
        assert!(first.await.is_err());
        let start = Instant::now();
        assert_eq!(second.await.unwrap(), Some(key("a")));
        assert!(start.elapsed() <= EventDelays::default().detail, "{:?}", start.elapsed());
        queue.done(&key("a"), Outcome::After(Duration::from_secs(60)));
        let late = wait_for_one();
        tokio::time::sleep(SOON).await;
        queue.add(&key("b"), Reason::Detail);
        assert_eq!(taken_within(&queue, Duration::from_secs(3)).await, None, "the other one has taken it");
        assert_eq!(late.await.unwrap(), Some(key("b")), "an earlier timer than the one that was waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_queue_gives_nothing_out() {
        let queue = Arc::new(queue());
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.take().await }
        });
        tokio::task::yield_now().await;
        queue.add(&key("late"), Reason::Resync);
        queue.close();
        queue.add(&key("later"), Reason::Spec);
        assert!(waiting.await.unwrap().is_none_or(|taken| taken == key("late")));
        assert_eq!(queue.take().await, None);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_up_is_lost_and_no_key_overlaps_under_random_load() {
        const KEYS: usize = 50;
        let queue = Arc::new(Queue::new(
            Backoff { longest: Duration::from_millis(20), ..Backoff::default() },
            EventDelays { gap: Duration::from_millis(2), detail: Duration::from_millis(5) },
        ));
        let busy: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| AtomicUsize::new(0)).collect());
        // `wanted` is raised before each add, `seen` is what the last run of the key has read.
        let wanted: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| AtomicUsize::new(0)).collect());
        let seen: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| AtomicUsize::new(0)).collect());
        let workers: Vec<_> = (0..16)
            .map(|_| {
                let (queue, busy, wanted, seen) =
                    (Arc::clone(&queue), Arc::clone(&busy), Arc::clone(&wanted), Arc::clone(&seen));
                tokio::spawn(async move {
                    while let Some(taken) = queue.take().await {
                        let index: usize = taken.name.parse().unwrap();
                        assert_eq!(busy[index].fetch_add(1, Ordering::SeqCst), 0, "two runs of one key");
                        let read = wanted[index].load(Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        busy[index].fetch_sub(1, Ordering::SeqCst);
                        if fastrand::u8(0..10) == 0 {
                            queue.done(&taken, Outcome::Failed { retry_after: None });
                        } else {
                            seen[index].store(read, Ordering::SeqCst);
                            queue.done(&taken, Outcome::Done);
                        }
                    }
                })
            })
            .collect();
        let adders: Vec<_> = (0..8)
            .map(|_| {
                let (queue, wanted) = (Arc::clone(&queue), Arc::clone(&wanted));
                tokio::spawn(async move {
                    for _ in 0..2_500 {
                        let index = fastrand::usize(0..KEYS);
                        wanted[index].fetch_add(1, Ordering::SeqCst);
                        let reason = [Reason::Resync, Reason::Detail, Reason::Event, Reason::Spec]
                            [fastrand::usize(0..4)];
                        queue.add(&key(&index.to_string()), reason);
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for adder in adders {
            adder.await.unwrap();
        }
        let all_seen = async {
            while !(0..KEYS)
                .all(|index| seen[index].load(Ordering::SeqCst) == wanted[index].load(Ordering::SeqCst))
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), all_seen)
            .await
            .expect("every add was followed by a run");
        queue.close();
        for worker in workers {
            worker.await.unwrap();
        }
    }
}
