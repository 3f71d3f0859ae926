//! What a failed request means for the next one. Pure.

use std::error::Error;

use http::StatusCode;
use object_store::client::{HttpError, HttpErrorKind};

use super::http::Refusal;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Worth another try: overload, an outage, a connection that broke.
    Passing(String),
    /// Not what was asked for: wrong lengths, wrong ranges. Worth few tries.
    Garbled(String),
    Unauthorized(String),
    /// No such object.
    Missing(String),
    NoBucket,
    /// No longer the object that was listed.
    Changed,
    /// A lasting refusal for another reason.
    Refused(String),
    /// The listing names an object that cannot be a file.
    HostileKey(String),
}

impl Trouble {
    pub(crate) fn of(error: &object_store::Error) -> Trouble {
        if let object_store::Error::InvalidPath { source } = error {
            return Trouble::HostileKey(format!("{source}: rename the object"));
        }
        let mut cause: Option<&(dyn Error + 'static)> = Some(error);
        let mut transport = None;
        while let Some(error) = cause {
            if let Some(refusal) = error.downcast_ref::<Refusal>() {
                return meaning(refusal.status, &refusal.code);
            }
            if let Some(error) = error.downcast_ref::<HttpError>() {
                transport = Some(error);
            }
            cause = error.source();
        }
        match transport {
            Some(error) if error.kind() == HttpErrorKind::Decode => Trouble::Garbled(innermost(error)),
            Some(error) => Trouble::Passing(innermost(error)),
            // An answer came and made no sense.
            None => Trouble::Garbled(innermost(error)),
        }
    }
}

fn meaning(status: StatusCode, code: &str) -> Trouble {
    let told =
        if code.is_empty() { status.as_u16().to_string() } else { format!("{} {code}", status.as_u16()) };
    match (status, code) {
        // What it says matters more than how.
        (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "InvalidAccessKeyId") => {
            Trouble::Unauthorized(told)
        }
        // versitygw's word for an access key that it does not know, with status 404.
        (_, "XAdminUserNotFound") => Trouble::Unauthorized(told),
        (_, "NoSuchBucket" | "InvalidBucketName") => Trouble::NoBucket,
        (_, "SlowDown" | "RequestTimeout" | "InternalError") => Trouble::Passing(told),
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => Trouble::Unauthorized(told),
        (StatusCode::NOT_FOUND, _) => Trouble::Missing(told),
        // The range begins behind the end: it has become shorter.
        (StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE, _) => Trouble::Changed,
        (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT, _) => {
            Trouble::Passing(told)
        }
        (status, _) if status.is_server_error() => Trouble::Passing(told),
        _ => Trouble::Refused(told),
    }
}

/// The last cause says most; those above it repeat addresses.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, code: &str) -> Trouble {
        let refusal = Refusal { status: StatusCode::from_u16(status).unwrap(), code: code.to_owned() };
        let error = HttpError::new(HttpErrorKind::Unknown, refusal);
        Trouble::of(&object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }

    #[test]
    fn each_class_of_answers_is_told_apart() {
        let text = |text: &str| text.to_owned();
        for (status, code, meant) in [
            (401, "", Trouble::Unauthorized(text("401"))),
            (403, "AccessDenied", Trouble::Unauthorized(text("403 AccessDenied"))),
            (403, "SignatureDoesNotMatch", Trouble::Unauthorized(text("403 SignatureDoesNotMatch"))),
            (400, "ExpiredToken", Trouble::Unauthorized(text("400 ExpiredToken"))),
            (404, "NoSuchKey", Trouble::Missing(text("404 NoSuchKey"))),
            (404, "", Trouble::Missing(text("404"))),
            (404, "XAdminUserNotFound", Trouble::Unauthorized(text("404 XAdminUserNotFound"))),
            (404, "NoSuchBucket", Trouble::NoBucket),
            (412, "PreconditionFailed", Trouble::Changed),
            (416, "InvalidRange", Trouble::Changed),
            (408, "", Trouble::Passing(text("408"))),
            (429, "", Trouble::Passing(text("429"))),
            (500, "InternalError", Trouble::Passing(text("500 InternalError"))),
            (503, "SlowDown", Trouble::Passing(text("503 SlowDown"))),
            (504, "", Trouble::Passing(text("504"))),
            (301, "PermanentRedirect", Trouble::Refused(text("301 PermanentRedirect"))),
            (400, "AuthorizationHeaderMalformed", Trouble::Refused(text("400 AuthorizationHeaderMalformed"))),
            (405, "", Trouble::Refused(text("405"))),
        ] {
            assert_eq!(told(status, code), meant);
        }
    }

    #[test]
    fn a_broken_connection_passes_and_a_senseless_answer_is_garbled() {
        let generic = |source: Box<dyn Error + Send + Sync>| {
            Trouble::of(&object_store::Error::Generic { store: "S3", source })
        };
        let reset = std::io::Error::other("connection reset");
        let broken = generic(Box::new(HttpError::new(HttpErrorKind::Interrupted, reset)));
        assert_eq!(broken, Trouble::Passing("connection reset".to_owned()));
        let senseless = generic("Content-Range header not present in partial response".into());
        assert!(matches!(senseless, Trouble::Garbled(_)), "{senseless:?}");
    }
}
