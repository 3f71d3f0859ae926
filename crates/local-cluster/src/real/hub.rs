//! The hub: a process that does nothing but hold a network. It ends when it is killed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    Error, Folder, Result,
    machine::{files::write_atomically, namespaces, network, process::Identity},
};

/// Makes the network that this process was started in the hub's, records it, and stays.
pub fn run(root: &Path) -> Result<std::convert::Infallible> {
    let folder = Folder::at(root.to_owned());
    let made = network::ip(&network::make_hub()).and_then(|()| network::allow_forwarding());
    made.map_err(Error::io("make the network of", root))?;
    let own = i32::try_from(std::process::id()).ok().and_then(Identity::of);
    let text = serde_json::to_vec(&own).map_err(|error| Error::invalid("write", folder.name(), error))?;
    write_atomically(&folder.hub(), &text)?;
    loop {
        std::thread::sleep(Duration::MAX);
    }
}

/// The pid of the hub, once its network is there and as long as it lives.
pub(crate) fn pid(folder: &Folder) -> Result<i32> {
    let path = folder.hub();
    let text = fs::read(&path).map_err(Error::io("read", &path))?;
    let hub: Option<Identity> = serde_json::from_slice(&text)
        .map_err(|error| Error::invalid("read", path.display().to_string(), error))?;
    let alive = hub.filter(Identity::is_alive).map(|hub| hub.pid);
    alive.ok_or_else(|| Error::invalid("reach", "the hub", "it has ended: start the cluster anew"))
}

/// The network namespace of the hub.
pub(crate) fn network(folder: &Folder) -> Result<PathBuf> {
    Ok(namespaces::network_of(pid(folder)?))
}
