//! The memory of agents out of a real Chroma server: the collection is at the worker before it starts, and what is typed
//! wrong is named.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use api::{aidispatcher::Phase, conditions, reasons};
use local_cluster::{HUB_ADDRESS, Service, tools::PythonPackage};
use serde_json::{Value, json};
use tests::{
    Scene, ask_until,
    dispatcher::{change, condition, create, until, until_proven, until_ready, until_reason, workers},
    real, within,
};

use super::{agents, held};

/// More than three pages of the loader.
const RECORDS: usize = 900;
const DIM: usize = 4;
const COLLECTION: &str = "planner-memory";
/// What its command line is called with.
const PROGRAM: &str =
    "import sys, chromadb_rust_bindings; chromadb_rust_bindings.cli(['chroma', *sys.argv[1:]])";

#[tokio::test]
async fn a_collection_of_a_real_chroma_is_there_before_the_worker_and_what_is_wrong_is_named() {
    let scene = real().await;
    let chroma = Chroma::start(&scene).await;
    let memory = |collection: &str, dim: usize| json!({"memoryConfig": {"collection": collection, "dim": dim, "endpoint": chroma.endpoint()}});
    create(&scene, "planners", agents(memory(COLLECTION, DIM))).await;
    until_ready(&scene, "planners").await;
    let worker = workers(&scene, "planners").await.remove(0).metadata.name.unwrap();
    assert_eq!(held(&scene, &worker).expect("it answers")["memories"], json!(RECORDS));
    until_proven(&scene, "planners", 1).await;

    for (wrong, reason, words) in [
        (memory("planer-memory", DIM), reasons::COLLECTION_NOT_FOUND, "memoryConfig.collection"),
        (memory(COLLECTION, 1536), reasons::DIM_MISMATCH, "have 4 dimensions"),
    ] {
        change(&scene, "planners", wrong).await;
        let failed = until_reason(&scene, "planners", conditions::MEMORY_READY, reason).await;
        assert_eq!(failed.status.as_ref().unwrap().current_phase, Some(Phase::Failed));
        let message = &condition(&failed, conditions::MEMORY_READY).unwrap().message;
        assert!(message.contains(words), "{message}");
        assert_eq!(failed.status.unwrap().available_replicas, 1, "the worker with a memory goes on");
    }

    chroma.stop().await;
    let mut away = memory(COLLECTION, DIM);
    away["env"] = json!([{"name": "REVISION", "value": "2"}]);
    change(&scene, "planners", away).await;
    until_reason(&scene, "planners", conditions::MEMORY_READY, reasons::STORE_UNREACHABLE).await;
    chroma.start_again().await;
    let back = until(&scene, "planners", "the store is back", tests::dispatcher::is_ready).await;
    assert_eq!(condition(&back, conditions::MEMORY_READY).unwrap().reason, reasons::LOADED);
}

/// A Chroma that pods of real nodes reach, with one collection. It ends with the cluster.
struct Chroma<'a> {
    scene: &'a Scene<'static>,
    name: String,
    port: u16,
}

impl<'a> Chroma<'a> {
    async fn start(scene: &'a Scene<'static>) -> Self {
        static NEXT_PORT: AtomicU16 = AtomicU16::new(9300);
        let name = format!("chroma-{}", scene.namespace());
        let package = local_cluster::tools::ensure_chroma().expect("Chroma is installed");
        let folder = scene.folder().root().join(&name);
        fill(&package, &folder).await;
        let chroma = Self { scene, name, port: NEXT_PORT.fetch_add(1, Ordering::Relaxed) };
        let service = Service {
            name: chroma.name.clone(),
            program: package.python.clone(),
            args: arguments(&folder, &HUB_ADDRESS.to_string(), chroma.port),
            env: [("PYTHONPATH".to_owned(), package.folder.display().to_string())].into(),
        };
        scene.start_service(service).await.expect("Chroma starts");
        chroma
    }

    fn endpoint(&self) -> String {
        format!("http://{HUB_ADDRESS}:{}", self.port)
    }

    async fn stop(&self) {
        self.scene.stop_component(&self.name).await.expect("Chroma stops");
    }

    async fn start_again(&self) {
        self.scene.start_component(&self.name).await.expect("Chroma starts");
    }
}

fn arguments(folder: &Path, host: &str, port: u16) -> Vec<String> {
    let (folder, port) = (folder.display().to_string(), port.to_string());
    ["-c", PROGRAM, "run", "--path", &folder, "--host", host, "--port", &port].map(str::to_owned).into()
}

/// Makes the collection with a server on this machine: the network of the nodes is another one.
async fn fill(package: &PythonPackage, folder: &Path) {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let _server = Server(
        Command::new(&package.python)
            .args(arguments(folder, "127.0.0.1", address.port()))
            .env("PYTHONPATH", &package.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Chroma starts"),
    );
    ask_until("Chroma answers", within(), async || match ask(address, "GET", "/api/v2/heartbeat", "") {
        Ok(answer) if answer.contains("nanosecond heartbeat") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let collections = "/api/v2/tenants/default_tenant/databases/default_database/collections";
    let made = ask(address, "POST", collections, &json!({"name": COLLECTION}).to_string());
    let made: Value = serde_json::from_str(&made.unwrap()).unwrap();
    let place = format!("{collections}/{}", made["id"].as_str().expect("an id"));
    let records = json!({
        "ids": (0..RECORDS).map(|number| format!("id-{number}")).collect::<Vec<_>>(),
        "documents": (0..RECORDS).map(|number| format!("text {number}")).collect::<Vec<_>>(),
        "embeddings": (0..RECORDS).map(|number| vec![number as f32; DIM]).collect::<Vec<_>>(),
    });
    ask(address, "POST", &format!("{place}/add"), &records.to_string()).unwrap();
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The body of a successful answer.
fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<String, String> {
    let answer = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: chroma\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = answer().map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no head")?;
    if head.split(' ').nth(1).is_none_or(|status| !status.starts_with('2')) {
        return Err(answer);
    }
    Ok(body.to_owned())
}
