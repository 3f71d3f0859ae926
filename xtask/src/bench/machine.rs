//! What the kernel tells of processes and of the machine: CPU time, resident memory, load. Reads `/proc` and nothing
//! else, so it works on Linux alone.

use std::{fs, time::Instant};

use anyhow::{Context as _, bail};

/// The unit of all CPU times in `/proc`: Linux shows 100 ticks a second on every architecture, whatever it counts with.
const TICKS_PER_SECOND: f64 = 100.0;
const KIB_PER_MIB: f64 = 1024.0;

/// CPU seconds that a process has used so far, in user and in kernel mode.
pub(super) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let text = read(&format!("/proc/{pid}/stat"))?;
    ticks_of_stat(&text)
        .map(|ticks| ticks / TICKS_PER_SECOND)
        .with_context(|| format!("/proc/{pid}/stat is odd"))
}

pub(super) fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// The most that was ever resident.
pub(super) fn peak_resident_mib(pid: u32) -> anyhow::Result<f64> {
    status_mib(pid, "VmHWM:")
}

/// CPU seconds that all processes of the machine have used since it started.
pub(super) fn busy_seconds() -> anyhow::Result<f64> {
    let text = read("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest times are part of user.
    match ticks.as_slice() {
        [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] => {
            Ok((user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND)
        }
        _ => bail!("/proc/stat does not begin with the times of the CPU"),
    }
}

/// The load averages of the last 1, 5 and 15 minutes.
pub(super) fn load() -> anyhow::Result<String> {
    let text = read("/proc/loadavg")?;
    Ok(text.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// CPU seconds at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    at: Instant,
    machine: f64,
    pub(super) plane: f64,
    pub(super) controller: f64,
    meter: f64,
}

/// Whose CPU time is read.
#[derive(Clone, Debug)]
pub(super) struct Processes {
    /// What Kubernetes itself consists of.
    pub(super) plane: Vec<u32>,
    pub(super) controller: Option<u32>,
}

impl Processes {
    pub(super) fn read(&self) -> anyhow::Result<Reading> {
        let mut plane = 0.0;
        for &pid in &self.plane {
            plane += cpu_seconds(pid)?;
        }
        Ok(Reading {
            at: Instant::now(),
            machine: busy_seconds()?,
            plane,
            controller: self.controller.map_or(Ok(0.0), cpu_seconds)?,
            meter: cpu_seconds(std::process::id())?,
        })
    }
}

impl Reading {
    /// Cores that processes outside of the measurement have kept busy since the earlier reading.
    pub(super) fn strangers_since(&self, earlier: &Self) -> f64 {
        let measured = |reading: &Self| reading.plane + reading.controller + reading.meter;
        let strange = (self.machine - earlier.machine) - (measured(self) - measured(earlier));
        (strange / (self.at - earlier.at).as_secs_f64().max(f64::EPSILON)).max(0.0)
    }

    /// Cores that this process has kept busy since the earlier reading.
    pub(super) fn meter_since(&self, earlier: &Self) -> f64 {
        (self.meter - earlier.meter) / (self.at - earlier.at).as_secs_f64().max(f64::EPSILON)
    }
}

/// utime + stime. The name of the program comes before them and may hold anything, but ends at the last parenthesis.
fn ticks_of_stat(text: &str) -> Option<f64> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let tick = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some(tick(11)? + tick(12)?)
}

fn status_mib(pid: u32, field: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = read(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("{path} has no {field}"))? / KIB_PER_MIB)
}

fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read {path}; has the process ended?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_be_called_anything() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 9 0 100 1 1";
        assert_eq!(ticks_of_stat(stat), Some(300.0));
    }

    #[test]
    fn this_process_has_memory_and_a_peak_above_it() {
        let own = std::process::id();
        assert!(peak_resident_mib(own).unwrap() >= 1.0);
        assert!(resident_mib(own).unwrap() >= 1.0);
        assert!(cpu_seconds(own).unwrap() >= 0.0);
    }
}
