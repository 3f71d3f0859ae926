//! Tests of what is kept of the kubelet's answers.

use proto::podresources::v1::{ContainerDevices, PodResources};

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
