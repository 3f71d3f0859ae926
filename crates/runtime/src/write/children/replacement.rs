//! Single values inside of an object that has another owner.
//!
//! Server-side apply owns a list that is atomic as a whole. A JSON Patch names the values, and what must be true of the
//! object while they are replaced.

use json_patch::{Patch as Operations, PatchOperation, ReplaceOperation, TestOperation, jsonptr::PointerBuf};
use kube::{
    Resource,
    api::{Patch, PatchParams},
    core::Request,
};
use serde::{Serialize, ser::Error as _};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::Children;
use crate::{
    key::Key,
    watch::watched::Watched,
    write::apply::{About, ApplyError, Stale, Written, is_code, is_conflict, namespace},
};

/// Values by their JSON pointers (RFC 6901), in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Values {
    /// What must be true. Else nothing is written.
    pub expected: Vec<(String, Value)>,
    pub replaced: Vec<(String, Value)>,
}

impl Values {
    fn operations(&self, uid: Option<&str>) -> Result<Operations, String> {
        let pointer = |path: &str| PointerBuf::parse(path).map_err(|error| format!("{path}: {error}"));
        let uid = ("/metadata/uid".to_owned(), json!(uid));
        let test = |(path, value): &(String, Value)| {
            Ok::<_, String>(PatchOperation::Test(TestOperation {
                path: pointer(path)?,
                value: value.clone(),
            }))
        };
        let replace = |(path, value): &(String, Value)| {
            let (path, value) = (pointer(path)?, value.clone());
            Ok(PatchOperation::Replace(ReplaceOperation { path, value }))
        };
        let tests = [&uid].into_iter().chain(&self.expected).map(test);
        tests.chain(self.replaced.iter().map(replace)).collect::<Result<Vec<_>, _>>().map(Operations)
    }
}

impl<S, K> Children<S, K>
where
    S: Watched + Send + Sync + 'static,
    K: Resource<DynamicType = ()>,
{
    /// Replaces values of an object that need not be a child. If one of `expected` is not true any more, nothing is written and
    /// the error is `Stale`. If another manager takes the same values back each time, they are written ever more rarely.
    pub async fn replace_values(&self, object: &S, values: &Values) -> Result<Written, ApplyError> {
        const STEP: &str = "patch";
        if values.replaced.is_empty() {
            return Ok(Written::Unchanged);
        }
        let meta = object.meta();
        let key = Key::named_in(meta);
        let about = About::of::<K>(&key);
        let hash = json!(values.replaced).to_string();
        let now = Instant::now();
        let place = place(&key, values);
        if let Some(wait) = self.contests.wait(&place, &hash, now) {
            return self.contested(&place, &hash, wait, &about).await.map(Written::Contested);
        }
        let operations = values
            .operations(meta.uid.as_deref())
            .map_err(|error| about.render(serde_json::Error::custom(error)))?;
        let field_manager = Some(self.writer.field_manager().to_owned());
        let params = PatchParams { field_manager, ..PatchParams::default() };
        let request = Request::new(K::url_path(&(), namespace(&key)))
            .patch(&key.name, &params, &Patch::Json::<()>(operations))
            .map_err(|error| about.call(STEP, kube::Error::BuildRequest(error)))?;
        let version = meta.resource_version.as_deref();
        self.writer.may_write(version, &about)?;
        let writing = self.cache.writing(&key, version);
        match self.writer.send(request, "patch").await {
            Ok(answer) => S::from_json(&answer).into_iter().for_each(|written| self.cache.absorb(written)),
            Err(error) if is_code(&error, 404) => {
                self.cache.forget(&key, meta.uid.as_deref());
                return Err(about.stale(Stale::Changed));
            }
            Err(error) if is_conflict(&error) || is_failed_test(&error) => {
                return Err(self.writer.conflict(version, &about));
            }
            Err(error) => return Err(about.call(STEP, error)),
        }
        drop(writing);
        self.contests.forced(&place, &hash, now, self.cache.len());
        info!(kind = about.kind, object = %key, "values replaced");
        Ok(Written::Changed)
    }
}

/// What a contest is about: the owners of two places in one object do not contest with each other.
fn place(key: &Key, values: &Values) -> Key {
    let first = values.replaced.first().map(|(pointer, _)| &**pointer).unwrap_or_default();
    Key { name: format!("{}{first}", key.name).into(), ..key.clone() }
}

/// What API servers say if a test of a JSON Patch fails: the code of an invalid object, and no word about the object.
const FAILED_TEST: &str = "the server rejected our request due to an error in our request";

/// A value that was expected is not there.
fn is_failed_test(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422 && status.message == FAILED_TEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rules_of_one_route_are_two_places_of_contests() {
        let values = |rule: &str, weight: i32| Values {
            replaced: vec![(format!("/spec/rules/{rule}/backendRefs/0/weight"), json!(weight))],
            ..Values::default()
        };
        let key = Key::new("demo", "web");
        assert_ne!(place(&key, &values("0", 90)), place(&key, &values("1", 90)));
        assert_eq!(place(&key, &values("0", 90)), place(&key, &values("0", 50)), "a share is another hash");
    }
}
