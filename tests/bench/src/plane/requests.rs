//! The requests of a controller, counted from the API server's audit log. Pure.

use std::{collections::BTreeMap, fmt};

use local_cluster::api_server::audit;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whose {
    /// The ServiceAccount of the controller.
    pub(crate) controller: &'static str,
    /// The kinds that it makes, as resources.
    pub(crate) children: &'static [&'static str],
}

/// What the controller asked for, without its Lease and its watches.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) children: usize,
    pub(crate) status: usize,
    pub(crate) events: usize,
    pub(crate) other_writes: usize,
    pub(crate) reads: usize,
    /// By verb, resource and, if it was refused, code.
    each: BTreeMap<String, usize>,
    /// Writes of a status, by the name of the object.
    status_of: BTreeMap<String, usize>,
    objects: usize,
}

/// From here on an answer is a refusal.
const REFUSED: u16 = 400;

impl Requests {
    /// Those among the events; `objects` is what averages are taken over.
    pub(crate) fn of(whose: Whose, events: &[audit::Event], objects: usize) -> Self {
        let mut requests = Self { objects, ..Self::default() };
        for event in events.iter().filter(|event| is_counted(event, whose.controller)) {
            requests.count(event, whose.children);
        }
        requests
    }

    pub(crate) fn total(&self) -> usize {
        self.each.values().sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// How many objects had so many writes of their status.
    pub(crate) fn status_writes(&self) -> BTreeMap<usize, usize> {
        let mut objects = BTreeMap::new();
        for writes in self.status_of.values() {
            *objects.entry(*writes).or_default() += 1;
        }
        objects
    }

    fn count(&mut self, event: &audit::Event, children: &[&str]) {
        let audit::Event { verb, resource, subresource, .. } = event;
        let counter = match (verb.as_str(), resource.as_str(), subresource.as_str()) {
            ("get" | "list", _, _) => &mut self.reads,
            (_, child, "") if children.contains(&child) => &mut self.children,
            (_, _, "status") => &mut self.status,
            (_, "events", _) => &mut self.events,
            _ => &mut self.other_writes,
        };
        *counter += 1;
        if subresource == "status" && verb != "get" {
            *self.status_of.entry(event.name.clone()).or_default() += 1;
        }
        let separator = if subresource.is_empty() { "" } else { "/" };
        let refused = match event.code {
            Some(code) if code >= REFUSED => format!(", refused with {code}"),
            Some(_) => String::new(),
            None => ", without an answer".to_owned(),
        };
        *self.each.entry(format!("{verb} {resource}{separator}{subresource}{refused}")).or_default() += 1;
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.each {
            writeln!(f, "  {what:<50} {count:>7} {:>8.2}", *count as f64 / self.objects.max(1) as f64)?;
        }
        Ok(())
    }
}

fn is_counted(event: &audit::Event, controller: &str) -> bool {
    let is_ours = event.user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    is_ours.is_some_and(|(_, account)| account == controller)
        && event.verb != "watch"
        && event.resource != "leases"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(user: &str, verb: &str, resource: &str, subresource: &str, code: u16) -> audit::Event {
        audit::Event {
            user: user.to_owned(),
            user_agent: String::new(),
            credential: String::new(),
            verb: verb.to_owned(),
            uri: String::new(),
            group: String::new(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: String::new(),
            name: String::new(),
            code: Some(code),
            received: String::new(),
        }
    }

    #[test]
    fn requests_are_told_apart_and_those_of_others_left_out() {
        let ours = "system:serviceaccount:ai-system:inference-controller";
        let events = [
            event(ours, "patch", "configmaps", "", 201),
            event(ours, "patch", "deployments", "", 409),
            event(ours, "patch", "aiinferences", "status", 200),
            event(ours, "create", "events", "", 201),
            event(ours, "get", "configmaps", "", 200),
            event(ours, "delete", "pods", "", 200),
            event(ours, "watch", "pods", "", 200),
            event(ours, "update", "leases", "", 200),
            event("kubernetes-admin", "create", "aiinferences", "", 201),
        ];
        let whose = Whose { controller: "inference-controller", children: &["configmaps", "deployments"] };
        let requests = Requests::of(whose, &events, 1);
        let Requests { children, status, events, other_writes, reads, each, .. } = requests;
        assert_eq!((children, status, events, other_writes, reads), (2, 1, 1, 1, 1));
        assert_eq!(each["patch deployments, refused with 409"], 1);
    }

    #[test]
    fn objects_are_counted_by_their_writes_of_a_status() {
        let ours = "system:serviceaccount:ai-system:training-controller";
        let written = |name: &str| audit::Event {
            name: name.to_owned(),
            ..event(ours, "patch", "trainingjobs", "status", 200)
        };
        let events = [written("one"), written("two"), written("one"), written("three")];
        let whose = Whose { controller: "training-controller", children: &["jobs"] };
        assert_eq!(Requests::of(whose, &events, 3).status_writes(), BTreeMap::from([(1, 2), (2, 1)]));
    }
}
