//! Writes the book as HTML. All manuals are in it, at their places in the repository, so that links between them work.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use mdbook_driver::MDBook;

use crate::pages::{Page, pages, target, workspace};

const SUMMARY: &str = "docs/SUMMARY.md";

/// Replaces what is in the folder.
pub(crate) fn build(folder: PathBuf) -> anyhow::Result<()> {
    let root = folder.with_extension("source");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("failed to remove {}", root.display()))?;
    }
    let pages = pages()?;
    for path in files(&pages) {
        let copy = root.join(&path);
        let parent = copy.parent().unwrap_or(&root);
        fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
        fs::copy(workspace().join(&path), &copy).with_context(|| format!("failed to copy {path}"))?;
    }
    let summary = root.join("SUMMARY.md");
    fs::write(&summary, list(&pages)?).with_context(|| format!("failed to write {}", summary.display()))?;
    fs::rename(root.join("docs/book.toml"), root.join("book.toml")).context("failed to move book.toml")?;
    let mut book = MDBook::load(&root).context("failed to read the book")?;
    book.config.build.build_dir = folder;
    book.build().context("failed to write the book")?;
    fs::remove_dir_all(&root).with_context(|| format!("failed to remove {}", root.display()))
}

/// The manuals, and the files that they link to.
fn files(pages: &[Page]) -> BTreeSet<String> {
    let linked = pages.iter().flat_map(|page| {
        let links = page.parts().links.into_iter().filter(|link| !link.contains("://"));
        links.filter_map(|link| target(page, &link)).filter(|path| workspace().join(path).is_file())
    });
    let own = pages.iter().map(|page| page.path.clone());
    linked.chain(own).chain(["docs/book.toml".to_owned()]).collect()
}

/// The list of `docs`, and after it every other manual.
fn list(pages: &[Page]) -> anyhow::Result<String> {
    let summary = pages.iter().find(|page| page.path == SUMMARY).context("there is no docs/SUMMARY.md")?;
    let mut list = summary.text.replace("](", "](docs/");
    list.push_str("\n# The repository\n\n");
    for page in pages.iter().filter(|page| !page.path.starts_with("docs/")) {
        let heading = page.text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(&page.path);
        let folder = Path::new(&page.path).parent().filter(|folder| !folder.as_os_str().is_empty());
        let place = folder.map(|folder| format!(" ({})", folder.display())).unwrap_or_default();
        writeln!(list, "- [{heading}{place}]({})", page.path)?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_manuals_lead_to_pages_of_the_book() {
        let folder = tempfile::tempdir().unwrap();
        let book = folder.path().join("book");
        build(book.clone()).unwrap();
        let install = fs::read_to_string(book.join("docs/install.html")).unwrap();
        assert!(install.contains("href=\"../crates/metrics-agent/README.html\""), "{install}");
        for page in ["crates/metrics-agent/README.html", "docs/reference/options.html", "SECURITY.html"] {
            assert!(book.join(page).exists(), "{page}");
        }
        assert!(book.join("docs/node-death.svg").exists());
    }
}
