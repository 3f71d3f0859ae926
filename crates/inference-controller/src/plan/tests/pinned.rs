//! A template stays what it was first rendered as, until the spec asks for another one.

use super::*;

#[test]
fn new_defaults_do_not_change_existing_templates() {
    let old = Scene::ready(2);
    let upgraded = defaults(&["--vllm-image=vllm:99", "--loader-image=loader:99"]);
    let bytes = |plan: &Plan| serde_json::to_string(&template(plan)).unwrap();
    let before = bytes(&old.plan());
    assert_eq!(bytes(&old.plan_with(&upgraded, at(0))), before);

    let mut scaled = Scene::ready(2);
    scaled.edit_spec(|spec| {
        spec.replicas = 5;
        spec.rollout = Rollout::Replace;
        spec.node_failure_seconds = 90;
    });
    assert_eq!(bytes(&scaled.plan_with(&upgraded, at(0))), before, "scaling restarts no pods");

    let mut changed = Scene::ready(2);
    changed.edit_spec(|spec| spec.warmup_timeout_seconds = 900);
    let after = bytes(&changed.plan_with(&upgraded, at(0)));
    assert!(
        after.contains("vllm:99") && after.contains("loader:99"),
        "a changed spec gets the present defaults"
    );
}

/// The terms of the node affinity: each has one label and its values.
fn selected(template: &PodTemplateSpec) -> Vec<String> {
    let affinity = template.spec.as_ref().unwrap().affinity.as_ref().unwrap();
    let nodes = affinity.node_affinity.as_ref().unwrap();
    let required = nodes.required_during_scheduling_ignored_during_execution.as_ref().unwrap();
    let rules = required.node_selector_terms.iter().map(|term| &term.match_expressions.as_ref().unwrap()[0]);
    rules.map(|rule| format!("{} {}", rule.key, rule.values.as_ref().unwrap().join(" "))).collect()
}

#[test]
fn a_short_name_selects_every_label_and_another_product_what_it_always_has() {
    let of = |product: &str, defaults: &Defaults| {
        let mut scene = Scene::new(CHAT);
        scene.edit_spec(|spec| spec.gpu.product_label = Some(product.to_owned()));
        let plan = scene.plan_with(defaults, at(0));
        assert_eq!(plan.status.gpu.as_deref(), Some(product.rsplit('=').next().unwrap()));
        selected(&template(&plan))
    };
    let release = defaults(&[]);
    assert_eq!(of("A100", &release), ["nvidia.com/gpu.product A100"]);
    assert_eq!(of("nvidia.com/gpu.product=l40", &release), ["nvidia.com/gpu.product l40"]);
    assert_eq!(
        of("gb200", &release),
        ["nvidia.com/gpu.product gb200 NVIDIA-GB200", "cloud.google.com/gke-accelerator nvidia-gb200"]
    );
    let own = defaults_with_products("gb200: example.com/card=big");
    assert_eq!(of("gb200", &own), ["nvidia.com/gpu.product gb200", "example.com/card big"]);
    assert_eq!(of("A100", &own), of("A100", &release));
}

#[test]
fn a_product_that_gets_a_table_later_keeps_its_template() {
    let before = defaults_with_products("l40: nvidia.com/gpu.product=l40");
    let mut scene = Scene::new(CHAT);
    scene.edit_spec(|spec| spec.gpu.product_label = Some("l40".to_owned()));
    let old = scene.plan_with(&before, at(0));
    assert_eq!(selected(&template(&old)), ["nvidia.com/gpu.product l40"], "as released");
    scene.settle(2);
    scene.observe(|observed| {
        let deployment = observed.deployment.as_mut().unwrap();
        let pinned = deployment.pinned_template.as_ref().unwrap();
        deployment.pinned_template = Some(pinned.replace("\"l40\",\"NVIDIA-L40\"", "\"l40\"").into());
    });
    let plan = scene.plan();
    assert_eq!(selected(&template(&plan)), ["nvidia.com/gpu.product l40"], "no pod is restarted");
    let (status, reason, _) = condition(&plan.status, conditions::TEMPLATE_OUTDATED);
    assert_eq!((status, reason), ("True", reasons::NEWER_TEMPLATE));
}

/// The plan after an edit of the Deployment's record, and the template before it.
fn with_record(
    edit: impl FnOnce(&mut workload::templates::deployment::DeploymentView),
) -> (Plan, PodTemplateSpec) {
    let mut scene = Scene::ready(1);
    let before = template(&scene.plan());
    scene.observe(|observed| edit(observed.deployment.as_mut().unwrap()));
    (scene.plan(), before)
}

#[test]
fn a_template_of_another_release_stays_and_the_status_names_the_difference() {
    let (plan, before) = with_record(|deployment| {
        let pinned = deployment.pinned_template.as_ref().unwrap();
        assert!(pinned.contains("loader:1"));
        deployment.pinned_template = Some(pinned.replace("loader:1", "loader:0").into());
    });
    assert_ne!(template(&plan), before);
    let (status, reason, message) = condition(&plan.status, conditions::TEMPLATE_OUTDATED);
    assert_eq!((status, reason), ("True", reasons::NEWER_TEMPLATE));
    assert!(message.contains("spec.initContainers[model-loader].image (loader:0 -> loader:1)"), "{message}");
    assert_eq!(reason_of(&plan, conditions::READY), ("True", reasons::READY), "it is no fault");
}

#[test]
fn the_image_in_the_status_is_that_of_the_pinned_template() {
    let (plan, _) = with_record(|deployment| {
        let pinned = deployment.pinned_template.take().unwrap();
        let at = pinned.find("\"image\":\"").unwrap() + 9;
        let end = at + pinned[at..].find('"').unwrap();
        deployment.pinned_template = Some(format!("{}vllm:0{}", &pinned[..at], &pinned[end..]).into());
    });
    assert_eq!(plan.status.resolved.unwrap().image, "vllm:0");
}

#[test]
fn a_template_that_is_too_long_for_an_annotation_is_not_recorded() {
    let recorded = |length: usize| {
        let mut scene = Scene::new(CHAT);
        scene.edit_spec(|spec| spec.args = vec!["x".repeat(length)]);
        deployment_of(&scene.plan()).metadata.annotations.unwrap().contains_key(labels::TEMPLATE)
    };
    assert_eq!([recorded(100 << 10), recorded(128 << 10)], [true, false]);
}

#[test]
fn a_spec_that_is_changed_back_gets_the_template_of_its_remaining_pods() {
    let mut scene = Scene::ready(1);
    scene.observe(|observed| {
        let known = observed.deployment.as_mut().unwrap();
        known.pinned_template =
            known.pinned_template.as_ref().map(|pinned| pinned.replace("loader:1", "loader:0").into());
    });
    scene.edit_spec(|spec| {
        spec.rollout = Rollout::Replace;
        spec.image = Some("typo:1".into());
    });
    scene.roll();
    let loader =
        |plan: &Plan| template(plan).spec.unwrap().init_containers.unwrap()[0].image.clone().unwrap();
    assert_eq!(loader(&scene.plan()), "loader:1");
    scene.edit_spec(|spec| spec.image = None);
    let back = scene.plan();
    assert_eq!(loader(&back), "loader:0", "and no announcement");
    assert_eq!(reason(&back.status, conditions::READY), ("True", reasons::READY));
    assert_eq!(reason(&back.status, conditions::TEMPLATE_OUTDATED).0, "True");
    let mut two = scene.observed().older;
    two[0].pods[0] = std::sync::Arc::new(crate::tests::pod("{node: gpu-1}"));
    let revision = std::sync::Arc::make_mut(&mut two[0].revision).rendered.as_mut().unwrap();
    revision.template = revision.template.replace("loader:0", "loader:9").into();
    scene.observe(|observed| observed.older.extend(two));
    assert_eq!(loader(&scene.plan()), "loader:0", "of several revisions, the one with ready pods");

    let refreshed = |scene: &mut Scene, value: &str| {
        scene.observe(|observed| {
            let meta = &mut std::sync::Arc::make_mut(&mut observed.inference).metadata;
            meta.annotations = Some([(labels::REFRESH.to_owned(), value.to_owned())].into());
        });
        scene.write_status();
        loader(&scene.plan())
    };
    assert_eq!(refreshed(&mut scene, "now"), "loader:1", "a new rendering is requested");
}

/// The admission policy lets a Deployment keep a token that was mounted by hand, and gives none back.
#[test]
fn a_token_that_was_mounted_by_hand_is_kept_while_it_serves_and_never_given_back() {
    let has_token =
        |scene: &Scene| template(&scene.plan()).spec.unwrap().automount_service_account_token.unwrap();
    let given = |token_account: Option<&str>| {
        let mut scene = Scene::ready(1);
        scene.edit_spec(|spec| spec.pods.service_account_name = Some("reader".into()));
        scene.settle(1);
        scene.observe(|observed| {
            let known = observed.deployment.as_mut().unwrap();
            let pinned = known.pinned_template.take().unwrap();
            let field = "\"automountServiceAccountToken\":";
            known.pinned_template =
                Some(pinned.replace(&format!("{field}false"), &format!("{field}true")).into());
            known.token_account = token_account.map(Into::into);
        });
        scene.write_status();
        scene
    };
    let mut scene = given(Some("reader"));
    assert!(has_token(&scene));
    scene.edit_spec(|spec| spec.image = Some("typo:1".into()));
    scene.roll();
    assert!(!has_token(&scene));
    scene.edit_spec(|spec| spec.image = None);
    assert!(!has_token(&scene), "the mistake is taken back");

    let hardened = given(None);
    assert!(!has_token(&hardened), "the field of the Deployment was set to false by hand");
}

#[test]
fn a_flag_that_became_invalid_is_tolerated_while_pods_of_that_spec_exist() {
    let mut scene = Scene::ready(1);
    scene.edit_spec(|spec| spec.args = vec!["--port=1".into()]);
    scene.settle(1);
    scene.edit_spec(|spec| spec.image = Some("typo:1".into()));
    scene.roll();
    scene.edit_spec(|spec| spec.image = None);
    let has_pods = |scene: &Scene| {
        crate::plan::revision::has_pods(&validate(&scene.observed().inference).unwrap(), &scene.observed())
    };
    assert!(has_pods(&scene));
    scene.observe(|observed| observed.older.clear());
    assert!(!has_pods(&scene));
}

#[test]
fn unknown_fields_of_a_pinned_template_are_kept() {
    let (plan, _) = with_record(|deployment| {
        let mut pinned: serde_json::Value =
            serde_json::from_str(deployment.pinned_template.as_ref().unwrap()).unwrap();
        pinned["spec"]["fieldOfTheFuture"] = true.into();
        deployment.pinned_template = Some(pinned.to_string().into());
        deployment.resolved = Some("{\"version\": 9}".into());
    });
    let deployment = plan.children.iter().find_map(|child| match child {
        Child::Deployment(deployment) => Some(deployment),
        Child::ConfigMap(_) | Child::Service(_) | Child::PodDisruptionBudget(_) => None,
    });
    assert_eq!(deployment.unwrap().spec["template"]["spec"]["fieldOfTheFuture"], true);
}

#[test]
fn a_new_value_of_the_refresh_annotation_takes_the_newer_template_once() {
    let mut scene = Scene::ready(1);
    scene.observe(|observed| {
        let deployment = observed.deployment.as_mut().unwrap();
        deployment.pinned_template =
            deployment.pinned_template.as_ref().map(|pinned| pinned.replace("loader:1", "loader:0").into());
    });
    let loader = |scene: &Scene| {
        let containers = template(&scene.plan()).spec.unwrap().init_containers.unwrap();
        containers[0].image.clone().unwrap()
    };
    assert_eq!(loader(&scene), "loader:0");
    let refresh = |scene: &mut Scene, value: Option<&str>| {
        scene.observe(|observed| {
            let meta = &mut std::sync::Arc::make_mut(&mut observed.inference).metadata;
            meta.annotations = value.map(|value| [(labels::REFRESH.to_owned(), value.to_owned())].into());
        });
    };
    refresh(&mut scene, Some("now"));
    assert_eq!(loader(&scene), "loader:1");
    scene.settle(1);
    scene.observe(|observed| {
        let deployment = observed.deployment.as_mut().unwrap();
        deployment.pinned_template =
            deployment.pinned_template.as_ref().map(|pinned| pinned.replace("loader:1", "loader:2").into());
    });
    assert_eq!(loader(&scene), "loader:2", "the value is the same");
    refresh(&mut scene, None);
    assert_eq!(loader(&scene), "loader:2", "removing the annotation is no new value");
    scene.settle(1);
    refresh(&mut scene, Some("now"));
    assert_eq!(loader(&scene), "loader:2", "the last value again is no new value");
}

/// A model that was replaced in place is loaded by new pods alone.
#[test]
fn a_new_value_of_the_refresh_annotation_restarts_pods_whose_template_is_the_same() {
    let mut scene = Scene::ready(1);
    let before = template(&scene.plan());
    scene.observe(|observed| {
        let meta = &mut std::sync::Arc::make_mut(&mut observed.inference).metadata;
        meta.annotations = Some([(labels::REFRESH.to_owned(), "now".to_owned())].into());
    });
    let mut after = template(&scene.plan());
    assert_ne!(after, before);
    after.metadata.as_mut().unwrap().annotations.as_mut().unwrap().remove(labels::REFRESH);
    assert_eq!(after, before, "nothing else differs");
    scene.settle(1);
    scene.observe(|observed| std::sync::Arc::make_mut(&mut observed.inference).metadata.annotations = None);
    let plan = scene.plan();
    let conditions = plan.status.conditions.iter().map(|known| known.type_.as_str());
    assert!(
        !conditions.collect::<Vec<_>>().contains(&conditions::TEMPLATE_OUTDATED),
        "removing it is no change"
    );
}

/// Users who may edit the Deployment may also edit its record.
#[test]
fn a_template_that_was_edited_together_with_its_record_is_restored() {
    let mut scene = Scene::ready(2);
    let served = template(&scene.plan());
    let forge = |observed: &mut Observed, keeps_record: bool| {
        let deployment = observed.deployment.as_mut().unwrap();
        let template = deployment.pinned_template.take().unwrap();
        deployment.pinned_template = Some(template.replace("vllm/vllm-openai", "evil/vllm").into());
        let resolved = deployment.resolved.clone().unwrap();
        let token_account = None;
        let rendered = keeps_record.then(|| Box::new(TemplateRecord { resolved, template, token_account }));
        let revision = Arc::new(ReplicaSetView { rendered, ..ReplicaSetView::default() });
        observed.older = vec![OlderRevision { revision, pods: observed.deployed.take().unwrap() }];
    };
    scene.observe(|observed| forge(observed, true));
    let plan = scene.plan();
    assert_eq!(template(&plan), served);
    assert_eq!(condition(&plan.status, conditions::TEMPLATE_OUTDATED).0, "absent");

    // The reported template is not recorded anywhere; then no pod is restarted.
    let mut scene = Scene::ready(2);
    scene.observe(|observed| forge(observed, false));
    assert_ne!(template(&scene.plan()), served);
}
