//! One request to the worker of this pod; its answer is printed.
#![expect(clippy::print_stdout, reason = "the answer is the result of this command")]

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

const WITHIN: Duration = Duration::from_secs(10);

pub(crate) async fn ask(port: u16, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
    let answer = timeout(WITHIN, async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: worker\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    });
    let answer = answer.await.context("the worker does not answer")?.context("the worker cannot be asked")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no end of its head")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        bail!("the worker answers {status}");
    }
    println!("{body}");
    Ok(())
}
