//! Settings that need less GPU memory, one step for each attempt that ran out of it. Pure: the number of steps that were taken
//! gives the settings.

use crate::{
    swift::{Batch, Sharding},
    validate::ValidJob,
};

/// What decides on the memory of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) batch: Batch,
    /// `None`: the user configures DeepSpeed.
    pub(crate) sharding: Option<Sharding>,
}

/// The settings after so many steps.
pub(crate) fn settings(valid: &ValidJob, steps: usize) -> Settings {
    let mut settings = Settings { batch: valid.batch, sharding: valid.sharding };
    for _ in 0..steps {
        settings = step(valid, settings).map_or(settings, |(next, _)| next);
    }
    settings
}

/// A step, for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) text: String,
    /// Whether it changes what DeepSpeed distributes, so that earlier checkpoints cannot be resumed from.
    pub(crate) shards: bool,
}

/// What the next step would change; `None`: nothing is left to try.
pub(crate) fn next_change(valid: &ValidJob, steps: usize) -> Option<Change> {
    step(valid, settings(valid, steps)).map(|(_, change)| change)
}

/// First a smaller batch with as many samples in each optimizer step, then shards.
fn step(valid: &ValidJob, settings: Settings) -> Option<(Settings, Change)> {
    let Settings { batch: Batch { size, accumulation }, sharding } = settings;
    if size > 1 {
        // An odd batch becomes a little smaller than it was, all in all.
        let batch = Batch { size: size / 2, accumulation: accumulation.saturating_mul(2) };
        let text = format!(
            "per_device_train_batch_size {size} -> {}, gradient_accumulation_steps {accumulation} -> {}",
            batch.size, batch.accumulation
        );
        return Some((Settings { batch, ..settings }, Change { text, shards: false }));
    }
    let (sharding, next) = sharding
        .and_then(|known| Some((known, known.next(valid.method, valid.device, valid.gpus, valid.nodes)?)))?;
    let name = |sharding: Sharding| sharding.as_argument().unwrap_or("none");
    let text = format!("deepspeed {} -> {}", name(sharding), name(next));
    Some((Settings { sharding: Some(next), ..settings }, Change { text, shards: true }))
}
