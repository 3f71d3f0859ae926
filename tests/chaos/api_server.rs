//! The API server is restarted under load, and is down for longer than the lease duration.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    time::Duration,
};

use api::{aiinference::AIInference, aiscaler::AIScaler, labels};
use fake_prometheus::Answer;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Service},
    },
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tests::{Scene, ask_until, controller, scaler, wait_for, wait_until_gone, within};
use tokio::{sync::watch, time::interval};

use crate::setup::{
    API_SERVER, CONTROLLER, PATIENT_LEASE, Setup, inference, lines_about, serve, until_ready, until_served,
};

const OBJECTS: usize = 60;
/// Long enough that both outages happen during the load.
const PACE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn restarts_of_the_api_server_under_load_lose_no_changes() {
    let setup = Setup::cluster(|spec| spec).await.with_controller(&PATIENT_LEASE).await;
    let scene = Scene::new(&setup).await;
    let before = setup.controller().await;

    let (written, mut progress) = watch::channel(0);
    let load = Load { scene: &scene, written };
    let breaking = async {
        progress.wait_for(|written| *written >= OBJECTS / 4).await.unwrap();
        setup.kill_component(API_SERVER).await.unwrap();
        progress.wait_for(|written| *written >= OBJECTS / 2).await.unwrap();
        setup.restart_component(API_SERVER).await.unwrap();
    };
    let (Left { images, deleted }, ()) = tokio::join!(load.write(), breaking);
    assert!(images.len() > OBJECTS / 2 && deleted.len() > OBJECTS / 10, "{images:?} {deleted:?}");

    let mut owners = BTreeMap::new();
    for (name, image) in images {
        let inference = until_ready(&scene, &name).await;
        assert_eq!(inference.status.as_ref().unwrap().resolved.as_ref().unwrap().image, image, "{name}");
        owners.insert(name, inference.uid().unwrap());
    }
    for name in deleted {
        wait_until_gone(&scene.api::<Deployment>(), &name, within()).await;
        wait_until_gone(&scene.api::<Service>(), &name, within()).await;
        wait_until_gone(&scene.api::<ConfigMap>(), &format!("{name}-model"), within()).await;
    }
    assert_eq!(children::<Deployment>(&scene).await, owners);
    assert_eq!(children::<Service>(&scene).await, owners);
    let config_maps = children::<ConfigMap>(&scene).await;
    let of = |suffix: &str| -> BTreeMap<String, String> {
        let named = config_maps.iter().filter_map(|(name, owner)| Some((name.strip_suffix(suffix)?, owner)));
        named.map(|(name, owner)| (name.to_owned(), owner.clone())).collect()
    };
    // The second one has what the pods have loaded.
    assert_eq!((of("-model"), of("-model-digests")), (owners.clone(), owners.clone()));
    assert_eq!(config_maps.len(), 2 * owners.len(), "{config_maps:?}");
    let after = setup.controller().await;
    assert_eq!((after.pid, after.restarts), (before.pid, 0), "{}", setup.log());
}

#[tokio::test]
async fn an_outage_longer_than_the_lease_ends_the_leader_and_the_next_start_converges() {
    let hasty = ["--lease-duration=12", "--lease-renew-deadline=8", "--lease-retry-period=0.3"];
    let setup = Setup::cluster(|spec| spec).await.with_controller(&hasty).await;
    let scene = Scene::new(&setup).await;
    serve(&scene, "chat").await;

    setup.stop_component(API_SERVER).await.unwrap();
    let ended = setup.until_controller("it ends", |now| now.restarts > 0).await;
    assert_eq!(ended.last_exit.as_deref(), Some("exit status: 1"));
    let log = setup.log();
    let reasons: Vec<_> = lines_about(&log, "exiting").map(|line| line["error"].clone()).collect();
    assert_eq!(reasons, ["the lease was lost: it could not be renewed in time"], "{log}");

    setup.start_component(API_SERVER).await.unwrap();
    until_served(&setup).await;
    serve(&scene, "again").await;
    assert_eq!(setup.controller().await.restarts, 1, "a standby outlives an outage\n{}", setup.log());
}

/// Readings of the source during the outage, one a second: with a low load, and then with a high one for longer than a
/// write is waited for.
const LOW: usize = 25;
const HIGH: usize = 17;

#[tokio::test]
async fn an_aiscaler_that_is_cut_off_goes_on_with_the_load_of_now() {
    let setup = Setup::cluster(|spec| spec).await;
    let mut process = controller(scaler::CONTROLLER);
    process.args = vec![
        format!("--prometheus-url={}", scaler::prometheus().url()),
        "--period=1".to_owned(),
        "--sample-period=1".to_owned(),
    ];
    // A leader that ends meanwhile would write nothing late in any case.
    let lasting = ["--lease-duration=120", "--lease-renew-deadline=100"];
    setup.start_controller(&process.with_args(lasting)).await.unwrap();
    let scene = Scene::new(&setup).await;
    let source = scaler::prometheus();
    source.set("load_of_the_cut_off", Answer::Value(20.0));
    scene.apply(&scaler::deployment("chat", 1).to_string()).await.unwrap();
    scaler::create(&scene, "chat", scaler::spec("chat", "sum(load_of_the_cut_off)"), json!({})).await;
    scaler::until_replicas(&scene, "chat", 4).await;
    scaler::until_active(&scene, "chat").await;

    setup.pause_component(API_SERVER).await.unwrap();
    for (load, readings) in [(5.0, LOW), (30.0, HIGH)] {
        source.set("load_of_the_cut_off", Answer::Value(load));
        let before = source.queries("load_of_the_cut_off");
        ask_until("readings while it is cut off", 2 * within(), async || {
            match source.queries("load_of_the_cut_off") - before {
                count if count < readings => Err(format!("{count} readings")),
                _ => Ok(()),
            }
        })
        .await;
    }
    setup.continue_component(API_SERVER).await.unwrap();
    scaler::until_replicas(&scene, "chat", 6).await;
    let done = wait_for(&scene.api::<AIScaler>(), "chat", "6 replicas in the status", within(), |scaler| {
        scaler.status.as_ref().is_some_and(|status| status.current_replicas == 6)
    })
    .await;
    let decisions = done.status.unwrap().decisions;
    let steps: Vec<(i32, i32)> = decisions.iter().map(|known| (known.from, known.to)).collect();
    assert_eq!((steps.first(), steps.last().map(|(_, to)| *to)), (Some(&(1, 4)), Some(6)), "{steps:?}");
    // A request that the stopped server had received may still be carried out, and is corrected.
    assert!(steps.len() <= 3, "{steps:?}");
}

/// Creates, changes and deletes models at a constant rate.
struct Load<'a> {
    scene: &'a Scene<'a>,
    written: watch::Sender<usize>,
}

/// The final state of the load.
struct Left {
    /// Image of each remaining model.
    images: BTreeMap<String, &'static str>,
    deleted: BTreeSet<String>,
}

impl Load<'_> {
    async fn write(self) -> Left {
        let mut left = Left { images: BTreeMap::new(), deleted: BTreeSet::new() };
        let mut pace = interval(PACE);
        let named = |number: usize| format!("model-{number}");
        for number in 0..OBJECTS {
            pace.tick().await;
            self.create(&named(number)).await;
            left.images.insert(named(number), "engine:1");
            if number >= 5 && number % 3 == 0 {
                let changed = named(number - 5);
                self.change(&changed).await;
                left.images.insert(changed, "engine:2");
            }
            if number >= 10 && number % 4 == 0 {
                let deleted = named(number - 10);
                self.delete(&deleted).await;
                left.images.remove(&deleted);
                left.deleted.insert(deleted);
            }
            self.written.send_replace(number);
        }
        left
    }

    async fn create(&self, name: &str) {
        let (inferences, inference) = (self.scene.api::<AIInference>(), inference(self.scene, name));
        persist(async || match inferences.create(&PostParams::default(), &inference).await {
            // The previous attempt succeeded, but its response was lost.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            created => created.map(drop),
        })
        .await;
    }

    async fn change(&self, name: &str) {
        let inferences = self.scene.api::<AIInference>();
        let patch = Patch::Merge(json!({"spec": {"image": "engine:2"}}));
        persist(async || inferences.patch(name, &PatchParams::default(), &patch).await.map(drop)).await;
    }

    async fn delete(&self, name: &str) {
        let inferences = self.scene.api::<AIInference>();
        persist(async || match inferences.delete(name, &DeleteParams::default()).await {
            // A starting API server may not serve the kind yet; then the error names no object.
            Err(kube::Error::Api(status))
                if status.details.as_ref().is_some_and(|gone| gone.name == name) =>
            {
                Ok(())
            }
            deleted => deleted.map(drop),
        })
        .await;
    }
}

/// Repeats a write until the API server accepts it.
async fn persist(write: impl AsyncFnMut() -> kube::Result<()>) {
    ask_until("an API server that takes the change", within(), write).await;
}

/// The controller's objects of a kind by name, each with the uid of its one controlling owner.
async fn children<K>(scene: &Scene<'_>) -> BTreeMap<String, String>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = scene.api();
    let managed = ListParams::default().labels(&format!("{}={CONTROLLER}", labels::MANAGED_BY));
    let listed = api.list(&managed).await.unwrap();
    let with_owner = |child: K| {
        let [owner] = child.owner_references() else { panic!("{child:?} has not one owner") };
        (child.name_any(), owner.uid.clone())
    };
    listed.items.into_iter().map(with_owner).collect()
}
