//! Asking the admin server of a controller: whether it is ready, and its metrics.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{Cluster, Error, Result};

const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// A page of metrics has some tens of KiB.
const LONGEST_ANSWER: u64 = 16 << 20;

impl Cluster {
    /// The page that Prometheus would scrape from a controller.
    pub async fn metrics(&self, controller: &str) -> Result<String> {
        let components = self.status().await?.components;
        let component = components.into_iter().find(|component| component.name == controller);
        let address = component.and_then(|component| component.admin_address).ok_or_else(|| {
            Error::invalid("read the metrics of", controller, "no controller of this name is running")
        })?;
        let Answer { is_ok, body } =
            ask(&address, "/metrics").await.map_err(Error::io("read the metrics at", &address))?;
        if is_ok { Ok(body) } else { Err(Error::invalid("read the metrics of", controller, body)) }
    }
}

/// The sum of all samples on a page of metrics whose name and labels begin so.
pub fn sum(page: &str, sample: &str) -> f64 {
    let samples = page.lines().filter(|line| line.starts_with(sample));
    samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Whether `/readyz` answers 200; no answer counts as not ready.
pub(crate) async fn is_ready(address: &str) -> bool {
    ask(address, "/readyz").await.is_ok_and(|answer| answer.is_ok)
}

struct Answer {
    is_ok: bool,
    body: String,
}

/// A client for one request line is not worth a dependency.
async fn ask(address: &str, path: &str) -> io::Result<Answer> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.take(LONGEST_ANSWER).read_to_string(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let answer = timeout(ANSWERS_WITHIN, exchange).await.unwrap_or_else(|late| Err(late.into()))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok(Answer { is_ok: head.split_whitespace().nth(1) == Some("200"), body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_name_are_added_up_whatever_their_labels() {
        let page = "# TYPE a counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\nab_total 7\na_other 1\n";
        assert!((sum(page, "a_total") - 5.0).abs() < f64::EPSILON);
        assert!((sum(page, "a_total{x=\"2\"}") - 3.0).abs() < f64::EPSILON);
        assert!(sum(page, "none").abs() < f64::EPSILON);
    }

    #[tokio::test]
    async fn only_an_answer_of_200_is_ready() {
        for (answer, ready) in [("HTTP/1.0 200 OK\r\n\r\n", true), ("HTTP/1.0 503 No\r\n\r\n", false)] {
            let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = server.local_addr().unwrap().to_string();
            let served = async {
                let (mut stream, _) = server.accept().await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
                let mut request = [0; 64];
                let _ = stream.read(&mut request).await;
            };
            let (is_ready, ()) = tokio::join!(is_ready(&address), served);
            assert_eq!(is_ready, ready);
        }
    }
}
