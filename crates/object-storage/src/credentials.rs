//! Selects the credentials for requests from the environment, and describes failures.
//!
//! It never uses the node's credentials: any user could then read what the node may read.

use std::{fs, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use object_store::{
    CredentialProvider,
    aws::{AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider},
};

use crate::answers::{CredentialsUnavailable, RequestError};

/// The identity whose permissions the requests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The keys of a Secret.
    Keys,
    /// The role of the pod's ServiceAccount.
    Pod,
    Anonymous,
}

/// The environment has only one of two variables of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} is set and {missing} is not: set both or none")]
pub(crate) struct IncompleteIdentity {
    given: &'static str,
    missing: &'static str,
}

impl Identity {
    /// An incomplete identity is refused, because object_store would use the next one, and at last that of the node.
    pub(crate) fn of(
        setting: impl Fn(AmazonS3ConfigKey) -> Option<String>,
    ) -> Result<Self, IncompleteIdentity> {
        use AmazonS3ConfigKey as Key;
        let pairs = [
            (Self::Keys, Key::AccessKeyId, KEY_ID, Key::SecretAccessKey, SECRET_KEY),
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
                (Some(_), None) => {
                    return Err(IncompleteIdentity { given: name_of_one, missing: name_of_other });
                }
                // A role without a token is ignored.
                (None, Some(_)) if identity == Self::Keys => {
                    return Err(IncompleteIdentity { given: name_of_other, missing: name_of_one });
                }
                (None, _) => {}
            }
        }
        if setting(Key::ContainerCredentialsRelativeUri).is_some() {
            return Ok(Self::Pod);
        }
        match setting(Key::ContainerCredentialsFullUri) {
            Some(_) if setting(Key::ContainerAuthorizationTokenFile).is_none() => Err(IncompleteIdentity {
                given: "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                missing: "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
            }),
            Some(_) => Ok(Self::Pod),
            None => Ok(Self::Anonymous),
        }
    }

    /// The words for a refusal.
    pub fn refused(self) -> &'static str {
        match self {
            Self::Keys => "refused the credentials",
            Self::Pod => "refused the credentials of the pod's ServiceAccount",
            Self::Anonymous => "refused the request without credentials",
        }
    }

    /// How a refusal is corrected. `fields`: the field of the user's object that describes the store.
    pub fn fix(self, fields: &str) -> String {
        match self {
            Self::Keys => format!("correct the Secret of {fields}.secretName, or what it allows"),
            Self::Pod => "let the role of spec.serviceAccountName use the bucket".to_owned(),
            Self::Anonymous => format!("name a Secret in {fields}.secretName"),
        }
    }
}

const KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";
const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";

/// The keys of a Secret in a folder where the kubelet keeps them up to date. They are read for each request, so that
/// keys that expire can be replaced while the program runs.
#[derive(Debug)]
pub(crate) struct OfSecret {
    folder: PathBuf,
    /// While the folder has no keys.
    environment: AwsCredentialProvider,
}

impl OfSecret {
    pub(crate) fn new(folder: PathBuf, environment: AwsCredentialProvider) -> Self {
        Self { folder, environment }
    }

    fn read(&self) -> Option<AwsCredential> {
        // The kubelet replaces all files at once, by replacing this link.
        let folder = fs::canonicalize(self.folder.join("..data")).unwrap_or_else(|_| self.folder.clone());
        let read = |name| fs::read_to_string(folder.join(name)).ok().filter(|key| !key.is_empty());
        Some(AwsCredential {
            key_id: read(KEY_ID)?,
            secret_key: read(SECRET_KEY)?,
            token: read(SESSION_TOKEN),
        })
    }
}

#[async_trait]
impl CredentialProvider for OfSecret {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        match self.read() {
            Some(keys) => Ok(Arc::new(keys)),
            None => self.environment.get_credential().await,
        }
    }
}

/// Credentials of a pod. Marks their errors, so that they are not taken for errors of the store.
#[derive(Debug)]
pub(crate) struct OfPod {
    provider: AwsCredentialProvider,
    /// The file with the token of the pod, which the provider reads.
    token_file: Option<PathBuf>,
}

impl OfPod {
    pub(crate) fn new(provider: AwsCredentialProvider, token_file: Option<PathBuf>) -> Self {
        Self { provider, token_file }
    }

    /// The error if the token cannot be read. The provider returns the same error for that and for an invalid answer.
    fn unreadable_token(&self) -> Option<RequestError> {
        let file = self.token_file.as_ref()?;
        let error = fs::read_to_string(file).err()?;
        let why = format!("failed to read {}: {error}: {FIX}", file.display());
        Some(RequestError::CredentialsUnavailable(why))
    }
}

#[async_trait]
impl CredentialProvider for OfPod {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.provider.get_credential().await.map_err(|error| {
            let reason = match RequestError::of(&error) {
                RequestError::MalformedAnswer(why) => self
                    .unreadable_token()
                    .unwrap_or_else(|| credentials_error(RequestError::MalformedAnswer(why))),
                of_answer => credentials_error(of_answer),
            };
            object_store::Error::Generic { store: "S3", source: Box::new(CredentialsUnavailable(reason)) }
        })
    }
}

const FIX: &str = "correct spec.serviceAccountName, its role, or the trust policy of the role";

/// The error for a failed request to the token service.
fn credentials_error(of_answer: RequestError) -> RequestError {
    match of_answer {
        RequestError::Transient(why) => RequestError::Transient(format!("the token service: {why}")),
        RequestError::UnknownAuthority(why) => {
            RequestError::UnknownAuthority(format!("the token service: {why}"))
        }
        RequestError::MalformedAnswer(why) => {
            RequestError::CredentialsUnavailable(format!("the token service gave {why}: {FIX}"))
        }
        RequestError::Unauthorized(why) | RequestError::Missing(why) | RequestError::Refused(why) => {
            RequestError::CredentialsUnavailable(format!(
                "the token service refused the pod's identity ({why}): {FIX}"
            ))
        }
        RequestError::ClockSkew(why) => RequestError::ClockSkew(why),
        RequestError::Redirected { to, why } => {
            let to = to.map_or(String::new(), |to| format!(" to {to}"));
            RequestError::CredentialsUnavailable(format!(
                "the token service redirects{to} ({why}): correct AWS_REGION"
            ))
        }
        RequestError::CredentialsUnavailable(why) => RequestError::CredentialsUnavailable(why),
        RequestError::NoBucket
        | RequestError::Changed
        | RequestError::OtherRegion { .. }
        | RequestError::PathRefused(_)
        | RequestError::LargeListing(_)
        | RequestError::InvalidKey(_) => RequestError::CredentialsUnavailable(format!(
            "the token service returned an invalid response: {FIX}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(set: &[AmazonS3ConfigKey]) -> Result<Identity, String> {
        Identity::of(|key| set.contains(&key).then(|| "x".to_owned())).map_err(|half| half.to_string())
    }

    /// Answers nothing but this error, as object_store makes it of an answer of the token service.
    #[derive(Debug)]
    struct Answers(&'static str);

    #[async_trait]
    impl CredentialProvider for Answers {
        type Credential = AwsCredential;

        async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
            Err(object_store::Error::Generic { store: "S3", source: self.0.into() })
        }
    }

    #[tokio::test]
    async fn text_of_the_token_service_is_not_repeated_and_a_file_that_cannot_be_read_is_named() {
        let invalid =
            Answers("Invalid AssumeRoleWithWebIdentity response: invalid type: string \"wJalrXUtnFEMI\"");
        let why = async |token_file: &str| {
            let of_pod = OfPod::new(Arc::new(Answers(invalid.0)), Some(token_file.into()));
            match RequestError::of(&of_pod.get_credential().await.unwrap_err()) {
                RequestError::CredentialsUnavailable(why) => why,
                other => panic!("{other:?}"),
            }
        };
        let there = tempfile::NamedTempFile::new().unwrap();
        let repeated = why(there.path().to_str().unwrap()).await;
        assert!(!repeated.contains("wJalrXUtnFEMI"), "{repeated}");
        assert!(repeated.starts_with("the token service gave an answer that cannot be parsed"), "{repeated}");
        let missing = why("/nowhere/token").await;
        assert!(missing.starts_with("failed to read /nowhere/token: "), "{missing}");
    }

    #[tokio::test]
    async fn keys_are_read_again_from_a_folder_that_the_kubelet_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let of_secret = OfSecret::new(folder.path().to_owned(), Arc::new(Answers("no keys")));
        let place = |name: &str| folder.path().join(name);
        assert!(of_secret.get_credential().await.is_err());
        for (version, token) in [("1", None), ("2", Some("token"))] {
            fs::create_dir(place(version)).unwrap();
            fs::write(place(version).join(KEY_ID), format!("id{version}")).unwrap();
            fs::write(place(version).join(SECRET_KEY), "secret").unwrap();
            if let Some(token) = token {
                fs::write(place(version).join(SESSION_TOKEN), token).unwrap();
            }
            std::os::unix::fs::symlink(version, place("new")).unwrap();
            fs::rename(place("new"), place("..data")).unwrap();
            let keys = of_secret.get_credential().await.unwrap();
            assert_eq!((keys.key_id.as_str(), keys.token.as_deref()), (&*format!("id{version}"), token));
        }
    }

    #[test]
    fn an_incomplete_identity_is_refused() {
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
