//! What the API server refuses for good: no retry helps, a person has to change something.
//!
//! Everything else is an error, and is retried. `of` reads only the answer, and `judged` also for how long a leftover has been
//! there. What a user reads of it is decided by the controller.

use std::time::Duration;

use jiff::Timestamp;
use kube::{Resource, core::Status};

use crate::write::apply::ApplyError;

/// Why a child was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A deleted predecessor of the same name has left it. Only this one resolves by waiting: the garbage collector is
    /// about to take it. If it never does, `message` says what holds it back.
    Leftover {
        /// `None`: its deletion has not begun.
        deleted: Option<Timestamp>,
        message: String,
    },
    /// An object of that name belongs to another owner.
    OwnershipConflict(String),
    /// The API server calls it invalid.
    Invalid(String),
    /// A quota, an admission webhook or a policy does not allow it. With the server's words.
    Denied(String),
}

/// A garbage collector deletes a child within this time. It finds a new kind within 30 s, and waits up to 30 s for the caches
/// of that kind.
const LEFTOVER_GOES_WITHIN: Duration = Duration::from_secs(90);
/// An idle garbage collector deletes a child within this time.
pub const LEFTOVER_RETRY: Duration = Duration::from_secs(1);
/// With foreground deletion, a Deployment exists until its pods have ended.
pub const OVERDUE_RETRY: Duration = Duration::from_secs(10);

impl Refusal {
    /// The refusal that is reported for `owner`, and when to try again: a leftover that is not deleted in time counts as an
    /// ownership conflict. `retry`: the wait where only a change by a person helps.
    pub fn judged(self, owner: &impl Resource, retry: Duration, now: Timestamp) -> (Self, Duration) {
        let Self::Leftover { deleted, message } = self else { return (self, retry) };
        // Without a deletion timestamp the time counts from the creation of the owner.
        let created = owner.meta().creation_timestamp.as_ref().map(|created| created.0);
        let waited = deleted.or(created).and_then(|since| Duration::try_from(now.duration_since(since)).ok());
        if waited.is_some_and(|waited| waited > LEFTOVER_GOES_WITHIN) {
            (Self::OwnershipConflict(message), OVERDUE_RETRY)
        } else {
            (Self::Leftover { deleted, message }, LEFTOVER_RETRY)
        }
    }

    /// What a user reads.
    pub fn message(&self) -> &str {
        match self {
            Self::Leftover { deleted: _, message }
            | Self::OwnershipConflict(message)
            | Self::Invalid(message)
            | Self::Denied(message) => message,
        }
    }

    /// The refusal that this error is, or the error itself.
    pub fn of(error: ApplyError) -> Result<Self, ApplyError> {
        match &error {
            ApplyError::Leftover { kind, key, deleted, finalizers } => {
                let since = deleted.map(|deleted| format!(" since {deleted}")).unwrap_or_default();
                let held = match finalizers.as_slice() {
                    [] => String::new(),
                    finalizers => format!(", held back by its finalizers ({})", finalizers.join(", ")),
                };
                let message = format!(
                    "{kind} {key} of a deleted object of the same name is still there{since}{held}; let what set the \
                     finalizers finish, or delete it"
                );
                Ok(Self::Leftover { deleted: *deleted, message })
            }
            ApplyError::Foreign { .. } => Ok(Self::OwnershipConflict(error.to_string())),
            ApplyError::Call { kind, key, source, .. } => match &**source {
                kube::Error::Api(status) => match verdict(status) {
                    Some(Verdict::Invalid) => {
                        Ok(Self::Invalid(format!("the API server refuses {kind} {key}: {}", status.message)))
                    }
                    Some(Verdict::Denied) => {
                        Ok(Self::Denied(format!("the API server denies {kind} {key}: {}", status.message)))
                    }
                    None => Err(error),
                },
                _ => Err(error),
            },
            ApplyError::Stale { .. } | ApplyError::Render { .. } | ApplyError::Unowned { .. } => Err(error),
        }
    }
}

/// The API server's words about an apply with a field that its release of the kind does not have. It answers so with 500. A
/// control plane that is being upgraded says so for a moment, too.
pub fn undeclared(error: &ApplyError) -> Option<&str> {
    let ApplyError::Call { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    let words = "field not declared in schema";
    (status.code == 500 && status.message.contains(words)).then_some(&*status.message)
}

enum Verdict {
    Invalid,
    Denied,
}

fn verdict(status: &Status) -> Option<Verdict> {
    // Webhooks and policies choose their own code, 422 too; these words are the API server's.
    let is_denied =
        ["denied the request", "denied request"].iter().any(|words| status.message.contains(words));
    match status.code {
        400..=499 if is_denied => Some(Verdict::Denied),
        422 => Some(Verdict::Invalid),
        403 if !is_missing_right(status) => Some(Verdict::Denied),
        _ => None,
    }
}

/// The controller itself lacks a right: a fault of its installation, about which the user of an object can do nothing.
fn is_missing_right(status: &Status) -> bool {
    status.message.contains("is forbidden: User \"")
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::{
        api::core::v1::ConfigMap,
        apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    };

    use super::*;
    use crate::key::Key;

    fn refused(code: u16, message: &str) -> Result<Refusal, ApplyError> {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        Refusal::of(ApplyError::Call {
            step: "apply",
            kind: "Deployment",
            key: Key::new("demo", "chat"),
            source: Box::new(kube::Error::Api(status.boxed())),
        })
    }

    #[test]
    fn denials_of_quotas_webhooks_and_policies_keep_the_servers_words() {
        for (code, message) in [
            (403, "pods \"chat\" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8"),
            (403, "admission webhook \"images.example.com\" denied the request: unsigned image"),
            (400, "admission webhook \"images.example.com\" denied the request: unsigned image"),
            (422, "ValidatingAdmissionPolicy 'images' with binding 'all' denied request: unsigned image"),
            (
                403,
                "deployments.apps \"chat\" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>",
            ),
        ] {
            let Ok(Refusal::Denied(words)) = refused(code, message) else { panic!("{code} {message}") };
            assert_eq!(words, format!("the API server denies Deployment demo/chat: {message}"));
        }
    }

    #[test]
    fn a_leftover_says_what_holds_it_back() {
        let leftover = |deleted: Option<&str>, finalizers: &[&str]| {
            let refusal = Refusal::of(ApplyError::Leftover {
                kind: "Service",
                key: Key::new("demo", "chat"),
                deleted: deleted.map(|deleted| deleted.parse().unwrap()),
                finalizers: finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect(),
            });
            let Ok(Refusal::Leftover { message, .. }) = refusal else { panic!("{refusal:?}") };
            message
        };
        assert_eq!(
            leftover(Some("2026-01-01T00:00:00Z"), &["example.com/theirs"]),
            "Service demo/chat of a deleted object of the same name is still there since 2026-01-01T00:00:00Z, held back \
             by its finalizers (example.com/theirs); let what set the finalizers finish, or delete it"
        );
        assert!(leftover(None, &[]).contains("is still there; let"));
    }

    #[test]
    fn a_leftover_is_waited_for_and_is_a_conflict_when_it_is_not_deleted_in_time() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let before = |seconds: i64| now - SignedDuration::from_secs(seconds);
        let created = |created: Option<Timestamp>| ConfigMap {
            metadata: ObjectMeta { creation_timestamp: created.map(Time), ..ObjectMeta::default() },
            ..ConfigMap::default()
        };
        let retry = Duration::from_secs(300);
        let judged = |deleted: Option<Timestamp>, owner: Option<Timestamp>| {
            Refusal::Leftover { deleted, message: "still there".to_owned() }.judged(
                &created(owner),
                retry,
                now,
            )
        };
        let conflict = (Refusal::OwnershipConflict("still there".to_owned()), OVERDUE_RETRY);
        for (deleted, owner) in [(Some(91), 0), (None, 91)] {
            assert_eq!(judged(deleted.map(before), Some(before(owner))), conflict);
        }
        // A clock that is behind, and an owner without a time, are no reason for a conflict.
        for (deleted, owner) in [(Some(90), Some(9_000)), (Some(-5), Some(0)), (None, Some(90)), (None, None)]
        {
            let (refusal, again) = judged(deleted.map(before), owner.map(before));
            assert!(matches!(refusal, Refusal::Leftover { .. }), "{deleted:?} {owner:?}");
            assert_eq!(again, LEFTOVER_RETRY);
        }
        let denied = Refusal::Denied("quota".to_owned());
        assert_eq!(denied.clone().judged(&created(Some(before(9_000))), retry, now), (denied, retry));
    }

    #[test]
    fn an_invalid_object_is_no_denial() {
        let message = "Deployment.apps \"chat\" is invalid: spec.replicas: Invalid value: -1";
        assert!(matches!(refused(422, message), Ok(Refusal::Invalid(_))));
        let older = "failed to create typed patch object (demo/chat; gateway.networking.k8s.io/v1, Kind=HTTPRoute): \
                     .spec.rules[0].timeouts: field not declared in schema";
        let error = refused(500, older).unwrap_err();
        assert_eq!(undeclared(&error), Some(older));
        assert_eq!(undeclared(&refused(500, "etcdserver: request timed out").unwrap_err()), None);
    }

    #[test]
    fn what_may_pass_by_itself_and_missing_rights_are_errors() {
        for (code, message) in [
            (
                403,
                "deployments.apps \"chat\" is forbidden: User \"system:serviceaccount:ai-system:x\" cannot patch resource \"deployments\"",
            ),
            (
                500,
                "Internal error occurred: failed calling webhook \"images.example.com\": connection refused",
            ),
            (429, "too many requests"),
            (503, "apiserver not ready"),
            (400, "the body of the request was in an unknown format"),
        ] {
            assert!(refused(code, message).is_err(), "{code} {message}");
        }
    }
}
