//! Where a program listens: on all addresses of its pod, whether the cluster has IPv4, IPv6 or both.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
};

use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket};

/// As tokio has it.
const BACKLOG: u32 = 1024;

/// Listens at once, so that a port that is taken is an error of the start. `0.0.0.0` is every address of the machine, also those
/// of IPv6 where it has any: a pod cannot know which of them the kubelet asks.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.is_ipv4() && address.ip().is_unspecified() {
        match both(address.port()) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            // A kernel or a container without IPv6.
            Err(_) => {}
        }
    }
    TcpListener::bind(address).await
}

/// One socket for IPv6 and IPv4, whose addresses it sees as `::ffff:10.0.0.7`.
fn both(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpStream;

    use super::*;

    fn any(port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
    }

    #[tokio::test]
    async fn every_address_is_listened_on() {
        let listener = listen(any(0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.expect("this machine has ::1");
        for _ in 0..2 {
            let (_, from) = listener.accept().await.unwrap();
            assert!(from.ip().to_canonical().is_loopback());
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_an_error() {
        let taken = listen(any(0)).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(listen(any(port)).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let of_ipv4 = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = of_ipv4.local_addr().unwrap().port();
        assert_eq!(listen(any(port)).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_named_address_is_the_only_one() {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_err());
    }
}
