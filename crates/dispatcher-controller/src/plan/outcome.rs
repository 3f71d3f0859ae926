//! What is remembered and reported after the Deployment was written. It depends on the answers of the API server. Pure.

use std::{borrow::Cow, time::Duration};

use api::aidispatcher::{AIDispatcher, AIDispatcherStatus};
use jiff::Timestamp;
use runtime::write::{conditions::Verdict, events::Note, refusal::Refusal};
use scaling::history::History;

use super::{
    Plan, disruption_budget,
    omission::TRIED_AGAIN_AFTER,
    services,
    status::{self, events},
};

/// The second half of a plan.
#[derive(Debug)]
pub(crate) struct Outcome<'p> {
    /// To be remembered for the next decision on the number of workers.
    pub(crate) past: Option<&'p History>,
    /// Events before the status: if that is not written, the next plan has no such change to report.
    pub(crate) changes: Vec<&'p Note>,
    pub(crate) status: Cow<'p, AIDispatcherStatus>,
    /// Events after the status, which has the same content.
    pub(crate) events: Cow<'p, [Note]>,
    pub(crate) requeue_after: Option<Duration>,
}

impl Plan {
    /// The outcome if the Deployment was written.
    pub(crate) fn if_changed(&self) -> Outcome<'_> {
        let rescaled = self.rescale.as_ref().map(|rescale| &rescale.event);
        Outcome { changes: rescaled.into_iter().chain(&self.replaces).collect(), ..self.without_changes() }
    }

    /// The outcome if the Deployment has stayed as it was: a number that was not written is neither remembered nor
    /// reported.
    pub(crate) fn if_unchanged(&self) -> Outcome<'_> {
        let unchanged = self.without_changes();
        match &self.rescale {
            Some(rescale) => {
                Outcome { past: None, status: Cow::Borrowed(&rescale.status_if_unchanged), ..unchanged }
            }
            None => unchanged,
        }
    }

    fn without_changes(&self) -> Outcome<'_> {
        Outcome {
            past: self.past.as_ref(),
            changes: Vec::new(),
            status: Cow::Borrowed(&self.status),
            events: Cow::Borrowed(&self.events),
            requeue_after: self.requeue_after,
        }
    }
}

impl Outcome<'_> {
    /// Reports that the budget was refused. The pool goes on without it.
    pub(crate) fn report_refused_budget(
        &mut self,
        refusal: &Refusal,
        dispatcher: &AIDispatcher,
        now: Timestamp,
    ) {
        self.report(refusal, disruption_budget::refused, dispatcher, now);
    }

    /// Reports that a Service was refused. The workers run without it.
    pub(crate) fn report_refused_service(
        &mut self,
        refusal: &Refusal,
        dispatcher: &AIDispatcher,
        now: Timestamp,
    ) {
        self.report(refusal, services::refused, dispatcher, now);
    }

    /// Reports that the deletion of a Service was refused.
    pub(crate) fn report_kept_service(
        &mut self,
        refusal: &Refusal,
        dispatcher: &AIDispatcher,
        now: Timestamp,
    ) {
        self.report(refusal, services::kept, dispatcher, now);
    }

    fn report(
        &mut self,
        refusal: &Refusal,
        refused: impl Fn(&Refusal) -> Option<Verdict>,
        dispatcher: &AIDispatcher,
        now: Timestamp,
    ) {
        let (refusal, wait) = refusal.clone().judged(dispatcher, TRIED_AGAIN_AFTER, now);
        // What is reported is tried once in a minute.
        let is_reported = !matches!(refusal, Refusal::Leftover { .. });
        self.reconcile_within(if is_reported { TRIED_AGAIN_AFTER } else { wait });
        let Some(omitted) = refused(&refusal) else { return };
        self.events.to_mut().extend(events::of_omission(dispatcher.status.as_ref(), &omitted));
        let status = std::mem::take(self.status.to_mut());
        self.status = Cow::Owned(status::with_verdict(status, omitted, dispatcher, now));
    }

    /// Reconciles again after this time, or sooner.
    pub(crate) fn reconcile_within(&mut self, wait: Duration) {
        self.requeue_after = self.requeue_after.into_iter().chain([wait]).min();
    }
}
