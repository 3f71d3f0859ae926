//! Names of children: the owner's name where Kubernetes accepts it, otherwise a readable form with a hash. Pure.
//!
//! The name depends only on the owner's name, and different owners get different names (up to 32-bit hash collisions).

use crate::digest::digest;

/// Maximum length of a Service name and of a label value.
const LONGEST: usize = 63;
/// Hexadecimal digits, 32 bits. A collision within a namespace is reported as an ownership conflict.
const HASH: usize = 8;

/// `<name><suffix>`; a long name is shortened, the suffix never.
pub fn with_suffix(name: &str, suffix: &str) -> String {
    with_suffix_within(name, suffix, LONGEST)
}

/// As `with_suffix`, with at most `longest` characters, for children whose own children have longer names.
pub fn with_suffix_within(name: &str, suffix: &str, longest: usize) -> String {
    let full = format!("{name}{suffix}");
    if full.len() <= longest { full } else { format!("{}{suffix}", hashed(name, longest - suffix.len())) }
}

/// Service names are DNS-1035 labels: `qwen2.5-chat` and `7b` are valid object names but not valid Service names.
pub fn service(name: &str) -> String {
    if is_dns_1035(name) { name.to_owned() } else { hashed(name, LONGEST) }
}

fn is_dns_1035(name: &str) -> bool {
    name.len() <= LONGEST
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// A DNS-1035 label of at most `longest` characters: the readable part of the name and a hash.
fn hashed(name: &str, longest: usize) -> String {
    let readable: String =
        name.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).collect();
    let readable = readable.trim_matches('-');
    let prefix = if readable.starts_with(|first: char| first.is_ascii_lowercase()) { "" } else { "m-" };
    let room = longest - HASH - 1 - prefix.len();
    let shortened = readable.get(..readable.len().min(room)).unwrap_or_default().trim_end_matches('-');
    format!("{prefix}{shortened}-{}", hash(name)).replace("--", "-")
}

fn hash(name: &str) -> String {
    digest(name, HASH / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_valid_name_is_used_unchanged() {
        assert_eq!(service("qwen-chat"), "qwen-chat");
        assert_eq!(with_suffix("qwen-chat", "-model"), "qwen-chat-model");
    }

    #[test]
    fn an_invalid_name_becomes_a_readable_label_with_a_hash() {
        assert_eq!(service("qwen2.5-chat"), "qwen2-5-chat-a07fabc1");
        assert_eq!(service("7b"), "m-7b-925a7bf1");
        assert!(service("qwen2.5") != service("qwen2-5"));
    }

    proptest! {
        #[test]
        fn every_service_name_is_a_dns_1035_label(name in "[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?") {
            prop_assert!(is_dns_1035(&service(&name)), "{}", service(&name));
        }

        #[test]
        fn no_child_name_exceeds_the_length_of_a_label(name in "[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?") {
            prop_assert!(with_suffix(&name, "-model").len() <= LONGEST);
        }

        #[test]
        fn different_objects_have_different_services(
            one in "[a-z0-9]([-.a-z0-9]{0,8}[a-z0-9])?",
            other in "[a-z0-9]([-.a-z0-9]{0,8}[a-z0-9])?",
        ) {
            prop_assume!(one != other);
            prop_assert_ne!(service(&one), service(&other));
        }
    }
}
