//! The manuals, and what Markdown finds in them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use anyhow::Context as _;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A manual.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// From the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// What a page consists of, as far as checks need it.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Paragraphs and items of lists, in which code is one word.
    pub(crate) paragraphs: Vec<String>,
    /// Info string and text of blocks of code.
    pub(crate) blocks: Vec<(String, String)>,
    pub(crate) links: Vec<String>,
    pub(crate) headings: Vec<String>,
    /// What stands between backticks, also in tables.
    pub(crate) codes: Vec<String>,
}

/// The root of the repository.
pub(crate) fn workspace() -> &'static Path {
    static WORKSPACE: OnceLock<PathBuf> = OnceLock::new();
    WORKSPACE.get_or_init(|| {
        // What cargo says when it starts the program: checkouts can share what was built.
        let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let own = PathBuf::from(own);
        own.ancestors().nth(2).map_or_else(|| own.clone(), Path::to_owned)
    })
}

/// The path in the repository to which a link without a scheme leads; `None` above the root.
pub(crate) fn target(page: &Page, link: &str) -> Option<String> {
    let file = link.split_once('#').map_or(link, |(file, _)| file);
    if file.is_empty() {
        return Some(page.path.clone());
    }
    let mut parts: Vec<&str> = page.path.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// All manuals: at the root, in `docs`, and beside crates and manifests.
pub(crate) fn pages() -> anyhow::Result<Vec<Page>> {
    let mut paths = files_of(workspace())?;
    for folder in ["crates", "deploy", "docs", "tests"] {
        below(&workspace().join(folder), &mut paths)?;
    }
    paths.sort();
    paths.iter().map(|path| page(path)).collect()
}

fn page(path: &Path) -> anyhow::Result<Page> {
    let text = fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    let path = path.strip_prefix(workspace()).unwrap_or(path).to_string_lossy().into_owned();
    Ok(Page { path, text })
}

fn below(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    found.extend(files_of(folder)?);
    for entry in entries(folder)? {
        if entry.is_dir() {
            below(&entry, found)?;
        }
    }
    Ok(())
}

fn files_of(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = entries(folder)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    Ok(files)
}

fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

impl Page {
    pub(crate) fn parts(&self) -> Parts {
        let mut parts = Parts::default();
        let mut text = String::new();
        let (mut block, mut is_table) = (None, false);
        for event in Parser::new_ext(&self.text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    parts.end_paragraph(&mut text);
                    block = Some(info);
                }
                Event::End(TagEnd::CodeBlock) => {
                    let info = block.take().unwrap_or_default();
                    parts.blocks.push((info, std::mem::take(&mut text)));
                }
                Event::Start(Tag::Table(_)) => is_table = true,
                Event::End(TagEnd::Table) => {
                    is_table = false;
                    text.clear();
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    parts.links.push(dest_url.into_string());
                }
                Event::End(TagEnd::Heading(_)) => parts.headings.push(std::mem::take(&mut text)),
                Event::End(TagEnd::Paragraph | TagEnd::Item) | Event::Start(Tag::Paragraph | Tag::Item) => {
                    parts.end_paragraph(&mut text);
                }
                Event::Code(code) => {
                    parts.codes.push(code.to_string());
                    if !is_table {
                        text.push_str("CODE");
                    }
                }
                Event::Text(part) => text.push_str(&part),
                Event::SoftBreak | Event::HardBreak => text.push(' '),
                _ => {}
            }
        }
        parts
    }
}

impl Parts {
    fn end_paragraph(&mut self, text: &mut String) {
        let paragraph = std::mem::take(text);
        if !paragraph.trim().is_empty() {
            self.paragraphs.push(paragraph);
        }
    }
}
