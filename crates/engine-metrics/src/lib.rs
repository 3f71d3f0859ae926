//! Reads the metrics of engines from their pods: of vLLM, SGLang, TGI and Triton. The scaler-controller scales by them, and the
//! inference-controller compares two versions by them.
//!
//! A missing value is never zero: it is an error, which names no object. The caller knows it.
//!
//! Files:
//!
//! - `fetch.rs`: one request to one pod, which is not trusted.
//! - `body.rs`: heads and bodies of answers up to a limit.
//! - `bodies.rs`: how many bodies are read at once.
//! - `engine.rs`: the engines, and what they call their load.
//! - `series.rs`: sums of series.
//! - `histogram.rs`: buckets, their growth and quantiles.
//! - `outcomes.rs`: how requests ended, and how long they took.

#![forbid(unsafe_code)]

pub mod bodies;
pub mod body;
pub mod engine;
pub mod fetch;
pub mod histogram;
pub mod outcomes;
pub mod series;

/// A text of another program for a message: one line, at most 256 bytes.
pub fn foreign(text: &str) -> String {
    const LONGEST: usize = 256;
    text::cut(text::printable(text.trim()), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_one_short_line() {
        assert_eq!(foreign(" a\n\u{1b}[31mb "), "a b");
        assert_eq!(foreign(&"é".repeat(200)).len(), 256);
    }
}
