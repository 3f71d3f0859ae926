//! The dicts that the trainer logs, as Python prints them: `{'loss': '6.449', 'global_step/max_steps': '22/27'}`.
//!
//! transformers 4 prints floats, and transformers 5 strings. A dict without a position is none of the trainer. It must
//! not evaluate anything: a value is skipped by its brackets and quotes.

use std::time::Duration;

use crate::{Entry, Position, Step, number, remaining::remaining};

/// The dict at the beginning of a text, and what follows it: what another process prints before the end of line.
pub(crate) fn leading(text: &str) -> Option<(Entry<'static>, &str)> {
    let mut rest = text.strip_prefix('{').filter(|rest| rest.starts_with('\''))?;
    let mut fields = Fields::default();
    loop {
        let (name, after) = quoted(rest.trim_ascii_start())?;
        let (value, after) = value(after.strip_prefix(':')?.trim_ascii_start())?;
        fields.note(name, value);
        let after = after.trim_ascii_start();
        if let Some(after) = after.strip_prefix('}') {
            let is_end = after.is_empty() || after.starts_with(['{', '[']);
            return fields.entry().filter(|_| is_end).map(|entry| (entry, after));
        }
        rest = after.strip_prefix(',')?;
    }
}

#[derive(Default)]
struct Fields {
    position: Option<Position>,
    is_evaluation: bool,
    is_summary: bool,
    loss: Option<String>,
    policy_loss: Option<String>,
    gradient_norm: Option<String>,
    learning_rate: Option<String>,
    epoch: Option<String>,
    seconds_per_step: Option<String>,
    remaining: Option<Duration>,
}

impl Fields {
    fn note(&mut self, name: &str, value: &str) {
        match name {
            // Megatron counts iterations.
            "global_step/max_steps" | "iteration" => self.position = Position::of(value).or(self.position),
            "loss" => self.loss = number::decimal(value),
            "loss/policy_avg" => self.policy_loss = number::decimal(value),
            "grad_norm" => self.gradient_norm = number::decimal(value),
            // PPO has the short name.
            "learning_rate" | "lr" => self.learning_rate = number::decimal(value),
            "epoch" => self.epoch = number::decimal(value),
            "train_speed(s/it)" => self.seconds_per_step = number::decimal(value),
            // Until 3.12.4.
            "train_speed(iter/s)" => self.seconds_per_step = number::reciprocal(value),
            "remaining_time" => self.remaining = remaining(value),
            "train_runtime" => self.is_summary = true,
            _ => self.is_evaluation |= name.starts_with("eval_"),
        }
    }

    fn entry(self) -> Option<Entry<'static>> {
        let position = self.position?;
        Some(if self.is_summary {
            Entry::Summary(position)
        } else if self.is_evaluation {
            Entry::Evaluation(position)
        } else {
            Entry::Step(Step {
                position,
                loss: self.loss.or(self.policy_loss),
                gradient_norm: self.gradient_norm,
                learning_rate: self.learning_rate,
                epoch: self.epoch,
                seconds_per_step: self.seconds_per_step,
                remaining: self.remaining,
            })
        })
    }
}

/// The inside of a string, and what follows it. Escapes stay as they are; no value that matters has any.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.bytes().next().filter(|byte| matches!(byte, b'\'' | b'"'))?;
    let inside = &text[1..];
    let mut is_escaped = false;
    let end = inside.bytes().position(|byte| {
        let ends = byte == quote && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some((&inside[..end], &inside[end + 1..]))
}

/// The text of a value, without its quotes if it is a string, and what follows it.
fn value(text: &str) -> Option<(&str, &str)> {
    if let Some(string) = quoted(text) {
        return Some(string);
    }
    let mut depth = 0_u32;
    let mut at = 0;
    loop {
        match text.as_bytes().get(at)? {
            b',' | b'}' if depth == 0 => return Some((text[..at].trim_ascii_end(), &text[at..])),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b'\'' | b'"' => {
                let (_, after) = quoted(&text[at..])?;
                at = text.len() - after.len() - 1;
            }
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without its gradient.
    fn step(text: &str) -> Step {
        match leading(text) {
            Some((Entry::Step(step), "")) => Step { gradient_norm: None, ..step },
            other => panic!("{text}: {other:?}"),
        }
    }

    fn expected(step: i64, total: i64, numbers: [Option<&str>; 4], seconds: Option<u64>) -> Step {
        let [loss, learning_rate, epoch, seconds_per_step] = numbers.map(|text| text.map(str::to_owned));
        Step {
            position: Position { step, total },
            loss,
            gradient_norm: None,
            learning_rate,
            epoch,
            seconds_per_step,
            remaining: seconds.map(Duration::from_secs),
        }
    }

    #[test]
    fn floats_of_transformers_4_and_strings_of_transformers_5_are_steps() {
        let raw = "{'loss': 0.10009546, 'grad_norm': 1.5, 'learning_rate': 5.415e-05, 'token_acc': 0.0, 'epoch': 1.07, \
                   'global_step/max_steps': '300/561', 'elapsed_time': '1h 2m 3s', 'remaining_time': '53m 58s', \
                   'memory(GiB)': 21.4, 'train_speed(s/it)': 12.410222}";
        let numbers = [Some("0.10009546"), Some("5.415e-05"), Some("1.07"), Some("12.410222")];
        assert_eq!(step(raw), expected(300, 561, numbers, Some(3_238)));
        let strings = "{'loss': '6.512', 'learning_rate': '9.966e-05', 'token_acc': '0', 'epoch': '0.03704', \
                       'global_step/max_steps': '1/27', 'elapsed_time': '1s', 'remaining_time': '14s', \
                       'train_speed(s/it)': '0.521'}";
        let numbers = [Some("6.512"), Some("9.966e-05"), Some("0.03704"), Some("0.521")];
        assert_eq!(step(strings), expected(1, 27, numbers, Some(14)));
    }

    #[test]
    fn older_versions_print_a_percentage_and_iterations_per_second() {
        let until_3_12_4 = "{'loss': 1.5, 'learning_rate': 1e-04, 'epoch': 0.1, 'global_step/max_steps': '5/185', \
                            'percentage': '2.70%', 'elapsed_time': '20s', 'remaining_time': '12m 0s', \
                            'memory(GiB)': 17.2, 'train_speed(iter/s)': 0.25}";
        assert_eq!(
            step(until_3_12_4),
            expected(5, 185, [Some("1.5"), Some("1e-04"), Some("0.1"), Some("4")], Some(720))
        );
        let until_3_12_6 = until_3_12_4.replace("'train_speed(iter/s)': 0.25", "'train_speed(s/it)': 4.0");
        assert_eq!(step(&until_3_12_6).seconds_per_step.as_deref(), Some("4.0"));
    }

    #[test]
    fn a_gradient_may_be_no_number() {
        let norm = |value: &str| {
            let text = format!("{{'loss': 0.0, 'grad_norm': {value}, 'global_step/max_steps': '1/2'}}");
            let Some((Entry::Step(step), "")) = leading(&text) else { panic!("{text}") };
            step.gradient_norm
        };
        assert_eq!([norm("nan").as_deref(), norm("'0.892'").as_deref()], [Some("NaN"), Some("0.892")]);
        assert_eq!(norm("None"), None);
    }

    #[test]
    fn megatron_counts_iterations() {
        let text = "{'loss': 0.20536338, 'grad_norm': 0.69596642, 'learning_rate': 1e-05, 'iteration': '1/18', \
                    'elapsed_time': '8m 29s', 'remaining_time': '2h 24m 14s', 'memory(GiB)': 53.84, \
                    'train_speed(s/it)': 509.881}";
        let numbers = [Some("0.20536338"), Some("1e-05"), None, Some("509.881")];
        assert_eq!(step(text), expected(1, 18, numbers, Some(8_654)));
        let evaluation = "{'eval_loss': 0.5, 'iteration': '18/18', 'elapsed_time': '8m 29s'}";
        assert_eq!(leading(evaluation), Some((Entry::Evaluation(Position { step: 18, total: 18 }), "")));
    }

    #[test]
    fn dpo_has_the_names_of_sft_and_ppo_its_own() {
        let dpo = "{'loss': '0.6931', 'grad_norm': '0.892', 'learning_rate': '9.875e-05', 'rewards/chosen': '0', \
                   'logps/chosen': '-64.78', 'epoch': '0.07407', 'global_step/max_steps': '1/14', \
                   'remaining_time': '18s', 'train_speed(s/it)': '1.407'}";
        let numbers = [Some("0.6931"), Some("9.875e-05"), Some("0.07407"), Some("1.407")];
        assert_eq!(step(dpo), expected(1, 14, numbers, Some(18)));
        let ppo = "{'eps': 2, 'objective/kl': '-4.8e-07', 'loss/policy_avg': '-0.004613', 'loss/value_avg': '0.02017', \
                   'lr': '0.0001', 'episode': 4, 'epoch': '0.03704', 'global_step/max_steps': '1/27', \
                   'remaining_time': '41s', 'train_speed(s/it)': '1.571'}";
        let numbers = [Some("-0.004613"), Some("0.0001"), Some("0.03704"), Some("1.571")];
        assert_eq!(step(ppo), expected(1, 27, numbers, Some(41)));
    }

    #[test]
    fn values_may_be_of_any_type() {
        let text = "{'loss': nan, 'learning_rate': inf, 'epoch': None, 'flag': True, 'list': [1, '}', (2, {'a': \"'\"})], \
                    'x\\'': 'a\\'b', \"it's\": tensor(0.5, device='cuda:0'), 'global_step/max_steps': '1/2', \
                    'remaining_time': '-5s', 'train_speed(s/it)': np.float64(0.5)}";
        assert_eq!(step(text), expected(1, 2, [Some("NaN"), Some("Inf"), None, Some("0.5")], None));
    }

    #[test]
    fn evaluations_and_summaries_are_no_steps() {
        let position = Position { step: 5, total: 14 };
        let end = "'epoch': '0.3704', 'global_step/max_steps': '5/14', 'elapsed_time': '5s'}";
        let evaluation = format!("{{'eval_loss': '0.6745', 'eval_runtime': '2.017', {end}");
        assert_eq!(leading(&evaluation), Some((Entry::Evaluation(position), "")));
        let summary = format!("{{'train_runtime': '15.98', 'train_loss': '0.6495', {end}");
        assert_eq!(leading(&summary), Some((Entry::Summary(position), "")));
    }

    #[test]
    fn a_dict_in_other_text_or_without_a_position_is_no_entry() {
        let dict = "{'loss': 1, 'global_step/max_steps': '1/2'}";
        assert!(leading(dict).is_some());
        for text in [
            format!(" {dict}"),
            format!("the model said {dict}"),
            format!("[{dict}]"),
            format!("{dict} is what I print"),
            dict.replace('}', ""),
            dict.replace("'1/2'}", "'1/"),
            dict.replace("1/2", "2/1"),
            dict.replace("1/2", "-1/2"),
            dict.replace("'loss': 1", "'loss': )"),
            dict.replace('\'', "\""),
            "{'loss': 1}".to_owned(),
            "{}".to_owned(),
            "{'".to_owned(),
        ] {
            assert_eq!(leading(&text), None, "{text}");
        }
    }

    #[test]
    fn what_another_process_prints_before_the_end_of_line_is_kept() {
        let dict = "{'loss': 1, 'global_step/max_steps': '1/2'}";
        let text = format!("{dict}{dict}[INFO:swift] x");
        let (_, after) = leading(&text).unwrap();
        assert_eq!(leading(after).unwrap().1, "[INFO:swift] x");
    }
}
