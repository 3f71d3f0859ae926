//! The line that EvalScope 1.10.0 writes for an answer: the fields that the runner reads, and some beside them.

use serde_json::json;

use crate::questions::{Question, letter};

pub(crate) fn line(question: &Question, answer: &str) -> String {
    let (found, index) = (letter(answer), question.index);
    let accuracy = if found.as_ref() == Some(&question.target) { 1.0 } else { 0.0 };
    let review = json!({
        "index": index,
        "target": question.target,
        "messages": [
            { "role": "user", "content": question.prompt(), "source": null },
            { "role": "assistant", "content": answer, "source": "generate" },
        ],
        "agent_trace": null,
        "sample_score": {
            "score": {
                "value": { "acc": accuracy },
                "extracted_prediction": found.unwrap_or_default(),
                "prediction": answer,
                "main_score_name": null,
            },
            "sample_id": index,
            "group_id": index,
        },
    });
    format!("{review}\n")
}
