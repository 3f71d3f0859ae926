//! Which AIScalers are valid, by uid and generation: those of one target look at each other at each reconcile, and should not
//! read each other's queries again and again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use api::aiscaler::AIScaler;

use super::{Allowed, validate};

#[derive(Default)]
pub(crate) struct Validities(Mutex<HashMap<String, (i64, bool)>>);

impl Validities {
    /// The caller removes what is kept when the object is deleted: `ForgetIfDeleted`.
    pub(crate) fn is_valid(&self, scaler: &Arc<AIScaler>, allowed: &Allowed) -> bool {
        let uid = scaler.metadata.uid.as_deref().unwrap_or_default();
        let generation = scaler.metadata.generation.unwrap_or_default();
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied();
        if let Some((of, is_valid)) = known
            && of == generation
        {
            return is_valid;
        }
        let is_valid = validate(scaler, allowed).is_ok();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(uid.to_owned(), (generation, is_valid));
        is_valid
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use scaling::policy::Extras;

    use super::*;
    use prometheus_api::promql::Scope;

    const ALLOWED: Allowed = Allowed { extras: Extras::all(), scope: Scope::Namespace };

    fn scaler(generation: i64, query: &str) -> Arc<AIScaler> {
        let text = format!(
            "{{apiVersion: ai.infra.example.com/v1, kind: AIScaler, metadata: {{name: chat, namespace: demo, uid: u, \
             generation: {generation}}}, spec: {{deploymentName: chat, metricType: custom, targetValue: 5, maxReplicas: 10, \
             source: {{prometheus: {{query: '{query}'}}}}}}}}"
        );
        Arc::new(serde_saphyr::from_str(&text).unwrap())
    }

    #[test]
    fn a_query_is_read_once_per_generation() {
        let validities = Validities::default();
        let is_valid = |generation, query| validities.is_valid(&scaler(generation, query), &ALLOWED);
        assert!(is_valid(1, "sum(waiting)"));
        assert!(is_valid(1, "sum("), "it was not read again");
        assert!(!is_valid(2, "sum("));
        assert!(!is_valid(2, "sum(waiting)"));
        validities.forget("u");
        assert!(is_valid(2, "sum(waiting)"));
    }
}
