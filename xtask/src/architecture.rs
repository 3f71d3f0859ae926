//! The invariants of ARCHITECTURE.md that can be read off the sources and the manuals, as tests.
//!
//! Each test fails when it finds nothing to look at, so that a moved folder does not make it pass.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use api::controllers::{CONTROLLERS, NODE_PROGRAMS, released};
use serde::Deserialize;

use crate::steps::{cargo, workspace};

mod circles;

/// Path below the workspace, and text.
type Source = (String, String);

/// All Rust files of the workspace whose path passes, without those that are all tests; never none.
fn sources(wanted: impl Fn(&str) -> bool) -> Vec<Source> {
    let root = workspace();
    let mut found = Vec::new();
    for folder in ["crates", "proto", "tests", "xtask"] {
        collect(root, &root.join(folder), "rs", &mut found);
    }
    found.retain(|(path, _)| !path.starts_with(GENERATED));
    // Inline tests that have a file or a folder of their own.
    let is_test =
        |path: &str| path.ends_with("/tests.rs") || path.contains("/src/") && path.contains("/tests/");
    found.retain(|(path, _)| wanted(path) && !is_test(path));
    assert!(!found.is_empty(), "no file to look at: has a folder moved?");
    found
}

/// What `cargo xtask codegen` writes from .proto files.
const GENERATED: &str = "proto/src/generated/";

fn collect(root: &Path, folder: &Path, suffix: &str, found: &mut Vec<Source>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() && !path.ends_with("target") {
            collect(root, &path, suffix, found);
        } else if path.extension().is_some_and(|extension| extension == suffix) {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The part of a file that is not its inline tests.
fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]").map_or(text, |(code, _)| code)
}

fn is_of_a_controller(path: &str) -> bool {
    CONTROLLERS.iter().any(|controller| path.starts_with(&format!("crates/{}/src/", controller.name)))
}

/// Crates without I/O, which every crate may use.
const PURE: [&str; 6] = ["api", "comparison", "scaling", "text", "verdict", "workload"];

/// `file: word` for each file that uses a word it must not.
fn uses(sources: &[Source], forbidden: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources {
        for word in forbidden.iter().filter(|word| without_tests(text).contains(**word)) {
            found.push(format!("{path}: {word}"));
        }
    }
    found
}

#[test]
fn the_agent_reads_clocks_in_one_place_and_calls_nvml_only_behind_its_seam() {
    let agent = sources(|path| {
        path.starts_with("crates/metrics-agent/src/") || path.starts_with("crates/metrics-source/src/")
    });
    let outside = |allowed: &[&str]| -> Vec<Source> {
        agent.iter().filter(|(path, _)| !allowed.iter().any(|name| path.contains(name))).cloned().collect()
    };
    let clocks = ["Instant::now", "SystemTime::now"];
    // A recording counts from when it was opened.
    assert_eq!(uses(&outside(&["/moment.rs", "/device/recorded.rs"]), &clocks), [""; 0]);
    assert_eq!(uses(&outside(&["/device/", "/agent.rs"]), &["nvml_wrapper", "Nvml"]), [""; 0]);
    assert_eq!(uses(&outside(&["/device/nvml/instance.rs"]), &["unsafe {"]), [""; 0]);
}

/// Beside the metrics-agent, whose seam to NVML has a test of its own.
#[test]
fn only_what_stands_for_functions_of_c_is_unsafe() {
    let of_users = sources(|path| path.starts_with("crates/") && path.contains("/src/"));
    let found = uses(&of_users, &["unsafe {"]);
    let allowed = ["crates/fast-musl/", "crates/metrics-agent/src/device/nvml/instance.rs"];
    let (expected, others): (Vec<&String>, Vec<&String>) =
        found.iter().partition(|use_| allowed.iter().any(|place| use_.starts_with(place)));
    assert_eq!(others, [""; 0]);
    assert!(!expected.is_empty());
}

/// Unoptimized, its `memcpy` would call itself.
#[test]
fn no_profile_leaves_the_memory_functions_unoptimized() {
    let manifest = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let sections: BTreeMap<&str, &str> =
        manifest.split("\n[").skip(1).filter_map(|section| section.split_once("]\n")).collect();
    let profiles =
        sections.iter().filter(|(name, _)| name.starts_with("profile.") && name.split('.').count() == 2);
    let unoptimized: Vec<&str> = profiles
        .filter(|(name, text)| **name == "profile.dev" || text.contains("opt-level = 0"))
        .map(|(name, _)| *name)
        .collect();
    assert!(unoptimized.len() >= 2, "{unoptimized:?}");
    for profile in unoptimized {
        let packages = sections.get(&*format!("{profile}.package")).copied().unwrap_or_default();
        assert!(packages.contains("fast-musl.opt-level = 3"), "[{profile}.package]");
    }
}

#[test]
fn decisions_are_pure() {
    let deciding = sources(|path| {
        let decides =
            |part: &str| path.contains(&format!("/src/{part}.rs")) || path.contains(&format!("/src/{part}/"));
        is_of_a_controller(path) && (decides("plan") || decides("validate"))
    });
    assert_eq!(uses(&deciding, &["async fn", "async move", ".await", "Client", "Api<", "Cache<"]), [""; 0]);
}

#[test]
fn the_pure_crates_are_pure() {
    let forbidden = [
        "async fn",
        "async move",
        ".await",
        "Client",
        "Api<",
        "Cache<",
        "Timestamp::now",
        "SystemTime",
        "Instant::now",
        "Zoned::now",
        "std::env",
        "env::var",
    ];
    for name in PURE {
        let pure = sources(|path| path.starts_with(&format!("crates/{name}/src/")));
        assert_eq!(uses(&pure, &forbidden), [""; 0]);
    }
}

#[test]
fn what_every_controller_shares_knows_no_kind_of_this_project() {
    let kinds: Vec<String> = api::crds::crds().into_iter().map(|crd| crd.spec.names.kind).collect();
    assert_eq!(kinds.len(), 6);
    // Their modules too, so that a type of theirs cannot be imported from within.
    let modules: Vec<String> = kinds.iter().map(|kind| format!("api::{}", kind.to_lowercase())).collect();
    let forbidden: Vec<&str> = kinds.iter().chain(&modules).map(String::as_str).collect();
    let shared_crates = [
        "comparison",
        "daemon",
        "engine-metrics",
        "metrics-client",
        "runtime",
        "scaling",
        "text",
        "verdict",
        "workload",
    ];
    for name in shared_crates {
        let shared = sources(|path| {
            path.starts_with(&format!("crates/{name}/src/")) && path != "crates/scaling/src/spec.rs"
        });
        assert_eq!(uses(&shared, &forbidden), [""; 0]);
    }
}

#[test]
fn only_runtime_reads_the_clock_and_only_args_read_the_environment() {
    let clockless = sources(|path| is_of_a_controller(path) || path.starts_with("crates/api/src/"));
    let forbidden = ["Timestamp::now", "SystemTime", "Instant::now", "std::env", "env::var", "Zoned::now"];
    assert_eq!(uses(&clockless, &forbidden), [""; 0]);
    let runtime = sources(|path| path.starts_with("crates/runtime/src/"));
    assert_eq!(uses(&runtime, &["std::env", "env::var"]), [""; 0]);
}

#[test]
fn project_keys_are_constants_of_api() {
    let others = sources(|path| {
        (path.starts_with("crates/") && path.contains("/src/"))
            && !path.starts_with("crates/api/")
            // Its annotations script the simulation; no product code reads them.
            && !path.starts_with("crates/local-cluster/")
    });
    assert_eq!(uses(&others, &["\"ai.infra.example.com/", "\"app.kubernetes.io/"]), [""; 0]);
}

#[test]
fn every_file_says_what_it_is() {
    let silent: Vec<String> = sources(|_| true)
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(silent, [""; 0]);
}

#[test]
fn no_file_is_called_mod_or_by_an_empty_name() {
    let empty = ["mod.rs", "utils.rs", "common.rs", "helpers.rs", "types.rs", "util.rs", "misc.rs"];
    let found: Vec<String> = sources(|_| true)
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| empty.iter().any(|name| path.ends_with(&format!("/{name}"))))
        .collect();
    assert_eq!(found, [""; 0]);
}

/// More file names than this are too many to find a subject among: files of one subject get a folder.
const MOST_FILES_SIDE_BY_SIDE: usize = 15;

/// `folder: number` for each folder with more files of Rust.
fn crowded(files: &[Source]) -> Vec<String> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, _) in files {
        let (folder, _) = path.rsplit_once('/').unwrap();
        *folders.entry(folder).or_default() += 1;
    }
    let crowded = folders.into_iter().filter(|(_, number)| *number > MOST_FILES_SIDE_BY_SIDE);
    crowded.map(|(folder, number)| format!("{folder}: {number}")).collect()
}

#[test]
fn no_folder_of_a_crate_or_of_the_tests_is_crowded() {
    let root = workspace();
    let mut files = Vec::new();
    // Inline tests count too, so this is not `sources`.
    for folder in ["crates", "tests"] {
        collect(root, &root.join(folder), "rs", &mut files);
    }
    files.retain(|(path, _)| path.starts_with("tests/") || path.contains("/src/"));
    for place in ["crates/api/src/", "tests/src/"] {
        assert!(files.iter().any(|(path, _)| path.starts_with(place)), "{place} has no file: has it moved?");
    }
    assert_eq!(crowded(&files), [""; 0], "group the files by subject, in modules");
}

#[test]
fn a_folder_is_crowded_by_its_own_files_and_not_by_those_of_its_folders() {
    let files = |folder: &str, number: usize| -> Vec<Source> {
        (0..number).map(|file| (format!("{folder}/{file}.rs"), String::new())).collect()
    };
    let beside = [files("a/src", 15), files("a/src/plan", 15)].concat();
    assert_eq!(crowded(&beside), [""; 0]);
    assert_eq!(crowded(&[beside, files("b/src", 16)].concat()), ["b/src: 16"]);
}

/// All manuals: files of Markdown at the top and in the folders of the workspace.
fn manuals() -> Vec<Source> {
    let root = workspace();
    let mut found = Vec::new();
    for name in entries(".").into_iter().filter(|name| name.ends_with(".md")) {
        let text = fs::read_to_string(root.join(&name)).unwrap();
        found.push((name, text));
    }
    for folder in ["crates", "deploy", "docs", "tests", "xtask"] {
        collect(root, &root.join(folder), "md", &mut found);
    }
    found
}

/// Tables, code and lines with links may be longer.
#[test]
fn prose_of_manuals_has_at_most_120_columns() {
    let manuals = manuals();
    assert!(manuals.len() >= 6, "no manual to look at: has a folder moved?");
    let mut long = Vec::new();
    for (path, text) in &manuals {
        let mut is_code = false;
        for (line, number) in text.lines().zip(1..) {
            let start = line.trim_start();
            is_code ^= start.starts_with("```");
            let may_be_long =
                is_code || start.starts_with('|') || line.contains("](") || line.contains("://");
            if line.chars().count() > 120 && !may_be_long {
                long.push(format!("{path}:{number}"));
            }
        }
    }
    assert_eq!(long, [""; 0]);
}

/// Names of the entries of a folder of the workspace.
fn entries(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(workspace().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// The text of a manual from this heading to the next one of its level.
fn section(file: &str, heading: &str) -> String {
    let text = fs::read_to_string(workspace().join(file)).unwrap();
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).expect("the section");
    rest.split_once("\n## ").map_or(rest, |(section, _)| section).to_owned()
}

/// What stands between backticks, outside of blocks of code.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn each_controller_has_everything_that_the_list_in_architecture_asks_for() {
    let list = section("ARCHITECTURE.md", "Adding a controller");
    let asked: Vec<&str> = quoted(&list).filter(|path| path.contains('/')).collect();
    assert!(asked.len() >= 5, "{asked:?}");
    for path in asked {
        for controller in CONTROLLERS {
            let path = path.replace("NAME", controller.name);
            assert!(workspace().join(&path).exists(), "{path} is missing");
        }
    }
}

#[test]
fn the_header_names_every_file_of_the_crates_that_programs_share_and_of_the_launcher() {
    let shared = [
        "comparison",
        "daemon",
        "metrics-client",
        "runtime",
        "scaling",
        "text",
        "training-launcher",
        "training-log",
        "engine-metrics",
        "verdict",
        "workload",
    ];
    for name in shared {
        let mut files = entries(&format!("crates/{name}/src"));
        let root = if files.contains("lib.rs") { "lib.rs" } else { "main.rs" };
        let text = fs::read_to_string(workspace().join("crates").join(name).join("src").join(root)).unwrap();
        let header: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        let named: BTreeSet<&str> = quoted(&header).collect();
        files.retain(|file| file.ends_with(".rs") && file != root);
        let missing: Vec<&String> = files.iter().filter(|file| !named.contains(file.as_str())).collect();
        assert_eq!(missing, [""; 0], "in {name}");
    }
}

#[test]
fn each_controller_in_crates_and_each_folder_in_deploy_has_a_row() {
    let rows: BTreeSet<String> = CONTROLLERS.iter().map(|controller| controller.name.to_owned()).collect();
    let mut crates = entries("crates");
    crates.retain(|name| name.ends_with("-controller"));
    assert_eq!(crates, rows, "crates");
    let mut deployed = entries("deploy");
    for shared in ["crds", "monitoring", "namespace", "samples"] {
        assert!(deployed.remove(shared), "deploy/{shared} is missing");
    }
    for program in NODE_PROGRAMS {
        assert!(deployed.remove(program.name), "deploy/{} is missing", program.name);
    }
    assert_eq!(deployed, rows, "deploy");
}

#[test]
fn each_sample_is_of_one_kind_that_has_a_controller() {
    let mut named = BTreeSet::new();
    for kind in CONTROLLERS.iter().flat_map(|controller| controller.kinds) {
        let resource = kind.resource();
        let has_sample = !kind.samples.is_empty() || !kind.further_samples.is_empty();
        assert!(has_sample, "{} has no sample", resource.kind);
        for sample in kind.samples.iter().chain(kind.further_samples) {
            assert!(named.insert((*sample).to_owned()), "{sample} is named twice");
            let text = fs::read_to_string(workspace().join("deploy/samples").join(sample)).unwrap();
            let objects = local_cluster::api_server::install::parse(&text).unwrap();
            let mut types = objects.iter().filter_map(|object| object.types.as_ref());
            let of_kind =
                types.any(|types| types.kind == resource.kind && types.api_version == resource.api_version);
            assert!(of_kind, "{sample} has no {}", resource.kind);
        }
    }
    let mut samples = entries("deploy/samples");
    assert!(samples.remove("agent"), "the agent that samples of AIDispatcher name");
    assert_eq!(samples, named);
}

#[test]
fn the_readme_says_of_each_kind_which_controller_there_is() {
    let table = section("README.md", "The kinds");
    let rows: BTreeMap<&str, Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>())
        .map(|cells| (cells[0], cells))
        .collect();
    for crd in api::crds::crds() {
        let kind = crd.spec.names.kind.as_str();
        let controller = CONTROLLERS
            .iter()
            .find(|controller| controller.kinds.iter().any(|owned| owned.resource().kind == kind));
        let row = rows.get(kind).unwrap_or_else(|| panic!("{kind} is missing in README.md"));
        assert_eq!(row[1], format!("{}/{}", crd.spec.group, crd.spec.versions[0].name), "{kind}");
        let wanted = controller.map_or("not there yet: API only", |controller| controller.name);
        assert_eq!(row.last(), Some(&wanted), "{kind}");
    }
}

/// The output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    /// Identifiers of packages.
    workspace_default_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Nothing, `dev` or `build`.
    kind: Option<String>,
    /// Of a package of the workspace.
    path: Option<PathBuf>,
}

impl Package {
    /// Packages of the workspace that are compiled with it, or also those that only its tests need.
    fn uses(&self, with_tests: bool) -> impl Iterator<Item = &str> {
        let local = self.dependencies.iter().filter(|dependency| dependency.path.is_some());
        local
            .filter(move |dependency| with_tests || dependency.kind.as_deref() != Some("dev"))
            .map(|dependency| dependency.name.as_str())
    }

    fn is_below(&self, folder: &str) -> bool {
        self.manifest_path.starts_with(workspace().join(folder))
    }
}

fn metadata() -> Metadata {
    let output =
        cargo(["metadata", "--format-version=1", "--no-deps", "--offline", "--locked"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn packages() -> BTreeMap<String, Package> {
    metadata().packages.into_iter().map(|package| (package.name.clone(), package)).collect()
}

/// `cargo xtask test` runs the default members with `cargo test`: the unit tests of any other crate would never run.
#[test]
fn every_crate_but_tests_is_a_default_member() {
    let Metadata { packages, workspace_default_members } = metadata();
    let left_out = packages.iter().filter(|package| !workspace_default_members.contains(&package.id));
    assert_eq!(left_out.map(|package| package.name.as_str()).collect::<Vec<_>>(), ["tests"]);
}

#[test]
fn the_pure_crates_pull_no_async_runtime_no_http_stack_and_no_kubernetes_client() {
    for name in PURE {
        let tree = ["tree", "--package", name, "--edges=normal", "--prefix=none", "--offline", "--locked"];
        let output = cargo(tree).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8_lossy(&output.stdout);
        let pulled: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        // It is really the tree of this crate, or the claim below would hold for anything.
        assert!(pulled.contains(name) && pulled.len() > 1, "{tree}");
        for forbidden in ["tokio", "hyper", "kube-client", "kube-runtime", "rustls", "reqwest"] {
            assert!(!pulled.contains(forbidden), "{name} pulls {forbidden}");
        }
    }
}

#[test]
fn nothing_that_ships_depends_on_what_does_not() {
    let packages = packages();
    let mut ships: BTreeSet<&str> = BTreeSet::new();
    let mut next: Vec<&str> = released().iter().map(|program| program.name).collect();
    while let Some(name) = next.pop() {
        if ships.insert(name) {
            next.extend(packages.get(name).unwrap_or_else(|| panic!("no crate {name}")).uses(false));
        }
    }
    // `proto` stands beside `crates`, because it is a contract with other programs.
    let stays: BTreeSet<&str> = packages
        .values()
        .filter(|package| {
            let is_apart = package.name.as_str() == "local-cluster";
            is_apart || !package.is_below("crates") && !package.is_below("proto")
        })
        .map(|package| package.name.as_str())
        .collect();
    let shipped: Vec<&str> = ships.intersection(&stays).copied().collect();
    assert_eq!(shipped, [""; 0], "they would be in an image");
    let all: BTreeSet<&str> = packages.keys().map(String::as_str).collect();
    let neither: Vec<&str> =
        all.iter().filter(|name| !ships.contains(*name) && !stays.contains(*name)).copied().collect();
    assert_eq!(neither, [""; 0], "in no image: do they belong below tests?");
}

#[test]
fn only_tests_and_xtask_depend_on_a_released_program() {
    let programs = released();
    for package in packages().values().filter(|package| package.is_below("crates")) {
        let found: Vec<&str> =
            package.uses(true).filter(|used| programs.iter().any(|program| program.name == *used)).collect();
        assert_eq!(found, [""; 0], "in {}", package.name);
    }
}

#[test]
fn no_modules_of_one_folder_use_each_other_in_a_circle() {
    let all = sources(|path| path.contains("/src/"));
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (path, text) in &all {
        let (package, file) = path.split_once("/src/").unwrap();
        crates.entry(package).or_default().push((file, text.as_str()));
    }
    let mut found = Vec::new();
    for (package, mut files) in crates {
        // A program beside a library is a crate of its own.
        let has_library = files.iter().any(|(file, _)| *file == "lib.rs");
        files.retain(|(file, _)| !(has_library && *file == "main.rs"));
        let circles = circles::circles(&files);
        found.extend(circles.into_iter().map(|circle| format!("{package}: {circle}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
