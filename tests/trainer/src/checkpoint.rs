//! Writes checkpoints as ms-swift 4.6 does for LoRA: the same files in the same order, `trainer_state.json` last, then
//! the link `last-checkpoint`; then the oldest ones are deleted. Tensors are tiny, but the files are valid.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::arguments::Arguments;

const LINK: &str = "last-checkpoint";
const NEW_LINK: &str = ".last-checkpoint.new";

pub(crate) fn folder(arguments: &Arguments, step: i64) -> PathBuf {
    arguments.output.join(format!("checkpoint-{step}"))
}

/// Everything but the state: what is on the disk in the middle of the writing.
pub(crate) fn write_files(arguments: &Arguments, step: i64) -> io::Result<()> {
    let folder = folder(arguments, step);
    fs::create_dir_all(&folder)?;
    let write = |name: &str, content: &[u8]| fs::write(folder.join(name), content);
    write("adapter_config.json", br#"{"peft_type": "LORA", "r": 8}"#)?;
    write("adapter_model.safetensors", &safetensors(step))?;
    write("additional_config.json", b"{}")?;
    write("args.json", arguments_of(arguments).to_string().as_bytes())?;
    if !arguments.saves_only_model {
        write("optimizer.pt", &archive("optimizer"))?;
        write("scheduler.pt", &archive("scheduler"))?;
        write("rng_state.pth", &archive("rng_state"))?;
    }
    write("training_args.bin", &archive("training_args"))
}

/// A few of the many. The method has no key in those of `sft`.
fn arguments_of(arguments: &Arguments) -> Value {
    let mut written = json!({
        "model": arguments.model,
        "dataset": arguments.datasets,
        "tuner_type": arguments.tuner.as_deref().unwrap_or("lora"),
        "lora_rank": arguments.lora_rank,
        "quant_bits": null,
    });
    if let Some(kind) = &arguments.rlhf {
        written["rlhf_type"] = json!(kind);
    }
    written
}

/// The last file, and with it the checkpoint is complete.
pub(crate) fn write_state(arguments: &Arguments, step: i64, decides_to_end: bool) -> io::Result<()> {
    // Written by Python, which writes a loss that is not a number as NaN.
    let history = r#""log_history": [{"epoch": 0.1, "grad_norm": NaN, "loss": 6.5, "step": 1}]"#;
    let total = arguments.max_steps;
    let control = json!({"args": {
        "should_epoch_stop": false, "should_evaluate": false, "should_log": false, "should_save": true,
        "should_training_stop": decides_to_end || step >= total,
    }, "attributes": {}});
    let state = format!(
        "{{\n  \"best_global_step\": null,\n  \"best_metric\": null,\n  \"global_step\": {step},\n  {history},\n  \
         \"max_steps\": {total},\n  \"stateful_callbacks\": {{\"TrainerControl\": {control}}}\n}}\n"
    );
    fs::write(folder(arguments, step).join("trainer_state.json"), state)?;
    let (new, link) = (arguments.output.join(NEW_LINK), arguments.output.join(LINK));
    let _ = fs::remove_file(&new);
    symlink(format!("checkpoint-{step}"), &new)?;
    fs::rename(&new, &link)?;
    arguments.save_total_limit.map_or(Ok(()), |limit| rotate(&arguments.output, limit))
}

/// The step of a checkpoint.
pub(crate) fn step_of(folder: &Path) -> Option<i64> {
    folder.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok()
}

fn rotate(output: &Path, limit: usize) -> io::Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(output)? {
        let path = entry?.path();
        if let Some(step) = step_of(&path) {
            found.push((step, path));
        }
    }
    found.sort();
    let excess = found.len().saturating_sub(limit);
    found.iter().take(excess).try_for_each(|(_, path)| fs::remove_dir_all(path))
}

/// One tensor.
fn safetensors(step: i64) -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},"lora_A.weight":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(step.to_le_bytes());
    file
}

/// A zip archive with one empty member, without compression, as torch.save writes them.
fn archive(name: &str) -> Vec<u8> {
    let member = format!("{name}/data.pkl");
    let length = (member.len() as u16).to_le_bytes();
    let mut file = b"PK\x03\x04\x00\x00\x00\x08".to_vec();
    // Method, time, date, checksum and both sizes.
    file.extend([0; 18]);
    file.extend(length);
    file.extend([0; 2]);
    file.extend(member.as_bytes());
    let begin = file.len() as u32;
    file.extend(b"PK\x01\x02\x00\x00\x00\x00\x00\x08");
    file.extend([0; 18]);
    file.extend(length);
    // Lengths of extra field and comment, disk, attributes, and the offset of the member.
    file.extend([0; 16]);
    file.extend(member.as_bytes());
    let size = file.len() as u32 - begin;
    file.extend(b"PK\x05\x06\x00\x00\x00\x00\x01\x00\x01\x00");
    file.extend(size.to_le_bytes());
    file.extend(begin.to_le_bytes());
    file.extend([0; 2]);
    file
}
