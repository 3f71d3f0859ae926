//! From an address of the machine into the hub: how kubectl outside reaches the API server inside.
//!
//! One process stands in both networks: a socket stays in the network in which it was made, so the process listens
//! first and changes the network then. Bytes pass as they are; TLS is between the two ends.

use std::{io, net::SocketAddr, path::Path, time::Duration};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Error, Result,
    machine::{namespaces, ports::listen_beside_reservation},
};

/// Both ends are on this machine.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
/// After a connection could not be accepted, most likely because too many files are open.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Listens, enters the network, and passes on until it is killed.
pub fn run(listen: SocketAddr, network: &Path, to: SocketAddr) -> Result<std::convert::Infallible> {
    let listener = listen_beside_reservation(listen).map_err(Error::io("listen on", listen.to_string()))?;
    namespaces::enter(network).map_err(Error::io("enter", network))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("start the runtime of", "the relay"))?;
    runtime.block_on(pass_on(listener, to)).map_err(Error::io("listen on", listen.to_string()))
}

async fn pass_on(listener: std::net::TcpListener, to: SocketAddr) -> io::Result<std::convert::Infallible> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((outside, _)) => {
                    connections.spawn(connect(outside, to));
                }
                Err(_) => sleep(RETRY_AFTER).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection, to its end; a break is seen by both sides, as without the relay.
async fn connect(mut outside: TcpStream, to: SocketAddr) -> io::Result<()> {
    let mut inside = timeout(CONNECTS_WITHIN, TcpStream::connect(to)).await??;
    for stream in [&outside, &inside] {
        stream.set_nodelay(true)?;
    }
    copy_bidirectional(&mut outside, &mut inside).await?;
    Ok(())
}
