//! PodDisruptionBudgets of the namespaces, as far as they matter to a pool: whom they belong to and which pods they select.
//! It writes none.
//!
//! Those of users count, too: the API server refuses every eviction of a pod that two budgets select.

use std::{collections::BTreeMap, sync::Arc};

use api::aidispatcher::AIDispatcher;
use k8s_openapi::{
    api::policy::v1::PodDisruptionBudget,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
};
use kube::Resource;
use runtime::{
    key::Key,
    process::Process,
    watch::{
        cache::{Cache, controller_of, is_of_kind},
        relations::Referrers,
    },
};
use serde::Deserialize;

use super::namespace_of;

/// One budget, without its status, which changes with every pod.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = PodDisruptionBudget)]
#[serde(from = "BudgetParts")]
pub(crate) struct BudgetView {
    pub(crate) metadata: ObjectMeta,
    /// `None` selects no pod.
    selector: Option<LabelSelector>,
    /// It counts evictions of pods that are not ready, too.
    pub(crate) counts_unready: bool,
}

/// Those of all namespaces, or of the one given by `--namespace`.
pub(crate) struct Budgets {
    pub(crate) all: Cache<BudgetView>,
    /// Those that belong to no AIDispatcher.
    others: Referrers,
}

/// The value of `unhealthyPodEvictionPolicy` with which evictions of pods that are not ready count.
pub(crate) const COUNTS_UNREADY: &str = "IfHealthyBudget";

/// Any user may write budgets: a longer selector is not kept, and selects nothing here.
const LONGEST_SELECTOR: usize = 2_048;

impl Budgets {
    pub(crate) fn watched(process: &mut Process) -> Self {
        Self::of(process.watch("AnyPodDisruptionBudget"))
    }

    fn of(all: Cache<BudgetView>) -> Self {
        let others =
            Referrers::of(&all, |budget: &BudgetView| budget.is_of_others().then(|| namespace_of(budget)));
        Self { all, others }
    }

    /// Those that belong to no AIDispatcher, in the order of their names.
    pub(crate) fn of_others(&self, namespace: &str) -> Vec<Arc<BudgetView>> {
        let keys = self.others.of_key(&Key::new(namespace, ""));
        keys.iter().filter_map(|key| self.all.get(key)).collect()
    }
}

impl BudgetView {
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether it belongs to no AIDispatcher.
    pub(crate) fn is_of_others(&self) -> bool {
        !controller_of(self).is_some_and(is_of_kind::<AIDispatcher>)
    }

    /// As the API server decides it.
    pub(crate) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let Some(LabelSelector { match_labels, match_expressions }) = &self.selector else { return false };
        match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
            && match_expressions.iter().flatten().all(|expression| holds(expression, labels))
    }
}

fn holds(expression: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let LabelSelectorRequirement { key, operator, values } = expression;
    let value = labels.get(key);
    let is_listed = || value.is_some_and(|value| values.iter().flatten().any(|listed| listed == value));
    match operator.as_str() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        // The API server accepts no other one.
        _ => false,
    }
}

#[derive(Deserialize)]
struct BudgetParts {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: BudgetSpecParts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetSpecParts {
    selector: Option<LabelSelector>,
    unhealthy_pod_eviction_policy: Option<String>,
}

impl From<BudgetParts> for BudgetView {
    fn from(BudgetParts { metadata, spec }: BudgetParts) -> Self {
        let is_short = |selector: &LabelSelector| {
            serde_json::to_string(selector).is_ok_and(|text| text.len() <= LONGEST_SELECTOR)
        };
        let mut owners = metadata.owner_references.into_iter().flatten();
        let metadata = ObjectMeta {
            owner_references: owners.find(|owner| owner.controller == Some(true)).map(|owner| vec![owner]),
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        // Without the field, the API server counts them as well.
        let counts_unready = spec.unhealthy_pod_eviction_policy.is_none_or(|policy| policy == COUNTS_UNREADY);
        Self { metadata, selector: spec.selector.filter(is_short), counts_unready }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(spec: &str) -> BudgetView {
        let text = format!("{{metadata: {{name: theirs, namespace: demo, labels: {{a: b}}}}, spec: {spec}}}");
        serde_saphyr::from_str(&text).unwrap()
    }

    #[test]
    fn a_budget_selects_as_the_api_server_does() {
        let labels: BTreeMap<String, String> =
            [("team", "a"), ("app", "coder")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let selects = |selector: &str| budget(&format!("{{selector: {selector}}}")).selects(&labels);
        for matching in [
            "{}",
            "{matchLabels: {team: a}}",
            "{matchExpressions: [{key: team, operator: In, values: [a, b]}, {key: app, operator: Exists}]}",
            "{matchExpressions: [{key: other, operator: NotIn, values: [a]}]}",
            "{matchExpressions: [{key: other, operator: DoesNotExist}]}",
        ] {
            assert!(selects(matching), "{matching}");
        }
        for other in [
            "{matchLabels: {team: a, app: planner}}",
            "{matchLabels: {app: coder}, matchExpressions: [{key: app, operator: DoesNotExist}]}",
            "{matchExpressions: [{key: team, operator: NotIn, values: [a]}]}",
            "{matchExpressions: [{key: other, operator: In, values: [a]}]}",
        ] {
            assert!(!selects(other), "{other}");
        }
        assert!(!budget("{}").selects(&labels), "without a selector it selects none");
        let long = format!("{{matchLabels: {{team: {}}}}}", "a".repeat(LONGEST_SELECTOR));
        assert_eq!(budget(&format!("{{selector: {long}}}")).selector, None);
    }

    #[test]
    fn budgets_of_others_are_found_by_their_namespace() {
        let budgets = Budgets::of(Cache::default());
        let put = |name: &str, namespace: &str, kind: &str| {
            let owner = format!("{{apiVersion: {kind}, name: coder, uid: u, controller: true}}");
            let metadata =
                format!("{{name: {name}, namespace: {namespace}, uid: {name}, ownerReferences: [{owner}]}}");
            budgets.all.upsert(serde_saphyr::from_str(&format!("{{metadata: {metadata}}}")).unwrap());
        };
        put("b", "demo", "apps/v1, kind: Deployment");
        put("a", "demo", "apps/v1, kind: Deployment");
        put("coder-workers", "demo", "southwest.ai/v1alpha1, kind: AIDispatcher");
        put("c", "other", "apps/v1, kind: Deployment");
        let names = |namespace: &str| {
            let found = budgets.of_others(namespace);
            found.iter().map(|budget| budget.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            (names("demo"), names("other")),
            (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()])
        );
    }

    #[test]
    fn of_a_budget_only_what_decides_is_kept() {
        let kept = budget("{unhealthyPodEvictionPolicy: AlwaysAllow}");
        assert_eq!(
            (kept.metadata.labels.as_ref(), kept.counts_unready, kept.name()),
            (None, false, "theirs")
        );
        assert!(budget("{unhealthyPodEvictionPolicy: IfHealthyBudget}").counts_unready);
    }
}
