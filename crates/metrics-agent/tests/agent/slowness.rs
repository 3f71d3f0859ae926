//! Drivers that take long and then go on, and events that are rare. On the ABI fake.

use fake_nvml::{Event, Fault, State as Machine};
use proto::metrics::v1::{EventKind, FaultReason, Snapshot, State};

use crate::process::{Start, is};

/// `nvmlEventTypeDoubleBitEccError`.
const UNCORRECTED: u64 = 2;

fn times_out(snapshot: &Snapshot) -> bool {
    let fault = snapshot.subjects.first().and_then(|gpu| gpu.fault.as_ref());
    fault.is_some_and(|fault| fault.reason() == FaultReason::Timeout)
}

#[tokio::test]
async fn a_gpu_is_fresh_again_when_a_call_that_hung_returns() {
    let mut slow = Machine::with_gpus(1);
    slow.gpus[0].faults.insert("DeviceGetPowerUsage".to_owned(), Fault { sleep_ms: 15_000, code: 0 });
    let agent = Start::on(slow).start();
    let mut subscriber = agent.subscribe().await;
    subscriber.until(times_out).await;
    let (_, page) = agent.page("/metrics");
    assert!(
        page.contains("metrics_agent_device_fault{gpu=\"0\"") && page.contains("reason=\"timeout\""),
        "{page}"
    );
    agent.machine_becomes(&Machine::with_gpus(1));
    subscriber.until(|it| is(it, 0, State::Fresh) && !times_out(it)).await;
}

#[tokio::test]
async fn a_driver_that_takes_long_to_open_is_a_fault_in_the_snapshot() {
    let mut slow = Machine::with_gpus(1);
    slow.faults.insert("Init_v2".to_owned(), Fault { sleep_ms: 60_000, code: 0 });
    let agent = Start::on(slow).start();
    let mut subscriber = agent.subscribe().await;
    let snapshot = subscriber.until(|it| !it.faults.is_empty()).await;
    assert_eq!((snapshot.subjects.len(), snapshot.faults[0].reason()), (0, FaultReason::Timeout));
    assert!(agent.page("/livez").0, "a restart would open it no sooner");
}

#[tokio::test]
async fn a_memory_error_that_was_not_corrected_is_an_event() {
    let mut machine = Machine::with_gpus(2);
    let agent = Start::on(machine.clone()).start();
    let mut subscriber = agent.subscribe().await;
    subscriber.until(|it| it.subjects.len() == 2 && is(it, 1, State::Fresh)).await;
    agent.awaits_events();
    machine.events.push(Event { gpu: 1, kind: UNCORRECTED, data: 0 });
    agent.machine_becomes(&machine);
    let snapshot = subscriber.until(|it| !it.events.is_empty()).await;
    let event = &snapshot.events[0];
    assert_eq!((event.kind(), event.fatal), (EventKind::EccUncorrected, true));
    assert_eq!(event.subject_id, snapshot.subjects[1].id);
}
