//! What arrives at targets whose queues a Prometheus-compatible server knows.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use scaling::{
    flow::{Flow, TotalCounts, TotalMeter},
    reading::Reading,
};

use crate::{
    Context,
    observe::pods_of,
    sources::{Fault, Sample, answer::Answer},
    target::pod::PodView,
    validate::{PrometheusQuery, ValidScaler},
};

/// By uid of the AIScaler and number of its metric. Each has some 1 KiB.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<HashMap<String, HashMap<usize, Asked>>>);

#[derive(Debug)]
struct Asked {
    /// Of what was asked: the numbers of another query are no continuation.
    hash: u64,
    meter: TotalMeter,
}

impl Arrivals {
    /// `look`: at the meter of what is asked.
    fn observe(
        &self,
        uid: &str,
        index: usize,
        asked: impl Hash,
        look: impl FnOnce(&mut TotalMeter) -> Option<Flow>,
    ) -> Option<Flow> {
        let mut hasher = DefaultHasher::new();
        asked.hash(&mut hasher);
        let hash = hasher.finish();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Asked { hash, meter: TotalMeter::default() };
        let known = all.entry(uid.to_owned()).or_default().entry(index).or_insert_with(new);
        if known.hash != hash {
            *known = new();
        }
        look(&mut known.meter)
    }

    pub(crate) fn forget(&self, gone: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(gone);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The answer with what arrives, or with the reason why that does not count now.
pub(super) fn with_arrivals(
    ctx: &Context,
    valid: &ValidScaler,
    index: usize,
    query: &PrometheusQuery,
    answer: Answer,
    completions: Result<Sample, Fault>,
    now: Timestamp,
) -> Answer {
    let Reading::Total { value: in_hand, .. } = answer.reading else { return answer };
    let finished = match completions {
        Ok(Sample { value, caution: None, .. }) => value,
        Ok(Sample { caution: Some(caution), .. }) => {
            return without(answer, &format!("some data was missing: {caution}"));
        }
        Err(fault) => return without(answer, &fault.to_string()),
    };
    // A counter in the place of a rate: `MetricOnlyGrows` says so.
    if query.completions.as_ref().is_some_and(|completions| !completions.bare_counters().is_empty()) {
        return answer;
    }
    let Some(metric) = valid.policy.metrics.get(index) else { return answer };
    let serves = |pod: &&Arc<PodView>| pod.is_ready && pod.metadata.deletion_timestamp.is_none();
    let ready = pods_of(ctx, valid).iter().filter(serves).count();
    let counts = TotalCounts {
        in_hand: in_hand.count() as f64 / 1_000.0,
        finished_per_second: finished,
        ready: u32::try_from(ready).unwrap_or(u32::MAX),
    };
    let uid = valid.scaler.metadata.uid.as_deref().unwrap_or_default();
    let window = valid.policy.behavior.down.window;
    let asked = (query, valid.reference.identity());
    let look = |meter: &mut TotalMeter| meter.observe(counts, metric.target, window, now);
    Answer { flow: ctx.arrivals.observe(uid, index, asked, look), ..answer }
}

fn without(answer: Answer, why: &str) -> Answer {
    Answer { message: format!("completionsQuery: {why}, so replicas follow the queue alone"), ..answer }
}
