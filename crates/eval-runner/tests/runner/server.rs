//! A server that has a list of models. It ends with its value.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

pub(crate) struct Server {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    /// The headers of the last request.
    last: Arc<Mutex<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn new(status: &str, models: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let models: Vec<_> =
            models.iter().map(|id| serde_json::json!({ "id": id, "object": "model" })).collect();
        let body = serde_json::json!({ "object": "list", "data": models }).to_string();
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        let (is_over, last) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(String::new())));
        let (over, seen) = (Arc::clone(&is_over), Arc::clone(&last));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(mut stream) = stream else { continue };
                *seen.lock().unwrap() = head(&stream);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, is_over, last, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn last_request(&self) -> String {
        self.last.lock().unwrap().clone()
    }

    /// From now on connections are refused.
    pub(crate) fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn head(stream: &TcpStream) -> String {
    let lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}
