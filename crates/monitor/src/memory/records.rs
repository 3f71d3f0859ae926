//! What vector stores answer, and the one form in which agents read it. Pure.
//!
//! A record is one line of JSON: `{"id": "…", "document": "…", "metadata": {…}, "embedding": […]}`. The document is `null`
//! where the store has none.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, value::RawValue};

use super::MOST_RECORDS;
use crate::checkpoint::bounded::few;

/// A vector collection of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// How further requests name it.
    pub(crate) id: String,
    /// `None`: it has no vector yet, and takes any.
    pub(crate) dim: Option<u64>,
}

/// One vector, with what it stands for.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) document: Option<String>,
    /// An object.
    pub(crate) metadata: Raw,
    pub(crate) embedding: Vec<f32>,
}

/// Some records, and where the next ones begin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) records: Vec<Record>,
    /// `None`: there are no more.
    pub(crate) next: Option<Value>,
}

/// Why an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// It is not what was asked for.
    Answer(&'static str),
    /// Each point of the collection has so many vectors.
    ManyVectors(usize),
}

/// A part of an answer that is passed on as it is. A parsed one takes many times its bytes.
type Raw = Box<RawValue>;

/// Limit of the text of an id, and of where a page begins.
const LONGEST_ID: usize = 1_024;

/// At most the records of a page. Each one takes many times the bytes of the shortest in an answer.
#[derive(Debug)]
struct Few<T>(Vec<T>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(values: D) -> Result<Self, D::Error> {
        few::<D, T, { MOST_RECORDS as usize }>(values).map(Self)
    }
}

/// A number or a short text: an array would take many times its bytes.
fn id_of(raw: &RawValue) -> Option<Value> {
    let is_scalar = |value: &Value| value.is_string() || value.is_number();
    let short = Some(raw.get()).filter(|text| text.len() <= LONGEST_ID)?;
    serde_json::from_str(short).ok().filter(is_scalar)
}

pub(crate) mod chroma {
    //! Chroma's API v2.

    use super::{Collection, Deserialize, Few, Malformed, Page, Raw, RawValue, Record, Value};

    #[derive(Deserialize)]
    struct CollectionAnswer {
        id: String,
        dimension: Option<u64>,
    }

    #[derive(Deserialize)]
    struct RecordsAnswer {
        ids: Few<String>,
        documents: Option<Few<Option<String>>>,
        metadatas: Option<Few<Option<Raw>>>,
        embeddings: Option<Few<Option<Vec<f32>>>>,
    }

    pub(crate) fn collection(answer: &[u8]) -> Result<Collection, Malformed> {
        let CollectionAnswer { id, dimension } =
            serde_json::from_slice(answer).map_err(|_| Malformed::Answer("a collection"))?;
        Ok(Collection { id, dim: dimension })
    }

    pub(crate) fn request(offset: u64, limit: usize) -> Value {
        serde_json::json!({
            "offset": offset, "limit": limit, "include": ["documents", "metadatas", "embeddings"],
        })
    }

    /// `offset`, `limit`: those of the request. A page with fewer records is the last one.
    pub(crate) fn page(answer: &[u8], offset: u64, limit: usize) -> Result<Page, Malformed> {
        let malformed = |_| Malformed::Answer("records");
        let answer: RecordsAnswer = serde_json::from_slice(answer).map_err(malformed)?;
        let count = answer.ids.0.len();
        let mut documents = answer.documents.unwrap_or_default().0.into_iter();
        let mut metadatas = answer.metadatas.unwrap_or_default().0.into_iter();
        let mut embeddings = answer.embeddings.unwrap_or_default().0.into_iter();
        let records = answer.ids.0.into_iter().map(|id| {
            Some(Record {
                id,
                document: documents.next().flatten(),
                metadata: match metadatas.next().flatten() {
                    Some(metadata) => metadata,
                    None => RawValue::from_string("{}".to_owned()).ok()?,
                },
                embedding: embeddings.next().flatten()?,
            })
        });
        let records: Option<Vec<Record>> = records.collect();
        let next = (count >= limit).then(|| Value::from(offset + count as u64));
        Ok(Page { records: records.ok_or(Malformed::Answer("a record without a vector"))?, next })
    }
}

pub(crate) mod qdrant {
    //! Qdrant's REST API.

    use std::{borrow::Cow, collections::BTreeMap, fmt};

    use serde::{
        Deserializer,
        de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
    };

    use super::{Collection, Deserialize, Few, Malformed, Page, Raw, RawValue, Record, Value, id_of};

    /// Where integrations (LangChain, LlamaIndex, Qdrant's own FastEmbed) keep the text.
    const DOCUMENT_KEYS: [&str; 4] = ["document", "page_content", "text", "_node_content"];

    #[derive(Deserialize)]
    struct Point {
        id: Raw,
        payload: Option<Raw>,
        vector: Option<Vectors>,
    }

    #[derive(Deserialize)]
    struct Scrolled {
        points: Few<Point>,
        next_page_offset: Option<Raw>,
    }

    /// Of one point.
    struct Vectors(Vec<f32>);

    #[derive(Deserialize)]
    struct Answer<T> {
        result: T,
    }

    /// `name`: of the collection. One with several named vectors has no single dimension, and is refused.
    pub(crate) fn collection(answer: &[u8], name: &str) -> Result<Collection, Malformed> {
        let answer: Answer<Value> =
            serde_json::from_slice(answer).map_err(|_| Malformed::Answer("a collection"))?;
        let vectors =
            answer.result.pointer("/config/params/vectors").ok_or(Malformed::Answer("a collection"))?;
        let dim = match vectors.get("size") {
            Some(size) => size.as_u64(),
            None => match vectors.as_object().map(|named| named.values().collect::<Vec<_>>()).as_deref() {
                Some([only]) => only.get("size").and_then(Value::as_u64),
                Some(several @ [_, _, ..]) => return Err(Malformed::ManyVectors(several.len())),
                Some([]) | None => None,
            },
        };
        let dim = dim.ok_or(Malformed::Answer("a collection with one vector for each point"))?;
        Ok(Collection { id: name.to_owned(), dim: Some(dim) })
    }

    pub(crate) fn request(offset: Option<&Value>, limit: usize) -> Value {
        let mut request = serde_json::json!({"limit": limit, "with_payload": true, "with_vector": true});
        if let Some(offset) = offset {
            request["offset"] = offset.clone();
        }
        request
    }

    pub(crate) fn page(answer: Vec<u8>) -> Result<Page, Malformed> {
        let read: Result<Answer<Scrolled>, _> = serde_json::from_slice(&answer);
        // The texts of documents are copied once more.
        drop(answer);
        let Scrolled { points, next_page_offset } = read.map_err(|_| Malformed::Answer("records"))?.result;
        let next = match next_page_offset.filter(|next| next.get() != "null") {
            Some(next) => Some(id_of(&next).ok_or(Malformed::Answer("records"))?),
            None => None,
        };
        let records: Option<Vec<Record>> = points.0.into_iter().map(record).collect();
        Ok(Page { records: records.ok_or(Malformed::Answer("a record without a vector"))?, next })
    }

    fn record(Point { id, payload, vector }: Point) -> Option<Record> {
        let Vectors(embedding) = vector?;
        let metadata = match payload.filter(|payload| payload.get() != "null") {
            Some(payload) => payload,
            None => RawValue::from_string("{}".to_owned()).ok()?,
        };
        let id = match id_of(&id)? {
            Value::String(text) => text,
            number => number.to_string(),
        };
        Some(Record { id, document: document_of(&metadata), metadata, embedding })
    }

    /// The text of a payload, of which nothing else is parsed.
    fn document_of(payload: &RawValue) -> Option<String> {
        let fields: Texts = serde_json::from_str(payload.get()).ok()?;
        DOCUMENT_KEYS.iter().find_map(|key| serde_json::from_str(fields.0.get(*key)?.get()).ok())
    }

    /// The fields of a payload that may be its text.
    struct Texts(BTreeMap<&'static str, Raw>);

    impl<'de> Deserialize<'de> for Texts {
        fn deserialize<D: Deserializer<'de>>(payload: D) -> Result<Self, D::Error> {
            struct OfObject;
            impl<'de> Visitor<'de> for OfObject {
                type Value = Texts;

                fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                    formatter.write_str("a payload")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Texts, A::Error> {
                    let mut texts = BTreeMap::new();
                    while let Some(name) = fields.next_key::<Cow<'de, str>>()? {
                        match DOCUMENT_KEYS.iter().find(|key| ***key == *name) {
                            Some(key) => {
                                texts.insert(*key, fields.next_value()?);
                            }
                            None => {
                                fields.next_value::<IgnoredAny>()?;
                            }
                        }
                    }
                    Ok(Texts(texts))
                }
            }
            payload.deserialize_map(OfObject)
        }
    }

    impl<'de> Deserialize<'de> for Vectors {
        /// Plain, or the only one of its names.
        fn deserialize<D: Deserializer<'de>>(vector: D) -> Result<Self, D::Error> {
            struct OfPoint;
            impl<'de> Visitor<'de> for OfPoint {
                type Value = Vectors;

                fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                    formatter.write_str("a vector")
                }

                fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Vectors, A::Error> {
                    let mut vector = Vec::new();
                    while let Some(number) = numbers.next_element()? {
                        vector.push(number);
                    }
                    Ok(Vectors(vector))
                }

                fn visit_map<A: MapAccess<'de>>(self, mut named: A) -> Result<Vectors, A::Error> {
                    let first = named.next_entry::<IgnoredAny, Vec<f32>>()?;
                    let (_, vector) = first.ok_or_else(|| A::Error::custom("no vector"))?;
                    while named.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                    Ok(Vectors(vector))
                }
            }
            vector.deserialize_any(OfPoint)
        }
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
        let page = qdrant::page(answer.to_string().into_bytes()).unwrap();
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
        let several = json!({"text": {"size": 4}, "image": {"size": 8}});
        assert_eq!(dim(several), Err(Malformed::ManyVectors(2)));
    }

    #[test]
    fn an_answer_that_stands_for_many_values_is_refused() {
        let malformed = Some(Malformed::Answer("records"));
        let ids = format!(r#"{{"ids": [{}""]}}"#, r#""","#.repeat(1_000));
        assert_eq!(chroma::page(ids.as_bytes(), 0, 256).err(), malformed);
        let qdrant = |result: &str| qdrant::page(format!(r#"{{"result": {result}}}"#).into_bytes()).err();
        let points = format!(r#"{{"points": [{}{{"id": 1}}]}}"#, r#"{"id":1},"#.repeat(1_000));
        assert_eq!(qdrant(&points), malformed);
        assert_eq!(qdrant(r#"{"points": [], "next_page_offset": [0, 0]}"#), malformed);
    }
}
