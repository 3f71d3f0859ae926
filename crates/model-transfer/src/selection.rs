//! Decides which files of a model are copied. Hubs hold the same weights in several formats. Pure.
//!
//! With patterns to include, files that match one. Otherwise all files, and where weights are there as safetensors, not
//! the copies of them: [`COPIES`], the folder `original` and files `consolidated.*`. Patterns to exclude come last.

use std::{convert::Infallible, str::FromStr};

/// Endings of files that hold the same weights as safetensors in another format.
pub(crate) const COPIES: [&str; 11] =
    [".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".pt", ".pth", ".tflite"];

/// A pattern for whole paths: `*` stands for any characters, slashes too, `?` for one. At the end of a folder's name with a
/// slash, everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob(String);

impl FromStr for Glob {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let everything = if text.ends_with('/') { "*" } else { "" };
        Ok(Self(format!("{text}{everything}")))
    }
}

impl Glob {
    /// In time of pattern times path, whatever the pattern.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let (pattern, path): (Vec<char>, Vec<char>) = (self.0.chars().collect(), path.chars().collect());
        // The last star, and how far it reaches; the one before need not be tried again.
        let (mut at, mut read, mut star) = (0, 0, None);
        while read < path.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, read));
                    at += 1;
                }
                Some(char) if *char == '?' || *char == path[read] => {
                    at += 1;
                    read += 1;
                }
                Some(_) | None => match &mut star {
                    Some((place, reach)) => {
                        *reach += 1;
                        (at, read) = (*place + 1, *reach);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|char| *char == '*')
    }
}

/// Which of these paths are wanted, in their order.
pub(crate) fn wanted(paths: &[&str], include: &[Glob], exclude: &[Glob]) -> Vec<bool> {
    let has_safetensors = paths.iter().any(|path| path.ends_with(".safetensors") && !is_original(path));
    let is_wanted = |path: &&str| {
        let of_default = !has_safetensors || !(is_copy(path) || is_original(path));
        let is_included =
            if include.is_empty() { of_default } else { include.iter().any(|glob| glob.matches(path)) };
        is_included && !exclude.iter().any(|glob| glob.matches(path))
    };
    paths.iter().map(is_wanted).collect()
}

fn is_copy(path: &str) -> bool {
    COPIES.iter().any(|ending| path.ends_with(ending))
}

/// As its authors trained it, beside the files for transformers.
fn is_original(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.starts_with("original/") || name.starts_with("consolidated.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(texts: &[&str]) -> Vec<Glob> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn kept<'p>(paths: &[&'p str], include: &[&str], exclude: &[&str]) -> Vec<&'p str> {
        let wanted = wanted(paths, &globs(include), &globs(exclude));
        paths.iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|(path, _)| *path).collect()
    }

    #[test]
    fn a_pattern_is_for_the_whole_path() {
        for (pattern, path, matches) in [
            ("*.json", "config.json", true),
            ("*.json", "sub/config.json", true),
            ("*.json", "config.json5", false),
            ("model-0000?-of-*", "model-00001-of-00002.safetensors", true),
            ("onnx/", "onnx/model.onnx", true),
            ("onnx/", "onnx", false),
            ("*q4*.gguf", "x-q4_k.gguf", true),
            ("*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("", "", true),
            ("", "a", false),
            ("**", "a/b", true),
        ] {
            assert_eq!(globs(&[pattern])[0].matches(path), matches, "{pattern} {path}");
        }
    }

    #[test]
    fn copies_of_safetensors_are_left_out_unless_they_are_named() {
        let paths = [
            "config.json",
            "consolidated.00.pth",
            "consolidated.safetensors",
            "flax_model.msgpack",
            "model-00001-of-00001.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "original/params.json",
            "pytorch_model.bin",
            "tf_model.h5",
        ];
        let rest = ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"];
        assert_eq!(kept(&paths, &[], &[]), rest);
        assert_eq!(
            kept(&paths, &["*.json", "*.bin"], &["original/"]),
            ["config.json", "model.safetensors.index.json", "pytorch_model.bin"]
        );
        assert_eq!(kept(&paths, &[], &["*.index.json"]), rest[..2]);
    }

    #[test]
    fn a_model_that_is_there_in_one_format_is_whole() {
        for paths in [
            ["config.json", "pytorch_model.bin", "tokenizer.json"],
            ["config.json", "consolidated.safetensors", "params.json"],
            ["a-q4.gguf", "a-q8.gguf", "README.md"],
        ] {
            assert_eq!(kept(&paths, &[], &[]), paths);
        }
    }
}
