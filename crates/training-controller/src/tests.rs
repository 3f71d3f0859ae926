//! Objects for the tests of this crate.

use std::time::Duration;

use api::trainingjob::TrainingJob;
use clap::CommandFactory;
use jiff::Timestamp;

use crate::{Args, TrainingArgs, plan::Defaults};

/// A TrainingJob as the API server has it, with this spec in YAML.
pub(crate) fn job(name: &str, spec: &str) -> TrainingJob {
    let text = format!(
        "{{apiVersion: aistudio.modelscope.cn/v1alpha1, kind: TrainingJob, metadata: {{name: {name}, namespace: demo, \
         uid: uid-of-{name}, generation: 1, resourceVersion: '1', creationTimestamp: '{}'}}, spec: {spec}}}",
        at(0)
    );
    serde_saphyr::from_str(&text).unwrap()
}

/// A moment, in seconds after the start of the story.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + seconds).unwrap()
}

pub(crate) const REFUSAL_RETRY: Duration = Duration::from_secs(60);

/// The arguments of a process with these flags.
pub(crate) fn training_args(flags: &[&str]) -> TrainingArgs {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        training: TrainingArgs,
    }
    // Fixed images, because the defaults change with every release.
    let images =
        ["--launcher-image=launcher:1", "--transfer-image=transfer:1", "--trainer-image=trainer:swift4.4.3"];
    let arguments = ["test"].into_iter().chain(images).chain(flags.iter().copied());
    <Cli as clap::Parser>::try_parse_from(arguments).unwrap().training
}

/// The defaults of a process that watches nodes.
pub(crate) fn defaults() -> Defaults {
    Defaults::new(training_args(&[]), true, REFUSAL_RETRY)
}

#[test]
fn the_command_line_is_valid() {
    Args::command().debug_assert();
}
