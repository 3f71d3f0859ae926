//! Label selectors of targets, and an index of pods by their labels, so that the pods of one target are found without a
//! look at all pods. It decides nothing about a pod.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Expression, SelectorExt};
use runtime::{key::Key, watch::cache::Cache};

use super::pod::PodView;

/// A selector that does not select every pod.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    all: kube::core::Selector,
    /// Of the labels that it requires with one value.
    required: Vec<Label>,
}

/// Keys and values of a selector. The API server sets no limit.
const MOST_WORDS: usize = 256;

/// Key and value.
type Label = (Box<str>, Box<str>);

impl Selector {
    /// `None`: it selects every pod, cannot be read, or has more than 256 keys and values.
    pub(crate) fn of(selector: LabelSelector) -> Option<Self> {
        Self::new(kube::core::Selector::try_from(selector).ok()?)
    }

    /// From `status.selector` of a scale or of the kinds of this project, as the API server writes selectors:
    /// `a=b,c!=d,e in (f,g),h notin (i),j,!k`. `None` as well if any part of it cannot be read: a part less would select
    /// more pods.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut requirements = Vec::new();
        for part in parts(text) {
            requirements.push(requirement(part.trim())?);
        }
        Self::new(requirements.into_iter().collect())
    }

    fn new(all: kube::core::Selector) -> Option<Self> {
        if all.selects_all() || words(&all) > MOST_WORDS {
            return None;
        }
        let required = all.clone().into_iter().filter_map(|expression| match expression {
            Expression::Equal(key, value) => Some((key.into(), value.into())),
            Expression::In(key, values) if values.len() == 1 => {
                values.into_iter().next().map(|value| (key.into(), value.into()))
            }
            Expression::In(..)
            | Expression::NotIn(..)
            | Expression::NotEqual(..)
            | Expression::Exists(_)
            | Expression::DoesNotExist(_) => None,
        });
        let required = required.collect();
        Some(Self { all, required })
    }

    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.all.matches(labels)
    }
}

fn words(selector: &kube::core::Selector) -> usize {
    let of = |expression: Expression| match expression {
        Expression::In(_, values) | Expression::NotIn(_, values) => 1 + values.len(),
        Expression::Equal(..) | Expression::NotEqual(..) => 2,
        Expression::Exists(_) | Expression::DoesNotExist(_) => 1,
    };
    selector.clone().into_iter().map(of).sum()
}

/// The text at its commas outside of parentheses.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

fn requirement(part: &str) -> Option<Expression> {
    let owned = |text: &str| is_word(text).then(|| text.to_owned());
    // A value may be empty, a key may not.
    let value = |text: &str| if text.is_empty() { Some(String::new()) } else { owned(text) };
    if let Some((key, set)) = part.split_once(" notin ") {
        return Some(Expression::NotIn(owned(key.trim())?, values(set)?));
    }
    if let Some((key, set)) = part.split_once(" in ") {
        return Some(Expression::In(owned(key.trim())?, values(set)?));
    }
    if let Some((key, other)) = part.split_once("!=") {
        return Some(Expression::NotEqual(owned(key.trim())?, value(other.trim())?));
    }
    if let Some((key, other)) = part.split_once('=') {
        let other = other.strip_prefix('=').unwrap_or(other);
        return Some(Expression::Equal(owned(key.trim())?, value(other.trim())?));
    }
    match part.strip_prefix('!') {
        Some(key) => Some(Expression::DoesNotExist(owned(key.trim())?)),
        None => Some(Expression::Exists(owned(part)?)),
    }
}

fn values(set: &str) -> Option<BTreeSet<String>> {
    let listed = set.trim().strip_prefix('(')?.strip_suffix(')')?;
    let value = |value: &str| is_word(value.trim()).then(|| value.trim().to_owned());
    listed.split(',').map(value).collect()
}

/// The characters of keys and values of labels.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        self.all.to_string() == other.all.to_string()
    }
}

/// By namespace and label, the pods that have it. Every pod whose labels are known has the empty label.
#[derive(Clone, Default)]
pub(crate) struct PodsByLabel(Arc<Mutex<Index>>);

type Index = HashMap<(Arc<str>, Label), HashSet<Key>>;

impl PodsByLabel {
    /// Kept up to date by every change of a pod.
    pub(crate) fn of(pods: &Cache<PodView>) -> Self {
        let index = Self::default();
        let kept = index.clone();
        pods.subscribe(move |change| {
            let labels = |pod: Option<&Arc<PodView>>| pod.map(|pod| labels_of(pod)).unwrap_or_default();
            let (before, after) = (labels(change.old), labels(change.new));
            if before != after {
                kept.update(change.key, &before, &after);
            }
        });
        index
    }

    fn update(&self, pod: &Key, before: &BTreeSet<Label>, after: &BTreeSet<Label>) {
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in before.difference(after) {
            let entry = (pod.namespace.clone(), gone.clone());
            if let Some(pods) = index.get_mut(&entry) {
                pods.remove(pod);
                if pods.is_empty() {
                    index.remove(&entry);
                }
            }
        }
        for added in after.difference(before) {
            index.entry((pod.namespace.clone(), added.clone())).or_default().insert(pod.clone());
        }
    }

    /// The pods of a namespace that the selector matches.
    pub(crate) fn matching(
        &self,
        pods: &Cache<PodView>,
        namespace: &Arc<str>,
        selector: &Selector,
    ) -> Vec<Arc<PodView>> {
        let matches = |pod: &Arc<PodView>| selector.matches(&pod.labels);
        let candidates: Vec<Key> = {
            let index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let of = |label: &Label| index.get(&(namespace.clone(), label.clone()));
            let rarest = selector.required.iter().map(of).min_by_key(|pods| pods.map_or(0, HashSet::len));
            // It may require no label with one value, such as `app in (a, b)`.
            rarest.unwrap_or_else(|| of(&Label::default())).into_iter().flatten().cloned().collect()
        };
        let mut found: Vec<Arc<PodView>> =
            candidates.iter().filter_map(|key| pods.get(key)).filter(matches).collect();
        found.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        found
    }
}

fn labels_of(pod: &PodView) -> BTreeSet<Label> {
    if pod.has_too_many_labels {
        return BTreeSet::new();
    }
    let labels = pod.labels.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into()));
    labels.chain([Label::default()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, version: u32, labels: &str) -> PodView {
        let version = format!("resourceVersion: '{version}'");
        let text = format!(
            "{{metadata: {{name: {name}, namespace: demo, uid: {name}, {version}, labels: {labels}}}}}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    fn selector(text: &str) -> Option<Selector> {
        Selector::of(serde_saphyr::from_str(text).unwrap())
    }

    #[test]
    fn a_selector_of_every_pod_is_none() {
        assert_eq!(selector("{}"), None);
        assert_eq!(Selector::parse(""), None);
        assert_eq!(Selector::parse("app=a,b=c"), selector("{matchLabels: {app: a, b: c}}"));
    }

    #[test]
    fn a_selector_in_words_is_read_as_the_api_server_writes_it() {
        let labels = |text: &str| -> BTreeMap<String, String> { serde_saphyr::from_str(text).unwrap() };
        let text = "a=b,c==d,e!=f,g in (h, i),j notin (k),l,!m,n=";
        let read = Selector::parse(text).unwrap();
        let matching = "{a: b, c: d, e: x, g: i, j: x, l: x, n: ''}";
        assert!(read.matches(&labels(matching)));
        for (from, to) in [
            ("a: b", "a: x"),
            ("c: d", "c: x"),
            ("e: x", "e: f"),
            ("g: i", "g: x"),
            ("j: x", "j: k"),
            ("l: x", "z: x"),
            ("n: ''", "m: ''"),
        ] {
            assert!(!read.matches(&labels(&matching.replace(from, to))), "{to}");
        }
    }

    #[test]
    fn a_selector_that_cannot_be_read_whole_is_none() {
        for text in ["a=b,", ",", "=b", "a in ()", "a in (b", "a in b", "a=b c", "a>3", "a=b,c=(d)", "!", " "]
        {
            assert_eq!(Selector::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_selector_of_more_words_than_anyone_writes_is_none() {
        let of = |values: usize| {
            let values: Vec<String> = (0..values).map(|number| format!("v{number}")).collect();
            Selector::parse(&format!("app in ({})", values.join(",")))
        };
        assert!(of(MOST_WORDS - 1).is_some());
        assert!(of(MOST_WORDS).is_none());
    }

    #[test]
    fn a_pod_of_more_labels_than_anyone_sets_is_in_no_index() {
        let pods = Cache::default();
        let index = PodsByLabel::of(&pods);
        let labels = |count: usize| {
            let labels: Vec<String> = (0..count).map(|number| format!("a{number}: x")).collect();
            format!("{{{}}}", labels.join(", "))
        };
        pods.upsert(pod("many", 1, &labels(65)));
        pods.upsert(pod("some", 1, &labels(64)));
        let found = index.matching(&pods, &"demo".into(), &Selector::parse("a0=x").unwrap());
        assert_eq!(found.iter().map(|pod| pod.uid()).collect::<Vec<_>>(), ["some"]);
        let without = index.matching(&pods, &"demo".into(), &Selector::parse("!b").unwrap());
        assert_eq!(without.iter().map(|pod| pod.uid()).collect::<Vec<_>>(), ["some"]);
        assert_eq!(index.0.lock().unwrap().len(), 65, "64 and the empty one");
    }

    #[test]
    fn the_pods_of_a_selector_are_found_and_forgotten() {
        let pods = Cache::default();
        let index = PodsByLabel::of(&pods);
        for (name, labels) in [("a", "{app: x, tier: gpu}"), ("b", "{app: y, tier: gpu}"), ("c", "{app: x}")]
        {
            pods.upsert(pod(name, 1, labels));
        }
        let found = |text: &str| -> Vec<String> {
            let found = index.matching(&pods, &"demo".into(), &selector(text).unwrap());
            found.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
        };
        assert_eq!(found("{matchLabels: {app: x}}"), ["a", "c"]);
        assert_eq!(found("{matchLabels: {app: x, tier: gpu}}"), ["a"]);
        assert_eq!(found("{matchLabels: {app: z}}"), [""; 0]);
        let either = "{matchExpressions: [{key: app, operator: In, values: [x, y]}]}";
        assert_eq!(found(either), ["a", "b", "c"]);
        assert!(index.matching(&pods, &"other".into(), &selector(either).unwrap()).is_empty());
        pods.upsert(pod("c", 2, "{app: y}"));
        assert_eq!(found("{matchLabels: {app: x}}"), ["a"]);
        pods.remove(&pod("a", 3, "{}").metadata);
        assert_eq!(found("{matchLabels: {app: x}}"), [""; 0]);
    }
}
