//! The cluster's keys, certificates and kubeconfigs. Made anew for each cluster, in memory, and written as files; while
//! it runs, the server certificate or the whole authority can be replaced. Processes that use the files have to notice
//! by themselves.
//!
//! P-256 throughout. Nothing here is meant to be trusted by anything but this one cluster.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use kube::config::Kubeconfig;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};

use crate::{
    Error, Folder, Result,
    machine::{
        files::write_atomically,
        network::{HUB, node_name},
    },
};

/// Group whose members may do everything.
const ADMINISTRATORS: &str = "system:masters";

/// Names under which clients reach the API server.
const API_SERVER_NAMES: [&str; 7] = [
    "127.0.0.1",
    // The first address of the service range, which is that of the Service `kubernetes`.
    "10.96.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// Components that log in with a client certificate, and the name that Kubernetes' own roles expect.
const COMPONENT_USERS: [(&str, &str); 4] = [
    ("kube-controller-manager", "system:kube-controller-manager"),
    ("kube-scheduler", "system:kube-scheduler"),
    ("kwok", KWOK_USER),
    ("coredns", NAMES_USER),
];

/// The user as which kwok plays kubelet for all simulated nodes.
pub(crate) const KWOK_USER: &str = "kwok-controller";

/// The user that answers questions about names, in clusters with real nodes.
pub(crate) const NAMES_USER: &str = "coredns";

/// Users on real nodes, where the API server has another address: kubelets have a name and a group by which it
/// limits them to their own objects.
const NODES_GROUP: &str = "system:nodes";
const KUBE_PROXY: (&str, &str) = ("kube-proxy", "system:kube-proxy");

/// Where the files are that command lines refer to.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    folder: PathBuf,
}

impl Credentials {
    pub(crate) fn of(folder: &Folder) -> Self {
        Self { folder: folder.credentials() }
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Used only here, to sign later what is renewed.
    fn authority_key(&self) -> PathBuf {
        self.folder.join("ca.key")
    }

    pub(crate) fn server_certificate(&self) -> PathBuf {
        self.folder.join("apiserver.crt")
    }

    pub(crate) fn server_key(&self) -> PathBuf {
        self.folder.join("apiserver.key")
    }

    pub(crate) fn token_signing_key(&self) -> PathBuf {
        self.folder.join("sa.key")
    }

    /// The API server refuses a private key in its place.
    pub(crate) fn token_checking_key(&self) -> PathBuf {
        self.folder.join("sa.pub")
    }

    pub(crate) fn kubelet_client_certificate(&self) -> PathBuf {
        self.folder.join("kubelet-client.crt")
    }

    pub(crate) fn kubelet_client_key(&self) -> PathBuf {
        self.folder.join("kubelet-client.key")
    }

    pub(crate) fn kubeconfig(&self, component: &str) -> PathBuf {
        self.folder.join(format!("{component}.kubeconfig"))
    }

    pub(crate) fn token(&self, component: &str) -> PathBuf {
        self.folder.join(format!("{component}.token"))
    }
}

/// Makes all keys and certificates, and a kubeconfig for the administrator and each component.
pub(crate) fn create(folder: &Folder, port: u16) -> Result<()> {
    let files = Credentials::of(folder);
    let tokens =
        KeyPair::generate().map_err(|error| Error::invalid("make", "the ServiceAccount key", error))?;
    write_secret(&files.token_signing_key(), tokens.serialize_pem().as_bytes())?;
    write_secret(&files.token_checking_key(), tokens.public_key_pem().as_bytes())?;
    replace_authority(folder, port)
}

/// A kubeconfig for each real node, and one that their kube-proxies share.
pub(crate) fn create_for_nodes(folder: &Folder, nodes: u32, port: u16) -> Result<()> {
    let files = Credentials::of(folder);
    let authority = read_authority(&files)?;
    let server = format!("https://{HUB}:{port}");
    let kubelets = (0..nodes).map(|index| {
        let name = node_name(index);
        let user = format!("system:node:{name}");
        (name, user, Some(NODES_GROUP))
    });
    let (component, user) = KUBE_PROXY;
    for (component, user, group) in kubelets.chain([(component.to_owned(), user.to_owned(), None)]) {
        let pair = client(&authority, &user, group)
            .map_err(|error| Error::invalid("make the certificate of", &user, error))?;
        write_kubeconfig(&files.kubeconfig(&component), folder, &server, certificate_login(&pair))?;
    }
    Ok(())
}

/// Makes an authority, and with it everything that an authority signs: what an earlier one signed is rejected by
/// those who read the files from now on. Tokens stay valid.
pub(crate) fn replace_authority(folder: &Folder, port: u16) -> Result<()> {
    let files = Credentials::of(folder);
    let (certificate, authority) =
        authority().map_err(|error| Error::invalid("make", "the cluster's authority", error))?;
    write_secret(&files.authority_key(), authority.key().serialize_pem().as_bytes())?;
    write_secret(&files.authority(), certificate.as_bytes())?;
    write_server_certificate(&files, &authority)?;

    let signed = |user: &str, group: Option<&str>| {
        client(&authority, user, group)
            .map_err(|error| Error::invalid("make the certificate of", user, error))
    };
    let kubelet_client = signed("kube-apiserver-kubelet-client", Some(ADMINISTRATORS))?;
    write_secret(&files.kubelet_client_certificate(), kubelet_client.certificate.as_bytes())?;
    write_secret(&files.kubelet_client_key(), kubelet_client.key.as_bytes())?;

    let administrator = signed("admin", Some(ADMINISTRATORS))?;
    let server = on_this_machine(port);
    write_kubeconfig(&folder.kubeconfig(), folder, &server, certificate_login(&administrator))?;
    for (component, user) in COMPONENT_USERS {
        let pair = signed(user, None)?;
        write_kubeconfig(&files.kubeconfig(component), folder, &server, certificate_login(&pair))?;
    }
    Ok(())
}

/// Another server certificate by the same authority.
pub(crate) fn renew_server_certificate(folder: &Folder) -> Result<()> {
    let files = Credentials::of(folder);
    write_server_certificate(&files, &read_authority(&files)?)
}

/// What signs, as it was made.
fn read_authority(files: &Credentials) -> Result<Authority> {
    let path = files.authority_key();
    let key = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let key =
        KeyPair::from_pem(&key).map_err(|error| Error::invalid("read", path.display().to_string(), error))?;
    let params =
        authority_params().map_err(|error| Error::invalid("describe", "the cluster's authority", error))?;
    Ok(Issuer::new(params, key))
}

/// One after the other: who reads in between finds a key that does not fit, and has to look again.
fn write_server_certificate(files: &Credentials, authority: &Authority) -> Result<()> {
    let server =
        server(authority).map_err(|error| Error::invalid("make", "the server certificate", error))?;
    write_secret(&files.server_certificate(), server.certificate.as_bytes())?;
    write_secret(&files.server_key(), server.key.as_bytes())
}

/// Makes the kubeconfig of a cluster that exists the administrator's, with absolute paths, and returns the address of
/// its API server.
pub(crate) fn adopt(folder: &Folder, kubeconfig: &Path) -> Result<String> {
    let read = read_kubeconfig(kubeconfig)?;
    let text = serde_saphyr::to_string(&read)
        .map_err(|error| Error::invalid("copy", kubeconfig.display().to_string(), error))?;
    write_secret(&folder.kubeconfig(), text.as_bytes())?;
    let cluster = current_cluster(&read, kubeconfig)?;
    Ok(cluster.server.clone().unwrap_or_default())
}

/// How a controller reaches the API server of a cluster of this crate.
pub(crate) fn own_server(folder: &Folder, port: u16) -> Value {
    server_entry(folder, &on_this_machine(port))
}

/// How a controller reaches the API server of a cluster that was adopted: as its administrator does.
pub(crate) fn adopted_server(folder: &Folder) -> Result<Value> {
    let path = folder.kubeconfig();
    let cluster = current_cluster(&read_kubeconfig(&path)?, &path)?.clone();
    serde_json::to_value(cluster).map_err(|error| Error::invalid("read", path.display().to_string(), error))
}

fn read_kubeconfig(path: &Path) -> Result<Kubeconfig> {
    Kubeconfig::read_from(path).map_err(|error| Error::invalid("read", path.display().to_string(), error))
}

/// The cluster that `current-context` leads to.
fn current_cluster<'a>(kubeconfig: &'a Kubeconfig, path: &Path) -> Result<&'a kube::config::Cluster> {
    let named = || {
        let current = kubeconfig.current_context.as_ref()?;
        let context =
            kubeconfig.contexts.iter().find(|context| context.name == *current)?.context.as_ref()?;
        kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster)?.cluster.as_ref()
    };
    let reason = "its current-context leads to no cluster";
    named().ok_or_else(|| Error::invalid("use", path.display().to_string(), reason))
}

/// A kubeconfig whose token is read from a file again and again, so that it can be renewed under a running process.
pub(crate) fn write_token_kubeconfig(folder: &Folder, component: &str, server: &Value) -> Result<PathBuf> {
    let files = Credentials::of(folder);
    let path = files.kubeconfig(component);
    write_login(&path, folder, server, json!({ "tokenFile": files.token(component) }))?;
    Ok(path)
}

/// Replaces a file that only its owner may read.
pub(crate) fn write_secret(path: &Path, content: &[u8]) -> Result<()> {
    write_atomically(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(Error::io("protect", path))
}

fn on_this_machine(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// How a user of a kubeconfig logs in with a certificate.
fn certificate_login(pair: &Pair) -> Value {
    json!({
        "client-certificate-data": base64(pair.certificate.as_bytes()),
        "client-key-data": base64(pair.key.as_bytes()),
    })
}

fn write_kubeconfig(path: &Path, folder: &Folder, server: &str, user: Value) -> Result<()> {
    write_login(path, folder, &server_entry(folder, server), user)
}

/// A server with the authority of this cluster.
fn server_entry(folder: &Folder, server: &str) -> Value {
    // A file, as in a pod, where its replacement can be noticed.
    json!({ "server": server, "certificate-authority": Credentials::of(folder).authority() })
}

/// A kubeconfig with one server and one user.
fn write_login(path: &Path, folder: &Folder, server: &Value, user: Value) -> Result<()> {
    let name = folder.name();
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": name, "user": user}],
    });
    let text = serde_saphyr::to_string(&kubeconfig)
        .map_err(|error| Error::invalid("write", path.display().to_string(), error))?;
    write_secret(path, text.as_bytes())
}

struct Pair {
    certificate: String,
    key: String,
}

type Authority = Issuer<'static, KeyPair>;

/// Its own certificate, and what signs others.
fn authority() -> std::result::Result<(String, Authority), rcgen::Error> {
    let (params, key) = (authority_params()?, KeyPair::generate()?);
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), Issuer::new(params, key)))
}

fn authority_params() -> std::result::Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "local-cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

fn server(authority: &Authority) -> std::result::Result<Pair, rcgen::Error> {
    // In the network of real nodes it has another address.
    let names: Vec<String> =
        API_SERVER_NAMES.map(str::to_owned).into_iter().chain([HUB.to_string()]).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(&params, authority)
}

fn client(authority: &Authority, user: &str, group: Option<&str>) -> std::result::Result<Pair, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(&params, authority)
}

fn sign(params: &CertificateParams, authority: &Authority) -> std::result::Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// k8s-openapi already encodes bytes for JSON, which saves a dependency.
fn base64(bytes: &[u8]) -> Value {
    json!(k8s_openapi::ByteString(bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_have_the_shapes_that_kubernetes_reads() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(root.path().to_owned());
        fs::create_dir_all(folder.credentials()).unwrap();
        create(&folder, 6443).unwrap();
        let files = Credentials::of(&folder);
        assert!(fs::read_to_string(files.token_signing_key()).unwrap().contains("BEGIN PRIVATE KEY"));
        assert!(fs::read_to_string(files.token_checking_key()).unwrap().contains("BEGIN PUBLIC KEY"));
        let kubeconfig = kube::config::Kubeconfig::read_from(folder.kubeconfig()).unwrap();
        let server = kubeconfig.clusters[0].cluster.as_ref().unwrap().server.clone();
        assert_eq!(server.as_deref(), Some("https://127.0.0.1:6443"));
    }

    #[test]
    fn a_controller_reaches_an_adopted_cluster_as_its_administrator_does_and_has_no_right_of_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(root.path().join("own"));
        fs::create_dir_all(folder.credentials()).unwrap();
        let given = root.path().join("given");
        let text = r#"
current-context: b
contexts: [{name: a, context: {cluster: a, user: a}}, {name: b, context: {cluster: b, user: b}}]
clusters:
- {name: a, cluster: {server: "https://a:1"}}
- {name: b, cluster: {server: "https://b:2", certificate-authority: ca.crt, tls-server-name: b.example}}
users: [{name: a, user: {token: wrong}}, {name: b, user: {token: secret}}]
"#;
        fs::write(&given, text).unwrap();
        assert_eq!(adopt(&folder, &given).unwrap(), "https://b:2");
        let controller =
            write_token_kubeconfig(&folder, "controller", &adopted_server(&folder).unwrap()).unwrap();
        let written = fs::read_to_string(&controller).unwrap();
        assert!(!written.contains("secret"), "{written}");
        let read = Kubeconfig::read_from(&controller).unwrap();
        let cluster = current_cluster(&read, &controller).unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://b:2"));
        assert_eq!(cluster.tls_server_name.as_deref(), Some("b.example"));
        let authority = root.path().join("ca.crt");
        assert_eq!(cluster.certificate_authority.as_deref(), authority.to_str());
    }

    #[test]
    fn a_kubeconfig_that_leads_to_no_cluster_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let given = root.path().join("given");
        fs::write(&given, "current-context: gone\n").unwrap();
        let refused = adopt(&Folder::at(root.path().to_owned()), &given).unwrap_err().to_string();
        assert!(refused.contains("current-context leads to no cluster"), "{refused}");
    }

    #[test]
    fn a_renewal_replaces_what_it_names_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(root.path().to_owned());
        fs::create_dir_all(folder.credentials()).unwrap();
        create(&folder, 6443).unwrap();
        let files = Credentials::of(&folder);
        let read = || {
            [files.token_signing_key(), files.authority(), folder.kubeconfig(), files.server_certificate()]
                .map(|path| fs::read_to_string(path).unwrap())
        };
        let made = read();
        renew_server_certificate(&folder).unwrap();
        let renewed = read();
        assert_eq!(made[..3], renewed[..3]);
        assert_ne!(made[3], renewed[3]);
        replace_authority(&folder, 6443).unwrap();
        let replaced = read();
        assert_eq!(made[0], replaced[0]);
        assert!((1..4).all(|file| renewed[file] != replaced[file]));
    }
}
