//! Which engine is played, read from the arguments alone, as AIInference renders them. Flags that matter to a real vLLM
//! or TGI only are ignored, as are the user's; Triton refuses unknown ones.

mod triton;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};

pub(crate) use triton::{Loads, Triton};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Vllm,
    Triton(Triton),
    Tgi,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) engine: Engine,
    pub(crate) model_path: PathBuf,
    /// What requests call the model; Triton's are called as their folders are.
    pub(crate) served_model_name: Option<String>,
    pub(crate) port: u16,
    /// Of Triton's gRPC API.
    pub(crate) grpc_port: Option<u16>,
    /// Where metrics have a port of their own.
    pub(crate) metrics_port: Option<u16>,
    /// How long requests in flight may take after SIGTERM.
    pub(crate) drain: Duration,
}

impl Invocation {
    /// Defaults are those of the engines.
    pub(crate) fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let flags = Flags(arguments);
        match arguments.first().map(String::as_str) {
            Some("tritonserver") => triton::parse(&arguments[1..]),
            _ if flags.last("--model-id").is_some() => Ok(Self {
                engine: Engine::Tgi,
                model_path: flags.last("--model-id").unwrap_or_default().into(),
                served_model_name: None,
                port: flags.number("--port", 80)?,
                grpc_port: None,
                metrics_port: None,
                drain: Duration::from_secs(flags.number("--graceful-termination-timeout", 90)?),
            }),
            Some(model) if !model.starts_with('-') => Ok(Self {
                engine: Engine::Vllm,
                model_path: model.into(),
                served_model_name: Some(flags.last("--served-model-name").unwrap_or(model).to_owned()),
                port: flags.number("--port", 8000)?,
                grpc_port: None,
                metrics_port: None,
                // Requests in flight are cut off.
                drain: Duration::from_secs(flags.number("--shutdown-timeout", 0)?),
            }),
            _ => bail!("neither a model first (vLLM), nor tritonserver, nor --model-id (TGI): {arguments:?}"),
        }
    }
}

struct Flags<'a>(&'a [String]);

impl<'a> Flags<'a> {
    /// Of a flag that comes twice, as `--name=value` or as `--name value`.
    fn last(&self, name: &str) -> Option<&'a str> {
        let position = self.0.iter().rposition(|argument| argument.split('=').next() == Some(name))?;
        match self.0[position].split_once('=') {
            Some((_, value)) => Some(value),
            None => self.0.get(position + 1).map(String::as_str),
        }
    }

    fn number<N: std::str::FromStr>(&self, name: &str, default: N) -> anyhow::Result<N> {
        let Some(value) = self.last(name) else { return Ok(default) };
        value.parse().ok().with_context(|| format!("{name} must be a number, and is {value:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Invocation {
        Invocation::parse(&words(line)).unwrap()
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn vllm_is_known_by_its_model_in_the_first_place() {
        let line = "/models --disable-access-log-for-endpoints=/health,/metrics,/ping --max-model-len 4096 \
                    --served-model-name=llama --port=8100 --tensor-parallel-size=1 --shutdown-timeout=60";
        let expected = Invocation {
            engine: Engine::Vllm,
            model_path: "/models".into(),
            served_model_name: Some("llama".to_owned()),
            port: 8100,
            grpc_port: None,
            metrics_port: None,
            drain: Duration::from_secs(60),
        };
        assert_eq!(parsed(line), expected);
    }

    #[test]
    fn triton_is_known_by_its_program() {
        let line = "tritonserver --strict-readiness=true --model-repository=/models --http-port=8100 \
                    --grpc-port=8101 --metrics-port=8102 --exit-timeout-secs=60";
        let expected = Invocation {
            engine: Engine::Triton(Triton { repositories: vec!["/models".into()], ..Triton::default() }),
            model_path: "/models".into(),
            served_model_name: None,
            port: 8100,
            grpc_port: Some(8101),
            metrics_port: Some(8102),
            drain: Duration::from_secs(60),
        };
        assert_eq!(parsed(line), expected);
    }

    #[test]
    fn tgi_is_known_by_its_model_id() {
        let line = "--max-input-tokens 100 --model-id=/models --port=8100 --num-shard=2 \
                    --graceful-termination-timeout=70";
        let expected = Invocation {
            engine: Engine::Tgi,
            model_path: "/models".into(),
            served_model_name: None,
            port: 8100,
            grpc_port: None,
            metrics_port: None,
            drain: Duration::from_secs(70),
        };
        assert_eq!(parsed(line), expected);
    }

    #[test]
    fn of_a_flag_that_comes_twice_the_last_one_counts() {
        assert_eq!(parsed("/models --port 1 --port=2").port, 2);
        assert_eq!(parsed("/models --port=2 --port 1").port, 1);
    }

    #[test]
    fn what_no_engine_is_called_with_is_refused() {
        for line in ["", "--port=8000", "tritonserver", "/models --port=many"] {
            assert!(Invocation::parse(&words(line)).is_err(), "{line:?}");
        }
    }
}
