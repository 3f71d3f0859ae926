//! The questions of a subset: `SUBSET_val.jsonl`, with `question`, the choices `A` to `J`, and `answer`.

use std::fs;

use serde_json::Value;

use crate::arguments::Arguments;

/// What the harness asks for, and looks for in an answer: "Answer: A".
const ANSWER: &str = "答案：";
const LETTERS: std::ops::RangeInclusive<char> = 'A'..='J';

#[derive(Debug)]
pub(crate) struct Question {
    /// Within its subset.
    pub(crate) index: usize,
    text: String,
    /// Letters with their texts.
    choices: Vec<(char, String)>,
    /// The right letter.
    pub(crate) target: String,
}

pub(crate) fn of_subset(arguments: &Arguments, subset: &str) -> Result<Vec<Question>, String> {
    let path = arguments.path.join(format!("{subset}_val.jsonl"));
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("ValueError: No dataset file found for subset '{subset}': {error}"))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.take(arguments.limit).enumerate().map(|(index, line)| question(index, line)).collect()
}

fn question(index: usize, line: &str) -> Result<Question, String> {
    let fields: Value =
        serde_json::from_str(line).map_err(|error| format!("json.JSONDecodeError: {error}"))?;
    let field = |name: &str| fields[name].as_str().map(str::to_owned);
    let needed = |name: &str| field(name).ok_or_else(|| format!("KeyError: '{name}'"));
    let choices = LETTERS.filter_map(|letter| Some((letter, field(&letter.to_string())?))).collect();
    Ok(Question { index, text: needed("question")?, choices, target: needed("answer")? })
}

impl Question {
    /// In the words of the real program.
    pub(crate) fn prompt(&self) -> String {
        let letters: Vec<String> = self.choices.iter().map(|(letter, _)| letter.to_string()).collect();
        let choices: String =
            self.choices.iter().map(|(letter, text)| format!("{letter}) {text}\n")).collect();
        format!(
            "回答下面的单项选择题，请选出其中的正确答案。你的回答的全部内容应该是这样的格式：\"{ANSWER}[LETTER]\"（不带引号），\
             其中 [LETTER] 是 {} 中的一个。\n\n问题：{}\n选项：\n{choices}",
            letters.join(","),
            self.text
        )
    }
}

/// The letter that an answer chooses, if it chooses one.
pub(crate) fn letter(answer: &str) -> Option<String> {
    let (_, rest) = answer.rsplit_once(ANSWER)?;
    let letter = rest.trim_start().chars().next()?;
    LETTERS.contains(&letter).then(|| letter.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_in_the_wanted_form_has_a_letter() {
        assert_eq!(letter("我想：答案： B。").as_deref(), Some("B"));
        let question = question(0, r#"{"question":"1+1?","A":"2","B":"3","answer":"A"}"#).unwrap();
        let prompt = question.prompt();
        assert!(prompt.ends_with("是 A,B 中的一个。\n\n问题：1+1?\n选项：\nA) 2\nB) 3\n"), "{prompt}");
        // A model that repeats the question has not answered it.
        assert_eq!((letter(&prompt), letter("B"), letter("答案：")), (None, None, None));
    }
}
