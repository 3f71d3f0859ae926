//! Finds modules of one folder that use each other in a circle.
//!
//! A module uses its sibling if a path in one of its files leads there, also through a `use` of a parent. Paths in macros
//! and in tests do not count. What a child uses of its parents is no circle.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

/// A module by its path from the root of its crate.
type Module = Vec<String>;

/// Names that a module has by `use`, with the whole paths that they stand for.
type Imports = BTreeMap<Module, BTreeMap<String, Vec<String>>>;

/// A `use` that leads to another one is followed so often.
const MOST_IMPORTS_FOLLOWED: usize = 8;

/// Circles of a crate, each as its members with one use of each by the next. `files`: path below `src`, and text.
pub(super) fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let modules: BTreeSet<Module> = files.iter().map(|(path, _)| module_of(path)).collect();
    let (mut uses, mut imports) = (Vec::new(), Imports::new());
    for (path, text) in files {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut found =
            Found { module: module_of(path), modules: &modules, uses: &mut uses, imports: &mut imports };
        found.visit_file(&file);
    }
    let mut folders: BTreeMap<Module, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
    for (from, path) in &uses {
        let to = target(path, &modules, &imports);
        let shared = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
        if let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) {
            let edges = folders.entry(from[..shared].to_vec()).or_default();
            let why = format!("{} uses {}", from.join("::"), path.join("::"));
            edges.entry(one.clone()).or_default().entry(other.clone()).or_insert(why);
        }
    }
    folders.iter().flat_map(|(folder, edges)| of_folder(folder, edges)).collect()
}

/// Each set of modules that reach each other.
fn of_folder(folder: &Module, edges: &BTreeMap<String, BTreeMap<String, String>>) -> Vec<String> {
    let reached = |from: &String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            for next in edges.get(at).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        seen
    };
    let reaches: BTreeMap<&String, BTreeSet<String>> =
        edges.keys().map(|from| (from, reached(from))).collect();
    let mut circles = BTreeSet::new();
    for (from, seen) in &reaches {
        let back = |other: &&String| reaches.get(*other).is_some_and(|others| others.contains(*from));
        let members: BTreeSet<&String> = seen.iter().filter(back).collect();
        if !members.is_empty() {
            circles.insert(members);
        }
    }
    let described = |members: BTreeSet<&String>| {
        let names: Vec<&str> = members.iter().map(|name| name.as_str()).collect();
        let inside = members.iter().flat_map(|from| {
            edges[*from].iter().filter(|(to, _)| members.contains(to)).map(|(_, why)| format!("\n    {why}"))
        });
        let place = if folder.is_empty() { "the root".to_owned() } else { folder.join("::") };
        format!("in {place}: {}{}", names.join(", "), inside.collect::<String>())
    };
    circles.into_iter().map(described).collect()
}

/// The module of a path, through what parents import.
fn target(path: &[String], modules: &BTreeSet<Module>, imports: &Imports) -> Module {
    let mut path = path.to_vec();
    for _ in 0..MOST_IMPORTS_FOLLOWED {
        let length =
            (0..=path.len()).rev().find(|length| modules.contains(&path[..*length])).unwrap_or_default();
        let (module, rest) = path.split_at(length);
        let imported = rest.first().and_then(|name| imports.get(module)?.get(name));
        match imported {
            Some(imported) if *imported != path => path = [imported, &rest[1..]].concat(),
            Some(_) | None => return module.to_vec(),
        }
    }
    path
}

fn module_of(path: &str) -> Module {
    let path = path.trim_end_matches(".rs");
    match path {
        "lib" | "main" => Module::new(),
        path => path.split('/').map(str::to_owned).collect(),
    }
}

/// Collects paths of one file.
struct Found<'a> {
    module: Module,
    modules: &'a BTreeSet<Module>,
    uses: &'a mut Vec<(Module, Vec<String>)>,
    imports: &'a mut Imports,
}

impl Found<'_> {
    /// From the root of the crate; `None`: it leads to another crate.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let (first, mut rest) = path.split_first()?;
        let mut from = match first.as_str() {
            "crate" => Module::new(),
            "self" => self.module.clone(),
            "super" => self.module[..self.module.len().checked_sub(1)?].to_vec(),
            child => {
                let module = [self.module.as_slice(), &[child.to_owned()]].concat();
                return self.modules.contains(&module).then(|| [module.as_slice(), rest].concat());
            }
        };
        while rest.first().is_some_and(|next| next == "super") {
            from.pop()?;
            rest = &rest[1..];
        }
        Some([from.as_slice(), rest].concat())
    }

    fn note_use(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.note_use(&path.tree, &with(&path.ident)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_use(tree, before)),
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = before.last().cloned().unwrap_or_default();
                self.note_import(before.to_vec(), last);
            }
            syn::UseTree::Name(name) => self.note_import(with(&name.ident), name.ident.to_string()),
            syn::UseTree::Rename(name) => self.note_import(with(&name.ident), name.rename.to_string()),
        }
    }

    fn note_import(&mut self, path: Vec<String>, name: String) {
        self.note(&path);
        if let Some(path) = self.absolute(&path) {
            self.imports.entry(self.module.clone()).or_default().insert(name, path);
        }
    }

    fn note(&mut self, path: &[String]) {
        if let Some(path) = self.absolute(path) {
            self.uses.push((self.module.clone(), path));
        }
    }
}

impl<'ast> Visit<'ast> for Found<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        // What is in an inline module counts as its file's; its `super` would lead too far.
        if module.content.is_none() {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_use(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 {
            self.note(&names);
        }
        visit::visit_path(self, path);
    }
}

fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && list.tokens.to_string().starts_with("test")
    })
}

#[test]
fn two_files_that_use_each_other_are_a_circle() {
    let one_way = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "pub struct B;")];
    assert_eq!(circles(&one_way), Vec::<String>::new());
    let both = [("a.rs", "use crate::b::B;"), ("b.rs", "fn f() { crate::a::g(); }")];
    let found = circles(&both).join("\n");
    assert!(found.contains("a, b") && found.contains("b uses a::g"), "{found}");
    let in_tests = [("a.rs", "use crate::b::B;"), ("b.rs", "#[cfg(test)] mod tests { use crate::a::g; }")];
    assert_eq!(circles(&in_tests), Vec::<String>::new());
}

#[test]
fn a_circle_through_a_name_that_a_parent_imports_is_found() {
    let hidden = [
        ("plan.rs", "mod a; mod b; use a::A; use b::B;"),
        ("plan/a.rs", "use super::B;"),
        ("plan/b.rs", "use super::A;"),
    ];
    assert!(circles(&hidden).join("\n").contains("in plan: a, b"), "{:?}", circles(&hidden));
    let of_the_parent = [("plan.rs", "mod a; use a::A; pub struct P;"), ("plan/a.rs", "use super::P;")];
    assert_eq!(circles(&of_the_parent), Vec::<String>::new());
}
