//! The launcher's waiting times. Their order makes the fence work: see `FENCE`.

use std::time::Duration;

/// How often the marker is read while the trainer runs.
const POLL: Duration = Duration::from_secs(1);
/// The trainer is suspended if the marker could not be read for so long. Longer than a busy network file system takes.
const UNVERIFIED: Duration = Duration::from_secs(5);
/// A trainer is suspended no longer than this: an output that is gone for good must not hold accelerators for ever.
const SUSPENDED: Duration = Duration::from_secs(15 * 60);
/// The wait of an attempt whose predecessor has not ended. Longer than `UNVERIFIED` and two polls, after which the
/// predecessor's trainer is killed or suspended.
const FENCE: Duration = Duration::from_secs(15);
/// How long ranks wait for the marker of rank 0, whose image may still be pulled.
const LEADER: Duration = Duration::from_secs(30 * 60);
/// What is kept of the grace period for ending the trainer, examining the checkpoint and writing the message.
const RESERVE: Duration = Duration::from_secs(10);
/// From SIGTERM to SIGKILL of a trainer that has nothing to save.
const KILL: Duration = Duration::from_secs(4);
/// From the end of rank 0, or from a complete checkpoint, to SIGTERM of a trainer that was asked to end and goes on.
const SETTLE: Duration = Duration::from_secs(15);
/// How long processes may take to end after SIGKILL, and their output to be copied.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the examination of the last checkpoint may take: it reads headers only.
const EXAMINE: Duration = Duration::from_secs(60);
/// How long the last write of the marker may take.
const RELEASE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) poll: Duration,
    pub(crate) unverified: Duration,
    pub(crate) suspended: Duration,
    pub(crate) fence: Duration,
    pub(crate) leader: Duration,
    pub(crate) kill: Duration,
    pub(crate) settle: Duration,
    pub(crate) drain: Duration,
    pub(crate) examine: Duration,
    pub(crate) release: Duration,
    /// From the request to end until SIGTERM of a trainer that saves.
    pub(crate) save: Duration,
    /// From the request to end until the launcher's own end.
    pub(crate) grace: Duration,
}

impl Timing {
    pub(crate) fn new(grace_seconds: u32, divisor: u32) -> Self {
        let grace = Duration::from_secs(u64::from(grace_seconds));
        // Of a short grace period, half is for the checkpoint.
        let reserve = (RESERVE / divisor).min(grace / 2);
        Self {
            poll: POLL / divisor,
            unverified: UNVERIFIED / divisor,
            suspended: SUSPENDED / divisor,
            fence: FENCE / divisor,
            leader: LEADER / divisor,
            kill: (KILL / divisor).min(reserve * 2 / 5),
            settle: SETTLE / divisor,
            drain: DRAIN,
            examine: EXAMINE,
            release: RELEASE,
            save: grace.saturating_sub(reserve),
            grace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_outlasts_a_predecessor_that_cannot_read_the_marker() {
        let timing = Timing::new(60, 1);
        assert!(timing.fence > timing.unverified + timing.poll * 2);
    }

    #[test]
    fn ten_seconds_of_the_grace_period_or_half_of_a_short_one_are_kept() {
        let saves = |grace| Timing::new(grace, 1).save.as_secs_f32();
        assert_eq!([saves(600), saves(30), saves(12), saves(1)], [590.0, 20.0, 6.0, 0.5]);
        assert!(Timing::new(2, 1).kill < Duration::from_secs(1));
    }
}
