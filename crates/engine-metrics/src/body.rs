//! What Prometheus servers and pods need of HTTP: a head and a body up to a limit, and the cause of a failure.

use std::error::Error;

use bytes::Buf as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::foreign;

/// Bytes of the head of an answer; a connection buffers no more. hyper's own limit is 400 KiB. Every pod that waits for its
/// body to be read would hold that.
pub const LARGEST_HEAD: usize = 16 << 10;

/// Why a body cannot be used.
#[derive(Debug)]
pub enum BodyError {
    TooLarge,
    Broken(String),
}

/// Gives up as soon as there are more bytes, whatever the header says.
pub async fn read_body(mut body: Incoming, most: usize) -> Result<Vec<u8>, BodyError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Broken(cause(&error)))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > most {
                return Err(BodyError::TooLarge);
            }
            bytes.extend_from_slice(data.chunk());
        }
    }
    Ok(bytes)
}

/// Whether the head of the answer has more bytes than `LARGEST_HEAD`.
pub fn is_head_too_large(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse_too_large) {
            return true;
        }
        next = error.source();
    }
    false
}

/// The last cause of an error, which names what happened: `Connection refused (os error 111)`.
pub fn cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    foreign(&last.to_string())
}
