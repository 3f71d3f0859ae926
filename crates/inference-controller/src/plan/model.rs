//! The model that pods have loaded, by the termination messages of their loaders: for the status, and for the loaders of the
//! pods that follow. Pure.
//!
//! A pod must load what the ready pods of its revision have loaded, or answers would depend on the pod. The loaders
//! compare: they get the digests from the ConfigMap. Without a ready pod there is nothing to differ from.

use std::{collections::BTreeMap, sync::Arc};

use api::{aiinference::LoadedModel, labels, loader::Loaded};
use workload::{templates::revision::Revision, views::pod::PodView};

use crate::{names::LOADER, observe::Observed};

/// The value of [`crate::names::DIGESTS`]; `None` if no digest is known.
pub(super) fn digests(observed: &Observed) -> Option<String> {
    let mut of_revisions = BTreeMap::<&str, Vec<&PodView>>::new();
    for pod in observed.pods() {
        if let Some(revision) = revision_of(pod) {
            of_revisions.entry(revision).or_default().push(pod);
        }
    }
    let lines = of_revisions.into_iter().filter_map(|(revision, pods)| {
        let (_, loaded) = first(pods.into_iter())?;
        Some(Loaded::line(revision, &loaded.digest))
    });
    Some(lines.collect::<String>()).filter(|lines| !lines.is_empty())
}

/// `status.model`. The last one that was seen stays, because pods that are not ready say nothing about it.
pub(super) fn status(revision: &Revision<'_>, observed: &Observed) -> Option<LoadedModel> {
    let before = observed.inference.status.as_ref().and_then(|status| status.model.clone());
    let loaded =
        first(revision.pods.iter().map(AsRef::as_ref)).map(|(_, Loaded { digest, files, bytes })| {
            let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            LoadedModel { digest, files: count(files), bytes: count(bytes) }
        });
    loaded.or(before)
}

/// Two ready pods of the revision with different models: they started at the same time, while the model was changed.
pub(super) fn differing(pods: &[Arc<PodView>]) -> Option<String> {
    let ready = || pods.iter().map(AsRef::as_ref);
    let (one, expected) = first(ready())?;
    let (other, found) = ready().filter_map(loaded).find(|(_, found)| found.digest != expected.digest)?;
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

/// The oldest ready pod whose loader says what it has loaded.
fn first<'p>(pods: impl Iterator<Item = &'p PodView>) -> Option<(&'p PodView, Loaded)> {
    pods.filter_map(loaded)
        .min_by(|(one, _), (other, _)| (one.created(), one.name()).cmp(&(other.created(), other.name())))
}

fn loaded(pod: &PodView) -> Option<(&PodView, Loaded)> {
    let loader = pod.init_container(LOADER).filter(|_| pod.is_ready)?;
    let ended = loader.state.terminated.as_ref().filter(|ended| ended.exit_code == 0)?;
    Some((pod, Loaded::of_message(&ended.message)?))
}

/// The label `pod-template-hash`: a ReplicaSet has it at the end of its name.
fn revision_of(pod: &PodView) -> Option<&str> {
    let owner = pod.metadata.owner_references.as_deref()?.first()?;
    owner.name.rsplit_once('-').map(|(_, hash)| hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::children::Child,
        tests::{Scene, at},
    };

    fn digest(digit: &str) -> String {
        format!("sha256:{}", digit.repeat(64))
    }

    /// A pod of this age and revision that has loaded a model.
    fn pod(name: &str, created: i64, revision: &str, digit: &str, ready: bool) -> String {
        let loaded = Loaded { digest: digest(digit), files: 2, bytes: 7 }.message();
        format!(
            "{{name: {name}, owner: chat-{revision}, created: '{}', node: gpu-0, phase: Running, ready: {ready}, gpus: 1, \
             init: [{{name: model-loader, state: {{terminated: {{exitCode: 0, message: '{loaded}'}}}}}}]}}",
            at(created)
        )
    }

    fn written(scene: &Scene) -> Option<String> {
        scene.plan().children.into_iter().find_map(|child| match child {
            Child::ConfigMap(map) => Some(map.data.unwrap_or_default().remove(crate::names::DIGESTS)),
            Child::Deployment(_) | Child::Service(_) | Child::PodDisruptionBudget(_) => None,
        })?
    }

    fn with(pods: &[String]) -> Scene {
        let mut scene = Scene::ready(pods.len());
        scene.pods(&pods.iter().map(String::as_str).collect::<Vec<_>>());
        scene
    }

    #[test]
    fn the_oldest_ready_pod_of_each_revision_says_what_the_others_must_load() {
        let mut scene = with(&[pod("b", 5, "7f9c", "b", true), pod("a", 0, "7f9c", "a", true)]);
        assert_eq!(written(&scene), Some(format!("7f9c {}\n", digest("a"))));
        let older = Arc::new(crate::tests::pod(&pod("c", 0, "5d4", "c", true)));
        scene.older_pods(1);
        scene.observe(|observed| observed.older[0].pods = vec![older]);
        assert_eq!(written(&scene), Some(format!("5d4 {}\n7f9c {}\n", digest("c"), digest("a"))));
    }

    #[test]
    fn without_a_ready_pod_any_model_is_accepted_and_the_status_keeps_the_last() {
        let mut scene = with(&[pod("a", 0, "7f9c", "a", true)]);
        let seen = Some(LoadedModel { digest: digest("a"), files: 2, bytes: 7 });
        assert_eq!(scene.plan().status.model, seen);
        scene.write_status();
        scene.pods(&[&pod("b", 5, "7f9c", "b", false)]);
        assert_eq!((written(&scene), scene.plan().status.model), (None, seen));
    }

    #[test]
    fn a_loader_of_an_older_release_says_nothing() {
        let scene =
            with(&["{ready: true, owner: chat-7f9c, node: gpu-0, init: [{name: model-loader, state: \
                            {terminated: {exitCode: 0}}}]}"
                .to_owned()]);
        assert_eq!((written(&scene), scene.plan().status.model), (None, None));
    }

    #[test]
    fn ready_pods_with_different_models_are_named() {
        let reported = |pods: &[String]| {
            let loaded = with(pods).plan().status.conditions.into_iter();
            let loaded = loaded.clone().find(|known| known.type_ == api::conditions::MODEL_LOADED).unwrap();
            (loaded.status, loaded.reason, loaded.message)
        };
        let (status, reason, message) =
            reported(&[pod("a", 0, "7f9c", "a", true), pod("b", 5, "7f9c", "b", true)]);
        assert_eq!((&*status, &*reason), ("True", "ModelChanged"));
        assert!(message.contains("pods a and b have loaded different models"), "{message}");
        let (_, reason, _) = reported(&[pod("a", 0, "7f9c", "a", true), pod("b", 5, "7f9c", "a", true)]);
        assert_eq!(reason, "Loaded");
    }
}
