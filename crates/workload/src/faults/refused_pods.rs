//! Which field lets a pod be created that a quota, a LimitRange or a policy refused. Pure.

/// `; set …`, or an empty text if the message does not tell. `helpers`: names of the controller's own containers, with the
/// field of their resources.
pub fn fix(message: &str, helpers: &[(&str, &str)]) -> String {
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if says(&["must specify"]) {
        return missing_amounts(message, helpers);
    }
    // A LimitRange names no container.
    if says(&["per Container", "per Pod"]) && says(&["minimum", "maximum", "ratio", "No limit"]) {
        let of_helpers =
            helpers.first().map(|(_, field)| format!(", or {field} for the controller's own containers"));
        return format!("; set spec.resources{}", of_helpers.unwrap_or_default());
    }
    if says(&["exceeded quota"]) && says(&["cpu=", "memory=", "ephemeral-storage="]) {
        let or = helpers.first().map(|(_, field)| format!(" or {field}"));
        return format!("; lower spec.resources{}, or raise the quota", or.unwrap_or_default());
    }
    if says(&["runAsUser", "runAsGroup", "fsGroup", "security context constraint"]) {
        return "; set spec.securityContext, whose ids are left to the platform with ids: Platform"
            .to_owned();
    }
    String::new()
}

/// A quota on limits or requests: `must specify limits.cpu for: engine,model-loader; requests.cpu for: engine`.
fn missing_amounts(message: &str, helpers: &[(&str, &str)]) -> String {
    let lists = message.split("for: ").skip(1).filter_map(|rest| rest.split(';').next());
    let named: Vec<&str> = lists.flat_map(|list| list.split(',')).map(str::trim).collect();
    let of_helper = |name: &&str| helpers.iter().find(|(helper, _)| helper == name).map(|(_, field)| *field);
    // Before Kubernetes 1.24 the message names no container.
    let main =
        (named.is_empty() || named.iter().any(|name| of_helper(name).is_none())).then_some("spec.resources");
    let all: Vec<&str> = if named.is_empty() {
        helpers.iter().map(|(_, field)| *field).collect()
    } else {
        named.iter().filter_map(of_helper).collect()
    };
    let mut fields: Vec<&str> = Vec::new();
    for field in main.into_iter().chain(all) {
        if !fields.contains(&field) {
            fields.push(field);
        }
    }
    format!("; set {}", fields.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELPERS: [(&str, &str); 2] =
        [("loader", "spec.helperResources"), ("monitor", "spec.helperResources")];

    #[test]
    fn a_refusal_names_the_field_that_mends_it() {
        let quota = "pods \"a\" is forbidden: failed quota: team: must specify";
        for (message, expected) in [
            (format!("{quota} limits.cpu for: engine"), "; set spec.resources"),
            (format!("{quota} limits.cpu for: loader,monitor"), "; set spec.helperResources"),
            (
                format!("{quota} limits.cpu for: engine,loader; requests.cpu for: loader"),
                "; set spec.resources and spec.helperResources",
            ),
            (format!("{quota} limits.cpu"), "; set spec.resources and spec.helperResources"),
            (
                "pods \"a\" is forbidden: minimum cpu usage per Container is 100m, but request is 10m"
                    .to_owned(),
                "; set spec.resources, or spec.helperResources for the controller's own containers",
            ),
            (
                "runAsUser must be absent or in the range 1000680000-1000689999 of this namespace".to_owned(),
                "; set spec.securityContext, whose ids are left to the platform with ids: Platform",
            ),
            ("pods \"a\" is forbidden: exceeded quota: gpus, requested: pods=1".to_owned(), ""),
            (
                "exceeded quota: a, requested: limits.cpu=4, used: limits.cpu=0, limited: limits.cpu=3"
                    .to_owned(),
                "; lower spec.resources or spec.helperResources, or raise the quota",
            ),
            ("admission webhook \"a\" denied the request: no".to_owned(), ""),
        ] {
            assert_eq!(fix(&message, &HELPERS), expected, "{message}");
        }
    }
}
