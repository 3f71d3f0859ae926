//! A network apart, in which a program has the addresses of all simulated pods: what nothing runs in can then answer.
//!
//! Controllers refuse addresses of loopback, so those cannot stand for pods. The network leads to no other
//! machine, and ends with its last process.

use std::{
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

use super::network::{SIMULATED_PODS, ip};
use crate::{Error, Result};

/// Not of a pod.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 101, 0, 1);
const ROUTES: &str = "/proc/self/net/route";

/// Starts this program in a network apart, and what it starts as well. Linux, with root or user namespaces.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--"]).arg(program);
    command
}

/// Why no network apart can be made here, before minutes are spent on builds.
pub fn check() -> Result<()> {
    let failed = |source| Error::Io { step: "make a network apart", path: PathBuf::from("unshare"), source };
    let tried = command(Path::new("ip")).arg("-V").output().map_err(failed)?;
    if tried.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
    let fix =
        "it needs Linux, `unshare` and `ip` (Debian: util-linux, iproute2), and root or user namespaces";
    Err(failed(io::Error::other(format!("{said}; {fix}"))))
}

/// Gives this process's network the addresses of all simulated pods. Only for what was started by [`command`]: the
/// network of the machine is left as it is, with an error.
pub fn take_addresses_of_pods() -> Result<()> {
    let failed =
        |source| Error::Io { step: "prepare a network of its own", path: PathBuf::from("ip"), source };
    let routes = fs::read_to_string(ROUTES).map_err(Error::io("read", ROUTES))?;
    if leads_elsewhere(&routes) {
        let why = "this is the network of the machine: start the program with `cargo xtask`";
        return Err(failed(io::Error::other(why)));
    }
    ip(&script()).map_err(failed)
}

/// The API server takes its own address from the interface of the default route, so there must be one.
fn script() -> String {
    format!(
        "link set lo up\n\
         link add own0 type veth peer name own1\n\
         address add {OWN}/24 dev own0\n\
         link set own0 up\n\
         link set own1 up\n\
         route add default dev own0\n\
         route add local {SIMULATED_PODS} dev lo\n"
    )
}

/// A network that was just made has no route. The first line names the columns.
fn leads_elsewhere(routes: &str) -> bool {
    routes.lines().nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_of_a_machine_is_not_taken_for_one_apart() {
        let columns = "Iface\tDestination\tGateway\n";
        assert!(!leads_elsewhere(columns));
        assert!(leads_elsewhere(&format!("{columns}eth0\t00000000\t0101A8C0\n")));
    }

    #[test]
    fn the_program_gets_its_arguments_after_those_of_unshare() {
        let mut command = command(Path::new("demo"));
        let args: Vec<_> =
            command.arg("scaling").get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        assert!(args.ends_with(&["--net", "--", "demo", "scaling"].map(str::to_owned)), "{args:?}");
    }
}
