//! Every link of a manual leads to something: a file of the repository, and a heading where the link names one.

use std::collections::BTreeMap;

use crate::pages::{pages, target, workspace};

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .chars()
        .filter(|character| character.is_alphanumeric() || matches!(character, '-' | '_' | ' '));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_lead_to_files_and_headings() {
    let pages = pages().unwrap();
    let headings: BTreeMap<&str, Vec<String>> = pages
        .iter()
        .map(|page| {
            // Code in a heading counts with its text; a line of a block of code that begins so is a comment.
            let mut is_code = false;
            let lines = page.text.lines().filter(|line| {
                is_code ^= line.trim_start().starts_with("```");
                !is_code && line.starts_with('#')
            });
            (page.path.as_str(), lines.map(|line| anchor(line.trim_start_matches('#'))).collect())
        })
        .collect();
    let mut broken = Vec::new();
    let mut followed = 0;
    for page in &pages {
        for link in page.parts().links.iter().filter(|link| !link.contains("://")) {
            followed += 1;
            let heading = link.split_once('#').map(|(_, heading)| heading);
            let target = target(page, link);
            let exists = target.as_ref().is_some_and(|target| workspace().join(target).exists());
            let has_heading = heading.is_none_or(|heading| {
                let of_target = target.as_ref().and_then(|target| headings.get(target.as_str()));
                of_target.is_some_and(|all| all.iter().any(|one| one == heading))
            });
            if !exists || !has_heading {
                broken.push(format!("{}: {link}", page.path));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(followed > 50, "{followed}");
}

#[test]
fn every_page_of_docs_is_in_the_list_of_the_book() {
    let pages = pages().unwrap();
    let summary = pages.iter().find(|page| page.path == "docs/SUMMARY.md").unwrap().parts().links;
    let missing: Vec<&str> = pages
        .iter()
        .filter_map(|page| page.path.strip_prefix("docs/"))
        .filter(|path| {
            *path != "SUMMARY.md" && !summary.iter().any(|link| link.trim_start_matches("./") == *path)
        })
        .collect();
    assert_eq!(missing, [""; 0]);
}
