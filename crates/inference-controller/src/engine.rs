//! The table of engines: image, arguments, ports, probes, metrics, drain. ARCHITECTURE.md lists the other engine-specific files.
//!
//! A change of a row affects only new and changed specs, because existing pod templates are pinned. A changed row needs a
//! new id, which `status.resolved.profile` shows.

use api::aiinference::Engine;

/// Mount path of the model volume in every pod.
pub(crate) const MODEL_PATH: &str = "/models";
/// Port of every engine's HTTP API.
pub(crate) const HTTP_PORT: i32 = 8000;
/// Home directory and parent of all caches; the images' defaults are writable only for root.
pub(crate) const HOME: &str = "/home/engine";

/// The settings of one engine.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Shown in `status.resolved.profile`.
    pub(crate) id: &'static str,
    pub(crate) image: &'static str,
    /// The first port is `http`.
    pub(crate) ports: &'static [Port],
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
    pub(crate) drain: Drain,
    /// Environment in addition to HOME and USER; users may override it.
    pub(crate) env: &'static [(&'static str, &'static str)],
    arguments: fn(&Invocation<'_>) -> Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) name: &'static str,
    pub(crate) number: i32,
}

/// Paths on `http` that need no API key. `ready` succeeds only after the model is loaded.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) ready: &'static str,
    pub(crate) live: &'static str,
}

/// Port and path of the metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) port: i32,
    pub(crate) path: &'static str,
}

/// Completion of running requests after SIGTERM.
#[derive(Debug)]
pub(crate) struct Drain {
    /// Maximum duration of the engine's own drain.
    pub(crate) seconds: i64,
}

/// Inputs of the arguments.
#[derive(Debug)]
pub(crate) struct Invocation<'a> {
    /// Path of the weights in the pod.
    pub(crate) model_path: &'a str,
    pub(crate) served_model_name: &'a str,
    /// The image's tag, if it is a version such as `v0.17.1`.
    pub(crate) version: Option<(u32, u32)>,
    /// At least 1, also on the CPU.
    pub(crate) shards: i32,
    /// Derived from the object's uid; see `plan::pod::engine`.
    pub(crate) closed_key: &'a str,
    pub(crate) users: &'a [String],
}

static VLLM: Profile = Profile {
    id: "vllm-2",
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
        // The model is local: no requests to a hub, and no usage reports.
        ("HF_HUB_OFFLINE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("DO_NOT_TRACK", "1"),
        // For sockets and compiled headers; /tmp of an image may be read-only.
        ("TMPDIR", HOME),
    ],
    arguments: |with| {
        // The image runs `vllm serve`, whose first argument is the model.
        let mut arguments = vec![with.model_path.to_owned()];
        let is_at_least = |version| with.version.is_none_or(|given| given >= version);
        // Both flags exist since 0.18; older releases refuse to start with them.
        let drains = is_at_least((0, 18));
        if drains {
            // Probes and scrapes would fill the log.
            arguments.push("--disable-access-log-for-endpoints=/health,/metrics,/ping".to_owned());
        }
        arguments.extend_from_slice(with.users);
        arguments.extend([
            format!("--served-model-name={}", with.served_model_name),
            format!("--port={HTTP_PORT}"),
            format!("--tensor-parallel-size={}", with.shards),
        ]);
        if drains {
            arguments.push(format!("--shutdown-timeout={}", VLLM.drain.seconds));
        }
        arguments
    },
};

static TRITON: Profile = Profile {
    id: "triton-2",
    image: "nvcr.io/nvidia/tritonserver:26.07-py3",
    ports: &[HTTP, Port { name: "grpc", number: 8001 }, Port { name: "metrics", number: 8002 }],
    health: Health { ready: "/v2/health/ready", live: "/v2/health/live" },
    metrics: Metrics { port: 8002, path: "/metrics" },
    drain: Drain { seconds: 60 },
    env: &[
        ("HF_HOME", "/home/engine/huggingface"),
        ("XDG_CACHE_HOME", "/home/engine/cache"),
        ("HF_HUB_OFFLINE", "1"),
        ("DO_NOT_TRACK", "1"),
    ],
    arguments: |with| {
        // The folders of the repository name the models, whose own configuration selects GPUs.
        let mut arguments = vec!["tritonserver".to_owned()];
        arguments.extend_from_slice(with.users);
        // Every pod of the cluster reaches the server. Without the key these interfaces load code, read shared memory
        // and change what is logged; health, metadata and inference stay open.
        let closed =
            format!("shared-memory,model-repository,trace,logging:{CLOSED_HEADER}={}", with.closed_key);
        arguments.extend([
            format!("--model-repository={}", with.model_path),
            format!("--http-restricted-api={closed}"),
            format!("--grpc-restricted-protocol={closed}"),
            format!("--http-port={HTTP_PORT}"),
            "--grpc-port=8001".to_owned(),
            "--metrics-port=8002".to_owned(),
            format!("--exit-timeout-secs={}", TRITON.drain.seconds),
        ]);
        arguments
    },
};

static TGI: Profile = Profile {
    id: "tgi-2",
    image: "ghcr.io/huggingface/text-generation-inference:3.3.5",
    ports: &[HTTP],
    health: Health { ready: "/health", live: "/health" },
    metrics: Metrics { port: HTTP_PORT, path: "/metrics" },
    drain: Drain { seconds: 90 },
    // The image's defaults are below /data, which is writable only for root.
    env: &[
        ("HF_HOME", "/home/engine/huggingface"),
        ("HUGGINGFACE_HUB_CACHE", "/home/engine/huggingface"),
        ("TRITON_CACHE_DIR", "/home/engine/triton"),
        ("XDG_CACHE_HOME", "/home/engine/cache"),
        ("HF_HUB_OFFLINE", "1"),
        ("USAGE_STATS", "off"),
    ],
    arguments: |with| {
        // clap refuses repeated flags, and the image's default port is 80.
        let mut arguments = with.users.to_vec();
        arguments.extend([
            format!("--model-id={}", with.model_path),
            format!("--port={HTTP_PORT}"),
            format!("--num-shard={}", with.shards),
            format!("--graceful-termination-timeout={}", TGI.drain.seconds),
        ]);
        arguments
    },
};

const HTTP: Port = Port { name: "http", number: HTTP_PORT };

/// Header that opens Triton's restricted interfaces, with the key as its value.
const CLOSED_HEADER: &str = "x-closed";

impl Profile {
    /// The profile of newly rendered pods.
    pub(crate) fn newest(engine: Engine) -> &'static Profile {
        match engine {
            Engine::Vllm => &VLLM,
            Engine::Triton => &TRITON,
            Engine::Tgi => &TGI,
        }
    }

    /// The command line. The controller's flags come last, because engines use the last one of repeated flags.
    pub(crate) fn arguments(&self, invocation: &Invocation<'_>) -> Vec<String> {
        (self.arguments)(invocation)
    }
}

/// Major and minor version from the tag of an image (`repository:v0.17.1-cu124`).
pub(crate) fn version_of(image: &str) -> Option<(u32, u32)> {
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    let mut numbers = tag.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(engine: Engine, image: &str, users: &[String]) -> Vec<String> {
        Profile::newest(engine).arguments(&Invocation {
            model_path: "/models/qwen",
            served_model_name: "name",
            version: version_of(image),
            shards: 2,
            closed_key: "key",
            users,
        })
    }

    #[test]
    fn images_are_pinned_and_ids_name_their_engine() {
        for engine in Engine::ALL {
            let profile = Profile::newest(engine);
            let (_, tag) = profile.image.rsplit_once(':').expect("an image with a tag");
            assert!(tag != "latest" && tag.contains(|c: char| c.is_ascii_digit()), "{}", profile.image);
            assert!(profile.id.starts_with(engine.as_str()), "{}", profile.id);
            assert_eq!((profile.ports[0].name, profile.ports[0].number), ("http", HTTP_PORT));
        }
    }

    #[test]
    fn every_flag_of_the_controller_comes_after_the_users_and_is_refused_to_them() {
        let users = ["--of-the-user".to_owned()];
        for engine in Engine::ALL {
            let arguments = arguments(engine, "engine:99.1", &users);
            let position = arguments.iter().position(|argument| *argument == users[0]).unwrap();
            let flags = arguments.iter().skip(position + 1).filter_map(|argument| argument.split('=').next());
            for flag in flags {
                assert!(engine.owned_flags().contains(&flag), "{flag} of {engine:?} is not refused");
            }
        }
    }

    #[test]
    fn an_old_vllm_gets_no_flag_that_it_does_not_support() {
        let has_drain = |image: &str| {
            arguments(Engine::Vllm, image, &[])
                .iter()
                .any(|argument| argument.starts_with("--shutdown-timeout"))
        };
        assert!(!has_drain("vllm/vllm-openai:v0.17.1"));
        assert!(has_drain("vllm/vllm-openai:v0.18.0"));
        assert!(has_drain("registry:5000/mine@sha256:00"), "an unknown version counts as new");
    }

    #[test]
    fn a_version_is_read_from_the_tag_alone() {
        assert_eq!(version_of("vllm/vllm-openai:v0.17.1"), Some((0, 17)));
        assert_eq!(version_of("vllm/vllm-openai:0.9.2-cu124@sha256:00"), Some((0, 9)));
        assert_eq!(version_of("registry:5000/vllm"), None);
        assert_eq!(version_of("vllm:nightly"), None);
    }
}
