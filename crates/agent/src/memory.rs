//! Records of MEMORY_DIR, and which of them are the nearest to a text.
//!
//! They are read once, at the start, up to a number of bytes. A collection may have gigabytes, and a worker must not.
//! Nearness is the cosine of vectors, or shared words if there is no vector for the text. Only `load` does I/O.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    path::Path,
};

use serde::Deserialize;
use serde_json::{Map, Value};

/// Records that go into one prompt.
const MOST_NEAREST: usize = 4;
/// Bytes of a record in a prompt.
const SHOWN_BYTES: usize = 2 << 10;
/// Bytes of a record that are searched for words. Texts are cut into pieces before they get into a vector store.
const KEPT_BYTES: usize = 8 << 10;
/// A vector of 4,096 numbers has some 90 KB of JSON.
const LONGEST_LINE: usize = 4 << 20;
/// A vector with less in common is of another subject.
const LEAST_COSINE: f32 = 0.25;
/// Shorter words are mostly articles and prepositions.
const SHORTEST_WORD: usize = 3;

#[derive(Deserialize)]
struct Line {
    document: Option<String>,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
    #[serde(default)]
    embedding: Vec<f32>,
}

#[derive(Debug, PartialEq)]
struct Record {
    text: String,
    /// Of length 1. Empty without a vector.
    vector: Vec<f32>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Memory {
    records: Vec<Record>,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) records: usize,
    /// Records beyond the bytes of the memory.
    pub(crate) left_out: usize,
    /// Lines that are no record, are too long or have neither a text nor metadata.
    pub(crate) unusable: usize,
}

/// Reads `memory.jsonl` of a folder. Without the file the memory is empty.
pub(crate) fn load(folder: &Path, most_bytes: usize) -> io::Result<(Memory, Loaded)> {
    match File::open(folder.join("memory.jsonl")) {
        Ok(file) => read(&mut BufReader::with_capacity(64 << 10, file), most_bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Default::default()),
        Err(error) => Err(error),
    }
}

fn read(lines: &mut impl BufRead, most_bytes: usize) -> io::Result<(Memory, Loaded)> {
    let (mut memory, mut loaded, mut bytes) = (Memory::default(), Loaded::default(), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        if lines.by_ref().take(LONGEST_LINE as u64).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if !line.ends_with(b"\n") && line.len() == LONGEST_LINE {
            lines.skip_until(b'\n')?;
            loaded.unusable += 1;
            continue;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        // What does not fit is counted, and costs no parsing.
        if loaded.left_out > 0 {
            loaded.left_out += 1;
            continue;
        }
        let Some(record) = record(&line) else {
            loaded.unusable += 1;
            continue;
        };
        let size = size_of::<Record>() + record.text.len() + record.vector.len() * size_of::<f32>();
        if bytes + size > most_bytes {
            loaded.left_out += 1;
            continue;
        }
        bytes += size;
        memory.records.push(record);
    }
    memory.records.shrink_to_fit();
    loaded.records = memory.records.len();
    Ok((memory, loaded))
}

/// `None`: nothing of the line can go into a prompt.
fn record(line: &[u8]) -> Option<Record> {
    let Line { document, metadata, embedding } = serde_json::from_slice(line).ok()?;
    let document = document.filter(|text| !text.trim().is_empty());
    let metadata = metadata.filter(|fields| !fields.is_empty());
    let text = document.or_else(|| metadata.map(|fields| Value::Object(fields).to_string()))?;
    let mut text = text::cut(text, KEPT_BYTES);
    text.shrink_to_fit();
    Some(Record { text, vector: unit(embedding).unwrap_or_default() })
}

/// The vector with the length 1. `None`: it has no direction.
fn unit(mut vector: Vec<f32>) -> Option<Vec<f32>> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if !length.is_normal() {
        return None;
    }
    vector.iter_mut().for_each(|x| *x /= length);
    vector.shrink_to_fit();
    Some(vector)
}

impl Memory {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether vectors of this dimension can be compared with a record.
    pub(crate) fn has_vectors(&self) -> bool {
        self.records.iter().any(|record| !record.vector.is_empty())
    }

    /// The nearest first. `None`: no record has a vector of this dimension.
    pub(crate) fn nearest_by_vector(&self, vector: Vec<f32>) -> Option<Vec<&str>> {
        let vector = unit(vector)?;
        let mut comparable =
            self.records.iter().filter(|record| record.vector.len() == vector.len()).peekable();
        comparable.peek()?;
        let cosine = |record: &Record| -> f32 { record.vector.iter().zip(&vector).map(|(a, b)| a * b).sum() };
        let scored = comparable.map(|record| (cosine(record), record.text.as_str()));
        Some(best(scored.filter(|(score, _)| *score >= LEAST_COSINE).collect()))
    }

    /// The records that share the rarest words with the text. The nearest first.
    pub(crate) fn nearest_by_words(&self, text: &str) -> Vec<&str> {
        let wanted = words(text);
        let shared: Vec<(BTreeSet<String>, &str)> = self
            .records
            .iter()
            .map(|record| {
                let mut of_record = words(&record.text);
                of_record.retain(|word| wanted.contains(word));
                (of_record, record.text.as_str())
            })
            .collect();
        let mut known: HashMap<&str, usize> = HashMap::new();
        for word in shared.iter().flat_map(|(words, _)| words) {
            *known.entry(word).or_default() += 1;
        }
        let all = self.records.len() as f32;
        // The weight of a word in BM25: near zero for a word of every record.
        let weight = |word: &String| {
            let having = known.get(word.as_str()).copied().unwrap_or_default() as f32;
            (1.0 + (all - having + 0.5) / (having + 0.5)).ln()
        };
        let scored = shared.iter().filter(|(words, _)| !words.is_empty());
        best(scored.map(|(words, text)| (words.iter().map(weight).sum(), *text)).collect())
    }
}

fn best(mut scored: Vec<(f32, &str)>) -> Vec<&str> {
    scored.sort_by(|(a, _), (b, _)| b.partial_cmp(a).unwrap_or(Ordering::Equal));
    scored.into_iter().take(MOST_NEAREST).map(|(_, text)| text).collect()
}

/// Words in lower case. Scripts without spaces count as pairs of characters.
fn words(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for run in text.split(|c: char| !c.is_alphanumeric()) {
        let chars: Vec<char> = run.chars().collect();
        if chars.iter().any(|c| is_without_spaces(*c)) {
            found.extend(chars.windows(2).map(|pair| pair.iter().collect::<String>()));
        } else if chars.len() >= SHORTEST_WORD {
            found.insert(run.to_lowercase());
        }
    }
    found
}

/// Chinese, Japanese and Korean.
fn is_without_spaces(c: char) -> bool {
    matches!(c, '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// The part of a prompt with these records. Empty without records.
pub(crate) fn section(records: &[&str]) -> String {
    if records.is_empty() {
        return String::new();
    }
    let mut section = "\n\nRecords from memory that may help:".to_owned();
    for record in records {
        section.push_str("\n- ");
        section.push_str(&record[..record.floor_char_boundary(SHOWN_BYTES)]);
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"id": "1", "document": "The deploy key is rotated on Mondays", "embedding": [1, 0]}
{"id": "2", "document": null, "metadata": {"source": "manual"}, "embedding": [0, 2]}

{"id": "3", "document": null, "metadata": null, "embedding": [0, 1]}
no record
{"id": "4", "document": "Tests of the parser take the longest", "embedding": [0.9, 0.1]}
"#;

    fn memory() -> (Memory, Loaded) {
        read(&mut LINES.as_bytes(), 1 << 20).unwrap()
    }

    #[test]
    fn lines_that_are_no_record_are_counted_and_skipped() {
        assert_eq!(memory().1, Loaded { records: 3, left_out: 0, unusable: 2 });
    }

    #[test]
    fn the_nearest_vector_comes_first_and_other_directions_are_left_out() {
        let (memory, _) = memory();
        let found = memory.nearest_by_vector(vec![2.0, 0.1]).unwrap();
        assert_eq!(found, ["The deploy key is rotated on Mondays", "Tests of the parser take the longest"]);
        assert_eq!(memory.nearest_by_vector(vec![0.0, 1.0]).unwrap(), [r#"{"source":"manual"}"#]);
    }

    #[test]
    fn a_vector_of_another_dimension_is_not_compared() {
        assert_eq!(memory().0.nearest_by_vector(vec![1.0, 0.0, 0.0]), None);
        assert_eq!(memory().0.nearest_by_vector(vec![0.0, 0.0]), None);
    }

    #[test]
    fn without_vectors_rare_words_count_more_than_common_ones() {
        let found = memory().0;
        let found = found.nearest_by_words("How long do the tests of the PARSER run?");
        assert_eq!(found[0], "Tests of the parser take the longest");
        assert!(memory().0.nearest_by_words("unknown").is_empty());
    }

    #[test]
    fn scripts_without_spaces_have_words() {
        let lines = "{\"document\": \"部署密钥每周一轮换\"}\n{\"document\": \"解析器的测试\"}\n";
        let (memory, _) = read(&mut lines.as_bytes(), 1 << 20).unwrap();
        assert_eq!(memory.nearest_by_words("密钥何时轮换"), ["部署密钥每周一轮换"]);
    }

    #[test]
    fn records_beyond_the_bytes_are_left_out() {
        let (memory, loaded) = read(&mut LINES.as_bytes(), 150).unwrap();
        assert_eq!((memory.records.len(), loaded.left_out), (1, 4));
    }

    #[test]
    fn a_line_that_does_not_end_is_skipped() {
        let lines = format!("{}\n{{\"document\": \"short\"}}", "x".repeat(LONGEST_LINE + 10));
        let (_, loaded) = read(&mut lines.as_bytes(), 1 << 20).unwrap();
        assert_eq!(loaded, Loaded { records: 1, left_out: 0, unusable: 1 });
    }

    #[test]
    fn a_section_has_the_beginning_of_each_record() {
        let long = "é".repeat(SHOWN_BYTES);
        let section = section(&["short", &long]);
        assert!(section.starts_with("\n\nRecords") && section.contains("\n- short\n- é"));
        assert!(section.len() < SHOWN_BYTES + 100);
    }
}
