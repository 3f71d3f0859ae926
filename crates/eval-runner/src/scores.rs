//! The file of one side's scores: small, sorted, and complete or not there.
//!
//! It has a line with the name of the format, a line with a header in JSON, the records, and the SHA-256 of all of
//! these. It is written beside its place and renamed, so a run that ends in the middle leaves no file.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, ErrorKind, Read as _, Write},
    path::{Path, PathBuf},
};

use api::launcher::evaluator::{ExitCode, Side};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{cli, fault::Fault};

/// Changes with the form of the records.
const FORMAT: &[u8] = b"eval-runner scores 1\n";
const RECORD: usize = 40;
const CHECKSUM: usize = 32;
/// The longest line of a header, which has names of a command line.
const LONGEST_HEADER: u64 = 64 << 10;
/// More answers of one test set are a fault. It bounds the memory of a pairing.
pub(crate) const MOST: u64 = 1_000_000;
/// A right answer, in millionths.
pub(crate) const RIGHT: i64 = 1_000_000;

/// The score of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record {
    /// Of the question: the begin of a SHA-256.
    pub(crate) key: [u8; 16],
    /// Number of the question in its subset. It distinguishes questions of the same text.
    pub(crate) index: u32,
    /// Answers of the same group are to one question.
    pub(crate) group: u64,
    /// In millionths.
    pub(crate) score: i64,
    pub(crate) is_parsed: bool,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Header {
    /// Identity and settings of the run. A file of another one is replaced.
    pub(crate) fingerprint: String,
    /// Settings alone, without the number of questions: both sides must have the same.
    pub(crate) settings: String,
    /// Records of the file.
    pub(crate) records: u64,
    /// Counts of the file, without its checksum.
    pub(crate) side: StoredSide,
}

/// The part of the message that a later run repeats.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StoredSide {
    pub(crate) questions: u64,
    pub(crate) failed: u64,
    pub(crate) unparsed: u64,
    pub(crate) unchecked: bool,
    pub(crate) subsets: u64,
    pub(crate) right: Option<u64>,
    pub(crate) mean: String,
    pub(crate) metric: String,
    pub(crate) harness: String,
    pub(crate) harness_version: String,
}

impl Header {
    pub(crate) fn message(&self, sha256: String, reused: bool) -> Side {
        let StoredSide {
            questions,
            failed,
            unparsed,
            unchecked,
            subsets,
            right,
            mean,
            metric,
            harness,
            harness_version,
        } = self.side.clone();
        Side {
            questions,
            failed,
            unparsed,
            unchecked,
            subsets,
            right,
            mean,
            metric,
            harness,
            harness_version,
            sha256,
            reused,
        }
    }
}

/// The score of a failed request: 0, or the lowest one that an answer has. Where scores can be negative, 0 would be better than
/// an answer, and a server that fails would gain. The lowest score is known without the range of the metric.
pub(crate) fn worst(records: &[Record]) -> i64 {
    records.iter().map(|record| record.score).min().unwrap_or_default().min(0)
}

pub(crate) fn path(output: &Path, side: cli::Side, test_set: &str) -> PathBuf {
    output.join(side.as_str()).join(format!("{test_set}.scores"))
}

/// Puts the file in its place, and returns its checksum.
pub(crate) fn write(path: &Path, header: &Header, records: &[Record]) -> Result<String, Fault> {
    let failed = |step, path: &Path| {
        let path = path.to_owned();
        move |error| Fault::volume(step, &path, &error)
    };
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", &new)(error)),
        Ok(()) | Err(_) => {}
    }
    let file = File::create_new(&new).map_err(failed("create", &new))?;
    let written =
        write_to(BufWriter::new(&file), header, records).and_then(|sum| file.sync_all().map(|()| sum));
    let sum = written.map_err(|error| {
        // What is left of a full volume is not needed.
        let _ = fs::remove_file(&new);
        Fault::volume("write", &new, &error)
    })?;
    fs::rename(&new, path).map_err(failed("put in place", path))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))?;
    Ok(sum)
}

fn write_to(mut file: impl Write, header: &Header, records: &[Record]) -> io::Result<String> {
    let mut sum = Sha256::new();
    let mut put = |bytes: &[u8]| {
        sum.update(bytes);
        file.write_all(bytes)
    };
    put(FORMAT)?;
    put(&serde_json::to_vec(header)?)?;
    put(b"\n")?;
    for record in records {
        put(&bytes(record))?;
    }
    let sum = sum.finalize();
    file.write_all(&sum)?;
    file.flush()?;
    Ok(hex(&sum))
}

fn bytes(record: &Record) -> [u8; RECORD] {
    let Record { key, index, group, score, is_parsed } = *record;
    let mut bytes = [0; RECORD];
    bytes[..16].copy_from_slice(&key);
    bytes[16..20].copy_from_slice(&index.to_le_bytes());
    bytes[20..28].copy_from_slice(&group.to_le_bytes());
    bytes[28..36].copy_from_slice(&score.to_le_bytes());
    bytes[36] = u8::from(is_parsed);
    bytes
}

fn record(bytes: &[u8; RECORD]) -> Record {
    let (mut key, mut index, mut group, mut score) = ([0; 16], [0; 4], [0; 8], [0; 8]);
    key.copy_from_slice(&bytes[..16]);
    index.copy_from_slice(&bytes[16..20]);
    group.copy_from_slice(&bytes[20..28]);
    score.copy_from_slice(&bytes[28..36]);
    Record {
        key,
        index: u32::from_le_bytes(index),
        group: u64::from_le_bytes(group),
        score: i64::from_le_bytes(score),
        is_parsed: bytes[36] != 0,
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Why a file gives no scores.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Missing,
    Io(io::Error),
    Broken(&'static str),
}

impl Unreadable {
    pub(crate) fn fault(self, path: &Path) -> Fault {
        let shown = path.display();
        match self {
            Self::Missing => {
                Fault::new(ExitCode::OutputUnreadable, format!("{shown} is missing: its side has not ended"))
            }
            Self::Io(error) => Fault::volume("read", path, &error),
            Self::Broken(what) => Fault::new(
                ExitCode::OutputUnreadable,
                format!("{shown} is broken ({what}): create the evaluation again"),
            ),
        }
    }
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::Missing,
            ErrorKind::UnexpectedEof => Self::Broken("it is cut"),
            _ => Self::Io(error),
        }
    }
}

/// A file whose checksum is right.
#[derive(Debug)]
pub(crate) struct Scores {
    pub(crate) header: Header,
    /// Sorted by key and index, each of them once.
    pub(crate) records: Vec<Record>,
    pub(crate) sha256: String,
}

pub(crate) fn read(path: &Path) -> Result<Scores, Unreadable> {
    let mut file = Summed { file: BufReader::new(File::open(path)?), sum: Sha256::new() };
    let mut format = [0; FORMAT.len()];
    file.read_exact(&mut format)?;
    if format != FORMAT {
        return Err(Unreadable::Broken("it has another format"));
    }
    let header: Header =
        serde_json::from_slice(&file.line()?).map_err(|_| Unreadable::Broken("its header"))?;
    if header.records > MOST {
        return Err(Unreadable::Broken("its number of records"));
    }
    let mut records: Vec<Record> = Vec::new();
    for _ in 0..header.records {
        let mut bytes = [0; RECORD];
        file.read_exact(&mut bytes)?;
        records.push(record(&bytes));
    }
    let Summed { mut file, sum } = file;
    let sum = sum.finalize();
    let mut stored = [0; CHECKSUM];
    file.read_exact(&mut stored)?;
    if sum[..] != stored || file.read(&mut [0])? != 0 {
        return Err(Unreadable::Broken("its checksum"));
    }
    Ok(Scores { header, records, sha256: hex(&sum) })
}

/// A file, and the checksum of what was read.
struct Summed {
    file: BufReader<File>,
    sum: Sha256,
}

impl Summed {
    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.sum.update(bytes);
        Ok(())
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.file.by_ref().take(LONGEST_HEADER).read_until(b'\n', &mut line)?;
        self.sum.update(&line);
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(records: u64) -> Header {
        let side = StoredSide { questions: records, mean: "0.5".to_owned(), ..StoredSide::default() };
        Header { fingerprint: "f".to_owned(), settings: "s".to_owned(), records, side }
    }

    fn records(count: u8) -> Vec<Record> {
        let record = |at: u8| Record {
            key: [at; 16],
            index: u32::from(at) * 7,
            group: u64::MAX - u64::from(at),
            score: i64::from(at) - 3,
            is_parsed: at.is_multiple_of(2),
        };
        (0..count).map(record).collect()
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = super::path(folder.path(), cli::Side::Baseline, "cmmlu");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path.with_extension("new"), "half").unwrap();
        let sum = write(&path, &header(5), &records(5)).unwrap();
        let read = read(&path).unwrap();
        assert_eq!((read.header, read.records, read.sha256), (header(5), records(5), sum));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_was_cut_or_changed_anywhere_gives_no_scores() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.scores");
        write(&path, &header(4), &records(4)).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(read(&path).is_err(), "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert!(read(&path).is_err(), "byte {at}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read(&path).is_err());
        assert!(matches!(read(&folder.path().join("none")), Err(Unreadable::Missing)));
    }

    #[test]
    fn a_full_volume_is_named() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if self.0 < bytes.len() {
                    return Err(ErrorKind::StorageFull.into());
                }
                self.0 -= bytes.len();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = write_to(Full(300), &header(40), &records(40)).unwrap_err();
        assert_eq!(Fault::volume("write", Path::new("x"), &error).code, ExitCode::OutOfSpace);
    }
}
