//! The part of a kubelet that the metrics-agent speaks to: the pod-resources API on a socket, with an answer that the
//! caller changes. The program of this crate gives that answer for the pods of a simulated node.

#![forbid(unsafe_code)]

pub mod gpus;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use proto::podresources::v1::{
    ClaimResource, ContainerDevices, ContainerResources, DynamicResource, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
    pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
};
use tokio::{net::UnixListener, runtime::Runtime};
use tonic::{Request, Response, Status, transport::Server};

/// The resource of NVIDIA's device plugin.
pub const GPU: &str = "nvidia.com/gpu";

/// A kubelet that stops with this value.
pub struct Kubelet {
    socket: PathBuf,
    state: Arc<State>,
    /// Its own, because the connections must end with it as they end with a process.
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct State {
    answer: Mutex<ListPodResourcesResponse>,
    questions: AtomicUsize,
    connections: AtomicUsize,
}

struct Lister(Arc<State>);

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.0.questions.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(self.0.answer().clone()))
    }
}

impl State {
    fn answer(&self) -> MutexGuard<'_, ListPodResourcesResponse> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kubelet {
    /// Listens on the socket `kubelet.sock` of a folder, where one that has ended may have left its own.
    pub fn start(folder: &Path, pods: Vec<PodResources>) -> io::Result<Self> {
        let socket = folder.join("kubelet.sock");
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let entered = runtime.enter();
        let listener = UnixListener::bind(&socket)?;
        drop(entered);
        let state = Arc::new(State {
            answer: Mutex::new(ListPodResourcesResponse { pod_resources: pods }),
            ..State::default()
        });
        let incoming = futures::stream::unfold((listener, Arc::clone(&state)), |(listener, state)| async {
            let (stream, _) = listener.accept().await.ok()?;
            state.connections.fetch_add(1, Ordering::Relaxed);
            Some((Ok::<_, io::Error>(stream), (listener, state)))
        });
        let service =
            PodResourcesListerServer::new(Lister(Arc::clone(&state))).max_encoding_message_size(usize::MAX);
        runtime.spawn(async move {
            // After an error, clients find a closed socket.
            let _ = Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
        Ok(Self { socket, state, runtime: Some(runtime) })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on these are the pods of the node.
    pub fn set_pods(&self, pods: Vec<PodResources>) {
        self.state.answer().pod_resources = pods;
    }

    /// How often it was asked.
    pub fn questions(&self) -> usize {
        self.state.questions.load(Ordering::Relaxed)
    }

    /// How many connections it has had.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A pod of the namespace `ml` with one container that holds these ids of a resource.
pub fn pod(name: &str, resource: &str, ids: &[&str]) -> PodResources {
    holding("ml", name, "engine", resource, ids.iter().map(|id| (*id).to_owned()).collect())
}

/// A pod with one container that holds these ids of a resource.
pub fn holding(
    namespace: &str,
    name: &str,
    container: &str,
    resource: &str,
    device_ids: Vec<String>,
) -> PodResources {
    let devices = vec![ContainerDevices { resource_name: resource.to_owned(), device_ids }];
    with(namespace, name, ContainerResources { name: container.to_owned(), devices, ..Default::default() })
}

/// A pod of the namespace `ml` with a resource claim for one device.
pub fn claiming(name: &str, driver: &str, device: &str) -> PodResources {
    let device = ClaimResource {
        driver_name: driver.to_owned(),
        pool_name: "node-1".to_owned(),
        device_name: device.to_owned(),
    };
    let claim = DynamicResource { claim_resources: vec![device], ..DynamicResource::default() };
    let container = ContainerResources {
        name: "engine".to_owned(),
        dynamic_resources: vec![claim],
        ..ContainerResources::default()
    };
    with("ml", name, container)
}

fn with(namespace: &str, name: &str, container: ContainerResources) -> PodResources {
    PodResources { name: name.to_owned(), namespace: namespace.to_owned(), containers: vec![container] }
}
