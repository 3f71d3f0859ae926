//! Metrics of stand-ins.

use std::{io, net::IpAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Answers each request with the page of the address that was asked. Returns when no connection can be accepted.
pub async fn answer_scrapes(
    listener: TcpListener,
    page: impl Fn(IpAddr) -> String + Clone + Send + 'static,
) -> io::Error {
    let mut answers = JoinSet::new();
    loop {
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => return error,
        };
        answers.spawn(answer(connection, page.clone()));
        while answers.try_join_next().is_some() {}
    }
}

/// A caller that hangs up is not answered.
async fn answer(mut connection: TcpStream, page: impl Fn(IpAddr) -> String) {
    let Ok(asked) = connection.local_addr() else { return };
    let mut request = [0_u8; 4096];
    // A request without body is one packet.
    while connection.read(&mut request).await.is_ok_and(|read| read > 0) {
        let page = page(asked.ip());
        let length = page.len();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n");
        if connection.write_all(format!("{head}{page}").as_bytes()).await.is_err() {
            return;
        }
    }
}
