//! The Rust files of the repository, as far as manuals are made of them or checked against them.

#[cfg(test)]
use std::collections::BTreeSet;
use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context as _;

use crate::pages::workspace;

/// Path and text of every Rust file.
pub(crate) struct Sources(BTreeMap<String, String>);

impl Sources {
    pub(crate) fn read() -> anyhow::Result<Self> {
        let mut all = BTreeMap::new();
        for folder in ["crates", "tests", "xtask", "proto"] {
            collect(&workspace().join(folder), &mut all)?;
        }
        Ok(Self(all))
    }

    /// Of the files whose path begins so.
    pub(crate) fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let all = self.0.iter().filter(move |(path, _)| path.starts_with(folder));
        all.map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Parsed.
    pub(crate) fn file(&self, path: &str) -> anyhow::Result<syn::File> {
        let text = self.0.get(path).with_context(|| format!("there is no {path}"))?;
        syn::parse_file(text).with_context(|| format!("failed to parse {path}"))
    }

    /// As they are written on the command line.
    #[cfg(test)]
    pub(crate) fn subcommands_of_xtask(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for path in ["xtask/src/main.rs", "xtask/src/cluster.rs"] {
            for item in self.file(path).unwrap().items {
                if let syn::Item::Enum(item) = item
                    && item.ident == "Command"
                {
                    found.extend(item.variants.iter().map(|variant| kebab(&variant.ident.to_string())));
                }
            }
        }
        found
    }

    /// Names of tests with their modules, as the test harness shows them.
    #[cfg(test)]
    pub(crate) fn tests(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (path, text) in &self.0 {
            let module = path
                .trim_end_matches(".rs")
                .trim_end_matches("/main")
                .trim_end_matches("/mod")
                .replace('/', "::");
            let mut is_test = false;
            for line in text.lines().map(str::trim_start) {
                if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                    let name = rest.split('(').next().unwrap_or_default();
                    found.insert(format!("{module}::{name}"));
                    is_test = false;
                }
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            }
        }
        found
    }
}

fn collect(folder: &Path, found: &mut BTreeMap<String, String>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
            let path = path.strip_prefix(workspace()).unwrap_or(&path);
            found.insert(path.to_string_lossy().into_owned(), text);
        }
    }
    Ok(())
}

/// `TrainDemo` is `train-demo`.
#[cfg(test)]
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.extend(character.to_lowercase());
    }
    kebab
}
