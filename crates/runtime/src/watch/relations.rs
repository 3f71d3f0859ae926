//! Which objects refer to which others by name, so that a change of what is referred to starts the reconciles of those
//! that refer to it. Owner references need none of this: a cache has an index of them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use kube::Resource;

use crate::{key::Key, watch::cache::Cache};

/// By the key of what is referred to, the keys of the objects that refer to it.
#[derive(Clone, Debug, Default)]
pub struct Referrers(Arc<Mutex<HashMap<Key, BTreeSet<Key>>>>);

impl Referrers {
    /// Kept up to date by every change of an object. `refers_to` names the keys that an object refers to.
    pub fn of<K, I>(objects: &Cache<K>, refers_to: impl Fn(&K) -> I + Send + Sync + 'static) -> Self
    where
        I: IntoIterator<Item = Key>,
    {
        let referrers = Self::default();
        let kept = referrers.clone();
        objects.subscribe(move |change| {
            let keys = |object: &Arc<K>| refers_to(object).into_iter().collect::<BTreeSet<Key>>();
            let before = change.old.map(keys).unwrap_or_default();
            let after = change.new.map(keys).unwrap_or_default();
            if before == after {
                return;
            }
            let mut known = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
            for gone in before.difference(&after) {
                if let Some(keys) = known.get_mut(gone) {
                    keys.remove(change.key);
                    if keys.is_empty() {
                        known.remove(gone);
                    }
                }
            }
            for added in after.difference(&before) {
                known.entry(added.clone()).or_default().insert(change.key.clone());
            }
        });
        referrers
    }

    /// The objects that refer to this one now.
    pub fn keys<T: Resource>(&self, referred: &T) -> Vec<Key> {
        self.of_key(&Key::of(referred))
    }

    /// The objects that refer to this key now.
    pub fn of_key(&self, referred: &Key) -> Vec<Key> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(referred).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use serde_json::{from_value, json};

    use super::*;

    /// A ConfigMap whose data names Secrets.
    fn naming(name: &str, secrets: &[&str], version: u64) -> ConfigMap {
        let data: serde_json::Map<_, _> =
            secrets.iter().map(|secret| ((*secret).to_owned(), json!(""))).collect();
        let metadata = json!({"name": name, "namespace": "demo", "resourceVersion": version.to_string()});
        from_value(json!({"metadata": metadata, "data": data})).unwrap()
    }

    fn named(referrers: &Referrers, secret: &str) -> Vec<String> {
        let metadata = json!({"name": secret, "namespace": "demo"});
        let secret: Secret = from_value(json!({"metadata": metadata})).unwrap();
        referrers.keys(&secret).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_object_is_a_referrer_of_what_it_names_today() {
        let objects: Cache<ConfigMap> = Cache::default();
        objects.upsert(naming("early", &["a"], 1));
        let referrers = Referrers::of(&objects, |object| {
            object.data.iter().flatten().map(|(name, _)| Key::new("demo", name)).collect::<Vec<_>>()
        });
        assert_eq!(named(&referrers, "a"), ["demo/early"], "it was there before");
        objects.upsert(naming("late", &["a", "b"], 2));
        assert_eq!(named(&referrers, "a"), ["demo/early", "demo/late"]);
        objects.upsert(naming("late", &["b", "c"], 3));
        assert_eq!(named(&referrers, "a"), ["demo/early"]);
        assert_eq!([named(&referrers, "b"), named(&referrers, "c")].concat(), ["demo/late", "demo/late"]);
        objects.replace(Vec::new(), "4");
        assert!(referrers.0.lock().unwrap().is_empty(), "nothing is kept of what is gone");
    }
}
