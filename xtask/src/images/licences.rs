//! The licence texts of what a program is linked from, for `/licenses` of its image: its crates, Rust's standard library and
//! musl.
//!
//! It reads what cargo and rustc have on this machine and judges nothing: `deny.toml` says which licences are allowed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::steps::{cargo, printed, sysroot, workspace};

/// Beginnings of the names of files that state licences, in upper case.
const FILES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Below a crate's folder: sources of other projects that a crate brings have licences of their own.
const DEEPEST_FOLDER: usize = 16;

/// The certificates of the image: data that no program is linked from.
const DATA: &str = "webpki-root-certs";

/// musl has no crate; it comes with Rust's standard library for its targets.
const MUSL: &str = "musl libc, MIT\nCopyright © 2005-2020 Rich Felker, et al.\n\
    https://git.musl-libc.org/cgit/musl/tree/COPYRIGHT\n";

/// One file per text, by path below `/licenses`.
pub(super) type Licences = BTreeMap<String, Vec<u8>>;

/// What cargo knows of every crate, for one target.
#[derive(Deserialize)]
pub(super) struct Graph {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
pub(super) struct Package {
    id: String,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) license: Option<String>,
    license_file: Option<PathBuf>,
    repository: Option<String>,
    authors: Vec<String>,
    manifest_path: PathBuf,
    /// None for the crates of this workspace.
    source: Option<String>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// None for what is linked; otherwise `build` or `dev`.
    kind: Option<String>,
}

impl Graph {
    pub(super) fn of_target(target: &str) -> anyhow::Result<Self> {
        let metadata =
            printed(&mut cargo(["metadata", "--locked", "--format-version=1", "--filter-platform", target]))?;
        serde_json::from_str(&metadata).context("failed to read what cargo says of the crates")
    }

    /// The crates that a program is linked from, with the features of the whole workspace: never fewer than are in it.
    fn linked(&self, program: &str) -> anyhow::Result<BTreeSet<&str>> {
        let nodes: BTreeMap<&str, &Node> =
            self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let macros: BTreeSet<&str> = self
            .packages
            .iter()
            .filter(|package| package.is_macro())
            .map(|package| package.id.as_str())
            .collect();
        let root = self.packages.iter().find(|package| package.source.is_none() && package.name == program);
        let mut next = vec![root.with_context(|| format!("cargo knows no crate {program}"))?.id.as_str()];
        let mut linked = BTreeSet::new();
        while let Some(id) = next.pop() {
            if macros.contains(id) || !linked.insert(id) {
                continue;
            }
            let dependencies = nodes.get(id).into_iter().flat_map(|node| &node.deps);
            let normal = dependencies.filter(|one| one.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            next.extend(normal.map(|one| one.pkg.as_str()));
        }
        Ok(linked)
    }

    /// What an image contains that is not of this workspace, by name and version.
    pub(super) fn contained(&self, program: &str) -> anyhow::Result<Vec<&Package>> {
        let linked = self.linked(program)?;
        let foreign = self.packages.iter().filter(|package| {
            package.source.is_some() && (linked.contains(package.id.as_str()) || package.name == DATA)
        });
        let mut foreign: Vec<&Package> = foreign.collect();
        foreign.sort_by_key(|package| (&package.name, &package.version));
        Ok(foreign)
    }

    pub(super) fn licences(&self, program: &str) -> anyhow::Result<Licences> {
        let mut list = String::from(
            "What this program is linked from. The texts are in the folders beside this file.\n\n",
        );
        let mut licences = Licences::new();
        for package in self.contained(program)? {
            list.push_str(&package.line());
            for path in package.files()? {
                let bytes = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
                let file = path.strip_prefix(package.folder()).unwrap_or(&path).to_string_lossy();
                licences.insert(format!("{}-{}/{file}", package.name, package.version), bytes);
            }
        }
        let documents = sysroot()?.join("share/doc/rust");
        let standard = documents.join("COPYRIGHT-library.html");
        let bytes = fs::read(&standard).with_context(|| format!("failed to read {}", standard.display()))?;
        licences.insert("rust/COPYRIGHT-library.html".to_owned(), bytes);
        // Of the crates that name a licence and bring no text of it.
        for text in ["Apache-2.0.txt", "MIT.txt"] {
            let path = documents.join("licenses").join(text);
            let bytes = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
            licences.insert(format!("texts/{text}"), bytes);
        }
        list.push_str("Rust's standard library, MIT OR Apache-2.0, in rust/\n");
        list.push_str(MUSL);
        licences.insert(
            "LICENSE".to_owned(),
            fs::read(workspace().join("LICENSE")).context("failed to read LICENSE")?,
        );
        licences.insert("THIRD-PARTY".to_owned(), list.into_bytes());
        Ok(licences)
    }
}

impl Package {
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }

    fn line(&self) -> String {
        let Self { name, version, license, repository, authors, .. } = self;
        let license = license.as_deref().unwrap_or("see its folder");
        let repository = repository.as_deref().unwrap_or("no repository");
        format!("{name} {version}, {license}, {repository}, {}\n", authors.join(", ")).replace(", \n", "\n")
    }

    fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("/"))
    }

    /// Those that state its licence and the licences of what it contains, in the order of their paths.
    fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut files: BTreeSet<PathBuf> =
            self.license_file.iter().map(|file| self.folder().join(file)).collect();
        let mut folders = vec![(self.folder().to_owned(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let failed = || format!("failed to list {}", folder.display());
            for entry in fs::read_dir(&folder).with_context(failed)? {
                let entry = entry.with_context(failed)?;
                // A link is neither: it could lead out of the crate.
                let kind = entry.file_type().with_context(failed)?;
                if kind.is_dir() {
                    ensure!(
                        depth < DEEPEST_FOLDER,
                        "{} is deeper than licences are looked for: raise DEEPEST_FOLDER",
                        entry.path().display()
                    );
                    folders.push((entry.path(), depth + 1));
                } else if kind.is_file() && states_a_licence(&entry.path()) {
                    files.insert(entry.path());
                }
            }
        }
        // What has no text must name a licence whose text is in `texts`.
        let named = self.license.as_deref().unwrap_or_default();
        ensure!(
            !files.is_empty() || named.contains("Apache-2.0") || named.contains("MIT"),
            "the crate {} brings no licence text and names {named:?}: add its text to xtask/src/images/licences.rs",
            self.name
        );
        Ok(files.into_iter().collect())
    }
}

/// By its name. A source file is about licences and states none.
fn states_a_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    FILES.iter().any(|start| name.starts_with(start)) && path.extension().is_none_or(|end| end != "rs")
}

#[cfg(test)]
mod tests {
    use api::controllers;

    use super::*;

    #[test]
    fn every_linked_crate_is_listed_with_its_text_and_no_crate_of_the_tests_is() {
        let graph = Graph::of_target("x86_64-unknown-linux-musl").unwrap();
        for program in controllers::released() {
            let licences = graph.licences(program.name).unwrap();
            let list = std::str::from_utf8(&licences["THIRD-PARTY"]).unwrap();
            for linked in ["tokio 1.", "ring 0.", "webpki-root-certs 1."] {
                assert!(list.lines().any(|line| line.starts_with(linked)), "{linked} of {}", program.name);
            }
            for other in ["tempfile ", "insta ", "serde_derive ", program.name] {
                assert!(!list.lines().any(|line| line.starts_with(other)), "{other} of {}", program.name);
            }
            assert!(licences.keys().any(|path| path.starts_with("tokio-1.") && path.ends_with("/LICENSE")));
            // C sources within a crate.
            let mimalloc = |path: &str| path.starts_with("libmimalloc-sys-") && path.contains("/c_src/");
            let is_of_microsoft =
                |text: &[u8]| String::from_utf8_lossy(text).contains("Microsoft Corporation");
            assert_eq!(
                licences.iter().any(|(path, text)| mimalloc(path) && is_of_microsoft(text)),
                program.name.ends_with("-controller"),
                "the allocator of {}",
                program.name
            );
            assert!(
                licences
                    .keys()
                    .any(|path| path.starts_with("ring-") && path.ends_with("/third_party/fiat/LICENSE"))
            );
            assert!(licences.contains_key("LICENSE") && licences.contains_key("rust/COPYRIGHT-library.html"));
        }
    }
}
