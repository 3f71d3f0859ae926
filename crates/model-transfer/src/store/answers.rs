//! What a failed request means for the next one. Pure.

use std::{error::Error, io};

use http::StatusCode;
use object_store::client::{HttpError, HttpErrorKind};

use super::{credentials::NoCredentials, http::Refusal};

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// May pass: overload, an outage, a connection that broke.
    Passing(String),
    /// Not what was requested: wrong lengths, wrong ranges. Retried a few times.
    Garbled(String),
    Unauthorized(String),
    /// The request could not be signed. A complete sentence.
    NoCredentials(String),
    /// The clocks of this machine and of the store differ by more than the store allows.
    ClockSkew(String),
    /// No such object.
    Missing(String),
    NoBucket,
    /// No longer the object that was listed.
    Changed,
    /// A lasting refusal for any other reason.
    Refused(String),
    /// The store names another region as the bucket's.
    OtherRegion {
        region: String,
        why: String,
    },
    /// The answer is at another address, which may belong to anyone.
    Redirected {
        to: Option<String>,
        why: String,
    },
    /// The store takes the bucket in the host alone.
    PathRefused(String),
    /// More than `MOST_OBJECTS` below one folder.
    TooManyObjects,
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
                return meaning(refusal);
            }
            if let Some(NoCredentials(trouble)) = error.downcast_ref::<NoCredentials>() {
                return trouble.clone();
            }
            if let Some(error) = error.downcast_ref::<HttpError>() {
                transport = Some(error);
            }
            cause = error.source();
        }
        match transport {
            Some(error) if error.kind() == HttpErrorKind::Decode => Trouble::Garbled(innermost(error)),
            Some(error) if is_unknown_authority(error) => Trouble::Passing(format!(
                "{}; name the authority of its certificate in spec.modelStore.caSecretName",
                innermost(error)
            )),
            Some(error) => Trouble::Passing(innermost(error)),
            // There was an answer, which object_store could not read.
            None => Trouble::Garbled(innermost(error)),
        }
    }
}

fn meaning(refusal: &Refusal) -> Trouble {
    let Refusal { status, code, region, location, date } = refusal;
    let why =
        if code.is_empty() { status.as_u16().to_string() } else { format!("{} {code}", status.as_u16()) };
    match (*status, code.as_str()) {
        // The code says more than the status.
        (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "InvalidAccessKeyId") => {
            Trouble::Unauthorized(why)
        }
        // How versitygw refuses an access key that it does not know, with status 404.
        (_, "XAdminUserNotFound") => Trouble::Unauthorized(why),
        (_, "RequestTimeTooSkewed") => Trouble::ClockSkew(match date {
            Some(date) => format!("{why}; its clock shows {date}"),
            None => why,
        }),
        (_, "NoSuchBucket" | "InvalidBucketName") => Trouble::NoBucket,
        (_, "SlowDown" | "RequestTimeout" | "InternalError") => Trouble::Passing(why),
        // OSS, COS, OBS and TOS, in this order.
        (
            _,
            "SecondLevelDomainForbidden"
            | "PathStyleDomainForbidden"
            | "VirtualHostDomainRequired"
            | "InvalidPathAccess",
        ) => Trouble::PathRefused(why),
        (status, code) if status.is_redirection() || code == "AuthorizationHeaderMalformed" => {
            match (region, status.is_redirection()) {
                (Some(region), _) => Trouble::OtherRegion { region: region.clone(), why },
                (None, true) => Trouble::Redirected { to: location.clone(), why },
                (None, false) => Trouble::Refused(why),
            }
        }
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => Trouble::Unauthorized(why),
        (StatusCode::NOT_FOUND, _) => Trouble::Missing(why),
        // The range begins behind the end: the object has become shorter.
        (StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE, _) => Trouble::Changed,
        (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT, _) => {
            Trouble::Passing(why)
        }
        (StatusCode::NOT_IMPLEMENTED, _) => Trouble::Refused(why),
        (status, _) if status.is_server_error() => Trouble::Passing(why),
        _ => Trouble::Refused(why),
    }
}

/// A certificate that none of the trusted authorities has signed, or one whose authority was created anew under its name.
fn is_unknown_authority(error: &(dyn Error + 'static)) -> bool {
    use rustls::{CertificateError, Error as Tls};

    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(Tls::InvalidCertificate(why)) = error.downcast_ref::<Tls>() {
            return matches!(why, CertificateError::UnknownIssuer | CertificateError::BadSignature);
        }
        // What an io::Error carries is not its source.
        let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = carried.map(|carried| carried as &(dyn Error + 'static)).or_else(|| error.source());
    }
    false
}

/// The innermost cause is the most specific; those around it repeat addresses.
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

    fn trouble(refusal: Refusal) -> Trouble {
        let error = HttpError::new(HttpErrorKind::Unknown, refusal);
        Trouble::of(&object_store::Error::Generic { store: "S3", source: Box::new(error) })
    }

    fn refusal(status: u16, code: &str) -> Refusal {
        let status = StatusCode::from_u16(status).unwrap();
        Refusal { status, code: code.to_owned(), ..Refusal::default() }
    }

    #[test]
    fn each_class_of_answers_has_its_meaning() {
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
            (301, "PermanentRedirect", Trouble::Redirected { to: None, why: text("301 PermanentRedirect") }),
            (403, "RequestTimeTooSkewed", Trouble::ClockSkew(text("403 RequestTimeTooSkewed"))),
            (403, "SecondLevelDomainForbidden", Trouble::PathRefused(text("403 SecondLevelDomainForbidden"))),
            (400, "AuthorizationHeaderMalformed", Trouble::Refused(text("400 AuthorizationHeaderMalformed"))),
            (405, "", Trouble::Refused(text("405"))),
            (501, "NotImplemented", Trouble::Refused(text("501 NotImplemented"))),
        ] {
            assert_eq!(trouble(refusal(status, code)), meant);
        }
    }

    #[test]
    fn a_region_that_the_store_names_is_the_reason() {
        for (status, code) in
            [(301, "PermanentRedirect"), (307, "TemporaryRedirect"), (400, "AuthorizationHeaderMalformed")]
        {
            let named = Refusal { region: Some("eu-west-1".to_owned()), ..refusal(status, code) };
            let expected =
                Trouble::OtherRegion { region: "eu-west-1".to_owned(), why: format!("{status} {code}") };
            assert_eq!(trouble(named), expected);
        }
        let denied = Refusal { region: Some("eu-west-1".to_owned()), ..refusal(403, "AccessDenied") };
        assert_eq!(trouble(denied), Trouble::Unauthorized("403 AccessDenied".to_owned()));
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
