//! How long sentences are. Tables, blocks of code and headings do not count, and inline code is one word.

use crate::pages::{Page, pages};

/// Sentences of one page.
pub(crate) struct Sentences {
    /// With the number of its words.
    pub(crate) all: Vec<(usize, String)>,
}

impl Sentences {
    pub(crate) fn of(page: &Page) -> Self {
        let paragraphs = page.parts().paragraphs;
        Self { all: paragraphs.iter().flat_map(|paragraph| sentences(paragraph)).collect() }
    }

    pub(crate) fn mean(&self) -> f64 {
        let words: usize = self.all.iter().map(|(words, _)| words).sum();
        words as f64 / self.all.len().max(1) as f64
    }

    fn longest(&self) -> usize {
        self.all.iter().map(|(words, _)| *words).max().unwrap_or(0)
    }
}

/// One row for each manual.
#[expect(clippy::print_stdout, reason = "this is the output of the command")]
pub(crate) fn print() -> anyhow::Result<()> {
    println!("sentences  mean  longest  page");
    for page in pages()? {
        let sentences = Sentences::of(&page);
        println!(
            "{:9}  {:4.1}  {:7}  {}",
            sentences.all.len(),
            sentences.mean(),
            sentences.longest(),
            page.path
        );
    }
    Ok(())
}

/// The sentences of a paragraph, with their words.
pub(crate) fn sentences(paragraph: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut sentence = String::new();
    let mut characters = paragraph.chars().peekable();
    while let Some(character) = characters.next() {
        sentence.push(character);
        let may_end = matches!(character, '.' | '!' | '?' | ':')
            && characters.peek().is_some_and(|next| next.is_whitespace());
        if may_end {
            let space: String =
                std::iter::from_fn(|| characters.next_if(|next| next.is_whitespace())).collect();
            if characters.peek().is_some_and(|next| next.is_uppercase() || matches!(next, '(' | '"')) {
                found.push(std::mem::take(&mut sentence));
            } else {
                sentence.push_str(&space);
            }
        }
    }
    found.push(sentence);
    let counted = found.into_iter().map(|sentence| (words(&sentence), sentence.trim().to_owned()));
    counted.filter(|(words, _)| *words > 0).collect()
}

fn words(sentence: &str) -> usize {
    let is_of_word = |character: char| character.is_alphanumeric() || "_'’./-".contains(character);
    let parts = sentence.split(|character| !is_of_word(character));
    parts.filter(|part| part.chars().any(char::is_alphanumeric)).count()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;

    use super::*;
    use crate::reference::fields::{children, schema};

    /// Words of a sentence.
    const LONGEST: usize = 30;
    /// Mean words of the sentences of a page.
    const MEAN: f64 = 16.0;

    #[test]
    fn a_sentence_ends_before_a_capital_letter_and_code_is_one_word() {
        let page =
            Page { path: String::new(), text: "One `a b c` is. Two, e.g. this: no.\n\n- Item.".to_owned() };
        let counts: Vec<usize> = Sentences::of(&page).all.iter().map(|(words, _)| *words).collect();
        assert_eq!(counts, [3, 4, 1]);
    }

    #[test]
    fn sentences_of_manuals_are_short() {
        let mut long = Vec::new();
        for page in pages().unwrap() {
            let sentences = Sentences::of(&page);
            if sentences.mean() > MEAN {
                long.push(format!("{}: {:.1} words in the mean", page.path, sentences.mean()));
            }
            let over = sentences.all.iter().filter(|(words, _)| *words > LONGEST);
            long.extend(over.map(|(words, sentence)| format!("{}: {words} words: {sentence}", page.path)));
        }
        assert!(long.is_empty(), "{}", long.join("\n"));
    }

    #[test]
    fn sentences_of_fields_are_short() {
        fn walk(path: &str, schema: &JSONSchemaProps, long: &mut Vec<String>) {
            let text = schema.description.as_deref().unwrap_or_default();
            for (words, sentence) in text.split("\n\n").flat_map(sentences) {
                if words > LONGEST {
                    long.push(format!("{path}: {words} words: {sentence}"));
                }
            }
            for (name, child) in children(schema) {
                walk(&format!("{path}{name}"), child, long);
            }
        }
        let mut long = Vec::new();
        for crd in api::crds::crds() {
            walk(&crd.spec.names.kind, schema(&crd).unwrap(), &mut long);
        }
        assert!(long.is_empty(), "{}", long.join("\n"));
    }
}
