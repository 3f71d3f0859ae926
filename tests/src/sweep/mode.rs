//! In which way one write of a controller goes wrong.

use std::{fmt, time::Duration};

/// What happens at the chosen write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The connection ends before the API server gets the request.
    NotSent,
    /// It is carried out, and the process is killed before it gets the answer.
    Killed,
    /// It is carried out, and the connection ends before the answer.
    AnswerLost,
    /// 409, and it is not carried out.
    Conflict,
    /// 429 with `Retry-After`, and it is not carried out.
    Throttled,
    /// 500, and it is not carried out.
    ServerError,
    /// It is carried out, and from then on no watch delivers anything for a while.
    WatchesSilent,
    /// It is carried out, and from then on all watches are closed, and refused for a while.
    WatchesRefused,
    /// It is carried out, the process is killed before it gets the answer, and the next one lists the objects as they
    /// were before the step.
    StaleLists,
}

impl Mode {
    pub const ALL: [Self; 9] = [
        Self::NotSent,
        Self::Killed,
        Self::AnswerLost,
        Self::Conflict,
        Self::Throttled,
        Self::ServerError,
        Self::WatchesSilent,
        Self::WatchesRefused,
        Self::StaleLists,
    ];

    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotSent => "not-sent",
            Self::Killed => "killed",
            Self::AnswerLost => "answer-lost",
            Self::Conflict => "conflict",
            Self::Throttled => "throttled",
            Self::ServerError => "server-error",
            Self::WatchesSilent => "watches-silent",
            Self::WatchesRefused => "watches-refused",
            Self::StaleLists => "stale-lists",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The write that goes wrong: the first one of a life is number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    pub mode: Mode,
    pub write: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, write } = self;
        write!(f, "--mode {mode} --write {write}")
    }
}

/// How long watches are silent or refused.
pub(super) const OUTAGE: Duration = Duration::from_secs(3);
/// What a throttled write is asked to wait.
pub(super) const RETRY_AFTER_SECONDS: u32 = 1;
/// Until when a restarted process lists the past: some kinds sooner than others, as each has a cache of its own in an API
/// server.
pub(super) const CATCHES_UP_WITHIN: [Duration; 2] =
    [Duration::from_millis(500), Duration::from_millis(1_500)];

impl Fault {
    /// How long the lists of the roots and those of everything else are old: the one, the other, or both for longer.
    pub(super) fn catch_up(self) -> (Duration, Duration) {
        let [soon, late] = CATCHES_UP_WITHIN;
        match self.write % 3 {
            0 => (soon, late),
            1 => (late, soon),
            _ => (late, late),
        }
    }
}
