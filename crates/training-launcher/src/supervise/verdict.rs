//! Decides how a run has ended. Pure.
//!
//! A trainer that ends without an error has not necessarily trained: one that was asked to end does the same. Success
//! is therefore proven by the newest complete checkpoint.

use api::launcher::ExitCode;
use training_log::Position;

use crate::{checkpoints::State, status, supervise::processes::Exit};

/// What is known of a run that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) exit: Exit,
    /// The trainer was asked to end, or was ended.
    pub(crate) is_stopped: bool,
    /// Other ranks cannot prove a success: neither the log nor the checkpoints are theirs.
    pub(crate) is_leader: bool,
    /// Of the newest complete checkpoint that this run has written or resumed from.
    pub(crate) checkpoint: Option<&'a State>,
    /// The last one of the log.
    pub(crate) position: Option<Position>,
    /// The log says that the trainer itself ended the training.
    pub(crate) has_stopped_early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Succeeded,
    /// The trainer itself decided to end before the last step.
    StoppedEarly,
    Stopped,
    Incomplete,
    Failed(u8),
}

impl Verdict {
    pub(crate) fn code(self) -> u8 {
        match self {
            Verdict::Succeeded | Verdict::StoppedEarly => 0,
            Verdict::Stopped => status(ExitCode::Stopped),
            Verdict::Incomplete => status(ExitCode::Incomplete),
            Verdict::Failed(code) => code,
        }
    }
}

pub(crate) fn verdict(facts: &Facts<'_>) -> Verdict {
    let is_proven = facts.is_leader && facts.exit == Exit::Code(0) && has_reached_the_end(facts);
    match facts.exit {
        _ if is_proven => Verdict::Succeeded,
        _ if facts.is_stopped => Verdict::Stopped,
        Exit::Code(0) if !facts.is_leader => Verdict::Succeeded,
        Exit::Code(0) if has_stopped_early(facts) => Verdict::StoppedEarly,
        Exit::Code(0) => Verdict::Incomplete,
        exit => Verdict::Failed(passed_on(exit)),
    }
}

fn has_reached_the_end(facts: &Facts<'_>) -> bool {
    let Some(state) = facts.checkpoint else { return false };
    // Trainers with a loop of their own may count other steps in the state of their checkpoints than in their log.
    let by_log = facts.position.is_some_and(|position| {
        position.total > 0 && position.step >= position.total && state.global_step >= position.step
    });
    state.is_last_step() || by_log
}

/// The decision must be that of the newest checkpoint: a training may go on after an old one.
fn has_stopped_early(facts: &Facts<'_>) -> bool {
    facts.checkpoint.is_some_and(|state| {
        let is_newest = facts.position.is_none_or(|position| position.step <= state.global_step);
        is_newest && (state.has_decided_to_end() || facts.has_stopped_early)
    })
}

/// The trainer's exit code; as shells write it, if a signal has ended the trainer. Codes of the launcher have other
/// causes.
fn passed_on(exit: Exit) -> u8 {
    const SIGNALLED: i32 = 128;
    let code = match exit {
        Exit::Code(code) if ExitCode::from_code(code).is_some() => 1,
        Exit::Code(code) => code,
        Exit::Signal(signal) => SIGNALLED + signal,
    };
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(global_step: i64, callbacks: &str) -> State {
        let text = format!(
            r#"{{"global_step": {global_step}, "max_steps": 27, "stateful_callbacks": {callbacks}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn facts(state: &State) -> Facts<'_> {
        Facts {
            exit: Exit::Code(0),
            is_stopped: false,
            is_leader: true,
            checkpoint: Some(state),
            position: None,
            has_stopped_early: false,
        }
    }

    fn at(step: i64) -> Option<Position> {
        Some(Position { step, total: 27 })
    }

    #[test]
    fn success_is_the_last_step_in_a_complete_checkpoint_and_exit_code_zero() {
        let last = state(27, "{}");
        assert_eq!(verdict(&facts(&last)), Verdict::Succeeded);
        assert_eq!(
            verdict(&Facts { checkpoint: None, position: at(27), ..facts(&last) }),
            Verdict::Incomplete
        );
        assert_eq!(verdict(&Facts { exit: Exit::Code(3), ..facts(&last) }), Verdict::Failed(3));
        let earlier = state(20, "{}");
        assert_eq!(verdict(&Facts { position: at(27), ..facts(&earlier) }), Verdict::Incomplete);
    }

    #[test]
    fn the_last_step_of_the_log_counts_where_the_state_has_another_total() {
        let state: State = serde_json::from_str(r#"{"global_step": 27, "max_steps": 108}"#).unwrap();
        assert_eq!(verdict(&Facts { position: at(27), ..facts(&state) }), Verdict::Succeeded);
        assert_eq!(verdict(&facts(&state)), Verdict::Incomplete);
    }

    #[test]
    fn an_interrupted_run_is_never_a_success() {
        let early = state(6, r#"{"TrainerControl": {"args": {"should_training_stop": true}}}"#);
        for exit in [Exit::Code(0), Exit::Code(1), Exit::Signal(15), Exit::Signal(9)] {
            for has_stopped_early in [false, true] {
                let facts = Facts { exit, is_stopped: true, has_stopped_early, ..facts(&early) };
                assert_eq!(verdict(&facts), Verdict::Stopped, "{exit:?}");
            }
        }
    }

    #[test]
    fn a_run_that_reaches_the_end_while_it_is_asked_to_stop_succeeds() {
        assert_eq!(verdict(&Facts { is_stopped: true, ..facts(&state(27, "{}")) }), Verdict::Succeeded);
    }

    #[test]
    fn an_early_stop_is_the_decision_of_the_newest_checkpoint_or_of_the_log() {
        let control = r#"{"TrainerControl": {"args": {"should_training_stop": true}}}"#;
        assert_eq!(verdict(&facts(&state(6, control))), Verdict::StoppedEarly);
        assert_eq!(verdict(&Facts { position: at(6), ..facts(&state(6, control)) }), Verdict::StoppedEarly);
        assert_eq!(verdict(&Facts { position: at(7), ..facts(&state(6, control)) }), Verdict::Incomplete);
        assert_eq!(
            verdict(&Facts { has_stopped_early: true, ..facts(&state(6, "{}")) }),
            Verdict::StoppedEarly
        );
        assert_eq!(verdict(&facts(&state(6, "{}"))), Verdict::Incomplete);
    }

    #[test]
    fn other_ranks_pass_on_the_code_of_their_trainer_unless_they_were_stopped() {
        let other = Facts { is_leader: false, checkpoint: None, ..facts(&State::default()) }.exit;
        let of = |exit, is_stopped| {
            verdict(&Facts {
                exit,
                is_stopped,
                is_leader: false,
                checkpoint: None,
                ..facts(&State::default())
            })
        };
        assert_eq!(of(other, false), Verdict::Succeeded);
        assert_eq!(of(Exit::Code(1), false), Verdict::Failed(1));
        assert_eq!(of(Exit::Code(0), true), Verdict::Stopped);
    }

    #[test]
    fn codes_of_the_launcher_are_not_passed_on() {
        let of = |exit| passed_on(exit);
        assert_eq!(
            [of(Exit::Code(80)), of(Exit::Code(87)), of(Exit::Code(79)), of(Exit::Code(89))],
            [1, 1, 79, 89]
        );
        assert_eq!([of(Exit::Code(247)), of(Exit::Signal(9)), of(Exit::Signal(15))], [247, 137, 143]);
    }
}
