//! A recorded file as a source: it replays a machine, for demonstrations, tests and nodes without accelerators.
//!
//! The file has columns: for each device and metric one value for each read, from the beginning again after the last.
//! Nothing in it is random, so two agents with one file show the same.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use proto::metrics::v1::{EventKind, FaultReason, Metric, SubjectKind};
use serde::{Deserialize, Serialize};

use super::{Device, EventQueue, Fault, Happening, Identity, Machine, Outcome, Sample, Source};

/// Larger files are refused: a day of eight devices at one value a second has 10 MB a metric.
const LARGEST_FILE: u64 = 64 * 1024 * 1024;

/// The path of a recording.
#[derive(Clone, Debug)]
pub(crate) struct RecordedSource {
    pub(crate) path: PathBuf,
}

/// A file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    devices: Vec<RecordedDevice>,
    #[serde(default)]
    events: Vec<RecordedEvent>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedDevice {
    id: String,
    /// In lower case: `nvidia`, `huawei`.
    vendor: String,
    model: String,
    /// Number of the device file.
    #[serde(default)]
    minor: Option<u32>,
    /// By name as in the contract, in lower case and without its prefix: `utilization`. A null is a read that failed; a
    /// metric without values is unsupported.
    readings: BTreeMap<String, Vec<Option<f64>>>,
    #[serde(default)]
    partitions: Vec<RecordedPartition>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedPartition {
    id: String,
    profile: String,
    /// Number of the partition on its device.
    #[serde(default)]
    instance: Option<u32>,
    readings: BTreeMap<String, Vec<Option<f64>>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedEvent {
    /// After the start.
    after_seconds: f64,
    device: String,
    /// The vendor's code of a device error.
    code: u64,
    fatal: bool,
}

impl Source for RecordedSource {
    fn open(&mut self) -> Result<Machine, Fault> {
        let path = self.path.display();
        let wrong = |message: String| Fault::new(FaultReason::BadInput, message);
        let length =
            fs::metadata(&self.path).map_err(|error| wrong(format!("failed to read {path}: {error}")))?.len();
        if length > LARGEST_FILE {
            return Err(wrong(format!("{path} has {length} bytes and may have {LARGEST_FILE}")));
        }
        let bytes = fs::read(&self.path).map_err(|error| wrong(format!("failed to read {path}: {error}")))?;
        let recording: Recording = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("failed to parse {path}: {error}")))?;
        drop(bytes);
        if recording.devices.is_empty() {
            return Err(Fault::new(FaultReason::NoDevice, format!("{path} has no device")));
        }
        let mut devices: Vec<Box<dyn Device>> = Vec::new();
        for (index, device) in (0..).zip(recording.devices) {
            devices.push(Box::new(Replay::new(index, device).map_err(wrong)?));
        }
        let mut events = recording.events;
        events.sort_by(|one, other| one.after_seconds.total_cmp(&other.after_seconds));
        // From the last one on, to be taken from the end.
        events.reverse();
        Ok(Machine {
            backend: format!("recorded in {path}"),
            devices,
            events: Some(Box::new(Replayed { start: Instant::now(), events })),
        })
    }
}

/// A device and its partitions, at their next read.
struct Replay {
    device: Subject,
    partitions: Vec<Subject>,
    read: usize,
}

struct Subject {
    identity: Arc<Identity>,
    columns: Vec<(Metric, Vec<Option<f64>>)>,
}

impl Replay {
    fn new(index: u32, device: RecordedDevice) -> Result<Self, String> {
        let RecordedDevice { id, vendor, model, minor, readings, partitions } = device;
        let identity = Identity {
            id,
            kind: SubjectKind::Device,
            parent_id: String::new(),
            vendor,
            model,
            index,
            minor,
            instance: None,
            profile: String::new(),
        };
        let partition = |RecordedPartition { id, profile, instance, readings }| {
            let identity = Identity {
                id,
                kind: SubjectKind::Partition,
                parent_id: identity.id.clone(),
                profile,
                instance,
                ..identity.clone()
            };
            Subject::new(identity, readings)
        };
        let partitions = partitions.into_iter().map(partition).collect::<Result<_, String>>()?;
        Ok(Self { device: Subject::new(identity, readings)?, partitions, read: 0 })
    }
}

impl Subject {
    fn new(identity: Identity, readings: BTreeMap<String, Vec<Option<f64>>>) -> Result<Self, String> {
        let column = |(name, values): (String, Vec<Option<f64>>)| {
            let metric = Metric::from_name(&name).ok_or_else(|| format!("{name:?} is no metric"))?;
            Ok::<_, String>((metric, values))
        };
        let columns = readings.into_iter().map(column).collect::<Result<_, _>>()?;
        Ok(Self { identity: Arc::new(identity), columns })
    }

    fn sample(&self, read: usize) -> Sample {
        let value = |values: &[Option<f64>]| match values.len() {
            0 => Outcome::Unsupported,
            length => match values[read % length] {
                Some(value) => Outcome::Value(value),
                None => Outcome::Failed(FaultReason::DriverError),
            },
        };
        Sample {
            identity: Arc::clone(&self.identity),
            readings: self.columns.iter().map(|(metric, values)| (*metric, value(values))).collect(),
            throttle_reasons: Vec::new(),
            processes: Vec::new(),
        }
    }
}

impl Device for Replay {
    fn identity(&self) -> Identity {
        Identity::clone(&self.device.identity)
    }

    fn read(&mut self) -> Result<Vec<Sample>, Fault> {
        let read = self.read;
        self.read = self.read.wrapping_add(1);
        let subjects = std::iter::once(&self.device).chain(&self.partitions);
        Ok(subjects.map(|subject| subject.sample(read)).collect())
    }
}

/// The events of a recording that are still to come, the next one last.
struct Replayed {
    start: Instant,
    events: Vec<RecordedEvent>,
}

impl EventQueue for Replayed {
    fn next(&mut self, at_most: Duration) -> Result<Option<Happening>, Fault> {
        let next = self.events.last().and_then(|event| Duration::try_from_secs_f64(event.after_seconds).ok());
        let wait = next.map_or(Duration::MAX, |at| at.saturating_sub(self.start.elapsed()));
        thread::sleep(wait.min(at_most));
        if wait > at_most {
            return Ok(None);
        }
        Ok(self.events.pop().map(|event| Happening {
            device: event.device,
            kind: EventKind::DeviceError,
            code: Some(event.code),
            is_fatal: event.fatal,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(text: &str) -> Result<Machine, Fault> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        RecordedSource { path: file.path().to_owned() }.open()
    }

    #[test]
    fn a_recording_begins_again_after_its_last_value() {
        let text = r#"{"devices": [{"id": "GPU-a", "vendor": "nvidia", "model": "H100",
            "readings": {"utilization": [0.25, null], "ecc_corrected": []}}]}"#;
        let mut machine = opened(text).unwrap();
        let mut utilization = || {
            let samples = machine.devices[0].read().unwrap();
            samples[0].readings.iter().find(|(metric, _)| *metric == Metric::Utilization).unwrap().1
        };
        assert_eq!(utilization(), Outcome::Value(0.25));
        assert_eq!(utilization(), Outcome::Failed(FaultReason::DriverError));
        assert_eq!(utilization(), Outcome::Value(0.25));
        let samples = machine.devices[0].read().unwrap();
        assert!(samples[0].readings.contains(&(Metric::EccCorrected, Outcome::Unsupported)));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_named() {
        let wrong = |text: &str| opened(text).map(|_| ()).unwrap_err();
        let metric = r#"{"devices": [{"id": "a", "vendor": "", "model": "", "readings": {"speed": [1]}}]}"#;
        assert!(wrong(metric).message.contains("\"speed\" is no metric"));
        assert_eq!(wrong("{").reason, FaultReason::BadInput);
        assert_eq!(wrong(r#"{"devices": []}"#).reason, FaultReason::NoDevice);
        let missing = RecordedSource { path: "/nonexistent".into() }.open().map(|_| ()).unwrap_err();
        assert_eq!(missing.reason, FaultReason::BadInput);
    }

    #[test]
    fn the_recording_in_the_manifests_can_be_replayed() {
        let mut machine =
            opened(include_str!("../../../../deploy/metrics-agent/overlays/recorded/machine.json")).unwrap();
        assert_eq!(machine.devices.len(), 2);
        assert!(machine.devices[0].read().unwrap()[0].readings.len() >= 5);
    }
}
