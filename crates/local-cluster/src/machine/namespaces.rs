//! The few system calls that real nodes need. On other systems than Linux each of them is an error.

use std::{io, path::Path};

/// The network namespace of a process, as a file.
pub(crate) fn network_of(pid: i32) -> std::path::PathBuf {
    format!("/proc/{pid}/ns/net").into()
}

/// Moves the calling thread into a network namespace; so will be what it starts.
#[cfg(target_os = "linux")]
pub(crate) fn enter(network: &Path) -> io::Result<()> {
    use std::os::fd::AsFd as _;

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    let namespace = std::fs::File::open(network)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Does the work on a thread of its own that has entered a network namespace.
pub(crate) fn within<T: Send>(network: &Path, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|threads| {
        let working = threads.spawn(|| {
            enter(network)?;
            work()
        });
        working.join().unwrap_or_else(|_| Err(io::Error::other("the work in another network panicked")))
    })
}

/// Makes every mount of this namespace one that containers may share: kubelet's volumes depend on it.
#[cfg(target_os = "linux")]
pub(crate) fn share_mounts() -> io::Result<()> {
    use rustix::mount::{MountPropagationFlags, mount_change};

    Ok(mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)?)
}

/// Puts an empty file system in memory over a folder.
#[cfg(target_os = "linux")]
pub(crate) fn mount_memory(at: &Path) -> io::Result<()> {
    use rustix::mount::{MountFlags, mount};

    Ok(mount("tmpfs", at, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=0755"))?)
}

/// Makes a folder visible at a second place.
#[cfg(target_os = "linux")]
pub(crate) fn bind(folder: &Path, at: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(folder, at)?)
}

#[cfg(target_os = "linux")]
pub(crate) fn set_host_name(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}

/// Waits until any child ends, also one that was inherited from another process; its pid.
#[cfg(target_os = "linux")]
pub(crate) fn wait_for_any_child() -> io::Result<Option<u32>> {
    use rustix::process::{WaitOptions, wait};

    let ended = wait(WaitOptions::empty())?;
    Ok(ended.and_then(|(pid, _)| u32::try_from(pid.as_raw_nonzero().get()).ok()))
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::{Path, io};

    fn unsupported<T>() -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "real nodes need Linux"))
    }

    pub(crate) fn enter(_: &Path) -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn share_mounts() -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn mount_memory(_: &Path) -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn bind(_: &Path, _: &Path) -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn set_host_name(_: &str) -> io::Result<()> {
        unsupported()
    }

    pub(crate) fn wait_for_any_child() -> io::Result<Option<u32>> {
        unsupported()
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{bind, enter, mount_memory, set_host_name, share_mounts, wait_for_any_child};
