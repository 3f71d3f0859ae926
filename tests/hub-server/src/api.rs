//! What the two APIs answer. Pure.

use serde_json::{Value, json};

use crate::{
    models::{Access, Commit, Content, Model},
    request::{Request, decoded},
};

/// An answer before anything is broken in it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Text(String),
    /// A file, or the range of it that the request names.
    File(Content),
}

impl Answer {
    fn json(value: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status: 200, headers, body: Body::Text(value.to_string()) }
    }

    fn status(status: u16, code: Option<&str>) -> Self {
        let headers = code.map(|code| ("x-error-code", code.to_owned())).into_iter().collect();
        Self { status, headers, body: Body::Text(json!({"error": "see the status"}).to_string()) }
    }
}

/// `network`: where the large files are. `page`: entries of a page of a list.
pub(crate) fn of_hub(request: &Request, models: &[Model], network: &str, page: usize) -> Answer {
    let segments: Vec<String> = request.path.split('/').skip(1).map(decoded).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments[..] {
        ["api", "v1", "models", owner, name, ref rest @ ..] => {
            of_model_scope(request, found(models, owner, name), rest, network)
        }
        ["api", "models", owner, name, ref rest @ ..] => {
            of_hugging_face(request, found(models, owner, name), rest, page)
        }
        [owner, name, "resolve", revision, ref path @ ..] => {
            resolved(request, found(models, owner, name), revision, &path.join("/"), network)
        }
        _ => Answer::status(404, None),
    }
}

fn found<'m>(models: &'m [Model], owner: &str, name: &str) -> Option<&'m Model> {
    models.iter().find(|model| model.id() == format!("{owner}/{name}"))
}

/// How Hugging Face answers who may not see a model.
fn hidden(request: &Request) -> Answer {
    // To whom it does not know it says neither that a model is there nor that it is not.
    Answer::status(if request.token().is_some() { 404 } else { 401 }, Some("RepoNotFound"))
}

fn may_see(model: &Model, request: &Request) -> bool {
    match &model.access {
        Access::Public | Access::Gated(_) => true,
        Access::Private(token) => request.token().as_deref() == Some(token),
    }
}

fn may_read(model: &Model, request: &Request) -> bool {
    match &model.access {
        Access::Public => true,
        Access::Gated(token) | Access::Private(token) => request.token().as_deref() == Some(token),
    }
}

fn of_hugging_face(request: &Request, model: Option<&Model>, rest: &[&str], page: usize) -> Answer {
    let Some(model) = model.filter(|model| may_see(model, request)) else { return hidden(request) };
    let (kind, revision) = match rest {
        [] => ("revision", "main"),
        [kind @ ("revision" | "tree"), revision, ..] => (*kind, *revision),
        _ => return Answer::status(404, None),
    };
    let Some(commit) = model.commit(revision) else { return Answer::status(404, Some("RevisionNotFound")) };
    if kind == "revision" {
        let siblings: Vec<Value> = commit.files.keys().map(|path| json!({"rfilename": path})).collect();
        let gated = matches!(model.access, Access::Gated(_));
        return Answer::json(&json!({
            "_id": "0", "id": model.id(), "modelId": model.id(), "sha": commit.id, "private": false, "gated": gated,
            "disabled": false, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings
        }));
    }
    let mut entries: Vec<Value> = folders(commit)
        .into_iter()
        .map(|path| json!({"type": "directory", "oid": "0".repeat(40), "size": 0, "path": path}))
        .collect();
    entries.extend(commit.files.iter().map(|(path, content)| {
        // What git has of a large file is a pointer.
        let oid = content.blob.clone().unwrap_or_else(|| content.sha256[..40].to_owned());
        let mut entry = json!({"type": "file", "oid": oid, "size": content.size, "path": path});
        if content.blob.is_none() {
            entry["lfs"] = json!({"oid": content.sha256, "size": content.size, "pointerSize": 134});
        }
        entry
    }));
    let from: usize = request.value("cursor").and_then(|cursor| cursor.parse().ok()).unwrap_or_default();
    let upto = entries.len().min(from + page);
    let mut answer = Answer::json(&json!(entries.get(from..upto).unwrap_or_default()));
    if upto < entries.len() {
        let host = request.header("host").unwrap_or_default();
        let link = format!("<http://{host}{}?recursive=true&cursor={upto}>; rel=\"next\"", request.path);
        answer.headers.push(("link", link));
    }
    answer
}

fn folders(commit: &Commit) -> Vec<String> {
    let mut folders: Vec<String> =
        commit.files.keys().filter_map(|path| Some(path.rsplit_once('/')?.0.to_owned())).collect();
    folders.dedup();
    folders
}

fn resolved(request: &Request, model: Option<&Model>, revision: &str, path: &str, network: &str) -> Answer {
    let Some(model) = model.filter(|model| may_see(model, request)) else { return hidden(request) };
    if !may_read(model, request) {
        return Answer::status(if request.token().is_some() { 403 } else { 401 }, Some("GatedRepo"));
    }
    let Some(commit) = model.commit(revision) else { return Answer::status(404, Some("RevisionNotFound")) };
    let Some(content) = commit.files.get(path) else { return Answer::status(404, Some("EntryNotFound")) };
    let commit = ("x-repo-commit", commit.id.clone());
    if let Some(blob) = &content.blob {
        let headers = vec![commit, ("etag", format!("\"{blob}\""))];
        return Answer { status: 200, headers, body: Body::File(content.clone()) };
    }
    let mut answer = redirect(content, network);
    answer.headers.extend([
        commit,
        ("x-linked-size", content.size.to_string()),
        ("x-linked-etag", format!("\"{}\"", content.sha256)),
    ]);
    answer
}

/// With the signature that the content network asks for.
fn redirect(content: &Content, network: &str) -> Answer {
    let location = format!("http://{network}/{}?signature=valid", content.sha256);
    Answer { status: 302, headers: vec![("location", location)], body: Body::Text(String::new()) }
}

fn of_model_scope(request: &Request, model: Option<&Model>, rest: &[&str], network: &str) -> Answer {
    let refused = |status: u16, code: u64| Answer {
        status,
        ..Answer::json(&json!({"Code": code, "Message": "refused", "Success": false, "Data": null}))
    };
    let Some(model) = model.filter(|model| may_see(model, request)) else {
        return refused(404, 10_010_205_001);
    };
    let data = |data: Value| {
        Answer::json(
            &json!({"Code": 200, "Message": "success", "RequestId": "0", "Success": true, "Data": data}),
        )
    };
    let revision = request.value("Revision").unwrap_or_else(|| "master".to_owned());
    match rest {
        [] => data(json!({"Id": 1, "Name": model.id(), "Revision": "master"})),
        ["revisions"] => data(json!({"RevisionMap": {
            "Branches": [{"Revision": "master", "CreatedAt": 1}],
            "Tags": model.tags.keys().map(|tag| json!({"Revision": tag, "CreatedAt": 1})).collect::<Vec<_>>()
        }})),
        ["repo", "files"] => {
            let Some(commit) = model.commit(&revision) else { return refused(404, 10_010_205_002) };
            let mut files: Vec<Value> = folders(commit)
                .into_iter()
                .map(|path| json!({"Path": path, "Name": path, "Type": "tree", "Size": 0, "Sha256": ""}))
                .collect();
            files.extend(commit.files.iter().map(|(path, content)| {
                json!({
                    "Path": path, "Name": path.rsplit('/').next(), "Type": "blob", "Size": content.size,
                    "Sha256": content.sha256, "Revision": commit.id, "IsLFS": content.blob.is_none()
                })
            }));
            // As for a request by a commit, whose name it leaves out.
            let id = if revision == commit.id { "" } else { &*commit.id };
            data(
                json!({"Files": files, "IsVisual": 1, "LatestCommitter": {"Id": id, "ShortId": &commit.id[..8]}}),
            )
        }
        ["repo"] => {
            if !may_read(model, request) {
                return refused(403, 10_010_205_003);
            }
            let path = request.value("FilePath").unwrap_or_default();
            let content = model.commit(&revision).and_then(|commit| commit.files.get(&path));
            match content {
                Some(content) if content.blob.is_some() => {
                    Answer { status: 200, headers: Vec::new(), body: Body::File(content.clone()) }
                }
                Some(content) => redirect(content, network),
                None => refused(404, 10_010_205_004),
            }
        }
        _ => refused(404, 10_010_205_005),
    }
}

/// `/<sha256>?signature=valid`
pub(crate) fn of_network(request: &Request, models: &[Model]) -> Answer {
    let digest = request.path.trim_start_matches('/');
    let files = models.iter().flat_map(|model| &model.commits).flat_map(|commit| commit.files.values());
    let content = files.filter(|content| content.blob.is_none()).find(|content| content.sha256 == digest);
    match content {
        _ if request.value("signature").as_deref() != Some("valid") => Answer::status(403, None),
        Some(content) => {
            let headers = vec![("etag", format!("\"{digest}\""))];
            Answer { status: 200, headers, body: Body::File(content.clone()) }
        }
        None => Answer::status(404, None),
    }
}
