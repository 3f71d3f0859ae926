//! Whose credentials sign the requests: which of them the environment names, and what their failures mean.
//!
//! It must not use the credentials of the machine: any user could then read with them what the machine may read.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::{
    CredentialProvider,
    aws::{AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider},
};

use super::answers::Trouble;

/// Whose rights the requests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// The keys of a Secret.
    Keys,
    /// The role of the pod's ServiceAccount.
    Pod,
    Anonymous,
}

/// An environment that names half an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} is set and {missing} is not: set both or none")]
pub(super) struct Half {
    given: &'static str,
    missing: &'static str,
}

impl Identity {
    /// object_store takes the first that is complete, and the machine's own if none is: half an identity is refused.
    pub(super) fn of(setting: impl Fn(AmazonS3ConfigKey) -> Option<String>) -> Result<Self, Half> {
        use AmazonS3ConfigKey as Key;
        let pairs = [
            (
                Self::Keys,
                Key::AccessKeyId,
                "AWS_ACCESS_KEY_ID",
                Key::SecretAccessKey,
                "AWS_SECRET_ACCESS_KEY",
            ),
            (
                Self::Pod,
                Key::WebIdentityTokenFile,
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                Key::RoleArn,
                "AWS_ROLE_ARN",
            ),
        ];
        for (identity, one, name_of_one, other, name_of_other) in pairs {
            match (setting(one), setting(other)) {
                (Some(_), Some(_)) => return Ok(identity),
                (Some(_), None) => return Err(Half { given: name_of_one, missing: name_of_other }),
                // A role without a token is of no use to this program, and does no harm.
                (None, Some(_)) if identity == Self::Keys => {
                    return Err(Half { given: name_of_other, missing: name_of_one });
                }
                (None, _) => {}
            }
        }
        if setting(Key::ContainerCredentialsRelativeUri).is_some() {
            return Ok(Self::Pod);
        }
        match setting(Key::ContainerCredentialsFullUri) {
            Some(_) if setting(Key::ContainerAuthorizationTokenFile).is_none() => Err(Half {
                given: "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                missing: "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
            }),
            Some(_) => Ok(Self::Pod),
            None => Ok(Self::Anonymous),
        }
    }

    /// What the store refused, and how that is corrected.
    pub(super) fn refused(self) -> (&'static str, &'static str) {
        match self {
            Self::Keys => ("refused the credentials", "correct the Secret, or what it allows"),
            Self::Pod => {
                ("refused the credentials of the pod's ServiceAccount", "let its role read the bucket")
            }
            Self::Anonymous => {
                ("refused the request without credentials", "name a Secret in spec.modelStore.secretName")
            }
        }
    }
}

/// Credentials that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no credentials: {0:?}")]
pub(super) struct NoCredentials(pub(super) Trouble);

/// Credentials of a pod, with errors that say that they are about credentials and not about the store.
#[derive(Debug)]
pub(super) struct OfPod(pub(super) AwsCredentialProvider);

#[async_trait]
impl CredentialProvider for OfPod {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.0.get_credential().await.map_err(|error| {
            let source = Box::new(NoCredentials(trouble(Trouble::of(&error))));
            object_store::Error::Generic { store: "S3", source }
        })
    }
}

/// What an answer means that came from the token service, or that could not be asked for.
fn trouble(of_answer: Trouble) -> Trouble {
    const FIX: &str = "correct spec.serviceAccountName, its role, or whom that trusts";
    match of_answer {
        Trouble::Passing(why) => Trouble::Passing(format!("the token service: {why}")),
        // No answer, or none that makes sense: a file that cannot be read.
        Trouble::Garbled(why) => Trouble::NoCredentials(format!("{why}: {FIX}")),
        Trouble::Unauthorized(why) | Trouble::Missing(why) | Trouble::Refused(why) => {
            Trouble::NoCredentials(format!("the token service refused the pod's identity ({why}): {FIX}"))
        }
        Trouble::ClockSkew(why) => Trouble::ClockSkew(why),
        Trouble::Redirected { to, why } => {
            let to = to.map_or(String::new(), |to| format!(" to {to}"));
            Trouble::NoCredentials(format!("the token service redirects{to} ({why}): correct AWS_REGION"))
        }
        Trouble::NoCredentials(why) => Trouble::NoCredentials(why),
        Trouble::NoBucket
        | Trouble::Changed
        | Trouble::OtherRegion { .. }
        | Trouble::PathRefused(_)
        | Trouble::TooManyObjects
        | Trouble::HostileKey(_) => {
            Trouble::NoCredentials(format!("the token service gave a senseless answer: {FIX}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(set: &[AmazonS3ConfigKey]) -> Result<Identity, String> {
        Identity::of(|key| set.contains(&key).then(|| "x".to_owned())).map_err(|half| half.to_string())
    }

    #[test]
    fn half_an_identity_is_refused_before_the_machine_is_asked_for_its_own() {
        use AmazonS3ConfigKey as Key;
        assert_eq!(identity(&[]), Ok(Identity::Anonymous));
        assert_eq!(identity(&[Key::AccessKeyId, Key::SecretAccessKey]), Ok(Identity::Keys));
        assert_eq!(identity(&[Key::WebIdentityTokenFile, Key::RoleArn]), Ok(Identity::Pod));
        assert_eq!(identity(&[Key::ContainerCredentialsRelativeUri]), Ok(Identity::Pod));
        let full = [Key::ContainerCredentialsFullUri, Key::ContainerAuthorizationTokenFile];
        assert_eq!(identity(&full), Ok(Identity::Pod));
        assert_eq!(identity(&[Key::RoleArn]), Ok(Identity::Anonymous));
        for (half, missing) in [
            (Key::AccessKeyId, "AWS_SECRET_ACCESS_KEY"),
            (Key::SecretAccessKey, "AWS_ACCESS_KEY_ID"),
            (Key::WebIdentityTokenFile, "AWS_ROLE_ARN"),
            (Key::ContainerCredentialsFullUri, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        ] {
            let refused = identity(&[half]).unwrap_err();
            assert!(refused.contains(&format!("{missing} is not")), "{refused}");
        }
    }
}
