//! Tests of what is kept of the kubelet's answers.

use proto::podresources::v1::{ClaimResource, ContainerDevices, DynamicResource, PodResources};

use super::*;

const REFRESH: Duration = Duration::from_secs(5);

fn answer(pod: &str, ids: &[&str]) -> ListPodResourcesResponse {
    let devices = ContainerDevices {
        resource_name: "nvidia.com/gpu".to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    let container = ContainerResources { devices: vec![devices], ..ContainerResources::default() };
    let containers = vec![ContainerResources { name: "c".to_owned(), ..container }];
    let pod = PodResources { name: pod.to_owned(), namespace: "n".to_owned(), containers };
    ListPodResourcesResponse { pod_resources: vec![pod] }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn an_answer_is_fresh_for_two_intervals_and_forgotten_after_a_minute_without_another() {
    let fault = || Fault::new(FaultReason::NoKubelet, "gone");
    let none = Holdings::before_the_first_answer(REFRESH);
    assert_eq!(none.knowledge(seconds(1)), Knowledge::Missing);
    let known = none.answered(answer("pod", &["GPU-a"]), seconds(10));
    assert_eq!(known.knowledge(seconds(20)), Knowledge::Fresh { since: seconds(10) });
    assert_eq!(known.knowledge(seconds(21)), Knowledge::Stale { since: seconds(10) });
    let blind = known.unanswered(fault(), seconds(69));
    assert_eq!((blind.holders.len(), blind.fault.is_some()), (1, true));
    let forgotten = blind.unanswered(fault(), seconds(70));
    assert_eq!((forgotten.holders.len(), forgotten.knowledge(seconds(70))), (0, Knowledge::Missing));
    let again = forgotten.answered(answer("pod", &["GPU-a"]), seconds(71));
    assert!(again.fault.is_none() && again.holders.len() == 1);
    assert_eq!(Holdings::default().knowledge(seconds(1)), Knowledge::NotAsked);
}

#[test]
fn shares_of_one_device_are_counted_by_container() {
    let known = Holdings::default().answered(answer("pod", &["GPU-a::0", "GPU-a::1", "GPU-b"]), seconds(1));
    let shares = |id: &str| known.holders[&Key::Id(id.to_owned())][0].shares;
    assert_eq!((shares("GPU-a"), shares("GPU-b")), (2, 1));
}

#[test]
fn pods_that_share_a_gpu_by_hami_hold_it() {
    const GPU: &str = "GPU-5a7c3b10-0d1e-4f2a-9b3c-00aabbccddee";
    let shares = [format!("{GPU}-0"), format!("{GPU}-7")];
    let ids: Vec<&str> = shares.iter().map(String::as_str).collect();
    let known = Holdings::default().answered(answer("pod", &ids), seconds(1));
    assert_eq!(known.holders[&Key::Id(GPU.to_owned())][0].shares, 2);
}

#[test]
fn a_pod_holds_each_device_of_its_claims() {
    let device = |name: &str| ClaimResource {
        driver_name: "gpu.nvidia.com".to_owned(),
        pool_name: "node-a".to_owned(),
        device_name: name.to_owned(),
    };
    let claim = |devices: &[&str]| DynamicResource {
        claim_name: "claim".to_owned(),
        claim_namespace: "n".to_owned(),
        claim_resources: devices.iter().map(|name| device(name)).collect(),
    };
    let mut answer = answer("pod", &[]);
    answer.pod_resources[0].containers[0].dynamic_resources =
        vec![claim(&["gpu-0", "gpu-1"]), claim(&["gpu-3", "gpu-4-mig-1g10gb-19-0"])];
    let known = Holdings::default().answered(answer, seconds(1));
    let holds = |minor: u32| {
        known.holders.get(&Key::Minor(minor)).is_some_and(|holders| holders[0].resource == "gpu.nvidia.com")
    };
    assert_eq!([0, 1, 2, 3, 4].map(holds), [true, true, false, true, false]);
}
