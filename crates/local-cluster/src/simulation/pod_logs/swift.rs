//! The text of what a trainer prints, in the form of ms-swift 4.6 with `--disable_tqdm true`. Pure.
//!
//! The numbers are invented: losses fall, and the last step is the total.

use std::time::Duration;

use super::{
    run::{End, Form, Training},
    timeline::Event,
};

/// The folder that ms-swift's command lines and tracebacks name.
const PACKAGES: &str = "/opt/venv/lib/python3.11/site-packages";
const LEARNING_RATE: f64 = 1e-4;

/// The lines of an event, each without its line feed.
pub(super) fn lines(training: &Training, event: Event) -> Vec<String> {
    let output = &training.output;
    let saving = |step: u32| format!("[INFO:swift] Saving model checkpoint to {output}/checkpoint-{step}");
    match event {
        Event::Begin => {
            let [command, arguments @ ..] = training.command.get(1..).unwrap_or_default() else {
                return Vec::new();
            };
            let arguments = arguments.join(" ");
            vec![format!("run sh: `/opt/venv/bin/python3 {PACKAGES}/swift/cli/{command}.py {arguments}`")]
        }
        Event::Step(step) => vec![logged(training, step)],
        Event::Save(step) => vec![saving(step)],
        Event::Finish => {
            let total = training.steps;
            let seconds = training.length.as_secs_f64();
            let speed = f64::from(total) / seconds.max(f64::MIN_POSITIVE);
            vec![
                format!("[INFO:swift] last_model_checkpoint: {output}/checkpoint-{total}"),
                format!("[INFO:swift] best_model_checkpoint: {output}/checkpoint-{total}"),
                format!(
                    "{{'train_runtime': {seconds:.4}, 'train_samples_per_second': {:.3}, \
                     'train_steps_per_second': {speed:.3}, 'train_loss': {:.8}, 'epoch': 1.0, {}}}",
                    speed * 16.0,
                    loss(training.form, 0.5),
                    common(training, total)
                ),
            ]
        }
    }
}

/// What a trainer prints that fails: a traceback with the error.
pub(super) fn failure(end: &End) -> Vec<String> {
    if end.exit_code == 0 {
        return Vec::new();
    }
    let Some(error) = &end.error else { return Vec::new() };
    let traceback = [
        "Traceback (most recent call last):".to_owned(),
        format!("  File \"{PACKAGES}/swift/cli/sft.py\", line 20, in <module>"),
        "    sft_main()".to_owned(),
        format!("  File \"{PACKAGES}/swift/trainers/mixin.py\", line 1029, in train"),
        "    res = super().train(*args, **kwargs)".to_owned(),
    ];
    traceback.into_iter().chain(error.lines().map(str::to_owned)).collect()
}

fn logged(training: &Training, step: u32) -> String {
    let done = f64::from(step) / f64::from(training.steps);
    let loss = loss(training.form, done);
    let rate = LEARNING_RATE * (1.0 + (std::f64::consts::PI * done).cos()) / 2.0;
    let grad_norm = 1.2 - 0.4 * done;
    let of_form = match training.form {
        Form::Sft => format!("'token_acc': {:.8}", 0.61 + 0.14 * done),
        Form::Dpo => format!(
            "'rewards/chosen': {:.8}, 'rewards/rejected': {:.8}, 'rewards/accuracies': {:.8}, 'rewards/margins': {:.8}",
            0.3 * done,
            -0.5 * done,
            0.5 + 0.4 * done,
            0.8 * done
        ),
    };
    format!(
        "{{'loss': {loss:.8}, 'grad_norm': {grad_norm:.8}, 'learning_rate': {rate:e}, {of_form}, 'epoch': {done:.8}, {}}}",
        common(training, step)
    )
}

/// At 0 the training begins, and at 1 it has ended.
fn loss(form: Form, done: f64) -> f64 {
    match form {
        Form::Sft => 0.92 + 1.06 * (-3.0 * done).exp(),
        // That of two equal answers is ln 2.
        Form::Dpo => 0.38 + 0.313_147 * (-2.5 * done).exp(),
    }
}

/// The times are those of the simulated run.
fn common(training: &Training, step: u32) -> String {
    let total = training.steps;
    let each = training.length.as_secs_f64() / f64::from(total.saturating_add(1));
    let time = |steps: u32| units(Duration::from_secs_f64(each * f64::from(steps)));
    format!(
        "'global_step/max_steps': '{step}/{total}', 'elapsed_time': '{}', 'remaining_time': '{}', 'memory(GiB)': 17.24, \
         'train_speed(s/it)': {each:.6}",
        time(step),
        time(total - step.min(total))
    )
}

/// `1h 2m 3s`, as ms-swift writes durations.
fn units(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let all = [(days, "d"), (hours, "h"), (minutes, "m")];
    let mut text: String = all
        .iter()
        .skip_while(|(count, _)| *count == 0)
        .map(|(count, unit)| format!("{count}{unit} "))
        .collect();
    text.push_str(&format!("{}s", seconds % 60));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(form: Form) -> Training {
        Training {
            form,
            length: Duration::from_secs(61),
            steps: 60,
            logged_every: 5,
            saved_every: 500,
            output: "/out".to_owned(),
            command: ["swift", "sft", "--model", "m"].map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn lines_have_the_form_of_the_trainer() {
        let training = training(Form::Sft);
        let begin = "run sh: `/opt/venv/bin/python3 /opt/venv/lib/python3.11/site-packages/swift/cli/sft.py --model m`";
        assert_eq!(lines(&training, Event::Begin), [begin]);
        let step = "{'loss': 1.15651797, 'grad_norm': 1.00000000, 'learning_rate': 5e-5, 'token_acc': 0.68000000, \
                    'epoch': 0.50000000, 'global_step/max_steps': '30/60', 'elapsed_time': '30s', \
                    'remaining_time': '30s', 'memory(GiB)': 17.24, 'train_speed(s/it)': 1.000000}";
        let printed = lines(&training, Event::Step(30)).remove(0);
        assert_eq!(printed, step);
        let saving = "[INFO:swift] Saving model checkpoint to /out/checkpoint-60";
        assert_eq!(lines(&training, Event::Save(60)), [saving]);
    }

    #[test]
    fn losses_fall() {
        for form in [Form::Sft, Form::Dpo] {
            let losses: Vec<f64> = (0..=60).map(|step| loss(form, f64::from(step) / 60.0)).collect();
            assert!(losses.is_sorted_by(|one, next| one > next), "{losses:?}");
        }
    }

    #[test]
    fn times_have_the_largest_unit_first() {
        assert_eq!(units(Duration::from_secs(3)), "3s");
        assert_eq!(units(Duration::from_secs(3_723)), "1h 2m 3s");
        assert_eq!(units(Duration::from_secs(86_400)), "1d 0h 0m 0s");
    }
}
