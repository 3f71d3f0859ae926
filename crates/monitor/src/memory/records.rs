//! What vector stores answer, and the one form in which agents read it. Pure.
//!
//! A record is one line of JSON: `{"id": "…", "document": "…", "metadata": {…}, "embedding": […]}`. The document is `null`
//! where the store has none.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A vector collection of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// How further requests name it.
    pub(crate) id: String,
    /// `None`: it has no vector yet, and takes any.
    pub(crate) dim: Option<u64>,
}

/// One vector, with what it stands for.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) document: Option<String>,
    pub(crate) metadata: Value,
    pub(crate) embedding: Vec<f32>,
}

/// Some records, and where the next ones begin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) records: Vec<Record>,
    /// `None`: there are no more.
    pub(crate) next: Option<Value>,
}

/// Why an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) mod chroma {
    //! Chroma's API v2.

    use super::{Collection, Deserialize, Malformed, Page, Record, Value};

    #[derive(Deserialize)]
    struct CollectionAnswer {
        id: String,
        dimension: Option<u64>,
    }

    #[derive(Deserialize)]
    struct RecordsAnswer {
        ids: Vec<String>,
        documents: Option<Vec<Option<String>>>,
        metadatas: Option<Vec<Option<Value>>>,
        embeddings: Option<Vec<Option<Vec<f32>>>>,
    }

    pub(crate) fn collection(answer: &[u8]) -> Result<Collection, Malformed> {
        let CollectionAnswer { id, dimension } =
            serde_json::from_slice(answer).map_err(|_| Malformed("a collection"))?;
        Ok(Collection { id, dim: dimension })
    }

    pub(crate) fn request(offset: u64, limit: usize) -> Value {
        serde_json::json!({
            "offset": offset, "limit": limit, "include": ["documents", "metadatas", "embeddings"],
        })
    }

    /// `offset`, `limit`: those of the request. A page with fewer records is the last one.
    pub(crate) fn page(answer: &[u8], offset: u64, limit: usize) -> Result<Page, Malformed> {
        let malformed = |_| Malformed("records");
        let answer: RecordsAnswer = serde_json::from_slice(answer).map_err(malformed)?;
        let count = answer.ids.len();
        let mut documents = answer.documents.unwrap_or_default().into_iter();
        let mut metadatas = answer.metadatas.unwrap_or_default().into_iter();
        let mut embeddings = answer.embeddings.unwrap_or_default().into_iter();
        let records = answer.ids.into_iter().map(|id| {
            Some(Record {
                id,
                document: documents.next().flatten(),
                metadata: metadatas.next().flatten().unwrap_or_else(|| Value::Object(super::Map::new())),
                embedding: embeddings.next().flatten()?,
            })
        });
        let records: Option<Vec<Record>> = records.collect();
        let next = (count >= limit).then(|| Value::from(offset + count as u64));
        Ok(Page { records: records.ok_or(Malformed("a record without a vector"))?, next })
    }
}

pub(crate) mod qdrant {
    //! Qdrant's REST API.

    use super::{Collection, Deserialize, Malformed, Map, Page, Record, Value};

    /// Where integrations (LangChain, LlamaIndex, Qdrant's own FastEmbed) keep the text.
    const DOCUMENT_KEYS: [&str; 4] = ["document", "page_content", "text", "_node_content"];

    #[derive(Deserialize)]
    struct Point {
        id: Value,
        payload: Option<Map<String, Value>>,
        vector: Option<Value>,
    }

    #[derive(Deserialize)]
    struct Scrolled {
        points: Vec<Point>,
        next_page_offset: Option<Value>,
    }

    #[derive(Deserialize)]
    struct Answer<T> {
        result: T,
    }

    /// `name`: of the collection. One with several named vectors has no single dimension, and is refused.
    pub(crate) fn collection(answer: &[u8], name: &str) -> Result<Collection, Malformed> {
        let answer: Answer<Value> = serde_json::from_slice(answer).map_err(|_| Malformed("a collection"))?;
        let vectors = answer.result.pointer("/config/params/vectors").ok_or(Malformed("a collection"))?;
        let dim = match vectors.get("size") {
            Some(size) => size.as_u64(),
            None => match vectors.as_object().map(|named| named.values().collect::<Vec<_>>()).as_deref() {
                Some([only]) => only.get("size").and_then(Value::as_u64),
                Some(_) | None => None,
            },
        };
        let dim = dim.ok_or(Malformed("a collection with one vector for each point"))?;
        Ok(Collection { id: name.to_owned(), dim: Some(dim) })
    }

    pub(crate) fn request(offset: Option<&Value>, limit: usize) -> Value {
        let mut request = serde_json::json!({"limit": limit, "with_payload": true, "with_vector": true});
        if let Some(offset) = offset {
            request["offset"] = offset.clone();
        }
        request
    }

    pub(crate) fn page(answer: &[u8]) -> Result<Page, Malformed> {
        let answer: Answer<Scrolled> = serde_json::from_slice(answer).map_err(|_| Malformed("records"))?;
        let records: Option<Vec<Record>> = answer.result.points.into_iter().map(record).collect();
        let records = records.ok_or(Malformed("a record without a vector"))?;
        Ok(Page { records, next: answer.result.next_page_offset })
    }

    fn record(Point { id, payload, vector }: Point) -> Option<Record> {
        let vector = match vector? {
            // The only one of its names.
            Value::Object(named) => named.into_iter().next()?.1,
            plain => plain,
        };
        let payload = payload.unwrap_or_default();
        let document = DOCUMENT_KEYS.iter().find_map(|key| payload.get(*key)?.as_str().map(str::to_owned));
        let id = match id {
            Value::String(text) => text,
            number => number.to_string(),
        };
        Some(Record {
            id,
            document,
            metadata: Value::Object(payload),
            embedding: serde_json::from_value(vector).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn records_of_chroma_are_read_and_a_short_page_is_the_last() {
        let answer = json!({
            "ids": ["a", "b"], "documents": ["text", null], "metadatas": [{"k": 1}, null],
            "embeddings": [[0.5, 1.0], [0.0, 0.25]], "uris": null, "include": [],
        });
        let page = chroma::page(answer.to_string().as_bytes(), 10, 2).unwrap();
        assert_eq!(page.next, Some(json!(12)));
        let lines: Vec<String> =
            page.records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
        assert_eq!(lines[0], r#"{"id":"a","document":"text","metadata":{"k":1},"embedding":[0.5,1.0]}"#);
        assert_eq!(lines[1], r#"{"id":"b","document":null,"metadata":{},"embedding":[0.0,0.25]}"#);
        assert_eq!(chroma::page(answer.to_string().as_bytes(), 10, 3).unwrap().next, None);
    }

    #[test]
    fn a_collection_of_chroma_without_vectors_takes_any() {
        let answer = |dim: Value| json!({"id": "u", "name": "n", "dimension": dim, "other": 1}).to_string();
        let collection = |dim| chroma::collection(answer(dim).as_bytes()).unwrap();
        assert_eq!(collection(json!(1536)), Collection { id: "u".into(), dim: Some(1536) });
        assert_eq!(collection(Value::Null).dim, None);
        assert!(chroma::collection(b"<html>").is_err());
    }

    #[test]
    fn a_record_without_its_vector_is_no_record() {
        let answer = json!({"ids": ["a"], "documents": ["text"], "metadatas": [null], "embeddings": null});
        assert!(chroma::page(answer.to_string().as_bytes(), 0, 10).is_err());
    }

    #[test]
    fn records_of_qdrant_are_read_with_either_form_of_vectors() {
        let answer = json!({"result": {
            "points": [
                {"id": 7, "payload": {"page_content": "text", "k": 1}, "vector": [0.5]},
                {"id": "u-u", "payload": null, "vector": {"default": [1.0]}},
            ],
            "next_page_offset": 9,
        }, "status": "ok", "time": 0.1});
        let page = qdrant::page(answer.to_string().as_bytes()).unwrap();
        assert_eq!(page.next, Some(json!(9)));
        assert_eq!((&*page.records[0].id, page.records[0].document.as_deref()), ("7", Some("text")));
        assert_eq!((&*page.records[1].id, &*page.records[1].embedding), ("u-u", &[1.0_f32][..]));
    }

    #[test]
    fn the_dimension_of_qdrant_is_that_of_its_only_vector() {
        let answer =
            |vectors: Value| json!({"result": {"config": {"params": {"vectors": vectors}}}}).to_string();
        let dim = |vectors| qdrant::collection(answer(vectors).as_bytes(), "n").map(|found| found.dim);
        assert_eq!(dim(json!({"size": 4, "distance": "Cosine"})), Ok(Some(4)));
        assert_eq!(dim(json!({"text": {"size": 4}})), Ok(Some(4)));
        assert!(dim(json!({"text": {"size": 4}, "image": {"size": 8}})).is_err());
    }
}
