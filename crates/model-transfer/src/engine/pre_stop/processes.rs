//! Finds the processes of this container. Containers of the pod share process identifiers but have different control
//! groups.

use std::{collections::BTreeMap, fs, path::Path};

/// The first process of a pod, or of a container that shares its processes with no other. It cannot be ended from within.
const FIRST: i32 = 1;

/// All processes of this container except `own`. An error if they cannot be distinguished from those of other containers.
pub(super) fn of_this_container(proc: &Path, own: u32) -> Result<Vec<i32>, String> {
    let entries =
        fs::read_dir(proc).map_err(|error| format!("failed to read {}: {error}", proc.display()))?;
    let processes = entries.flatten().filter_map(|entry| {
        let process: i32 = entry.file_name().to_str()?.parse().ok()?;
        // A process that has ended since has no such file.
        Some((process, fs::read_to_string(entry.path().join("cgroup")).ok()?))
    });
    let own = i32::try_from(own).map_err(|_| format!("{own} is not a process identifier"))?;
    chosen(&processes.collect(), own)
}

/// Chooses by the control groups of all processes.
fn chosen(cgroups: &BTreeMap<i32, String>, own: i32) -> Result<Vec<i32>, String> {
    let Some(container) = cgroups.get(&own).filter(|cgroup| !cgroup.trim().is_empty()) else {
        return Err("this process has no control group".to_owned());
    };
    match cgroups.get(&FIRST) {
        None => return Err("process 1 cannot be seen".to_owned()),
        Some(cgroup) if cgroup == container => {
            return Err("process 1 is of this control group: the pod does not share its processes".to_owned());
        }
        Some(_) => {}
    }
    let same = cgroups.iter().filter(|(process, cgroup)| **process != own && *cgroup == container);
    let same: Vec<i32> = same.map(|(process, _)| *process).collect();
    if same.is_empty() { Err("no other process is of this container".to_owned()) } else { Ok(same) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_of(processes: &[(i32, &str)]) -> Result<Vec<i32>, String> {
        let cgroups = processes.iter().map(|(process, cgroup)| (*process, (*cgroup).to_owned())).collect();
        chosen(&cgroups, 30)
    }

    #[test]
    fn only_processes_of_this_container_are_chosen() {
        // As version 2 shows it, and version 1.
        for (own, other, pause) in [
            ("0::/\n", "0::/../sidecar\n", "0::/../pause\n"),
            (
                "4:pids:/pod/a\n1:cpu:/pod/a\n",
                "4:pids:/pod/b\n1:cpu:/pod/b\n",
                "4:pids:/pod/p\n1:cpu:/pod/p\n",
            ),
        ] {
            let all = [(1, pause), (7, own), (8, other), (20, own), (30, own), (31, pause)];
            assert_eq!(chosen_of(&all), Ok(vec![7, 20]));
        }
    }

    #[test]
    fn none_is_chosen_if_containers_cannot_be_distinguished() {
        for doubtful in [
            // No shared identifiers, or a runtime that shows no groups.
            &[(1, "0::/\n"), (7, "0::/\n"), (30, "0::/\n")][..],
            &[(1, ""), (7, ""), (30, "")],
            &[(1, "0::/../pause\n"), (7, ""), (30, "\n")],
            // Not all can be seen.
            &[(7, "0::/\n"), (30, "0::/\n")],
            &[(1, "0::/../pause\n"), (7, "0::/\n")],
            &[(1, "0::/../pause\n"), (30, "0::/\n")],
        ] {
            chosen_of(doubtful).unwrap_err();
        }
    }

    #[test]
    fn what_is_not_a_process_is_ignored() {
        let proc = tempfile::tempdir().unwrap();
        for (name, cgroup) in [("1", "0::/p\n"), ("7", "0::/\n"), ("30", "0::/\n"), ("self", "0::/\n")] {
            fs::create_dir(proc.path().join(name)).unwrap();
            fs::write(proc.path().join(name).join("cgroup"), cgroup).unwrap();
        }
        fs::create_dir(proc.path().join("8")).unwrap();
        fs::write(proc.path().join("uptime"), "1").unwrap();
        assert_eq!(of_this_container(proc.path(), 30), Ok(vec![7]));
    }
}
