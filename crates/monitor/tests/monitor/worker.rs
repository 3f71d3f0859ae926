//! A worker that a test plays: it serves on a port of its own what the test says.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// What it says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Says {
    pub(crate) queued: u64,
    pub(crate) in_flight: u64,
    pub(crate) tokens: u64,
    /// `process_start_time_seconds`
    pub(crate) started: u64,
}

/// Ends with the test process; a port is not served again.
pub(crate) struct Worker {
    pub(crate) port: u16,
    says: Arc<Mutex<Option<Says>>>,
}

impl Worker {
    pub(crate) fn start(says: Says) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let says = Arc::new(Mutex::new(Some(says)));
        let known = Arc::clone(&says);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let says = *known.lock().expect("no test has panicked with it");
                answer(stream, says);
            }
        });
        Self { port, says }
    }

    pub(crate) fn says(&self, says: Says) {
        *self.says.lock().expect("no test has panicked with it") = Some(says);
    }

    /// From now on it closes every connection.
    pub(crate) fn is_gone(&self) {
        *self.says.lock().expect("no test has panicked with it") = None;
    }
}

fn answer(mut stream: TcpStream, says: Option<Says>) {
    let Some(Says { queued, in_flight, tokens, started }) = says else { return };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    // The head of a request is one packet on loopback.
    let _ = stream.read(&mut [0; 4096]);
    let body = format!(
        "agent_queue_depth {queued}\nagent_tasks_in_flight {in_flight}\nagent_tokens_total {tokens}\n\
         process_start_time_seconds {started}\n"
    );
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all((head + &body).as_bytes());
}
