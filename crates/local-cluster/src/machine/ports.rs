//! Free TCP ports on the loopback address.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};

use rustix::{
    fd::OwnedFd,
    net::{AddressFamily, SocketType, bind, getsockname, listen, socket, sockopt::set_socket_reuseport},
};

use crate::{Error, Result};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
const ANY_PORT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

/// A port that no other process gets as long as this value lives: a socket is bound to it and never listens.
///
/// The program it is meant for binds with `SO_REUSEPORT` beside it and gets every connection.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    port: u16,
    _socket: OwnedFd,
}

impl ReservedPort {
    pub(crate) fn new() -> Result<Self> {
        let (port, socket) =
            reserve().map_err(|error| Error::io("reserve a port on", "127.0.0.1")(error.into()))?;
        Ok(Self { port, _socket: socket })
    }

    pub(crate) fn number(&self) -> u16 {
        self.port
    }
}

/// Listens on a port that [`ReservedPort`] holds, possibly in another process.
pub(crate) fn listen_beside_reservation(address: SocketAddr) -> std::io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// A port that was free a moment ago, for programs that cannot share one: they must be able to try another.
pub(crate) fn free_port() -> Result<u16> {
    let find = || TcpListener::bind(ANY_PORT)?.local_addr();
    Ok(find().map_err(Error::io("find a free port on", "127.0.0.1"))?.port())
}

fn reserve() -> rustix::io::Result<(u16, OwnedFd)> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &ANY_PORT)?;
    let address = SocketAddrV4::try_from(getsockname(&socket)?)?;
    Ok((address.port(), socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_refused_to_others() {
        let reserved = ReservedPort::new().unwrap();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, reserved.number())).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    }
}
