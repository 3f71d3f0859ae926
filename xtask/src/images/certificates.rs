//! The certificate authorities that an image trusts: Mozilla's, as the crate `webpki-root-certs` brings them, at
//! the path where programs look for those of the system. A cluster with an authority of its own mounts a file over it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

/// The path that programs try first.
pub(super) const PATH: &str = "etc/ssl/certs/ca-certificates.crt";

const LINE: usize = 64;

pub(super) fn pem() -> String {
    let mut text = String::new();
    for certificate in TLS_SERVER_ROOT_CERTS {
        let encoded = STANDARD.encode(certificate);
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let mut rest = encoded.as_str();
        while !rest.is_empty() {
            let (line, more) = rest.split_at(LINE.min(rest.len()));
            text.push_str(line);
            text.push('\n');
            rest = more;
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}
