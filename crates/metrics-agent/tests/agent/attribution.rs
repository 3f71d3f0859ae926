//! Which pod holds which device. On the ABI fake, with a kubelet that the test plays.

use std::time::Instant;

use fake_kubelet::{GPU, Kubelet, claiming, pod};
use fake_nvml::{Event, Partition, State as Machine};
use proto::{
    metrics::v1::{FaultReason, Snapshot, State},
    podresources::v1::PodResources,
};

use crate::process::{Agent, Start, is};

fn uuid(number: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-{number:012}")
}

fn agent(machine: Machine, kubelet: &Kubelet) -> Agent {
    start(machine, kubelet).start()
}

/// It asks the kubelet once a second.
fn start(machine: Machine, kubelet: &Kubelet) -> Start {
    Start::on(machine)
        .with(format!("--pod-resources={}", kubelet.socket().display()))
        .with("--pod-resources-interval=1")
}

/// `pod xN` for each holder of the n-th subject.
fn holders(snapshot: &Snapshot, subject: usize) -> Vec<String> {
    let holders = snapshot.subjects[subject].holders.iter();
    let mut names: Vec<String> =
        holders.map(|holder| format!("{} x{}", holder.pod.as_ref().unwrap().name, holder.shares)).collect();
    names.sort();
    names
}

fn knows(snapshot: &Snapshot, state: State) -> bool {
    snapshot.attribution.is_some_and(|attribution| attribution.state() == state)
}

#[tokio::test]
async fn every_way_of_sharing_leads_to_the_pods_that_hold_a_device() {
    let mut machine = Machine::with_gpus(7);
    let instance = Partition { uuid: "MIG-7c".to_owned(), gpu_instance: 2, ..Partition::default() };
    machine.gpus[5].partitions = vec![Some(instance)];
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(
        folder.path(),
        vec![
            pod("exclusive", GPU, &[&uuid(0)]),
            pod("sliced", GPU, &[&format!("{}::0", uuid(1)), &format!("{}::3", uuid(1))]),
            pod("sliced-too", GPU, &[&format!("{}::1", uuid(1))]),
            pod("gke", GPU, &["nvidia2/vgpu0"]),
            claiming("claim", "gpu.nvidia.com", "gpu-3"),
            pod("other", "example.com/fpga", &["nvidia4"]),
            pod("mig", "nvidia.com/mig-1g.10gb", &["MIG-7c"]),
            pod("mig-gke", GPU, &["nvidia5/gi2"]),
            pod("hami", GPU, &[&format!("{}-0", uuid(6))]),
            pod("hami-too", "example.com/vgpu", &[&format!("{}-1", uuid(6)), &format!("{}-9", uuid(6))]),
            claiming("mig-claim", "gpu.nvidia.com", "gpu-4-mig-1g10gb-19-0"),
        ],
    )
    .unwrap();
    let agent = agent(machine, &kubelet);
    let snapshot =
        agent.subscribe().await.until(|it| knows(it, State::Fresh) && it.subjects.len() == 8).await;
    let table: Vec<Vec<String>> = (0..8).map(|subject| holders(&snapshot, subject)).collect();
    let wanted: [&[&str]; 8] = [
        &["exclusive x1"],
        &["sliced x2", "sliced-too x1"],
        &["gke x1"],
        &["claim x1"],
        &[],
        &[],
        &["mig x1", "mig-gke x1"],
        &["hami x1", "hami-too x2"],
    ];
    assert_eq!(table, wanted);
    let holder = &snapshot.subjects[0].holders[0];
    assert_eq!((holder.container.as_str(), holder.resource.as_str()), ("engine", GPU));
    assert_eq!(holder.pod.as_ref().unwrap().namespace, "ml");
    let (_, page) = agent.page("/metrics");
    let labels = "namespace=\"ml\",pod=\"exclusive\",container=\"engine\"} 40.0";
    assert!(
        page.lines().any(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{") && line.ends_with(labels)),
        "{page}"
    );
}

#[tokio::test]
async fn a_pod_that_is_gone_is_not_reported() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path(), vec![pod("first", GPU, &[&uuid(0)])]).unwrap();
    let agent = agent(Machine::with_gpus(1), &kubelet);
    let mut subscriber = agent.subscribe().await;
    subscriber.until(|it| it.subjects.len() == 1 && holders(it, 0) == ["first x1"]).await;
    kubelet.set_pods(vec![pod("second", GPU, &[&uuid(0)])]);
    subscriber.until(|it| holders(it, 0) == ["second x1"]).await;
}

#[tokio::test]
async fn an_event_names_who_held_the_device_when_it_happened() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path(), vec![pod("victim", GPU, &[&uuid(0)])]).unwrap();
    let mut machine = Machine::with_gpus(1);
    let agent = agent(machine.clone(), &kubelet);
    let mut subscriber = agent.subscribe().await;
    subscriber.until(|it| it.subjects.len() == 1 && holders(it, 0) == ["victim x1"]).await;
    machine.events.push(Event { gpu: 0, kind: 8, data: 79 });
    agent.machine_becomes(&machine);
    subscriber.until(|it| !it.events.is_empty()).await;
    kubelet.set_pods(Vec::new());
    let later = subscriber.until(|it| holders(it, 0).is_empty()).await;
    assert_eq!(later.events[0].holders[0].pod.as_ref().unwrap().name, "victim");
    agent.says("ml/victim");
}

#[tokio::test]
async fn a_kubelet_that_restarts_leaves_old_holders_and_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path(), vec![pod("held", GPU, &[&uuid(0)])]).unwrap();
    let agent = agent(Machine::with_gpus(1), &kubelet);
    let mut subscriber = agent.subscribe().await;
    subscriber.until(|it| knows(it, State::Fresh) && it.subjects.len() == 1).await;
    drop(kubelet);
    let blind = subscriber.until(|it| knows(it, State::Stale)).await;
    assert_eq!(
        (holders(&blind, 0), blind.faults[0].reason()),
        (vec!["held x1".to_owned()], FaultReason::NoKubelet)
    );
    assert!(is(&blind, 0, State::Fresh), "readings do not depend on the kubelet");
    let _kubelet = Kubelet::start(folder.path(), vec![pod("after", GPU, &[&uuid(0)])]).unwrap();
    let back = subscriber.until(|it| knows(it, State::Fresh)).await;
    assert_eq!((holders(&back, 0), back.faults.len()), (vec!["after x1".to_owned()], 0));
    assert_eq!(agent.lines_with(r#""reason":"no_kubelet""#).len(), 1);
}

#[tokio::test]
async fn without_a_kubelet_nothing_is_said_about_pods() {
    let nothing = Start::on(Machine::with_gpus(1)).start();
    nothing.subscribe().await.until(|it| knows(it, State::Unsupported)).await;
    let missing = Start::on(Machine::with_gpus(1)).with("--pod-resources=/nonexistent/kubelet.sock").start();
    let snapshot =
        missing.subscribe().await.until(|it| !it.faults.is_empty() && it.subjects.len() == 1).await;
    assert!(knows(&snapshot, State::Missing) && snapshot.subjects[0].holders.is_empty());
}

#[tokio::test]
async fn an_answer_of_five_megabytes_is_read_on_one_connection_and_delays_no_reading() {
    /// Seconds between two questions to the kubelet.
    const INTERVAL: usize = 3;
    /// Readings, one a second, in which the kubelet is asked several times.
    const TICKS: usize = 7;
    let folder = tempfile::tempdir().unwrap();
    let padding: Vec<String> = (0..400).map(|number| format!("filler-{number:0>90}")).collect();
    let ids: Vec<&str> = padding.iter().map(String::as_str).collect();
    let mut pods: Vec<PodResources> =
        (0..130).map(|number| pod(&format!("pod-{number}"), "example.com/other", &ids)).collect();
    pods.push(pod("held", GPU, &[&uuid(0)]));
    let bytes: usize = pods.iter().map(prost_len).sum();
    assert!(bytes > 5_000_000, "{bytes}");
    let kubelet = Kubelet::start(folder.path(), pods).unwrap();
    let began = Instant::now();
    // What was answered is fresh for two intervals, and a busy machine takes seconds to read five megabytes.
    let slow = format!("--pod-resources-interval={INTERVAL}");
    let agent = start(Machine::with_gpus(1), &kubelet).with_slow_ticks().with(slow).start();
    let mut subscriber = agent.subscribe().await;
    let first = subscriber.until(|it| knows(it, State::Fresh) && it.subjects.len() == 1).await;
    assert_eq!(holders(&first, 0), ["held x1"]);
    let mut last = first.sequence;
    for _ in 0..TICKS {
        let snapshot = subscriber.next().await;
        assert_eq!(snapshot.sequence, last + 1);
        assert!(is(&snapshot, 0, State::Fresh) && knows(&snapshot, State::Fresh), "{snapshot:?}");
        last = snapshot.sequence;
    }
    assert_eq!(kubelet.connections(), 1);
    let (questions, seconds) = (kubelet.questions(), began.elapsed().as_secs());
    // One an interval, one at the start, one for the begun interval, and one that is under way.
    let most = usize::try_from(seconds).unwrap() / INTERVAL + 3;
    assert!((2..=most).contains(&questions), "{questions} questions in {seconds} s");
}

/// Bytes of the strings, which are nearly all of it.
fn prost_len(pod: &PodResources) -> usize {
    let devices = pod.containers.iter().flat_map(|container| &container.devices);
    devices.flat_map(|devices| &devices.device_ids).map(String::len).sum()
}
