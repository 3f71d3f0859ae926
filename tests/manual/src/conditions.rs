//! The page of a kind says of every reason what it means and what to do.

use std::collections::BTreeSet;

use crate::{pages::pages, reference::conditions};

#[test]
fn every_condition_and_reason_is_on_the_page_of_a_kind() {
    let kinds = ["docs/aiinference.md", "docs/aidispatcher.md", "docs/aiscaler.md", "docs/trainingjob.md"];
    let mut named: BTreeSet<String> = BTreeSet::new();
    let pages = pages().unwrap();
    for kind in kinds {
        let page = pages.iter().find(|page| page.path == kind).unwrap_or_else(|| panic!("{kind}"));
        let tables: String = page.text.lines().filter(|line| line.starts_with('|')).collect();
        named.extend(tables.split('`').skip(1).step_by(2).map(str::to_owned));
        named.extend(page.parts().codes);
    }
    let declared = conditions::names().unwrap();
    assert!(declared.len() > 100, "{}", declared.len());
    let missing: Vec<&String> = declared.iter().filter(|name| !named.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
