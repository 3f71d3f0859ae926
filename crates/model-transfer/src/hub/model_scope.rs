//! The API of ModelScope: `/api/v1/models/{id}/repo/files` and `/api/v1/models/{id}/repo` for the bytes.
//!
//! A list of files has one page and names the commit of the branch in `LatestCommitter`. For a request by a commit that
//! name may be empty.

use api::loader::is_commit;
use object_storage::{Expected, RequestError, is_hex};
use reqwest::Url;
use serde::Deserialize;

use super::{File, Hub, Missing, Snapshot};
use crate::store::listing::Bounds;

/// ModelScope cuts its list here, and does not say so.
const MOST_FILES: usize = 3_000;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    code: i64,
    data: Option<Data>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    files: Option<Vec<Entry>>,
    latest_committer: Option<Committer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Committer {
    #[serde(default)]
    id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    path: String,
    #[serde(rename = "Type", default)]
    kind: String,
    #[serde(default)]
    size: u64,
    sha256: Option<String>,
}

pub(super) async fn snapshot(hub: &Hub, revision: &str) -> Result<Snapshot, RequestError> {
    let mut at = of_model(hub, &["repo", "files"]);
    at.query_pairs_mut().append_pair("Revision", revision).append_pair("Recursive", "True");
    let (_, text) = hub.read(&at, Missing::Model).await?;
    snapshot_of(&text, revision)
}

pub(super) fn address(hub: &Hub, revision: &str, path: &str) -> Url {
    let mut at = of_model(hub, &["repo"]);
    at.query_pairs_mut().append_pair("Revision", revision).append_pair("FilePath", path);
    at
}

fn of_model(hub: &Hub, more: &[&str]) -> Url {
    let model = ["api", "v1", "models"].into_iter().chain(hub.model.id.split('/'));
    hub.address(model.chain(more.iter().copied()))
}

fn snapshot_of(text: &[u8], revision: &str) -> Result<Snapshot, RequestError> {
    // The text of the parser quotes the answer.
    let answer: Answer = serde_json::from_slice(text)
        .map_err(|_| RequestError::MalformedAnswer("an answer that cannot be parsed".to_owned()))?;
    let Answer { code, data } = answer;
    let Some(Data { files: Some(entries), latest_committer }) = data else {
        return Err(RequestError::Refused(format!("code {code}")));
    };
    if entries.len() >= MOST_FILES {
        return Err(RequestError::LargeListing(format!(
            "{MOST_FILES} files or more, of which its list has no more,"
        )));
    }
    let mut bounds = Bounds::default();
    let mut files = Vec::new();
    for Entry { path, kind, size, sha256 } in entries {
        if kind == "tree" {
            continue;
        }
        bounds.object(&path, 64)?;
        let digest = sha256.filter(|digest| is_hex(digest, 64)).ok_or_else(|| {
            RequestError::MalformedAnswer(format!(
                "{:?} has no digest",
                &path[..path.floor_char_boundary(64)]
            ))
        })?;
        files.push(File { path, size, expected: Expected::Sha256(digest.to_ascii_lowercase()) });
    }
    let named = latest_committer.map(|Committer { id }| id).filter(|id| is_commit(id));
    let commit = Some(revision.to_owned()).filter(|revision| is_commit(revision)).or(named);
    Ok(Snapshot { commit, files })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(committer: &str, revision: &str) -> Result<Snapshot, RequestError> {
        let digest = "ab".repeat(32);
        let text = format!(
            r#"{{"Code":200,"Success":true,"Message":"success","Data":{{"IsVisual":1,"LatestCommitter":{{"Id":"{committer}"}},
                "Files":[{{"Path":"sub","Type":"tree","Size":0,"Sha256":""}},
                         {{"Path":"sub/a.bin","Type":"blob","Size":7,"Sha256":"{digest}","Revision":"x"}}]}}}}"#
        );
        snapshot_of(text.as_bytes(), revision)
    }

    #[test]
    fn the_commit_is_that_of_the_branch_or_the_one_that_was_asked_for() {
        let (one, other) = ("a1".repeat(20), "b2".repeat(20));
        assert_eq!(listed(&one, "master").unwrap().commit, Some(one.clone()));
        assert_eq!(listed("", &other).unwrap().commit, Some(other.clone()));
        assert_eq!(listed(&one, &other).unwrap().commit, Some(other), "what the files are of");
        assert_eq!(listed("", "master").unwrap().commit, None);
        assert_eq!(listed("", "master").unwrap().files.len(), 1, "folders are none");
    }

    #[test]
    fn an_answer_without_files_is_a_refusal() {
        let refused = |text: &str| snapshot_of(text.as_bytes(), "master").map(|_| ()).unwrap_err();
        let refusal = RequestError::Refused("code 10010".to_owned());
        assert_eq!(refused(r#"{"Code":10010,"Message":"secret","Success":false,"Data":null}"#), refusal);
        let RequestError::MalformedAnswer(why) = refused("<html>token=secret") else { panic!("malformed") };
        assert!(!why.contains("secret"), "{why}");
    }
}
