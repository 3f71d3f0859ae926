//! The table of engines: image, arguments, ports, probes, metrics, drain. ARCHITECTURE.md lists the other engine-specific files.
//!
//! A change of a row affects only new and changed specs, because existing pod templates are pinned. A changed row needs a
//! new id, which `status.resolved.profile` shows.

use api::aiinference::Engine;

/// Mount path of the model volume in every pod.
pub(crate) const MODEL_PATH: &str = "/models";
/// Port of every engine's HTTP API.
pub(crate) const HTTP_PORT: i32 = 8000;
/// Port of Triton's gRPC API.
pub(crate) const GRPC_PORT: i32 = 8001;
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
    /// `None`: the engine has no metrics that show that it stalls.
    pub(crate) life: Option<Life>,
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

/// Metrics that show whether an engine with requests works on them. Those that it does not have are ignored. They may stand
/// still while a long prompt is read, so the user decides how long is too long.
#[derive(Debug)]
pub(crate) struct Life {
    /// Requests that it works on.
    pub(crate) running: &'static str,
    /// One of them changes while the engine works.
    pub(crate) moves: &'static [&'static str],
}

/// Major and minor version of an engine.
pub(crate) type Version = (u32, u32);

/// How the GPUs of a pod share the model; each number is at least 1, also on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parallelism {
    pub(crate) tensor: i32,
    pub(crate) pipeline: i32,
    pub(crate) data: i32,
}

/// Inputs of the arguments.
#[derive(Debug)]
pub(crate) struct Invocation<'a> {
    /// Path of the weights in the pod.
    pub(crate) model_path: &'a str,
    pub(crate) served_model_name: &'a str,
    pub(crate) version: Option<Version>,
    pub(crate) parallelism: Parallelism,
    /// How long running requests get after SIGTERM.
    pub(crate) drain_seconds: i64,
    /// On all addresses of both families.
    pub(crate) is_ipv6: bool,
    /// The user's entry point; empty for the image's own.
    pub(crate) command: &'a [String],
    /// Derived from the object's uid; see `plan::pod::engine`.
    pub(crate) closed_key: &'a str,
    pub(crate) users: &'a [String],
}

static VLLM: Profile = Profile {
    id: "vllm-3",
    image: "vllm/vllm-openai:v0.28.0",
    ports: &[HTTP],
    health: Health { ready: "/health", live: "/health" },
    metrics: Metrics { port: HTTP_PORT, path: "/metrics" },
    drain: Drain { seconds: 60 },
    // The share of the cache grows while a prompt is read, with versions that report it then.
    life: Some(Life {
        running: "vllm:num_requests_running",
        moves: &[
            "vllm:iteration_tokens_total_count",
            "vllm:generation_tokens_total",
            "vllm:prompt_tokens_total",
            "vllm:kv_cache_usage_perc",
        ],
    }),
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
        // The image runs `vllm serve`, whose first argument is the model. The module behind it has a flag instead.
        let is_module = with.command.iter().any(|word| word.contains(VLLM_MODULE));
        let model = with.model_path;
        let mut arguments = vec![if is_module { format!("--model={model}") } else { model.to_owned() }];
        // Probes and scrapes would fill the log.
        let quiet = "--disable-access-log-for-endpoints";
        arguments.extend(vllm_knows(quiet, with.version).then(|| format!("{quiet}=/health,/metrics,/ping")));
        arguments.extend_from_slice(with.users);
        let Parallelism { tensor, pipeline, data } = with.parallelism;
        arguments.extend([
            format!("--served-model-name={}", with.served_model_name),
            format!("--port={HTTP_PORT}"),
            format!("--tensor-parallel-size={tensor}"),
        ]);
        arguments.extend((pipeline > 1).then(|| format!("--pipeline-parallel-size={pipeline}")));
        arguments.extend((data > 1).then(|| format!("--data-parallel-size={data}")));
        let drain = "--shutdown-timeout";
        arguments.extend(vllm_knows(drain, with.version).then(|| format!("{drain}={}", with.drain_seconds)));
        // Without a host it listens on IPv4 alone: https://github.com/vllm-project/vllm/issues/22816
        arguments.extend(with.is_ipv6.then(|| "--host=::".to_owned()));
        arguments
    },
};

/// Part of the name of vLLM's server module, in a command.
const VLLM_MODULE: &str = "api_server";

/// Flags of vLLM by the first version that has them; older versions refuse to start with them. Flags that are not here are
/// in every supported version (0.8 and later).
const VLLM_FLAGS: [(&str, Version); 2] =
    [("--disable-access-log-for-endpoints", (0, 18)), ("--shutdown-timeout", (0, 18))];

/// An image of an unknown version may be old: a vendor's tag, a digest, a nightly build.
fn vllm_knows(flag: &str, version: Option<Version>) -> bool {
    let since = VLLM_FLAGS.iter().find(|(known, _)| *known == flag).map(|(_, since)| *since);
    since.is_none_or(|since| version.is_some_and(|version| version >= since))
}

static TRITON: Profile = Profile {
    id: "triton-2",
    image: "nvcr.io/nvidia/tritonserver:26.07-py3",
    ports: &[HTTP, Port { name: "grpc", number: GRPC_PORT }, Port { name: "metrics", number: 8002 }],
    health: Health { ready: "/v2/health/ready", live: "/v2/health/live" },
    metrics: Metrics { port: 8002, path: "/metrics" },
    drain: Drain { seconds: 60 },
    life: None,
    env: &[
        ("HF_HOME", "/home/engine/huggingface"),
        ("XDG_CACHE_HOME", "/home/engine/cache"),
        ("HF_HUB_OFFLINE", "1"),
        ("DO_NOT_TRACK", "1"),
    ],
    arguments: |with| {
        // The folders of the repository name the models, whose own configuration selects GPUs.
        let mut arguments: Vec<String> = Vec::new();
        // The image's own entry point runs what follows; a user's names the program itself.
        arguments.extend(with.command.is_empty().then(|| "tritonserver".to_owned()));
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
            format!("--grpc-port={GRPC_PORT}"),
            "--metrics-port=8002".to_owned(),
            format!("--exit-timeout-secs={}", with.drain_seconds),
        ]);
        // libevhtp takes an address of IPv6 only behind `ipv6:`, and then listens on IPv6 alone.
        let on_ipv6 = ["--http-address=ipv6:::", "--grpc-address=[::]", "--metrics-address=ipv6:::"];
        arguments.extend(on_ipv6.into_iter().filter(|_| with.is_ipv6).map(str::to_owned));
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
    life: Some(Life { running: "tgi_batch_current_size", moves: &["tgi_batch_inference_count"] }),
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
            format!("--num-shard={}", with.parallelism.tensor),
            format!("--graceful-termination-timeout={}", with.drain_seconds),
        ]);
        arguments.extend(with.is_ipv6.then(|| "--hostname=::".to_owned()));
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

/// The version of vLLM that the tag of an image names: `v0.17.1`, `0.9.2-cu124`, or after its name as in
/// `rocm6.3.1_vllm0.8.3_20250410`. Any other number is that of a vendor or of a team: `25.09-py3`, `1.4.0`.
pub(crate) fn version_of(image: &str) -> Option<Version> {
    let (_, tag) = image.split('@').next()?.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))?;
    match tag.split_once("vllm") {
        Some((_, named)) => version(named.trim_start_matches(['-', '_'])).filter(is_version),
        None => version(tag).filter(|(major, _)| *major == MAJOR),
    }
}

/// No release of vLLM has another major version yet.
const MAJOR: u32 = 0;
/// From here on a number is the year of a vendor's calendar.
const FIRST_YEAR: u32 = 20;

pub(crate) fn is_version((major, _): &Version) -> bool {
    *major < FIRST_YEAR
}

/// `v0.17.1` and `0.17`, also with more behind them.
pub(crate) fn version(text: &str) -> Option<Version> {
    let mut parts = text.trim_start_matches('v').splitn(3, '.');
    let (major, minor) = (parts.next()?, parts.next()?);
    let minor: &str = minor.split(|char: char| !char.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Parallelism = Parallelism { tensor: 2, pipeline: 1, data: 1 };

    fn arguments(engine: Engine, image: &str, users: &[String]) -> Vec<String> {
        invoked(engine, image, &[], SHARED, users)
    }

    fn invoked(
        engine: Engine,
        image: &str,
        command: &[String],
        parallelism: Parallelism,
        users: &[String],
    ) -> Vec<String> {
        Profile::newest(engine).arguments(&Invocation {
            model_path: "/models/qwen",
            served_model_name: "name",
            version: version_of(image),
            parallelism,
            drain_seconds: 60,
            is_ipv6: false,
            command,
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
            let arguments = arguments(engine, "engine:0.99.1", &users);
            let position = arguments.iter().position(|argument| *argument == users[0]).unwrap();
            let flags = arguments.iter().skip(position + 1).filter_map(|argument| argument.split('=').next());
            for flag in flags {
                assert!(engine.owned_flags().contains(&flag), "{flag} of {engine:?} is not refused");
            }
        }
    }

    #[test]
    fn vllm_gets_only_flags_that_its_version_has() {
        let has = |flag: &str, image: &str| {
            arguments(Engine::Vllm, image, &[]).iter().any(|argument| argument.starts_with(flag))
        };
        for (flag, (major, minor)) in VLLM_FLAGS {
            assert!(!has(flag, &format!("vllm/vllm-openai:v{major}.{}.9", minor - 1)), "{flag}");
            assert!(has(flag, &format!("vllm/vllm-openai:v{major}.{minor}.0")), "{flag}");
            for unknown in [
                "registry:5000/mine@sha256:00",
                "registry:5000/mine",
                "vllm:nightly",
                "vendor/vllm:25.09-py3",
                "rocm/vllm:rocm6.3.1_mi300_vllm0.8.3_20250410",
            ] {
                assert!(!has(flag, unknown), "{flag} for {unknown}");
            }
            assert!(has(flag, VLLM.image), "{flag}");
        }
    }

    #[test]
    fn each_engine_listens_on_both_families_if_it_is_asked_to() {
        let of = |engine, is_ipv6| {
            let arguments = Profile::newest(engine).arguments(&Invocation {
                model_path: "/models",
                served_model_name: "name",
                version: Some((0, 28)),
                parallelism: SHARED,
                drain_seconds: 60,
                is_ipv6,
                command: &[],
                closed_key: "key",
                users: &[],
            });
            let is_address = |argument: &String| argument.contains("::");
            arguments.into_iter().filter(is_address).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(Engine::Vllm, true), "--host=::");
        assert_eq!(of(Engine::Tgi, true), "--hostname=::");
        let triton = "--http-address=ipv6::: --grpc-address=[::] --metrics-address=ipv6:::";
        assert_eq!(of(Engine::Triton, true), triton);
        assert!(Engine::ALL.into_iter().all(|engine| of(engine, false).is_empty()));
    }

    #[test]
    fn the_module_of_vllm_gets_the_model_by_a_flag() {
        let first = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
            invoked(Engine::Vllm, "vllm:v0.20.0", &command, SHARED, &[]).remove(0)
        };
        assert_eq!(first(&["python3", "-m", "vllm.entrypoints.openai.api_server"]), "--model=/models/qwen");
        assert_eq!(first(&["vllm", "serve"]), "/models/qwen");
        assert_eq!(first(&[]), "/models/qwen");
    }

    #[test]
    fn a_command_for_triton_names_the_program() {
        let first =
            |command: &[String]| invoked(Engine::Triton, "t:26.07-py3", command, SHARED, &[]).remove(0);
        assert_eq!(first(&[]), "tritonserver");
        assert!(first(&["/opt/tritonserver/bin/tritonserver".to_owned()]).starts_with("--"));
    }

    #[test]
    fn vllm_gets_the_parallelism_that_is_not_one() {
        let of = |tensor, pipeline, data| {
            let parallelism = Parallelism { tensor, pipeline, data };
            let arguments = invoked(Engine::Vllm, "vllm:v0.20.0", &[], parallelism, &[]);
            arguments.into_iter().filter(|one| one.contains("-parallel-size")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(4, 1, 1), "--tensor-parallel-size=4");
        assert_eq!(of(2, 3, 1), "--tensor-parallel-size=2 --pipeline-parallel-size=3");
        assert_eq!(of(1, 1, 8), "--tensor-parallel-size=1 --data-parallel-size=8");
    }

    #[test]
    fn a_version_is_read_from_the_tag_alone() {
        for (image, version) in [
            ("vllm/vllm-openai:v0.17.1", Some((0, 17))),
            ("vllm/vllm-openai:0.9.2-cu124@sha256:00", Some((0, 9))),
            ("vllm/vllm-openai:0.9rc1", Some((0, 9))),
            ("rocm/vllm:rocm6.3.1_mi300_vllm0.8.3_20250410", Some((0, 8))),
            ("rocm/vllm:rocm6.3_vllm_0.10.0", Some((0, 10))),
            ("vendor/vllm:25.09-py3", None),
            ("team/vllm:1.4.0", None),
            ("vllm:12.4-cuda", None),
            ("vllm:vllm25.09", None),
            ("registry:5000/vllm", None),
            ("registry.example.com:5000/0.9/vllm", None),
            ("vllm:nightly", None),
            ("vllm:20250410", None),
        ] {
            assert_eq!(version_of(image), version, "{image}");
        }
        assert_eq!(
            (version("v0.17.1"), version("0.17"), version("17")),
            (Some((0, 17)), Some((0, 17)), None)
        );
    }
}
