//! Which AIInferences read which claim, so that a change of a claim starts their reconciles.

use api::{aiinference::AIInference, source::ModelSource};
use runtime::{
    cache::{Cache, Key},
    relations::Referrers,
};
use workload::claim::ClaimView;

/// Which AIInferences read which claim.
pub(crate) struct Readers(Referrers);

impl Readers {
    pub(crate) fn of(models: &Cache<AIInference>) -> Self {
        Self(Referrers::of(models, claim_key))
    }

    pub(crate) fn keys(&self, claim: &ClaimView) -> Vec<Key> {
        self.0.keys(claim)
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
