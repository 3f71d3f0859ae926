//! The hub: a process that does nothing but hold a network. It ends when it is killed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{Error, Folder, Result, process::write_atomically};

use super::network;

/// Makes the network that this process was started in the hub's, says so, and stays.
pub fn run(root: &Path) -> Result<std::convert::Infallible> {
    let folder = Folder::at(root.to_owned());
    let made = network::ip(&network::make_hub()).and_then(|()| network::allow_forwarding());
    made.map_err(Error::io("make the network of", root))?;
    write_atomically(&folder.hub(), std::process::id().to_string().as_bytes())?;
    loop {
        std::thread::sleep(Duration::MAX);
    }
}

/// The pid of the hub, once its network is there.
pub(crate) fn pid(folder: &Folder) -> Result<i32> {
    let path = folder.hub();
    let read = fs::read_to_string(&path).and_then(|text| {
        text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    });
    read.map_err(Error::io("read", path))
}

/// The network namespace of the hub.
pub(crate) fn network(folder: &Folder) -> Result<PathBuf> {
    Ok(super::namespaces::network_of(pid(folder)?))
}
