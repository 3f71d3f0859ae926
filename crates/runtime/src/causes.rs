//! How errors and panics are written in the log: the one place that follows the chain of causes.

use std::{any::Any, error::Error};

/// An error with all its causes on one line. A cause that the text before it contains already is not repeated: some
/// errors print their cause themselves.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = next.source();
    }
    text
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct Step {
        words: &'static str,
        source: Option<Box<Step>>,
    }

    #[test]
    fn every_cause_is_written_once() {
        let cause = Step { words: "invalid peer certificate: UnknownIssuer", source: None };
        let middle = Step { words: "client error (Connect)", source: Some(Box::new(cause)) };
        let error = Step { words: "ServiceError: client error (Connect)", source: Some(Box::new(middle)) };
        let text = "ServiceError: client error (Connect): invalid peer certificate: UnknownIssuer";
        assert_eq!(with_causes(&error), text);
    }
}
