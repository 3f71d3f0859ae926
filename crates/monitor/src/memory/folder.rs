//! The folder of a worker's memory: records in one file, written page after page, and a description once it is whole.
//!
//! ```text
//!  MEMORY_DIR/memory.jsonl       a record in each line
//!  MEMORY_DIR/memory.json        {"collection", "dim", "count"}: written last
//!  MEMORY_DIR/.progress.json     where an interrupted load continues
//! ```

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::records::{Collection, Page};

const RECORDS: &str = "memory.jsonl";
const DESCRIPTION: &str = "memory.json";
const PROGRESS: &str = ".progress.json";

/// The progress of a load.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// The collection, as the store names it. The progress of another collection is discarded.
    collection: String,
    /// Bytes of whole pages in the file.
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    /// Where the next page begins; `None`: at the begin.
    pub(crate) next: Option<Value>,
}

/// A description of what was loaded, for agents.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) collection: String,
    pub(crate) dim: u64,
    pub(crate) count: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// What is there already. The file is cut to its whole pages.
    pub(crate) fn progress(&self, collection: &Collection) -> io::Result<Progress> {
        let fresh = Progress { collection: collection.id.clone(), ..Progress::default() };
        let known = match fs::read(self.0.join(PROGRESS)) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|_| fresh.clone()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => fresh.clone(),
            Err(error) => return Err(error),
        };
        let known = if known.collection == collection.id { known } else { fresh.clone() };
        let file = File::options().create(true).truncate(false).write(true).open(self.0.join(RECORDS))?;
        // The records are written before the progress, so the file is shorter only if another process has changed it.
        let known = if file.metadata()?.len() >= known.bytes { known } else { fresh };
        file.set_len(known.bytes)?;
        Ok(known)
    }

    /// Adds a page and then the progress.
    pub(crate) fn append(&self, progress: Progress, page: &Page) -> io::Result<Progress> {
        let file = File::options().append(true).open(self.0.join(RECORDS))?;
        let mut writer = BufWriter::new(file);
        for record in &page.records {
            serde_json::to_writer(&mut writer, record)?;
            writer.write_all(b"\n")?;
        }
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        let progress = Progress {
            bytes: file.metadata()?.len(),
            count: progress.count.saturating_add(page.records.len() as u64),
            next: page.next.clone(),
            ..progress
        };
        // Not synced with each of many pages: what is lost in a power failure is loaded again.
        let new = self.0.join(format!("{PROGRESS}.new"));
        fs::write(&new, serde_json::to_vec(&progress)?)?;
        fs::rename(new, self.0.join(PROGRESS))?;
        Ok(progress)
    }

    /// From now on the memory is whole.
    pub(crate) fn finish(&self, description: &Description) -> io::Result<()> {
        // After a power failure of the node, a description beside a part of the records would stop the next load.
        File::open(self.0.join(RECORDS))?.sync_all()?;
        crate::replace(&self.0.join(DESCRIPTION), &serde_json::to_vec(description)?)?;
        match fs::remove_file(self.0.join(PROGRESS)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Whether an earlier container of this pod has loaded everything.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.join(DESCRIPTION).is_file()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::memory::records::Record;

    fn collection(id: &str) -> Collection {
        Collection { id: id.into(), dim: Some(1) }
    }

    fn page(ids: &[&str], next: Option<u64>) -> Page {
        let record = |id: &&str| Record {
            id: (*id).to_owned(),
            document: None,
            metadata: serde_json::value::RawValue::from_string("{}".to_owned()).unwrap(),
            embedding: vec![0.5],
        };
        Page { records: ids.iter().map(record).collect(), next: next.map(Value::from) }
    }

    fn ids(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path.join(RECORDS)).unwrap();
        text.lines().map(|line| serde_json::from_str::<Record>(line).unwrap().id).collect()
    }

    #[test]
    fn an_interrupted_load_goes_on_after_its_last_whole_page() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path());
        let progress = folder.progress(&collection("c")).unwrap();
        assert_eq!((progress.count, &progress.next), (0, &None));
        folder.append(progress, &page(&["a", "b"], Some(2))).unwrap();
        // In the middle of the next page.
        let mut file = File::options().append(true).open(place.path().join(RECORDS)).unwrap();
        file.write_all(br#"{"id": "c", "docu"#).unwrap();
        let progress = folder.progress(&collection("c")).unwrap();
        assert_eq!((progress.count, &progress.next), (2, &Some(json!(2))));
        let progress = folder.append(progress, &page(&["c"], None)).unwrap();
        assert_eq!(ids(place.path()), ["a", "b", "c"]);
        assert!(!folder.is_whole());
        folder.finish(&Description { collection: "memory".into(), dim: 1, count: progress.count }).unwrap();
        assert!(folder.is_whole());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_collection_that_was_made_anew_is_loaded_anew() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path());
        let progress = folder.progress(&collection("c")).unwrap();
        folder.append(progress, &page(&["a"], Some(1))).unwrap();
        let progress = folder.progress(&collection("d")).unwrap();
        assert_eq!((progress.count, progress.next), (0, None));
        assert_eq!(ids(place.path()), [""; 0]);
    }

    #[test]
    fn a_file_that_is_shorter_than_noted_is_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path());
        let progress = folder.progress(&collection("c")).unwrap();
        folder.append(progress, &page(&["a"], Some(1))).unwrap();
        fs::write(place.path().join(RECORDS), "").unwrap();
        assert_eq!(folder.progress(&collection("c")).unwrap().count, 0);
    }
}
