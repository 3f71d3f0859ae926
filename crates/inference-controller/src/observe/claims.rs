//! Which AIInferences read which claim, so that a change of a claim starts their reconciles.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use api::{aiinference::AIInference, source::ModelSource};
use runtime::cache::{Cache, Key};
use workload::claim::ClaimView;

/// Which AIInferences read which claim: by the key of the claim, the keys of the objects.
#[derive(Clone, Default)]
pub(crate) struct Readers(Arc<Mutex<HashMap<Key, BTreeSet<Key>>>>);

impl Readers {
    /// Kept up to date by every change of an AIInference.
    pub(crate) fn of(models: &Cache<AIInference>) -> Self {
        let readers = Self::default();
        let kept = readers.clone();
        models.subscribe(move |change| {
            let claim = |model: &Arc<AIInference>| claim_key(model);
            let (before, after) = (change.old.and_then(claim), change.new.and_then(claim));
            if before == after {
                return;
            }
            let mut known = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(before) = before
                && let Some(keys) = known.get_mut(&before)
            {
                keys.remove(change.key);
                if keys.is_empty() {
                    known.remove(&before);
                }
            }
            if let Some(after) = after {
                known.entry(after).or_default().insert(change.key.clone());
            }
        });
        readers
    }

    pub(crate) fn keys(&self, claim: &ClaimView) -> Vec<Key> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&Key::of(claim)).into_iter().flatten().cloned().collect()
    }
}

/// The claim that an AIInference reads, if it reads one.
pub(super) fn claim_key(model: &AIInference) -> Option<Key> {
    let namespace = model.metadata.namespace.as_deref().unwrap_or_default();
    match model.spec.model_source.parse() {
        Ok(ModelSource::Claim { name, path: _ }) => Some(Key::new(namespace, &name)),
        Ok(ModelSource::Store { .. }) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::model;

    use super::*;

    #[test]
    fn a_change_of_a_claim_concerns_its_readers_of_today() {
        let models: Cache<AIInference> = Cache::default();
        let readers = Readers::of(&models);
        let claim: ClaimView = serde_saphyr::from_str("{metadata: {name: models, namespace: demo}}").unwrap();
        let reading = |source: &str, version: u64| {
            let mut model = model(&format!("{{modelSource: '{source}', engine: vllm, gpu: {{count: 1}}}}"));
            model.metadata.resource_version = Some(version.to_string());
            models.upsert(model);
            readers.keys(&claim).len()
        };
        assert_eq!(reading("pvc://models/a", 1), 1);
        assert_eq!(reading("pvc://models/b", 2), 1);
        assert_eq!(reading("s3://models/b", 3), 0);
        assert_eq!(reading("pvc://models", 4), 1);
        models.replace(Vec::new(), "5");
        assert_eq!(readers.keys(&claim).len(), 0);
    }
}
