//! The lines that ms-swift prints, with transformers 5: with the bar of tqdm, and without it. Pure.

use crate::arguments::Arguments;

/// How far the training is, and what a line says about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) step: i64,
    pub(crate) total: i64,
}

impl Progress {
    fn loss(self) -> f64 {
        6.513_219_36 - 0.01 * self.step as f64
    }

    fn epoch(self) -> f64 {
        self.step as f64 / self.total.max(1) as f64
    }

    fn common(self, quote: &str) -> String {
        let Self { step, total } = self;
        let remaining = total - step;
        format!(
            "'global_step/max_steps': '{step}/{total}', 'elapsed_time': '{step}s', 'remaining_time': '{remaining}s', \
             'train_speed(s/it)': {quote}0.521026{quote}"
        )
    }
}

/// A logged step.
pub(crate) fn step(progress: Progress, arguments: &Arguments) -> String {
    let (loss, epoch) = (progress.loss(), progress.epoch());
    let quote = if arguments.has_bar { "'" } else { "" };
    let common = progress.common(quote);
    let line = match (arguments.is_ppo, arguments.has_bar) {
        (true, _) => format!(
            "{{'eps': 2, 'objective/kl': {quote}-4.8e-07{quote}, 'objective/entropy': {quote}102.8{quote}, \
             'loss/policy_avg': {quote}-0.004613{quote}, 'lr': {quote}0.0001{quote}, 'episode': {}, \
             'epoch': {quote}{epoch:.8}{quote}, {common}}}\n",
            progress.step * 4
        ),
        (false, true) => format!(
            "{{'loss': '{loss:.3}', 'grad_norm': '1.048', 'learning_rate': '9.619e-05', 'token_acc': '0', \
             'epoch': '{epoch:.4}', {common}}}\n"
        ),
        (false, false) => format!(
            "{{'loss': {loss:.8}, 'grad_norm': 1.04733682, 'learning_rate': 7.5e-05, 'token_acc': 0.0, \
             'epoch': {epoch:.8}, {common}}}\n"
        ),
    };
    over_bar(line, arguments)
}

/// The last line of a training, also of one that was stopped.
pub(crate) fn summary(progress: Progress, arguments: &Arguments) -> String {
    let (loss, epoch) = (progress.loss(), progress.epoch());
    let quote = if arguments.has_bar { "'" } else { "" };
    let common = progress.common(quote);
    let line = format!(
        "{{'train_runtime': {quote}19.5764{quote}, 'train_samples_per_second': {quote}2.452{quote}, \
         'train_steps_per_second': {quote}0.153{quote}, 'train_loss': {quote}{loss:.8}{quote}, \
         'epoch': {quote}{epoch:.8}{quote}, {common}}}\n"
    );
    over_bar(line, arguments)
}

/// A line that tqdm writes over its bar.
fn over_bar(line: String, arguments: &Arguments) -> String {
    if arguments.has_bar { format!("\r{}\r{line}", " ".repeat(52)) } else { line }
}

/// Standard error, without a line feed.
pub(crate) fn bar(progress: Progress) -> String {
    let Progress { step, total } = progress;
    let percent = step * 100 / total.max(1);
    let filled = usize::try_from(step * 10 / total.max(1)).unwrap_or(0).min(10);
    let (full, rest) = ("█".repeat(filled), " ".repeat(10 - filled));
    format!("\rTrain: {percent:3}%|{full}{rest}| {step}/{total} [00:02<00:17,  2.51s/it]")
}

pub(crate) const OUT_OF_MEMORY: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.14 GiB. GPU 6 \
    has a total capacity of 79.33 GiB of which 8.35 GiB is free.";

/// A traceback, of which each line has the name of its rank if there are several.
pub(crate) fn traceback(error: &str, rank: Option<u64>) -> String {
    let folder = "/opt/venv/lib/python3.11/site-packages";
    let text = format!(
        "Traceback (most recent call last):\n  File \"{folder}/swift/cli/sft.py\", line 20, in <module>\n    \
         sft_main()\n  File \"{folder}/swift/trainers/mixin.py\", line 1029, in train\n    \
         res = super().train(*args, **kwargs)\n  File \"{folder}/transformers/trainer.py\", \
         line 1892, in _run_epoch\n{error}"
    );
    let prefix = rank.map(|rank| format!("[rank{rank}]: ")).unwrap_or_default();
    text.lines().map(|line| format!("{prefix}{line}\n")).collect()
}
