//! What a TrainingJob reads of others: paths in their outputs, and jobs by name. Pure.
//!
//! A path equal to, or below, the outputDir that another job sets explicitly is a part of its result. So outputs are indexed
//! by their path, and the prefixes of a path are looked up from the longest on: no list of all jobs is searched.
//!
//! The index has all jobs of all namespaces, also those with an invalid spec, so what one of them adds to it is limited:
//! `check` refuses specs that need more.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use api::trainingjob::{DEFAULT_OUTPUT_DIR, TrainingJob, TrainingJobSpec};
use runtime::key::Key;

use crate::names;

/// One thing that a job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// In `dependsOn`.
    Job(String),
    /// A path in a field of the spec, which no input of the job provides.
    Path { field: &'static str, path: String },
}

/// `status.dependencies` has a record of each, and at most as many items.
const MOST_WANTS: usize = 64;
/// Keys of one job in the index of dependents. With `LONGEST_OUTPUT_DIR`, they have 64 KiB at most.
const MOST_KEYS: usize = 128;
/// In bytes.
const LONGEST_OUTPUT_DIR: usize = 512;
const DEEPEST_OUTPUT_DIR: usize = 32;

/// In the order of the spec; what a name says comes first.
pub(crate) fn wants(job: &TrainingJob) -> Vec<Want> {
    let spec = &job.spec;
    let names = spec.depends_on.iter().cloned().map(Want::Job);
    let mut seen = HashSet::new();
    let paths = paths(spec).filter(|want| seen.insert(*want));
    let paths = paths.map(|(field, path)| Want::Path { field, path: path.to_owned() });
    names.chain(paths).take(MOST_WANTS).collect()
}

/// Absolute paths that no input provides, each with its field.
fn paths(spec: &TrainingJobSpec) -> impl Iterator<Item = (&'static str, &str)> {
    let model = (!spec.model_in_image).then_some(("spec.model", spec.model.as_str()));
    let datasets = spec.dataset.split(',').map(|dataset| ("spec.dataset", file_of(dataset)));
    let reward = spec.reward_model.iter().map(|model| ("spec.rewardModel", model.as_str()));
    let adapters = spec.adapters.iter().map(|adapters| ("spec.adapters", adapters.as_str()));
    let is_provided = |path: &str| spec.inputs.iter().any(|input| is_below(path, &input.mount_path));
    let all = model.into_iter().chain(adapters).chain(datasets).chain(reward);
    all.filter(move |(_, path)| path.starts_with('/') && !is_provided(path))
}

/// Why a job needs more than the index and the status can have, and what to change.
pub(crate) fn check(job: &TrainingJob) -> Result<(), String> {
    let spec = &job.spec;
    let fields = "spec.model, spec.adapters, spec.dataset, spec.rewardModel and spec.dependsOn";
    let remedy = "put the data into fewer files or folders, or mount it with spec.inputs";
    let count = spec.depends_on.len() + paths(spec).collect::<HashSet<_>>().len();
    if count > MOST_WANTS {
        return Err(format!(
            "{fields} refer to {count} paths and jobs, and {MOST_WANTS} is the limit; {remedy}"
        ));
    }
    let count = all_keys(job).len();
    if count > MOST_KEYS {
        return Err(format!(
            "{fields} refer to {count} jobs, files and folders, those above them included, and {MOST_KEYS} is the \
             limit; {remedy}"
        ));
    }
    let dir = spec.output_dir.trim_end_matches('/');
    let depth = dir.matches('/').count();
    if dir.len() > LONGEST_OUTPUT_DIR || depth > DEEPEST_OUTPUT_DIR {
        return Err(format!(
            "spec.outputDir has {depth} levels and {} bytes, and {DEEPEST_OUTPUT_DIR} levels and {LONGEST_OUTPUT_DIR} bytes \
             are the limits; choose a shorter path",
            dir.len()
        ));
    }
    Ok(())
}

/// `/data/train.jsonl#500` are 500 samples of the file.
fn file_of(dataset: &str) -> &str {
    dataset.trim().split('#').next().unwrap_or_default()
}

/// The key of a claim. Names of objects have no `/`, and paths begin with one.
pub(crate) fn claim_key(namespace: &str, claim: &str) -> Key {
    Key::new(namespace, &format!("claim/{claim}"))
}

/// Under which keys the output of a job is found in the index of outputs: its path, and the claim that the job writes into.
pub(crate) fn output_keys(job: &TrainingJob) -> Vec<Key> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    output_key(job).into_iter().chain([claim_key(namespace, &output_claim(job))]).collect()
}

/// The claim that a job writes its checkpoints into.
pub(crate) fn output_claim(job: &TrainingJob) -> String {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let output = job.spec.output.as_ref();
    output.and_then(|output| output.claim_name.clone()).unwrap_or_else(|| names::claim(name))
}

/// The key of the output in the index of outputs; `None` for the default folder, which all jobs have that set none.
pub(crate) fn output_key(job: &TrainingJob) -> Option<Key> {
    let dir = job.spec.output_dir.trim_end_matches('/');
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    (dir != DEFAULT_OUTPUT_DIR).then(|| Key::new(namespace, dir))
}

/// Whether the path is in the default folder, which is no key.
pub(crate) fn is_default_output(path: &str) -> bool {
    path.strip_prefix(DEFAULT_OUTPUT_DIR).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The keys under which an output would have to be indexed to contain the path, from the longest on. No output has a
/// longer or deeper path than these.
pub(crate) fn keys_of_path(namespace: &str, path: &str) -> Vec<Key> {
    let namespace: Arc<str> = namespace.into();
    let path = path.trim_end_matches('/');
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    let prefixes = ends.filter_map(|end| path.get(..end)).filter(|prefix| {
        // The parent of `//a` is that of `/a`.
        !prefix.is_empty() && !prefix.ends_with('/')
    });
    let possible = prefixes.take_while(|prefix| prefix.len() <= LONGEST_OUTPUT_DIR).take(DEEPEST_OUTPUT_DIR);
    let mut keys: Vec<Key> =
        possible.map(|prefix| Key { namespace: Arc::clone(&namespace), name: prefix.into() }).collect();
    keys.reverse();
    keys
}

/// Under which keys the dependents of a job are found: its name, and its output.
pub(crate) fn keys_of_dependency(job: &TrainingJob) -> Vec<Key> {
    output_keys(job).into_iter().chain([Key::of(job)]).collect()
}

/// The keys that this job depends on, for the index of dependents.
pub(crate) fn keys_of_wants(job: &TrainingJob) -> Vec<Key> {
    all_keys(job).into_iter().take(MOST_KEYS).collect()
}

fn all_keys(job: &TrainingJob) -> BTreeSet<Key> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let keys = |want| match want {
        Want::Job(name) => vec![Key::new(namespace, &name)],
        Want::Path { path, field: _ } => keys_of_path(namespace, &path),
    };
    wants(job).into_iter().flat_map(keys).chain(resume_key(job)).collect()
}

/// The other job, or the claim, of `spec.resumeFrom`.
pub(crate) fn resume_key(job: &TrainingJob) -> Option<Key> {
    let source = job.spec.resume_from.as_ref()?;
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let of_job = source.job.as_ref().map(|name| Key::new(namespace, name));
    let of_claim = || source.claim_name.as_ref().map(|name| claim_key(namespace, name));
    of_job.or_else(of_claim).filter(|key| *key != Key::of(job))
}

/// The claim of `spec.resumeFrom`: that of the job, if it exists, or as it was recorded before the job was deleted.
pub(crate) fn source_claim(job: &TrainingJob, other: Option<&TrainingJob>) -> String {
    let recorded = job.status.as_ref().and_then(|status| status.resume_from.as_ref());
    let named = job.spec.resume_from.clone().unwrap_or_default();
    match (named.claim_name, other, recorded) {
        (Some(claim), _, _) => claim,
        (None, Some(other), _) => output_claim(other),
        (None, None, Some(recorded)) => recorded.claim_name.clone(),
        (None, None, None) => names::claim(named.job.as_deref().unwrap_or_default()),
    }
}

/// Whether `job` may provide it, by its name or its output.
pub(crate) fn may_be_of(want: &Want, job: &TrainingJob) -> bool {
    match want {
        Want::Job(name) => job.metadata.name.as_ref() == Some(name),
        Want::Path { path, field: _ } => {
            let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
            output_key(job).is_some_and(|key| keys_of_path(namespace, path).contains(&key))
        }
    }
}

/// Whether an absolute path equals the folder or lies below it.
pub(crate) fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use api::trainingjob::{ResolvedResume, TrainingJobStatus};

    use super::*;
    use crate::tests::job;

    #[test]
    fn absolute_paths_and_names_are_wanted_unless_an_input_has_them() {
        let wanted = |spec: &str| -> Vec<String> {
            let text = |want| match want {
                Want::Job(name) => name,
                Want::Path { field, path } => format!("{field}={path}"),
            };
            wants(&job("a", spec)).into_iter().map(text).collect()
        };
        assert!(wanted("{model: qwen/Qwen-7B, dataset: 'a,b/c', method: lora}").is_empty());
        assert_eq!(
            wanted("{model: /m/a, dataset: '/d/x#500, hub, /d/x', method: lora, dependsOn: [first]}"),
            ["first", "spec.model=/m/a", "spec.dataset=/d/x"]
        );
        let inputs = "inputs: [{claimName: c, mountPath: /d}]";
        assert_eq!(
            wanted(&format!(
                "{{model: /dm, modelInImage: true, dataset: '/d/x,/dx', method: lora, {inputs}}}"
            )),
            ["spec.dataset=/dx"]
        );
    }

    #[test]
    fn the_prefixes_of_a_path_come_from_the_longest_on() {
        let names = |path: &str| -> Vec<String> {
            keys_of_path("demo", path).iter().map(|key| key.name.to_string()).collect()
        };
        assert_eq!(names("/a/b//c/"), ["/a/b//c", "/a/b", "/a"]);
        assert_eq!(names("/"), Vec::<String>::new());
    }

    #[test]
    fn no_spec_adds_more_than_64_kib_to_the_index_of_dependents() {
        let many: Vec<String> = (0..60).map(|index| format!("/{index}{}", "/a".repeat(15))).collect();
        let long = |index: i32| format!("/{index}{}{}", "b".repeat(440), "/a".repeat(31));
        let long: Vec<String> = (0..4).map(long).collect();
        for dataset in ["/a".repeat(1_023), many.join(","), long.join(",")] {
            let deep = format!("/{}{}", "m".repeat(440), "/a".repeat(31));
            let spec = format!("{{model: '{deep}', dataset: '{dataset}', method: lora}}");
            let keys = keys_of_wants(&job("a", &spec));
            let bytes: usize = keys.iter().map(|key| key.name.len()).sum();
            assert!(bytes < 64 << 10 && keys.len() <= 128, "{bytes} bytes, {} keys", keys.len());
        }
        assert_eq!(keys_of_path("demo", &"/a".repeat(1_023)).len(), 32);
    }

    #[test]
    fn more_than_the_index_and_the_status_can_have_is_refused() {
        let refusal = |more: &str| {
            let job = job("a", &format!("{{model: m, method: lora, {more}}}"));
            (wants(&job).len(), check(&job).err().unwrap_or_default())
        };
        let files = |count: usize| {
            let files: Vec<String> = (0..count).map(|index| format!("/d/{index}")).collect();
            format!("dataset: '{}'", files.join(","))
        };
        assert_eq!(refusal(&files(64)), (64, String::new()));
        let (count, message) = refusal(&files(65));
        assert!(count == 64 && message.contains("65 paths and jobs, and 64 is the limit"), "{message}");
        assert_eq!(refusal(&format!("{}, dependsOn: [b]", files(63))).1, "");
        assert!(refusal(&format!("{}, dependsOn: [b]", files(64))).1.contains("65 paths and jobs"));
        let inputs = "inputs: [{claimName: c, mountPath: /d}]";
        assert_eq!(refusal(&format!("{}, {inputs}", files(65))), (0, String::new()));
        let folders: Vec<String> = (0..43).map(|index| format!("/{index}/a/b")).collect();
        let (_, message) = refusal(&format!("dataset: '{}'", folders.join(",")));
        assert!(message.contains("129 jobs, files and folders"), "{message}");
        let dir = |depth: usize| refusal(&format!("dataset: d, outputDir: {}", "/a".repeat(depth))).1;
        assert!(dir(32).is_empty() && dir(33).contains("spec.outputDir has 33 levels"), "{}", dir(33));
    }

    #[test]
    fn the_default_output_is_no_dependency_of_anyone() {
        let keys = |dir: &str| -> usize {
            let spec = format!("{{model: m, dataset: d, method: lora, outputDir: {dir}}}");
            keys_of_dependency(&job("a", &spec)).len()
        };
        assert_eq!([keys("/output"), keys("/output/a"), keys("/mnt/x")], [2, 3, 3]);
    }

    #[test]
    fn the_claim_of_a_job_is_known_after_its_deletion_if_it_was_recorded() {
        let spec = "{model: m, dataset: d, method: lora, resumeFrom: {job: first}}";
        let mut next = job("next", spec);
        let own = job("first", "{model: m, dataset: d, method: lora, output: {claimName: shared}}");
        assert_eq!(
            (source_claim(&next, None), source_claim(&next, Some(&own))),
            ("first-output".into(), "shared".into())
        );
        let recorded = ResolvedResume { claim_name: "shared".to_owned(), ..ResolvedResume::default() };
        next.status = Some(TrainingJobStatus { resume_from: Some(recorded), ..TrainingJobStatus::default() });
        assert_eq!(source_claim(&next, None), "shared");
    }
}
