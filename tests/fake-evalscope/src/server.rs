//! One request of an OpenAI API, on a connection of its own.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

/// An engine of the tests answers within milliseconds, on a busy machine within seconds.
const WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Server {
    /// `host:port`.
    authority: String,
    path: String,
    key: String,
}

impl Server {
    pub(crate) fn new(url: &str, key: &str) -> Result<Self, String> {
        let invalid = || format!("ValueError: {url} is no URL of a server");
        let (authority, path) =
            url.strip_prefix("http://").ok_or_else(invalid)?.split_once('/').ok_or_else(invalid)?;
        let authority = match authority.contains(':') {
            true => authority.to_owned(),
            false => format!("{authority}:80"),
        };
        let path = format!("/{}/chat/completions", path.trim_end_matches('/'));
        Ok(Self { authority, path, key: key.to_owned() })
    }

    /// The text of the answer.
    pub(crate) fn answer(&self, request: &Value) -> Result<String, String> {
        let answer = self.post(&request.to_string()).map_err(|error| format!("Connection error: {error}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("Connection error: half an answer")?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        if status != "200" {
            return Err(format!("Error code: {status} - {body}"));
        }
        let body: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
        let text = body["choices"][0]["message"]["content"].as_str();
        Ok(text.ok_or("the answer has no content")?.to_owned())
    }

    fn post(&self, body: &str) -> io::Result<String> {
        let Self { authority, path, key } = self;
        let mut stream = TcpStream::connect(authority)?;
        stream.set_read_timeout(Some(WITHIN))?;
        // HTTP/1.0: the answer ends with the connection.
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: {authority}\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use serde_json::json;

    use super::*;

    /// What a server that gives this answer was asked, and what became of it.
    fn asked(answer: &'static str) -> (String, Result<String, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::new(&format!("http://{}/v1", listener.local_addr().unwrap()), "sesame").unwrap();
        thread::scope(|scope| {
            let heard = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = vec![0; 4_096];
                let length = stream.read(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                String::from_utf8(request[..length].to_vec()).unwrap()
            });
            let answered = server.answer(&json!({ "model": "chat" }));
            (heard.join().unwrap(), answered)
        })
    }

    #[test]
    fn an_answer_is_the_text_of_its_first_choice() {
        let (request, answer) =
            asked("HTTP/1.0 200 OK\r\n\r\n{\"choices\":[{\"message\":{\"content\":\"B\"}}]}");
        assert!(request.starts_with("POST /v1/chat/completions HTTP/1.0\r\n"), "{request}");
        assert!(request.contains("Bearer sesame") && request.ends_with(r#"{"model":"chat"}"#), "{request}");
        assert_eq!(answer.as_deref(), Ok("B"));
    }

    #[test]
    fn a_request_that_fails_has_no_answer() {
        let refused = asked("HTTP/1.0 500 Internal Server Error\r\n\r\nboom").1;
        assert_eq!(refused.unwrap_err(), "Error code: 500 - boom");
        assert!(asked("HTTP/1.0 200 OK\r\n\r\n{\"choices\":[").1.is_err());
    }
}
