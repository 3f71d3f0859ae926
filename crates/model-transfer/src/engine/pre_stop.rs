//! `pre-stop`: what the container of an engine runs before the kubelet sends SIGTERM.
//!
//! vLLM and Triton ignore SIGTERM while they load, and would hold their GPUs until the end of the grace period. An engine
//! that serves must continue until load balancers send no more requests. The sockets of the pod distinguish the two:
//! without one on a port of the engine there is no request, and none can arrive. If something cannot be read, the hook
//! waits: it must never end an engine that may serve, or a process of another container.

mod processes;
mod sockets;

use std::{fs::File, io::BufReader, path::Path, thread::sleep, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};
use tracing::info;

use crate::cli::PreStop;

/// Returns when SIGTERM may be sent.
pub(crate) fn pre_stop(wanted: &PreStop) -> String {
    let PreStop { ports, wait_seconds } = wanted;
    match end_idle_engine(Path::new("/proc"), ports) {
        Ok(ended) => format!("nothing serves yet: ended processes: {ended}"),
        Err(reason) => {
            info!("waiting {wait_seconds} s: {reason}");
            sleep(Duration::from_secs(*wait_seconds));
            format!("waited {wait_seconds} s")
        }
    }
}

/// The number of processes that were ended, or the reason why none was.
fn end_idle_engine(proc: &Path, ports: &[u16]) -> Result<usize, String> {
    for table in sockets::TABLES {
        let place = proc.join(table.name);
        let failed = |error| format!("failed to read {}: {error}", place.display());
        let opened = match File::open(&place) {
            Err(error) if table.may_be_absent && error.kind() == std::io::ErrorKind::NotFound => continue,
            opened => opened.map_err(failed)?,
        };
        if sockets::is_any_in_use(BufReader::new(opened), ports).map_err(failed)? {
            return Err("the engine serves".to_owned());
        }
    }
    let chosen = processes::of_this_container(proc, std::process::id())?;
    let mut ended = 0;
    for process in chosen {
        match Pid::from_raw(process).map(|pid| kill_process(pid, Signal::KILL)) {
            Some(Ok(())) => ended += 1,
            // It has ended already.
            None | Some(Err(Errno::SRCH)) => {}
            Some(Err(error)) => return Err(format!("failed to end process {process}: {error}")),
        }
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use tempfile::TempDir;

    use super::*;

    const HEADER: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n";
    const LISTENS: &str = "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n";

    /// A pod whose engine is this process, beside this test, which runs the hook.
    fn proc_with(engine: u32) -> TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (process, cgroup) in [(1, "pause"), (engine, "engine"), (std::process::id(), "engine")] {
            write(&proc, &format!("{process}/cgroup"), &format!("0::/{cgroup}\n"));
        }
        write(&proc, "net/tcp", HEADER);
        write(&proc, "net/tcp6", HEADER);
        proc
    }

    fn write(proc: &TempDir, path: &str, content: &str) {
        let place = proc.path().join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, content).unwrap();
    }

    #[test]
    fn an_engine_without_a_socket_is_ended_and_only_it() {
        let mut engine = Command::new("sleep").arg("600").spawn().unwrap();
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let proc = proc_with(engine.id());
        write(&proc, &format!("{}/cgroup", other.id()), "0::/../sidecar\n");
        assert_eq!(end_idle_engine(proc.path(), &[8000]), Ok(1));
        assert_eq!(engine.wait().unwrap().code(), None, "ended by a signal");
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn in_doubt_no_engine_is_ended() {
        let mut engine = Command::new("sleep").arg("600").spawn().unwrap();
        let refused = |spoil: &dyn Fn(&TempDir)| {
            let proc = proc_with(engine.id());
            spoil(&proc);
            end_idle_engine(proc.path(), &[8001, 8000]).unwrap_err()
        };
        assert_eq!(
            refused(&|proc| write(proc, "net/tcp6", &[HEADER, LISTENS].concat())),
            "the engine serves"
        );
        let absent = refused(&|proc| fs::remove_file(proc.path().join("net/tcp")).unwrap());
        assert!(absent.contains("net/tcp"), "{absent}");
        for garbage in ["", "garbage\n", "\u{0}"] {
            let malformed = refused(&|proc| write(proc, "net/tcp6", garbage));
            assert!(malformed.contains("net/tcp6"), "{malformed}");
        }
        let first = refused(&|proc| write(proc, "1/cgroup", "0::/engine\n"));
        assert!(first.contains("process 1"), "{first}");
        assert_eq!(engine.try_wait().unwrap(), None);
        engine.kill().unwrap();
        engine.wait().unwrap();
    }

    #[test]
    fn a_kernel_without_ipv6_has_no_table_of_it() {
        let mut engine = Command::new("sleep").arg("600").spawn().unwrap();
        let proc = proc_with(engine.id());
        fs::remove_file(proc.path().join("net/tcp6")).unwrap();
        assert_eq!(end_idle_engine(proc.path(), &[8000]), Ok(1));
        engine.wait().unwrap();
    }
}
