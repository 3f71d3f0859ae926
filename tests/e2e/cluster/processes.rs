//! Start and cleanup: clusters are independent, and a killed cluster leaves nothing behind.

use std::path::Path;

use k8s_openapi::api::core::v1::Namespace;
use local_cluster::{ClusterSpec, Error, Folder, explained, running};
use tests::{Scene, ask_until, fresh_name, start, tools, until_component, within};

#[tokio::test]
async fn two_clusters_run_side_by_side() {
    let (one, other) = futures::join!(
        start(ClusterSpec::api_only(fresh_name(), tools())),
        start(ClusterSpec::api_only(fresh_name(), tools())),
    );
    let scene = Scene::new(&one).await;
    scene.cluster_api::<Namespace>().get(scene.namespace()).await.unwrap();
    let elsewhere = kube::Api::<Namespace>::all(other.client().await.unwrap());
    assert!(elsewhere.get_opt("only-in-one").await.unwrap().is_none());
    assert_ne!(one.folder(), other.folder());
}

#[tokio::test]
async fn a_cluster_of_a_name_that_runs_is_refused() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    let program = local_cluster::sibling_binary("local-cluster").unwrap();
    let second = local_cluster::Cluster::start(cluster.spec().clone(), &program).await;
    assert!(matches!(second.unwrap_err(), Error::AlreadyRunning { .. }));
}

#[tokio::test]
async fn a_stopped_cluster_leaves_no_process_and_no_folder() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    let pids = pids(&cluster).await;
    assert!(pids.len() >= 3, "{pids:?}");
    let folder = cluster.folder().clone();
    cluster.stop().await.unwrap();
    assert_eq!(alive(&pids), Vec::<u32>::new());
    assert!(!folder.root().exists());
}

#[tokio::test]
async fn a_cluster_ends_with_its_owner() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    let pids = pids(&cluster).await;
    let folder = cluster.folder().clone();
    drop(cluster);
    assert_eq!(alive(&pids), Vec::<u32>::new());
    assert!(!folder.root().exists());
}

#[tokio::test]
async fn the_next_start_cleans_up_after_a_killed_supervisor() {
    let name = fresh_name();
    let (pids, folder) = kill_supervisor_of(&name).await;
    assert!(folder.root().exists(), "the folder remains");
    let again = start(ClusterSpec::api_only(&name, tools())).await;
    assert_eq!(alive(&pids), Vec::<u32>::new());
    again.stop().await.unwrap();
}

#[tokio::test]
async fn down_cleans_up_after_a_killed_supervisor() {
    let name = fresh_name();
    let (pids, folder) = kill_supervisor_of(&name).await;
    assert!(running(&name).unwrap().is_none());
    assert!(local_cluster::remove(&name).await.unwrap(), "something was removed");
    assert_eq!(alive(&pids), Vec::<u32>::new());
    assert!(!folder.root().exists());
}

#[tokio::test]
async fn a_component_that_ends_is_started_again() {
    let cluster = start(ClusterSpec::api_only(fresh_name(), tools())).await;
    cluster.kill_component("kube-apiserver").await.unwrap();
    until_component(&cluster, "kube-apiserver", "started again", |now| {
        now.restarts >= 1 && now.pid.is_some()
    })
    .await;
    let client = cluster.client().await.unwrap();
    ask_until("an API server that answers", within(), async || client.apiserver_version().await).await;
}

#[tokio::test]
async fn a_failed_start_shows_the_end_of_the_log_of_the_failed_component() {
    let empty = tempfile::tempdir().unwrap();
    let program = local_cluster::sibling_binary("local-cluster").unwrap();
    let name = fresh_name();
    let spec = ClusterSpec::api_only(&name, empty.path());
    let folder = Folder::of(&name).unwrap();
    let failed = explained(&local_cluster::Cluster::start(spec, &program).await.unwrap_err());
    assert!(failed.contains("ended while the cluster started"), "{failed}");
    assert!(failed.contains("No such file or directory"), "{failed}");
    let kept = folder.root().with_file_name(format!(".failed-{name}"));
    assert!(failed.contains(&format!("its logs are kept in {}", kept.display())), "{failed}");
    assert!(kept.join("etcd.log").exists() && !folder.root().exists());
    local_cluster::remove(&name).await.unwrap();
    assert!(!kept.exists());
}

/// Starts a cluster, kills its supervisor with SIGKILL, and returns the processes that it had.
async fn kill_supervisor_of(name: &str) -> (Vec<u32>, Folder) {
    let cluster = start(ClusterSpec::api_only(name, tools())).await;
    let pids = pids(&cluster).await;
    let folder = cluster.folder().clone();
    let status = cluster.status().await.unwrap();
    let supervisor = status.components.iter().find(|component| component.name == "supervisor").unwrap();
    let pid = supervisor.pid.unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    // Waits for its own child to end.
    drop(cluster);
    (pids, folder)
}

async fn pids(cluster: &local_cluster::Cluster) -> Vec<u32> {
    cluster.status().await.unwrap().components.iter().filter_map(|component| component.pid).collect()
}

/// The processes that still run.
fn alive(pids: &[u32]) -> Vec<u32> {
    let is_alive = |pid: u32| {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    pids.iter().copied().filter(|&pid| is_alive(pid)).collect()
}
