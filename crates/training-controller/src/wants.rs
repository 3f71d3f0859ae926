//! What a TrainingJob reads of others: paths in their outputs, and jobs by name. Pure.
//!
//! A path equal to, or below, the outputDir that another job sets explicitly is a part of its result. So outputs are indexed
//! by their path, and the prefixes of a path are looked up from the longest on: no list of all jobs is searched.

use api::trainingjob::{DEFAULT_OUTPUT_DIR, TrainingJob};
use runtime::cache::Key;

use crate::validate::is_below;

/// One thing that a job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// In `dependsOn`.
    Job(String),
    /// A path in a field of the spec, which no input of the job provides.
    Path { field: &'static str, path: String },
}

/// In the order of the spec; what a name says comes first.
pub(crate) fn wants(job: &TrainingJob) -> Vec<Want> {
    let spec = &job.spec;
    let model = (!spec.model_in_image).then_some(("spec.model", spec.model.as_str()));
    let datasets = spec.dataset.split(',').map(|dataset| ("spec.dataset", file_of(dataset)));
    let reward = spec.reward_model.iter().map(|model| ("spec.rewardModel", model.as_str()));
    let is_provided = |path: &str| spec.inputs.iter().any(|input| is_below(path, &input.mount_path));
    let mut wants: Vec<Want> = spec.depends_on.iter().cloned().map(Want::Job).collect();
    for (field, path) in model.into_iter().chain(datasets).chain(reward) {
        let want = Want::Path { field, path: path.to_owned() };
        if path.starts_with('/') && !is_provided(path) && !wants.contains(&want) {
            wants.push(want);
        }
    }
    wants
}

/// `/data/train.jsonl#500` are 500 samples of the file.
fn file_of(dataset: &str) -> &str {
    dataset.trim().split('#').next().unwrap_or_default()
}

/// The key of the output in the index of outputs; `None` for the default folder, which all jobs have that set none.
pub(crate) fn output_key(job: &TrainingJob) -> Option<Key> {
    let dir = job.spec.output_dir.trim_end_matches('/');
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    (dir != DEFAULT_OUTPUT_DIR).then(|| Key::new(namespace, dir))
}

/// The keys under which an output would have to be indexed to contain the path, from the longest on.
pub(crate) fn keys_of_path(namespace: &str, path: &str) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = path.trim_end_matches('/');
    while !rest.is_empty() {
        keys.push(Key::new(namespace, rest));
        rest = rest.rsplit_once('/').map_or("", |(parent, _)| parent).trim_end_matches('/');
    }
    keys
}

/// Under which keys the dependents of a job are found: its name, and its output. Names of objects have no `/`.
pub(crate) fn keys_of_dependency(job: &TrainingJob) -> Vec<Key> {
    output_key(job).into_iter().chain([Key::of(job)]).collect()
}

/// The keys that this job depends on, for the index of dependents.
pub(crate) fn keys_of_wants(job: &TrainingJob) -> Vec<Key> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let keys = |want| match want {
        Want::Job(name) => vec![Key::new(namespace, &name)],
        Want::Path { path, field: _ } => keys_of_path(namespace, &path),
    };
    wants(job).into_iter().flat_map(keys).collect()
}

#[cfg(test)]
mod tests {
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
    fn the_default_output_is_no_dependency_of_anyone() {
        let keys = |dir: &str| -> usize {
            let spec = format!("{{model: m, dataset: d, method: lora, outputDir: {dir}}}");
            keys_of_dependency(&job("a", &spec)).len()
        };
        assert_eq!([keys("/output"), keys("/output/a"), keys("/mnt/x")], [1, 2, 2]);
    }
}
