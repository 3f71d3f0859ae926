//! A simulated worker. It serves the metrics that the test sets, on a port of its own.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// The metrics that it serves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Says {
    pub(crate) queued: u64,
    pub(crate) in_flight: u64,
    pub(crate) tokens: u64,
    /// `process_start_time_seconds`
    pub(crate) started: u64,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Load(Says),
    /// A connection stays open without an answer.
    None,
    /// The port is closed.
    Stop,
}

/// Ends with the test process at the latest; a port is not served again.
pub(crate) struct Worker {
    pub(crate) port: u16,
    answer: Arc<Mutex<Answer>>,
}

impl Worker {
    pub(crate) fn start(says: Says) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let answer = Arc::new(Mutex::new(Answer::Load(says)));
        let known = Arc::clone(&answer);
        thread::spawn(move || {
            let mut unanswered = Vec::new();
            for stream in listener.incoming().flatten() {
                match *known.lock().expect("no test has panicked with it") {
                    Answer::Load(says) => serve(stream, says),
                    Answer::None => unanswered.push(stream),
                    Answer::Stop => return,
                }
            }
        });
        Self { port, answer }
    }

    pub(crate) fn says(&self, says: Says) {
        self.answer_with(Answer::Load(says));
    }

    pub(crate) fn hang(&self) {
        self.answer_with(Answer::None);
    }

    /// Returns when the port refuses connections.
    pub(crate) fn stop(&self) {
        self.answer_with(Answer::Stop);
        let connected = || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        while connected().is_ok() {}
    }

    fn answer_with(&self, answer: Answer) {
        *self.answer.lock().expect("no test has panicked with it") = answer;
    }
}

fn serve(mut stream: TcpStream, says: Says) {
    let Says { queued, in_flight, tokens, started } = says;
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
