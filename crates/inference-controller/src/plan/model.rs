//! The model that pods have loaded, by the termination messages of their loaders: for the status, and for the loaders of the
//! pods that follow. Pure.
//!
//! A pod must load what the pods of its revision have loaded that serve, or answers would depend on the pod. The loaders
//! compare: they get the digests from a ConfigMap. Where no pod serves there is nothing to differ from.
//!
//! The revision of a model of a hub is resolved once for a template. Later loaders get the commit, also where no pod serves.

use std::collections::BTreeMap;

use api::{
    aiinference::{AIInference, LoadedModel, traffic::CanaryPhase},
    labels,
    loader::Loaded,
};
use k8s_openapi::api::core::v1::ConfigMap;
use workload::{
    templates::revision::{DesiredTemplate, Revision},
    views::{
        node::LossKind,
        pod::{PodView, Terminated},
    },
};

use super::metadata::metadata_of;
use crate::{
    names::{self, ENGINE, LOADER},
    observe::{Observed, claim_key},
    validate,
};

/// Tools that restart pods when a ConfigMap changes would do so with every pod that becomes ready.
const IGNORED_BY_RELOADER: &str = "reloader.stakater.com/ignore";

/// The ConfigMap for the loaders. It follows the pods alone, so it is written also for a paused object and an invalid spec.
/// Where there is one, it always has the key: nothing old, and nothing of another writer, may keep a pod from loading.
pub(super) fn record(observed: &Observed) -> Option<ConfigMap> {
    let digests = digests(observed);
    if digests.is_empty() && observed.digests.is_none() {
        return None;
    }
    let inference: &AIInference = &observed.inference;
    let (namespace, name) = (inference.metadata.namespace.as_deref()?, inference.metadata.name.as_deref()?);
    let mut metadata = metadata_of(namespace, name, validate::owner(inference).ok()?, names::digests(name));
    metadata.annotations = Some([(IGNORED_BY_RELOADER.to_owned(), "true".to_owned())].into());
    let data = [(names::DIGESTS.to_owned(), digests)];
    Some(ConfigMap { metadata, data: Some(data.into()), ..ConfigMap::default() })
}

fn digests(observed: &Observed) -> String {
    let mut of_revisions = BTreeMap::<&str, Vec<&PodView>>::new();
    // A pod that leaves must be replaced, whatever it has loaded.
    let is_leaving =
        |pod: &PodView| pod.node.as_ref().is_some_and(|node| observed.leaving_nodes.contains(node));
    for pod in observed.pods().chain(candidates(observed)).filter(|pod| !is_leaving(pod)) {
        if let Some(revision) = revision_of(pod) {
            of_revisions.entry(revision).or_default().push(pod);
        }
    }
    // A commit is kept also while no pod is there.
    let pinned = [Some(observed), observed.candidate.as_deref()].into_iter().flatten();
    for revision in pinned.filter_map(|version| version.deployed_revision.as_deref()) {
        of_revisions.entry(revision).or_default();
    }
    let lines = of_revisions.into_iter().flat_map(|(revision, pods)| {
        let is_deployed = observed.deployed_revision.as_deref() == Some(revision);
        let promoted = is_deployed.then(|| promoted_digest(observed)).flatten();
        let digest = first(pods.iter().copied(), observed).map(|(_, loaded)| loaded.digest);
        let of_candidate = promoted.as_ref().and_then(|_| first_of_hub(candidates(observed)));
        let digest = promoted.or(digest);
        let recorded = is_deployed.then(|| recorded_commit(observed)).flatten();
        let of_hub = || first_of_hub(pods.into_iter()).or(of_candidate);
        let commit = recorded.or_else(|| of_hub().map(|loaded| loaded.commit));
        let commit = commit.map(|commit| Loaded::commit_line(revision, &commit));
        [digest.map(|digest| Loaded::line(revision, &digest)), commit]
    });
    lines.flatten().collect()
}

/// What stable has to load while it gets the version of the candidate: the files that an evaluation has passed.
fn promoted_digest(observed: &Observed) -> Option<String> {
    let status = observed.inference.status.as_ref()?;
    let canary = status.canary.as_ref().filter(|canary| canary.phase == Some(CanaryPhase::Promoting))?;
    let promoted = status.promoted_revision.as_ref().filter(|promoted| **promoted == canary.revision)?;
    // Not while the Deployment still has the version of before.
    let (generation, refresh, reported) = (String::new(), None, None);
    let of_promoted = DesiredTemplate { spec_hash: promoted, generation, refresh, reported };
    let is_deployed = of_promoted.has_pods(observed.deployment.as_ref(), &[]);
    let passed = canary.evaluation.as_ref().filter(|passed| passed.confirmed && is_deployed)?;
    Some(passed.digest.clone())
}

/// Whether no ready pod of stable has loaded other files than an evaluation has passed, while it gets that version.
pub(super) fn has_promoted(revision: &Revision<'_>, observed: &Observed) -> bool {
    let Some(passed) = promoted_digest(observed) else { return true };
    let mut loaded = of_ready_pods(revision, observed).into_iter().filter_map(|(_, digest)| digest);
    loaded.all(|digest| digest == passed)
}

fn candidates(observed: &Observed) -> impl Iterator<Item = &PodView> {
    observed.candidate.iter().flat_map(|version| version.pods())
}

/// The commit that the status has of the Deployment's present template.
fn recorded_commit(observed: &Observed) -> Option<String> {
    let status = observed.inference.status.as_ref()?;
    let reported = status.resolved.as_ref()?.template.as_deref()?;
    let template = observed.deployment.as_ref()?.pinned_template.as_deref()?;
    let is_of_template = workload::templates::revision::digest_of(template) == reported;
    status.model.as_ref().filter(|_| is_of_template)?.revision.clone()
}

/// What the oldest pod has loaded from a hub. It need not serve: unlike the present files of a store, a commit can be loaded
/// again.
fn first_of_hub<'p>(pods: impl Iterator<Item = &'p PodView>) -> Option<Loaded> {
    let loaded = pods.filter_map(|pod| {
        let ended =
            pod.init_container(LOADER)?.state.terminated.as_ref().filter(|ended| ended.exit_code == 0)?;
        Some((pod, Loaded::of_message(&ended.message).filter(|loaded| !loaded.commit.is_empty())?))
    });
    let oldest = loaded
        .min_by(|(one, _), (other, _)| (one.created(), one.name()).cmp(&(other.created(), other.name())));
    oldest.map(|(_, loaded)| loaded)
}

/// `status.model`. What was seen of this template stays, because pods that do not serve say nothing about it. The commit of a
/// hub is that of the first loader that succeeded.
pub(super) fn status(revision: &Revision<'_>, observed: &Observed) -> Option<LoadedModel> {
    let before = observed.inference.status.as_ref().filter(|status| {
        let template = status.resolved.as_ref().and_then(|resolved| resolved.template.as_deref());
        template == Some(&*revision.digest())
    });
    let before = before.and_then(|status| status.model.clone());
    // A revision of a hub is resolved once.
    if before.as_ref().is_some_and(|model| model.revision.is_some()) {
        return before;
    }
    let pods = || revision.pods.iter().map(AsRef::as_ref);
    let loaded = first(pods(), observed).map(|(_, loaded)| loaded).or_else(|| first_of_hub(pods()));
    let loaded = loaded.map(|Loaded { digest, files, bytes, commit }| {
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let revision = Some(commit).filter(|commit| !commit.is_empty());
        LoadedModel { digest, files: count(files), bytes: count(bytes), revision }
    });
    loaded.or(before)
}

/// The ready pods of the revision, each with the digest of what it has loaded. `None`: its loader did not say, or its engine
/// may have read other files since.
pub(super) fn of_ready_pods(revision: &Revision<'_>, observed: &Observed) -> Vec<(String, Option<String>)> {
    let digest = |pod: &PodView| loaded(pod, observed).map(|(_, loaded)| loaded.digest);
    revision.ready().map(|pod| (pod.name().to_owned(), digest(pod))).collect()
}

/// Two pods of the revision that serve different models: they started at the same time, while the model was changed.
pub(super) fn differing(revision: &Revision<'_>, observed: &Observed) -> Option<String> {
    let pods = || revision.pods.iter().map(AsRef::as_ref);
    let (one, expected) = first(pods(), observed)?;
    let mut others = pods().filter_map(|pod| loaded(pod, observed));
    let (other, found) = others.find(|(_, found)| found.digest != expected.digest)?;
    Some(format!(
        "pods {} and {} have loaded different models ({} and {}); load the present one into all pods with a new value of the \
         annotation {}",
        one.name(),
        other.name(),
        expected.digest,
        found.digest,
        labels::REFRESH
    ))
}

/// The oldest pod that serves and whose loader says what it has loaded.
fn first<'p>(pods: impl Iterator<Item = &'p PodView>, observed: &Observed) -> Option<(&'p PodView, Loaded)> {
    pods.filter_map(|pod| loaded(pod, observed))
        .min_by(|(one, _), (other, _)| (one.created(), one.name()).cmp(&(other.created(), other.name())))
}

fn loaded<'p>(pod: &'p PodView, observed: &Observed) -> Option<(&'p PodView, Loaded)> {
    let loader = pod.init_container(LOADER)?;
    let ended = loader.state.terminated.as_ref().filter(|ended| ended.exit_code == 0)?;
    let serves = has_served(pod, ended) && has_still(pod, observed);
    Some((pod, Loaded::of_message(&ended.message)?)).filter(|_| serves)
}

/// Whether it has been ready with this model: Ready has changed since the model was loaded. An engine that starts again has
/// the same model.
fn has_served(pod: &PodView, loader: &Terminated) -> bool {
    pod.is_ready || pod.ready_changed.zip(loader.finished_at).is_some_and(|(ready, loaded)| ready > loaded)
}

/// Whether the model is still that of the loader. An engine that has started again has read a claim again.
fn has_still(pod: &PodView, observed: &Observed) -> bool {
    let reads_claim = claim_key(&observed.inference).is_some();
    let has_restarted = pod.container(ENGINE).is_none_or(|engine| engine.restart_count > 0);
    let lost = pod.node.as_ref().and_then(|node| observed.nodes.lost.get(node));
    !(reads_claim && has_restarted) && lost.is_none_or(|lost| lost.kind == LossKind::NotReady && pod.is_ready)
}

/// The label `pod-template-hash`: a ReplicaSet has it at the end of its name.
fn revision_of(pod: &PodView) -> Option<&str> {
    let owner = pod.metadata.owner_references.as_deref()?.first()?;
    owner.name.rsplit_once('-').map(|(_, hash)| hash)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use workload::views::node::NodeLoss;

    use super::*;
    use crate::tests::{Scene, at};

    fn digest(digit: &str) -> String {
        format!("sha256:{}", digit.repeat(64))
    }

    /// A pod of this age and revision that has loaded a model.
    fn pod(name: &str, created: i64, revision: &str, digit: &str, engine: &str) -> String {
        let loaded = Loaded { digest: digest(digit), files: 2, bytes: 7, commit: String::new() }.message();
        format!(
            "{{name: {name}, owner: chat-{revision}, created: '{}', node: gpu-{name}, phase: Running, {engine}, gpus: 1, \
             containers: [{{name: engine, restartCount: 1}}], init: [{{name: model-loader, state: {{terminated: {{exitCode: 0, \
             message: '{loaded}'}}}}}}]}}",
            at(created)
        )
    }

    const SERVES: &str = "ready: true";

    fn written(scene: &Scene) -> Option<String> {
        let record = scene.plan().digests?;
        assert_eq!(record.metadata.name.as_deref(), Some("chat-model-digests"));
        record.data.unwrap_or_default().remove(names::DIGESTS)
    }

    fn with(pods: &[String]) -> Scene {
        let mut scene = Scene::ready(pods.len());
        scene.pods(&pods.iter().map(String::as_str).collect::<Vec<_>>());
        scene
    }

    #[test]
    fn the_oldest_pod_of_each_revision_that_serves_says_what_the_others_must_load() {
        let mut scene = with(&[pod("b", 5, "7f9c", "b", SERVES), pod("a", 0, "7f9c", "a", SERVES)]);
        assert_eq!(written(&scene), Some(format!("7f9c {}\n", digest("a"))));
        let older = Arc::new(crate::tests::pod(&pod("c", 0, "5d4", "c", SERVES)));
        scene.older_pods(1);
        scene.observe(|observed| observed.older[0].pods = vec![older]);
        assert_eq!(written(&scene), Some(format!("5d4 {}\n7f9c {}\n", digest("c"), digest("a"))));
        scene.edit_spec(|spec| spec.pods.paused = true);
        assert_eq!(written(&scene), Some(format!("5d4 {}\n7f9c {}\n", digest("c"), digest("a"))), "paused");
    }

    /// A pod that has loaded a commit of a hub.
    fn pod_of_hub(name: &str, created: i64, commit: &str, engine: &str) -> String {
        let loaded = Loaded { digest: digest("a"), files: 2, bytes: 7, commit: String::new() }.message();
        let of_hub = loaded.replace('}', &format!(",\"commit\":\"{commit}\"}}"));
        pod(name, created, "7f9c", "a", engine).replace(&loaded, &of_hub)
    }

    #[test]
    fn a_revision_of_a_hub_is_resolved_once_for_a_template() {
        let [first, other] = ["1", "2"].map(|digit| digit.repeat(40));
        let mut scene =
            with(&[pod_of_hub("b", 5, &other, "ready: false"), pod_of_hub("a", 0, &first, "ready: false")]);
        let line = format!("7f9c commit:{first}\n");
        assert_eq!(
            written(&scene),
            Some(line.clone()),
            "a loader that has ended decides, before its pod serves"
        );
        let recorded = |scene: &Scene| scene.plan().status.model.and_then(|model| model.revision);
        assert_eq!(recorded(&scene), Some(first.clone()));
        scene.write_status();
        scene.observe(|observed| observed.digests = Some(Default::default()));

        scene.pods(&[&pod_of_hub("b", 5, &other, SERVES)]);
        assert_eq!(recorded(&scene), Some(first.clone()), "it stays, whatever another pod has loaded");
        scene.pods(&[]);
        scene.observe(|observed| observed.deployed_revision = Some("7f9c".to_owned()));
        assert_eq!(written(&scene), Some(line), "also while no pod is there");
        assert_eq!(recorded(&scene), Some(first));
        scene.edit_spec(|spec| spec.args = vec!["--max-model-len=1".into()]);
        assert_eq!(recorded(&scene), None, "another template");
    }

    #[test]
    fn the_annotation_refresh_takes_the_present_commit_of_a_hub() {
        let commit = "1".repeat(40);
        let mut scene = with(&[pod_of_hub("a", 0, &commit, SERVES)]);
        scene.write_status();
        let revision = |scene: &Scene| scene.plan().status.model.and_then(|model| model.revision);
        assert_eq!(revision(&scene), Some(commit));
        scene.observe(|observed| {
            let annotations = [(labels::REFRESH.to_owned(), "now".to_owned())].into();
            Arc::make_mut(&mut observed.inference).metadata.annotations = Some(annotations);
        });
        let before = scene.observed().inference.status.clone();
        scene.roll();
        scene.observe(|observed| {
            observed.deployed_revision = Some("8aa".to_owned());
            // The status is written after the Deployment.
            Arc::make_mut(&mut observed.inference).status = before;
        });
        assert_eq!(revision(&scene), None, "the new template has none yet");
        assert!(!written(&scene).unwrap_or_default().contains("8aa"), "and its loaders may take any");
    }

    #[test]
    fn where_no_pod_serves_any_model_is_accepted_and_the_status_keeps_the_last_of_the_template() {
        let mut scene = with(&[pod("a", 0, "7f9c", "a", SERVES)]);
        let seen = Some(LoadedModel { digest: digest("a"), files: 2, bytes: 7, revision: None });
        assert_eq!(scene.plan().status.model, seen);
        scene.write_status();
        scene.pods(&[&pod("b", 5, "7f9c", "b", "ready: false")]);
        assert_eq!((written(&scene), scene.plan().status.model), (None, seen.clone()));
        scene.observe(|observed| observed.digests = Some(Default::default()));
        assert_eq!(written(&scene).as_deref(), Some(""), "nothing that was written before counts");
        scene.edit_spec(|spec| spec.args = vec!["--max-model-len=1".into()]);
        assert_eq!(scene.plan().status.model, None, "another template");
    }

    #[test]
    fn an_engine_that_starts_again_has_its_model_unless_it_reads_a_claim() {
        let loaded = Loaded { digest: digest("a"), files: 2, bytes: 7, commit: String::new() }.message();
        let pod = |ready: i64| {
            format!(
                "{{name: a, owner: chat-7f9c, node: gpu-a, conditions: [{{type: Ready, status: 'False', \
                 lastTransitionTime: '{}'}}], containers: [{{name: engine, restartCount: 1}}], init: [{{name: \
                 model-loader, state: {{terminated: {{exitCode: 0, finishedAt: '{}', message: '{loaded}'}}}}}}]}}",
                at(ready),
                at(10)
            )
        };
        assert!(written(&with(&[pod(11)])).is_some(), "it was ready before");
        assert_eq!(written(&with(&[pod(9)])), None, "it was never ready");
        let mut scene = with(&[pod(11)]);
        scene.edit_spec(|spec| spec.model_source = "pvc://models/qwen".into());
        assert_eq!(written(&scene), None, "what it has read now is not known");
    }

    /// An invalid spec keeps no pod of the last valid one from coming back.
    #[test]
    fn the_record_follows_the_pods_of_an_invalid_spec() {
        let mut scene = with(&[]);
        scene.observe(|observed| observed.digests = Some(Default::default()));
        scene.edit_spec(|spec| spec.model_source = "ftp://models".into());
        let observed = scene.observed();
        let invalid = validate::validate(&observed.inference).err().unwrap();
        let plan = crate::plan::rejected(&invalid, &observed, &Default::default(), at(0));
        assert_eq!(plan.digests.unwrap().data.unwrap()[names::DIGESTS], "");
    }

    #[test]
    fn pods_of_nodes_that_are_lost_or_about_to_go_keep_no_other_from_loading() {
        let mut scene = with(&[pod("a", 0, "7f9c", "a", SERVES)]);
        scene.empties("gpu-a");
        assert_eq!(written(&scene), None);
        let mut scene = with(&[pod("a", 0, "7f9c", "a", SERVES)]);
        let loss = |kind| NodeLoss { kind, since: at(0), reported: at(0) };
        scene.observe(|observed| {
            observed.nodes.lost.insert("gpu-a".to_owned(), loss(LossKind::NotReady));
        });
        assert!(written(&scene).is_some(), "it is ready");
        scene.observe(|observed| {
            observed.nodes.lost.insert("gpu-a".to_owned(), loss(LossKind::Unreachable));
        });
        assert_eq!(written(&scene), None);
    }

    #[test]
    fn a_loader_of_an_older_release_says_nothing() {
        let pod = "{ready: true, owner: chat-7f9c, node: gpu-0, containers: [{name: engine}], init: [{name: \
                   model-loader, state: {terminated: {exitCode: 0}}}]}";
        let scene = with(&[pod.to_owned()]);
        assert_eq!((written(&scene), scene.plan().status.model), (None, None));
    }

    #[test]
    fn pods_that_serve_different_models_are_named() {
        let reported = |pods: &[String]| {
            let conditions = with(pods).plan().status.conditions;
            let loaded = conditions.into_iter().find(|known| known.type_ == api::conditions::MODEL_LOADED);
            loaded.map(|loaded| (loaded.status, loaded.reason, loaded.message)).unwrap()
        };
        let (status, reason, message) =
            reported(&[pod("a", 0, "7f9c", "a", SERVES), pod("b", 5, "7f9c", "b", SERVES)]);
        assert_eq!((&*status, &*reason), ("True", "ModelChanged"));
        assert!(message.contains("pods a and b have loaded different models"), "{message}");
        let (_, reason, _) = reported(&[pod("a", 0, "7f9c", "a", SERVES), pod("b", 5, "7f9c", "a", SERVES)]);
        assert_eq!(reason, "Loaded");
    }
}
