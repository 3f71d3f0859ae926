//! What the views of agents mean for the pods of a target.

use metrics_client::{
    endpoint::{Endpoint, Origin},
    snapshot::{self, Holder, PodName, Reading as Measured, Snapshot, State, SubjectKind, Window},
    view::Latest,
};

use super::*;

const NOW: i64 = 1_767_268_800;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn pod(name: &str, node: &str) -> Arc<PodView> {
    let text = format!(
        "{{metadata: {{name: {name}, namespace: demo, uid: {name}}}, spec: {{nodeName: {node}}}, status: {{phase: Running}}}}"
    );
    Arc::new(serde_saphyr::from_str(&text).unwrap())
}

fn measured(metric: Metric, value: f64) -> Measured {
    let window = Window { length: WINDOW, mean: value, p95: value, max: value, samples: 10 };
    Measured {
        metric,
        state: State::Fresh,
        // What the last moment was like is not what the window was like.
        value: Some(if metric == Metric::Utilization { 0.0 } else { value }),
        age: Duration::from_secs(1),
        reason: FaultReason::Unspecified,
        windows: vec![window],
    }
}

fn unsupported(metric: Metric) -> Measured {
    Measured { state: State::Unsupported, value: None, windows: Vec::new(), ..measured(metric, 0.0) }
}

/// With the utilization, and 40 of 80 bytes in use.
fn gpu(id: &str, utilization: f64, holders: &[&str]) -> Subject {
    let holder = |name: &&str| Holder {
        pod: PodName { namespace: "demo".into(), name: (*name).into() },
        uid: "".into(),
        container: "engine".into(),
        resource: "nvidia.com/gpu".into(),
        shares: 1,
    };
    Subject {
        id: id.into(),
        kind: SubjectKind::Device,
        parent_id: "".into(),
        readings: vec![
            measured(Metric::Utilization, utilization),
            measured(Metric::MemoryUsed, 40.0),
            measured(Metric::MemoryTotal, 80.0),
        ],
        holders: holders.iter().map(holder).collect(),
        fault: None,
    }
}

fn view(node: &str, subjects: Vec<Subject>) -> View {
    let snapshot = Snapshot {
        instance: "i".into(),
        sequence: 1,
        uptime: Duration::from_secs(100),
        interval: Duration::from_secs(1),
        node: node.into(),
        pod: None,
        subjects,
        events: Vec::new(),
        faults: Vec::new(),
        attribution: snapshot::Attribution { state: State::Fresh, age: Duration::ZERO },
        is_cut: false,
    };
    View {
        endpoint: Endpoint { origin: Origin::Node(node.into()), address: "10.0.0.1:9401".into() },
        health: Health::Live,
        latest: Some(Latest {
            snapshot: Arc::new(snapshot),
            age: Duration::from_secs(1),
            patience: Duration::from_secs(3),
            is_admitted: true,
        }),
    }
}

fn edited(mut view: View, edit: impl FnOnce(&mut Snapshot)) -> View {
    let latest = view.latest.as_mut().unwrap();
    let mut snapshot = Snapshot::clone(&latest.snapshot);
    edit(&mut snapshot);
    latest.snapshot = Arc::new(snapshot);
    view
}

fn answered(wanted: GpuReading, pods: &[Arc<PodView>], views: &[View]) -> Answer {
    let views: BTreeMap<&str, View> = views.iter().map(|view| (view.node(), view.clone())).collect();
    answer(wanted, pods, &views, Installation::Found, now())
}

/// `uid value` in percent.
fn values(answer: &Answer) -> Vec<String> {
    match &answer.reading {
        Reading::Pods(samples) => samples
            .iter()
            .map(|sample| format!("{} {}", sample.uid, sample.value.count() as f64 / 1_000.0))
            .collect(),
        other => panic!("{other:?}: {}", answer.message),
    }
}

/// Of one pod on one node with this agent.
fn without(view: View) -> (Cause, String) {
    let answer = answered(GpuReading::Utilization, &[pod("llm-0", "gpu-1")], &[view]);
    match answer.reading {
        Reading::Missing(cause) => (cause, answer.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_is_as_busy_as_its_gpus_on_average_over_ten_seconds() {
    let views = [
        view("gpu-1", vec![gpu("a", 1.0, &["llm-0"]), gpu("b", 0.5, &["llm-0"]), gpu("c", 0.9, &["other"])]),
        view("gpu-2", vec![gpu("d", 0.0, &["llm-1"])]),
    ];
    let pods = [pod("llm-0", "gpu-1"), pod("llm-1", "gpu-2")];
    let utilization = answered(GpuReading::Utilization, &pods, &views);
    assert_eq!(values(&utilization), ["llm-0 75", "llm-1 0"], "zero is a value");
    assert_eq!(utilization.message, "");
    assert_eq!(values(&answered(GpuReading::Memory, &pods, &views)), ["llm-0 50", "llm-1 50"]);
}

#[test]
fn a_sample_is_of_when_its_oldest_reading_was_measured() {
    let mut old = gpu("b", 0.5, &["llm-0"]);
    old.readings[0].age = Duration::from_secs(2);
    let view = view("gpu-1", vec![gpu("a", 0.5, &["llm-0"]), old]);
    let answer = answered(GpuReading::Utilization, &[pod("llm-0", "gpu-1")], &[view]);
    let Reading::Pods(samples) = answer.reading else { panic!("{answer:?}") };
    assert_eq!(samples[0].at, Timestamp::from_second(NOW - 3).unwrap());
}

#[test]
fn a_partition_is_measured_by_its_engine() {
    let mut partition = gpu("MIG-a", 0.0, &["llm-0"]);
    partition.readings[0] = unsupported(Metric::Utilization);
    let pods = [pod("llm-0", "gpu-1")];
    let old = view("gpu-1", vec![partition.clone()]);
    assert_eq!(
        without(old),
        (
            Cause::Refused,
            "no reading of pod demo/llm-0 on node gpu-1: MIG-a has no utilization; name a source".into()
        )
    );
    partition.readings.push(measured(Metric::EngineActive, 0.25));
    let new = view("gpu-1", vec![partition]);
    assert_eq!(values(&answered(GpuReading::Utilization, &pods, &[new])), ["llm-0 25"]);
}

#[test]
fn of_a_gpu_without_a_fresh_value_the_pod_has_none() {
    let stale = |edit: fn(&mut Subject)| {
        let mut broken = gpu("b", 0.5, &["llm-0"]);
        edit(&mut broken);
        without(view("gpu-1", vec![gpu("a", 0.5, &["llm-0"]), broken]))
    };
    let named = |why: &str| format!("no reading of pod demo/llm-0 on node gpu-1: {why}");
    assert_eq!(
        stale(|gpu| {
            gpu.readings[0].state = State::Stale;
            gpu.readings[0].age = Duration::from_secs(8);
            gpu.readings[0].reason = FaultReason::DeviceLost;
        }),
        (Cause::Stale, named("b was last read 9 s ago (device_lost)"))
    );
    assert_eq!(
        stale(|gpu| {
            gpu.readings[0].state = State::Missing;
            gpu.readings[0].value = None;
        }),
        (Cause::Stale, named("b has never been read"))
    );
    assert_eq!(
        stale(|gpu| gpu.readings[0].windows[0].samples = 4),
        (Cause::Empty, named("b was read 4 times in the last 10 s"))
    );
    assert_eq!(
        stale(|gpu| gpu.readings[0].windows[0].mean = 73.0),
        (Cause::Malformed, named("a has a value that is no share"))
    );
    let mut empty = gpu("a", 0.5, &["llm-0"]);
    empty.readings[2].value = Some(0.0);
    empty.readings[1].value = Some(0.0);
    let answer = answered(GpuReading::Memory, &[pod("llm-0", "gpu-1")], &[view("gpu-1", vec![empty])]);
    assert!(matches!(answer.reading, Reading::Missing(Cause::Malformed)), "0 of 0 is not 0: {answer:?}");
}

#[test]
fn an_agent_that_does_not_say_who_holds_what_says_nothing_of_a_pod() {
    let held = || view("gpu-1", vec![gpu("a", 0.5, &["llm-0"])]);
    let of_node = |why: &str| format!("no readings of pods on node gpu-1: {why}");
    let lasting = Duration::from_secs(12);
    let with_health = |health| View { health, ..held() };
    assert_eq!(
        without(with_health(Health::Silent { lasting })),
        (Cause::Stale, of_node("its agent has been silent for 12 s"))
    );
    assert_eq!(
        without(with_health(Health::Unreachable { lasting, why: "Connection refused".into() })),
        (Cause::Unreachable, of_node("its agent has not been reached for 12 s: Connection refused"))
    );
    let with_attribution = |state, age| {
        edited(held(), |snapshot| {
            snapshot.attribution = snapshot::Attribution { state, age: Duration::from_secs(age) };
        })
    };
    assert_eq!(
        without(with_attribution(State::Missing, 0)),
        (Cause::Empty, of_node("its kubelet does not say which pods hold which GPUs"))
    );
    assert_eq!(
        without(with_attribution(State::Unsupported, 0)),
        (Cause::Refused, of_node("its agent has no --pod-resources, so it names no pods"))
    );
    assert_eq!(
        without(with_attribution(State::Stale, 60)),
        (Cause::Stale, of_node("its kubelet has not said for 61 s which pods hold which GPUs"))
    );
    let recent = with_attribution(State::Stale, 30);
    assert_eq!(values(&answered(GpuReading::Utilization, &[pod("llm-0", "gpu-1")], &[recent])), ["llm-0 50"]);
    let mut liar = held();
    liar.latest.as_mut().unwrap().is_admitted = false;
    assert_eq!(without(liar), (Cause::Refused, of_node("its agent claims to be that of another node")));
    assert_eq!(without(view("gpu-2", vec![])), (Cause::Empty, of_node("no metrics agent runs there")));
}

#[test]
fn a_pod_that_the_agent_does_not_name_is_missing_for_a_reason() {
    let others = view("gpu-1", vec![gpu("a", 0.5, &["other"])]);
    assert_eq!(
        without(others.clone()),
        (Cause::Empty, "no reading of pod demo/llm-0 on node gpu-1: it holds no GPU".into())
    );
    let old = edited(others.clone(), |snapshot| {
        snapshot.attribution.state = State::Stale;
        snapshot.attribution.age = Duration::from_secs(30);
    });
    // It may have started since.
    assert_eq!(
        without(old).1,
        "no readings of pods on node gpu-1: its kubelet has not said for 31 s which pods hold which GPUs"
    );
    let nothing = edited(others, |snapshot| {
        snapshot.subjects.clear();
        snapshot.faults = vec![snapshot::Fault {
            reason: FaultReason::NoDriver,
            message: "the driver is not loaded".into(),
        }];
    });
    assert_eq!(
        without(nothing).1,
        "no readings of pods on node gpu-1: its agent measures nothing: the driver is not loaded"
    );
}

#[test]
fn the_pods_that_are_measured_count_and_the_nodes_of_the_others_are_named() {
    let views = [view("gpu-1", vec![gpu("a", 0.5, &["llm-0"])]), view("gpu-2", vec![])];
    let pods: Vec<Arc<PodView>> = [
        ("llm-0", "gpu-1"),
        ("llm-1", "gpu-2"),
        ("llm-2", "a"),
        ("llm-3", "b"),
        ("llm-4", "c"),
        ("llm-5", "d"),
    ]
    .map(|(name, node)| pod(name, node))
    .to_vec();
    let answer = answered(GpuReading::Utilization, &pods, &views);
    assert_eq!(values(&answer), ["llm-0 50"]);
    assert_eq!(
        answer.message,
        "no readings of pods on nodes a, b, c and 1 more: no metrics agent runs there; no reading of pod demo/llm-1 on \
         node gpu-2: it holds no GPU"
    );
}

#[test]
fn without_agents_the_answer_says_what_to_do() {
    let of = |installation| {
        answer(GpuReading::Utilization, &[pod("llm-0", "gpu-1")], &BTreeMap::new(), installation, now())
            .message
    };
    assert!(of(Installation::Off).contains("--metrics-agents-ca"));
    let service = "ai-metrics/metrics-agent";
    assert_eq!(
        of(Installation::NotFound { service }),
        "no metrics agent was found behind Service ai-metrics/metrics-agent: install deploy/metrics-agent, let \
         this controller list EndpointSlices of that namespace, or name a source"
    );
    let none = answered(GpuReading::Utilization, &[], &[]);
    assert_eq!(none.reading, Reading::Missing(Cause::NoSettledPods));
}

#[test]
fn before_an_agent_was_reached_its_pods_are_pending_and_not_missing() {
    let lasting = Duration::from_secs(1);
    let pending = View { health: Health::Pending { lasting }, latest: None, ..view("gpu-1", vec![]) };
    let pods = [pod("llm-0", "gpu-1"), pod("llm-1", "gpu-2")];
    assert!(answered(GpuReading::Utilization, &pods[..1], std::slice::from_ref(&pending)).is_pending());
    let views = [pending, view("gpu-2", vec![gpu("a", 0.5, &["llm-1"])])];
    assert_eq!(values(&answered(GpuReading::Utilization, &pods, &views)), ["llm-1 50"]);
}

#[test]
fn a_change_by_less_than_a_percent_and_time_that_passes_are_no_news() {
    let pods = |samples: &[(&str, i64, i64)]| {
        let sample = |(uid, value, at): &(&str, i64, i64)| PodSample {
            uid: (*uid).to_owned(),
            value: Milli::from(*value),
            at: Timestamp::from_second(NOW + at).unwrap(),
        };
        Answer::new(Reading::Pods(samples.iter().map(sample).collect()), String::new())
    };
    let before = pods(&[("a", 50_000, 0), ("b", 10_000, 0)]);
    assert!(!is_news(&before, &pods(&[("a", 50_999, 1), ("b", 9_500, 1)])));
    assert!(is_news(&before, &pods(&[("a", 51_000, 1), ("b", 10_000, 1)])));
    assert!(is_news(&before, &pods(&[("a", 50_000, 1)])));
    assert!(is_news(&before, &pods(&[("a", 50_000, 1), ("c", 10_000, 1)])));
    let missing = |message: &str| Answer::new(Reading::Missing(Cause::Stale), message.to_owned());
    assert!(is_news(&before, &missing("")));
    assert!(!is_news(&missing("silent for 12 s"), &missing("silent for 13 s")));
    assert!(is_news(&missing("silent for 12 s"), &missing("no agent")));
}
