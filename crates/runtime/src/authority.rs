//! The certificate authority that our calls to the API server trust, and how its replacement is noticed.
//!
//! A client trusts for ever what its file held when it was built. So the file is read again and again, and when it
//! holds something else the process must end: the next one begins with the new authority. Reading at an interval works
//! on every file system and with the swapped links of a pod's volumes, where notifications do not. A file that cannot
//! be read, or is half written, is no replacement. Nothing is decided here about how the process ends.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::config::{Cluster, Kubeconfig};

/// Where the kubelet puts it in every pod with a service account.
const IN_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// What the process trusts, and where it is said.
#[derive(Debug)]
pub(crate) struct Authority {
    source: Source,
    trusted: String,
}

#[derive(Debug, PartialEq)]
enum Source {
    /// Certificates in PEM.
    Certificates(PathBuf),
    /// A kubeconfig that holds the certificates of this cluster itself; whatever else changes in it is no business of
    /// ours.
    Kubeconfig { path: PathBuf, cluster: String },
}

impl Authority {
    /// What a client that is built now trusts. `None` if no file says it: then it is the machine's own authorities, or
    /// there is no TLS, or the client will complain itself.
    pub(crate) fn of(kubeconfig: Option<&Path>) -> Option<Self> {
        let source = match kubeconfig {
            Some(path) => source_of(path)?,
            None => Source::Certificates(IN_POD.into()),
        };
        let trusted = source.authority_in(&fs::read_to_string(source.path()).ok()?)?;
        Some(Self { source, trusted })
    }

    pub(crate) fn path(&self) -> &Path {
        self.source.path()
    }

    /// Returns once another authority has stood in the file for an interval: one look may fall into the middle of a
    /// write. A read that hangs holds up nothing else.
    pub(crate) async fn replaced(&self, interval: Duration) {
        let mut seen = None;
        loop {
            tokio::time::sleep(interval).await;
            let text = tokio::fs::read_to_string(self.path()).await.ok();
            let now = text.and_then(|text| self.source.authority_in(&text));
            let other = now.filter(|now| *now != self.trusted);
            if other.is_some() && other == seen {
                return;
            }
            seen = other;
        }
    }
}

impl Source {
    fn path(&self) -> &Path {
        match self {
            Self::Certificates(path) | Self::Kubeconfig { path, .. } => path,
        }
    }

    /// What such a text says, if it says something whole.
    fn authority_in(&self, text: &str) -> Option<String> {
        match self {
            Self::Certificates(_) => is_whole(text).then(|| text.to_owned()),
            Self::Kubeconfig { cluster, .. } => {
                let kubeconfig = Kubeconfig::from_yaml(text).ok()?;
                cluster_named(&kubeconfig, cluster)?.certificate_authority_data.clone()
            }
        }
    }
}

/// As kube reads it: of the current context's cluster, and data before a file.
fn source_of(path: &Path) -> Option<Source> {
    let kubeconfig = Kubeconfig::read_from(path).ok()?;
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *current)?.context.as_ref()?;
    let cluster = cluster_named(&kubeconfig, &context.cluster)?;
    match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(_), _) => Some(Source::Kubeconfig { path: path.to_owned(), cluster: context.cluster.clone() }),
        (None, Some(file)) => Some(Source::Certificates(file.into())),
        (None, None) => None,
    }
}

fn cluster_named<'a>(kubeconfig: &'a Kubeconfig, name: &str) -> Option<&'a Cluster> {
    kubeconfig.clusters.iter().find(|cluster| cluster.name == name)?.cluster.as_ref()
}

/// At least one certificate, and none without its end.
fn is_whole(pem: &str) -> bool {
    let begun = pem.matches("-----BEGIN CERTIFICATE-----").count();
    begun > 0 && begun == pem.matches("-----END CERTIFICATE-----").count()
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn certificate(content: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")
    }

    fn kubeconfig(authority: &str, token: &str) -> String {
        format!(
            "{{current-context: here, contexts: [{{name: here, context: {{cluster: ours, user: us}}}}],
              clusters: [{{name: ours, cluster: {{server: 'https://127.0.0.1', {authority}}}}}],
              users: [{{name: us, user: {{token: {token}}}}}]}}"
        )
    }

    /// Time stands still but for the waits of the code under test.
    async fn is_told(authority: &Authority) -> bool {
        timeout(10 * INTERVAL, authority.replaced(INTERVAL)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_file_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (config, file) = (folder.path().join("kubeconfig"), folder.path().join("ca.crt"));
        fs::write(&file, certificate("old")).unwrap();
        fs::write(&config, kubeconfig("certificate-authority: ca.crt", "t")).unwrap();
        let authority = Authority::of(Some(&config)).unwrap();
        assert_eq!(authority.path(), file);
        assert!(!is_told(&authority).await, "nothing has changed");
        fs::write(&file, certificate("new")).unwrap();
        assert!(is_told(&authority).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_missing_or_half_written_is_no_replacement() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        fs::write(&file, certificate("old")).unwrap();
        let authority = Authority { source: Source::Certificates(file.clone()), trusted: certificate("old") };
        fs::write(&file, "").unwrap();
        assert!(!is_told(&authority).await, "empty");
        fs::write(&file, format!("{}-----BEGIN CERTIFICATE-----\nne", certificate("new"))).unwrap();
        assert!(!is_told(&authority).await, "half written");
        fs::remove_file(&file).unwrap();
        assert!(!is_told(&authority).await, "missing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_changes_at_every_look_is_still_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        let authority = Authority { source: Source::Certificates(file.clone()), trusted: certificate("old") };
        let write = async {
            for number in 0.. {
                fs::write(&file, certificate(&number.to_string())).unwrap();
                tokio::time::sleep(INTERVAL / 2).await;
            }
        };
        tokio::select! {
            told = is_told(&authority) => assert!(!told),
            () = write => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_kubeconfig_only_the_embedded_authority_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        fs::write(&file, kubeconfig("certificate-authority-data: b2xk", "first")).unwrap();
        let authority = Authority::of(Some(&file)).unwrap();
        assert_eq!(authority.path(), file);
        fs::write(&file, kubeconfig("certificate-authority-data: b2xk", "second")).unwrap();
        assert!(!is_told(&authority).await, "a new token is not a new authority");
        fs::write(&file, kubeconfig("certificate-authority-data: bmV3", "second")).unwrap();
        assert!(is_told(&authority).await);
    }

    #[test]
    fn the_machines_own_authorities_are_in_no_file_of_ours() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        fs::write(&file, kubeconfig("proxy-url: 'http://127.0.0.1'", "t")).unwrap();
        assert!(Authority::of(Some(&file)).is_none());
    }
}
