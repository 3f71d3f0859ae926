//! Conditions of a status, as every controller writes them: what is true now, merged with the times of what was. Pure.
//!
//! Which conditions there are and when they hold is decided by the controllers.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use text::{cut, printable};

/// One condition without its time: what was found true or false now.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub type_: &'static str,
    pub holds: bool,
    /// CamelCase, a constant.
    pub reason: &'static str,
    pub message: String,
}

/// The API server accepts 32 KiB; a condition should be read at a glance.
const LONGEST_MESSAGE: usize = 1_024;

/// The conditions to be written, in the order of the verdicts. The time of one is that of the last change of its
/// `status`; reason and message may change within it. A condition without a verdict is no longer there.
pub fn merged(
    verdicts: Vec<Verdict>,
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let now = whole_seconds(now);
    let condition = |verdict| condition(verdict, before, generation, &now);
    verdicts.into_iter().map(condition).collect()
}

fn condition(verdict: Verdict, before: &[Condition], generation: Option<i64>, now: &Time) -> Condition {
    let Verdict { type_, holds, reason, message } = verdict;
    let status = if holds { "True" } else { "False" };
    let unturned = before.iter().find(|known| known.type_ == type_ && known.status == status);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: shortened(&message, LONGEST_MESSAGE),
        observed_generation: generation,
        last_transition_time: unturned
            .map_or_else(|| now.clone(), |known| known.last_transition_time.clone()),
    }
}

/// At most so many bytes of a text, in one line.
pub(crate) fn shortened(text: &str, longest: usize) -> String {
    cut(printable(text), longest)
}

/// The API server keeps no fractions: with them, a status that is read back would never equal the one that was written.
pub fn whole_seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        format!("2026-01-01T{time}Z").parse().unwrap()
    }

    fn ready(holds: bool, reason: &'static str, message: &str) -> Verdict {
        Verdict { type_: "Ready", holds, reason, message: message.to_owned() }
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_turns() {
        let first = merged(vec![ready(false, "Loading", "")], &[], Some(1), at("12:00:00"));
        assert_eq!(first[0].last_transition_time.0, at("12:00:00"));
        let reworded = merged(vec![ready(false, "Stopped", "none")], &first, Some(2), at("12:00:10"));
        let [condition] = reworded.as_slice() else { panic!("{reworded:?}") };
        assert_eq!((&*condition.reason, &*condition.message), ("Stopped", "none"));
        assert_eq!(condition.observed_generation, Some(2));
        assert_eq!(condition.last_transition_time.0, at("12:00:00"), "another reason is no turn");
        let turned = merged(vec![ready(true, "Ready", "")], &reworded, Some(2), at("12:00:20"));
        assert_eq!((&*turned[0].status, turned[0].last_transition_time.0), ("True", at("12:00:20")));
        assert_eq!(merged(Vec::new(), &turned, Some(2), at("12:00:30")), []);
    }

    #[test]
    fn what_is_written_is_what_the_api_server_keeps() {
        let conditions = merged(vec![ready(true, "Ready", "")], &[], None, at("12:00:00.750"));
        assert_eq!(conditions[0].last_transition_time.0, at("12:00:00"));
    }

    #[test]
    fn a_message_does_nothing_to_a_terminal() {
        let said = "denied\r\n\u{1b}[2J by \u{202e}ycilop\u{2066} a\u{200b}b";
        let conditions = merged(vec![ready(false, "Denied", said)], &[], None, at("12:00:00"));
        assert_eq!(conditions[0].message, "denied   by ycilop ab");
    }

    #[test]
    fn a_long_message_is_cut_between_two_characters() {
        let message = "é".repeat(LONGEST_MESSAGE);
        let conditions =
            merged(vec![ready(true, "Ready", &format!("x{message}"))], &[], None, at("12:00:00"));
        let expected = format!("x{}", "é".repeat((LONGEST_MESSAGE - 1) / 2));
        assert_eq!(conditions[0].message, expected);
    }
}
