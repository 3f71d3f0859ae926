//! The service account of a controller, which no pod of a user may run with.

/// Namespace and name of a controller's own account, if known.
#[derive(Clone, Debug, Default)]
pub struct OwnAccount(Option<(String, String)>);

impl OwnAccount {
    /// Without one of both no account is refused.
    pub fn new(namespace: Option<String>, name: Option<String>) -> Self {
        Self(namespace.zip(name))
    }

    /// Refuses this account for the pods of a user: they would get the token of the controller, and with it rights in all
    /// namespaces. The error names the field and the fix.
    pub fn is_not_used_by(&self, namespace: &str, account: Option<&str>) -> Result<(), String> {
        match &self.0 {
            Some((own_namespace, own)) if own_namespace == namespace && account == Some(own) => Err(format!(
                "spec.serviceAccountName: {own} is the service account of the controller; use another one"
            )),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_refused_in_its_own_namespace_alone() {
        let own = OwnAccount::new(Some("system".to_owned()), Some("controller".to_owned()));
        let refused = own.is_not_used_by("system", Some("controller")).unwrap_err();
        assert!(
            refused.starts_with("spec.serviceAccountName: controller is the service account of"),
            "{refused}"
        );
        for (namespace, account) in
            [("system", Some("other")), ("system", None), ("demo", Some("controller")), ("demo", None)]
        {
            assert_eq!(own.is_not_used_by(namespace, account), Ok(()));
        }
        for unknown in [
            OwnAccount::default(),
            OwnAccount::new(None, Some("controller".to_owned())),
            OwnAccount::new(Some("system".to_owned()), None),
        ] {
            assert_eq!(unknown.is_not_used_by("system", Some("controller")), Ok(()));
        }
    }
}
