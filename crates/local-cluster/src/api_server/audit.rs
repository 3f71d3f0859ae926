//! The audit log of a cluster as values: who did what, and what the API server answered.

use std::{collections::HashMap, fs, path::Path};

use serde::Deserialize;

use crate::{Error, Result};

/// What the API server notes of a token beside the user that it stands for.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// One request as the API server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub user: String,
    pub user_agent: String,
    /// Identifies the token of a ServiceAccount (`JTI=…`); empty where there is none.
    pub credential: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    pub uri: String,
    /// Empty for the core group, as in RBAC.
    pub group: String,
    /// Empty for requests that are about no resource, such as `/readyz`.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// HTTP status; `None` when the request ended without one.
    pub code: Option<u16>,
    /// When the API server received it, RFC 3339 with microseconds.
    pub received: String,
}

/// Every request that is over, in the order in which they ended; a watch counts from its first response on.
pub fn read(path: &Path) -> Result<Vec<Event>> {
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    // The API server may be in the middle of the last line.
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    complete
        .lines()
        .map(|line| {
            serde_json::from_str::<Line>(line)
                .map_err(|error| Error::invalid("read", path.display().to_string(), error))
        })
        .filter_map(|line| line.map(Line::into_event).transpose())
        .collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<ResponseStatus>,
    request_received_timestamp: String,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    extra: HashMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct ResponseStatus {
    code: Option<u16>,
}

impl Line {
    /// A watch has two lines, when it begins and when it ends; the first is the one that comes in time.
    fn into_event(self) -> Option<Event> {
        let counts = match self.verb.as_str() {
            "watch" => self.stage == "ResponseStarted",
            _ => self.stage == "ResponseComplete" || self.stage == "Panic",
        };
        let credential = self.user.extra.get(CREDENTIAL_ID).and_then(|ids| ids.first()).cloned();
        let ObjectRef { api_group, resource, subresource, namespace, name } = self.object_ref;
        counts.then(|| Event {
            user: self.user.username,
            user_agent: self.user_agent,
            credential: credential.unwrap_or_default(),
            verb: self.verb,
            uri: self.request_uri,
            group: api_group,
            resource,
            subresource,
            namespace,
            name,
            code: self.response_status.and_then(|status| status.code),
            received: self.request_received_timestamp,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, stage: &str) -> String {
        format!(
            r#"{{"stage":"{stage}","verb":"{verb}","requestURI":"/api/v1/pods","user":{{"username":"u"}},
               "objectRef":{{"resource":"pods","apiVersion":"v1"}},"responseStatus":{{"code":200}},
               "requestReceivedTimestamp":"2026-01-01T00:00:00.000000Z"}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn a_watch_counts_when_it_begins_and_other_requests_when_they_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let lines = [
            line("watch", "ResponseStarted"),
            line("watch", "ResponseComplete"),
            line("list", "ResponseComplete"),
            "{\"half".to_owned(),
        ];
        fs::write(&path, lines.join("\n")).unwrap();
        let verbs: Vec<String> = read(&path).unwrap().into_iter().map(|event| event.verb).collect();
        assert_eq!(verbs, ["watch", "list"]);
    }
}
