//! The questions, in the files of each harness: sums with four choices.

use std::{fs, path::Path};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{
    harness::{Harness, TASK},
    planted::{Answer, QUESTIONS},
};
use crate::python::write;

/// Two files of EvalScope. Questions alternate, so that the first ones of both files are the first ones of all.
const SUBSETS: [&str; 2] = ["even", "odd"];
const LETTERS: [&str; 4] = ["A", "B", "C", "D"];
/// Before the number of a question, which a server reads.
const NUMBER: &str = "No. ";
/// EvalScope asks in Chinese, and wants an answer of this form: "Answer: A".
const ANSWER: &str = "答案：";
/// "I do not know": neither harness finds a letter in it.
const NO_ANSWER: &str = "我不知道";

/// What lm-eval reads, beside the questions.
const TASK_FILE: &str = r#"task: TASK
dataset_path: json
dataset_kwargs:
  data_files: FILE
test_split: train
output_type: generate_until
doc_to_text: "{{question}}\nA) {{A}}\nB) {{B}}\nC) {{C}}\nD) {{D}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\n"]
  max_gen_toks: 32
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
filter_list:
  - name: letter
    filter:
      - function: regex
        regex_pattern: "答案：([A-D])"
      - function: take_first
"#;

/// Writes them into a new folder.
pub(super) fn write_all(harness: Harness, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let lines = |numbers: &mut dyn Iterator<Item = usize>| -> String {
        numbers.map(|number| format!("{}\n", question(number))).collect()
    };
    match harness {
        Harness::Evalscope => {
            for (subset, first) in SUBSETS.iter().zip(0..) {
                let numbers = &mut (first..QUESTIONS).step_by(SUBSETS.len());
                write(folder, &format!("{subset}_val.jsonl"), &lines(numbers))?;
            }
        }
        Harness::LmEval => {
            let file = write(folder, "questions.jsonl", &lines(&mut (0..QUESTIONS)))?;
            // JSON is YAML.
            let file = json!(file).to_string();
            write(folder, &format!("{TASK}.yaml"), &TASK_FILE.replace("TASK", TASK).replace("FILE", &file))?;
        }
    }
    Ok(())
}

fn question(number: usize) -> Value {
    let right = number % LETTERS.len();
    let sum = number + 25;
    // The others are near the sum.
    let choice = |letter: usize| (sum + letter - right).to_string();
    json!({
        "question": format!("{NUMBER}{number}: how much is {number} plus 25?"),
        "A": choice(0),
        "B": choice(1),
        "C": choice(2),
        "D": choice(3),
        "answer": LETTERS[right],
    })
}

/// The number of the question in a text.
pub(super) fn number_in(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once(NUMBER)?;
    let (number, _) = rest.split_once(':')?;
    number.parse().ok().filter(|number| *number < QUESTIONS)
}

/// What a model says.
pub(super) fn words(number: usize, answer: Answer) -> String {
    let letter = |turn: usize| LETTERS[(number + turn) % LETTERS.len()];
    match answer {
        Answer::Right => format!("{ANSWER}{}", letter(0)),
        Answer::Wrong => format!("{ANSWER}{}", letter(1)),
        Answer::Unreadable => NO_ANSWER.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_words_name_the_sum_and_the_wrong_ones_do_not() {
        for number in 0..QUESTIONS {
            let question = question(number);
            let text = question["question"].as_str().unwrap();
            assert_eq!(number_in(&format!("x\n{text}\nA) 1")), Some(number));
            for (answer, is_right) in [(Answer::Right, true), (Answer::Wrong, false)] {
                let words = words(number, answer);
                let letter = words.strip_prefix(ANSWER).unwrap();
                assert_eq!(question["answer"] == letter, is_right);
                assert_eq!(question[letter].as_str().unwrap().parse() == Ok(number + 25), is_right);
            }
        }
        assert_eq!((number_in("No. 300: x"), number_in("17: x")), (None, None));
    }

    #[test]
    fn each_question_is_in_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("questions");
        write_all(Harness::Evalscope, &path).unwrap();
        let texts =
            SUBSETS.map(|subset| fs::read_to_string(path.join(format!("{subset}_val.jsonl"))).unwrap());
        let mut numbers: Vec<usize> =
            texts.iter().flat_map(|text| text.lines()).filter_map(number_in).collect();
        assert!(numbers[..100].iter().all(|number| *number < 200), "{numbers:?}");
        numbers.sort_unstable();
        assert_eq!(numbers, (0..QUESTIONS).collect::<Vec<_>>());
    }
}
