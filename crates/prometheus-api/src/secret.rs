//! What a Secret of the user gives to a connection: a token and authorities. Neither appears in a message or in Debug.

use std::{borrow::Cow, fmt};

use engine_metrics::foreign;
use http::HeaderValue;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::Fault;

/// Key of the token.
pub const TOKEN_KEY: &str = "token";
/// Key of the authorities.
pub const CA_KEY: &str = "ca.crt";
/// A token of a service account has about 1 KiB.
const LONGEST_TOKEN: usize = 16 << 10;
/// Certificates in one Secret.
const MOST_CERTIFICATES: usize = 512;

/// A bearer token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Namespace and name of its Secret.
    secret: String,
    /// `Bearer …`, marked as sensitive.
    header: HeaderValue,
}

impl Token {
    /// The token of this Secret: printable ASCII without spaces; a line break at its end is dropped.
    pub fn new(secret: &str, token: &[u8]) -> Result<Self, Fault> {
        let invalid = |why| Fault::InvalidSecret { secret: secret.to_owned(), key: TOKEN_KEY, why };
        let token = token.trim_ascii();
        if token.is_empty() {
            return Err(invalid("is empty"));
        }
        if token.len() > LONGEST_TOKEN || !token.iter().all(u8::is_ascii_graphic) {
            return Err(invalid(
                "is not a token: it may have up to 16 KiB of letters, digits and punctuation",
            ));
        }
        let mut header =
            HeaderValue::from_bytes(&[b"Bearer ", token].concat()).map_err(|_| invalid("is not a token"))?;
        header.set_sensitive(true);
        Ok(Self { secret: secret.to_owned(), header })
    }

    pub(crate) fn header(&self) -> &HeaderValue {
        &self.header
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// The text without the token, should the server repeat it. It must not have been cut before.
    pub(crate) fn removed_from<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.header.to_str().ok().and_then(|header| header.strip_prefix("Bearer ")) {
            Some(token) if text.contains(token) => text.replace(token, "(redacted)").into(),
            _ => text.into(),
        }
    }
}

/// How the words of a server are repeated: without the token, in one line, cut.
#[derive(Clone, Copy)]
pub(crate) struct Repeated<'t>(pub(crate) Option<&'t Token>);

impl Repeated<'_> {
    pub(crate) fn text(self, text: &str) -> String {
        let Self(token) = self;
        token.map_or_else(|| foreign(text), |token| foreign(&token.removed_from(text)))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("secret", &self.secret).finish_non_exhaustive()
    }
}

/// The authorities that a server's certificate may be of.
#[derive(Clone, Debug, Default)]
pub enum Authorities {
    #[default]
    System,
    OfSecret {
        /// Namespace and name.
        secret: String,
        roots: RootCertStore,
    },
}

impl Authorities {
    /// The certificates in PEM of this Secret, instead of those of the system.
    pub fn new(secret: &str, pem: &[u8]) -> Result<Self, Fault> {
        let invalid = |why| Fault::InvalidSecret { secret: secret.to_owned(), key: CA_KEY, why };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem).take(MOST_CERTIFICATES) {
            let certificate = certificate.map_err(|_| invalid("is not PEM"))?;
            roots.add(certificate).map_err(|_| invalid("has a certificate that cannot be read"))?;
        }
        if roots.is_empty() {
            return Err(invalid("has no certificate in PEM"));
        }
        Ok(Self::OfSecret { secret: secret.to_owned(), roots })
    }

    pub(crate) fn secret(&self) -> Option<&str> {
        match self {
            Self::System => None,
            Self::OfSecret { secret, .. } => Some(secret),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let token = Token::new("demo/prom", b"s3cret\n").unwrap();
        assert_eq!(token.header(), "Bearer s3cret");
        assert!(!format!("{token:?}").contains("s3cret"));
        assert_eq!(token.removed_from("bad s3cret here"), "bad (redacted) here");
    }

    #[test]
    fn what_is_no_token_names_the_secret() {
        for bytes in
            [&b""[..], b" \n", b"a b", b"a\r\nHost: evil", b"a\0", b"\xff", &[b'a'; LONGEST_TOKEN + 1]]
        {
            let fault = Token::new("demo/prom", bytes).unwrap_err();
            assert!(fault.to_string().starts_with("the key token of Secret demo/prom is"), "{fault}");
        }
    }

    #[test]
    fn authorities_are_certificates_in_pem() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["a".into()]).unwrap().self_signed(&key).unwrap();
        assert!(Authorities::new("demo/ca", certificate.pem().as_bytes()).is_ok());
        for pem in [
            "",
            "text",
            &key.serialize_pem(),
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let fault = Authorities::new("demo/ca", pem.as_bytes()).unwrap_err();
            assert!(fault.to_string().starts_with("the key ca.crt of Secret demo/ca"), "{fault}");
        }
    }
}
