//! What a refusal of a hub means to the user: three reasons, an unknown name, no access, and a hub that does not answer.
//! Pure.

use object_storage::RequestError;

use crate::fault::{Cause, Fault};

/// Who asks the hub, and for what.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    /// Where a person can ask for access.
    pub(crate) page: String,
    /// As the source names it.
    pub(crate) revision: Option<String>,
    pub(crate) has_token: bool,
}

impl Visitor {
    /// `hub`: the model and the endpoint. `fields`: the field of the user's object that describes access.
    pub(crate) fn fault(&self, error: RequestError, what: &str, hub: &str, fields: &str) -> Fault {
        let Self { page, revision, has_token } = self;
        let (cause, message) = match error {
            RequestError::Transient(why)
            | RequestError::UnknownAuthority(why)
            | RequestError::MalformedAnswer(why) => (Cause::Checksum, format!("{hub}, {what}: {why}")),
            RequestError::Unauthorized(why) if *has_token => {
                let message = format!(
                    "{hub} refuses the token ({why}): visit {page} and ask for access, or correct the key token of the \
                     Secret in {fields}.secretName"
                );
                (Cause::Unauthorized, message)
            }
            RequestError::Unauthorized(why) | RequestError::CredentialsUnavailable(why) => {
                let message = format!(
                    "{hub} needs a token ({why}): visit {page} and ask for access, then name a Secret with the key token \
                     in {fields}.secretName"
                );
                (Cause::Unauthorized, message)
            }
            RequestError::NoBucket => {
                let revision =
                    revision.as_ref().map_or(String::new(), |revision| format!(" or no revision {revision}"));
                let private = if *has_token {
                    format!("or use a token that may read it, see {page}")
                } else {
                    format!("or, if it is private, name a Secret with the key token in {fields}.secretName")
                };
                (
                    Cause::NotFound,
                    format!("{hub}: there is no such model{revision}: correct its name, {private}"),
                )
            }
            RequestError::Missing(why) => (
                Cause::NotFound,
                format!("{hub} does not have it ({why}): {what}; correct the revision of the source"),
            ),
            RequestError::Changed => {
                (Cause::Changed, format!("{hub}, {what}: it was changed while it was read"))
            }
            RequestError::Redirected { to, why } => {
                let to = to.map_or(String::new(), |to| format!(" to {to}"));
                let message =
                    format!("{hub} redirects{to} ({why}), which is not followed: correct {fields}.endpoint");
                (Cause::Unreachable, message)
            }
            RequestError::ClockSkew(why)
            | RequestError::Refused(why)
            | RequestError::PathRefused(why)
            | RequestError::OtherRegion { region: _, why } => {
                (Cause::Unreachable, format!("{hub} refused to answer ({why}): {what}"))
            }
            RequestError::LargeListing(has) => {
                (Cause::NotFound, format!("{hub} has {has} in this model: copy it to a store, and name that"))
            }
            RequestError::InvalidKey(why) => (Cause::NotFound, format!("{hub}: {why}")),
        };
        Fault::new(cause, message)
    }
}
