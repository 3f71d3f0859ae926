//! `/metrics`: the last snapshot under the names that dashboards for NVIDIA's dcgm-exporter use, a few names that are of no
//! vendor, and what the agent says of itself.
//!
//! Only fresh values are exported: a series that is missing is stale for Prometheus, and an old value repeated is not. A
//! device that several containers share has a series for each of them with the value of the whole device. Labels are
//! those of the devices and pods of this node. Nothing here reads a device.

use std::{fmt, sync::atomic::Ordering, time::Duration};

use metrics_source::stream::Hub;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use proto::metrics::v1::{
    FaultReason, Holder, Metric, Reading, Snapshot, State, Subject, SubjectKind, ThrottleReason,
};

const MIB: f64 = 1_048_576.0;

/// One name of a metric.
struct Exported {
    name: &'static str,
    help: &'static str,
    metric: Metric,
    /// From the unit of the contract to that of the name.
    factor: f64,
}

const fn exported(name: &'static str, metric: Metric, factor: f64, help: &'static str) -> Exported {
    Exported { name, help, metric, factor }
}

const EXPORTED: [Exported; 23] = [
    exported("DCGM_FI_DEV_GPU_UTIL", Metric::Utilization, 100.0, "Utilisation in percent"),
    exported(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        Metric::MemoryBandwidthUtilization,
        100.0,
        "Memory utilisation in percent",
    ),
    exported("DCGM_FI_DEV_FB_USED", Metric::MemoryUsed, 1.0 / MIB, "Memory in use in MiB"),
    exported("DCGM_FI_DEV_FB_FREE", Metric::MemoryFree, 1.0 / MIB, "Free memory in MiB"),
    exported("DCGM_FI_DEV_FB_RESERVED", Metric::MemoryReserved, 1.0 / MIB, "Reserved memory in MiB"),
    exported("DCGM_FI_DEV_FB_TOTAL", Metric::MemoryTotal, 1.0 / MIB, "All memory in MiB"),
    exported("DCGM_FI_DEV_POWER_USAGE", Metric::Power, 1.0, "Power drawn in W"),
    exported("DCGM_FI_DEV_POWER_MGMT_LIMIT", Metric::PowerLimit, 1.0, "Power limit in W"),
    exported(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        Metric::Energy,
        1e3,
        "Energy since the driver was loaded in mJ",
    ),
    exported("DCGM_FI_DEV_GPU_TEMP", Metric::Temperature, 1.0, "Temperature in degrees Celsius"),
    exported(
        "DCGM_FI_DEV_MEMORY_TEMP",
        Metric::MemoryTemperature,
        1.0,
        "Temperature of the memory in degrees Celsius",
    ),
    exported("DCGM_FI_DEV_SM_CLOCK", Metric::CoreClock, 1e-6, "Clock of the cores in MHz"),
    exported("DCGM_FI_DEV_MEM_CLOCK", Metric::MemoryClock, 1e-6, "Clock of the memory in MHz"),
    exported("DCGM_FI_DEV_XID_ERRORS", Metric::LastErrorCode, 1.0, "The last XID error"),
    exported("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Metric::BusReplays, 1.0, "PCIe packets that were sent again"),
    exported("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", Metric::EccCorrected, 1.0, "Memory errors that were corrected"),
    exported("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", Metric::EccUncorrected, 1.0, "Memory errors that were not"),
    exported(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        Metric::EngineActive,
        1.0,
        "Share of time with an active engine",
    ),
    exported("DCGM_FI_PROF_SM_ACTIVE", Metric::CoresActive, 1.0, "Share of multiprocessors with work"),
    exported(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        Metric::TensorActive,
        1.0,
        "Share of cycles with active tensor cores",
    ),
    exported("DCGM_FI_PROF_DRAM_ACTIVE", Metric::MemoryActive, 1.0, "Share of cycles with memory traffic"),
    exported(
        "gpu_utilization_ratio",
        Metric::Utilization,
        1.0,
        "Share of time with work on the device, of any vendor",
    ),
    exported("gpu_memory_used_bytes", Metric::MemoryUsed, 1.0, "Memory of the device in use, of any vendor"),
];

/// Whether the page says which pods hold a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pods {
    Named,
    /// The page has no TLS and asks for no certificate, unlike the stream.
    LeftOut,
}

/// The registry of the page.
pub(crate) fn registry(hub: Hub, pods: Pods) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { hub, pods }));
    registry
}

struct Page {
    hub: Hub,
    pods: Pods,
}

impl fmt::Debug for Page {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Page")
    }
}

type Labels = Vec<(&'static str, String)>;

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = &self.hub.counts;
        let subscribers = counts.subscribers.load(Ordering::Relaxed) as u64;
        gauge(
            &mut encoder,
            "metrics_agent_subscribers",
            "Subscribers now",
            &[(Vec::new(), subscribers as f64)],
        )?;
        for (name, help, value) in [
            ("metrics_agent_snapshots_sent", "Snapshots that subscribers got", &counts.sent),
            ("metrics_agent_snapshots_dropped", "Snapshots that slow subscribers lost", &counts.dropped),
            ("metrics_agent_subscribers_refused", "Subscribers beyond the limit", &counts.refused),
        ] {
            let counter = ConstCounter::new(value.load(Ordering::Relaxed));
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let Some(snapshot) = self.hub.latest() else { return Ok(()) };
        own(&mut encoder, &snapshot)?;
        throttling(&mut encoder, &snapshot)?;
        for Exported { name, help, metric, factor } in &EXPORTED {
            let mut series = Vec::new();
            for subject in &snapshot.subjects {
                let Some(value) = fresh(&subject.readings, *metric) else { continue };
                for labels in labels(&snapshot, subject, self.pods) {
                    series.push((labels, value * factor));
                }
            }
            gauge(&mut encoder, name, help, &series)?;
        }
        Ok(())
    }
}

/// What the agent says of its own state.
fn own(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), fmt::Error> {
    let backend = snapshot.source.as_ref().map(|source| source.backend.clone()).unwrap_or_default();
    let info = [(vec![("backend", backend)], 1.0)];
    gauge(encoder, "metrics_agent_backend_info", "Library and driver that are read", &info)?;
    let faults = snapshot.faults.iter().map(|fault| (vec![("reason", reason(fault.reason))], 1.0));
    gauge(
        encoder,
        "metrics_agent_fault",
        "1 for each reason why not everything can be measured",
        &faults.collect::<Vec<_>>(),
    )?;
    let age = snapshot.attribution.as_ref().and_then(|attribution| attribution.age);
    let age = age.and_then(|age| Duration::try_from(age).ok()).map(|age| (Vec::new(), age.as_secs_f64()));
    gauge(
        encoder,
        "metrics_agent_pod_resources_age_seconds",
        "Since the kubelet's last answer about which pods hold which devices; no series before the first one",
        &age.into_iter().collect::<Vec<_>>(),
    )?;
    let devices = snapshot.subjects.iter().filter(|subject| subject.kind() == SubjectKind::Device);
    let lost = devices.filter_map(|subject| {
        let fault = subject.fault.as_ref()?;
        let labels = vec![
            ("gpu", subject.index.to_string()),
            ("UUID", subject.id.clone()),
            ("reason", reason(fault.reason)),
        ];
        Some((labels, 1.0))
    });
    gauge(
        encoder,
        "metrics_agent_device_fault",
        "1 while a device cannot be read",
        &lost.collect::<Vec<_>>(),
    )?;
    let stale = snapshot.subjects.iter().map(|subject| {
        let stale = subject.readings.iter().filter(|reading| reading.state() == State::Stale).count();
        (vec![("UUID", subject.id.clone())], stale as f64)
    });
    gauge(
        encoder,
        "metrics_agent_stale_readings",
        "Readings that are old, by subject",
        &stale.collect::<Vec<_>>(),
    )
}

/// Every reason is a series, so that the mean over time is a share of time. A device that cannot be asked has none.
const THROTTLE_REASONS: [(ThrottleReason, &str); 6] = [
    (ThrottleReason::PowerCap, "power_cap"),
    (ThrottleReason::Thermal, "thermal"),
    (ThrottleReason::Hardware, "hardware"),
    (ThrottleReason::PowerBrake, "power_brake"),
    (ThrottleReason::ClockSetting, "clock_setting"),
    (ThrottleReason::Sync, "sync"),
];

/// Why clocks are lower than work asks for: one gauge cannot say it, because a power cap is usual and heat is not.
fn throttling(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), fmt::Error> {
    let known = snapshot.subjects.iter().filter(|it| fresh(&it.readings, Metric::Throttled).is_some());
    let series = known.flat_map(|subject| {
        THROTTLE_REASONS.iter().map(|(reason, label)| {
            let labels = vec![
                ("gpu", subject.index.to_string()),
                ("UUID", subject.id.clone()),
                ("reason", (*label).to_owned()),
            ];
            let holds = subject.throttle_reasons.contains(&(*reason).into());
            (labels, f64::from(u8::from(holds)))
        })
    });
    let help = "1 while clocks are held below what work asks for, by reason, of any vendor";
    gauge(encoder, "gpu_throttle_reason", help, &series.collect::<Vec<_>>())
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: &[(Labels, f64)],
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        let gauge = ConstGauge::new(*value);
        if labels.is_empty() {
            return gauge.encode(metric);
        }
        gauge.encode(metric.encode_family(labels)?)?;
    }
    Ok(())
}

fn reason(reason: i32) -> String {
    FaultReason::try_from(reason).unwrap_or_default().name()
}

fn fresh(readings: &[Reading], metric: Metric) -> Option<f64> {
    let reading = readings.iter().find(|reading| reading.metric() == metric)?;
    reading.value.filter(|_| reading.state() == State::Fresh)
}

/// Those of dcgm-exporter, once for each container that holds the subject and may be named, or once without a container.
fn labels(snapshot: &Snapshot, subject: &Subject, pods: Pods) -> Vec<Labels> {
    let node = snapshot.source.as_ref().map(|source| source.node.as_str()).unwrap_or_default();
    let is_partition = subject.kind() == SubjectKind::Partition;
    let uuid = if is_partition { &subject.parent_id } else { &subject.id };
    let mut of_subject: Labels = vec![
        ("gpu", subject.index.to_string()),
        ("UUID", uuid.clone()),
        ("device", format!("{}{}", subject.vendor, subject.index)),
        ("modelName", subject.model.clone()),
        ("Hostname", node.to_owned()),
    ];
    if is_partition {
        let number = subject.partition.map(|number| number.to_string());
        of_subject.push(("GPU_I_ID", number.unwrap_or_else(|| subject.id.clone())));
        of_subject.push(("GPU_I_PROFILE", subject.profile.clone()));
    }
    let with = |namespace: &str, pod: &str, container: &str| {
        let mut labels = of_subject.clone();
        labels.push(("namespace", namespace.to_owned()));
        labels.push(("pod", pod.to_owned()));
        labels.push(("container", container.to_owned()));
        labels
    };
    if subject.holders.is_empty() || pods == Pods::LeftOut {
        return vec![with("", "", "")];
    }
    let of_holder = |holder: &Holder| {
        let pod = holder.pod.as_ref();
        let [namespace, pod] = [pod.map(|pod| &pod.namespace), pod.map(|pod| &pod.name)];
        with(namespace.map_or("", String::as_str), pod.map_or("", String::as_str), &holder.container)
    };
    subject.holders.iter().map(of_holder).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus_client::encoding::text::encode;
    use proto::metrics::v1::PodRef;

    use super::*;

    fn reading(metric: Metric, value: f64, state: State) -> Reading {
        Reading { metric: metric.into(), value: Some(value), state: state.into(), ..Reading::default() }
    }

    fn shown(subject: Subject) -> String {
        page(subject, Pods::Named)
    }

    fn page(subject: Subject, pods: Pods) -> String {
        let hub = Hub::default();
        hub.publish(Snapshot { subjects: vec![subject], ..Snapshot::default() });
        let mut page = String::new();
        encode(&mut page, &registry(hub, pods)).unwrap();
        page
    }

    fn gpu(readings: Vec<Reading>) -> Subject {
        Subject {
            id: "GPU-a".to_owned(),
            kind: SubjectKind::Device.into(),
            vendor: "nvidia".to_owned(),
            model: "H100".to_owned(),
            readings,
            ..Subject::default()
        }
    }

    #[test]
    fn values_have_the_units_that_dashboards_expect() {
        let page = shown(gpu(vec![
            reading(Metric::Utilization, 0.25, State::Fresh),
            reading(Metric::MemoryUsed, 3.0 * MIB, State::Fresh),
            reading(Metric::CoreClock, 1.98e9, State::Fresh),
            reading(Metric::Energy, 2.0, State::Fresh),
        ]));
        let labels = r#"gpu="0",UUID="GPU-a",device="nvidia0",modelName="H100",Hostname="",namespace="",pod="",container="""#;
        for (name, value) in [
            ("DCGM_FI_DEV_GPU_UTIL", "25.0"),
            ("DCGM_FI_DEV_FB_USED", "3.0"),
            ("DCGM_FI_DEV_SM_CLOCK", "1980.0"),
            ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "2000.0"),
            ("gpu_utilization_ratio", "0.25"),
        ] {
            assert!(page.contains(&format!("\n{name}{{{labels}}} {value}\n")), "{name} in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn a_stale_value_is_left_out_and_not_repeated() {
        let page = shown(gpu(vec![
            reading(Metric::Utilization, 0.25, State::Stale),
            reading(Metric::Temperature, 50.0, State::Fresh),
        ]));
        assert!(!page.contains("DCGM_FI_DEV_GPU_UTIL{") && page.contains("DCGM_FI_DEV_GPU_TEMP{"), "{page}");
        assert!(page.contains("metrics_agent_stale_readings{UUID=\"GPU-a\"} 1.0"), "{page}");
    }

    #[test]
    fn each_reason_of_throttling_is_a_series_while_the_device_can_be_asked() {
        let mut subject = gpu(vec![reading(Metric::Throttled, 1.0, State::Fresh)]);
        subject.throttle_reasons = vec![ThrottleReason::Thermal.into()];
        let page = shown(subject.clone());
        for (reason, value) in [("thermal", "1.0"), ("power_cap", "0.0"), ("sync", "0.0")] {
            let labels = format!(r#"{{gpu="0",UUID="GPU-a",reason="{reason}"}}"#);
            assert!(page.contains(&format!("gpu_throttle_reason{labels} {value}\n")), "{reason} in\n{page}");
        }
        subject.readings = vec![reading(Metric::Throttled, 1.0, State::Stale)];
        assert!(!shown(subject).contains("gpu_throttle_reason{"));
        let named = THROTTLE_REASONS.map(|(reason, _)| i32::from(reason));
        let all = (1..).map_while(|number| ThrottleReason::try_from(number).ok());
        assert!(all.map(i32::from).eq(named), "a reason of the contract has no series");
    }

    #[test]
    fn every_metric_of_a_device_is_exported() {
        // Those of work begin at 100; the last one is shown by its reasons.
        let of_devices = (1..100).filter_map(|number| Metric::try_from(number).ok());
        let of_devices: BTreeSet<Metric> = of_devices.filter(|metric| *metric != Metric::Throttled).collect();
        let exported: BTreeSet<Metric> = EXPORTED.iter().map(|exported| exported.metric).collect();
        assert_eq!(of_devices.difference(&exported).collect::<Vec<_>>(), [&Metric::Unspecified; 0]);
    }

    #[test]
    fn the_manual_lists_every_reason_of_a_fault() {
        let manual = include_str!("../README.md");
        for reason in (1..).map_while(|number| FaultReason::try_from(number).ok()) {
            assert!(manual.contains(&format!("`{}`", reason.name())), "{reason:?} is not in README.md");
        }
    }

    #[test]
    fn a_partition_is_labelled_by_its_device_and_its_number() {
        let mut subject = gpu(vec![reading(Metric::EngineActive, 0.5, State::Fresh)]);
        subject.kind = SubjectKind::Partition.into();
        (subject.parent_id, subject.partition) = ("GPU-parent".to_owned(), Some(7));
        subject.profile = "1g.10gb".to_owned();
        let page = shown(subject);
        let line = page.lines().find(|line| line.starts_with("DCGM_FI_PROF_GR_ENGINE_ACTIVE{")).unwrap();
        for label in ["UUID=\"GPU-parent\"", "GPU_I_ID=\"7\"", "GPU_I_PROFILE=\"1g.10gb\""] {
            assert!(line.contains(label), "{label} in {line}");
        }
    }

    #[test]
    fn each_container_that_shares_a_device_has_a_series() {
        let holder = |pod: &str| Holder {
            pod: Some(PodRef { namespace: "ml".to_owned(), name: pod.to_owned(), uid: String::new() }),
            container: "engine".to_owned(),
            ..Holder::default()
        };
        let mut subject = gpu(vec![reading(Metric::Utilization, 0.5, State::Fresh)]);
        subject.holders = vec![holder("a"), holder("b")];
        let named = shown(subject.clone());
        for pod in ["a", "b"] {
            let labels = format!(r#"namespace="ml",pod="{pod}",container="engine""#);
            assert!(named.contains(&format!("{labels}}} 50.0\n")), "{named}");
        }
        let unnamed = page(subject, Pods::LeftOut);
        let series = unnamed.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{"));
        assert_eq!(series.count(), 1, "one for the device: {unnamed}");
        for name in ["\"ml\"", "\"a\"", "\"b\"", "\"engine\""] {
            assert!(!unnamed.contains(name), "{name} in {unnamed}");
        }
    }
}
