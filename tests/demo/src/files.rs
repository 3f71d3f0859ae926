//! The two files of a demo: its record as JSON, and beside it the picture of this record.

use std::{fs, path::Path};

use anyhow::Context as _;
use serde::{Serialize, de::DeserializeOwned};

/// Writes both into the folder, under this name.
pub(crate) fn write<Record: Serialize>(
    folder: &Path,
    name: &str,
    record: &Record,
    picture: fn(&Record) -> String,
) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let text = serde_json::to_string_pretty(record).context("failed to write the record")?;
    let file = folder.join(name);
    write_one(&file.with_extension("json"), &format!("{text}\n"))?;
    write_one(&file.with_extension("svg"), &picture(record))
}

/// Draws the picture of a record again, beside it.
pub(crate) fn draw<Record: DeserializeOwned>(
    file: &Path,
    picture: fn(&Record) -> String,
) -> anyhow::Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
    let record = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a record of this demo", file.display()))?;
    write_one(&file.with_extension("svg"), &picture(&record))
}

fn write_one(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}
