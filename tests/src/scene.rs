//! A test's namespace in a cluster, and its client.

use std::{
    fmt::Debug,
    fs,
    ops::Deref,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use api::controllers::CONTROLLERS;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{coordination::v1::Lease, core::v1::Namespace},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, DynamicObject, PostParams},
    core::ObjectMeta,
};
use local_cluster::{Cluster, api_server::install, explained};
use serde::de::DeserializeOwned;

use crate::wait::{follow, wait_for, within};

/// The controllers' default interval of Lease renewals.
const RENEWED_WITHIN: Duration = Duration::from_secs(2);

/// Lines of each controller that a failed test prints.
const SHOWN_OF_A_LOG: usize = 20;
/// Characters of such a line.
const SHOWN_OF_A_LINE: usize = 400;

/// A namespace in a cluster; dereferences to the cluster.
pub struct Scene<'a> {
    cluster: &'a Cluster,
    client: Client,
    namespace: String,
}

impl<'a> Scene<'a> {
    /// Creates a namespace.
    pub async fn new(cluster: &'a Cluster) -> Self {
        Self::with_labels(cluster, []).await
    }

    /// Creates a namespace that enforces Pod Security `restricted`.
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

    /// A client with all rights, for the async runtime of this test.
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

    /// Runs `act`, waits until `cause` holds for an object with these labels and `effect` for the other object, and checks the
    /// time between them. Both are watched from the start of `act`.
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

    /// Applies a manifest with server-side apply; this namespace is the default.
    pub async fn apply(&self, yaml: &str) -> local_cluster::Result<Vec<DynamicObject>> {
        install::apply(&self.client, &self.namespace, yaml).await
    }

    /// Runs the cluster's kubectl in this namespace with this standard input.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> Output {
        use std::io::Write as _;

        let mut child = Command::new(self.cluster.kubectl())
            .args(["--namespace", &self.namespace])
            .args(args)
            .env("KUBECONFIG", self.cluster.folder().kubeconfig())
            // A separate discovery cache, because clusters differ.
            .env("KUBECACHEDIR", self.cluster.folder().root().join("kubectl-cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        // kubectl may exit before it has read all input.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().expect("kubectl ends")
    }

    /// The last lines of each controller about this namespace, and its last failures that are about no object.
    fn print_logs(&self) {
        for controller in CONTROLLERS {
            let log = fs::read_to_string(self.cluster.folder().log(controller.name)).unwrap_or_default();
            let own = format!("\"{}/", self.namespace);
            let telling = |line: &&str| {
                line.contains(&own) || !line.contains(r#""level":"INFO""#) && !line.contains(r#""object":"#)
            };
            let mut last: Vec<&str> = log.lines().rev().filter(telling).take(SHOWN_OF_A_LOG).collect();
            last.reverse();
            for line in last {
                eprintln!("{}: {}", controller.name, line.chars().take(SHOWN_OF_A_LINE).collect::<String>());
            }
        }
    }

    /// The output of kubectl; panics with its error output if it fails.
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
    /// Deletes the namespace in the background, so that its pods release their GPUs. After a failed test it first prints what
    /// the controllers logged of it: the cluster and its logs end with this process.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
        // The test's async runtime may have ended, and must not be blocked.
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                    return;
                };
                runtime.block_on(async {
                    let Ok(client) = self.cluster.client().await else { return };
                    let namespaces: Api<Namespace> = Api::all(client);
                    // Errors are ignored: the cluster may be down.
                    let _ = namespaces.delete(&self.namespace, &DeleteParams::default()).await;
                });
            });
        });
    }
}

/// Waits until the leader has renewed its Lease `times` times, two seconds apart, instead of sleeping.
pub async fn until_renewed(scene: &Scene<'_>, controller: &str, times: usize) {
    let leases: Api<Lease> = Api::namespaced(scene.client(), "ai-system");
    let mut seen = Vec::new();
    let deadline = within() + RENEWED_WITHIN * u32::try_from(times).unwrap_or(u32::MAX);
    wait_for(&leases, controller, "renewed", deadline, |lease: &Lease| {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        if seen.last() != Some(&renewed) {
            seen.push(renewed);
        }
        seen.len() > times
    })
    .await;
}
