//! A test's place in a cluster: a namespace of its own, and a client that belongs to the test's runtime.

use std::{
    fmt::Debug,
    ops::Deref,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use k8s_openapi::{NamespaceResourceScope, api::core::v1::Namespace};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, DynamicObject, PostParams},
    core::ObjectMeta,
};
use local_cluster::{Cluster, explained, install};
use serde::de::DeserializeOwned;

use crate::{follow, within};

/// A namespace in a cluster. It dereferences to the cluster.
pub struct Scene<'a> {
    cluster: &'a Cluster,
    client: Client,
    namespace: String,
}

impl<'a> Scene<'a> {
    /// A fresh namespace.
    pub async fn new(cluster: &'a Cluster) -> Self {
        Self::with_labels(cluster, []).await
    }

    /// A fresh namespace in which Pod Security `restricted` is enforced.
    pub async fn restricted(cluster: &'a Cluster) -> Self {
        Self::with_labels(cluster, [("pod-security.kubernetes.io/enforce", "restricted")]).await
    }

    async fn with_labels<const N: usize>(cluster: &'a Cluster, labels: [(&str, &str); N]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let client = cluster.client().await.unwrap_or_else(|error| panic!("{}", explained(&error)));
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let metadata =
            ObjectMeta { name: Some(namespace.clone()), labels: Some(labels), ..ObjectMeta::default() };
        let object = Namespace { metadata, ..Namespace::default() };
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &object).await.expect("a namespace for the test");
        Self { cluster, client, namespace }
    }

    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A client with all rights, for the runtime of this test alone.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Objects of one kind in this test's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Objects of one kind in the whole cluster.
    pub fn cluster_api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        Api::all(self.client())
    }

    /// Waits for an effect that must be seen soon after its cause, and returns it. Both are watched from the moment on at
    /// which `act` begins; `cause` holds of one of the objects with these labels.
    pub fn soon_after<C, E>(
        &self,
        (labels, cause): (&str, impl Fn(&C) -> bool),
        limit: Duration,
        act: impl Future,
        effect: impl Future<Output = E>,
    ) -> impl Future<Output = E>
    where
        C: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api = self.api::<C>();
        // Three requests at once make a large future.
        Box::pin(async move {
            let caused = follow(&api, labels, |all| all.values().any(&cause).then(Instant::now));
            let caused = async {
                tokio::time::timeout(within(), caused).await.expect("the cause of what the test is about")
            };
            let effected = async { (effect.await, Instant::now()) };
            let (_, caused, (effect, effected)) = futures::join!(act, caused, effected);
            let took = effected.saturating_duration_since(caused);
            assert!(took <= limit, "seen {took:?} after its cause, instead of {limit:?}");
            effect
        })
    }

    /// Applies a manifest with server-side apply, in this namespace where it names none.
    pub async fn apply(&self, yaml: &str) -> local_cluster::Result<Vec<DynamicObject>> {
        install::apply(&self.client, &self.namespace, yaml).await
    }

    /// Runs the cluster's own kubectl in this namespace, with something on its standard input.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> Output {
        use std::io::Write as _;

        let mut child = Command::new(self.cluster.kubectl())
            .args(["--namespace", &self.namespace])
            .args(args)
            .env("KUBECONFIG", self.cluster.folder().kubeconfig())
            // Its cache of what the server serves would otherwise be shared by clusters that are not alike.
            .env("KUBECACHEDIR", self.cluster.folder().root().join("kubectl-cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        // kubectl may refuse before it has read everything.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().expect("kubectl ends")
    }

    /// What kubectl prints; panics with what it complains about if it fails.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let output = self.kubectl_with_input(args, "");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {} failed: {complaint}", args.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Deref for Scene<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

impl Drop for Scene<'_> {
    /// Asks for the namespace's deletion, so that its pods give their GPUs back, and does not wait for it.
    fn drop(&mut self) {
        // The test's runtime may be gone already, and a blocking wait inside of it is not allowed.
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                    return;
                };
                runtime.block_on(async {
                    let Ok(client) = self.cluster.client().await else { return };
                    let namespaces: Api<Namespace> = Api::all(client);
                    // The cluster may be down on purpose, or end with this very test.
                    let _ = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
                });
            });
        });
    }
}
