//! What a subscriber gets, and what it can tell apart. On the ABI fake.

use std::time::Duration;

use fake_nvml::{Event, Gpm, Partition, Process, State as Machine};
use prost::Message as _;
use prost_types::FileDescriptorProto;
use proto::metrics::v1::{EventKind, Metric, State, SubjectKind, ThrottleReason, Unit};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::process::{Start, is, reading, subject};

const GPU_0: &str = "GPU-00000000-0000-0000-0000-000000000000";

#[tokio::test]
async fn every_metric_of_a_gpu_arrives_with_its_unit() {
    let mut machine = Machine::with_gpus(2);
    machine.gpus[0].ecc_corrected = 7;
    machine.gpus[0].throttle_reasons = 1 | 4;
    machine.gpus[0].gpm = Some(Gpm { graphics: 80.0, sm: 60.0, tensor: 30.0, dram: 40.0 });
    let agent = Start::on(machine).start();
    let mut subscriber = agent.subscribe().await;
    let snapshot = subscriber
        .until(|it| it.subjects.len() == 2 && it.subjects[0].readings.len() >= 22 && is(it, 0, State::Fresh))
        .await;
    let gpu = subject(&snapshot, GPU_0);
    assert_eq!((gpu.kind(), gpu.vendor.as_str(), gpu.index), (SubjectKind::Device, "nvidia", 0));
    const MIB: f64 = 1_048_576.0;
    for (metric, unit, value) in [
        (Metric::Utilization, Unit::Ratio, 0.4),
        (Metric::MemoryBandwidthUtilization, Unit::Ratio, 0.2),
        (Metric::MemoryUsed, Unit::Bytes, 40_000.0 * MIB),
        (Metric::MemoryReserved, Unit::Bytes, 551.0 * MIB),
        (Metric::MemoryFree, Unit::Bytes, 41_008.0 * MIB),
        (Metric::MemoryTotal, Unit::Bytes, 81_559.0 * MIB),
        (Metric::Power, Unit::Watts, 350.0),
        (Metric::PowerLimit, Unit::Watts, 700.0),
        (Metric::Energy, Unit::Joules, 1000.0),
        (Metric::Temperature, Unit::Celsius, 55.0),
        (Metric::MemoryTemperature, Unit::Celsius, 60.0),
        (Metric::CoreClock, Unit::Hertz, 1.98e9),
        (Metric::MemoryClock, Unit::Hertz, 2.619e9),
        (Metric::Throttled, Unit::Ratio, 1.0),
        (Metric::EccCorrected, Unit::Count, 7.0),
        (Metric::EccUncorrected, Unit::Count, 0.0),
        (Metric::BusReplays, Unit::Count, 0.0),
        (Metric::LastErrorCode, Unit::Count, 0.0),
        (Metric::EngineActive, Unit::Ratio, 0.8),
        (Metric::CoresActive, Unit::Ratio, 0.6),
        (Metric::TensorActive, Unit::Ratio, 0.3),
        (Metric::MemoryActive, Unit::Ratio, 0.4),
    ] {
        let reading = reading(gpu, metric);
        assert_eq!(
            (reading.state(), reading.unit(), reading.value),
            (State::Fresh, unit, Some(value)),
            "{metric:?}"
        );
    }
    assert_eq!(gpu.throttle_reasons, [i32::from(ThrottleReason::PowerCap)]);
    let source = snapshot.source.unwrap();
    assert_eq!(source.node, "node-1");
    assert!(
        source.backend.contains("580.95.05-fake") && source.backend.contains("libfake_nvml.so"),
        "{source:?}"
    );
}

#[tokio::test]
async fn the_numbers_grow_by_one_and_a_restart_is_another_instance() {
    let agent = Start::on(Machine::with_gpus(1)).start();
    let mut subscriber = agent.subscribe().await;
    let first = subscriber.next().await;
    for sequence in first.sequence + 1..first.sequence + 5 {
        let next = subscriber.next().await;
        assert_eq!(next.sequence, sequence);
        assert_eq!(next.source.unwrap().instance, first.source.as_ref().unwrap().instance);
    }
    drop(agent);
    let again = Start::on(Machine::with_gpus(1)).start();
    let other = again.subscribe().await.next().await;
    assert_ne!(other.source.unwrap().instance, first.source.unwrap().instance);
}

#[tokio::test]
async fn windows_count_what_was_measured() {
    let agent = Start::on(Machine::with_gpus(1)).start();
    let mut subscriber = agent.subscribe().await;
    let full = subscriber.until(|it| it.sequence >= 5 && is(it, 0, State::Fresh)).await;
    let windows = &reading(subject(&full, GPU_0), Metric::Utilization).windows;
    let lengths: Vec<i64> = windows.iter().map(|window| window.length.unwrap().seconds).collect();
    assert_eq!(lengths, [10, 60]);
    for window in windows {
        assert_eq!((window.mean, window.p95, window.max), (0.4, 0.4, 0.4));
        assert!(window.samples >= 3, "{window:?}");
    }
    assert!(reading(subject(&full, GPU_0), Metric::Energy).windows.is_empty());
}

#[tokio::test]
async fn an_xid_arrives_before_the_next_reading_and_names_its_gpu() {
    /// Half of the interval: only the event can bring a snapshot so soon, and a busy machine has enough time for it.
    const ARRIVES_WITHIN: Duration = Duration::from_secs(15);
    let mut machine = Machine::with_gpus(2);
    let agent = Start::on(machine.clone()).with("--interval=30").start();
    let mut subscriber = agent.subscribe().await;
    subscriber.until(|it| is(it, 1, State::Fresh)).await;
    agent.awaits_events();
    machine.events.push(Event { gpu: 1, kind: 8, data: 79 });
    let began = std::time::Instant::now();
    agent.machine_becomes(&machine);
    let snapshot = subscriber.until(|it| !it.events.is_empty()).await;
    assert!(began.elapsed() < ARRIVES_WITHIN, "{:?}", began.elapsed());
    let event = &snapshot.events[0];
    assert_eq!(
        (event.sequence, event.kind(), event.code, event.fatal),
        (1, EventKind::DeviceError, Some(79), true)
    );
    assert_eq!(event.subject_id, snapshot.subjects[1].id);
    let code = reading(&snapshot.subjects[1], Metric::LastErrorCode);
    assert_eq!(code.value, Some(79.0));
    let (_, page) = agent.page("/metrics");
    assert!(
        page.lines()
            .any(|line| line.starts_with("DCGM_FI_DEV_XID_ERRORS{gpu=\"1\"") && line.ends_with(" 79.0"))
    );
}

#[tokio::test]
async fn partitions_have_readings_of_their_own_and_go_when_they_are_gone() {
    let mut machine = Machine::with_gpus(1);
    let partition = |number: u32| Partition {
        uuid: format!("MIG-{number}"),
        profile: "1g.10gb".to_owned(),
        gpu_instance: number,
        memory_total: 1000,
        memory_used: 100 * u64::from(number),
        gpm: Some(Gpm { graphics: 10.0 * f64::from(number), ..Gpm::default() }),
    };
    machine.gpus[0].partitions = vec![Some(partition(1)), None, Some(partition(5))];
    let agent = Start::on(machine.clone()).start();
    let mut subscriber = agent.subscribe().await;
    let has_gpm = |it: &proto::metrics::v1::Snapshot| {
        it.subjects.len() == 3
            && it.subjects[2]
                .readings
                .iter()
                .any(|it| it.metric() == Metric::EngineActive && it.value.is_some())
    };
    let snapshot = subscriber.until(has_gpm).await;
    let five = subject(&snapshot, "MIG-5");
    assert_eq!(
        (five.kind(), five.parent_id.as_str(), five.profile.as_str()),
        (SubjectKind::Partition, GPU_0, "1g.10gb")
    );
    assert_eq!(reading(five, Metric::MemoryUsed).value, Some(500.0));
    assert_eq!(reading(five, Metric::EngineActive).value, Some(0.5));
    machine.gpus[0].partitions = vec![Some(partition(1))];
    agent.machine_becomes(&machine);
    let snapshot = subscriber.until(|it| it.subjects.len() == 2).await;
    assert_eq!(snapshot.subjects[1].id, "MIG-1");
}

#[tokio::test]
async fn processes_are_listed_where_they_are_asked_for() {
    let mut machine = Machine::with_gpus(1);
    machine.gpus[0].processes = vec![Process { pid: 4242, memory_bytes: 1 << 30 }];
    let without = Start::on(machine.clone()).start();
    let snapshot = without.subscribe().await.until(|it| is(it, 0, State::Fresh)).await;
    assert!(snapshot.subjects[0].processes.is_empty());
    let with = Start::on(machine).with("--processes").start();
    let snapshot = with.subscribe().await.until(|it| is(it, 0, State::Fresh)).await;
    let processes = &snapshot.subjects[0].processes;
    assert_eq!((processes[0].pid, processes[0].memory_bytes), (4242, Some(1 << 30)));
}

#[tokio::test]
async fn health_and_reflection_answer_as_grpcurl_asks_them() {
    let agent = Start::on(Machine::with_gpus(1)).start();
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", agent.grpc)).unwrap();
    let channel = channel.connect().await.unwrap();
    let request = HealthCheckRequest { service: "metrics.v1.Metrics".to_owned() };
    let health = HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner();
    assert_eq!(health.status(), ServingStatus::Serving);
    let asked = |request| ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let requests = [
        asked(MessageRequest::ListServices(String::new())),
        asked(MessageRequest::FileContainingSymbol("metrics.v1.Metrics".to_owned())),
        asked(MessageRequest::FileByFilename("google/protobuf/timestamp.proto".to_owned())),
    ];
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(futures::stream::iter(requests))
        .await
        .unwrap()
        .into_inner();
    let mut answer = async || answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(services) = answer().await else { panic!("no services") };
    let names: Vec<&str> = services.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"metrics.v1.Metrics") && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    for name in ["metrics/v1/metrics.proto", "google/protobuf/timestamp.proto"] {
        let MessageResponse::FileDescriptorResponse(files) = answer().await else { panic!("no {name}") };
        let files: Vec<FileDescriptorProto> = files
            .file_descriptor_proto
            .iter()
            .map(|bytes| FileDescriptorProto::decode(bytes.as_slice()).unwrap())
            .collect();
        assert!(files.iter().any(|file| file.name() == name), "{name}");
    }
}

#[tokio::test]
async fn sigterm_ends_streams_with_unavailable_and_the_process_with_0() {
    let mut agent = Start::on(Machine::with_gpus(1)).start();
    let mut subscriber = agent.subscribe().await;
    subscriber.next().await;
    agent.terminate();
    assert_eq!(subscriber.end().await.code(), tonic::Code::Unavailable);
    assert_eq!(agent.ends().code(), Some(0));
}

#[tokio::test]
async fn a_recorded_file_replays_a_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.json");
    let text = r#"{"devices": [{"id": "Ascend910-0", "vendor": "huawei", "model": "Ascend 910B",
        "readings": {"utilization": [0.5]}}],
        "events": [{"after_seconds": 0.2, "device": "Ascend910-0", "code": 1, "fatal": true}]}"#;
    std::fs::write(&path, text).unwrap();
    let agent = Start::without_library().with(format!("--recorded={}", path.display())).start();
    let snapshot = agent.subscribe().await.until(|it| !it.events.is_empty()).await;
    let device = subject(&snapshot, "Ascend910-0");
    assert_eq!((device.vendor.as_str(), reading(device, Metric::Utilization).value), ("huawei", Some(0.5)));
    assert_eq!(snapshot.faults.len(), 0);
    assert_eq!(snapshot.events[0].code, Some(1));
}
