//! The token of the controller's ServiceAccount is replaced, and the old one is refused.

use std::{collections::BTreeSet, fs, time::Duration};

use k8s_openapi::{
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        coordination::v1::Lease,
        core::v1::{Secret, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DeleteParams, PostParams},
    config::{AuthInfo, Kubeconfig},
};
use local_cluster::Cluster;
use tests::{Scene, within};

use crate::setup::{CONTROLLER, SYSTEM, Setup, serve, until};

/// A client reads its token file once a minute.
const READ_AGAIN_WITHIN: Duration = Duration::from_secs(90);

#[tokio::test]
async fn calls_go_on_under_the_new_token_when_the_old_one_is_refused() {
    let setup = Setup::cluster(|spec| spec).await.with_controller(&[]).await;
    let scene = Scene::new(&setup).await;
    // A bound token becomes invalid when its object is deleted; the minimum lifetime of a token is ten minutes.
    let secrets: Api<Secret> = Api::namespaced(scene.client(), SYSTEM);
    let metadata = ObjectMeta { name: Some("life".to_owned()), ..ObjectMeta::default() };
    let life = Secret { metadata, ..Secret::default() };
    let life = secrets.create(&PostParams::default(), &life).await.unwrap();
    let (short_lived, permanent) = (token(&scene, Some(&life)).await, token(&scene, None).await);

    setup.stop_component(CONTROLLER).await.unwrap();
    let before = credentials(&setup);
    hand_over(&setup, &short_lived);
    setup.start_component(CONTROLLER).await.unwrap();
    until("calls under the first token", within(), async || credentials(&setup).len() > before.len()).await;
    let process = setup.controller().await;
    let first = credentials(&setup);

    hand_over(&setup, &permanent);
    let switched = async || credentials(&setup).len() > first.len();
    until("calls under the second token", READ_AGAIN_WITHIN, switched).await;
    secrets.delete("life", &DeleteParams::default()).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client_with(&setup, &short_lived).await, SYSTEM);
    until(
        "the refusal of the first token",
        within(),
        async || matches!(leases.get(CONTROLLER).await, Err(kube::Error::Api(status)) if status.code == 401),
    )
    .await;
    serve(&scene, "chat").await;
    let now = setup.controller().await;
    assert_eq!((now.pid, now.restarts), (process.pid, process.restarts), "{}", setup.log());
}

async fn token(scene: &Scene<'_>, bound_to: Option<&Secret>) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(scene.client(), SYSTEM);
    let bound_object_ref = bound_to.map(|secret| BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Secret".to_owned()),
        name: Some(secret.name_any()),
        uid: secret.uid(),
    });
    let spec = TokenRequestSpec { bound_object_ref, ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let issued = accounts.create_token_request(CONTROLLER, &PostParams::default(), &request).await.unwrap();
    issued.status.unwrap().token
}

/// Replaces the file atomically, as a kubelet does.
fn hand_over(cluster: &Cluster, token: &str) {
    let folder = cluster.folder().root().join("credentials");
    fs::write(folder.join("next"), token).unwrap();
    fs::rename(folder.join("next"), folder.join(format!("{CONTROLLER}.token"))).unwrap();
}

/// The ids of the tokens in the controller's requests, from the audit log.
fn credentials(cluster: &Cluster) -> BTreeSet<String> {
    let user = format!("system:serviceaccount:{SYSTEM}:{CONTROLLER}");
    let events = cluster.audit_events().unwrap().into_iter().filter(|event| event.user == user);
    events.map(|event| event.credential).filter(|credential| !credential.is_empty()).collect()
}

async fn client_with(cluster: &Cluster, token: &str) -> Client {
    let mut kubeconfig = Kubeconfig::read_from(cluster.folder().kubeconfig()).unwrap();
    let token = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
    kubeconfig.auth_infos[0].auth_info = Some(token);
    let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    Client::try_from(config).unwrap()
}
