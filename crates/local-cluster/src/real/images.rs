//! Images for real nodes: put into the cluster's own registry, from which nodes pull every image, under any name.

use std::{
    io,
    net::TcpStream,
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    Error, Folder, Result,
    machine::{
        namespaces,
        network::{HUB, REGISTRY_PORT},
        process::output_within,
    },
    tools::NodeTools,
};

use super::hub;

/// The largest image has some tens of megabytes.
const PUSHED_WITHIN: Duration = Duration::from_secs(120);
/// A loaded machine is no reason to fail.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Blocks until the registry accepts connections.
pub(crate) fn until_registry_serves(folder: &Folder) -> Result<()> {
    let began = Instant::now();
    let connect = || loop {
        match TcpStream::connect((HUB, REGISTRY_PORT)) {
            Ok(_) => return Ok(()),
            Err(error) if began.elapsed() > SERVES_WITHIN => return Err(error),
            Err(_) => sleep(POLL),
        }
    };
    namespaces::within(&hub::network(folder)?, connect).map_err(Error::io("reach", "the registry"))
}

/// Puts an image, given as a folder in OCI image layout, into the registry; the reference is how pods will call it.
pub(crate) fn push(folder: &Folder, tools: &NodeTools, layout: &Path, reference: &str) -> Result<()> {
    // Nodes ask the one registry for everything, so the host is not part of the name there.
    let Some((_, name)) = reference.split_once('/') else {
        return Err(Error::invalid(
            "load image",
            reference,
            "write it with its registry, as in ghcr.io/owner/name:tag",
        ));
    };
    let push = || {
        let mut crane = Command::new(tools.addons.join("crane"));
        crane.args(["push", "--insecure"]).arg(layout).arg(format!("{HUB}:{REGISTRY_PORT}/{name}"));
        let output = output_within(&mut crane, PUSHED_WITHIN)?;
        if output.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    };
    namespaces::within(&hub::network(folder)?, push).map_err(Error::io("load the image in", layout))
}
