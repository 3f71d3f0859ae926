//! What each engine needs: image, arguments, ports, probes, metrics, drain. One table; nothing else knows an engine.
//!
//! A row that a release has shipped is never edited. What runs keeps the row that it was first rendered with, by its
//! id, so an edit would restart it: add a row instead.

use api::aiinference::Engine;

/// Where the weights are, in every pod.
pub(crate) const MODEL_PATH: &str = "/models";
/// Where the engines serve, whatever their own default is.
pub(crate) const HTTP_PORT: i32 = 8000;
/// Home of the user, and root of every cache: images assume a root user's home.
pub(crate) const HOME: &str = "/home/engine";

/// How one engine is run.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Recorded on the child and shown in `status.resolved.profile`.
    pub(crate) id: &'static str,
    pub(crate) engine: Engine,
    pub(crate) image: &'static str,
    /// The first one is `http`.
    pub(crate) ports: &'static [Port],
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
    pub(crate) drain: Drain,
    /// Environment beside HOME and USER; users may override it.
    pub(crate) env: &'static [(&'static str, &'static str)],
    arguments: fn(&Invocation<'_>) -> Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) name: &'static str,
    pub(crate) number: i32,
}

/// Paths on `http`. None of them asks for the user's API key, and none is answered before the model is loaded, except
/// a liveness path that has its own meaning.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) ready: &'static str,
    pub(crate) live: &'static str,
}

/// Where Prometheus finds the metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) port: i32,
    pub(crate) path: &'static str,
}

/// How the engine finishes what it has begun when it is told to stop.
#[derive(Debug)]
pub(crate) struct Drain {
    /// Longest time that the engine itself takes after SIGTERM.
    pub(crate) seconds: i64,
}

/// What the arguments depend on.
#[derive(Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) served_model_name: &'a str,
    /// At least 1: an engine on the CPU also runs one worker.
    pub(crate) shards: i32,
    pub(crate) drain_seconds: i64,
    pub(crate) users: &'a [String],
}

/// Every row that a release has shipped.
static PROFILES: [&Profile; 3] = [&VLLM_1, &TRITON_1, &TGI_1];

static VLLM_1: Profile = Profile {
    id: "vllm-1",
    engine: Engine::Vllm,
    // From 0.18 on the engine can drain.
    image: "vllm/vllm-openai:v0.28.0",
    ports: &[HTTP],
    health: Health { ready: "/health", live: "/health" },
    metrics: Metrics { port: HTTP_PORT, path: "/metrics" },
    drain: Drain { seconds: 60 },
    env: &[
        ("HF_HOME", "/home/engine/huggingface"),
        ("VLLM_CACHE_ROOT", "/home/engine/vllm"),
        ("TORCHINDUCTOR_CACHE_DIR", "/home/engine/torchinductor"),
        ("TRITON_CACHE_DIR", "/home/engine/triton"),
        ("XDG_CACHE_HOME", "/home/engine/cache"),
    ],
    arguments: |with| {
        // The image runs `vllm serve`, whose first argument is the model.
        let mut arguments = strings(&[
            MODEL_PATH,
            // Probes and scrapes would fill the log.
            "--disable-access-log-for-endpoints=/health,/metrics,/ping",
        ]);
        arguments.extend_from_slice(with.users);
        arguments.extend([
            format!("--served-model-name={}", with.served_model_name),
            format!("--port={HTTP_PORT}"),
            format!("--tensor-parallel-size={}", with.shards),
            format!("--shutdown-timeout={}", with.drain_seconds),
        ]);
        arguments
    },
};

static TRITON_1: Profile = Profile {
    id: "triton-1",
    engine: Engine::Triton,
    image: "nvcr.io/nvidia/tritonserver:26.07-py3",
    ports: &[HTTP, Port { name: "grpc", number: 8001 }, Port { name: "metrics", number: 8002 }],
    health: Health { ready: "/v2/health/ready", live: "/v2/health/live" },
    metrics: Metrics { port: 8002, path: "/metrics" },
    drain: Drain { seconds: 60 },
    env: &[("HF_HOME", "/home/engine/huggingface"), ("XDG_CACHE_HOME", "/home/engine/cache")],
    arguments: |with| {
        // Models are named by the folders of the repository, and their GPUs by their own configuration.
        let mut arguments = strings(&["tritonserver"]);
        arguments.extend_from_slice(with.users);
        arguments.extend([
            format!("--model-repository={MODEL_PATH}"),
            format!("--http-port={HTTP_PORT}"),
            "--grpc-port=8001".to_owned(),
            "--metrics-port=8002".to_owned(),
            format!("--exit-timeout-secs={}", with.drain_seconds),
        ]);
        arguments
    },
};

static TGI_1: Profile = Profile {
    id: "tgi-1",
    engine: Engine::Tgi,
    image: "ghcr.io/huggingface/text-generation-inference:3.3.5",
    ports: &[HTTP],
    health: Health { ready: "/health", live: "/health" },
    metrics: Metrics { port: HTTP_PORT, path: "/metrics" },
    drain: Drain { seconds: 90 },
    // The image points all of them at /data, which only root may write.
    env: &[
        ("HF_HOME", "/home/engine/huggingface"),
        ("HUGGINGFACE_HUB_CACHE", "/home/engine/huggingface"),
        ("TRITON_CACHE_DIR", "/home/engine/triton"),
        ("XDG_CACHE_HOME", "/home/engine/cache"),
    ],
    arguments: |with| {
        // clap refuses a flag that comes twice, and the image's own default port is 80.
        let mut arguments = with.users.to_vec();
        arguments.extend([
            format!("--model-id={MODEL_PATH}"),
            format!("--port={HTTP_PORT}"),
            format!("--num-shard={}", with.shards),
            format!("--graceful-termination-timeout={}", with.drain_seconds),
        ]);
        arguments
    },
};

const HTTP: Port = Port { name: "http", number: HTTP_PORT };

impl Profile {
    /// What a pod that is rendered for the first time gets.
    pub(crate) fn newest(engine: Engine) -> &'static Profile {
        match engine {
            Engine::Vllm => &VLLM_1,
            Engine::Triton => &TRITON_1,
            Engine::Tgi => &TGI_1,
        }
    }

    /// The row with this id, if this release still knows it.
    pub(crate) fn recorded(id: &str, engine: Engine) -> Option<&'static Profile> {
        PROFILES.into_iter().find(|profile| profile.id == id && profile.engine == engine)
    }

    /// The whole command line; flags of ours come last, so that they win where an engine takes the last one.
    pub(crate) fn arguments(&self, shards: i32, served_model_name: &str, users: &[String]) -> Vec<String> {
        let drain_seconds = self.drain.seconds;
        (self.arguments)(&Invocation { served_model_name, shards, drain_seconds, users })
    }
}

fn strings(literals: &[&str]) -> Vec<String> {
    literals.iter().map(|literal| (*literal).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_a_newest_profile_of_its_own() {
        for engine in Engine::ALL {
            let newest = Profile::newest(engine);
            assert_eq!(newest.engine, engine);
            assert_eq!(Profile::recorded(newest.id, engine).map(|profile| profile.id), Some(newest.id));
        }
    }

    #[test]
    fn ids_are_unique_and_images_are_pinned() {
        for profile in PROFILES {
            assert_eq!(PROFILES.iter().filter(|other| other.id == profile.id).count(), 1, "{}", profile.id);
            let (_, tag) = profile.image.rsplit_once(':').expect("an image with a tag");
            assert!(tag != "latest" && tag.contains(|c: char| c.is_ascii_digit()), "{}", profile.image);
            assert_eq!((profile.ports[0].name, profile.ports[0].number), ("http", HTTP_PORT));
        }
    }

    #[test]
    fn every_flag_of_ours_comes_after_the_users() {
        let users = ["--of-the-user".to_owned()];
        for profile in PROFILES {
            let arguments = profile.arguments(2, "name", &users);
            let position = arguments.iter().position(|argument| *argument == users[0]).unwrap();
            for flag in profile.engine.owned_flags() {
                let ours = arguments.iter().position(|argument| argument.split('=').next() == Some(*flag));
                assert!(ours.is_none_or(|ours| ours > position), "{flag} of {}", profile.id);
            }
        }
    }
}
