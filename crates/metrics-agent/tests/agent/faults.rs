//! What goes wrong below the agent: it stays up, the other devices stay fresh, and each fault is named. On the ABI fake.

use std::time::Duration;

use fake_nvml::{Fault, State as Machine, code};
use proto::metrics::v1::{EventKind, FaultReason, Metric, Snapshot, State};

use crate::process::{Agent, Start, Subscriber, is, reading};

const GPUS: usize = 8;
const BROKEN: usize = 3;
/// Snapshots in which the other devices must be fresh.
const TICKS: usize = 5;

/// Breaks one function, or with `*` each one, of one device.
fn broken(function: &str, sleep_ms: u64, code: u32) -> Machine {
    let mut machine = Machine::with_gpus(GPUS);
    machine.gpus[BROKEN].faults.insert(function.to_owned(), Fault { sleep_ms, code });
    machine
}

/// An agent that has read all devices, and its subscriber.
async fn healthy() -> (Agent, Subscriber) {
    healthy_with(Start::on(Machine::with_gpus(GPUS))).await
}

/// For tests in which a reading that is late by the machine's load is a failure.
async fn healthy_with_slow_ticks() -> (Agent, Subscriber) {
    healthy_with(Start::on(Machine::with_gpus(GPUS)).with_slow_ticks()).await
}

async fn healthy_with(start: Start) -> (Agent, Subscriber) {
    let agent = start.start();
    let mut subscriber = agent.subscribe().await;
    subscriber.until(|it| (0..GPUS).all(|device| is(it, device, State::Fresh))).await;
    (agent, subscriber)
}

fn reason(snapshot: &Snapshot, device: usize) -> Option<FaultReason> {
    snapshot.subjects[device].fault.as_ref().map(|fault| fault.reason())
}

fn the_others_are_fresh(snapshot: &Snapshot) -> bool {
    (0..GPUS).filter(|device| *device != BROKEN).all(|device| is(snapshot, device, State::Fresh))
}

#[tokio::test]
async fn a_lost_gpu_is_stale_with_its_last_values_and_the_others_stay_fresh_every_tick() {
    let (agent, mut subscriber) = healthy_with_slow_ticks().await;
    agent.machine_becomes(&broken("*", 0, code::GPU_IS_LOST));
    subscriber.until(|it| reason(it, BROKEN) == Some(FaultReason::DeviceLost)).await;
    let mut last = None;
    for _ in 0..TICKS {
        let snapshot = subscriber.next().await;
        assert!(the_others_are_fresh(&snapshot), "{snapshot:#?}");
        let reading = reading(&snapshot.subjects[BROKEN], Metric::Utilization).clone();
        assert_eq!((reading.state(), reading.value), (State::Stale, Some(0.43)));
        assert_eq!(reading.reason(), FaultReason::DeviceLost);
        let age = Duration::try_from(reading.age.unwrap()).unwrap();
        assert!(last.is_none_or(|last| age > last), "{age:?} after {last:?}");
        last = Some(age);
    }
    let lost = subscriber.next().await.events.pop().unwrap();
    assert_eq!((lost.kind(), lost.fatal), (EventKind::DeviceLost, true));
    let (_, page) = agent.page("/metrics");
    let fault = "metrics_agent_device_fault{gpu=\"3\",UUID=\"GPU-00000000-0000-0000-0000-000000000003\",reason=\"device_lost\"} 1.0";
    assert!(page.contains(fault), "{page}");
    assert!(!page.contains("DCGM_FI_DEV_GPU_UTIL{gpu=\"3\""), "an old value is exported");
    agent.machine_becomes(&Machine::with_gpus(GPUS));
    let back = subscriber.until(|it| is(it, BROKEN, State::Fresh)).await;
    assert_eq!((reason(&back, BROKEN), back.events.last().unwrap().kind()), (None, EventKind::DeviceBack));
    assert_eq!(agent.lines_with("device is stale").len(), 1);
}

#[tokio::test]
async fn a_call_that_hangs_makes_one_gpu_stale_and_delays_no_other() {
    let (agent, mut subscriber) = healthy_with_slow_ticks().await;
    let threads = || std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().count();
    let before = threads();
    agent.machine_becomes(&broken("DeviceGetPowerUsage", 30_000, 0));
    subscriber.until(|it| reason(it, BROKEN) == Some(FaultReason::Timeout)).await;
    let began = std::time::Instant::now();
    let mut last = subscriber.next().await.sequence;
    for _ in 0..TICKS {
        let snapshot = subscriber.next().await;
        assert_eq!(snapshot.sequence, last + 1);
        last = snapshot.sequence;
        assert!(the_others_are_fresh(&snapshot), "{snapshot:#?}");
        assert_eq!(reason(&snapshot, BROKEN), Some(FaultReason::Timeout));
    }
    // `TICKS` intervals of one second, while one call takes 30 s.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let after = threads();
    assert!(after <= before, "a hung call costs no further thread: {after} after {before}");
    assert_eq!(agent.lines_with("device is stale").len(), 1);
}

#[tokio::test]
async fn a_function_that_a_gpu_does_not_have_is_unsupported_and_not_zero() {
    let agent = Start::on(broken("DeviceGetPowerUsage", 0, code::NOT_SUPPORTED)).start();
    let snapshot = agent.subscribe().await.until(|it| is(it, BROKEN, State::Fresh)).await;
    let power = reading(&snapshot.subjects[BROKEN], Metric::Power);
    assert_eq!(
        (power.state(), power.value, power.reason()),
        (State::Unsupported, None, FaultReason::Unsupported)
    );
    assert_eq!(reading(&snapshot.subjects[0], Metric::Power).value, Some(350.0));
    assert!(agent.lines_with("WARN").is_empty());
}

#[tokio::test]
async fn an_error_of_one_function_makes_one_reading_stale() {
    let (agent, mut subscriber) = healthy().await;
    agent.machine_becomes(&broken("DeviceGetPowerUsage", 0, code::UNKNOWN));
    let is_stale = |it: &Snapshot| reading(&it.subjects[BROKEN], Metric::Power).state() == State::Stale;
    let snapshot = subscriber.until(is_stale).await;
    let power = reading(&snapshot.subjects[BROKEN], Metric::Power);
    assert_eq!((power.value, power.reason()), (Some(350.0), FaultReason::DriverError));
    assert!(is(&snapshot, BROKEN, State::Fresh) && reason(&snapshot, BROKEN).is_none());
}

#[tokio::test]
async fn a_gpu_that_is_lost_before_the_start_is_found_when_it_is_back() {
    let agent = Start::on(broken("*", 0, code::GPU_IS_LOST)).start();
    let mut subscriber = agent.subscribe().await;
    let snapshot = subscriber.until(|it| it.subjects.len() == GPUS && reason(it, BROKEN).is_some()).await;
    assert_eq!(snapshot.subjects[BROKEN].id, "nvidia-3");
    agent.machine_becomes(&Machine::with_gpus(GPUS));
    let back = subscriber.until(|it| is(it, BROKEN, State::Fresh)).await;
    assert_eq!(back.subjects[BROKEN].id, "GPU-00000000-0000-0000-0000-000000000003");
}

#[tokio::test]
async fn a_node_without_the_library_says_so_and_is_ready() {
    let agent = Start::without_library().start();
    let mut subscriber = agent.subscribe().await;
    let snapshot = subscriber.until(|it| !it.faults.is_empty()).await;
    assert_eq!((snapshot.subjects.len(), snapshot.faults[0].reason()), (0, FaultReason::NoLibrary));
    assert_eq!((agent.page("/readyz").0, agent.page("/livez").0), (true, true));
    assert!(agent.page("/metrics").1.contains("metrics_agent_fault{reason=\"no_library\"} 1.0"));
    agent.says(r#""reason":"no_library""#);
    // It looks again with each reading.
    subscriber.until(|it| it.sequence >= snapshot.sequence + 3).await;
    assert_eq!(agent.lines_with(r#""reason":"no_library""#).len(), 1);
}

#[tokio::test]
async fn a_node_without_a_driver_or_without_a_gpu_says_which() {
    let mut unloaded = Machine::with_gpus(1);
    unloaded.faults.insert("Init_v2".to_owned(), Fault { sleep_ms: 0, code: code::DRIVER_NOT_LOADED });
    for (machine, reason) in
        [(unloaded, FaultReason::NoDriver), (Machine::with_gpus(0), FaultReason::NoDevice)]
    {
        let agent = Start::on(machine).start();
        let snapshot = agent.subscribe().await.until(|it| !it.faults.is_empty()).await;
        assert_eq!(snapshot.faults[0].reason(), reason);
    }
}

#[tokio::test]
async fn a_driver_that_is_replaced_is_reported_and_then_the_agent_ends_to_load_its_library() {
    let (mut agent, mut subscriber) = healthy().await;
    let mut replaced = Machine::with_gpus(GPUS);
    for gpu in &mut replaced.gpus {
        gpu.faults.insert("*".to_owned(), Fault { sleep_ms: 0, code: code::LIB_RM_VERSION_MISMATCH });
    }
    agent.machine_becomes(&replaced);
    let snapshot = subscriber.until(|it| reason(it, 0) == Some(FaultReason::DriverChanged)).await;
    assert_eq!(reading(&snapshot.subjects[0], Metric::Utilization).state(), State::Stale);
    assert!(agent.page("/metrics").1.contains("reason=\"driver_changed\""));
    assert_eq!(agent.ends().code(), Some(3));
    assert_eq!(agent.lines_with("the driver was replaced").len(), 1);
}

#[tokio::test]
async fn events_go_on_for_the_others_when_one_gpu_refuses_them() {
    let mut machine = broken("DeviceRegisterEvents", 0, code::GPU_IS_LOST);
    let agent = Start::on(machine.clone()).start();
    let mut subscriber = agent.subscribe().await;
    subscriber.until(|it| is(it, 0, State::Fresh)).await;
    agent.awaits_events();
    machine.events.push(fake_nvml::Event { gpu: 5, kind: 8, data: 31 });
    agent.machine_becomes(&machine);
    let snapshot = subscriber.until(|it| !it.events.is_empty()).await;
    assert_eq!((snapshot.events[0].code, snapshot.events[0].fatal), (Some(31), false));
    assert_eq!(snapshot.events[0].subject_id, snapshot.subjects[5].id);
}
