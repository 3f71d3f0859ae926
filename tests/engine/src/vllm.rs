//! How vLLM ends when it finds no model or cannot read it: lines of its log, whose last one does not name the cause.

use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
};

/// vLLM's log for a folder without a model; `None` for one that it begins to load.
pub(crate) fn no_model(folder: &Path) -> Option<Vec<String>> {
    let mut files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_model = files.any(|path| {
        path.file_name().is_some_and(|name| name == "config.json" || name == "params.json")
            || path.extension().is_some_and(|extension| extension == "gguf")
    });
    (!is_model).then(|| {
        let invalid = format!(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  \
             Value error, Invalid repository ID or local directory specified: '{}'\n\
             Please verify the following requirements:\n\
             1. Provide a valid Hugging Face repository ID.\n\
             2. Specify a local directory that contains a recognized configuration file.",
            folder.display()
        );
        invalid.lines().map(str::to_owned).collect()
    })
}

/// Why the weights cannot be read, by the first bytes of the first file that is wrong.
pub(crate) fn broken(folder: &Path) -> Option<&'static str> {
    let mut files: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    files.sort();
    files.iter().find_map(|path| header_fault(path))
}

/// Of the header alone: its length, which the file begins with.
fn header_fault(file: &Path) -> Option<&'static str> {
    /// Of the library.
    const LONGEST: u64 = 100_000_000;
    let mut length = [0; 8];
    match File::open(file).and_then(|mut file| file.read_exact(&mut length)) {
        Err(_) => Some("header too small"),
        Ok(()) if u64::from_le_bytes(length) > LONGEST => Some(TOO_LARGE),
        Ok(()) => None,
    }
}

/// What garbage in the place of a header is taken for.
pub(crate) const TOO_LARGE: &str = "header too large";

/// The end of the log of an engine that cannot read its weights: the cause, then the log of each process above it.
pub(crate) fn end_of(why: &str) -> Vec<String> {
    /// As many as were seen; more than the last 2048 bytes of the log.
    const LINES: usize = 100;
    let mut lines = vec![
        "(EngineCore pid=201) ERROR [core.py:1024] Traceback (most recent call last):".to_owned(),
        format!(
            "(EngineCore pid=201) ERROR [core.py:1024] SafetensorError: Error while deserializing header: {why}"
        ),
    ];
    lines.extend((2..LINES).map(|number| match number % 2 {
        0 => format!("(APIServer pid=1)   File \"/usr/lib/python3/dist-packages/vllm/v1/engine/utils.py\", line {number}"),
        _ => "(APIServer pid=1)     with launch_core_engines(vllm_config, executor_class, log_stats) as engines:".to_owned(),
    }));
    lines.push("RuntimeError: Engine core initialization failed. See root cause above.".to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_configuration_is_no_model() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model.safetensors"), "x").unwrap();
        let log = no_model(folder.path()).unwrap().join("\n");
        let path = folder.path().display();
        assert!(
            log.contains(&format!("Invalid repository ID or local directory specified: '{path}'")),
            "{log}"
        );
        fs::write(folder.path().join("config.json"), "{}").unwrap();
        assert_eq!(no_model(folder.path()), None);
    }

    #[test]
    fn weights_are_broken_if_their_header_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        for (content, why) in [
            (&b"garbage in the place of a header"[..], Some("header too large")),
            (b"short", Some("header too small")),
            (b"\x02\0\0\0\0\0\0\0{}", None),
        ] {
            fs::write(&file, content).unwrap();
            assert_eq!(broken(folder.path()), why);
        }
    }

    #[test]
    fn the_cause_is_not_in_the_last_2048_bytes() {
        let lines = end_of(TOO_LARGE);
        let cause = lines.iter().position(|line| line.contains("SafetensorError")).unwrap();
        assert!(lines[cause + 1..].join("\n").len() > 2048);
        assert!(lines.last().unwrap().ends_with("Engine core initialization failed. See root cause above."));
    }
}
