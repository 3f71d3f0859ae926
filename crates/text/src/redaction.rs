//! Removes secrets from log text before it appears in a message. Pure.
//!
//! It prefers false positives: any word in the position of a secret is removed.

/// The replacement of a secret.
const REDACTED: &str = "(redacted)";

/// Prefixes of tokens of well-known services; `eyJ` begins a JSON Web Token.
const PREFIXES: [&str; 21] = [
    "hf_",
    "sk-",
    "nvapi-",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "AKIA",
    "ASIA",
    "eyJ",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "AIza",
    "npm_",
    "pypi-",
    "dckr_pat_",
    "ya29.",
];
/// Suffixes of names whose value is a secret: `HF_TOKEN`, `db-password`, `X-Amz-Signature`.
const NAMES: [&str; 20] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "apikey",
    "authorization",
    "signature",
    "credential",
    "credentials",
    "cookie",
    "accesskey",
    "secretkey",
    "privatekey",
    "accountkey",
    "keyid",
    "jwt",
    "sig",
    "auth",
];
/// HTTP authentication schemes; a secret follows.
const SCHEMES: [&str; 4] = ["bearer", "basic", "digest", "negotiate"];

/// The text without secrets; whitespace becomes single spaces.
pub fn redacted(text: &str) -> String {
    let (mut hides_next, mut was_name) = (false, false);
    let words = text.split_whitespace().map(|word| {
        // `Bearer` in `Authorization: Bearer x`, `=` in `token = x`.
        let is_between = is_scheme(word) || ((hides_next || was_name) && name_of(word).is_empty());
        was_name = is_secret(word);
        let (shown, follows) = match hides_next {
            _ if is_between => (word.to_owned(), true),
            true => (REDACTED.to_owned(), false),
            false => without_value(word),
        };
        hides_next = follows;
        shown
    });
    words.collect::<Vec<String>>().join(" ")
}

/// A longer word is shown in part: secrets without a known name or prefix are shorter.
const LONGEST_SECRET: usize = 256;

/// At most `longest` bytes of a line of a log. The word that the cut runs through is left out, because the first part of a
/// secret is not recognized.
pub fn beginning(line: &str, longest: usize) -> String {
    let shown = &line[..line.floor_char_boundary(longest)];
    let ends_with_word = line[shown.len()..].chars().next().is_none_or(char::is_whitespace);
    let last = shown.rfind(char::is_whitespace).map_or(0, |space| space + 1);
    let is_shown = ends_with_word || shown.len() - last > LONGEST_SECRET;
    if is_shown { shown } else { shown[..last].trim_end() }.to_owned()
}

/// One word without its secret, and whether the next word is a secret.
fn without_value(word: &str) -> (String, bool) {
    if let Some((scheme, rest)) = word.split_once("://") {
        return (format!("{}://{}", without_value(scheme).0, without_access(rest)), false);
    }
    // Everything after `name=` or `name:` is removed.
    let separators = word.char_indices().filter(|(_, c)| matches!(c, '=' | ':'));
    for (at, separator) in separators {
        let (name, value) = (&word[..at], &word[at + separator.len_utf8()..]);
        if is_secret(name) {
            let is_there = value.chars().any(char::is_alphanumeric);
            let shown = if is_there { REDACTED } else { value };
            return (format!("{name}{separator}{shown}"), !is_there || is_scheme(value));
        }
    }
    if word.starts_with('-') && is_secret(word) {
        return (word.to_owned(), true);
    }
    (if holds_secret(word) { REDACTED.to_owned() } else { word.to_owned() }, false)
}

/// The part of a URL after its scheme, without user, password and query; a query may hold a signature.
fn without_access(rest: &str) -> String {
    let (rest, query) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], "?(redacted)"),
        None => (rest, ""),
    };
    // A password may contain an unescaped slash.
    let host = rest.rfind('@').map_or(rest, |at| &rest[at + 1..]);
    let user = if host.len() < rest.len() { "(redacted)@" } else { "" };
    format!("{user}{}{query}", without_value(host).0)
}

/// Only letters and digits, in lower case: `"api_key":` becomes `apikey`.
fn name_of(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn is_secret(name: &str) -> bool {
    let name = name_of(name);
    NAMES.iter().any(|secret| name.ends_with(secret))
}

fn is_scheme(word: &str) -> bool {
    SCHEMES.contains(&name_of(word).as_str())
}

fn holds_secret(word: &str) -> bool {
    let begins = |at: usize| word[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric());
    let known = PREFIXES.iter().any(|secret| word.match_indices(secret).any(|(at, _)| begins(at)));
    let parts = word.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '=')));
    known || parts.into_iter().any(is_random)
}

/// Looks like a key: long, with both cases and several digits. Class names are long, but have few digits.
fn is_random(part: &str) -> bool {
    const LONG: usize = 32;
    const DIGITS: usize = 4;
    let digits = part.chars().filter(char::is_ascii_digit).count();
    part.len() >= LONG
        && digits >= DIGITS
        && part.contains(|c: char| c.is_ascii_uppercase())
        && part.contains(|c: char| c.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_leaves_no_first_part_of_a_secret() {
        for whole in ["", "loaded", "loaded from", "a  b"] {
            assert_eq!(beginning(whole, 11), whole);
        }
        assert_eq!(beginning("loaded from the hub", 6), "loaded");
        assert_eq!(beginning("loaded from the hub", 8), "loaded");
        let secret = "0123456789abcdef0123456789abcdef01234567";
        for longest in 0..60 {
            let shown = beginning(&format!("the hub refuses {secret} for qwen"), longest);
            assert!(
                shown.len() <= longest && (shown.contains(secret) || !shown.contains('0')),
                "{longest}: {shown}"
            );
        }
        let long = "é".repeat(1_000);
        assert_eq!(beginning(&format!("ValueError: {long}"), 1_001).len(), 1_000, "a text without spaces");
    }

    #[test]
    fn no_secret_is_repeated() {
        for text in [
            "Authorization: Bearer VALUE",
            "authorization: basic VALUE",
            "{'Authorization': 'Bearer VALUE'}",
            "proxy-authorization:Basic VALUE",
            "Bearer VALUE",
            "BASIC VALUE",
            "https://user:VALUE@proxy:3128/x",
            "https://user:a/VALUE@proxy",
            "postgres://VALUE@db",
            "--api-key VALUE",
            "--api-key=VALUE",
            "--hf-token VALUE",
            "\"token\": \"VALUE\"",
            "\"token\":\"VALUE\"",
            "{\"api_key\": \"VALUE\", \"a\": 1}",
            "token = VALUE",
            "TOKEN=VALUE",
            "hf_token=VALUE",
            "Password=VALUE",
            "MYSQL_PASSWORD:VALUE",
            "aws_secret_access_key=VALUE",
            "AWS_SECRET_ACCESS_KEY = VALUE",
            "env(HF_TOKEN=VALUE)",
            "key ghp_VALUE",
            "(nvapi-VALUE)",
            "'hf_VALUE'",
            "sk-VALUE",
            "x:sk-VALUE",
            "/v1?X-Amz-Signature=VALUE",
            "https://s3/bucket/key?a=b&X-Amz-Signature=VALUE",
            "https://s3/bucket?X-Amz-Credential=VALUE",
            "&x-amz-security-token=VALUE",
            "secret: VALUE",
            "Set-Cookie: VALUE",
        ] {
            for value in ["q7xW", "eyJhbGciOi.J9.x", "a1b2/c3+d4=="] {
                let shown = redacted(&text.replace("VALUE", value));
                assert!(!shown.contains(value), "{text}: {shown}");
            }
        }
    }

    #[test]
    fn a_key_without_a_name_is_recognized() {
        let key = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXA4MPLE12KEY";
        assert_eq!(redacted(&format!("cannot use {key} here")), "cannot use (redacted) here");
    }

    #[test]
    fn error_messages_without_secrets_are_unchanged() {
        for text in [
            "Error while deserializing header: header too large",
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB",
            "unrecognized arguments: --headless",
            "/models does not appear to have a file named config.json",
            "Can't load tokenizer for '/models'",
            "Model architectures ['Qwen2_5_VLForConditionalGeneration'] are not supported for now",
            "failed to load 'vision' version 1: Invalid argument: no backend",
            "model-00001-of-00003.safetensors is incomplete",
            "http://127.0.0.1:8000/health",
            "max_num_batched_tokens (2048) is smaller than max_model_len (4096)",
        ] {
            assert_eq!(redacted(text), text);
        }
    }
}
