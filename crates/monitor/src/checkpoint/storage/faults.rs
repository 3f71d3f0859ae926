//! What a storage and the disk of the node refuse, as a fault with its correction.

use std::{io, path::Path, time::Duration};

use api::monitor::ExitCode;
use object_storage::{Identity, RequestError};
use tokio::time::timeout;

use super::{Opened, REQUEST_WITHIN, Storage};
use crate::fault::Fault;

impl Storage {
    pub(super) fn of_io(&self, error: &io::Error) -> Fault {
        let (code, fix) = match error.kind() {
            kind if is_full(kind) => {
                (ExitCode::OutOfSpace, ": enlarge the claim of spec.checkpoint.claimName")
            }
            io::ErrorKind::PermissionDenied => (
                ExitCode::StoreUnauthorized,
                ": let the group of spec.securityContext.fsGroup write to the volume of spec.checkpoint.claimName",
            ),
            io::ErrorKind::ReadOnlyFilesystem => (
                ExitCode::StoreUnauthorized,
                ": name a claim in spec.checkpoint.claimName that can be written to",
            ),
            _ => (ExitCode::StoreUnreachable, ""),
        };
        let fault = Fault::new(code, format!("{}: {error}{fix}", self.name()));
        // Something else is in the place of a folder or a file, or there is too much of it.
        let is_of_entry = matches!(
            error.kind(),
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::FileTooLarge
        );
        if is_of_entry { fault.of_entry() } else { fault }
    }

    pub(super) fn late(&self, within: Duration) -> Fault {
        let seconds = within.as_secs();
        Fault::new(ExitCode::StoreUnreachable, format!("{} did not answer within {seconds} s", self.name()))
    }

    pub(super) async fn written<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<(), Fault> {
        match timeout(REQUEST_WITHIN, request).await {
            Err(_) => Err(self.late(REQUEST_WITHIN)),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.fault(&error)),
        }
    }

    /// A store answers an empty listing with 200; a 404 comes from a proxy and is an error.
    pub(super) async fn listed<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Fault> {
        match timeout(REQUEST_WITHIN, request).await {
            Err(_) => Err(self.late(REQUEST_WITHIN)),
            Ok(Ok(listed)) => Ok(listed),
            Ok(Err(error)) => Err(self.fault(&error)),
        }
    }

    /// `None`: there is no such object.
    pub(super) async fn answered<T>(
        &self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<Option<T>, Fault> {
        match timeout(REQUEST_WITHIN, request).await {
            Err(_) => Err(self.late(REQUEST_WITHIN)),
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(error)) => match RequestError::of(&error) {
                RequestError::Missing(_) => Ok(None),
                _ => Err(self.fault(&error)),
            },
        }
    }

    pub(super) fn fault(&self, error: &object_store::Error) -> Fault {
        let Opened::Bucket(bucket, _) = &self.place else { return self.late(REQUEST_WITHIN) };
        let store = &bucket.name;
        let (code, message) = match RequestError::of(error) {
            RequestError::Unauthorized(why) => {
                let identity = bucket.identity;
                let (refused, fix) = (identity.refused(), fix(identity));
                (ExitCode::StoreUnauthorized, format!("{store} {refused} ({why}): {fix}"))
            }
            RequestError::CredentialsUnavailable(why) => {
                (ExitCode::StoreUnauthorized, format!("{store}: {why}"))
            }
            RequestError::ClockSkew(why) => (
                ExitCode::StoreUnauthorized,
                format!("{store} refused the time of the request ({why}): correct the clock of the node"),
            ),
            RequestError::NoBucket => (
                ExitCode::BucketNotFound,
                format!("{store}: there is no such bucket: create it, or correct spec.checkpoint.uri"),
            ),
            RequestError::OtherRegion { region, why } => (
                ExitCode::StoreUnreachable,
                format!(
                    "{store}: the bucket is in region {region} ({why}): set spec.checkpoint.region to it, and the \
                     endpoint, if any, to one there"
                ),
            ),
            RequestError::Redirected { to, why } => {
                let to = to.map_or(String::new(), |to| format!(" to {to}"));
                let message = format!(
                    "{store} redirects{to} ({why}), and redirects are not followed: correct spec.checkpoint.endpoint"
                );
                (ExitCode::StoreUnreachable, message)
            }
            RequestError::UnknownAuthority(why) => (
                ExitCode::StoreUnreachable,
                format!("{store}: {why}: name it in spec.checkpoint.caSecretName"),
            ),
            RequestError::Transient(why)
            | RequestError::MalformedAnswer(why)
            | RequestError::Missing(why)
            | RequestError::Refused(why)
            | RequestError::PathRefused(why)
            | RequestError::LargeListing(why)
            | RequestError::InvalidKey(why) => (ExitCode::StoreUnreachable, format!("{store}: {why}")),
            RequestError::Changed => {
                (ExitCode::StoreUnreachable, format!("{store}: an object was changed while it was read"))
            }
        };
        Fault::new(code, message)
    }
}

/// How a refusal is corrected.
fn fix(identity: Identity) -> &'static str {
    match identity {
        Identity::Keys => {
            "correct the Secret of spec.checkpoint.secretName, or what it allows; it reaches running workers within three minutes"
        }
        Identity::Pod => "let the role of spec.serviceAccountName list, read, write and delete in the bucket",
        Identity::Anonymous => "name a Secret in spec.checkpoint.secretName",
    }
}

/// Whether an object with this key exists, or another request writes it now.
pub(super) fn is_taken(error: &object_store::Error) -> bool {
    match RequestError::of(error) {
        RequestError::Changed => true,
        RequestError::Transient(why) => why.starts_with(CONFLICT),
        _ => matches!(error, object_store::Error::AlreadyExists { .. }),
    }
}

/// What S3 answers to one of two conditional writes at the same time.
const CONFLICT: &str = "409 ";

/// Of the folder of the state.
pub(crate) fn of_disk(error: &io::Error) -> Fault {
    let message = format!("the folder of the state: {error}");
    match error.kind() {
        kind if is_full(kind) => Fault::new(ExitCode::OutOfSpace, message),
        // By `state`.
        io::ErrorKind::FileTooLarge => Fault::lasting(ExitCode::OutOfSpace, message),
        _ => Fault::new(ExitCode::StoreUnreachable, message),
    }
}

/// Of the folder that only the monitor uses.
pub(crate) fn of_own_folder(folder: &Path, error: &io::Error) -> Fault {
    let code = if is_full(error.kind()) { ExitCode::OutOfSpace } else { ExitCode::StoreUnreachable };
    Fault::new(code, format!("the folder {} of the monitor: {error}", folder.display()))
}

pub(crate) fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(super) fn changed() -> io::Error {
    io::Error::other("a file of the state was changed while it was read")
}
