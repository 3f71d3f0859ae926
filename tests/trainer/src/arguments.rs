//! The flags of the trainer, with the real program's errors: exit code 1 for a flag that it does not know and for a
//! checkpoint that does not exist, and 2 for a value that is no number. Pure, but that it looks for the checkpoint.

use std::path::PathBuf;

/// Flags with text.
const TEXT: [&str; 44] = [
    "model",
    "model_type",
    "template",
    "dataset",
    "val_dataset",
    "tuner_type",
    "torch_dtype",
    "fp16",
    "bf16",
    "output_dir",
    "add_version",
    "report_to",
    "disable_tqdm",
    "callbacks",
    "resume_from_checkpoint",
    "target_modules",
    "quant_method",
    "quant_bits",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "bnb_4bit_quant_storage",
    "deepspeed",
    "fsdp",
    "rlhf_type",
    "adapters",
    "ref_adapters",
    "ref_model",
    "reward_model",
    "reward_model_type",
    "use_hf",
    "use_cpu",
    "check_model",
    "save_strategy",
    "save_only_model",
    "gradient_checkpointing",
    "metric_for_best_model",
    "load_best_model_at_end",
    "system",
    "attn_impl",
    "packing",
    "lr_scheduler_type",
    "optim",
    "ignore_data_skip",
];
const INTEGERS: [&str; 18] = [
    "max_steps",
    "save_steps",
    "eval_steps",
    "save_total_limit",
    "logging_steps",
    "lora_rank",
    "lora_alpha",
    "max_length",
    "max_completion_length",
    "response_length",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "dataloader_num_workers",
    "dataset_num_proc",
    "ddp_timeout",
    "early_stop_interval",
    "seed",
];
const NUMBERS: [&str; 9] = [
    "learning_rate",
    "num_train_epochs",
    "warmup_ratio",
    "weight_decay",
    "beta",
    "rpo_alpha",
    "kl_coef",
    "temperature",
    "split_dataset_ratio",
];

#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) output: PathBuf,
    pub(crate) model: String,
    pub(crate) datasets: Vec<String>,
    /// As it was given.
    pub(crate) tuner: Option<String>,
    pub(crate) rlhf: Option<String>,
    pub(crate) lora_rank: i64,
    pub(crate) uses_hugging_face: bool,
    pub(crate) max_steps: i64,
    pub(crate) save_steps: i64,
    pub(crate) logging_steps: i64,
    pub(crate) save_total_limit: Option<usize>,
    pub(crate) resume: Option<PathBuf>,
    pub(crate) has_bar: bool,
    pub(crate) exits_gracefully: bool,
    pub(crate) saves_only_model: bool,
    pub(crate) is_ppo: bool,
}

/// An error of the real program: its text, and its exit code.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) code: i32,
}

impl Arguments {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, Refusal> {
        let method = arguments.first().cloned().unwrap_or_default();
        let flags = flags(&arguments[1.min(arguments.len())..])?;
        let mut unknown = Vec::new();
        for (name, values) in &flags {
            let value = values.first().map_or("", String::as_str);
            let is_valid = if INTEGERS.contains(&name.as_str()) {
                value.parse::<i64>().map(drop).map_err(|_| "int")
            } else if NUMBERS.contains(&name.as_str()) {
                value.parse::<f64>().map(drop).map_err(|_| "float")
            } else {
                Ok(())
            };
            if let Err(kind) = is_valid {
                let text =
                    format!("{method}.py: error: argument --{name}: invalid {kind} value: '{value}'\n");
                return Err(Refusal { text, code: 2 });
            }
            let known = [TEXT.as_slice(), &INTEGERS, &NUMBERS].concat();
            if !known.contains(&name.as_str()) {
                unknown.push(format!("'--{name}'"));
                unknown.extend(values.iter().map(|value| format!("'{value}'")));
            }
        }
        if !unknown.is_empty() {
            return Err(raised(&method, &format!("ValueError: remaining_argv: [{}]", unknown.join(", "))));
        }
        // The last one counts, as with argparse.
        let all = |wanted: &str| {
            flags.iter().rev().find(|(name, _)| name == wanted).map(|(_, values)| values.clone())
        };
        let one = |wanted: &str| all(wanted).and_then(|values| values.first().cloned());
        let integer = |wanted: &str| one(wanted).and_then(|value| value.parse::<i64>().ok());
        let is_true = |wanted: &str| one(wanted).is_some_and(|value| value == "true");
        let resume = one("resume_from_checkpoint").map(PathBuf::from);
        if let Some(resume) = resume.as_ref().filter(|resume| !resume.exists()) {
            return Err(raised(&method, &format!("FileNotFoundError: path: {}", resume.display())));
        }
        let Some(output) = one("output_dir") else {
            return Err(raised(&method, "ValueError: this fake needs --output_dir"));
        };
        Ok(Self {
            output: PathBuf::from(output),
            model: one("model").unwrap_or_default(),
            datasets: all("dataset").unwrap_or_default(),
            tuner: one("tuner_type"),
            rlhf: one("rlhf_type"),
            lora_rank: integer("lora_rank").unwrap_or(8),
            uses_hugging_face: is_true("use_hf"),
            max_steps: integer("max_steps").unwrap_or(27),
            save_steps: integer("save_steps").unwrap_or(500).max(1),
            logging_steps: integer("logging_steps").unwrap_or(5).max(1),
            save_total_limit: integer("save_total_limit").and_then(|limit| usize::try_from(limit).ok()),
            resume,
            has_bar: !is_true("disable_tqdm"),
            exits_gracefully: all("callbacks")
                .unwrap_or_default()
                .iter()
                .any(|callback| callback == "graceful_exit"),
            saves_only_model: is_true("save_only_model"),
            is_ppo: one("rlhf_type").is_some_and(|kind| kind == "ppo"),
        })
    }
}

/// Each flag with its values.
fn flags(arguments: &[String]) -> Result<Vec<(String, Vec<String>)>, Refusal> {
    let mut flags: Vec<(String, Vec<String>)> = Vec::new();
    for argument in arguments {
        match (argument.strip_prefix("--"), flags.last_mut()) {
            (Some(flag), _) => match flag.split_once('=') {
                Some((name, value)) => flags.push((name.to_owned(), vec![value.to_owned()])),
                None => flags.push((flag.to_owned(), Vec::new())),
            },
            (None, Some((_, values))) => values.push(argument.clone()),
            (None, None) => {
                return Err(raised("sft", &format!("ValueError: remaining_argv: ['{argument}']")));
            }
        }
    }
    Ok(flags)
}

fn raised(method: &str, error: &str) -> Refusal {
    let folder = "/opt/venv/lib/python3.11/site-packages/swift";
    let text = format!(
        "Traceback (most recent call last):\n  File \"{folder}/cli/{method}.py\", line 20, in <module>\n    \
         {method}_main()\n  File \"{folder}/pipelines/base.py\", line 30, in _parse_args\n    \
         args, remaining_argv = parse_args(self.args_class, args)\n{error}\n"
    );
    Refusal { text, code: 1 }
}
