//! Which key is due: the transitions of the queue. Pure: callers give the time.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{Backoff, Depth, EventDelays, Outcome, Reason};
use crate::{
    backoff::{doubled, spread},
    key::Key,
};

/// A server that asks for a longer pause than this is asked again before.
pub(super) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);
/// One in this many picks is taken from the resync lane although changes wait, so that a storm of changes does not starve it.
const RESYNC_SHARE: u32 = 17;

#[derive(Debug, Default)]
pub(super) struct State {
    /// Changes, then resyncs.
    pub(super) lanes: [VecDeque<Key>; 2],
    pub(super) keys: HashMap<Key, Entry>,
    pub(super) timers: BTreeMap<(Instant, u64), Key>,
    /// Runs that ended less than the gap ago, the oldest first.
    pub(super) ended: VecDeque<(Instant, Key)>,
    /// Until when a `TimerWaiter` waits.
    pub(super) waited_until: Option<Instant>,
    serial: u64,
    picks: u32,
    pub(super) closed: bool,
}

/// Only keys with something to remember have one: quiet keys keep no memory.
#[derive(Debug, Default)]
pub(super) struct Entry {
    queued: Option<Reason>,
    running: Option<Running>,
    pub(super) failures: u32,
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

impl State {
    pub(super) fn add(
        &mut self,
        key: &Key,
        reason: Reason,
        now: Instant,
        backoff: &Backoff,
        delays: &EventDelays,
    ) {
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

    pub(super) fn depth(&self) -> Depth {
        Depth {
            waiting: self.lanes.iter().map(VecDeque::len).sum(),
            running: self.keys.values().filter(|entry| entry.running.is_some()).count(),
            failing: self.keys.values().filter(|entry| entry.failures > 0).count(),
        }
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
    pub(super) fn forget_ended(&mut self, now: Instant, delays: &EventDelays) {
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

    pub(super) fn fire_timers(&mut self, now: Instant) {
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

    pub(super) fn pick(&mut self) -> Option<Key> {
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

    pub(super) fn done(
        &mut self,
        key: &Key,
        outcome: Outcome,
        now: Instant,
        backoff: &Backoff,
        delays: &EventDelays,
    ) {
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
