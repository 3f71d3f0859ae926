//! Classifies failed requests: whether to retry them, and with which cause the transfer ends otherwise. Pure.
//!
//! It must not repeat the text of an error that quotes the store: parsers do, and an answer may contain credentials.

use std::{error::Error, io};

use http::StatusCode;
use object_store::client::{HttpError, HttpErrorKind};
use rustls::{CertificateError, Error as TlsError};

use crate::{
    http::{LargeAnswer, Refusal},
    names::ManyNames,
};

/// Replaces the text of a parser.
const UNPARSABLE: &str = "an answer that cannot be parsed";

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Retried: overload, an outage, a broken connection.
    Transient(String),
    /// As transient: no trusted authority has signed the certificate of the store, and callers say where one is named.
    UnknownAuthority(String),
    /// Not what was requested: wrong lengths, wrong ranges. Retried a few times.
    MalformedAnswer(String),
    Unauthorized(String),
    /// The request could not be signed. A complete sentence.
    CredentialsUnavailable(String),
    /// The clocks of this machine and of the store differ by more than the store allows.
    ClockSkew(String),
    /// No such object.
    Missing(String),
    NoBucket,
    /// No longer the object that was listed.
    Changed,
    /// A permanent refusal for any other reason.
    Refused(String),
    /// The store names another region as the bucket's.
    OtherRegion {
        region: String,
        why: String,
    },
    /// A redirect, which is not followed because the address may belong to another party.
    Redirected {
        to: Option<String>,
        why: String,
    },
    /// The store accepts only virtual-hosted requests.
    PathRefused(String),
    /// More below one folder than a listing may hold: what it has.
    LargeListing(String),
    /// The listing names an object that cannot be a file.
    InvalidKey(String),
}

/// An error of a request for credentials, as the source of an object_store error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no credentials: {0:?}")]
pub(crate) struct CredentialsUnavailable(pub(crate) RequestError);

impl RequestError {
    pub fn of(error: &object_store::Error) -> RequestError {
        if let object_store::Error::InvalidPath { source } = error {
            return RequestError::InvalidKey(format!("{source}: rename the object"));
        }
        RequestError::of_cause(error)
    }

    /// Of an error of the HTTP client.
    pub fn of_http(error: &HttpError) -> RequestError {
        RequestError::of_cause(error)
    }

    fn of_cause(error: &(dyn Error + 'static)) -> RequestError {
        let mut cause = Some(error);
        let mut transport = None;
        while let Some(error) = cause {
            if let Some(refusal) = error.downcast_ref::<Refusal>() {
                return meaning(refusal);
            }
            if let Some(CredentialsUnavailable(reason)) = error.downcast_ref::<CredentialsUnavailable>() {
                return reason.clone();
            }
            if let Some(error) = error.downcast_ref::<HttpError>() {
                transport = Some(error);
            }
            cause = error.source();
        }
        match transport {
            // The names are those that the other side presents.
            Some(error) if is_of_another_name(error) => RequestError::Transient(
                "its certificate is not valid for the name of the endpoint".to_owned(),
            ),
            Some(error) if is_unknown_authority(error) => {
                RequestError::UnknownAuthority(format!("{}; its authority is not trusted", innermost(error)))
            }
            // Errors of the system, of TLS and of HTTP, which name what is wrong and do not quote it.
            Some(error) if error.kind() != HttpErrorKind::Decode => RequestError::Transient(innermost(error)),
            Some(error)
                if innermost_cause(error).is::<LargeAnswer>() || innermost_cause(error).is::<ManyNames>() =>
            {
                RequestError::MalformedAnswer(innermost(error))
            }
            // A parser of object_store or of its HTTP client quotes the answer.
            Some(_) | None => RequestError::MalformedAnswer(UNPARSABLE.to_owned()),
        }
    }
}

fn meaning(refusal: &Refusal) -> RequestError {
    let Refusal { status, code, region, location, date } = refusal;
    let why =
        if code.is_empty() { status.as_u16().to_string() } else { format!("{} {code}", status.as_u16()) };
    match (*status, code.as_str()) {
        // The code is more specific than the status.
        (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "InvalidAccessKeyId") => {
            RequestError::Unauthorized(why)
        }
        // versitygw refuses an unknown access key with this code and status 404.
        (_, "XAdminUserNotFound") => RequestError::Unauthorized(why),
        (_, "RequestTimeTooSkewed") => RequestError::ClockSkew(match date {
            Some(date) => format!("{why}; its clock shows {date}"),
            None => why,
        }),
        (_, "NoSuchBucket" | "InvalidBucketName") => RequestError::NoBucket,
        (_, "SlowDown" | "RequestTimeout" | "InternalError") => RequestError::Transient(why),
        // OSS, COS, OBS and TOS, in this order.
        (
            _,
            "SecondLevelDomainForbidden"
            | "PathStyleDomainForbidden"
            | "VirtualHostDomainRequired"
            | "InvalidPathAccess",
        ) => RequestError::PathRefused(why),
        (status, code) if status.is_redirection() || code == "AuthorizationHeaderMalformed" => {
            match (region, status.is_redirection()) {
                (Some(region), _) => RequestError::OtherRegion { region: region.clone(), why },
                (None, true) => RequestError::Redirected { to: location.clone(), why },
                (None, false) => RequestError::Refused(why),
            }
        }
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => RequestError::Unauthorized(why),
        (StatusCode::NOT_FOUND, _) => RequestError::Missing(why),
        // The range begins behind the end: the object has become shorter.
        (StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE, _) => RequestError::Changed,
        (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT, _) => {
            RequestError::Transient(why)
        }
        (StatusCode::NOT_IMPLEMENTED, _) => RequestError::Refused(why),
        (status, _) if status.is_server_error() => RequestError::Transient(why),
        _ => RequestError::Refused(why),
    }
}

/// Whether no trusted authority has signed the certificate, or an authority of the same name with another key has.
fn is_unknown_authority(error: &(dyn Error + 'static)) -> bool {
    let wrong = wrong_certificate(error);
    matches!(wrong, Some(CertificateError::UnknownIssuer | CertificateError::BadSignature))
}

fn is_of_another_name(error: &(dyn Error + 'static)) -> bool {
    let wrong = wrong_certificate(error);
    matches!(wrong, Some(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }))
}

/// Why the certificate of the other side was refused, if it was.
fn wrong_certificate<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e CertificateError> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(TlsError::InvalidCertificate(why)) = error.downcast_ref::<TlsError>() {
            return Some(why);
        }
        // The error inside an io::Error is not its source.
        let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = carried.map(|carried| carried as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

/// The innermost cause is the most specific; those around it repeat addresses.
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    innermost_cause(error).to_string()
}

fn innermost_cause<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(refusal: Refusal) -> RequestError {
        let error = HttpError::new(HttpErrorKind::Unknown, refusal);
        RequestError::of(&object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }

    fn refusal(status: u16, code: &str) -> Refusal {
        let status = StatusCode::from_u16(status).unwrap();
        Refusal { status, code: code.to_owned(), ..Refusal::default() }
    }

    #[test]
    fn each_class_of_answers_has_its_meaning() {
        let text = |text: &str| text.to_owned();
        for (status, code, meant) in [
            (401, "", RequestError::Unauthorized(text("401"))),
            (403, "AccessDenied", RequestError::Unauthorized(text("403 AccessDenied"))),
            (403, "SignatureDoesNotMatch", RequestError::Unauthorized(text("403 SignatureDoesNotMatch"))),
            (400, "ExpiredToken", RequestError::Unauthorized(text("400 ExpiredToken"))),
            (404, "NoSuchKey", RequestError::Missing(text("404 NoSuchKey"))),
            (404, "", RequestError::Missing(text("404"))),
            (404, "XAdminUserNotFound", RequestError::Unauthorized(text("404 XAdminUserNotFound"))),
            (404, "NoSuchBucket", RequestError::NoBucket),
            (412, "PreconditionFailed", RequestError::Changed),
            (416, "InvalidRange", RequestError::Changed),
            (408, "", RequestError::Transient(text("408"))),
            (429, "", RequestError::Transient(text("429"))),
            (500, "InternalError", RequestError::Transient(text("500 InternalError"))),
            (503, "SlowDown", RequestError::Transient(text("503 SlowDown"))),
            (504, "", RequestError::Transient(text("504"))),
            (
                301,
                "PermanentRedirect",
                RequestError::Redirected { to: None, why: text("301 PermanentRedirect") },
            ),
            (403, "RequestTimeTooSkewed", RequestError::ClockSkew(text("403 RequestTimeTooSkewed"))),
            (
                403,
                "SecondLevelDomainForbidden",
                RequestError::PathRefused(text("403 SecondLevelDomainForbidden")),
            ),
            (
                400,
                "AuthorizationHeaderMalformed",
                RequestError::Refused(text("400 AuthorizationHeaderMalformed")),
            ),
            (405, "", RequestError::Refused(text("405"))),
            (501, "NotImplemented", RequestError::Refused(text("501 NotImplemented"))),
        ] {
            assert_eq!(error_of(refusal(status, code)), meant);
        }
    }

    #[test]
    fn a_region_that_the_store_names_is_the_reason() {
        for (status, code) in
            [(301, "PermanentRedirect"), (307, "TemporaryRedirect"), (400, "AuthorizationHeaderMalformed")]
        {
            let named = Refusal { region: Some("eu-west-1".to_owned()), ..refusal(status, code) };
            let expected =
                RequestError::OtherRegion { region: "eu-west-1".to_owned(), why: format!("{status} {code}") };
            assert_eq!(error_of(named), expected);
        }
        let denied = Refusal { region: Some("eu-west-1".to_owned()), ..refusal(403, "AccessDenied") };
        assert_eq!(error_of(denied), RequestError::Unauthorized("403 AccessDenied".to_owned()));
    }

    #[test]
    fn a_broken_connection_is_transient_and_an_invalid_answer_is_malformed() {
        let generic = |source: Box<dyn Error + Send + Sync>| {
            RequestError::of(&object_store::Error::Generic { store: "S3", source })
        };
        let reset = std::io::Error::other("connection reset");
        let broken = generic(Box::new(HttpError::new(HttpErrorKind::Interrupted, reset)));
        assert_eq!(broken, RequestError::Transient("connection reset".to_owned()));
        let invalid = generic("Content-Range header not present in partial response".into());
        assert!(matches!(invalid, RequestError::MalformedAnswer(_)), "{invalid:?}");
    }

    #[test]
    fn names_in_a_certificate_are_not_repeated() {
        let presented = vec!["DnsName(\"text-of-the-store\")".to_owned()];
        let expected = rustls::pki_types::ServerName::try_from("minio").unwrap();
        let wrong = rustls::CertificateError::NotValidForNameContext { expected, presented };
        let wrong = io::Error::other(rustls::Error::InvalidCertificate(wrong));
        let error = HttpError::new(HttpErrorKind::Connect, wrong);
        let of = RequestError::of(&object_store::Error::Generic { store: "S3", source: Box::new(error) });
        let RequestError::Transient(why) = of else { panic!("{of:?}") };
        assert_eq!(why, "its certificate is not valid for the name of the endpoint");
    }
}
