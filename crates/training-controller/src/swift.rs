//! ms-swift's command line: from what a user asks for to arguments and environment. Pure.
//!
//! One function, `command`, with golden tests for every method, device, number of GPUs and nodes, and version. Arguments are
//! elements of a list and never pass a shell. No argument is a token: ms-swift prints its command line.

use api::trainingjob::{Device, Hub, Method};

mod version;

pub(crate) use version::Version;

/// One run of the trainer, with all defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) version: Version,
    pub(crate) method: Method,
    pub(crate) device: Device,
    pub(crate) hub: Hub,
    /// Accelerators of each node.
    pub(crate) gpus: i32,
    pub(crate) nodes: i32,
    pub(crate) model: &'a StartModel,
    /// Of method ppo.
    pub(crate) reward_model: Option<&'a str>,
    pub(crate) datasets: &'a [String],
    pub(crate) output_dir: &'a str,
    pub(crate) beta: Option<f64>,
    pub(crate) save_steps: i32,
    pub(crate) keep_checkpoints: i32,
    pub(crate) batch: Batch,
    pub(crate) sharding: Sharding,
    pub(crate) extra_args: &'a [String],
}

/// A model: a hub id or a path, and LoRA adapters that another job has trained for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartModel {
    pub(crate) model: String,
    pub(crate) adapters: Option<String>,
}

/// How many samples an optimizer step takes, and in how many passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// `--per_device_train_batch_size`.
    pub(crate) size: i32,
    /// `--gradient_accumulation_steps`.
    pub(crate) accumulation: i32,
}

/// What DeepSpeed distributes over the GPUs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sharding {
    Nothing,
    /// Gradients and the state of the optimizer.
    Zero2,
    /// The parameters, too.
    Zero3,
}

/// What starts the trainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) arguments: Vec<String>,
    /// Further arguments of a run that does not resume from a checkpoint of its own.
    pub(crate) fresh_arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Whether the trainer saves a checkpoint and ends when `STOP_FILE` appears.
    pub(crate) stops_by_file: bool,
    /// Whether the trainer can go on from a checkpoint of its own.
    pub(crate) resumes: bool,
}

/// The file that ms-swift's callback `graceful_exit` looks for; its path is fixed.
pub(crate) const STOP_FILE: &str = "/tmp/stop";
/// Port of the rendezvous of several nodes.
pub(crate) const MASTER_PORT: u16 = 29_500;
/// Samples of an optimizer step, over all GPUs: as in ms-swift's examples.
const SAMPLES_PER_STEP: i32 = 16;
/// Variables of `Command::environment` that users may set: what they choose takes precedence. All others are refused.
pub(crate) const TUNING_VARIABLES: [&str; 5] =
    [UNBUFFERED, BARS, "TASK_QUEUE_ENABLE", "CPU_AFFINITY_CONF", "PYTORCH_ENABLE_MPS_FALLBACK"];
const UNBUFFERED: &str = "PYTHONUNBUFFERED";
const BARS: &str = "TQDM_POSITION";
/// A gang whose member hangs would wait for 200 days by ms-swift's default. While one rank prepares the data the others wait
/// in a barrier, so it must be longer than the longest preparation; an attempt that ends in it would begin anew.
/// `noProgressSeconds` ends a gang that hangs after its first step much sooner.
const DISTRIBUTED_TIMEOUT_SECONDS: &str = "36000";

/// Steps between two lines of the log; users may set them.
pub(crate) const LOGGING_STEPS: &str = "--logging_steps";
pub(crate) const LOGGED_EVERY: f64 = 5.0;
/// Flags that the controller sets, with the user's values if there are some.
pub(crate) const BATCH_SIZE: &str = "--per_device_train_batch_size";
pub(crate) const ACCUMULATION: &str = "--gradient_accumulation_steps";
pub(crate) const DEEPSPEED: &str = "--deepspeed";

impl Batch {
    pub(crate) fn of(gpus: i32, nodes: i32) -> Self {
        Self { size: 1, accumulation: (SAMPLES_PER_STEP / (gpus * nodes).max(1)).max(1) }
    }
}

impl Sharding {
    /// What a job uses unless it runs out of memory.
    pub(crate) fn of(method: Method, device: Device, gpus: i32, nodes: i32) -> Self {
        if !is_distributable(device) {
            return Self::Nothing;
        }
        match method {
            // bitsandbytes' weights cannot be sharded; data parallel as in ms-swift's examples.
            Method::Qlora => Self::Nothing,
            Method::Lora | Method::Dpo | Method::Ppo if gpus * nodes > 1 => Self::Zero2,
            Method::Full if gpus * nodes > 1 => Self::Zero3,
            Method::Lora | Method::Dpo | Method::Ppo | Method::Full => Self::Nothing,
        }
    }

    /// The next one that needs less memory on each GPU; `None`: there is none for this job.
    pub(crate) fn next(self, method: Method, device: Device, gpus: i32, nodes: i32) -> Option<Self> {
        // On one GPU there is nothing to distribute.
        if !is_distributable(device) || gpus * nodes < 2 {
            return None;
        }
        match self {
            Self::Nothing => Some(Self::Zero2),
            // Quantised weights cannot be sharded.
            Self::Zero2 if method != Method::Qlora => Some(Self::Zero3),
            Self::Zero2 | Self::Zero3 => None,
        }
    }

    pub(crate) fn as_argument(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Zero2 => Some("zero2"),
            Self::Zero3 => Some("zero3"),
        }
    }
}

fn is_distributable(device: Device) -> bool {
    match device {
        Device::Nvidia | Device::Ascend => true,
        Device::Mps | Device::Cpu => false,
    }
}

/// Why ms-swift of this version cannot run a method, or with adapters to start from.
pub(crate) fn unsupported(version: Version, method: Method, has_adapters: bool) -> Option<String> {
    let since = match method {
        Method::Ppo => Version::FIRST_WITH_PPO,
        Method::Dpo if has_adapters => Version::FIRST_WITH_REFERENCE_ADAPTERS,
        Method::Lora | Method::Qlora | Method::Full | Method::Dpo => Version::FIRST,
    };
    let why = match method {
        Method::Ppo => "has no method ppo",
        Method::Dpo if has_adapters => "cannot start dpo from LoRA adapters",
        Method::Lora | Method::Qlora | Method::Full | Method::Dpo => "has other flags",
    };
    (version < since).then(|| format!("ms-swift {version} {why}; use an image with {since} or later"))
}

/// Whether the checkpoints of a method are LoRA adapters, which need their base model.
pub(crate) fn trains_adapters(method: Method) -> bool {
    match method {
        Method::Lora | Method::Qlora | Method::Dpo | Method::Ppo => true,
        Method::Full => false,
    }
}

pub(crate) fn command(run: &Run<'_>) -> Command {
    let mut arguments = Arguments::default();
    arguments.words(&["swift", if is_rlhf(run.method) { "rlhf" } else { "sft" }]);
    method(run, &mut arguments);
    inputs(run, &mut arguments);
    precision(run.device, &mut arguments);
    // Some versions hold back 1 % of the data by default.
    arguments.flag("--split_dataset_ratio", 0);
    arguments.flag("--num_train_epochs", 1);
    arguments.flag("--max_length", 2048);
    arguments.flag(LOGGING_STEPS, LOGGED_EVERY);
    arguments.flag("--warmup_ratio", 0.05);
    arguments.flag("--dataloader_num_workers", 4);
    arguments.flag("--ddp_timeout", DISTRIBUTED_TIMEOUT_SECONDS);
    // The last one of a repeated flag counts: defaults first, then the user's arguments, then flags that only the controller
    // sets.
    arguments.0.extend(run.extra_args.iter().cloned());
    arguments.flag(BATCH_SIZE, run.batch.size);
    arguments.flag(ACCUMULATION, run.batch.accumulation);
    if let Some(sharding) = run.sharding.as_argument() {
        arguments.flag(DEEPSPEED, sharding);
    }
    managed(run, &mut arguments);
    // trl's loop of PPO neither stops on request nor resumes: ms-swift drops the checkpoint.
    let is_controllable = run.method != Method::Ppo;
    let stops_by_file = run.version.has_graceful_exit() && is_controllable;
    if stops_by_file {
        arguments.flag("--callbacks", "graceful_exit");
    }
    Command {
        arguments: arguments.0,
        fresh_arguments: fresh_arguments(run),
        environment: environment(run),
        stops_by_file,
        resumes: is_controllable,
    }
}

#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn words(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|word| (*word).to_owned()));
    }

    fn flag(&mut self, name: &str, value: impl ToString) {
        self.0.extend([name.to_owned(), value.to_string()]);
    }
}

fn is_rlhf(method: Method) -> bool {
    match method {
        Method::Dpo | Method::Ppo => true,
        Method::Lora | Method::Qlora | Method::Full => false,
    }
}

/// What distinguishes the methods, as in ms-swift's examples/train.
fn method(run: &Run<'_>, arguments: &mut Arguments) {
    match run.method {
        Method::Lora | Method::Qlora | Method::Full => {}
        Method::Dpo => arguments.flag("--rlhf_type", "dpo"),
        Method::Ppo => arguments.flag("--rlhf_type", "ppo"),
    }
    let tuner = if trains_adapters(run.method) { "lora" } else { "full" };
    arguments.flag(run.version.tuner_flag(), tuner);
    if run.method == Method::Qlora {
        arguments.words(&["--quant_method", "bnb", "--quant_bits", "4"]);
        arguments.words(&["--bnb_4bit_compute_dtype", "bfloat16", "--bnb_4bit_quant_type", "nf4"]);
        arguments.words(&["--bnb_4bit_use_double_quant", "true"]);
    }
    match run.method {
        Method::Lora | Method::Qlora | Method::Dpo => arguments.flag("--learning_rate", "1e-4"),
        Method::Full | Method::Ppo => arguments.flag("--learning_rate", "1e-5"),
    }
    if trains_adapters(run.method) {
        arguments.words(&["--lora_rank", "8", "--lora_alpha", "32", "--target_modules", "all-linear"]);
    }
    match run.method {
        Method::Lora | Method::Qlora | Method::Full => {}
        Method::Dpo => {
            if let Some(beta) = run.beta {
                arguments.flag("--beta", beta);
            }
        }
        Method::Ppo => {
            arguments.flag(run.version.completion_length_flag(), 512);
            arguments.flag("--temperature", 0.7);
        }
    }
}

fn inputs(run: &Run<'_>, arguments: &mut Arguments) {
    arguments.flag("--model", &run.model.model);
    // The reference of DPO is the model that training starts from. It stays the same when a run resumes.
    if let Some(adapters) = run.model.adapters.as_ref().filter(|_| run.method == Method::Dpo) {
        arguments.flag("--ref_adapters", adapters);
    }
    if let Some(reward_model) = run.reward_model {
        arguments.flag("--reward_model", reward_model);
    }
    arguments.words(&["--dataset"]);
    arguments.0.extend(run.datasets.iter().cloned());
    let is_huggingface = match run.hub {
        Hub::Modelscope => "false",
        Hub::Huggingface => "true",
    };
    arguments.flag("--use_hf", is_huggingface);
}

fn precision(device: Device, arguments: &mut Arguments) {
    let dtype = match device {
        Device::Nvidia | Device::Ascend => "bfloat16",
        // CPUs are slow at it, and ms-swift turns it off for MPS.
        Device::Mps | Device::Cpu => "float32",
    };
    arguments.flag("--torch_dtype", dtype);
    if dtype == "float32" {
        // Otherwise ms-swift trains in float16.
        arguments.words(&["--fp16", "false", "--bf16", "false"]);
    }
    if device == Device::Cpu {
        arguments.flag("--use_cpu", "true");
    }
}

/// What resuming and reading the log depend on.
fn managed(run: &Run<'_>, arguments: &mut Arguments) {
    arguments.flag("--output_dir", run.output_dir);
    // Otherwise each run would have a folder of its own, and none would find its checkpoints.
    arguments.flag("--add_version", "false");
    arguments.flag("--save_strategy", "steps");
    arguments.flag("--save_steps", run.save_steps);
    arguments.flag("--save_total_limit", run.keep_checkpoints);
    // Without the state of the optimizer no run could resume.
    arguments.flag("--save_only_model", "false");
    // The check takes seconds, and sends the name of the model to the hub.
    arguments.flag("--check_model", "false");
    // The steps of PPO are in the log only with it.
    let has_bar = run.method == Method::Ppo;
    arguments.flag("--disable_tqdm", !has_bar);
}

/// A run that resumes loads its own adapters.
fn fresh_arguments(run: &Run<'_>) -> Vec<String> {
    let mut arguments = Arguments::default();
    if let Some(adapters) = &run.model.adapters {
        arguments.flag("--adapters", adapters);
    }
    arguments.0
}

fn environment(run: &Run<'_>) -> Vec<(&'static str, String)> {
    let mut environment = Vec::new();
    // Python keeps what it prints into a pipe.
    environment.push((UNBUFFERED, "1".to_owned()));
    // Without a terminal, huggingface_hub shows the bytes of its downloads only with it: the sign that they go on.
    environment.push((BARS, "-1".to_owned()));
    // Without this variable, ms-swift distributes the layers of one process over the GPUs, and DeepSpeed looks for MPI.
    if run.gpus > 1 || run.nodes > 1 || run.sharding != Sharding::Nothing {
        environment.push(("NPROC_PER_NODE", run.gpus.to_string()));
    }
    if run.nodes > 1 {
        environment.push(("NNODES", run.nodes.to_string()));
        environment.push(("MASTER_PORT", MASTER_PORT.to_string()));
    }
    match run.device {
        Device::Nvidia | Device::Cpu => {}
        Device::Ascend => {
            environment.extend([("TASK_QUEUE_ENABLE", "2".to_owned()), ("CPU_AFFINITY_CONF", "2".to_owned())])
        }
        // Operations that Metal lacks run on the CPU.
        Device::Mps => environment.push(("PYTORCH_ENABLE_MPS_FALLBACK", "1".to_owned())),
    }
    environment
}

#[cfg(test)]
mod tests;
