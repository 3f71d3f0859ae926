//! When a trainer prints what: the schedule of its lines over a run. Pure, and the same for every reader.

use jiff::{SignedDuration, Timestamp};

use super::run::{End, Run, Training};

/// Something that is printed; `swift` has the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The command line.
    Begin,
    Step(u32),
    Save(u32),
    /// What follows the last step.
    Finish,
}

/// The events of a training in their order, without regard to its end.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    started: Timestamp,
    interval: SignedDuration,
    steps: u32,
    logged_every: u32,
    saved_every: u32,
    next: Option<Event>,
}

impl Timeline {
    pub(super) fn of(training: &Training, started: Timestamp) -> Self {
        // The last step comes one interval before the end, so that what follows it is printed in time.
        let interval = training.length / training.steps.saturating_add(1);
        Self {
            started,
            interval: SignedDuration::try_from(interval).unwrap_or(SignedDuration::MAX),
            steps: training.steps,
            logged_every: training.logged_every,
            saved_every: training.saved_every,
            next: Some(Event::Begin),
        }
    }

    fn at(&self, event: Event) -> Timestamp {
        let steps = match event {
            Event::Begin => 0,
            Event::Step(step) | Event::Save(step) => step,
            Event::Finish => self.steps,
        };
        let passed = self.interval.saturating_mul(i32::try_from(steps).unwrap_or(i32::MAX));
        self.started.saturating_add(passed).unwrap_or(Timestamp::MAX)
    }

    fn is_logged(&self, step: u32) -> bool {
        step == 1 || step == self.steps || step.is_multiple_of(self.logged_every)
    }

    fn is_saved(&self, step: u32) -> bool {
        step == self.steps || step.is_multiple_of(self.saved_every)
    }

    /// The next event after this step and its checkpoint.
    fn after(&self, step: u32) -> Event {
        let mut later = step.saturating_add(1)..=self.steps;
        let next = later.find(|step| self.is_logged(*step) || self.is_saved(*step));
        next.map_or(
            Event::Finish,
            |step| if self.is_logged(step) { Event::Step(step) } else { Event::Save(step) },
        )
    }
}

impl Iterator for Timeline {
    type Item = (Timestamp, Event);

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.next?;
        self.next = match event {
            Event::Begin => Some(self.after(0)),
            Event::Step(step) if self.is_saved(step) => Some(Event::Save(step)),
            Event::Step(step) | Event::Save(step) => Some(self.after(step)),
            Event::Finish => None,
        };
        Some((self.at(event), event))
    }
}

/// Whether an event of this time is in the log of a run that is over: all of one that succeeded.
pub(super) fn is_before(end: &End, at: Timestamp) -> bool {
    end.exit_code == 0 || at <= end.at
}

/// The events of a run; none without a training.
pub(super) fn timeline(run: &Run) -> Option<Timeline> {
    run.training.as_ref().map(|training| Timeline::of(training, run.started))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::simulation::pod_logs::run::Form;

    fn training(steps: u32, logged_every: u32, saved_every: u32) -> Training {
        Training {
            form: Form::Sft,
            length: Duration::from_secs(11),
            steps,
            logged_every,
            saved_every,
            output: "/out".to_owned(),
            command: Vec::new(),
        }
    }

    #[test]
    fn steps_are_spread_evenly_and_the_last_one_is_logged_and_saved() {
        let started: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let events: Vec<(i64, Event)> = Timeline::of(&training(10, 4, 5), started)
            .map(|(at, event)| (at.duration_since(started).as_secs(), event))
            .collect();
        let expected = [
            (0, Event::Begin),
            (1, Event::Step(1)),
            (4, Event::Step(4)),
            (5, Event::Save(5)),
            (8, Event::Step(8)),
            (10, Event::Step(10)),
            (10, Event::Save(10)),
            (10, Event::Finish),
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn a_training_of_one_step_has_one() {
        let events: Vec<Event> =
            Timeline::of(&training(1, 5, 500), Timestamp::UNIX_EPOCH).map(|(_, event)| event).collect();
        assert_eq!(events, [Event::Begin, Event::Step(1), Event::Save(1), Event::Finish]);
    }

    #[test]
    fn what_comes_after_a_failure_is_not_printed() {
        let end = |exit_code| End { at: Timestamp::UNIX_EPOCH, exit_code, error: None };
        let later = Timestamp::from_second(1).unwrap();
        assert!(is_before(&end(0), later) && !is_before(&end(1), later));
        assert!(is_before(&end(1), Timestamp::UNIX_EPOCH));
    }
}
