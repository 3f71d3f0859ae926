//! The page of a kind says of every condition and reason of its controller what it means and what to do.

use std::collections::BTreeSet;

use api::controllers::CONTROLLERS;

use crate::{pages::pages, reference::conditions, sources::Sources};

/// Names of constants that follow this module.
fn named<'a>(text: &'a str, module: &'a str) -> impl Iterator<Item = &'a str> {
    let is_of_name = |character: char| character.is_ascii_uppercase() || character == '_';
    let names =
        text.split(module).skip(1).filter_map(move |rest| rest.split(|next| !is_of_name(next)).next());
    names.filter(|name| !name.is_empty())
}

/// Pages of one subject of a kind: their conditions are not on the page of the kind.
const OF_SUBJECTS: [(&str, &str); 1] = [("docs/aiinference.md", "docs/two-versions.md")];

#[test]
fn the_page_of_a_kind_names_every_condition_and_reason_of_its_controller() {
    let sources = Sources::read().unwrap();
    let values = conditions::by_constant().unwrap();
    let pages = pages().unwrap();
    for controller in CONTROLLERS {
        let mut wanted = BTreeSet::new();
        for (path, text) in sources.below(&format!("crates/{}/src/", controller.name)) {
            if path.contains("/tests") {
                continue;
            }
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let names = named(code, "reasons::").chain(named(code, "conditions::"));
            wanted.extend(names.filter_map(|name| values.get(name)));
        }
        assert!(wanted.len() > 15, "{}: {wanted:?}", controller.name);
        for kind in controller.kinds {
            let path = format!("docs/{}.md", kind.resource().kind.to_lowercase());
            let page = pages.iter().find(|page| page.path == path).unwrap_or_else(|| panic!("no {path}"));
            let of_subject = pages.iter().filter(|other| OF_SUBJECTS.contains(&(&*path, &*other.path)));
            let codes: Vec<_> = page
                .parts()
                .codes
                .into_iter()
                .chain(of_subject.flat_map(|page| page.parts().codes))
                .collect();
            let is_named =
                |value: &str| codes.iter().any(|code| code.split(['/', '=']).any(|part| part == value));
            let missing: Vec<&&String> = wanted.iter().filter(|value| !is_named(value)).collect();
            assert!(missing.is_empty(), "{path}: {missing:?}");
        }
    }
}
