//! The API of Hugging Face: `/api/models/{id}/revision/{revision}`, `/api/models/{id}/tree/{commit}` in pages, and
//! `/{id}/resolve/{commit}/{path}` for the bytes.

use http::{HeaderMap, header::LINK};
use object_storage::{Expected, RequestError, is_hex};
use reqwest::Url;
use serde::Deserialize;

use super::{File, Hub, Missing};
use crate::store::listing::{Bounds, LONGEST_TOKEN};
use api::loader::is_commit;

#[derive(Debug, Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    /// The name that git gives to the content; of a file in LFS, to the pointer.
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    path: String,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    /// SHA-256 of the content.
    oid: String,
    size: u64,
}

/// The commit that a branch or a tag stands for.
pub(super) async fn commit(hub: &Hub, revision: &str) -> Result<String, RequestError> {
    let at = hub
        .address(["api", "models"].into_iter().chain(hub.model.id.split('/')).chain(["revision", revision]));
    let (_, text) = hub.read(&at, Missing::Model).await?;
    let Revision { sha } = parsed(&text)?;
    if is_commit(&sha) { Ok(sha) } else { Err(RequestError::MalformedAnswer("no commit".to_owned())) }
}

/// The files of a commit, by all pages of their list.
pub(super) async fn files(hub: &Hub, commit: &str) -> Result<Vec<File>, RequestError> {
    let mut first =
        hub.address(["api", "models"].into_iter().chain(hub.model.id.split('/')).chain(["tree", commit]));
    first.set_query(Some("recursive=true"));
    let (mut files, mut bounds, mut at) = (Vec::new(), Bounds::default(), first.clone());
    loop {
        let (headers, text) = hub.read(&at, Missing::Model).await?;
        let next = next(&first, &headers)?;
        bounds.page(next.is_some())?;
        let page: Vec<Entry> = parsed(&text)?;
        for entry in page.into_iter().filter(|entry| entry.kind == "file") {
            let file = file(entry)?;
            bounds.object(&file.path, 64)?;
            files.push(file);
        }
        match next {
            Some(next) => at = next,
            None => return Ok(files),
        }
    }
}

pub(super) fn address(hub: &Hub, commit: &str, path: &str) -> Url {
    hub.address(hub.model.id.split('/').chain(["resolve", commit]).chain(path.split('/')))
}

fn file(entry: Entry) -> Result<File, RequestError> {
    let Entry { kind: _, oid, size, path, lfs } = entry;
    let (expected, size) = match lfs {
        Some(Lfs { oid, size }) if is_hex(&oid, 64) => (Expected::Sha256(oid.to_ascii_lowercase()), size),
        None if is_hex(&oid, 40) => (Expected::GitBlob(oid.to_ascii_lowercase()), size),
        Some(_) | None => {
            let why = format!("{:?} has no digest", &path[..path.floor_char_boundary(64)]);
            return Err(RequestError::MalformedAnswer(why));
        }
    };
    Ok(File { path, size, expected })
}

fn parsed<'t, T: Deserialize<'t>>(text: &'t [u8]) -> Result<T, RequestError> {
    // The text of the parser quotes the answer.
    serde_json::from_slice(text)
        .map_err(|_| RequestError::MalformedAnswer("an answer that cannot be parsed".to_owned()))
}

/// The next page, by `Link: <https://…?cursor=…>; rel="next"`. Only its query is taken: a mirror may name the hub.
fn next(first: &Url, headers: &HeaderMap) -> Result<Option<Url>, RequestError> {
    let links = headers.get_all(LINK).iter().filter_map(|link| link.to_str().ok());
    let next = links.flat_map(|links| links.split(',')).find_map(|link| {
        let (address, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        parameters.contains("rel=\"next\"").then(|| address.to_owned())
    });
    let Some(next) = next else { return Ok(None) };
    if next.len() > LONGEST_TOKEN {
        return Err(RequestError::MalformedAnswer(format!("a link of more than {LONGEST_TOKEN} bytes")));
    }
    let query = first.join(&next).ok().and_then(|next| next.query().map(str::to_owned));
    let Some(query) = query else {
        return Err(RequestError::MalformedAnswer("a next page without a query".to_owned()));
    };
    let mut address = first.clone();
    address.set_query(Some(&query));
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> Option<String> {
        let headers = [(LINK, text.parse().unwrap())].into_iter().collect();
        let first = Url::parse("http://mirror/api/models/a/b/tree/0?recursive=true").unwrap();
        next(&first, &headers).unwrap().map(String::from)
    }

    #[test]
    fn the_next_page_is_asked_of_the_endpoint() {
        assert_eq!(
            link("<https://huggingface.co/api/models/a/b/tree/0?recursive=true&cursor=x%3D>; rel=\"next\"")
                .as_deref(),
            Some("http://mirror/api/models/a/b/tree/0?recursive=true&cursor=x%3D")
        );
        assert_eq!(link("<https://huggingface.co/?a>; rel=\"prev\""), None);
    }

    #[test]
    fn a_file_in_lfs_has_the_digest_of_its_content() {
        let entries = format!(
            r#"[{{"type":"file","oid":"{0}","size":134,"path":"a.safetensors","lfs":{{"oid":"{1}","size":7,"pointerSize":134}},"xetHash":"x"}},
                {{"type":"file","oid":"{0}","size":3,"path":"config.json"}}]"#,
            "ab".repeat(20),
            "CD".repeat(32)
        );
        let entries: Vec<Entry> = parsed(entries.as_bytes()).unwrap();
        let files: Vec<File> = entries.into_iter().map(|entry| file(entry).unwrap()).collect();
        assert_eq!((files[0].size, &files[0].expected), (7, &Expected::Sha256("cd".repeat(32))));
        assert_eq!((files[1].size, &files[1].expected), (3, &Expected::GitBlob("ab".repeat(20))));
    }
}
