//! The first program of each command of a `console` block is a known one. A subcommand of `cargo xtask` is declared, and a
//! filter of `cargo xtask test` is part of a test's name.

use std::collections::BTreeSet;

use crate::{pages::pages, sources::Sources};

/// Programs that a reader has, or that the page says how to get.
const PROGRAMS: [&str; 27] = [
    "argocd",
    "bash",
    "cargo",
    "cat",
    "cosign",
    "cp",
    "crane",
    "curl",
    "cut",
    "dmesg",
    "export",
    "for",
    "gh",
    "git",
    "grep",
    "grpcurl",
    "helm",
    "jq",
    "kind",
    "kubectl",
    "ls",
    "mkdir",
    "model-transfer",
    "nvidia-smi",
    "openssl",
    "sudo",
    "tar",
];

fn commands(block: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = block.lines();
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("$ ") else { continue };
        let mut command = command.to_owned();
        while command.ends_with('\\') {
            command.pop();
            command.push_str(lines.next().unwrap_or_default());
        }
        found.push(command);
    }
    found
}

/// The words of a command line, without what begins a comment.
fn words(command: &str) -> Vec<&str> {
    command.split(" #").next().unwrap_or_default().split_whitespace().collect()
}

#[test]
fn commands_of_manuals_exist() {
    let sources = Sources::read().unwrap();
    let subcommands = sources.subcommands_of_xtask();
    assert!(subcommands.contains("up") && subcommands.contains("train-demo"), "{subcommands:?}");
    let tests: BTreeSet<String> = sources.tests();
    let mut unknown = Vec::new();
    let mut seen = 0;
    for page in pages().unwrap() {
        let blocks = page.parts().blocks.into_iter().filter(|(info, _)| info == "console");
        for command in blocks.flat_map(|(_, text)| commands(&text)) {
            seen += 1;
            let words = words(&command);
            let first = words.iter().find(|word| !word.contains('=')).copied().unwrap_or("export");
            let known = PROGRAMS.contains(&first)
                && match words.iter().position(|word| *word == "xtask") {
                    Some(at) => {
                        let rest = &words[at + 1..];
                        let is_declared = rest.first().is_none_or(|word| {
                            word.starts_with('-') || subcommands.contains(word.trim_end_matches(')'))
                        });
                        let filters = rest.iter().skip(1).take_while(|word| !["|", ">", "&&"].contains(word));
                        let finds = rest.first() != Some(&"test")
                            || filters.filter(|word| !word.starts_with('-')).all(|filter| {
                                tests.iter().any(|test| test.contains(filter.trim_matches('\'')))
                            });
                        is_declared && finds
                    }
                    None => true,
                };
            if !known {
                unknown.push(format!("{}: {command}", page.path));
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert!(seen > 30, "{seen}");
}

/// `tests/admit/manuals.rs` finds manifests by the same lines.
#[test]
fn blocks_are_of_known_kinds_and_stand_at_the_left() {
    let known = ["", "console", "text", "json", "yaml", "yaml,fragment", "rust", "python", "promql", "toml"];
    let mut unknown = Vec::new();
    for page in pages().unwrap() {
        let fences = page.text.lines().filter(|line| line.trim_start().starts_with("```"));
        let other = fences.filter(|line| line.strip_prefix("```").is_none_or(|info| !known.contains(&info)));
        unknown.extend(other.map(|line| format!("{}: {line}", page.path)));
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}
