//! The admission policy of a controller: its token writes nothing that its kind does not control.

use std::{collections::BTreeSet, sync::Once};

use api::{
    controllers::{CONTROLLERS, Controller, Kind},
    labels,
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    rbac::v1::{ClusterRole, PolicyRule, Role},
};
use kube::{
    ResourceExt as _,
    api::{ApiResource, DynamicObject},
};
use local_cluster::ClusterSpec;
use serde_json::{Value, json};
use tests::{
    Scene, ask_until, fresh_name, gateway, lives::Life, simulated, start, table::life_of, tools,
    training::volume_snapshots, wait_for, within,
};

use crate::{
    Right, confined, for_each, for_every_controller,
    overlays::{built, copy_folder, deploy},
    rights, user,
};

mod pods;

use self::pods::forbidden_pods;

/// What an admission policy answers, in contrast to a missing right.
const BY_POLICY: &str = "denied request";
/// An expression of a policy that cannot be evaluated denies the write, too. Its words explain nothing.
const BY_ERROR: &str = "resulted in error";

fn is_by_rule(refusal: Option<&String>) -> bool {
    refusal.is_some_and(|text| text.contains(BY_POLICY) && !text.contains(BY_ERROR))
}

/// Writes of an account, as a dry run: admission decides them, and nothing changes if they are allowed.
struct Writer<'a> {
    scene: &'a Scene<'a>,
    account: String,
}

impl Writer<'_> {
    /// The answer of the API server if it refuses the write.
    fn refusal(&self, args: &[&str], input: &str) -> Option<String> {
        let user = format!("--as={}", self.account);
        let output = self.scene.kubectl_with_input(&[args, &["--dry-run=server", &user]].concat(), input);
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn patch_refusal(&self, route: &str, operations: &Value) -> Option<String> {
        self.refusal(&["patch", "httproutes", route, "--type=json", "--patch", &operations.to_string()], "")
    }

    fn may_not(&self, args: &[&str]) {
        let refusal = self.refusal(args, "");
        assert!(is_by_rule(refusal.as_ref()), "{args:?}: {refusal:?}");
    }

    fn may_create(&self, object: &Value) {
        assert_eq!(self.creates(object), None, "{object}");
    }

    fn may_not_create(&self, object: &Value) {
        let refusal = self.creates(object);
        assert!(is_by_rule(refusal.as_ref()), "{object}: {refusal:?}");
    }

    /// Creates this object, in the namespace that it names.
    fn creates(&self, object: &Value) -> Option<String> {
        let namespace =
            format!("--namespace={}", object["metadata"]["namespace"].as_str().expect("a namespace"));
        self.refusal(&["create", "-f", "-", &namespace], &object.to_string())
    }

    /// A policy takes effect some time after it was created.
    async fn until_limited(&self, args: &[&str]) {
        ask_until("a refusal by the policy", within(), async || match self.refusal(args, "") {
            Some(refusal) if refusal.contains(BY_POLICY) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}

const LABEL: &str = r#"{"metadata":{"labels":{"touched":"yes"}}}"#;

#[tokio::test]
async fn the_token_of_a_controller_writes_only_what_its_kind_controls() {
    for_every_controller(async |controller| {
        let scene = simulated().await;
        let life = life_of(controller);
        life.begin(&scene, "life").await;
        let owner = life.objects(&scene).get("life").await.unwrap();
        grant_every_write(&scene, &format!("ai-system:{}", controller.name));
        let writer = Writer { scene: &scene, account: user(controller, "ai-system") };
        foreign_objects(&scene, controller);
        writer.until_limited(&["create", "configmap", "probe"]).await;

        for namespace in ["kube-system", scene.namespace()] {
            let namespaced = format!("--namespace={namespace}");
            for (resource, _) in FOREIGN {
                let foreign = [resource, "foreign", &namespaced];
                writer.may_not(&[&["delete"], &foreign[..]].concat());
                writer.may_not(&[&["patch", "--type=merge", "--patch", LABEL], &foreign[..]].concat());
                // Taking over: the object would be one of its own afterwards.
                let ours = json!({"metadata": {"ownerReferences": [owner_of(&owner, true)]}}).to_string();
                writer.may_not(&[&["patch", "--type=merge", "--patch", &ours], &foreign[..]].concat());
            }
            writer.may_not_create(&config_map(namespace, json!([])));
        }
        let reference = |controls: bool| json!([owner_of(&owner, controls)]);
        writer.may_create(&config_map(scene.namespace(), reference(true)));
        writer.may_not_create(&config_map(scene.namespace(), reference(false)));
        writer.may_not_create(&config_map("kube-system", reference(true)));
        let other = json!([{"apiVersion": "v1", "kind": owner.types.as_ref().unwrap().kind, "name": "life",
            "uid": owner.uid(), "controller": true}]);
        writer.may_not_create(&config_map(scene.namespace(), other));
        // The garbage collector would not delete it although its owner does not exist.
        let mut unknown_version = owner_of(&owner, true);
        let group = unknown_version["apiVersion"].as_str().unwrap().split('/').next().unwrap().to_owned();
        unknown_version["apiVersion"] = json!(format!("{group}/v9"));
        writer.may_not_create(&config_map(scene.namespace(), json!([unknown_version])));
        let kept_by = other_owner();
        writer.may_not_create(&config_map(scene.namespace(), json!([owner_of(&owner, true), kept_by])));
        let lease = |name: &str| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": "ai-system"}})
        };
        writer.may_not_create(&lease("foreign"));

        // A finalizer would keep it although its owner does not exist.
        let mut kept = config_map(scene.namespace(), reference(true));
        kept["metadata"]["finalizers"] = json!(["example.com/kept"]);
        writer.may_not_create(&kept);

        let scales = ["scale", "deployment", "foreign", "--replicas=2"];
        let refusal = writer.refusal(&[&scales[..], &["--namespace=kube-system"]].concat(), "");
        let is_refused = refusal.as_ref().is_some_and(|text| text.contains(BY_POLICY));
        assert_ne!(is_refused, controller.scales.is_empty(), "{refusal:?}");
        assert_eq!(writer.refusal(&scales, ""), None, "the replicas of a target");
        may_change_a_finalizer_of_its_own_kind(&writer, controller, &life);
        if life.children.is_some() {
            may_change_what_it_made(&writer, &life, &owner);
        }
        let policies = scene.cluster_api::<ValidatingAdmissionPolicy>();
        let policy = wait_for(&policies, controller.name, "checked by the API server", within(), |policy| {
            policy
                .status
                .as_ref()
                .is_some_and(|status| status.observed_generation == policy.metadata.generation)
        })
        .await;
        let checked = policy.status.and_then(|status| status.type_checking);
        let warnings = checked.and_then(|checked| checked.expression_warnings);
        assert!(warnings.clone().is_none_or(|warnings| warnings.is_empty()), "{warnings:#?}");
    })
    .await;
}

/// Of an object of its own kind, beside the status: spec, labels and owners are those of its user.
fn may_change_a_finalizer_of_its_own_kind(writer: &Writer<'_>, controller: &Controller, life: &Life) {
    const THEIRS: &str = "example.com/theirs";
    let scene = writer.scene;
    let kind = name_of(&life.kind.resource());
    let patch = |patch: &Value| {
        writer.refusal(&["patch", &kind, "life", "--type=merge", "--patch", &patch.to_string()], "")
    };
    let may_not = |change: Value| {
        let refusal = patch(&change);
        assert!(refusal.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{change}: {refusal:?}");
    };
    let finalizers = |names: &[&str]| json!({"metadata": {"finalizers": names}});
    may_not(json!({"spec": life.scaled}));
    may_not(serde_json::from_str(LABEL).unwrap());
    may_not(json!({"metadata": {"annotations": {"touched": "yes"}}}));
    may_not(json!({"metadata": {"ownerReferences": [other_owner()]}}));
    may_not(finalizers(&["example.com/kept"]));
    if let Some(own) = controller.finalizer {
        assert_eq!(patch(&finalizers(&[own])), None);
        may_not(finalizers(&[own, "example.com/kept"]));
        scene.kubectl(&[
            "patch",
            &kind,
            "life",
            "--type=merge",
            "--patch",
            &finalizers(&[THEIRS, own]).to_string(),
        ]);
        assert_eq!(patch(&finalizers(&[THEIRS])), None);
        may_not(finalizers(&[own]));
        let restored = json!({"metadata": {"finalizers": null}}).to_string();
        scene.kubectl(&["patch", &kind, "life", "--type=merge", "--patch", &restored]);
        assert_eq!(writer.refusal(&["delete", &kind, "life"], ""), None, "objects whose time is over");
    }
}

/// It may be changed, and not given away.
fn may_change_what_it_made(writer: &Writer<'_>, life: &Life, owner: &DynamicObject) {
    let scene = writer.scene;
    let kept_by = other_owner();
    let child = format!("life{}", life.edited.suffix);
    let patch = |patch: &str| {
        let kind = kind_of_child(life);
        writer.refusal(&["patch", &kind, &child, "--type=merge", "--patch", patch], "")
    };
    assert_eq!(patch(LABEL), None);
    let given_away = patch(r#"{"metadata":{"ownerReferences":null}}"#);
    assert!(given_away.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{given_away:?}");
    let finalizers = |names: &str| format!("{{\"metadata\":{{\"finalizers\":[{names}]}}}}");
    let added = patch(&finalizers("\"example.com/kept\""));
    assert!(added.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{added:?}");
    let owners = |owners: &Value| json!({"metadata": {"ownerReferences": owners}}).to_string();
    let both = json!([owner_of(owner, true), kept_by]);
    let added = patch(&owners(&both));
    assert!(added.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{added:?}");
    // What another program has added may stay, and may go.
    scene.kubectl(&["patch", &kind_of_child(life), &child, "--type=merge", "--patch", &owners(&both)]);
    assert_eq!(patch(LABEL), None);
    assert_eq!(patch(&owners(&json!([owner_of(owner, true)]))), None);
    let (kind, theirs) = (kind_of_child(life), finalizers("\"example.com/theirs\""));
    scene.kubectl(&["patch", &kind, &child, "--type=merge", "--patch", &theirs]);
    assert_eq!(patch(LABEL), None);
    assert_eq!(patch(&finalizers("")), None);
    let more = patch(&finalizers("\"example.com/theirs\",\"example.com/kept\""));
    assert!(more.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{more:?}");
    scene.kubectl(&["patch", &kind, &child, "--type=merge", "--patch", &finalizers("")]);
    // The uid of an owner that it has is no right to another one.
    let mut repeated = other_owner();
    repeated["uid"] = json!(owner.uid());
    let added = patch(&owners(&json!([owner_of(owner, true), repeated])));
    assert!(added.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{added:?}");
    writer.may_not(&["delete", &kind, &child, "--cascade=orphan"]);
    // Deletions in the foreground set a finalizer without a write of the account.
    for propagation in ["foreground", "background"] {
        let cascade = format!("--cascade={propagation}");
        assert_eq!(writer.refusal(&["delete", &kind, &child, &cascade], ""), None, "{propagation}");
    }
}

/// Of every controller, each child that it may write: one that its object controls, or that it keeps, and no other.
#[tokio::test]
async fn each_child_that_a_controller_may_write_is_limited_by_its_policy() {
    let with_children = CONTROLLERS.iter().filter(|controller| !controller.children.is_empty());
    for_each(with_children, async |controller| {
        let scene = simulated().await;
        let owner = life_of(controller).create(&scene, "owner").await;
        scene.kubectl_with_input(&["apply", "-f", "-"], &volume_snapshots().to_string());
        gateway::install_all(&scene).await;
        grant_every_write(&scene, &format!("ai-system:{}", controller.name));
        let writer = Writer { scene: &scene, account: user(controller, "ai-system") };
        writer.until_limited(&["create", "configmap", "probe"]).await;
        let mut tested = 0;
        for resource in controller.children.iter().flat_map(|(_, resources)| *resources) {
            let child = |name: &str, namespace: &str, by: &str| {
                let mut child = child(resource);
                let labels = json!({"app.kubernetes.io/managed-by": by});
                child["metadata"] = json!({"name": name, "namespace": namespace, "labels": labels});
                child
            };
            let owned = |mut child: Value| {
                child["metadata"]["ownerReferences"] = json!([owner_of(&owner, true)]);
                child
            };
            let is_kept = controller.kept.contains(resource);
            let written = |child: Value| if is_kept { child } else { owned(child) };
            let own = child("stolen", scene.namespace(), controller.name);
            // The API server prepares a new kind.
            ask_until("the kind is served", within(), async || match writer.creates(&written(own.clone())) {
                None => Ok(()),
                Some(refusal) => Err(refusal),
            })
            .await;
            writer.may_not_create(&written(child("stolen", "kube-system", controller.name)));
            writer.may_not_create(&child("stolen", scene.namespace(), "another"));
            if !is_kept {
                writer.may_not_create(&own);
            }
            if is_kept {
                for (name, by) in [("kept", controller.name), ("foreign", "another")] {
                    scene.apply(&child(name, scene.namespace(), by).to_string()).await.unwrap();
                    writer.may_not(&["patch", resource, name, "--type=merge", "--patch", LABEL]);
                }
                assert_eq!(writer.refusal(&["delete", resource, "kept"], ""), None, "{resource}");
                writer.may_not(&["delete", resource, "foreign"]);
            }
            if own["spec"]["template"].is_object() {
                for spec in forbidden_pods() {
                    let mut child = owned(own.clone());
                    let pod = child["spec"]["template"]["spec"].as_object_mut().unwrap();
                    pod.extend(spec.as_object().unwrap().clone());
                    writer.may_not_create(&child);
                }
            }
            tested += 1;
        }
        assert!(tested > 0);
        may_change_weights_alone(&scene, &writer, controller).await;
    })
    .await;
}

/// Of a route that has another owner.
async fn may_change_weights_alone(scene: &Scene<'_>, writer: &Writer<'_>, controller: &Controller) {
    let mut route = child("httproutes");
    route["metadata"] = json!({"name": "shared", "namespace": scene.namespace()});
    route["spec"] = json!({"rules": [{"name": "models", "backendRefs": [
        {"name": "chat", "port": 80, "weight": 100}, {"name": "chat-canary", "port": 80, "weight": 0},
    ]}]});
    scene.apply(&route.to_string()).await.unwrap();
    let mut foreign = route.clone();
    foreign["metadata"]["name"] = json!("foreign");
    foreign["spec"]["rules"][0]["backendRefs"][1]["name"] = json!("other");
    scene.apply(&foreign.to_string()).await.unwrap();
    let weight = json!([{"op": "replace", "path": "/spec/rules/0/backendRefs/1/weight", "value": 10}]);
    let refusal = writer.patch_refusal("foreign", &weight);
    assert!(refusal.is_some_and(|text| text.contains(BY_POLICY)), "of two Services that are no versions");
    let patch = |operations: Value| writer.patch_refusal("shared", &operations);
    let replace = |path: &str, value: Value| json!({"op": "replace", "path": path, "value": value});
    let backend = "/spec/rules/0/backendRefs/1";
    let weights = json!([replace(&format!("{backend}/weight"), json!(10))]);
    match controller.shared.contains(&"httproutes") {
        true => assert_eq!(patch(weights), None, "{}", controller.name),
        false => assert!(patch(weights).is_some_and(|text| text.contains(BY_POLICY)), "{}", controller.name),
    }
    for other in [
        replace(&format!("{backend}/name"), json!("stolen")),
        replace(&format!("{backend}/port"), json!(81)),
        replace("/spec/rules/0/name", json!("stolen")),
        json!({"op": "add", "path": "/spec/hostnames", "value": ["stolen.example.com"]}),
        json!({"op": "add", "path": "/spec/rules/0/timeouts", "value": {"request": "1s"}}),
        json!({"op": "replace", "path": "/spec/rules/0/matches", "value": [{"path": {"value": "/stolen"}}]}),
        json!({"op": "add", "path": "/spec/rules/0/filters", "value": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["authorization"]}},
        ]}),
        json!({"op": "add", "path": format!("{backend}/namespace"), "value": "stolen"}),
        json!({"op": "add", "path": "/spec/rules/-", "value": {"backendRefs": [{"name": "stolen", "port": 80}]}}),
        json!({"op": "add", "path": "/spec/parentRefs", "value": [{"name": "stolen"}]}),
        json!({"op": "add", "path": "/metadata/labels", "value": {"a": "stolen"}}),
        json!({"op": "add", "path": "/metadata/annotations", "value": {"a": "stolen"}}),
        json!({"op": "remove", "path": backend}),
    ] {
        let both = json!([other, replace(&format!("{backend}/weight"), json!(10))]);
        let both = if other["op"] == "remove" { json!([other]) } else { both };
        let refusal = patch(both);
        assert!(refusal.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{other}: {refusal:?}");
    }
}

/// A valid object of a resource, without metadata. A new child of a controller needs one.
fn child(resource: &str) -> Value {
    let labels = json!({"app": "stolen"});
    let pod =
        json!({"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "image"}]});
    let of = |api_version: &str, kind: &str, spec: Value| json!({"apiVersion": api_version, "kind": kind, "spec": spec});
    match resource {
        "configmaps" => json!({"apiVersion": "v1", "kind": "ConfigMap"}),
        "services" => of("v1", "Service", json!({"ports": [{"port": 80}]})),
        "persistentvolumeclaims" => {
            let requests = json!({"requests": {"storage": "1Gi"}});
            of(
                "v1",
                "PersistentVolumeClaim",
                json!({"accessModes": ["ReadWriteOnce"], "resources": requests}),
            )
        }
        "deployments" => {
            let template = json!({"metadata": {"labels": labels}, "spec": pod});
            of("apps/v1", "Deployment", json!({"selector": {"matchLabels": labels}, "template": template}))
        }
        "jobs" => {
            let mut pod = pod;
            pod["restartPolicy"] = json!("Never");
            of("batch/v1", "Job", json!({"template": {"metadata": {"labels": labels}, "spec": pod}}))
        }
        "poddisruptionbudgets" => {
            let selector = json!({"matchLabels": {labels::TRACK: labels::TRACK_STABLE}});
            of("policy/v1", "PodDisruptionBudget", json!({"selector": selector, "maxUnavailable": 1}))
        }
        "grpcroutes" => of("gateway.networking.k8s.io/v1", "GRPCRoute", json!({})),
        "inferencepools" => {
            let picker = json!({"name": "picker", "port": {"number": 9002}});
            let spec = json!({"selector": {"matchLabels": labels}, "targetPorts": [{"number": 80}],
                "endpointPickerRef": picker});
            of("inference.networking.k8s.io/v1", "InferencePool", spec)
        }
        "aiinferences" => {
            let spec = json!({"modelSource": "s3://models", "engine": "vllm", "gpu": {"count": 1}});
            of("ai.infra.example.com/v1alpha1", "AIInference", spec)
        }
        "aiscalers" => {
            let spec =
                json!({"deploymentName": "web", "metricType": "latency", "targetValue": 1, "maxReplicas": 2});
            of("ai.infra.example.com/v1", "AIScaler", spec)
        }
        "horizontalpodautoscalers" => {
            let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
            of(
                "autoscaling/v2",
                "HorizontalPodAutoscaler",
                json!({"scaleTargetRef": target, "maxReplicas": 2}),
            )
        }
        "httproutes" => of("gateway.networking.k8s.io/v1", "HTTPRoute", json!({})),
        "volumesnapshots" => {
            let source = json!({"persistentVolumeClaimName": "kept"});
            of("snapshot.storage.k8s.io/v1", "VolumeSnapshot", json!({"source": source}))
        }
        other => panic!("no object of {other}"),
    }
}

#[tokio::test]
async fn the_policy_for_one_namespace_limits_the_account_there() {
    let scene = confined::scene().await;
    for_every_controller(async |tested| {
        let scene = Scene::new(scene.cluster()).await;
        let folder = deploy(tested).join("overlays/namespaced-policy");
        scene.kubectl(&["apply", "--server-side", "--kustomize", folder.to_str().unwrap()]);

        let life = life_of(tested);
        confined::start_controller(tested, &scene, &[]).await;
        grant_every_write(&scene, &format!("{}:{}", scene.namespace(), tested.name));
        let writer = Writer { scene: &scene, account: user(tested, scene.namespace()) };
        scene.kubectl(&["create", "configmap", "foreign"]);
        let patch = ["patch", "configmap", "foreign", "--type=merge", "--patch", LABEL];
        writer.until_limited(&patch).await;
        life.play(&scene, "life").await;
        writer.may_not(&patch);
    })
    .await;
}

/// Overlays of users change the namespace, and names.
#[tokio::test]
async fn the_policy_limits_the_account_in_the_namespace_of_an_overlay() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    let scene = Scene::new(&cluster).await;
    scene.kubectl(&["create", "namespace", "ml-system"]);
    for_every_controller(async |controller| {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&deploy(controller), &copy.path().join("controller"));
        let overlay = |name: &str, text: &str| {
            let folder = copy.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("kustomization.yaml"), format!("{text}\n")).unwrap();
            folder
        };
        let moved = overlay("moved", "{namespace: ml-system, resources: [../controller/base]}");
        let namespace = "--namespace=ml-system";
        scene.kubectl(&["apply", "--server-side", namespace, "--kustomize", moved.to_str().unwrap()]);
        let writer = Writer { scene: &scene, account: user(controller, "ml-system") };
        grant_every_write(&scene, &format!("ml-system:{}", controller.name));
        writer.until_limited(&["create", "configmap", "probe"]).await;
        let lease = |namespace: &str| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": controller.name, "namespace": namespace}})
        };
        writer.may_create(&lease("ml-system"));
        grant_every_write(&scene, &format!("ml-system:other-{}", controller.name));
        let other = Writer {
            scene: &scene,
            account: format!("system:serviceaccount:ml-system:other-{}", controller.name),
        };
        // The API server notices the new rights some time after they were given.
        ask_until("a write by an account of another name", within(), async || {
            match other.refusal(&["create", "configmap", "probe"], "") {
                None => Ok(()),
                Some(refusal) => Err(refusal),
            }
        })
        .await;

        let renamed = overlay("renamed", "{namePrefix: team-, resources: [../controller/base]}");
        let objects = built(&scene.cluster().kubectl(), &renamed);
        let name = format!("team-{}", controller.name);
        let binding: ValidatingAdmissionPolicyBinding =
            one(&objects, "ValidatingAdmissionPolicyBinding", &name);
        assert_eq!(binding.spec.unwrap().policy_name.as_deref(), Some(&*name));
    })
    .await;
}

#[tokio::test]
async fn every_write_that_the_roles_grant_is_limited_by_the_policy() {
    let kubectl = confined::scene().await.cluster().kubectl();
    for_every_controller(async |controller| {
        let base = built(&kubectl, &deploy(controller).join("base"));
        let policy: ValidatingAdmissionPolicy = one(&base, "ValidatingAdmissionPolicy", controller.name);
        let constraints = policy.spec.and_then(|spec| spec.match_constraints).unwrap();
        let limited: BTreeSet<(String, String)> = constraints
            .resource_rules
            .iter()
            .flatten()
            .flat_map(|rule| pairs(rule.api_groups.as_deref(), rule.resources.as_deref()))
            .collect();
        let of_its_kinds: BTreeSet<String> =
            controller.kinds.iter().map(|kind| kind.resource().plural).collect();
        for right in granted_writes(&base, controller) {
            let (group, resource, verb) = right;
            // The status of its own kind, and what admission plugins ask for.
            let root = resource.split_once('/').map(|(root, _)| root);
            if root.is_some_and(|root| of_its_kinds.contains(root)) {
                continue;
            }
            let subresource = resource.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
            let is_limited = limited.contains(&(group.clone(), resource.clone()))
                || subresource.is_some_and(|every| limited.contains(&("*".to_owned(), every)));
            assert!(is_limited, "{verb} {resource} of {group:?}");
        }
    })
    .await;
}

fn granted_writes(base: &[DynamicObject], controller: &Controller) -> impl Iterator<Item = Right> {
    let everywhere: ClusterRole = one(base, "ClusterRole", controller.name);
    let own: Role = one(base, "Role", controller.name);
    let rules: Vec<PolicyRule> = everywhere.rules.into_iter().chain(own.rules).flatten().collect();
    let reads = ["get", "list", "watch"];
    rights(&rules).into_iter().filter(move |(_, _, verb)| !reads.contains(&verb.as_str()))
}

fn pairs(groups: Option<&[String]>, resources: Option<&[String]>) -> Vec<(String, String)> {
    let groups = groups.unwrap_or_default().iter();
    groups
        .flat_map(|group| {
            let resources = resources.unwrap_or_default().iter();
            resources.map(|resource| (group.clone(), resource.clone())).collect::<Vec<_>>()
        })
        .collect()
}

fn one<K: serde::de::DeserializeOwned>(objects: &[DynamicObject], kind: &str, name: &str) -> K {
    let is_it = |object: &&DynamicObject| {
        object.metadata.name.as_deref() == Some(name)
            && object.types.as_ref().is_some_and(|types| types.kind == kind)
    };
    let found = objects.iter().find(is_it).expect("an object of that name");
    serde_json::from_value(serde_json::to_value(found).unwrap()).unwrap()
}

/// Kinds that a controller may have the right to write, and what makes an object of each.
const FOREIGN: [(&str, &str); 3] = [
    ("configmap", "create configmap foreign"),
    ("service", "create service clusterip foreign --tcp=80"),
    ("deployment", "create deployment foreign --image=image --replicas=1"),
];

/// With the roles of a controller alone, some writes are refused before its policy is asked: those that no role allows, and
/// owner references on what the account cannot delete. More rights show that the policy refuses them, too.
fn grant_every_write(scene: &Scene<'_>, account: &str) {
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "create", "update", "patch", "delete"]});
    let mut rules = vec![
        rule("", &["configmaps", "services", "persistentvolumeclaims"]),
        rule("apps", &["deployments", "deployments/scale"]),
        rule("batch", &["jobs"]),
        rule("coordination.k8s.io", &["leases"]),
        rule("policy", &["poddisruptionbudgets"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"]),
        rule("gateway.networking.k8s.io", &["grpcroutes", "httproutes"]),
        rule("inference.networking.k8s.io", &["inferencepools"]),
    ];
    let kinds = CONTROLLERS.iter().flat_map(|controller| controller.kinds).map(Kind::resource);
    rules.extend(kinds.map(|kind| rule(&kind.group, &[&kind.plural])));
    let name = format!("every-write-{}", account.replace(':', "-"));
    let (namespace, of) = account.split_once(':').expect("a namespace and a name");
    let api_version = "rbac.authorization.k8s.io/v1";
    // Several tests grant it.
    let role =
        json!({"apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let binding = json!({
        "apiVersion": api_version,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": of}],
    });
    for object in [role, binding] {
        let applied =
            scene.kubectl_with_input(&["apply", "--server-side", "--filename=-"], &object.to_string());
        assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    }
}

/// Without deletion, owner references of pods are refused before the policy is asked. kubectl gets what it patches.
fn grant_deletion_of_pods(scene: &Scene<'_>, controller: &Controller) {
    let name = format!("delete-pods-{}", controller.name);
    scene.kubectl(&["create", "clusterrole", &name, "--verb=get,delete", "--resource=pods"]);
    let account = format!("--serviceaccount=ai-system:{}", controller.name);
    scene.kubectl(&["create", "clusterrolebinding", &name, &format!("--clusterrole={name}"), &account]);
}

/// Objects of users in the scene and in kube-system, and pods that no controller made.
fn foreign_objects(scene: &Scene<'_>, controller: &Controller) {
    static IN_KUBE_SYSTEM: Once = Once::new();
    let create_in = |namespace: &str| {
        for (_, create) in FOREIGN {
            let args: Vec<&str> = create.split(' ').collect();
            scene.kubectl(&[&args[..], &[&format!("--namespace={namespace}")]].concat());
        }
    };
    IN_KUBE_SYSTEM.call_once(|| create_in("kube-system"));
    create_in(scene.namespace());
    scene.kubectl(&["run", "foreign", "--image=image"]);
    let label = format!("--labels=app.kubernetes.io/managed-by={}", controller.name);
    scene.kubectl(&["run", "labelled", "--image=image", &label]);
}

fn kind_of_child(life: &Life) -> String {
    name_of(&life.edited.resource)
}

/// As kubectl takes it.
fn name_of(resource: &ApiResource) -> String {
    format!("{}.{}.{}", resource.plural, resource.version, resource.group)
}

/// It would keep an object whose first owner is gone.
fn other_owner() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt", "uid": "there"})
}

fn owner_of(owner: &DynamicObject, controls: bool) -> Value {
    let types = owner.types.as_ref().expect("a kind");
    json!({
        "apiVersion": types.api_version,
        "kind": types.kind,
        "name": owner.name_any(),
        "uid": owner.uid(),
        "controller": controls,
    })
}

fn config_map(namespace: &str, owners: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "stolen", "namespace": namespace, "ownerReferences": owners},
    })
}
