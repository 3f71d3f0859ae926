//! Removes secrets from text for the termination message: what looks like one, and the values of environment variables
//! whose names say that they are one.

use std::env;

/// Endings of names of environment variables, as they are set from Secrets.
const SUFFIXES: [&str; 4] = ["TOKEN", "KEY", "SECRET", "PASSWORD"];
/// A shorter value is part of ordinary words.
const SHORTEST: usize = 8;
const REDACTED: &str = "(redacted)";

#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    pub(crate) fn of_environment() -> Self {
        // A value that is not text is not found in the log either, where other bytes are replaced.
        Self::of(
            env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    fn of(variables: impl Iterator<Item = (String, String)>) -> Self {
        let is_secret = |name: &str| {
            let name = name.to_ascii_uppercase();
            SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        };
        let secrets = variables.filter(|(name, _)| is_secret(name)).map(|(_, value)| value.trim().to_owned());
        let mut secrets: Vec<String> = secrets.filter(|value| value.len() >= SHORTEST).collect();
        // A secret that contains another one is replaced as a whole.
        secrets.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(secrets)
    }

    /// One printable line without secrets.
    pub(crate) fn removed(&self, line: &str) -> String {
        let mut line = text::printable(line);
        for secret in &self.0 {
            if line.contains(secret) {
                line = line.replace(secret, REDACTED);
            }
        }
        text::redacted(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_that_name_a_secret_are_removed() {
        let variables = [
            ("HF_TOKEN", "plainword"),
            ("wandb_api_key", "anotherword"),
            ("DB_PASSWORD", "short"),
            ("HOME", "/root/home"),
            ("LONG_SECRET", "plainword-and-more"),
        ];
        let secrets =
            Secrets::of(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let line = "plainword anotherword short /root/home plainword-and-more ghp_abc \u{1b}[31mred\u{7}";
        let expected = "(redacted) (redacted) short /root/home (redacted) (redacted) red";
        assert_eq!(secrets.removed(line), expected);
    }
}
