//! Names of children: the object's own name wherever Kubernetes accepts it, else a readable form with a hash. Pure.
//!
//! Stable: a name never changes while the object lives, and two objects never get the same one.

use crate::digest::digest;

/// Longest name of a Service, and of anything that becomes a label value.
const LONGEST: usize = 63;
/// 32 bits; a clash within a namespace would show as an ownership conflict.
const HASH: usize = 8;

/// `<name><suffix>`, for any object name; the suffix is always whole.
pub fn with_suffix(name: &str, suffix: &str) -> String {
    let full = format!("{name}{suffix}");
    if full.len() <= LONGEST { full } else { format!("{}{suffix}", hashed(name, LONGEST - suffix.len())) }
}

/// A Service is a DNS-1035 label: `qwen2.5-chat` and `7b` are names of objects, but not of Services.
pub fn service(name: &str) -> String {
    if is_dns_1035(name) { name.to_owned() } else { hashed(name, LONGEST) }
}

fn is_dns_1035(name: &str) -> bool {
    name.len() <= LONGEST
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// A DNS-1035 label of at most `longest` characters that still reads like the name.
fn hashed(name: &str, longest: usize) -> String {
    let readable: String =
        name.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).collect();
    let readable = readable.trim_matches('-');
    let prefix = if readable.starts_with(|first: char| first.is_ascii_lowercase()) { "" } else { "m-" };
    let room = longest - HASH - 1 - prefix.len();
    let kept = readable.get(..readable.len().min(room)).unwrap_or_default().trim_end_matches('-');
    format!("{prefix}{kept}-{}", hash(name)).replace("--", "-")
}

fn hash(name: &str) -> String {
    digest(name, HASH / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_kubernetes_takes_stays() {
        assert_eq!(service("qwen-chat"), "qwen-chat");
        assert_eq!(with_suffix("qwen-chat", "-model"), "qwen-chat-model");
    }

    #[test]
    fn a_name_that_is_no_label_stays_readable() {
        assert_eq!(service("qwen2.5-chat"), "qwen2-5-chat-a07fabc1");
        assert_eq!(service("7b"), "m-7b-925a7bf1");
        assert!(service("qwen2.5") != service("qwen2-5"));
    }

    proptest! {
        #[test]
        fn every_object_name_gives_a_service_name_that_is_a_label(name in "[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?") {
            prop_assert!(is_dns_1035(&service(&name)), "{}", service(&name));
        }

        #[test]
        fn no_child_name_is_longer_than_a_label(name in "[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?") {
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
