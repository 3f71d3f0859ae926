//! The prompt of the role: built in, or a file `ROLE.txt` of a mounted folder.
//!
//! The file is read for each task, so a changed ConfigMap needs no restart.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// A prompt is sent with every task.
const LONGEST: u64 = 64 << 10;

/// The prompt of a role. A file that cannot be used is an error, because another prompt would be used unnoticed.
pub(crate) fn prompt(folder: Option<&Path>, role: &str) -> io::Result<String> {
    // The role becomes a part of a path.
    let is_word = !role.is_empty() && role.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let own = folder.filter(|_| is_word).map(|folder| folder.join(format!("{role}.txt")));
    match own.map(File::open) {
        Some(Ok(file)) => read(file),
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Some(Err(_)) | None => Ok(built_in(role).trim().to_owned()),
    }
}

fn read(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("it has more than {LONGEST} bytes")));
    }
    Ok(text.trim().to_owned())
}

fn built_in(role: &str) -> &'static str {
    match role {
        "coder" => include_str!("../../prompts/coder.txt"),
        "reviewer" => include_str!("../../prompts/reviewer.txt"),
        "planner" => include_str!("../../prompts/planner.txt"),
        _ => include_str!("../../prompts/assistant.txt"),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    #[test]
    fn each_role_has_a_prompt_of_its_own() {
        let roles = ["coder", "reviewer", "planner", "other"];
        let prompts: BTreeSet<String> = roles.iter().map(|role| prompt(None, role).unwrap()).collect();
        assert_eq!(prompts.len(), roles.len());
        assert!(prompts.iter().all(|prompt| prompt.contains("no tools")));
    }

    #[test]
    fn a_file_of_the_folder_replaces_the_prompt_of_its_role_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("coder.txt"), "write haiku\n").unwrap();
        assert_eq!(prompt(Some(folder.path()), "coder").unwrap(), "write haiku");
        assert_eq!(prompt(Some(folder.path()), "planner").unwrap(), prompt(None, "planner").unwrap());
        assert_eq!(prompt(Some(folder.path()), "../coder").unwrap(), prompt(None, "").unwrap());
    }

    #[test]
    fn a_file_that_is_too_long_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("coder.txt"), "x".repeat(LONGEST as usize + 1)).unwrap();
        assert!(prompt(Some(folder.path()), "coder").is_err());
    }
}
