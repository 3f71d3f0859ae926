//! CPU time and resident memory of processes, and the load of the machine, from `/proc`. Linux only.

use std::{fs, time::Instant};

use anyhow::{Context as _, bail};

/// The unit of all CPU times in `/proc`: Linux shows 100 ticks a second on every architecture, whatever it counts with.
const TICKS_PER_SECOND: f64 = 100.0;
const KIB_PER_MIB: f64 = 1024.0;
const SPINS: u32 = 50_000_000;

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

/// How busy and how fast the machine is now, for people.
pub(super) fn condition() -> anyhow::Result<String> {
    let text = read("/proc/loadavg")?;
    let load = text.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    Ok(format!("load average {load}, {} cores, spin of {:.0} ms", cores(), spin_ms()))
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How long a fixed computation takes on one core now, in milliseconds: by it, runs on different days and machines can
/// be compared. A core that is left alone takes 100 to 150.
fn spin_ms() -> f64 {
    let began = Instant::now();
    // xorshift: each step needs the one before, so no compiler and no vector unit makes it shorter.
    let state = (0..SPINS).fold(0x9e37_79b9_7f4a_7c15_u64, |state, _| {
        let state = state ^ (state << 13);
        let state = state ^ (state >> 7);
        state ^ (state << 17)
    });
    std::hint::black_box(state);
    1e3 * began.elapsed().as_secs_f64()
}

/// CPU seconds at one moment.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    at: Instant,
    machine: f64,
    /// Of each process that Kubernetes consists of.
    plane: Vec<(String, f64)>,
    controller: f64,
    meter: f64,
}

/// What was used between two readings.
#[derive(Clone, Debug)]
pub(super) struct Used {
    /// Between the readings.
    pub(super) elapsed_seconds: f64,
    pub(super) plane_seconds: Vec<(String, f64)>,
    pub(super) controller_seconds: f64,
    /// CPU time of this process.
    pub(super) meter_seconds: f64,
    /// Cores that this process has kept busy.
    pub(super) meter_cores: f64,
    /// Cores that processes outside of the measurement have kept busy.
    pub(super) stranger_cores: f64,
}

/// Whose CPU time is read.
#[derive(Clone, Debug)]
pub(super) struct Processes {
    /// What Kubernetes itself consists of, by name.
    pub(super) plane: Vec<(String, u32)>,
    pub(super) controller: Option<u32>,
}

impl Processes {
    pub(super) fn read(&self) -> anyhow::Result<Reading> {
        let mut plane = Vec::new();
        for (name, pid) in &self.plane {
            plane.push((name.clone(), cpu_seconds(*pid)?));
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
    /// What has been used since the earlier reading of the same processes.
    pub(super) fn since(&self, earlier: &Self) -> Used {
        let plane_seconds: Vec<(String, f64)> = self
            .plane
            .iter()
            .zip(&earlier.plane)
            .map(|((name, now), (_, before))| (name.clone(), now - before))
            .collect();
        let controller_seconds = self.controller - earlier.controller;
        let meter = self.meter - earlier.meter;
        let measured = plane_seconds.iter().map(|(_, used)| used).sum::<f64>() + controller_seconds + meter;
        let elapsed = (self.at - earlier.at).as_secs_f64().max(f64::EPSILON);
        Used {
            elapsed_seconds: elapsed,
            plane_seconds,
            controller_seconds,
            meter_seconds: meter,
            meter_cores: meter / elapsed,
            stranger_cores: ((self.machine - earlier.machine - measured) / elapsed).max(0.0),
        }
    }
}

impl Used {
    pub(super) fn whole_plane_seconds(&self) -> f64 {
        self.plane_seconds.iter().map(|(_, used)| used).sum()
    }

    /// CPU time of all that takes part in the measurement.
    pub(super) fn measured_seconds(&self) -> f64 {
        self.whole_plane_seconds() + self.controller_seconds + self.meter_seconds
    }

    /// Cores that all processes of the machine have kept busy.
    pub(super) fn busy_cores(&self) -> f64 {
        self.measured_seconds() / self.elapsed_seconds + self.stranger_cores
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
