//! Refuses arguments that set flags of the controller, in every spelling that the engine accepts. Pure.
//!
//! The API server refuses the documented spellings. Parsers of command lines also accept abbreviations, underscores and
//! values without a separator.

use api::aiinference::Engine;

use super::Invalid;

/// What a user sets in place of a flag.
const FIELDS: [(&[&str], &str); 3] = [
    (
        &[
            "--tensor-parallel-size",
            "-tp",
            "--pipeline-parallel-size",
            "-pp",
            "--data-parallel-size",
            "-dp",
            "--num-shard",
        ],
        "spec.parallelism",
    ),
    (&["--shutdown-timeout", "--exit-timeout-secs", "--graceful-termination-timeout"], "spec.drainSeconds"),
    (&["--served-model-name"], "spec.servedModelName"),
];

pub(super) fn none_is_owned(engine: Engine, arguments: &[String]) -> Result<(), Invalid> {
    for argument in arguments {
        // The engine would treat all later arguments as positional, also the controller's flags.
        if argument == "--" {
            return Err(Invalid(
                "spec.args must not contain \"--\", because the flags of the controller follow; remove it"
                    .to_owned(),
            ));
        }
        let owned = engine.owned_flags().iter().find(|owned| sets(engine, argument, owned));
        if let Some(owned) = owned {
            let instead = FIELDS.iter().find(|(flags, _)| flags.contains(owned)).map(|(_, field)| *field);
            let fix = instead.map_or("remove it".to_owned(), |field| format!("set {field} instead"));
            return Err(Invalid(format!(
                "spec.args: {argument:?} sets {owned}, which only the controller may set; {fix}"
            )));
        }
    }
    Ok(())
}

/// Whether the engine would parse this argument as the flag.
fn sets(engine: Engine, argument: &str, owned: &str) -> bool {
    let given = argument.split('=').next().unwrap_or_default();
    if !owned.starts_with("--") {
        // `-p 80`, `-p=80`, `-p80`.
        return given == owned
            || argument
                .strip_prefix(owned)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    }
    if !given.starts_with("--") {
        return false;
    }
    match engine {
        // argparse accepts unambiguous prefixes, and vLLM replaces `_` by `-`.
        Engine::Vllm => owned.starts_with(&given.replace('_', "-")),
        // getopt_long accepts unambiguous prefixes, too.
        Engine::Triton => owned.starts_with(given),
        // clap accepts only the exact flag.
        Engine::Tgi => owned == given,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(engine: Engine, argument: &str) -> bool {
        none_is_owned(engine, &[argument.to_owned()]).is_err()
    }

    #[test]
    fn both_forms_of_every_owned_flag_are_refused() {
        for engine in Engine::ALL {
            for flag in engine.owned_flags() {
                assert!(refused(engine, flag), "{flag}");
                assert!(refused(engine, &format!("{flag}=1")), "{flag}=1");
            }
        }
    }

    #[test]
    fn undocumented_spellings_are_refused_where_the_engine_accepts_them() {
        for argument in [
            "--tensor_parallel_size=2",
            "--tensor-par",
            "--served_model",
            "-tp2",
            "-tp=2",
            "--shutdown-time=1",
        ] {
            assert!(refused(Engine::Vllm, argument), "{argument}");
        }
        for argument in ["--model-repo=/x", "--http-po", "--exit-timeout=3", "--model-control=explicit"] {
            assert!(refused(Engine::Triton, argument), "{argument}");
        }
        for argument in ["-p80", "-p", "--graceful-termination-timeout"] {
            assert!(refused(Engine::Tgi, argument), "{argument}");
        }
        assert!(Engine::ALL.into_iter().all(|engine| refused(engine, "--")));
    }

    #[test]
    fn a_refusal_names_the_field_that_sets_the_flag() {
        for (engine, argument, fix) in [
            (Engine::Vllm, "--pipeline-parallel-size=2", "set spec.parallelism instead"),
            (Engine::Vllm, "-tp2", "set spec.parallelism instead"),
            (Engine::Tgi, "--graceful-termination-timeout", "set spec.drainSeconds instead"),
            (Engine::Vllm, "--port=1", "remove it"),
        ] {
            let refusal = none_is_owned(engine, &[argument.to_owned()]).unwrap_err().0;
            assert!(refusal.ends_with(fix), "{refusal}");
        }
    }

    #[test]
    fn other_flags_are_accepted() {
        for argument in [
            "--max-model-len=8192",
            "--gpu-memory-utilization",
            "0.9",
            "--enable-prefix-caching",
            "--model-loader-extra-config={}",
            "--port-of-nothing",
            "-O3",
            "a value with --port in it",
        ] {
            assert!(!refused(Engine::Vllm, argument), "{argument}");
        }
        assert!(!refused(Engine::Triton, "--log-verbose=1"));
        assert!(!refused(Engine::Tgi, "--max-total-tokens=4096"));
        assert!(!refused(Engine::Tgi, "--por") && !refused(Engine::Tgi, "-pretty"));
        assert!(!refused(Engine::Vllm, "-") && !refused(Engine::Triton, ""));
    }

    proptest! {
        #[test]
        fn a_refusal_names_the_flag(engine in prop::sample::select(Engine::ALL.to_vec()), index in 0_usize..7) {
            let flag = engine.owned_flags()[index % engine.owned_flags().len()];
            let refusal = none_is_owned(engine, &[format!("{flag}=x")]).unwrap_err();
            prop_assert!(refusal.0.contains(flag), "{}", refusal);
        }
    }
}
