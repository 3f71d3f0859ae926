//! What the policy of a controller lets it do with pods, and with the Jobs that make them.

use api::{
    controllers::{CONTROLLERS, Controller},
    labels,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use tests::{simulated, table::life_of};

use super::{
    BY_POLICY, LABEL, Writer, child, foreign_objects, grant_deletion_of_pods, grant_every_write,
    granted_writes, owner_of,
};
use crate::{
    confined, for_each, for_every_controller_with_children,
    overlays::{built, deploy},
    user,
};

/// Pods that no child of the controller made stay, and those of its children go where their nodes are lost.
#[tokio::test]
async fn the_token_of_a_controller_deletes_the_pods_of_its_children_alone() {
    let kubectl = confined::scene().await.cluster().kubectl();
    for_every_controller_with_children(async |controller| {
        let delete = (String::new(), "pods".to_owned(), "delete".to_owned());
        let base = built(&kubectl, &deploy(controller).join("base"));
        if !granted_writes(&base, controller).any(|right| right == delete) {
            // Its roles refuse every deletion of a pod.
            return;
        }
        let scene = simulated().await;
        let life = life_of(controller);
        life.begin(&scene, "life").await;
        let writer = Writer { scene: &scene, account: user(controller, "ai-system") };
        foreign_objects(&scene, controller);
        writer.until_limited(&["delete", "pod", "foreign", "--dry-run=server"]).await;

        let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap();
        let (foreign, own): (Vec<Pod>, Vec<Pod>) =
            pods.into_iter().partition(|pod| !pod.labels().values().any(|value| value == controller.name));
        assert!(!foreign.is_empty() && !own.is_empty());
        for pod in &foreign {
            writer.may_not(&["delete", "pod", &pod.name_any()]);
        }
        for pod in &own {
            let refusal = writer.refusal(&["delete", "pod", &pod.name_any()], "");
            // A pod that no ReplicaSet made has the label by hand.
            let is_made_by_hand = pod.owner_references().is_empty();
            assert_eq!(
                refusal.is_some_and(|text| text.contains(BY_POLICY)),
                is_made_by_hand,
                "{}",
                pod.name_any()
            );
        }
        assert!(own.iter().any(|pod| pod.owner_references().is_empty()));
    })
    .await;
}

/// Where a controller says which pods may go, it changes nothing else of them.
#[tokio::test]
async fn the_token_of_a_controller_changes_the_marks_alone_of_the_pods_of_its_children() {
    for_each(CONTROLLERS.iter().filter(|controller| controller.marks_pods), async |controller| {
        let scene = simulated().await;
        let life = life_of(controller);
        life.begin(&scene, "life").await;
        let writer = Writer { scene: &scene, account: user(controller, "ai-system") };
        foreign_objects(&scene, controller);
        grant_deletion_of_pods(&scene, controller);
        writer.until_limited(&["delete", "pod", "foreign"]).await;

        const THEIRS: &str = "example.com/theirs";
        let pods = scene.api::<Pod>().list(&ListParams::default()).await.unwrap();
        let is_own = |pod: &&Pod| {
            let has_label = pod.labels().values().any(|value| value == controller.name);
            has_label && pod.owner_references().iter().any(|owner| owner.kind == "ReplicaSet")
        };
        let own = pods.iter().find(is_own).expect("a pod of a child").name_any();
        let patch = |pod: &str, kind: &str, patch: &Value| {
            writer.refusal(&["patch", "pod", pod, kind, "--patch", &patch.to_string()], "")
        };
        let merge = |pod: &str, change: &Value| patch(pod, "--type=merge", change);
        let may_not = |pod: &str, change: Value| {
            let refusal = merge(pod, &change);
            assert!(refusal.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{change}: {refusal:?}");
        };
        let finalizers = |names: &[&str]| json!({"metadata": {"finalizers": names}});
        let marks: serde_json::Map<String, Value> =
            labels::POD_MARKS.map(|mark| (mark.to_owned(), json!("100"))).into_iter().collect();
        let mark = json!({"metadata": {"annotations": marks}});
        assert_eq!(merge(&own, &mark), None);
        may_not(&own, json!({"metadata": {"annotations": {"touched": "yes"}}}));
        may_not(
            &own,
            json!({"metadata": {"annotations": {labels::POD_DELETION_COST: "1", "touched": "yes"}}}),
        );
        may_not(&own, serde_json::from_str(LABEL).unwrap());
        may_not(&own, json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}}));
        may_not(&own, json!({"metadata": {"ownerReferences": null}}));
        may_not(&own, finalizers(&[THEIRS]));
        let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "other"}]);
        let refusal = patch(&own, "--type=json", &image);
        assert!(refusal.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{refusal:?}");
        // A finalizer of another program stays, also while the pod is marked.
        let kept = finalizers(&[THEIRS]).to_string();
        scene.kubectl(&["patch", "pod", &own, "--type=merge", "--patch", &kept]);
        assert_eq!(merge(&own, &mark), None);
        may_not(&own, finalizers(&[]));
        scene.kubectl(&["patch", "pod", &own, "--type=merge", "--patch", &finalizers(&[]).to_string()]);
        // Without the label, and with it by hand.
        for foreign in ["foreign", "labelled"] {
            may_not(foreign, mark.clone());
        }
    })
    .await;
}

/// Labels that were taken off are put back. A Job that is suspended, or whose pods are other ones, is not what was created.
#[tokio::test]
async fn the_token_of_a_controller_changes_the_labels_alone_of_its_jobs() {
    let makes_jobs =
        |controller: &&Controller| controller.children.iter().any(|(group, _)| *group == "batch");
    for_each(CONTROLLERS.iter().filter(makes_jobs), async |controller| {
        let scene = simulated().await;
        let owner = life_of(controller).create(&scene, "owner").await;
        grant_every_write(&scene, &format!("ai-system:{}", controller.name));
        let writer = Writer { scene: &scene, account: user(controller, "ai-system") };
        writer.until_limited(&["create", "configmap", "probe"]).await;
        let mut job = child("jobs");
        job["metadata"] = json!({"name": "attempt", "namespace": scene.namespace(),
            "annotations": {"note": "a"}, "ownerReferences": [owner_of(&owner, true)]});
        job["spec"]["suspend"] = json!(true);
        scene.apply(&job.to_string()).await.unwrap();
        let patch =
            |patch: &str| writer.refusal(&["patch", "job", "attempt", "--type=merge", "--patch", patch], "");
        assert_eq!(patch(LABEL), None);
        for change in [
            r#"{"spec":{"suspend":false}}"#,
            r#"{"spec":{"parallelism":3}}"#,
            r#"{"metadata":{"annotations":{"touched":"yes"}}}"#,
            r#"{"metadata":{"annotations":null}}"#,
        ] {
            let refusal = patch(change);
            assert!(refusal.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{change}: {refusal:?}");
        }
        // Without options, the pods of a Job stay.
        let path = format!("/apis/batch/v1/namespaces/{}/jobs/attempt?dryRun=All", scene.namespace());
        let deletes =
            scene.kubectl_with_input(&["delete", "--raw", &path, &format!("--as={}", writer.account)], "");
        let words = String::from_utf8_lossy(&deletes.stderr);
        assert!(!deletes.status.success() && words.contains("propagationPolicy"), "{words}");
        assert_eq!(writer.refusal(&["delete", "job", "attempt", "--cascade=background"], ""), None);
    })
    .await;
}

/// A stolen token makes no pod that leaves its container, and no Service that takes the address of another.
#[tokio::test]
async fn the_token_of_a_controller_makes_no_pod_with_rights_over_its_node_or_a_token() {
    let scene = simulated().await;
    let life = life_of(&CONTROLLERS[0]);
    let owner = life.create(&scene, "owner").await;
    let writer = Writer { scene: &scene, account: user(&CONTROLLERS[0], "ai-system") };
    let reference = owner_of(&owner, true);
    let deployment = |spec: Value| {
        let containers = json!([{"name": "main", "image": "image"}]);
        let mut pod = json!({"automountServiceAccountToken": false, "containers": containers});
        pod.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "stolen", "namespace": scene.namespace(), "ownerReferences": [reference]},
            "spec": {
                "selector": {"matchLabels": {"app": "stolen"}},
                "template": {"metadata": {"labels": {"app": "stolen"}}, "spec": pod},
            },
        })
    };
    let container =
        |security: Value| json!([{"name": "main", "image": "image", "securityContext": security}]);
    writer.until_limited(&["create", "configmap", "probe"]).await;
    writer.may_create(&deployment(json!({})));
    writer.may_create(&deployment(json!({"hostNetwork": false, "volumes": [{"name": "a", "emptyDir": {}}]})));
    writer.may_create(&deployment(json!({"securityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}}})));
    let profile = json!({"seccompProfile": {"type": "RuntimeDefault"}, "procMount": "Default"});
    writer.may_create(&deployment(json!({"containers": container(profile)})));
    writer.may_create(&deployment(json!({"containers": [{"name": "main", "image": "image",
        "livenessProbe": {"httpGet": {"port": 80}}, "readinessProbe": {"tcpSocket": {"port": 80}}}]})));
    let sources = json!([{"configMap": {"name": "a"}}, {"secret": {"name": "a"}},
        {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]}}]);
    writer.may_create(&deployment(json!({"volumes": [{"name": "a", "projected": {"sources": sources}}]})));
    // Where the API server does not know such a source, it refuses the volume itself.
    for source in [
        json!({"clusterTrustBundle": {"name": "a", "path": "a"}}),
        json!({"podCertificate": {"signerName": "example.com/a", "keyType": "ED25519", "credentialBundlePath": "a"}}),
    ] {
        let volumes = json!([{"name": "a", "projected": {"sources": [source]}}]);
        assert!(writer.creates(&deployment(json!({"volumes": volumes}))).is_some(), "{volumes}");
    }
    for spec in forbidden_pods() {
        writer.may_not_create(&deployment(spec));
    }
    let profile = json!({"container.apparmor.security.beta.kubernetes.io/main": "unconfined"});
    let mut annotated = deployment(json!({}));
    annotated["spec"]["template"]["metadata"]["annotations"] = profile;
    writer.may_not_create(&annotated);
    // A Deployment of a release that mounted the token goes on to be served, with the same account.
    let old = deployment(json!({"serviceAccountName": "reader", "automountServiceAccountToken": true}));
    scene.apply(&old.to_string()).await.unwrap();
    let patch = |patch: &str| {
        writer.refusal(&["patch", "deployment", "stolen", "--type=merge", "--patch", patch], "")
    };
    assert_eq!(patch(LABEL), None);
    let other =
        patch(r#"{"spec":{"template":{"spec":{"serviceAccountName":"other","serviceAccount":"other"}}}}"#);
    assert!(other.as_ref().is_some_and(|text| text.contains(BY_POLICY)), "{other:?}");

    let budget = |selector: Value| {
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "stolen", "namespace": scene.namespace(), "ownerReferences": [reference]},
            "spec": {"selector": selector, "maxUnavailable": 0},
        })
    };
    writer.may_create(&budget(json!({"matchLabels": {labels::TRACK: labels::TRACK_STABLE}})));
    writer.may_create(&budget(json!({"matchLabels": {labels::NAME: "aiinference"}})));
    writer.may_not_create(&budget(json!({"matchLabels": {labels::NAME: "other"}})));
    writer.may_not_create(&budget(json!({})));
    writer.may_not_create(&budget(json!({"matchLabels": {"app": "other"}})));
    let service = |spec: Value| {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "stolen", "namespace": scene.namespace(), "ownerReferences": [reference]},
            "spec": spec,
        })
    };
    let ports = json!([{"port": 80}]);
    writer.may_create(&service(json!({"ports": ports})));
    writer.may_not_create(&service(json!({"ports": ports, "externalIPs": ["10.1.2.3"]})));
    writer.may_not_create(&service(json!({"ports": ports, "type": "LoadBalancer"})));
    writer.may_not_create(&service(json!({"type": "ExternalName", "externalName": "example.com"})));
}

/// Parts of a pod, each of which gives it rights over its node or a token, or lets the kubelet send requests for it.
pub(super) fn forbidden_pods() -> Vec<Value> {
    let container =
        |security: Value| json!([{"name": "main", "image": "image", "securityContext": security}]);
    vec![
        json!({"hostNetwork": true}),
        json!({"hostPID": true}),
        json!({"hostIPC": true}),
        json!({"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}),
        json!({"containers": container(json!({"privileged": true}))}),
        json!({"containers": container(json!({"capabilities": {"add": ["SYS_ADMIN"]}}))}),
        json!({"containers": [{"name": "main", "image": "image", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
        json!({"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}),
        json!({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}),
        json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
        json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
        json!({"containers": container(json!({"seLinuxOptions": {"user": "system_u"}}))}),
        json!({"containers": container(json!({"seLinuxOptions": {"role": "system_r"}}))}),
        json!({"containers": container(json!({"seccompProfile": {"type": "Unconfined"}}))}),
        json!({"hostUsers": false, "containers": container(json!({"procMount": "Unmasked"}))}),
        json!({"automountServiceAccountToken": true}),
        json!({"serviceAccountName": "foreign", "automountServiceAccountToken": null}),
        json!({"volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "a"}}]}}]}),
        json!({"initContainers": [{"name": "first", "image": "image", "securityContext": {"privileged": true}}]}),
        json!({"containers": [{"name": "main", "image": "image", "livenessProbe": {"httpGet": {"host": "10.1.2.3", "port": 80}}}]}),
        json!({"containers": [{"name": "main", "image": "image", "readinessProbe": {"tcpSocket": {"host": "10.1.2.3", "port": 80}}}]}),
        json!({"containers": [{"name": "main", "image": "image", "startupProbe": {"httpGet": {"host": "10.1.2.3", "port": 80}}}]}),
        json!({"containers": [{"name": "main", "image": "image",
            "lifecycle": {"preStop": {"httpGet": {"host": "10.1.2.3", "port": 80}}}}]}),
        json!({"containers": [{"name": "main", "image": "image",
            "lifecycle": {"postStart": {"httpGet": {"host": "10.1.2.3", "port": 80}}}}]}),
    ]
}
