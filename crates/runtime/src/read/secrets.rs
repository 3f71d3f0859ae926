//! Reads one Secret by its name. The right to get Secrets is enough for that; nothing is listed, watched or kept here.

use std::{collections::BTreeMap, fmt, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Client, Resource, api::GetParams, core::Request};

use crate::{causes::with_causes, key::Key, write::apply::is_code};

/// Reads Secrets in the name of one controller.
#[derive(Clone)]
pub struct Secrets {
    client: Client,
}

/// What became of the wish to read a Secret.
#[derive(Debug)]
pub enum Found {
    Secret(Values),
    /// There is none of that name.
    Nothing,
    /// This controller has no right to read it.
    Forbidden,
    /// The API server did not answer as it should; why.
    Unreadable(String),
}

/// The values of a Secret. They are never shown.
pub struct Values {
    /// Differs for each change of the Secret, and for another Secret of the same name.
    pub version: String,
    values: BTreeMap<String, ByteString>,
}

/// What waits for a Secret is itself called at short intervals.
const DEADLINE: Duration = Duration::from_secs(3);

impl Secrets {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    pub async fn read(&self, key: &Key) -> Found {
        let path = Secret::url_path(&(), Some(&key.namespace));
        let request = Request::new(path).get(&key.name, &GetParams::default());
        let mut request = match request {
            Ok(request) => request,
            Err(error) => return Found::Unreadable(with_causes(&error)),
        };
        request.extensions_mut().insert("get");
        match tokio::time::timeout(DEADLINE, self.client.request::<Secret>(request)).await {
            Ok(Ok(Secret { metadata, data, .. })) => Found::Secret(Values {
                version: [metadata.uid, metadata.resource_version].map(Option::unwrap_or_default).join("/"),
                values: data.unwrap_or_default(),
            }),
            Ok(Err(error)) if is_code(&error, 404) => Found::Nothing,
            Ok(Err(error)) if is_code(&error, 403) => Found::Forbidden,
            // An error of the reader quotes nothing of what it has read but its place.
            Ok(Err(kube::Error::SerdeError(_))) => Found::Unreadable("the answer is no Secret".to_owned()),
            Ok(Err(error)) => Found::Unreadable(with_causes(&error)),
            Err(_) => Found::Unreadable(format!("no answer within {} s", DEADLINE.as_secs())),
        }
    }
}

impl Values {
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(|value| value.0.as_slice())
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("version", &self.version).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_shown() {
        let value = ByteString(b"s3cret".to_vec());
        let found = Found::Secret(Values { version: "u/1".into(), values: [("token".into(), value)].into() });
        let shown = format!("{found:?}");
        assert!(shown.contains("u/1") && !shown.contains("s3cret") && !shown.contains("115"), "{shown}");
    }
}
