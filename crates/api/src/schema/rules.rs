//! CEL rules shared by several fields, and their messages.
//!
//! The API server prefixes messages with the field's path, so they start with "must" or name the required field. Every string
//! that a rule matches needs a `maxLength`: the API server refuses rules whose estimated cost is too high.

use kube::core::{Reason, Rule};

/// `metadata.name` becomes a label value and part of child names.
pub(crate) fn name_fits_a_label() -> Rule {
    Rule::new("size(self.metadata.name) <= 63")
        .message("metadata.name must not be longer than 63 characters, because pods carry it as a label")
}

/// Name of a Secret, claim, class or ServiceAccount.
pub(crate) fn object_name() -> Rule {
    pattern(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "must be the name of an object: lower case letters, digits, '-' and '.'",
    )
}

pub(crate) fn env_name() -> Rule {
    pattern(
        r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
        "must be the name of a variable: letters, digits, '_', '-' and '.', not starting with a digit",
    )
}

/// A directory for a volume mount, in canonical form, so that paths can be compared as strings. Directories of the image or
/// the kernel are refused.
pub(crate) fn mountable_path() -> Rule {
    Rule::new(concat!(
        r"self.matches(r'^(/[^/:\s\pC]+)+$') && !self.contains('..') && !self.matches(r'/\.(/|$)') && ",
        r"!self.matches(r'^/(bin|boot|dev|etc|lib|lib32|lib64|libx32|proc|root|run|sbin|sys|tmp|usr|var)(/|$)')"
    ))
    .message(
        "must be an absolute path such as /output, without '..', ':', spaces and a slash at the end, and outside the \
         folders of the system (/etc, /usr, /tmp …)",
    )
}

/// A directory for a volume of the user, in canonical form, also below most folders of the image.
pub(crate) fn user_mount_path() -> Rule {
    Rule::new(concat!(
        r"self.matches(r'^(/[^/:\s\pC]+)+$') && !self.contains('..') && !self.matches(r'/\.(/|$)') && ",
        r"!self.matches(r'^/(boot|dev|proc|sys)(/|$)') && ",
        r"!self.matches(r'^/(bin|etc|home|lib|lib32|lib64|libx32|opt|root|run|sbin|tmp|usr|var)$')"
    ))
    .message(
        "must be an absolute path such as /templates, without '..', ':', spaces and a slash at the end, and no folder of \
         the system (/etc, /usr, /dev …)",
    )
}

/// A path inside a volume.
pub(crate) fn sub_path() -> Rule {
    Rule::new(r"self.matches(r'^[^/:\s\pC]+(/[^/:\s\pC]+)*$') && !self.matches(r'(^|/)[.]{1,2}(/|$)')")
        .message("must be a relative path such as adapters/german, without '.', '..', ':' and spaces")
}

pub(crate) fn volume_name() -> Rule {
    pattern(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "must consist of lower case letters, digits and '-', and start and end with a letter or digit",
    )
}

/// Key of a label, with or without a domain.
pub(crate) fn label_key() -> Rule {
    pattern(
        r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        "must be the key of a label, such as topology.kubernetes.io/zone",
    )
}

/// User information is refused, because URLs appear in logs and statuses.
pub(crate) fn http_url() -> Rule {
    pattern(
        r"^https?://[^\s/?#@]+([/?#]\S*)?$",
        "must be an http:// or https:// URL without user name, password and spaces",
    )
}

/// Path of a request, without a host.
pub(crate) fn url_path() -> Rule {
    pattern(r"^/[!-~]*$", "must begin with a slash and have neither spaces nor control characters")
}

pub(crate) fn s3_uri() -> Rule {
    pattern(
        r"^s3://[A-Za-z0-9][A-Za-z0-9._-]*(/[^\s\pC]*)?$",
        "must be s3://bucket or s3://bucket/prefix, without spaces and control characters",
    )
}

/// Digest of a file in canonical form, so that digests can be compared as strings.
pub(crate) fn sha256_digest() -> Rule {
    pattern(r"^sha256:[0-9a-f]{64}$", "must be sha256: and 64 hexadecimal digits in lower case")
}

/// Region of an object store.
pub(crate) fn region() -> Rule {
    pattern(r"^[A-Za-z0-9][-A-Za-z0-9_.]*$", "must be a region such as us-east-1")
}

pub(crate) fn image() -> Rule {
    pattern(
        r"^[A-Za-z0-9]\S*$",
        "must be an image reference without spaces, such as registry.example/engine:1.2",
    )
}

/// Name of an extended resource; unlike `cpu` and `memory` it has a domain.
pub(crate) fn extended_resource() -> Rule {
    pattern(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "must be the name of an extended resource with its domain, such as nvidia.com/gpu",
    )
}

/// A product (`A100`) or a node label (`label.key=value`).
pub(crate) const PRODUCT_LABEL: &str = concat!(
    r"^(([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?=)?",
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
);

pub(crate) fn product_label() -> Rule {
    pattern(
        PRODUCT_LABEL,
        "must be a GPU product such as A100, or a node label such as nvidia.com/gpu.product=A100",
    )
}

/// Refuses flags that only the controller may set, as `--x v` and `--x=v`. `-` and `_` between words are equivalent, as in the
/// Python engines.
///
/// The rule belongs to the object with `field`, a list of arguments, and applies only if the expression `applies` is true.
pub(crate) fn owned_flags(field: &str, applies: &str, flags: &[&str]) -> Rule {
    let alternatives = flags.iter().map(|flag| either_separator(flag)).collect::<Vec<_>>().join("|");
    // Unchanged arguments stay accepted: a flag that a later release adds to the list must not block other changes, such as
    // scaling.
    let old = "oldSelf.value()";
    let unchanged = format!(
        "oldSelf.hasValue() && has({old}.{field}) && has(self.{field}) && {old}.{field} == self.{field} && ({})",
        applies.replace("self.", "oldSelf.value().")
    );
    Rule::new(format!(
        "!({applies}) || !has(self.{field}) || ({unchanged}) || \
         !self.{field}.exists(a, a.matches(r'^({alternatives})(=|$)'))"
    ))
    .optional_old_self(true)
    .message(format!("must not set a flag that the controller sets: {}", flags.join(", ")).as_str())
    .field_path(format!(".{field}"))
    .reason(Reason::FieldValueForbidden)
}

/// `--http-port` as a regular expression that also matches `--http_port`.
fn either_separator(flag: &str) -> String {
    let words = flag.trim_start_matches('-');
    let dashes = &flag[..flag.len() - words.len()];
    format!("{dashes}{}", words.replace(['-', '_'], "[-_]"))
}

/// `regex` is RE2 and must not contain a single quote.
fn pattern(regex: &str, message: &str) -> Rule {
    Rule::new(format!("self.matches(r'{regex}')")).message(message)
}

/// Other metrics say nothing of how many requests are in hand.
pub(crate) fn completions_are_of_a_queue() -> Rule {
    Rule::new(
        "self.metricType == 'queue_depth' || !has(self.source) || !has(self.source.prometheus) || \
         !has(self.source.prometheus.completionsQuery)",
    )
    .message("completionsQuery needs metricType queue_depth")
    .field_path(".source.prometheus.completionsQuery")
}
