//! How each harness is started. Arguments are values of their options (`--option=value`), so that no value is an
//! option.
//!
//! The API key is in the environment of the harness alone.

use std::{ffi::OsString, path::Path};

use api::launcher::evaluator::API_KEY;
use serde_json::{Map, Value, json};
use tokio::process::Command;

use crate::{
    answers,
    cli::{Endpoint, Harness, Key, Run},
    fault::Fault,
    questions::Questions,
};

/// EvalScope and the client of OpenAI want a key, also where the server wants none.
const NO_KEY: &str = "EMPTY";
/// Of each request of lm-eval. EvalScope tries as often by itself.
const RETRIES: u32 = 5;

/// What a harness is started with, beside the command line of the runner.
pub(crate) struct Order<'a> {
    pub(crate) questions: &'a Questions,
    pub(crate) model: &'a str,
    /// Of the API, with `/v1`.
    pub(crate) url: &'a str,
    /// Of each subset.
    pub(crate) limit: Option<u64>,
    pub(crate) work: &'a Path,
}

/// The program, which is started once for its version.
pub(crate) fn program(wanted: &Run) -> Command {
    let (program, arguments) = match wanted.program.split_first() {
        Some((program, arguments)) => (program.clone(), arguments),
        None => (OsString::from(wanted.harness.as_str()), &[][..]),
    };
    let mut command = Command::new(program);
    command.args(arguments).env_remove(API_KEY);
    if !wanted.allow_online {
        for name in ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"] {
            command.env(name, "1");
        }
    }
    // Otherwise the last lines before a crash are lost.
    command.env("PYTHONUNBUFFERED", "1");
    command
}

pub(crate) fn command(wanted: &Run, order: &Order<'_>, key: &Key) -> Result<Command, Fault> {
    let mut command = program(wanted);
    let key = key.reveal().unwrap_or(NO_KEY);
    match wanted.harness {
        Harness::Evalscope => command.env("EVALSCOPE_API_KEY", key).args(evalscope(wanted, order)),
        Harness::LmEval => command.env("OPENAI_API_KEY", key).args(lm_eval(wanted, order)?),
    };
    Ok(command)
}

fn option(name: &str, value: impl Into<OsString>) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(value.into());
    option
}

/// Arguments of EvalScope 1.10.0. A key that is empty on the command line is read from the environment. A request
/// that fails after its retries leaves no answer, and the others go on.
fn evalscope(wanted: &Run, order: &Order<'_>) -> Vec<OsString> {
    let mut of_dataset = Map::new();
    if let Some(path) = &order.questions.path {
        of_dataset.insert("local_path".to_owned(), json!(path));
    }
    if !order.questions.subsets.is_empty() {
        of_dataset.insert("subset_list".to_owned(), json!(order.questions.subsets));
    }
    let mut generation = Map::new();
    generation.insert("temperature".to_owned(), json!(temperature(wanted)));
    generation.insert("seed".to_owned(), json!(wanted.seed));
    generation.extend(wanted.max_tokens.map(|tokens| ("max_tokens".to_owned(), json!(tokens))));
    let dataset_args: Value = json!({ wanted.dataset.as_str(): of_dataset });
    let mut arguments = vec![
        OsString::from("eval"),
        option("model", order.model),
        option("model-id", answers::EVALSCOPE_MODEL),
        option("api-url", order.url),
        option("api-key", ""),
        option("eval-type", "openai_api"),
        option("datasets", wanted.dataset.as_str()),
        option("dataset-args", dataset_args.to_string()),
        option("generation-config", Value::Object(generation).to_string()),
        option("eval-batch-size", wanted.concurrency.to_string()),
        option("seed", wanted.seed.to_string()),
        option("judge-strategy", "rule"),
        option("work-dir", order.work),
        OsString::from("--no-timestamp"),
        OsString::from("--ignore-errors"),
    ];
    arguments.extend(order.questions.path.is_some().then(|| option("dataset-hub", "local")));
    arguments.extend(order.limit.map(|limit| option("limit", limit.to_string())));
    arguments
}

/// Arguments of lm-eval 0.4.12. It has no tokenizer, so the length of contexts is not checked, and no log-likelihood is scored.
/// One tokenizer would not fit two models, and that of a server is behind an option of vLLM alone.
fn lm_eval(wanted: &Run, order: &Order<'_>) -> Result<Vec<OsString>, Fault> {
    let (model, path) = match wanted.endpoint {
        Endpoint::Chat => ("local-chat-completions", "chat/completions"),
        Endpoint::Completions => ("local-completions", "completions"),
    };
    if let Some(name) = [order.model, order.url].into_iter().find(|text| text.contains([',', '='])) {
        return Err(Fault::usage(format!("lm-eval cannot take {name:?}: it splits texts at ',' and '='")));
    }
    let model_args = format!(
        "base_url={}/{path},model={},num_concurrent={},max_retries={RETRIES},tokenizer_backend=none,\
         tokenized_requests=False,seed={}",
        order.url, order.model, wanted.concurrency, wanted.seed
    );
    let mut gen_kwargs = format!("temperature={}", temperature(wanted));
    if let Some(tokens) = wanted.max_tokens {
        gen_kwargs.push_str(&format!(",max_gen_toks={tokens}"));
    }
    let subsets = &order.questions.subsets;
    let tasks = if subsets.is_empty() { wanted.dataset.clone() } else { subsets.join(",") };
    let mut arguments = vec![
        OsString::from("run"),
        option("model", model),
        option("model_args", model_args),
        option("tasks", tasks),
        option("gen_kwargs", gen_kwargs),
        option("seed", wanted.seed.to_string()),
        option("output_path", order.work),
        OsString::from("--log_samples"),
    ];
    if let Some(path) = &order.questions.path {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        arguments.push(option("include_path", folder));
    }
    arguments.extend(order.limit.map(|limit| option("limit", limit.to_string())));
    if wanted.endpoint == Endpoint::Chat {
        arguments.push(OsString::from("--apply_chat_template"));
    }
    if wanted.allow_code_execution {
        arguments.push(OsString::from("--confirm_run_unsafe_code"));
    }
    Ok(arguments)
}

/// The text is a decimal number; `0.` would be none in JSON.
fn temperature(wanted: &Run) -> f64 {
    wanted.temperature.parse().unwrap_or(0.0)
}
