//! What a test can set beyond what an engine has, from the environment: times, and how to fail.

use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::metrics::{Buckets, End};

#[derive(Debug, PartialEq)]
pub(crate) struct Behaviour {
    /// `ENGINE_LOAD_SECONDS`: after the model was read, before anything is served.
    pub(crate) load: Duration,
    /// `ENGINE_ANSWER_MILLISECONDS`: what an answer takes.
    pub(crate) answer: Duration,
    /// `ENGINE_TOKEN_MILLISECONDS`: what each token takes of an answer that is streamed.
    pub(crate) token: Duration,
    /// `ENGINE_BUCKETS=other`: histograms without an end of a bucket that vLLM has.
    pub(crate) buckets: Buckets,
    /// `ENGINE_SLOTS`: requests that run at a time; `None`: all.
    pub(crate) slots: Option<usize>,
    /// `ENGINE_DRAIN_SECONDS`, instead of the value in the arguments.
    pub(crate) drain: Option<Duration>,
    /// `ENGINE_END_SECONDS`: how long an engine without its worker takes to end.
    pub(crate) end: Duration,
    /// `ENGINE_WORKER`: a process of the same container that does not end with the engine.
    pub(crate) has_worker: bool,
    /// `ENGINE_FAULT`.
    pub(crate) fault: Option<Fault>,
    /// `HOSTNAME`, which is the pod's name.
    pub(crate) pod: String,
    /// `ENGINE_REVISION`, by which a test distinguishes rollouts.
    pub(crate) revision: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// `fail`: ends with 1 while it loads.
    Fail,
    /// `hang`: never finishes loading.
    Hang,
    /// `crash-after:SECONDS`: ends with 1 so long after it became ready.
    CrashAfter(Duration),
    /// `not-ready-after:SECONDS`: its readiness path answers 503 from then on; requests are still answered.
    NotReadyAfter(Duration),
    /// `broken-model`: vLLM ends as it does with weights that it cannot read.
    BrokenModel,
    /// `worker-killed-after:SECONDS`: vLLM is no longer ready, refuses requests, and ends with 0 some time later.
    WorkerKilledAfter(Duration),
    /// `error-share:PERCENT`: so many of the requests that it works on end with 500, at even distances.
    ErrorShare { percent: u64 },
    /// `repetition-share:PERCENT`: so many of them end because the engine has found a repetition.
    RepetitionShare { percent: u64 },
    /// `crash-after-requests:NUMBER`: ends with 1 when it has answered so many.
    CrashAfterRequests { number: u64 },
    /// `allocate:MEBIBYTES`: takes that much memory while it loads.
    Allocate { mebibytes: usize },
}

impl Behaviour {
    pub(crate) fn parse(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let duration = |name: &str, unit: Duration| match variable(name) {
            Some(text) => amount(&text, unit).with_context(|| format!("{name}={text}")).map(Some),
            None => Ok(None),
        };
        let token = duration("ENGINE_TOKEN_MILLISECONDS", Duration::from_millis(1))?;
        let buckets = match variable("ENGINE_BUCKETS").as_deref() {
            None | Some("") => Buckets::Vllm,
            Some("other") => Buckets::Other,
            Some(text) => bail!("ENGINE_BUCKETS={text}: not other"),
        };
        let answer = duration("ENGINE_ANSWER_MILLISECONDS", Duration::from_millis(1))?;
        Ok(Self {
            load: duration("ENGINE_LOAD_SECONDS", SECOND)?.unwrap_or_default(),
            answer: answer.unwrap_or(Duration::from_millis(20)),
            token: token.unwrap_or(Duration::from_millis(20)),
            buckets,
            slots: match variable("ENGINE_SLOTS") {
                Some(text) => Some(slots(&text).with_context(|| format!("ENGINE_SLOTS={text}"))?),
                None => None,
            },
            drain: duration("ENGINE_DRAIN_SECONDS", SECOND)?,
            // As it was seen.
            end: duration("ENGINE_END_SECONDS", SECOND)?.unwrap_or(Duration::from_secs(2)),
            has_worker: variable("ENGINE_WORKER").as_deref() == Some("true"),
            fault: match variable("ENGINE_FAULT").filter(|text| !text.is_empty()) {
                Some(text) => Some(fault(&text).with_context(|| format!("ENGINE_FAULT={text}"))?),
                None => None,
            },
            pod: variable("HOSTNAME").unwrap_or_default(),
            revision: variable("ENGINE_REVISION").unwrap_or_default(),
        })
    }
}

impl Fault {
    /// How the request of this number ends, counted from 1.
    pub(crate) fn end(self, number: u64) -> End {
        let is_one_of = |percent: u64| number * percent / 100 > (number - 1) * percent / 100;
        match self {
            Self::ErrorShare { percent } if is_one_of(percent) => End::Error,
            Self::RepetitionShare { percent } if is_one_of(percent) => End::Repetition,
            Self::ErrorShare { .. }
            | Self::RepetitionShare { .. }
            | Self::Fail
            | Self::Hang
            | Self::CrashAfter(_)
            | Self::CrashAfterRequests { .. }
            | Self::NotReadyAfter(_)
            | Self::BrokenModel
            | Self::WorkerKilledAfter(_)
            | Self::Allocate { .. } => End::Stop,
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn slots(text: &str) -> anyhow::Result<usize> {
    let slots: u16 = text.parse().context("not a number of requests")?;
    anyhow::ensure!(slots > 0, "without a slot no request would end");
    Ok(slots.into())
}

fn fault(text: &str) -> anyhow::Result<Fault> {
    let fault = match text.split_once(':').unwrap_or((text, "")) {
        ("fail", "") => Fault::Fail,
        ("hang", "") => Fault::Hang,
        ("crash-after", seconds) => Fault::CrashAfter(amount(seconds, SECOND)?),
        ("not-ready-after", seconds) => Fault::NotReadyAfter(amount(seconds, SECOND)?),
        ("broken-model", "") => Fault::BrokenModel,
        ("worker-killed-after", seconds) => Fault::WorkerKilledAfter(amount(seconds, SECOND)?),
        ("error-share", percent) => {
            Fault::ErrorShare { percent: percent.parse().context("not a whole percent")? }
        }
        ("repetition-share", percent) => {
            Fault::RepetitionShare { percent: percent.parse().context("not a whole percent")? }
        }
        ("crash-after-requests", number) => {
            Fault::CrashAfterRequests { number: number.parse().context("not a number of requests")? }
        }
        ("allocate", mebibytes) => {
            Fault::Allocate { mebibytes: mebibytes.parse().context("not a number of mebibytes")? }
        }
        _ => bail!(
            "none of fail, hang, crash-after:SECONDS, not-ready-after:SECONDS, broken-model, \
             worker-killed-after:SECONDS, error-share:PERCENT, repetition-share:PERCENT, crash-after-requests:NUMBER, \
             allocate:MEBIBYTES"
        ),
    };
    Ok(fault)
}

/// So many of a unit; fractions are fine.
fn amount(text: &str, unit: Duration) -> anyhow::Result<Duration> {
    let number: f64 = text.parse().context("not a number")?;
    Duration::try_from_secs_f64(number * unit.as_secs_f64()).context("no time that can be waited")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(variables: &[(&str, &str)]) -> anyhow::Result<Behaviour> {
        Behaviour::parse(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn times_may_have_fractions() {
        let behaviour =
            parsed(&[("ENGINE_LOAD_SECONDS", "0.5"), ("ENGINE_ANSWER_MILLISECONDS", "3")]).unwrap();
        assert_eq!(behaviour.load, Duration::from_millis(500));
        assert_eq!(behaviour.answer, Duration::from_millis(3));
        assert_eq!(behaviour.drain, None);
    }

    #[test]
    fn every_fault_has_a_name() {
        let second = Duration::from_secs(1);
        for (text, fault) in [
            ("fail", Some(Fault::Fail)),
            ("hang", Some(Fault::Hang)),
            ("crash-after:1", Some(Fault::CrashAfter(second))),
            ("not-ready-after:1", Some(Fault::NotReadyAfter(second))),
            ("broken-model", Some(Fault::BrokenModel)),
            ("worker-killed-after:1", Some(Fault::WorkerKilledAfter(second))),
            ("error-share:5", Some(Fault::ErrorShare { percent: 5 })),
            ("repetition-share:5", Some(Fault::RepetitionShare { percent: 5 })),
            ("crash-after-requests:100", Some(Fault::CrashAfterRequests { number: 100 })),
            ("allocate:64", Some(Fault::Allocate { mebibytes: 64 })),
            ("", None),
        ] {
            assert_eq!(parsed(&[("ENGINE_FAULT", text)]).unwrap().fault, fault, "{text}");
        }
    }

    #[test]
    fn a_share_of_the_requests_fails_at_even_distances() {
        let fails = |percent: u64, number: u64| Fault::ErrorShare { percent }.end(number) == End::Error;
        let failed: Vec<u64> = (1..=60).filter(|number| fails(5, *number)).collect();
        assert_eq!(failed, [20, 40, 60]);
        assert!((1..=10).all(|number| fails(100, number) && !fails(0, number)));
    }

    #[test]
    fn a_misspelt_wish_is_refused_instead_of_passing_a_test() {
        for (name, value) in [
            ("ENGINE_FAULT", "fails"),
            ("ENGINE_FAULT", "crash-after"),
            ("ENGINE_FAULT", "fail:1"),
            ("ENGINE_LOAD_SECONDS", "-1"),
            ("ENGINE_DRAIN_SECONDS", "long"),
            ("ENGINE_SLOTS", "0"),
            ("ENGINE_SLOTS", "many"),
            ("ENGINE_BUCKETS", "others"),
        ] {
            assert!(parsed(&[(name, value)]).is_err(), "{name}={value}");
        }
    }
}
